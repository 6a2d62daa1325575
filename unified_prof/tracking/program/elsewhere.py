"""Whether a program does its work where it is not seen: in other threads or child processes."""

from __future__ import annotations

import multiprocessing
import os

_NOTABLE_S = 0.2
"""Processor time of children that is more than that of a command asked for a version."""


class Elsewhere:
    """What was noticed of work that cannot be tracked."""

    def __init__(self) -> None:
        self.in_threads = 0
        """Calls of modules, backward passes and optimizer steps in other threads."""
        self._children_before_s = _children_s()

    def reason(self) -> tuple[str, str] | None:
        """Say where the work was done, and what to do about it; None: nothing was noticed."""
        if self.in_threads:
            return (
                "the workload runs its model in another thread than the one it started in; only "
                "that one is tracked",
                "run the model in the main thread, or use unified_prof.profile() in the thread "
                "that does",
            )
        running = len(multiprocessing.active_children())
        children_s = _children_s() - self._children_before_s
        if running or children_s > _NOTABLE_S:
            still = f", {running} still running" if running else ""
            return (
                f"the workload does its work in child processes ({children_s:.1f} s of processor "
                f"time there{still}); they are not tracked",
                "run each process under uprof, as in `torchrun --no-python uprof run ...`, or use "
                "unified_prof.profile() in the function that trains",
            )
        return None


def _children_s() -> float:
    """Return the processor time of all children that have ended."""
    times = os.times()
    return times.children_user + times.children_system
