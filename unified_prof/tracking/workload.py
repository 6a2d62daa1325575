"""Run a workload of the user's under the tracker: the entry point for backends."""

from __future__ import annotations

from collections.abc import Sequence

from unified_prof.errors import CaptureError, MeasuringError, UprofError
from unified_prof.runs.spec import Capture, RunSpec
from unified_prof.tracking.program.instruments import Instrument
from unified_prof.tracking.program.program import exit_code_of, find_program, last_user_line
from unified_prof.tracking.program.provider_run import ProviderRun
from unified_prof.tracking.program.providers import prefix_of
from unified_prof.tracking.program.script_run import ScriptRun
from unified_prof.tracking.program.session import Session


def run_workload(device: str, spec: RunSpec, instruments: Sequence[Instrument] = ()) -> Capture:
    """Run the workload of `spec` on `device` and measure some of its iterations.

    A script that defines providers is driven through them; any other is executed unmodified
    and its iterations are found from its optimizer steps. The user's traceback, without our
    frames, is printed to stderr when the workload fails; nothing else is printed.

    Args:
        device: A torch device type such as `cpu`, `cuda` or `npu`.
        spec: What to run and what to measure; `run-time` and `memory` of its reports are made
            from what is returned.
        instruments: More recorders to drive over the measured iterations.

    Raises:
        UsageError: The workload cannot be read or found.
        DeviceUnavailableError: `device` cannot be used here.
        CaptureError: The workload broke the rules of providers.
        MeasuringError: It ended well, but there was nothing to measure.
    """
    session = Session(device, spec, instruments)
    try:
        program = find_program(spec)
    except UprofError:
        raise
    except BaseException as error:  # of the packages above a module
        return Capture(exit_code_of(error), failure=last_user_line(error))
    try:
        prefix = prefix_of(program.source, program.path)
        code = program.compile()
    except (SyntaxError, ValueError) as error:
        error = error.with_traceback(None)  # the text it quotes says it all
        return Capture(exit_code_of(error), failure=f"{program.name}: {last_user_line(error)}")
    if prefix is None and spec.batch_size is not None:
        raise CaptureError(
            f"{program.name} has no providers, so nothing can be asked for a batch of "
            f"{spec.batch_size}",
            hint="--batch-size and --batch-sizes are for scripts with an input provider",
            slug="no-input-provider",
        )
    if prefix is None:
        workload: ScriptRun | ProviderRun = ScriptRun(session, program, code)
    else:
        workload = ProviderRun(session, program, code, prefix)
    session.facts["workload"] = program.name
    session.facts["mode"] = "script" if prefix is None else f"{prefix} providers"
    if spec.batch_size is not None:
        session.facts["batch_size"] = str(spec.batch_size)
    try:
        raised = workload.run()
    finally:
        workload.close()
    exit_code = 0 if raised is None else exit_code_of(raised)
    session.ended_well = raised is None or (isinstance(raised, SystemExit) and not exit_code)
    failures: list[str] = []
    # A script of a few iterations less than asked for is told by `TrackedRun.complete` alone.
    if not workload.finished and not session.has_some_of_all:
        failures.insert(0, workload.why_incomplete(raised))
    try:
        tracked = session.result(complete=workload.finished)
    except UprofError as refused:
        if exit_code:
            return Capture(exit_code, failure=str(refused))
        _raise_fault(session, workload.tracking_error)
        raise MeasuringError(str(refused), hint=refused.hint, slug=refused.slug) from refused
    except Exception as bug:  # the workload has ended as it did, whatever is wrong with us
        return Capture(exit_code, failure=f"tracking failed: {last_user_line(bug)}", error=bug)
    failures += session.faults  # asked for last: the device may have told of one only now
    failure = "; ".join(failures) or None
    if failure is not None and tracked is None and exit_code == 0:
        _raise_fault(session, workload.tracking_error)
        raise MeasuringError(failure, hint=workload.hint, slug="nothing-measured")
    return Capture(exit_code, tracked, failure=failure, error=session.report_error)


def _raise_fault(session: Session, error: Exception | None) -> None:
    """Raise what uprof itself failed with, or the device, which is why nothing was measured."""
    if session.device_fault is not None:
        raise MeasuringError(
            session.device_fault,
            hint="it is told late: run the workload with CUDA_LAUNCH_BLOCKING=1 or "
            "ASCEND_LAUNCH_BLOCKING=1 to see which it was",
            slug="device-fault",
        ) from error
    if session.faults:
        raise MeasuringError(
            f"tracking failed: {session.faults[0]}",
            hint="this is a fault of uprof's own, please report it",
            slug="tracking-fault",
        ) from error
