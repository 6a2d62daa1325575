"""Classify code objects: the file to show, membership in the project, and kind of code."""

from __future__ import annotations

import dis
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from unified_prof.base.run_spec import Frame

_NUMBERED = re.compile(r"<ipython-input-(\d+)-")
_IN_KERNEL = f"{os.sep}ipykernel_"


def cell_name(filename: str) -> str | None:
    """Return a name such as `In [3]` for the code of a notebook cell; None for other files.

    A notebook kernel compiles each cell under a file name that does not exist. Its shell provides
    the number of the last execution of the same source.
    """
    if (found := _NUMBERED.search(filename)) is not None:
        return f"In [{found[1]}]"
    if _IN_KERNEL not in filename:
        return None
    return _known_to_shell(filename) or Path(filename).name


def _known_to_shell(filename: str) -> str | None:
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    try:
        _, label = shell.compile.format_code_name(filename)
    except (
        AttributeError,
        TypeError,
        ValueError,
    ):  # no shell, an older one, or a cell of another shell
        return None
    number = re.search(r"\d+", str(label))
    return None if number is None else f"In [{number[0]}]"


_OWN_PACKAGE = Path(__file__).resolve().parents[1]
# Packages whose frames are shown by default: models of well-known libraries.
MODEL_CODE = (
    "transformers.models",
    "diffusers.models",
    "timm.models",
    "timm.layers",
    "torchvision.models",
)

_INSTALLED = frozenset({"site-packages", "dist-packages"})


class Project:
    """Decides which files belong to the user's project.

    The project contains all files below the root except installed packages, virtual environments,
    the standard library and uprof itself. Symbolic links are resolved in the root and in file
    names. Files of included packages are shown, too, wherever they are installed.
    """

    def __init__(self, root: Path, include: Sequence[str] = MODEL_CODE) -> None:
        self._include = tuple(include)
        self._roots = tuple(dict.fromkeys((_absolute(root), root.resolve())))
        self._paths: dict[str, str | None] = {}
        self._environments: dict[Path, bool] = {}
        names = ("stdlib", "platstdlib")
        self._library = {Path(sysconfig.get_path(name)).resolve() for name in names}

    def relative_path(self, filename: str) -> str | None:
        """Return `filename` relative to the root, with forward slashes; None if outside of it."""
        try:
            return self._paths[filename]
        except KeyError:
            path = self._paths[filename] = self._find(filename)
            return path

    def included_path(self, filename: str, module: object) -> str | None:
        """Return the path of a file relative to the parent of its included package, or None.

        `module` is the `__name__` of the module that was imported from it.
        """
        if not isinstance(module, str):
            return None
        if not any(module == name or module.startswith(f"{name}.") for name in self._include):
            return None
        path = Path(filename)
        depth = module.count(".") + (2 if path.stem == "__init__" else 1)
        return "/".join(path.parts[-depth:])

    def _find(self, filename: str) -> str | None:
        if (cell := cell_name(filename)) is not None:
            return cell
        if filename.startswith("<"):
            return None
        for path in (_absolute(Path(filename)), Path(filename).resolve()):
            for root in self._roots:
                if path.is_relative_to(root) and self._is_users(path, root):
                    return path.relative_to(root).as_posix()
        return None

    def _is_users(self, path: Path, root: Path) -> bool:
        if path.resolve().is_relative_to(_OWN_PACKAGE):
            return False
        if any(
            path.is_relative_to(lib) and lib != root and lib.is_relative_to(root)
            for lib in self._library
        ):
            return False
        folders = [
            folder for folder in path.parents if folder != root and folder.is_relative_to(root)
        ]
        return not any(f.name in _INSTALLED or self._is_environment(f) for f in folders)

    def _is_environment(self, folder: Path) -> bool:
        known = self._environments.get(folder)
        if known is None:
            known = (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").is_dir()
            self._environments[folder] = known
        return known


def _absolute(path: Path) -> Path:
    """Return `path` as an absolute path without `..`; keep symbolic links."""
    return Path(os.path.normpath(path.absolute()))


_PLUMBING = (f"torch{os.sep}overrides.py", f"torch{os.sep}utils{os.sep}_device.py")

# Functions that can be suspended and resumed by another caller.
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

FOREIGN = 0  # Kinds of code objects in the stack walk.
FOREIGN_METHOD = 1  # has a `self`: possibly a module of torch, such as Linear.forward
PROJECT = 2
PROJECT_METHOD = 3  # has an owner that may be a module: checked in every frame
MODULE_METHOD = 4  # method of a subclass of nn.Module in the project: always a module
BOTTOM = 5  # frames below are uprof's own
PLUMBING = 6  # between an operation and its real caller
METHODS = (FOREIGN_METHOD, PROJECT_METHOD, MODULE_METHOD)


class CodeEntry:
    """Classification of one code object; keeps it alive so that its `id` stays unique."""

    __slots__ = ("_lines", "_owner", "_packed", "code", "is_steady", "kind", "method", "of_module",
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
        """True if the file is part of the project, False for an included package."""
        self._lines: dict[int, int] = {}
        self._owner, self._packed = owner or ("", False)
        self.of_module = kind == MODULE_METHOD
        """True if a frame of this code is a method of a module."""
        self.is_steady = PROJECT <= kind <= MODULE_METHOD and not (
            code.co_flags & _RESUMED or (kind != PROJECT and self._owner in _stored(code))
        )
        """True for code of the project if the caller and owner of a running frame never change."""
        self.method: CodeEntry = self
        """Entry used in stacks for frames that are methods of a module."""
        if kind == PROJECT_METHOD:
            self.method = CodeEntry(code, MODULE_METHOD, path, owner, of_project=of_project)

    def owner_in(self, frame: FrameType) -> Any:
        """Return the object on which the method in a frame was called."""
        value = frame.f_locals.get(self._owner)
        if self._packed:  # def forward(*args)
            return value[0] if value else None
        return value

    @property
    def first_line(self) -> int:
        """Line of the `def` statement, which does not run when the function is called."""
        return self.code.co_firstlineno

    def lines(self) -> set[int]:
        """Return the lines with instructions, without those of nested functions."""
        return {line for _, _, line in self.code.co_lines() if line}

    def line(self, instruction: int) -> int:
        """Return the line of the instruction at byte offset `instruction`."""
        if not self._lines:
            for start, end, line in self.code.co_lines():
                for offset in range(start, end, 2):
                    self._lines[offset] = line or self.code.co_firstlineno
        return self._lines.get(instruction, self.code.co_firstlineno)


# Code entry, instruction, code entry, instruction and so on, innermost first.
Stack = tuple[Any, ...]


def frames_of(stack: Stack) -> tuple[Frame, ...]:
    """Return the frames of a stack with their lines."""
    return tuple(
        Frame(entry.path, entry.line(at)) for entry, at in zip(stack[::2], stack[1::2], strict=True)
    )


def classify(frame: FrameType, project: Project, module_type: type) -> CodeEntry:
    """Classify the code that runs in `frame`."""
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
    """Return the kind of method that `code` is if called on `owner`; PROJECT if it is not a method.

    Methods of mixins, and methods assigned to one object, are checked in every frame.
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
    """Return the name of the variable that holds the owner if `code` is a method; None if not.

    The owner is `self`, also if it belongs to the enclosing function, or else the first positional
    argument. The second value is True if the variable is the tuple of all positional arguments.
    """
    if "self" in code.co_varnames or "self" in code.co_freevars:
        return "self", False
    if code.co_argcount:
        return code.co_varnames[0], False
    if code.co_flags & inspect.CO_VARARGS:
        return code.co_varnames[code.co_kwonlyargcount], True
    return None


def _stored(code: CodeType) -> set[str]:
    """Return the names that code rebinds or deletes."""
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith(("STORE_FAST", "STORE_DEREF", "DELETE_")):
            value = instruction.argval
            both = (
                value if isinstance(value, tuple) else (value,)
            )  # Python 3.13 merges two instructions.
            names.update(both[:1] if instruction.opname.endswith("LOAD_FAST") else both)
    return names


def _functions(cls: type, module_type: type) -> list[object]:
    """Return all functions of a module's class, including aliases such as `forward = helper`."""
    if not issubclass(cls, module_type) or cls is module_type:
        return []
    return [value for value in vars(cls).values() if isinstance(value, FunctionType)]


def _has_code(function: object, code: CodeType) -> bool:
    """Return True if a function or a function that it wraps has this code; False if static."""
    while function is not None and not isinstance(function, (staticmethod, classmethod)):
        if isinstance(function, FunctionType) and function.__code__ is code:
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def no_module() -> None:
    """Return None; used in place of a weak reference if there is no module."""


class KnownFrame:
    """Cached result of a stack walk from a running frame, except for the frame's instruction.

    It is attached to the frame as `f_trace`, so it lives as long as the frame; Python calls it only
    while a debugger traces the thread. The callers of a running function do not change, so the next
    walk ends at the first frame with a cached result, and the results of the functions that it
    calls follow from its own.
    """

    __slots__ = ("below", "entry", "in_module", "inner", "module", "sites", "walker")

    def __init__(
        self,
        walker: object,
        entry: CodeEntry | None,
        below: Stack,
        in_module: bool,
        module: Callable[[], Any],
    ) -> None:
        self.walker = walker
        """Walker that created it; another walker may have another project."""
        self.entry = entry
        """Entry of the frame in a stack; None if no frame of the project runs."""
        self.below = below
        """Rest of the stack."""
        self.in_module = in_module
        self.module = module
        """Returns the innermost module, None once it is gone."""
        self.sites: dict[tuple[Any, ...], int] = {}
        """Numbers of call sites by function, instruction and library frames in between."""
        self.inner: dict[tuple[Any, ...], KnownFrame] = {}
        """Results of the functions called from here, by the arguments of `called`."""

    def called(self, entry: CodeEntry, at: int, named: Any, steps: Stack) -> KnownFrame:
        """Return the result of a function that is called from here.

        Args:
            entry: Entry of the function.
            at: Instruction of this frame.
            named: Record of the innermost module between this frame and the function, the
                function's owner included; None if there is none.
            steps: Frames in between that have no cached result.
        """
        below = steps if self.entry is None else (*steps, self.entry, at, *self.below)
        in_module = self.in_module or any(one.of_module for one in (entry, *steps[::2]))
        module = self.module if named is None else named.module
        return KnownFrame(self.walker, entry, below, in_module, module)

    def __call__(self, *_event: Any) -> None:
        """Ignore events of a debugger."""
