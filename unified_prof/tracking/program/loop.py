"""Follow a training loop from within: where its iterations end, and when all is measured."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType

from unified_prof.tracking.program.session import Session
from unified_prof.tracking.program.steps import StepWatcher
from unified_prof.tracking.program.unmarked import UnmarkedLoop

ENDED_BY = "iterations_end_with"
"""Fact of a report: what ended iterations where the program marked none."""


class TrackedLoop:
    """Drives a session by the optimizer steps, or the marks, of a program that runs by itself."""

    def __init__(
        self,
        session: Session,
        on_finished: Callable[[], None] | None = None,
        bottoms: frozenset[CodeType] = frozenset(),
    ) -> None:
        self._session = session
        self._on_finished = on_finished
        self._driver = session.driver(whole_first=True)
        self._whole = True
        self._steps = StepWatcher(
            boundary=self._marked,
            joined=self._rejoined,
            step_begins=session.optimizer_begins,
            step_ended=session.optimizer_ended,
            anomalies=session.anomalies,
            internals=session.internals,
        )
        self._unmarked = UnmarkedLoop(
            boundary=self._unmarked_boundary,
            joined=self._restart,
            measuring=lambda: bool(session.run_time.count or session.memory.count),
            bottoms=bottoms,
            internals=session.internals,
        )
        session.on_abandon += [
            self._driver.abandon,
            self._steps.remove,
            self._unmarked.remove,
        ]

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
        self._unmarked.install()
        self._session.interception.on_backward = self._unmarked.engine_ended
        self._session.interception.beside_compiler = self._unmarked.beside_compiler
        self._driver.begin()

    def mark(self) -> None:
        """The program says that an iteration ends here."""
        self._steps.marked()

    def ended(self) -> None:
        """The program ended well. If it never stepped, all of it was one iteration."""
        if self.finished:
            return
        if self._whole:
            self._session.note_never_stepped()
            self._driver.boundary()
        elif self._unmarked.boundaries == 1 and self._unmarked.ended_by is not None:
            self._session.note_never_stepped()  # the first iteration is all but the very end

    def close(self) -> None:
        """Stop watching, whatever happened."""
        self._driver.close()
        self._stop_watching()
        self._session.remove()

    def _stop_watching(self) -> None:
        self._session.elsewhere.in_threads = self._steps.elsewhere + self._unmarked.elsewhere
        self._steps.remove()
        self._ignore_unmarked()

    def _ignore_unmarked(self) -> None:
        self._session.interception.on_backward = None
        self._session.interception.beside_compiler = None
        self._unmarked.remove()

    def _marked(self) -> None:
        """An optimizer steps, or the program says it: nothing else ends iterations any more."""
        self._ignore_unmarked()
        if self._unmarked.ended_by is None:
            self._boundary()
        else:
            self._rejoined()

    def _rejoined(self) -> None:
        self._ignore_unmarked()
        self._unmarked.ended_by = None
        self._session.facts.pop(ENDED_BY, None)
        self._restart()

    def _unmarked_boundary(self) -> None:
        if self._unmarked.boundaries == 1:
            self._session.spec.progress(
                f"no optimizer steps: iterations end with {self._unmarked.ended_by}"
            )
        self._session.facts[ENDED_BY] = str(self._unmarked.ended_by)
        self._boundary()

    def _boundary(self) -> None:
        if self._session.device.is_capturing:  # nothing runs now, so no iteration ends
            return
        self._whole = False
        self._driver.boundary()
        self._session.forget_set_up()
        if self.finished:
            self._stop_watching()
            self._session.measured()
            if self._on_finished is not None:
                self._on_finished()

    def _restart(self) -> None:
        if not (self.finished or self._session.device.is_capturing):
            self._session.restarted()
            self._driver.restart(stage=1)
