"""Costs of Ascend operators, compared with figures computed by hand."""

import json

import pytest

from unified_prof.explain.roofline import ascend
from unified_prof.explain.roofline.arguments import UnknownCostError, parsed
from unified_prof.explain.roofline.costs import Cost
from unified_prof.explain.roofline.serving_formulas import formula_of


def cost(
    op_type: str,
    inputs: tuple[str, str, str],
    outputs: tuple[str, str, str],
    framework: tuple[str, str, str] | None = None,
) -> Cost:
    """Return the cost of an operator by shapes, types and formats, as CANN writes them."""
    around = None
    if framework is not None:
        around = ascend.Framework(framework[0], parsed(framework[1], framework[2]))
    return ascend.cost(
        ascend.Operator(
            op_type, ascend.stored_tensors(*inputs), ascend.stored_tensors(*outputs), around
        )
    )


@pytest.mark.parametrize(
    "factors", ["32,4096;4096,1000", "4096,32;4096,1000", "32,4096;1000,4096", "4096,32;1000,4096"]
)
def test_matmul_flops_do_not_depend_on_transposition(factors: str) -> None:
    found = cost(
        "MatMulV2", (f'"{factors}"', "FLOAT16;FLOAT16", "ND;ND"), ('"32,1000"', "FLOAT16", "ND")
    )
    assert (found.unit, found.dtype, found.flops) == ("matrix", "fp16", 2 * 32 * 1000 * 4096)


def test_batch_matmul_may_share_a_factor() -> None:
    found = cost(
        "BatchMatMulV2",
        ("8,4,16,64;64,32", "DT_BF16;DT_BF16", "ND;ND"),
        ("8,4,16,32", "DT_BF16", "ND"),
    )
    assert found.flops == 2 * 8 * 4 * 16 * 32 * 64


def test_quantized_matmul_uses_int8() -> None:
    found = cost(
        "QuantBatchMatmulV3",
        ("128,512;512,256;256", "INT8;INT8;UINT64", "ND;ND;ND"),
        ("128,256", "DT_BF16", "ND"),
    )
    assert (found.dtype, found.flops) == ("int8", 2 * 128 * 256 * 512)


def test_padded_sizes_give_an_upper_limit_unless_the_framework_recorded_the_shapes() -> None:
    # 1,000 columns are 63 blocks of 16, so 1,008.
    found = cost(
        "MatMul",
        ("256,2,16,16;256,63,16,16", "FLOAT16;FLOAT16", "FRACTAL_NZ;FRACTAL_NZ"),
        ("63,2,16,16", "FLOAT16", "FRACTAL_NZ"),
    )
    assert found.flops == 2 * 32 * 1008 * 4096
    assert found.doubt == "sizes include padding of the layout: FLOPs are an upper limit"
    exact = cost(
        "MatMul",
        ("256,2,16,16;256,63,16,16", "FLOAT16;FLOAT16", "FRACTAL_NZ;FRACTAL_NZ"),
        ("63,2,16,16", "FLOAT16", "FRACTAL_NZ"),
        ("mm", "32,4096;4096,1000", "float;float"),
    )
    assert (exact.flops, exact.doubt) == (2 * 32 * 1000 * 4096, None)
    assert exact.moved_bytes == found.moved_bytes


CONV = ("convolution", "32,3,224,224;64,3,11,11;64", "float;float;float")
BACKWARD = ("convolution_backward", "32,64,55,55;32,3,224,224;64,3,11,11", "float;float;float")
X, WEIGHT, Y = "32,1,224,224,8", "121,4,16,8", "32,8,55,55,8"
CONV_FLOPS = 2 * 32 * 64 * 55 * 55 * 3 * 121


def test_convolution_flops_exclude_channel_padding() -> None:
    layouts = "NC1HWC0;FRACTAL_Z;NCHW"
    types = "FLOAT;FLOAT;FLOAT"
    result = (Y, "FLOAT", "NC1HWC0")
    found = cost("Conv2D", (f"{X};{WEIGHT};64", types, layouts), result, CONV)
    assert (found.flops, found.doubt) == (CONV_FLOPS, None)
    padded = cost("Conv2D", (f"{X};{WEIGHT};64", types, layouts), result)
    assert padded.flops == 2 * 32 * 55 * 55 * 121 * 64 * 8
    assert padded.doubt is not None
    plain = cost(
        "Conv2DV2",
        ("32,3,224,224;64,3,11,11", "FLOAT;FLOAT", "NCHW;NCHW"),
        ("32,64,55,55", "FLOAT", "NCHW"),
    )
    assert plain.flops == CONV_FLOPS


def test_each_gradient_of_a_convolution_has_the_flops_of_the_convolution() -> None:
    weight = cost(
        "Conv2DBackpropFilter",
        (f"{X};4;{Y}", "FLOAT;INT32;FLOAT", "NC1HWC0;NCHW;NC1HWC0"),
        (WEIGHT, "FLOAT", "FRACTAL_Z"),
        BACKWARD,
    )
    data = cost(
        "Conv2DBackpropInput",
        (f"4;{WEIGHT};{Y}", "INT32;FLOAT;FLOAT", "NCHW;FRACTAL_Z;NC1HWC0"),
        (X, "FLOAT", "NC1HWC0"),
        BACKWARD,
    )
    assert weight.flops == data.flops == CONV_FLOPS


ATTENTION_FLOPS = 4 * 2 * 8 * 128 * 256 * 64


@pytest.mark.parametrize(
    ("q", "k"),
    [
        ("2,8,128,64", "2,8,256,64"),  # B, N, S, D
        ("2,128,8,64", "2,256,8,64"),  # B, S, N, D
        ("2,128,512", "2,256,512"),  # B, S, H
        ("128,2,512", "256,2,512"),  # S, B, H
    ],
)
def test_attention_flops_do_not_depend_on_the_layout(q: str, k: str) -> None:
    found = cost(
        "FlashAttentionScore",
        (f"{q};{k};{k}", "DT_BF16;DT_BF16;DT_BF16", "ND;ND;ND"),
        (f"2,8,128,8;2,8,128,8;0;{q}", "FLOAT;FLOAT;DT_BF16;DT_BF16", "ND;ND;ND;ND"),
    )
    assert found.flops == ATTENTION_FLOPS
    assert found.doubt is not None
    assert found.doubt.startswith("a causal mask is not recorded")
    backward = cost(
        "FlashAttentionScoreGrad",
        (f"{q};{k};{k};{q};2,8,128,8", "DT_BF16;" * 4 + "FLOAT", "ND;" * 4 + "ND"),
        (f"{q};{k};{k}", "DT_BF16;DT_BF16;DT_BF16", "ND;ND;ND"),
    )
    assert backward.flops == ATTENTION_FLOPS * 5 // 2


def test_attention_with_grouped_queries() -> None:
    found = cost(
        "FlashAttentionScore",
        ("1,32,128,64;1,4,128,64;1,4,128,64", "DT_BF16;DT_BF16;DT_BF16", "ND;ND;ND"),
        ("1,32,128,8", "FLOAT", "ND"),
    )
    assert found.flops == 4 * 32 * 128 * 128 * 64


def test_attention_with_unknown_dimension_order_has_no_cost() -> None:
    with pytest.raises(UnknownCostError, match="order of its dimensions"):
        cost(
            "FlashAttentionScore",
            ("300,8,64;300,8,64;300,8,64", "DT_BF16;DT_BF16;DT_BF16", "ND;ND;ND"),
            ("300,8,8", "FLOAT", "ND"),
        )


@pytest.mark.parametrize(
    ("q", "k", "flops", "has_doubt"),
    [
        ("4,32,1,128", "4,8,1000,128", 4 * 4 * 32 * 1000 * 128, False),  # of one query
        ("4,1,32,128", "4,1000,8,128", 4 * 4 * 32 * 1000 * 128, False),
        ("4,32,32,128", "4,8,8,128", 4 * 4 * 32 * 32 * 8 * 128, True),  # in any order
        ("4,1,1,128", "4,1000,8,128", None, False),
        ("4,32,2,128", "4,8,1000,128", None, False),
        ("4,32,1,128", "4,8,1000,64", None, False),
        ("4,32,128", "4,8,128", None, False),
    ],
)
def test_attention_in_inference_has_a_cost_if_the_order_of_dimensions_is_certain(
    q: str, k: str, flops: int | None, has_doubt: bool
) -> None:
    def found() -> Cost:
        operands = (f"{q};{k};{k}", "FLOAT16;FLOAT16;FLOAT16", "ND;ND;ND")
        return cost("IncreFlashAttention", operands, (q, "FLOAT16", "ND"))

    if flops is None:
        with pytest.raises(UnknownCostError):
            found()
    else:
        assert (found().flops, found().doubt is not None) == (flops, has_doubt)


@pytest.mark.parametrize(
    ("y", "layout", "positions"),
    [
        ("32,8,55,54,8", "NC1HWC0", 32 * 55 * 54),
        ("32,3,8,55,54,8", "NDC1HWC0", 32 * 3 * 55 * 54),
        ("32,55,54,64", "NHWC", 32 * 55 * 54),
        ("32,3,55,54,64", "NDHWC", 32 * 3 * 55 * 54),
        ("32,64,55,54", "NCHW", 32 * 55 * 54),
        ("32,64", "NCHW", None),
        ("32,8,55,54,8", "NC1HWC0_C04", None),
    ],
)
def test_convolution_with_padded_weights_has_a_window_for_each_position(
    y: str, layout: str, positions: int | None
) -> None:
    operands = (f"{X};{WEIGHT}", "FLOAT;FLOAT", "NC1HWC0;FRACTAL_Z")
    if positions is None:
        with pytest.raises(UnknownCostError, match="the layout"):
            cost("Conv2D", operands, (y, "FLOAT", layout), CONV)
    else:
        found = cost("Conv2D", operands, (y, "FLOAT", layout), CONV)
        assert found.flops == 2 * positions * 64 * 3 * 11 * 11


def test_grouped_matmul_multiplies_each_row_with_one_factor() -> None:
    shapes = "300,64;8,64,32;8"
    found = cost(
        "GroupedMatmul",
        (shapes, "DT_BF16;DT_BF16;INT64", "ND;ND;ND"),
        ("300,32", "DT_BF16", "ND"),
    )
    assert (found.unit, found.flops) == ("matrix", 2 * 300 * 64 * 32)


def test_other_operators_have_bytes_and_flops() -> None:
    moved = cost(
        "TransData", ("32,3,224,224", "FLOAT", "NCHW"), ("32,1,224,224,8", "FLOAT", "NC1HWC0")
    )
    assert (moved.unit, moved.moved_bytes) == ("copy", 4 * 32 * 224 * 224 * 11)
    rows = cost(
        "GatherV2",
        ("32000,4096;128;1", "DT_BF16;INT64;INT64", "ND;ND;ND"),
        ("128,4096", "DT_BF16", "ND"),
    )
    assert rows.moved_bytes == 2 * 2 * 128 * 4096 + 8 * 128
    adam = cost(
        "ApplyAdamWV2",
        ("10,10;10,10;10,10;10,10", "FLOAT;FLOAT;FLOAT;FLOAT", "ND;ND;ND;ND"),
        ("10,10;10,10;10,10", "FLOAT;FLOAT;FLOAT", "ND;ND;ND"),
    )
    assert (adam.flops, adam.moved_bytes) == (1200, 2800)
    unknown = cost("Mystery", ("8", "FLOAT", "ND"), ("8", "FLOAT", "ND"))
    assert (unknown.flops, unknown.moved_bytes) == (0, 64)
    assert unknown.doubt == "no formula for its FLOPs, only its bytes are known"
    with pytest.raises(UnknownCostError, match="not recorded"):
        cost("MemSet", ("N/A", "N/A", "N/A"), ("N/A", "N/A", "N/A"))


@pytest.mark.parametrize(
    ("layout", "q", "k"),
    [
        ("BNSD", "2,8,128,64", "2,4,256,64"),
        ("BSND", "2,128,8,64", "2,256,4,64"),
        ("BSH", "2,128,512", "2,256,256"),
        ("SBH", "128,2,512", "256,2,256"),
    ],
)
def test_torch_npu_attention_uses_the_recorded_layout(layout: str, q: str, k: str) -> None:
    formula = formula_of("npu::npu_fusion_attention")
    backward = formula_of("npu::npu_fusion_attention_grad")
    assert formula is not None
    assert backward is not None
    half = "c10::Half"

    def forward(mode: int, mask: str = "") -> Cost:
        shapes = ";".join([q, k, k, "", "", "", "", mask, *[""] * 9])
        kinds = [*[half] * 3, *["Scalar"] * 2, "", "", "bool" if mask else "", *["Scalar"] * 9]
        values = ["", "", "", "8", layout, *[""] * 11, str(mode)]
        return formula(parsed(shapes, ";".join(kinds), None, json.dumps(values)))

    full = 4 * 2 * 8 * 128 * 256 * 64
    assert (forward(0).flops, forward(0).doubt) == (full, None)
    assert forward(0, "128,256").doubt is not None
    visible = sum(i + 1 + 128 for i in range(128))
    assert (forward(3).flops, forward(3).doubt) == (full * visible // (128 * 256), None)
    shapes, kinds = f"{q};{k};{k};{q};;", ";".join([half] * 4 + ["Scalar"] * 2)
    values = json.dumps(["", "", "", "", "8", layout])
    assert backward(parsed(shapes, kinds, None, values)).flops == full * 5 // 2


def test_torch_npu_attention_of_packed_sequences_has_no_cost() -> None:
    formula = formula_of("npu::npu_fusion_attention")
    assert formula is not None
    kinds = "c10::Half;c10::Half;c10::Half;Scalar;Scalar"
    values = json.dumps(["", "", "", "8", "TND"])
    with pytest.raises(UnknownCostError, match="lengths of its sequences"):
        formula(parsed("300,8,64;300,8,64;300,8,64;;", kinds, None, values))
