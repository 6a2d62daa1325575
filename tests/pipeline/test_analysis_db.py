"""analysis.db of NPU recordings."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from unified_prof import open_report
from unified_prof.base.columns import group_hash
from unified_prof.pipeline.analysis_db import write_analysis
from unified_prof.sqlite.writer import ReportWriter


def test_group_names_are_the_hash_that_readers_compute() -> None:
    # One from a database that torch_npu wrote, one computed by hand.
    assert group_hash("a") == 97 << 32 | 97
    assert group_hash("ab") == (97 * 29 + 98) << 32 | (97 * 131 + 98)


# ---- Ascend devices

MS = 1_000_000
TYPES = {"SDMA": 0, "RDMA": 1, "ON_CHIP": 0, "HCCS": 1, "PCIE": 2, "HCCS_SW": 5, "other": 3}
Columns = dict[str, Any]
PAYLOAD, NOTIFY, NEITHER = 1, 0, 65535


class DatabaseBuilder:
    """Writes a database of launches, tasks and collectives; times are ms since the first second."""

    def __init__(self, path: Path) -> None:
        self.writer = ReportWriter(path, revision="latest")
        self.tasks = 0

    def text(self, text: str) -> int:
        return self.writer.strings.intern(text)

    def launch(self, connection: int, start: float, end: float) -> None:
        columns: Columns = {"type": 10_000, "globalTid": 1, "name": self.text("launch")}
        times: Columns = {"startNs": [at(start)], "endNs": [at(end)], "connectionId": connection}
        self.writer.write("CANN_API", {**times, **columns})

    def task(self, connection: int, start: float, end: float, device: int = 0) -> int:
        self.tasks += 1
        times: Columns = {"startNs": [at(start)], "endNs": [at(end)], "connectionId": connection}
        ids: Columns = {"deviceId": device, "globalTaskId": self.tasks}
        self.writer.write("TASK", {**times, **ids})
        return self.tasks

    def compute(self, connection: int, start: float, end: float, device: int = 0) -> None:
        number = self.task(connection, start, end, device)
        self.writer.write("COMPUTE_TASK_INFO", {"globalTaskId": [number]})

    def collective(self, name: str, connection: int, start: float, end: float) -> None:
        times: Columns = {"startNs": at(start), "endNs": at(end), "connectionId": connection}
        names: Columns = {"opName": [self.text(name)], "opId": connection}
        self.writer.write("COMMUNICATION_OP", {**names, **times})

    def part(
        self, op: str, kind: str, start: float, end: float, *, link: str = "HCCS",
        rdma: int = NEITHER, size: int = 0, target: int = 1, plane: int = 0, master: int = 1,
        connection: int = 7, device: int = 0,
    ) -> None:  # fmt: skip
        number = self.task(connection, start, end, device)
        names = {
            "name": [self.text(op)],
            "taskType": self.text(kind),
            "groupName": self.text("group"),
        }
        transport = TYPES["SDMA" if rdma == NEITHER else "RDMA"]
        links = {"rdmaType": rdma, "transportType": transport, "linkType": TYPES[link]}
        ranks = {"srcRank": 0, "dstRank": target, "planeId": plane, "isMaster": master}
        columns = {**names, **links, **ranks, "globalTaskId": number, "size": size}
        self.writer.write("COMMUNICATION_TASK_INFO", columns)


def at(ms: float) -> int:
    return 10**9 + round(ms * MS)


def write_and_query(
    builder: DatabaseBuilder, tables: dict[str, str]
) -> dict[str, list[tuple[object, ...]]]:
    with open_report(builder.writer.path) as report:
        path = write_analysis(report, builder.writer.path.parent, overwrite=True)
    with closing(sqlite3.connect(path)) as db:
        return {
            t: db.execute(f"SELECT {columns} FROM {t}").fetchall() for t, columns in tables.items()
        }


def test_step_includes_tasks_that_start_while_its_launches_run(tmp_path: Path) -> None:
    builder = DatabaseBuilder(tmp_path / "r.db")
    with builder.writer:
        builder.writer.write(
            "STEP_TIME", {"id": [3, 4], "startNs": [at(0), at(10)], "endNs": [at(10), at(20)]}
        )
        for connection, start in ((1, 1), (2, 2), (3, 11)):
            builder.launch(connection, start, start + 0.5)
        builder.compute(1, 4, 6)
        builder.task(2, 5, 9)
        builder.collective("hcom_receive__1", 2, 5, 9)
        builder.compute(3, 15, 16)
    columns = (
        "step, computing, communication_not_overlapped, overlapped, communication, free, stage,"
        " bubble, communication_not_overlapped_and_exclude_receive, preparing"
    )
    assert write_and_query(builder, {"StepTraceTime": columns})["StepTraceTime"] == [
        ("3", 2000, 3000, 1000, 4000, 0, 1000, 4000, 0, 4000),
        ("4", 1000, 0, 0, 0, 0, 1000, 0, 0, 5000),
    ]


def test_collective_time_is_split_into_transit_wait_and_idle(tmp_path: Path) -> None:
    builder = DatabaseBuilder(tmp_path / "r.db")
    op = "hcom_allReduce__1"
    with builder.writer:
        builder.launch(7, 0, 1)
        builder.part(op, "Notify_Wait", 0, 2)
        builder.part(op, "Memcpy", 2, 3, size=40_000_000, link="ON_CHIP", target=0xFFFFFFFF)
        builder.part(op, "Memcpy", 3, 7, size=40_000_000, link="HCCS_SW", target=1)
        builder.part(op, "Notify_Wait", 7, 8)
        builder.part(op, "Memcpy", 4, 5, size=1_000_000, link="other", target=2, plane=1, master=0)
    found = write_and_query(
        builder,
        {
            "CommAnalyzerTime": "elapse_time, transit_time, wait_time, synchronization_time,"
            " idle_time, step, type",
            "CommAnalyzerBandwidth": "transport_type, transit_size, bandwidth,"
            " large_packet_ratio, package_size, count",
            "CommAnalyzerMatrix": "hccl_op_name, src_rank, dst_rank, transport_type, op_name",
        },
    )
    assert found["CommAnalyzerTime"] == [(8, 4, 3, 2, 1, "step", "collective")]
    assert found["CommAnalyzerBandwidth"] == [
        ("HCCS", 40, 10, 1, 40, 1),
        ("SDMA", 41, 8.2, 0, 1, 1),
    ]
    total = [row for row in found["CommAnalyzerMatrix"] if str(row[0]).endswith("-total")]
    assert total == [
        ("allreduce-total", "0", "0", "LOCAL", ""),
        ("allreduce-total", "0", "1", "HCCS", ""),
        ("allreduce-total", "0", "2", None, ""),
    ]


def test_equal_names_on_two_devices_are_two_collectives(tmp_path: Path) -> None:
    builder = DatabaseBuilder(tmp_path / "r.db")
    with builder.writer:
        builder.launch(7, 0, 1)
        for device in (0, 1):
            begin = device * 0.5
            builder.part("allReduce__1", "Notify_Wait", begin, begin + 1, device=device)
            builder.part("allReduce__1", "Memcpy", begin + 1, begin + 4, size=10_000_000,
                      device=device)  # fmt: skip
    found = write_and_query(
        builder,
        {
            "CommAnalyzerTime": "elapse_time, transit_time, wait_time, idle_time",
            "CommAnalyzerBandwidth": "transport_type, transit_size, transit_time",
        },
    )
    assert found["CommAnalyzerTime"] == [(4, 3, 1, 0)] * 2
    assert found["CommAnalyzerBandwidth"] == [("HCCS", 10, 3), ("SDMA", 10, 3)] * 2


def test_rdma_payloads_end_with_the_closing_tasks(tmp_path: Path) -> None:
    builder = DatabaseBuilder(tmp_path / "r.db")
    with builder.writer:
        builder.launch(7, 0, 1)
        for op, closing in (("hcom_send__1", 2), ("hcom_broadcast__1", 3)):
            builder.part(op, "RDMASend", 0, 1, rdma=PAYLOAD, size=400_000)
            builder.part(op, "RDMASend", 1, 2, rdma=PAYLOAD, size=600_000)
            for number in range(closing):
                builder.part(op, "Notify_Wait", 2 + number, 3 + number)
    found = write_and_query(
        builder,
        {
            "CommAnalyzerTime": "hccl_op_name, transit_time, wait_time, type",
            "CommAnalyzerBandwidth": "hccl_op_name, transit_size, transit_time, large_packet_ratio",
        },
    )
    # A broadcast is closed by four tasks, so these three count as waits only.
    assert sorted(found["CommAnalyzerTime"]) == [
        ("hcom_broadcast__1", 0, 3, "collective"),
        ("hcom_send__1", 4, 0, "p2p"),
    ]
    assert found["CommAnalyzerBandwidth"] == [("hcom_send__1", 1, 4, 1)]


def test_matrix_has_top_middle_and_bottom_bandwidths_of_a_kind(tmp_path: Path) -> None:
    builder = DatabaseBuilder(tmp_path / "r.db")
    with builder.writer:
        builder.launch(7, 0, 1)
        for number in range(4):
            builder.part(f"hcom_reduceScatter__{number}", "Memcpy", number, number + 0.5,
                      size=(number + 1) * 1_000_000)  # fmt: skip
    rows = write_and_query(builder, {"CommAnalyzerMatrix": "hccl_op_name, bandwidth, op_name"})
    assert rows["CommAnalyzerMatrix"] == [
        ("reduce-top1", 8, "hcom_reduceScatter__3"),
        ("reduce-middle", 4, "hcom_reduceScatter__1"),
        ("reduce-bottom1", 2, "hcom_reduceScatter__0"),
        ("reduce-bottom2", 4, "hcom_reduceScatter__1"),
        ("reduce-bottom3", 6, "hcom_reduceScatter__2"),
        ("reduce-total", 5, ""),
    ]
