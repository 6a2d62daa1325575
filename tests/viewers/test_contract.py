"""Every kind of recording is converted to what other readers require; see `contract`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.decoders.ascend_pt.builders import Framework
from tests.decoders.kineto.builders import call, complete, copy, kernel, operation, write
from tests.pipeline.test_sources import MAKERS
from tests.prof_generator import Recipe, generate
from tests.sql import execute
from tests.viewers.contract import violations
from unified_prof.pipeline.convert import convert_all
from unified_prof.pipeline.discovery import ASCEND_PT, PLAIN

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"


def write_training(folder: Path, rank: int | None = 0, *, collectives: bool = True) -> Path:
    """Write two steps of one of two ranks, with an all-reduce and a transfer."""
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


def write_npu_training(folder: Path, rank: int = 0) -> Path:
    """Write a rank as torch_npu leaves it: records of PyTorch and of the devices."""
    framework = Framework()
    framework.operator("aten::mm", 1, 2)
    path = framework.write(folder / f"host_{rank}_2026010100000000{rank}_ascend_pt", rank=rank)
    recipe = Recipe(operators=4, collectives=2, seed=rank)
    generate(path, recipe).path.rename(path / "PROF_000001_20260101000000000_ABCDEFGH")
    return path


RECORDINGS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "collectives": (write_training, ASCEND_PT),
    "no collectives": (lambda folder: write_training(folder, collectives=False), ASCEND_PT),
    "no rank": (lambda folder: write_training(folder, None), ASCEND_PT),
    "nsys": (MAKERS["nsys"], ASCEND_PT),
    "rocm": (MAKERS["rocm"], ASCEND_PT),
    "kineto": (MAKERS["kineto"], ASCEND_PT),
    "ascend_pt": (write_npu_training, PLAIN),
    "ascend_pt in its own layout": (write_npu_training, ASCEND_PT),
    "ascend_text": (MAKERS["ascend_text"], ASCEND_PT),
    "prof": (MAKERS["prof"], PLAIN),
    "prof collectives": (
        lambda folder: generate(folder, Recipe(operators=4, collectives=2)).path,
        PLAIN,
    ),
}


def convert_reports(recordings: list[Path], folder: Path, layout: str = ASCEND_PT) -> list[Path]:
    found = []
    for outcome in convert_all(recordings, folder, layout=layout):
        assert outcome.error is None
        assert outcome.conversion is not None
        found.append(outcome.conversion.database)
    return found


@pytest.mark.parametrize("name", RECORDINGS)
def test_converted_recording_meets_the_requirements_of_readers(name: str, tmp_path: Path) -> None:
    make, layout = RECORDINGS[name]
    (report,) = convert_reports([make(tmp_path / "in")], tmp_path / "out", layout)
    assert violations(report) == []


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "UPDATE COMPUTE_TASK_INFO SET taskType ="
            " (SELECT id FROM STRING_IDS WHERE value = 'KERNEL')",
            "no reader lists operators of KERNEL",
        ),
        (
            "UPDATE MSTX_EVENTS SET connectionId = 4000000000",
            "marks have connection 4000000000, which no task has",
        ),
        ("UPDATE MSTX_EVENTS SET connectionId = NULL", "marks have connection None"),
        ("DROP TABLE OVERLAP_ANALYSIS", "overall times are missing"),
        (
            "DELETE FROM OVERLAP_ANALYSIS WHERE type = 2",
            "device 0: overall times lack communication alone",
        ),
        ("UPDATE COMPUTE_TASK_INFO SET inputShapes = -1", "2 texts of COMPUTE_TASK_INFO.inputSh"),
        ("UPDATE NPU_INFO SET id = 5", "device 0 has no card"),
        ("UPDATE TASK SET globalTaskId = 1", "tasks share a number"),
        ("UPDATE COMMUNICATION_OP SET connectionId = 77", "collectives without a task"),
        ("UPDATE META_DATA SET value = '{}' WHERE name LIKE 'parallel%'", "profiler_metadata.json"),
    ],
)
def test_violation_in_the_report_is_found(change: str, sentence: str, tmp_path: Path) -> None:
    (report,) = convert_reports([write_training(tmp_path / "in")], tmp_path / "out")
    execute(report, change)
    found = violations(report)
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
def test_violation_in_the_analysis_is_found(change: str, sentence: str, tmp_path: Path) -> None:
    (report,) = convert_reports([write_training(tmp_path / "in")], tmp_path / "out")
    execute(report.with_name("analysis.db"), change)
    assert any(one.startswith(sentence) for one in violations(report))


def test_missing_files_in_the_directory_are_found(tmp_path: Path) -> None:
    (report,) = convert_reports([write_training(tmp_path / "in", 1)], tmp_path / "out")
    (report.parents[1] / "profiler_info_1.json").unlink()
    report.with_name("analysis.db").unlink()
    assert violations(report) == ["no profiler_info_1.json", "collectives without an analysis"]
