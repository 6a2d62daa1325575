"""Small msprof databases for the tests of exports, written row by row."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unified_prof.sqlite.writer import ReportWriter

T0 = 1_767_225_600_000_000_000
NO_CONTEXT = 4294967295

_TENSORS = {
    **dict.fromkeys(("inputFormats", "outputFormats"), "ND"),
    **dict.fromkeys(("inputShapes", "outputShapes"), '"2,3"'),
    "inputDataTypes": "FLOAT16",
    "outputDataTypes": "FLOAT",
}


class DatabaseBuilder:
    """Writes an msprof database; times are in ns after T0, texts are given as text."""

    def __init__(self, path: Path, chip: str = "Ascend910B", revision: str = "latest") -> None:
        self.path = path
        self.writer = ReportWriter(path, revision=revision)
        self.chip = chip
        self.tasks = 0
        self.operators = 0
        self._calls = 0

    def __enter__(self) -> DatabaseBuilder:
        self.writer.__enter__()
        self.row("NPU_INFO", {"id": 0, "name": self.chip}, texts=())
        return self

    def __exit__(self, *exc: Any) -> None:
        self.writer.__exit__(*exc)

    def row(self, table: str, values: Mapping[str, Any], texts: tuple[str, ...]) -> None:
        """Write one row; the columns `texts` hold texts, stored as ids."""
        intern = self.writer.strings.intern
        self.writer.write(
            table, {name: [intern(v) if name in texts else v] for name, v in values.items()}
        )

    def task(
        self,
        start: int,
        end: int,
        kind: str = "KERNEL_AICORE",
        *,
        device: int = 0,
        stream: int = 2,
        number: int | None = None,
        context: int = NO_CONTEXT,
        connection: int | None = None,
        task_id: int | None = None,
        model: int = NO_CONTEXT,
    ) -> int:
        """Add a task and return its global id."""
        identity = self.tasks if task_id is None else task_id
        self.tasks = max(self.tasks, identity + 1)
        values = {
            "startNs": T0 + start, "endNs": T0 + end, "deviceId": device, "globalPid": 77,
            "connectionId": identity + 1000 if connection is None else connection,
            "globalTaskId": identity, "taskType": kind, "contextId": context, "streamId": stream,
            "taskId": identity if number is None else number, "modelId": model,
        }  # fmt: skip
        self.row("TASK", values, texts=("taskType",))
        return identity

    def kernel(
        self, task_id: int, name: str = "add_1", op_type: str = "Add", core: str = "AI_CORE"
    ) -> None:
        """Add the computation of a task."""
        values: dict[str, Any] = {
            "name": name, "globalTaskId": task_id, "blockNum": 8, "mixBlockNum": 0,
            "taskType": core, "opType": op_type, **_TENSORS, "opState": "dynamic",
            "hf32Eligible": "NO",
        }  # fmt: skip
        numbers = ("globalTaskId", "blockNum", "mixBlockNum")
        self.row("COMPUTE_TASK_INFO", values, texts=tuple(v for v in values if v not in numbers))

    def op(
        self, start: int, end: int, name: str = "add_1", op_type: str = "Add", **more: Any
    ) -> int:
        """Add a task with its computation and return its id."""
        core = more.pop("core", "AI_CORE")
        identity = self.task(start, end, **more)
        self.kernel(identity, name, op_type, core)
        return identity

    def collective(
        self, start: int, end: int, op_type: str = "hcom_allReduce_", *, device: int = 0
    ) -> int:
        """Add a collective operator and return its id."""
        identity = self.operators
        self.operators += 1
        values = {
            "opName": f"{op_type}_1_1", "startNs": T0 + start, "endNs": T0 + end,
            "connectionId": 5000 + identity, "groupName": "group", "opId": identity, "relay": 0,
            "retry": 1, "dataType": 3, "algType": "MESH-RING", "count": 1024, "opType": op_type,
            "deviceId": device, "rankSize": 2,
        }  # fmt: skip
        self.row("COMMUNICATION_OP", values, texts=("opName", "groupName", "algType", "opType"))
        return identity

    def call(
        self, start: int, end: int, name: str, level: int = 10000, *, connection: int | None = None
    ) -> int:
        """Add a call on the host and return its connection."""
        self._calls += 1
        identity = 100_000 + self._calls if connection is None else connection
        values = {
            "startNs": T0 + start, "endNs": T0 + end, "type": level, "globalTid": (77 << 32) | 78,
            "connectionId": identity, "name": name,
        }  # fmt: skip
        self.row("CANN_API", values, texts=("name",))
        return identity

    def metric(self, task_id: int, name: str, value: float) -> None:
        """Add a counter metric of a task."""
        values = {"globalTaskId": task_id, "name": name, "value": value}
        self.row("TASK_PMU_INFO", values, texts=("name",))

    def memory(
        self, time: int, kind: str, size: int, *, name: str = "op", address: int = 1, total: int = 0
    ) -> None:
        """Add an allocation or a release by an operator."""
        values = {
            "operatorName": name, "addr": address, "type": kind, "size": size,
            "timestampNs": T0 + time, "globalTid": 77 << 32, "totalAllocate": total,
            "totalReserve": 2048, "component": "GE", "deviceId": 0,
        }  # fmt: skip
        self.row("NPU_OP_MEM", values, texts=("operatorName", "type", "component"))

    def mark(
        self,
        start: int,
        end: int,
        message: str,
        *,
        event: int = 0,
        domain: str = "default",
        connection: int = 4_000_000_001,
        category: int = NO_CONTEXT,
    ) -> None:
        """Add a mark of the program."""
        values = {
            "startNs": T0 + start, "endNs": T0 + end, "eventType": event, "rangeId": NO_CONTEXT,
            "category": category, "message": message, "globalTid": (77 << 32) | 78,
            "endGlobalTid": (77 << 32) | 78, "domainId": domain, "connectionId": connection,
        }  # fmt: skip
        self.row("MSTX_EVENTS", values, texts=("message", "domainId"))


def table(folder: Path, kind: str) -> list[dict[str, str]]:
    """Return the rows of the only table of a kind in a folder."""
    (path,) = folder.glob(f"{kind}_2*.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
