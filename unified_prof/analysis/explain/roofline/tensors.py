"""Tensors as recordings describe them: shapes, types and strides, without their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
