"""Mark the measured iterations for msprof, so that they stand in MSTX_EVENTS."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

# Packages that offer range_start(message, stream) and range_end(id): CANN's own, torch_npu's.
_SOURCES = ("mstx", "torch_npu.npu.mstx")


class MarkIterations:
    """An instrument that opens an mstx range round every measured iteration.

    Without CANN's mstx package it does nothing, and `missing` says so.
    """

    def __init__(self) -> None:
        self.missing: str | None = None
        """Why iterations are not marked, or None when they are."""
        self._range: Any = None
        self._start: Callable[..., Any] | None = None
        self._end: Callable[[Any], Any] | None = None

    def start(self) -> None:
        """Find the package."""
        for name in _SOURCES:
            try:
                source = _attribute(name)
                self._start, self._end = source.range_start, source.range_end
            except (ImportError, AttributeError):
                continue
            return
        self.missing = "CANN's Python package mstx is not here, so iterations are not marked"

    def begin_iteration(self, index: int) -> None:
        """Open the range of iteration `index`."""
        if self._start:
            self._range = self._start(f"uprof iteration {index}")

    def end_iteration(self, index: int) -> None:
        """Close the range of iteration `index`."""
        if self._end and self._range is not None:
            self._end(self._range)
            self._range = None

    def stop(self, complete: bool) -> None:
        """Close a range that an error left open."""
        self.end_iteration(-1)


def _attribute(dotted: str) -> Any:
    """Import `a.b.c`, where the last names may be attributes of a module."""
    module, *rest = dotted.split(".")
    found: Any = import_module(module)
    for name in rest:
        found = getattr(found, name)
    return found
