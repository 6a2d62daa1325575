"""From a specification to reports on disk: run a backend, write what it brings back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from unified_prof.backends.base import (
    MEMORY,
    RUN_TIME,
    TIMELINE,
    Backend,
    Capture,
    RunSpec,
)
from unified_prof.errors import CaptureError, UprofError, UsageError
from unified_prof.pipeline import outputs, provenance
from unified_prof.pipeline.recordings import build_databases
from unified_prof.tracking.records import TrackedRun


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
    skyline_files = outputs.skyline_files(spec.output_dir, spec.reports, rank)
    outputs.refuse_existing_files(skyline_files.values(), force=force)
    raw = outputs.raw_directory(spec.output_dir, rank)
    if TIMELINE in spec.reports:
        outputs.refuse_existing_files([outputs.timeline_file(raw, rank)], force=force)
    with outputs.output_directory(spec.output_dir), outputs.output_directory(raw):
        facts = provenance.of_run(spec, backend.name, rank, provenance.now())
        capture = backend.run(replace(spec, output_dir=raw.absolute()))
        facts |= capture.facts
        facts["finished"] = provenance.timestamp(provenance.now())
        facts["exit_code"] = str(capture.exit_code)
        failures = [capture.failure] if capture.failure else []
        files: dict[str, tuple[Path, ...]] = {}
        try:
            for report, path in write_skyline(skyline_files, capture, facts, force=force):
                files[report] = (path,)
            databases, notes = build_databases(
                capture.recordings, spec.options, rank=rank, facts=facts, force=force
            )
            if databases:
                files[TIMELINE] = tuple(map(outputs.relative_to_here, databases))
            failures += notes
            if not files and not capture.exit_code:
                raise CaptureError(capture.failure or "nothing was measured")
        except UprofError as err:
            if not capture.exit_code:
                raise
            failures.append(str(err))
    return RunResult(
        exit_code=capture.exit_code,
        backend=backend.name,
        directory=spec.output_dir,
        files=files,
        tracked=capture.tracked,
        failure="; ".join(failures) or None,
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
    }
    if capture.failure:
        all_facts["failure"] = capture.failure
    for report, path in files.items():
        outputs.make_directory(path.parent)  # another rank may have found it empty and removed it
        writers[report](path, run, all_facts, overwrite=force)
        yield report, path
