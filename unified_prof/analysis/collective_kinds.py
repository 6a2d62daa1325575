"""One vocabulary for what ranks do together, whatever a vendor or a version calls it."""

from __future__ import annotations

import re
from functools import cache

SEND = "send"
RECEIVE = "receive"
POINT_TO_POINT = frozenset({SEND, RECEIVE})
PARTED = ("all_gather", "reduce_scatter")
"""Kinds of which HCCL counts the part of one rank."""

_PREFIX = re.compile(r"^(?:hcom_?|c10d::|nccl:|_+)+|(?:nccl|rccl|hccl)(?:dev)?(?:kernel)?_?")
_SUFFIX = re.compile(r"(?:_base|_single|_coalesced|_into_tensor|_tensor|_vc|vc|_v|v|_oop|_)+$")

# `ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)`: a kernel says how, behind what it does.
_OF_KERNEL = re.compile(r"(?:nccl|rccl|hccl)\w*?kernel_([a-z]+)_[^:]*")

# What is left of a name without prefix, suffix and underscores.
_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": SEND,
    "isend": SEND,
    "recv": RECEIVE,
    "irecv": RECEIVE,
    "receive": RECEIVE,
    "sendrecv": "send_receive",
    "batchsendrecv": "send_receive",
    "batchsendreceive": "send_receive",
    "coalesced": "coalesced",
}


@cache
def canonical(name: str) -> str:
    """Return the one name of a kind: `hcom_allReduce_`, `allreduce` are both `all_reduce`.

    A kind that is not known keeps its name, in lower case.
    """
    text = name.strip().lower()
    # hcom_allReduce__428_0_1: an operation's own name has numbers behind its kind.
    kind_alone = re.sub(r"_+\d+(?:_\d+)*$", "", text)
    bare = _PREFIX.sub("", kind_alone, count=1)
    candidates = [bare, _SUFFIX.sub("", bare)]
    if of_kernel := _OF_KERNEL.match(text):
        candidates.append(of_kernel[1])
    for candidate in candidates:
        if kind := _KINDS.get(candidate.replace("_", "")):
            return kind
    return kind_alone if kind_alone.strip("_na/") else "unknown"


def bus_factor(kind: str, members: int) -> float | None:
    """Return what bytes over time is multiplied with for the bus bandwidth; None: no bandwidth."""
    if members < 2:
        return None
    if kind == "all_reduce":
        return 2 * (members - 1) / members
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (members - 1) / members
    if kind in ("broadcast", "reduce") or kind in POINT_TO_POINT:
        return 1.0
    return None
