"""analysis.db of NPU recordings."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from unified_prof import open_report
from unified_prof.base.columns import group_hash
from unified_prof.pipeline.analysis_db import write_analysis
from unified_prof.sqlite.writer import ReportWriter


def test_groups_are_named_by_the_hash_that_readers_compute() -> None:
    # From a database that torch_npu made, and by hand.
    assert group_hash("a") == 97 << 32 | 97
    assert group_hash("ab") == (97 * 29 + 98) << 32 | (97 * 131 + 98)


# ---- of Ascend devices

MS = 1_000_000
TYPES = {"SDMA": 0, "RDMA": 1, "ON_CHIP": 0, "HCCS": 1, "PCIE": 2, "HCCS_SW": 5, "other": 3}
PAYLOAD, NOTIFY, NEITHER = 1, 0, 65535


class Made:
    """A database of launches, tasks and collectives; times are ms since the first second."""

    def __init__(self, path: Path) -> None:
        self.writer = ReportWriter(path, revision="latest")
        self.tasks = 0

    def text(self, text: str) -> int:
        return self.writer.strings.intern(text)

    def launch(self, connection: int, start: float, end: float) -> None:
        self.writer.write(
            "CANN_API",
            {
                "startNs": [at(start)],
                "endNs": [at(end)],
                "type": 10_000,
                "globalTid": 1,
                "connectionId": connection,
                "name": self.text("launch"),
            },
        )

    def task(self, connection: int, start: float, end: float, device: int = 0) -> int:
        self.tasks += 1
        self.writer.write(
            "TASK",
            {
                "startNs": [at(start)],
                "endNs": [at(end)],
                "deviceId": device,
                "connectionId": connection,
                "globalTaskId": self.tasks,
            },
        )
        return self.tasks

    def compute(self, connection: int, start: float, end: float, device: int = 0) -> None:
        number = self.task(connection, start, end, device)
        self.writer.write("COMPUTE_TASK_INFO", {"globalTaskId": [number]})

    def collective(self, name: str, connection: int, start: float, end: float) -> None:
        self.writer.write(
            "COMMUNICATION_OP",
            {
                "opName": [self.text(name)],
                "startNs": at(start),
                "endNs": at(end),
                "connectionId": connection,
                "opId": connection,
            },
        )

    def part(
        self,
        op: str,
        kind: str,
        start: float,
        end: float,
        *,
        link: str = "HCCS",
        rdma: int = NEITHER,
        size: int = 0,
        target: int = 1,
        plane: int = 0,
        master: int = 1,
        connection: int = 7,
        device: int = 0,
    ) -> None:
        number = self.task(connection, start, end, device)
        self.writer.write(
            "COMMUNICATION_TASK_INFO",
            {
                "name": [self.text(op)],
                "globalTaskId": number,
                "taskType": self.text(kind),
                "planeId": plane,
                "groupName": self.text("group"),
                "rdmaType": rdma,
                "srcRank": 0,
                "dstRank": target,
                "transportType": TYPES["SDMA" if rdma == NEITHER else "RDMA"],
                "size": size,
                "linkType": TYPES[link],
                "isMaster": master,
            },
        )


def at(ms: float) -> int:
    return 10**9 + round(ms * MS)


def analysed(made: Made, tables: dict[str, str]) -> dict[str, list[tuple[object, ...]]]:
    with open_report(made.writer.path) as report:
        path = write_analysis(report, made.writer.path.parent, overwrite=True)
    with closing(sqlite3.connect(path)) as db:
        return {
            t: db.execute(f"SELECT {columns} FROM {t}").fetchall() for t, columns in tables.items()
        }


def test_a_step_includes_tasks_that_start_while_its_launches_run(tmp_path: Path) -> None:
    made = Made(tmp_path / "r.db")
    with made.writer:
        made.writer.write(
            "STEP_TIME", {"id": [3, 4], "startNs": [at(0), at(10)], "endNs": [at(10), at(20)]}
        )
        for connection, start in ((1, 1), (2, 2), (3, 11)):
            made.launch(connection, start, start + 0.5)
        made.compute(1, 4, 6)
        made.task(2, 5, 9)
        made.collective("hcom_receive__1", 2, 5, 9)
        made.compute(3, 15, 16)
    columns = (
        "step, computing, communication_not_overlapped, overlapped, communication, free, stage,"
        " bubble, communication_not_overlapped_and_exclude_receive, preparing"
    )
    assert analysed(made, {"StepTraceTime": columns})["StepTraceTime"] == [
        ("3", 2000, 3000, 1000, 4000, 0, 1000, 4000, 0, 4000),
        ("4", 1000, 0, 0, 0, 0, 1000, 0, 0, 5000),
    ]


def test_where_the_time_of_a_collective_goes(tmp_path: Path) -> None:
    made = Made(tmp_path / "r.db")
    op = "hcom_allReduce__1"
    with made.writer:
        made.launch(7, 0, 1)
        made.part(op, "Notify_Wait", 0, 2)
        made.part(op, "Memcpy", 2, 3, size=40_000_000, link="ON_CHIP", target=0xFFFFFFFF)
        made.part(op, "Memcpy", 3, 7, size=40_000_000, link="HCCS_SW", target=1)
        made.part(op, "Notify_Wait", 7, 8)
        made.part(op, "Memcpy", 4, 5, size=1_000_000, link="other", target=2, plane=1, master=0)
    found = analysed(
        made,
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


def test_collectives_of_one_name_on_two_devices_are_two(tmp_path: Path) -> None:
    made = Made(tmp_path / "r.db")
    with made.writer:
        made.launch(7, 0, 1)
        for device in (0, 1):
            begin = device * 0.5
            made.part("allReduce__1", "Notify_Wait", begin, begin + 1, device=device)
            made.part("allReduce__1", "Memcpy", begin + 1, begin + 4, size=10_000_000,
                      device=device)  # fmt: skip
    found = analysed(
        made,
        {
            "CommAnalyzerTime": "elapse_time, transit_time, wait_time, idle_time",
            "CommAnalyzerBandwidth": "transport_type, transit_size, transit_time",
        },
    )
    assert found["CommAnalyzerTime"] == [(4, 3, 1, 0)] * 2
    assert found["CommAnalyzerBandwidth"] == [("HCCS", 10, 3), ("SDMA", 10, 3)] * 2


def test_a_run_of_rdma_payloads_ends_with_the_closing_tasks(tmp_path: Path) -> None:
    made = Made(tmp_path / "r.db")
    with made.writer:
        made.launch(7, 0, 1)
        for op, closing in (("hcom_send__1", 2), ("hcom_broadcast__1", 3)):
            made.part(op, "RDMASend", 0, 1, rdma=PAYLOAD, size=400_000)
            made.part(op, "RDMASend", 1, 2, rdma=PAYLOAD, size=600_000)
            for number in range(closing):
                made.part(op, "Notify_Wait", 2 + number, 3 + number)
    found = analysed(
        made,
        {
            "CommAnalyzerTime": "hccl_op_name, transit_time, wait_time, type",
            "CommAnalyzerBandwidth": "hccl_op_name, transit_size, transit_time, large_packet_ratio",
        },
    )
    # A broadcast is closed by four tasks; these three are only waited for.
    assert sorted(found["CommAnalyzerTime"]) == [
        ("hcom_broadcast__1", 0, 3, "collective"),
        ("hcom_send__1", 4, 0, "p2p"),
    ]
    assert found["CommAnalyzerBandwidth"] == [("hcom_send__1", 1, 4, 1)]


def test_the_matrix_has_best_middle_and_worst_of_a_kind(tmp_path: Path) -> None:
    made = Made(tmp_path / "r.db")
    with made.writer:
        made.launch(7, 0, 1)
        for number in range(4):
            made.part(f"hcom_reduceScatter__{number}", "Memcpy", number, number + 0.5,
                      size=(number + 1) * 1_000_000)  # fmt: skip
    rows = analysed(made, {"CommAnalyzerMatrix": "hccl_op_name, bandwidth, op_name"})
    assert rows["CommAnalyzerMatrix"] == [
        ("reduce-top1", 8, "hcom_reduceScatter__3"),
        ("reduce-middle", 4, "hcom_reduceScatter__1"),
        ("reduce-bottom1", 2, "hcom_reduceScatter__0"),
        ("reduce-bottom2", 4, "hcom_reduceScatter__1"),
        ("reduce-bottom3", 6, "hcom_reduceScatter__2"),
        ("reduce-total", 5, ""),
    ]
