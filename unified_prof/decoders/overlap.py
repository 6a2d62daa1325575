"""Writes OVERLAP_ANALYSIS: compute, communication, exposed communication and idle intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import Ints
from unified_prof.arrays.intervals import IntervalSet, merge, subtract
from unified_prof.base.columns import Sink
from unified_prof.decoders.spool import WINDOW_ROWS, Spool, row_type, windows

_COMPUTE, _COMMUNICATION, _NOT_OVERLAPPED, _FREE = range(4)
# Kinds that add up to the time of a device.
_PARTITION = (_COMPUTE, _NOT_OVERLAPPED, _FREE)
_SPAN = row_type("key i8, end i8")

NewSpool = Callable[[np.dtype[Any], str], Spool]  # Returns a spool of a dtype, sorted by a key.

Spans = tuple[Ints, Ints]  # Starts and ends, ns.


class OverlapWriter:
    """Writes the intervals of all devices to OVERLAP_ANALYSIS.

    If `with_empty` is true, an empty interval is written for each kind that a device does not have:
    MindStudio Insight sums three kinds and fails if one is missing. The msprof exporter does not
    write empty intervals.
    """

    def __init__(
        self,
        sink: Sink,
        new_spool: NewSpool,
        window_rows: int = WINDOW_ROWS,
        *,
        with_empty: bool = False,
    ) -> None:
        self._sink = sink
        self.new_spool, self.window_rows, self.with_empty = new_spool, window_rows, with_empty
        self._next_id = 0

    def device(self, device_id: int) -> DeviceOverlap:
        """Return the collector for the intervals of one device."""
        return DeviceOverlap(self, device_id)

    def write(self, device_id: int, kind: int, spans: IntervalSet) -> None:
        """Write intervals of one kind."""
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


class DeviceOverlap:
    """Collects the intervals of one device; compute intervals are spooled.

    Use as a context manager, like `Spool`.
    """

    def __init__(self, writer: OverlapWriter, device_id: int) -> None:
        self._writer, self._device_id = writer, device_id
        self._window_rows = writer.window_rows
        self._computing = writer.new_spool(_SPAN, "key")
        self._written: set[int] = set()
        self._last = merge(*_NONE)
        self._first_ns, self._last_ns = np.iinfo(np.int64).max, np.iinfo(np.int64).min

    def __enter__(self) -> DeviceOverlap:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._computing.__exit__()

    def add(self, tasks: Spans, compute: Spans) -> None:
        """Add tasks and the compute tasks among them, sorted by start.

        Idle time is between the first and the last task.
        """
        if len(tasks[0]):
            self._first_ns = min(self._first_ns, int(tasks[0].min()))
            self._last_ns = max(self._last_ns, int(tasks[1].max()))
        merged = merge(
            np.concatenate([self._last.start_ns, compute[0]]),
            np.concatenate([self._last.end_ns, compute[1]]),
            keep_empty=True,
        )
        # Only the last interval can still grow, since later tasks start later.
        self._last = IntervalSet(merged.start_ns[-1:], merged.end_ns[-1:])
        self._spool(IntervalSet(merged.start_ns[:-1], merged.end_ns[:-1]))

    def finish(self, communication: Spans) -> None:
        """Write all intervals; `communication` contains those of collective operators."""
        self._spool(self._last)
        communicating = merge(*communication, keep_empty=True)
        if self._computing.rows or len(communicating):
            self._write_all(communicating)
        elif self._writer.with_empty and self._first_ns <= self._last_ns:
            self._write(_FREE, _single(self._first_ns, self._last_ns))
        if self._writer.with_empty and self._written:
            for kind in _PARTITION:
                if kind not in self._written:
                    self._write(kind, _single(self._first_ns, self._first_ns))

    def _write_all(self, communicating: IntervalSet) -> None:
        overlapped = [merge(*_NONE)]
        for (rows,) in windows(self._computing, window_rows=self._window_rows):
            spans = IntervalSet(rows["key"].copy(), rows["end"].copy())
            self._write(_COMPUTE, spans)
            overlapped.append(_touching(spans, communicating))
        self._write(_COMMUNICATION, communicating)
        computing = IntervalSet(
            np.concatenate([spans.start_ns for spans in overlapped]),
            np.concatenate([spans.end_ns for spans in overlapped]),
        )
        self._write(_NOT_OVERLAPPED, subtract(communicating, computing))
        self._write_free(communicating)

    def _write(self, kind: int, spans: IntervalSet) -> None:
        if len(spans):
            self._written.add(kind)
            self._writer.write(self._device_id, kind, spans)

    def _spool(self, spans: IntervalSet) -> None:
        rows = np.empty(len(spans), _SPAN)
        rows["key"], rows["end"] = spans.start_ns, spans.end_ns
        self._computing.append(rows)

    def _write_free(self, communicating: IntervalSet) -> None:
        """Write the idle intervals between the first and the last task."""
        reach: int | None = None
        place = 0
        for (rows,) in windows(self._computing, window_rows=self._window_rows):
            if reach is None:
                reach = self._begin(communicating, int(rows["key"][0]))
            until = int(np.searchsorted(communicating.start_ns, rows["key"][-1], side="right"))
            reach = self._gaps(
                reach,
                np.concatenate([rows["key"], communicating.start_ns[place:until]]),
                np.concatenate([rows["end"], communicating.end_ns[place:until]]),
            )
            place = until
        if reach is None:
            reach = self._begin(communicating, int(communicating.start_ns[0]))
        reach = self._gaps(reach, communicating.start_ns[place:], communicating.end_ns[place:])
        if reach < self._last_ns:
            self._write(_FREE, _single(reach, self._last_ns))

    def _begin(self, communicating: IntervalSet, first_ns: int) -> int:
        """Return the earliest start of a task, compute interval or collective."""
        begin = min(self._first_ns, first_ns)
        return min(begin, int(communicating.start_ns[0])) if len(communicating) else begin

    def _gaps(self, reach: int, start_ns: Ints, end_ns: Ints) -> int:
        """Write the gaps after `reach` and between the intervals; return the last end."""
        start_ns, end_ns = np.maximum(start_ns, reach), np.maximum(end_ns, reach)
        busy = merge(np.r_[reach, start_ns], np.r_[reach, end_ns], keep_empty=True)
        filled = busy.end_ns > busy.start_ns
        filled[:1] = True
        start, end = busy.start_ns[filled], busy.end_ns[filled]
        self._write(_FREE, IntervalSet(end[:-1], start[1:]))
        return int(end[-1])


def _touching(spans: IntervalSet, others: IntervalSet) -> IntervalSet:
    """Return the spans that touch any of the others; both sets consist of merged intervals."""
    after = np.searchsorted(others.end_ns, spans.start_ns, side="left")
    meets = after < len(others)
    meets[meets] = others.start_ns[after[meets]] <= spans.end_ns[meets]
    return IntervalSet(spans.start_ns[meets], spans.end_ns[meets])


def _single(start_ns: int, end_ns: int) -> IntervalSet:
    return IntervalSet(np.array([start_ns]), np.array([end_ns]))


_NONE = np.zeros(0, np.int64), np.zeros(0, np.int64)
