"""Renderers of any document as Markdown, and of any data as JSON and CSV."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from io import StringIO

from unified_prof.base.text import guard_formula
from unified_prof.report import names
from unified_prof.report.document import (
    Block,
    Column,
    Document,
    Table,
    Warnings,
    display_columns,
)

_MAX_NAME_LENGTH = 100  # Names longer than this are shortened in Markdown tables.
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|~^$:@-])")


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
        label, *reasons = map(escape_markdown, (block.label, *block.reasons))
        if len(reasons) == 1:
            return [f"- **{label}**: {reasons[0]}"]
        return [f"**{label}**", "", *(f"- {reason}" for reason in reasons), ""]
    if isinstance(block, Table):
        lines = [f"### {escape_markdown(block.caption)}", ""] if block.caption else []
        lines += _markdown_table(block.columns, full_names=full_names)
        if block.left_out:
            lines += ["", f"and {names.format_number(block.left_out)} more"]
        return [*lines, ""]
    text = escape_markdown(block.text.strip())
    marks = {"title": "## ", "heading": "### "}
    if block.kind in ("fact", "finding"):
        return [f"- **{escape_markdown(block.label)}**: {text}" if block.label else f"- {text}"]
    if block.kind == "heading":
        text = text[:1].upper() + text[1:]
    if block.kind == "title" and block.label:
        text = f"{block.label} {text}"
    return [f"{marks.get(block.kind, '')}{text}", ""]


def escape_markdown(text: str) -> str:
    """Escape text for Markdown: no markup, links, mentions or HTML."""
    text = names.neutral(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\1", text)


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
