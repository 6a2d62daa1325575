"""Lines and tables for the terminal: they fit it, and are plain text where it is none."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unified_prof.report.tables import Column

_NARROWEST_NAME = 24
"""Below this width of a name column other columns are dropped."""
_REASONS = 20
_UNLIMITED = 100_000
_GAP = 2


class Page:
    """Text that grows from top to bottom.

    Args:
        width: columns of the terminal; None: as wide as the content, as suits a pipe.
        color: whether escape sequences for colour may be used.
    """

    def __init__(self, *, width: int | None, color: bool) -> None:
        self._width = width or _UNLIMITED
        self._output = StringIO()
        self._console = Console(
            file=self._output,
            width=self._width,
            force_terminal=color,
            no_color=not color,
            color_system="standard" if color else None,
            highlight=False,
            emoji=False,
            markup=False,
            soft_wrap=width is None,
        )

    def title(self, text: str) -> None:
        """Add a line that says what follows."""
        self._console.print(Text(text, style="bold"))

    def heading(self, text: str) -> None:
        """Add a line that says what the next table is, after an empty one."""
        self._console.print()
        self._console.print(Text(text, style="bold"))

    def gap(self) -> None:
        """Add an empty line."""
        self._console.print()

    def fact(self, what: str, text: str) -> None:
        """Add a line of the headline."""
        self._console.print(Text.assemble((f"{what:<12}  ", "cyan"), text))

    def remark(self, what: str, text: str) -> None:
        """Add a line about something odd."""
        self._console.print(Text.assemble((f"{what}: ", "yellow"), text))

    def warnings(self, what: str, reasons: Sequence[str]) -> None:
        """Add what is wrong and why: on one line if that is all, else a line for each reason."""
        first, *more = reasons
        if not more:
            self.remark(what, first)
            return
        self._console.print(Text(f"{what}:", style="yellow"))
        for reason in reasons[:_REASONS]:
            self._console.print(Text(f"  {reason}"))
        if len(reasons) > _REASONS:
            self.note(f"  and {len(reasons) - _REASONS:,} more")

    def plain(self, text: str) -> None:
        """Add a line."""
        self._console.print(Text(text))

    def note(self, text: str) -> None:
        """Add a line of less importance."""
        self._console.print(Text(text, style="dim"))

    def table(self, columns: Sequence[Column]) -> None:
        """Add a table; the least important columns go where the terminal is too narrow."""
        shown, widths = _fitting(columns, self._width)
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
        self._console.print(table)

    def text(self) -> str:
        """Return everything, without blanks at the ends of lines."""
        return "\n".join(line.rstrip() for line in self._output.getvalue().split("\n"))


def _fitting(columns: Sequence[Column], width: int) -> tuple[list[Column], list[int]]:
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
