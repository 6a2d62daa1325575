"""CPU time by stage of a job, and whom it tells what it is doing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stages:
    """CPU time in seconds by stage, in order; a stage inside another counts for itself only."""

    progress: Callable[[str], None] = lambda _: None
    seconds: dict[str, float] = field(default_factory=dict)
    _running: list[str] = field(default_factory=list)
    _since: float = field(default_factory=time.process_time)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the block's time as that of `name`."""
        self._count()
        self._running.append(name)
        self.progress(name)
        try:
            yield
        finally:
            self._count()
            self._running.pop()

    def now(self, name: str) -> None:
        """Let `name` take the place of the innermost stage."""
        self._count()
        self._running[-1:] = [name]
        self.progress(name)

    def end(self) -> None:
        """Count what is left."""
        self._count()
        self._running.clear()

    def _count(self) -> None:
        now = time.process_time()
        name = self._running[-1] if self._running else "other"
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
