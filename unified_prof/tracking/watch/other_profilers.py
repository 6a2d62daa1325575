"""Profilers that the program runs itself: there is only one in a process, and theirs come first."""

from __future__ import annotations

import gc


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
