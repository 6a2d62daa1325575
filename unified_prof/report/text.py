"""A report for the terminal: tables that fit it, plain text where it is none."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unified_prof.report import tables, words
from unified_prof.report.figures import Figures
from unified_prof.report.tables import Column

_NARROWEST_NAME = 24
"""Below this width of a name column other columns are dropped."""
_UNLIMITED = 100_000
_GAP = 2


def render(reports: Iterable[Figures], *, width: int | None, color: bool) -> str:
    """Return the reports as text.

    Args:
        reports: what to print.
        width: columns of the terminal; None: as wide as the content, as suits a pipe.
        color: whether escape sequences for colour may be used.
    """
    console = Console(
        file=StringIO(),
        width=width or _UNLIMITED,
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=width is None,
    )
    for number, figures in enumerate(reports):
        if number:
            console.print()
        _report(console, figures, width)
    output = console.file
    assert isinstance(output, StringIO)
    lines = output.getvalue().split("\n")
    return "\n".join(line.rstrip() for line in lines)


def _report(console: Console, figures: Figures, width: int | None) -> None:
    console.print(Text(tables.title(figures.summary), style="bold"))
    for what, text in tables.headline(figures):
        console.print(Text.assemble((f"{what:<14}", "cyan"), text))
    if figures.summary.devices:
        console.print()
        console.print(_table(tables.device_columns(figures.summary.devices), width))
    for selection in figures.selections:
        console.print()
        if not selection.rows:
            console.print(Text(f"nothing to break down by {selection.breakdown.by}"))
            continue
        console.print(_table(tables.columns(selection), width))
        if selection.left_out:
            console.print(Text(f"and {words.number(selection.left_out)} more (--top)", style="dim"))
    remarks = tables.remarks(figures)
    if remarks:
        console.print()
    for what, why in remarks:
        console.print(Text.assemble((f"{what}: ", "yellow"), why))


def _table(columns: list[Column], width: int | None) -> Table:
    shown, widths = _fitting(columns, width or _UNLIMITED)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, wide in zip(shown, widths, strict=True):
        table.add_column(
            column.heading,
            justify="left" if column.is_name else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=wide,
            style="dim" if column.is_name and column is not shown[0] else None,
        )
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*map(Text, cells))
    return table


def _fitting(columns: list[Column], width: int) -> tuple[list[Column], list[int]]:
    """Drop the least important columns until names have room; return the widths of the rest."""
    shown = list(columns)
    while True:
        widths = [_width(column) for column in shown]
        over = sum(widths) + _GAP * (len(shown) - 1) - width
        for index in sorted(range(len(shown)), key=lambda index: -widths[index]):
            if shown[index].is_name and over > 0:
                cut = min(over, max(0, widths[index] - _NARROWEST_NAME))
                widths[index] -= cut
                over -= cut
        if over <= 0 or all(column.importance >= 10 for column in shown):
            return shown, widths
        shown.remove(min(reversed(shown), key=lambda column: column.importance))


def _width(column: Column) -> int:
    return max(map(cell_len, (column.heading, *column.cells)))
