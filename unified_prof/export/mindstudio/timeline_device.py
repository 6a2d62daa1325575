"""CANN: the calls of the host, by thread, and where the arrows to devices begin.

Communication: collective operators by group, and their tasks by plane.

Ascend Hardware: the tasks of devices, by stream, and where the arrows of calls end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from unified_prof.arrays.grouping import Bools, Floats, Ints, Lookup
from unified_prof.base.columns import NO_RANK, NOT_AVAILABLE
from unified_prof.export.mindstudio import registry, timeline_events
from unified_prof.export.mindstudio.registry import Recording, Tasks, as_json, blocks
from unified_prof.export.mindstudio.timeline_events import Blocks, Processes

_ACL, _MODEL, _NODE, _COMMUNICATION, _RUNTIME = 20000, 15000, 10000, 5500, 5000
_PREFIXES = {
    _ACL: "AscendCL",
    _MODEL: "Model",
    _NODE: "Node",
    _COMMUNICATION: "Communication",
    _RUNTIME: "Runtime",
}
_OTHER_PREFIX = "Api"
# Argument that the name of a call goes to: the database keeps one of its three texts.
_NAME_IS = {_ACL: "id", _COMMUNICATION: "item_id"}
_NAME_IS_ELSE = "Mode"
# Calls that launch no kernel but whose tasks have an arrow.
WAITS_AND_RECORDS = ("aclrtRecordEvent", "aclrtStreamWaitEvent")


def layer(recording: Recording, processes: Processes) -> Blocks:
    """Yield the host calls of the CANN layer."""
    columns = ["startNs", "endNs", "type", "globalTid", "connectionId", "name"]
    found = recording.timed("CANN_API", columns, ["type", "name"])
    if not len(found["name"]):
        return
    process = processes.number(timeline_events.CALLS[0])
    thread = found["globalTid"] & 0xFFFFFFFF
    yield processes.name_events(timeline_events.CALLS)
    yield timeline_events.threads(process, thread)
    levels = recording.enum("ENUM_API_TYPE")
    has_arrow = found["type"] == _NODE
    has_arrow |= np.isin(found["name"], recording.ids(WAITS_AND_RECORDS)) & (found["type"] == _ACL)
    copies = recording.tasks.connection[recording.is_copy]
    has_arrow |= np.isin(found["connectionId"], copies[copies >= 0])
    heads: dict[tuple[int, int], tuple[str, str]] = {}
    for part in blocks(len(thread)):
        names, arguments = [], []
        for level, name, tid, connection in zip(
            found["type"][part].tolist(),
            found["name"][part].tolist(),
            thread[part].tolist(),
            timeline_events.unsigned(found["connectionId"][part]),
            strict=True,
        ):
            head = heads.get((level, name))
            if head is None:
                head = heads[level, name] = _head(recording, levels, level, name)
            names.append(head[0])
            arguments.append(f'{{"Thread Id":{tid},{head[1]},"connection_id":{connection}}}')
        start = found["startNs"][part]
        yield timeline_events.complete(
            names,
            [process] * len(names),
            thread[part].tolist(),
            start,
            found["endNs"][part] - start,
            arguments,
        )
        begins = np.flatnonzero(has_arrow[part]) + part.start
        yield timeline_events.flows(
            timeline_events.HOST_TO_DEVICE,
            timeline_events.launch_ids(found["connectionId"][begins]),
            [process] * len(begins),
            thread[begins].tolist(),
            found["startNs"][begins],
            ends=False,
        )
    recording.leave_out(
        "msprof",
        "Mode, id and item_id of host calls, except the one that is the name",
        "not in the database",
    )


def _head(recording: Recording, levels: dict[int, str], level: int, name: int) -> tuple[str, str]:
    """Return the name of calls and the JSON members of their arguments, without braces."""
    text = recording.text(name)
    title = as_json(f"{_PREFIXES.get(level, _OTHER_PREFIX)}@{text}")
    known = {_NAME_IS.get(level, _NAME_IS_ELSE): text}
    given = {"Mode": known.get("Mode"), "level": levels.get(level, ""), **known}
    shown = {key: value for key, value in given.items() if value is not None}
    return title, as_json(shown)[1:-1]


_TABLE = "COMMUNICATION_TASK_INFO"
_BYTES_PER_GB = 1e9
_COLUMNS = (
    *("globalTaskId", "taskType", "planeId", "groupName", "notifyId", "srcRank", "dstRank"),
    *("transportType", "size", "dataType", "linkType"),
)


def layer_communication(recording: Recording, processes: Processes) -> Blocks:
    """Yield the Communication layer: groups, then tasks, then operators."""
    members = _Members(recording)
    operators = recording.collectives
    if not len(members) and not len(operators):
        return
    threads = _Threads(recording, processes, members)
    yield threads.name_events
    yield from members.events(processes, threads)
    yield from _operators(recording, processes, threads)


class _Members:
    """Tasks of collective operators, joined with TASK."""

    def __init__(self, recording: Recording) -> None:
        found = recording.integers(_TABLE, _COLUMNS)
        bandwidth = recording.reals(_TABLE, ["bandwidth"])["bandwidth"]
        task = Lookup(recording.tasks.id).rows(found["globalTaskId"]).astype(np.int64)
        keep = task >= 0
        if not keep.all():
            lost = len(keep) - int(keep.sum())
            recording.findings.add(
                "collective_without_task", f"{lost} rows of {_TABLE} have no matching task", lost
            )
        self.columns = {name: values[keep] for name, values in found.items()}
        self.bandwidth = bandwidth[keep]
        self.task = task[keep]
        self.device = recording.tasks.device[self.task]
        self.plane = self.columns["planeId"]
        self._recording = recording

    def __len__(self) -> int:
        return len(self.task)

    def events(self, processes: Processes, threads: _Threads) -> Blocks:
        """Yield the tasks that belong to a plane."""
        tasks = self._recording.tasks
        on_plane = np.flatnonzero((self.plane != NO_RANK) & (self.plane >= 0))
        for part in blocks(len(on_plane)):
            rows = on_plane[part]
            task = self.task[rows]
            first = threads.operator_threads(self.device[rows], self.columns["groupName"][rows])
            yield timeline_events.complete(
                timeline_events.quoted(self._recording, self.columns["taskType"][rows]),
                processes.of_devices(timeline_events.COMMUNICATION[0], self.device[rows]),
                (first + self.plane[rows] + 1).tolist(),
                tasks.start_ns[task],
                tasks.end_ns[task] - tasks.start_ns[task],
                self._arguments(rows),
            )
        if len(on_plane):
            self._recording.leave_out(
                "msprof", "duration estimated(us) of collectives' tasks", "not in the database"
            )

    def _arguments(self, rows: Ints) -> list[str]:
        recording, columns, tasks = self._recording, self.columns, self._recording.tasks
        task = self.task[rows]

        def enum_names(column: str, table: str) -> list[str]:
            return _enum(recording.enum(table), columns[column][rows])

        rate = _gigabytes_per_second(
            self.bandwidth[rows], columns["size"][rows], tasks.end_ns[task] - tasks.start_ns[task]
        )
        return [
            f'{{"notify_id":"{notify}","stream id":{stream},"task id":{number},'
            f'"context id":{context},"task type":{kind},"src rank":{source},"dst rank":{to},'
            f'"transport type":{transport},"size(Byte)":{size},"data type":{data},'
            f'"link type":{link},"bandwidth(GB/s)":{per_second},"model id":{model}}}'
            for (
                notify, stream, number, context, kind, source, to,
                transport, size, data, link, per_second, model,
            ) in zip(
                registry.integers(columns["notifyId"][rows]),
                tasks.stream[task].tolist(),
                tasks.number[task].tolist(),
                registry.integers(tasks.context[task]),
                timeline_events.quoted(recording, columns["taskType"][rows]),
                registry.integers(columns["srcRank"][rows]),
                registry.integers(columns["dstRank"][rows]),
                enum_names("transportType", "ENUM_HCCL_TRANSPORT_TYPE"),
                registry.integers(columns["size"][rows]),
                enum_names("dataType", "ENUM_HCCL_DATA_TYPE"),
                enum_names("linkType", "ENUM_HCCL_LINK_TYPE"),
                [repr(one) if one == one else "null" for one in rate.tolist()],
                registry.integers(tasks.model[task]),
                strict=True,
            )
        ]  # fmt: skip


def _gigabytes_per_second(bandwidth: Floats, size: Ints, duration_ns: Ints) -> Floats:
    """Return the bandwidth in GB/s, exactly as msprof computed it.

    The database has `size / duration * 1e9`. Dividing that by 1e9 can differ in the last bit, so
    the quotient is computed again where it gives the stored value.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = size / duration_ns
    is_exact = quotient * _BYTES_PER_GB == bandwidth
    return np.where(is_exact, quotient, bandwidth / _BYTES_PER_GB)


class _Threads:
    """Threads of communication groups: one for operators, followed by one per plane.

    Threads are numbered across devices. A group without tasks has the thread of operators only.
    """

    def __init__(self, recording: Recording, processes: Processes, members: _Members) -> None:
        planes: dict[tuple[int, int], set[int]] = {}
        groups = members.columns["groupName"]
        rows = np.stack([members.device, groups, members.plane]).astype(np.int64)
        for device, group, plane in np.unique(rows, axis=1).T.tolist():
            number = plane if 0 <= plane != NO_RANK else 0
            planes.setdefault((device, group), set()).add(number)
        operators = recording.collectives
        pairs = np.stack([operators.device, operators.columns["groupName"]])
        for device, group in np.unique(pairs, axis=1).T.tolist():
            planes.setdefault((device, group), set())
        self.name_events: list[str] = []
        self._first: dict[tuple[int, int], int] = {}
        number = 0
        last_device = None
        for (device, group), of_group in sorted(planes.items()):
            if device != last_device:
                self.name_events += processes.name_events(timeline_events.COMMUNICATION, device)
                last_device = device
            process = processes.number(timeline_events.COMMUNICATION[0], device)
            name = recording.text(group)
            title = "Communication" if name == NOT_AVAILABLE else f"Group {name} Communication"
            self._first[device, group] = number
            self.name_events += timeline_events.thread(process, number, title)
            for plane in sorted(of_group):
                self.name_events += timeline_events.thread(
                    process, number + plane + 1, f"Plane {plane}"
                )
            number += max(of_group, default=-1) + 2

    def operator_threads(self, devices: Ints, groups: Ints) -> Ints:
        """Return the thread of operators of each group."""
        pairs = zip(devices.tolist(), groups.tolist(), strict=True)
        return np.array([self._first[pair] for pair in pairs], np.int64)


def _operators(recording: Recording, processes: Processes, threads: _Threads) -> Blocks:
    operators, columns = recording.collectives, recording.collectives.columns
    types = recording.enum("ENUM_HCCL_DATA_TYPE")
    for part in blocks(len(operators)):
        start = operators.start_ns[part]
        process = processes.of_devices(timeline_events.COMMUNICATION[0], operators.device[part])
        thread = threads.operator_threads(
            operators.device[part], columns["groupName"][part]
        ).tolist()
        arguments = [
            f'{{"rank_size":{ranks},"connection_id":{connection},"model id":{model},'
            f'"data_type":{data},"alg_type":{algorithm},"count":{count},'
            f'"relay":"{"yes" if relay == 1 else "no"}","retry":"{"yes" if retry == 1 else "no"}"}}'
            for ranks, connection, model, data, algorithm, count, relay, retry in zip(
                _or_null(columns["rankSize"][part]),
                timeline_events.unsigned(columns["connectionId"][part]),
                operators.model[part].tolist(),
                _enum(types, columns["dataType"][part]),
                timeline_events.quoted(recording, columns["algType"][part]),
                _or_null(columns["count"][part]),
                columns["relay"][part].tolist(),
                columns["retry"][part].tolist(),
                strict=True,
            )
        ]
        yield timeline_events.complete(
            timeline_events.quoted(recording, columns["opName"][part]),
            process,
            thread,
            start,
            operators.end_ns[part] - start,
            arguments,
        )
        yield timeline_events.flows(
            timeline_events.HOST_TO_DEVICE,
            timeline_events.launch_ids(columns["connectionId"][part]),
            process,
            thread,
            start,
            ends=True,
        )


def _or_null(values: Ints) -> list[str]:
    return ["null" if one == NOT_AVAILABLE else one for one in registry.integers(values)]


def _enum(names: Mapping[int, str], values: Ints) -> list[str]:
    """Return the names of enum values as JSON; unknown numbers are written as text."""
    return [as_json(names.get(one, str(one))) for one in values.tolist()]


_GRID_KERNEL = "KERNEL_SIMT"
_OTHER_COPY = "other"
_COPIES = 8  # Values of memcpyOperation from here on are written as "other".


def layer_hardware(recording: Recording, processes: Processes) -> Blocks:
    """Yield the tasks of devices; a launch with contexts is shown by its contexts only."""
    tasks = recording.tasks
    if not len(tasks):
        return
    shown = np.flatnonzero(recording.is_copy | ~_has_contexts(tasks))
    yield from name_events(processes, tasks.device[shown], tasks.stream[shown])
    has_arrow = _has_arrow(recording)
    copies = _Copies(recording)
    for part in blocks(len(shown)):
        rows = shown[part]
        process = processes.of_devices(timeline_events.HARDWARE[0], tasks.device[rows])
        stream = tasks.stream[rows].tolist()
        yield timeline_events.complete(
            _names(recording, rows),
            process,
            stream,
            tasks.start_ns[rows],
            tasks.end_ns[rows] - tasks.start_ns[rows],
            _arguments(recording, copies, rows),
        )
        ends = np.flatnonzero(has_arrow[rows])
        yield timeline_events.flows(
            timeline_events.HOST_TO_DEVICE,
            timeline_events.launch_ids(tasks.connection[rows[ends]]),
            [process[at] for at in ends.tolist()],
            [stream[at] for at in ends.tolist()],
            tasks.start_ns[rows[ends]],
            ends=True,
        )


def name_events(processes: Processes, devices: Ints, streams: Ints) -> Blocks:
    """Yield the events that name the processes of devices and the threads of streams."""
    yield processes.of_all_devices(timeline_events.HARDWARE, devices)
    if not len(devices):
        return
    pairs = np.unique(np.stack([devices.astype(np.int64), streams.astype(np.int64)]), axis=1)
    yield [
        event
        for device, stream in pairs.T.tolist()
        for event in timeline_events.thread(
            processes.number(timeline_events.HARDWARE[0], device), stream, f"Stream {stream}"
        )
    ]


def _has_contexts(tasks: Tasks) -> Bools:
    """Return a mask of the launches that have contexts, which are not shown themselves."""
    distinct, launch = np.unique(tasks.launch, return_inverse=True)
    launch = launch.reshape(-1)
    with_contexts = np.zeros(len(distinct), np.bool_)
    with_contexts[launch[tasks.has_context]] = True
    return np.asarray(with_contexts[launch] & ~tasks.has_context)


def _has_arrow(recording: Recording) -> Bools:
    """Return which tasks are ends of arrows: kernels, copies, event waits and records."""
    tasks = recording.tasks
    calls = recording.integers("CANN_API", ["name", "connectionId"])
    ids = recording.ids(WAITS_AND_RECORDS)
    connections = calls["connectionId"][np.isin(calls["name"], ids)]
    return np.asarray(
        recording.is_copy
        | (recording.kernels.rows_of(tasks.id) >= 0)
        | np.isin(tasks.connection, connections)
    )


def _names(recording: Recording, rows: Ints) -> list[str]:
    tasks = recording.tasks
    info = recording.kernels.rows_of(tasks.id[rows])
    name = tasks.type[rows].astype(np.int64)
    if len(recording.kernels):
        own = recording.kernels.columns["name"][info]
        name = np.where((info >= 0) & ~recording.is_copy[rows], own, name)
    return timeline_events.quoted(recording, name)


def _arguments(recording: Recording, copies: _Copies, rows: Ints) -> list[str]:
    tasks, columns = recording.tasks, recording.kernels.columns
    info = recording.kernels.rows_of(tasks.id[rows])
    kind = tasks.type[rows].astype(np.int64)
    if len(recording.kernels):
        own = columns["taskType"][info]
        known = (info >= 0) & ~np.isin(own, recording.ids([NOT_AVAILABLE]))
        kind = np.where(known, own, kind)
    is_copy = recording.is_copy[rows]
    more = [""] * len(rows)
    for at in np.flatnonzero(is_copy).tolist():
        more[at] = copies.arguments(int(rows[at]))
    grid = np.isin(tasks.type[rows], recording.ids([_GRID_KERNEL]))
    for at in np.flatnonzero(grid).tolist():
        dims = (
            recording.text(int(columns[name][info[at]])) if info[at] >= 0 else NOT_AVAILABLE
            for name in ("gridDim", "blockDim")
        )
        more[at] += ',"Grid Dim":{},"Block Dim":{}'.format(*map(as_json, dims))
    quoted = timeline_events.quoted(recording, kind)
    types = [
        "" if copy else f'"Task Type":{own},'
        for own, copy in zip(quoted, is_copy.tolist(), strict=True)
    ]
    return [
        f'{{"Model Id":{model},{kind_}"Physic Stream Id":{stream},"Task Id":{number},'
        f'"Subtask Id":{context},"connection_id":{connection}{rest}}}'
        for model, kind_, stream, number, context, connection, rest in zip(
            _or_null(tasks.model[rows]),
            types,
            tasks.stream[rows].tolist(),
            _or_null(tasks.number[rows]),
            _or_null(tasks.context[rows]),
            timeline_events.unsigned(tasks.connection[rows]),
            more,
            strict=True,
        )
    ]


class _Copies:
    """Size, kind and throughput of copies."""

    def __init__(self, recording: Recording) -> None:
        found = recording.integers("MEMCPY_INFO", ["globalTaskId", "size", "memcpyOperation"])
        self._lookup = Lookup(found["globalTaskId"])
        self._size, self._kind = found["size"], found["memcpyOperation"]
        self._tasks = recording.tasks
        names = recording.enum("ENUM_MEMCPY_OPERATION")
        self._names = {kind: name for kind, name in names.items() if kind < _COPIES}
        self._known = len(self._size) > 0

    def arguments(self, row: int) -> str:
        """Return the JSON members of a copy's arguments; empty without recorded sizes."""
        if not self._known:
            return ""
        at = int(self._lookup.rows(self._tasks.id[row : row + 1])[0])
        size = max(int(self._size[at]), 0) if at >= 0 else 0
        name = self._names.get(int(self._kind[at]), _OTHER_COPY) if at >= 0 else _OTHER_COPY
        duration = int(self._tasks.end_ns[row] - self._tasks.start_ns[row])
        rate = size / duration if duration else 0.0
        return f',"size(B)":{size},"bandwidth(GB/s)":{rate!r},"operation":{as_json(name)}'
