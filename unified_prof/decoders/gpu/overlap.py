"""OVERLAP_ANALYSIS: when the devices of a recording computed, communicated, and did neither."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

import numpy as np

from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.parts import Parts
from unified_prof.decoders.overlap import DeviceOverlap, OverlapWriter, Spans
from unified_prof.decoders.rows import Rows

_COMPUTING = (r.KERNEL, r.GRAPH)


class Overlap:
    """Takes the tasks of all devices, by start. A context manager.

    Copies and memory sets are no work here, as for the exporter of msprof databases: they bound
    what can be free.
    """

    def __init__(self, parts: Parts, base_ns: int) -> None:
        self._writer = OverlapWriter(parts.sink, parts.new_spool, whole=True)
        self._base_ns = base_ns
        self._stack = ExitStack()
        self._devices: dict[int, DeviceOverlap] = {}
        self._communication: dict[int, list[Spans]] = {}

    def __enter__(self) -> Overlap:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def add(self, rows: Rows) -> None:
        """Take one window of tasks."""
        computes = np.isin(rows["kind"], _COMPUTING)
        communicates = rows["kind"] == r.COMMUNICATION
        for device in np.unique(rows["device"]).tolist():
            if device not in self._devices:
                opened = self._stack.enter_context(self._writer.device(device))
                self._devices[device], self._communication[device] = opened, []
            mine = rows["device"] == device
            self._devices[device].add(self._spans(rows[mine]), self._spans(rows[mine & computes]))
            self._communication[device].append(self._spans(rows[mine & communicates]))

    def finish(self) -> None:
        """Write the intervals of all devices, by number."""
        for device in sorted(self._devices):
            starts, ends = zip(*self._communication[device], strict=True)
            self._devices[device].finish((np.concatenate(starts), np.concatenate(ends)))

    def _spans(self, rows: Rows) -> Spans:
        return rows["start"] + self._base_ns, rows["end"] + self._base_ns
