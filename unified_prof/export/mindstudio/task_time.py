"""Tables msprof_tx and task_time of the text export.

* msprof_tx: mstx marks of the program, with the times at which a device reached them
* task_time: one row per device task, in order of time
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints, Lookup
from unified_prof.base.columns import (
    HOST_ONLY_CONNECTION,
    NO_CONTEXT,
    NOT_AVAILABLE,
    OLD_NO_CONNECTION,
)
from unified_prof.export.mindstudio import registry
from unified_prof.export.mindstudio.recording import Recording, Tasks, blocks, in_order_of_text
from unified_prof.export.mindstudio.registry import Delivery, lines
from unified_prof.recording import recording as whole_tables

TABLE = "MSTX_EVENTS"
# Connection ids of marks of the older interface, which does not number marks.
_UNNUMBERED = (HOST_ONLY_CONNECTION, OLD_NO_CONNECTION)


@dataclass(frozen=True, slots=True)
class Marks:
    """Rows of MSTX_EVENTS as columns, in order of time."""

    start_ns: Ints
    end_ns: Ints
    event: Ints
    category: Ints
    message: Ints
    global_tid: Ints
    domain: Ints
    connection: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def is_numbered(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Mask of the marks that have numbers: those of the newer interface."""
        return ~np.isin(self.connection, _UNNUMBERED)


def marks(recording: Recording) -> Marks:
    """Return the marks of a recording; rows with invalid times are dropped and counted."""
    found = whole_tables.integers(
        recording.source,
        TABLE,
        (
            *("startNs", "endNs", "eventType", "category"),
            *("message", "globalTid", "domainId", "connectionId"),
        ),
    )
    order = np.argsort(in_order_of_text(found["startNs"]), kind="stable")
    order = order[recording.times(TABLE, found["startNs"][order], found["endNs"][order])]
    return Marks(*(values[order] for values in found.values()))


def event_names(recording: Recording, events: Ints) -> list[str]:
    """Return the names of mark types."""
    names = whole_tables.names(recording.source, "ENUM_MSTX_EVENT_TYPE")
    return [names.get(event, "") for event in events.tolist()]


_HEADER = (
    *("Device_id", "pid", "tid", "category", "event_type", "payload_type", "payload_value"),
    *("Start_time(us)", "End_time(us)", "message_type", "message", "domain"),
    *("Device Start_time(us)", "Device End_time(us)"),
)
_NO_DOMAIN = ""


def write_msprof_tx(recording: Recording, delivery: Delivery) -> None:
    """Write msprof_tx, in order of time."""
    found = marks(recording)
    delivery.table(
        "msprof_tx", _HEADER, len(found), (_block(recording, found, p) for p in blocks(len(found)))
    )
    if len(found) and not found.is_numbered.all():
        recording.leave_out(
            "msprof_tx",
            "payload and message type of marks of the older interface",
            "not in the database",
        )


def _block(recording: Recording, found: Marks, part: slice) -> list[str]:
    device = recording.mark_tasks
    numbered = found.is_numbered[part]
    row = Lookup(device.connection).rows(found.connection[part])
    row[~numbered] = -1
    has_device = (row >= 0).tolist()

    def of_device(cells: list[str], without: str) -> list[str]:
        return [one if has else without for one, has in zip(cells, has_device, strict=True)]

    devices = registry.integers(device.device[row]) if len(device) else ["host"] * len(row)
    begins = (
        registry.tabbed(registry.microseconds(device.start_ns[row])) if len(device) else devices
    )
    ends = registry.tabbed(registry.microseconds(device.end_ns[row])) if len(device) else devices
    nothing = [NOT_AVAILABLE] * len(row)
    category = registry.integers(found.category[part])
    domain = recording.cells(found.domain[part])
    return lines(
        of_device(devices, "host"),
        registry.integers(found.global_tid[part] >> 32),
        registry.integers(found.global_tid[part] & 0xFFFFFFFF),
        [NOT_AVAILABLE if new else c for c, new in zip(category, numbered.tolist(), strict=True)],
        event_names(recording, found.event[part]),
        nothing,
        nothing,
        registry.tabbed(registry.microseconds(found.start_ns[part])),
        registry.tabbed(registry.microseconds(found.end_ns[part])),
        nothing,
        recording.cells(found.message[part]),
        [
            name if new and name != _NO_DOMAIN else NOT_AVAILABLE
            for name, new in zip(domain, numbered.tolist(), strict=True)
        ],
        of_device(begins, NOT_AVAILABLE),
        of_device(ends, NOT_AVAILABLE),
    )


_HEADER_TASK_TIME = (
    *("Device_id", "kernel_name", "kernel_type", "stream_id", "task_id"),
    *("task_time(us)", "task_start(us)", "task_stop(us)"),
)


def write_task_time(recording: Recording, delivery: Delivery) -> None:
    """Write task_time, with all devices in order of start."""
    tasks = recording.tasks
    row = np.flatnonzero(_is_shown(tasks))
    keys = (tasks.number, tasks.stream, tasks.device, in_order_of_text(tasks.start_ns))
    row = row[np.lexsort([key[row] for key in keys])]
    delivery.table("task_time", _HEADER_TASK_TIME, len(row), _blocks(recording, row))
    if len(row) and not recording.knows_launches:
        recording.leave_out(
            "task_time",
            "kernel_name of the launch",
            "the database has operator names only, which are written instead",
        )


def _blocks(recording: Recording, rows: Ints) -> Iterator[Sequence[str]]:
    tasks, columns = recording.tasks, recording.kernels.columns
    unknown = recording.ids([NOT_AVAILABLE])
    for part in blocks(len(rows)):
        task = rows[part]
        info = recording.kernels.rows_of(tasks.id[task])
        has_info = info >= 0
        kind = tasks.type[task].astype(np.int64)
        if len(recording.kernels):
            own = columns["taskType"][info]
            kind = np.where(has_info & ~np.isin(own, unknown), own, kind)
        start, end = tasks.start_ns[task], tasks.end_ns[task]
        yield lines(
            registry.integers(tasks.device[task]),
            recording.cells(recording.kernel_name(task, info)),
            recording.cells(kind),
            registry.integers(tasks.stream[task]),
            registry.integers(tasks.number[task]),
            registry.microseconds(end - start),
            registry.tabbed(registry.microseconds(start)),
            registry.tabbed(registry.microseconds(end)),
        )


def _is_shown(tasks: Tasks) -> NDArray[np.bool_]:
    """Return which rows are shown: all, but only context 0 of a kernel on two kinds of cores."""
    _, launch, size = np.unique(tasks.launch, return_inverse=True, return_counts=True)
    launch = launch.reshape(-1)
    is_first = tasks.context == 0
    is_later = (tasks.context != NO_CONTEXT) & ~is_first
    has_first = np.bincount(launch, weights=is_first, minlength=len(size)) > 0
    # msprof reads the rows of a launch in the order of the file and decides at the first context
    # other than 0.
    later = np.full(len(size), len(tasks), np.int64)
    rows = np.arange(len(tasks))
    np.minimum.at(later, launch[is_later], rows[is_later])
    first = np.full(len(size), len(tasks), np.int64)
    np.minimum.at(first, launch[is_first], rows[is_first])
    is_mix = has_first & (first < later)
    shown = np.where(is_mix[launch], is_first, True)
    return np.asarray(shown | (size[launch] == 1))
