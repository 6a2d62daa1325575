"""What device tasks are called: their operator or kernel, their type, what they copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COPY, UNKNOWN, Labels
from unified_prof.analysis.read.strings import Strings
from unified_prof.analysis.read.task_rows import TaskRows
from unified_prof.arrays.lookup import Lookup
from unified_prof.arrays.packed import Packed

Ints = NDArray[np.int64]

_DENSE = 1 << 22


class TaskNames:
    """Tells what tasks are called, as numbers of labels."""

    def __init__(
        self,
        labels: Labels,
        strings: Strings,
        columns: tuple[Packed, Packed],
        by_type: list[str],
        copies: tuple[Ints, list[str]],
        asked: Iterator[TaskRows],
    ) -> None:
        """Give numbers to all names that will be used.

        Args:
            labels: what numbers them.
            strings: the texts of the columns.
            columns: of COMPUTE_TASK_INFO: the one that names a task, and the one that does so
                where that says nothing.
            by_type: what tasks are called by their type, where neither knows.
            copies: identities of copies, and what they are called.
            asked: the tasks that will be asked for, for what is numbered only where it is needed.
        """
        self._columns = columns
        self._numbers = [_Numbers.of(columns[0], labels, strings)]
        if (self._numbers[0].numbers < 0).any():
            self._numbers.append(self._second(labels, strings))
        self._by_type = np.full(len(by_type) + 1, UNKNOWN, np.int32)
        if any((self._told(rows.info) < 0).any() for rows in asked):
            self._by_type = labels.numbers(by_type)
        self._copies = Lookup(copies[0]) if len(copies[0]) else None
        self._directions = labels.numbers(copies[1])

    def of(self, rows: TaskRows) -> NDArray[np.int32]:
        """Return the number of each task's name."""
        result = self._told(rows.info)
        unknown = np.flatnonzero(result < 0)
        if len(unknown):
            result[unknown] = self._by_type[rows.type[unknown]]
        if self._copies is not None:
            copies = np.flatnonzero(rows.kind == COPY)
            row = self._copies.rows(rows.identity[copies])
            result[copies[row >= 0]] = self._directions[row[row >= 0]]
        return result

    def _second(self, labels: Labels, strings: Strings) -> _Numbers:
        """Number the names of the rows of which the first column says nothing."""
        first, second = self._columns
        used = [
            np.unique(others[self._numbers[0].at(names) < 0])
            for names, others in zip(first.blocks(), second.blocks(), strict=True)
        ]
        ids = np.unique(np.concatenate(used))
        return _Numbers(ids, labels.numbers(strings.texts(ids.tolist())))

    def _told(self, info: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the numbers that COMPUTE_TASK_INFO tells, UNKNOWN where it does not."""
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
    """Numbers of labels by string id."""

    ids: Ints
    """In rising order."""
    numbers: NDArray[np.int32]

    @classmethod
    def of(cls, column: Packed, labels: Labels, strings: Strings) -> _Numbers:
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
