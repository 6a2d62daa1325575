"""Communication: collective operators by group, and their tasks by plane."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read import whole_tables
from unified_prof.arrays.lookup import Lookup
from unified_prof.export.mindstudio import numbers
from unified_prof.export.mindstudio.delivery import as_json
from unified_prof.export.mindstudio.recording import Ints, Recording, blocks
from unified_prof.export.mindstudio.timeline import events
from unified_prof.export.mindstudio.timeline.events import Blocks, Processes
from unified_prof.vocabulary import NO_RANK, NOT_AVAILABLE

_TABLE = "COMMUNICATION_TASK_INFO"
_BYTES_PER_GB = 1e9
_COLUMNS = (
    *("globalTaskId", "taskType", "planeId", "groupName", "notifyId", "srcRank", "dstRank"),
    *("transportType", "size", "dataType", "linkType"),
)


def layer(recording: Recording, processes: Processes) -> Blocks:
    """Yield groups, then tasks, then operators."""
    members = _Members(recording)
    operators = recording.collectives
    if not len(members) and not len(operators):
        return
    threads = _Threads(recording, processes, members)
    yield threads.named
    yield from members.events(processes, threads)
    yield from _operators(recording, processes, threads)


class _Members:
    """Tasks of collective operators, with what TASK says of them."""

    def __init__(self, recording: Recording) -> None:
        found = whole_tables.integers(recording.source, _TABLE, _COLUMNS)
        bandwidth = whole_tables.reals(recording.source, _TABLE, ["bandwidth"])["bandwidth"]
        task = Lookup(recording.tasks.id).rows(found["globalTaskId"]).astype(np.int64)
        keep = task >= 0
        if not keep.all():
            lost = len(keep) - int(keep.sum())
            recording.findings.add(
                "collective_without_task", f"{lost} rows of {_TABLE} belong to no task", lost
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
        """Yield the tasks that run on a plane."""
        tasks = self._recording.tasks
        on_plane = np.flatnonzero((self.plane != NO_RANK) & (self.plane >= 0))
        for part in blocks(len(on_plane)):
            rows = on_plane[part]
            task = self.task[rows]
            first = threads.of(self.device[rows], self.columns["groupName"][rows])
            yield events.complete(
                events.quoted(self._recording, self.columns["taskType"][rows]),
                processes.of_devices(events.COMMUNICATION[0], self.device[rows]),
                (first + self.plane[rows] + 1).tolist(),
                tasks.start_ns[task],
                tasks.end_ns[task] - tasks.start_ns[task],
                self._arguments(rows),
            )
        if len(on_plane) and not self._recording.knows_estimates:
            self._recording.leave_out(
                "msprof", "duration estimated(us) of collectives' tasks", "not in the database"
            )

    def _arguments(self, rows: Ints) -> list[str]:
        recording, columns, tasks = self._recording, self.columns, self._recording.tasks
        task = self.task[rows]

        def named(column: str, table: str) -> list[str]:
            return _enum(whole_tables.names(recording.source, table), columns[column][rows])

        rate = _gigabytes_per_second(
            self.bandwidth[rows], columns["size"][rows], tasks.end_ns[task] - tasks.start_ns[task]
        )
        return [
            f'{{"notify_id":"{notify}",{estimate}"stream id":{stream},"task id":{number},'
            f'"context id":{context},"task type":{kind},"src rank":{source},"dst rank":{to},'
            f'"transport type":{transport},"size(Byte)":{size},"data type":{data},'
            f'"link type":{link},"bandwidth(GB/s)":{per_second},"model id":{model}}}'
            for (
                notify, estimate, stream, number, context, kind, source, to,
                transport, size, data, link, per_second, model,
            ) in zip(
                numbers.integers(columns["notifyId"][rows]),
                recording.estimates(task),
                tasks.stream[task].tolist(),
                tasks.number[task].tolist(),
                numbers.integers(tasks.context[task]),
                events.quoted(recording, columns["taskType"][rows]),
                numbers.integers(columns["srcRank"][rows]),
                numbers.integers(columns["dstRank"][rows]),
                named("transportType", "ENUM_HCCL_TRANSPORT_TYPE"),
                numbers.integers(columns["size"][rows]),
                named("dataType", "ENUM_HCCL_DATA_TYPE"),
                named("linkType", "ENUM_HCCL_LINK_TYPE"),
                [repr(one) if one == one else "null" for one in rate.tolist()],
                numbers.integers(tasks.model[task]),
                strict=True,
            )
        ]  # fmt: skip


def _gigabytes_per_second(
    bandwidth: NDArray[np.float64], size: Ints, duration_ns: Ints
) -> NDArray[np.float64]:
    """Return what the database's bytes a second were made of, to the last bit.

    It was size over duration, times 10^9; dividing by these again can end one bit beside it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = size / duration_ns
    made_so = quotient * _BYTES_PER_GB == bandwidth
    return np.where(made_so, quotient, bandwidth / _BYTES_PER_GB)


class _Threads:
    """The threads of groups: one for operators, and behind it one for every plane.

    They are numbered through all devices. Groups that have operators only have theirs as well.
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
        self.named: list[str] = []
        self._first: dict[tuple[int, int], int] = {}
        number = 0
        last_device = None
        for (device, group), of_group in sorted(planes.items()):
            if device != last_device:
                self.named += processes.named(events.COMMUNICATION, device)
                last_device = device
            process = processes.number(events.COMMUNICATION[0], device)
            name = recording.text(group)
            title = "Communication" if name == NOT_AVAILABLE else f"Group {name} Communication"
            self._first[device, group] = number
            self.named += events.thread(process, number, title)
            for plane in sorted(of_group):
                self.named += events.thread(process, number + plane + 1, f"Plane {plane}")
            number += max(of_group, default=-1) + 2

    def of(self, devices: Ints, groups: Ints) -> Ints:
        """Return the thread of each group's operators."""
        pairs = zip(devices.tolist(), groups.tolist(), strict=True)
        return np.array([self._first[pair] for pair in pairs], np.int64)


def _operators(recording: Recording, processes: Processes, threads: _Threads) -> Blocks:
    operators, columns = recording.collectives, recording.collectives.columns
    types = whole_tables.names(recording.source, "ENUM_HCCL_DATA_TYPE")
    for part in blocks(len(operators)):
        start = operators.start_ns[part]
        process = processes.of_devices(events.COMMUNICATION[0], operators.device[part])
        thread = threads.of(operators.device[part], columns["groupName"][part]).tolist()
        arguments = [
            f'{{"rank_size":{ranks},"connection_id":{connection},"model id":{model},'
            f'"data_type":{data},"alg_type":{algorithm},"count":{count},'
            f'"relay":"{"yes" if relay == 1 else "no"}","retry":"{"yes" if retry == 1 else "no"}"}}'
            for ranks, connection, model, data, algorithm, count, relay, retry in zip(
                _or_null(columns["rankSize"][part]),
                events.unsigned(columns["connectionId"][part]),
                operators.model[part].tolist(),
                _enum(types, columns["dataType"][part]),
                events.quoted(recording, columns["algType"][part]),
                _or_null(columns["count"][part]),
                columns["relay"][part].tolist(),
                columns["retry"][part].tolist(),
                strict=True,
            )
        ]
        yield events.complete(
            events.quoted(recording, columns["opName"][part]),
            process,
            thread,
            start,
            operators.end_ns[part] - start,
            arguments,
        )
        yield events.flows(
            events.HOST_TO_DEVICE,
            events.launch_ids(columns["connectionId"][part]),
            process,
            thread,
            start,
            ends=True,
        )


def _or_null(values: Ints) -> list[str]:
    return ["null" if one == NOT_AVAILABLE else one for one in numbers.integers(values)]


def _enum(names: Mapping[int, str], values: Ints) -> list[str]:
    """Return names of numbers as JSON; a number without one stands for itself."""
    return [as_json(names.get(one, str(one))) for one in values.tolist()]
