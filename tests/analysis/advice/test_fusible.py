"""Repeated sequences of short kernels on an NPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import US, advice, findings_by_kind, saving_ns
from tests.analysis.advice.test_gpu import write_grids
from tests.analysis.advice.test_npu import NpuRun

TRIPLE = ("Mul", "ReduceMean", "Rsqrt")
PERIOD = 1000 * US
"""Time from one triple to the next."""


def triples(
    path: Path,
    kinds: Sequence[str] = TRIPLE,
    *,
    times: int = 20,
    runs: int = 10 * US,
    gap: int = 40 * US,
    counters: float | None = None,
    disturbed: str = "",
    modules: Sequence[str] = (),
) -> Path:
    """Write sequences of operators with `gap` between them."""
    with NpuRun(path) as npu:
        for number in range(times):
            at = number * PERIOD
            for place, kind in enumerate(kinds):
                if disturbed == "by a collective" and place == 1:
                    npu.task(at - 20 * US, at - 15 * US, "MEMCPY_ASYNC")
                on_cpu = disturbed == "by an AI CPU" and place == 1
                if modules:
                    if modules[place] != modules[place - 1] or not place:
                        alike = modules.count(modules[place])
                        until = at - US + (alike - 1) * (runs + gap)
                        npu.call(at - 9 * US, until, f"nn.Module: {modules[place]}", kind=50003)
                    connection = 1 + number * len(kinds) + place
                    npu.call(at - 8 * US, at - 2 * US, "aten::op", launches=connection)
                    task = npu.task(at, at + runs, "KERNEL_AICORE", connection=connection)
                else:
                    task = npu.task(at, at + runs, "AI_CPU" if on_cpu else "KERNEL_AICORE")
                texts = {"name": f"{kind}{number}", "opType": kind, "taskType": "AI_VECTOR_CORE"}
                row = {column: npu.text(text) for column, text in texts.items()}
                npu.row("COMPUTE_TASK_INFO", globalTaskId=task, blockNum=40, **row)
                if counters is not None:
                    counter = npu.text("aiv_mte2_ratio")
                    npu.row("TASK_PMU_INFO", globalTaskId=task, value=counters, name=counter)
                at += runs + gap
    return path


def test_repeated_sequence_costs_its_time_without_the_longest_kernel(tmp_path: Path) -> None:
    finding = findings_by_kind(triples(tmp_path / "run.db"))["fusible_sequences"]
    # From first to last 3 x 10 + 2 x 40 µs, of which a fused kernel would take 10.
    assert saving_ns(finding) == 20 * (110 - 10) * US
    (sequence,) = finding.figures["sequences"]
    assert sequence == {
        "sequence": "Mul → ReduceMean → Rsqrt",
        "kernels": 3,
        "count": 20,
        "elapsed_ns": 20 * 110 * US,
        "busy_ns": 20 * 30 * US,
        "longest_ns": 20 * 10 * US,
        "bound_by": "launches",
    }
    assert finding.sure == "possible"
    assert finding.evidence[0]["total_ns"] == 20 * 100 * US
    assert "20 times in total" in finding.text
    assert "modules were not recorded" in finding.text


@pytest.mark.parametrize(
    "fault",
    [
        {"times": 5},
        {"kinds": TRIPLE[:2]},
        {"gap": 2 * US},
        {"disturbed": "by a collective"},
        {"disturbed": "by an AI CPU"},
        {"kinds": ("MatMulV2", "Mul", "MatMulV2")},
    ],
    ids=str,
)
def test_rare_or_short_sequence_is_no_finding(tmp_path: Path, fault: dict[str, object]) -> None:
    path = triples(tmp_path / "run.db", **fault)  # type: ignore[arg-type]
    assert "fusible_sequences" not in findings_by_kind(path)


def test_sequence_does_not_cross_module_boundaries(tmp_path: Path) -> None:
    inside = triples(tmp_path / "a.db", modules=["Net_0.Norm_0"] * 3)
    finding = findings_by_kind(inside)["fusible_sequences"]
    assert saving_ns(finding) == 20 * 100 * US
    assert "was not recorded" not in finding.text
    across = triples(tmp_path / "b.db", modules=["Net_0.A_0", "Net_0.B_0", "Net_0.C_0"])
    assert "fusible_sequences" not in findings_by_kind(across)


def test_sequence_bound_by_data_movement_needs_no_gaps(tmp_path: Path) -> None:
    finding = findings_by_kind(triples(tmp_path / "a.db", gap=0, counters=0.9))["fusible_sequences"]
    assert saving_ns(finding) == 20 * (30 - 10) * US
    assert finding.figures["sequences"][0]["bound_by"] == "moving data"
    assert "fusible_sequences" not in findings_by_kind(
        triples(tmp_path / "b.db", gap=0, counters=0.7)
    )


def test_single_delay_within_a_sequence_does_not_raise_the_saving(tmp_path: Path) -> None:
    with NpuRun(tmp_path / "run.db") as npu:
        for number in range(20):
            at = number * 1000 * US
            late = 350 * US if number == 7 else 0
            for place, kind in enumerate(TRIPLE):
                begin = at + place * 50 * US + (late if place else 0)
                npu.operator(begin, begin + 10 * US, op_type=kind, core="AI_VECTOR_CORE")
    finding = findings_by_kind(tmp_path / "run.db")["fusible_sequences"]
    assert saving_ns(finding) == 19 * 100 * US + 300 * US


def test_sequence_in_a_loop_is_reported_once(tmp_path: Path) -> None:
    """Five kernels repeat without a pause: rotations and multiples are not listed."""
    kinds = ("Mul", "Add", "Exp", "Sub", "Div")
    with NpuRun(tmp_path / "run.db") as npu:
        for number in range(100):
            begin = number * 50 * US
            npu.operator(begin, begin + 10 * US, op_type=kinds[number % 5], core="AI_VECTOR_CORE")
    finding = findings_by_kind(tmp_path / "run.db")["fusible_sequences"]
    assert [one["kernels"] for one in finding.figures["sequences"]] == [5]
    assert finding.figures["sequences"][0]["count"] == 20


def test_fusible_sequences_are_skipped_on_a_gpu(tmp_path: Path) -> None:
    missing = {
        one.kind: one.why for one in advice(write_grids(tmp_path / "a.db", blocks=0.5)).not_judged
    }
    assert missing["fusible_sequences"] == "only for NPUs, recorded on a GPU"
