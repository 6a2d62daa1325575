"""Tracking from within a program: `step()` and the core of `unified_prof.profile(...)`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from unified_prof.errors import DeviceUnavailableError, UsageError
from unified_prof.tracking.torch_names import accelerator_kind

if TYPE_CHECKING:
    from unified_prof.base.run_spec import RunSpec, TrackedRun


class _Loop(Protocol):
    def mark(self, samples: int | None = None) -> None:
        """End an iteration that processed `samples`."""


_loop: _Loop | None = None


def step(samples: int | None = None) -> None:
    """Mark the end of one iteration.

    After the first call, optimizer steps no longer end iterations. The function does nothing if
    tracking is not active, so calls can remain in the program.

    Args:
        samples: Number of samples, or tokens, in the iteration; `uprof watch` shows their rate.
    """
    if _loop is not None:
        _loop.mark(samples)


@contextmanager
def tracked_by(loop: _Loop) -> Iterator[None]:
    """Within the block, calls of `step()` end iterations of `loop`."""
    global _loop
    if _loop is not None:
        raise UsageError("tracking is already active", slug="already-tracking")
    _loop = loop
    try:
        yield
    finally:
        _loop = None


def chosen_device(device: str | None) -> str:
    """Return `device`, or the type of the current accelerator.

    Raises:
        DeviceUnavailableError: PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise DeviceUnavailableError(
            "PyTorch is not installed",
            hint="run `pip install 'unified-prof[torch]'`",
            slug="backend-unavailable",
        )

    return device or accelerator_kind()


class LiveTracking:
    """Context manager that measures the iterations of its body.

    The first iteration counts as warm-up, because it may contain the program's setup; it is
    reported if no other iteration was complete. After the block, `tracked` is the result (None if
    no iteration was complete), `failure` is the reason if the result is incomplete, and
    `report_error` is the exception that `spec.on_measured` raised.

    Args:
        device: torch device type; None means the current accelerator, or else the CPU.
        spec: What to measure; its reports `run-time` and `memory` use `tracked`.

    Raises:
        UsageError: Tracking is already active.
        DeviceUnavailableError: The device cannot be used here.
        CaptureError: On exit, if the iterations contained nothing to measure.
    """

    def __init__(self, device: str | None, spec: RunSpec) -> None:
        kind = chosen_device(device)
        from unified_prof.tracking.session import Session
        from unified_prof.tracking.training_loop import TrackedLoop

        self._session = Session(kind, spec)
        self._loop = TrackedLoop(self._session)
        self._session.facts["mode"] = "live"
        self.tracked: TrackedRun | None = None
        self.failure: str | None = None
        self.report_error: Exception | None = None
        self._owner = os.getpid()

    @property
    def is_of_this_process(self) -> bool:
        """True in the process that began tracking, False in forked children."""
        return os.getpid() == self._owner

    def __enter__(self) -> LiveTracking:
        self._owner = os.getpid()
        self._registered = tracked_by(self._loop)
        self._registered.__enter__()
        self._session.install(())
        self._loop.begin()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not self.is_of_this_process:  # a forked child leaves the block; it has measured nothing
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
        if not self._loop.driver.finished and not self._session.measured_each_kind:
            self._session.incomplete = self._session.why_incomplete(error)
            failures.append(self._session.incomplete)
        if error is None:
            self.tracked = self._session.result(complete=self._loop.driver.finished)
        else:  # the caller must see the program's own error
            self.tracked = self._session.result_or_none()
        failures += self._session.faults  # the device may have reported one only now
        self.failure = "; ".join(failures) or None
