"""The task queue: what Python's threads put in, and what the launching threads took out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.ascend_pt.operators import Clock
from unified_prof.decoders.ascend_pt.records import DAMAGED, Layout, read_records
from unified_prof.decoders.ascend_pt.texts import Texts

Ints = NDArray[np.int64]

_LAYOUTS = (
    Layout(
        np.dtype(
            [
                ("time", "<i8"),
                ("category", "<u8"),
                ("correlation", "<u8"),
                ("tid", "<u8"),
                ("pid", "<u8"),
            ]
        )
    ),
)
_KIND = 2
_NAME = 1
_CATEGORIES = 4
_END = 1
"""Added to the category of a start."""


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Enqueues, or dequeues, by their end."""

    start_ns: Ints
    end_ns: Ints
    tid: Ints
    correlation: Ints
    name: Ints
    """Of the kernel: a number in `Queue.names`."""
    pid: int | None
    """Process of the first."""

    def __len__(self) -> int:
        return len(self.start_ns)


class Queue:
    """What went through the queue, on both sides."""

    def __init__(self, names: Texts, enqueues: Intervals, dequeues: Intervals) -> None:
        self.names = names
        self.enqueues = enqueues
        self.dequeues = dequeues

    @classmethod
    def read(cls, path: Path | None, clock: Clock, sink: Sink) -> Queue:
        """Read marks, each of which begins or ends an interval; without a file there are none.

        Raises:
            RawFormatError: the file cannot be read.
        """
        names = Texts()
        columns: dict[str, list[Ints]] = {name: [] for name in _COLUMNS}
        for batch in () if path is None else read_records(path, _KIND, _LAYOUTS, (_NAME,), sink):
            for name in _LAYOUTS[0].fixed.names or ():
                columns[name].append(batch.fixed[name].astype(np.int64))
            columns["name"].append(names.numbers(batch.data, *batch.fields[_NAME]))
        marks = {name: np.concatenate([_NO_ROWS, *parts]) for name, parts in columns.items()}
        marks["time"] = clock(marks["time"])
        unknown = (marks["category"] < 0) | (marks["category"] >= _CATEGORIES)
        if unknown.any():
            told = f"{path}: a mark of category {marks['category'][unknown][0]}"
            sink.anomaly(DAMAGED, int(unknown.sum()), told)
            marks = {name: values[~unknown] for name, values in marks.items()}
        order, is_pair = _pairs(marks)
        if unpaired := len(order) - 2 * int(is_pair.sum()):
            sink.anomaly("unpaired_mark", unpaired, f"{path}: marks of the task queue")
        enqueues = _intervals(marks, order, is_pair, 0)
        return cls(names, enqueues, _intervals(marks, order, is_pair, 2))

    @property
    def is_used(self) -> bool:
        """Whether launches went through it."""
        return bool(len(self.enqueues) and len(self.dequeues))


def _pairs(marks: dict[str, Ints]) -> tuple[Ints, NDArray[np.bool_]]:
    """Return an order of the marks, and which of it ends what the one before begins.

    An end takes the latest start of its side, thread and name that is open; older ones are lost.
    """
    category = marks["category"]
    side = category // 2
    order = np.lexsort((marks["time"], marks["name"], marks["tid"], side))
    runs = Runs(side[order], marks["tid"][order], marks["name"][order])
    is_end = category[order] % 2 == _END
    pairs = is_end & ~np.append(True, is_end[:-1])[: len(is_end)]
    pairs[runs.starts] = False
    return order, pairs


def _intervals(
    marks: dict[str, Ints], order: Ints, is_pair: NDArray[np.bool_], category: int
) -> Intervals:
    place = np.flatnonzero(is_pair)
    place = place[marks["category"][order[place]] == category + _END]
    begin, end = order[place - 1], order[place]
    by_end = np.lexsort((end, marks["time"][end]))
    begin, end = begin[by_end], end[by_end]
    return Intervals(
        marks["time"][begin],
        marks["time"][end],
        marks["tid"][end],
        marks["correlation"][end],
        marks["name"][end],
        int(marks["pid"][end[0]]) if len(end) else None,
    )


_COLUMNS = ("time", "category", "correlation", "tid", "pid", "name")
_NO_ROWS = np.zeros(0, np.int64)
