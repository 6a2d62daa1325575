"""Advice rules for tracked workloads (Skyline reports): CPU waits, gaps, memory by line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.explain.advice.idle_segments import (
    EVIDENCE_ROWS,
    MIN_SHARE,
    duration,
    percent,
)
from unified_prof.recording.calls import UNKNOWN, Calls
from unified_prof.recording.model import Advice, Evidence, Finding, Gaps, NotJudged, Step, Sureness

WAITED_SHARE = 0.10  # Minimum share of an iteration; an otherwise idle machine stays far below.
# Minimum share of an iteration between all operations, as for host-bound devices.
GAPS_SHARE = 0.10
# Three lines with half of the activations, if at least ten lines have some.
MAX_LINES, HEAVY_SHARE, MIN_LINES = 3, 0.5, 10
HEAVY_BYTES = 256 << 20  # Smaller amounts do not limit the batch size.
PEAK_SHARE = 0.3  # Minimum share of the peak that activations take.
# An iteration is slow above this many medians, with at least this many iterations.
SLOW_MEDIANS, MIN_ITERATIONS = 1.5, 5
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Tracked:
    """Inputs shared by the advice rules for the Skyline reports of one run."""

    steps: tuple[Step, ...]
    calls: Calls
    gaps: Gaps | None
    peak_bytes: int | None
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def timed(self) -> list[Step]:
        """Averaged iterations with their times."""
        return [step for step in self.steps if step.matched and step.total_ns]

    @property
    def median_ns(self) -> float:
        """Length of the median iteration; 0 if none was timed."""
        return float(np.median([one.total_ns or 0 for one in self.timed])) if self.timed else 0.0

    def finding(
        self,
        kind: str,
        cost_ns: float,
        text: str,
        *,
        advice: str,
        sure: Sureness,
        figures: dict[str, Any],
        evidence: Sequence[Evidence],
        steps: tuple[int, ...] | None = None,
    ) -> Finding:
        """Return a finding of this run; its cost is appended to the text."""
        timed = tuple(int(one.name) for one in self.timed if one.name.isdecimal())
        rank = self.facts.get("rank", "")
        return Finding(
            kind=kind,
            ranks=(int(rank),) if rank.isdecimal() else (),
            hosts=(self.facts["host"],) if self.facts.get("host") else (),
            links=(),
            steps=timed if steps is None else steps,
            cost_ms_per_step=round(cost_ns / 1e6, 6),
            text=f"{text}; saves up to {duration(cost_ns)} per iteration" if cost_ns else text,
            figures=figures,
            advice=advice,
            sure=sure,
            evidence=tuple(evidence),
        )


def waiting_for_processor(run: Tracked) -> Iterator[Finding]:
    """Find time in which the program waited for a CPU."""
    waited = float(np.median([one.waited_ns for one in run.timed if one.waited_ns is not None]))
    share = waited / run.median_ns
    if share < WAITED_SHARE:
        return
    yield run.finding(
        "waiting_for_processor",
        waited,
        f"CPU wait: the process is ready but not running for {percent(share)} of an "
        "iteration because other processes use the cores",
        advice="free the cores (other processes, DataLoader workers), or use fewer threads per "
        "process (OMP_NUM_THREADS, torch.set_num_threads)",
        sure="certain",
        figures={"waited_ns": round(waited), "share": round(share, 4)},
        evidence=[],
    )


def time_between_operations(run: Tracked) -> Iterator[Finding]:
    """Find time outside operations, by the lines around it."""
    assert run.gaps is not None
    sums: dict[str, NDArray[np.float64]] = {}
    for line, times in zip(run.gaps.lines, np.nan_to_num(run.gaps.gap_ns), strict=True):
        sums[line] = sums.get(line, np.zeros(len(times))) + times
    medians = {line: float(np.median(times)) for line, times in sums.items() if len(times)}
    if not medians:
        return
    whole = float(np.median(np.sum(list(sums.values()), axis=0)))
    share = whole / run.median_ns
    if share < GAPS_SHARE:
        return
    counts = {line: run.gaps.lines.count(line) for line in medians}
    heaviest = sorted(medians, key=lambda line: -medians[line])[:EVIDENCE_ROWS]
    yield run.finding(
        "time_between_operations",
        whole,
        f"between operations: {percent(share)} of an iteration, mostly around {heaviest[0]}",
        advice="check these lines for work outside torch: Python loops, logging, conversion to "
        "lists or NumPy, reading data",
        sure="certain",
        figures={"between_ns": round(whole), "share": round(share, 4), "lines": len(medians)},
        evidence=[
            {"name": line, "line": line, "count": counts[line], "total_ns": round(medians[line])}
            for line in heaviest
        ],
    )


def activation_heavy_lines(run: Tracked) -> Iterator[Finding]:
    """Find lines that save most of the activations."""
    calls = run.calls
    assert calls.activation_bytes is not None
    assert calls.line is not None
    kept = np.flatnonzero((calls.activation_bytes > 0) & (calls.line != UNKNOWN))
    lines, number, count = np.unique(calls.line[kept], return_inverse=True, return_counts=True)
    size = np.bincount(number, weights=calls.activation_bytes[kept])
    order = np.argsort(-size, kind="stable")
    whole = int(calls.activation_bytes[calls.activation_bytes > 0].sum())
    most = float(size[order[:MAX_LINES]].sum()) / max(whole, 1)
    small = whole < HEAVY_BYTES or whole < PEAK_SHARE * (run.peak_bytes or 0)
    if len(lines) < MIN_LINES or most < HEAVY_SHARE or small:
        return
    texts = calls.labels.texts
    yield run.finding(
        "activation_heavy_lines",
        0,
        f"{MAX_LINES} of {len(lines)} lines save {percent(most)} of the activations "
        f"({whole / _MIB:,.0f} "
        "MiB)",
        advice="use torch.utils.checkpoint around these lines, a fused operation or a smaller "
        "dtype, so that a larger batch fits",
        sure="certain",
        figures={"activation_bytes": whole, "share": round(most, 4), "lines": len(lines)},
        evidence=[
            {
                "name": texts[int(lines[at])],
                "line": texts[int(lines[at])],
                "count": int(count[at]),
                "total_bytes": int(size[at]),
            }
            for at in order[:EVIDENCE_ROWS].tolist()
        ],
    )


def slow_iterations(run: Tracked) -> Iterator[Finding]:
    """Find individual slow iterations that did not wait for a CPU."""
    timed, median = run.timed[1:], run.median_ns
    slow = [
        one for one in timed if (one.total_ns or 0) - (one.waited_ns or 0) > SLOW_MEDIANS * median
    ]
    cost = sum((one.total_ns or 0) - median for one in slow) / max(len(timed), 1)
    if not slow or cost < MIN_SHARE * median:
        return
    worst = max(slow, key=lambda one: one.total_ns or 0)
    yield run.finding(
        "slow_iterations",
        cost,
        f"iteration {worst.name} takes {duration(worst.total_ns or 0)}, median {duration(median)}",
        advice="check what else this iteration did: logging, checkpoint, evaluation, other shapes",
        sure="certain",
        figures={"slow": len(slow), "iterations": len(timed), "median_ns": round(median)},
        evidence=[
            {"name": f"iteration {one.name}", "count": 1, "total_ns": one.total_ns} for one in slow
        ][:EVIDENCE_ROWS],
        steps=tuple(int(one.name) for one in slow if one.name.isdecimal()),
    )


# Rule, whether a run has the data for it, and what is missing otherwise.
RULES: tuple[tuple[Callable[[Tracked], Iterator[Finding]], Callable[[Tracked], bool], str], ...] = (
    (
        waiting_for_processor,
        lambda run: any(one.waited_ns is not None for one in run.timed),
        "processor wait not measured",
    ),
    (
        time_between_operations,
        lambda run: run.gaps is not None and run.median_ns > 0,
        "time between operations not recorded (table UPROF_GAPS)",
    ),
    (
        activation_heavy_lines,
        lambda run: run.calls.activation_bytes is not None and run.calls.line is not None,
        "activations by line not recorded (memory report)",
    ),
    (
        slow_iterations,
        lambda run: len(run.timed) > MIN_ITERATIONS,
        f"fewer than {MIN_ITERATIONS + 1} iterations recorded",
    ),
)


def advise(run: Tracked) -> Advice:
    """Evaluate the rules and return the findings, most expensive first."""
    by_rule = {
        rule.__name__: list(rule(run)) if has_data(run) else None for rule, has_data, _ in RULES
    }
    findings = [finding for found in by_rule.values() for finding in found or ()]
    return Advice(
        findings=tuple(
            sorted(findings, key=lambda finding: (-finding.cost_ms_per_step, finding.kind))
        ),
        not_judged=tuple(
            NotJudged(rule.__name__, why)
            for rule, _, why in RULES
            if by_rule[rule.__name__] is None
        ),
        judged=tuple(kind for kind, found in by_rule.items() if found == []),
        steps=len(run.timed),
        step_ms=round(run.median_ns / 1e6, 6) if run.median_ns else None,
    )
