"""The mark of a frame whose callers were walked before: a walk ends at it."""

from __future__ import annotations

from typing import Any

from unified_prof.tracking.watch.code_entries import CodeEntry, Stack


class KnownFrame:
    """What a walk from a running frame of the project gives, but for its own instruction.

    It hangs on the frame as its `f_trace`, which goes with the frame and which Python asks only
    while a debugger traces the thread. As long as a function runs, what called it stays as it is:
    the next walk need not go further than to the first frame that is known. Calls from the same
    places in the same module share one.
    """

    __slots__ = ("below", "entry", "in_module", "module", "sites", "walker")

    def __init__(
        self, walker: object, entry: CodeEntry, below: Stack, in_module: bool, module: Any
    ) -> None:
        self.walker = walker
        """The one that walked: another may see another project."""
        self.entry = entry
        """Stands for the frame in a stack."""
        self.below = below
        """The rest of the stack."""
        self.in_module = in_module
        self.module = module
        """Gives the innermost module, None once it is gone."""
        self.sites: dict[tuple[Any, ...], int] = {}
        """Numbers of call sites by function and instruction, and by way of a library's frames."""

    def __call__(self, *_event: Any) -> None:
        """A debugger has come: this frame is none of its own, so do not trace its lines."""
