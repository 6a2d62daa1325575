"""A page inside somebody else's: HTML for notebooks, without scripts, style sheets or links.

Notebooks are sent around and shown by servers that keep only what cannot do harm. So the styles
stand with the elements, colours are the page's own (half transparent greys go with light and dark),
all text is escaped, and there is an end to it: what would be too long is cut and says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from unified_prof.plain import printable
from unified_prof.report import names, tables, words
from unified_prof.report.tables import Column

_ROWS = 25
"""Of a table."""
_WIDEST_NAME = 90
_LONGEST_LINE = 600
_LARGEST = 96 * 1024
"""Characters of a whole page, but for what its end says."""
_LINE = "1px solid rgba(128,128,128,.35)"
_SMALL = "padding:2px 10px 2px 0;border:none"
_PERCENT = re.compile(r"<?(\d+(?:\.\d+)?) %$")


class InertPage:
    """HTML that grows from top to bottom and ends before it is too large."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0
        self._cut = 0

    def title(self, text: str) -> None:
        """Add a line that says what follows."""
        self._add(f'<div style="font-weight:600;margin:0 0 4px">{_line(text)}</div>')

    def heading(self, text: str) -> None:
        """Add a line that says what the next table is."""
        self._add(f'<div style="font-weight:600;margin:10px 0 2px">{_line(text)}</div>')

    def gap(self) -> None:
        """Set what follows apart."""
        self._add('<div style="height:8px"></div>')

    def fact(self, what: str, text: str) -> None:
        """Add a line of the headline."""
        label = f'<span style="display:inline-block;min-width:8em;opacity:.7">{_line(what)}</span>'
        self._add(f"<div>{label}{_line(text)}</div>")

    def remark(self, what: str, text: str) -> None:
        """Add a line about something odd."""
        self._add(
            '<div style="border-left:3px solid rgba(200,130,0,.8);padding-left:8px">'
            f"<b>{_line(what)}</b>: {_line(text)}</div>"
        )

    def plain(self, text: str) -> None:
        """Add a line."""
        self._add(f"<div>{_line(text.strip())}</div>")

    def note(self, text: str) -> None:
        """Add a line of less importance."""
        self._add(f'<div style="opacity:.7">{_line(text)}</div>')

    def left_out(self, count: int) -> None:
        """Say how many rows of a table are not shown."""
        self.note(f"and {words.number(count)} more")

    def table(self, columns: Sequence[Column]) -> None:
        """Add a table, of a long one the first rows."""
        count = max(len(column.cells) for column in columns)
        shown = [replace(column, cells=column.cells[:_ROWS]) for column in columns]
        columns = tables.without_repetition(tables.readable(shown))
        heads = "".join(_head(column) for column in columns)
        rows = zip(*(column.cells for column in columns), strict=True)
        body = "".join(f"<tr>{''.join(map(_cell, columns, cells))}</tr>" for cells in rows)
        self._add(
            '<div style="overflow-x:auto;margin:6px 0">'
            '<table style="border-collapse:collapse;font-size:inherit;margin:0">'
            f'<thead><tr style="border-bottom:{_LINE}">{heads}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )
        if count > _ROWS:
            self.left_out(count - _ROWS)

    def html(self) -> str:
        """Return all of it."""
        end = ""
        if self._cut:
            end = f'<div style="opacity:.7">too long to show: {self._cut:,} more lines</div>'
        return (
            '<div style="font:13px/1.45 system-ui,sans-serif;color:inherit;max-width:100%">'
            f"{''.join(self._parts)}{end}</div>"
        )

    def _add(self, part: str) -> None:
        if self._cut or self._size + len(part) > _LARGEST:
            self._cut += 1
            return
        self._parts.append(part)
        self._size += len(part)


def _line(text: str) -> str:
    return escape(names.middle(printable(text), _LONGEST_LINE))


def _head(column: Column) -> str:
    side = "left" if column.is_name else "right"
    return f'<th style="text-align:{side};font-weight:600;{_SMALL}">{_line(column.heading)}</th>'


def _cell(column: Column, text: str) -> str:
    widest = _WIDEST_NAME * column.lines if column.is_cut else _LONGEST_LINE
    shown = escape(names.middle(printable(text), widest))
    title = ""
    if column.is_cut and len(text) > widest:
        title = f' title="{_line(text)}"'
    look = "text-align:left" if column.is_name else "text-align:right;white-space:nowrap"
    if not column.is_prose and column.is_name:
        look += ";font-family:ui-monospace,monospace;font-size:12px"
    if column.heading == "share" and (found := _PERCENT.match(text)) is not None:
        part = min(100.0, float(found[1]))
        look += f";background:linear-gradient(to left,rgba(66,133,244,.28) {part:g}%,transparent 0)"
    return f'<td{title} style="{look};{_SMALL}">{shown}</td>'
