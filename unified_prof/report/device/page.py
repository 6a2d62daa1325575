"""Two runs of devices compared as one HTML file: the step on both sides, then where it differs."""

from __future__ import annotations

from typing import Any, Final

from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.analysis.compare.device.side import PARTS
from unified_prof.analysis.views.idle import IN_WORDS
from unified_prof.report import names, page_file, words
from unified_prof.report.device import headline
from unified_prof.report.device.formats import Shown
from unified_prof.report.device.rows import rows

_SCRIPTS: Final = ("base.js", "frame.js", "table.js", "difference.js")
_ROWS: Final = 1000
"""Rows of a breakdown on the page; those beyond change least."""
_NAME_LENGTH: Final = 120
_COLORS: Final = {"compute": "compute", "exposed communication": "communication", "copies": "copy"}
_IDLE: Final = "idle "


def produce(found: DeviceDifference, shown: Shown) -> str:
    """Return the comparison as a page: no network, every name shown and none executed."""
    label = f"{found.base.label} -> {found.new.label}"
    parts = [
        {
            "name": _said(name),
            "color": _COLORS.get(name) or f"idle-{name.removeprefix(_IDLE)}",
            "base_ns": found.part_ns(name)[0],
            "new_ns": found.part_ns(name)[1],
        }
        for name in PARTS
        if any(found.part_ns(name))
    ]
    tables = _tables(found)
    data: dict[str, Any] = {
        "title": words.neutral(label),
        "unit": "step" if found.base.steps and found.new.steps else "recording",
        "warnings": [words.neutral(one) for one in found.warnings],
        "headline": [[what, words.neutral(text)] for what, text in headline.headline(found)],
        "remarks": [words.neutral(one) for one in headline.remarks(found)],
        "base_ns": found.base.per_share(found.base.window_ns),
        "new_ns": found.new.per_share(found.new.window_ns),
        "parts": parts,
        "tables": tables,
        "by": shown.by if shown.by in tables else "operation",
    }
    title = f"{' / '.join(found.base.devices)} and {' / '.join(found.new.devices)}: {label}"
    return page_file.filled(title, ("page.css",), _SCRIPTS, data)


def _said(part: str) -> str:
    if not part.startswith(_IDLE):
        return part
    return f"idle: {IN_WORDS.get(part.removeprefix(_IDLE), part)}"


def _tables(found: DeviceDifference) -> dict[str, dict[str, Any]]:
    """Return each breakdown's rows, those that change most, and how many more there are."""
    tables: dict[str, dict[str, Any]] = {}
    for row in rows(found):
        by = row.pop("by")
        if by != "part":
            tables.setdefault(by, {"rows": [], "left_out": 0})["rows"].append(row)
    for by, table in tables.items():
        if by != "class":
            table["rows"].sort(key=lambda row: -abs(row["delta_ns"]))
        table["left_out"] = max(0, len(table["rows"]) - _ROWS)
        del table["rows"][_ROWS:]
        short = names.within(names.shown([row["name"] for row in table["rows"]]), _NAME_LENGTH)
        table["rows"] = [
            {name: value for name, value in row.items() if value not in (None, "")}
            | ({"short": brief} if brief != row["name"] else {})
            for row, brief in zip(table["rows"], short, strict=True)
        ]
    return tables
