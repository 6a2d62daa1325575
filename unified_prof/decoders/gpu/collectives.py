"""Recognizes communication kernels by name, and stores the parameters of collective calls."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from unified_prof.base.columns import MISSING, NOT_AVAILABLE

# NCCL names its kernels ncclKernel_..., ncclDevKernel_... or nccl<Collective>...Kernel, RCCL the
# same or with its own prefix, MSCCL mscclKernel...; C++ templates may put `void` before it.
_COMMUNICATION_KERNEL = re.compile(r"(?:void\s+)?(?:nccl|rccl|msccl)\w*Kernel", re.IGNORECASE)

# Collectives of servers and of torch's symmetric memory without such a library, by function name:
# types follow `<` and `(`.
_DIRECT = {
    collective: re.compile(words, re.IGNORECASE)
    for collective, words in {
        "AllReduce": r"cross_device_reduce|multimem_(?:one_shot_)?(?:all_)?reduce_kernel"
        r"|(?:one|two)_?shot_?all_?reduce|allreduce_(?:prototype|fusion|one_?shot|two_?shot)",
        "AllGather": r"multimem_all_gather_kernel",
        "ReduceScatter": r"reduce_scatter_lastdim",
        "AllToAll": r"deep_ep::\w+::(?:dispatch|combine)$",
    }.items()
}
# Prefix of kernels that torch.compile generated, whose names contain preceding operations.
_GENERATED = "triton_"

_KERNEL_COLLECTIVE = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv|AllToAll|Reduce|Send|Recv|Gather|Scatter)"
)
_ALGORITHM = re.compile(
    r"(?<![A-Za-z])(RING|TREE|COLLNET_?\w*?|NVLS_?\w*?|PAT)_(LL128|LL|SIMPLE)(?![A-Za-z0-9])"
)
_RECEIVE = re.compile(r"^recv(?![a-z])", re.IGNORECASE)

# torch's scalar type names, then its C++ type names -> (name in ENUM_HCCL_DATA_TYPE, bytes).
# NCCL moves booleans as bytes.
_DATA_TYPES: dict[str, tuple[str, int]] = {
    name.strip(): (data_type.strip("-"), int(size))
    for line in """
        UINT8 1 Byte, Bool, QUInt8, unsigned char, bool
        INT8 1 Char, QInt8, signed char
        INT16 2 Short, short, short int
        INT32 4 Int, int
        INT64 8 Long, long, long int
        UINT16 2 UInt16
        UINT32 4 UInt32
        UINT64 8 UInt64
        FP16 2 Half, c10::Half
        BFP16 2 BFloat16, c10::BFloat16
        FP32 4 Float, float
        FP64 8 Double, double
        FP8E4M3 1 Float8_e4m3fn, c10::Float8_e4m3fn
        FP8E5M2 1 Float8_e5m2, c10::Float8_e5m2
        - 1 Float8_e4m3fnuz, Float8_e5m2fnuz, Float8_e8m0fnu
        - 4 ComplexHalf
        - 8 ComplexFloat, c10::complex<float>
        - 16 ComplexDouble, c10::complex<double>
        """.strip().splitlines()
    for data_type, size, names in [line.split(maxsplit=2)]
    for name in names.split(",")
}


def is_communication(kernel: str) -> bool:
    """Return True if a kernel with this name transfers data between devices."""
    return _COMMUNICATION_KERNEL.match(kernel) is not None or _direct(kernel) is not None


def _direct(kernel: str) -> str | None:
    """Return the collective of a kernel that belongs to no library, None if it is not one."""
    function = re.split(r"[<(]", kernel.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    if function.startswith(_GENERATED):
        return None
    return next((name for name, words in _DIRECT.items() if words.search(function)), None)


def algorithm(kernel: str) -> str:
    """Return algorithm and protocol from a kernel name, for example `RING-LL`, or N/A."""
    match = _ALGORITHM.search(kernel)
    return f"{match[1]}-{match[2]}" if match else NOT_AVAILABLE


def collective_of_kernel(kernel: str) -> str:
    """Return the collective from a kernel name, for example `AllReduce`, or N/A."""
    if (direct := _direct(kernel)) is not None:
        return direct
    match = _KERNEL_COLLECTIVE.search(kernel)
    return match[1] if match else NOT_AVAILABLE


def call_prefix(collective: str) -> str:
    """Return the prefix of call names, as in HCCL (`receive`), because readers search for it."""
    return _RECEIVE.sub("receive", collective)


def data_type(name: str) -> tuple[str, int]:
    """Return (name in ENUM_HCCL_DATA_TYPE or '', bytes per element or 0)."""
    return _DATA_TYPES.get(name, ("", 0))


@dataclass(frozen=True, slots=True)
class Collective:
    """Parameters of a collective call."""

    name: str = NOT_AVAILABLE
    group: str = NOT_AVAILABLE
    group_description: str = NOT_AVAILABLE
    group_size: int = MISSING
    group_ranks: str = NOT_AVAILABLE
    dtype: str = NOT_AVAILABLE
    in_elements: int = MISSING
    out_elements: int = MISSING
    in_split: str = NOT_AVAILABLE
    out_split: str = NOT_AVAILABLE
    source_rank: int = MISSING
    target_rank: int = MISSING
    sequence: int = MISSING
    peer: int = MISSING
    """Group rank of the peer of a send or receive, if its global rank is unknown."""
    strided_ranks: tuple[int, ...] = ()
    """Global ranks of a group, if recorded as start and stride."""
    message_bytes: int = MISSING
    """Bytes of the larger message, if recorded directly."""

    @property
    def element_bytes(self) -> int:
        """Bytes per element, 0 if the type is unknown."""
        return data_type(self.dtype)[1]

    @property
    def size_bytes(self) -> int:
        """Bytes of the larger message, or `MISSING`."""
        if self.message_bytes != MISSING:
            return self.message_bytes
        elements = max(self.in_elements, self.out_elements)
        return elements * self.element_bytes if elements >= 0 and self.element_bytes else MISSING


class Collectives(dict[Any, int]):
    """Assigns consecutive numbers to distinct collective calls."""

    def __init__(self) -> None:
        self.all: list[Collective] = []
        self._numbers: dict[Collective, int] = {}

    def number(self, collective: Collective) -> int:
        """Return the number of `collective`."""
        number = self._numbers.get(collective)
        if number is None:
            number = self._numbers[collective] = len(self.all)
            self.all.append(collective)
        return number
