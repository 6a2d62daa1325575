"""Rules for NPU recordings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind, saving_ns

if TYPE_CHECKING:
    from typing_extensions import Self

STEP = 1000 * US


class NpuRun(FaultyRun):
    """Writes an NPU recording."""

    def __init__(self, path: Path, name: str = "Ascend910B3") -> None:
        super().__init__(path, revision="latest")
        self.chip = name

    def __enter__(self) -> Self:
        super().__enter__()
        self.row("NPU_INFO", id=0, name=self.chip)
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
        """Add an operator and its number of blocks."""
        task = self.task(start, end, task_type)
        texts = {"name": f"{op_type}_1", "opType": op_type, "taskType": core}
        row = {column: self.text(text) for column, text in texts.items()}
        self.row("COMPUTE_TASK_INFO", globalTaskId=task, blockNum=blocks, **row)
        return task

    def clock(self, at: int, mhz: int) -> None:
        """Add a sample of the AI core frequency."""
        self.row("AICORE_FREQ", deviceId=0, timestampNs=self.T0 + at, freq=mhz)

    def transfer(
        self,
        start: int,
        end: int,
        size: int,
        *,
        transport: int = 0,
        link: int = 1,
        connection: int = -1,
        stream: int = 30,
    ) -> None:
        """Add a task of a collective."""
        task = self.task(start, end, "SDMA", stream=stream, connection=connection)
        row = {"size": size, "transportType": transport, "linkType": link, "opId": 1}
        name = self.text("Memcpy")
        self.row("COMMUNICATION_TASK_INFO", globalTaskId=task, name=name, **row)


def test_operators_on_ai_cpus_cost_their_time(tmp_path: Path) -> None:
    with NpuRun(tmp_path / "run.db") as npu:
        for begin in npu.steps(5, STEP):
            npu.operator(
                begin, begin + 500 * US, task_type="AI_CPU", op_type="Index", core="AI_CPU"
            )
            npu.operator(begin + 500 * US, begin + STEP)
    finding = findings_by_kind(tmp_path / "run.db")["ai_cpu"]
    assert saving_ns(finding) == 500 * US
    assert finding.evidence[0]["count"] == 4


@pytest.mark.parametrize("hidden", [True, False])
def test_short_or_overlapped_ai_cpu_operators_are_no_finding(tmp_path: Path, hidden: bool) -> None:
    length = 500 * US if hidden else 15 * US
    with NpuRun(tmp_path / "run.db") as npu:
        for at in range(20):
            begin = at * STEP
            npu.operator(begin, begin + length, task_type="AI_CPU", op_type="Index", core="AI_CPU")
            npu.operator(begin if hidden else begin + length, begin + STEP)
    assert "ai_cpu" not in findings_by_kind(tmp_path / "run.db")


def throttled(path: Path, *, name: str, mhz: int, op_type: str = "MatMulV2") -> Path:
    with NpuRun(path, name) as npu:
        npu.clock(0, 1800)
        npu.clock(5 * MS, mhz)
        for at in range(10):
            npu.operator(at * MS, (at + 1) * MS, op_type=op_type)
    return path


def test_frequency_drop_costs_the_lost_cycles(tmp_path: Path) -> None:
    finding = findings_by_kind(throttled(tmp_path / "run.db", name="Ascend910B3", mhz=1350))[
        "frequency_drop"
    ]
    assert saving_ns(finding) == 5 * MS // 4
    assert finding.figures["highest_mhz"] == 1800
    assert finding.sure == "certain"


def test_nominal_frequency_of_another_chip_is_no_drop(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with NpuRun(path, "Ascend910B4") as npu:
        npu.clock(0, 1500)
        for at in range(10):
            npu.operator(at * MS, (at + 1) * MS)
    assert "frequency_drop" not in findings_by_kind(path)


def test_alternating_clock_costs_the_longer_time_below_half_too(tmp_path: Path) -> None:
    with NpuRun(tmp_path / "run.db") as npu:
        at = 0
        for number in range(20):
            mhz, length = (1800, 400 * US) if number % 2 == 0 else (800, 900 * US)
            npu.clock(at, mhz)
            npu.operator(at, at + length)
            at += length
    finding = findings_by_kind(tmp_path / "run.db")["frequency_drop"]
    assert saving_ns(finding) == pytest.approx(10 * 500 * US, rel=0.01)


@pytest.mark.parametrize(("mhz", "op_type"), [(800, "MatMulV2"), (1350, "Add")])
def test_idle_or_memory_bound_chip_is_not_throttled(tmp_path: Path, mhz: int, op_type: str) -> None:
    path = throttled(tmp_path / "run.db", name="Ascend910B3", mhz=mhz, op_type=op_type)
    assert "frequency_drop" not in findings_by_kind(path)


def write_blocks(
    path: Path, number: int, *, name: str = "Ascend910B3", core: str = "AI_CORE"
) -> Path:
    with NpuRun(path, name) as npu:
        for at in range(20):
            npu.operator(at * MS, (at + 1) * MS, blocks=number, core=core)
    return path


def test_blocks_that_do_not_fill_the_cores_cost_the_idle_part(tmp_path: Path) -> None:
    finding = findings_by_kind(write_blocks(tmp_path / "run.db", 13))["idle_cores"]
    assert saving_ns(finding) == 20 * MS * 35 // 100


def test_vector_cores_count_twice(tmp_path: Path) -> None:
    finding = findings_by_kind(write_blocks(tmp_path / "run.db", 20, core="AI_VECTOR_CORE"))[
        "idle_cores"
    ]
    assert saving_ns(finding) == 20 * MS // 2


def test_blocks_that_fill_the_cores_are_no_finding(tmp_path: Path) -> None:
    assert "idle_cores" not in findings_by_kind(write_blocks(tmp_path / "a.db", 20))
    assert "idle_cores" not in findings_by_kind(write_blocks(tmp_path / "b.db", 799))


def test_idle_cores_rule_is_skipped_if_the_chip_is_ambiguous(tmp_path: Path) -> None:
    result = advice(write_blocks(tmp_path / "run.db", 13, name="Ascend910B"))
    assert "idle_cores" in {one.kind for one in result.not_judged}


def test_recorded_core_counts_have_priority_over_the_chip_table(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with NpuRun(path, name="Ascend910B") as npu:
        for at in range(20):
            npu.operator(at * MS, (at + 1) * MS, blocks=13)
        for name, value in (("ai_core_num", "20"), ("aiv_num", "40"), ("aic_frequency", "1800")):
            npu.row("UPROF_GPU_DEVICES", deviceId=0, name=name, value=value)
    finding = findings_by_kind(path)["idle_cores"]
    assert (finding.figures["cubes"], finding.figures["vectors"]) == (20, 40)


def write_counters(path: Path, ratio: float, scalar: float = 0.0) -> Path:
    with NpuRun(path) as npu:
        for at in range(20):
            task = npu.operator(at * MS, (at + 1) * MS)
            for counter, value in {
                "aic_mac_ratio": ratio,
                "aic_mte2_ratio": 0.1,
                "aic_scalar_ratio": scalar,
            }.items():
                row = {"name": npu.text(counter), "value": value}
                npu.row("TASK_PMU_INFO", globalTaskId=task, **row)
    return path


def test_kernels_without_a_busy_pipe_cost_the_idle_part(tmp_path: Path) -> None:
    finding = findings_by_kind(write_counters(tmp_path / "run.db", 0.6))["no_pipe_busy"]
    assert saving_ns(finding) == 20 * MS * 4 // 10
    assert finding.sure == "possible"


def test_kernels_busy_with_scalar_instructions_are_bound_by_the_scalar_unit(tmp_path: Path) -> None:
    finding = findings_by_kind(write_counters(tmp_path / "run.db", 0.1, 0.9))["no_pipe_busy"]
    assert saving_ns(finding) == 20 * MS * 9 // 10
    assert "20 bound by the scalar unit" in finding.text


def test_kernel_with_a_busy_pipe_is_no_finding(tmp_path: Path) -> None:
    assert "no_pipe_busy" not in findings_by_kind(write_counters(tmp_path / "run.db", 0.9))


KIB = 1024


def transfers(path: Path, sizes: list[int], lengths: list[int], *, transport: int = 0) -> Path:
    with NpuRun(path) as npu:
        at = 0
        for size, length in zip(sizes, lengths, strict=True):
            npu.transfer(at, at + length, size, transport=transport)
            at += length
        npu.operator(at, at + MS)
    return path


def test_transfers_of_unaligned_size_cost_the_lost_bandwidth(tmp_path: Path) -> None:
    sizes = [2048 * KIB] * 10 + [2048 * KIB + 1] * 10
    findings = findings_by_kind(
        transfers(tmp_path / "run.db", sizes, [100 * US] * 10 + [200 * US] * 10)
    )
    lost = findings["unaligned_messages"]
    # The same number of bytes took twice as long, except for the odd byte of each.
    aligned, odd = 2048 * KIB / 100, (2048 * KIB + 1) / 200
    assert saving_ns(lost) == pytest.approx(2000 * US * (1 - odd / aligned), abs=1)


def all_reduces(
    path: Path,
    messages: list[tuple[int, int]],
    *,
    launched: bool = False,
    posted_before_end: int | None = None,
) -> Path:
    """Write all-reduces of (bytes, length), one in 2 ms, each after 0.5 ms of compute.

    If `launched`, calls launch them, and the next kernel waits for them. If `posted_before_end`, a
    short task posts an RDMA transfer so long before the end of each, at most at its start.
    """
    with NpuRun(path) as npu:
        at = 0
        for number, (size, length) in enumerate(messages):
            npu.operator(at, begin := at + 500 * US)
            call = npu.api(number * US, number * US + 500, "launch") if launched else -1
            stream = 2 if launched else 30
            if posted_before_end is None:
                npu.transfer(begin, begin + length, size, connection=call, stream=stream)
            else:
                post = max(begin, begin + length - posted_before_end)
                npu.transfer(post, post + US, size, transport=1)
            names = {"opName": "hcom_allReduce_1", "opType": "hcom_allReduce_", "groupName": "dp"}
            row = {column: npu.text(text) for column, text in names.items()}
            row |= {"connectionId": call, "opId": number, "deviceId": 0, "count": size // 4}
            npu.row("COMMUNICATION_OP", startNs=begin, endNs=begin + length, dataType=4, **row)
            at = begin + length
        npu.operator(at, at + MS)
    return path


@pytest.mark.parametrize(("size", "found"), [((4 << 20) + 36, True), (4 << 20, False)])
def test_unaligned_transfers_are_named_for_nothing(tmp_path: Path, size: int, found: bool) -> None:
    path = all_reduces(tmp_path / "run.db", [(size, 500 * US)] * 10)
    finding = findings_by_kind(path).get("unaligned_messages")
    assert (finding is not None) is found
    assert finding is None or not finding.cost_ms_per_step


@pytest.mark.parametrize(("size", "excess_bytes"), [(32 << 20, 36), (32 << 20, -36), (4 << 20, 36)])
def test_unaligned_messages_come_before_their_consequences(
    tmp_path: Path, size: int, excess_bytes: int
) -> None:
    """They take longer than aligned ones, not by exposure, waiting or their number."""
    messages = [(size, 200 * US), (size + excess_bytes, MS)] * 10
    findings = advice(all_reduces(tmp_path / "run.db", messages, launched=True)).findings
    costs = {one.kind: one.cost_ms_per_step for one in findings}
    assert findings[0].kind == "unaligned_messages"
    assert costs.pop("unaligned_messages") == pytest.approx(10 * 0.8, rel=0.01)
    assert sum(costs.values()) <= 20 * 0.2 * 1.01, "the rest of the time of messages"
    assert "waiting_for_ranks" not in costs


def test_exposed_communication_keeps_its_cost_if_messages_are_aligned(tmp_path: Path) -> None:
    messages = [(32 << 20, 200 * US), (64 << 20, MS)] * 10
    findings = advice(all_reduces(tmp_path / "run.db", messages, launched=True)).findings
    assert findings[0].kind == "exposed_communication"
    assert findings[0].cost_ms_per_step == pytest.approx(20 * 0.6, rel=0.01)


def test_aligned_sizes_and_equal_rates_are_no_finding(tmp_path: Path) -> None:
    sizes = [2048 * KIB] * 10 + [4096 * KIB] * 10
    findings = findings_by_kind(
        transfers(tmp_path / "a.db", sizes, [100 * US] * 10 + [200 * US] * 10)
    )
    assert "unaligned_messages" not in findings
    sizes = [2048 * KIB] * 10 + [2048 * KIB + 1] * 10
    findings = findings_by_kind(transfers(tmp_path / "b.db", sizes, [100 * US] * 20))
    assert "unaligned_messages" not in findings


def test_rdma_transfer_with_a_timeout_is_a_retransmission(tmp_path: Path) -> None:
    lengths = [100 * MS] * 9 + [4200 * MS]
    path = transfers(tmp_path / "run.db", [2048 * KIB] * 10, lengths, transport=1)
    finding = findings_by_kind(path)["retransmission"]
    assert saving_ns(finding) == 4100 * MS


@pytest.mark.parametrize(("posted_before_end", "found"), [(5000 * MS, True), (10 * MS, False)])
def test_late_acknowledgement_is_a_retransmission(
    tmp_path: Path, posted_before_end: int, found: bool
) -> None:
    """A message that waits before it posts its transfer waits for a late rank."""
    messages = [(32 << 20, 10 * MS)] * 9 + [(32 << 20, 4200 * MS)]
    path = all_reduces(tmp_path / "run.db", messages, posted_before_end=posted_before_end)
    finding = findings_by_kind(path).get("retransmission")
    assert (finding is not None) is found
    assert finding is None or saving_ns(finding) == 4190 * MS


def test_slow_sdma_transfer_is_no_retransmission(tmp_path: Path) -> None:
    lengths = [100 * MS] * 9 + [4200 * MS]
    findings = findings_by_kind(transfers(tmp_path / "run.db", [2048 * KIB] * 10, lengths))
    assert "retransmission" not in findings


@pytest.mark.parametrize(("overlapped_us", "fires"), [(200, True), (105, False)])
def test_transfers_beside_matmuls_contend(tmp_path: Path, overlapped_us: int, fires: bool) -> None:
    with NpuRun(tmp_path / "run.db") as npu:
        at = 0
        for number in range(20):
            length = overlapped_us if number % 2 else 100
            npu.transfer(at, at + length * US, 2048 * KIB)
            if number % 2:  # a matmul during the first 10 µs only
                npu.operator(at, at + 10 * US)
            at += length * US
    findings = findings_by_kind(tmp_path / "run.db")
    assert ("link_contention" in findings) == fires
    if fires:
        assert saving_ns(findings["link_contention"]) == 10 * 100 * US


def write_matmuls(
    path: Path, *, hf32: str, vector: int = 48, mhz: int = 1800, other: str = "FLOAT"
) -> Path:
    """Write fp32 matmuls of 0.9 ms, every second one of another type, on an Ascend910B."""
    with NpuRun(path, "Ascend910B") as npu:
        if mhz:
            npu.clock(0, mhz)
        for at in range(20):
            npu.operator(at * MS, at * MS + 100 * US, core="AI_VECTOR_CORE", blocks=vector)
            dtype = other if at % 2 else "FLOAT"
            length = 900 * US if dtype == "FLOAT" else 277 * US
            task = npu.task(at * MS + 100 * US, at * MS + 100 * US + length)
            texts = {"name": "MatMulV3_1", "opType": "MatMulV3", "taskType": "AI_CORE"}
            texts |= {"inputShapes": '"1024,8192;8192,4096"', "outputShapes": '"1024,4096"'}
            texts |= {"inputDataTypes": f"{dtype};{dtype}", "outputDataTypes": dtype}
            texts |= {"inputFormats": "ND;ND", "outputFormats": "ND", "hf32Eligible": hf32}
            row = {column: npu.text(text) for column, text in texts.items()}
            npu.row("COMPUTE_TASK_INFO", globalTaskId=task, blockNum=24, **row)
    return path


def test_cores_of_an_ambiguous_chip_follow_from_blocks_and_clock(tmp_path: Path) -> None:
    """24 and 48 cores at 1800 MHz: 177 TFLOP/s in HF32, which takes 555 of 900 us at 70 % of it."""
    finding = findings_by_kind(write_matmuls(tmp_path / "run.db", hf32="NO"))["full_precision"]
    assert "177 TFLOP/s in HF32 (assumed: half of bf16)" in finding.text
    assert "allow_hf32" in finding.advice
    assert saving_ns(finding) == pytest.approx(20 * 345 * US, rel=0.01)


def test_fp32_matmuls_among_others_in_bf16_cost_the_time_above_bf16(tmp_path: Path) -> None:
    path = write_matmuls(tmp_path / "run.db", hf32="NO", other="DT_BF16")
    finding = findings_by_kind(path)["full_precision"]
    assert "354 TFLOP/s in bf16" in finding.text
    # They would take as long as the others: 277 us.
    assert saving_ns(finding) == pytest.approx(10 * 623 * US, rel=0.01)


def test_operators_that_calculate_in_hf32_are_not_full_precision(tmp_path: Path) -> None:
    assert "full_precision" not in findings_by_kind(write_matmuls(tmp_path / "run.db", hf32="YES"))


def test_full_precision_of_an_assumed_chip_has_no_cost(tmp_path: Path) -> None:
    """Without a clock, 24 cores may be those of a 910B1 or a 910B2."""
    path = write_matmuls(tmp_path / "run.db", hf32="NO", mhz=0)
    finding = findings_by_kind(path)["full_precision"]
    assert not finding.cost_ms_per_step
    assert "the saving is unknown: Ascend910B, assumed Ascend910B1" in finding.text


@pytest.mark.parametrize(("vector", "mhz"), [(40, 1800), (48, 1700)])
def test_cores_stay_unknown_if_nothing_fits_a_chip(tmp_path: Path, vector: int, mhz: int) -> None:
    result = advice(write_matmuls(tmp_path / "run.db", hf32="NO", vector=vector, mhz=mhz))
    assert "idle_cores" in {one.kind for one in result.not_judged}


def test_clock_that_alternates_within_each_operator_costs_its_mean(tmp_path: Path) -> None:
    """Each operator begins at full clock; at a constant clock it would take 833 of 1000 us."""
    with NpuRun(tmp_path / "run.db") as npu:
        for begin in npu.steps(12, 1000 * US):
            npu.operator(begin, begin + 1000 * US)
            for at in range(0, 1000, 500):
                npu.clock(begin + at * US, 1800)
                npu.clock(begin + (at + 250) * US, 1200)
    finding = findings_by_kind(tmp_path / "run.db")["frequency_drop"]
    assert "run at a mean of 1,500 MHz" in finding.text
    assert saving_ns(finding) == pytest.approx(1000 * US * (1 - 1500 / 1800), rel=0.01)


def test_slower_kernels_are_a_clock_drop_if_the_clock_drops(tmp_path: Path) -> None:
    with NpuRun(tmp_path / "run.db") as npu:
        npu.clock(0, 1800)
        at = 0
        for step in range(12):
            length = 1000 * US if step < 6 else 1500 * US
            if step == 6:
                npu.clock(at, 1200)
            npu.step(step, at, at + length)
            npu.operator(at, at + length)
            at += length
    (finding,) = advice(tmp_path / "run.db").findings
    assert finding.kind == "frequency_drop"
    assert saving_ns(finding) == pytest.approx(6 * 500 * US / 11, rel=0.01)


def test_operators_on_ai_cpus_are_no_chain_of_element_wise_kernels(tmp_path: Path) -> None:
    with NpuRun(tmp_path / "run.db") as npu:
        npu.call(0, US, "aten::sort")
        for step in range(6):
            begin = step * STEP
            for at, op_type in enumerate(("Add", "Cast", "Mul")):
                npu.operator(begin + at * 50 * US, begin + (at + 1) * 50 * US, op_type=op_type)
            npu.operator(
                begin + 150 * US,
                begin + STEP,
                task_type="AI_CPU",
                op_type="ReduceSum",
                core="AI_CPU",
            )
    assert [*findings_by_kind(tmp_path / "run.db")] == ["ai_cpu", "format_conversions"]


@pytest.mark.parametrize(("length", "found"), [(2, False), (3, True), (20, False)])
def test_pairs_and_loops_are_no_chain_on_an_npu(tmp_path: Path, length: int, found: bool) -> None:
    with NpuRun(tmp_path / "run.db") as npu:
        npu.call(0, US, "aten::mul")
        at = 0
        for _ in range(40):
            npu.operator(at, at + 20 * US, blocks=20)
            for number in range(1, 1 + length):
                npu.operator(
                    at + number * 20 * US, at + (number + 1) * 20 * US, op_type="Mul", blocks=20
                )
            at += (length + 1) * 20 * US
    assert ("unfused_elementwise" in findings_by_kind(tmp_path / "run.db")) is found


# Tensors that each operator reads and writes, in units of 16-bit elements of one activation, and
# those of one operator that computes all.
BY_HAND = {
    "RMSNorm": ("Cast 3, Pow 4, ReduceMean 2, Adds 0, Rsqrt 0, Mul 4, Cast 3, Mul 2", 2),
    "RMSNorm in 16 bits": ("Square 2, ReduceMean 1, Adds 0, Rsqrt 0, Mul 2, Mul 2", 2),
    "SwiGLU": ("SplitD 4, Swish 2, Mul 3", 3),
    "SwiGLU of two slices": ("StridedSlice 2, Silu 2, StridedSlice 2, Mul 3", 3),
    "rotary embedding": ("Neg 1, ConcatD 2, Mul 2, Mul 2, Add 3", 2),
    "GELU": ("Pow 2, Muls 2, Add 3, Muls 2, Tanh 2, Adds 2, Muls 2, Mul 3", 2),
    "GELU by the error function": ("RealDiv 2, Erf 2, Adds 2, Muls 2, Mul 3", 2),
}


def write_operators(path: Path, operators: str) -> tuple[Path, int]:
    """Write operators 40 times, each after a matmul; return also their time in ns."""
    with NpuRun(path) as npu:
        at = 0
        for _ in range(40):
            for one in ("MatMulV3 10", *operators.split(", ")):
                op_type, tensors = one.split()
                length = 2 * US + int(tensors) * 20 * US
                npu.operator(at, at + length, op_type=op_type, core="AI_VECTOR_CORE", blocks=40)
                at += length
    return path, at - 40 * 202 * US


@pytest.mark.parametrize("name", BY_HAND)
def test_operations_by_hand_cost_the_time_beyond_one_operator(tmp_path: Path, name: str) -> None:
    operators, fused = BY_HAND[name]
    path, total_ns = write_operators(tmp_path / "run.db", operators)
    (finding,) = advice(path).findings
    kind, *_ = name.lower().partition(" of ")[0].partition(" in ")[0].partition(" by ")
    assert finding.kind == f"unfused_{kind.replace(' ', '_')}"
    truth = total_ns - 40 * (2 * US + fused * 20 * US)
    assert saving_ns(finding) == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize(
    "operators",
    "RmsNorm 2;SwiGlu 3;Mul 3, Sigmoid 2, Mul 3;Tanh 2, Mul 3;Pow 2, ReduceMean 1;Neg 2".split(";"),
)
def test_other_operators_are_no_operation_by_hand(tmp_path: Path, operators: str) -> None:
    path, _ = write_operators(tmp_path / "run.db", operators)
    assert advice(path).findings == ()
