"""Whether a change may pass: thresholds on differences, and no guess where runs are few.

Of the median and the fastest iteration that one judges which scatters less (see
`statistics.shifts`); where the other one surely says the opposite, nothing is decided. What is
decided is surely so: a regression is one for all that runs differ by (see `between`), and where a
change passes, a regression of RULED_OUT times the limit would have been seen.

Thresholds as people write them.

Several workloads at a time: the verdict on each, and on their geometric mean.

The geometric mean says whether a change makes things slower on the whole, whatever share of the
time each workload has, and sees less than the limit of a single one where all go the same way. It
is judged by the same rule: a run of the whole is one run of each workload.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np

from unified_prof.base.display import Displayed
from unified_prof.compare.comparable import BACKWARD, FORWARD, PEAK, TOTAL, Run, Waiting, alike
from unified_prof.compare.confidence import UNLEARNED, Between, Noise, Sample
from unified_prof.compare.diff import (
    of_different_clocks,
    of_different_families,
    on_different_clocks,
    step_doubt,
)
from unified_prof.compare.statistics import Comparison, Shift, compare, compare_together, shifts
from unified_prof.errors import INCONCLUSIVE_EXIT_CODE, UprofError, UsageError

Outcome = Literal["pass", "regression", "inconclusive"]
Unit = Literal["ns", "B", "x"]
"""Nanoseconds, bytes, or a ratio."""

OPERATION = "operation:"
RULED_OUT = 3.0
"""To pass, a change of so many times the limit must be out of the question."""
METRICS = (TOTAL, FORWARD, BACKWARD, PEAK, f"{OPERATION}GLOB")

EXIT_CODES: dict[Outcome, int] = {
    "pass": 0,
    "regression": UprofError.exit_code,
    "inconclusive": INCONCLUSIVE_EXIT_CODE,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much worse is too much; both limits must be passed for a regression."""

    max_regress: float = 0.05
    """Relative: 0.05 is five percent."""
    min_abs_ns: float = 50_000.0
    """Absolute, for times, in nanoseconds."""
    min_abs_bytes: float = 1 << 20
    """Absolute, for memory, in bytes."""


@dataclass(frozen=True, slots=True)
class Check:
    """One metric, judged."""

    metric: str
    outcome: Outcome
    reason: str
    """In a sentence for the reader."""
    unit: Unit
    comparison: Comparison | None
    """None where a side has no value."""
    shift: Shift | None = None
    """What was judged; None where there were too few samples for it."""

    @property
    def of_one_run(self) -> bool:
        """Whether it is not settled because nothing is known of how runs differ."""
        return (
            self.outcome == "inconclusive"
            and self.shift is not None
            and self.comparison is not None
            and self.comparison.of_one_run
        )


@dataclass(frozen=True, slots=True)
class Verdict(Displayed):
    """The gate's answer."""

    checks: tuple[Check, ...]
    limits: Limits
    waiting: Waiting | None = None
    """Whether total, forward and backward times are without waiting for a processor; None: no side
    knows its waiting."""

    @property
    def outcome(self) -> Outcome:
        """The worst of the checks: a regression beats an inconclusive one."""
        for outcome in ("regression", "inconclusive"):
            if any(check.outcome == outcome for check in self.checks):
                return outcome
        return "pass"

    @property
    def exit_code(self) -> int:
        """What the shell sees."""
        return EXIT_CODES[self.outcome]


def gate(
    base: Run, new: Run, metrics: Sequence[str], limits: Limits, noise: Noise | None = None
) -> Verdict:
    """Judge `new` against `base` by each of `metrics`.

    Args:
        base: the runs before the change.
        new: those after it.
        metrics: what is judged.
        limits: how much worse is too much.
        noise: how much runs of such a workload differ on this machine, where it was learned.

    Raises:
        UsageError: A metric does not exist or is measured on no side, or the runs are not
            comparable: another kind of report, or times of a step against times of a recording.
    """
    _refuse_incomparable(base, new)
    require_measured([(base, new)], metrics)
    return _verdict(base, new, metrics, limits, noise)


def _refuse_incomparable(base: Run, new: Run) -> None:
    if "msprof" in base.families ^ new.families:  # iterations here, device work there
        raise of_different_families(base, new)
    if on_different_clocks(base, new):
        raise of_different_clocks(base, new)
    if (doubt := step_doubt(base, new)) is not None:
        raise UsageError(
            doubt, hint="record both with steps, or both without", slug="not-comparable"
        )


def _verdict(
    base: Run, new: Run, metrics: Sequence[str], limits: Limits, noise: Noise | None
) -> Verdict:
    base, new, waiting = alike(base, new)
    between = Between.of(new.clock, noise)
    checks = tuple(_check(base, new, metric, limits, between) for metric in metrics)
    return Verdict(checks, limits, waiting)


def check_metrics(metrics: Sequence[str]) -> None:
    """Refuse metrics that do not exist.

    Raises:
        UsageError: one of them, or that there is none.
    """
    known = (TOTAL, FORWARD, BACKWARD, PEAK)
    unknown = [
        one
        for one in metrics
        if one not in known and not (one.startswith(OPERATION) and one != OPERATION)
    ]
    if unknown or not metrics:
        said = f"no metric {unknown[0]!r}" if unknown else "no metric to judge by"
        raise UsageError(said, hint=f"metrics: {', '.join(METRICS)}", slug="unknown-metric")


def require_measured(pairs: Iterable[tuple[Run, Run]], metrics: Sequence[str]) -> None:
    """Raise UsageError for a metric that no run has: it could never fail a change.

    Args:
        pairs: Baseline and candidate of each workload.
        metrics: Metrics to judge.
    """
    check_metrics(metrics)
    runs = [run for pair in pairs for run in pair]
    for metric in metrics:
        if any(len(samples(run, metric)) for run in runs):
            continue
        labels = " and ".join(dict.fromkeys(run.label for run in runs))
        known = [
            one
            for one in (TOTAL, FORWARD, BACKWARD, PEAK)
            if any(len(samples(run, one)) for run in runs)
        ]
        if metric.startswith(OPERATION):
            names = {
                text
                for run in runs
                for place in run.operations.places
                for text in (place.name, place.module, place.line)
                if text is not None
            }
            pattern = metric.removeprefix(OPERATION)
            near = get_close_matches(pattern.strip("*"), sorted(names))
            known = [f"{OPERATION}{name}" for name in near] or known
        raise UsageError(
            f"metric {metric!r} matches nothing in {labels}",
            hint=f"did you mean {', '.join(known)}?" if known else "the reports have no metrics",
            slug="unknown-metric",
        )


def _check(base: Run, new: Run, metric: str, limits: Limits, between: Between) -> Check:
    unit: Unit = "B" if metric == PEAK else "ns"
    sides = (base.label, new.label)
    before, after = samples(base, metric), samples(new, metric)
    return judge(metric, before, after, unit, limits, sides, between)


def judge(
    metric: str,
    before: Sample,
    after: Sample,
    unit: Unit,
    limits: Limits,
    sides: tuple[str, str],
    between: Between = UNLEARNED,
) -> Check:
    """Judge one metric by its samples, each side's in the order of measurement.

    Args:
        metric: what they are of.
        before: samples of the base.
        after: samples of the new run.
        unit: of the samples; a ratio has no absolute limit.
        limits: how much worse is too much.
        sides: what the two runs are called.
        between: what is known of how runs differ.
    """
    if not len(before) or not len(after):
        lacking = [
            side for side, values in zip(sides, (before, after), strict=True) if not len(values)
        ]
        reason = f"not measured in {' and '.join(lacking)}"
        if len(before):
            reason += f", but in {sides[0]}: renamed or removed?"
        return Check(metric, "inconclusive", reason, unit, None)
    found = compare(before, after, between)
    tells = unit != "B" and found.conclusive
    return judged(metric, found, shifts(before, after, between) if tells else None, unit, limits)


def judged(
    metric: str,
    found: Comparison,
    rests_on: tuple[Shift, Shift] | None,
    unit: Unit,
    limits: Limits,
) -> Check:
    """Judge a comparison: the one rule, whether it is of one workload or of several together.

    Args:
        metric: what was compared.
        found: the comparison.
        rests_on: the changes of both statistics; None: there are too few samples to tell.
        unit: of the samples; a ratio has no absolute limit.
        limits: how much worse is too much.
    """
    if unit == "B":
        # An allocator's peak does not scatter as times do: one value a side is enough.
        outcome, reason = _judge_size(found, limits)
        return Check(metric, outcome, reason, unit, found)
    if rests_on is None:
        percent = _percent(found.new_median, found.base_median)
        reason = f"{percent}, but only {found.base_count} and {found.new_count} samples"
        return Check(metric, "inconclusive", reason, unit, found)
    decisive, other = rests_on
    least = 0.0 if unit == "x" else limits.min_abs_ns
    outcome, reason = _judge(decisive, other, limits.max_regress, least)
    if outcome == "inconclusive" and found.of_one_run:
        reason += ", and one run a side does not tell how runs differ"
    return Check(metric, outcome, reason, unit, found, decisive)


def _judge_size(found: Comparison, limits: Limits) -> tuple[Outcome, str]:
    percent = _percent(found.new_median, found.base_median)
    if found.new_median <= found.base_median * (1 + limits.max_regress):
        return "pass", f"{percent}, within the limit"
    if found.new_median - found.base_median <= limits.min_abs_bytes:
        return "pass", f"{percent}, but less than the absolute limit"
    return "regression", f"{percent}, above the limit"


def _judge(
    decisive: Shift, other: Shift, max_regress: float, min_abs: float
) -> tuple[Outcome, str]:
    bound, ruled_out = 1 + max_regress, 1 + RULED_OUT * max_regress
    said = f"{decisive.statistic} {_percent(decisive.new, decisive.base)}"
    contrary = f"{said}, but {other.statistic} {_percent(other.new, other.base)}: measure again"

    def large(shift: Shift) -> bool:
        return shift.new - shift.base > min_abs

    def surely_small(shift: Shift) -> bool:
        return shift.high <= ruled_out or shift.base * (shift.high - 1) <= min_abs

    if decisive.ratio <= bound or not large(decisive):
        if other.low > bound and large(other):
            return "inconclusive", contrary
        if not surely_small(decisive):
            return "inconclusive", f"{said}, but {_anything(decisive)} is possible"
        if decisive.ratio <= bound:
            return "pass", f"{said}, within the limit"
        return "pass", f"{said}, but less than the absolute limit"
    if decisive.low <= bound:
        return "inconclusive", f"{said}, but {_anything(decisive)} is possible"
    if other.high <= bound:
        return "inconclusive", contrary
    return "regression", f"{said}, above the limit"


def _anything(shift: Shift) -> str:
    low, high = _percent(shift.low, 1.0), _percent(shift.high, 1.0)
    return f"anything from {low} to {high}"


def _percent(new: float, base: float) -> str:
    if base <= 0:
        return "from nothing" if new > 0 else "+0.0 %"
    return f"{(new / base - 1) * 100:+.1f} %"


def samples(run: Run, metric: str) -> Sample:
    """Return a run's samples of a metric; none where it was not measured."""
    if metric.startswith(OPERATION):
        return _operation_samples(run, metric.removeprefix(OPERATION))
    return run.sample(metric)


def _operation_samples(run: Run, pattern: str) -> Sample:
    """Sum the operations whose name, module path or line matches, for each iteration."""
    rows = [
        index
        for index, place in enumerate(run.operations.places)
        if any(
            text is not None and fnmatchcase(text, pattern)
            for text in (place.name, place.module, place.line)
        )
    ]
    if not rows:
        return Sample.of([])
    chosen = run.operations.total_ns[rows]
    summed = np.where(np.isnan(chosen).all(axis=0), np.nan, np.nansum(chosen, axis=0))
    return run.sample_of(summed)


_KNOWN = 1e9
"""Degrees of freedom of what somebody knows: no estimate of a few runs."""

_NUMBER = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_TIMES_NS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_SIZES_BYTES = {
    "B": 1,
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}


def fraction(text: str, option: str = "--max-regress") -> float:
    """Return `5%` or `0.05` as 0.05.

    Raises:
        UsageError: it is neither, or a bare number above 1, which is hardly meant as a factor.
    """
    match = re.fullmatch(rf"\s*{_NUMBER}\s*(%?)\s*", text)
    if match is None:
        raise UsageError(
            f"{option} takes a percentage or a fraction, not {text!r}",
            hint="for example 5% or 0.05",
            slug="wrong-threshold",
        )
    number = float(match[1])
    if not match[2] and number > 1:
        raise UsageError(
            f"{option} {text.strip()} without a percent sign would be {number:.0%}",
            hint=f"write {match[1]}%, or {number:.0%} if that is meant",
            slug="wrong-threshold",
        )
    return number / (100 if match[2] else 1)


def absolute(texts: Sequence[str]) -> tuple[float | None, float | None]:
    """Return the least change of a time in ns and of a size in bytes, from `0.05ms`, `1MiB`.

    Raises:
        UsageError: one of them is neither a time nor a size, or there are two of a kind.
    """
    time_ns: float | None = None
    size_bytes: float | None = None
    for text in texts:
        match = re.fullmatch(rf"\s*{_NUMBER}\s*([A-Za-zµ]+)\s*", text)
        if match is not None and match[2] in _TIMES_NS and time_ns is None:
            time_ns = float(match[1]) * _TIMES_NS[match[2]]
        elif match is not None and match[2] in _SIZES_BYTES and size_bytes is None:
            size_bytes = float(match[1]) * _SIZES_BYTES[match[2]]
        else:
            raise UsageError(
                f"--min-abs takes one time and one size at most, each with its unit, not {text!r}",
                hint="for example --min-abs 0.05ms --min-abs 1MiB",
                slug="wrong-threshold",
            )
    return time_ns, size_bytes


def told_noise(text: str) -> Noise:
    """Return how much runs differ, as somebody says.

    Raises:
        UsageError: the text is no share.
    """
    from unified_prof.compare.confidence import Noise

    return Noise(fraction(text, "--noise"), _KNOWN, "--noise")


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
    for pair in pairs.values():
        _refuse_incomparable(*pair)
    require_measured(pairs.values(), metrics)
    each = {
        name: _verdict(base, new, metrics, limits, noises.get(name))
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
