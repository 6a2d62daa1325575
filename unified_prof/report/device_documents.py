"""Comparison of device recordings as document, JSON, CSV and HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import Any, Final

from unified_prof.compare.device_side import PARTS, Side
from unified_prof.compare.device_tables import (
    MIN_ROW_CHANGE,
    Allowed,
    Amount,
    DeviceDifference,
    Line,
)
from unified_prof.recording.calls import UNKNOWN
from unified_prof.recording.idle import IN_WORDS
from unified_prof.report import names
from unified_prof.report.device_sentences import (
    attainable_ratio,
    device_headline,
    device_remarks,
    device_verdict,
    finding_facts,
    ratio_text,
    unit,
)
from unified_prof.report.document import (
    Column,
    Document,
    Figure,
    columns_of,
    csv_text,
    fill_page,
    page_rows,
)
from unified_prof.report.formats import DeviceRequest
from unified_prof.report.names import format_duration as duration
from unified_prof.report.names import neutral
from unified_prof.report.operation_difference import (
    DIFFERENCE_FORMAT_VERSION,
    finite_or_none,
    format_signed,
)

# Maximum number of shapes shown under an operation.
_MAX_SHAPES: Final = 3
_IDLE: Final = "idle "


def _add_tables(document: Document, found: DeviceDifference, shown: DeviceRequest) -> None:
    """Add the tables from the step downwards, the requested breakdown last."""
    by, everything = shown.by, shown.everything

    def add(heading: str, rows: Sequence[Line], first: str, *, shapes: bool = False) -> None:
        if rows:
            columns = _columns(found, rows[: shown.top], first, shapes=shapes)
            document.heading(heading)
            document.table(columns, left_out=max(0, len(rows) - shown.top))

    several = found.base.device_count > 1 or found.new.device_count > 1
    document.heading(f"One {unit(found)}{' of one device' if several else ''}")
    document.table(_part_columns(found))
    if found.classes:
        document.heading("Kernel time by class")
        document.table(_columns(found, [*found.classes, _total_row(found)], "class"))
    if by in ("module", "line"):
        places = found.modules if by == "module" else found.lines
        add(f"Kernel time by {by}", _changed(found, places, everything=everything), by)
    elif by == "kernel":
        _add_kernels(document, found, shown)
        add("Kernels by name", _changed(found, found.kernels, everything=everything), "kernel")
    elif by != "class":
        for heading, rows in _by_outcome(found, found.operations, everything=everything):
            add(heading, rows, "operation", shapes=by == "shape")


def _total_row(found: DeviceDifference) -> Line:
    """Return the total row of a table."""
    base, new = (
        Amount(int(leaves.calls.sum()), int(leaves.runs.sum()), int(leaves.total_ns.sum()))
        if len(leaves)
        else None
        for leaves in (found.base.leaves, found.new.leaves)
    )
    return Line("total", base, new)  # of no class, and so without a limit


def _by_outcome(
    found: DeviceDifference, rows: Sequence[Line], *, everything: bool
) -> list[tuple[str, list[Line]]]:
    """Return rows by outcome, largest change first."""
    changed = _changed(found, rows, everything=False)
    both = [row for row in changed if row.side == "both"]
    least_ns = MIN_ROW_CHANGE * found.longest_ns
    return [
        ("Slower in new", [row for row in both if found.change_ns(row) > 0]),
        ("Faster in new", [row for row in both if found.change_ns(row) < 0]),
        ("Only in new", [row for row in changed if row.side == "new"]),
        ("Only in base", [row for row in changed if row.side == "base"]),
        (
            f"Changed by less than {duration(least_ns)}",
            [row for row in rows if row not in changed] if everything else [],
        ),
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


def _add_kernels(document: Document, found: DeviceDifference, shown: DeviceRequest) -> None:
    pairs = [
        (operation, kernel)
        for operation in _changed(found, found.operations, everything=shown.everything)
        for kernel in sorted(
            found.kernels_of(operation), key=lambda row: -abs(found.change_ns(row))
        )
    ]
    if not pairs:
        return
    owners, kernels = zip(*pairs[: shown.top], strict=True)
    # An operation is named once.
    named = [
        one if not index or owners[index - 1] is not one else None
        for index, one in enumerate(owners)
    ]
    columns = columns_of(
        named,
        ("class", lambda one: one.class_name if one else "", neutral, 10),
        ("operation", lambda one: _shown(one.name) if one else "", neutral, 10),
        ("calls", lambda one: _calls(found, one) if one else "", str, 8),
    )
    document.heading("Kernels under each operation")
    left_out = max(0, len(pairs) - shown.top)
    document.table([*columns, *_columns(found, kernels, "kernel")], left_out=left_out)


def _part_name(part: str) -> str:
    if not part.startswith(_IDLE):
        return part
    return f"idle: {IN_WORDS.get(part.removeprefix(_IDLE), part)}"


def _part_columns(found: DeviceDifference) -> list[Column]:
    base, new = (side.per_share(side.window_ns) for side in (found.base, found.new))
    parts = [(_part_name(name), *found.part_ns(name)) for name in PARTS]
    return columns_of(
        [(unit(found), base, new), *(row for row in parts if any(row[1:]))],
        ("part", lambda row: row[0], neutral, 10),
        ("base", lambda row: row[1], duration, 10),
        ("share", lambda row: names.format_share(row[1], base), str, 5),
        ("new", lambda row: row[2], duration, 10),
        ("share", lambda row: names.format_share(row[2], new), str, 5),
        ("change", lambda row: row[2] - row[1], format_signed, 10),
        ("ratio", lambda row: row[2] / row[1] if row[1] and row[2] else None, ratio_text, 8),
    )


def _columns(
    found: DeviceDifference, rows: Sequence[Line], first: str, *, shapes: bool = False
) -> list[Column]:
    """Return the columns of some rows; shapes follow their operation if it has several."""
    listed: list[tuple[str, Line]] = []
    for row in rows:
        listed.append((_shown(row.name), row))
        alike = any(one.side == "both" for one in row.shapes) or row.side != "both"
        if first == "operation" and (shapes or (alike and len(row.shapes) > 1)):
            ordered = sorted(row.shapes, key=lambda one: -abs(found.change_ns(one)))
            whole = shapes or len(ordered) <= _MAX_SHAPES + 1
            most = ordered if whole else ordered[:_MAX_SHAPES]
            listed += [(f"  {_shown(one.name)}", one) for one in most]
            if not whole:
                rest = ordered[_MAX_SHAPES:]
                listed.append((f"  {len(rest)} more (--by shape)", _sum(rest)))
    figures: list[Figure[tuple[str, Line]]] = []
    if any(row.class_name for _, row in listed) and first != "class":
        figures.append(("class", lambda one: one[1].class_name, neutral, 10))
    figures.append((first, lambda one: one[0], neutral, 10))
    if first == "operation":
        figures.append(("calls", lambda one: _calls(found, one[1]), str, 8))
    else:
        figures += [
            ("base runs", lambda one: _runs(one[1].base, found.base), str, 6),
            ("new runs", lambda one: _runs(one[1].new, found.new), str, 6),
        ]
    figures += [
        ("base", lambda one: _time(one[1].base, found.base), str, 10),
        ("new", lambda one: _time(one[1].new, found.new), str, 10),
        ("change", lambda one: found.change_ns(one[1]), format_signed, 10),
        ("ratio", lambda one: found.ratio(one[1]), ratio_text, 8),
    ]
    if any(_limits(found, row) for _, row in listed):
        figures.append(("attainable", lambda one: _limits(found, one[1]), attainable_ratio, 7))
    if any(row.modules for _, row in listed):
        figures.append(("module", lambda one: _first_of(one[1].modules), neutral, 4))
    if any(row.lines for _, row in listed):
        figures.append(("line", lambda one: _first_of(one[1].lines), neutral, 4))
    return columns_of(listed, *figures)


def _sum(rows: Sequence[Line]) -> Line:
    return Line("", _total([row.base for row in rows]), _total([row.new for row in rows]))


def _total(amounts: Sequence[Amount | None]) -> Amount | None:
    known = [(one.calls, one.runs, one.total_ns) for one in amounts if one is not None]
    return Amount(*map(sum, zip(*known, strict=True))) if known else None


def _limits(found: DeviceDifference, row: Line) -> Allowed | None:
    """Return the limiting peaks of a row that both sides have."""
    return found.allowed.get(row.class_name) if row.side == "both" else None


def _calls(found: DeviceDifference, row: Line) -> str:
    """Return the calls per step, of both sides if they differ."""
    counts = [
        _count(amount.calls / side.shares)
        for amount, side in ((row.base, found.base), (row.new, found.new))
        if amount is not None
    ]
    return " -> ".join(dict.fromkeys(counts))


def _shown(name: str) -> str:
    if name.endswith(" B") and name[:-2].isdigit():
        return names.format_size(int(name[:-2]))
    return name


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _runs(amount: Amount | None, side: Side) -> str:
    return names.NOT_MEASURED if amount is None else _count(amount.runs / side.shares)


def _time(amount: Amount | None, side: Side) -> str:
    return names.NOT_MEASURED if amount is None else duration(side.per_share(amount.total_ns))


def _first_of(places: Sequence[str]) -> str:
    """Return the first of several places and the number of the others."""
    more = f" (+{len(places) - 1})" if len(places) > 1 else ""
    return f"{places[0]}{more}" if places else ""


# Fields of a row; times and counts are per step (or recording) of one device.
_ROW_FIELDS: Final = """by class name side base_calls new_calls base_runs new_runs base_ns new_ns
    delta_ns ratio ratio_of_peaks module line""".split()

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
    for by, lines in _breakdowns(found).items():
        for line in lines:
            yield {"by": by, **_row(found, line)}


def _breakdowns(found: DeviceDifference) -> dict[str, tuple[Line, ...]]:
    return {
        "class": found.classes,
        "operation": found.operations,
        "module": found.modules,
        "line": found.lines,
        "kernel": found.kernels,
    }


def _row(found: DeviceDifference, line: Line) -> Row:
    limits = _limits(found, line)
    return {
        "class": line.class_name or None,
        "name": line.name,
        "side": line.side,
        **_amount("base", line.base, found.base),
        **_amount("new", line.new, found.new),
        "delta_ns": found.change_ns(line),
        "ratio": found.ratio(line),
        "ratio_of_peaks": None if limits is None else limits.ratio,
        "module": ", ".join(line.modules) or None,
        "line": ", ".join(line.lines) or None,
    }


def _amount(name: str, amount: Amount | None, side: Side) -> Row:
    if amount is None:
        return {}
    return {
        f"{name}_calls": amount.calls / side.shares,
        f"{name}_runs": amount.runs / side.shares,
        f"{name}_ns": side.per_share(amount.total_ns),
    }


def device_fields(found: DeviceDifference) -> dict[str, Any]:
    """Return a comparison as plain data for JSON, with all rows."""
    changes = [found.change_ns(row) for row in found.operations]
    slower = sum(change for change in changes if change > 0)
    faster = -sum(change for change in changes if change < 0)
    work = [side.per_share(side.work_ns) for side in (found.base, found.new)]
    made: dict[str, Any] = {
        "format_version": DIFFERENCE_FORMAT_VERSION,
        "compared": "devices",
        "base": found.base.label,
        "new": found.new.label,
        "same_devices": found.same_devices,
        "identical": found.identical,
        "warnings": list(found.warnings),
        "left_out": list(found.left_out),
        "sides": {"base": _side_fields(found.base), "new": _side_fields(found.new)},
        "totals": {
            name: {
                **asdict(comparison),
                "verdict": comparison.verdict() if found.same_devices else None,
            }
            for name, comparison in found.totals.items()
        },
        "operations": {
            "base_ns": work[0],
            "new_ns": work[1],
            "delta_ns": work[1] - work[0],
            "slower_ns": slower,
            "faster_ns": faster,
        },
        "findings": [
            {
                "kind": change.finding.kind,
                "base_ns": change.base_ns,
                "new_ns": change.new_ns,
                "delta_ns": change.change_ns,
                "text": change.finding.text,
                "advice": change.finding.advice,
            }
            for change in found.findings
        ],
        "parts": [_part_fields(found, name) for name in PARTS],
        "breakdowns": {
            by: [_row_fields(found, row) for row in rows] for by, rows in _breakdowns(found).items()
        },
    }
    plain: dict[str, Any] = finite_or_none(made)
    return plain


def _side_fields(side: Side) -> dict[str, Any]:
    return {
        "devices": list(side.devices),
        "device_count": side.device_count,
        "recordings": side.recordings,
        "versions": dict(side.versions),
        "steps": side.steps,
        "divided_by": side.shares,
        "window_ns": side.window_ns,
        "work_ns": side.work_ns,
        "outside_steps_ns": side.outside_ns,
    }


def _part_fields(found: DeviceDifference, name: str) -> dict[str, Any]:
    before, after = found.part_ns(name)
    return {
        "name": name,
        "base_total_ns": found.base.parts_ns[name],
        "new_total_ns": found.new.parts_ns[name],
        "base_ns": before,
        "new_ns": after,
        "delta_ns": after - before,
        "ratio": after / before if before else None,
    }


def _row_fields(found: DeviceDifference, row: Line) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": row.name,
        "side": row.side,
        "base": _amount_fields(row.base, found.base),
        "new": _amount_fields(row.new, found.new),
        "delta_ns": found.change_ns(row),
        "ratio": found.ratio(row),
    }
    if (limits := found.allowed.get(row.class_name)) is not None:
        made["ratio_of_peaks"] = limits.ratio
        made["peaks_uncertain"] = limits.uncertain
    more: tuple[tuple[str, Any, Callable[[Any], Any]], ...] = (
        ("class", row.class_name, str),
        ("base_name", row.base_name, str),
        ("new_name", row.new_name, str),
        ("modules", row.modules, list),
        ("lines", row.lines, list),
        ("shapes", row.shapes, lambda rows: [_row_fields(found, one) for one in rows]),
        (
            "kernels",
            found.kernels_of(row) if row.number != UNKNOWN else (),
            lambda rows: [_row_fields(found, one) for one in rows],
        ),
    )
    return made | {name: plain(value) for name, value, plain in more if value}


def _amount_fields(amount: Amount | None, side: Side) -> dict[str, Any] | None:
    if amount is None:
        return None
    return {
        "calls": amount.calls,
        "runs": amount.runs,
        "total_ns": amount.total_ns,
        "per_step_ns": side.per_share(amount.total_ns),
    }


def device_csv(found: DeviceDifference) -> str:
    """Render a comparison as one CSV table; cells of a side without the row are empty."""
    return csv_text(device_rows(found), _ROW_FIELDS)


def device_document(found: DeviceDifference, shown: DeviceRequest) -> Document:
    """Return the document of a comparison."""
    document = Document()
    document.title(f"{found.base.label} -> {found.new.label}")
    for warning in found.warnings:
        document.warning("warning", warning)
    for label, text in (*device_headline(found), *finding_facts(found)):
        document.fact(label, text)
    _add_tables(document, found, shown)
    for line in device_remarks(found):
        document.note(line)
    return document


_SCRIPTS: Final = ("base.js", "frame.js", "table.js", "difference.js")
# Maximum rows of a breakdown on the page, largest changes first.
_ROWS: Final = 1000
_COLORS: Final = {"compute": "compute", "exposed communication": "communication", "copies": "copy"}


def device_page(found: DeviceDifference, shown: DeviceRequest) -> str:
    """Render a comparison as an HTML page without network access; names are shown as text only."""
    base, new = (PurePath(side.label).name or side.label for side in (found.base, found.new))
    label = f"{base} -> {new}"
    parts = [
        {
            "name": _part_name(name),
            "color": _COLORS.get(name) or f"idle-{name.removeprefix(_IDLE)}",
            "base_ns": found.part_ns(name)[0],
            "new_ns": found.part_ns(name)[1],
        }
        for name in PARTS
        if any(found.part_ns(name))
    ]
    tables = _page_tables(found)
    data: dict[str, Any] = {
        "title": names.neutral(label),
        "verdict": names.neutral(device_verdict(found)),
        "unit": unit(found),
        "warnings": [names.neutral(one) for one in found.warnings],
        "headline": [
            [what, neutral(text)]
            # The verdict has the finding that changed most.
            for what, text in (*device_headline(found), *finding_facts(found)[1:])
        ],
        "same_devices": found.same_devices,
        "least_ns": MIN_ROW_CHANGE * found.longest_ns,
        "remarks": [names.neutral(one) for one in device_remarks(found)],
        "base_ns": found.base.per_share(found.base.window_ns),
        "new_ns": found.new.per_share(found.new.window_ns),
        "parts": parts,
        "tables": tables,
        "by": shown.by if shown.by in tables else "operation",
    }
    title = f"{' / '.join(found.base.devices)} and {' / '.join(found.new.devices)}: {label}"
    return fill_page(title, ("page.css",), _SCRIPTS, data)


def _page_tables(found: DeviceDifference) -> dict[str, dict[str, Any]]:
    """Return the largest changes of each breakdown, and the number of further rows."""
    tables: dict[str, dict[str, Any]] = {}
    for row in device_rows(found):
        by = row.pop("by")
        if by != "part":
            tables.setdefault(by, {"rows": [], "left_out": 0})["rows"].append(row)
    for by, table in tables.items():
        if by != "class":
            table["rows"].sort(key=lambda row: -abs(row["delta_ns"]))
        table["left_out"] = max(0, len(table["rows"]) - _ROWS)
        table["rows"] = page_rows(table["rows"][:_ROWS])
    return tables
