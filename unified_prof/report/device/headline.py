"""The headline of a comparison of devices, and what a reader has to know of its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unified_prof.analysis.compare.comparable import PEAK
from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.analysis.compare.device.side import UNKNOWN_DEVICE, Side
from unified_prof.analysis.explain.roofline.peaks import Peak
from unified_prof.report import words
from unified_prof.report.difference import IDENTICAL, comparison_words, signed

NONE: Final = "-"

_MANY_TIMES: Final = 100
"""From here on a ratio has no decimals."""
_LEAST_TIMES: Final = 0.01
"""Below, two decimals would say that nothing is left."""


def title(found: DeviceDifference) -> str:
    """Return which side is compared with which."""
    return f"{words.neutral(found.base.label)} -> {words.neutral(found.new.label)}"


def headline(found: DeviceDifference) -> list[tuple[str, str]]:
    """Return the headline as (what, in words): both devices, and the step as a whole."""
    lines = [("base", _side(found.base)), ("new", _side(found.new))]
    before, after = (side.per_share(side.window_ns) for side in (found.base, found.new))
    if before and after:
        change = f"{signed(after - before)}, {ratio_text(after / before)}"
        lines.append(
            (unit(found), f"{words.duration(before)} -> {words.duration(after)} ({change})")
        )
    for metric, comparison in found.totals.items():
        if found.same_devices or metric == PEAK:
            is_size = metric == PEAK
            said = comparison_words(comparison, is_size=is_size)
            if found.identical:
                show = words.size if is_size else words.duration
                said = f"{show(comparison.new_median)} on both sides"
            elif not found.same_devices:
                said = (
                    f"{words.size(comparison.base_median)} -> {words.size(comparison.new_median)}"
                )
            lines.append((metric if is_size else "median step", said))
    return lines


def remarks(found: DeviceDifference) -> list[str]:
    """Return what a reader has to know of the figures."""
    lines = list(found.left_out)
    unknown = {
        name: side
        for name, side in (("base", found.base), ("new", found.new))
        if UNKNOWN_DEVICE in side.devices or not side.devices
    }
    if found.identical:
        told = IDENTICAL
    elif found.same_devices:
        told = "both sides ran on the same model of device"
    elif unknown:
        told = f"{_not_named(unknown)}: times stand side by side, without verdict"
    else:
        told = "the devices differ: times stand side by side, without verdict"
    lines.append(told)
    lines += _peaks(found)
    lines.append(
        "work adds up what ran at the same time, and so may be more than the part of a step that "
        "computes"
    )
    return lines


def _not_named(unknown: Mapping[str, Side]) -> str:
    """Say which sides do not name their device, and what its properties are those of."""
    said = []
    for name, side in unknown.items():
        like = f" (its properties are those of {side.limits.name})" if side.limits else ""
        said.append(f"{name}{like}")
    return f"which device {' and '.join(said)} ran on is not recorded"


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
    return f"{words.number(side.steps)} step{'s' if side.steps != 1 else ''}{of}"


def unit(found: DeviceDifference) -> str:
    """Return what figures are those of."""
    stepped = found.base.steps is not None and found.new.steps is not None
    return "step" if stepped else "recording"


def ratio_text(value: float | None) -> str:
    """Return new over base in words."""
    if value is None:
        return NONE
    if 0 < value < _LEAST_TIMES:
        return f"<{_LEAST_TIMES:g} x"
    return f"{value:.2f} x" if value < _MANY_TIMES else f"{value:,.0f} x"


def _peaks(found: DeviceDifference) -> list[str]:
    """Say which peaks the ratios that they allow are of."""
    said: dict[str, list[str]] = {}
    present = {row.name for row in found.classes}
    for name, limits in found.allowed.items():
        if name in present:
            said.setdefault(f"{_peak(limits.base)} -> {_peak(limits.new)}", []).append(name)
    if not said:
        return []
    parts = "; ".join(f"{', '.join(names)}: {peaks}" for peaks, names in said.items())
    return [
        f"peaks allow: the ratio if both worked at their peak ({parts}; ? is an uncertain figure)"
    ]


def _peak(peak: Peak) -> str:
    if peak.name in ("memory", "link"):
        return f"{peak.name} {peak.rate / 1e9:,.4g} GB/s"
    return f"{peak.name} {peak.rate / 1e12:,.4g} TFLOP/s"
