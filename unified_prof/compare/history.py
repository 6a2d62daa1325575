"""History of a workload: estimate of each version, and significant changes between versions.

Each version is judged by the rule of the gate against the first versions since the last change,
which are pooled as runs of one side. Day-to-day variation therefore counts as noise, and a slow
drift becomes a change once it is certain. If versions cannot be compared, the history restarts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from unified_prof.compare.comparable import PEAK, Run, exclude_waiting, pool, program_times
from unified_prof.compare.confidence import Noise, estimate
from unified_prof.compare.gate import Limits, Unit, check_metrics, gate, samples
from unified_prof.errors import UsageError

Kind = Literal["worse", "better", "restarted"]
# Number of versions after a change that define the reference; a larger number would hide drift.
MAX_REFERENCE_VERSIONS = 5


class Change(Struct, frozen=True):
    """Significant change of a version compared to the versions before it."""

    kind: Kind
    # New over previous; None if the two cannot be compared.
    ratio: float | None
    reason: str


class Point(Struct, frozen=True):
    """Estimate of one version for one metric."""

    # None if it was not measured.
    value: float | None
    low: float | None
    high: float | None
    runs: int
    change: Change | None = None  # None if no change is certain.


class History(Struct, frozen=True):
    """Estimates of all versions for one metric, oldest first."""

    metric: str
    unit: Unit
    points: tuple[Point, ...]
    # Clock of times that exclude waiting for a processor: as the gate's, if all versions have it.
    clock: Literal["cpu", "wall"] | None


def history(
    versions: Sequence[Run], metric: str, limits: Limits, noise: Noise | None = None
) -> History:
    """Return the estimate of each version, and the versions that changed significantly.

    Raises UsageError if the metric does not exist.
    """
    check_metrics([metric])
    shown, clock = _without_waiting(versions)
    points = []
    since: list[Run] = []
    for run, plain in zip(versions, shown, strict=True):
        change = _change(since, run, metric, limits, noise) if since else None
        if change is not None:
            since = []
        sample = samples(plain, metric)
        if len(sample):
            since = [*since, run][:MAX_REFERENCE_VERSIONS]
            result = estimate(sample, noise)
            interval, runs = (result.low, result.high), len(sample.lengths)
            points.append(Point(result.value, *interval, runs, change))
        else:
            points.append(Point(None, None, None, 0))
    return History(metric, "B" if metric == PEAK else "ns", tuple(points), clock)


def _without_waiting(
    versions: Sequence[Run],
) -> tuple[Sequence[Run], Literal["cpu", "wall"] | None]:
    """Return the runs without processor wait time and their clock, None if it is unknown."""
    for leave_out in (program_times, exclude_waiting):
        found = [leave_out(run, run) for run in versions]
        clocks = {one.clock if one and one.left_out else None for _, _, one in found}
        if len(clocks) == 1 and None not in clocks:
            return [run for run, _, _ in found], clocks.pop()
    return versions, None


def _change(
    since: Sequence[Run], run: Run, metric: str, limits: Limits, noise: Noise | None
) -> Change | None:
    last = since[-1]
    devices = [one.facts.get("device") for one in (last, run)]
    if None not in devices and devices[0] != devices[1]:
        return Change("restarted", None, f"measured on {devices[1]}, before on {devices[0]}")
    if last.clock != run.clock:
        return Change("restarted", None, f"{run.clock} time, before {last.clock} time")
    before = pool(since)
    try:
        worse = gate(before, run, [metric], limits, noise).checks[0]
        better = gate(run, before, [metric], limits, noise).checks[0]
    except UsageError as err:
        return Change("restarted", None, str(err))
    if worse.outcome == "regression" and worse.comparison is not None:
        return Change("worse", worse.comparison.ratio or None, worse.reason)
    if better.outcome == "regression" and better.comparison is not None:
        ratio = better.comparison.ratio
        shown = 1 / ratio if ratio else None
        percent = "" if shown is None else f"{(shown - 1) * 100:+.1f} %, "
        return Change("better", shown, f"{percent}beyond the limit")
    return None
