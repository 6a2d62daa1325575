"""FLOPs and bytes, compared with torch's FLOP counter and with figures computed by hand."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from tests.analysis.explain.roofline.counted import calls_of, torch_and_formula_flops
from unified_prof.explain.roofline import costs as formulas
from unified_prof.explain.roofline.arguments import Tensor, UnknownCostError, parsed
from unified_prof.explain.roofline.aten_formulas import FORMULAS
from unified_prof.explain.roofline.costs import LOWER_RIGHT, UPPER_LEFT, Attention, Cost

SIZE = st.integers(1, 6)


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor that has only a shape."""
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)


def bf16(*shape: int) -> Tensor:
    return Tensor(shape, "bf16")


# Matrix products, against torch.utils.flop_counter


@pytest.mark.slow
@given(m=SIZE, k=SIZE, n=SIZE, batch=st.lists(SIZE, max_size=2))
@settings(max_examples=30, deadline=None)
def test_matmul_flops_equal_those_of_torch(m: int, k: int, n: int, batch: list[int]) -> None:
    def run() -> None:
        x, weight, bias = tensor(*batch, m, k), tensor(n, k), tensor(n)
        y = F.linear(x, weight, bias)
        z = torch.matmul(y, tensor(*batch, n, m))
        (z.sum() + torch.addmm(tensor(n), tensor(m, k), tensor(k, n)).sum()).backward()

    expected, found = torch_and_formula_flops(run)
    assert found == expected > 0


def test_matmul_bias_is_vector_work_and_output_type_sets_its_bytes() -> None:
    found = formulas.matmul(bf16(141, 512), bf16(512, 2048), bias=bf16(2048))
    assert (found.unit, found.dtype, found.flops) == ("matrix", "bf16", 2 * 141 * 512 * 2048)
    assert found.vector_flops == 141 * 2048
    assert found.moved_bytes == 2 * (141 * 512 + 512 * 2048 + 141 * 2048 + 2048)
    wide = formulas.matmul(Tensor((8, 8), "fp8"), Tensor((8, 8), "fp8"), out="bf16")
    assert wide.moved_bytes == 64 + 64 + 128


def test_complex_matmul_has_four_times_the_flops() -> None:
    a = Tensor((3, 4), "complex64")
    assert formulas.matmul(a, Tensor((4, 5), "complex64")).flops == 4 * 2 * 3 * 4 * 5


def test_matmul_of_incompatible_shapes_is_refused() -> None:
    with pytest.raises(UnknownCostError, match="inner sizes"):
        formulas.matmul(bf16(3, 4), bf16(5, 6))
    with pytest.raises(UnknownCostError, match="do not match"):
        formulas.matmul(bf16(2, 3, 4), bf16(3, 4, 5))


@pytest.mark.parametrize(
    ("keys", "values"),
    [((2, 3, 6, 7), (2, 3, 5, 7)), ((2, 3, 6, 8), (2, 3, 6, 8)), ((6, 7), (6, 7))],
)
def test_attention_of_odd_shapes_is_refused(keys: tuple[int, ...], values: tuple[int, ...]) -> None:
    with pytest.raises(UnknownCostError):
        Attention.from_tensors(bf16(2, 3, 5, 7), bf16(*keys), bf16(*values))


# Convolutions


@pytest.mark.slow
@given(
    spatial=st.integers(1, 3),
    groups=st.sampled_from([1, 2, 3]),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    window=st.integers(1, 3),
    transposed=st.booleans(),
    batch=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_convolution_flops_equal_those_of_torch(
    spatial: int,
    groups: int,
    stride: int,
    padding: int,
    dilation: int,
    window: int,
    transposed: bool,
    batch: int,
) -> None:
    def run() -> None:
        x = tensor(batch, 2 * groups, *[11] * spatial)
        outputs = 3 * groups
        shape = (2 * groups, 3) if transposed else (outputs, 2)
        weight, bias = tensor(*shape, *[window] * spatial), tensor(outputs)
        call = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[spatial - 1]
        if not transposed:
            call = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
        y = call(x, weight, bias, stride, padding, groups=groups, dilation=dilation)
        results.append((y.shape, groups))
        if groups == 1:
            # With groups, torch multiplies the FLOPs of the weight gradient by their number.
            y.sum().backward()

    results: list[Any] = []
    expected, found = torch_and_formula_flops(run)
    assert found == expected > 0


@given(
    size=st.integers(5, 12), window=st.integers(1, 4), step=st.integers(1, 3), pad=st.integers(0, 1)
)
@settings(max_examples=30, deadline=None)
def test_convolution_sizes_are_those_of_torch(size: int, window: int, step: int, pad: int) -> None:
    x = torch.empty(1, 1, size, size, device="meta")
    w = torch.empty(1, 1, window, window, device="meta")
    y = F.conv2d(x, w, stride=step, padding=pad)
    square = (size,) * 2, (window,) * 2
    assert formulas.convolution_sizes(*square, (step,), (pad,), (1,)) == y.shape[2:]
    z = F.conv_transpose2d(x, w, stride=step, padding=pad)
    found = formulas.convolution_sizes(*square, (step,), (pad,), (1,), (0,))
    assert found == z.shape[2:]
    same = F.conv2d(x, w, padding="same") if window % 2 else x
    assert formulas.convolution_sizes(*square, (1,), "same", (1,)) == same.shape[2:]


# Attention


@given(batch=SIZE, heads=SIZE, queries=SIZE, keys=SIZE, depth=SIZE, value_depth=SIZE)
@settings(max_examples=30, deadline=None)
def test_attention_flops_without_mask_equal_those_of_torch(
    batch: int, heads: int, queries: int, keys: int, depth: int, value_depth: int
) -> None:
    q, k = (batch, heads, queries, depth), (batch, heads, keys, depth)
    v = (batch, heads, keys, value_depth)
    dy = (batch, heads, queries, value_depth)
    sizes = Attention.from_tensors(bf16(*q), bf16(*k), bf16(*v))
    assert sizes.cost().flops == sdpa_flop_count(q, k, v)
    assert sizes.cost(backward=True).flops == sdpa_backward_flop_count(dy, q, k, v)


@given(queries=st.integers(0, 9), keys=st.integers(0, 9))
def test_causal_mask_pairs_equal_those_counted_one_by_one(queries: int, keys: int) -> None:
    for causal, offset in ((UPPER_LEFT, 0), (LOWER_RIGHT, keys - queries)):
        expected = sum(min(max(i + 1 + offset, 0), keys) for i in range(queries))
        assert formulas.seen_pairs(queries, keys, causal) == expected


def test_grouped_queries_read_the_keys_of_their_group() -> None:
    q, kv = bf16(2, 32, 128, 64), bf16(2, 8, 128, 64)
    found = Attention.from_tensors(q, kv, kv).cost()
    assert found.flops == 4 * 2 * 32 * 128 * 128 * 64
    assert found.moved_bytes == 2 * (2 * q.elements + 2 * kv.elements)


def test_unknown_causality_is_reported_as_a_doubt() -> None:
    q = bf16(1, 2, 4, 8)
    found = Attention.from_tensors(q, q, q, causal_known=False).cost()
    assert found.flops == 4 * 2 * 16 * 8
    expected = "a causal mask is not recorded; with one, FLOPs would be 0.62 times as many"
    assert found.doubt == expected


# Other operations


def test_elementwise_operations_broadcast_and_read_expanded_tensors_once() -> None:
    found = formulas.elementwise([bf16(4, 1, 8), bf16(3, 8)])
    assert (found.flops, found.moved_bytes) == (96, 2 * (32 + 24 + 96))
    compared = formulas.elementwise([bf16(4, 8), bf16(4, 8)], out="bool")
    assert compared.moved_bytes == 2 * 64 + 32
    with pytest.raises(UnknownCostError):
        formulas.elementwise([bf16(4), bf16(3)])


def index_tensor(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int64, device="meta")


def test_fused_adam_in_fp32_moves_28_bytes_per_parameter() -> None:
    params = [Tensor((10, 10), "fp32"), Tensor((28,), "fp32")]
    found = formulas.optimizer("adam", params)
    assert (found.flops, found.moved_bytes) == (12 * 128, 28 * 128)
    assert formulas.optimizer("sgd", params).moved_bytes == 12 * 128
    assert formulas.optimizer("momentum", params).moved_bytes == 20 * 128
    with pytest.raises(UnknownCostError, match="more than 30"):
        formulas.optimizer("adam", [])


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all_reduce", 1750),
        ("reduce_scatter", 875),
        ("all_gather", 875),
        ("all_to_all", 875),
        ("broadcast", 1000),
        ("send", 1000),
    ],
)
def test_wire_bytes_are_the_minimum_that_each_rank_sends(kind: str, sent: int) -> None:
    assert formulas.collective(kind, 1000, 8, "int8").moved_bytes == sent
    assert formulas.collective(kind, 1000, 1, "int8").moved_bytes == 0
    assert formulas.collective("all_reduce", 1024, 4, "fp32").flops == 192


def test_wire_bytes_of_an_unknown_collective_are_refused() -> None:
    with pytest.raises(UnknownCostError):
        formulas.collective("barrier", 1000, 8, "int8")


def formula_cost(name: str, shapes: str, types: str, *values: object) -> Cost:
    """Return the cost of an operation by its recorded arguments."""
    texts = json.dumps([str(one) for one in values])
    return FORMULAS[name](parsed(shapes, types, values=texts))


@pytest.mark.parametrize(
    ("program", "count", "points", "per_point"),
    [
        ("torch.fft.fft2(torch.zeros(4, 32, 64, dtype=torch.complex64))", 4, 2048, 5),
        ("torch.fft.rfft(torch.zeros(8, 1024))", 8, 1024, 2.5),
        ("torch.fft.irfft(torch.zeros(8, 513, dtype=torch.complex64))", 8, 1024, 2.5),
    ],
)
def test_fft_has_the_usual_flops_and_moves_both_sides(
    program: str, count: int, points: int, per_point: float
) -> None:
    """FFTW's convention: 5 n log2(n) for complex values, half for real ones."""
    (call,) = calls_of([program])
    assert call.cost.flops == count * per_point * points * math.log2(points)
    assert call.cost.moved_bytes == call.moved_bytes


@pytest.mark.parametrize(("mode", "module"), [(2, torch.nn.LSTM), (3, torch.nn.GRU)])
def test_recurrent_network_multiplies_all_its_weights_in_each_step(
    mode: int, module: type[torch.nn.LSTM] | type[torch.nn.GRU]
) -> None:
    net = module(20, 30, num_layers=2, bidirectional=True)
    weights = sum(one.numel() for name, one in net.named_parameters() if "weight" in name)
    values = ["", "", 4, "", "", "", mode, 30, 0, 2, False, 0.0, True, True]
    found = formula_cost("_cudnn_rnn", "7,5,20" + ";" * 13, "float" + ";" * 13, *values)
    assert found.flops == 2 * 7 * 5 * weights
    assert found.unit == "matrix"


def test_list_of_unknown_dtype_counts_as_fp32_with_a_doubt() -> None:
    found = formula_cost("cat", "2,3|4,3;", "TensorList;Int", "", 0)
    assert found.moved_bytes == 2 * 4 * 18
    assert found.doubt is not None


# Expressions of x and y (n rows, m columns; y may be expanded), z (n, 4, 5, 6), integers i below n,
# truth values b, a constant c (4), and t(...), tensors of a shape.
PROGRAMS = {
    "unary": "x.abs(); x.neg(); x.exp(); x.sin(); x.sqrt(); x.trunc(); x.tanh(); x.sigmoid();"
    "x.isnan(); b.logical_not(); i.bitwise_not(); x.cumsum(1); x.clamp_min(0.5); x.clamp(y, y);"
    "F.relu(x); F.hardtanh(x); F.elu(x); F.silu(x); F.gelu(x); F.hardswish(x); F.logsigmoid(x);"
    "F.dropout(x, 0.5); F.threshold(x, 0.1, 1)",
    "binary": "x.add(y); x.sub(y); x.mul(2.5); x.div(y); x.maximum(y); x.eq(y); x + t(m); i + x;"
    "i & i; b * t(); x + t().double(); x.half() + y; i + t(); x.addcmul(x, y); x.lerp(y, y);"
    "torch.where(b, x, y); x.masked_fill(b, 1); F.mse_loss(x, y, reduction='none')",
    "memory": "x.clone(); x.roll(1); x.flip(0); x.tril(); x.detach().zero_(); x.detach().normal_();"
    "x.detach().fill_(1); x.detach().copy_(y.half()); F.embedding(i, x); x.gather(0, i[:, :1]);"
    "x.index_select(0, i[:, 0]); z.index_select(1, i[0] % 4); F.nll_loss(x, i[:, 0] % m);"
    "F.nll_loss(z, i[:, :1, None].expand(n, 5, 6) % 4)",
    "reductions": "x.sum(); x.sum(1); x.mean((0, 1)); z.sum((1, -1)); x.prod(1); x.amax(1);"
    "x.max(1); x.min(0); torch.max(x, y); b.any(); b.all(1); x.argmax(); x.argmin(0); x.std(1);"
    "torch.var_mean(x, 1); torch.linalg.vector_norm(z, 2, (1, 2)); z.topk(3)",
    "pooling": "F.max_pool2d(z, 3, 2, 1); F.max_pool2d(z, 2, 1, dilation=2); F.avg_pool2d(z, 2);"
    "F.avg_pool2d(z, (2, 3), 1, 1); F.max_pool3d(z, (2, 1, 3)); F.adaptive_avg_pool2d(z, 2)",
    "normalizations": "F.softmax(x, 1); F.log_softmax(z, 1); F.group_norm(z.detach(), 2, c, c);"
    "F.layer_norm(x, (m,)); F.layer_norm(x, (m,), t(m), t(m));"
    "F.softmax(x.bfloat16(), 1, dtype=torch.float32);"
    "F.batch_norm(z.detach(), c, c, c, c, True);"
    "F.batch_norm(z.detach(), c, c, c, c, False);"
    "torch._softmax_backward_data(x[:1].expand(n, m), x, 1, x.dtype)",
    "products": "x.mm(y.t()); x.mv(t(m)); t(m).dot(t(m)); t(n, m).matmul(t(2, 1, m, 3));"
    "t(1, n, m).expand(2, n, m).bmm(t(2, m, 3)); torch.addmm(t(3), x, t(m, 3));"
    "torch.addmv(t(n), x, t(m)); torch.addbmm(t(3), t(2, n, m), t(2, m, 3));"
    "torch.baddbmm(t(3), t(2, n, m), t(2, m, 3)); F.linear(x, t(3, m), t(3))",
    "convolutions": "F.conv2d(z, t(6, 4, 3, 3), padding='same'); F.conv3d(z[0, None, None], "
    "t(2, 1, 2, 1, 3)); F.conv1d(t(2, 4, 9), t(6, 2, 3), t(6), 2, 1, 2, 2);"
    "F.conv_transpose1d(t(2, 4, 9), t(4, 3, 3), t(6), 2, 1, 1, 2)",
    "attention": "F.scaled_dot_product_attention(t(2, 6, n, m), t(2, 6, 4, m), t(2, 6, 4, m));"
    "F.scaled_dot_product_attention(z, z, z, is_causal=True);"
    "F.scaled_dot_product_attention(z, z, z, t(5, 5).detach())",
    "transforms": "torch.fft.fft(x); torch.fft.ifft(torch.fft.fft(x)); torch.fft.rfft2(x)",
}


@pytest.mark.quick(cases=7)
@pytest.mark.parametrize("programs", PROGRAMS.values(), ids=PROGRAMS)
@given(n=SIZE, m=SIZE, is_double=st.booleans(), is_expanded=st.booleans())
@settings(max_examples=16, deadline=None)
def test_operations_move_the_bytes_of_their_tensors(
    programs: str, n: int, m: int, is_double: bool, is_expanded: bool
) -> None:
    def t(*shape: int) -> torch.Tensor:
        dtype = torch.float64 if is_double else torch.float32
        return torch.rand(shape, dtype=dtype, requires_grad=True)

    y = t(1, m).expand(n, m) if is_expanded else t(n, m)
    i = torch.randint(n, (n, m))
    tensors = {"x": t(n, m), "y": y, "z": t(n, 4, 5, 6), "c": t(4).detach(), "t": t}
    for call in calls_of(programs.split(";"), n=n, m=m, i=i, b=i > 0, **tensors):
        assert call.cost.moved_bytes == call.moved_bytes or call.cost.doubt, call


NAMES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.bool: "bool"}
NAMES |= {torch.float16: "fp16", torch.int64: "int64", torch.int32: "int32"}


OPERAND = st.tuples(st.sampled_from(sorted(NAMES, key=str)), st.sampled_from([(), (2,)]))


@given(st.tuples(OPERAND, OPERAND))
def test_type_promotion_equals_that_of_torch(
    tensors: Sequence[tuple[torch.dtype, tuple[int, ...]]],
) -> None:
    expected = torch.result_type(*(torch.empty(shape, dtype=dtype) for dtype, shape in tensors))
    found = formulas.result_type([Tensor(shape, NAMES[dtype]) for dtype, shape in tensors])
    assert found == NAMES[expected]
