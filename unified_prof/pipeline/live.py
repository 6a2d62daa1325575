"""`unified_prof.profile(...)`: the reports of a part of a running program, such as a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from unified_prof.backends.base import MEMORY, RUN_TIME, Capture, RunSpec
from unified_prof.errors import CaptureError, UsageError
from unified_prof.pipeline import outputs, provenance
from unified_prof.pipeline.run import write_skyline
from unified_prof.pipeline.run_summary import RunSummary, summarize
from unified_prof.tracking.records import TrackedRun


@dataclass(slots=True)
class Profile:
    """What came of a profiled block; complete when the block has ended."""

    directory: Path
    files: Mapping[str, Path] = field(default_factory=dict)
    """Kind of report -> the file written."""
    tracked: TrackedRun | None = None
    """The records behind the files."""
    failure: str | None = None
    """Why the measurement is partial, in a sentence, or None when it is complete."""

    @property
    def summary(self) -> RunSummary | None:
        """The headline figures, as `uprof run` shows them."""
        return summarize(self.tracked) if self.tracked else None


@contextmanager
def profile(
    output: str | Path | None = None,
    *,
    device: str | None = None,
    reports: Sequence[str] = (RUN_TIME, MEMORY),
    warmup: int = 2,
    iterations: int = 10,
    project_root: str | Path | None = None,
    scope: str = "module",
    force: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Profile]:
    """Measure the training iterations of the `with` block and write the Skyline reports.

    Iterations are found from the optimizer's steps, or marked with `unified_prof.step()`. An
    exception of the block passes through; what was measured up to then is written.

    Args:
        output: Folder of the reports; by default `uprof_<script>_<timestamp>`.
        device: `cpu`, `cuda` or `npu`; by default the current accelerator, or the CPU.
        reports: Of `run-time` and `memory`.
        warmup: Iterations to let pass before measuring.
        iterations: Iterations to measure.
        project_root: Files below it appear in stack frames; by default the current folder.
        scope: `module` keeps operations called below a module of the project, `project` all that
            have a frame in the project.
        force: Whether reports of an earlier run may be overwritten.
        progress: Told in a few words what is going on.

    Raises:
        UsageError: an argument makes no sense.
        OutputError: a report exists and `force` is not given, or cannot be written.
        CaptureError: the block ended well but nothing could be measured.
        DeviceUnavailableError: torch or the device is not here.
    """
    if unknown := [report for report in reports if report not in (RUN_TIME, MEMORY)]:
        raise UsageError(f"no report {unknown[0]!r}", hint=f"known: {RUN_TIME}, {MEMORY}")
    target = sys.argv[0] or "notebook"
    rank = outputs.rank_of()
    directory = Path(output) if output else outputs.default_directory(target, False, rank)
    spec = RunSpec(
        target=target,
        is_module=False,
        arguments=tuple(sys.argv[1:]),
        reports=tuple(reports),
        output_dir=directory,
        project_root=Path(project_root or Path.cwd()).resolve(),
        warmup=warmup,
        iterations=iterations,
        scope=scope,
        progress=progress,
    )
    files = outputs.skyline_files(directory, spec.reports, rank)
    outputs.refuse_existing_files(files.values(), force=force)
    result = Profile(directory)
    facts = provenance.of_run(spec, device, rank, provenance.now())
    with outputs.output_directory(directory):
        from unified_prof.tracking.live import LiveTracking

        tracking = LiveTracking(
            device,
            reports=spec.reports,
            project_root=spec.project_root,
            warmup=warmup,
            iterations=iterations,
            scope=scope,
            progress=progress,
        )
        try:
            with tracking:
                yield result
        finally:
            facts["finished"] = provenance.timestamp(provenance.now())
            result.tracked, result.failure = tracking.tracked, tracking.failure
            capture = Capture(0, tracking.tracked, failure=tracking.failure)
            result.files = dict(write_skyline(files, capture, facts, force=force))
        if result.tracked is None:
            raise CaptureError(result.failure or "nothing was measured")
