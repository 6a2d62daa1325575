"""Content of a report, comparison or verdict, independent of the output format.

A `Document` is a list of blocks from top to bottom. Each format for people has one renderer for all
documents: `terminal.render_text`, `render_markdown` and `render_fragment`.
Formats for programs (JSON, CSV, Parquet) have complete data, as plain dictionaries.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from unified_prof.base.text import guard_formula
from unified_prof.report import names
from unified_prof.version import VERSION

_MAX_NAME_LENGTH = 100  # Names longer than this are shortened in Markdown tables.
# Characters that are markup anywhere in a line on GitHub: code, emphasis, links, cells, formulas,
# mentions, numbers of issues, emoji and addresses.
_MARKUP = re.compile(
    r"([\\`*\[\]|~$@]|(?<![^\W_])_|_(?![^\W_])|(?<!\w)#|#(?![^\W\d])"
    r"|:(?=//|(?!\d\d:)[\w+-]+:)|(?<=www)\.)"
)
# Beginnings of a list, a heading or a rule in a line; numbered lists show their numbers.
_AT_START = re.compile(r"[-+](?=\s|$)|[-=](?=[-=\s]*$)|:(?=\s)")


def render_markdown(document: Document, *, full_names: bool = False) -> str:
    """Render a document as GitHub-flavored Markdown."""
    lines: list[str] = []
    for _, blocks in document.groups():
        first = blocks[0]
        if first.kind == "finding":
            lines += ["### Findings", ""]
        elif isinstance(first, Warnings) and any(line.startswith("|") for line in lines):
            lines += ["### Warnings", ""]
        for block in blocks:
            lines += _markdown_lines(block, full_names=full_names)
        if lines[-1]:
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _markdown_lines(block: Block, *, full_names: bool) -> list[str]:
    """Return a block as lines, the last one empty if it must not join the next block."""
    if isinstance(block, Warnings):
        label = escape_markdown(block.label)
        if len(block.reasons) == 1:
            return [f"- **{label}**: {escape_markdown(block.reasons[0])}"]
        reasons = [f"- {escape_markdown(one, starts_line=True)}" for one in block.reasons]
        return [f"**{label}**", "", *reasons, ""]
    if isinstance(block, Table):
        lines = [f"### {escape_markdown(block.caption)}", ""] if block.caption else []
        lines += _markdown_table(block.columns, full_names=full_names)
        if block.left_out:
            lines += ["", f"and {names.format_number(block.left_out)} more"]
        return [*lines, ""]
    is_first = not block.label and block.kind not in ("title", "heading")
    text = escape_markdown(block.text.strip(), starts_line=is_first)
    marks = {"title": "## ", "heading": "### "}
    if block.kind in ("fact", "finding"):
        return [f"- **{escape_markdown(block.label)}**: {text}" if block.label else f"- {text}"]
    if block.kind == "heading":
        text = text[:1].upper() + text[1:]
    if block.kind == "title" and block.label:
        text = f"{block.label} {text}"
    return [f"{marks.get(block.kind, '')}{text}", ""]


def escape_markdown(text: str, *, starts_line: bool = False) -> str:
    """Escape text for Markdown: no markup, links, mentions or HTML.

    Only what would be markup is escaped, so that the text is legible in files and terminals, too.
    """
    text = names.neutral(text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _MARKUP.sub(r"\\\1", text)
    if starts_line and _AT_START.match(text := text.lstrip()):
        return f"\\{text}"
    return text


def _markdown_table(columns: Sequence[Column], *, full_names: bool) -> list[str]:
    """Return a table as lines of Markdown with display names."""
    columns = display_columns(columns, full_names=full_names)
    rows = zip(*(column.cells for column in columns), strict=True)
    widths = [_MAX_NAME_LENGTH if column.is_cut and not full_names else None for column in columns]
    return [
        _table_line(column.heading for column in columns),
        _table_line(":---" if column.is_name else "---:" for column in columns),
        *(
            _table_line(
                escape_markdown(cell if width is None else names.truncate_middle(cell, width))
                for cell, width in zip(cells, widths, strict=True)
            )
            for cells in rows
        ),
    ]


def _table_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def csv_text(rows: Iterable[Mapping[str, str | float | None]], fields: Iterable[str] = ()) -> str:
    """Render rows as CSV; unknown values are empty; `fields` are the first columns, in order."""
    rows = list(rows)
    output = StringIO()
    columns = list(dict.fromkeys([*fields, *(name for row in rows for name in row)]))
    writer = csv.DictWriter(output, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _csv_cell(value) for name, value in row.items()} for row in rows)
    return output.getvalue()


def _csv_cell(value: str | float | None) -> str | float | None:
    """Return a value as a cell that spreadsheets do not execute as a formula."""
    return guard_formula(names.neutral(value)) if isinstance(value, str) else value


_STEP = "  "


def dump_json(document: object) -> str:
    """Return a document as JSON; NaN and infinity raise ValueError.

    The text equals that of `json.dumps` with an indent of two. Values without nested values, such
    as rows, are encoded in C, which is five times as fast.
    """
    return "".join(_json_lines(document, "\n")) + "\n"


def _json_lines(value: object, line: str) -> Iterator[str]:
    """Yield the JSON text of a value; `line` is the line break before its closing bracket."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        if not _is_nested(value.values()):
            yield _flatten_row(value, line)
            return
        between = "{" + line + _STEP
        for key, one in value.items():
            yield f"{between}{json.dumps(key)}: "
            yield from _json_lines(one, line + _STEP)
            between = "," + line + _STEP
        yield line + "}"
    elif isinstance(value, list | tuple):
        if not _is_nested(value):
            yield _flatten_row(value, line)
            return
        between = "[" + line + _STEP
        for one in value:
            yield between
            yield from _json_lines(one, line + _STEP)
            between = "," + line + _STEP
        yield line + "]"
    else:
        # Line breaks occur only between values: within strings they are escaped.
        yield json.dumps(value, indent=2, allow_nan=False).replace("\n", line)


def _is_nested(values: Iterable[object]) -> bool:
    return any(isinstance(one, dict | list | tuple) for one in values)


def _flatten_row(value: dict[str, object] | list[object] | tuple[object, ...], line: str) -> str:
    text = _encoder(line + _STEP).encode(value)
    return f"{text[0]}{line}{_STEP}{text[1:-1]}{line}{text[-1]}" if value else text


@cache
def _encoder(line: str) -> json.JSONEncoder:
    return json.JSONEncoder(allow_nan=False, separators=("," + line, ": "))


_MAX_FRAGMENT_ROWS = 25  # Maximum rows of any table in a fragment.

_FRAGMENT_NAME_LENGTH = 90
_PAGE_NAME_LENGTH = 120  # Names longer than this are shortened in tables of pages.

_MAX_LINE_LENGTH = 600

_MAX_FRAGMENT_LENGTH = 96 * 1024  # Maximum characters of a fragment, without its last line.

_BORDER = "1px solid rgba(128,128,128,.35)"

_CELL_STYLE = "padding:2px 10px 2px 0;border:none"

_PERCENT = re.compile(r"<?(\d+(?:\.\d+)?) %$")

_TEXT_STYLES = {
    "title": "font-weight:600;margin:0 0 4px",
    "heading": "font-weight:600;margin:10px 0 2px",
    "line": "",
    "note": "opacity:.7",
}


def render_fragment(document: Document) -> str:
    """Render a document as an HTML fragment; content beyond the size limit is left out."""
    parts = []
    for is_separated, blocks in document.groups():
        if is_separated:
            parts.append('<div style="height:8px"></div>')
        parts += map(_block_html, blocks)
    size = left_out = 0
    shown = []
    for part in parts:
        size += len(part)
        if size > _MAX_FRAGMENT_LENGTH:
            left_out += 1
        else:
            shown.append(part)
    end = f'<div style="opacity:.7">{left_out:,} more lines not shown</div>' if left_out else ""
    return (
        '<div style="font:13px/1.45 system-ui,sans-serif;color:inherit;max-width:100%">'
        f"{''.join(shown)}{end}</div>"
    )


def _block_html(block: Block) -> str:
    if isinstance(block, Table):
        return _table_html(block)
    if isinstance(block, Warnings):
        return (
            '<div style="border-left:3px solid rgba(200,130,0,.8);padding-left:8px">'
            f"<b>{_line(block.label)}</b>: {_line('; '.join(block.reasons))}</div>"
        )
    text = _line(block.text.strip())
    if block.kind in ("fact", "finding"):
        label = _line(block.label)
        style = "display:inline-block;min-width:8em;padding-right:1em;opacity:.7"
        return f'<div><span style="{style}">{label}</span>{text}</div>'
    return f'<div style="{_TEXT_STYLES[block.kind]}">{text}</div>'


def _table_html(table: Table) -> str:
    """Render a table, shortened if it is long."""
    count = len(table.columns[0].cells)
    columns = display_columns(
        [replace(column, cells=column.cells[:_MAX_FRAGMENT_ROWS]) for column in table.columns]
    )
    heads = "".join(
        f'<th style="text-align:{"left" if column.is_name else "right"};font-weight:600;'
        f'{_CELL_STYLE}">{_line(column.heading)}</th>'
        for column in columns
    )
    rows = zip(*(column.cells for column in columns), strict=True)
    body = "".join(f"<tr>{''.join(map(_cell_html, columns, cells))}</tr>" for cells in rows)
    left_out = table.left_out + max(0, count - _MAX_FRAGMENT_ROWS)
    note = ""
    if left_out:
        note = f'<div style="opacity:.7">and {names.format_number(left_out)} more</div>'
    return (
        '<div style="overflow-x:auto;margin:6px 0">'
        '<table style="border-collapse:collapse;font-size:inherit;margin:0">'
        f'<thead><tr style="border-bottom:{_BORDER}">{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def _line(text: str) -> str:
    return escape(names.truncate_middle(text, _MAX_LINE_LENGTH))


def _cell_html(column: Column, text: str) -> str:
    widest = _FRAGMENT_NAME_LENGTH * column.lines if column.is_cut else _MAX_LINE_LENGTH
    shown = escape(names.truncate_middle(names.neutral(text), widest))
    title = f' title="{_line(text)}"' if column.is_cut and len(text) > widest else ""
    style = "text-align:left" if column.is_name else "text-align:right;white-space:nowrap"
    if column.is_cut:
        style += ";font-family:ui-monospace,monospace;font-size:12px;white-space:pre-wrap"
    if column.heading == "share" and (found := _PERCENT.match(text)) is not None:
        share = min(100.0, float(found[1]))
        style += (
            f";background:linear-gradient(to left,rgba(66,133,244,.28) {share:g}%,transparent 0)"
        )
    return f'<td{title} style="{style};{_CELL_STYLE}">{shown}</td>'


def page_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for a page: without unknown values, and with a short name if it differs."""
    short = names.truncate_names(
        names.readable_names([row["name"] for row in rows]), _PAGE_NAME_LENGTH
    )
    return [
        {name: value for name, value in row.items() if value is not None}
        | ({"short": brief} if brief != row["name"] else {})
        for row, brief in zip(rows, short, strict=True)
    ]


def fill_page(
    title: str,
    styles: Iterable[str],
    scripts: Iterable[str],
    data: dict[str, Any],
    *,
    allows_fetch: bool = False,
) -> str:
    """Assemble a page.

    Args:
        title: Window title; it is escaped.
        styles: Names of files in `page/`, in order.
        scripts: Names of files in `page/`, in order; they share one private scope.
        data: Data for the scripts, stored in the element `data`; the uprof version is added.
        allows_fetch: If True, the scripts may fetch files from the server of the page.
    """
    style = "\n".join(map(_part, styles))
    script = "(() => {\n'use strict';\n" + "\n".join(map(_part, scripts)) + "\n})();"
    return _fill(
        _part("page.html"),
        {
            "title": escape(names.neutral(title)),
            "style": style,
            "style_hash": _hash(style),
            "connects_to": "; connect-src 'self'" if allows_fetch else "",
            "data": _script_safe_json({"uprof": VERSION, **data}),
            "script": script,
            "script_hash": _hash(script),
        },
    )


def _part(name: str) -> str:
    return Path(__file__).with_name("page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _script_safe_json(data: dict[str, Any]) -> str:
    """Return data as JSON that can neither close its script element nor open another element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _fill(template: str, values: dict[str, str]) -> str:
    """Replace the placeholders of a template; placeholders within values are kept."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += (values[name], rest)
    return "".join(filled)


TextKind = Literal["title", "heading", "fact", "finding", "line", "note"]


class Column(Struct, frozen=True):
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


class Text(Struct, frozen=True):
    """Text with an optional label: name of a fact, cost of a finding, mark of a title."""

    kind: TextKind
    text: str
    label: str = ""
    # (name, value) of the parts of one bar, where a format can draw.
    bar: tuple[tuple[str, float], ...] = ()


class Warnings(Struct, frozen=True):
    """Warning with its reasons."""

    label: str
    reasons: tuple[str, ...]
    kind: Literal["warning"] = "warning"


class Table(Struct, frozen=True):
    """Table of equally long columns."""

    columns: tuple[Column, ...]
    caption: str = ""  # Heading in formats whose tables need one.
    # Number of rows that are not shown.
    left_out: int = 0
    kind: Literal["table"] = "table"


Block: TypeAlias = Text | Warnings | Table


class Document(Struct):
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
        self, kind: TextKind, text: str, label: str = "", bar: tuple[tuple[str, float], ...] = ()
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
    return kind == "note" and before in ("table", "line")


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
