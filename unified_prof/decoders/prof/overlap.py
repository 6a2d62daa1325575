"""OVERLAP_ANALYSIS: when a device computed, communicated, did only the latter, did nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink

_COMPUTE, _COMMUNICATION, _NOT_OVERLAPPED, _FREE = range(4)

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Starts and ends."""


def merged(start: NDArray[np.int64], end: NDArray[np.int64]) -> Spans:
    """Return the union of intervals as sorted, disjoint intervals; touching ones are joined."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    begins = np.r_[True, start[1:] > reach[:-1]]
    return start[begins], reach[np.r_[begins[1:], True]]


def without(spans: Spans, removed: Spans) -> Spans:
    """Return what of disjoint sorted intervals lies outside others, disjoint and sorted too."""
    edges = np.concatenate([*spans, *removed])
    change = np.concatenate(
        [
            np.full(len(spans[0]), 1),
            np.full(len(spans[1]), -1),
            np.full(len(removed[0]), -2),
            np.full(len(removed[1]), 2),
        ]
    )
    order = np.argsort(edges, kind="stable")
    edges, level = edges[order], np.cumsum(change[order])
    wanted = np.flatnonzero((level[:-1] == 1) & (edges[1:] > edges[:-1]))
    return merged(edges[wanted], edges[wanted + 1])


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
        computing, talking = merged(*compute), merged(*communication)
        if not len(computing[0]) and not len(talking[0]):
            return
        busy = merged(
            np.concatenate([computing[0], talking[0]]), np.concatenate([computing[1], talking[1]])
        )
        bounds = (
            np.minimum(busy[0][:1], tasks[0].min(initial=busy[0][0])),
            np.maximum(busy[1][-1:], tasks[1].max(initial=busy[1][-1])),
        )
        for kind, spans in (
            (_COMPUTE, computing),
            (_COMMUNICATION, talking),
            (_NOT_OVERLAPPED, without(talking, computing)),
            (_FREE, without(bounds, busy)),
        ):
            count = len(spans[0])
            if count:
                self._sink.write(
                    "OVERLAP_ANALYSIS",
                    {
                        "id": np.arange(self._next_id, self._next_id + count),
                        "deviceId": device_id,
                        "startNs": spans[0],
                        "endNs": spans[1],
                        "type": kind,
                    },
                )
                self._next_id += count
