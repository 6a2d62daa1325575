"""The tables of a comparison of devices, from the step downwards, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from unified_prof.analysis.compare.device.allowed import Allowed
from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.analysis.compare.device.lines import Amount, Line
from unified_prof.analysis.compare.device.side import PARTS, Side
from unified_prof.analysis.views.idle import IN_WORDS
from unified_prof.report import words
from unified_prof.report.device.formats import Shown
from unified_prof.report.device.headline import NONE, ratio_text, unit
from unified_prof.report.difference import signed
from unified_prof.report.tables import Column

_SHAPES: Final = 3
"""Shapes that are shown under an operation."""
_IDLE: Final = "idle "

Table = tuple[str, list[Column], int]
"""Heading, columns, rows left out."""


def tables(found: DeviceDifference, shown: Shown) -> Iterable[Table]:
    """Yield the tables from the step downwards; the last ones are of what was asked for."""
    by, top, everything = shown.by, shown.top, shown.everything
    several = found.base.device_count > 1 or found.new.device_count > 1
    where = " of one device" if several else ""
    yield f"One {unit(found)}{where}", _part_columns(found), 0
    if found.classes:
        yield "Work by class", _columns(found, [*found.classes, _all(found)], "class"), 0
    if by == "class":
        return
    if by in ("module", "line"):
        places = found.modules if by == "module" else found.lines
        rows = _changed(found, places, everything=everything)
        yield from _cut(f"Work by {by}", found, rows, top, by)
        return
    if by == "kernel":
        yield from _kernel_tables(found, top, everything=everything)
        return
    for heading, some in _sections(found, found.operations, everything=everything):
        yield from _cut(heading, found, some, top, "operation", shapes=by == "shape")


def _all(found: DeviceDifference) -> Line:
    """Return the row that all others of a table add up to."""
    base, new = (
        Amount(int(leaves.calls.sum()), int(leaves.runs.sum()), int(leaves.total_ns.sum()))
        if len(leaves)
        else None
        for leaves in (found.base.leaves, found.new.leaves)
    )
    return Line("all work", base, new)  # of no class, and so without a limit


def _sections(
    found: DeviceDifference, rows: Sequence[Line], *, everything: bool
) -> list[tuple[str, list[Line]]]:
    """Return rows by what became of them, the largest change first."""
    both = [row for row in rows if row.side == "both"]
    same = [row for row in both if found.change_ns(row) == 0]
    return [
        ("Takes longer in new", [row for row in both if found.change_ns(row) > 0]),
        ("Takes less in new", [row for row in both if found.change_ns(row) < 0][::-1]),
        ("Only in new", [row for row in rows if row.side == "new"]),
        ("Only in base", [row for row in rows if row.side == "base"][::-1]),
        ("Takes the same", same if everything else []),
    ]


def _changed(found: DeviceDifference, rows: Sequence[Line], *, everything: bool) -> list[Line]:
    ordered = sorted(rows, key=lambda row: -abs(found.change_ns(row)))
    return [row for row in ordered if everything or found.change_ns(row) != 0]


def _cut(
    heading: str,
    found: DeviceDifference,
    rows: Sequence[Line],
    top: int,
    first: str,
    *,
    shapes: bool = False,
) -> Iterable[Table]:
    if rows:
        columns = _columns(found, rows[:top], first, shapes=shapes)
        yield heading, columns, max(0, len(rows) - top)


def _kernel_tables(found: DeviceDifference, top: int, *, everything: bool) -> Iterable[Table]:
    """Yield the kernels under each operation, then all kernels by name."""
    pairs = [
        (operation, kernel)
        for operation in _changed(found, found.operations, everything=everything)
        for kernel in sorted(
            found.kernels_of(operation), key=lambda row: -abs(found.change_ns(row))
        )
    ]
    if pairs:
        shown = pairs[:top]
        first = [
            not index or shown[index - 1][0] is not operation
            for index, (operation, _) in enumerate(shown)
        ]
        owners = [one if new else None for (one, _), new in zip(shown, first, strict=True)]
        columns = [
            Column("class", tuple(one.class_name if one else "" for one in owners), is_name=True),
            Column(
                "operation",
                tuple(_counted(found, one) if one else "" for one in owners),
                is_name=True,
            ),
            *_columns(found, [kernel for _, kernel in shown], "kernel"),
        ]
        yield "Kernels under each operation", columns, max(0, len(pairs) - top)
    yield from _cut(
        "Kernels by name",
        found,
        _changed(found, found.kernels, everything=everything),
        top,
        "kernel",
    )


def _part_columns(found: DeviceDifference) -> list[Column]:
    whole = [side.per_share(side.window_ns) for side in (found.base, found.new)]
    rows = [(unit(found), whole[0], whole[1])]
    for name in PARTS:
        before, after = found.part_ns(name)
        if before or after:
            said = name
            if name.startswith(_IDLE):
                said = f"idle: {IN_WORDS.get(name.removeprefix(_IDLE), name)}"
            rows.append((said, before, after))
    return [
        Column("of which", tuple(name for name, _, _ in rows), is_name=True),
        Column("base", tuple(words.duration(before) for _, before, _ in rows)),
        Column(
            "share", tuple(words.share(before, whole[0]) for _, before, _ in rows), importance=5
        ),
        Column("new", tuple(words.duration(after) for _, _, after in rows)),
        Column("share", tuple(words.share(after, whole[1]) for _, _, after in rows), importance=5),
        Column("change", tuple(signed(after - before) for _, before, after in rows)),
        Column(
            "ratio",
            tuple(
                ratio_text(after / before if before and after else None)
                for _, before, after in rows
            ),
            importance=8,
        ),
    ]


def _columns(
    found: DeviceDifference, rows: Sequence[Line], first: str, *, shapes: bool = False
) -> list[Column]:
    """Return the table of some rows; under operations stand their shapes, where there are more."""
    listed: list[tuple[str, Line]] = []
    for row in rows:
        listed.append((_counted(found, row) if first == "operation" else _shown(row.name), row))
        alike = any(one.side == "both" for one in row.shapes) or row.side != "both"
        if first == "operation" and (shapes or (alike and len(row.shapes) > 1)):
            ordered = sorted(row.shapes, key=lambda one: -abs(found.change_ns(one)))
            most = ordered if shapes else ordered[:_SHAPES]
            listed += [(f"  {_counted(found, one)}", one) for one in most]
    lines = [row for _, row in listed]
    columns = [Column(first, tuple(name for name, _ in listed), is_name=True)]
    if any(row.class_name for row in lines) and first != "class":
        columns.insert(0, Column("class", tuple(row.class_name for row in lines), is_name=True))
    if first != "operation":
        for said, side, own in (
            ("base runs", found.base, [row.base for row in lines]),
            ("new runs", found.new, [row.new for row in lines]),
        ):
            columns.append(Column(said, tuple(_runs(one, side) for one in own), importance=6))
    columns += [
        Column("base", tuple(_time(row.base, found.base) for row in lines)),
        Column("new", tuple(_time(row.new, found.new) for row in lines)),
        Column("change", tuple(signed(found.change_ns(row)) for row in lines)),
        Column("ratio", tuple(ratio_text(found.ratio(row)) for row in lines), importance=8),
    ]
    if any(row.class_name in found.allowed and row.side == "both" for row in lines):
        told = tuple(
            _allowed(found.allowed.get(row.class_name) if row.side == "both" else None)
            for row in lines
        )
        columns.append(Column("peaks allow", told, importance=7))
    for heading, places in (
        ("module", [_places(row.modules) for row in lines]),
        ("line", [_places(row.lines) for row in lines]),
    ):
        if any(places):
            columns.append(Column(heading, tuple(places), is_name=True, importance=4))
    return columns


def _counted(found: DeviceDifference, row: Line) -> str:
    """Return a row's name with how often a step has it, on both sides where they differ."""
    counts = [
        _count(amount.calls / side.shares)
        for amount, side in ((row.base, found.base), (row.new, found.new))
        if amount is not None
    ]
    return f"{_shown(row.name)} x{' and x'.join(dict.fromkeys(counts))}"


def _shown(name: str) -> str:
    if name.endswith(" B") and name[:-2].isdigit():
        return words.size(int(name[:-2]))
    return words.neutral(name)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _runs(amount: Amount | None, side: Side) -> str:
    return NONE if amount is None else _count(amount.runs / side.shares)


def _time(amount: Amount | None, side: Side) -> str:
    return NONE if amount is None else words.duration(side.per_share(amount.total_ns))


def _allowed(limits: Allowed | None) -> str:
    """Return the ratio that the peaks allow; `?` marks one of which a peak is uncertain."""
    return "" if limits is None else f"{limits.ratio:.2f} x{'?' if limits.uncertain else ''}"


def _places(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" (+{len(names) - 1})" if len(names) > 1 else ""
    return f"{words.neutral(names[0])}{more}"
