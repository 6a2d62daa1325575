from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.decoders.kineto.made import call, complete, kernel, write
from unified_prof import open_report
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.step_analysis import group_hash, write_analysis

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


def test_groups_are_named_by_the_hash_that_readers_compute() -> None:
    # From a database that torch_npu made, and by hand.
    assert group_hash("a") == 97 << 32 | 97
    assert group_hash("ab") == (97 * 29 + 98) << 32 | (97 * 131 + 98)
