"""Verdicts on changes (pass, regression or inconclusive) for one workload or several.

The change of the median or of the minimum decides, whichever has the smaller interval
(`statistics.shifts`). If the other one contradicts it with certainty, the verdict is inconclusive.
A regression requires that the whole interval is above the limits. A pass requires that a change of
RULED_OUT times the limit can be excluded.

Several workloads are also judged together by their geometric mean, which detects smaller changes if
all workloads change in the same direction. The same rule applies; one run of each workload forms
one run of the whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from unified_prof.base.display import Displayed
from unified_prof.base.run_spec import VARYING
from unified_prof.compare.comparable import (
    BACKWARD,
    EXACT,
    FORWARD,
    PEAK,
    SHAPELESS,
    TOTAL,
    Run,
    Waiting,
    program_times,
)
from unified_prof.compare.confidence import ALPHA, UNLEARNED, Noise, NoiseModel, Sample, quantile
from unified_prof.compare.diff import (
    different_clocks_error,
    different_families_error,
    has_different_clocks,
    step_mismatch,
)
from unified_prof.compare.statistics import (
    Comparison,
    Shift,
    compare,
    compare_geometric_means,
    shifts,
)
from unified_prof.errors import INCONCLUSIVE_EXIT_CODE, UprofError, UsageError

Outcome = Literal["pass", "regression", "inconclusive"]
Unit = Literal["ns", "B", "n", "x"]  # Nanoseconds, bytes, a count, or a ratio.

OPERATION = "operation:"
# A pass requires that a change of this many times the limit is excluded.
RULED_OUT = 3.0
_KNOWN = (TOTAL, FORWARD, BACKWARD, PEAK, *EXACT)
METRICS = (*_KNOWN, f"{OPERATION}GLOB")
_MAX_MORE_ROUNDS = 100  # Maximum number of further rounds that an inconclusive verdict names.

EXIT_CODES: dict[Outcome, int] = {
    "pass": 0,
    "regression": UprofError.exit_code,
    "inconclusive": INCONCLUSIVE_EXIT_CODE,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a change; a regression exceeds both the relative and the absolute limit."""

    max_regress: float = 0.05  # Relative limit; 0.05 is 5 %.
    # Absolute limits of times and of memory.
    min_abs_ns: float = 50_000.0
    min_abs_bytes: float = 1 << 20
    # Relative limits of single metrics.
    by_metric: Mapping[str, float] = field(default_factory=dict)

    def share(self, metric: str) -> float:
        """Return the relative limit of a metric; counts may not rise at all by default."""
        return self.by_metric.get(metric, 0.0 if metric in EXACT else self.max_regress)


@dataclass(frozen=True, slots=True)
class Check:
    """Verdict on one metric."""

    metric: str
    outcome: Outcome
    # Sentence for display.
    reason: str
    unit: Unit
    comparison: Comparison | None  # None if a side has no value.
    shift: Shift | None = None  # Change that was judged; None with too few samples.

    @property
    def lacks_runs(self) -> bool:
        """True if the check is inconclusive because run-to-run variation is unknown."""
        return (
            self.outcome == "inconclusive"
            and self.shift is not None
            and self.comparison is not None
            and self.comparison.lacks_runs
        )


@dataclass(frozen=True, slots=True)
class Effort:
    """Number of rounds and duration of a measurement."""

    rounds: int
    seconds: float


def _worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst outcome; a regression is worse than inconclusive."""
    return max(outcomes, key=("pass", "inconclusive", "regression").index, default="pass")


@dataclass(frozen=True, slots=True)
class Verdict(Displayed):
    """Verdict of the gate on one workload."""

    checks: tuple[Check, ...]
    limits: Limits
    # How waiting for a processor was treated; None if neither side recorded it.
    waiting: Waiting | None = None
    effort: Effort | None = None  # None if existing reports were judged.

    @property
    def outcome(self) -> Outcome:
        """Worst outcome of the checks; a regression is worse than inconclusive."""
        return _worst(check.outcome for check in self.checks)

    @property
    def exit_code(self) -> int:
        """Exit code for the shell."""
        return EXIT_CODES[self.outcome]


def gate(
    base: Run,
    new: Run,
    metrics: Sequence[str],
    limits: Limits,
    noise: Noise | None = None,
    *,
    paired: bool = False,
) -> Verdict:
    """Judge `new` against `base` by each of `metrics`.

    `noise` is the run-to-run variation learned on this machine; `paired` is true if the n-th runs
    of both sides stepped in turn. Raises UsageError if a metric does not exist or was not measured
    on any side, or the runs are not comparable because they are different kinds of reports or only
    one has steps.
    """
    _refuse_incomparable(base, new)
    require_measured([(base, new)], metrics)
    return _verdict(base, new, metrics, limits, noise, paired)


def _refuse_incomparable(base: Run, new: Run) -> None:
    if "msprof" in base.families ^ new.families:  # Iterations against device work.
        raise different_families_error(base, new)
    if has_different_clocks(base, new):
        raise different_clocks_error(base, new)
    if (problem := step_mismatch(base, new)) is not None:
        raise UsageError(
            problem, hint="record both with steps, or both without", slug="not-comparable"
        )


def _verdict(
    base: Run, new: Run, metrics: Sequence[str], limits: Limits, noise: Noise | None, paired: bool
) -> Verdict:
    base, new, waiting = program_times(base, new)
    model = NoiseModel.for_clock(new.clock, noise, paired=paired)
    checks = tuple(_check(base, new, metric, limits, model) for metric in metrics)
    return Verdict(checks, limits, waiting)


def default_metrics(pairs: Iterable[tuple[Run, Run]]) -> list[str]:
    """Return the metrics to judge if none are given: exact ones first, then the total time.

    Exact metrics are judged if the runs counted operators, and if they cannot depend on random
    shapes of the inputs. If no run has times, peak memory is judged.
    """
    runs = [run for pair in pairs for run in pair]
    varying = {one for run in runs for one in run.facts.get(VARYING, "").split(", ") if one}
    found = []
    if all("aten-calls" in run.counts or "graph-breaks" in run.counts for run in runs):
        found = [
            one
            for one in (*EXACT, PEAK)
            if one not in varying
            and (one in SHAPELESS or not varying)
            and all(len(samples(run, one)) for run in runs)
        ]
    timed = any(len(run.sample(TOTAL)) for run in runs)
    sized = any(len(run.sample(PEAK)) for run in runs)
    return [*found, TOTAL] if timed or not sized else [PEAK]


def check_metrics(metrics: Sequence[str]) -> None:
    """Raise UsageError if `metrics` is empty or one of them does not exist."""
    unknown = [
        metric
        for metric in metrics
        if metric not in _KNOWN and not (metric.startswith(OPERATION) and metric != OPERATION)
    ]
    if unknown or not metrics:
        message = f"no metric {unknown[0]!r}" if unknown else "no metric given"
        raise UsageError(message, hint=f"metrics: {', '.join(METRICS)}", slug="unknown-metric")


def require_measured(pairs: Iterable[tuple[Run, Run]], metrics: Sequence[str]) -> None:
    """Raise UsageError for a metric that no run of the workloads has: it could never fail."""
    check_metrics(metrics)
    runs = [run for pair in pairs for run in pair]
    for metric in metrics:
        if any(len(samples(run, metric)) for run in runs):
            continue
        labels = " and ".join(dict.fromkeys(run.label for run in runs))
        known = [one for one in _KNOWN if any(len(samples(run, one)) for run in runs)]
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


def _check(base: Run, new: Run, metric: str, limits: Limits, model: NoiseModel) -> Check:
    unit, sides = unit_of(metric), (base.label, new.label)
    before, after = samples(base, metric), samples(new, metric)
    return check_samples(metric, before, after, unit, limits, sides, model)


def unit_of(metric: str) -> Unit:
    """Return the unit of a metric."""
    return "B" if metric == PEAK else EXACT.get(metric, "ns")


def check_samples(
    metric: str,
    before: Sample,
    after: Sample,
    unit: Unit,
    limits: Limits,
    sides: tuple[str, str],
    model: NoiseModel = UNLEARNED,
) -> Check:
    """Judge one metric by its samples, in order of measurement; a ratio has no absolute limit."""
    if not len(before) or not len(after):
        lacking = [
            side for side, values in zip(sides, (before, after), strict=True) if not len(values)
        ]
        reason = f"not measured in {' and '.join(lacking)}"
        if len(before):
            reason += f", but in {sides[0]}: renamed or removed?"
        return Check(metric, "inconclusive", reason, unit, None)
    found = compare(before, after, model)
    timed = unit in ("ns", "x") and found.conclusive
    changes = shifts([(before, after)], model) if timed else None
    return check_comparison(metric, found, changes, unit, limits)


def check_comparison(
    metric: str, found: Comparison, changes: tuple[Shift, Shift] | None, unit: Unit, limits: Limits
) -> Check:
    """Judge a comparison of one workload, or of several together.

    `changes` are those of both statistics, the deciding one first; None if there are too few
    samples. A ratio has no absolute limit.
    """
    limit = limits.share(metric)
    if unit in ("B", "n"):
        # It hardly varies, so one value per side is enough.
        minimum = limits.min_abs_bytes if unit == "B" else 0.0
        outcome, reason = _judge_size(found, limit, minimum)
        return Check(metric, outcome, reason, unit, found)
    if changes is None:
        percent = _percent(found.new_median, found.base_median)
        reason = f"{percent}, too few samples ({found.base_count} and {found.new_count})"
        return Check(metric, "inconclusive", reason, unit, found)
    decisive, other = changes
    minimum = 0.0 if unit == "x" else limits.min_abs_ns
    outcome, reason = _judge_times(decisive, other, limit, minimum)
    if outcome == "inconclusive" and decisive.rounds:
        reason += _more_rounds(decisive, limit)
    if outcome == "inconclusive" and found.lacks_runs:
        reason += ", and one run per side does not show run-to-run variation"
    return Check(metric, outcome, reason, unit, found, decisive)


def _more_rounds(shift: Shift, limit: float) -> str:
    """Estimate how many more rounds a verdict takes, from the spread of the rounds so far."""
    center, half = math.log(shift.ratio), math.log(shift.high / shift.ratio)
    bound, ruled_out = math.log1p(limit), math.log1p(RULED_OUT * limit)
    allowed = ruled_out - center if center <= bound else center - bound
    deviation = half / quantile(ALPHA, shift.rounds - 1) * math.sqrt(shift.rounds)
    for rounds in range(shift.rounds + 1, shift.rounds + _MAX_MORE_ROUNDS):
        if quantile(ALPHA, rounds - 1) * deviation / math.sqrt(rounds) < allowed:
            more = rounds - shift.rounds
            return f"; about {more} more round{'s' * (more > 1)} needed"
    return f"; more than {_MAX_MORE_ROUNDS} more rounds needed"


def _judge_size(found: Comparison, limit: float, minimum: float) -> tuple[Outcome, str]:
    percent = _percent(found.new_median, found.base_median)
    if found.new_median <= found.base_median * (1 + limit):
        return "pass", f"{percent}, within the limit"
    if found.new_median - found.base_median <= minimum:
        return "pass", f"{percent}, but less than the absolute limit"
    return "regression", f"{percent}, above the limit"


def _judge_times(
    decisive: Shift, other: Shift, max_regress: float, min_abs: float
) -> tuple[Outcome, str]:
    bound, ruled_out = 1 + max_regress, 1 + RULED_OUT * max_regress
    change = f"{decisive.statistic} {_percent(decisive.new, decisive.base)}"
    contrary = f"{change}, but {other.statistic} {_percent(other.new, other.base)}: measure again"

    def large(shift: Shift) -> bool:
        return shift.new - shift.base > min_abs

    if decisive.ratio <= bound or not large(decisive):
        if other.low > bound and large(other):
            return "inconclusive", contrary
        if decisive.high > ruled_out and decisive.base * (decisive.high - 1) > min_abs:
            return "inconclusive", f"{change}, but {_interval_text(decisive)}"
        if decisive.ratio <= bound:
            # The limit that these samples would still have passed.
            most = f" (upper bound {_percent(decisive.high, 1.0)})"
            return "pass", f"{change}{most}, within the limit"
        return "pass", f"{change}, but less than the absolute limit"
    if decisive.low <= bound:
        return "inconclusive", f"{change}, but {_interval_text(decisive)}"
    if other.high <= bound:
        return "inconclusive", contrary
    return "regression", f"{change}, above the limit"


def _interval_text(shift: Shift) -> str:
    low, high = _percent(shift.low, 1.0), _percent(shift.high, 1.0)
    return f"the interval is {low} to {high}"


def _percent(new: float, base: float) -> str:
    if base <= 0:
        return "from nothing" if new > 0 else "+0.0 %"
    percent = round((new / base - 1) * 100, 1) + 0.0  # not -0.0
    return f"{percent:+.1f} %" if percent < 1_000 else "over +1,000 %"


def samples(run: Run, metric: str) -> Sample:
    """Return the samples of a metric; empty if it was not measured."""
    if metric.startswith(OPERATION):
        # The time per iteration of the operations whose name, module path or line matches.
        pattern = metric.removeprefix(OPERATION)
        rows = [
            index
            for index, place in enumerate(run.operations.places)
            if any(
                text is not None and fnmatchcase(text, pattern)
                for text in (place.name, place.module, place.line)
            )
        ]
        if not rows:
            return Sample.from_values([])
        chosen = run.operations.total_ns[rows]
        summed = np.where(np.isnan(chosen).all(axis=0), np.nan, np.nansum(chosen, axis=0))
        return run.sample_of(summed)
    if metric in EXACT:
        return Sample.from_values([run.counts[metric]] if metric in run.counts else [])
    return run.sample(metric)


# Degrees of freedom of user-specified noise, which is exact and not estimated from a few runs.
_STATED_DEGREES = 1e9

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


def parse_fraction(text: str, option: str = "--max-regress") -> float:
    """Return `5%` or `0.05` as 0.05.

    Raises UsageError if `text` is neither, or is a number above 1 without a percent sign.
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
            hint=f"write {match[1]}%, or {number:.0%} if you mean that",
            slug="wrong-threshold",
        )
    return number / (100 if match[2] else 1)


def parse_absolute_limits(texts: Sequence[str]) -> tuple[float | None, float | None]:
    """Return the absolute limits of times (ns) and sizes (bytes), from texts like `0.05ms`, `1MiB`.

    Raises UsageError if a text is neither a time nor a size, or two are of the same kind.
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


def parse_noise(text: str) -> Noise:
    """Return the run-to-run variation given by `--noise`, or raise UsageError."""
    return Noise(parse_fraction(text, "--noise"), _STATED_DEGREES, "--noise")


Pairs = Mapping[str, tuple[Run, Run]]  # Workload -> its baseline and candidate.
# Workload -> run-to-run variation learned on this machine, or None.
Noises = Mapping[str, Noise | None]


class Verdicts(Struct, frozen=True):
    """Verdict of the gate on several workloads."""

    each: Mapping[str, Verdict]
    # Verdict on the geometric mean of all workloads, one per metric.
    together: tuple[Check, ...]
    limits: Limits
    effort: Effort | None = None  # None if existing reports were judged.

    @property
    def outcome(self) -> Outcome:
        """Worst outcome of all workloads; a regression is worse than inconclusive."""
        found = [check.outcome for check in self.together]
        return _worst([*found, *(verdict.outcome for verdict in self.each.values())])

    @property
    def exit_code(self) -> int:
        """Exit code for the shell."""
        return EXIT_CODES[self.outcome]


def gate_workloads(
    pairs: Pairs, metrics: Sequence[str], limits: Limits, noises: Noises, *, paired: bool = False
) -> Verdicts:
    """Judge each workload, and the geometric mean of all workloads, by each of `metrics`.

    Raises:
        UsageError: As for `gate`, or the workloads were timed by different clocks.
    """
    for pair in pairs.values():
        _refuse_incomparable(*pair)
    require_measured(pairs.values(), metrics)
    each = {
        name: _verdict(base, new, metrics, limits, noises.get(name), paired)
        for name, (base, new) in pairs.items()
    }
    together = tuple(_check_mean(pairs, metric, limits, noises, paired) for metric in metrics)
    return Verdicts(each, together, limits)


def compare_workloads(pairs: Pairs, metric: str, noises: Noises) -> Comparison | None:
    """Return the change of the geometric mean, None if a workload lacks the metric."""
    sides = [
        tuple(samples(run, metric) for run in program_times(*pair)[:2]) for pair in pairs.values()
    ]
    if any(not len(one) for side in sides for one in side):
        return None
    return compare_geometric_means(
        [(base, new) for base, new in sides], _noise_model(pairs, noises)
    )[0]


def _check_mean(pairs: Pairs, metric: str, limits: Limits, noises: Noises, paired: bool) -> Check:
    unit, sides = unit_of(metric), []
    for name, pair in pairs.items():
        base, new, _ = program_times(*pair)
        before, after = samples(base, metric), samples(new, metric)
        if not len(before) or not len(after):
            return Check(metric, "inconclusive", f"not measured in {name}", unit, None)
        sides.append((before, after))
    model = replace(_noise_model(pairs, noises), paired=paired)
    found, changes = compare_geometric_means(sides, model)
    return check_comparison(metric, found, changes, unit, limits)


def _noise_model(pairs: Pairs, noises: Noises) -> NoiseModel:
    """Return the expected variation of all workloads together, which is that of the noisiest."""
    clocks = {run.clock for pair in pairs.values() for run in pair}
    if len(clocks) > 1:
        raise UsageError(
            f"the workloads were timed by different clocks: {', '.join(sorted(clocks))}",
            hint="run the gate separately for each clock",
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
    return NoiseModel.for_clock(clocks.pop(), noise)
