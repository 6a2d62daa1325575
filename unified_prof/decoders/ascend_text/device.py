"""Decodes device tasks, operators (kernel_details.csv) and collectives of a text export."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np

from unified_prof.arrays.grouping import Ints
from unified_prof.base.columns import (
    COPY_OTHER,
    NO_CONNECTION,
    NO_CONTEXT,
    NO_MODEL,
    NO_NUMBER,
    NO_RANK,
    NOT_AVAILABLE,
    TYPE_INVALID,
    TYPE_NOT_AVAILABLE,
    Sink,
)
from unified_prof.decoders.ascend_text.events import BadEventError, Event, read_rows, time_ns
from unified_prof.decoders.ascend_text.host import Columns, Enums, Layer, Names, number
from unified_prof.errors import RawFormatError

_GROUP, _GROUP_END, _PLANE = "Group ", " Communication", "Plane "
_RDMA = "RDMA"
_BYTES_PER_GB = 1e9


class Collectives:
    """Collects the slices of communication groups and planes, and writes their tables."""

    def __init__(self, texts: Names, enums: Enums) -> None:
        self._texts, self._enums = texts, enums
        self._collectives = Columns(
            "startNs endNs deviceId connectionId opName groupName lane relay retry dataType algType"
            " count rankSize"
        )
        self._parts: list[tuple[int, int, int, int, int, Mapping[str, object]]] = []

    def take(self, event: Event, start: int, end: int, layer: Layer, lane: str) -> bool:
        """Add a collective or one of its tasks; return False if the lane contains neither."""
        args = event.args or {}
        tid = number(event.tid, -1)
        if lane.startswith(_GROUP):
            types = self._enums("ENUM_HCCL_DATA_TYPE")
            self._collectives.add(
                start,
                end,
                layer.device,
                number(args.get("connection_id"), NO_CONNECTION),
                self._texts[event.name],
                self._texts[lane.removeprefix(_GROUP).removesuffix(_GROUP_END)],
                tid,
                args.get("relay") == "yes",
                args.get("retry") == "yes",
                types.get(str(args.get("data_type")), TYPE_NOT_AVAILABLE),
                self._texts[str(args.get("alg_type", NOT_AVAILABLE))],
                number(args.get("count"), -1),
                number(args.get("rank_size"), NO_RANK),
            )
            return True
        if not lane.startswith(_PLANE):
            return False
        plane = number(lane.removeprefix(_PLANE), NO_RANK)
        self._parts.append((start, end, layer.device, plane, tid, args))
        return True

    def write(self, tasks: dict[str, Ints], texts: Ints, extra: count[int], sink: Sink) -> None:
        """Write COMMUNICATION_OP and the tables of its tasks.

        `tasks` are the columns of `Tasks`, `texts` string ids by text index; `extra` returns ids
        for tasks that are not in a stream.
        """
        found = self._collectives.arrays()
        names = self._texts.all
        ids = np.arange(len(found["startNs"]))
        if len(ids):
            types = (f"{names[name].partition('__')[0]}_" for name in found["opName"].tolist())
            columns = {name: values for name, values in found.items() if name != "lane"}
            for name in ("opName", "groupName", "algType"):
                columns[name] = texts[found[name]]
            op_types = sink.strings.intern_all(types)
            sink.write("COMMUNICATION_OP", {**columns, "opId": ids, "opType": op_types})
        if self._parts:
            _Parts(self._parts, found, names, tasks, self._enums).write(extra, sink)


class _Parts:
    """Joins tasks of collectives with their collective and with their slice in the stream."""

    def __init__(
        self,
        parts: list[tuple[int, int, int, int, int, Mapping[str, object]]],
        collectives: dict[str, Ints],
        names: list[str],
        tasks: dict[str, Ints],
        enums: Enums,
    ) -> None:
        self._parts = sorted(parts, key=lambda part: part[:5])
        self._collectives, self._names, self._enums = collectives, names, enums
        self._slices: dict[tuple[int, int, int, int], int] = {}
        keys = (tasks[name].tolist() for name in ("deviceId", "streamId", "taskId", "startNs"))
        for row, key in enumerate(zip(*keys, strict=True)):
            self._slices.setdefault(key, row)
        self._running: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for row in np.argsort(collectives["startNs"], kind="stable").tolist():
            lane = int(collectives["deviceId"][row]), int(collectives["lane"][row])
            starts, rows = self._running.setdefault(lane, ([], []))
            starts.append(int(collectives["startNs"][row]))
            rows.append(row)
        self._lanes: dict[int, list[int]] = {}
        for device, lane_tid in sorted(self._running):
            self._lanes.setdefault(device, []).append(lane_tid)

    def write(self, extra: count[int], sink: Sink) -> None:
        """Write COMMUNICATION_TASK_INFO, and TASK rows for tasks that are not in a stream."""
        rows: list[dict[str, object]] = []
        slices: list[dict[str, object]] = []
        lost = 0
        used: set[int] = set()
        for start, end, device, plane, tid, args in self._parts:
            op = self._collective(device, tid, start)
            if op is None:
                lost += 1
                continue
            stream = number(args.get("stream id"), -1)
            task = number(args.get("task id"), -1)
            place = self._slices.get((device, stream, task, start))
            if place is None or place in used:
                place = next(extra)
                slices.append(
                    {
                        "startNs": start,
                        "endNs": end,
                        "deviceId": device,
                        "connectionId": int(self._collectives["connectionId"][op]),
                        "globalTaskId": place,
                        "globalPid": None,
                        "taskType": sink.strings.intern(str(args.get("task type"))),
                        "contextId": number(args.get("context id"), NO_CONTEXT),
                        "streamId": stream,
                        "taskId": task,
                        "modelId": number(args.get("model id"), NO_MODEL),
                    }
                )
            used.add(place)
            rows.append(self._row(op, place, plane, args, sink))
        detail = "a task of a plane outside every collective"
        sink.anomaly("unmatched_transfer", lost, detail)
        for table, found in (("TASK", slices), ("COMMUNICATION_TASK_INFO", rows)):
            if found:
                sink.write(table, {name: [row[name] for row in found] for name in found[0]})

    def _row(
        self, op: int, place: int, plane: int, args: Mapping[str, object], sink: Sink
    ) -> dict[str, object]:
        strings = sink.strings

        def enum(table: str, name: str) -> int:
            return self._enums(table).get(str(args.get(name)), TYPE_NOT_AVAILABLE)

        bandwidth = args.get("bandwidth(GB/s)")
        transport = str(args.get("transport type"))
        return {
            "name": strings.intern(self._names[self._collectives["opName"][op]]),
            "globalTaskId": place,
            "taskType": strings.intern(str(args.get("task type", NOT_AVAILABLE))),
            "planeId": plane,
            "groupName": strings.intern(self._names[self._collectives["groupName"][op]]),
            "notifyId": number(args.get("notify_id"), -1),
            # The export does not contain the kind of RDMA tasks.
            "rdmaType": TYPE_NOT_AVAILABLE if transport == _RDMA else TYPE_INVALID,
            "srcRank": number(args.get("src rank"), NO_RANK),
            "dstRank": number(args.get("dst rank"), NO_RANK),
            "transportType": enum("ENUM_HCCL_TRANSPORT_TYPE", "transport type"),
            "size": number(args.get("size(Byte)"), -1),
            "dataType": enum("ENUM_HCCL_DATA_TYPE", "data type"),
            "linkType": enum("ENUM_HCCL_LINK_TYPE", "link type"),
            "opId": op,
            "bandwidth": bandwidth * _BYTES_PER_GB if isinstance(bandwidth, int | float) else None,
        }

    def _collective(self, device: int, tid: int, start: int) -> int | None:
        """Return the running collective in the group of a plane (the next lane above), or None."""
        lanes = self._lanes.get(device, [])
        place = bisect_left(lanes, tid) - 1
        if place < 0:
            return None
        starts, rows = self._running[device, lanes[place]]
        at = bisect_right(starts, start) - 1
        if at < 0 or int(self._collectives["endNs"][rows[at]]) < start:
            return None
        return rows[at]


# Task types of operators: core in the export, launch in the database.
KERNELS = {
    "AI_CORE": "KERNEL_AICORE",
    "AI_VECTOR_CORE": "KERNEL_AIVEC",
    "AI_CPU": "KERNEL_AICPU",
    "MIX_AIC": "KERNEL_MIX_AIC",
    "MIX_AIV": "KERNEL_MIX_AIV",
}
_TYPE = re.compile(r"[A-Z0-9_]+")
_UNWRITTEN = ("name", "is_kernel", "size", "memcpyOperation")  # Fields that TASK does not have.


class Tasks:
    """Collects slices of streams, and writes TASK and MEMCPY_INFO."""

    def __init__(self, texts: Names, enums: Enums) -> None:
        self._texts, self._enums = texts, enums
        self._tasks = Columns(
            "startNs endNs deviceId connectionId globalPid taskType contextId streamId taskId"
            " modelId name is_kernel size memcpyOperation"
        )

    def arrays(self) -> dict[str, Ints]:
        """Return the columns of the tasks; a row index is the task's number."""
        return self._tasks.arrays()

    def take(self, event: Event, start: int, end: int, layer: Layer) -> None:
        """Add a slice of a stream. Raises ValueError if a value is not a number."""
        args = event.args or {}
        shown = str(args.get("Task Type", NOT_AVAILABLE))
        kind = KERNELS.get(shown)
        stream = args.get("Physic Stream Id", args.get("Stream Id", event.tid))
        directions = self._enums("ENUM_MEMCPY_OPERATION")
        direction = args.get("operation")
        self._tasks.add(
            start,
            end,
            layer.device,
            number(args.get("connection_id"), NO_CONNECTION),
            layer.process,
            # Other tasks are named after their type, unless they are operators too.
            self._texts[kind or (event.name if _TYPE.fullmatch(event.name) else shown)],
            number(args.get("Subtask Id"), NO_CONTEXT),
            number(stream, -1),
            number(args.get("Task Id"), NO_NUMBER),
            number(args.get("Model Id"), NO_MODEL),
            self._texts[event.name],
            kind is not None,
            number(args.get("size(B)"), -1),
            directions.get(str(direction), COPY_OTHER),
        )

    def write(self, texts: Ints, sink: Sink) -> None:
        """Write the tables; `texts` are string ids by text index."""
        tasks = self.arrays()
        ids = np.arange(len(tasks["startNs"]))
        if len(ids):
            columns = {name: values for name, values in tasks.items() if name not in _UNWRITTEN}
            columns |= {"globalTaskId": ids, "taskType": texts[tasks["taskType"]]}
            sink.write("TASK", columns)
        copies = np.flatnonzero(tasks["size"] >= 0)
        if len(copies):
            sink.write(
                "MEMCPY_INFO",
                {
                    "globalTaskId": ids[copies],
                    "size": tasks["size"][copies],
                    "memcpyOperation": tasks["memcpyOperation"][copies],
                },
            )


_COLLECTIVE_CORES = ("HCCL", "COMMUNICATION")
_TEXTS = {
    "attrInfo": None,
    "opState": "OP State",
    "hf32Eligible": "HF32 Eligible",
    "inputShapes": "Input Shapes",
    "inputDataTypes": "Input Data Types",
    "inputFormats": "Input Formats",
    "outputShapes": "Output Shapes",
    "outputDataTypes": "Output Data Types",
    "outputFormats": "Output Formats",
    "gridDim": None,
    "blockDim": None,
}
_BLOCKS = {
    "blockNum": ("Block Num", "Block Dim"),
    "mixBlockNum": ("Mix Block Num", "Mix Block Dim"),
}
_TOTAL_TIMES = {"aicore_time(us)": "aic_total_time", "aiv_time(us)": "aiv_total_time"}
_IN_US = "_time(us)"
_AFTER = "Context ID"
_NOT_ATTRIBUTED = ("cube_utilization(%)",)  # Computed from other counters.


# Maximum difference of a kernel's start in the table and in the trace: some traces contain times as
# numbers, of which float64 keeps a quarter of a microsecond.
_NEAR_NS = 500


def _kernel_rows(kernels: Path, sink: Sink) -> Iterator[dict[str, str]]:
    """Yield the rows of kernel_details.csv; none if it lacks columns, as at the lowest level."""
    try:
        yield from read_rows(kernels, ("Name", "Start Time(us)", "Accelerator Core"), sink)
    except RawFormatError as err:
        sink.anomaly("undecoded_part", 1, str(err))


def write_operators(
    kernels: Path | None, tasks: dict[str, Ints], names: list[str], sink: Sink
) -> None:
    """Write operators with the details in kernel_details.csv; without them, only with their names.

    `tasks` are the columns of `Tasks`, `names` the strings that they refer to.
    """
    waiting: dict[tuple[int, str], list[int]] = {}
    starts = tasks["startNs"].tolist()
    for row, start in enumerate(starts):
        key = (start // _NEAR_NS, names[tasks["name"][row]])
        waiting.setdefault(key, []).append(row)
    described: list[tuple[int, dict[str, str]]] = []
    lost = 0
    for cells in () if kernels is None else _kernel_rows(kernels, sink):
        if cells["Accelerator Core"] in _COLLECTIVE_CORES:
            continue
        try:
            start = time_ns(cells["Start Time(us)"])
        except BadEventError:
            lost += 1
            continue
        near = start // _NEAR_NS
        found = [waiting.get((at, cells["Name"]), []) for at in (near - 1, near, near + 1)]
        places = [place for group in found for place in group]
        distance = min((abs(starts[place] - start) for place in places), default=_NEAR_NS)
        places = [place for place in places if abs(starts[place] - start) == distance]
        place = _slice_in_stream(places, tasks, cells) if distance < _NEAR_NS else None
        if place is None:
            lost += 1
        else:
            waiting[starts[place] // _NEAR_NS, cells["Name"]].remove(place)
            described.append((place, cells))
    detail = f"{kernels}: kernels without a slice in the trace"
    sink.anomaly("unmatched_kernel", lost, detail)
    rest = [row for rows in waiting.values() for row in rows if tasks["is_kernel"][row]]
    if kernels is not None:
        detail = f"{kernels} does not contain all kernels of the trace; the others have only a name"
        sink.anomaly("kernel_without_details", len(rest), detail)
    nothing: dict[str, str] = {}
    described += [(row, nothing) for row in rest]
    described.sort(key=lambda item: item[0])
    _write_details(described, tasks, names, sink)


def _write_details(
    described: list[tuple[int, dict[str, str]]],
    tasks: dict[str, Ints],
    names: list[str],
    sink: Sink,
) -> None:
    if not described:
        return
    intern = sink.strings.intern_all
    cores = {kind: core for core, kind in KERNELS.items()}
    shown = [names[tasks["taskType"][row]] for row, _ in described]
    sink.write(
        "COMPUTE_TASK_INFO",
        {
            "globalTaskId": [row for row, _ in described],
            "name": intern(names[tasks["name"][row]] for row, _ in described),
            "taskType": intern(
                cells.get("Accelerator Core", cores.get(kind, kind))
                for kind, (_, cells) in zip(shown, described, strict=True)
            ),
            "opType": intern(cells.get("Type", NOT_AVAILABLE) for _, cells in described),
            **{
                column: intern(cells.get(name or "", NOT_AVAILABLE) for _, cells in described)
                for column, name in _TEXTS.items()
            },
            **{
                column: [_block(cells, both) for _, cells in described]
                for column, both in _BLOCKS.items()
            },
        },
    )
    counters = [
        (row, name, value) for row, cells in described for name, value in _counters_of(cells)
    ]
    if counters:
        rows, titles, values = zip(*counters, strict=True)
        sink.write("TASK_PMU_INFO", {"globalTaskId": rows, "name": intern(titles), "value": values})


def _counters_of(cells: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Yield the AI core counters of a kernel, in the last columns; other texts are skipped."""
    is_counter = False
    for title, cell in cells.items():
        if is_counter and title not in _NOT_ATTRIBUTED:
            with suppress(ValueError):
                value, name = float(cell), _TOTAL_TIMES.get(title, title)
                if title.endswith(_IN_US):
                    value, name = value * 1000, name.removesuffix("(us)")
                yield name, value
        is_counter = is_counter or title == _AFTER


def _slice_in_stream(
    places: list[int], tasks: dict[str, Ints], row: Mapping[str, str]
) -> int | None:
    """Return the slice of a kernel; if several have the same start, the one on its stream."""
    stream = number(row.get("Stream ID"), -1)
    in_stream = (place for place in places if int(tasks["streamId"][place]) == stream)
    return next(in_stream, places[0] if places else None)


def _block(cells: Mapping[str, str], names: tuple[str, str]) -> int | None:
    found = next((cells[name] for name in names if name in cells), "")
    return number(found, 0) if found.isdecimal() else None


_OVERLAP = {"Computing": 0, "Communication": 1, "Communication(Not Overlapped)": 2, "Free": 3}


class Device:
    """Collects the events of devices, and writes their tables."""

    def __init__(self, enums: Enums) -> None:
        self._texts = Names()
        self.tasks = Tasks(self._texts, enums)
        self.collectives = Collectives(self._texts, enums)
        self._overlap = Columns("deviceId startNs endNs type")

    @property
    def devices(self) -> list[int]:
        """Device numbers with tasks or overlap intervals."""
        found = [self.tasks.arrays()["deviceId"], self._overlap.arrays()["deviceId"]]
        return [int(device) for device in np.unique(np.concatenate(found))]

    def take_overlap(self, event: Event, start: int, end: int, layer: Layer) -> bool:
        """Add an interval of the overlap analysis; return False if its kind is unknown."""
        kind = _OVERLAP.get(event.name)
        if kind is None:
            return False
        self._overlap.add(layer.device, start, end, kind)
        return True

    def write(self, kernels: Path | None, sink: Sink) -> int:
        """Write all tables of devices; return the number of tasks."""
        tasks = self.tasks.arrays()
        extra = count(len(tasks["startNs"]))
        texts = np.array(sink.strings.intern_all(self._texts.all), np.int64)
        self.tasks.write(texts, sink)
        write_operators(kernels, tasks, self._texts.all, sink)
        self.collectives.write(tasks, texts, extra, sink)
        overlap = self._overlap.arrays()
        if count_overlap := len(overlap["startNs"]):
            sink.write("OVERLAP_ANALYSIS", {"id": np.arange(count_overlap), **overlap})
        return next(extra)
