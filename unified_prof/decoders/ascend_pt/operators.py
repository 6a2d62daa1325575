"""Operators: ranges that PyTorch recorded on its threads, and who lies in whom."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import nesting
from unified_prof.columns import Sink
from unified_prof.decoders.ascend_pt.records import Layout, read_records
from unified_prof.decoders.ascend_pt.texts import Texts

Ints = NDArray[np.int64]
Clock = Callable[[NDArray[np.int64]], Ints]

NONE = nesting.NONE
STEP = "ProfilerStep#"
MARK = "mstx_"

_COMMON = [
    ("start", "<i8"),
    ("end", "<i8"),
    ("sequence", "<i8"),
    ("pid", "<u8"),
    ("tid", "<u8"),
    ("end_tid", "<u8"),
    ("forward_tid", "<u8"),
]
# Since September 2024 with the scope; what neither reaches a table nor tells a layout is padding.
_LAYOUTS = (
    Layout(np.dtype([*_COMMON, ("scope", "u1"), ("is_async", "u1")])),
    Layout(np.dtype([*_COMMON, ("is_async", "u1")])),
)
_KIND = 1
_NAME, _TYPES, _SHAPES, _STACK = 2, 3, 4, 8
_MOST_LEVELS = 10_000


class Operators:
    """Operators in `nesting.call_order`: by thread, then start, the longer first."""

    def __init__(
        self, columns: dict[str, Ints], names: Texts, types: Texts, shapes: Texts, stacks: Texts
    ) -> None:
        """Sort them.

        Args:
            columns: start and end in ns since 1970, sequence, pid, tid, forward_tid; `number`, the
                place among all as they were recorded, by their ends; and the numbers of name, type,
                shape and stack.
            names: The texts behind those numbers of names.
            types: Behind those of types of inputs.
            shapes: Behind those of shapes.
            stacks: Behind those of call stacks.
        """
        self.names, self.types, self.shapes, self.stacks = names, types, shapes, stacks
        start, end, number = columns["start"], columns["end"], columns["number"]
        order = nesting.call_order(columns["tid"], start, end, -number)
        self.number = number[order]
        """Place of each among all that were recorded, by their ends."""
        self.start_ns, self.end_ns = start[order], end[order]
        self.sequence = columns["sequence"][order]
        self.tid, self.forward_tid = columns["tid"][order], columns["forward_tid"][order]
        self.name, self.type = columns["name"][order], columns["type"][order]
        self.shape, self.stack = columns["shape"][order], columns["stack"][order]
        self.pid = int(columns["pid"][np.argmin(number)]) if len(number) else None
        """Process of the first that was recorded: torch_npu takes it for all."""

    @classmethod
    def read(cls, path: Path | None, clock: Clock, sink: Sink) -> Operators:
        """Read the file; without one there are none.

        Raises:
            RawFormatError: it cannot be read.
        """
        names, changed = Texts(), [Texts(_with_line_ends) for _ in range(3)]
        texts = (names, *changed)
        batches = [] if path is None else _batches(path, texts, sink)
        columns = {
            name: np.concatenate([_NO_ROWS, *(batch[name] for batch in batches)])
            for name in COLUMNS
        }
        columns["start"], columns["end"] = clock(columns["start"]), clock(columns["end"])
        return cls(columns, *texts)

    def __len__(self) -> int:
        return len(self.start_ns)

    def named(self, test: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Tell which operators have a name that passes a test."""
        return self.names.marked(test)[self.name]

    def around(
        self,
        tid: Ints,
        start_ns: Ints,
        end_ns: Ints,
        chosen: NDArray[np.bool_] | None = None,
    ) -> Ints:
        """Return the innermost operator on a thread strictly round each interval, or NONE.

        Innermost is the one that began last.

        Args:
            tid: The threads.
            start_ns: Starts of the intervals.
            end_ns: Their ends.
            chosen: Which operators count; by default all.
        """
        counts = np.ones(len(self), np.bool_) if chosen is None else chosen
        found = self.begun(tid, start_ns - 1)
        return self._climb(
            found, self._longer, lambda at, rows: counts[at] & (self.end_ns[at] > end_ns[rows])
        )

    def begun(self, tid: Ints, at_ns: Ints, chosen: NDArray[np.bool_] | None = None) -> Ints:
        """Return the operator of a thread that began last, not after each moment, or NONE.

        Args:
            tid: The threads.
            at_ns: The moments.
            chosen: Which operators count; by default all.
        """
        rows = np.arange(len(self)) if chosen is None else np.flatnonzero(chosen)
        own_tid, own_start = self.tid[rows], self.start_ns[rows]
        found = np.full(len(tid), NONE, np.int64)
        # The operators of a thread are one stretch, ascending by start.
        for thread in np.unique(tid).tolist():
            low = int(np.searchsorted(own_tid, thread, "left"))
            high = int(np.searchsorted(own_tid, thread, "right"))
            asked = np.flatnonzero(tid == thread)
            slot = np.searchsorted(own_start[low:high], at_ns[asked], "right") - 1
            there = slot >= 0
            found[asked[there]] = rows[low + slot[there]]
        return found

    def not_ended(self, operator: Ints, at_ns: Ints) -> Ints:
        """Return each operator or the nearest one round it that has not ended before a moment."""
        return self._climb(operator, self.parent, lambda at, rows: self.end_ns[at] >= at_ns[rows])

    def nearest(self, operator: Ints, marked: NDArray[np.bool_]) -> Ints:
        """Return each operator or the nearest one round it that is marked, or NONE."""
        return self._climb(operator, self.parent, lambda at, _: marked[at])

    @cached_property
    def parent(self) -> Ints:
        """The operator of any thread that each one began in, or NONE.

        As torch_npu has it: one tree for all threads, in which an operator is open until its end,
        that moment included.
        """
        order = np.lexsort((self.number, -self.end_ns, self.start_ns))
        start, end = self.start_ns[order], self.end_ns[order]
        parent = nesting.parents(np.zeros(len(order), np.int64), start - 1, end)
        result = np.full(len(order), NONE, np.int64)
        result[order] = np.where(parent == NONE, NONE, order[parent])
        return result

    @cached_property
    def _longer(self) -> Ints:
        """The nearest operator before each one, on its thread, that does not end before it."""
        return nesting.containing(self.tid, self.end_ns)

    def _climb(
        self, start: Ints, above: Ints, is_it: Callable[[Ints, Ints], NDArray[np.bool_]]
    ) -> Ints:
        found = start.copy()
        rows = np.flatnonzero(found != NONE)
        for _ in range(_MOST_LEVELS):
            rows = rows[~is_it(found[rows], rows)]
            if not len(rows):
                return found
            found[rows] = above[found[rows]]
            rows = rows[found[rows] != NONE]
        found[rows] = NONE
        return found


def _batches(path: Path, texts: tuple[Texts, ...], sink: Sink) -> list[dict[str, Ints]]:
    result = []
    wanted = {"name": _NAME, "type": _TYPES, "shape": _SHAPES, "stack": _STACK}
    for batch in read_records(path, _KIND, _LAYOUTS, tuple(wanted.values()), sink):
        columns = {
            name: batch.fixed[name].astype(np.int64)
            for name in ("start", "end", "sequence", "pid", "tid", "forward_tid")
        }
        columns["number"] = batch.number
        for (name, kind), pool in zip(wanted.items(), texts, strict=True):
            columns[name] = pool.numbers(batch.data, *batch.fields[kind])
        result.append(columns)
    return result


COLUMNS = (
    *("start", "end", "sequence", "pid", "tid", "forward_tid", "number"),
    *("name", "type", "shape", "stack"),
)
_NO_ROWS = np.zeros(0, np.int64)


def _with_line_ends(text: str) -> str:
    return text.replace(";", ";\r\n")
