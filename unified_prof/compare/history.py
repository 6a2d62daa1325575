"""Versions of one workload over time: where each stands, and where it changed for sure.

Each version is judged by the gate's rule against the level it might be of: the first versions since
the last change, as runs of one side. So their scatter from day to day counts, and a slow drift is a
change as soon as it is sure. Where versions cannot be compared, a new level begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from unified_prof.compare.comparable import PEAK, Run, alike, pool
from unified_prof.compare.confidence import Noise, Sample, level
from unified_prof.compare.gate import Limits, Unit, check_metrics, gate, samples
from unified_prof.errors import UsageError

Kind = Literal["worse", "better", "restarted"]
LEVEL = 5
"""Versions that a level is known by; with those that come later it would follow a drift."""


@dataclass(frozen=True, slots=True)
class Change:
    """A version that differs from the level before it."""

    kind: Kind
    ratio: float | None
    """New to the level before; None where the two cannot be compared."""
    reason: str


@dataclass(frozen=True, slots=True)
class Point:
    """One version by one metric."""

    value: float | None
    """None: it was not measured."""
    low: float | None
    high: float | None
    runs: int
    change: Change | None = None
    """None: it is not sure that it changed."""


@dataclass(frozen=True, slots=True)
class History:
    """All versions by one metric, the oldest first."""

    metric: str
    unit: Unit
    points: tuple[Point, ...]
    waiting_left_out: bool
    """Whether times are without waiting for a processor."""


def history(
    versions: Sequence[Run], metric: str, limits: Limits, noise: Noise | None = None
) -> History:
    """Return where each version stands, and which changed.

    Args:
        versions: the oldest first.
        metric: what they are compared by.
        limits: how much worse, or better, counts as a change.
        noise: how much runs of the workload differ on the machine, where it was learned.

    Raises:
        UsageError: there is no such metric.
    """
    check_metrics([metric])
    without = [_without_waiting(run) for run in versions]
    left_out = all(run is not None for run in without)
    shown = [run for run in without if run is not None] if left_out else list(versions)
    points = []
    since: list[Run] = []
    for run, plain in zip(versions, shown, strict=True):
        change = _change(since, run, metric, limits, noise) if since else None
        if change is not None:
            since = []
        sample = samples(plain, metric)
        if len(sample):
            since = [*since, run][:LEVEL]
        points.append(_point(sample, noise, change))
    return History(metric, "B" if metric == PEAK else "ns", tuple(points), left_out)


def _without_waiting(run: Run) -> Run | None:
    """Return a run's times without waiting; None where that is not known."""
    found, _, waiting = alike(run, run)
    return found if waiting is not None and waiting.left_out else None


def _point(sample: Sample, noise: Noise | None, change: Change | None) -> Point:
    if not len(sample):
        return Point(None, None, None, 0)
    found = level(sample, noise)
    return Point(found.value, found.low, found.high, len(sample.lengths), change)


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
        return Change("worse", _ratio(worse.comparison.ratio), worse.reason)
    if better.outcome == "regression" and better.comparison is not None:
        ratio = _ratio(better.comparison.ratio)
        shown = None if ratio is None else 1 / ratio
        said = "" if shown is None else f"{(shown - 1) * 100:+.1f} %, "
        return Change("better", shown, f"{said}beyond the limit")
    return None


def _ratio(value: float | None) -> float | None:
    return value if value else None
