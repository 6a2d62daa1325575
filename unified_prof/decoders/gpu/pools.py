"""Assigns numbers to repeated values of a recording: names, shapes, launch sizes, threads.

A pool contains only distinct values, so its size does not grow with the length of the recording.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from unified_prof.base.columns import MISSING, NOT_AVAILABLE, Strings

# Operation that holds the parameters of a collective.
PARAMETERS_OPERATION = "record_param_comms"
# Prefix of annotations of torch.distributed around the launch of a collective.
ANNOTATION_PREFIX = "nccl:"

_STEP = re.compile(r"ProfilerStep\s*#\s*([0-9]{1,18})$")


class Names(dict[Any, int]):
    """Maps event names to string ids; remembers the names of steps and collectives."""

    def __init__(self, strings: Strings) -> None:
        self.steps: dict[int, int] = {}
        """String id -> number of the step."""
        self.collectives: set[int] = set()
        """String ids of host events that describe a collective."""
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
        self.spellings: list[list[tuple[Any, Any]]] = []
        """The (pid, tid) keys of each thread."""
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
        self.grids: list[str] = []
        """`x,y,z` or N/A."""
        self.blocks: list[str] = []
        self.block_counts: list[int] = []
        """Number of blocks in the grid, or `MISSING`."""

    def __missing__(self, key: tuple[bytes, bytes]) -> int:
        number = self[key] = len(self.grids)
        grid, block = (_dimensions(text) for text in key)
        self.grids.append(",".join(map(str, grid)) or NOT_AVAILABLE)
        self.blocks.append(",".join(map(str, block)) or NOT_AVAILABLE)
        count = math.prod(grid)
        self.block_counts.append(count if grid and count < 2**63 else MISSING)
        return number


def _dimensions(text: bytes) -> list[int]:
    values = parse_json(text)
    if isinstance(values, list) and all(type(value) is int for value in values):
        return values
    return []


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
        self.elements: list[int] = []
        """Number of elements of the first tensor, or `MISSING`."""
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
    if len(strides) != len(dims) or not all(type(v) is int for v in (*dims, *strides)):
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
    if not isinstance(dims, list) or not all(type(size) is int for size in dims):
        return MISSING
    count = math.prod(dims)
    return count if dims and count < 2**63 else MISSING


def parse_json(text: bytes) -> Any:
    """Return a JSON value, None if the text is empty or invalid."""
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
