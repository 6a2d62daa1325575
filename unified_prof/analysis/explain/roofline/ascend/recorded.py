"""Operators of an Ascend as recorded: type, tensors in their layouts, what launched it."""

from __future__ import annotations

from dataclasses import dataclass

from unified_prof.analysis.explain.roofline.arguments import Arguments, dims, split
from unified_prof.analysis.explain.roofline.tensors import Shape, Tensor, UntoldError, dtype_of
from unified_prof.vocabulary import NOT_AVAILABLE

_UNKNOWN = frozenset({"", NOT_AVAILABLE, "NULL", "UNDEFINED"})


@dataclass(frozen=True, slots=True)
class Laid:
    """A tensor as it lies in memory, in a format."""

    tensor: Tensor
    layout: str

    @property
    def is_padded(self) -> bool:
        """Whether its format rounds sizes up."""
        return self.layout.startswith("FRACTAL") or "C1" in self.layout

    @property
    def sizes(self) -> Shape:
        """Its sizes as a batch of matrices, rounded up where the format does."""
        shape = self.tensor.shape
        if self.layout == "FRACTAL_NZ" and len(shape) >= 4:
            return (*shape[:-4], shape[-3] * shape[-2], shape[-4] * shape[-1])
        return shape


@dataclass(frozen=True, slots=True)
class Framework:
    """The operation of the framework that launched an operator."""

    name: str
    """Without its namespace."""
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Operator:
    """What was recorded of one operator."""

    op_type: str
    inputs: tuple[Laid, ...]
    outputs: tuple[Laid, ...]
    framework: Framework | None = None

    @property
    def moved_bytes(self) -> int:
        """Bytes that it reads and writes, every tensor once."""
        return sum(one.tensor.bytes for one in (*self.inputs, *self.outputs))

    def input(self, place: int) -> Laid:
        """Return an input.

        Raises:
            UntoldError: there are not as many.
        """
        if place >= len(self.inputs):
            raise UntoldError("the shapes of its inputs were not recorded")
        return self.inputs[place]

    def output(self) -> Laid:
        """Return the first result.

        Raises:
            UntoldError: there is none.
        """
        if not self.outputs:
            raise UntoldError("the shapes of its results were not recorded")
        return self.outputs[0]


def laid(shapes: str | None, types: str | None, formats: str | None) -> tuple[Laid, ...]:
    """Read the tensors of an operator from the texts of COMPUTE_TASK_INFO.

    Raises:
        UntoldError: shapes are not known, or a type is not.
    """
    if (shapes or "").strip('" ') in _UNKNOWN and (types or "") in _UNKNOWN:
        return ()
    of_formats = split(formats)
    found = []
    for place, (shape, dtype) in enumerate(zip(split(shapes), split(types), strict=False)):
        if dtype in _UNKNOWN:
            continue
        layout = of_formats[place] if place < len(of_formats) else ""
        layout = layout.removeprefix("FORMAT_").partition(":")[0]
        found.append(Laid(Tensor(dims(shape), dtype_of(dtype)), layout))
    return tuple(found)
