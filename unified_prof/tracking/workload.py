"""Run a workload of the user's under the tracker: the entry point for backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unified_prof.errors import MeasuringError, UprofError
from unified_prof.runs.records import TrackedRun
from unified_prof.tracking.program.instruments import Instrument
from unified_prof.tracking.program.program import exit_code_of, find_program, last_user_line
from unified_prof.tracking.program.provider_run import ProviderRun
from unified_prof.tracking.program.providers import prefix_of
from unified_prof.tracking.program.script_run import ScriptRun
from unified_prof.tracking.program.session import Options, Session


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a workload ended and what was measured of it."""

    exit_code: int
    """The workload's own; 1 after an exception of its own, 130 after Ctrl-C."""
    tracked: TrackedRun | None
    """None: not one iteration was measured completely."""
    failure: str | None = None
    """Why the measurement is missing or partial, in a sentence for the user."""
    report_error: Exception | None = None
    """What `on_measured` raised."""


def run_workload(
    device: str,
    *,
    target: str,
    is_module: bool,
    arguments: Sequence[str],
    reports: Sequence[str],
    project_root: Path,
    warmup: int,
    iterations: int,
    scope: str = "module",
    include: Sequence[str] = (),
    stop_after: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    instruments: Sequence[Instrument] = (),
    on_measured: Callable[[TrackedRun | None], None] = lambda _: None,
    on_partial: Callable[[TrackedRun], None] | None = None,
) -> Outcome:
    """Run `target` on `device` and measure some of its iterations.

    A script that defines providers is driven through them; any other is executed unmodified
    and its iterations are found from its optimizer steps. The user's traceback, without our
    frames, is printed to stderr when the workload fails; nothing else is printed.

    Args:
        device: A torch device type such as `cpu`, `cuda` or `npu`.
        target: Path of a script, or the name of a module when `is_module`.
        is_module: Whether `target` is a module name, as for `python -m`.
        arguments: The workload's own arguments, `sys.argv[1:]`.
        reports: What to measure, of `run-time` and `memory`.
        project_root: Frames in files below it are the user's.
        warmup: Iterations to let pass before measuring.
        iterations: Iterations to measure for the run time.
        scope: `module` keeps operations called below a method of one of the project's modules,
            `project` all that have a frame in the project.
        include: Packages whose frames are kept as well, besides the model code of known libraries.
        stop_after: End the script once all is measured.
        progress: Told in a few words what is going on; never called from a measured region.
        instruments: More recorders to drive over the measured iterations.
        on_measured: Called once, as soon as the last stage is complete, with what
            `Outcome.tracked` will be, and with None where only instruments measured. The
            workload still runs: nothing is measured any more, all instruments have stopped and
            torch is as it was found, so the reports can be written at once, before the workload
            can be killed or leave by `os._exit`. Nothing that comes later changes the records;
            only exit code and time of end are not known yet. It runs on the workload's thread,
            between two iterations, in whatever working folder and with whatever `sys.stdout`
            the workload has by then. Not called where measuring ended early or there was
            nothing to measure: then there is only the `Outcome`. An exception of its does not
            reach the workload; it is `Outcome.report_error`.
        on_partial: Called now and then before that, between two iterations, with what the
            complete ones have given so far, so that it can be kept from being lost with the
            process: after the first of them at once, later so rarely that it takes a fiftieth
            of the time. An exception of its becomes an anomaly.

    Raises:
        UsageError: `target` cannot be read or found, or a value makes no sense.
        DeviceUnavailableError: `device` cannot be used here.
        CaptureError: The workload broke the rules of providers.
        MeasuringError: It ended well, but there was nothing to measure.
    """
    session = Session(
        device,
        Options(
            reports=tuple(reports),
            project_root=project_root,
            warmup=warmup,
            iterations=iterations,
            scope=scope,
            include=tuple(include),
            progress=progress,
            instruments=tuple(instruments),
            on_measured=on_measured,
            on_partial=on_partial,
        ),
    )
    try:
        program = find_program(target, is_module=is_module, arguments=arguments)
    except UprofError:
        raise
    except BaseException as error:  # of the packages above a module
        return Outcome(exit_code_of(error), None, last_user_line(error))
    try:
        prefix = prefix_of(program.source, program.path)
        code = program.compile()
    except (SyntaxError, ValueError) as error:
        error = error.with_traceback(None)  # the text it quotes says it all
        return Outcome(exit_code_of(error), None, f"{program.name}: {last_user_line(error)}")
    if prefix is None:
        workload: ScriptRun | ProviderRun = ScriptRun(session, program, code, stop_after)
    else:
        workload = ProviderRun(session, program, code, prefix)
    session.facts["workload"] = program.name
    session.facts["mode"] = "script" if prefix is None else f"{prefix} providers"
    try:
        raised = workload.run()
    finally:
        workload.close()
    exit_code = 0 if raised is None else exit_code_of(raised)
    session.ended_well = raised is None or (isinstance(raised, SystemExit) and not exit_code)
    failures = list(session.faults)
    # A script of a few iterations less than asked for is told by `TrackedRun.complete` alone.
    if not workload.finished and not session.has_some_of_all:
        failures.insert(0, workload.why_incomplete(raised))
    try:
        tracked = session.result(complete=workload.finished)
    except UprofError as refused:
        if exit_code:
            return Outcome(exit_code, None, str(refused))
        _raise_fault(session, workload.tracking_error)
        raise MeasuringError(str(refused), hint=refused.hint) from refused
    except Exception as bug:  # the workload has ended as it did, whatever is wrong with us
        return Outcome(exit_code, None, f"tracking failed: {last_user_line(bug)}", bug)
    failure = "; ".join(failures) or None
    if failure is not None and tracked is None and exit_code == 0:
        _raise_fault(session, workload.tracking_error)
        raise MeasuringError(failure, hint=workload.hint)
    return Outcome(exit_code, tracked, failure, session.report_error)


def _raise_fault(session: Session, error: Exception | None) -> None:
    """Raise what uprof itself failed with, which is why nothing was measured."""
    if session.faults:
        raise MeasuringError(
            f"tracking failed: {session.faults[0]}",
            hint="this is a fault of uprof's own, please report it",
        ) from error
