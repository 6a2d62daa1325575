"""Tensors as recordings describe them: shapes, types and strides, without their values.

The recorded arguments of an operation, read from the texts that databases keep of them.

`;` stands between arguments, `,` between dimensions, `|` between the tensors of a list; torch_npu
adds line ends, CANN quotes the whole. A tensor without dimensions and an argument that is none
both have an empty shape: the type tells which it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

Shape = tuple[int, ...]

SIZES = {
    "complex128": 16,
    "fp64": 8,
    "complex64": 8,
    "int64": 8,
    "uint64": 8,
    "fp32": 4,
    "int32": 4,
    "uint32": 4,
    "bf16": 2,
    "fp16": 2,
    "int16": 2,
    "uint16": 2,
    "fp8": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of an element of each type, by our names of types."""

_NAMES = {
    # torch.profiler prints C++ types, torch names of its own, CANN its own again.
    "fp64": "double, float64, dt_double",
    "fp32": "float, float32, dt_float, tf32, hf32",
    "bf16": "c10::bfloat16, bfloat16, bfp16, dt_bf16",
    "fp16": "c10::half, half, float16, dt_float16",
    "fp8": "c10::float8_e4m3fn, c10::float8_e5m2, c10::float8_e4m3fnuz, c10::float8_e5m2fnuz,"
    " float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, hifloat8, float8",
    "complex64": "c10::complex<float>, dt_complex64",
    "complex128": "c10::complex<double>, dt_complex128",
    "int64": "long int, long, dt_int64",
    "int32": "int, dt_int32",
    "int16": "short int, short, dt_int16",
    "int8": "signed char, char, dt_int8",
    "uint8": "unsigned char, byte, dt_uint8",
    "uint16": "unsigned short, dt_uint16",
    "uint32": "unsigned int, dt_uint32",
    "uint64": "unsigned long, dt_uint64",
    "bool": "dt_bool",
}
_TYPES = {name: name for name in SIZES} | {
    name: ours for ours, theirs in _NAMES.items() for name in theirs.split(", ")
}


class UntoldError(ValueError):
    """What an operation did cannot be told from what was recorded; the text says why."""


def dtype_of(text: str) -> str:
    """Return our name of a type that torch or CANN names, the text itself where we have none."""
    lower = text.strip().lower()
    return _TYPES.get(lower, lower)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor; `strides` as torch counts them, in elements, where they were recorded."""

    shape: Shape
    dtype: str
    strides: Shape | None = None

    @property
    def elements(self) -> int:
        """Elements that it appears to have."""
        return prod(self.shape)

    @property
    def distinct(self) -> int:
        """Elements that lie in memory: an expanded dimension (stride 0) has one."""
        if self.strides is None or len(self.strides) != len(self.shape):
            return self.elements
        if 0 in self.shape:
            return 0
        pairs = zip(self.shape, self.strides, strict=True)
        return prod(size for size, stride in pairs if stride != 0)

    @property
    def bytes(self) -> int:
        """Bytes to read or write all of it once."""
        return self.distinct * item_size(self.dtype)


def item_size(dtype: str) -> int:
    """Return the bytes of an element.

    Raises:
        UntoldError: it is a type that we do not know.
    """
    try:
        return SIZES[dtype]
    except KeyError:
        raise UntoldError(f"the size of type {dtype or '(none)'} is not known") from None


def broadcast(*shapes: Sequence[int]) -> Shape:
    """Return the shape of what element-wise operations make of several.

    Raises:
        UntoldError: they do not go together.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    sizes = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            if size != 1 and sizes[place] not in (1, size):
                raise UntoldError("its shapes do not go together")
            if size != 1:
                sizes[place] = size
    return tuple(sizes)


Argument = Tensor | tuple[Tensor, ...] | None

_LETTER = re.compile(r"[A-Za-z]")
_LISTS = frozenset({"tensorlist", "genericlist"})
_OF_KERNEL = (
    # What a kernel's name says of the type of its tensors, the surest first.
    (re.compile(r"c10::BFloat16|__nv_bfloat16|\bbf16"), "bf16"),
    (re.compile(r"c10::Half|__half\b|\bfp16"), "fp16"),
    (re.compile(r"OpaqueType<1u?>"), "uint8"),
    (re.compile(r"OpaqueType<2u?>"), "bf16"),
    (re.compile(r"OpaqueType<4u?>"), "fp32"),
    (re.compile(r"OpaqueType<8u?>"), "int64"),
    (re.compile(r"<double\b|[ ,]double[,>]"), "fp64"),
    (re.compile(r"<float\b|[ ,]float[,>]"), "fp32"),
)
_SCALAR_TYPES = {0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "fp16"} | {
    6: "fp32",
    7: "fp64",
    11: "bool",
    15: "bf16",
    23: "fp8",
    24: "fp8",
    25: "fp8",
    26: "fp8",
}
"""torch's numbers of types, as arguments `dtype` are recorded."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What was recorded of the arguments of one call."""

    given: tuple[Argument, ...]
    values: tuple[str, ...] = ()
    """Arguments that are no tensors, as torch prints them; empty: not recorded."""
    around: str = ""
    """Name of the range around that tells of a batch; empty: there is none, or nobody needs it."""

    def tensor(self, place: int) -> Tensor:
        """Return an argument that has to be a tensor."""
        found = self.optional(place)
        if found is None:
            raise UntoldError("the shapes of its arguments were not recorded")
        return found

    def optional(self, place: int) -> Tensor | None:
        """Return an argument that may be a tensor."""
        found = self.given[place] if 0 <= place < len(self.given) else None
        return found if isinstance(found, Tensor) else None

    def tensors(self, first: int | None = None) -> list[Tensor]:
        """Return those of the first arguments (of all) that are tensors."""
        return [one for one in self.given[:first] if isinstance(one, Tensor)]

    def list(self, place: int) -> tuple[Tensor, ...]:
        """Return an argument that is a list of tensors.

        Raises:
            UntoldError: its shapes were not recorded; torch leaves out lists of more than 30.
        """
        found = self.given[place] if place < len(self.given) else None
        if not isinstance(found, tuple) or not found:
            raise UntoldError(
                "its list of tensors was not recorded (torch leaves out more than 30)"
            )
        return found

    def text(self, place: int) -> str:
        """Return how torch printed an argument, empty where that was not recorded."""
        return self.values[place] if place < len(self.values) else ""

    def integers(self, place: int) -> Shape | None:
        """Return an argument that is a number or a list of them, None where not recorded."""
        text = self.text(place).strip()
        if not text:
            return None
        try:
            return tuple(int(one) for one in text.strip("[]()").split(",") if one.strip())
        except ValueError:
            return None

    def sizes(self, place: int) -> Shape:
        """Return an argument that has to be numbers."""
        found = self.integers(place)
        if found is None:
            raise UntoldError("the values of its arguments were not recorded")
        return found

    def flag(self, place: int) -> bool | None:
        """Return an argument that is yes or no, None where that was not recorded."""
        return {"true": True, "false": False, "1": True, "0": False}.get(
            self.text(place).strip().lower()
        )

    def flags(self, place: int) -> tuple[bool, ...] | None:
        """Return a list of yes and no, None where that was not recorded."""
        found = re.findall(r"true|false", self.text(place).lower())
        return tuple(one == "true" for one in found) or None

    def scalar_type(self, place: int) -> str | None:
        """Return an argument `dtype`, None where none was given or recorded."""
        number = self.integers(place)
        return _SCALAR_TYPES.get(number[0]) if number else None


def parsed(
    shapes: str | None,
    types: str | None,
    strides: str | None = None,
    values: str | None = None,
    kernel: str = "",
) -> Arguments:
    """Read the recorded arguments of an operation.

    Args:
        shapes: of each argument.
        types: of each argument.
        strides: of each argument, where they were recorded.
        values: a JSON list of those that are no tensors, where they were recorded.
        kernel: names of kernels that it launched: of lists of tensors, no type is recorded.
    """
    of_shapes, of_types = told(shapes, types)
    of_strides = split(strides)
    of_lists = dtype_of_kernel(kernel)
    given: list[Argument] = []
    for place, type_text in enumerate(of_types):
        shape = of_shapes[place] if place < len(of_shapes) else ""
        stride = of_strides[place] if place < len(of_strides) else ""
        given.append(_argument(type_text, shape, stride, of_lists))
    return Arguments(tuple(given), _values(values))


def told(shapes: str | None, types: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return shapes and types of arguments; torch_npu has written each in the other's column."""
    if types and shapes and not _LETTER.search(types) and _LETTER.search(shapes):
        shapes, types = types, shapes
    return split(shapes), split(types)


@lru_cache(maxsize=1 << 12)
def split(text: str | None) -> tuple[str, ...]:
    """Split the text of several arguments; types and formats of many operators are alike."""
    if not text:
        return ()
    return tuple(one.strip() for one in text.strip().strip('"').split(";"))


def dims(text: str) -> Shape:
    """Return the dimensions that a text names.

    Raises:
        UntoldError: it names none, or such that are not known before the run (-1).
    """
    try:
        found = tuple(int(one) for one in text.split(",") if one.strip())
    except ValueError:
        raise UntoldError("its shapes are not readable") from None
    if any(size < 0 for size in found):
        raise UntoldError("its shapes were not known when it was launched")
    return found


def dtype_of_kernel(names: str) -> str:
    """Return the type of tensors that names of kernels tell, empty if none."""
    return next((dtype for pattern, dtype in _OF_KERNEL if pattern.search(names)), "")


def _argument(type_text: str, shape: str, stride: str, of_lists: str) -> Argument:
    if type_text.lower() in _LISTS:
        if not shape:
            return ()
        parts = shape.split("|")
        strides = stride.split("|")
        return tuple(
            _tensor(one, of_lists, strides[place] if place < len(strides) else "")
            for place, one in enumerate(parts)
        )
    dtype = dtype_of(type_text)
    if dtype not in SIZES:
        if dims(shape) and type_text:
            item_size(dtype)  # a tensor of a type that nobody told us of
        return None
    return _tensor(shape, dtype, stride)


def _tensor(shape: str, dtype: str, stride: str) -> Tensor:
    sizes = dims(shape)
    try:
        steps = tuple(int(one) for one in stride.split(",") if one.strip())
    except ValueError:
        steps = ()
    return Tensor(sizes, dtype, steps if len(steps) == len(sizes) else None)


def _values(text: str | None) -> tuple[str, ...]:
    if not text:
        return ()
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    return tuple(str(one) for one in found) if isinstance(found, list) else ()
