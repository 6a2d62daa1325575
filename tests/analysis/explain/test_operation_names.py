"""Whole words of an operation's name decide its class; torch's own registry is the reference."""

from __future__ import annotations

from collections import defaultdict

import pytest

from unified_prof.explain.operation_names import (
    CAST,
    COLLECTIVES,
    ELEMENT_WISE,
    EMBEDDING,
    MATMUL,
    REDUCTION,
    class_of_operation,
)

# Tagged `pointwise` because they have such an overload, or because they copy each element.
COPIES_OR_REDUCES = {
    "aten::clone": CAST,
    "prims::convert_element_type": CAST,
    "aten::equal": REDUCTION,
    "aten::max": REDUCTION,
    "aten::min": REDUCTION,
}

# Names that contain the letters of another class.
LOOK_ALIKES = [
    ("fb::convex_sum", REDUCTION),
    ("aten::multinomial", REDUCTION),
    ("aten::cosine_similarity", REDUCTION),
    ("aten::normal_", ELEMENT_WISE),
    ("aten::logdet", None),
    ("aten::addmv", MATMUL),
    ("aten::rnn_relu", MATMUL),
    ("aten::quantized_gru", MATMUL),
    ("aten::quantized_max_pool2d", REDUCTION),
    ("aten::_sparse_softmax", REDUCTION),
    ("aten::sparse_coo_tensor", None),
    ("fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function", EMBEDDING),
    ("fbgemm::permute_2D_sparse_data", EMBEDDING),
    ("_C::rotary_embedding", ELEMENT_WISE),
    ("All2All_Pooled_ReqBackward", COLLECTIVES),
    ("sglang_profiler::memory_pool__set_kv_buffer_impl_353", CAST),
    ("aten::is_autocast_enabled", None),
    ("triton_poi_fused_constant_pad_nd_moe_forward_0", None),
]


def registered() -> dict[str, set[str]]:
    """Return the tags of all operations that the installed torch registers."""
    torch = pytest.importorskip("torch")
    tags = defaultdict[str, set[str]](set)
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace not in ("aten", "prims"):
            continue
        packet = getattr(getattr(torch.ops, namespace), name, None)
        overload = getattr(packet, schema.overload_name or "default", None)
        tags[schema.name] |= {str(tag).rpartition(".")[2] for tag in getattr(overload, "tags", ())}
    return tags


@pytest.mark.parametrize(
    ("tag", "expected"),
    [("pointwise", ELEMENT_WISE), ("reduction", REDUCTION), ("view_copy", CAST)],
)
def test_operations_have_the_class_of_their_tag_in_torch(tag: str, expected: str) -> None:
    operations = [name for name, tags in registered().items() if tag in tags]
    assert len(operations) >= 20
    wrong = {
        name: found
        for name in operations
        if (found := class_of_operation(name)) != COPIES_OR_REDUCES.get(name, expected)
    }
    assert not wrong


@pytest.mark.parametrize(("name", "expected"), LOOK_ALIKES)
def test_letters_within_a_word_do_not_decide(name: str, expected: str | None) -> None:
    assert class_of_operation(name) == expected


@pytest.mark.parametrize(
    "name", ["AddmmBackward0", "aclnnAddmm", "Dequeue@aclnnAddmm", "MatMulV3", "aten::addmm_"]
)
def test_versions_prefixes_and_gradients_do_not_change_the_class(name: str) -> None:
    assert class_of_operation(name) == MATMUL
