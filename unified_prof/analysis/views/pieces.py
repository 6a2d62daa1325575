"""Pieces of device work by the window: their columns are made where they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, UNKNOWN
from unified_prof.analysis.read.collectives import Collectives
from unified_prof.analysis.read.task_rows import TaskRows
from unified_prof.arrays.packed import Column

if TYPE_CHECKING:
    from unified_prof.analysis.views.work import Work

Ints = NDArray[np.int64]


class Pieces:
    """Some pieces of work, with their columns as they are asked for."""

    def __init__(self, work: Work, first: int, tasks: TaskRows | None, comms: Collectives) -> None:
        self._work, self._tasks, self._comms = work, tasks, comms
        self.first = first
        """Which of all pieces is the first; the others follow it."""

    def __len__(self) -> int:
        return len(self._comms if self._tasks is None else self._tasks)

    @property
    def rows(self) -> slice:
        """Which of all pieces these are."""
        return slice(self.first, self.first + len(self))

    @property
    def tasks(self) -> TaskRows | None:
        """The tasks that they are; None: these are collectives as a whole."""
        return self._tasks

    @property
    def start_ns(self) -> Ints:
        """Start of each piece."""
        return self._comms.start_ns if self._tasks is None else self._tasks.start_ns

    @property
    def duration_ns(self) -> Ints:
        """Duration of each piece."""
        return self._comms.duration_ns if self._tasks is None else self._tasks.duration_ns

    @property
    def kind(self) -> NDArray[np.int8]:
        """What each piece is."""
        if self._tasks is None:
            return np.full(len(self), COMMUNICATION, np.int8)
        return self._tasks.kind

    @property
    def device(self) -> Ints:
        """Device of each piece."""
        return self._comms.device if self._tasks is None else self._tasks.device.astype(np.int64)

    @property
    def stream(self) -> Ints:
        """Stream of each piece, UNKNOWN of collectives as a whole."""
        if self._tasks is None:
            return np.full(len(self), UNKNOWN)
        return self._tasks.stream.astype(np.int64)

    @property
    def connection(self) -> Ints:
        """What ties each piece to the host call that launched it."""
        if self._tasks is None:
            return self._comms.connection
        return self._tasks.connection.astype(np.int64)

    @cached_property
    def operator(self) -> NDArray[np.int32]:
        """Operator type of each piece, as numbers in the labels of all work."""
        names, comms = self._work.operator_numbers
        return comms if self._tasks is None else names.of(self._tasks)

    @cached_property
    def kernel(self) -> NDArray[np.int32]:
        """Kernel, collective or kind of copy of each piece, as numbers in the same labels."""
        names, comms = self._work.kernel_numbers
        return comms if self._tasks is None else names.of(self._tasks)


class OfPieces(Column):
    """A column over all pieces of work, made of those of tasks where it is asked for."""

    def __init__(self, work: Work, of: Callable[[Pieces], NDArray[Any]]) -> None:
        self._work, self._of = work, of

    def __len__(self) -> int:
        return len(self._work)

    def at(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        """Return the values of any pieces."""
        of_tasks = rows < len(self._work.of_tasks)
        if of_tasks.all():
            return self._of(self._work.at_tasks(rows))
        whole = self._of(self._work.whole_comms())
        mine = self._of(self._work.at_tasks(rows[of_tasks]))
        found = np.empty(len(rows), np.result_type(whole, mine))
        found[of_tasks] = mine
        found[~of_tasks] = whole[rows[~of_tasks] - len(self._work.of_tasks)]
        return found

    def _between(self, low: int, high: int) -> NDArray[Any]:
        if (low, high) != (0, len(self)):
            return self.at(np.arange(low, high))
        parts = [self._of(some) for some in self._work.windows()]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)
