from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.decoders.ascend_pt.made import Framework
from tests.decoders.kineto.made import call, complete, kernel, write
from tests.pipeline.test_sources import MAKERS
from tests.prof_generator import Recipe, generate
from unified_prof import open_report
from unified_prof.pipeline import analysis_db
from unified_prof.pipeline.analysis_db import write_analysis
from unified_prof.pipeline.conversions import convert_all
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.sources import Sign, by_kind
from unified_prof.store.writer import ReportWriter
from unified_prof.vocabulary import group_hash

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def test_steps_own_what_they_launched_and_overlap_is_split(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "t.json",
        [
            complete("user_annotation", "ProfilerStep#1", 0, 100),
            complete("user_annotation", "ProfilerStep#2", 100, 100),
            *(call(10 * i, 1, i) for i in range(1, 4)),
            call(150, 1, 9),
            kernel(50, 40, 1),
            kernel(80, 30, 2, name=NCCL, args={"stream": 8}),
            kernel(130, 10, 3),
            kernel(160, 5, 9),
        ],
    )
    convert(trace, tmp_path / "r.db")
    with open_report(tmp_path / "r.db") as report:
        path = write_analysis(report, tmp_path, overwrite=False)
    with sqlite3.connect(path) as db:
        steps = db.execute(
            "SELECT step, computing, communication, overlapped, communication_not_overlapped,"
            " free, stage, preparing FROM StepTraceTime"
        ).fetchall()
        collectives = db.execute(
            "SELECT hccl_op_name, elapse_time, step, type, wait_time FROM CommAnalyzerTime"
        ).fetchall()
    db.close()
    assert steps == [("1", 50, 30, 10, 20, 20, 90, 50), ("2", 5, 0, 0, 0, 0, 5, 60)]
    assert collectives == [("AllReduce__N/A_0_1", 0.03, "step1", "collective", None)]


# A pipeline of two ranks, seen by the second one (global rank 6): it receives, computes, sends.
PIPELINE = {
    "Process Group Name": "pp_1",
    "Process Group Ranks": "[2, 6]",
    "In msg nelems": 500_000,
    "Out msg nelems": 500_000,
    "dtype": "Float",
    "Group size": 2,
}
GROUP = str(group_hash("pp_1"))


def passed(ts: float, dur: float, correlation: int, name: str, **more: object) -> dict[str, object]:
    args = {**PIPELINE, "Collective name": name, "stream": 9, **more}
    return kernel(ts, dur, correlation, name="ncclDevKernel_SendRecv(x)", args=args)


def pipeline(path: Path, *more: dict[str, object], rank: int | None = 6) -> Path:
    events = [
        complete("user_annotation", "ProfilerStep#7", 0, 100),
        *(call(10 * i, 1, i) for i in range(1, 4)),
        passed(30, 40, 1, "recv", **{"Src Rank": 2, "Seq": 0}),
        kernel(60, 30, 2),
        passed(100, 10, 3, "send", **{"Dst Rank": 2, "Seq": 1}),
    ]
    about = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 8}}
    return write(path, [*events, *more], **about)


def analysis_of(trace: Path, tables: dict[str, str]) -> dict[str, list[tuple[object, ...]]]:
    made = convert(trace, trace.with_suffix(".db"))
    with open_report(made.database) as report:
        path = write_analysis(report, trace.parent, overwrite=True)
    with closing(sqlite3.connect(path)) as db:
        return {
            t: db.execute(f"SELECT {columns} FROM {t}").fetchall() for t, columns in tables.items()
        }


STEP_COLUMNS = (
    "step, computing, communication, overlapped, communication_not_overlapped, free, stage,"
    " bubble, communication_not_overlapped_and_exclude_receive, preparing"
)


def test_what_a_gpu_received_is_the_bubble_of_its_stage(tmp_path: Path) -> None:
    found = analysis_of(pipeline(tmp_path / "t.json"), {"StepTraceTime": STEP_COLUMNS})
    # From 30 to 110: 80 us, of which 40 were received for; 10 of those while it computed.
    assert found["StepTraceTime"] == [("7", 30, 50, 10, 40, 10, 40, 40, 0, 30)]


def test_without_steps_the_recording_is_one_of_no_name(tmp_path: Path) -> None:
    events = [
        complete("cpu_op", "aten::mm", 5, 10),
        call(8, 1, 1),
        kernel(20, 10, 1),
    ]
    found = analysis_of(write(tmp_path / "t.json", events), {"StepTraceTime": STEP_COLUMNS})
    assert found["StepTraceTime"] == [(None, 10, 0, 0, 0, 0, 10, 0, 0, 15)]


def test_bandwidths_of_a_gpu_are_those_of_the_whole_kernel(tmp_path: Path) -> None:
    found = analysis_of(
        pipeline(tmp_path / "t.json"),
        {
            "CommAnalyzerTime": "hccl_op_name, group_name, elapse_time, transit_time, step, type",
            "CommAnalyzerBandwidth": "*",
        },
    )
    assert found["CommAnalyzerTime"] == [
        ("receive__pp_1_0_1", GROUP, 0.04, None, "step7", "p2p"),
        ("send__pp_1_1_1", GROUP, 0.01, None, "step7", "p2p"),
    ]
    received = ("SDMA", 2, 0.04, 50, 0, 2, 1, 0.04, "step7", "p2p")
    assert found["CommAnalyzerBandwidth"][0] == ("receive__pp_1_0_1", GROUP, *received)
    assert found["CommAnalyzerBandwidth"][1][2:6] == ("SDMA", 2, 0.01, 200)


def test_the_matrix_of_a_gpu_goes_from_sender_to_receiver(tmp_path: Path) -> None:
    more = [call(50, 1, 4), passed(120, 10, 4, "allreduce", Seq=2)]
    found = analysis_of(
        pipeline(tmp_path / "t.json", *more),
        {"CommAnalyzerMatrix": "hccl_op_name, src_rank, dst_rank, transport_type, bandwidth"},
    )
    rows = [row for row in found["CommAnalyzerMatrix"] if str(row[0]).endswith("total")]
    # Ranks are those in the group; links of a collective are not recorded.
    assert rows == [
        ("receive-total", "0", "1", None, 50),
        ("send-total", "1", "0", None, 200),
        ("allreduce-total", "1", "1", None, 200),
    ]


@pytest.mark.parametrize(
    ("rank", "ranks"), [(None, "[2, 6]"), (6, "[0, 1, ..., 63]"), (6, "[2, 3]")]
)
def test_without_its_place_in_the_group_a_rank_has_no_row_in_the_matrix(
    rank: int | None, ranks: str, tmp_path: Path
) -> None:
    listed = {"Process Group Ranks": ranks}
    more = [call(50, 1, 4), passed(120, 10, 4, "allreduce", Seq=2, **listed)]
    found = analysis_of(
        pipeline(tmp_path / "t.json", *more, rank=rank),
        {"CommAnalyzerMatrix": "hccl_op_name", "CommAnalyzerBandwidth": "hccl_op_name"},
    )
    assert not [row for row in found["CommAnalyzerMatrix"] if "allreduce" in str(row[0])]
    assert len(found["CommAnalyzerBandwidth"]) == 3


def test_collectives_launched_outside_every_step_are_left_out_as_their_tasks_are(
    tmp_path: Path,
) -> None:
    more = [call(500, 1, 4), passed(520, 10, 4, "allreduce", Seq=2)]
    trace = pipeline(tmp_path / "t.json", *more)
    found = analysis_of(trace, {"CommAnalyzerTime": "step", "StepTraceTime": "communication"})
    assert found == {
        "CommAnalyzerTime": [("step7",), ("step7",)],
        "StepTraceTime": [(50,)],
    }


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
    ) -> None:
        number = self.task(connection, start, end)
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


def test_a_step_owns_what_starts_while_its_launches_run(tmp_path: Path) -> None:
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


def test_a_run_of_rdma_payloads_lasts_until_what_closes_it(tmp_path: Path) -> None:
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


def test_a_built_prof_directory_has_what_viewers_ask_for(tmp_path: Path) -> None:
    prof = generate(tmp_path, Recipe(operators=3, collectives=2)).path
    convert(prof)
    with closing(sqlite3.connect(prof / "analyze" / "communication_analyzer.db")) as db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master ORDER BY 1")]
        assert names == ["CommAnalyzerBandwidth", "CommAnalyzerMatrix", "CommAnalyzerTime"]
        own = db.execute("SELECT count(*) FROM CommAnalyzerTime").fetchone()
    with closing(sqlite3.connect(prof / "analysis.db")) as db:
        assert db.execute("SELECT count(*) FROM CommAnalyzerTime").fetchone() == own
        assert db.execute("SELECT count(*) FROM StepTraceTime").fetchone() != (0,)
    assert own != (0,)


def test_what_others_analysed_stays_unless_it_is_forced(tmp_path: Path) -> None:
    prof = generate(tmp_path, Recipe(operators=3, collectives=2)).path
    theirs = prof / "analyze" / "communication_analyzer.db"
    theirs.parent.mkdir()
    theirs.write_bytes(b"theirs")
    convert(prof)
    assert theirs.read_bytes() == b"theirs"
    convert(prof, force=True)
    assert theirs.read_bytes() != b"theirs"


def test_without_collectives_a_prof_directory_gets_its_report_only(tmp_path: Path) -> None:
    prof = generate(tmp_path, Recipe(operators=3)).path
    before = {path.name for path in prof.iterdir()}
    made = convert(prof)
    assert {path.name for path in prof.iterdir()} == before | {made.database.name}


def test_a_folder_made_for_a_report_says_its_devices_and_is_no_recording(tmp_path: Path) -> None:
    recordings = [
        generate(tmp_path / f"in{n}", Recipe(operators=3, devices=(n,))).path for n in (0, 1)
    ]
    for recording in recordings:
        for info in recording.glob("device_*/info.json.?"):
            told = json.loads(info.read_text())
            told.pop("rank_id", None)
            info.write_text(json.dumps(told))
    found = list(convert_all(recordings, tmp_path / "out"))
    assert [outcome.error for outcome in found] == [None, None]
    for number, outcome in enumerate(found):
        assert outcome.converted is not None
        folder = outcome.converted.database.parent
        names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        device = f"device_{number}/info.json.{number}"
        assert names == {outcome.converted.database.name, "analysis.db", device}
        assert json.loads((folder / device).read_text())["rank_id"] == -1
        assert by_kind("prof").sniff(folder) is Sign.NO
        assert by_kind("prof").sniff(recordings[number]) is Sign.SURE
    with closing(sqlite3.connect(folder / "analysis.db")) as db:
        assert db.execute("SELECT DISTINCT deviceId FROM StepTraceTime").fetchall() == [(1,)]


@pytest.mark.parametrize(("level", "there"), [("Level1", True), ("Level_none", False)])
def test_a_torch_npu_folder_is_laid_out_as_torch_npu_does(
    level: str, there: bool, tmp_path: Path
) -> None:
    made = Framework()
    made.operator("aten::mm", 1, 2)
    folder = made.write(tmp_path / "host_1_20260101_ascend_pt", rank=2, metadata={"a": 1})
    generate(folder, Recipe(operators=3)).path.rename(folder / "PROF_000001_20260101_ABC")
    info = folder / "profiler_info_2.json"
    info.write_text(info.read_text().replace("Level1", level))
    found = list(convert_all([folder], tmp_path / "out"))
    assert [outcome.error for outcome in found] == [None]
    base = tmp_path / "out" / folder.name
    names = {str(path.relative_to(base)) for path in base.rglob("*") if path.is_file()}
    assert names == {
        "profiler_info_2.json",
        "profiler_metadata.json",
        "ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_2.db",
        *(["ASCEND_PROFILER_OUTPUT/analysis.db"] if there else []),
    }
    again = list(convert_all([folder], tmp_path / "out"))
    assert "there already" in str(again[0].error)


def torch_npu_folder(path: Path) -> Path:
    made = Framework()
    made.operator("aten::mm", 1, 2)
    folder = made.write(path / "host_1_20260101_ascend_pt", rank=2)
    generate(folder, Recipe(operators=3)).path.rename(folder / "PROF_000001_20260101_ABC")
    return folder


def gpu_trace(path: Path) -> Path:
    return pipeline(path / "trace.json")


@pytest.mark.parametrize(
    ("make", "layout", "database"),
    [
        (torch_npu_folder, "plain", "ascend_pytorch_profiler_2.db"),
        (gpu_trace, "ascend-pt", "ascend_pytorch_profiler_6.db"),
    ],
)
def test_a_report_that_is_there_has_its_analysis_whenever_its_maker_was_killed(
    make: Callable[[Path], Path], layout: str, database: str, tmp_path: Path
) -> None:
    recording, out = make(tmp_path), tmp_path / "out"
    child = os.fork()
    if not child:  # dies where the report is complete and its analysis is not
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(analysis_db, "write_analysis", lambda *_, **__: os._exit(9))
                list(convert_all([recording], out, layout=layout))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not list(out.rglob(database))
    (outcome,) = convert_all([recording], out, layout=layout)
    assert outcome.error is None
    assert outcome.converted is not None
    assert outcome.converted.database.name == database
    folder = outcome.converted.database.parent
    assert sorted(path.name for path in folder.iterdir()) == ["analysis.db", database]


def test_the_folder_of_a_trace_says_what_it_is(tmp_path: Path) -> None:
    groups = [{"pg_name": "pp_1", "pg_desc": "pp", "ranks": [2, 6]}]
    trace = pipeline(tmp_path / "trace.json")
    about = json.loads(trace.read_text())
    about["distributedInfo"]["pg_config"] = groups
    trace.write_text(json.dumps(about))
    (outcome,) = convert_all([trace], tmp_path / "out", layout="ascend-pt")
    assert outcome.converted is not None
    folder = outcome.converted.database.parents[1]
    assert sorted(path.name for path in folder.iterdir()) == [
        "ASCEND_PROFILER_OUTPUT",
        "profiler_info_6.json",
        "profiler_metadata.json",
    ]
    info = json.loads((folder / "profiler_info_6.json").read_text())
    assert info["rank_id"] == 6
    assert info["config"]["common_config"]["activities"] == [
        "ProfilerActivity.CPU",
        "ProfilerActivity.NPU",
    ]
    assert "torch.profiler" in info["made_by"]
    told = json.loads((folder / "profiler_metadata.json").read_text())
    expected = {"group_name": "pp", "group_rank": 1, "global_ranks": [2, 6]}
    assert told == {"parallel_group_info": {"pp_1": expected}}


def test_the_folder_of_a_trace_of_another_rank_is_of_that_rank(tmp_path: Path) -> None:
    for rank in (6, None, 2):
        trace = pipeline(tmp_path / "trace.json", rank=rank)
        (outcome,) = convert_all([trace], tmp_path / "out", layout="ascend-pt", force=True)
        assert outcome.converted is not None
        number = "" if rank is None else f"_{rank}"
        folder = outcome.converted.database.parents[1]
        assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
            "analysis.db",
            f"ascend_pytorch_profiler{number}.db",
            f"profiler_info{number}.json",
            "profiler_metadata.json",
        ]


@pytest.mark.parametrize("kind", ["nsys", "rocm", "ascend_pt", "ascend_text"])
def test_other_recordings_are_laid_out_the_same_way(kind: str, tmp_path: Path) -> None:
    recording = MAKERS[kind](tmp_path / "in")
    (outcome,) = convert_all([recording], tmp_path / "out", layout="ascend-pt")
    assert outcome.error is None
    assert outcome.converted is not None
    database = outcome.converted.database
    assert database.parents[1].name.endswith("_ascend_pt")
    assert database.with_name("analysis.db").exists()
    infos = [path.name for path in database.parents[1].glob("profiler_info*.json")]
    number = database.stem.removeprefix("ascend_pytorch_profiler")
    assert infos == [f"profiler_info{number}.json"]
