"""Ascend Hardware: the tasks of devices, by stream, and where the arrows of calls end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read import whole_tables
from unified_prof.arrays.lookup import Lookup
from unified_prof.export.mindstudio import numbers
from unified_prof.export.mindstudio.delivery import as_json
from unified_prof.export.mindstudio.recording import Ints, Recording, Tasks, blocks
from unified_prof.export.mindstudio.timeline import cann, events
from unified_prof.export.mindstudio.timeline.events import Blocks, Processes
from unified_prof.vocabulary import NOT_AVAILABLE

_GRID_KERNEL = "KERNEL_SIMT"
_OTHER_COPY = "other"
_COPIES = 8
"""Numbers below this name a kind of copy."""


def layer(recording: Recording, processes: Processes) -> Blocks:
    """Yield the tasks; of a launch with contexts these alone."""
    tasks = recording.tasks
    if not len(tasks):
        return
    shown = np.flatnonzero(recording.is_copy | ~_has_contexts(tasks))
    yield from named(processes, tasks.device[shown], tasks.stream[shown])
    has_arrow = _has_arrow(recording)
    copies = _Copies(recording)
    for part in blocks(len(shown)):
        rows = shown[part]
        process = processes.of_devices(events.HARDWARE[0], tasks.device[rows])
        stream = tasks.stream[rows].tolist()
        yield events.complete(
            _names(recording, rows),
            process,
            stream,
            tasks.start_ns[rows],
            tasks.end_ns[rows] - tasks.start_ns[rows],
            _arguments(recording, copies, rows),
        )
        ends = np.flatnonzero(has_arrow[rows])
        yield events.flows(
            events.HOST_TO_DEVICE,
            events.launch_ids(tasks.connection[rows[ends]]),
            [process[at] for at in ends.tolist()],
            [stream[at] for at in ends.tolist()],
            tasks.start_ns[rows[ends]],
            ends=True,
        )


def named(processes: Processes, devices: Ints, streams: Ints) -> Blocks:
    """Yield what the processes of devices and the threads of their streams are called."""
    yield processes.of_all_devices(events.HARDWARE, devices)
    if not len(devices):
        return
    pairs = np.unique(np.stack([devices.astype(np.int64), streams.astype(np.int64)]), axis=1)
    yield [
        event
        for device, stream in pairs.T.tolist()
        for event in events.thread(
            processes.number(events.HARDWARE[0], device), stream, f"Stream {stream}"
        )
    ]


def _has_contexts(tasks: Tasks) -> NDArray[np.bool_]:
    """Return which rows stand for a launch whose contexts have rows of their own."""
    distinct, launch = np.unique(tasks.launch, return_inverse=True)
    launch = launch.reshape(-1)
    with_contexts = np.zeros(len(distinct), np.bool_)
    with_contexts[launch[tasks.has_context]] = True
    return np.asarray(with_contexts[launch] & ~tasks.has_context)


def _has_arrow(recording: Recording) -> NDArray[np.bool_]:
    """Return at which tasks an arrow ends: kernels, copies, waiting for events, setting them."""
    tasks = recording.tasks
    calls = whole_tables.integers(recording.source, "CANN_API", ["name", "connectionId"])
    ids = recording.ids(cann.WAITS_AND_RECORDS)
    connections = calls["connectionId"][np.isin(calls["name"], ids)]
    return np.asarray(
        recording.is_copy
        | (recording.kernels.of(tasks.id) >= 0)
        | np.isin(tasks.connection, connections)
    )


def _names(recording: Recording, rows: Ints) -> list[str]:
    tasks = recording.tasks
    info = recording.kernels.of(tasks.id[rows])
    name = tasks.type[rows].astype(np.int64)
    if len(recording.kernels):
        own = recording.kernels.columns["name"][info]
        name = np.where((info >= 0) & ~recording.is_copy[rows], own, name)
    return events.quoted(recording, name)


def _arguments(recording: Recording, copies: _Copies, rows: Ints) -> list[str]:
    tasks, columns = recording.tasks, recording.kernels.columns
    info = recording.kernels.of(tasks.id[rows])
    kind = tasks.type[rows].astype(np.int64)
    if len(recording.kernels):
        own = columns["taskType"][info]
        known = (info >= 0) & ~np.isin(own, recording.ids([NOT_AVAILABLE]))
        kind = np.where(known, own, kind)
    is_copy = recording.is_copy[rows]
    more = [""] * len(rows)
    for at in np.flatnonzero(is_copy).tolist():
        more[at] = copies.of(int(rows[at]))
    grid = np.isin(tasks.type[rows], recording.ids([_GRID_KERNEL]))
    for at in np.flatnonzero(grid).tolist():
        dims = (
            recording.text(int(columns[name][info[at]])) if info[at] >= 0 else NOT_AVAILABLE
            for name in ("gridDim", "blockDim")
        )
        more[at] += ',"Grid Dim":{},"Block Dim":{}'.format(*map(as_json, dims))
    types = recording.device_types(rows)
    shown_types = [
        f'"Task Type":{own if not copy else on_device},' if not copy or on_device else ""
        for own, on_device, copy in zip(
            events.quoted(recording, kind), types, is_copy.tolist(), strict=True
        )
    ]
    return [
        f'{{"Model Id":{model},{kind_}"Physic Stream Id":{stream},"Task Id":{number},{batch}'
        f'"Subtask Id":{context},"connection_id":{connection}{rest}}}'
        for model, kind_, stream, number, batch, context, connection, rest in zip(
            numbers.integers(tasks.model[rows]),
            shown_types,
            tasks.stream[rows].tolist(),
            tasks.number[rows].tolist(),
            recording.batches(rows),
            numbers.integers(tasks.context[rows]),
            events.unsigned(tasks.connection[rows]),
            more,
            strict=True,
        )
    ]


class _Copies:
    """What is known of copies: size, kind and throughput."""

    def __init__(self, recording: Recording) -> None:
        found = whole_tables.integers(
            recording.source, "MEMCPY_INFO", ["globalTaskId", "size", "memcpyOperation"]
        )
        self._lookup = Lookup(found["globalTaskId"])
        self._size, self._kind = found["size"], found["memcpyOperation"]
        self._tasks = recording.tasks
        names = whole_tables.names(recording.source, "ENUM_MEMCPY_OPERATION")
        self._names = {kind: name for kind, name in names.items() if kind < _COPIES}
        self._known = len(self._size) > 0

    def of(self, row: int) -> str:
        """Return the arguments of a copy; nothing where the recording knows of no copy's size."""
        if not self._known:
            return ""
        at = int(self._lookup.rows(self._tasks.id[row : row + 1])[0])
        size = max(int(self._size[at]), 0) if at >= 0 else 0
        name = self._names.get(int(self._kind[at]), _OTHER_COPY) if at >= 0 else _OTHER_COPY
        duration = int(self._tasks.end_ns[row] - self._tasks.start_ns[row])
        rate = size / duration if duration else 0.0
        return f',"size(B)":{size},"bandwidth(GB/s)":{rate!r},"operation":{as_json(name)}'
