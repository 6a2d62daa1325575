"""What a measured step is worth: the gate's verdict on it, in words, rows and JUnit properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np

from unified_prof.analysis.compare.between import Noise
from unified_prof.analysis.compare.comparable import TOTAL, Run
from unified_prof.analysis.compare.diff import diff
from unified_prof.analysis.compare.doubts import doubts
from unified_prof.analysis.compare.gate import Check, Limits, Verdict, gate
from unified_prof.baselines import noise
from unified_prof.integrations.pytest_uprof.settings import Settings

Outcome = Literal["measured", "no baseline", "pass", "regression", "unclear"]
_TOP = 3
"""Operations of a regression that are named."""


class Judged(msgspec.Struct, frozen=True):
    """One step of one test."""

    outcome: Outcome
    new_ns: float | None
    """Median of the whole iterations."""
    base_ns: float | None = None
    baseline: str | None = None
    reason: str = ""
    """Of the worst metric, in a few words."""
    told: str = ""
    """What a test that fails says."""


def measured(run: Run, outcome: Outcome) -> Judged:
    """Return what there is to say of a step that is compared with nothing."""
    return Judged(outcome, _median(run))


def judge(test: str, base: Run, new: Run, wanted: Settings) -> Judged:
    """Judge a step by the gate's rule.

    Raises:
        UsageError: the two cannot be compared.
    """
    devices = [run.facts.get("device") for run in (base, new)]
    if None not in devices and devices[0] != devices[1]:
        reason = f"{base.label} was measured on {devices[0]}, this on {devices[1]}"
        return Judged("unclear", _median(new), _median(base), base.label, reason, reason)
    known = noise.of(new)
    limits = Limits(max_regress=wanted.max_regress)
    verdict = gate(base, new, wanted.metrics, limits, known)
    outcome: Outcome = "unclear" if verdict.outcome == "inconclusive" else verdict.outcome
    worst = next(check for check in verdict.checks if check.outcome == verdict.outcome)
    reason = worst.reason if worst.metric == TOTAL else f"{worst.metric}: {worst.reason}"
    told = "" if outcome == "pass" else _told(test, base, new, verdict, outcome, known)
    new_ns, base_ns = _medians(verdict) or (_median(new), _median(base))
    return Judged(outcome, new_ns, base_ns, base.label, reason, told)


def properties(judged: Judged, name: str) -> list[tuple[str, object]]:
    """Return the properties of the test case in a JUnit report."""
    prefix = f"uprof.{name}." if name else "uprof."
    found = {
        "outcome": judged.outcome,
        "iteration_ns": judged.new_ns,
        "baseline_iteration_ns": judged.base_ns,
        "baseline": judged.baseline,
        "reason": judged.reason or None,
    }
    return [(prefix + what, value) for what, value in found.items() if value is not None]


def table(judged: Mapping[str, Judged], *, compared: bool) -> list[str]:
    """Return a table of all steps for people."""
    from unified_prof.report import words
    from unified_prof.report.tables import Column
    from unified_prof.report.terminal import Page

    def time(value: float | None) -> str:
        return words.NOT_MEASURED if value is None else words.duration(value)

    rows = list(judged.values())
    columns = [
        Column("test", tuple(map(words.neutral, judged)), is_name=True),
        Column("iteration", tuple(time(one.new_ns) for one in rows)),
    ]
    if compared:
        columns += [
            Column("baseline", tuple(time(one.base_ns) for one in rows)),
            Column("outcome", tuple(one.outcome for one in rows), is_name=True),
            Column(
                "against", tuple(words.neutral(one.baseline or "-") for one in rows), is_name=True
            ),
            Column(
                "why",
                tuple(words.neutral(one.reason or "-") for one in rows),
                is_name=True,
                is_prose=True,
            ),
        ]
    page = Page(width=None, color=False)
    page.table(columns)
    return page.text().splitlines()


def _told(
    test: str, base: Run, new: Run, verdict: Verdict, outcome: str, known: Noise | None
) -> str:
    """Return why a test fails, and which operations changed most."""
    from unified_prof.report import comparison

    found = diff(base, new, noise=known)
    lines = [f"uprof: {outcome} of {test} against {base.label}"]
    lines += [f"  {_line(check)}" for check in verdict.checks if check.outcome != "pass"]
    lines += [f"  note: {doubt}" for doubt in doubts(base, new)]
    if outcome == "regression":
        text = comparison.diff_text(found, top=_TOP, everything=False, width=None, color=False)
        _, _, tables = text.partition("\n\n")
        lines += ["", *tables.rstrip().splitlines()] if tables else []
    return "\n".join(lines)


def _line(check: Check) -> str:
    from unified_prof.report.comparison import values

    return f"{check.metric}: {values(check)}: {check.reason}"


def _medians(verdict: Verdict) -> tuple[float, float] | None:
    """Return the times of both sides that were judged: without waiting, where that is known."""
    for check in verdict.checks:
        if check.metric == TOTAL and check.comparison is not None:
            return check.comparison.new_median, check.comparison.base_median
    return None


def _median(run: Run) -> float | None:
    totals = run.totals.get(TOTAL)
    return None if totals is None or not len(totals) else float(np.median(totals))
