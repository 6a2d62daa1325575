"""From a specification to reports on disk: run a backend, write what it brings back.

The figures of a run as plain values: the keys of `uprof run --json` and `Profile.summary`.
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
from unified_prof.pipeline.distributed import ALL, Chosen, Rank
from unified_prof.pipeline.reports import Reports, with_output
from unified_prof.recording.calls import UNKNOWN, Calls
from unified_prof.recording.model import Row


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a run."""

    exit_code: int
    """The workload's own."""
    backend: str
    directory: Path
    files: Mapping[str, tuple[Path, ...]]
    """Kind of report -> the files written; several only where there are several recordings."""
    tracked: TrackedRun | None
    failure: str | None = None
    """Why something is missing or partial, in a sentence for the user."""
    rank: Rank | None = None
    """Which process of the run this is."""


def run(
    backend: Backend,
    spec: RunSpec,
    *,
    force: bool = False,
    strict: bool = False,
    ranks: Chosen = ALL,
    on_written: Callable[[Mapping[str, tuple[Path, ...]]], None] = lambda _: None,
) -> RunResult:
    """Run `spec` on `backend` and write the reports into `spec.output_dir`.

    The output directory is made, and removed again if nothing came of the run. A failure of
    uprof's own after the workload failed is told in `RunResult.failure`, so that the workload's
    exit code stays what the caller sees. So is one after a workload that succeeded, where it is
    one rank of several: the others depend on it, and a report takes its place that says why.

    Args:
        backend: Runs and measures.
        spec: What to run.
        force: Whether reports of an earlier run may be overwritten.
        strict: Whether a failure to measure is one even where other ranks depend on this one.
        ranks: The ranks that are measured, for `run.json` to name those that are missing.
        on_written: Told the files when they are written while the workload runs on.

    Raises:
        UsageError: the backend cannot produce a report that is asked for, or an option of its.
        OutputError: a report exists and `force` is not given, or cannot be written.
        CaptureError: the workload succeeded but nothing could be measured.
        DeviceUnavailableError: the device went away.
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
        reports.begin()
        try:
            capture = backend.run(with_output(spec, reports))
            signals.workload_ended()
        except MeasuringError as err:
            reports.gave_up(0, str(err))
            if not lenient:
                raise
            reports.stub(0, str(err))
            return _result(backend, reports, Capture(0), str(err))
        except UprofError as err:
            reports.gave_up(None, str(err))
            raise
        failure = _finish(reports, capture, lenient=lenient)
        return _result(backend, reports, capture, failure)


def _finish(reports: Reports, capture: Capture, *, lenient: bool) -> str | None:
    """Write what there is to write; return what went wrong where that is not to be raised."""
    try:
        reports.ended(capture)
        if capture.error is not None:
            raise capture.error
        if not reports.files and not capture.exit_code:
            raise CaptureError(capture.failure or "nothing was measured", slug="nothing-measured")
    except Exception as err:  # others than ours are bugs, which may not cost a training either
        why = outputs.in_words(err)
        reports.gave_up(capture.exit_code, why)
        if capture.exit_code:
            return "; ".join(dict.fromkeys(filter(None, (capture.failure, why))))
        if not lenient:
            raise
        reports.stub(0, why)
        return why
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
    """All calls of one operation from one place in the source, in one iteration."""

    name: str
    location: str | None
    """`file:line` of the most specific frame; None: no frame in the project."""
    calls: int
    forward_ms: float
    backward_ms: float | None
    """None: none of the calls took part in the backward pass."""

    @property
    def total_ms(self) -> float:
        """Forward and backward together."""
        return self.forward_ms + (self.backward_ms or 0.0)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The median iteration and its parts; None where it could not be measured."""

    device: str
    complete: bool
    iterations: int
    matched_iterations: int
    operations: int
    iteration_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    other_ms: float | None
    """The optimizer and everything else that is neither forward nor backward."""
    unattributed_forward_ms: float | None
    """Forward time outside the operations of the report."""
    unattributed_backward_ms: float | None
    peak_usage_bytes: int | None
    weights_bytes: int
    gradients_bytes: int
    activations_bytes: int
    most_expensive: tuple[OperationTotal, ...]
    anomalies: Mapping[str, tuple[int, str]]


def summarize(files: Iterable[Path], top: int = 10) -> RunSummary | None:
    """Return the headline figures of a run's Skyline reports, as `uprof report` has them.

    Args:
        files: The reports of one run; other kinds are passed over.
        top: How many of the most expensive operations.

    Returns:
        None where there is no Skyline report, or it cannot be read back.
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
    whole, facts = analysis.summary, dict(analysis.summary.facts)
    totals = whole.totals
    steps = analysis.breakdown("step").rows if "step" in whole.available else ()
    forward, backward = _attributed_ms(analysis, [step for step in steps if not step.detail])
    iteration_ms, forward_ms, backward_ms = map(
        _ms, (totals.iteration_ns, totals.iteration_forward_ns, totals.iteration_backward_ns)
    )
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
        unattributed_forward_ms=_rest(forward_ms, forward),
        unattributed_backward_ms=_rest(backward_ms, backward),
        peak_usage_bytes=totals.peak_bytes,
        weights_bytes=totals.weight_bytes or 0,
        gradients_bytes=totals.gradient_bytes or 0,
        activations_bytes=totals.activation_bytes or 0,
        most_expensive=tuple(_operations(analysis.calls)[:top]),
        anomalies={
            one.name: (one.count, one.detail or "")
            for one in whole.anomalies
            if one.source == "recorded"
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
    middle = order[(len(order) - 1) // 2 : len(order) // 2 + 1]
    forward, backward = (
        float(np.nansum(times[:, middle])) / len(middle) / NS_PER_MS
        for times in (samples.forward_ns, samples.backward_ns)
    )
    return forward, backward


def _rest(whole_ms: float | None, part_ms: float | None) -> float | None:
    if whole_ms is None or part_ms is None:
        return None
    return max(0.0, whole_ms - part_ms)


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / NS_PER_MS


def _operations(calls: Calls) -> list[OperationTotal]:
    """Sum the calls of each operation at each line, the most expensive first."""
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
    return sorted(totals, key=lambda one: -one.total_ms)
