"""Content of a report, comparison or verdict, independent of the output format.

A `Document` is a list of blocks from top to bottom. Each format for people has one renderer for all
documents: `terminal.render_text`, `renderers.render_markdown` and `renderers.render_fragment`.
Formats for programs (JSON, CSV, Parquet) have complete data, as plain dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, TypeAlias, TypeVar

from unified_prof.report import names

TextKind = Literal["title", "heading", "fact", "finding", "line", "note"]


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table."""

    heading: str
    cells: tuple[str, ...]
    # Left-aligned text that may be shortened. Figures are right-aligned and never cut.
    is_name: bool = False
    is_prose: bool = False  # Sentences, cut only if the terminal is too narrow.
    lines: int = 1  # Width limit of a name, in multiples of other names.
    # If space is short, the least important column is dropped first; 10 is never dropped.
    importance: int = 10

    @property
    def is_cut(self) -> bool:
        """True if cells may be shortened when a table is too wide."""
        return self.is_name and not self.is_prose

    @property
    def filled(self) -> float:
        """Share of cells with a value."""
        return sum(cell not in ("", names.NOT_MEASURED) for cell in self.cells) / max(
            1, len(self.cells)
        )


Row = TypeVar("Row")
# Heading, value of a row, formatter and importance of a column; names have `names.neutral`.
Figure: TypeAlias = tuple[str, Callable[[Row], Any], Callable[[Any], str], int]


def columns_of(rows: Sequence[Row], *figures: Figure[Row]) -> list[Column]:
    """Return the columns of a table with a row for each of `rows`."""
    return [
        Column(
            heading,
            tuple(show(value(row)) for row in rows),
            is_name=show is names.neutral,
            importance=importance,
        )
        for heading, value, show, importance in figures
    ]


def name_column(heading: str, cells: Iterable[str], *, importance: int = 10) -> Column:
    """Return a column of names, in which control characters are escaped."""
    return Column(heading, tuple(map(names.neutral, cells)), is_name=True, importance=importance)


@dataclass(frozen=True, slots=True)
class Text:
    """Text with an optional label: name of a fact, cost of a finding, mark of a title."""

    kind: TextKind
    text: str
    label: str = ""
    # (name, value) of the parts of one bar, where a format can draw.
    bar: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Warnings:
    """Warning with its reasons."""

    label: str
    reasons: tuple[str, ...]
    kind: Literal["warning"] = "warning"


@dataclass(frozen=True, slots=True)
class Table:
    """Table of equally long columns."""

    columns: tuple[Column, ...]
    caption: str = ""  # Heading in formats whose tables need one.
    # Number of rows that are not shown.
    left_out: int = 0
    kind: Literal["table"] = "table"


Block: TypeAlias = Text | Warnings | Table


@dataclass(slots=True)
class Document:
    """Blocks from top to bottom; control characters in texts are escaped when they are added."""

    blocks: list[Block] = field(default_factory=list)
    more: str = " (--top)"  # How to show the rows that a table leaves out, in text.

    def title(self, text: str, *, mark: str = "") -> None:
        """Add a title; `mark` precedes it in Markdown."""
        self._text("title", text, mark)

    def heading(self, text: str) -> None:
        """Add a section heading."""
        self._text("heading", text)

    def fact(self, label: str, text: str, bar: Iterable[tuple[str, float]] = ()) -> None:
        """Add a headline figure."""
        self._text("fact", text, label, tuple(bar))

    def finding(self, cost: str, text: str) -> None:
        """Add a finding in one line, with the time that it costs."""
        self._text("finding", text, cost)

    def line(self, text: str) -> None:
        """Add a paragraph."""
        self._text("line", text)

    def note(self, text: str) -> None:
        """Add a less important paragraph."""
        self._text("note", text)

    def warning(self, label: str, *reasons: str) -> None:
        """Add a warning with one or more reasons."""
        self.blocks.append(Warnings(names.neutral(label), tuple(map(names.neutral, reasons))))

    def table(self, columns: Sequence[Column], *, caption: str = "", left_out: int = 0) -> None:
        """Add a table."""
        self.blocks.append(Table(tuple(columns), caption, left_out))

    def section(
        self, heading: str, rows: Sequence[Row], figures: Iterable[Figure[Row]], top: int
    ) -> None:
        """Add a heading and a table of the first `top` rows."""
        self.heading(heading)
        self.table(columns_of(rows[:top], *figures), left_out=max(0, len(rows) - top))

    def add(self, other: Document, name: str = "") -> None:
        """Add the blocks of another document, with a name before its titles."""
        for block in other.blocks:
            if name and isinstance(block, Text) and block.kind == "title":
                block = replace(block, text=f"{names.neutral(name)}: {block.text}")
            self.blocks.append(block)

    def _text(
        self,
        kind: TextKind,
        text: str,
        label: str = "",
        bar: tuple[tuple[str, float], ...] = (),
    ) -> None:
        self.blocks.append(Text(kind, names.neutral(text), names.neutral(label), bar))

    def groups(self) -> Iterator[tuple[bool, list[Block]]]:
        """Yield (is_separated, blocks): blocks of one kind, and if a blank line precedes them."""
        before = ""
        for kind, blocks in groupby(self.blocks, key=lambda block: block.kind):
            yield _is_separated(before, kind), list(blocks)
            before = kind


def _is_separated(before: str, kind: str) -> bool:
    """Return True if a blank line precedes a block of this kind."""
    if not before:
        return False
    if kind in ("title", "heading"):
        return True
    if kind == "table":
        return before not in ("title", "heading", "line")
    if kind == "fact":
        return before not in ("title", "warning")
    if kind == "warning":
        return before != "title"
    return False


def text_columns(rows: Sequence[tuple[str, ...]]) -> list[Column]:
    """Return rows of text as columns that are never shortened; the first row has the headings."""
    headings, *rest = rows
    return [
        Column(title, tuple(names.neutral(row[index]) for row in rest), is_name=True, is_prose=True)
        for index, title in enumerate(headings)
    ]


def display_columns(columns: Sequence[Column], *, full_names: bool = False) -> list[Column]:
    """Return the columns to display: readable names, equal rows merged, no empty column.

    Consecutive equal rows become one row whose name has their number: `aten::add (x7)`.
    """
    if not full_names:
        columns = [
            replace(column, cells=names.readable_names(column.cells)) if column.is_cut else column
            for column in columns
        ]
    rows = list(zip(*(column.cells for column in columns), strict=True))
    runs = [(row, len(list(group))) for row, group in groupby(rows)]
    first = next((index for index, column in enumerate(columns) if column.is_name), None)
    if len(runs) < len(rows):
        columns = [
            replace(
                column,
                cells=tuple(
                    f"{row[index]} (x{times})" if index == first and times > 1 else row[index]
                    for row, times in runs
                ),
            )
            for index, column in enumerate(columns)
        ]
    return [
        column
        for index, column in enumerate(columns)
        if column.filled or index == 0 or not column.cells
    ]
