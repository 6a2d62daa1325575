"""Load and run the user's program as Python itself would, and show its errors as Python would."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from unified_prof.errors import UsageError
from unified_prof.runs.spec import RunSpec

INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell reports it."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is read, but not yet compiled or run."""

    path: str
    """Absolute path of its file."""
    source: bytes
    spec: ModuleSpec | None
    """Of a module that is run by name."""
    first_argument: str
    """What `sys.argv[0]` is."""
    search_path: str
    """What `sys.path[0]` is while it runs."""
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.spec.name if self.spec else Path(self.path).name

    def compile(self) -> CodeType:
        """Compile it; SyntaxError where it is no Python."""
        return compile(self.source, self.path, "exec", dont_inherit=True)


def find_program(asked: RunSpec) -> Program:
    """Read the script at path `asked.target`, or the module of that name.

    Raises:
        UsageError: There is no such file or module, or it cannot be read.
        Exception: Whatever importing the packages above a module raises.
    """
    target, spec = asked.target, None
    if asked.is_module:
        spec = _find_module(target)
        path = first = str(spec.origin)
        search_path = str(Path.cwd())
    else:
        path, first = os.path.normpath(Path(target).absolute()), target
        search_path = str(Path(path).resolve().parent)
    try:
        source = Path(path).read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"no such script: {target}", hint="give the path of a .py file", slug="no-script"
        ) from None
    except IsADirectoryError:
        raise UsageError(
            f"{target} is a folder, expected the path of a .py file", slug="no-script"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {target}: {error.strerror}", slug="no-script") from None
    return Program(path, source, spec, first, search_path, asked.arguments)


def _find_module(name: str) -> ModuleSpec:
    with _first_on_path(str(Path.cwd())):
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{name}.__main__")
        except (ModuleNotFoundError, ValueError):
            spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(
            f"no module named {name} that could be run",
            hint="give its name as for python -m",
            slug="no-script",
        )
    return spec


@contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


@contextmanager
def running_as(program: Program, name: str) -> Iterator[ModuleType]:
    """Yield the module to run `program` in, with sys set up as Python does for a program."""
    module = ModuleType(name)
    spec = program.spec
    vars(module).update(
        __file__=program.path,
        __builtins__=__builtins__,
        __spec__=spec,
        __package__=spec.parent if spec else None,
        __loader__=spec.loader if spec else None,
        __cached__=None,
    )
    # What spawned children send back is looked up by the second name, which multiprocessing, if
    # it was imported before, has given to our own __main__.
    names = (name, "__mp_main__") if name == "__main__" else (name,)
    before = (sys.argv, sys.path[:], {each: sys.modules.get(each) for each in names})
    sys.argv = [program.first_argument, *program.arguments]
    sys.path[0:1] = [program.search_path]
    sys.modules.update(dict.fromkeys(names, module))
    try:
        yield module
    finally:
        sys.argv, sys.path[:], previous = before
        for each, there in previous.items():
            if there is None:
                sys.modules.pop(each, None)
            else:
                sys.modules[each] = there


def execute(code: CodeType, namespace: dict[str, Any]) -> None:
    """Run `code`; the stack below this function is not the program's."""
    exec(code, namespace)


def call_program(function: Any, *arguments: Any) -> Any:
    """Call a function of the program's; the stack below here is not the program's either."""
    return function(*arguments)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code with which Python would end on `error`, which is shown as it would.

    A SystemExit with a message prints that, Ctrl-C prints nothing, anything else the traceback
    of the user's code.
    """
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    show(error)
    return 1


def show(error: BaseException) -> None:
    """Print the traceback of `error` through sys.excepthook, without uprof's own frames."""
    for each in _chain(error):
        each.with_traceback(_without_own_frames(each.__traceback__))
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception:  # a broken hook of the program's own
        traceback.print_exception(type(error), error, error.__traceback__)


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and each not in found:
            found.append(each)
            waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
    return found


_OWN = str(Path(__file__).absolute().parents[1]) + os.sep


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return `trace` without uprof's frames, unless uprof itself is what failed."""
    whole, frames, own = trace, [], False
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        own = filename.startswith(_OWN)
        if not own and not filename.startswith("<frozen "):
            frames.append(trace)
        trace = trace.tb_next
    if own:
        return whole
    kept: TracebackType | None = None
    for each in reversed(frames):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def last_user_line(error: BaseException) -> str:
    """Say in one line what went wrong and where, such as `ValueError: bad at train.py:3`."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    trace = _without_own_frames(error.__traceback__)
    if isinstance(error, SyntaxError) or trace is None:
        return text
    while trace.tb_next is not None:
        trace = trace.tb_next
    return text
