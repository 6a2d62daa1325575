"""What collectives cost: bytes on the wire, and what is added up."""

from __future__ import annotations

from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.tensors import UntoldError, item_size

# Collectives

_WIRE = {  # what each rank sends, as multiples of (n - 1) / n of the size, or of all of it
    "all_reduce": (2, True),
    "reduce_scatter": (1, True),
    "all_gather": (1, True),
    "all_to_all": (1, True),
    "scatter": (1, True),
    "gather": (1, True),
    "broadcast": (1, False),
    "reduce": (1, False),
    "send": (1, False),
    "receive": (1, False),
}


def on_the_wire(kind: str, size_bytes: int, ranks: int) -> float:
    """Return the bytes that each rank sends at least.

    Args:
        kind: all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce, scatter,
            gather, send or receive.
        size_bytes: of the input (of an all_gather: the output).
        ranks: how many take part.

    Raises:
        UntoldError: it is none of these.
    """
    if kind not in _WIRE or ranks < 1:
        raise UntoldError(f"what {kind or 'it'} sends is not known")
    times, without_own = _WIRE[kind]
    part = (ranks - 1) / ranks if without_own else float(ranks > 1)
    return size_bytes * times * part


def collective(kind: str, size_bytes: int, ranks: int, dtype: str) -> Cost:
    """Return what a collective costs on one rank: what it sends, and what it adds up."""
    reduces = kind in ("all_reduce", "reduce_scatter", "reduce")
    adds = size_bytes // item_size(dtype) * (ranks - 1) // ranks if reduces and ranks else 0
    return Cost("copy", dtype, adds, round(on_the_wire(kind, size_bytes, ranks)))
