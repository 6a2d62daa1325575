"""Which cell of which notebook runs: what a reader is told instead of the kernel's command line.

`unified_prof.profile(...)`: the reports of a part of a running program, such as a notebook.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from types import FrameType
from typing import Any

from unified_prof.base import signals
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
from unified_prof.errors import CaptureError, UsageError
from unified_prof.pipeline import outputs
from unified_prof.pipeline.distributed import rank_here
from unified_prof.pipeline.reports import Reports, with_output
from unified_prof.pipeline.run import RunSummary, summarize
from unified_prof.tracking.code_entries import cell_name

_SUFFIX = ".ipynb"


def running_cell() -> str | None:
    """Return the cell that runs now, as `In [3]`; None where no code of one is running."""
    found = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # the outermost: functions may be of earlier cells
        found = cell_name(frame.f_code.co_filename) or found
        frame = frame.f_back
    return found


def notebook_name() -> str | None:
    """Return the name of the notebook's file, where the server or the editor tells it."""
    # What Jupyter's server sets for its kernels, and what an editor leaves among the variables.
    told = os.environ.get("JPY_SESSION_NAME", "")
    variables = getattr(_shell(), "user_ns", None)
    if not told.endswith(_SUFFIX) and isinstance(variables, dict):
        told = str(variables.get("__vsc_ipynb_file__", ""))
    return PurePath(told.replace("\\", "/")).name if told.endswith(_SUFFIX) else None


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    try:
        return None if ipython is None else ipython.get_ipython()
    except AttributeError:  # it is being imported, or something else of that name
        return None


@dataclass(slots=True)
class Profile:
    """What came of a profiled block; complete when the block has ended."""

    directory: Path
    files: Mapping[str, Path] = field(default_factory=dict)
    """Kind of report -> the file written."""
    tracked: TrackedRun | None = field(default=None, repr=False)
    """The records behind the files."""
    failure: str | None = None
    """Why the measurement is partial, in a sentence, or None when it is complete."""
    is_finished: bool = False
    """Whether all that was asked for is measured: a loop of one's own may end then."""
    keep: object = field(default=None, repr=False, compare=False)
    """What holds the folder while the profile lives, where that is a temporary one."""

    @property
    def summary(self) -> RunSummary | None:
        """The headline figures, as `uprof run` shows them."""
        return summarize(self.files.values()) if self.tracked else None

    def _repr_html_(self) -> str:
        """Return what notebooks show: the end of a run as `uprof run` tells it."""
        from unified_prof.report import notebook

        files = {kind: [path] for kind, path in self.files.items()}
        return notebook.run_html(files, failure=self.failure)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Write what IPython shows in a terminal."""
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
        include: Packages, such as `mylibrary.models`, whose frames are kept below yours; the
            model code of transformers, diffusers, timm and torchvision always is.
        command: What the reports say was run, as words, secrets masked; by default the command
            line of the program, in a notebook its name and the cell.
        force: Whether reports of an earlier run may be overwritten.
        progress: Told in a few words what is going on.

    Raises:
        UsageError: an argument makes no sense.
        OutputError: a report exists and `force` is not given, or cannot be written.
        CaptureError: the block ended well but nothing could be measured; not where there are
            other ranks, which `Profile.failure` and the reports tell then.
        DeviceUnavailableError: torch or the device is not here.
    """
    if unknown := [report for report in reports if report not in (RUN_TIME, MEMORY)]:
        raise UsageError(
            f"unknown report {unknown[0]!r}",
            hint=f"known: {RUN_TIME}, {MEMORY}",
            slug="unknown-report",
        )
    target, arguments = _program()
    if command is None:
        command = _cell() if target == NOTEBOOK else sys.argv
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
    """Measure what `spec` asks for of the `with` block; `profile` in terms of its record."""
    written = Reports(spec, device, force=force, in_program=True)
    result = Profile(written.directory)
    with outputs.output_directory(written.directory):
        written.begin()
        from unified_prof.tracking.live import LiveTracking

        asked = with_output(spec, written)

        def measured(capture: Capture) -> None:
            result.is_finished = True
            asked.on_measured(capture)

        tracking = LiveTracking(device, replace(asked, on_measured=measured))
        ended_well = False
        try:
            with tracking:
                yield result
                ended_well = True
        except CaptureError as err:
            if not ended_well or not written.rank.is_distributed:
                raise
            result.failure = str(err)
        finally:
            if tracking.is_of_this_process:
                result.tracked = tracking.tracked
                result.failure = tracking.failure or result.failure
                with signals.held_back():
                    written.ended(Capture(0, tracking.tracked, failure=result.failure))
                result.files = {report: path for report, (path,) in written.files.items()}
        if result.tracked is None and tracking.is_of_this_process:
            why = result.failure or "nothing was measured"
            if not written.rank.is_distributed:
                raise CaptureError(why, slug="nothing-measured")
            # The other ranks wait for this one: it must not end for want of a measurement.
            written.stub(0, why)
            result.failure = why
            result.files = {report: path for report, (path,) in written.files.items()}


_KERNELS = ("ipykernel_launcher.py", "colab_kernel_launcher.py")
NOTEBOOK = "notebook"
"""The target of what runs in a kernel, whose own command line says nothing of it."""


def _program() -> tuple[str, tuple[str, ...]]:
    """Return what runs, and its arguments: those of a kernel are not the user's."""
    target = sys.argv[0] if sys.argv else ""
    if not target or Path(target).name in _KERNELS:
        return NOTEBOOK, ()
    return target, tuple(sys.argv[1:])


def _cell() -> tuple[str, ...]:
    """Return the notebook and the cell that runs, as far as they are known."""
    return (notebook_name() or NOTEBOOK, *filter(None, (running_cell(),)))
