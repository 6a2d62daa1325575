"""Headline, remarks, tables and rows of a comparison of device recordings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from unified_prof.compare.comparable import PEAK
from unified_prof.compare.device_side import PARTS, UNKNOWN_DEVICE, Side
from unified_prof.compare.device_tables import (
    MIN_ROW_CHANGE,
    Allowed,
    Amount,
    DeviceDifference,
    FindingChange,
    Line,
)
from unified_prof.explain.roofline.peaks import Peak
from unified_prof.recording.idle import IN_WORDS
from unified_prof.report import names
from unified_prof.report.document import Column, name_column
from unified_prof.report.finding_lines import finding_summary
from unified_prof.report.formats import DeviceRequest
from unified_prof.report.operation_difference import IDENTICAL_SIDES, comparison_text, format_signed

NONE: Final = "-"

_LARGE_RATIO: Final = 100  # Ratios from here on are shown without decimals.
_SMALL_RATIO: Final = 0.01  # Ratios below this are shown as `<0.01`.
_MAX_FINDINGS: Final = 3  # Changed findings above the tables.


def device_title(found: DeviceDifference) -> str:
    """Return the names of both sides."""
    return f"{names.neutral(found.base.label)} -> {names.neutral(found.new.label)}"


def device_headline(found: DeviceDifference) -> list[tuple[str, str]]:
    """Return the headline as (label, text): both devices, and the step."""
    lines = [("base", _side(found.base)), ("new", _side(found.new))]
    before, after = (side.per_share(side.window_ns) for side in (found.base, found.new))
    if before and after:
        change = f"{format_signed(after - before)}, {ratio_text(after / before)}"
        lines.append(
            (
                unit(found),
                f"{names.format_duration(before)} -> {names.format_duration(after)} ({change})",
            )
        )
    for metric, comparison in found.totals.items():
        if found.same_devices or metric == PEAK:
            is_size = metric == PEAK
            said = comparison_text(comparison, is_size=is_size)
            if found.identical:
                show = names.format_size if is_size else names.format_duration
                said = f"{show(comparison.new_median)} on both sides"
            elif not found.same_devices:
                base, new = comparison.base_median, comparison.new_median
                said = f"{names.format_size(base)} -> {names.format_size(new)}"
            lines.append((metric if is_size else "median step", said))
    lines += [finding_change(found, change) for change in found.findings[:_MAX_FINDINGS]]
    return lines


def finding_change(found: DeviceDifference, change: FindingChange) -> tuple[str, str]:
    """Return the outcome of a finding whose cost changed, and its costs and cause."""
    before, after = (
        "unknown" if cost is None else names.format_duration(cost)
        for cost in (change.base_ns, change.new_ns)
    )
    label, costs = "finding", f"{before} -> {after}"
    if change.base_ns == 0:
        label, costs = "new finding", after
    elif change.new_ns == 0:
        label, costs = "no longer found", before
    per = "/step" if found.new.steps else ""
    return label, f"{costs}{per}  {names.neutral(finding_summary(change.finding))}"


def device_verdict(found: DeviceDifference) -> str:
    """Return a sentence with the change of the step and the kernel class that changed most."""
    if found.identical:
        return IDENTICAL_SIDES
    before, after = (side.per_share(side.window_ns) for side in (found.base, found.new))
    text = f"The {unit(found)} takes {names.format_duration(after)}"
    if before:
        text += f" instead of {names.format_duration(before)} ({ratio_text(after / before)})"
    if found.findings:
        label, change = finding_change(found, found.findings[0])
        costs, _, finding = change.partition("  ")
        return f"{text}. {label.capitalize()}, {costs}: {finding}."
    row = max(found.classes, key=lambda row: abs(found.change_ns(row)), default=None)
    if row is None or not found.change_ns(row):
        return f"{text}."
    text += f"; largest change in {row.name} kernels: {format_signed(found.change_ns(row))}"
    if (ratio := found.ratio(row)) is not None:
        text += f", {ratio_text(ratio)}"
        if row.class_name in found.allowed:
            text += f" (attainable {_attainable_ratio(found.allowed[row.class_name])})"
    return f"{text}."


def device_remarks(found: DeviceDifference) -> list[str]:
    """Return notes on how to read the figures."""
    lines = list(found.left_out)
    unknown = {
        name: side
        for name, side in (("base", found.base), ("new", found.new))
        if UNKNOWN_DEVICE in side.devices or not side.devices
    }
    if found.identical:
        remark = IDENTICAL_SIDES
    elif found.same_devices:
        remark = "both sides ran on the same device model"
    elif unknown:
        remark = f"{_unnamed_devices(unknown)}: times are shown without a verdict"
    else:
        remark = "the devices differ: times are shown without a verdict"
    lines.append(remark)
    lines += _peaks(found)
    lines.append("kernel time is summed over streams and can exceed the compute part of a step")
    return lines


def _unnamed_devices(unknown: Mapping[str, Side]) -> str:
    """Describe the sides whose device was not recorded, with the device whose limits apply."""
    said = []
    for name, side in unknown.items():
        like = f" (properties of {side.limits.name})" if side.limits else ""
        said.append(f"{name}{like}")
    return f"the device of {' and '.join(said)} was not recorded"


def _side(side: Side) -> str:
    models = ", ".join(side.devices) or "no device"
    count = f"{side.device_count} x " if side.device_count > 1 else ""
    parts = [f"{count}{models}"]
    parts += [f"{name} {value}" for name, value in side.versions]
    return f"{', '.join(parts)}; {_amount_of_steps(side)}"


def _amount_of_steps(side: Side) -> str:
    of = f" of {side.recordings} recordings" if side.recordings > 1 else ""
    if side.steps is None:
        return f"no steps{of}"
    return f"{names.format_number(side.steps)} step{'s' if side.steps != 1 else ''}{of}"


def unit(found: DeviceDifference) -> str:
    """Return the unit that figures refer to: step or recording."""
    stepped = found.base.steps is not None and found.new.steps is not None
    return "step" if stepped else "recording"


def ratio_text(value: float | None) -> str:
    """Format new over base."""
    if value is None:
        return NONE
    if 0 < value < _SMALL_RATIO:
        return f"<{_SMALL_RATIO:g} x"
    return f"{value:.2f} x" if value < _LARGE_RATIO else f"{value:,.0f} x"


def _peaks(found: DeviceDifference) -> list[str]:
    """Describe the device peaks from which the attainable ratios follow."""
    said: dict[str, list[str]] = {}
    present = {row.name for row in found.classes}
    for name, limits in found.allowed.items():
        if name in present:
            said.setdefault(f"{_peak(limits.base)} -> {_peak(limits.new)}", []).append(name)
    if not said:
        return []
    parts = "; ".join(f"{', '.join(classes)}: {peaks}" for peaks, classes in said.items())
    return [
        f"attainable: ratio if both devices worked at their peak ({parts}; ? marks an "
        "uncertain peak)"
    ]


def _peak(peak: Peak) -> str:
    if peak.name in ("memory", "link"):
        return f"{peak.name} {peak.rate / 1e9:,.4g} GB/s"
    return f"{peak.name} {peak.rate / 1e12:,.4g} TFLOP/s"


# Maximum number of shapes shown under an operation.
_MAX_SHAPES: Final = 3
_IDLE: Final = "idle "

DeviceTable = tuple[str, list[Column], int]  # (heading, columns, number of rows left out).


def device_tables(found: DeviceDifference, shown: DeviceRequest) -> Iterable[DeviceTable]:
    """Yield the tables from the step downwards, the requested breakdown last."""
    by, top, everything = shown.by, shown.top, shown.everything
    several = found.base.device_count > 1 or found.new.device_count > 1
    where = " of one device" if several else ""
    yield f"One {unit(found)}{where}", _part_columns(found), 0
    if found.classes:
        yield (
            "Kernel time by class",
            _columns(found, [*found.classes, _total_row(found)], "class"),
            0,
        )
    if by == "class":
        return
    if by in ("module", "line"):
        places = found.modules if by == "module" else found.lines
        rows = _changed(found, places, everything=everything)
        yield from _limit_rows(f"Kernel time by {by}", found, rows, top, by)
        return
    if by == "kernel":
        yield from _kernel_tables(found, top, everything=everything)
        return
    for heading, some in _sections(found, found.operations, everything=everything):
        yield from _limit_rows(heading, found, some, top, "operation", shapes=by == "shape")


def _total_row(found: DeviceDifference) -> Line:
    """Return the total row of a table."""
    base, new = (
        Amount(int(leaves.calls.sum()), int(leaves.runs.sum()), int(leaves.total_ns.sum()))
        if len(leaves)
        else None
        for leaves in (found.base.leaves, found.new.leaves)
    )
    return Line("total", base, new)  # of no class, and so without a limit


def _sections(
    found: DeviceDifference, rows: Sequence[Line], *, everything: bool
) -> list[tuple[str, list[Line]]]:
    """Return rows by outcome, largest change first."""
    changed = _changed(found, rows, everything=False)
    both = [row for row in changed if row.side == "both"]
    return [
        ("Slower in new", [row for row in both if found.change_ns(row) > 0]),
        ("Faster in new", [row for row in both if found.change_ns(row) < 0]),
        ("Only in new", [row for row in changed if row.side == "new"]),
        ("Only in base", [row for row in changed if row.side == "base"]),
        ("Unchanged", [row for row in rows if row not in changed] if everything else []),
    ]


def _changed(found: DeviceDifference, rows: Sequence[Line], *, everything: bool) -> list[Line]:
    """Return the rows that changed, largest change first; with `everything`, all rows.

    Rows of one side are changes even if they are short: their calls may make the device wait.
    """
    limit_ns = MIN_ROW_CHANGE * found.longest_ns
    ordered = sorted(rows, key=lambda row: -abs(found.change_ns(row)))
    if everything:
        return ordered
    return [row for row in ordered if row.side != "both" or abs(found.change_ns(row)) >= limit_ns]


def _limit_rows(
    heading: str,
    found: DeviceDifference,
    rows: Sequence[Line],
    top: int,
    first: str,
    *,
    shapes: bool = False,
) -> Iterable[DeviceTable]:
    if rows:
        columns = _columns(found, rows[:top], first, shapes=shapes)
        yield heading, columns, max(0, len(rows) - top)


def _kernel_tables(found: DeviceDifference, top: int, *, everything: bool) -> Iterable[DeviceTable]:
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
            name_column("class", (one.class_name if one else "" for one in owners)),
            name_column(
                "operation", (_name_with_calls(found, one) if one else "" for one in owners)
            ),
            *_columns(found, [kernel for _, kernel in shown], "kernel"),
        ]
        yield "Kernels under each operation", columns, max(0, len(pairs) - top)
    yield from _limit_rows(
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
        name_column("part", (name for name, _, _ in rows)),
        Column("base", tuple(names.format_duration(before) for _, before, _ in rows)),
        Column(
            "share",
            tuple(names.format_share(before, whole[0]) for _, before, _ in rows),
            importance=5,
        ),
        Column("new", tuple(names.format_duration(after) for _, _, after in rows)),
        Column(
            "share",
            tuple(names.format_share(after, whole[1]) for _, _, after in rows),
            importance=5,
        ),
        Column("change", tuple(format_signed(after - before) for _, before, after in rows)),
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
    """Return the columns of some rows; shapes follow their operation if it has several."""
    listed: list[tuple[str, Line]] = []
    for row in rows:
        listed.append(
            (_name_with_calls(found, row) if first == "operation" else _shown(row.name), row)
        )
        alike = any(one.side == "both" for one in row.shapes) or row.side != "both"
        if first == "operation" and (shapes or (alike and len(row.shapes) > 1)):
            ordered = sorted(row.shapes, key=lambda one: -abs(found.change_ns(one)))
            most = ordered if shapes else ordered[:_MAX_SHAPES]
            listed += [(f"  {_name_with_calls(found, one)}", one) for one in most]
    lines = [row for _, row in listed]
    columns = [name_column(first, (name for name, _ in listed))]
    if any(row.class_name for row in lines) and first != "class":
        columns.insert(0, name_column("class", (row.class_name for row in lines)))
    if first != "operation":
        for said, side, own in (
            ("base runs", found.base, [row.base for row in lines]),
            ("new runs", found.new, [row.new for row in lines]),
        ):
            columns.append(Column(said, tuple(_runs(one, side) for one in own), importance=6))
    columns += [
        Column("base", tuple(_time(row.base, found.base) for row in lines)),
        Column("new", tuple(_time(row.new, found.new) for row in lines)),
        Column("change", tuple(format_signed(found.change_ns(row)) for row in lines)),
        Column("ratio", tuple(ratio_text(found.ratio(row)) for row in lines), importance=8),
    ]
    if any(row.class_name in found.allowed and row.side == "both" for row in lines):
        ratios = tuple(
            _attainable_ratio(found.allowed.get(row.class_name) if row.side == "both" else None)
            for row in lines
        )
        columns.append(Column("attainable", ratios, importance=7))
    for heading, places in (
        ("module", [_first_of(row.modules) for row in lines]),
        ("line", [_first_of(row.lines) for row in lines]),
    ):
        if any(places):
            columns.append(name_column(heading, places, importance=4))
    return columns


def _name_with_calls(found: DeviceDifference, row: Line) -> str:
    """Return a row's name with its calls per step if the sides differ."""
    counts = [
        _count(amount.calls / side.shares)
        for amount, side in ((row.base, found.base), (row.new, found.new))
        if amount is not None
    ]
    return f"{_shown(row.name)} x{' and x'.join(dict.fromkeys(counts))}"


def _shown(name: str) -> str:
    if name.endswith(" B") and name[:-2].isdigit():
        return names.format_size(int(name[:-2]))
    return names.neutral(name)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _runs(amount: Amount | None, side: Side) -> str:
    return NONE if amount is None else _count(amount.runs / side.shares)


def _time(amount: Amount | None, side: Side) -> str:
    return NONE if amount is None else names.format_duration(side.per_share(amount.total_ns))


def _attainable_ratio(limits: Allowed | None) -> str:
    """Return the attainable ratio; `?` marks an uncertain peak."""
    return "" if limits is None else f"{limits.ratio:.2f} x{'?' if limits.uncertain else ''}"


def _first_of(places: Sequence[str]) -> str:
    """Return the first of several places and the number of the others."""
    if not places:
        return ""
    more = f" (+{len(places) - 1})" if len(places) > 1 else ""
    return f"{names.neutral(places[0])}{more}"


# Fields of a row; times and counts are per step (or recording) of one device.
DEVICE_ROW_FIELDS: Final = (
    "by",
    "class",
    "name",
    "side",
    "base_calls",
    "new_calls",
    "base_runs",
    "new_runs",
    "base_ns",
    "new_ns",
    "delta_ns",
    "ratio",
    "ratio_of_peaks",
    "module",
    "line",
)

Row = dict[str, Any]


def device_rows(found: DeviceDifference) -> Iterator[Row]:
    """Yield the parts of a step, then every breakdown with all rows."""
    for name in PARTS:
        before, after = found.part_ns(name)
        if before or after:
            yield {
                "by": "part",
                "name": name,
                "side": "both" if before and after else "base" if before else "new",
                "base_ns": before,
                "new_ns": after,
                "delta_ns": after - before,
                "ratio": after / before if before and after else None,
            }
    for by, lines in (
        ("class", found.classes),
        ("operation", found.operations),
        ("module", found.modules),
        ("line", found.lines),
        ("kernel", found.kernels),
    ):
        for line in lines:
            yield {"by": by, **_row(found, line)}


def _row(found: DeviceDifference, line: Line) -> Row:
    limits = found.allowed.get(line.class_name) if line.side == "both" else None
    return {
        "class": line.class_name,
        "name": line.name,
        "side": line.side,
        **_amount("base", line.base, found.base),
        **_amount("new", line.new, found.new),
        "delta_ns": found.change_ns(line),
        "ratio": found.ratio(line),
        "ratio_of_peaks": None if limits is None else limits.ratio,
        "module": ", ".join(line.modules),
        "line": ", ".join(line.lines),
    }


def _amount(name: str, amount: Amount | None, side: Side) -> Row:
    if amount is None:
        return {}
    return {
        f"{name}_calls": amount.calls / side.shares,
        f"{name}_runs": amount.runs / side.shares,
        f"{name}_ns": side.per_share(amount.total_ns),
    }
