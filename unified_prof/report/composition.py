"""Sentences about what takes the time of a recording, for reports whose findings do not say it."""

from __future__ import annotations

from collections.abc import Sequence

from unified_prof.recording.model import Advice, Breakdown, Summary, Totals
from unified_prof.report.names import (
    format_share,
    neutral,
    part_name,
    readable_names,
)

# The longest operations, or parts of an iteration, are named: this number of them, and, on a
# device, if they take this share of the time.
_LONGEST, _DOMINANT_SHARE = 2, 0.6
_FEW_TASKS = 10  # So few tasks are named, because they hardly are a program.


def composition(summary: Summary, shown: Sequence[Breakdown], advice: Advice) -> list[str]:
    """Say what takes the time: the device's work or its idle time, and the longest operations."""
    said = []
    # Breakdowns include the first step, which is not analyzed.
    steps = (summary.totals.iterations or advice.steps) if advice.steps else 1
    analyzed_ns = (advice.step_ms or 0.0) * 1e6 * steps
    devices = summary.devices
    if len(devices) == 1 and (window_ns := devices[0].share_basis.window_ns):
        device = devices[0].share_basis
        if 2 * device.busy_ns < window_ns:
            idle = f"the device is idle {format_share(device.idle_ns, window_ns)} of the time"
            why = ": the program captures a device graph, whose kernels run only in replays"
            few = f": it ran {devices[0].tasks} task{'s' * (devices[0].tasks > 1)}"
            few *= devices[0].tasks <= _FEW_TASKS
            return [idle + (why if advice.captures else few)]
        said.append(f"the device is busy {format_share(device.busy_ns, window_ns)} of the time")
    for breakdown in shown:
        if breakdown.by not in ("operation", "kernel"):
            continue  # ranges of the program, whose work is not of one kind
        rows, whole = breakdown.rows, breakdown.total_ns
        # The rows of a tracked run are those of one iteration.
        time_ns = breakdown.whole_ns or analyzed_ns
        if not devices and whole is not None and 2 * whole < time_ns:
            said.append(
                f"operations take {format_share(whole, time_ns)} of the time, "
                + _outside_operations(summary.totals, whole, time_ns)
            )
        timed = sorted((row for row in rows if row.total_ns), key=lambda row: -(row.total_ns or 0))
        longest = timed[:_LONGEST]
        taken = sum(row.total_ns or 0 for row in longest)
        dominant = taken > _DOMINANT_SHARE * (whole or 0)
        # On the CPU, operations are named even if they do not dominate.
        if whole and (dominant or not devices):
            listed = " and ".join(readable_names([row.name for row in longest]))
            if devices or time_ns < taken or 2 * whole < time_ns:
                share = f"{format_share(taken, whole)} of {summary.clock} time"
            else:
                share = f"{format_share(taken, time_ns)} of the time"
            # Elsewhere, operations are only a part of the time.
            claim = ": only fewer or faster ones help" if devices else ""
            said.append(f"{share} is in {neutral(listed)}{claim}")
    return said


def _outside_operations(totals: Totals, operations_ns: float, time_ns: float) -> str:
    """Return the longest parts of an iteration outside of operations, without waits for a CPU."""
    parts: dict[str, float] = dict(totals.iteration_parts_ns)
    parts.pop("waiting_for_cpu", None)
    passes = [parts.pop(name) for name in ("forward", "backward") if name in parts]
    if not passes:
        return "the other code of the program takes the rest"
    named = {part_name(name): ns for name, ns in parts.items()}
    named["code between operations of the passes"] = max(0.0, sum(passes) - operations_ns)
    longest = sorted(named.items(), key=lambda one: -one[1])
    shares = [f"{name} {format_share(ns, time_ns)}" for name, ns in longest]
    return ", ".join(shares[:_LONGEST])


# Findings that explain idle time, or why a recording does not show it, without a saving.
_EXPLAIN_IDLE = {"late_work", "unrecorded_work", "sampled_trace", "kernel_replay"}


def unexplained(summary: Summary, shown: Sequence[Breakdown], advice: Advice) -> list[str]:
    """Say what takes the time if findings neither save time nor explain idle time."""
    findings = advice.findings
    if not findings or len(summary.devices) != 1:
        return []
    if any(one.cost_ms_per_step or one.kind in _EXPLAIN_IDLE for one in findings):
        return []
    return composition(summary, shown, advice)[:1]
