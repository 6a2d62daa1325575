"""Assigns numbers to repeated values of a recording: names, shapes, launch sizes, collectives.

A pool contains only distinct values, so its size does not grow with the length of the recording.
Communication kernels are recognized by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from unified_prof.base.columns import MISSING, NOT_AVAILABLE, Strings

PARAMETERS_OPERATION = "record_param_comms"  # Operation that holds the parameters of a collective.
# Prefix of annotations of torch.distributed around the launch of a collective.
ANNOTATION_PREFIX = "nccl:"
_STEP = re.compile(r"ProfilerStep\s*#\s*([0-9]{1,18})$")


class Names(dict[Any, int]):
    """Maps event names to string ids; remembers the names of steps and collectives."""

    def __init__(self, strings: Strings) -> None:
        self.steps: dict[int, int] = {}  # String id -> number of the step.
        self.collectives: set[int] = set()  # String ids of host events that describe a collective.
        self._strings = strings

    def __missing__(self, name: Any) -> int:
        text = name if isinstance(name, str) else NOT_AVAILABLE if name is None else str(name)
        number = self[name] = self._strings.intern(text)
        if match := _STEP.match(text):
            self.steps[number] = int(match[1])
        elif text == PARAMETERS_OPERATION or text.startswith(ANNOTATION_PREFIX):
            self.collectives.add(number)
        return number


class Threads(dict[tuple[Any, Any], int]):
    """Maps (pid, tid) to consecutive numbers and packed ids.

    The schema packs process and thread ids into 64 bits. An id that does not fit (a pthread handle
    in older traces, a string in merged traces) is replaced by an unused id and counted as an
    anomaly. Different spellings of a thread id, such as 5786 and "5786", have the same number.
    """

    _FIRST_SURROGATE_PID = 0x7F00_0000
    _FIRST_SURROGATE_TID = 0xFF00_0000

    def __init__(self, anomaly: Callable[[str, int, str], None]) -> None:
        self.process_ids: list[int] = []
        self.global_tids: list[int] = []
        self.spellings: list[list[tuple[Any, Any]]] = []  # The (pid, tid) keys of each thread.
        self.process_names: dict[Any, str] = {}
        self.process_labels: dict[Any, str] = {}
        self.thread_names: dict[tuple[Any, Any], str] = {}
        self._anomaly = anomaly
        self._surrogates: dict[tuple[str, Any], int] = {}
        self._numbers: dict[int, int] = {}

    def __missing__(self, key: tuple[Any, Any]) -> int:
        pid = self._fit("process", key[0], 31, self._FIRST_SURROGATE_PID)
        tid = self._fit("thread", key[1], 32, self._FIRST_SURROGATE_TID)
        global_tid = pid << 32 | tid
        number = self[key] = self._numbers.setdefault(global_tid, len(self.global_tids))
        if number == len(self.global_tids):
            self.process_ids.append(pid)
            self.global_tids.append(global_tid)
            self.spellings.append([])
        self.spellings[number].append(key)
        return number

    def _fit(self, what: str, given: Any, bits: int, first_surrogate: int) -> int:
        given = plain_id(given)
        if isinstance(given, int) and 0 <= given < 1 << bits:
            return given
        if isinstance(given, int) and bits == 32 and -(1 << 31) <= given < 0:
            return given + (1 << 32)  # written as a signed number
        if (what, given) not in self._surrogates:
            used = sum(kind == what for kind, _ in self._surrogates)
            self._surrogates[what, given] = first_surrogate + used
            self._anomaly(f"{what}_id_replaced", 1, f"{given!r} does not fit the format")
        return self._surrogates[what, given]


def plain_id(given: Any) -> Any:
    """Convert a process or thread id to an integer if it is an integer in another spelling."""
    if isinstance(given, str) and given.isdecimal() and len(given) < 20:
        return int(given)
    if isinstance(given, float) and given.is_integer():
        return int(given)
    return given


class Geometries(dict[tuple[bytes, bytes], int]):
    """Maps (grid, block) in JSON to consecutive numbers and the parsed values."""

    def __init__(self) -> None:
        self.grids: list[str] = []  # `x,y,z` or N/A.
        self.blocks: list[str] = []
        self.block_counts: list[int] = []  # Number of blocks in the grid, or `MISSING`.

    def __missing__(self, key: tuple[bytes, bytes]) -> int:
        number = self[key] = len(self.grids)
        grid, block = (
            sizes if isinstance(sizes := parse_json(text), list) and _are_ints(sizes) else []
            for text in key
        )
        self.grids.append(",".join(map(str, grid)) or NOT_AVAILABLE)
        self.blocks.append(",".join(map(str, block)) or NOT_AVAILABLE)
        count = math.prod(grid)
        self.block_counts.append(count if grid and count < 2**63 else MISSING)
        return number


def _are_ints(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)


class Signatures(dict[tuple[bytes, bytes, bytes], int]):
    """Maps (types, dims, strides) of an operation's inputs in JSON to consecutive numbers.

    The attributes are lists of string ids: `types` and `shapes` in the format of torch_npu for
    operations, `kernel_*` in the format of msprof for device tasks.
    """

    def __init__(self, strings: Strings) -> None:
        self.types: list[int] = []
        self.shapes: list[int] = []
        self.strides: list[int] = []
        self.kernel_types: list[int] = []
        self.kernel_shapes: list[int] = []
        self.kernel_formats: list[int] = []
        self.elements: list[int] = []  # Number of elements of the first tensor, or `MISSING`.
        self.first_type: list[str] = []
        self._intern = strings.intern

    def __missing__(self, key: tuple[bytes, bytes, bytes]) -> int:
        number = self[key] = len(self.types)
        types, dims, strides = (
            value if isinstance(value := parse_json(text), list) else [] for text in key
        )
        names = [value if isinstance(value, str) else "" for value in types]
        shapes = [_shape(value) for value in dims]
        between = ";\r\n"
        self.types.append(self._text(between.join(names), types))
        self.shapes.append(self._text(between.join(shapes), dims))
        self.strides.append(self._text(between.join(_shape(s) for s in strides), strides))
        kernel_types = [KERNEL_DATA_TYPES.get(name, name) for name in names]
        self.kernel_types.append(self._text(";".join(kernel_types), types))
        self.kernel_shapes.append(self._text(f'"{";".join(shapes)}"', dims))
        formats = [_format(d, s) for d, s in zip(dims, strides, strict=False)]
        self.kernel_formats.append(self._text(";".join(formats), formats))
        self.elements.append(_elements(dims[0]) if dims else MISSING)
        self.first_type.append(names[0] if names else "")
        return number

    def _text(self, text: str, source: list[Any]) -> int:
        return self._intern(text if source else NOT_AVAILABLE)


# torch's C++ type names -> the names msprof uses in inputDataTypes; others are unchanged.
KERNEL_DATA_TYPES: Mapping[str, str] = {
    "float": "FLOAT",
    "double": "DOUBLE",
    "c10::Half": "FLOAT16",
    "c10::BFloat16": "DT_BF16",
    "signed char": "INT8",
    "unsigned char": "UINT8",
    **dict.fromkeys(("short", "short int"), "INT16"),
    "int": "INT32",
    **dict.fromkeys(("long", "long int"), "INT64"),
    "unsigned short": "UINT16",
    "unsigned int": "UINT32",
    "unsigned long": "UINT64",
    "bool": "BOOL",
    "c10::complex<float>": "COMPLEX64",
    "c10::complex<double>": "COMPLEX128",
}


def _shape(dims: Any) -> str:
    """Return the shape of an input as `2,3`, or the shapes of a list of tensors as `2,3|4`."""
    if isinstance(dims, list):
        if any(isinstance(item, list) for item in dims):
            return "|".join(_shape(item) for item in dims)
        return ",".join(map(str, dims))
    return ""


def _format(dims: Any, strides: Any) -> str:
    """Return the memory layout name of a tensor according to its strides, ND if there is none."""
    names = {4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}
    if not (isinstance(dims, list) and isinstance(strides, list) and len(dims) in names):
        return "ND"
    if len(strides) != len(dims) or not _are_ints([*dims, *strides]):
        return "ND"
    first, last = names[len(dims)]
    if strides == _dense_strides(dims, range(len(dims))):
        return first
    channels_last = [0, *range(2, len(dims)), 1]
    return last if strides == _dense_strides(dims, channels_last) else "ND"


def _dense_strides(dims: list[int], order: Any) -> list[int]:
    strides, size = [0] * len(dims), 1
    for axis in reversed(list(order)):
        strides[axis] = size
        size *= dims[axis]
    return strides


def _elements(dims: Any) -> int:
    if not isinstance(dims, list) or not _are_ints(dims):
        return MISSING
    count = math.prod(dims)
    return count if dims and count < 2**63 else MISSING


def parse_json(text: bytes) -> Any:
    """Return a JSON value, None if the text is empty or invalid."""
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


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


class Collective(Struct, frozen=True):
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
    # Group rank of the peer of a send or receive, if its global rank is unknown.
    peer: int = MISSING
    strided_ranks: tuple[int, ...] = ()  # Global ranks of a group, if recorded as start and stride.
    message_bytes: int = MISSING  # Bytes of the larger message, if recorded directly.

    @property
    def lacks_peer(self) -> bool:
        """True for a send or receive whose other end is unknown."""
        return self._end is not None and getattr(self, self._end) == MISSING

    def with_peer(self, launch: Collective) -> Collective:
        """Return this send or receive with the group rank of its peer from its launch."""
        end = self._end
        if end is None or launch._end != end:
            return self
        peer: int = getattr(launch, end)
        peer = launch.peer if peer == MISSING else peer
        if end == "source_rank":
            return replace(self, source_rank=peer)
        return replace(self, target_rank=peer)

    @property
    def _end(self) -> str | None:
        return {"send": "target_rank", "recv": "source_rank"}.get(self.name.lower())

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
