"""The first lines of a report: a line per finding with its cost, or what takes the time."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from unified_prof.recording.model import Advice, Breakdown, Finding, Summary
from unified_prof.report import names

# Clauses that may be left out, but for the basis of a share that differs from the one of the cost.
_PARENTHESES = re.compile(r" \((?!CPU wait excluded)[^()]*\)")
_FINDING_LENGTH = 90  # Findings are shortened to this many characters if clauses can be left out.
# Without findings, the longest operations are named if they take this share of the time.
_LONGEST_OPERATIONS, _DOMINANT_SHARE = 2, 0.6


# Graph replays without operations are mentioned if they take this share of the device time.
_REPLAYED_SHARE = 0.1


def excluded_part(advice: Advice) -> list[str]:
    """Describe the part of a recording that was excluded from the analysis."""
    length = names.format_duration(advice.paused_ms * 1e6)
    if advice.steps:
        first = ["the first step"] * (advice.steps < advice.recorded_steps > 2)
        long = [f"steps of more than three medians, in total {length}"] * bool(advice.pauses)
        return [f"not analyzed: {', '.join(first + long)}"] if first or long else []
    if not advice.pauses:
        return []
    gaps = "a gap of" if advice.pauses == 1 else f"{advice.pauses} gaps, in total"
    return [f"not analyzed: {gaps} {length}, in which the device is idle"]


def analysis_notes(advice: Advice, path: str) -> list[str]:
    """Return the notes below the findings of a report: what they leave out and what they are of."""
    excluded = excluded_part(advice)
    if excluded and not advice.steps and any(one.cost_ms_per_step for one in advice.findings):
        rest = names.format_duration((advice.step_ms or 0.0) * 1e6)
        excluded = [f"{excluded[0]}; costs are shares of the other {rest}"]
    return [*excluded, *replay_notes(advice, path)]


def replay_notes(advice: Advice, path: str = "REPLAY") -> list[str]:
    """Return the command that shows the operations of graph replays, if replays take much time.

    `path` is the recording of the replays.
    """
    if advice.replayed_share < _REPLAYED_SHARE:
        return []
    share = names.format_percent(100 * advice.replayed_share)
    option, capture = "--with", advice.capture or "CAPTURE"
    if advice.capture and not capture.endswith(".db"):
        option = "--convert --with"
    command = names.neutral(f"uprof report {shlex.quote(path)} {option} {shlex.quote(capture)}")
    return [f"{share} of device time is in graph replays: `{command}` shows operations"]


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
            idle = f"the device is idle {names.format_share(device.idle_ns, window_ns)} of the time"
            why = ": the program captures a device graph, whose kernels run only in replays"
            return [idle + why * advice.captures]
        said.append(
            f"the device is busy {names.format_share(device.busy_ns, window_ns)} of the time"
        )
    for breakdown in shown:
        if breakdown.by not in ("operation", "kernel"):
            continue  # ranges of the program, whose work is not of one kind
        rows, whole = breakdown.rows, breakdown.total_ns
        # The rows of a tracked run are those of one iteration.
        time_ns = breakdown.whole_ns or analyzed_ns
        if not devices and whole is not None and 2 * whole < time_ns:
            said.append(
                f"operations take {names.format_share(whole, time_ns)} of the time, the "
                "other code of the program takes the rest"
            )
        timed = sorted((row for row in rows if row.total_ns), key=lambda row: -(row.total_ns or 0))
        longest = timed[:_LONGEST_OPERATIONS]
        taken = sum(row.total_ns or 0 for row in longest)
        dominant = taken > _DOMINANT_SHARE * (whole or 0)
        # On the CPU, operations are named even if they do not dominate.
        if whole and (dominant or not devices):
            listed = " and ".join(names.readable_names([row.name for row in longest]))
            if devices or time_ns < taken or 2 * whole < time_ns:
                share = f"{names.format_share(taken, whole)} of {summary.clock} time"
            else:
                share = f"{names.format_share(taken, time_ns)} of the time"
            # Elsewhere, operations are only a part of the time.
            claim = ": only fewer or faster ones help" if devices else ""
            said.append(f"{share} is in {names.neutral(listed)}{claim}")
    return said


def finding_cost(finding: Finding, advice: Advice) -> str:
    """Return the time per step that fixing a finding saves, and its share of the step."""
    if not finding.cost_ms_per_step:
        return names.NOT_MEASURED
    cost = names.format_duration(finding.cost_ms_per_step * 1e6)
    if not advice.step_ms:
        return cost
    unit = "/step" if advice.steps else ""
    if finding.cost_ms_per_step > advice.step_ms:  # slow steps may take longer than all others
        return f"{cost}{unit}"
    return f"{cost}{unit} ({names.format_share(finding.cost_ms_per_step, advice.step_ms)})"


def finding_summary(finding: Finding) -> str:
    """Return a finding without its cost, shortened to the clauses that fit in one line."""
    clauses = [one for one in finding.text.split("; ") if not one.startswith("saves ")]
    text = clauses[0] if clauses else finding.text
    if len(text) > _FINDING_LENGTH:
        text = _PARENTHESES.sub("", text)
    for clause in clauses[1:]:
        if len(text) + len(clause) + 2 > _FINDING_LENGTH:
            break
        text = f"{text}; {clause}"
    return f"{text} ({finding.sure})"
