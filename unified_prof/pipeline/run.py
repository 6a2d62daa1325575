"""From a specification to reports on disk: run a backend, write what it brings back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from unified_prof.backends.base import MEMORY, RUN_TIME, Backend, Capture, RunSpec
from unified_prof.errors import CaptureError, UprofError, UsageError
from unified_prof.pipeline import outputs, provenance
from unified_prof.tracking.records import TrackedRun


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a run."""

    exit_code: int
    """The workload's own."""
    backend: str
    directory: Path
    files: Mapping[str, Path]
    """Kind of report -> the file written."""
    tracked: TrackedRun | None
    failure: str | None = None
    """Why something is missing or partial, in a sentence for the user."""


def run(backend: Backend, spec: RunSpec, *, force: bool = False) -> RunResult:
    """Run `spec` on `backend` and write the reports into `spec.output_dir`.

    The output directory is made, and removed again if nothing came of the run. A failure of
    uprof's own after the workload failed is told in `RunResult.failure`, so that the workload's
    exit code stays what the caller sees.

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
        )
    rank = outputs.rank_of()
    files = outputs.skyline_files(spec.output_dir, spec.reports, rank)
    outputs.refuse_existing_files(files.values(), force=force)
    with outputs.output_directory(spec.output_dir):
        started = provenance.now()
        facts = provenance.of_run(spec, backend.name, rank, started)
        capture = backend.run(spec)
        facts["finished"] = provenance.timestamp(provenance.now())
        failure = capture.failure
        written: dict[str, Path] = {}
        try:
            written.update(write_skyline(files, capture, facts, force=force))
            if not written and not capture.exit_code:
                raise CaptureError(capture.failure or "nothing was measured")
        except UprofError as err:
            if not capture.exit_code:
                raise
            failure = f"{capture.failure}; {err}" if capture.failure else str(err)
    return RunResult(
        exit_code=capture.exit_code,
        backend=backend.name,
        directory=spec.output_dir,
        files=written,
        tracked=capture.tracked,
        failure=failure,
    )


def write_skyline(
    files: Mapping[str, Path],
    capture: Capture,
    facts: Mapping[str, str | None],
    *,
    force: bool,
) -> Iterator[tuple[str, Path]]:
    """Write the Skyline reports of `capture`, yielding each when it is complete."""
    run = capture.tracked
    if run is None:
        return
    from unified_prof.store import skyline

    writers = {RUN_TIME: skyline.write_run_time, MEMORY: skyline.write_memory}
    all_facts = {
        **facts,
        **run.facts,
        "device": run.device,
        "complete": "true" if run.complete else "false",
        "exit_code": str(capture.exit_code),
    }
    if capture.failure:
        all_facts["failure"] = capture.failure
    for report, path in files.items():
        writers[report](path, run, all_facts, overwrite=force)
        yield report, path
