"""Which operations a report shows, and which frames of each."""

from __future__ import annotations

from unified_prof.runs.spec import MODULE, PROJECT
from unified_prof.tracking.watch.calls import CallSite
from unified_prof.tracking.watch.code_entries import Stack

_EVERYTHING = "everything"

_WIDER = {MODULE: PROJECT, PROJECT: _EVERYTHING}


class Scope:
    """One of the scopes: of modules of the project, of the whole project, or of everything.

    In scope `module` an operation is called below a method of a module of the project, and shows
    those methods; in scope `project` it has any frame in the project, and shows them all. Included
    packages count as the project's.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._frames: dict[Stack, Stack] = {}

    def wider(self) -> Scope | None:
        """Return the scope to take where this one leaves nothing, None where there is none."""
        name = _WIDER.get(self.name)
        return None if name is None else Scope(name)

    def keeps(self, call: CallSite, *, private: bool) -> bool:
        """Whether an operation is shown; `private` is one that is no public call of torch's."""
        if self.name == PROJECT:
            return bool(call.stack)
        return not private and (call.in_module or self.name == _EVERYTHING)

    def frames(self, stack: Stack) -> Stack:
        """Return the part of `stack` that is shown."""
        if self.name != MODULE:
            return stack
        shown = self._frames.get(stack)
        if shown is None:
            shown = self._frames[stack] = _of_modules(stack)
        return shown


def _of_modules(stack: Stack) -> Stack:
    """Return the frames that are methods of modules.

    Where all of those are of included packages, the lines of the project that led there stay.
    """
    entries = stack[::2]
    any_module = any(entry.of_module for entry in entries)
    if not any_module:
        return ()
    own_module = any(entry.of_module and entry.of_project for entry in entries)
    shown: list[object] = []
    for entry, at in zip(entries, stack[1::2], strict=True):
        if entry.of_module or (entry.of_project and not own_module):
            shown += (entry, at)
    return tuple(shown)
