"""OVERLAP_ANALYSIS: when a device computed, communicated, did only the latter, did nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.intervals import IntervalSet, merge, subtract
from unified_prof.columns import Sink

_COMPUTE, _COMMUNICATION, _NOT_OVERLAPPED, _FREE = range(4)

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Starts and ends."""


class OverlapWriter:
    """Numbers and writes the intervals of one device after another."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._next_id = 0

    def write(self, device_id: int, tasks: Spans, compute: Spans, communication: Spans) -> None:
        """Write the intervals of one device.

        Args:
            device_id: the device.
            tasks: all tasks; they bound what can be free.
            compute: tasks that compute.
            communication: collective operators.
        """
        computing = merge(*compute, keep_empty=True)
        talking = merge(*communication, keep_empty=True)
        if not len(computing) and not len(talking):
            return
        busy = merge(
            np.concatenate([computing.start_ns, talking.start_ns]),
            np.concatenate([computing.end_ns, talking.end_ns]),
            keep_empty=True,
        )
        bounds = IntervalSet(
            np.minimum(busy.start_ns[:1], tasks[0].min(initial=busy.start_ns[0])),
            np.maximum(busy.end_ns[-1:], tasks[1].max(initial=busy.end_ns[-1])),
        )
        for kind, spans in (
            (_COMPUTE, computing),
            (_COMMUNICATION, talking),
            (_NOT_OVERLAPPED, subtract(talking, computing)),
            (_FREE, subtract(bounds, busy)),
        ):
            count = len(spans)
            if count:
                self._sink.write(
                    "OVERLAP_ANALYSIS",
                    {
                        "id": np.arange(self._next_id, self._next_id + count),
                        "deviceId": device_id,
                        "startNs": spans.start_ns,
                        "endNs": spans.end_ns,
                        "type": kind,
                    },
                )
                self._next_id += count
