"""The tasks of a generated workload: launches, and when the device runs them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.prof_generator.recipe import V6, Recipe

NO_CONTEXT = 0xFFFFFFFF
TICK_GRID_NS = 1000
"""Moments are whole microseconds: every counter frequency of a recipe can express them."""

TASK = np.dtype(
    [
        ("launch_ns", np.int64),
        ("duration_ns", np.int64),
        ("device", np.int64),
        ("thread", np.int64),
        ("stream", np.int64),
        ("kind", np.int64),
        ("kernel", np.uint64),
        ("block_num", np.int64),
        ("ratio", np.int64),
    ]
)


@dataclass(frozen=True, slots=True)
class TaskKind:
    """Names and numbers of a kind of task on host and device."""

    name: str
    """Host type, and TASK.taskType."""
    sqe: int
    """Type in the task log of the device."""
    operator_type: int = 0
    """taskType of the operator's description."""
    operator_type_name: str = ""
    core: int = -1
    """0 AIC, 1 AIV: the (main) cores whose counters are recorded; -1 none."""
    is_mix: bool = False


KINDS = (
    TaskKind("KERNEL_AICORE", 0, 0, "AI_CORE", core=0),
    TaskKind("KERNEL_AIVEC", 2, 2, "AI_VECTOR_CORE", core=1),
    TaskKind("KERNEL_MIX_AIC", 0, 4, "MIX_AIC", core=0, is_mix=True),
    TaskKind("KERNEL_MIX_AIV", 2, 5, "MIX_AIV", core=1, is_mix=True),
    TaskKind("MEMCPY_ASYNC", 11),
    TaskKind("NOTIFY_WAIT", 7),
    TaskKind("NOTIFY_RECORD", 6),
)
MEMCPY, NOTIFY_WAIT, NOTIFY_RECORD = 4, 5, 6
IS_MIX = np.array([kind.is_mix for kind in KINDS])
CORE = np.array([kind.core for kind in KINDS])
SQE = np.array([kind.sqe for kind in KINDS])


@dataclass(frozen=True, slots=True)
class Placed:
    """All tasks with their place on the device, in the order of their launches."""

    tasks: NDArray[Any]
    task_id: NDArray[np.int64]
    batch: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    flips: NDArray[np.int64]
    """Rows of the tasks that start a new round of task ids."""

    def __len__(self) -> int:
        return len(self.tasks)


class Workload:
    """Collects launches and runs them: per stream one after another, as early as possible."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._parts: list[NDArray[Any]] = []
        self._count = 0

    def launch(self, count: int, **columns: Any) -> NDArray[np.int64]:
        """Add launches and return their rows in `Placed`."""
        part = np.zeros(count, TASK)
        for name, values in columns.items():
            part[name] = values
        self._parts.append(part)
        self._count += count
        return np.arange(self._count - count, self._count)

    def placed(self) -> Placed:
        """Number the tasks and assign their times."""
        tasks = np.concatenate([np.zeros(0, TASK), *self._parts])
        order = np.lexsort((tasks["launch_ns"], tasks["stream"], tasks["device"]))
        queue = tasks["device"][order] << 20 | tasks["stream"][order]
        first = np.flatnonzero(np.r_[True, queue[1:] != queue[:-1]][: len(queue)])
        length = np.diff(np.r_[first, len(queue)])
        rank = np.arange(len(queue)) - np.repeat(first, length)
        start = np.zeros(len(tasks), np.int64)
        duration, launched = tasks["duration_ns"][order], tasks["launch_ns"][order]
        for begin, number in zip(first.tolist(), length.tolist(), strict=True):
            rows = slice(begin, begin + number)
            busy = np.cumsum(duration[rows] + TICK_GRID_NS) - duration[rows] - TICK_GRID_NS
            ready = launched[rows] + 20 * TICK_GRID_NS
            start[order[rows]] = np.maximum.accumulate(ready - busy) + busy
        task_id = np.zeros(len(tasks), np.int64)
        batch = np.zeros(len(tasks), np.int64)
        flips = np.zeros(0, np.int64)
        if self._recipe.platform in V6:
            for device in np.unique(tasks["device"]):
                of_device = np.flatnonzero(tasks["device"] == device)
                by_launch = of_device[np.argsort(tasks["launch_ns"][of_device], kind="stable")]
                task_id[by_launch] = np.arange(len(by_launch)) * 3 + 65_000
        else:
            batch[order], task_id[order] = np.divmod(rank, self._recipe.tasks_before_wrap)
            flips = order[(rank > 0) & (task_id[order] == 0)]
        return Placed(tasks, task_id, batch, start, start + tasks["duration_ns"], flips)
