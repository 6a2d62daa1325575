"""Operations that `torch.autograd.profiler.emit_nvtx` marked, on NVIDIA (NVTX) and AMD (roctx)."""

from __future__ import annotations

import re

from unified_prof.decoders.gpu.numbers import MISSING

# What emit_nvtx adds to the name of an operation, in this order.
_ADDED = re.compile(
    r"(?:, seq = (?P<sequence>\d{1,18}))?"
    r"(?:, op_id = (?P<number>\d{1,18}))?"
    r"(?:, sizes = (?P<sizes>\[[\d\[\], -]*\]))?"
    r"(?:, input_op_ids = .*)?$",
    re.DOTALL,
)
_FIRST_ADDED = (", seq = ", ", op_id = ", ", sizes = ")
_OPERATION = re.compile(r"aten::|autograd::engine::")
_BACKWARD = re.compile(r"(?:autograd::engine::evaluate_function: )?\w*Backward\d*$")
SOME_FORWARD_THREAD = 1
"""Above 0 marks a backward operation; the range does not say which thread went forward."""


def as_operation(text: str) -> tuple[str, int, int, str] | None:
    """Return name, autograd sequence number, number and sizes of an operation, as far as told.

    Returns:
        None where the range was not made by `emit_nvtx`.
    """
    first = min((at for at in map(text.find, _FIRST_ADDED) if at > 0), default=-1)
    if first < 0:
        return (text, MISSING, MISSING, "") if _OPERATION.match(text) else None
    match = _ADDED.match(text, first)
    if match is None or match.end() == first:
        return None
    sequence, number, sizes = match.group("sequence", "number", "sizes")
    return (
        text[:first],
        MISSING if sequence is None else int(sequence),
        MISSING if number is None else int(number),
        sizes or "",
    )


def is_backward(name: str) -> bool:
    """Tell whether an operation of this name is a node of autograd."""
    return _BACKWARD.match(name) is not None
