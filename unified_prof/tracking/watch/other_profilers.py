"""Profilers that the program runs itself: there is only one in a process, and theirs come first."""

from __future__ import annotations

import gc
from collections.abc import Callable
from threading import get_ident
from typing import Any

from unified_prof.tracking.patches import Patches

_STARTS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
"""What every way to start a profiler goes through, as the modules that do it have them."""


def another_is_at_work() -> bool:
    """Return whether a torch.profiler records in this thread, or is prepared to do so."""
    import torch

    return bool(torch.autograd._profiler_enabled()) or another_is_prepared()


def another_is_prepared() -> bool:
    """Return whether a torch.profiler with a schedule warms up for recording.

    It does not count as enabled then, but to start another would undo what it has prepared.
    """
    from torch.autograd.profiler import profile

    return any(
        type(one) is profile and one.entered and one.kineto_results is None
        for one in gc.get_objects()
    )


def program_marks_steps() -> bool:
    """Return whether a torch.profiler of the program's marks steps, as it does between cycles.

    Its marks would stand beside ours in a trace.
    """
    from torch.profiler import profile

    return any(type(one) is profile and one.step_rec_fn is not None for one in gc.get_objects())


def watch_for_others(patches: Patches, thread: int, give_way: Callable[[], None]) -> None:
    """Have `give_way` called before the program starts a profiler in `thread`."""
    from torch.autograd import profiler, profiler_legacy

    def after_ours(start: Any) -> Any:
        def start_after_ours(*arguments: Any, **options: Any) -> Any:
            if get_ident() == thread:
                give_way()
            return start(*arguments, **options)

        return start_after_ours

    for module in (profiler, profiler_legacy):
        for name in _STARTS:
            if (start := vars(module).get(name)) is not None:
                patches.replace(module, name, after_ours(start))
