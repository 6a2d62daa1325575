"""task_time: one row for each task of a device, in order of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from unified_prof.export.mindstudio import numbers
from unified_prof.export.mindstudio.delivery import Delivery, lines
from unified_prof.export.mindstudio.recording import (
    Ints,
    Recording,
    Tasks,
    blocks,
    in_order_of_text,
)
from unified_prof.export.mindstudio.registry import deliverable
from unified_prof.vocabulary import NO_CONTEXT, NOT_AVAILABLE

_HEADER = (
    *("Device_id", "kernel_name", "kernel_type", "stream_id", "task_id"),
    *("task_time(us)", "task_start(us)", "task_stop(us)"),
)


@deliverable("task_time", tables=("TASK",))
def write(recording: Recording, delivery: Delivery) -> None:
    """Write the table, over all devices in order of start."""
    tasks = recording.tasks
    row = np.flatnonzero(_is_shown(tasks))
    keys = (tasks.number, tasks.stream, tasks.device, in_order_of_text(tasks.start_ns))
    row = row[np.lexsort([key[row] for key in keys])]
    delivery.table("task_time", _HEADER, len(row), _blocks(recording, row))
    if len(row) and not recording.knows_launches:
        recording.leave_out(
            "task_time",
            "kernel_name of the launch",
            "the database has operators' names only, which stand in its place",
        )


def _blocks(recording: Recording, rows: Ints) -> Iterator[Sequence[str]]:
    tasks, columns = recording.tasks, recording.kernels.columns
    unknown = recording.ids([NOT_AVAILABLE])
    for part in blocks(len(rows)):
        task = rows[part]
        info = recording.kernels.of(tasks.id[task])
        has_info = info >= 0
        kind = tasks.type[task].astype(np.int64)
        if len(recording.kernels):
            own = columns["taskType"][info]
            kind = np.where(has_info & ~np.isin(own, unknown), own, kind)
        start, end = tasks.start_ns[task], tasks.end_ns[task]
        yield lines(
            numbers.integers(tasks.device[task]),
            recording.cells(recording.kernel_name(task, info)),
            recording.cells(kind),
            numbers.integers(tasks.stream[task]),
            numbers.integers(tasks.number[task]),
            numbers.microseconds(end - start),
            numbers.tabbed(numbers.microseconds(start)),
            numbers.tabbed(numbers.microseconds(end)),
        )


def _is_shown(tasks: Tasks) -> NDArray[np.bool_]:
    """Return which rows are shown: of a kernel on two kinds of cores context 0, else all."""
    _, launch, size = np.unique(tasks.launch, return_inverse=True, return_counts=True)
    launch = launch.reshape(-1)
    is_first = tasks.context == 0
    is_later = (tasks.context != NO_CONTEXT) & ~is_first
    has_first = np.bincount(launch, weights=is_first, minlength=len(size)) > 0
    # The vendor stops looking at a launch's rows at the first later context: what it has seen
    # until then decides. Rows of a launch stand in the order of the file.
    later = np.full(len(size), len(tasks), np.int64)
    rows = np.arange(len(tasks))
    np.minimum.at(later, launch[is_later], rows[is_later])
    first = np.full(len(size), len(tasks), np.int64)
    np.minimum.at(first, launch[is_first], rows[is_first])
    is_mix = has_first & (first < later)
    shown = np.where(is_mix[launch], is_first, True)
    return np.asarray(shown | (size[launch] == 1))
