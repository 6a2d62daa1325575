"""Comparison of device recordings in sentences: headline, changed findings, verdict, remarks."""

from __future__ import annotations

from typing import Final

from unified_prof.compare.comparable import PEAK
from unified_prof.compare.device_side import UNKNOWN_DEVICE, Side
from unified_prof.compare.device_tables import Allowed, DeviceDifference, FindingChange
from unified_prof.explain.roofline.peaks import Peak
from unified_prof.report import names
from unified_prof.report.names import finding_summary, neutral
from unified_prof.report.names import format_duration as duration
from unified_prof.report.operation_difference import IDENTICAL_SIDES, comparison_text, format_signed

_LARGE_RATIO: Final = 100  # Ratios from here on are shown without decimals.
_SMALL_RATIO: Final = 0.01  # Ratios below this are shown as `<0.01`.
_MAX_FINDINGS: Final = 3  # Changed findings above the tables.


def device_headline(found: DeviceDifference) -> list[tuple[str, str]]:
    """Return the headline as (label, text): both devices, and the step."""
    lines = [("base", _side(found.base)), ("new", _side(found.new))]
    before, after = (side.per_share(side.window_ns) for side in (found.base, found.new))
    if before and after:
        change = f"{format_signed(after - before)}, {ratio_text(after / before)}"
        lines.append((unit(found), f"{duration(before)} -> {duration(after)} ({change})"))
    for metric, comparison in found.totals.items():
        if found.same_devices or metric == PEAK:
            is_size = metric == PEAK
            said = comparison_text(comparison, is_size=is_size)
            if found.identical:
                show = names.format_size if is_size else duration
                said = f"{show(comparison.new_median)} on both sides"
            elif not found.same_devices:
                base, new = comparison.base_median, comparison.new_median
                said = f"{names.format_size(base)} -> {names.format_size(new)}"
            lines.append((metric if is_size else "median step", said))
    return lines


def _finding_change(found: DeviceDifference, change: FindingChange) -> tuple[str, str, str]:
    """Return the outcome of a finding whose cost changed, its costs, and its text."""
    before, after = (
        "unknown" if cost is None else duration(cost) for cost in (change.base_ns, change.new_ns)
    )
    label, costs = "finding", f"{before} -> {after}"
    if change.base_ns == 0:
        label, costs = "new finding", after
    elif change.new_ns == 0:
        label, costs = "no longer found", before
    per = "/step" if found.new.steps else ""
    text = neutral(finding_summary(change.finding))
    return (
        label,
        f"{costs}{per}",
        f"{_side_of(found, change)}{text}" if label == "finding" else text,
    )


def _side_of(found: DeviceDifference, change: FindingChange) -> str:
    """Return the side whose figures the text of a finding has, as its beginning."""
    return f"in {'new' if change.finding.kind in found.new.findings else 'base'}, "


def _main_finding(found: DeviceDifference, change: FindingChange) -> str:
    """Return a sentence, without a full stop, about the finding whose cost changed most."""
    before, after = (
        "an unknown time" if cost is None else duration(cost) + "/step" * bool(found.new.steps)
        for cost in (change.base_ns, change.new_ns)
    )
    text = neutral(finding_summary(change.finding))
    if change.base_ns == 0:
        return f"A new finding costs {after}: {text}"
    if change.new_ns == 0:
        return f"A finding that cost {before} is gone: {text}"
    is_largest = all(abs(one.change_ns) <= abs(change.change_ns) for one in found.findings)
    most = "most" if is_largest else "most in this direction"
    said = f"The finding that changed {most} costs {after} instead of {before}"
    return f"{said}: {_side_of(found, change)}{text}"


def finding_facts(found: DeviceDifference) -> list[tuple[str, str]]:
    """Return the findings whose cost changed most as (outcome, costs and text)."""
    changes = (_finding_change(found, one) for one in found.findings[:_MAX_FINDINGS])
    return [(label, f"{costs}  {text}") for label, costs, text in changes]


def device_verdict(found: DeviceDifference) -> str:
    """Return a sentence with the change of the step and the kernel class that changed most."""
    if found.identical:
        return IDENTICAL_SIDES
    before, after = (side.per_share(side.window_ns) for side in (found.base, found.new))
    text = f"The {unit(found)} takes {duration(after)}"
    if before:
        text += f" instead of {duration(before)} ({ratio_text(after / before)})"
    if found.findings:
        return f"{text}. {_main_finding(found, found.findings[0])}."
    row = max(found.classes, key=lambda row: abs(found.change_ns(row)), default=None)
    if row is None or not found.change_ns(row):
        return f"{text}."
    text += f"; largest change in {row.name} kernels: {format_signed(found.change_ns(row))}"
    if (ratio := found.ratio(row)) is not None:
        text += f", {ratio_text(ratio)}"
        if row.class_name in found.allowed:
            text += f" (attainable {attainable_ratio(found.allowed[row.class_name])})"
    return f"{text}."


def device_remarks(found: DeviceDifference) -> list[str]:
    """Return notes on how to read the figures."""
    unknown = [
        name if side.limits is None else f"{name} (properties of {side.limits.name})"
        for name, side in (("base", found.base), ("new", found.new))
        if UNKNOWN_DEVICE in side.devices or not side.devices
    ]
    if found.identical:
        remark = IDENTICAL_SIDES
    elif found.same_devices:
        remark = "both sides ran on the same device model"
    else:
        why = f"the device of {' and '.join(unknown)} was not recorded"
        remark = f"{why if unknown else 'the devices differ'}: times are shown without a verdict"
    return [
        *(*found.left_out, remark, *_peaks(found)),
        "kernel time is summed over streams and can exceed the compute part of a step",
    ]


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
        return names.NOT_MEASURED
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


def attainable_ratio(limits: Allowed | None) -> str:
    """Return the attainable ratio; `?` marks an uncertain peak."""
    return "" if limits is None else f"{limits.ratio:.2f} x{'?' if limits.uncertain else ''}"
