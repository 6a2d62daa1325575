"""Recorded arguments of operations: tensor shapes, dtypes and strides, and other values.

`;` separates arguments, `,` dimensions, `|` the tensors of a list; torch_npu adds line ends, CANN
quotes the whole text. A tensor without dimensions and a missing argument both have an empty shape;
only the dtype distinguishes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod

from msgspec import Struct

from unified_prof.recording.names import DTYPES

Shape = tuple[int, ...]

# Bytes per element of each dtype, by our names.
SIZES = {
    "complex128": 16,
    **dict.fromkeys(("fp64", "complex64", "int64", "uint64"), 8),
    **dict.fromkeys(("fp32", "int32", "uint32"), 4),
    **dict.fromkeys(("bf16", "fp16", "int16", "uint16"), 2),
    **dict.fromkeys(("fp8", "int8", "uint8", "bool"), 1),
}

_NAMES = {
    # torch.profiler prints C++ types; torch and CANN have other names.
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


class UnknownCostError(ValueError):
    """The cost of an operation is unknown; the message has the reason."""


def dtype_of(text: str) -> str:
    """Return the short name of a torch or CANN dtype; the text itself if it is unknown."""
    lower = text.strip().lower()
    return _TYPES.get(lower, lower)


class Tensor(Struct, frozen=True):
    """Shape and dtype of a tensor; strides in elements, if they were recorded."""

    shape: Shape
    dtype: str
    strides: Shape | None = None

    @property
    def elements(self) -> int:
        """Number of elements of the shape."""
        return prod(self.shape)

    @property
    def distinct(self) -> int:
        """Number of elements in memory: an expanded dimension (stride 0) has one."""
        if self.strides is None or len(self.strides) != len(self.shape):
            return self.elements
        if 0 in self.shape:
            return 0
        pairs = zip(self.shape, self.strides, strict=True)
        return prod(size for size, stride in pairs if stride != 0)

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return self.distinct * item_size(self.dtype)


def item_size(dtype: str) -> int:
    """Return the bytes per element of a dtype; raises UnknownCostError if it is unknown."""
    if dtype not in SIZES:
        raise UnknownCostError(f"the size of type {dtype or '(none)'} is not known")
    return SIZES[dtype]


def broadcast(*shapes: Sequence[int]) -> Shape:
    """Return the broadcast shape; raises UnknownCostError if shapes do not match."""
    rank = max((len(shape) for shape in shapes), default=0)
    sizes = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            if size != 1 and sizes[place] not in (1, size):
                raise UnknownCostError("its shapes do not match")
            if size != 1:
                sizes[place] = size
    return tuple(sizes)


Argument = Tensor | tuple[Tensor, ...] | None

_LETTER = re.compile(r"[A-Za-z]")
_LISTS = frozenset({"tensorlist", "genericlist"})
# Numbers of torch's dtypes in recorded arguments `dtype`.
_SCALAR_TYPES = {
    **dict(enumerate(("uint8", "int8", "int16", "int32", "int64", "fp16", "fp32", "fp64"))),
    11: "bool",
    15: "bf16",
    **dict.fromkeys(range(23, 27), "fp8"),
}


class Arguments(Struct, frozen=True):
    """Recorded arguments of one call."""

    given: tuple[Argument, ...]
    # Arguments that are not tensors, as torch prints them; empty if not recorded.
    values: tuple[str, ...] = ()
    # Name of the range around the call that describes the batch, if the cost needs it.
    around: str = ""

    def tensor(self, place: int) -> Tensor:
        """Return a required tensor."""
        found = self.optional(place)
        if found is None:
            raise UnknownCostError("the shapes of its arguments were not recorded")
        return found

    def optional(self, place: int | None) -> Tensor | None:
        """Return an optional tensor."""
        found = None if place is None or place >= len(self.given) else self.given[place]
        return found if isinstance(found, Tensor) else None

    def tensors(self, first: int | None = None) -> list[Tensor]:
        """Return the tensors among the first arguments (None: all)."""
        return [one for one in self.given[:first] if isinstance(one, Tensor)]

    def list(self, place: int) -> tuple[Tensor, ...]:
        """Return a required list of tensors; torch omits lists of more than 30."""
        found = self.given[place] if place < len(self.given) else None
        if not isinstance(found, tuple) or not found:
            raise UnknownCostError(
                "its list of tensors was not recorded (torch omits lists of more than 30)"
            )
        return found

    def text(self, place: int | None) -> str:
        """Return the text of an argument, empty if it was not recorded or has no place."""
        return "" if place is None or place >= len(self.values) else self.values[place]

    def integers(self, place: int | None) -> Shape | None:
        """Return an argument that is a number or a list of numbers, None if not recorded."""
        text = self.text(place).strip()
        if not text:
            return None
        try:
            return tuple(int(one) for one in text.strip("[]()").split(",") if one.strip())
        except ValueError:
            return None

    def sizes(self, place: int) -> Shape:
        """Return a required number or list of numbers."""
        found = self.integers(place)
        if found is None:
            raise UnknownCostError("the values of its arguments were not recorded")
        return found

    def flag(self, place: int | None) -> bool | None:
        """Return a boolean argument, None if not recorded."""
        return {"true": True, "false": False, "1": True, "0": False}.get(
            self.text(place).strip().lower()
        )

    def flags(self, place: int) -> tuple[bool, ...] | None:
        """Return a list of booleans, None if not recorded."""
        found = re.findall(r"true|false", self.text(place).lower())
        return tuple(one == "true" for one in found) or None

    def scalar_type(self, place: int) -> str | None:
        """Return an argument `dtype`, None if not given or recorded."""
        number = self.integers(place)
        return _SCALAR_TYPES.get(number[0]) if number else None


def parsed(
    shapes: str | None,
    types: str | None,
    strides: str | None = None,
    values: str | None = None,
    kernel: str = "",
) -> Arguments:
    """Parse the recorded arguments of an operation.

    Args:
        shapes: Shape of each argument.
        types: Dtype of each argument.
        strides: Strides of each argument, if recorded.
        values: JSON list of the arguments that are not tensors, if recorded.
        kernel: Names of its kernels, from which the dtype of tensor lists is inferred.
    """
    shape_texts, type_texts = split_arguments(shapes, types)
    stride_texts = split(strides)
    list_dtype = dtype_of_kernel(kernel)
    given: list[Argument] = []
    for place, type_text in enumerate(type_texts):
        shape = shape_texts[place] if place < len(shape_texts) else ""
        stride = stride_texts[place] if place < len(stride_texts) else ""
        given.append(_argument(type_text, shape, stride, list_dtype))
    return Arguments(tuple(given), _values(values))


def split_arguments(
    shapes: str | None, types: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return shapes and dtypes of arguments; some torch_npu releases swapped the two columns."""
    if types and shapes and not _LETTER.search(types) and _LETTER.search(shapes):
        shapes, types = types, shapes
    return split(shapes), split(types)


@lru_cache(maxsize=1 << 12)
def split(text: str | None) -> tuple[str, ...]:
    """Split the text of several arguments."""
    return () if not text else tuple(one.strip() for one in text.strip().strip('"').split(";"))


def dims(text: str) -> Shape:
    """Parse dimensions; raises UnknownCostError if they are unreadable or dynamic (-1)."""
    try:
        found = tuple(int(one) for one in text.split(",") if one.strip())
    except ValueError:
        raise UnknownCostError("its shapes are not readable") from None
    if any(size < 0 for size in found):
        raise UnknownCostError("its shapes were not known when it was launched")
    return found


def dtype_of_kernel(kernels: str) -> str:
    """Return the dtype of tensors by the names of kernels, empty if unknown."""
    return next((dtype for has_word, dtype in DTYPES if has_word(kernels)), "")


def _argument(type_text: str, shape: str, stride: str, list_dtype: str) -> Argument:
    if type_text.lower() in _LISTS:
        if not shape:
            return ()
        parts = shape.split("|")
        strides = stride.split("|")
        return tuple(
            _tensor(one, list_dtype, strides[place] if place < len(strides) else "")
            for place, one in enumerate(parts)
        )
    dtype = dtype_of(type_text)
    if dtype not in SIZES:
        if dims(shape) and type_text:
            item_size(dtype)  # a tensor of an unknown dtype
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
    except (ValueError, RecursionError):
        return ()
    return tuple(str(one) for one in found) if isinstance(found, list) else ()
