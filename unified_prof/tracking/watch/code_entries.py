"""What is known of each code object that runs: whose it is, and whether it is a module's method."""

from __future__ import annotations

import dis
import inspect
import os
from types import CodeType, FrameType, FunctionType
from typing import Any

from unified_prof.runs.records import Frame
from unified_prof.tracking.watch.project import Project

_PLUMBING = (f"torch{os.sep}overrides.py", f"torch{os.sep}utils{os.sep}_device.py")

# Frames that are left and taken up again, perhaps by another caller.
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

# What a code object means for the stack walk.
FOREIGN = 0
FOREIGN_METHOD = 1  # has a `self`: possibly a module of torch, such as Linear.forward
PROJECT = 2
PROJECT_METHOD = 3  # has an owner, to be looked at in every frame
MODULE_METHOD = 4  # method of a subclass of nn.Module in the project: always a module
BOTTOM = 5  # below here the stack is uprof's own
PLUMBING = 6  # between an operation and its real caller
METHODS = (FOREIGN_METHOD, PROJECT_METHOD, MODULE_METHOD)


class CodeEntry:
    """What is known of one code object; keeps it alive, so that its `id` stays its own."""

    __slots__ = ("_lines", "_owner", "_packed", "_steady", "code", "kind", "method", "of_module",
                 "of_project", "path")  # fmt: skip

    def __init__(
        self,
        code: CodeType,
        kind: int,
        path: str | None,
        owner: tuple[str, bool] | None = None,
        *,
        of_project: bool = True,
    ) -> None:
        self.code = code
        self.kind = kind
        self.path = path
        self.of_project = of_project
        """Whether the file is the project's own, not an included package's."""
        self._lines: dict[int, int] = {}
        self._owner, self._packed = owner or ("", False)
        self._steady: bool | None = None
        self.of_module = kind == MODULE_METHOD
        """Whether a frame was seen as one of a module's methods."""
        self.method: CodeEntry = self
        """Stands in a stack for frames of this code that are those of a module."""
        if kind == PROJECT_METHOD:
            self.method = CodeEntry(code, MODULE_METHOD, path, owner, of_project=of_project)

    def owner_in(self, frame: FrameType) -> Any:
        """Return what a frame of a method was called on."""
        value = frame.f_locals.get(self._owner)
        if self._packed:  # def forward(*args)
            return value[0] if value else None
        return value

    def is_steady(self) -> bool:
        """Whether a frame keeps its caller and what it was called on as long as it runs."""
        if self._steady is None:
            self._steady = not self.code.co_flags & _RESUMED and (
                self.kind == PROJECT or self._owner not in _stored(self.code)
            )
        return self._steady

    @property
    def first_line(self) -> int:
        """The line of the `def`, which runs nothing when the function is called."""
        return self.code.co_firstlineno

    def lines(self) -> set[int]:
        """Return the lines that have instructions; those of functions inside are not among them."""
        return {line for _, _, line in self.code.co_lines() if line}

    def line(self, instruction: int) -> int:
        """Return the line of the instruction at byte offset `instruction`, as a frame would."""
        if not self._lines:
            for start, end, line in self.code.co_lines():
                for offset in range(start, end, 2):
                    self._lines[offset] = line or self.code.co_firstlineno
        return self._lines.get(instruction, self.code.co_firstlineno)


Stack = tuple[Any, ...]
"""Interned by value: code entry, instruction, code entry, instruction... most specific first."""


def frames_of(stack: Stack) -> tuple[Frame, ...]:
    """Turn what a walk returned into frames with lines."""
    return tuple(
        Frame(entry.path, entry.line(at)) for entry, at in zip(stack[::2], stack[1::2], strict=True)
    )


def classify(frame: FrameType, project: Project, module_type: type) -> CodeEntry:
    """Return what is known of the code that runs in `frame`, which tells its owner and module."""
    code = frame.f_code
    path = project.relative_path(code.co_filename)
    of_project = path is not None
    if path is None:
        name = frame.f_globals.get("__name__")
        path = project.included_path(code.co_filename, name)
    owner = _owner_name(code)
    if path is None:
        owner = owner if owner == ("self", False) else None
        kind = FOREIGN if owner is None else FOREIGN_METHOD
        if code.co_filename.endswith(_PLUMBING):
            kind = PLUMBING
    elif owner is None:
        kind = PROJECT
    else:
        kind = _kind_of_method(
            code, CodeEntry(code, PROJECT, path, owner).owner_in(frame), module_type
        )
        if kind == PROJECT and owner == ("self", False):
            kind = PROJECT_METHOD
    return CodeEntry(code, kind, path, owner, of_project=of_project)


def _kind_of_method(code: CodeType, owner: object, module_type: type) -> int:
    """Return which kind of method `code` is, called on `owner`; PROJECT: it is none.

    Methods of mixed-in classes and those given to one object are looked at in every frame.
    """
    for cls in type(owner).__mro__:
        if _has_code(cls.__dict__.get(code.co_name), code) or any(
            _has_code(value, code) for value in _functions(cls, module_type)
        ):
            return MODULE_METHOD if issubclass(cls, module_type) else PROJECT_METHOD
    if isinstance(owner, module_type) and any(
        getattr(value, "__self__", None) is owner
        and _has_code(getattr(value, "__func__", None), code)
        for value in vars(owner).values()
    ):
        return PROJECT_METHOD
    return PROJECT


def _owner_name(code: CodeType) -> tuple[str, bool] | None:
    """Return the name of what a method of this code would be called on, None if it cannot be one.

    That is a `self`, also of the function around; otherwise the first positional argument, or
    what holds it among all: then True.
    """
    if "self" in code.co_varnames or "self" in code.co_freevars:
        return "self", False
    if code.co_argcount:
        return code.co_varnames[0], False
    if code.co_flags & inspect.CO_VARARGS:
        return code.co_varnames[code.co_kwonlyargcount], True
    return None


def _stored(code: CodeType) -> set[str]:
    """Return the names that code binds anew or deletes."""
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith(("STORE_FAST", "STORE_DEREF", "DELETE_")):
            value = instruction.argval
            both = value if isinstance(value, tuple) else (value,)  # Python 3.13 joins two
            names.update(both[:1] if instruction.opname.endswith("LOAD_FAST") else both)
    return names


def _functions(cls: type, module_type: type) -> list[object]:
    """Return what a module's class has under any name, such as `forward = helper`."""
    if not issubclass(cls, module_type) or cls is module_type:
        return []
    return [value for value in vars(cls).values() if isinstance(value, FunctionType)]


def _has_code(function: object, code: CodeType) -> bool:
    """Whether a function, or one that it wraps, has this code; static methods have no owner."""
    while function is not None and not isinstance(function, (staticmethod, classmethod)):
        if isinstance(function, FunctionType) and function.__code__ is code:
            return True
        function = getattr(function, "__wrapped__", None)
    return False
