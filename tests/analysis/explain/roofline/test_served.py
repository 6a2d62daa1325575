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


def flops_and_bytes(
    name: str, *tensors: tuple[str, str], values: Sequence[str] | None = None
) -> list[int]:
    found = cost(name, *tensors, values=values)
    return [found.flops, found.moved_bytes]


ROWS = ("4,10", BF16)
NORM = [5 * 40, 2 * (40 + 40 + 10)]


@pytest.mark.parametrize(
    ("name", "tensors", "expected"),
    [
        ("aiter::rms_norm", [ROWS, ("10", BF16), ("", "Scalar")], NORM),
        ("aiter::rmsnorm2d_fwd_ck", [ROWS, ("10", BF16), ("", "Scalar")], NORM),
        ("aiter::rmsnorm", [ROWS, ROWS, ("10", BF16), ("", "Scalar")], NORM),
        ("_C::rms_norm", [ROWS, ROWS, ("10", BF16), ("", "Scalar")], NORM),
        # Result, input, residual and their sum, weight.
        ("aiter::add_rmsnorm", [ROWS] * 4 + [("10", BF16)], [6 * 40, 2 * (4 * 40 + 10)]),
        (
            "aiter::rmsnorm2d_fwd_with_add_ck",
            [ROWS] * 4 + [("10", BF16), ("", "Scalar")],
            [6 * 40, 2 * (4 * 40 + 10)],
        ),
        ("sgl_kernel::silu_and_mul", [("4,10", BF16), ("4,20", BF16)], [6 * 40, 2 * (40 + 80)]),
        # Only the stored rows are written, not the whole cache.
        (
            "sglang::store_cache",
            [("4,10", BF16), ("4,10", BF16), ("999,10", BF16), ("999,10", BF16), ("4", INT64)],
            [0, 2 * (80 + 80) + 4 * 8],
        ),
        (
            "_C_cache_ops::reshape_and_cache_flash",
            [("4,2,5", BF16), ("4,2,5", BF16), ("9,32,2,5", FP8), ("9,32,2,5", FP8), ("4", INT64)],
            [0, 2 * 80 + 80 + 4 * 8],
        ),
        (
            "_C_cache_ops::concat_and_cache_mla",
            [("4,6", BF16), ("4,2", BF16), ("9,32,8", BF16), ("4", INT64)],
            [0, 2 * (32 + 32) + 4 * 8],
        ),
        (
            "vllm::rocm_unquantized_gemm",
            [("32,288", BF16), ("512,288", BF16), ("512", BF16)],
            [2 * 32 * 512 * 288, 2 * (32 * 288 + 512 * 288 + 32 * 512 + 512)],
        ),
        (
            "aiter::gemm_a8w8_blockscale_ck",
            [("32,256", FP8), ("512,256", FP8), ("32,2", "float"), ("4,2", "float"), ROWS],
            [2 * 32 * 512 * 256, 32 * 256 + 512 * 256 + 2 * 32 * 512 + 4 * (64 + 8)],
        ),
        # The index is read in full, the table only at the indices.
        ("aten::gather", [("999,8", BF16), ("", "Scalar"), ("32,8", INT64)], [0, 32 * 8 * (8 + 4)]),
    ],
)
def test_operation_of_a_server_has_flops_and_bytes(
    name: str, tensors: list[tuple[str, str]], expected: list[int]
) -> None:
    assert flops_and_bytes(name, *tensors) == expected


def test_expanded_index_is_read_once() -> None:
    found = parsed("999,8;;32,8", f"{BF16};Scalar;{INT64}", "8,1;;1,0")
    formula = formula_of("aten::gather")
    assert formula is not None
    assert formula(found).moved_bytes == 32 * 8 + 2 * 32 * 8 * 2


def test_rotary_embedding_counts_the_rotated_part_of_each_head() -> None:
    arguments = [("4", INT64), ("4,64", BF16), ("4,32", BF16), ("", "Scalar"), ("999,16", BF16)]
    # Heads of 16 are rotated in full, heads of 32 by half.
    whole = flops_and_bytes("_C::rotary_embedding", *arguments, values=["", "", "", "16", ""])
    assert whole == [3 * 4 * 96, 2 * 2 * 4 * 96 + 4 * 16 * 2 + 4 * 8]
    half = flops_and_bytes(
        "sgl_kernel::rotary_embedding", *arguments, values=["", "", "", "32", ""]
    )
    assert half == [3 * 4 * 48, 2 * 4 * 96 + 4 * 16 * 2 + 4 * 8]


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
def test_attention_with_a_cache_uses_the_batch_of_the_enclosing_range(
    name: str, tensors: list[tuple[str, str]]
) -> None:
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


@pytest.mark.parametrize(
    ("name", "first", "causal", "passes"),
    [
        ("aiter::_flash_attn_forward", 0, 5, 4),
        ("aiter::mha_fwd", 0, 5, 4),
        ("aiter::fmha_v3_fwd", 0, 5, 4),
        ("aiter::wrapper_fmha_v3_fwd", 1, 6, 4),
        ("flash_attn_3::fwd", 0, 24, 4),
        ("aiter::mha_bwd", 1, 8, 10),
        ("aiter::wrapper_fmha_v3_bwd", 1, 9, 10),
        ("aiter::_flash_attn_backward", 1, 12, 10),
    ],
)
def test_flash_attention_of_other_libraries(
    name: str, first: int, causal: int, passes: int
) -> None:
    rows = ("2,16,8,64", BF16)
    tensors = [rows] * first + [rows, ("2,16,2,64", BF16), ("2,16,2,64", BF16)]
    values = [""] * causal
    assert cost(name, *tensors, values=[*values, "False"]).flops == passes * 2 * 8 * 256 * 64
    assert cost(name, *tensors, values=[*values, "True"]).flops == passes * 2 * 8 * 136 * 64


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


def test_batch_norm_in_training_writes_its_statistics() -> None:
    arguments = [("2,3,4,4", BF16), *[("3", BF16)] * 4, ("", "Scalar")]
    training = flops_and_bytes("aten::native_batch_norm", *arguments, values=[""] * 5 + ["True"])[1]
    assert training == 2 * (2 * 96 + 4 * 3 + 2 * 3)
    testing = flops_and_bytes("aten::native_batch_norm", *arguments, values=[""] * 5 + ["False"])[1]
    assert testing == 2 * (2 * 96 + 4 * 3)


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


def test_grouped_fp8_matmul_has_a_16_bit_result() -> None:
    factors = [("64,128", FP8), ("4,128,256", FP8)]
    read = 64 * 128 + 4 * 128 * 256
    assert flops_and_bytes("aten::_scaled_grouped_mm", *factors) == [
        2 * 64 * 128 * 256,
        read + 2 * 64 * 256,
    ]
    assert flops_and_bytes("aten::_grouped_mm", *factors)[1] == read + 64 * 256


@pytest.mark.parametrize(
    ("name", "tensors", "values", "expected"),
    [
        (
            "_C::cutlass_scaled_mm",
            [("8,32", BF16), ("8,16", FP8), ("16,32", FP8), ("8,1", "float"), ("1,32", "float")],
            None,
            [2 * 8 * 16 * 32, 8 * 16 + 16 * 32 + 2 * 8 * 32 + 4 * (8 + 32)],
        ),
        (
            "aten::topk",
            [("4,100", BF16), ("", "Scalar")],
            ["", "5"],
            [400, 2 * 400 + 4 * 5 * (2 + 8)],
        ),
        (
            "aten::_weight_int4pack_mm",
            [("8,64", BF16), ("4,2,32,4", "int"), ("", "Scalar"), ("2,32,2", BF16)],
            None,
            [2 * 8 * 64 * 32, 2 * 8 * 64 + 4 * 1024 + 2 * 128 + 2 * 8 * 32],
        ),
        (
            "aten::addmv_",
            [("16", BF16), ("16,8", BF16), ("8", BF16)],
            None,
            [2 * 16 * 8, 2 * (16 * 8 + 8 + 16 + 16)],
        ),
    ],
)
def test_operation_of_a_quantized_model_has_flops_and_bytes(
    name: str, tensors: list[tuple[str, str]], values: list[str] | None, expected: list[int]
) -> None:
    assert flops_and_bytes(name, *tensors, values=values) == expected
