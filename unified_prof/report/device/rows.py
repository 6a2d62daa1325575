"""Two runs of devices compared, row by row as plain figures: of CSV and of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.analysis.compare.device.lines import Amount, Line
from unified_prof.analysis.compare.device.side import PARTS, Side

FIELDS: Final = (
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
"""What a row has; times and numbers are those of a step (or recording) of one device."""

Row = dict[str, Any]


def rows(found: DeviceDifference) -> Iterator[Row]:
    """Yield what a step consists of, then every breakdown, each with all of its rows."""
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
