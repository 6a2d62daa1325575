"""Formulas read the arguments of torch's operations where torch's schemas have them."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.analysis.explain.roofline.counted import arguments_of
from unified_prof.explain.roofline.arguments import UnknownCostError
from unified_prof.explain.roofline.aten_formulas import ELEMENTWISE
from unified_prof.explain.roofline.costs import Cost
from unified_prof.explain.roofline.serving_formulas import formula_of

# Names in torch's schemas for what formulas use.
ALIASES = {
    "input": "self",
    "grad_output": "dy",
    "grad_out": "dy",
    "grad_out_": "dy",
    "attn_mask": "bias",
    "attn_bias": "bias",
    "custom_mask_type": "mask",
    "is_causal": "mask",
    "cum_seq_q": "lengths",
    "cu_seqlens_q": "lengths",
    "output_mask": "gradients",
}
SCHEMAS = {
    schema.name: [ALIASES.get(one.name, one.name) for one in schema.arguments]
    for schema in reversed(torch._C._jit_get_all_schemas())
    if not schema.overload_name and formula_of(schema.name) is not None
}
CONVOLUTIONS = sorted(name for name in SCHEMAS if "conv" in name)
ATTENTION = sorted(name for name in SCHEMAS if "attention" in name)
NORMALIZATIONS = sorted(
    name
    for name in SCHEMAS
    if "_norm" in name and "weight" in SCHEMAS[name] and name != "aten::batch_norm_elemt"
)


def cost(name: str, **given: object) -> Cost:
    formula = formula_of(name)
    assert formula is not None
    return formula(arguments_of([given.get(one) for one in SCHEMAS[name]]))


def tensor(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    size = next((int(text) for text in "13" if f"{text}d" in name), 2)
    sizes: dict[str, Any] = {
        "stride": (3, 2, 3)[:size],
        "padding": (1, 2, 3)[:size],
        "dilation": (2, 1, 2)[:size],
        "groups": 2 if "groups" in SCHEMAS[name] else 1,
    }
    for transposed in (False, True) if "transposed" in SCHEMAS[name] else ("transpose" in name,):
        more = {"output_padding": (1, 0, 2)[:size]} if transposed else {}
        x, bias, groups = tensor(5, 4, *(13, 12, 11)[:size]), tensor(6), sizes["groups"]
        channels = (4, 6 // groups) if transposed else (6, 4 // groups)
        weight = tensor(*channels, *(3, 2, 1)[:size])
        module = getattr(F, f"conv{'_transpose' * transposed}{size}d")
        y = module(x, weight, bias, **sizes, **more)
        flops = 2 * (x if transposed else y).numel() * math.prod(weight.shape[1:])
        given = {"self": x, "weight": weight, "transposed": transposed, **sizes, **more}
        tensors = x.numel() + weight.numel() + y.numel()
        if "backward" not in name:
            # An addition within MIOpen's convolution adds its bias.
            has_bias = "bias" in SCHEMAS[name] and (
                "miopen" not in name or "relu" in name or transposed
            )
            found = cost(name, bias=bias, **given)
            assert found.flops == flops
            assert found.vector_flops == has_bias * y.numel()
            assert found.moved_bytes == 4 * (tensors + has_bias * 6)
            continue
        for of_x, of_weight, of_bias in ((1, 1, 1), (1, 0, 0), (0, 1, 1), (0, 0, 1)):
            mask = [bool(one) for one in (of_x, of_weight, of_bias)]
            found = cost(name, dy=y, gradients=mask, **given)
            read = y.numel() + (x.numel() + weight.numel()) * (of_x + of_weight)
            assert found.flops == flops * (of_x + of_weight)
            assert found.vector_flops == of_bias * y.numel()
            assert found.moved_bytes == 4 * (read + 6 * of_bias)
            assert found.doubt is None
        assert cost(name, dy=y, **given).doubt is not None


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    batch, heads, rows, depth = 2, 3, 5, 7
    x = tensor(batch, heads, rows, depth)
    if "scaled" not in name:
        x = x.transpose(1, 2)
    given = {"query": x, "key": x, "value": x, "dy": x}
    kinds: tuple[object, ...] = (0, 1, 2) if "efficient_attention_" in name else (False, True)
    if "scaled" in name:
        kinds = (False, True)
    per_pair = 4 if "backward" not in name else 10
    for kind in kinds:
        found = cost(name, mask=kind, **given)
        pairs = rows * (rows + 1) // 2 if kind else rows * rows
        assert found.flops == per_pair * batch * heads * pairs * depth
        assert found.doubt is None
        if "bias" in SCHEMAS[name]:
            biased = cost(name, mask=kind, bias=tensor(batch, heads, rows, rows), **given)
            assert biased.moved_bytes == found.moved_bytes + 4 * batch * heads * rows * rows
    assert cost(name, **given).doubt is not None
    if "lengths" in SCHEMAS[name] and "scaled" not in name:
        with pytest.raises(UnknownCostError, match="lengths"):
            cost(name, lengths=tensor(3), **given)


# Tensors that torch's kernels read or write: those of the results, then of sums over rows.
PASSES = {
    "group_norm": 3,
    **dict.fromkeys(("layer_norm_backward", "rms_norm_backward"), 3),
    **dict.fromkeys(("group_norm_backward", "batch_norm_backward"), 5),
}


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_normalization(name: str) -> None:
    x, backward = tensor(5, 4, 3), "backward" in name
    plain = cost(name, self=x, dy=tensor(7), training=False)
    passes = next((count for end, count in PASSES.items() if name.endswith(end)), 2)
    assert plain.moved_bytes == passes * 4 * x.numel()
    read = ["weight", "bias"] if backward else ["weight", "bias", "running_mean", "running_var"]
    for param in (one for one in read if one in SCHEMAS[name]):
        found = cost(name, self=x, dy=tensor(7), training=False, **{param: tensor(11)})
        # Another kernel reads both tensors for gradients of layer and RMS norm.
        again = 2 * 4 * x.numel() * (passes == 3 and backward)
        assert found.moved_bytes == plain.moved_bytes + (1 + backward) * 4 * 11 + again
        only = {param: tensor(11), "gradients": [True, False, False]}
        if again:
            assert cost(name, self=x, dy=tensor(7), **only).moved_bytes < found.moved_bytes


@pytest.mark.parametrize(
    ("name", "given", "passes"),
    [
        ("native_batch_norm", {"training": True}, 3),
        ("native_batch_norm_backward", {"train": False}, 2),
        ("native_batch_norm_backward", {"train": False, "weight": tensor(0)}, 4),
        ("_softmax_backward_data", {"input_dtype": 6}, 3),
        ("_softmax_backward_data", {"input_dtype": 15}, 2.5),
        ("avg_pool2d_backward", {"divisor_override": None}, 2),
    ],
)
def test_tensors_are_counted_as_often_as_kernels_need_them(
    name: str, given: dict[str, Any], passes: float
) -> None:
    x = tensor(5, 4, 3, 2)
    moved = cost(f"aten::{name}", self=x, dy=x, output=x, **given).moved_bytes
    assert moved == passes * 4 * x.numel()


OVERLOADS = ("", "Tensor", "self", "ScalarSelf", "default")
ELEMENTWISE_SCHEMAS = {
    name: schema
    for name in sorted(ELEMENTWISE)
    for schema in reversed(torch._C._jit_get_schemas_for_operator(f"aten::{name}"))
    if schema.overload_name in OVERLOADS and name != "masked_fill"
}
TO_BOOL = "eq ne lt le gt ge isnan isinf isfinite logical_and logical_or logical_xor logical_not"


@pytest.mark.parametrize("name", ELEMENTWISE_SCHEMAS)
def test_elementwise_operation_reads_its_tensors_and_writes_its_result(name: str) -> None:
    types = [str(one.type) for one in ELEMENTWISE_SCHEMAS[name].arguments]
    given = [tensor(5, 4) if one == "Tensor" else 1 for one in types]
    for out in ([], [tensor(5, 4)]):  # a given result is written, and not read
        found = ELEMENTWISE[name](arguments_of([*given, *out]))
        read, written = 4 * types.count("Tensor"), 1 if name in TO_BOOL.split() else 4
        assert found.moved_bytes == 20 * (read + written)
        assert found.flops >= 20
