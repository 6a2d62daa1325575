"""Track from inside a program: `step()` and the core of `unified_prof.profile(...)`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING

from unified_prof.errors import DeviceUnavailableError, UsageError
from unified_prof.tracking.driver import Instrument

if TYPE_CHECKING:
    from unified_prof.base.run_spec import RunSpec, TrackedRun
    from unified_prof.tracking.training_loop import TrackedLoop

_loop: TrackedLoop | None = None


def step() -> None:
    """Mark the end of one iteration, in a program that has no optimizer to step.

    Once it was called, optimizer steps no longer count as ends of iterations. It does nothing
    where no tracking is under way, so it may stay in the program for good.
    """
    if _loop is not None:
        _loop.mark()


@contextmanager
def tracked_by(loop: TrackedLoop) -> Iterator[None]:
    """Let `step()` end iterations of `loop` for the time of the block."""
    global _loop
    if _loop is not None:
        raise UsageError(
            "tracking is under way already; it cannot begin a second time", slug="already-tracking"
        )
    _loop = loop
    try:
        yield
    finally:
        _loop = None


class LiveTracking:
    """Context manager that measures the iterations of its body.

    The first iteration is counted as warm-up, as it may hold the program's set-up; it is what
    is reported when no other was complete. After the block `tracked` holds what was measured,
    None if no iteration was complete, `failure` says why something is missing, and
    `report_error` is what `spec.on_measured` raised.

    Args:
        device: A torch device type; None takes the current accelerator, or the CPU where there
            is none.
        spec: What to measure; `run-time` and `memory` of its reports are made from `tracked`.
        instruments: More recorders to drive over measured iterations.

    Raises:
        UsageError: Tracking is under way already.
        DeviceUnavailableError: The device cannot be used here.
        CaptureError: On leaving: there was nothing to measure in the iterations.
    """

    def __init__(
        self, device: str | None, spec: RunSpec, instruments: Sequence[Instrument] = ()
    ) -> None:
        if find_spec("torch") is None:
            raise DeviceUnavailableError(
                "PyTorch is not installed",
                hint="run `pip install 'unified-prof[torch]'`",
                slug="backend-unavailable",
            )
        from unified_prof.tracking.session import Session
        from unified_prof.tracking.torch_names import accelerator_kind
        from unified_prof.tracking.training_loop import TrackedLoop

        self._session = Session(device or accelerator_kind(), spec, instruments)
        self._loop = TrackedLoop(self._session)
        self._session.facts["mode"] = "live"
        self.tracked: TrackedRun | None = None
        self.failure: str | None = None
        self.report_error: Exception | None = None
        self._owner = os.getpid()

    @property
    def is_of_this_process(self) -> bool:
        """Whether this is the process that it began in, and none that was forked since."""
        return os.getpid() == self._owner

    def __enter__(self) -> LiveTracking:
        self._owner = os.getpid()
        self._registered = tracked_by(self._loop)
        self._registered.__enter__()
        self._session.install(())
        self._loop.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_of_this_process:  # it leaves the block, and measured nothing
            return
        try:
            if error is None:
                self._loop.ended()
        finally:
            self._loop.close()
            self._registered.__exit__(None, None, None)
        self.report_error = self._session.report_error
        self._session.ended_well = error is None
        failures = []
        if not self._loop.finished and not self._session.has_some_of_all:
            failures.append(self._session.why_incomplete(error))
        if error is None:
            self.tracked = self._session.result(complete=self._loop.finished)
        else:  # the program's own error is what the caller must see
            self.tracked = self._session.result_or_none()
        failures += self._session.faults  # the device may have told of one only now
        self.failure = "; ".join(failures) or None
