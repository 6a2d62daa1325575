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
)
from unified_prof.tracking.raw_calls import CallSite


class StackWalker:
    """Reads the project's frames from the running stack."""

    def __init__(self, project: Project) -> None:
        from torch.nn import Module

        self._project = project
        self._module_type: type = Module
        self._entries: dict[int, CodeEntry] = {}
        self._known_frames: dict[tuple[Any, ...], KnownFrame] = {}

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

    def remember(
        self, frame: FrameType, stack: Stack, in_module: bool, named: Any
    ) -> KnownFrame | None:
        """Cache the walk's result on a project frame until `forget_frames`; return it, or None.

        None means that nothing can be attached to the frame; the next walk cannot be shortened.

        Args:
            frame: Frame at which a walk began.
            stack: Stack returned by the walk.
            in_module: True if a frame of the stack is a method of a module.
            named: Innermost module; None if there is none.
        """
        known = frame.f_trace
        if type(known) is KnownFrame and known.walker is self:
            return known
        entry = self._entries[id(frame.f_code)]
        if not PROJECT <= entry.kind <= MODULE_METHOD or not entry.is_steady():
            return None
        if known is not None or sys.gettrace() is not None:  # A debugger is active.
            return None
        key = (stack[0], stack[2:], named)
        known = self._known_frames.get(key)
        if known is None:
            module = _no_module if named is None else named.module
            known = KnownFrame(self, stack[0], stack[2:], in_module, module)
            self._known_frames[key] = known
        frame.f_trace = known
        return known

    def path_from_project(
        self, frame: FrameType | None
    ) -> tuple[KnownFrame | None, tuple[Any, ...], Any] | None:
        """Find the project frame from which torch is called, directly or through a library.

        Returns:
            None if a walk is necessary, otherwise three values: the cached result of that frame, or
            None; a key that distinguishes calls from the frame (its instruction, the library's call
            of torch, and frames in between without a cached result, such as those of generators);
            the innermost module of the frames in between, or None.
        """
        entries, module_type = self._entries, self._module_type
        way: tuple[Any, ...] = ()
        innermost: Any = None
        while frame is not None:
            entry = entries.get(id(frame.f_code))
            if entry is None:
                return None
            kind = entry.kind
            if PROJECT <= kind <= MODULE_METHOD and entry.is_steady():
                known = frame.f_trace
                if type(known) is not KnownFrame or known.walker is not self:
                    known = None
                return known, (frame.f_lasti, *way), innermost
            if kind == BOTTOM:
                return None
            if kind in METHODS and (innermost is None or kind != FOREIGN_METHOD):
                owner = entry.owner_in(frame)
                if isinstance(owner, module_type):
                    entry = entry.method
                    innermost = owner if innermost is None else innermost
            if PROJECT <= kind <= MODULE_METHOD or (kind != PLUMBING and not way):
                way += (entry, frame.f_lasti)
            frame = frame.f_back
        return None

    def know(self, frame: FrameType | None, named: Callable[[Any], Any]) -> KnownFrame | None:
        """Cache results on the project's frames from `frame` outwards; return the first result.

        Args:
            frame: Frame of a stack that was walked.
            named: Returns the record of a module; None if there is none.
        """
        unknown = []
        known = None
        if sys.gettrace() is not None:  # A debugger is active.
            return None
        while frame is not None:
            entry = self._entries[id(frame.f_code)]
            if entry.kind == BOTTOM:
                break
            if PROJECT <= entry.kind <= MODULE_METHOD and entry.is_steady():
                seen = frame.f_trace
                if type(seen) is KnownFrame and seen.walker is self:
                    known = seen
                    break
                unknown.append(frame)
            frame = frame.f_back
        for each in reversed(unknown):  # outermost first: each walk ends at the frame before
            known = None
            if each.f_trace is None:
                _, _, stack, in_module, module = self.walk(each)
                name = None if module is None else named(module)
                if module is None or name is not None:
                    known = self.remember(each, stack, in_module, name)
        return known

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


def _no_module() -> None:
    """Return None; used in place of a weak reference if there is no module."""


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
