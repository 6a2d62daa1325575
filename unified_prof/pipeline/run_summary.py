"""Headline figures of a run's Skyline reports.

Their names are the keys in `uprof run --json` and `Profile.summary`. Analysis costs 0.2 s to
import, so `run` does not need this module before the workload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unified_prof.base.text import NS_PER_MS
from unified_prof.errors import UprofError
from unified_prof.explain.api import open_files
from unified_prof.explain.skyline import SkylineAnalysis
from unified_prof.recording.calls import UNKNOWN, Calls
from unified_prof.recording.model import Row


@dataclass(frozen=True, slots=True)
class OperationTotal:
    """Total of all calls of one operation from one source line in one iteration."""

    name: str
    location: str | None
    """`file:line` of the innermost project frame, None if there is none."""
    calls: int
    forward_ms: float
    backward_ms: float | None
    """Backward time in ms; None if no call has a backward pass."""

    @property
    def total_ms(self) -> float:
        """Sum of forward and backward time."""
        return self.forward_ms + (self.backward_ms or 0.0)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Headline figures of the median iteration; None for figures that were not measured.

    Times exclude waiting for a processor if it is known; `wall_ms` includes it.
    """

    device: str
    complete: bool
    iterations: int
    matched_iterations: int
    operations: int
    iteration_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    other_ms: float | None
    """Time outside forward and backward, including the optimizer."""
    wall_ms: float | None
    unattributed_forward_ms: float | None
    """Forward time that no operation of the report accounts for."""
    unattributed_backward_ms: float | None
    peak_usage_bytes: int | None
    weights_bytes: int
    gradients_bytes: int
    activations_bytes: int
    most_expensive: tuple[OperationTotal, ...]
    anomalies: Mapping[str, tuple[int, str]]


def summarize(files: Iterable[Path], top: int = 10) -> RunSummary | None:
    """Return the headline figures of a run's Skyline reports, as in `uprof report`.

    Args:
        files: The reports of one run; other kinds are ignored.
        top: Maximum number of operations to include, most expensive first.

    Returns:
        None if there is no readable Skyline report.
    """
    try:
        with open_files(files) as analyses:
            for analysis in analyses:
                if isinstance(analysis, SkylineAnalysis):
                    return _summary(analysis, top)
    except UprofError:
        pass
    return None


def _summary(analysis: SkylineAnalysis, top: int) -> RunSummary:
    summary, facts = analysis.summary, dict(analysis.summary.facts)
    totals = summary.totals
    steps = analysis.breakdown("step").rows if "step" in summary.available else ()
    forward, backward = _attributed_ms(analysis, [step for step in steps if not step.detail])
    wall_ms, waited_ms = _ms(totals.iteration_ns), _ms(totals.iteration_waited_ns)
    iteration_ms = None if wall_ms is None else wall_ms - (waited_ms or 0.0)
    forward_ms, backward_ms = map(_ms, map(totals.iteration_parts_ns.get, ("forward", "backward")))
    return RunSummary(
        device=facts.get("device", ""),
        complete=facts.get("complete") == "true",
        iterations=len(steps),
        matched_iterations=sum(not step.detail for step in steps),
        operations=totals.count if totals.total_ns is not None and totals.count else 0,
        iteration_ms=iteration_ms,
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        other_ms=(
            None
            if iteration_ms is None or forward_ms is None
            else max(0.0, iteration_ms - forward_ms - (backward_ms or 0.0))
        ),
        wall_ms=wall_ms,
        unattributed_forward_ms=_rest(forward_ms, forward),
        unattributed_backward_ms=_rest(backward_ms, backward),
        peak_usage_bytes=totals.peak_bytes,
        weights_bytes=totals.weight_bytes or 0,
        gradients_bytes=totals.gradient_bytes or 0,
        activations_bytes=totals.activation_bytes or 0,
        most_expensive=tuple(_operations(analysis.calls)[:top]),
        anomalies={
            anomaly.name: (anomaly.count, anomaly.detail or "")
            for anomaly in summary.anomalies
            if anomaly.source == "recorded"
        },
    )


def _attributed_ms(
    analysis: SkylineAnalysis, iterations: list[Row]
) -> tuple[float | None, float | None]:
    """Return forward and backward time of the operations in the median iteration."""
    samples = analysis.samples()
    if samples is None or samples.forward_ns.shape[1] != len(iterations) or not iterations:
        return None, None
    order = sorted(range(len(iterations)), key=lambda index: iterations[index].total_ns or 0)
    median = order[(len(order) - 1) // 2 : len(order) // 2 + 1]
    forward, backward = (
        float(np.nansum(times[:, median])) / len(median) / NS_PER_MS
        for times in (samples.forward_ns, samples.backward_ns)
    )
    return forward, backward


def _rest(total_ms: float | None, part_ms: float | None) -> float | None:
    if total_ms is None or part_ms is None:
        return None
    return max(0.0, total_ms - part_ms)


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / NS_PER_MS


def _operations(calls: Calls) -> list[OperationTotal]:
    """Sum calls by operation and source line; return the totals, most expensive first."""
    if calls.total_ns is None or calls.forward_ns is None:
        return []
    groups: dict[tuple[int, int], list[int]] = {}
    for index in np.flatnonzero(calls.total_ns != UNKNOWN).tolist():
        line = UNKNOWN if calls.line is None else int(calls.line[index])
        groups.setdefault((int(calls.name[index]), line), []).append(index)
    forward_ns, backward_ns = calls.forward_ns, calls.backward_ns

    def total(name: int, line: int, indexes: list[int]) -> OperationTotal:
        forward = forward_ns[indexes]
        backward = None if backward_ns is None else backward_ns[indexes]
        known = None if backward is None else backward[backward != UNKNOWN]
        return OperationTotal(
            name=calls.labels.text(name) or "",
            location=calls.labels.text(line),
            calls=len(indexes),
            forward_ms=int(forward[forward != UNKNOWN].sum()) / NS_PER_MS,
            backward_ms=int(known.sum()) / NS_PER_MS if known is not None and len(known) else None,
        )

    totals = (total(*key, indexes) for key, indexes in groups.items())
    return sorted(totals, key=lambda operation: -operation.total_ms)
