"""torch.profiler as the timeline needs it, whichever torch there is."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

SHAPES, STACKS, MEMORY = DETAILS = ("shapes", "stacks", "memory")
"""What can be recorded besides times."""
USUAL_DETAILS = (SHAPES,)
"""What is recorded unless something else is asked for: the others make a step almost twice as long,
and a device wait for it."""


def made(device: str, details: tuple[str, ...]) -> Any:
    """Return a profiler of the CPU and of `device`, a torch device type, that records `details`."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    activity = getattr(ProfilerActivity, device.upper(), None)
    if activity not in (None, *activities):
        activities.append(activity)
    return profile(
        activities=activities,
        record_shapes=SHAPES in details,
        profile_memory=MEMORY in details,
        with_stack=STACKS in details,
        # The profiler of all threads tells of no memory.
        experimental_config=_everything() if MEMORY not in details else None,
    )


def is_beyond_stacks() -> bool:
    """Return whether a file of the program's has a name that torch's stacks cannot hold."""
    modules = list(sys.modules.values())
    files = [getattr(module, "__file__", None) for module in modules]
    return any("\ud800" <= one <= "\udfff" for file in (*files, *sys.path) for one in file or "")


def _everything() -> Any:
    """Return the profiler's options that record all threads and waits, None where it has none."""
    import torch

    config = getattr(torch.profiler, "_ExperimentalConfig", None)
    for options in (
        {"profile_all_threads": True, "enable_cuda_sync_events": True},
        {"enable_cuda_sync_events": True},
    ):
        with suppress(TypeError):
            return None if config is None else config(**options)
    return None
