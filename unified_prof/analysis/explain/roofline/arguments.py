"""The recorded arguments of an operation, read from the texts that databases keep of them.

`;` stands between arguments, `,` between dimensions, `|` between the tensors of a list; torch_npu
adds line ends, CANN quotes the whole. A tensor without dimensions and an argument that is none
both have an empty shape: the type tells which it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache

from unified_prof.analysis.explain.roofline.tensors import (
    SIZES,
    Shape,
    Tensor,
    UntoldError,
    dtype_of,
    item_size,
)

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
