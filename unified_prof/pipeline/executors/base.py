"""What all executors have in common, and how a task is told that ended the process it ran in."""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WorkerDied(Exception):  # noqa: N818 (it is not the task that is in error)
    """The process that did a task ended without a result; `str` says how, after "the process"."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An item whose process ended without a result, and ended again when it was tried alone."""

    why: str
    """How the process ended, as words that follow "the process": "was ended by SIGKILL"."""

    def __str__(self) -> str:
        return self.why


class Crew(Executor):
    """An executor that says how much it wants in flight, and whether anybody is there to work."""

    task_s: float = 0.0
    """How long a task is to be at least, for what it costs to hand one out: shorter items are
    put together."""

    @abstractmethod
    def in_flight(self) -> int:
        """Return how many tasks are to be submitted and not finished at a time."""

    def rest(self) -> None:
        """Called when one task alone is to come: whoever is idle need not hold memory."""

    def check(self) -> None:
        """Called when nothing has finished for a while; or when a task was cancelled.

        Raises:
            EngineError: nobody is there any more who could do what was submitted.
        """


class Here(Crew):
    """Does each task at once, in this process, which a task may end."""

    def in_flight(self) -> int:
        """Return 1: results are to be had one by one."""
        return 1

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it, and return the future that has its result."""
        future: Future[Any] = Future()
        try:
            result = fn(*args, **kwargs)
        except Exception as err:
            future.set_exception(err)
        else:
            future.set_result(result)
        return future
