"""The formats of a comparison of devices: names, endings, and where each is written.

A format is one module with a function `produce(found, shown) -> str`, and its line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_prof.report.formats import load_renderer

if TYPE_CHECKING:
    from unified_prof.compare.device_diff import By, DeviceDifference


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


@dataclass(frozen=True, slots=True)
class Format:
    """One way to show a comparison."""

    name: str
    renderer: str
    """Function of `device_documents` that renders it; imported when needed."""
    suffixes: tuple[str, ...]
    """Endings of files that hold it, the usual one first."""
    for_terminal: bool = True

    def produce(self, found: DeviceDifference, shown: Shown) -> str:
        """Return a comparison in this format."""
        content: str = load_renderer(f"device_documents:{self.renderer}")(found, shown)
        return content


FORMATS = {
    one.name: one
    for one in (
        Format("text", "produce_device_text", (".txt",)),
        Format("json", "produce_device_json", (".json",)),
        Format("csv", "produce_device_csv", (".csv",)),
        Format("markdown", "produce_device_markdown", (".md", ".markdown")),
        Format("html", "produce_device_page", (".html", ".htm"), for_terminal=False),
    )
}
SUFFIXES = {name: one.suffixes for name, one in FORMATS.items()}
