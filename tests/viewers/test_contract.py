"""Every kind of recording becomes what other people's readers rely on; see `contract`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.decoders.ascend_pt.builders import Framework
from tests.decoders.kineto.builders import call, complete, copy, kernel, operation, write
from tests.pipeline.test_sources import MAKERS
from tests.prof_generator import Recipe, generate
from tests.viewers.contract import broken
from unified_prof.pipeline.convert import convert_all
from unified_prof.pipeline.output_paths import ASCEND_PT, PLAIN

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"


def training(folder: Path, rank: int | None = 0, *, collectives: bool = True) -> Path:
    """Two steps of one of two ranks that reduce, and pass on what they computed."""
    group = {
        "Process Group Name": "1",
        "Process Group Ranks": "[0, 1]",
        "dtype": "BFloat16",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "Group size": 2,
        "stream": 20,
    }
    peer = {"Src Rank": 1, "Collective name": "recv"} if not rank else {"Dst Rank": 0}
    events = [operation("aten::mm", 1, 300)]
    for step in (0, 1):
        start, number = 1000.0 * step, 10 * step
        events += [
            complete("user_annotation", f"ProfilerStep#{step}", start, 900),
            *(call(start + 10 * i, 1, number + i) for i in range(1, 5)),
            kernel(start + 50, 100, number + 1),
            copy(start + 160, 30, number + 4, "Memcpy HtoD (Pinned -> Device)", 4096),
        ]
        if collectives:
            reduced = group | {"Collective name": "allreduce", "Seq": 2 * step}
            passed = group | {"Collective name": "send"} | peer | {"Seq": 2 * step + 1}
            events += [
                kernel(start + 120, 60, number + 2, name=NCCL, args=reduced),
                kernel(start + 300, 80, number + 3, name="ncclDevKernel_SendRecv(x)", args=passed),
            ]
    groups = [{"pg_name": "1", "pg_desc": "dp", "ranks": [0, 1]}]
    about = {"rank": rank, "world_size": 2, "pg_config": groups}
    folder.mkdir(parents=True, exist_ok=True)
    return write(folder / f"rank{rank}.json", events, distributedInfo={} if rank is None else about)


def npu_training(folder: Path, rank: int = 0) -> Path:
    """What torch_npu leaves of one rank, PyTorch's records and the devices'."""
    made = Framework()
    made.operator("aten::mm", 1, 2)
    path = made.write(folder / f"host_{rank}_2026010100000000{rank}_ascend_pt", rank=rank)
    recipe = Recipe(operators=4, collectives=2, seed=rank)
    generate(path, recipe).path.rename(path / "PROF_000001_20260101000000000_ABCDEFGH")
    return path


RECORDINGS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "collectives": (training, ASCEND_PT),
    "no collectives": (lambda folder: training(folder, collectives=False), ASCEND_PT),
    "no rank": (lambda folder: training(folder, None), ASCEND_PT),
    "nsys": (MAKERS["nsys"], ASCEND_PT),
    "rocm": (MAKERS["rocm"], ASCEND_PT),
    "kineto": (MAKERS["kineto"], ASCEND_PT),
    "ascend_pt": (npu_training, PLAIN),
    "ascend_pt elsewhere": (npu_training, ASCEND_PT),
    "ascend_text": (MAKERS["ascend_text"], ASCEND_PT),
    "prof": (MAKERS["prof"], PLAIN),
    "prof collectives": (
        lambda folder: generate(folder, Recipe(operators=4, collectives=2)).path,
        PLAIN,
    ),
}


def reports(recordings: list[Path], folder: Path, layout: str = ASCEND_PT) -> list[Path]:
    found = []
    for outcome in convert_all(recordings, folder, layout=layout):
        assert outcome.error is None
        assert outcome.conversion is not None
        found.append(outcome.conversion.database)
    return found


@pytest.mark.parametrize("name", RECORDINGS)
def test_readers_find_all_they_ask_for(name: str, tmp_path: Path) -> None:
    make, layout = RECORDINGS[name]
    (report,) = reports([make(tmp_path / "in")], tmp_path / "out", layout)
    assert broken(report) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "UPDATE COMPUTE_TASK_INFO SET taskType ="
            " (SELECT id FROM STRING_IDS WHERE value = 'KERNEL')",
            "nobody asks for operators of KERNEL",
        ),
        (
            "UPDATE MSTX_EVENTS SET connectionId = 4000000000",
            "marks have connection 4000000000, which no task has",
        ),
        ("UPDATE MSTX_EVENTS SET connectionId = NULL", "marks have connection None"),
        ("DROP TABLE OVERLAP_ANALYSIS", "no overall times"),
        (
            "DELETE FROM OVERLAP_ANALYSIS WHERE type = 2",
            "device 0: the overall times lack communication alone",
        ),
        ("UPDATE COMPUTE_TASK_INFO SET inputShapes = -1", "2 texts of COMPUTE_TASK_INFO.inputSh"),
        ("UPDATE NPU_INFO SET id = 5", "device 0 has no card"),
        ("UPDATE TASK SET globalTaskId = 1", "tasks share a number"),
        ("UPDATE COMMUNICATION_OP SET connectionId = 77", "collectives of no task"),
        ("UPDATE META_DATA SET value = '{}' WHERE name LIKE 'parallel%'", "profiler_metadata.json"),
    ],
)
def test_the_contract_tells_what_is_broken(change: str, sentence: str, tmp_path: Path) -> None:
    (report,) = reports([training(tmp_path / "in")], tmp_path / "out")
    with closing(sqlite3.connect(report)) as db, db:
        db.execute(change)
    found = broken(report)
    assert any(one.startswith(sentence) for one in found), found


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("DROP TABLE CommAnalyzerMatrix", "analysis.db lacks CommAnalyzerMatrix"),
        ("UPDATE CommAnalyzerTime SET step = 'step'", "CommAnalyzerTime has step, of which"),
        ("UPDATE StepTraceTime SET deviceId = 3", "StepTraceTime has device 3"),
        ("UPDATE StepTraceTime SET preparing = NULL", "StepTraceTime.preparing is unknown"),
        ("DELETE FROM CommAnalyzerTime", "no times of collectives"),
    ],
)
def test_the_contract_tells_what_is_broken_beside(
    change: str, sentence: str, tmp_path: Path
) -> None:
    (report,) = reports([training(tmp_path / "in")], tmp_path / "out")
    with closing(sqlite3.connect(report.with_name("analysis.db"))) as db, db:
        db.execute(change)
    assert any(one.startswith(sentence) for one in broken(report))


def test_the_contract_tells_what_is_missing_round_a_report(tmp_path: Path) -> None:
    (report,) = reports([training(tmp_path / "in", 1)], tmp_path / "out")
    (report.parents[1] / "profiler_info_1.json").unlink()
    report.with_name("analysis.db").unlink()
    assert broken(report) == ["no profiler_info_1.json", "collectives without an analysis"]
