"""Comparisons of tracked workloads as documents and JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from unified_prof.base.records import asdict
from unified_prof.compare.comparable import PEAK, TOTAL, Place, Waiting
from unified_prof.compare.confidence import NoiseModel
from unified_prof.compare.diff import Difference
from unified_prof.compare.operation_changes import (
    Change,
    KernelChange,
    PartChange,
    SizeChange,
    Status,
    sum_loops,
    sum_size_loops,
)
from unified_prof.compare.statistics import MIN_SAMPLES, SAME_WITHIN, Comparison
from unified_prof.report import names
from unified_prof.report.document import Document, Figure

# Name of the figures over all workloads.
GEOMETRIC_MEAN = "geometric mean"
_TIMES = "total, forward and backward"
_HIDDEN_REASONS: dict[Status, str] = {
    "same": f"unchanged within {SAME_WITHIN * 100:g} %",
    "unclear": "inconclusive, within the run-to-run variation",
    "inconclusive": "with too few samples",
}
_NAMED_SHARE = 0.25  # Minimum share of the change of the total for a part to be named.
_MAX_NAMED = 5  # Operations named in a sentence about types.
_EXPLAINS = 0.1  # Minimum share of the increase of a total for a row to explain a regression.
_ITEM_RATIOS = {0.25, 0.5, 2.0, 4.0}  # Ratios of the sizes of dtypes of floating point numbers.
_TESTED = ("same", "unclear", "slower", "faster")
_UNCHANGED: tuple[Status, ...] = ("same", "unclear", "inconclusive")

# Version of the JSON document; raised when a key changes its meaning or is removed.
DIFFERENCE_FORMAT_VERSION = 1

MORE_RUNS = (
    "the run-to-run variation is unknown with one run per side: give several with --base "
    "and --new, or measure it with `uprof gate --self-test`"
)


def difference_document(found: Difference, *, top: int, everything: bool = False) -> Document:
    """Return the document of a comparison, with `top` rows per table.

    If `everything`, also show unchanged rows.
    """
    document = Document()
    document.title(f"{found.base.label} -> {found.new.label}")
    for warning in found.warnings:
        document.warning("warning", warning)
    for label, text in difference_headline(found):
        document.fact(label, text)
    hidden = _hidden_statuses(found, everything)
    single = [change for change in found.changes if change.status not in hidden]
    changes, sizes = tuple(sum_loops(single)), tuple(sum_size_loops(found.size_changes))
    parts = found.iteration_parts
    net_ns = sum(part.delta_ns for part in parts), found.new_ns - found.base_ns
    tables: tuple[tuple[str, Sequence[Any], Sequence[Figure[Any]], int], ...] = (
        ("Iteration", parts, _part_figures(net_ns[0]), len(parts)),
        ("Time", changes, _change_figures(net_ns[1]), top),
        ("Memory", sizes, _SIZE_FIGURES, top),
        (
            "Kernels under each operation",
            found.kernel_changes,
            _kernel_figures(found.kernel_changes),
            top,
        ),
    )
    for heading, rows, figures, most in tables:
        if rows:
            document.section(heading, rows, figures, most)
    if len(changes) < len(single) or len(sizes) < len(found.size_changes):
        document.note("calls of a loop that changed alike are one row (xN); --format json has each")
    for line in _remarks(found, everything):
        document.note(line)
    return document


def add_increases(document: Document, found: Difference, count: int, name: str) -> bool:
    """Add the largest increases of parts of an iteration, operations and sizes, if there are any.

    Increases below a tenth of that of the total are left out.
    """
    limits = {
        metric: _EXPLAINS * (one.new_median - one.base_median)
        for metric, one in found.totals.items()
        if one.new_median > one.base_median
    }
    least_ns, least_bytes = limits.get(TOTAL, math.inf), limits.get(PEAK, math.inf)
    is_excluded = found.waiting is not None and found.waiting.left_out
    parts = [
        part
        for part in found.iteration_parts
        if part.delta_ns >= least_ns and not (is_excluded and part.name == "waiting_for_cpu")
    ]
    changes = [one for one in sum_loops(found.changes) if one.delta_ns >= least_ns]
    sizes = [one for one in sum_size_loops(found.size_changes) if one.delta_bytes >= least_bytes]
    changes.sort(key=lambda one: (one.status in _UNCHANGED, -one.delta_ns))
    parts.sort(key=lambda one: -one.delta_ns)
    net_ns = sum(one.delta_ns for one in parts[:count]), found.new_ns - found.base_ns
    tables: tuple[tuple[str, Sequence[Any], Sequence[Figure[Any]]], ...] = (
        ("parts of an iteration", parts, _part_figures(net_ns[0])),
        ("operations", changes, _change_figures(net_ns[1])),
        ("memory", sizes, _SIZE_FIGURES),
    )
    for kind, rows, figures in tables:
        if rows:
            document.section(f"Largest increases, {kind}{name}", rows[:count], figures, count)
    return bool(parts or changes or sizes)


def _hidden_statuses(found: Difference, everything: bool) -> tuple[Status, ...]:
    """Return the statuses that are hidden by default; none if nothing could be tested."""
    tested = any(change.status in _TESTED for change in found.changes)
    return _UNCHANGED if tested and not everything else ()


def _remarks(found: Difference, everything: bool) -> list[str]:
    lines = [names.neutral(line) for line in found.left_out]
    if found.identical:
        lines.insert(0, IDENTICAL_SIDES)
        if found.changes and not everything:
            lines.append(
                f"{names.format_number(len(found.changes))} rows hidden (--all shows them)"
            )
        return lines
    lines += _type_remarks(found)
    if (line := waiting_text(found.waiting)) is not None and found.totals:
        lines.append(line)
    hidden = _hidden_statuses(found, everything)
    count = Counter(change.status for change in found.changes)
    changed_ns = {
        status: sum(change.delta_ns for change in found.changes if change.status == status)
        for status in hidden
    }
    said = [
        f"{names.format_number(count[status])} {_HIDDEN_REASONS[status]} "
        f"({format_signed(changed_ns[status])})"
        for status in _UNCHANGED
        if status in hidden and count[status]
    ]
    if said:
        lines.append(f"hidden (--all shows them): {', '.join(said)}")
    if count["inconclusive"]:
        lines.append(
            f"comparing an operation needs {MIN_SAMPLES} samples per side: measure more "
            "iterations, or give several reports with --base and --new"
        )
    if any(total.lacks_runs for metric, total in found.totals.items() if metric != PEAK):
        factor = NoiseModel.for_clock(found.new.clock).max_ratio
        lines.append(f"{MORE_RUNS}; until then, only changes well above {factor:g} x are certain")
    return lines


def differences_document(
    found: Mapping[str, Document], means: Mapping[str, Comparison]
) -> Document:
    """Return the document of several comparisons: geometric means, then each comparison."""
    document = Document()
    document.title(f"{GEOMETRIC_MEAN} of {', '.join(found)}")
    for metric, comparison in means.items():
        document.fact(metric, comparison_text(comparison, is_size=metric == PEAK))
    if not means:
        document.line("no metric is available for all workloads")
    for name, one in found.items():
        document.add(one, name)
    return document


def differences_fields(
    found: Mapping[str, dict[str, Any]], means: Mapping[str, Comparison]
) -> dict[str, Any]:
    """Return several comparisons and their geometric means as plain data for JSON."""
    plain: dict[str, Any] = {
        "format_version": DIFFERENCE_FORMAT_VERSION,
        "workloads": dict(found),
        "geometric_mean": finite_or_none(
            {metric: {**asdict(one), "verdict": one.verdict()} for metric, one in means.items()}
        ),
    }
    return plain


def format_signed(value: float | None, show: Any = names.format_duration) -> str:
    """Format a change with its sign."""
    if value is None:
        return names.NOT_MEASURED
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{show(abs(value))}"


def _explains(net_ns: float) -> Figure[Change | PartChange]:
    """Return the column with the share of the net change."""

    def share(row: Change | PartChange) -> str:
        return names.format_share(row.explained_ns, net_ns) if row.explained_ns else ""

    return "explains", share, str, 9


_CHANGED_NS: tuple[Figure[Any], ...] = (
    ("base", lambda row: row.base_ns, names.format_duration, 8),
    ("new", lambda row: row.new_ns, names.format_duration, 8),
    ("change", lambda row: row.delta_ns, format_signed, 10),
)


def _change_figures(net_ns: float) -> tuple[Figure[Change], ...]:
    return (
        ("", lambda row: row.status, str, 10),
        ("operation", _name, names.neutral, 10),
        *_CHANGED_NS,
        ("ratio", _ratio, str, 7),
        _explains(net_ns),
        ("line", source_line, names.neutral, 6),
    )


def _part_figures(net_ns: float) -> tuple[Figure[PartChange], ...]:
    """Return the columns of the parts of the median iteration, which add up to it."""
    return (
        ("part", lambda part: names.part_name(part.name), names.neutral, 10),
        *_CHANGED_NS,
        _explains(net_ns),
        ("line", lambda row: row.line or "", names.neutral, 6),
    )


def _kernel_figures(changes: Sequence[KernelChange]) -> tuple[Figure[KernelChange], ...]:
    """Return the columns of kernels under each operation; an operation is named once."""
    first = {one.operation: one for one in reversed(changes)}
    name = names.neutral
    return (
        ("operation", lambda row: row.operation if row is first[row.operation] else "", name, 10),
        ("kernel", lambda row: row.name, name, 10),
        ("base", lambda row: row.base_ns, names.format_duration, 10),
        ("new", lambda row: row.new_ns, names.format_duration, 10),
        ("change", lambda row: row.delta_ns, format_signed, 9),
    )


_SIZE_FIGURES: tuple[Figure[SizeChange], ...] = (
    ("", lambda row: row.status, str, 10),
    ("what", lambda row: f"{row.place.kind} {_qualified(row.place)}", names.neutral, 10),
    ("base", lambda row: row.base_bytes, names.format_size, 8),
    ("new", lambda row: row.new_bytes, names.format_size, 8),
    ("change", lambda row: format_signed(row.delta_bytes, names.format_size), str, 10),
    ("line", lambda row: row.place.line or "", names.neutral, 6),
)


def difference_headline(difference: Difference) -> list[tuple[str, str]]:
    """Return the headline figures as (label, text)."""
    lines = [
        (
            metric,
            f"{(names.format_size if metric == PEAK else names.format_duration)(found.new_median)}"
            " on both sides"
            if difference.identical
            else comparison_text(found, is_size=metric == PEAK)
            + (_largest_part(difference, found) if metric == TOTAL else ""),
        )
        for metric, found in difference.totals.items()
    ]
    if difference.identical:
        return lines
    parts = difference.iteration_parts
    if parts:
        sides = sum(part.base_ns for part in parts), sum(part.new_ns for part in parts)
        text = " -> ".join(map(names.format_duration, sides))
        lines.append(("iteration", f"{text} ({format_signed(sides[1] - sides[0])}, sum of parts)"))
    net = difference.new_ns - difference.base_ns
    if difference.changes:
        lines.append(
            (
                "operations",
                f"{names.format_duration(difference.base_ns)} -> "
                f"{names.format_duration(difference.new_ns)} ({format_signed(net)}: "
                f"{names.format_duration(difference.slower_ns)} slower or added, "
                f"{names.format_duration(difference.faster_ns)} faster or removed)",
            )
        )
    return lines


def _largest_part(difference: Difference, total: Comparison) -> str:
    """Name the part of an iteration that changed most in the direction of the total.

    It is not named if most of the change is in other iterations than the median one.
    """
    net_ns = total.new_median - total.base_median
    left_out = difference.waiting is not None and difference.waiting.left_out
    for part in difference.iteration_parts:
        if part.delta_ns * net_ns > 0 and not (left_out and part.name == "waiting_for_cpu"):
            if abs(part.delta_ns) < _NAMED_SHARE * abs(net_ns):
                break
            line = f" at {part.line}" if part.line else ""
            text = f"{names.part_name(part.name)} {format_signed(part.delta_ns)}{line}"
            return "" if total.verdict() == "same" else f"; largest change: {text}"
    return ""


def comparison_text(found: Comparison, *, is_size: bool = False) -> str:
    """Describe the change of one quantity and its confidence."""
    show = names.format_size if is_size else names.format_duration
    text = f"{show(found.base_median)} -> {show(found.new_median)}"
    ratio = found.median_ratio if is_size else found.ratio
    if ratio is not None:
        fastest = not is_size and found.statistic == "fastest"
        text += f" ({'fastest ' if fastest else ''}{(ratio - 1) * 100:+.1f} %"
        if not is_size and found.ratio_low is not None and found.ratio_high is not None:
            low, high = (found.ratio_low - 1) * 100, (found.ratio_high - 1) * 100
            text += f", between {low:+.1f} and {high:+.1f} %"
        text += ")"
    if is_size:
        return text
    if not found.conclusive:
        return f"{text}: {too_few_samples(found)}"
    verdict = found.verdict()
    if verdict != "unclear":
        return f"{text}: {verdict}"
    if found.lacks_runs:
        return f"{text}: inconclusive, {ONE_RUN}"
    if found.contrary:
        return f"{text}: inconclusive, median and fastest iterations changed in opposite directions"
    return f"{text}: inconclusive, {RUNS_DIFFER}"


IDENTICAL_SIDES = "both sides have identical figures: the same measurement was given twice"
ONE_RUN = "run-to-run variation unknown with one run per side"
RUNS_DIFFER = "run-to-run variation too large"


def difference_fields(difference: Difference) -> dict[str, Any]:
    """Return a comparison as plain data for JSON."""
    found: dict[str, Any] = {
        "format_version": DIFFERENCE_FORMAT_VERSION,
        "base": difference.base.label,
        "new": difference.new.label,
        "warnings": list(difference.warnings),
        "left_out": list(difference.left_out),
        "identical": difference.identical,
        "waiting": waiting_fields(difference.waiting),
        "totals": {
            name: {**asdict(found), "verdict": "same" if difference.identical else found.verdict()}
            for name, found in difference.totals.items()
        },
        "operations": {
            "base_ns": difference.base_ns,
            "new_ns": difference.new_ns,
            "delta_ns": difference.new_ns - difference.base_ns,
            "slower_ns": difference.slower_ns,
            "faster_ns": difference.faster_ns,
        },
        "iteration_parts": [
            asdict(part) | {"delta_ns": part.delta_ns} for part in difference.iteration_parts
        ],
        "changes": [
            asdict(change) | {"delta_ns": change.delta_ns} for change in difference.changes
        ],
        "size_changes": [
            asdict(change) | {"delta_bytes": change.delta_bytes}
            for change in difference.size_changes
        ],
        "kernel_changes": [
            asdict(change) | {"delta_ns": change.delta_ns} for change in difference.kernel_changes
        ],
    }
    plain: dict[str, Any] = finite_or_none(found)
    return plain


def finite_or_none(value: Any) -> Any:
    """Replace NaN and infinity by None, because JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite_or_none(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(one) for one in value]
    return value


def source_line(change: Change) -> str:
    """Return the source line, with the earlier line if it moved."""
    line = change.place.line or ""
    before = change.base_place.line if change.base_place is not None else None
    moved = before is not None and before != line and change.status != "gone"
    return f"{line} (was {before})" if moved else line


def _name(change: Change) -> str:
    text = _qualified(change.place)
    if change.place.kind == "line":
        text = change.place.line or "(no source line)"
    if change.place.kind == "module":
        text = "(outside any module)" if change.place.module is None else change.place.module
        text = text or "(root)"
    if change.base_types:
        text += f" ({_types(change)})"
    return names.neutral(f"{text} x{change.count}" if change.count > 1 else text)


def _types(change: Change, between: str = " -> ") -> str:
    return between.join(", ".join(types) for types in (change.base_types, change.new_types))


def _type_remarks(found: Difference) -> list[str]:
    """Return sentences about changed types, whose operations may be among the hidden rows."""
    operations: dict[str, dict[str, None]] = {}
    for change in found.changes:
        if change.base_types:
            operations.setdefault(_types(change, " to "), {})[change.place.name] = None
    lines = [
        f"inputs of {names.format_number(len(named))} operation{'s' * (len(named) > 1)} changed "
        f"from {types}: {', '.join([*named][:_MAX_NAMED])}{', ...' * (len(named) > _MAX_NAMED)}"
        for types, named in operations.items()
    ]
    weights = [change for change in found.size_changes if change.place.kind == "weight"]
    ratios = {(one.new_bytes or 0) / (one.base_bytes or math.inf) for one in weights}
    count = sum(one.place.kind == "weight" for one in found.new.sizes)
    if 1 < len(weights) == count and len(ratios) == 1 and ratios <= _ITEM_RATIOS:
        lines.append(f"all {count} weights have {ratios.pop():g} x the size, as with another dtype")
    return lines


def _qualified(place: Place) -> str:
    if place.kind == "between":
        return f"{place.module or ''} {place.name}".strip()
    return f"{place.module}.{place.name}" if place.module else place.name


def _ratio(change: Change) -> str:
    if not change.base_ns or change.new_ns is None:
        return ""
    return f"{change.new_ns / change.base_ns:.2f}"


def too_few_samples(found: Comparison) -> str:
    """Return the text for too few samples."""
    return (
        f"too few samples ({found.base_count} and {found.new_count}, at least {MIN_SAMPLES} needed)"
    )


def waiting_text(waiting: Waiting | None) -> str | None:
    """Describe whether iteration times include waiting for a processor; None if unknown."""
    if waiting is None:
        return None
    shares = f"base {_waiting_share(waiting.base_share)}, new {_waiting_share(waiting.new_share)}"
    if waiting.clock == "cpu":
        return (
            f"{_TIMES} are CPU times, those of single operations wall times, all without waiting "
            f"for a processor ({shares})"
        )
    if waiting.left_out:
        return f"times exclude waiting for a processor ({shares})"
    return (
        f"{_TIMES} include waiting for a processor ({shares}), which was not recorded for "
        "every iteration of both runs"
    )


def waiting_fields(waiting: Waiting | None) -> dict[str, Any] | None:
    """Return the shares of waiting as plain data."""
    return None if waiting is None else asdict(waiting)


def _waiting_share(share: float | None) -> str:
    return "unknown" if share is None else names.format_percent(100 * share)
