"""What servers of language models run: costs of their operations, also in replayed graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.analysis.explain.roofline.test_of_recording import Shaped, only
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


def told(name: str, *tensors: tuple[str, str], values: Sequence[str] | None = None) -> list[int]:
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
        # Result, input, residual and its sum, weight.
        ("aiter::add_rmsnorm", [ROWS] * 4 + [("10", BF16)], [6 * 40, 2 * (4 * 40 + 10)]),
        (
            "aiter::rmsnorm2d_fwd_with_add_ck",
            [ROWS] * 4 + [("10", BF16), ("", "Scalar")],
            [6 * 40, 2 * (4 * 40 + 10)],
        ),
        ("sgl_kernel::silu_and_mul", [("4,10", BF16), ("4,20", BF16)], [6 * 40, 2 * (40 + 80)]),
        # The caches are as large as memory: what is written are the rows.
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
        # One row of 32 indices is expanded: it is read once.
        ("aten::gather", [("999,8", BF16), ("", "Scalar"), ("32,8", INT64)], [0, 32 * 8 * (8 + 4)]),
    ],
)
def test_operations_of_servers(
    name: str, tensors: list[tuple[str, str]], expected: list[int]
) -> None:
    assert told(name, *tensors) == expected


def test_an_expanded_index_is_read_once() -> None:
    found = parsed("999,8;;32,8", f"{BF16};Scalar;{INT64}", "8,1;;1,0")
    formula = formula_of("aten::gather")
    assert formula is not None
    assert formula(found).moved_bytes == 32 * 8 + 2 * 32 * 8 * 2


def test_rotary_embeddings_turn_what_their_table_has() -> None:
    given = [("4", INT64), ("4,64", BF16), ("4,32", BF16), ("", "Scalar"), ("999,16", BF16)]
    # Heads of 16, all of it turned; of heads of 32, half.
    whole = told("_C::rotary_embedding", *given, values=["", "", "", "16", ""])
    assert whole == [3 * 4 * 96, 2 * 2 * 4 * 96 + 4 * 16 * 2 + 4 * 8]
    half = told("sgl_kernel::rotary_embedding", *given, values=["", "", "", "32", ""])
    assert half == [3 * 4 * 48, 2 * 4 * 96 + 4 * 16 * 2 + 4 * 8]


def test_a_batch_is_named_by_the_range_around_it() -> None:
    name = "execute_3_context_1(sq4sk6sqsq16sqsk24)_generation_2(sq2sk30sqsq2sqsk30)"
    # Four queries of six keys see 3, 4, 5 and 6; two new tokens see 30 in all.
    assert Batch.parse(name) == Batch(keys=36, pairs=3 + 4 + 5 + 6 + 30)
    flat = "execute_16_context_0_sq0sk0sqsq0sqsk0_generation_16_sq16sk8209sqsq16sqsk8209"
    assert Batch.parse(flat) == Batch(keys=8209, pairs=8209)
    # Of two prompts of 2 and 3 tokens the squares are told; of a batch that goes on, no keys.
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
def test_attention_over_a_cache_is_told_by_its_batch(
    name: str, tensors: list[tuple[str, str]]
) -> None:
    found = cost(name, *tensors, around=GENERATION)
    assert found.flops == 4 * 8 * 64 * 100
    # Queries and result, keys and values of both heads.
    assert found.moved_bytes == 2 * (2 * 8 * 64) * 2 + 2 * 100 * 2 * 64 * 2
    assert found.doubt is not None
    assert "window" in found.doubt
    with pytest.raises(UnknownCostError, match="lengths of its sequences"):
        cost(name, *tensors)


def test_a_cache_of_eight_bits_has_queries_of_eight() -> None:
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
def test_flash_attention_of_others(name: str, first: int, causal: int, passes: int) -> None:
    rows = ("2,16,8,64", BF16)
    tensors = [rows] * first + [rows, ("2,16,2,64", BF16), ("2,16,2,64", BF16)]
    values = [""] * causal
    assert cost(name, *tensors, values=[*values, "False"]).flops == passes * 2 * 8 * 256 * 64
    assert cost(name, *tensors, values=[*values, "True"]).flops == passes * 2 * 8 * 136 * 64


def test_attention_within_attention_counts_once(tmp_path: Path) -> None:
    rows = "2,16,8,64;2,16,8,64;2,16,8,64"
    types, values = ";".join([BF16] * 3), ["", "", "", "0.0", "0.1", "False"]
    with Shaped(path := tmp_path / "a.db") as device:
        device.named("AMD Instinct MI300X")
        wrapper = "aiter::wrapper_fmha_v3_fwd"
        given = f"1;{rows}", f"{BF16};{types}"
        device.operation(10, 900, wrapper, *given, launches=1, values=["", *values])
        device.operation(100, 800, "aiter::fmha_v3_fwd", rows, types, launches=2, values=values)
        device.kernel(1000, 2000, "layout", 1)
        device.kernel(2000, 9000, "fmha_fwd", 2)
    found, _ = roofline(path, None)
    inner = only(found, "aiter::fmha_v3_fwd")
    assert inner.cost is not None
    assert inner.cost.flops == 4 * 2 * 8 * 256 * 64
    assert only(found, wrapper).cost is None


def test_a_batch_norm_that_trains_writes_what_it_keeps() -> None:
    given = [("2,3,4,4", BF16), *[("3", BF16)] * 4, ("", "Scalar")]
    training = told("aten::native_batch_norm", *given, values=[""] * 5 + ["True"])[1]
    assert training == 2 * (2 * 96 + 4 * 3 + 2 * 3)
    testing = told("aten::native_batch_norm", *given, values=[""] * 5 + ["False"])[1]
    assert testing == 2 * (2 * 96 + 4 * 3)


MM = "1024,4096;4096,2048"


def captured(path: Path) -> Path:
    """Record a capture: a product, attention, and something that nobody knows."""
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


def replayed(path: Path, times: int = 2) -> Path:
    """Record replays of it, and a product that was launched at once."""
    with Shaped(path) as device:
        device.named("NVIDIA H100 80GB HBM3")
        device.operation(10, 90, "aten::mm", MM, f"{BF16};{BF16}", launches=1)
        device.kernel(1000, 31_000, "gemm", 1)
        for number in range(times):
            at = 100_000 * (number + 1)
            device.writer.write(
                "MSTX_EVENTS",
                {
                    "startNs": [device.T0 + at],
                    "endNs": device.T0 + at + 100,
                    "message": device.text(GENERATION.replace("100", str(100 * (number + 1)))),
                    "globalTid": 1,
                },
            )
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


def test_replayed_kernels_have_the_work_of_the_captured_operations(tmp_path: Path) -> None:
    replay, capture = replayed(tmp_path / "replay.db"), captured(tmp_path / "capture.db")
    found, _ = roofline(replay, capture)
    product = only(found, "aten::mm")
    # Each replay is one more call, and what was launched at once is of the same row.
    assert (product.count, product.total_ns) == (3, 30_000 + 2 * 20_000)
    assert product.cost is not None
    assert product.cost.flops == 3 * 2 * 1024 * 4096 * 2048
    attention = only(found, "vllm::unified_attention_with_output")
    assert attention.count == 2
    assert attention.cost is not None
    # The second batch has twice as many keys.
    assert attention.cost.flops == 4 * 8 * 64 * (100 + 200)
    assert only(found, "mine::op").doubt == "no FLOP formula"
    assert {one.kind for one in found.rows} == {"operation"}
    assert sum(one.total_ns for one in found.rows) == 30_000 + 6 * 20_000


def test_without_the_capture_replayed_kernels_stand_for_themselves(tmp_path: Path) -> None:
    found, _ = roofline(replayed(tmp_path / "replay.db"), None)
    assert only(found, "aten::mm").count == 1
    assert {one.name for one in found.rows if one.kind == "kernel"} == {"gemm", "attention", "k"}


def test_operations_at_every_depth_have_their_replays(tmp_path: Path) -> None:
    replay, capture = replayed(tmp_path / "replay.db"), captured(tmp_path / "capture.db")
    with open_reports(replay, capture=capture) as opened:
        (analysis,) = opened.analyses
        rows = {row.name: row for row in analysis.breakdown("self").rows}
        product = rows["aten::mm"]
        assert (product.count, product.total_ns) == (3, 70_000)
        assert product.extra["launches"] == 3
        # Of the host's time only what was launched at once is this recording's.
        assert product.extra["host_ns"] == 80
        assert rows["mine::op"].extra["host_ns"] is None
        assert (rows["mine::op"].count, rows["mine::op"].total_ns) == (2, 40_000)
        assert analysis.breakdown("self").total_ns == analysis.breakdown("kernel").total_ns
        shapes = {(row.name, row.detail) for row in analysis.breakdown("shape").rows}
        assert ("mine::op", "float[3,4]") in shapes
        classes = {row.name: (row.count, row.total_ns) for row in analysis.breakdown("class").rows}
        assert classes["matmul"] == (3, 70_000)
        assert classes["attention"] == (2, 40_000)


HALF = "c10::Half"


def test_the_bias_of_attention_is_read() -> None:
    qkv = [("4,32,2048,64", HALF)] * 3
    name = "aten::_scaled_dot_product_efficient_attention"
    plain = told(name, *qkv)
    biased = told(name, *qkv, ("4,32,2048,2048", HALF))
    assert plain[1] == 4 * 2 * 4 * 32 * 2048 * 64
    assert biased == [plain[0], plain[1] + 2 * 4 * 32 * 2048 * 2048]


def test_grouped_products_of_eight_bits_have_a_wider_result() -> None:
    factors = [("64,128", FP8), ("4,128,256", FP8)]
    read = 64 * 128 + 4 * 128 * 256
    assert told("aten::_scaled_grouped_mm", *factors) == [2 * 64 * 128 * 256, read + 2 * 64 * 256]
    assert told("aten::_grouped_mm", *factors)[1] == read + 64 * 256


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
def test_operations_of_quantized_models(
    name: str, tensors: list[tuple[str, str]], values: list[str] | None, expected: list[int]
) -> None:
    assert told(name, *tensors, values=values) == expected
