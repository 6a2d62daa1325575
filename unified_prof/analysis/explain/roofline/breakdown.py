"""The breakdown `roofline`: operations by name and shape, what they did and could have done."""

from __future__ import annotations

from unified_prof.analysis.explain.roofline import of_recording
from unified_prof.analysis.explain.roofline.placed import Placed
from unified_prof.analysis.model import Breakdown, Row
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views import breakdowns


def rows(recording: Recording) -> Breakdown:
    """Return one row for each class of operations, kernels, copies and collectives."""
    found = of_recording.of(recording)
    several = len(found.devices) > 1
    return breakdowns.finish("roofline", (_row(one, several) for one in found.rows))


def _row(one: Placed, several_devices: bool) -> Row:
    cost, seconds = one.cost, one.total_ns / 1e9
    name = " ".join(part for part in (one.name, one.shapes) if part)
    if several_devices:
        name += f" ({one.device})"
    calculates = cost is not None and cost.unit != "copy"
    per_second = None
    moved_per_second = None
    if cost is not None and seconds:
        per_second = cost.flops / seconds / 1e12 if calculates else None
        moved_per_second = cost.moved_bytes / seconds / 1e9
    return Row(
        name=name,
        kind=one.kind,
        count=one.count,
        total_ns=one.total_ns,
        detail=limits(one),
        extra={
            "work_flops": cost.flops if cost is not None and calculates else None,
            "moved_bytes": None if cost is None else cost.moved_bytes,
            "compute_tflop_per_s": per_second,
            "memory_gb_per_s": moved_per_second,
            "intensity_flops_per_byte": one.intensity if calculates else None,
            "of_peak_percent": None if one.efficiency is None else 100 * one.efficiency,
            "above_target_ns": one.above_target_ns,
        },
    )


def limits(one: Placed) -> str | None:
    """Return what limits operations, of which peak their share is, and what is in doubt."""
    parts = []
    if one.bound == "memory" and one.memory is not None:
        parts.append(f"memory, {one.memory.rate / 1e9:,g} GB/s" + _mark(one.memory.uncertain))
    elif one.bound == "compute" and one.peak is not None:
        parts.append(
            f"{one.peak.name}, {one.peak.rate / 1e12:,.4g} TFLOP/s" + _mark(one.peak.uncertain)
        )
    if one.doubt:
        parts.append(one.doubt)
    return "; ".join(parts) or None


def _mark(uncertain: bool) -> str:
    return " (uncertain)" if uncertain else ""
