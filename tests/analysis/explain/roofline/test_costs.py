"""FLOPs and bytes, compared with torch's FLOP counter and with figures computed by hand."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from tests.analysis.explain.roofline.counted import costs, torch_and_formula_flops
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


@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 5), (5,)), ((5,), (5, 3)), ((2, 1, 4, 5), (3, 5, 6)), ((7, 4, 5), (5, 6)), ((5,), (5,))],
)
def test_matmul_with_vectors_and_batches(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = torch.empty(left), torch.empty(right)
    result = torch.matmul(a, b)
    found = formulas.matmul(Tensor(left, "fp32"), Tensor(right, "fp32"))
    assert found.flops == 2 * result.numel() * left[-1]
    assert found.moved_bytes == 4 * (a.numel() + b.numel() + result.numel())


def test_matmul_bias_is_vector_work_and_output_type_sets_its_bytes() -> None:
    found = formulas.matmul(bf16(141, 512), bf16(512, 2048), bias=bf16(2048))
    assert (found.unit, found.dtype, found.flops) == ("matrix", "bf16", 2 * 141 * 512 * 2048)
    assert found.vector_flops == 141 * 2048
    assert found.moved_bytes == 2 * (141 * 512 + 512 * 2048 + 141 * 2048 + 2048)
    wide = formulas.matmul(Tensor((8, 8), "fp8"), Tensor((8, 8), "fp8"), out="bf16")
    assert wide.moved_bytes == 64 + 64 + 128


def test_expanded_factor_is_read_once() -> None:
    a = Tensor((16, 4, 5), "fp32", (0, 5, 1))
    found = formulas.matmul(a, Tensor((16, 5, 6), "fp32", (30, 6, 1)))
    assert found.moved_bytes == 4 * (4 * 5 + 16 * 5 * 6 + 16 * 4 * 6)
    assert found.flops == 2 * 16 * 4 * 5 * 6


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


def test_type_promotion_equals_that_of_torch() -> None:
    assert parsed("", "Scalar", None, '["15"]').scalar_type(0) == "bf16"
    pairs = [
        (torch.bfloat16, torch.float32),
        (torch.int64, torch.float16),
        (torch.float16, torch.bfloat16),
        (torch.bool, torch.int32),
    ]
    names = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int64: "int64"}
    names |= {torch.float16: "fp16", torch.bool: "bool", torch.int32: "int32"}
    for left, right in pairs:
        found = formulas.result_type([Tensor((2,), names[left]), Tensor((2,), names[right])])
        assert found == names[torch.promote_types(left, right)]
        # A tensor without dimensions does not widen the result.
        assert formulas.result_type([Tensor((2,), "bf16"), Tensor((), "fp64")]) == "bf16"


def test_embedding_reads_only_the_selected_rows() -> None:
    (found,) = (
        cost
        for name, cost in costs(lambda: F.embedding(index_tensor(5), tensor(30522, 512)))
        if name == "aten::embedding"
    )
    assert (found.flops, found.moved_bytes) == (0, 5 * (8 + 2 * 4 * 512))


@pytest.mark.parametrize(("indices", "index_bytes"), [(True, 8), (False, 0)])
def test_pooling_reads_input_and_writes_both_results(indices: bool, index_bytes: int) -> None:
    pool = F.max_pool2d if indices else F.avg_pool2d
    ((_, found),) = costs(lambda: pool(tensor(2, 3, 8, 8), 2))
    results = 2 * 3 * 4 * 4
    assert found.flops == results * 4
    assert found.moved_bytes == 4 * 2 * 3 * 8 * 8 + results * (4 + index_bytes)


def index_tensor(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int64, device="meta")


def test_formulas_of_a_training_step_match_its_tensors() -> None:
    def run() -> None:
        x = tensor(2, 8, 16)
        y = F.layer_norm(x, (16,), tensor(16), tensor(16))
        y = F.gelu(F.linear(y, tensor(32, 16)))
        scores = F.log_softmax(y.reshape(16, 32), -1)
        loss = F.nll_loss(scores, index_tensor(16)) + y.sum((0, 1)).mean()
        loss.backward()

    by_name: dict[str, list[Cost]] = {}
    for name, cost in costs(run):
        by_name.setdefault(name.removeprefix("aten::"), []).append(cost)
    (norm,) = by_name["native_layer_norm"]
    assert (norm.flops, norm.moved_bytes) == (8 * 256, 4 * (2 * 256 + 32))
    (back,) = by_name["native_layer_norm_backward"]
    assert (back.flops, back.moved_bytes) == (14 * 256, 4 * (3 * 256 + 2 * 32))
    (gelu,) = by_name["gelu"]
    assert gelu.moved_bytes == 4 * 2 * 512
    (softmax,) = by_name["_log_softmax"]
    assert softmax.moved_bytes == 4 * 2 * 512
    reduced = [cost.moved_bytes for cost in by_name["sum"]]
    assert 4 * (512 + 32) in reduced
    assert sum(cost.flops for cost in by_name["mm"]) == 3 * 2 * 16 * 16 * 32


def test_fused_adam_in_fp32_moves_28_bytes_per_parameter() -> None:
    params = [Tensor((10, 10), "fp32"), Tensor((28,), "fp32")]
    found = formulas.optimizer("adam", params)
    assert (found.flops, found.moved_bytes) == (12 * 128, 28 * 128)
    assert formulas.optimizer("sgd", params).moved_bytes == 12 * 128
    assert formulas.optimizer("momentum", params).moved_bytes == 20 * 128
    with pytest.raises(UnknownCostError, match="more than 30"):
        formulas.optimizer("adam", [])


def test_copies_have_no_flops() -> None:
    found = formulas.copy(Tensor((3, 5), "fp32"), bf16(3, 5))
    assert (found.unit, found.flops, found.moved_bytes) == ("copy", 0, 15 * 6)
    assert formulas.concatenation([bf16(2, 3), bf16(4, 3)]).moved_bytes == 2 * 2 * 18


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


def spectrum(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("name", "function", "x", "values", "points", "per_point"),
    [
        ("_fft_c2c", torch.fft.fft2, spectrum(4, 32, 64), ("[1, 2]", 0, True), 32 * 64, 5),
        ("_fft_r2c", torch.fft.rfft, torch.randn(8, 1024), ("[1]", 0, True), 1024, 2.5),
        ("_fft_c2r", torch.fft.irfft, spectrum(8, 513), ("[1]", 2, 1024), 1024, 2.5),
    ],
)
def test_fft_has_the_usual_flops_and_moves_both_sides(
    name: str,
    function: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    values: tuple[object, ...],
    points: int,
    per_point: float,
) -> None:
    """FFTW's convention: 5 n log2(n) for complex values, half for real ones."""
    kind = "c10::complex<float>" if x.is_complex() else "float"
    found = formula_cost(name, ",".join(map(str, x.shape)) + ";;;", f"{kind};;;", "", *values)
    y = function(x)
    assert found.flops == len(x) * per_point * points * math.log2(points)
    assert found.moved_bytes == x.numel() * x.element_size() + y.numel() * y.element_size()


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
