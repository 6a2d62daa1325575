"""Costs of operations of inference servers, launched eagerly and in replayed graphs."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.analysis.explain.roofline.test_of_recording import Shaped, row_of
from unified_prof.explain.api import open_reports
from unified_prof.explain.msprof import MsprofAnalysis
from unified_prof.explain.roofline import breakdown
from unified_prof.explain.roofline.arguments import Arguments, UnknownCostError, parsed
from unified_prof.explain.roofline.breakdown import Roofline
from unified_prof.explain.roofline.costs import Cost
from unified_prof.explain.roofline.serving_formulas import Batch, formula_of

BF16, INT64, FP8 = "c10::BFloat16", "long int", "c10::Float8_e4m3fn"


def cost(
    name: str, *tensors: tuple[str, str], values: Sequence[str] | None = None, around: str = ""
) -> Cost:
    shapes, types = ";".join(one for one, _ in tensors), ";".join(one for _, one in tensors)
    formula = formula_of(name)
    assert formula is not None, name
    found = parsed(shapes, types)
    return formula(Arguments(found.given, tuple(values or ()), around))


def test_expanded_index_is_read_once() -> None:
    found = parsed("999,8;;32,8", f"{BF16};Scalar;{INT64}", "8,1;;1,0")
    formula = formula_of("aten::gather")
    assert formula is not None
    assert formula(found).moved_bytes == 32 * 8 + 2 * 32 * 8 * 2


def test_fused_experts_cost_the_products_of_each_expert() -> None:
    """512 tokens with 2 of 16 experts each: 64 rows for each expert."""
    weights = [("16,28672,7168", BF16), ("16,7168,14336", BF16)]
    chosen = [("512,2", "float"), ("512,2", "int")]
    for name in ("vllm::rocm_aiter_fused_moe", "vllm::outplace_fused_experts"):
        found = cost(name, ("512,7168", BF16), *weights, *chosen)
        products = [
            cost("aten::mm", ("64,7168", BF16), ("7168,28672", BF16)),
            cost("aten::mm", ("64,14336", BF16), ("14336,7168", BF16)),
        ]
        assert found.flops == 16 * sum(one.flops for one in products)
        read = 2 * (16 * (28672 * 7168 + 7168 * 14336) + 2 * 512 * 7168) + 512 * 2 * 4
        assert (found.moved_bytes, found.doubt) == (read, None)


def test_few_tokens_do_not_use_all_experts() -> None:
    weights = [("128,1024,256", BF16), ("128,256,512", BF16)]
    found = cost("vllm::rocm_aiter_fused_moe", ("1,256", BF16), *weights, ("1,8", "float"))
    # One token uses just its 8 experts.
    assert found.moved_bytes == 2 * (8 * (1024 * 256 + 256 * 512) + 2 * 256) + 8 * 4
    assert found.doubt is not None
    assert "6% of the experts" in found.doubt
    packed = [("128,1024,128", "unsigned char"), ("128,256,256", "unsigned char")]
    with pytest.raises(UnknownCostError, match="packed"):
        cost("vllm::rocm_aiter_fused_moe", ("1,256", BF16), *packed, ("1,8", "float"))


def test_batch_sizes_are_parsed_from_the_enclosing_range() -> None:
    name = "execute_3_context_1(sq4sk6sqsq16sqsk24)_generation_2(sq2sk30sqsq2sqsk30)"
    # Four queries with six keys see 3, 4, 5 and 6 of them; two new tokens see 30 in total.
    assert Batch.parse(name) == Batch(keys=36, pairs=3 + 4 + 5 + 6 + 30)
    flat = "execute_16_context_0_sq0sk0sqsq0sqsk0_generation_16_sq16sk8209sqsq16sqsk8209"
    assert Batch.parse(flat) == Batch(keys=8209, pairs=8209)
    # Prefills of 2 and 3 tokens have known sizes; continued batches have unknown keys.
    assert Batch.parse("execute_context_2(5_13)_generation_0(0)") == Batch(keys=5, pairs=3 + 6)
    assert Batch.parse("execute_context_2(5_13)_generation_4(4)") is None
    assert Batch.parse("ProfilerStep#3") is None


GENERATION = "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk100sqsq2sqsk100)"


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        (
            "vllm::unified_attention_with_output",
            [("2,8,64", BF16), ("2,2,64", BF16), ("2,2,64", BF16), ("2,8,64", BF16)],
        ),
        (
            "sglang_profiler::attention_paged_attention_ragged_100",
            [
                ("2,8,64", BF16),
                ("999", "unsigned char"),
                ("2,8,64", BF16),
                ("77,1,2,64", BF16),
                ("77,1,2,64", BF16),
            ],
        ),
    ],
)
def test_attention_with_a_cache_has_its_batch(name: str, tensors: list[tuple[str, str]]) -> None:
    found = cost(name, *tensors, around=GENERATION)
    assert found.flops == 4 * 8 * 64 * 100
    # Queries and result, then keys and values of both heads.
    assert found.moved_bytes == 2 * (2 * 8 * 64) * 2 + 2 * 100 * 2 * 64 * 2
    assert found.doubt is not None
    assert "window" in found.doubt
    with pytest.raises(UnknownCostError, match="lengths of its sequences"):
        cost(name, *tensors)


def test_attention_with_an_fp8_cache_has_fp8_queries() -> None:
    tensors = [("2,8,64", FP8), ("2,2,64", BF16), ("2,2,64", BF16), ("2,8,64", BF16)]
    found = cost("vllm::unified_attention_with_output", *tensors, around=GENERATION)
    assert found.moved_bytes == 2 * 8 * 64 * (1 + 2) + 2 * 100 * 2 * 64
    assert found.dtype == "fp8"


def test_nested_attention_counts_once(tmp_path: Path) -> None:
    rows = "2,16,8,64;2,16,8,64;2,16,8,64"
    types, values = ";".join([BF16] * 3), ["", "", "", "0.0", "0.1", "False"]
    with Shaped(path := tmp_path / "a.db") as device:
        device.set_device_name("AMD Instinct MI300X")
        wrapper = "aiter::wrapper_fmha_v3_fwd"
        kernel_arguments = f"1;{rows}", f"{BF16};{types}"
        device.operation(10, 900, wrapper, *kernel_arguments, launches=1, values=["", *values])
        device.operation(100, 800, "aiter::fmha_v3_fwd", rows, types, launches=2, values=values)
        device.kernel(1000, 2000, "layout", 1)
        device.kernel(2000, 9000, "fmha_fwd", 2)
    found, _ = roofline(path, None)
    inner = row_of(found, "aiter::fmha_v3_fwd")
    assert inner.cost is not None
    assert inner.cost.flops == 4 * 2 * 8 * 256 * 64
    assert row_of(found, wrapper).cost is None


MM = "1024,4096;4096,2048"


def write_capture(path: Path) -> Path:
    """Write a capture with a matmul, attention, and an operation without formula."""
    with Shaped(path) as device:
        device.runtime(900, 910, "cudaStreamBeginCapture_v10000", 50)
        for number, (name, shapes, types) in enumerate(
            (
                ("aten::mm", MM, f"{BF16};{BF16}"),
                (
                    "vllm::unified_attention_with_output",
                    "2,8,64;2,2,64;2,2,64;2,8,64",
                    ";".join([BF16] * 4),
                ),
                ("mine::op", "3,4", "float"),
            )
        ):
            at = 1000 + 100 * number
            device.operation(at, at + 90, name, shapes, types, launches=101 + number)
            device.runtime(at + 10, at + 20, "cudaLaunchKernel", 101 + number)
        device.runtime(2000, 2010, "cudaStreamEndCapture", 51)
    return path


def write_replay(path: Path, times: int = 2) -> Path:
    """Write replays of the capture, and one eager matmul."""
    with Shaped(path) as device:
        device.set_device_name("NVIDIA H100 80GB HBM3")
        device.operation(10, 90, "aten::mm", MM, f"{BF16};{BF16}", launches=1)
        device.kernel(1000, 31_000, "gemm", 1)
        for number in range(times):
            at = 100_000 * (number + 1)
            batch = device.text(GENERATION.replace("100", str(100 * (number + 1))))
            device.row("MSTX_EVENTS", startNs=at, endNs=at + 100, message=batch, globalTid=1)
            device.runtime(at + 10, at + 40, "cudaGraphLaunch", 10 + number)
            for place, name in enumerate(("gemm", "attention", "k")):
                start = at + 1000 + 30_000 * place
                device.kernel(start, start + 20_000, name, 10 + number)
    return path


def roofline(replay: Path, capture: Path | None) -> tuple[Roofline, MsprofAnalysis]:
    with open_reports(replay, capture=capture) as opened:
        (analysis,) = opened.analyses
        assert isinstance(analysis, MsprofAnalysis)
        return breakdown.roofline_of(analysis.recording), analysis


def test_replayed_kernels_have_the_flops_of_the_captured_operations(tmp_path: Path) -> None:
    replay, capture = write_replay(tmp_path / "replay.db"), write_capture(tmp_path / "capture.db")
    found, _ = roofline(replay, capture)
    product = row_of(found, "aten::mm")
    # Each replay is one more call in the row of the eager launch.
    assert (product.count, product.total_ns) == (3, 30_000 + 2 * 20_000)
    assert product.cost is not None
    assert product.cost.flops == 3 * 2 * 1024 * 4096 * 2048
    attention = row_of(found, "vllm::unified_attention_with_output")
    assert attention.count == 2
    assert attention.cost is not None
    # The second batch has twice as many keys.
    assert attention.cost.flops == 4 * 8 * 64 * (100 + 200)
    assert row_of(found, "mine::op").doubt == "no FLOP formula"
    assert {one.kind for one in found.rows} == {"operation"}
    assert sum(one.total_ns for one in found.rows) == 30_000 + 6 * 20_000


def test_replayed_kernels_without_capture_are_rows_of_kernels(tmp_path: Path) -> None:
    found, _ = roofline(write_replay(tmp_path / "replay.db"), None)
    assert row_of(found, "aten::mm").count == 1
    assert {one.name for one in found.rows if one.kind == "kernel"} == {"gemm", "attention", "k"}


def test_replays_count_in_self_shape_and_class_breakdowns(tmp_path: Path) -> None:
    replay, capture = write_replay(tmp_path / "replay.db"), write_capture(tmp_path / "capture.db")
    with open_reports(replay, capture=capture) as opened:
        (analysis,) = opened.analyses
        rows = {row.name: row for row in analysis.breakdown("self").rows}
        product = rows["aten::mm"]
        assert (product.count, product.total_ns) == (3, 70_000)
        assert product.extra["launches"] == 3
        # Host time is that of the eager launch in this recording.
        assert product.extra["host_ns"] == 80
        assert rows["mine::op"].extra["host_ns"] is None
        assert (rows["mine::op"].count, rows["mine::op"].total_ns) == (2, 40_000)
        assert analysis.breakdown("self").total_ns == analysis.breakdown("kernel").total_ns
        shapes = {(row.name, row.detail) for row in analysis.breakdown("shape").rows}
        assert ("mine::op", "float[3,4]") in shapes
        classes = {row.name: (row.count, row.total_ns) for row in analysis.breakdown("class").rows}
        assert classes["matmul"] == (3, 70_000)
        assert classes["attention"] == (2, 40_000)
