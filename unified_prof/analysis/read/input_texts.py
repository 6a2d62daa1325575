"""Recorded shapes and types of an operation's inputs, as one text for people."""

from __future__ import annotations

import re

from unified_prof.vocabulary import NOT_AVAILABLE

_TYPES = re.compile(r"[A-Za-z]")
_NO_TENSORS = frozenset(
    {
        "",
        "None",
        NOT_AVAILABLE,
        "Scalar",
        "ScalarList",
        "Int",
        "Bool",
        "Double",
        "String",
        "GenericList",
    }
)
"""Types of arguments that have no shape; the capitals are those of old releases of torch."""


def input_text(shapes: str | None, types: str | None) -> str:
    """Return recorded shapes and types of inputs as one text, those that are tensors."""
    shapes, types = shapes or "", types or ""
    if _TYPES.search(shapes) and not _TYPES.search(types):
        shapes, types = types, shapes
    shape = [one.strip() for one in shapes.strip('"').split(";")]
    kind = [one.strip() for one in types.strip('"').split(";")]
    kind += [""] * (len(shape) - len(kind))
    return ", ".join(
        f"{what.removeprefix('c10::')}[{size}]"
        for size, what in zip(shape, kind, strict=False)
        if size or what not in _NO_TENSORS
    )
