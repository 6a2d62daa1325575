"""Decodes device tasks (slices of streams) and collectives of a text export."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import count

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
from unified_prof.decoders.ascend_text.events import Event
from unified_prof.decoders.ascend_text.host import Columns, Enums, Layer, Names, number

_GROUP, _GROUP_END, _PLANE = "Group ", " Communication", "Plane "
_RDMA = "RDMA"
_BYTES_PER_GB = 1e9


class Collectives:
    """Collects the slices of communication groups and planes, and writes their tables."""

    def __init__(self, texts: Names, enums: Enums) -> None:
        self._texts = texts
        self._enums = enums
        self._collectives = Columns(
            "start end device connection name group lane relay retry type algorithm count ranks"
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
        ids = np.arange(len(found["start"]))
        if len(ids):
            types = (f"{names[name].partition('__')[0]}_" for name in found["name"].tolist())
            sink.write(
                "COMMUNICATION_OP",
                {
                    "opName": texts[found["name"]],
                    "startNs": found["start"],
                    "endNs": found["end"],
                    "connectionId": found["connection"],
                    "groupName": texts[found["group"]],
                    "opId": ids,
                    "relay": found["relay"],
                    "retry": found["retry"],
                    "dataType": found["type"],
                    "algType": texts[found["algorithm"]],
                    "count": found["count"],
                    "opType": sink.strings.intern_all(types),
                    "deviceId": found["device"],
                    "rankSize": found["ranks"],
                },
            )
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
        self._collectives = collectives
        self._names = names
        self._enums = enums
        self._slices: dict[tuple[int, int, int, int], int] = {}
        keys = (tasks[name].tolist() for name in ("device", "stream", "task", "start"))
        for row, key in enumerate(zip(*keys, strict=True)):
            self._slices.setdefault(key, row)
        self._running: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for row in np.argsort(collectives["start"], kind="stable").tolist():
            lane = int(collectives["device"][row]), int(collectives["lane"][row])
            starts, rows = self._running.setdefault(lane, ([], []))
            starts.append(int(collectives["start"][row]))
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
                        "connectionId": int(self._collectives["connection"][op]),
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
        if lost:
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
            "name": strings.intern(self._names[self._collectives["name"][op]]),
            "globalTaskId": place,
            "taskType": strings.intern(str(args.get("task type", NOT_AVAILABLE))),
            "planeId": plane,
            "groupName": strings.intern(self._names[self._collectives["group"][op]]),
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
        if at < 0 or int(self._collectives["end"][rows[at]]) < start:
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


class Tasks:
    """Collects slices of streams, and writes TASK and MEMCPY_INFO."""

    def __init__(self, texts: Names, enums: Enums) -> None:
        self._texts = texts
        self._enums = enums
        self._tasks = Columns(
            "start end device connection process type context stream task model name is_kernel size"
            " direction"
        )

    def arrays(self) -> dict[str, Ints]:
        """Return the columns of the tasks; a row index is the task's number."""
        return self._tasks.arrays()

    def take(self, event: Event, start: int, end: int, layer: Layer) -> None:
        """Add a slice of a stream.

        Raises:
            ValueError: a value is not a number.
        """
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
        ids = np.arange(len(tasks["start"]))
        if len(ids):
            sink.write(
                "TASK",
                {
                    "startNs": tasks["start"],
                    "endNs": tasks["end"],
                    "deviceId": tasks["device"],
                    "connectionId": tasks["connection"],
                    "globalTaskId": ids,
                    "globalPid": tasks["process"],
                    "taskType": texts[tasks["type"]],
                    "contextId": tasks["context"],
                    "streamId": tasks["stream"],
                    "taskId": tasks["task"],
                    "modelId": tasks["model"],
                },
            )
        copies = np.flatnonzero(tasks["size"] >= 0)
        if len(copies):
            sink.write(
                "MEMCPY_INFO",
                {
                    "globalTaskId": ids[copies],
                    "size": tasks["size"][copies],
                    "memcpyOperation": tasks["direction"][copies],
                },
            )
