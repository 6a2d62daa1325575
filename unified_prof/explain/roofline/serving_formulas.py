"""What operations of servers of language models cost: those of vLLM, SGLang and aiter.

Their kernels write into tensors that they are given, so that results stand among the arguments,
and attention reads a cache whose size says nothing of how much of it was read. vLLM and SGLang
write the lengths of a batch's sequences into the name of a range around it:
`execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)`, sums over the
sequences of queries, keys, queries squared and queries times keys.

What torch's operations cost, by their names and recorded arguments.

Only operations whose kernels do what the name says stand here; one that calls others is charged
where it launches kernels itself. Names are those of the `aten` namespace, others in full.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from unified_prof.explain.roofline import aten_formulas, costs
from unified_prof.explain.roofline.arguments import Arguments, Tensor, UntoldError, item_size
from unified_prof.explain.roofline.aten_formulas import Formula
from unified_prof.explain.roofline.costs import Cost

_NUMBERED = re.compile(r"^(sglang_profiler::.*?)_\d+$")
"""SGLang's recorder writes the line of a function behind its name."""
_BATCH = re.compile(
    r"(?:context|generation)_\d+[_(]sq(?P<sq>\d+)sk(?P<sk>\d+)sqsq(?P<sqsq>\d+)sqsk(?P<sqsk>\d+)"
)
_FRESH = re.compile(r"context_\d+\((?P<sq>\d+)_(?P<sqsq>\d+)\)_generation_0\(0\)")
"""An older form: tokens of new prompts and their squares; of tokens that follow, no keys."""


def plain_served(name: str) -> str:
    """Return the name of an operation without what recorders wrote behind it."""
    found = _NUMBERED.match(name)
    return name if found is None else found[1]


@dataclass(frozen=True, slots=True)
class Batch:
    """Lengths of the sequences of a batch, summed up."""

    keys: int
    pairs: int
    """Of a query and a key that it may see: each sees those before it and itself."""

    @classmethod
    def named(cls, text: str) -> Batch | None:
        """Return what the name of a range says of a batch, None where it says nothing."""
        if (fresh := _FRESH.search(text)) is not None:
            tokens = int(fresh["sq"])
            return cls(tokens, (int(fresh["sqsq"]) + tokens) // 2)
        found = [
            {name: int(value) for name, value in one.groupdict().items()}
            for one in _BATCH.finditer(text)
        ]
        if not found:
            return None
        pairs = sum(one["sqsk"] - (one["sqsq"] - one["sq"]) // 2 for one in found)
        return cls(sum(one["sk"] for one in found), pairs)


def needs_lengths(name: str) -> bool:
    """Tell whether what an operation costs depends on the lengths of sequences alone."""
    return plain_served(name) in _ATTENTION


def _attention(q: int, k: int, result: int) -> Formula:
    """Return the formula of attention over a cache, by the places of its arguments.

    What is new of keys comes as it was calculated: a cache of eight bits has queries of eight.
    """

    def cost(args: Arguments) -> Cost:
        queries, keys = args.tensor(q), args.tensor(k)
        batch = Batch.named(args.around)
        if batch is None:
            raise UntoldError("the lengths of its sequences are not recorded")
        if len(queries.shape) < 3 or len(keys.shape) < 3 or queries.shape[-1] != keys.shape[-1]:
            raise UntoldError("its queries and its keys do not go together")
        heads, key_heads, depth = queries.shape[-2], keys.shape[-2], queries.shape[-1]
        size = min(item_size(queries.dtype), item_size(keys.dtype))
        read = 2 * batch.keys * key_heads * depth * size
        written = args.optional(result) or queries
        return Cost(
            "matrix",
            queries.dtype,
            4 * heads * depth * batch.pairs,
            queries.bytes + written.elements * item_size(written.dtype) + read,
            beside=5 * heads * batch.pairs,
            doubt="every key of its sequences is counted; within a window it is less",
        )

    return cost


_ATTENTION = {
    "vllm::unified_attention_with_output": _attention(0, 1, 3),
    "sglang_profiler::attention_paged_attention_ragged": _attention(2, 3, 0),
}


def _linear(args: Arguments) -> Cost:
    return costs.linear(args.tensor(0), args.tensor(1), args.optional(2))


def _scaled_linear(args: Arguments) -> Cost:
    """Return what a product of eight bits costs: x, weight, both scales, and perhaps its result."""
    result = args.optional(4)
    out = result.dtype if result is not None and len(result.shape) == 2 else "bf16"
    found = costs.linear(args.tensor(0), args.tensor(1), out=out)
    scales = sum(one.bytes for one in (args.optional(2), args.optional(3)) if one is not None)
    return Cost(found.unit, found.dtype, found.flops, found.moved_bytes + scales)


def _written_first(operations: int) -> Formula:
    """Return the formula of what writes its first argument: operations an element of it."""

    def cost(args: Arguments) -> Cost:
        x = args.tensor(1)
        moved = sum(one.bytes for one in args.tensors())
        return Cost("vector", x.dtype, operations * args.tensor(0).elements, moved)

    return cost


def _norm(args: Arguments) -> Cost:
    return costs.normalisation("rms", args.tensor(0), [args.tensor(1)])


def _added_norm(args: Arguments) -> Cost:
    """Return what adding a residual and normalising costs, both in place."""
    x, residual, weight = args.tensor(0), args.tensor(1), args.tensor(2)
    moved = 2 * (x.bytes + residual.bytes) + weight.bytes
    return Cost("vector", x.dtype, 6 * x.elements, moved)


def _rotary(args: Arguments) -> Cost:
    """Return what turning queries and keys in place costs; of the table only rows are read."""
    positions, table = args.tensor(0), args.tensor(4)
    turned = [one for one in (args.tensor(1), args.optional(2)) if one is not None]
    size = args.integers(3)
    # Of each head as many elements as a row of the table has: sines and cosines of half of them.
    share = min(1.0, table.shape[-1] / size[0]) if size and size[0] else 1.0
    elements = round(sum(one.elements for one in turned) * share)
    moved = round(2 * sum(one.bytes for one in turned) * share)
    rows = positions.elements * table.shape[-1] * item_size(table.dtype)
    return Cost("vector", turned[0].dtype, 3 * elements, moved + rows + positions.bytes)


def _into_cache(sources: int) -> Formula:
    """Return the formula of writing rows into a cache: sources, as many caches or one, places."""

    def cost(args: Arguments) -> Cost:
        rows = [args.tensor(place) for place in range(sources)]
        cache = args.tensor(sources)
        places = next((one for one in args.tensors() if _is_index(one)), None)
        written = sum(one.elements for one in rows) * item_size(cache.dtype)
        moved = sum(one.bytes for one in rows) + written
        return Cost("copy", cache.dtype, 0, moved + (places.bytes if places is not None else 0))

    return cost


def _is_index(tensor: Tensor) -> bool:
    return tensor.dtype in ("int64", "int32")


FORMULAS: dict[str, Formula] = {
    **_ATTENTION,
    **dict.fromkeys(("vllm::rocm_unquantized_gemm", "aiter::gemm_a16w16"), _linear),
    **{
        f"aiter::{name}": _scaled_linear
        for name in (
            "gemm_a8w8",
            "gemm_a8w8_ck",
            "gemm_a8w8_bpreshuffle",
            "gemm_a8w8_bpreshuffle_ck",
            "gemm_a8w8_blockscale",
            "gemm_a8w8_blockscale_ck",
        )
    },
    "_C::rms_norm": _written_first(5),
    "aiter::rmsnorm": _written_first(5),
    "_C::fused_add_rms_norm": _added_norm,
    **{f"aiter::{name}": _norm for name in ("rms_norm", "rmsnorm2d_fwd", "rmsnorm2d_fwd_ck")},
    # Result, input, residual, the sum of both, weight.
    **{
        f"aiter::{name}": _written_first(6)
        for name in ("add_rmsnorm", "rmsnorm2d_fwd_with_add", "rmsnorm2d_fwd_with_add_ck")
    },
    **{
        f"{space}::{name}": _written_first(6)
        for space in ("_C", "sgl_kernel", "aiter")
        for name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul")
    },
    "_C::static_scaled_fp8_quant": _written_first(1),
    **dict.fromkeys(("_C::rotary_embedding", "sgl_kernel::rotary_embedding"), _rotary),
    **dict.fromkeys(
        (
            "sglang::store_cache",
            "_C_cache_ops::reshape_and_cache",
            "_C_cache_ops::reshape_and_cache_flash",
            "_C_cache_ops::concat_and_cache_mla",
        ),
        _into_cache(2),
    ),
}


_FORMULAS: dict[str, Formula] = {
    **aten_formulas.FORMULAS,
    **aten_formulas.FORMULAS_CONVOLUTIONS,
    **aten_formulas.FORMULAS_ELEMENTWISE,
    **aten_formulas.FORMULAS_LISTS,
    **aten_formulas.FORMULAS_MEMORY,
    **aten_formulas.FORMULAS_NORMALISATION,
    **aten_formulas.FORMULAS_PRODUCTS,
    **aten_formulas.FORMULAS_REDUCTIONS,
    **FORMULAS,
    **aten_formulas.FORMULAS_TABLES,
}
_TRITON = ("triton_poi_", "triton_red_", "triton_per_")


def formula_of(name: str) -> Formula | None:
    """Return how an operation's cost is calculated, None where that is not known."""
    plain = plain_served(name).removeprefix("aten::")
    if (found := _FORMULAS.get(plain)) is not None:
        return found
    if plain.startswith("_foreach_"):
        return aten_formulas.foreach
    if plain.endswith("_") and not plain.endswith("__"):
        # In place: the same work.
        return aten_formulas.FORMULAS_ELEMENTWISE.get(plain[:-1])
    if plain.startswith(_TRITON):
        return _generated
    return None


def _generated(args: Arguments) -> Cost:
    """Return what a kernel of torch.compile moves; what it calculates is not recorded."""
    tensors = args.tensors()
    if not tensors:
        raise UntoldError("the shapes of its arguments were not recorded")
    moved = sum(one.bytes for one in tensors)
    doubt = "each argument is counted once; what a compiled kernel calculates is not recorded"
    return Cost("copy", costs.result_type(tensors), 0, moved, doubt=doubt)
