"""Run a workload under the tracker: the entry point for backends.

For a script with providers, the model is created once and the iteration is run as often as needed.
Any other script runs unmodified, and its iterations are inferred.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import CodeType
from typing import Any, NoReturn

from unified_prof.base import signals
from unified_prof.base.run_spec import Capture, RunSpec
from unified_prof.base.streams import tell
from unified_prof.errors import CaptureError, MeasuringError, UprofError, UsageError
from unified_prof.tracking import live
from unified_prof.tracking.driver import Instrument
from unified_prof.tracking.program import (
    Program,
    Providers,
    call_program,
    checked_inputs,
    checked_iteration,
    checked_model,
    checked_providers,
    execute,
    exit_code_of,
    find_program,
    last_user_line,
    prefix_of,
    running_as,
)
from unified_prof.tracking.session import Session
from unified_prof.tracking.training_loop import StepWatcher, TrackedLoop

# Not `__main__`: a script with providers runs nothing by itself, as in Skyline.
_MODULE_NAME = "__uprof_workload__"


class ProviderRun:
    """One run of a script with providers."""

    def __init__(self, session: Session, program: Program, code: CodeType, prefix: str) -> None:
        self._session = session
        self._program = program
        self._code = code
        self._prefix = prefix
        self.driver = session.driver(setup_first=False)
        self._steps = StepWatcher(
            session.interception,
            boundary=lambda: None,
            joined=lambda: None,
            step_begins=session.optimizer_begins,
            step_ended=session.optimizer_ended,
        )
        session.on_abandon += [self.driver.abandon, self._steps.remove]

    def run(self) -> BaseException | None:
        """Run the workload; return the exception that it raised, or None.

        Raises CaptureError if a provider is invalid.
        """
        self._session.install((execute.__code__, call_program.__code__))
        self._steps.install()
        try:
            with running_as(self._program, _MODULE_NAME) as module:
                try:
                    self._drive(vars(module))
                finally:
                    signals.workload_ended()
        except UprofError:
            raise
        except BaseException as error:
            return error
        return None

    def _drive(self, namespace: dict[str, Any]) -> None:
        session, driver = self._session, self.driver
        execute(self._code, namespace)
        providers = checked_providers(namespace, self._prefix, self._program.path)
        model = call_program(providers.model)
        checked_model(providers, model, session.device.kind)
        session.add_model(model)
        inputs = checked_inputs(providers, call_program(self._inputs(providers)))
        iteration = checked_iteration(providers, call_program(providers.iteration, model))
        driver.begin()
        while not driver.ended:
            call_program(iteration, *inputs)
            driver.boundary()
        if driver.finished:
            session.measured()

    def _inputs(self, providers: Providers) -> Callable[[], Any]:
        size = self._session.spec.batch_size
        return providers.inputs if size is None else partial(providers.inputs, batch_size=size)

    def close(self) -> None:
        """End the run."""
        self.driver.close()
        self._steps.remove()
        self._session.remove()


class _StopAfterMeasuring(BaseException):
    """Raised in the script to end it; `except Exception` does not catch it."""


class ScriptRun:
    """One run of a script without providers."""

    def __init__(self, session: Session, program: Program, code: CodeType) -> None:
        self._session = session
        self._program = program
        self._code = code
        self._loop = TrackedLoop(
            session, self._stop if session.spec.stop_after else None, frozenset((execute.__code__,))
        )
        self.driver = self._loop.driver
        self.close = self._loop.close

    def run(self) -> BaseException | None:
        """Run the script to its end; return the exception that it raised, or None."""
        self._session.install((execute.__code__,))
        self._loop.begin()
        try:
            with live.tracked_by(self._loop), running_as(self._program, "__main__") as module:
                try:
                    execute(self._code, vars(module))
                finally:
                    signals.workload_ended()
                self._loop.ended()
        except _StopAfterMeasuring:
            return None
        except SystemExit as error:
            if not error.code:
                self._loop.ended()
            return error
        except UprofError:
            raise
        except BaseException as error:
            return error
        return None

    def _stop(self) -> None:
        raise _StopAfterMeasuring


@contextmanager
def _noting_exit(workload: ScriptRun | ProviderRun) -> Iterator[None]:
    """Print that nothing is written if the workload calls os._exit, which ends Python at once."""
    process, leave = os.getpid(), os._exit

    def noting(status: int) -> NoReturn:
        if os.getpid() == process and not workload.driver.finished:
            tell("uprof: warning: the workload called os._exit during the measurement: no reports")
        leave(status)

    os._exit = noting
    try:
        yield
    finally:
        os._exit = leave


def run_workload(device: str, spec: RunSpec, instruments: Sequence[Instrument] = ()) -> Capture:
    """Run the workload of `spec` on `device` and measure some of its iterations.

    If a script defines providers, they are called; any other script runs unmodified and its
    iterations are inferred from its optimizer steps. If the workload fails, its traceback is
    printed to stderr without uprof's frames; nothing else is printed.

    Args:
        device: torch device type such as `cpu`, `cuda` or `npu`.
        spec: What to run and measure; its reports `run-time` and `memory` are created from the
            result.
        instruments: Further instruments for the measured iterations.

    Raises:
        UsageError: The workload cannot be read or found.
        DeviceUnavailableError: `device` cannot be used here.
        CaptureError: The workload's providers are invalid.
        MeasuringError: The workload ended normally, but there was nothing to measure.
    """
    session = Session(device, spec, instruments)
    try:
        program = find_program(spec)
    except UprofError:
        raise
    except BaseException as error:  # from importing the packages above a module
        return Capture(exit_code_of(error), failure=last_user_line(error))
    try:
        prefix = prefix_of(program.source, program.path)
        code = program.compile()
    except (SyntaxError, ValueError) as error:
        error = error.with_traceback(None)  # the message contains the cause
        return Capture(exit_code_of(error), failure=f"{program.name}: {last_user_line(error)}")
    if prefix is None and spec.batch_size is not None:
        raise CaptureError(
            f"{program.name} has no providers, so the batch size {spec.batch_size} cannot be set",
            hint="--batch-size and --batch-sizes require a script with an input provider",
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
        with _noting_exit(workload):
            raised = workload.run()
    finally:
        workload.close()
    exit_code = 0 if raised is None else exit_code_of(raised)
    session.ended_well = raised is None or (isinstance(raised, SystemExit) and not exit_code)
    failures: list[str] = []
    # If only some iterations are missing, `TrackedRun.complete` says so.
    if not workload.driver.finished and not session.measured_each_kind:
        session.incomplete = session.why_incomplete(raised)
        failures.append(session.incomplete)
    try:
        tracked = session.result(complete=workload.driver.finished)
    except UprofError as refused:
        if exit_code:
            return Capture(exit_code, failure=str(refused))
        _raise_fault(session, workload.driver.error)
        raise MeasuringError(str(refused), hint=refused.hint, slug=refused.slug) from refused
    except Exception as bug:  # the workload's exit code is kept
        return Capture(exit_code, failure=f"tracking failed: {last_user_line(bug)}", error=bug)
    failures += session.faults  # last, because the device may report one only now
    failure = "; ".join(failures) or None
    if failure is not None and tracked is None and exit_code == 0:
        _raise_fault(session, workload.driver.error)
        hint = session.hint() if prefix is None else None
        raise MeasuringError(failure, hint=hint, slug="nothing-measured")
    return Capture(exit_code, tracked, failure=failure, error=session.report_error)


def run_watched(
    spec: RunSpec, watch: Callable[[Sequence[CodeType]], AbstractContextManager[Any]]
) -> int:
    """Run the script or module of `spec` from beginning to end within a context manager.

    Args:
        spec: What to run.
        watch: Returns the context manager, given the code objects at the bottom of the stack. The
            program's exception ends its block.

    Returns:
        The program's exit code; its traceback has been printed as Python does.

    Raises:
        UsageError: The script cannot be read or found, or defines providers.
    """
    program = find_program(spec)
    try:
        prefix = prefix_of(program.source, program.path)
        code = program.compile()
    except (SyntaxError, ValueError) as error:
        return exit_code_of(error.with_traceback(None))
    if prefix is not None:
        raise UsageError(
            f"{program.name} defines providers and does not train by itself",
            hint="give the script that trains",
            slug="no-script",
        )
    try:
        with watch((execute.__code__,)), running_as(program, "__main__") as module:
            try:
                execute(code, vars(module))
            finally:
                signals.workload_ended()
    except UprofError:
        raise
    except BaseException as error:
        return exit_code_of(error)
    return 0


def _raise_fault(session: Session, error: Exception | None) -> None:
    """Raise the failure of uprof or the device that prevented the measurement."""
    if session.device_fault is not None:
        raise MeasuringError(
            session.device_fault,
            hint="device errors are reported late: set CUDA_LAUNCH_BLOCKING=1 or "
            "ASCEND_LAUNCH_BLOCKING=1 to find the operation",
            slug="device-fault",
        ) from error
    if session.faults:
        raise MeasuringError(
            f"tracking failed: {session.faults[0]}",
            hint="this is a bug in uprof, please report it",
            slug="tracking-fault",
        ) from error
