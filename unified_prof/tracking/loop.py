"""Follow a training loop from within: where its iterations end, and when all is measured."""

from __future__ import annotations

from collections.abc import Callable

from unified_prof.tracking.session import Session
from unified_prof.tracking.steps import StepWatcher


class TrackedLoop:
    """Drives a session by the optimizer steps, or the marks, of a program that runs by itself."""

    def __init__(self, session: Session, on_finished: Callable[[], None] | None = None) -> None:
        self._session = session
        self._on_finished = on_finished
        self._driver = session.driver(whole_first=True)
        self._whole = True
        self._steps = StepWatcher(
            boundary=self._boundary,
            joined=self._restart,
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

    def begin(self) -> None:
        """Begin to watch, on this thread; the session is installed."""
        self._steps.install()
        self._driver.begin()

    def mark(self) -> None:
        """The program says that an iteration ends here."""
        self._steps.marked()

    def ended(self) -> None:
        """The program ended well. If it never stepped, all of it was one iteration."""
        if self._whole and not self.finished:
            self._session.note_never_stepped()
            self._driver.boundary()

    def close(self) -> None:
        """Stop watching, whatever happened."""
        self._driver.close()
        self._steps.remove()
        self._session.remove()

    def _boundary(self) -> None:
        self._whole = False
        self._driver.boundary()
        self._session.forget_set_up()
        if self.finished:
            self._steps.remove()
            self._session.measured()
            if self._on_finished is not None:
                self._on_finished()

    def _restart(self) -> None:
        if not self.finished:
            self._session.restarted()
            self._driver.restart(stage=1)
