"""Some device tasks, with their columns as they are asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from unified_prof.analysis.read.tasks import Tasks

Ints = NDArray[np.int64]
FOREVER = 2**63 - 1


class TaskRows:
    """Some tasks, with their columns as they are asked for."""

    def __init__(
        self, tasks: Tasks, rows: slice | NDArray[np.integer], until_ns: int = FOREVER
    ) -> None:
        self._tasks, self._rows = tasks, rows
        self.until_ns = until_ns
        """Of a window in order of time: no later window has a task that starts before."""

    def __len__(self) -> int:
        if isinstance(self._rows, slice):
            return len(range(*self._rows.indices(len(self._tasks))))
        return len(self._rows)

    @cached_property
    def rows(self) -> NDArray[np.integer]:
        """Which of all tasks these are."""
        if isinstance(self._rows, slice):
            return np.arange(*self._rows.indices(len(self._tasks)))
        return self._rows

    @cached_property
    def start_ns(self) -> Ints:
        """Start of each task."""
        return self._of("start")

    @cached_property
    def duration_ns(self) -> Ints:
        """Duration of each task, in as many bytes as that of any needs."""
        return self._of("duration")

    @property
    def end_ns(self) -> Ints:
        """End of each task."""
        return self.start_ns + self.duration_ns

    @cached_property
    def device(self) -> NDArray[np.integer]:
        """Device number of each task."""
        return self._of("device")

    @cached_property
    def type(self) -> NDArray[np.integer]:
        """Number in `Tasks.type_texts` of the type of each task."""
        return self._of("type")

    @cached_property
    def kind(self) -> NDArray[np.int8]:
        """What each task is."""
        return self._of("kind")

    @cached_property
    def info(self) -> NDArray[np.int32]:
        """Row of each task in COMPUTE_TASK_INFO, NOWHERE where there is none."""
        return self._of("info")

    @cached_property
    def stream(self) -> Ints:
        """Stream number of each task."""
        return self._of("stream")

    @cached_property
    def connection(self) -> Ints:
        """Connection id of each task."""
        return self._of("connection")

    @cached_property
    def identity(self) -> Ints:
        """The globalTaskId of each task."""
        return self._of("identity")

    def where(self, chosen: NDArray[np.bool_]) -> TaskRows:
        """Return those that are chosen."""
        return _Chosen(self, np.flatnonzero(chosen))

    def _of(self, name: str) -> NDArray[Any]:
        column = self._tasks.packed[name]
        return column[self._rows] if isinstance(self._rows, slice) else column.at(self._rows)


class _Chosen(TaskRows):
    """Some rows of a window: what that has unpacked serves them too."""

    def __init__(self, window: TaskRows, inside: NDArray[np.intp]) -> None:
        super().__init__(window._tasks, inside, window.until_ns)
        self._window, self._inside = window, inside

    @cached_property
    def rows(self) -> NDArray[np.integer]:
        return self._window.rows[self._inside]

    def _of(self, name: str) -> NDArray[Any]:
        attribute = f"{name}_ns" if name in ("start", "duration") else name
        values: NDArray[Any] = getattr(self._window, attribute)[self._inside]
        return values
