"""The formats of `uprof report`: names, endings, and where each is written.

A format is one module with a function `produce(opened, request) -> str` (bytes where it is no
text), and its line here; nothing else knows how many there are. If you add one, also add its name
to the tests' `tests/report/test_registry.py`, which hold for every format. Nothing heavy is
imported before a format is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.kinds import By
    from unified_prof.analysis.load import Opened


@dataclass(frozen=True, slots=True)
class Request:
    """What of a report is to be shown, and how."""

    by: By | None = None
    """The only breakdown; None: the format's own choice."""
    sort: str | None = None
    top: int | None = None
    """Rows of a breakdown; None: the format's own choice."""
    statistics: bool = False
    """Whether single times are described too, of operations and kernels."""
    full_names: bool = False
    """Whether names are shown whole in tables for people."""
    source_root: Path | None = None
    """Folder of the source lines that a page includes; None: none."""
    width: int | None = None
    """Columns of the terminal; None: there is none."""
    color: bool = False


class _Module(Protocol):
    def produce(self, opened: Opened, request: Request) -> str | bytes:
        """Return the reports in the format."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way to show reports."""

    name: str
    module: str
    suffixes: tuple[str, ...]
    """Endings of files that hold it, the usual one first."""
    for_people: bool = False
    """Whether it is text for a terminal, in the terminal's encoding."""
    for_terminal: bool = True
    """Whether it makes sense to print it on a terminal at all."""
    embeds_source: bool = False
    is_text: bool = True
    """Whether it is text; the others are bytes, of breakdowns alone."""

    def produce(self, opened: Opened, request: Request) -> str | bytes:
        """Return the reports in this format.

        Raises:
            StoreError: none of them can be read to its end.
            UsageError: a report cannot be broken down or sorted as asked, or a package that the
                format takes is not installed.
        """
        module = cast(_Module, import_module(f"unified_prof.report.{self.module}"))
        return module.produce(opened, request)

    def text(self, opened: Opened, request: Request) -> str:
        """Return the reports in this format, which is text; errors as of `produce`."""
        content = self.produce(opened, request)
        assert isinstance(content, str), f"{self.name} is no text"
        return content


FORMATS: tuple[Format, ...] = (
    Format("text", "text", (".txt",), for_people=True),
    Format("json", "json_text", (".json",)),
    Format("csv", "csv_text", (".csv",)),
    Format("markdown", "markdown", (".md", ".markdown")),
    Format("html", "html", (".html", ".htm"), for_terminal=False, embeds_source=True),
    Format("parquet", "parquet_file", (".parquet",), for_terminal=False, is_text=False),
    Format("arrow", "arrow_file", (".arrow", ".feather"), for_terminal=False, is_text=False),
)
TEXT = FORMATS[0]
NAMES = tuple(one.name for one in FORMATS)
SUFFIXES = {one.name: one.suffixes for one in FORMATS}


def named(name: str) -> Format:
    """Return the format called `name`.

    Raises:
        UsageError: there is none.
    """
    for one in FORMATS:
        if one.name == name:
            return one
    raise UsageError(
        f"unknown format {name!r}", hint=f"known: {', '.join(NAMES)}", slug="unknown-format"
    )
