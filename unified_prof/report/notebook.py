"""HTML fragments for notebooks: documents and objects of the public API.

Notebook servers strip scripts, style sheets and links, so fragments use only inline styles, with
half-transparent colors for light and dark themes. Text is escaped and the size is limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from html import escape
from pathlib import Path

from unified_prof.base.display import DisplayedList
from unified_prof.compare.device_diff import DeviceDifference
from unified_prof.compare.diff import Difference
from unified_prof.compare.gate import Verdict
from unified_prof.recording.model import Advice
from unified_prof.report import names
from unified_prof.report.advice import add_advice
from unified_prof.report.api import Answer
from unified_prof.report.device_documents import device_document
from unified_prof.report.document import (
    Block,
    Column,
    Document,
    Table,
    Warnings,
    display_columns,
)
from unified_prof.report.figures import Figures, select_rows
from unified_prof.report.formats import DeviceRequest
from unified_prof.report.operation_difference import add_difference, verdict_document
from unified_prof.report.report_document import add_run_footer, report_document
from unified_prof.sqlite.reader import Report

# Maximum rows of each table of an object of the public API.
_MAX_ROWS = 10
# Maximum breakdowns of a report if none was selected.
_MAX_BREAKDOWNS = 3
# Maximum items of a list.
_MAX_ITEMS = 8
_MAX_FINDINGS = 5
_MAX_TABLE_NAMES = 40
# Maximum rows of any table in a fragment.
_MAX_FRAGMENT_ROWS = 25
_MAX_NAME_LENGTH = 90
_MAX_LINE_LENGTH = 600
# Maximum characters of a fragment, without its last line.
_MAX_FRAGMENT_LENGTH = 96 * 1024
_BORDER = "1px solid rgba(128,128,128,.35)"
_CELL_STYLE = "padding:2px 10px 2px 0;border:none"
_PERCENT = re.compile(r"<?(\d+(?:\.\d+)?) %$")
_TEXT_STYLES = {
    "title": "font-weight:600;margin:0 0 4px",
    "heading": "font-weight:600;margin:10px 0 2px",
    "line": "",
    "note": "opacity:.7",
}


def object_html(shown: object) -> str:
    """Return an object of the public API as HTML without scripts, of limited size."""
    document = Document()
    _add(document, shown)
    return render_fragment(document)


def run_html(
    files: Mapping[str, Iterable[Path]], *, failure: str | None = None, top: int = _MAX_ROWS
) -> str:
    """Return the result of a run, as `uprof run` prints it."""
    document = Document()
    if failure is not None:
        document.warning("incomplete", failure)
    add_run_footer(document, files, top=top)
    return render_fragment(document)


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
        span = f'<span style="display:inline-block;min-width:8em;opacity:.7">{label}</span>'
        return f"<div>{span}{text}</div>"
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
    widest = _MAX_NAME_LENGTH * column.lines if column.is_cut else _MAX_LINE_LENGTH
    shown = escape(names.truncate_middle(names.neutral(text), widest))
    title = f' title="{_line(text)}"' if column.is_cut and len(text) > widest else ""
    style = "text-align:left" if column.is_name else "text-align:right;white-space:nowrap"
    if column.is_cut:
        style += ";font-family:ui-monospace,monospace;font-size:12px"
    if column.heading == "share" and (found := _PERCENT.match(text)) is not None:
        share = min(100.0, float(found[1]))
        style += (
            f";background:linear-gradient(to left,rgba(66,133,244,.28) {share:g}%,transparent 0)"
        )
    return f'<td{title} style="{style};{_CELL_STYLE}">{shown}</td>'


def _add(document: Document, shown: object) -> None:
    """Add an object of the public API to a document."""
    if isinstance(shown, DisplayedList):
        for one in shown[:_MAX_ITEMS]:
            _add(document, one)
        if len(shown) > _MAX_ITEMS:
            document.note(f"and {names.format_number(len(shown) - _MAX_ITEMS)} more")
        if not shown:
            document.note("nothing")
    elif isinstance(shown, Answer):
        _add_figures(document, shown.figures)
    elif isinstance(shown, DeviceDifference):
        document.add(device_document(shown, DeviceRequest(top=_MAX_ROWS)))
    elif isinstance(shown, Difference):
        add_difference(document, shown, top=_MAX_ROWS, everything=False)
    elif isinstance(shown, Verdict):
        document.add(verdict_document(shown))
    elif isinstance(shown, Advice):
        document.title("findings")
        add_advice(document, shown, top=_MAX_FINDINGS)
    elif isinstance(shown, Report):
        _add_report(document, shown)
    else:
        raise TypeError(f"no HTML representation of {type(shown).__name__}")


def _add_figures(document: Document, figures: Figures) -> None:
    shown = tuple(
        select_rows(one.breakdown, top=_MAX_ROWS) for one in figures.selections[:_MAX_BREAKDOWNS]
    )
    document.add(report_document([replace(figures, selections=shown)]))
    others = figures.selections[_MAX_BREAKDOWNS:]
    if others:
        document.note(
            f"more breakdowns: {', '.join(one.breakdown.by for one in others)} (.breakdown(NAME))"
        )


def _add_report(document: Document, report: Report) -> None:
    document.title(str(report.path))
    document.fact("family", report.family)
    document.fact("revision", report.revision or "unknown")
    tables = ", ".join(report.tables[:_MAX_TABLE_NAMES])
    left_out = len(report.tables) - _MAX_TABLE_NAMES
    document.fact("tables", f"{tables} and {left_out} more" if left_out > 0 else tables)
