"""analysis.db of GPU recordings."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.decoders.kineto.builders import call, complete, kernel, write
from tests.pipeline.two_stages import pipeline, pipeline_kernel
from tests.sql import execute
from unified_prof import open_report
from unified_prof.base.columns import group_hash
from unified_prof.pipeline.analysis_db import write_analysis
from unified_prof.pipeline.convert import convert

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def test_steps_include_their_launches_and_overlap_is_split(tmp_path: Path) -> None:
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
    steps = execute(
        path,
        "SELECT step, computing, communication, overlapped, communication_not_overlapped,"
        " free, stage, preparing FROM StepTraceTime",
    )
    collectives = execute(
        path, "SELECT hccl_op_name, elapse_time, step, type, wait_time FROM CommAnalyzerTime"
    )
    assert steps == [("1", 50, 30, 10, 20, 20, 90, 50), ("2", 5, 0, 0, 0, 0, 5, 60)]
    assert collectives == [("AllReduce__N/A_0_1", 0.03, "step1", "collective", None)]


GROUP = str(group_hash("pp_1"))


def convert_and_query(trace: Path, tables: dict[str, str]) -> dict[str, list[tuple[object, ...]]]:
    conversion = convert(trace, trace.with_suffix(".db"))
    with open_report(conversion.database) as report:
        path = write_analysis(report, trace.parent, overwrite=True)
    with closing(sqlite3.connect(path)) as db:
        return {
            t: db.execute(f"SELECT {columns} FROM {t}").fetchall() for t, columns in tables.items()
        }


STEP_COLUMNS = (
    "step, computing, communication, overlapped, communication_not_overlapped, free, stage,"
    " bubble, communication_not_overlapped_and_exclude_receive, preparing"
)


def test_receives_of_a_gpu_are_the_bubble_of_its_stage(tmp_path: Path) -> None:
    found = convert_and_query(pipeline(tmp_path / "t.json"), {"StepTraceTime": STEP_COLUMNS})
    # 80 us from 30 to 110, of which 40 are receives, 10 of them during computation.
    assert found["StepTraceTime"] == [("7", 30, 50, 10, 40, 10, 40, 40, 0, 30)]


def test_recording_without_steps_is_one_unnamed_step(tmp_path: Path) -> None:
    events = [complete("cpu_op", "aten::mm", 5, 10), call(8, 1, 1), kernel(20, 10, 1)]
    found = convert_and_query(write(tmp_path / "t.json", events), {"StepTraceTime": STEP_COLUMNS})
    assert found["StepTraceTime"] == [(None, 10, 0, 0, 0, 0, 10, 0, 0, 15)]


def test_gpu_bandwidths_are_those_of_the_whole_kernel(tmp_path: Path) -> None:
    found = convert_and_query(
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


def test_gpu_matrix_goes_from_sender_to_receiver(tmp_path: Path) -> None:
    more = [call(50, 1, 4), pipeline_kernel(120, 10, 4, "allreduce", Seq=2)]
    found = convert_and_query(
        pipeline(tmp_path / "t.json", *more),
        {"CommAnalyzerMatrix": "hccl_op_name, src_rank, dst_rank, transport_type, bandwidth"},
    )
    rows = [row for row in found["CommAnalyzerMatrix"] if str(row[0]).endswith("total")]
    # Ranks are numbers within the group; links of a collective are not recorded.
    assert rows == [
        ("receive-total", "0", "1", None, 50),
        ("send-total", "1", "0", None, 200),
        ("allreduce-total", "1", "1", None, 200),
    ]


@pytest.mark.parametrize(
    ("rank", "ranks"), [(None, "[2, 6]"), (6, "[0, 1, ..., 63]"), (6, "[2, 3]")]
)
def test_rank_without_place_has_no_matrix_row(rank: int | None, ranks: str, tmp_path: Path) -> None:
    group_ranks = {"Process Group Ranks": ranks}
    more = [call(50, 1, 4), pipeline_kernel(120, 10, 4, "allreduce", Seq=2, **group_ranks)]
    found = convert_and_query(
        pipeline(tmp_path / "t.json", *more, rank=rank),
        {"CommAnalyzerMatrix": "hccl_op_name", "CommAnalyzerBandwidth": "hccl_op_name"},
    )
    assert not [row for row in found["CommAnalyzerMatrix"] if "allreduce" in str(row[0])]
    assert len(found["CommAnalyzerBandwidth"]) == 3


def test_collectives_outside_every_step_are_omitted(tmp_path: Path) -> None:
    more = [call(500, 1, 4), pipeline_kernel(520, 10, 4, "allreduce", Seq=2)]
    trace = pipeline(tmp_path / "t.json", *more)
    found = convert_and_query(trace, {"CommAnalyzerTime": "step", "StepTraceTime": "communication"})
    assert found == {"CommAnalyzerTime": [("step7",), ("step7",)], "StepTraceTime": [(50,)]}
