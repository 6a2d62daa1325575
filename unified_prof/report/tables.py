"""Tables that text and Markdown share: columns and headings; interface of text pages."""

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
    """Column of a text table."""

    heading: str
    cells: tuple[str, ...]
    # Left-aligned text that may be shortened. Figures are right-aligned and never cut.
    is_name: bool = False
    # Sentences, cut only if the terminal is too narrow.
    is_prose: bool = False
    # Width limit of a name, in multiples of other names.
    lines: int = 1
    # If space is short, the least important column is dropped first; 10 is never dropped.
    importance: int = 10

    @property
    def is_cut(self) -> bool:
        """Return True if cells may be shortened when a table is too wide."""
        return self.is_name and not self.is_prose


def text_columns(rows: Sequence[tuple[str, ...]]) -> list[Column]:
    """Return rows of text, headings first, as a table that is never cut."""
    heading, *rest = rows
    return [
        Column(title, tuple(words.neutral(row[index]) for row in rest), is_name=True, is_prose=True)
        for index, title in enumerate(heading)
    ]


def with_readable_names(columns: Sequence[Column]) -> list[Column]:
    """Return columns with display names."""
    return [
        replace(column, cells=names.readable_names(column.cells)) if column.is_cut else column
        for column in columns
    ]


def collapse_equal_rows(columns: Sequence[Column]) -> list[Column]:
    """Merge consecutive equal rows into one.

    The name of the merged row has their number: `aten::add (x7)`.
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
                f"{row[index]} (x{times})" if index == first and times > 1 else row[index]
                for row, times in runs
            ),
        )
        for index, column in enumerate(columns)
    ]


def breakdown_columns(selection: Selection) -> list[Column]:
    """Return the columns for which a breakdown has figures."""
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
        name, show = _extra_column(key)
        result += column(name, lambda row, key=key: row.extra.get(key), show, 4)  # type: ignore[misc]
    if any(row.detail for row in rows):
        cells = tuple(words.neutral(row.detail or "") for row in rows)
        lines = 3 if any(THEN in cell for cell in cells) else 1
        detail = Column(KINDS[by].detailed, cells, is_name=True, lines=lines, importance=2)
        result.append(detail)
    return result


# Ending of a key -> formatter.
_UNITS = {
    "_ns": words.format_duration,
    "_bytes": words.format_size,
    "_percent": words.format_percent,
    "_tflop_per_s": words.format_flops_per_second,
    "_gb_per_s": words.format_gb_per_second,
    "_flops": words.format_flops,
    "_flops_per_byte": words.format_number,
}
# Endings whose unit is part of the heading.
_KEPT_UNITS = {"_flops_per_byte": ", FLOP/B"}


def _extra_column(key: str) -> tuple[str, Callable[..., str]]:
    """Return heading and formatter of an extra figure, by the unit in its key."""
    for unit, show in _UNITS.items():
        if key.endswith(unit):
            heading = key.removesuffix(unit).replace("_", " ")
            return heading + _KEPT_UNITS.get(unit, ""), show
    return key.replace("_", " "), words.format_number


def _sizes(rows: tuple[Row, ...]) -> list[Column]:
    """Return a column per kind of memory, and their sum if there are several."""
    result = []
    for heading, attribute in zip(_SIZE_HEADINGS, SIZES, strict=True):
        values = [getattr(row, attribute) for row in rows]
        if any(value is not None for value in values):
            result.append(Column(heading, tuple(map(words.format_size, values)), importance=5))
    # Requested allocations were not all in use at once, so a sum would not be memory in use.
    if len(result) > 1 and all(row.allocated_bytes is None for row in rows):
        cells = tuple(words.format_size(row.size_bytes) for row in rows)
        result.insert(0, Column("memory", cells, importance=6))
    return result


def device_columns(devices: tuple[DeviceTime, ...]) -> list[Column]:
    """Return the table of device times, within steps if they are known."""

    def part(value_of: Callable[[DeviceTime], int | None]) -> tuple[str, ...]:
        return tuple(_time_column(value_of(one.told_of), one.told_of.window_ns) for one in devices)

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
        idle = tuple(_time_column(one.idle_ns, one.window_ns) for one in devices)
        result.append(Column("window", window, importance=4))
        result.append(Column("idle in window", idle, importance=4))
    tasks = tuple(words.format_number(one.tasks) for one in devices)
    return [*result, Column("tasks", tasks, importance=3)]


def _time_column(value_ns: int | None, whole_ns: int) -> str:
    text = words.format_duration(value_ns)
    return text if value_ns is None else f"{text} ({words.format_share(value_ns, whole_ns)})"


class SheetWriter(Protocol):
    """Interface of a text page that grows from top to bottom."""

    def title(self, text: str) -> None:
        """Add a title."""

    def heading(self, text: str) -> None:
        """Add the heading of a table."""

    def gap(self) -> None:
        """Add vertical space."""

    def fact(self, what: str, text: str) -> None:
        """Add a headline figure."""

    def remark(self, what: str, text: str) -> None:
        """Add a warning."""

    def plain(self, text: str) -> None:
        """Add a line."""

    def note(self, text: str) -> None:
        """Add a less important line."""

    def left_out(self, count: int) -> None:
        """Add the number of rows that are not shown."""

    def table(self, columns: Sequence[Column]) -> None:
        """Add a table."""
