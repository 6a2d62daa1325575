"""A comparison of devices as plain data for JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from unified_prof.analysis.calls import UNKNOWN
from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.analysis.compare.device.lines import Amount, Line
from unified_prof.analysis.compare.device.side import PARTS, Side
from unified_prof.report.difference import FORMAT_VERSION, finite


def document(found: DeviceDifference) -> dict[str, Any]:
    """Return a comparison as plain data for JSON, with every row."""
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
        "format_version": FORMAT_VERSION,
        "compared": "devices",
        "base": found.base.label,
        "new": found.new.label,
        "same_devices": found.same_devices,
        "identical": found.identical,
        "warnings": list(found.warnings),
        "left_out": list(found.left_out),
        "sides": {"base": _side_document(found.base), "new": _side_document(found.new)},
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
        "parts": [_part_document(found, name) for name in PARTS],
        "breakdowns": {
            by: [_row_document(found, row) for row in lines] for by, lines in rows.items()
        },
    }
    plain: dict[str, Any] = finite(made)
    return plain


def _side_document(side: Side) -> dict[str, Any]:
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


def _part_document(found: DeviceDifference, name: str) -> dict[str, Any]:
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


def _row_document(found: DeviceDifference, row: Line) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": row.name,
        "side": row.side,
        "base": _amount_document(row.base, found.base),
        "new": _amount_document(row.new, found.new),
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
        ("shapes", row.shapes, lambda rows: [_row_document(found, one) for one in rows]),
        (
            "kernels",
            found.kernels_of(row) if row.number != UNKNOWN else (),
            lambda rows: [_row_document(found, one) for one in rows],
        ),
    )
    return made | {name: plain(value) for name, value, plain in more if value}


def _amount_document(amount: Amount | None, side: Side) -> dict[str, Any] | None:
    if amount is None:
        return None
    return {
        "calls": amount.calls,
        "runs": amount.runs,
        "total_ns": amount.total_ns,
        "per_step_ns": side.per_share(amount.total_ns),
    }
