"""Pauses of the host, and steps that are not alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.advice.plants import MS, US, Plant, advice, cost_ns, found


def collected(path: Path, *, busy: bool, takes: int = 5 * MS) -> Path:
    """Write five steps of 20 ms with a collection in each while the device idles, or works."""
    with Plant(path) as plant:
        for step in range(5):
            begin = step * 20 * MS
            plant.step(step, begin, begin + 20 * MS)
            plant.kernel(begin, begin + 10 * MS)
            plant.kernel(begin + (10 * MS if busy else 16 * MS), begin + 20 * MS)
            row: dict[str, Any] = {"startNs": [plant.T0 + begin + 10 * MS], "globalTid": 1}
            row["endNs"] = plant.T0 + begin + 10 * MS + takes
            plant.writer.write("GC_RECORD", row)
    return path


def test_collections_while_the_device_idles_are_the_cost(tmp_path: Path) -> None:
    said = found(collected(tmp_path / "run.db", busy=False))["garbage_collection"]
    assert cost_ns(said) == 5 * MS
    assert said.figures["pauses"] == 4


def test_collections_beside_work_cost_nothing(tmp_path: Path) -> None:
    assert advice(collected(tmp_path / "run.db", busy=True)).findings == ()


def test_short_collections_are_no_finding(tmp_path: Path) -> None:
    said = found(collected(tmp_path / "run.db", busy=False, takes=900 * US))
    assert "garbage_collection" not in said


def called(path: Path, name: str, *, first: int = 0, busy: bool = False) -> Path:
    """Write five steps of 20 ms with a call of 5 ms in each from `first` on."""
    with Plant(path) as plant:
        for step in range(5):
            begin = step * 20 * MS
            plant.step(step, begin, begin + 20 * MS)
            late = 0 if busy else 5 * MS
            if step >= first:
                plant.api(begin, begin + 5 * MS, name)
            plant.kernel(begin + late + US, begin + 20 * MS, launched=begin + late)
    return path


def test_memory_asked_of_the_driver_while_the_device_idles(tmp_path: Path) -> None:
    said = found(called(tmp_path / "run.db", "cudaFree"))["allocation_stalls"]
    assert cost_ns(said) == 5 * MS
    assert dict(said.evidence[0], start_ns=0) == {
        "name": "cudaFree",
        "count": 4,
        "total_ns": 4 * 5 * MS,
        "start_ns": 0,
    }


def test_allocations_beside_work_cost_nothing(tmp_path: Path) -> None:
    assert "allocation_stalls" not in found(called(tmp_path / "run.db", "cudaFree", busy=True))


def test_allocations_of_the_first_step_warm_up(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for step in range(5):
            begin = step * 20 * MS
            plant.step(step, begin, begin + 20 * MS)
            if step == 0:
                plant.api(begin, begin + 15 * MS, "cudaMalloc")
            plant.kernel(begin + 15 * MS, begin + 20 * MS)
    assert "allocation_stalls" not in found(tmp_path / "run.db")


def test_code_compiled_after_the_first_steps(tmp_path: Path) -> None:
    said = found(called(tmp_path / "run.db", "cuModuleLoadData"))["compile_stalls"]
    assert cost_ns(said) == 5 * MS
    assert "recompil" in said.advice


def test_other_calls_are_no_stalls(tmp_path: Path) -> None:
    said = found(called(tmp_path / "run.db", "cudaFreeAsync"))
    assert not {"allocation_stalls", "compile_stalls"} & set(said)


def steps(path: Path, lengths: list[int], *, ranges: dict[int, str] | None = None) -> Path:
    """Write steps of so many ms, each busy but for its last tenth of a ms."""
    with Plant(path) as plant:
        begin = 0
        for step, length in enumerate(lengths):
            plant.step(step, begin, begin + length * MS)
            plant.kernel(begin, begin + length * MS - 100 * US)
            if name := (ranges or {}).get(step):
                plant.call(begin + US, begin + length * MS, name)
            begin += length * MS
    return path


def test_one_slow_step_costs_what_it_takes_more(tmp_path: Path) -> None:
    said = found(steps(tmp_path / "run.db", [10, 10, 10, 30, 10, 10]))["slow_steps"]
    assert cost_ns(said) == 20 * MS // 5
    assert said.steps == (3,)
    assert said.figures["grew"] == "computation"


def test_the_first_step_may_be_slow(tmp_path: Path) -> None:
    assert advice(steps(tmp_path / "run.db", [30, 10, 10, 10, 10, 10])).findings == ()


def test_a_step_that_evaluates_is_slow_on_purpose(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", [10, 10, 10, 30, 10, 10], ranges={3: "evaluate"})
    assert "slow_steps" not in found(path)


def test_steps_that_grow(tmp_path: Path) -> None:
    said = found(steps(tmp_path / "run.db", [10] + [10] * 50 + [12] * 50))["steps_grow"]
    assert cost_ns(said) == 50 * 2 * MS // 100


def test_steps_that_vary_a_little_do_not_grow(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", [100 + number % 5 for number in range(101)])
    assert advice(path).findings == ()


def test_allocations_are_not_the_launch_overhead_as_well(tmp_path: Path) -> None:
    findings = found(called(tmp_path / "run.db", "cudaFree"))
    # The host allocates before each launch: no other finding has the same idle time.
    assert [*findings] == ["allocation_stalls"]


def test_operators_compiled_at_run_time_on_an_npu(tmp_path: Path) -> None:
    finding = found(called(tmp_path / "run.db", "aclopCompileAndExecute"))["compile_stalls"]
    assert cost_ns(finding) == 5 * MS
    assert "jit_compile=False" in finding.advice


def test_a_range_that_ends_before_its_step_on_the_device_is_deliberate(tmp_path: Path) -> None:
    """The host is a step ahead of the device when it validates."""
    with Plant(tmp_path / "run.db") as plant:
        begin = 0
        for step, length in enumerate([10, 10, 10, 30, 10, 10]):
            host = step * 9 * MS
            plant.step(step, host, host + 9 * MS)
            plant.kernel(begin, begin + length * MS, launched=host + US)
            if length == 30:
                plant.call(host + US, host + 2 * US, "validation")
            begin += length * MS
    assert "slow_steps" not in found(tmp_path / "run.db")


@pytest.mark.parametrize("compiles", [True, False])
def test_a_slow_step_that_compiles_says_so(tmp_path: Path, compiles: bool) -> None:
    name = "_compile.compile_inner (dynamo_timed)" if compiles else "forward"
    path = steps(tmp_path / "run.db", [10, 10, 10, 30, 10, 10], ranges={3: name})
    finding = found(path)["slow_steps"]
    assert ("of it is compilation" in finding.text) == compiles
    assert ("recompiles" in finding.advice) == compiles


def test_operators_with_codegen_in_their_name_are_not_compilation(tmp_path: Path) -> None:
    """FBGEMM's embedding operators are called so in every step."""
    name = "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu"
    assert "compile_stalls" not in found(called(tmp_path / "run.db", name))
