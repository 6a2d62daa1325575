"""Runs a workload on a backend, writes its reports, and returns their headline figures.

The names of the figures are the keys in `uprof run --json` and `Profile.summary`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unified_prof.backends.registry import Backend, Capture, RunSpec
from unified_prof.base import signals
from unified_prof.base.run_spec import TrackedRun
from unified_prof.base.text import NS_PER_MS
from unified_prof.errors import CaptureError, MeasuringError, UprofError, UsageError
from unified_prof.explain.api import open_files
from unified_prof.explain.skyline import SkylineAnalysis
from unified_prof.pipeline import outputs
from unified_prof.pipeline.distributed import ALL, Rank, RankSelection
from unified_prof.pipeline.reports import Reports, with_output
from unified_prof.recording.calls import UNKNOWN, Calls
from unified_prof.recording.model import Row
from unified_prof.sqlite.atomic import remove_abandoned


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run."""

    exit_code: int
    """Exit code of the workload."""
    backend: str
    directory: Path
    files: Mapping[str, tuple[Path, ...]]
    """Report kind -> files written; more than one only if there are several recordings."""
    tracked: TrackedRun | None
    failure: str | None = None
    """Reason why results are missing or partial, None if complete."""
    rank: Rank | None = None
    """Rank of this process."""


def run(
    backend: Backend,
    spec: RunSpec,
    *,
    force: bool = False,
    strict: bool = False,
    ranks: RankSelection = ALL,
    on_written: Callable[[Mapping[str, tuple[Path, ...]]], None] = lambda _: None,
) -> RunResult:
    """Run `spec` on `backend` and write the reports into `spec.output_dir`.

    The output directory is created, and removed if it stays empty. If measuring fails after the
    workload failed, the reason is in `RunResult.failure` and the exit code is that of the workload.
    If it fails after the workload of one of several ranks succeeded, no error is raised, because
    other ranks depend on this one; the reports contain the reason instead.

    Args:
        backend: Runs and measures.
        spec: What to run.
        force: If True, reports of an earlier run may be overwritten.
        strict: If True, failures to measure are raised even if other ranks depend on this one.
        ranks: The measured ranks, so that `run.json` can name missing ones.
        on_written: Called with the files that are written while the workload is running.

    Raises:
        UsageError: the backend does not support a requested report or option.
        OutputError: a report exists and `force` is false, or cannot be written.
        CaptureError: the workload succeeded but nothing could be measured.
        DeviceUnavailableError: the device is no longer available.
    """
    if missing := [report for report in spec.reports if report not in backend.reports]:
        raise UsageError(
            f"backend {backend.name!r} cannot produce the report {', '.join(missing)}",
            hint=f"it produces {', '.join(backend.reports)}",
            slug="unknown-report",
        )
    reports = Reports(spec, backend.name, force=force, ranks=ranks, on_written=on_written)
    lenient = reports.rank.is_distributed and not strict
    with ExitStack() as stack:
        for folder in (reports.directory, reports.raw):
            stack.enter_context(outputs.output_directory(folder))
        for earlier in reports.raw.glob("PROF_*"):  # of a run that was killed
            remove_abandoned(earlier)
        reports.begin()
        try:
            capture = backend.run(with_output(spec, reports))
            signals.workload_ended()
        except MeasuringError as err:
            reports.record_failure(0, str(err))
            if not lenient:
                raise
            reports.write_stub(0, str(err))
            return _result(backend, reports, Capture(0), str(err))
        except UprofError as err:
            reports.record_failure(None, str(err))
            raise
        failure = _finish(reports, capture, lenient=lenient)
        return _result(backend, reports, capture, failure)


def _finish(reports: Reports, capture: Capture, *, lenient: bool) -> str | None:
    """Write the reports and return the failure, which is None if all was measured.

    An error after a successful workload is raised unless `lenient` is true.
    """
    try:
        reports.finish(capture)
        if capture.error is not None:
            raise capture.error
        if not reports.files and not capture.exit_code:
            raise CaptureError(capture.failure or "nothing was measured", slug="nothing-measured")
    except Exception as err:  # a bug of uprof must not end a training run either
        reason = outputs.error_text(err)
        reports.record_failure(capture.exit_code, reason)
        if capture.exit_code:
            return "; ".join(dict.fromkeys(filter(None, (capture.failure, reason))))
        if not lenient:
            raise
        reports.write_stub(0, reason)
        return reason
    return capture.failure


def _result(backend: Backend, reports: Reports, capture: Capture, failure: str | None) -> RunResult:
    return RunResult(
        exit_code=capture.exit_code,
        backend=backend.name,
        directory=reports.directory,
        files=reports.files,
        tracked=capture.tracked,
        failure="; ".join(filter(None, (failure, *reports.notes))) or None,
        rank=reports.rank,
    )


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
