"""What the host launched for one device, put away until the device's log says what ran."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.prof.host.compute_info import OPERATOR
from unified_prof.decoders.prof.host.memory_copies import COPY
from unified_prof.decoders.prof.host.task_track import TaskTypes
from unified_prof.decoders.prof.raw.workspace import Workspace
from unified_prof.decoders.rows import Rows, stacked

LAUNCHED = np.dtype(
    [
        ("key", "u8"),
        ("launched", "u8"),
        ("connection_id", "i8"),
        ("model_id", "u4"),
        ("type_index", "u2"),
        ("is_operator", "?"),
        ("operator", OPERATOR),
        ("step", "i4"),
        ("kernel", "i4"),
    ]
)
"""One launch, or one context of it: the identity of the task (`pack_keys`), the place of the launch
on the timeline, and what TASK and COMPUTE_TASK_INFO have of it. `step` and `kernel` are rows of
`Launched.steps` and `kernels`, or -1."""

KERNEL = np.dtype([("name", "u8"), ("outer", "u8"), ("in_collective", "?"), ("op_type", "i4")])
"""A kernel that schedules communication: hash of its name, and of the host's collective whose call
it was launched in, where it was; and the string id of its operator type."""


class Launched:
    """The launches for one device. A context manager, as `Spool` is."""

    def __init__(self, types: TaskTypes, step: np.dtype[Any], workspace: Workspace) -> None:
        self.types = types
        self._stack = ExitStack()
        self.rows = self._stack.enter_context(workspace.spool(LAUNCHED))
        """Of `LAUNCHED`, by identity."""
        self.copies = self._stack.enter_context(workspace.spool(COPY))
        """Of `memory_copies.COPY`, by identity."""
        self._steps: list[Rows] = [np.zeros(0, step)]
        self._kernels: list[Rows] = [np.zeros(0, KERNEL)]
        self._counts = {"steps": 0, "kernels": 0}
        self._streams: list[tuple[NDArray[np.uint32], NDArray[np.uint32]]] = []

    def __enter__(self) -> Launched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def add_steps(self, rows: Rows) -> NDArray[np.int64]:
        """Keep steps of collectives; returns their places among all."""
        self._steps.append(rows)
        return self._places("steps", len(rows))

    def add_kernels(self, rows: Rows) -> NDArray[np.int64]:
        """Keep kernels that schedule communication; returns their places among all."""
        self._kernels.append(rows)
        return self._places("kernels", len(rows))

    def add_streams(self, task_id: NDArray[np.uint32], stream_id: NDArray[np.uint16]) -> None:
        """Keep on which stream tasks with 32-bit ids are."""
        self._streams.append((task_id, stream_id.astype(np.uint32)))

    def steps(self) -> Rows:
        """Return all steps of collectives (`communication_records.STEP`); one call only."""
        return _taken(self._steps)

    def kernels(self) -> Rows:
        """Return all kernels that schedule communication (`KERNEL`); one call only."""
        return _taken(self._kernels)

    def stream_by_task(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the task ids in the order of their launches, and the stream of each."""
        none = np.zeros(0, np.uint32)
        return (
            np.concatenate([none, *(task for task, _ in self._streams)]),
            np.concatenate([none, *(stream for _, stream in self._streams)]),
        )

    def _places(self, what: str, count: int) -> NDArray[np.int64]:
        first = self._counts[what]
        self._counts[what] += count
        return np.arange(first, first + count)


def _taken(parts: list[Rows]) -> Rows:
    rows = stacked(parts)
    parts.clear()
    return rows
