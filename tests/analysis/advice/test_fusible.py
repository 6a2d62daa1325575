"""Sequences of short kernels that come again and again on an NPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.advice.plants import US, advice, cost_ns, found
from tests.analysis.advice.test_gpu import grids
from tests.analysis.advice.test_npu import Npu

TRIPLE = ("Mul", "ReduceMean", "Rsqrt")
EVERY = 1000 * US
"""From one triple to the next."""


def triples(
    path: Path,
    kinds: Sequence[str] = TRIPLE,
    *,
    times: int = 20,
    runs: int = 10 * US,
    gap: int = 40 * US,
    counters: float | None = None,
    spoiled: str = "",
    modules: Sequence[str] = (),
) -> Path:
    """Write sequences of operators, each `gap` behind the one before."""
    with Npu(path) as npu:
        for number in range(times):
            at = number * EVERY
            for place, kind in enumerate(kinds):
                if spoiled == "by a collective" and place == 1:
                    npu.task(at - 20 * US, at - 15 * US, "MEMCPY_ASYNC")
                on_cpu = spoiled == "by an AI CPU" and place == 1
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
                row: dict[str, Any] = {"name": [npu.text(f"{kind}{number}")], "globalTaskId": task}
                row |= {"opType": npu.text(kind), "taskType": npu.text("AI_VECTOR_CORE")}
                npu.writer.write("COMPUTE_TASK_INFO", {**row, "blockNum": 40})
                if counters is not None:
                    counter: dict[str, Any] = {"globalTaskId": [task], "value": counters}
                    counter |= {"name": npu.text("aiv_mte2_ratio")}
                    npu.writer.write("TASK_PMU_INFO", counter)
                at += runs + gap
    return path


def test_a_repeated_triple_costs_what_is_beside_its_longest(tmp_path: Path) -> None:
    said = found(triples(tmp_path / "run.db"))["fusible_sequences"]
    # From first to last 3 x 10 + 2 x 40 µs, of which one kernel would take 10.
    assert cost_ns(said) == 20 * (110 - 10) * US
    (sequence,) = said.figures["sequences"]
    assert sequence == {
        "sequence": "Mul → ReduceMean → Rsqrt",
        "kernels": 3,
        "count": 20,
        "elapsed_ns": 20 * 110 * US,
        "busy_ns": 20 * 30 * US,
        "longest_ns": 20 * 10 * US,
        "bound_by": "launches",
    }
    assert said.sure == "possible"
    assert said.evidence[0]["total_ns"] == 20 * 100 * US
    assert "20 times in total" in said.text
    assert "modules were not recorded" in said.text


@pytest.mark.parametrize(
    "fault",
    [
        {"times": 5},
        {"kinds": TRIPLE[:2]},
        {"gap": 2 * US},
        {"spoiled": "by a collective"},
        {"spoiled": "by an AI CPU"},
        {"kinds": ("MatMulV2", "Mul", "MatMulV2")},
    ],
    ids=str,
)
def test_what_is_rare_short_busy_or_interrupted_is_no_finding(
    tmp_path: Path, fault: dict[str, object]
) -> None:
    path = triples(tmp_path / "run.db", **fault)  # type: ignore[arg-type]
    assert "fusible_sequences" not in found(path)


def test_a_sequence_does_not_leave_its_module(tmp_path: Path) -> None:
    inside = triples(tmp_path / "a.db", modules=["Net_0.Norm_0"] * 3)
    said = found(inside)["fusible_sequences"]
    assert cost_ns(said) == 20 * 100 * US
    assert "was not recorded" not in said.text
    across = triples(tmp_path / "b.db", modules=["Net_0.A_0", "Net_0.B_0", "Net_0.C_0"])
    assert "fusible_sequences" not in found(across)


def test_work_that_is_bound_by_moving_data_may_follow_at_once(tmp_path: Path) -> None:
    said = found(triples(tmp_path / "a.db", gap=0, counters=0.9))["fusible_sequences"]
    assert cost_ns(said) == 20 * (30 - 10) * US
    assert said.figures["sequences"][0]["bound_by"] == "moving data"
    assert "fusible_sequences" not in found(triples(tmp_path / "b.db", gap=0, counters=0.7))


def test_what_something_else_held_up_once_counts_as_usual(tmp_path: Path) -> None:
    with Npu(tmp_path / "run.db") as npu:
        for number in range(20):
            at = number * 1000 * US
            late = 350 * US if number == 7 else 0
            for place, kind in enumerate(TRIPLE):
                begin = at + place * 50 * US + (late if place else 0)
                npu.operator(begin, begin + 10 * US, op_type=kind, core="AI_VECTOR_CORE")
    said = found(tmp_path / "run.db")["fusible_sequences"]
    assert cost_ns(said) == 19 * 100 * US + 300 * US


def test_the_part_of_a_loop_is_told_not_its_turns(tmp_path: Path) -> None:
    """Five kinds in a loop without a longer pause: any rotation would do, ten would be two."""
    kinds = ("Mul", "Add", "Exp", "Sub", "Div")
    with Npu(tmp_path / "run.db") as npu:
        for number in range(100):
            begin = number * 50 * US
            npu.operator(begin, begin + 10 * US, op_type=kinds[number % 5], core="AI_VECTOR_CORE")
    said = found(tmp_path / "run.db")["fusible_sequences"]
    assert [one["kernels"] for one in said.figures["sequences"]] == [5]
    assert said.figures["sequences"][0]["count"] == 20


def test_a_gpu_is_not_asked(tmp_path: Path) -> None:
    missing = {one.kind: one.why for one in advice(grids(tmp_path / "a.db", blocks=0.5)).not_judged}
    assert missing["fusible_sequences"].startswith("recorded on a GPU")
