"""Windows of TASK with columns computed on access, and the kinds and names of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints, Lookup
from unified_prof.arrays.packed import Packed
from unified_prof.recording.calls import COMMUNICATION, COPY, KERNEL, OTHER, UNKNOWN, Labels
from unified_prof.recording.source import NOTHING_KNOWN, Strings

if TYPE_CHECKING:
    from unified_prof.recording.tasks import Tasks

# Kind of waits, event records and notifications, which do not count as work (after `calls.KINDS`).
WAIT = 6

# Kinds by the text of the task type, for tasks that no other table describes.
_WAITS = re.compile(
    r"wait|record|event|notify|(?<!a)sync|barrier|profiling|maintenance|write[ _]?value|capture|"
    r"label|switch|nop\b|mstx|place_?holder|model_(?:execute|end|exit)",
    re.IGNORECASE,
)
_COPIES = re.compile(r"mem ?cpy|mem ?set|sdma|pcie|copy|async_?dma", re.IGNORECASE)
_KERNELS = re.compile(
    r"kernel|ai_?core|ai_?cpu|ai_?vec|vector|cube|mix_ai|dsa|dvpp|stars_common|ffts|fusion",
    re.IGNORECASE,
)
_COLLECTIVES = re.compile(r"hccl|nccl|rccl|communication|rdma|\bccu", re.IGNORECASE)


def kind_of_type(text: str | None) -> int:
    """Return the kind of a task from the text of its type."""
    if text in NOTHING_KNOWN:
        return OTHER
    assert text is not None
    if _COLLECTIVES.search(text):
        return COMMUNICATION
    if _COPIES.search(text):
        return COPY
    if _WAITS.search(text):
        return WAIT
    return KERNEL if _KERNELS.search(text) else OTHER


FOREVER = 2**63 - 1


class TaskColumn:
    """A column of `TaskColumns`, unpacked on access from the packed column of the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name.removesuffix("_ns")

    def __get__(self, tasks: TaskColumns, owner: type) -> NDArray[Any]:
        return tasks.column(self._name)


class TaskColumns:
    """Columns of device tasks."""

    start_ns, duration_ns, device, stream, kind = (TaskColumn() for _ in range(5))
    type = TaskColumn()  # Index in `Tasks.type_texts`.
    info = TaskColumn()  # Row in COMPUTE_TASK_INFO, or NOWHERE.
    connection = TaskColumn()  # Connection id, which the launching host call shares.
    identity = TaskColumn()  # globalTaskId

    @property
    def end_ns(self) -> Ints:
        """End of each task."""
        result: Ints = self.start_ns + self.duration_ns
        return result

    def column(self, name: str) -> NDArray[Any]:
        """Return a column by the name in `Tasks.packed`."""
        raise NotImplementedError


class TaskRows(TaskColumns):
    """A window of rows of TASK; columns are unpacked on first access."""

    def __init__(
        self, tasks: Tasks, rows: slice | NDArray[np.integer], until_ns: int = FOREVER
    ) -> None:
        self._tasks, self._rows = tasks, rows
        self._unpacked: dict[str, NDArray[Any]] = {}
        # For windows in order of time: no task of a later window starts before this.
        self.until_ns = until_ns

    def __len__(self) -> int:
        if isinstance(self._rows, slice):
            return len(range(*self._rows.indices(len(self._tasks))))
        return len(self._rows)

    @cached_property
    def rows(self) -> NDArray[np.integer]:
        """Indexes of the rows."""
        if isinstance(self._rows, slice):
            return np.arange(*self._rows.indices(len(self._tasks)))
        return self._rows

    def where(self, chosen: NDArray[np.bool_]) -> TaskRows:
        """Return the rows selected by a mask."""
        return _SelectedRows(self, np.flatnonzero(chosen))

    def column(self, name: str) -> NDArray[Any]:
        """Return a column by the name in `Tasks.packed`."""
        if name not in self._unpacked:
            self._unpacked[name] = self._read(name)
        return self._unpacked[name]

    def _read(self, name: str) -> NDArray[Any]:
        column = self._tasks.packed[name]
        return column[self._rows] if isinstance(self._rows, slice) else column.at(self._rows)


class _SelectedRows(TaskRows):
    """Selected rows of a window, which share its unpacked columns."""

    def __init__(self, window: TaskRows, inside: NDArray[np.intp]) -> None:
        super().__init__(window._tasks, inside, window.until_ns)
        self._window, self._inside = window, inside

    @cached_property
    def rows(self) -> NDArray[np.integer]:
        return self._window.rows[self._inside]

    def _read(self, name: str) -> NDArray[Any]:
        return self._window.column(name)[self._inside]


_DENSE = 1 << 22


class TaskNames:
    """Names of tasks, as numbers in labels."""

    def __init__(
        self,
        labels: Labels,
        strings: Strings,
        columns: tuple[Packed, Packed],
        by_type: list[str],
        copies: tuple[Ints, list[str]],
        used: Iterator[TaskRows],
    ) -> None:
        """Number all names that will be looked up.

        Args:
            labels: numbers the names.
            strings: texts of the columns.
            columns: two columns of COMPUTE_TASK_INFO: the name of a task, and the name used if the
                first is unknown.
            by_type: names by task type, for tasks without either.
            copies: globalTaskIds of copies, and their names.
            used: yields the tasks that will be looked up, so that only their names are numbered.
        """
        self._columns = columns
        self._numbers = [_Numbers.from_ids(columns[0], labels, strings)]
        if (self._numbers[0].numbers < 0).any():
            self._numbers.append(self._second(labels, strings))
        self._by_type = np.full(len(by_type) + 1, UNKNOWN, np.int32)
        if any((self._from_compute_info(rows.info) < 0).any() for rows in used):
            self._by_type = labels.numbers(by_type)
        self._copies = Lookup(copies[0]) if len(copies[0]) else None
        self._directions = labels.numbers(copies[1])

    def find(self, rows: TaskRows) -> NDArray[np.int32]:
        """Return the label of each task's name."""
        result = self._from_compute_info(rows.info)
        unknown = np.flatnonzero(result < 0)
        if len(unknown):
            result[unknown] = self._by_type[rows.type[unknown]]
        if self._copies is not None:
            copies = np.flatnonzero(rows.kind == COPY)
            row = self._copies.rows(rows.identity[copies])
            result[copies[row >= 0]] = self._directions[row[row >= 0]]
        return result

    def _second(self, labels: Labels, strings: Strings) -> _Numbers:
        """Number the names of rows without a name in the first column."""
        first, second = self._columns
        used = [
            np.unique(others[self._numbers[0].at(names) < 0])
            for names, others in zip(first.blocks(), second.blocks(), strict=True)
        ]
        ids = np.unique(np.concatenate(used))
        return _Numbers(ids, labels.numbers(strings.texts(ids.tolist())))

    def _from_compute_info(self, info: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the labels from COMPUTE_TASK_INFO, UNKNOWN without a name there."""
        result = np.full(len(info), UNKNOWN, np.int32)
        left = slice(None) if info.min(initial=0) >= 0 else np.flatnonzero(info >= 0)
        for column, numbers in zip(self._columns, self._numbers, strict=False):
            result[left] = numbers.at(column.at(info[left]))
            if len(self._numbers) == 1:
                break
            left = np.flatnonzero((info >= 0) & (result < 0))
        return result


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """Labels by string id."""

    ids: Ints  # String ids in ascending order.
    numbers: NDArray[np.int32]

    @classmethod
    def from_ids(cls, column: Packed, labels: Labels, strings: Strings) -> _Numbers:
        ids = column.distinct()
        return cls(ids, labels.numbers(strings.texts(ids.tolist())))

    def at(self, ids: NDArray[np.integer]) -> NDArray[np.int32]:
        if not len(self.ids):
            return np.full(len(ids), UNKNOWN, np.int32)
        first = int(self.ids[0])
        if int(self.ids[-1]) - first < _DENSE:
            table = np.full(int(self.ids[-1]) - first + 1, UNKNOWN, np.int32)
            table[self.ids - first] = self.numbers
            return table.take(ids - first, mode="clip")
        return self.numbers[np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)]
