"""Text of documents for terminals and pipes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from unified_prof.report import names
from unified_prof.report.document import (
    Column,
    Document,
    Table,
    Text,
    Warnings,
    display_columns,
    render_markdown,
)

if TYPE_CHECKING:
    from unified_prof.report.formats import ClusterRequest, ReportRequest

# Name columns are shortened to this width, or share of the terminal, before others are dropped.
_MIN_NAME_WIDTH, _MIN_NAME_SHARE = 24, 0.3
# Width of the first name column if even the columns that are never dropped do not fit.
_MIN_FIRST_NAME_WIDTH = 12
_MAX_NAME_WIDTH = 100
_MAX_TABLE_WIDTH = 200  # Maximum width of a table in a pipe, unless its figures need more.
_PIPE_WIDTH = 120  # Width at which facts and findings are wrapped in a pipe.
_UNLIMITED = 100_000  # Wider than any line: no wrapping.
# Minimum width of the labels of facts.
_MIN_LABEL_WIDTH = 12
_GAP = 2
_MAX_REASONS = 20
_BAR_WIDTH = 60
# Characters of the parts of a bar; the rest of an iteration is blank.
_BAR_CHARACTERS = {
    "compute": "█",
    "exposed communication": "▓",
    "exposed copies": "▒",
    "unrecorded work": "░",
    "idle": "·",
    "forward": "█",
    "backward": "▓",
    "optimizer": "▒",
    "waiting for CPU": "·",
    "data loading": "░",
    "host wait": "·",
    "weights": "█",
    "optimizer state": "▓",
    "gradients": "▒",
    "activations": "░",
    names.OTHER_TENSORS: "·",
    f"weights, {names.OTHER_TENSORS}": "·",
}
# A number and its unit stay on one line: the space between them is this character while wrapping.
_UNBREAKABLE = "\ue000"
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=[%A-Za-zµ])")
_STYLES = {"title": "bold", "heading": "bold", "note": "dim"}


def render_text(
    document: Document, *, width: int | None = None, color: bool = False, full_names: bool = False
) -> str:
    """Render a document as text without trailing spaces; the width of a pipe is None.

    If `full_names`, neither names are shortened nor lines wrapped.
    """
    renderer = _TextRenderer(width, color=color, full_names=full_names)
    for is_separated, blocks in document.groups():
        renderer.add(blocks, document.more, is_separated=is_separated)
    return renderer.text()


def _break_paths(text: str, room: int) -> str:
    """Split paths that are longer than a line behind slashes."""
    lines = []
    for word in text.split(" "):
        parts = re.findall("[^/]*/|[^/]+", word) if cell_len(word) > room else [word]
        lines.append(parts[0] if parts else "")
        for part in parts[1:]:
            if cell_len(lines[-1] + part) > room:
                lines.append("")
            lines[-1] += part
    return " ".join(lines)


def render_document(document: Document, shape: str, request: ReportRequest | ClusterRequest) -> str:
    """Render a document as Markdown if `shape` says so, else as text, see `render_text`."""
    if shape == "markdown":
        return render_markdown(document, full_names=request.full_names)
    return render_text(
        document, width=request.width, color=request.color, full_names=request.full_names
    )


class _TextRenderer:
    def __init__(self, width: int | None, *, color: bool, full_names: bool) -> None:
        self._width = None if full_names else width
        self._full_names = full_names
        self._draws = width is not None
        self._output = StringIO()
        self._console = Console(
            file=self._output,
            width=self._width or _UNLIMITED,
            force_terminal=color,
            force_jupyter=False,  # in a kernel the text would be displayed, not returned
            no_color=not color,
            color_system="standard" if color else None,
            highlight=False,
            emoji=False,
            markup=False,
            soft_wrap=self._width is None,
        )

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._output.getvalue().split("\n"))

    def add(self, blocks: Sequence[object], more: str, *, is_separated: bool) -> None:
        """Add consecutive blocks of one kind."""
        labels = [block.label for block in blocks if isinstance(block, Text)]
        label_width = max(map(cell_len, labels), default=0)
        for index, block in enumerate(blocks):
            joined = isinstance(block, Text) and (block.label or block.kind == "note")
            is_further_table = bool(index) and isinstance(block, Table)
            if is_further_table or (is_separated and not (index and joined)):
                self._console.print()
            if isinstance(block, Table):
                self._table(block, more)
            elif isinstance(block, Warnings):
                self._warning(block)
            elif isinstance(block, Text):
                if block.kind == "finding" and not index:
                    self._console.print(RichText("findings", style="bold"))
                self._text(block, label_width)

    def _text(self, block: Text, label_width: int) -> None:
        if block.kind in ("fact", "finding"):
            minimum = _MIN_LABEL_WIDTH if block.kind == "fact" else 0
            label = f"{block.label:<{max(label_width, minimum)}}  "
            self._print(block.text, RichText(label, "cyan"), pipe_width=_PIPE_WIDTH)
            if block.bar and self._draws:
                self._console.print(f"{' ' * len(label)}{_bar(block.bar)}")
            return
        text = block.text.lstrip()
        indent = " " * (len(block.text) - len(text))
        if text.startswith("- "):  # The lines of an item are indented to its text.
            indent, text = f"{indent}- ", text[2:]
        self._print(text, RichText(indent), style=_STYLES.get(block.kind, ""))

    def _print(self, text: str, label: RichText, *, style: str = "", pipe_width: int = 0) -> None:
        """Print a label and a text; further lines are indented to the beginning of the text."""
        width = self._width or (0 if self._full_names else pipe_width)
        room = width - label.cell_len
        lines = [text]
        if 0 < room < cell_len(text):
            whole = _NUMBER_AND_UNIT.sub(_UNBREAKABLE, _break_paths(text, room))
            if self._width is None:
                wrapped = textwrap.wrap(whole, room, break_long_words=False, break_on_hyphens=False)
            else:
                wrapped = [line.plain for line in RichText(whole).wrap(self._console, room)]
            lines = [line.replace(_UNBREAKABLE, " ").rstrip() for line in wrapped]
        indent = RichText(" " * label.cell_len)
        for index, line in enumerate(lines):
            start = indent if index else label
            self._console.print(RichText.assemble(start, (line, style)))

    def _warning(self, block: Warnings) -> None:
        if len(block.reasons) == 1:
            self._print(f"{block.label}: {block.reasons[0]}", RichText(), style="yellow")
            return
        self._print(f"{block.label}:", RichText(), style="yellow")
        for reason in block.reasons[:_MAX_REASONS]:
            self._print(reason, RichText("  "))
        if len(block.reasons) > _MAX_REASONS:
            left_out = f"  and {len(block.reasons) - _MAX_REASONS:,} more"
            self._console.print(RichText(left_out, "dim"))

    def _table(self, table: Table, more: str) -> None:
        columns, widths = self._fit(display_columns(table.columns, full_names=self._full_names))
        shown = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        headings = _headings(columns, widths)
        for column, heading, width in zip(columns, headings, widths, strict=True):
            shown.add_column(
                heading,
                justify="left" if column.is_name else "right",
                no_wrap=not column.is_prose,
                width=width,
                style="dim" if column.is_name and column is not columns[0] else None,
            )
        for cells in zip(*map(_cut_cells, columns, widths), strict=True):
            shown.add_row(*map(RichText, cells))
        self._console.print(shown)
        if table.left_out:
            left_out = f"and {names.format_number(table.left_out)} more{more}"
            self._console.print(RichText(left_out, style="dim"))

    def _fit(self, columns: Sequence[Column]) -> tuple[list[Column], list[int]]:
        """Return the columns that fit and their widths."""
        if self._full_names:
            return list(columns), [_natural_width(column) for column in columns]
        if self._width is None:
            widths = [
                min(_natural_width(column), column.lines * _MAX_NAME_WIDTH)
                if column.is_cut
                else _natural_width(column)
                for column in columns
            ]
            _shorten(columns, widths, _MAX_TABLE_WIDTH, _MIN_NAME_WIDTH, prose=False)
            return list(columns), widths
        return _fit_terminal(columns, self._width)


def _fit_terminal(columns: Sequence[Column], width: int) -> tuple[list[Column], list[int]]:
    """Return the most important columns that fit, and their widths; the left ones if equal."""
    whole = {id(column): _natural_width(column) for column in columns}
    stacked = {id(column): _natural_width(column, stacks=True) for column in columns}

    name_width = max(_MIN_NAME_WIDTH, int(_MIN_NAME_SHARE * width))

    def fit(shown: Sequence[Column], minimum: int = name_width) -> list[int] | None:
        for natural in (whole, stacked):
            widths = [natural[id(column)] for column in shown]
            if _shorten(shown, widths, width, minimum):
                room = width - sum(widths) - _GAP * (len(widths) - 1)
                for index, column in enumerate(shown):  # Stack only the headings that need it.
                    if 0 < (more := whole[id(column)] - natural[id(column)]) <= room:
                        widths[index] += more
                        room -= more
                return widths
        return None

    def chosen(kept: set[int]) -> list[Column]:
        return [column for index, column in enumerate(columns) if index in kept]

    kept = {index for index, one in enumerate(columns) if not index or _is_kept(one)}
    others = set(range(len(columns))) - kept
    for index in sorted(
        others, key=lambda index: (-columns[index].importance * columns[index].filled, index)
    ):
        if fit(chosen(kept | {index})) is not None:
            kept.add(index)
    shown = chosen(kept)
    if (widths := fit(shown) or fit(shown, _MIN_FIRST_NAME_WIDTH)) is None:
        widths = [stacked[id(column)] for column in shown]
        _shorten(shown, widths, width, _MIN_FIRST_NAME_WIDTH)
    return shown, widths


def _is_kept(column: Column) -> bool:
    return column.importance >= 10 and column.filled > 0


def _shorten(
    columns: Sequence[Column], widths: list[int], room: int, minimum: int, *, prose: bool = True
) -> bool:
    """Shorten name columns in place, the widest first; return True if the table fits."""
    over = sum(widths) + _GAP * (len(widths) - 1) - room
    for index in sorted(range(len(widths)), key=lambda index: -widths[index]):
        if over > 0 and (columns[index].is_name if prose else columns[index].is_cut):
            least = minimum * 5 // 6 if columns[index].is_prose else minimum  # Prose is wrapped.
            cut = min(over, max(0, widths[index] - least))
            if (short := _width_without_remarks(columns[index])) is not None:
                cut = widths[index] - min(short, widths[index])
            widths[index] -= cut
            over -= cut
    return over <= 0


def _cut_cells(column: Column, width: int) -> Sequence[str]:
    """Return cells of at most `width` characters, or, for prose, cells that are wrapped to it."""
    if column.is_prose:
        return column.cells
    distinct = names.truncate_names(column.cells, width)
    return [names.truncate_middle(cell, width) for cell in distinct]


def _natural_width(column: Column, *, stacks: bool = False) -> int:
    """Return the width of a column; if `stacks`, the heading of figures has a word per line."""
    words = column.heading.split() if stacks and not column.is_name else [column.heading]
    return max(map(cell_len, (*words, *column.cells)))


def _width_without_remarks(column: Column) -> int | None:
    """Return the width of names without the remarks that all have; None if some have none."""
    short = [names.without_remark(cell) for cell in column.cells]
    if len(set(short)) < len(set(column.cells)) or any(map(str.__eq__, short, column.cells)):
        return None
    return max(map(cell_len, (column.heading, *short)))


def _headings(columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """Return the headings, in lines if their columns are narrower than they are."""
    lines = [
        [column.heading]
        if column.is_name or cell_len(column.heading) <= width
        else textwrap.wrap(column.heading, width, break_long_words=False, break_on_hyphens=False)
        for column, width in zip(columns, widths, strict=True)
    ]
    height = max(map(len, lines))
    return ["\n".join([""] * (height - len(one)) + one) for one in lines]


def _bar(parts: Sequence[tuple[str, float]]) -> str:
    """Draw values as parts of one bar."""
    total = sum(value for _, value in parts) or 1.0
    bar, reached = "", 0.0
    for name, value in parts:
        reached += value
        end = round(_BAR_WIDTH * reached / total)
        bar += _BAR_CHARACTERS.get(name, " ") * (end - len(bar))
    return bar
