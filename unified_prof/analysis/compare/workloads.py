"""Several workloads at a time: the verdict on each, and on their geometric mean.

The geometric mean says whether a change makes things slower on the whole, whatever share of the
time each workload has, and sees less than the limit of a single one where all go the same way. It
is judged by the same rule: a run of the whole is one run of each workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unified_prof.analysis.compare.between import Between, Noise
from unified_prof.analysis.compare.comparable import PEAK, Run
from unified_prof.analysis.compare.gate import (
    EXIT_CODES,
    Check,
    Limits,
    Outcome,
    Unit,
    Verdict,
    gate,
    judged,
    samples,
)
from unified_prof.analysis.compare.statistics import Comparison, compare_together
from unified_prof.analysis.compare.waiting import alike
from unified_prof.errors import UsageError

Pairs = Mapping[str, tuple[Run, Run]]
"""Workload -> its runs before and after the change."""
Noises = Mapping[str, Noise | None]
"""Workload -> how much its runs differ on this machine, where it was learned."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The gate's answer on several workloads."""

    each: Mapping[str, Verdict]
    together: tuple[Check, ...]
    """Of the geometric mean of all, one a metric."""
    limits: Limits

    @property
    def outcome(self) -> Outcome:
        """The worst of all: a regression beats an inconclusive one."""
        found = [check.outcome for check in self.together]
        found += [verdict.outcome for verdict in self.each.values()]
        worst: Outcome = "pass"
        for outcome in found:
            if outcome == "regression" or worst == "pass":
                worst = outcome
        return worst

    @property
    def exit_code(self) -> int:
        """What the shell sees."""
        return EXIT_CODES[self.outcome]


def gate_each(pairs: Pairs, metrics: Sequence[str], limits: Limits, noises: Noises) -> Verdicts:
    """Judge each workload, and their geometric mean, by each of `metrics`.

    Raises:
        UsageError: as of `gate`; the workloads' times are of different clocks.
    """
    each = {
        name: gate(base, new, metrics, limits, noises.get(name))
        for name, (base, new) in pairs.items()
    }
    together = tuple(_together(pairs, metric, limits, noises) for metric in metrics)
    return Verdicts(each, together, limits)


def compare_each(pairs: Pairs, metric: str, noises: Noises) -> Comparison | None:
    """Return the change of the geometric mean; None where a workload has no such metric."""
    sides = [tuple(samples(run, metric) for run in alike(*pair)[:2]) for pair in pairs.values()]
    if any(not len(one) for side in sides for one in side):
        return None
    return compare_together([(base, new) for base, new in sides], _between(pairs, noises))[0]


def _together(pairs: Pairs, metric: str, limits: Limits, noises: Noises) -> Check:
    unit: Unit = "B" if metric == PEAK else "ns"
    sides = []
    for name, pair in pairs.items():
        base, new, _ = alike(*pair)
        before, after = samples(base, metric), samples(new, metric)
        if not len(before) or not len(after):
            return Check(metric, "inconclusive", f"not measured in {name}", unit, None)
        sides.append((before, after))
    found, rests_on = compare_together(sides, _between(pairs, noises))
    return judged(metric, found, rests_on, unit, limits)


def _between(pairs: Pairs, noises: Noises) -> Between:
    """Return what is known of a run of the whole: the noisiest workload is the careful guess."""
    clocks = {run.clock for pair in pairs.values() for run in pair}
    if len(clocks) > 1:
        raise UsageError(
            f"the workloads' times are of different clocks: {', '.join(sorted(clocks))}",
            hint="judge each kind by itself",
            slug="not-comparable",
        )
    known = [noises.get(name) for name in pairs]
    learned = [one for one in known if one is not None]
    noise = None
    if len(learned) == len(known):
        noise = Noise(
            max(one.relative for one in learned),
            min(one.degrees for one in learned),
            learned[0].source,
        )
    return Between.of(clocks.pop(), noise)
