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

    def communication_task(
        self, task: int, operator: int, plane: int, group: str = "group"
    ) -> None:
        """Add the task of a collective."""
        values = {
            "name": "op", "globalTaskId": task, "taskType": "Memcpy", "planeId": plane,
            "groupName": group, "notifyId": 5, "rdmaType": 65535, "srcRank": 0, "dstRank": 1,
            "transportType": 0, "size": 8, "dataType": 3, "linkType": 77, "opId": operator,
            "isMaster": 1, "bandwidth": 18_370_287_316.0,
        }  # fmt: skip
        self.row("COMMUNICATION_TASK_INFO", values, texts=("name", "taskType", "groupName"))

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


def all_kinds(database: DatabaseBuilder) -> None:
    """Write rows of every kind: calls with their tasks, collectives, overlap, marks, counters."""
    acl = database.call(0, 9_000, "aclnnAdd", 20000)
    node = database.call(1_000, 8_000, "launch", 10000)
    database.call(2_000, 7_500, "KernelLaunch", 5000)
    copy = database.call(10_000, 11_000, "aclrtMemcpyAsync", 20000)
    record = database.call(12_000, 13_000, "aclrtRecordEvent", 20000)
    database.call(14_000, 15_000, "odd", 7)
    first = database.op(20_000, 26_840, "add_1", connection=node, stream=3)
    database.metric(first, "aic_total_time", 5.5)
    database.task(30_000, 31_000, "MEMCPY_ASYNC", connection=copy)
    database.task(40_000, 41_000, "EVENT_RECORD", connection=record)
    database.task(50_000, 51_000, "EVENT_WAIT", connection=acl)
    database.task(60_000, 61_000, "AI_CORE", connection=-1)
    database.op(62_000, 62_010, kind="KERNEL_SIMT")
    # A MIX kernel is shown by its contexts.
    database.task(70_000, 70_100, "KERNEL_MIX_AIC", number=5, connection=9)
    inner = database.task(70_010, 70_090, "KERNEL_MIX_AIC", number=5, connection=9, context=0)
    database.kernel(inner, "mix", core="MIX_AIC")
    database.task(70_200, 70_300, "KERNEL_AICORE", number=5, connection=10)
    for start, size, kind in ((80_000, 4096, 1), (80_100, 64, 65535), (80_200, 64, 0)):
        moved = database.task(start, start + (0 if kind == 0 else 64), "MEMCPY_ASYNC")
        values: dict[str, Any] = {"globalTaskId": moved, "size": size, "memcpyOperation": kind}
        database.row("MEMCPY_INFO", values, texts=())
    for device, planes in ((1, (0, 2)), (0, (1,)), (0, (NO_CONTEXT,)), (0, ())):
        operator = database.collective(90_000, 90_100, device=device)
        for plane in planes:
            task = database.task(90_010, 90_020, "MEMCPY_ASYNC", device=device, model=4)
            database.communication_task(task, operator, plane)
    values = {"globalTaskId": 999, "planeId": 0, "groupName": "x"}
    database.row("COMMUNICATION_TASK_INFO", values, ("groupName",))
    for number, kind in enumerate((0, 3, 4)):
        times = {"startNs": 1_000, "endNs": 1_500}
        values = {"id": number, "deviceId": 2, **times, "type": kind}
        database.row("OVERLAP_ANALYSIS", values, texts=())
    database.mark(0, 500, 'say "步"', event=1)
    database.mark(600, 600, "old", connection=4_000_000_000, category=3, domain="")
    database.task(91_000, 99_800, "MsTx", connection=4_000_000_001, stream=7)
    database.task(92_000, 92_020, "MsTx", connection=4_000_000_009, stream=7)
    database.memory(0, "allocate", 1024, total=1024)
    database.memory(500, "release", 1024)
    _counters(database)


def _counters(database: DatabaseBuilder) -> None:
    def row(table: str, *texts: str, **values: Any) -> None:
        database.row(table, {"timestampNs": 1_000, "deviceId": 0, **values}, texts)

    def directions(ways: str, kinds: str, suffix: str, value: int) -> dict[str, int]:
        return {f"{w}{k}{suffix}": value for w in ways.split() for k in kinds.split()}

    for _ in range(2):  # Exporters sometimes write these twice.
        row("AICORE_FREQ", freq=1800)
    row("HBM", "type", hbmId=3, type="read", bandwidth=5 << 20)
    row("NPU_MEM", "type", type="app", ddr=1024, hbm=2048)
    rates = directions("tx rx", "Post Cpl Nonpost", "Avg", 2_000_000)
    row("PCIE", **rates, txNonpostLatencyAvg=1_500)
    for name in ("die 0", "die 1"):
        row("SIO", "name", name=name, **directions("rx tx", "Req Rsp Snp Dat", "", 1 << 20))
    for accelerator, (read, write) in enumerate(((1, 9), (2, 8))):
        levels = {"readBwLevel": read, "writeBwLevel": write}
        row("ACC_PMU", accId=accelerator, **levels, readOstLevel=3, writeOstLevel=4)
    for die in (-1, 0, 1):
        row("QOS", "eventName", eventName=f"QoS {min(die, 0)}", bandwidth=7 << 20, dieId=die)
    database.row("CPU_USAGE", {"timestampNs": 0, "cpuId": 12, "usage": 3.5}, ())
    call = {"startNs": 0, "endNs": 10, "globalTid": (77 << 32) | 5, "name": "open"}
    database.row("OSRT_API", call, ("name",))


def table(folder: Path, kind: str) -> list[dict[str, str]]:
    """Return the rows of the only table of a kind in a folder."""
    (path,) = folder.glob(f"{kind}_2*.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
