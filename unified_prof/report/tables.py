"""The tables that text and Markdown share: which columns, under which headings.

What texts for people are written on: a terminal's page, or one inside a notebook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

from unified_prof.recording.breakdown_kinds import KINDS
from unified_prof.recording.calls import SIZES
from unified_prof.recording.model import THEN, DeviceTime, Row
from unified_prof.report import names
from unified_prof.report import names as words
from unified_prof.report.figures import Selection

_SIZE_HEADINGS = ("weights", "gradients", "activations", "allocated")
OTHER_TIME = "optimizer and other"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table of text."""

    heading: str
    cells: tuple[str, ...]
    is_name: bool = False
    """Text, to the left; may be shortened. Figures stand to the right and are never cut."""
    is_prose: bool = False
    """Of text: sentences, which are cut only where a terminal has no room."""
    lines: int = 1
    """Of a name: how many times as wide as others it may be."""
    importance: int = 10
    """Where space is short, the least important column goes first; 10 stays."""

    @property
    def is_cut(self) -> bool:
        """Whether its cells may be shortened where a table would be too wide to read."""
        return self.is_name and not self.is_prose


def text_columns(rows: Sequence[tuple[str, ...]]) -> list[Column]:
    """Return rows of words, the first of them the headings, as a table that is never cut."""
    heading, *rest = rows
    return [
        Column(title, tuple(words.neutral(row[index]) for row in rest), is_name=True, is_prose=True)
        for index, title in enumerate(heading)
    ]


def with_readable_names(columns: Sequence[Column]) -> list[Column]:
    """Return columns with names as people read them, C++ symbols by what tells them apart."""
    return [
        replace(column, cells=names.readable_names(column.cells)) if column.is_cut else column
        for column in columns
    ]


def collapse_equal_rows(columns: Sequence[Column]) -> list[Column]:
    """Return columns in which rows that follow one another and differ in nothing are one row.

    Its name says how many there are: `aten::add (x7 alike)`.
    """
    rows = list(zip(*(column.cells for column in columns), strict=True))
    runs = [(row, len(list(group))) for row, group in groupby(rows)]
    if len(runs) == len(rows):
        return list(columns)
    first = next((index for index, column in enumerate(columns) if column.is_name), None)
    return [
        replace(
            column,
            cells=tuple(
                f"{row[index]} (x{times} alike)" if index == first and times > 1 else row[index]
                for row, times in runs
            ),
        )
        for index, column in enumerate(columns)
    ]


def breakdown_columns(selection: Selection) -> list[Column]:
    """Return the columns that a breakdown has figures for."""
    breakdown, rows, by = selection.breakdown, selection.rows, selection.breakdown.by
    timed = breakdown.total_ns is not None

    def column(
        heading: str,
        value: Callable[[Row], float | None],
        show: Callable[..., str],
        importance: int,
    ) -> list[Column]:
        values = [value(row) for row in rows]
        if all(one is None for one in values):
            return []
        return [Column(heading, tuple(map(show, values)), importance=importance)]

    result = [Column(by, tuple(words.neutral(row.name) for row in rows), is_name=True)]
    if by != "step":
        result += column(KINDS[by].counted, lambda row: row.count, words.format_number, 8)
    result += column("time", lambda row: row.total_ns, words.format_duration, 10)
    result += column("share", breakdown.percent, words.format_percent, 9)
    if timed and by != "step":
        result += column("average", lambda row: row.average_ns, words.format_duration, 3)
    result += column("forward", lambda row: row.forward_ns, words.format_duration, 7)
    result += column("backward", lambda row: row.backward_ns, words.format_duration, 7)
    result += _sizes(rows)
    for key in dict.fromkeys(key for row in rows for key in row.extra):
        name, show = _extra(key)
        result += column(name, lambda row, key=key: row.extra.get(key), show, 4)  # type: ignore[misc]
    if any(row.detail for row in rows):
        cells = tuple(words.neutral(row.detail or "") for row in rows)
        lines = 3 if any(THEN in cell for cell in cells) else 1
        detail = Column(KINDS[by].detailed, cells, is_name=True, lines=lines, importance=2)
        result.append(detail)
    return result


_UNITS = {
    "_ns": words.format_duration,
    "_bytes": words.format_size,
    "_percent": words.format_percent,
    "_tflop_per_s": words.format_flops_per_second,
    "_gb_per_s": words.format_gb_per_second,
    "_flops": words.format_flops,
    "_flops_per_byte": words.format_number,
}
"""By the ending of a figure's key: how it is shown."""
_KEPT_UNITS = {"_flops_per_byte": ", FLOP/B"}
"""Endings of which the heading says what the cells do not."""


def _extra(key: str) -> tuple[str, Callable[..., str]]:
    """Return heading and form of a figure of some breakdowns only, by the unit in its key."""
    for unit, show in _UNITS.items():
        if key.endswith(unit):
            heading = key.removesuffix(unit).replace("_", " ")
            return heading + _KEPT_UNITS.get(unit, ""), show
    return key.replace("_", " "), words.format_number


def _sizes(rows: tuple[Row, ...]) -> list[Column]:
    """Return a column for each kind of memory, and their sum where there are several."""
    result = []
    for heading, attribute in zip(_SIZE_HEADINGS, SIZES, strict=True):
        values = [getattr(row, attribute) for row in rows]
        if any(value is not None for value in values):
            result.append(Column(heading, tuple(map(words.format_size, values)), importance=5))
    # What was asked of an allocator was not all in use at once: with it no sum is memory.
    if len(result) > 1 and all(row.allocated_bytes is None for row in rows):
        cells = tuple(words.format_size(row.size_bytes) for row in rows)
        result.insert(0, Column("memory", cells, importance=6))
    return result


def device_columns(devices: tuple[DeviceTime, ...]) -> list[Column]:
    """Return the table of how each device spent its time: in its steps where they are known."""

    def part(value_of: Callable[[DeviceTime], int | None]) -> tuple[str, ...]:
        return tuple(_of_time(value_of(one.told_of), one.told_of.window_ns) for one in devices)

    stepped = any(one.steps is not None for one in devices)

    def whole(one: DeviceTime) -> str:
        text = words.format_duration(one.told_of.window_ns)
        return f"window {text}" if stepped and one.steps is None else text

    result = [
        Column("device", tuple(words.neutral(one.device) for one in devices), is_name=True),
        Column("in steps" if stepped else "window", tuple(map(whole, devices))),
        Column("compute", part(lambda one: one.compute_ns)),
        Column("communication", part(lambda one: one.communication_ns), importance=9),
        Column("overlapped", part(lambda one: one.overlap_ns), importance=7),
        Column("copies", part(lambda one: one.copy_ns), importance=6),
        Column("idle" if stepped else "idle in window", part(lambda one: one.idle_ns)),
    ]
    if stepped:
        window = tuple(words.format_duration(one.window_ns) for one in devices)
        idle = tuple(_of_time(one.idle_ns, one.window_ns) for one in devices)
        result.append(Column("window", window, importance=4))
        result.append(Column("idle in window", idle, importance=4))
    tasks = tuple(words.format_number(one.tasks) for one in devices)
    return [*result, Column("tasks", tasks, importance=3)]


def _of_time(value_ns: int | None, whole_ns: int) -> str:
    text = words.format_duration(value_ns)
    return text if value_ns is None else f"{text} ({words.format_share(value_ns, whole_ns)})"


class SheetWriter(Protocol):
    """Grows from top to bottom; whoever writes on it knows nothing of what it is made of."""

    def title(self, text: str) -> None:
        """Add a line that says what follows."""

    def heading(self, text: str) -> None:
        """Add a line that says what the next table is."""

    def gap(self) -> None:
        """Set what follows apart."""

    def fact(self, what: str, text: str) -> None:
        """Add a line of the headline."""

    def remark(self, what: str, text: str) -> None:
        """Add a line about something odd."""

    def plain(self, text: str) -> None:
        """Add a line."""

    def note(self, text: str) -> None:
        """Add a line of less importance."""

    def left_out(self, count: int) -> None:
        """Say how many rows of a table are not shown."""

    def table(self, columns: Sequence[Column]) -> None:
        """Add a table."""
