"""What only GPUs record: grids of kernels, memory of the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.analysis.advice.plants import MS, US, Plant, advice, cost_ns, found

GIB = 1 << 30
STEP = 1000 * US


def grids(path: Path, *, blocks: float, name: str = "small_kernel", count: int = 100) -> Path:
    """Write kernels of 10 µs with so many blocks for each processor, and a large one."""
    with Plant(path) as plant:
        for at in range(100):
            own = name if at < count else "large_kernel"
            task = plant.kernel(at * 10 * US, (at + 1) * 10 * US, name=own)
            row: dict[str, Any] = {"globalTaskId": [task], "name": plant.text(own)}
            row |= {"operation": plant.text("aten::add"), "gridDim": 0, "blockDim": 0}
            row |= {"blocksPerSm": blocks if at < count else 8.0}
            plant.writer.write("UPROF_GPU_TASKS", row)
    return path


def test_grids_that_leave_processors_empty(tmp_path: Path) -> None:
    said = found(grids(tmp_path / "run.db", blocks=0.25))["low_occupancy"]
    assert cost_ns(said) == 750 * US
    assert said.sure == "possible"


def test_full_grids_products_and_few_kernels_are_no_finding(tmp_path: Path) -> None:
    assert "low_occupancy" not in found(grids(tmp_path / "a.db", blocks=1.5))
    assert "low_occupancy" not in found(grids(tmp_path / "b.db", blocks=0.1, name="sm80_gemm"))
    assert "low_occupancy" not in found(grids(tmp_path / "c.db", blocks=0.1, count=4))


def memory(
    path: Path, *states: tuple[float, float], whole: float | None = 80.0, lines: bool = False
) -> Path:
    """Write states of torch's allocator (allocated, reserved) in GiB on a device of `whole`."""
    with Plant(path) as plant:
        plant.kernel(0, MS)
        for at, (allocated, reserved) in enumerate(states):
            row: dict[str, Any] = {"component": [plant.text("PTA")], "deviceId": 0}
            row |= {"timestamp": plant.T0 + at * 100 * US}
            row |= {"totalAllocated": int(allocated * GIB), "totalReserved": int(reserved * GIB)}
            plant.writer.write("MEMORY_RECORD", row)
        if whole is not None:
            fact: dict[str, Any] = {"deviceId": [0], "name": "totalGlobalMem"}
            plant.writer.write("UPROF_GPU_DEVICES", fact | {"value": str(int(whole * GIB))})
        if lines:
            plant.chain(1, "/w/model.py(7): forward")
            plant.call(10 * US, 50 * US, "aten::bmm", chain=1)
            plant.call(60 * US, 90 * US, "aten::empty")
            for name, size, at in (("aten::bmm", 60, 20), ("aten::empty", 10, 70)):
                block: dict[str, Any] = {"name": [plant.text(name)], "size": size * GIB}
                block |= {"allocationTime": plant.T0 + at * US, "releaseTime": 0, "deviceId": 0}
                plant.writer.write("OP_MEMORY", block)
    return path


def test_a_device_nearly_full_and_the_lines_that_fill_it(tmp_path: Path) -> None:
    path = memory(tmp_path / "run.db", (10, 20), (75, 79), (70, 79), lines=True)
    said = found(path)["memory_pressure"]
    assert said.cost_ms_per_step == 0
    assert said.figures["share"] == round(79 / 80, 4)
    assert said.evidence[0]["line"] == "model.py:7"
    assert "80 % of it" in said.text


def test_memory_that_a_server_fills_on_purpose_is_none(tmp_path: Path) -> None:
    path = memory(tmp_path / "run.db", (74, 79), (75, 79), (74, 79))
    assert "memory_pressure" not in found(path)


def test_room_left_is_no_pressure(tmp_path: Path) -> None:
    assert advice(memory(tmp_path / "run.db", (10, 20), (60, 70))).findings == ()


def test_memory_held_and_never_used(tmp_path: Path) -> None:
    said = found(memory(tmp_path / "run.db", (10, 20), (20, 60)))["memory_fragmentation"]
    assert said.figures["reserved_bytes"] == 60 * GIB
    assert "memory_fragmentation" not in found(memory(tmp_path / "b.db", (40, 60)))
    assert "memory_fragmentation" not in found(memory(tmp_path / "c.db", (2, 20)))


def test_without_the_devices_size_memory_is_not_judged(tmp_path: Path) -> None:
    said = advice(memory(tmp_path / "run.db", (75, 79), whole=None))
    missing = {one.kind for one in said.not_judged}
    assert {"memory_pressure", "memory_fragmentation"} <= missing


def asked(path: Path, *calls: str) -> Path:
    """Write five steps with calls of 10 µs at their beginning, then a kernel."""
    with Plant(path) as plant:
        for step in range(5):
            begin = step * STEP
            plant.step(step, begin, begin + STEP)
            for at, name in enumerate(calls):
                plant.api(begin + at * 10 * US, begin + (at + 1) * 10 * US, name)
            after = begin + len(calls) * 10 * US
            plant.kernel(after + US, begin + STEP, launched=after)
    return path


def test_memory_that_was_refused_and_asked_for_again(tmp_path: Path) -> None:
    said = found(asked(tmp_path / "run.db", "cudaMalloc", "cudaFree", "cudaFree", "cudaMalloc"))
    assert said["allocation_retries"].figures["retries"] == 4
    assert cost_ns(said["allocation_retries"]) == 40 * US


def test_memory_that_is_given_back_on_purpose_was_not_refused(tmp_path: Path) -> None:
    """torch.cuda.empty_cache() in the loop: what the step before left is freed, then asked for."""
    calls = ("cudaDeviceSynchronize", "cudaFree", "cudaFree", "cudaMalloc", "cudaMalloc")
    assert "allocation_retries" not in found(asked(tmp_path / "run.db", *calls))


def test_memory_that_was_given_is_no_retry(tmp_path: Path) -> None:
    said = found(asked(tmp_path / "run.db", "cudaMalloc", "cudaMalloc", "cudaFree"))
    assert "allocation_retries" not in said
