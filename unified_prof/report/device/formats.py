"""The formats of a comparison of devices: names, endings, and where each is written.

A format is one module with a function `produce(found, shown) -> str`, and its line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from unified_prof.analysis.compare.device.difference import By, DeviceDifference


@dataclass(frozen=True, slots=True)
class Shown:
    """What of a comparison is to be shown, and how."""

    by: By = "operation"
    top: int = 20
    """Rows of each table for people."""
    everything: bool = False
    """Whether what did not change is shown too."""
    width: int | None = None
    """Columns of the terminal; None: there is none."""
    color: bool = False
    full_names: bool = False


class _Module(Protocol):
    def produce(self, found: DeviceDifference, shown: Shown) -> str:
        """Return the comparison in the format."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way to show a comparison."""

    name: str
    module: str
    suffixes: tuple[str, ...]
    """Endings of files that hold it, the usual one first."""
    for_terminal: bool = True

    def produce(self, found: DeviceDifference, shown: Shown) -> str:
        """Return a comparison in this format."""
        module = cast(_Module, import_module(f"unified_prof.report.device.{self.module}"))
        return module.produce(found, shown)


FORMATS = {
    one.name: one
    for one in (
        Format("text", "text", (".txt",)),
        Format("json", "json_text", (".json",)),
        Format("csv", "csv_text", (".csv",)),
        Format("markdown", "markdown", (".md", ".markdown")),
        Format("html", "page", (".html", ".htm"), for_terminal=False),
    )
}
SUFFIXES = {name: one.suffixes for name, one in FORMATS.items()}
