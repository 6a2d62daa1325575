"""Read the project's frames from the running stack of each operation, and select those to show."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from unified_prof.base.run_spec import MODULE
from unified_prof.base.run_spec import PROJECT as PROJECT_SCOPE
from unified_prof.tracking.code_entries import (
    BOTTOM,
    FOREIGN_METHOD,
    METHODS,
    MODULE_METHOD,
    PLUMBING,
    PROJECT,
    PROJECT_METHOD,
    CodeEntry,
    KnownFrame,
    Project,
    Stack,
    classify,
    no_module,
)
from unified_prof.tracking.raw_calls import CallSite


class StackWalker:
    """Reads the project's frames from the running stack."""

    def __init__(self, project: Project) -> None:
        from torch.nn import Module

        self._project = project
        self._module_type: type = Module
        self._entries: dict[int, CodeEntry] = {}
        self._outside = KnownFrame(self, None, (), False, no_module)

    def set_bottom(self, code: CodeType) -> None:
        """End every walk at a frame of `code`; its callers are not part of the program."""
        self._entries[id(code)] = CodeEntry(code, BOTTOM, None)

    def walk(self, frame: FrameType | None) -> tuple[CodeEntry, int, Stack, bool, Any]:
        """Walk the stack from `frame` outwards.

        Returns:
            Code entry and instruction offset of the direct caller; frames of the project and of
            included packages; True if one of these is a method of a module; the innermost module,
            or None.
        """
        known = self._entries
        module_type = self._module_type
        caller: CodeEntry | None = None
        caller_at = -1
        stack: list[Any] = []
        innermost: Any = None
        in_module = False
        while frame is not None:
            code = frame.f_code
            entry = known.get(id(code))
            if entry is None:
                entry = known[id(code)] = classify(frame, self._project, module_type)
            kind = entry.kind
            if caller is None and kind != PLUMBING:
                caller = entry
                caller_at = frame.f_lasti
            if kind == FOREIGN_METHOD:
                if innermost is None:
                    owner = frame.f_locals.get("self")
                    if isinstance(owner, module_type):
                        innermost = owner
            elif kind:
                if kind == BOTTOM:
                    break
                seen = frame.f_trace
                if type(seen) is KnownFrame and seen.walker is self:
                    stack += (seen.entry, frame.f_lasti, *seen.below)
                    in_module = in_module or seen.in_module
                    if innermost is None:
                        innermost = seen.module()
                    break
                if kind == MODULE_METHOD:
                    in_module = True
                    stack += (entry, frame.f_lasti)
                    if innermost is None:
                        innermost = entry.owner_in(frame)
                elif kind == PROJECT_METHOD:
                    owner = entry.owner_in(frame)
                    if isinstance(owner, module_type):
                        in_module = True
                        stack += (entry.method, frame.f_lasti)
                        if innermost is None:
                            innermost = owner
                    else:
                        stack += (entry, frame.f_lasti)
                elif kind == PROJECT:
                    stack += (entry, frame.f_lasti)
            frame = frame.f_back
        assert caller is not None
        return caller, caller_at, tuple(stack), in_module, innermost

    def locate(
        self, frame: FrameType | None, find: Callable[[Any], Any]
    ) -> tuple[KnownFrame, tuple[Any, ...]] | None:
        """Find the project frame from which torch is called, directly or through a library.

        The results of project frames without one are derived from those of their callers, and
        attached to the frames until `forget_frames`.

        Returns:
            None if `find` has no record of a module, otherwise two values: the result of the
            project frame (of no frame, if the project does not call torch), and a key that
            distinguishes calls from it: its instruction, the library's call of torch, frames in
            between that have no result, such as those of generators, and the innermost module in
            between.
        """
        entries, module_type = self._entries, self._module_type
        steps: tuple[Any, ...] = ()
        module: Any = None
        in_own = False  # the last project frame is a method of a module
        is_first = True  # the call of torch itself is part of the key
        unknown: list[tuple[FrameType, CodeEntry, Any, tuple[Any, ...], Any]] = []
        result, at = self._outside, -1
        while frame is not None:
            entry = entries.get(id(frame.f_code))
            if entry is None:
                entry = classify(frame, self._project, module_type)
                entries[id(frame.f_code)] = entry
            kind = entry.kind
            if kind <= FOREIGN_METHOD:
                if is_first:
                    steps, is_first = (entry, frame.f_lasti), False
                if kind and module is None and not in_own:
                    owner = frame.f_locals.get("self")
                    if isinstance(owner, module_type):
                        module = owner
            elif entry.is_steady:
                seen = frame.f_trace
                if type(seen) is KnownFrame and seen.walker is self:
                    result, at = seen, frame.f_lasti
                    break
                named = None
                if kind != PROJECT:
                    owner = entry.owner_in(frame)
                    if isinstance(owner, module_type):
                        entry, named = entry.method, find(owner)
                        if named is None:
                            return None
                unknown.append((frame, entry, named, steps, module))
                steps, module, in_own, is_first = (), None, named is not None, False
            elif kind == BOTTOM:
                break
            elif kind != PLUMBING:
                owner = None if kind == PROJECT else entry.owner_in(frame)
                if isinstance(owner, module_type):
                    entry = entry.method
                    module = owner if module is None else module
                steps += (entry, frame.f_lasti)
                is_first = False
            frame = frame.f_back
        is_debugged = bool(unknown) and sys.gettrace() is not None
        for each, entry, named, steps_within, module_within in reversed(unknown):
            if named is None and module is not None and (named := find(module)) is None:
                return None
            key = (entry, at, named, steps)
            inner = result.inner.get(key)
            if inner is None:
                inner = result.inner[key] = result.called(entry, at, named, steps)
            if each.f_trace is None and not is_debugged:
                each.f_trace = inner
            result, at, steps, module = inner, each.f_lasti, steps_within, module_within
        if module is None:
            return result, (at, *steps)
        named = find(module)
        return None if named is None else (result, (at, *steps, named))

    @staticmethod
    def forget_frames(frame: FrameType | None) -> None:
        """Remove the cached results from all frames from `frame` outwards."""
        while frame is not None:
            if type(frame.f_trace) is KnownFrame:
                frame.f_trace = None
            frame = frame.f_back

    def running_modules(self, frame: FrameType | None) -> list[Any] | None:
        """Return the modules whose methods are on the stack, outermost first.

        Returns None if one of them is under construction, because it may not have all children yet.
        """
        found: list[Any] = []
        while frame is not None:
            entry = self._entries.get(id(frame.f_code))
            if entry is not None and entry.kind == BOTTOM:
                break
            if entry is not None and entry.kind in METHODS:
                owner = entry.owner_in(frame)
                if isinstance(owner, self._module_type):
                    if entry.code.co_name == "__init__":
                        return None
                    found.append(owner)
            frame = frame.f_back
        return found[::-1]


_EVERYTHING = "everything"

_WIDER = {MODULE: PROJECT_SCOPE, PROJECT_SCOPE: _EVERYTHING}


class Scope:
    """Scope of a report: `module`, `project` or everything.

    Scope `module` shows operations called from methods of the project's modules, with those methods
    as frames. Scope `project` shows all operations called from the project, with all of its frames.
    Included packages count as part of the project.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._frames: dict[Stack, Stack] = {}

    def wider(self) -> Scope | None:
        """Return the next wider scope; None if this is the widest."""
        name = _WIDER.get(self.name)
        return None if name is None else Scope(name)

    def keeps(self, call: CallSite, *, private: bool) -> bool:
        """Return True if an operation is shown; `private` means a private function of torch."""
        if self.name == PROJECT_SCOPE:
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

    If all of these are in included packages, the project's frames that call them are kept as well.
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
