"""From a specification to reports on disk: run a backend, write what it brings back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from unified_prof import signals
from unified_prof.backends.base import Backend, Capture, RunSpec
from unified_prof.errors import CaptureError, MeasuringError, UprofError, UsageError
from unified_prof.pipeline import outputs
from unified_prof.pipeline.ranks import ALL, Chosen, Rank
from unified_prof.pipeline.reports import Reports, with_output
from unified_prof.runs.records import TrackedRun


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
