"""Runs a workload on a backend and writes its reports."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unified_prof.backends.registry import Backend, Capture, RunSpec
from unified_prof.base import signals
from unified_prof.base.run_spec import TrackedRun
from unified_prof.errors import CaptureError, MeasuringError, UprofError, UsageError
from unified_prof.pipeline import outputs
from unified_prof.pipeline.distributed import ALL, Rank, RankSelection
from unified_prof.pipeline.reports import Reports, with_output
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

    def fields(self) -> dict[str, Any]:
        """Return the result as plain data; times in ms, sizes in bytes, None if unknown."""
        from unified_prof.pipeline.run_summary import summarize  # 0.2 s

        paths = [path for one in self.files.values() for path in one]
        summary = summarize(paths) if self.tracked is not None else None
        return {
            "backend": self.backend,
            "exit_code": self.exit_code,
            "directory": str(self.directory),
            "files": {
                report: [str(path) for path in paths] for report, paths in self.files.items()
            },
            "failure": self.failure,
            "summary": None if summary is None else asdict(summary),
        }

    @property
    def line(self) -> str:
        """One line about a rank: where it ran and which reports it wrote."""
        rank = self.rank
        assert rank is not None
        files = ", ".join(str(path) for paths in self.files.values() for path in paths)
        ended = f", exit code {self.exit_code}" if self.exit_code else ""
        where = f"rank {rank.number} of {rank.world_size} on {platform.node()}{ended}"
        return f"{where}: {files or 'no report'}"


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
