"""Operations have one name per kind, or are paired by the places of their calls, most first."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.compare import device_leaves, device_tables
from unified_prof.compare.device_tables import Key

# For each operation of a side: its class, and its calls by place.
OPERATIONS = st.lists(
    st.tuples(st.integers(0, 1), st.dictionaries(st.integers(0, 5), st.integers(1, 4))), max_size=7
)
Operations = list[tuple[int, dict[int, int]]]


@given(OPERATIONS, OPERATIONS)
def test_no_better_pair_is_left(base: Operations, new: Operations) -> None:
    sides: list[Any] = []
    left: list[list[Key]] = []
    for operations in (base, new):
        keys = [(one, number) for number, (one, _) in enumerate(operations)]
        calls = {key: where for key, (_, where) in zip(keys, operations, strict=True)}
        sides.append(SimpleNamespace(places=lambda wanted, column, calls=calls: calls))
        left.append(keys)
    ranks: dict[tuple[Key, Key], tuple[float, int, int, int]] = {}
    for one in left[0]:
        for other in left[1]:
            first, second = base[one[1]][1], new[other[1]][1]
            common = sum(min(calls, second.get(where, 0)) for where, calls in first.items())
            if one[0] == other[0] and common:
                share = common / min(sum(first.values()), sum(second.values()))
                if share >= 0.5:
                    ranks[one, other] = (-share, abs(one[1] - other[1]), one[1], other[1])
    found = device_tables._by_places(sides, left, "module")
    assert set(found) <= set(ranks)
    best = [{pair[side]: ranks[pair] for pair in found} for side in (0, 1)]  # type: ignore[index]
    assert [len(one) for one in best] == [len(found)] * 2
    for (one, other), rank in ranks.items():
        worse = (9.0, 0, 0, 0)
        assert min(best[0].get(one, worse), best[1].get(other, worse)) <= rank


def test_places_of_many_operations_pair_none() -> None:
    for count in (32, 33):
        keys = [(0, number) for number in range(count)]
        sides: list[Any] = [
            SimpleNamespace(places=lambda wanted, column: {key: {7: 1} for key in wanted})
        ] * 2
        found = device_tables._by_places(sides, [keys, keys[:1]], "module")
        assert found == ([((0, 0), (0, 0))] if count == 32 else [])


@pytest.mark.parametrize(("column", "count"), [("shape", 0), ("module", 1)])
def test_fused_operation_is_not_paired_with_one_of_its_parts(column: str, count: int) -> None:
    """Two stages of experts have the inputs of the one operation that fuses them."""
    stages: list[Key] = [(0, 1), (0, 2)]
    sides: list[Any] = [
        SimpleNamespace(places=lambda wanted, column: {key: {7: 1} for key in wanted})
    ] * 2
    assert len(device_tables._by_places(sides, [stages, [(0, 3)]], column)) == count
    assert len(device_tables._by_places(sides, [stages, [(0, 3), (0, 4)]], column)) == 2


@pytest.mark.parametrize(
    ("names", "canonical"),
    [
        ("aten::linear aten::mkldnn_linear aten::_npu_linear LinearV2", "linear"),
        ("aten::mm aten::cuda_mm", "mm"),
        ("aten::layer_norm aten::native_layer_norm LayerNormV3", "layer_norm"),
        ("aten::cudnn_convolution aten::miopen_convolution aten::convolution", "convolution"),
        ("npu::npu_fusion_attention FlashAttentionScore", "scaled_dot_product_attention"),
        ("NativeLayerNormBackward0 LayerNormBackward", "layer_norm backward"),
        ("Optimizer.step#Adam.step Adam.step", "Adam.step"),
        ("aten::npu_native_x", "native_x"),  # only one prefix
        ("aten::_", "aten::_"),
        ("void@f<LinearV2>", "void@f<LinearV2>"),
        (f"aten::mkldnn_{'a' * 189}", f"aten::mkldnn_{'a' * 189}"),
    ],
)
def test_names_of_one_operation_are_equal(names: str, canonical: str) -> None:
    assert {device_leaves.canonical(name) for name in names.split()} == {canonical}
