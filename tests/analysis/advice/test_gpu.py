"""Occupancy of kernels and device memory, which only GPU recordings have."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind, saving_ns

GIB = 1 << 30
STEP = 1000 * US


def write_grids(path: Path, *, blocks: float, name: str = "small_kernel", count: int = 100) -> Path:
    """Write `count` 10 µs kernels with `blocks` per SM, and large kernels up to 100."""
    with FaultyRun(path) as run:
        for at in range(100):
            kernel = name if at < count else "large_kernel"
            task = run.kernel(at * 10 * US, (at + 1) * 10 * US, name=kernel)
            texts = {"name": run.text(kernel), "operation": run.text("aten::add")}
            sizes = {"gridDim": 0, "blockDim": 0, "blocksPerSm": blocks if at < count else 8.0}
            run.row("UPROF_GPU_TASKS", globalTaskId=task, **texts, **sizes)
    return path


def test_grid_smaller_than_the_device_costs_the_idle_part(tmp_path: Path) -> None:
    finding = findings_by_kind(write_grids(tmp_path / "run.db", blocks=0.25))["low_occupancy"]
    # 2 µs of each kernel are its start and end, which more blocks do not shorten.
    assert saving_ns(finding) == 100 * (10 - 2) * US * 0.75
    assert "fewer blocks than multiprocessors" in finding.text
    assert finding.sure == "possible"


@pytest.mark.parametrize("other", ["4096,1,1", f"{'9' * 5000},1,1", f"1,1,1{'0' * 400}", "1,,"])
def test_amd_grids_give_the_share_of_the_compute_units(tmp_path: Path, other: str) -> None:
    """ROCm records no blocks per multiprocessor; damaged grids are unknown."""
    with FaultyRun(tmp_path / "run.db") as run:
        for name, value in (("numSms", "304"), ("warpSize", "64")):
            run.row("UPROF_GPU_DEVICES", deviceId=0, name=name, value=value)
        for at in range(100):
            task = run.kernel(at * 10 * US, (at + 1) * 10 * US)
            texts = {"name": run.text("small_kernel"), "operation": run.text("aten::add")}
            grid = run.text("2,19,2" if at < 50 else other)
            run.row("UPROF_GPU_TASKS", globalTaskId=task, **texts, gridDim=grid, blockDim=0)
    finding = findings_by_kind(tmp_path / "run.db")["low_occupancy"]
    assert saving_ns(finding) == 50 * (10 - 2) * US * 0.75
    assert "fewer blocks than compute units" in finding.text


def test_full_grids_matmuls_and_few_kernels_are_no_finding(tmp_path: Path) -> None:
    full = write_grids(tmp_path / "a.db", blocks=1.5)
    matmul = write_grids(tmp_path / "b.db", blocks=0.1, name="sm80_gemm")
    few = write_grids(tmp_path / "c.db", blocks=0.1, count=4)
    assert not any("low_occupancy" in findings_by_kind(path) for path in (full, matmul, few))


# Blocks per multiprocessor, events, launches ahead, time between begins, pause after two kernels.
@pytest.mark.parametrize(
    ("blocks", "waits", "ahead", "next_us", "pause_us", "found"),
    [
        (0.25, 100, True, 51, 0, True),
        (0.75, 100, True, 51, 0, False),
        (0.25, 0, True, 51, 0, False),
        (0.25, 100, False, 51, 0, False),  # the host launches late
        (0.25, 100, True, 26, 0, False),  # they run side by side
        (0.25, 100, True, 51, 20, False),  # only one of the streams waits for the other
    ],
)
def test_small_kernels_of_streams_that_take_turns_could_run_side_by_side(
    blocks: float,
    waits: int,
    ahead: bool,
    next_us: int,
    pause_us: int,
    found: bool,
    tmp_path: Path,
) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(100):
            begin = (1000 + at * next_us + at // 2 * pause_us) * US
            stream = 7 + at % 2
            launched = at * 6 * US if ahead else begin - 20 * US
            if at < waits:
                run.api(launched - 2 * US, launched - US, "cudaStreamWaitEvent")
            task = run.kernel(begin, begin + 50 * US, launched=launched, stream=stream)
            texts = {"name": run.text("add_kernel"), "operation": run.text("aten::add")}
            sizes = {"gridDim": 0, "blockDim": 0, "blocksPerSm": blocks}
            run.row("UPROF_GPU_TASKS", globalTaskId=task, **texts, **sizes)
    findings = findings_by_kind(tmp_path / "run.db")
    assert ("serialized_streams" in findings) == found
    if found:  # two at a time: 50 kernels and gaps instead of 100
        gain_ns = 50 * next_us * US
        assert saving_ns(findings["serialized_streams"]) == pytest.approx(gain_ns, rel=0.05)
        assert findings["serialized_streams"].sure == "possible"


def memory(
    path: Path, *states: tuple[float, float], capacity: float | None = 80.0, lines: bool = False
) -> Path:
    """Write (allocated, reserved) GiB of torch's allocator on a device of `capacity` GiB."""
    with FaultyRun(path) as run:
        run.kernel(0, MS)
        for at, (allocated, reserved) in enumerate(states):
            row = {"component": run.text("PTA"), "deviceId": 0}
            row |= {"totalAllocated": int(allocated * GIB), "totalReserved": int(reserved * GIB)}
            run.row("MEMORY_RECORD", timestamp=run.T0 + at * 100 * US, **row)
        if capacity is not None:
            size = str(int(capacity * GIB))
            run.row("UPROF_GPU_DEVICES", deviceId=0, name="totalGlobalMem", value=size)
        if lines:
            run.chain(1, "/w/model.py(7): forward")
            run.call(10 * US, 50 * US, "aten::bmm", chain=1)
            run.call(60 * US, 90 * US, "aten::empty")
            for name, gib, at in (("aten::bmm", 60, 20), ("aten::empty", 10, 70)):
                block = {"name": run.text(name), "size": gib * GIB, "deviceId": 0}
                block |= {"allocationTime": run.T0 + at * US, "releaseTime": 0}
                run.row("OP_MEMORY", **block)
    return path


def test_nearly_full_device_is_reported_with_the_lines_that_allocate(tmp_path: Path) -> None:
    path = memory(tmp_path / "run.db", (10, 20), (75, 79), (70, 79), lines=True)
    finding = findings_by_kind(path)["memory_pressure"]
    assert finding.cost_ms_per_step == 0
    assert finding.figures["share"] == round(79 / 80, 4)
    assert finding.evidence[0]["line"] == "model.py:7"
    assert "80 % of it" in finding.text


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ([(50, 92), (55, 60)], {"memory_pressure"}),
        ([(87, 60), (92, 60)], {"memory_pressure"}),
        ([(50, 91), (55, 60)], set()),
        ([(50, 92), (54, 60)], set()),  # a server, whose use is constant
        ([(15, 20), (2, 30)], {"memory_fragmentation"}),
        ([(16, 31)], set()),
        ([(14, 29)], set()),
        ([(0, 40)], set()),
    ],
)
def test_memory_findings_begin_at_their_limits(
    tmp_path: Path, states: list[tuple[float, float]], found: set[str]
) -> None:
    assert {*findings_by_kind(memory(tmp_path / "a.db", *states, capacity=100))} == found


@pytest.mark.parametrize("full", [0, 1])
def test_memory_pressure_is_found_on_the_device_that_has_it(tmp_path: Path, full: int) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        run.kernel(0, MS)
        run.kernel(0, US, device=1)
        for device in (0, 1):
            name, size = "totalGlobalMem", str(80 * GIB)
            run.row("UPROF_GPU_DEVICES", deviceId=device, name=name, value=size)
            for at, held in enumerate((10, 79) if device == full else (10, 11)):
                sizes = {"totalAllocated": held * GIB, "totalReserved": held * GIB}
                run.row(
                    "MEMORY_RECORD",
                    **{"component": run.text("PTA"), "deviceId": device, **sizes},
                    timestamp=run.T0 + at * 100 * US,
                )
    (finding,) = (
        one for one in advice(tmp_path / "run.db").findings if one.kind == "memory_pressure"
    )
    assert finding.text.endswith(f"reserves 79.0 of 80.0 GiB at the peak; on device {full}")


def test_memory_rules_are_skipped_if_the_capacity_is_unknown(tmp_path: Path) -> None:
    result = advice(memory(tmp_path / "run.db", (75, 79), capacity=None))
    missing = {one.kind for one in result.not_judged}
    assert {"memory_pressure", "memory_fragmentation"} <= missing


CALLS = {"M": "cudaMalloc", "F": "cudaFree", "x": "cudaEventRecord"}
RETRY = re.compile("M(x*F)+x*(?=M)")


@pytest.mark.parametrize("seed", range(8))
def test_free_and_malloc_after_a_failed_malloc_is_an_allocation_retry(
    tmp_path: Path, seed: int
) -> None:
    """Not if the thread launches between them: then it frees memory that it had."""
    random, steps = Random(seed), 5
    calls = ["".join(random.choices("MMFFFLx", k=10)) for _ in range(steps)]
    with FaultyRun(tmp_path / "run.db") as run:
        for step, kinds in enumerate(calls):
            begin = step * STEP
            run.step(step, begin, begin + STEP)
            row = {"startNs": begin, "endNs": begin + 100 * US, "globalTid": 1}
            run.row("UPROF_PYTHON_FRAMES", **row, name=run.text("train.py(7): grow"))
            for place, kind in enumerate(f"{kinds}L"):
                at = begin + place * 10 * US
                if kind == "L":
                    length = STEP if place == len(kinds) else US
                    run.kernel(at + 5 * US, min(at + 5 * US + length, begin + STEP), launched=at)
                else:
                    run.api(at, at + 10 * US, CALLS[kind])
    retried = {
        (step, one.span()) for step in range(1, steps) for one in RETRY.finditer(calls[step])
    }
    waits = {(step, at) for step, (first, last) in retried for at in range(first, last + 1)}
    finding = findings_by_kind(tmp_path / "run.db").get("allocation_retries")
    assert (finding.figures["retries"] if finding else 0) == len(retried)
    if finding:
        assert "retries an allocation, longest in grow at train.py:7" in finding.text
        assert saving_ns(finding) == round(len(waits) * 10 * US / (steps - 1))
