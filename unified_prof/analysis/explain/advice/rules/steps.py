"""Steps that are not alike: one that is far longer, or a trend."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from unified_prof.analysis.explain.advice.case import Case, Flags, Ints
from unified_prof.analysis.explain.advice.lacking import FEW_STEPS
from unified_prof.analysis.explain.advice.limits import duration, percent
from unified_prof.analysis.finding import Finding
from unified_prof.analysis.views.idle import IN_WORDS, REASONS, meet
from unified_prof.arrays.intervals import IntervalSet

SLOW_STEPS = "slow_steps"
STEPS_GROW = "steps_grow"

SLOW = 1.5
"""A step that is longer than so many medians stands out."""
TREND, LONG_RUN = 0.08, 100
"""TraceML: 8 % from the first to the last quarter, over a hundred steps or more."""
_ON_PURPOSE = re.compile(r"eval|valid|checkpoint|save|test", re.IGNORECASE)


def slow_steps(case: Case) -> Iterator[Finding]:
    """Single steps that are far longer than the median one."""
    begin, end = _windows(case)
    length = end - begin
    if len(length) < FEW_STEPS:
        return
    usual = float(np.median(length))
    slow = np.flatnonzero((length > SLOW * usual) & ~_on_purpose(case, begin, end))
    if not len(slow):
        return
    cost = float((length[slow] - usual).sum())
    worst = int(slow[int(length[slow].argmax())])
    names = [name for name, _, _ in case.recording.steps][1:]
    grown, by = _grown(case, begin, end, worst, usual)
    more = "" if len(slow) == 1 else f" ({len(slow)} steps are slow)"
    yield case.finding(
        SLOW_STEPS,
        cost * case.step_count / len(length),
        f"step {names[worst]} takes {duration(int(length[worst]))} against "
        f"{duration(usual)} as a rule{more}; {grown} grew most, by {duration(by)}",
        advice="look at that step in `uprof trace`; follow what grew",
        sure="certain",
        figures={"slow": len(slow), "steps": len(length), "median_ns": round(usual), "grew": grown},
        evidence=[
            {"name": f"step {names[at]}", "count": 1, "total_ns": int(length[at])}
            for at in slow[np.argsort(-length[slow], kind="stable")][:5].tolist()
        ],
        steps=[int(names[at]) if names[at].isdecimal() else at + 1 for at in slow.tolist()],
    )


def steps_grow(case: Case) -> Iterator[Finding]:
    """Steps that get longer and longer."""
    begin, end = _windows(case)
    length = end - begin
    if len(length) < LONG_RUN:
        return
    quarter = len(length) // 4
    first, last = (float(np.median(part)) for part in (length[:quarter], length[-quarter:]))
    if last <= (1 + TREND) * first:
        return
    cost = float(np.maximum(length - first, 0).sum()) * case.step_count / len(length)
    yield case.finding(
        STEPS_GROW,
        cost,
        f"steps get longer: {duration(first)} in the first quarter, {duration(last)} in "
        f"the last, {percent(last / first - 1)} more",
        advice="look for what accumulates: lists of tensors, graphs kept alive, longer inputs, "
        "fragmented memory, a device that gets hot",
        sure="certain",
        figures={"first_ns": round(first), "last_ns": round(last), "steps": len(length)},
    )


def _windows(case: Case) -> tuple[Ints, Ints]:
    """Return when each step begins and ends, all but the first."""
    if case.device is not None:
        windows = case.recording.step_windows[case.device]
        return windows.start_ns[1:], windows.end_ns[1:]
    times = np.array([step[1:] for step in case.recording.steps[1:]], np.int64).reshape(-1, 2)
    return times[:, 0], times[:, 1]


def _on_purpose(case: Case, begin: Ints, end: Ints) -> Flags:
    """Tell which steps hold an evaluation or a checkpoint, by what ranges are called."""
    framework = case.recording.framework
    result = np.zeros(len(begin), bool)
    if framework is not None:
        named = framework.matching(lambda name: "::" not in name and bool(_ON_PURPOSE.search(name)))
        for at in named.tolist():
            result |= (framework.start_ns[at] < end) & (framework.end_ns[at] > begin)
    return result


def _grown(case: Case, begin: Ints, end: Ints, worst: int, usual: float) -> tuple[str, float]:
    """Return which part of a step grew most against the median, and by how much."""
    if case.device is None:
        return "time on the host", float(end[worst] - begin[worst]) - usual
    steps = IntervalSet(begin, end)
    each = {
        name: np.zeros(len(begin), np.int64)
        for name in (
            *("computation", "communication", "copies"),
            *(f"idle time {IN_WORDS[reason]}" for reason in REASONS),
        )
    }
    for stretch in case.recording.devices[case.device].stretches():
        for name, part in (
            ("computation", stretch.compute),
            ("communication", stretch.communication),
            ("copies", stretch.copies),
        ):
            start, stop, _, step = meet(part, steps)
            np.add.at(each[name], step, stop - start)
    for segments in case.recording.idle_time.parts(case.device):
        idle = IntervalSet(segments.start_ns, segments.end_ns)
        start, stop, which, step = meet(idle, steps)
        for number, reason in enumerate(REASONS):
            own = segments.reason[which] == number
            np.add.at(each[f"idle time {IN_WORDS[reason]}"], step[own], (stop - start)[own])
    grown = {name: float(times[worst] - np.median(times)) for name, times in each.items()}
    most = max(grown, key=lambda name: grown[name])
    return most, grown[most]
