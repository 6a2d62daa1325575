"""Drive a script with providers: make the model once, run its iteration as often as needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

from unified_prof import signals
from unified_prof.errors import UprofError
from unified_prof.tracking.program.program import Program, call_program, execute, running_as
from unified_prof.tracking.program.providers import (
    Providers,
    checked_inputs,
    checked_iteration,
    checked_model,
    checked_providers,
)
from unified_prof.tracking.program.session import Session
from unified_prof.tracking.program.steps import StepWatcher

_MODULE_NAME = "__uprof_workload__"
"""Not `__main__`: a script with providers does nothing by itself, as in Skyline."""


class ProviderRun:
    """One run of a script with providers."""

    hint = None

    def __init__(self, session: Session, program: Program, code: CodeType, prefix: str) -> None:
        self._session = session
        self._program = program
        self._code = code
        self._prefix = prefix
        self._driver = session.driver(whole_first=False)
        self._steps = StepWatcher(
            boundary=lambda: None,
            joined=lambda: None,
            step_begins=session.optimizer_begins,
            step_ended=session.optimizer_ended,
            anomalies=session.anomalies,
            internals=session.internals,
        )
        session.on_abandon += [self._driver.abandon, self._steps.remove]

    @property
    def finished(self) -> bool:
        """Whether everything was measured."""
        return self._driver.finished

    @property
    def tracking_error(self) -> Exception | None:
        """What uprof itself failed with."""
        return self._driver.error

    def run(self) -> BaseException | None:
        """Run the workload; return what it raised.

        Raises:
            CaptureError: A provider is not as it must be.
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
        """Make the model once and run its iteration as often as is needed."""
        session, driver = self._session, self._driver
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
        """End the run, whatever happened."""
        self._driver.close()
        self._steps.remove()
        self._session.remove()

    def why_incomplete(self, error: BaseException | None) -> str:
        """Say why not everything was measured."""
        return self._session.why_incomplete(error)
