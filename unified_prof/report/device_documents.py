"""Comparison of device recordings as JSON, CSV, document and HTML page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import PurePath
from typing import Any, Final

from unified_prof.compare.device_side import PARTS, Side
from unified_prof.compare.device_tables import MIN_ROW_CHANGE, Amount, DeviceDifference, Line
from unified_prof.recording.calls import UNKNOWN
from unified_prof.recording.idle import IN_WORDS
from unified_prof.report import names
from unified_prof.report.device_comparison import (
    DEVICE_ROW_FIELDS,
    device_headline,
    device_remarks,
    device_rows,
    device_tables,
    device_title,
    device_verdict,
    finding_change,
)
from unified_prof.report.document import Document
from unified_prof.report.formats import DeviceRequest
from unified_prof.report.html_parts import fill_page
from unified_prof.report.operation_difference import DIFFERENCE_FORMAT_VERSION, finite_or_none
from unified_prof.report.renderers import csv_text


def device_fields(found: DeviceDifference) -> dict[str, Any]:
    """Return a comparison as plain data for JSON, with all rows."""
    rows = {
        "class": found.classes,
        "operation": found.operations,
        "module": found.modules,
        "line": found.lines,
        "kernel": found.kernels,
    }
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
            by: [_row_fields(found, row) for row in lines] for by, lines in rows.items()
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
    return csv_text(device_rows(found), DEVICE_ROW_FIELDS)


def device_document(found: DeviceDifference, shown: DeviceRequest) -> Document:
    """Return the document of a comparison."""
    document = Document()
    document.title(device_title(found))
    for warning in found.warnings:
        document.warning("warning", warning)
    for label, text in device_headline(found):
        document.fact(label, text)
    for heading, columns, left_out in device_tables(found, shown):
        document.heading(heading)
        document.table(columns, left_out=left_out)
    for line in device_remarks(found):
        document.note(line)
    return document


_SCRIPTS: Final = ("base.js", "frame.js", "table.js", "difference.js")
# Maximum rows of a breakdown on the page, largest changes first.
_ROWS: Final = 1000
_NAME_LENGTH: Final = 120
_COLORS: Final = {"compute": "compute", "exposed communication": "communication", "copies": "copy"}
_IDLE: Final = "idle "


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
        "unit": "step" if found.base.steps and found.new.steps else "recording",
        "warnings": [names.neutral(one) for one in found.warnings],
        "headline": [
            [what, names.neutral(text)]
            for what, text in device_headline(found)
            # The verdict has the finding that changed most.
            if not found.findings or text != finding_change(found, found.findings[0])[1]
        ],
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


def _part_name(part: str) -> str:
    if not part.startswith(_IDLE):
        return part
    return f"idle: {IN_WORDS.get(part.removeprefix(_IDLE), part)}"


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
        del table["rows"][_ROWS:]
        short = names.truncate_names(
            names.readable_names([row["name"] for row in table["rows"]]), _NAME_LENGTH
        )
        table["rows"] = [
            {name: value for name, value in row.items() if value not in (None, "")}
            | ({"short": brief} if brief != row["name"] else {})
            for row, brief in zip(table["rows"], short, strict=True)
        ]
    return tables
