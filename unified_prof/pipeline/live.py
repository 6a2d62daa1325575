"""Runs a workload on a backend, or profiles a part of a running program, and writes the reports.

`unified_prof.profile(...)` profiles a part of a running program or notebook. Also determines the
notebook and its running cell, which reports show instead of the kernel's command line.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePath
from types import FrameType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from unified_prof.backends.registry import Backend
from unified_prof.base import signals
from unified_prof.base.redaction import redact
from unified_prof.base.run_spec import (
    ITERATIONS,
    MEMORY,
    MODULE,
    RUN_TIME,
    WARMUP,
    Capture,
    RunSpec,
    TrackedRun,
)
from unified_prof.errors import CaptureError, MeasuringError, UprofError, UsageError
from unified_prof.pipeline import outputs
from unified_prof.pipeline.outputs import ALL, Rank, RankSelection, rank_here
from unified_prof.pipeline.reports import Reports, with_output
from unified_prof.sqlite.atomic import remove_abandoned
from unified_prof.tracking.code_entries import cell_name
from unified_prof.version import VERSION

if TYPE_CHECKING:
    from unified_prof.pipeline.run_summary import RunSummary
    from unified_prof.pipeline.watch import Watch, WatchSettings


_SUFFIX = ".ipynb"


def running_cell() -> str | None:
    """Return the running notebook cell as `In [3]`, None if there is none."""
    found = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # the outermost one: functions can belong to earlier cells
        found = cell_name(frame.f_code.co_filename) or found
        frame = frame.f_back
    return found


def notebook_name() -> str | None:
    """Return the file name of the notebook, None if it is not known."""
    # Jupyter's server sets a variable of the environment, VS Code one of the notebook.
    path = os.environ.get("JPY_SESSION_NAME", "")
    variables = None
    with suppress(AttributeError):  # no notebook, or IPython is being imported
        variables = sys.modules.get("IPython").get_ipython().user_ns  # type: ignore[union-attr]
    if not path.endswith(_SUFFIX) and isinstance(variables, dict):
        path = str(variables.get("__vsc_ipynb_file__", ""))
    return PurePath(path.replace("\\", "/")).name if path.endswith(_SUFFIX) else None


@dataclass(slots=True)
class Profile:
    """Result of a profiled block; its fields are set when the block ends."""

    directory: Path
    files: Mapping[str, Path] = field(default_factory=dict)  # Kind of report -> file.
    # Measurements from which the files are written.
    tracked: TrackedRun | None = field(default=None, repr=False)
    failure: str | None = None  # Reason why the measurement is partial, None if it is complete.
    # True if all requested iterations are measured, so that a training loop can stop.
    is_finished: bool = False
    # Temporary directory that is deleted with this object.
    keep: object = field(default=None, repr=False, compare=False)

    @property
    def summary(self) -> RunSummary | None:
        """The headline figures, as `uprof run` shows them."""
        from unified_prof.pipeline.run_summary import summarize

        return summarize(self.files.values()) if self.tracked else None

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: the summary of `uprof run`."""
        from unified_prof.report.document import Document, render_fragment
        from unified_prof.report.report_document import add_run_footer

        document = Document()
        if self.failure is not None:
            document.warning("incomplete", self.failure)
        add_run_footer(document, {kind: [path] for kind, path in self.files.items()}, top=10)
        return render_fragment(document)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Write the summary that IPython shows in a terminal."""
        from unified_prof.report.report_document import run_footer

        if self.failure is not None:
            printer.text(f"incomplete: {self.failure}\n")
        printer.text(run_footer({kind: [path] for kind, path in self.files.items()}).rstrip())


@contextmanager
def profile(
    output: str | Path | None = None,
    *,
    device: str | None = None,
    reports: Sequence[str] = (RUN_TIME, MEMORY),
    warmup: int = WARMUP,
    iterations: int = ITERATIONS,
    project_root: str | Path | None = None,
    scope: str = MODULE,
    include: Sequence[str] = (),
    command: Sequence[str] | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Profile]:
    """Measure the training iterations of the `with` block and write the Skyline reports.

    Iterations are detected from the optimizer's steps, or marked with `unified_prof.step()`. An
    exception in the block is propagated; the measurements so far are written.

    Args:
        output: Directory of the reports; by default `uprof_<script>_<timestamp>`.
        device: `cpu`, `cuda` or `npu`; by default the current accelerator, or the CPU.
        reports: `run-time`, `memory` or both.
        warmup: Iterations to skip before measuring.
        iterations: Iterations to measure.
        project_root: Files below it appear in stack frames; by default the current directory.
        scope: `module` keeps operations called below a module of the project, `project` all with a
            frame in the project.
        include: Packages, such as `mylibrary.models`, whose frames are kept below those of the
            project; model code of transformers, diffusers, timm and torchvision always is.
        command: Command to show in the reports, as a list of words; secrets are masked. The default
            is the command line of the program, or in a notebook its name and cell.
        force: If True, reports of an earlier run may be overwritten.
        progress: Called with a short description of the current step.

    Raises:
        UsageError: an argument is invalid.
        OutputError: a report exists and `force` is not given, or cannot be written.
        CaptureError: the block succeeded but nothing could be measured; if there are other ranks,
            `Profile.failure` and the reports contain the reason instead.
        DeviceUnavailableError: torch or the device is not available.
    """
    if unknown := [report for report in reports if report not in (RUN_TIME, MEMORY)]:
        raise UsageError(
            f"unknown report {unknown[0]!r}",
            hint=f"known: {RUN_TIME}, {MEMORY}",
            slug="unknown-report",
        )
    target, arguments = _program()
    if command is None:
        of_cell = (notebook_name() or NOTEBOOK, *filter(None, (running_cell(),)))
        command = of_cell if target == NOTEBOOK else sys.argv
    directory = Path(output) if output else outputs.default_directory(target, False, rank_here())
    spec = RunSpec(
        target=target,
        is_module=False,
        arguments=arguments,
        reports=tuple(reports),
        output_dir=directory,
        project_root=Path(project_root or Path.cwd()).resolve(),
        warmup=warmup,
        iterations=iterations,
        scope=scope,
        include=tuple(include),
        command=tuple(command),
        progress=progress,
    )
    with measuring(spec, device, force=force) as result:
        yield result


@contextmanager
def measuring(spec: RunSpec, device: str | None, *, force: bool = False) -> Iterator[Profile]:
    """Context manager that measures the block according to `spec`; see `profile`."""
    written = Reports(spec, device, force=force, in_program=True)
    result = Profile(written.directory)
    with outputs.output_directory(written.directory):
        written.begin()
        from unified_prof.tracking.live import LiveTracking

        request = with_output(spec, written)

        def measured(capture: Capture) -> None:
            result.is_finished = True
            request.on_measured(capture)

        tracking = LiveTracking(device, replace(request, on_measured=measured))
        succeeded = False
        try:
            with tracking:
                yield result
                succeeded = True
        except CaptureError as err:
            if not succeeded or not written.rank.is_distributed:
                raise
            result.failure = str(err)
        finally:
            if tracking.is_of_this_process:
                result.tracked = tracking.tracked
                result.failure = tracking.failure or result.failure
                with signals.held_back():
                    written.finish(Capture(0, tracking.tracked, failure=result.failure))
                result.files = {report: path for report, (path,) in written.files.items()}
        if result.tracked is None and tracking.is_of_this_process:
            reason = result.failure or "nothing was measured"
            if not written.rank.is_distributed:
                raise CaptureError(reason, slug="nothing-measured")
            # Other ranks wait for this one, so it must not fail.
            written.write_stub(reason)
            result.failure = reason
            result.files = {report: path for report, (path,) in written.files.items()}


def watch(
    output: str | Path | None = None,
    *,
    device: str | None = None,
    settings: WatchSettings | None = None,
) -> Watch:
    """Return a context manager that watches the steps of its block, as `uprof watch` does.

    Args:
        output: Directory of the watch files, the same for all ranks; by default
            `uprof_<script>_<timestamp>`.
        device: `cpu`, `cuda` or `npu`; by default the current accelerator, or the CPU.
        settings: Triggers and captures.

    Raises:
        OutputError: The directory or file cannot be written.
        DeviceUnavailableError: torch or the device is not available.
    """
    from unified_prof.pipeline.watch import Watch
    from unified_prof.tracking.live import chosen_device

    target, _ = _program()
    folder = Path(output) if output else outputs.default_directory(target, False, rank_here())
    facts = {"uprof": VERSION, "target": redact(target)}
    return Watch(folder, chosen_device(device), settings=settings, facts=facts)


_KERNELS = ("ipykernel_launcher.py", "colab_kernel_launcher.py")
NOTEBOOK = "notebook"  # Target of code that runs in a notebook kernel.


def _program() -> tuple[str, tuple[str, ...]]:
    """Return the target and its arguments; the arguments of a notebook kernel are omitted."""
    target = sys.argv[0] if sys.argv else ""
    if not target or Path(target).name in _KERNELS:
        return NOTEBOOK, ()
    return target, tuple(sys.argv[1:])


class RunResult(Struct, frozen=True):
    """Result of a run."""

    exit_code: int  # Exit code of the workload.
    backend: str
    directory: Path
    # Report kind -> files written; more than one only if there are several recordings.
    files: Mapping[str, tuple[Path, ...]]
    tracked: TrackedRun | None
    failure: str | None = None  # Reason why results are missing or partial, None if complete.
    rank: Rank | None = None  # Rank of this process.

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
    other ranks depend on this one; the reports contain the reason instead. If `strict`, failures to
    measure are raised even if other ranks depend on this one. `ranks` are the measured ones, so
    that `run.json` can name missing ones; `on_written` is called with the files that are written
    while the workload is running.

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
            reports.write_stub(str(err))
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
        reports.write_stub(reason)
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
