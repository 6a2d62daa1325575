"""What only NPUs record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.advice.plants import MS, US, Plant, advice, cost_ns, found

STEP = 1000 * US


class Npu(Plant):
    """A recording of an NPU."""

    def __init__(self, path: Path, name: str = "Ascend910B3") -> None:
        super().__init__(path, revision="latest")
        self.chip = name

    def __enter__(self) -> Npu:
        super().__enter__()
        self.writer.write("NPU_INFO", {"id": [0], "name": self.chip})
        return self

    def operator(
        self,
        start: int,
        end: int,
        *,
        task_type: str = "KERNEL_AICORE",
        op_type: str = "MatMulV2",
        core: str = "AI_CORE",
        blocks: int = 20,
    ) -> int:
        """Add an operator and how many blocks it ran in."""
        task = self.task(start, end, task_type)
        row: dict[str, Any] = {"name": [self.text(f"{op_type}_1")], "globalTaskId": task}
        row |= {"opType": self.text(op_type), "taskType": self.text(core), "blockNum": blocks}
        self.writer.write("COMPUTE_TASK_INFO", row)
        return task

    def clock(self, at: int, mhz: int) -> None:
        """Add a sample of the AI cores' clock."""
        row: dict[str, Any] = {"deviceId": [0], "timestampNs": self.T0 + at, "freq": mhz}
        self.writer.write("AICORE_FREQ", row)

    def moved(self, start: int, end: int, size: int, *, transport: int = 0, link: int = 1) -> None:
        """Add a part of a collective."""
        task = self.task(start, end, "SDMA", stream=30)
        row: dict[str, Any] = {"name": [self.text("Memcpy")], "globalTaskId": task, "size": size}
        row |= {"transportType": transport, "linkType": link, "opId": 1}
        self.writer.write("COMMUNICATION_TASK_INFO", row)


def test_operators_on_ai_cpus(tmp_path: Path) -> None:
    with Npu(tmp_path / "run.db") as npu:
        for step in range(5):
            begin = step * STEP
            npu.step(step, begin, begin + STEP)
            npu.operator(
                begin, begin + 500 * US, task_type="AI_CPU", op_type="Index", core="AI_CPU"
            )
            npu.operator(begin + 500 * US, begin + STEP)
    said = found(tmp_path / "run.db")["ai_cpu"]
    assert cost_ns(said) == 500 * US
    assert said.evidence[0]["count"] == 4


@pytest.mark.parametrize("hidden", [True, False])
def test_short_or_hidden_ones_are_no_finding(tmp_path: Path, hidden: bool) -> None:
    length = 500 * US if hidden else 15 * US
    with Npu(tmp_path / "run.db") as npu:
        for at in range(20):
            begin = at * STEP
            npu.operator(begin, begin + length, task_type="AI_CPU", op_type="Index", core="AI_CPU")
            npu.operator(begin if hidden else begin + length, begin + STEP)
    assert "ai_cpu" not in found(tmp_path / "run.db")


def throttled(path: Path, *, name: str, mhz: int, op_type: str = "MatMulV2") -> Path:
    with Npu(path, name) as npu:
        npu.clock(0, 1800)
        npu.clock(5 * MS, mhz)
        for at in range(10):
            npu.operator(at * MS, (at + 1) * MS, op_type=op_type)
    return path


def test_a_clock_that_drops_costs_what_it_lacks(tmp_path: Path) -> None:
    said = found(throttled(tmp_path / "run.db", name="Ascend910B3", mhz=1350))["frequency_drop"]
    assert cost_ns(said) == 5 * MS // 4
    assert said.figures["highest_mhz"] == 1800
    assert said.sure == "certain"


def test_a_clock_that_another_chip_has_is_no_drop(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Npu(path, "Ascend910B4") as npu:
        npu.clock(0, 1500)
        for at in range(10):
            npu.operator(at * MS, (at + 1) * MS)
    assert "frequency_drop" not in found(path)


@pytest.mark.parametrize(("mhz", "op_type"), [(800, "MatMulV2"), (1350, "Add")])
def test_a_chip_at_rest_or_bound_by_memory_is_not_throttled(
    tmp_path: Path, mhz: int, op_type: str
) -> None:
    path = throttled(tmp_path / "run.db", name="Ascend910B3", mhz=mhz, op_type=op_type)
    assert "frequency_drop" not in found(path)


def blocks(path: Path, number: int, *, name: str = "Ascend910B3", core: str = "AI_CORE") -> Path:
    with Npu(path, name) as npu:
        for at in range(20):
            npu.operator(at * MS, (at + 1) * MS, blocks=number, core=core)
    return path


def test_blocks_that_do_not_fill_the_cores(tmp_path: Path) -> None:
    said = found(blocks(tmp_path / "run.db", 13))["idle_cores"]
    assert cost_ns(said) == 20 * MS * 35 // 100


def test_vector_cores_are_twice_as_many(tmp_path: Path) -> None:
    said = found(blocks(tmp_path / "run.db", 20, core="AI_VECTOR_CORE"))["idle_cores"]
    assert cost_ns(said) == 20 * MS // 2


def test_blocks_that_fill_them_or_leave_a_short_tail(tmp_path: Path) -> None:
    assert "idle_cores" not in found(blocks(tmp_path / "a.db", 20))
    assert "idle_cores" not in found(blocks(tmp_path / "b.db", 799))


def test_a_name_of_two_chips_is_not_judged(tmp_path: Path) -> None:
    said = advice(blocks(tmp_path / "run.db", 13, name="Ascend910B"))
    assert "idle_cores" in {one.kind for one in said.not_judged}


def test_recorded_cores_are_those_of_the_chip(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Npu(path, name="Ascend910B") as npu:
        for at in range(20):
            npu.operator(at * MS, (at + 1) * MS, blocks=13)
        for name, value in (("ai_core_num", "20"), ("aiv_num", "40"), ("aic_frequency", "1800")):
            row: dict[str, Any] = {"deviceId": [0], "name": [name], "value": [value]}
            npu.writer.write("UPROF_GPU_DEVICES", row)
    said = found(path)["idle_cores"]
    assert (said.figures["cubes"], said.figures["vectors"]) == (20, 40)


def counted(path: Path, ratio: float) -> Path:
    with Npu(path) as npu:
        for at in range(20):
            task = npu.operator(at * MS, (at + 1) * MS)
            for counter, value in (("aic_mac_ratio", ratio), ("aic_mte2_ratio", 0.1)):
                row: dict[str, Any] = {"globalTaskId": [task], "name": npu.text(counter)}
                npu.writer.write("TASK_PMU_INFO", row | {"value": value})
    return path


def test_kernels_of_which_no_pipe_is_busy(tmp_path: Path) -> None:
    said = found(counted(tmp_path / "run.db", 0.6))["no_pipe_busy"]
    assert cost_ns(said) == 20 * MS * 4 // 10
    assert said.sure == "possible"


def test_a_pipe_that_is_busy_bounds_its_kernel(tmp_path: Path) -> None:
    assert "no_pipe_busy" not in found(counted(tmp_path / "run.db", 0.9))


KIB = 1024


def transfers(path: Path, sizes: list[int], lengths: list[int], *, transport: int = 0) -> Path:
    with Npu(path) as npu:
        at = 0
        for size, length in zip(sizes, lengths, strict=True):
            npu.moved(at, at + length, size, transport=transport)
            at += length
        npu.operator(at, at + MS)
    return path


def test_sizes_that_are_no_multiple_of_512(tmp_path: Path) -> None:
    sizes = [2048 * KIB] * 10 + [2048 * KIB + 1] * 10
    said = found(transfers(tmp_path / "run.db", sizes, [100 * US] * 10 + [200 * US] * 10))
    lost = said["unaligned_messages"]
    # The same bytes took twice as long, but for the odd one more in each.
    aligned, odd = 2048 * KIB / 100, (2048 * KIB + 1) / 200
    assert cost_ns(lost) == pytest.approx(2000 * US * (1 - odd / aligned), abs=1)


def test_aligned_sizes_and_equal_rates_are_no_finding(tmp_path: Path) -> None:
    sizes = [2048 * KIB] * 10 + [4096 * KIB] * 10
    said = found(transfers(tmp_path / "a.db", sizes, [100 * US] * 10 + [200 * US] * 10))
    assert "unaligned_messages" not in said
    sizes = [2048 * KIB] * 10 + [2048 * KIB + 1] * 10
    said = found(transfers(tmp_path / "b.db", sizes, [100 * US] * 20))
    assert "unaligned_messages" not in said


def test_messages_that_were_sent_again(tmp_path: Path) -> None:
    lengths = [100 * MS] * 9 + [4200 * MS]
    path = transfers(tmp_path / "run.db", [2048 * KIB] * 10, lengths, transport=1)
    said = found(path)["retransmission"]
    assert cost_ns(said) == 4100 * MS


def test_slow_messages_of_sdma_were_not(tmp_path: Path) -> None:
    lengths = [100 * MS] * 9 + [4200 * MS]
    said = found(transfers(tmp_path / "run.db", [2048 * KIB] * 10, lengths))
    assert "retransmission" not in said


@pytest.mark.parametrize(("beside_us", "fires"), [(200, True), (105, False)])
def test_transfers_that_share_the_memory_with_products(
    tmp_path: Path, beside_us: int, fires: bool
) -> None:
    with Npu(tmp_path / "run.db") as npu:
        at = 0
        for number in range(20):
            length = beside_us if number % 2 else 100
            npu.moved(at, at + length * US, 2048 * KIB)
            if number % 2:  # a product beside the first 10 µs of it: the rest stands alone
                npu.operator(at, at + 10 * US)
            at += length * US
    said = found(tmp_path / "run.db")
    assert ("link_contention" in said) == fires
    if fires:
        assert cost_ns(said["link_contention"]) == 10 * 100 * US
