"""Run any script as it is and measure the iterations that it makes."""

from __future__ import annotations

from types import CodeType

from unified_prof import signals
from unified_prof.errors import UprofError
from unified_prof.tracking import live
from unified_prof.tracking.program.loop import TrackedLoop
from unified_prof.tracking.program.program import Program, execute, running_as
from unified_prof.tracking.program.session import Session


class _StopAfterMeasuring(BaseException):
    """Ends the script from within; no `except Exception` of the script's catches it."""


class ScriptRun:
    """One run of a script without providers."""

    def __init__(self, session: Session, program: Program, code: CodeType) -> None:
        self._session = session
        self._program = program
        self._code = code
        self._loop = TrackedLoop(
            session,
            self._stop if session.spec.stop_after else None,
            frozenset((execute.__code__,)),
        )

    @property
    def hint(self) -> str:
        """What to do where not one iteration was measured."""
        return self._session.hint()

    @property
    def finished(self) -> bool:
        """Whether everything was measured."""
        return self._loop.finished

    @property
    def tracking_error(self) -> Exception | None:
        """What uprof itself failed with."""
        return self._loop.tracking_error

    def run(self) -> BaseException | None:
        """Run the script to its end; return what it raised."""
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

    def close(self) -> None:
        """End the run, whatever happened."""
        self._loop.close()

    def why_incomplete(self, error: BaseException | None) -> str:
        """Say why not everything was measured."""
        return self._session.why_incomplete(error)

    def _stop(self) -> None:
        raise _StopAfterMeasuring
