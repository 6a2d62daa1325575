"""Track from inside a program: `step()` and the core of `unified_prof.profile(...)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from unified_prof.tracking.instruments import Instrument

if TYPE_CHECKING:
    from unified_prof.tracking.workload import Outcome


def step() -> None:
    """Mark the end of one iteration, in a program that has no optimizer to step.

    Does nothing where no tracking is under way, so it may stay in the program for good.
    """
    raise NotImplementedError


class LiveTracking:
    """Context manager that measures the iterations of its body; `outcome` is set on leaving.

    `device=None` takes the current accelerator, or the CPU where there is none.
    """

    outcome: Outcome | None

    def __init__(
        self,
        device: str | None = None,
        *,
        reports: Sequence[str] = ("run-time", "memory"),
        project_root: Path | None = None,
        warmup: int = 2,
        iterations: int = 10,
        scope: str = "module",
        progress: Callable[[str], None] = lambda _: None,
        instruments: Sequence[Instrument] = (),
    ) -> None:
        self.outcome = None
        raise NotImplementedError

    def __enter__(self) -> LiveTracking:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise NotImplementedError
