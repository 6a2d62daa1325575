"""OVERLAP_ANALYSIS: when a device computed, communicated, did only the latter, did nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.intervals import IntervalSet, merge, subtract
from unified_prof.base.columns import Sink
from unified_prof.decoders.spool import WINDOW_ROWS, Spool, windows

_COMPUTE, _COMMUNICATION, _NOT_OVERLAPPED, _FREE = range(4)
_ADDED_UP = (_COMPUTE, _NOT_OVERLAPPED, _FREE)
"""What the time of a device consists of."""
_SPAN = np.dtype([("key", "i8"), ("end", "i8")])

NewSpool = Callable[[np.dtype[Any], str], Spool]
"""Makes a spool of a dtype by a key."""

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Starts and ends."""


class OverlapWriter:
    """Numbers and writes the intervals of one device after another.

    Args:
        sink: Takes the rows.
        new_spool: Makes places for intervals.
        window_rows: How many of them to look at at a time.
        whole: Whether every device with a task has all that its time consists of: what it had
            none of, for no time at all. MindStudio Insight adds the three up, and fails where it
            finds two. Exporters of msprof databases leave out what there was none of.
    """

    def __init__(
        self,
        sink: Sink,
        new_spool: NewSpool,
        window_rows: int = WINDOW_ROWS,
        *,
        whole: bool = False,
    ) -> None:
        self._sink = sink
        self.new_spool, self.window_rows, self.whole = new_spool, window_rows, whole
        self._next_id = 0

    def device(self, device_id: int) -> DeviceOverlap:
        """Return what takes the intervals of one device."""
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
    """The intervals of one device, of which the computing ones may be any number.

    A context manager, as `Spool` is.
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
        """Take more tasks, by start.

        Args:
            tasks: any tasks; they bound what can be free.
            compute: tasks that compute.
        """
        if len(tasks[0]):
            self._first_ns = min(self._first_ns, int(tasks[0].min()))
            self._last_ns = max(self._last_ns, int(tasks[1].max()))
        merged = merge(
            np.concatenate([self._last.start_ns, compute[0]]),
            np.concatenate([self._last.end_ns, compute[1]]),
            keep_empty=True,
        )
        # Only the last one can still grow: what comes later starts later.
        self._last = IntervalSet(merged.start_ns[-1:], merged.end_ns[-1:])
        self._put_away(IntervalSet(merged.start_ns[:-1], merged.end_ns[:-1]))

    def finish(self, communication: Spans) -> None:
        """Write all intervals.

        Args:
            communication: when collective operators were running.
        """
        self._put_away(self._last)
        talking = merge(*communication, keep_empty=True)
        if self._computing.rows or len(talking):
            self._write_all(talking)
        elif self._writer.whole and self._first_ns <= self._last_ns:
            self._write(_FREE, _one(self._first_ns, self._last_ns))
        if self._writer.whole and self._written:
            for kind in _ADDED_UP:
                if kind not in self._written:
                    self._write(kind, _one(self._first_ns, self._first_ns))

    def _write_all(self, talking: IntervalSet) -> None:
        overlapped = [merge(*_NONE)]
        for (rows,) in windows(self._computing, window_rows=self._window_rows):
            spans = IntervalSet(rows["key"].copy(), rows["end"].copy())
            self._write(_COMPUTE, spans)
            overlapped.append(_touching(spans, talking))
        self._write(_COMMUNICATION, talking)
        computing = IntervalSet(
            np.concatenate([spans.start_ns for spans in overlapped]),
            np.concatenate([spans.end_ns for spans in overlapped]),
        )
        self._write(_NOT_OVERLAPPED, subtract(talking, computing))
        self._write_free(talking)

    def _write(self, kind: int, spans: IntervalSet) -> None:
        if len(spans):
            self._written.add(kind)
            self._writer.write(self._device_id, kind, spans)

    def _put_away(self, spans: IntervalSet) -> None:
        rows = np.empty(len(spans), _SPAN)
        rows["key"], rows["end"] = spans.start_ns, spans.end_ns
        self._computing.append(rows)

    def _write_free(self, talking: IntervalSet) -> None:
        """Write when nothing ran, between the first and the last evidence of use."""
        reach: int | None = None
        place = 0
        for (rows,) in windows(self._computing, window_rows=self._window_rows):
            if reach is None:
                reach = self._begin(talking, int(rows["key"][0]))
            until = int(np.searchsorted(talking.start_ns, rows["key"][-1], side="right"))
            reach = self._gaps(
                reach,
                np.concatenate([rows["key"], talking.start_ns[place:until]]),
                np.concatenate([rows["end"], talking.end_ns[place:until]]),
            )
            place = until
        if reach is None:
            reach = self._begin(talking, int(talking.start_ns[0]))
        reach = self._gaps(reach, talking.start_ns[place:], talking.end_ns[place:])
        if reach < self._last_ns:
            self._write(_FREE, _one(reach, self._last_ns))

    def _begin(self, talking: IntervalSet, first_ns: int) -> int:
        """Return when the device was first in use."""
        begin = min(self._first_ns, first_ns)
        return min(begin, int(talking.start_ns[0])) if len(talking) else begin

    def _gaps(self, reach: int, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> int:
        """Write the gaps between what was covered up to `reach` and more; returns the new reach."""
        start_ns, end_ns = np.maximum(start_ns, reach), np.maximum(end_ns, reach)
        busy = merge(np.r_[reach, start_ns], np.r_[reach, end_ns], keep_empty=True)
        filled = busy.end_ns > busy.start_ns
        filled[:1] = True
        start, end = busy.start_ns[filled], busy.end_ns[filled]
        self._write(_FREE, IntervalSet(end[:-1], start[1:]))
        return int(end[-1])


def _touching(spans: IntervalSet, others: IntervalSet) -> IntervalSet:
    """Return the intervals that meet any of the others, both merged."""
    after = np.searchsorted(others.end_ns, spans.start_ns, side="left")
    meets = after < len(others)
    meets[meets] = others.start_ns[after[meets]] <= spans.end_ns[meets]
    return IntervalSet(spans.start_ns[meets], spans.end_ns[meets])


def _one(start_ns: int, end_ns: int) -> IntervalSet:
    return IntervalSet(np.array([start_ns]), np.array([end_ns]))


_NONE = np.zeros(0, np.int64), np.zeros(0, np.int64)
