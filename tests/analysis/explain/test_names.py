"""Whole words of a name decide what it is; `names.tsv` and torch's registry are the references."""

import gzip
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from unified_prof.recording import names
from unified_prof.recording.names import (
    CAST,
    COLLECTIVES,
    ELEMENT_WISE,
    EMBEDDING,
    MATMUL,
    REDUCTION,
    class_of_kernel,
    class_of_operation,
)

CALLS = {
    "synchronizes": names.SYNCHRONIZES,
    "launches": names.LAUNCHES,
    "launches graph": names.LAUNCHES_GRAPH,
    "allocates": names.ALLOCATES,
    "waits for event": names.WAITS_FOR_EVENT,
    "compiles": names.COMPILES,
}

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


def corpus(kind: str) -> dict[str, str]:
    """Return the names of a kind in `names.tsv` with their classes."""
    text = Path(__file__).with_name("names.tsv").read_text(encoding="utf-8")
    result = {}
    for line in text.splitlines():
        if line.startswith(f"{kind}\t"):
            _, expected, _, listed = line.split("\t")
            # `=` precedes a name with blanks, alone in its line.
            for name in [listed[1:]] if listed.startswith("=") else listed.split():
                result[name] = {"cast": CAST}.get(expected, expected)
    return result


def test_corpus_has_over_2000_names_of_kernels_and_operations() -> None:
    assert len(corpus("kernel")) >= 1_500
    assert len(corpus("operation")) >= 800


@pytest.mark.parametrize(
    ("kind", "classify"), [("kernel", class_of_kernel), ("operation", class_of_operation)]
)
def test_names_have_the_class_of_origin(kind: str, classify: Callable[[str], str | None]) -> None:
    expected = corpus(kind)
    found = {name: classify(name) for name in expected}
    assert {name: found[name] for name in found if found[name] != expected[name]} == {}


@pytest.mark.parametrize("kind", CALLS)
def test_runtime_calls_do_what_their_documentation_states(kind: str) -> None:
    expected = {name for name, done in corpus("call").items() if done == kind}
    assert {name for name in corpus("call") if CALLS[kind](name)} == expected


class Event(msgspec.Struct, gc=False):
    name: str = ""
    cat: Any = ""


class Trace(msgspec.Struct):
    """The part of a trace that the test reads."""

    traceEvents: list[Event]  # noqa: N815


@pytest.mark.slow
def test_all_runtime_calls_and_nearly_all_kernels_of_samples_are_known(shared: Path) -> None:
    kernels, calls = set(), set()
    decoder = msgspec.json.Decoder(Trace, strict=False)
    for file in (shared / "samples" / "kineto").glob("*.json.gz"):
        for event in decoder.decode(gzip.decompress(file.read_bytes())).traceEvents:
            category = str(event.cat).lower()
            if category == "kernel":
                kernels.add(event.name)
            elif category in ("cuda_runtime", "cuda_driver", "runtime"):
                calls.add(event.name)
    unknown = {name for name in calls if any(done(name) for done in CALLS.values())}
    assert unknown <= corpus("call").keys()
    other = sorted(name for name in kernels if class_of_kernel(name) is None)
    assert len(other) <= 0.02 * len(kernels), other


@pytest.mark.parametrize(
    ("words", "look_alikes"),
    [
        (names.EVALUATES_OR_SAVES, "retrieval latest invalidate_cache medieval protest"),
        (names.COMPILES, "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"),
        (names.ALLOCATES, "cudaMallocAsync cudaFreeAsync hipFreeArrayAsync"),
        (names.SYNCHRONIZES, "cudaMemcpyAsync cudaEventRecord async_batch"),
        (names.LAUNCHES, "cudaGraphLaunch relaunched"),
        (names.FUSED_ATTENTION, "diffuse_flashlight attention_mask"),
        (names.MULTI_TENSOR, "confused_kernel"),
        (names.CHOOSES, "resorting_kernel delegating_kernel"),
        (names.PAGEABLE, "unpageable"),
        (names.FETCHES_INPUT, "get_batch_norm data_parallel"),
        (names.WAIT_TASK, "KERNEL_AICORE MEMCPY_ASYNC"),
        (names.ON_VECTOR_CORE, "AI_CORE vectorized"),
    ],
)
def test_letters_within_words_do_not_match(words: names.Words, look_alikes: str) -> None:
    assert [name for name in look_alikes.split() if words(name)] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cutlass_80_tensorop_s1688gemm_128x128", "TF32 NAMES_PRECISION"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", "TF32 NAMES_PRECISION"),
        ("ampere_sgemm_128x64_nn", "NOT_TF32 FULL_PRECISION NAMES_PRECISION"),
        ("volta_scudnn_128x64_relu", "NOT_TF32 FULL_PRECISION NAMES_PRECISION"),
        ("xmma_gemm_f32f32_f32f32_f32", "NOT_TF32 FULL_PRECISION NAMES_PRECISION"),
        ("volta_h884gemm", "NAMES_PRECISION"),
        ("vectorized<c10::BFloat16>", "bf16"),
        ("copy<__nv_bfloat16>", "bf16"),
        ("__half", "fp16"),
        *((f"copy<OpaqueType<{size}>>", dtype) for size, dtype in (
            (1, "uint8"), (2, "bf16"), (4, "fp32"), (8, "int64"), (16, ""), (44, "")
        )),
        ("add<float4>", "fp32"),
        ("add<double2>", "fp64"),
    ],
)  # fmt: skip
def test_names_state_precision_and_dtype(name: str, expected: str) -> None:
    precisions = ("TF32", "NOT_TF32", "FULL_PRECISION", "NAMES_PRECISION")
    found = [precision for precision in precisions if getattr(names, precision)(name)]
    found += [dtype for matches, dtype in names.DTYPES if matches(name)][:1]
    assert found == expected.split()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("triton_poi_fused__unsafe_view_clone_transpose_view_34", True),
        ("triton_red_fused_add_mean_mul_native_layer_norm_transpose_view_7", False),
        ("batched_transpose_16x32_half", True),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>(params)", True),
        ("conv_transpose_convolution", False),
    ],
)
def test_a_kernel_only_moves_data_if_all_its_operations_do(name: str, expected: bool) -> None:
    assert names.moves_only(name) is expected


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


@pytest.mark.slow
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
