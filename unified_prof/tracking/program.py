"""Load and run a program, and print its errors, as Python does.

This module also detects work in other threads and child processes, which is not tracked, and checks
scripts with providers: functions that return a model, inputs and an iteration, as in Skyline.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import multiprocessing
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from msgspec import Struct

from unified_prof.base import streams
from unified_prof.base.run_spec import RunSpec
from unified_prof.base.text import printable
from unified_prof.errors import INTERRUPTED, CaptureError, UsageError


class Program(Struct, frozen=True):
    """A program that was read, but not compiled or run."""

    path: str
    """Absolute path of the file."""
    source: bytes
    spec: ModuleSpec | None
    """Import spec if the program is a module that is run by name."""
    first_argument: str
    """Value of `sys.argv[0]`."""
    search_path: str
    """Value of `sys.path[0]` while it runs."""
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the script or module."""
        return self.spec.name if self.spec else Path(self.path).name

    def compile(self) -> CodeType:
        """Compile the program. Raises SyntaxError if the program is not valid Python."""
        return compile(self.source, self.path, "exec", dont_inherit=True)


def find_program(asked: RunSpec) -> Program:
    """Read the script at path `asked.target`, or the module of that name.

    Raises:
        UsageError: There is no such file or module, or it cannot be read.
        Exception: Any exception from importing the packages above a module.
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
        raise _no_script_error(target, asked.arguments) from None
    except IsADirectoryError:
        raise UsageError(
            f"{target} is a directory, expected the path of a .py file", slug="no-script"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {target}: {error.strerror}", slug="no-script") from None
    return Program(path, source, spec, first, search_path, asked.arguments)


def check_script(target: str, arguments: Sequence[str], *, syntax: bool) -> bool:
    """Return False after printing Python's message if a script is not valid Python.

    Unless `syntax`, only check that it exists. Raises UsageError if it does not.
    """
    path = Path(target)
    if not path.exists():
        raise _no_script_error(target, arguments)
    if not syntax:
        return True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are shown when it runs
            compile(path.read_bytes(), str(path.absolute()), "exec", dont_inherit=True)
    except SyntaxError as error:
        show(error.with_traceback(None))
        streams.tell(f"uprof: {printable(f'{path.name}: {type(error).__name__}: {error.msg}')}")
        return False
    except (OSError, ValueError):  # reported when it is read
        pass
    return True


def _no_script_error(target: str, arguments: Sequence[str]) -> UsageError:
    path, words = Path(target), [*target.split(), *arguments]
    folder = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, folder, n=1)
    hint = f"did you mean {path.with_name(near[0])}?" if near else "give the path of a .py file"
    if re.fullmatch(r"python[0-9.]*", Path(words[0]).name):
        hint = f"leave out `{words[0]}`: uprof run {' '.join(words[1:])}".rstrip()
    return UsageError(f"no such script: {target}", hint=hint, slug="no-script")


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
            f"no module {name} that can be run",
            hint="use a name that works with python -m",
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
    """Yield the module in which to run `program`, with `sys` set up as Python does."""
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
    # Spawned children look up their results under the second name, which multiprocessing, if it was
    # imported before, has given to our own __main__.
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
    """Run `code`; the stack walk treats this frame as the bottom of the program's stack."""
    exec(code, namespace)


def call_program(function: Any, *arguments: Any) -> Any:
    """Call `function`; the stack walk treats this frame as the bottom of the program's stack."""
    return function(*arguments)


def exit_code_of(error: BaseException) -> int:
    """Print `error` as Python does, and return Python's exit code for it.

    A SystemExit with a message prints that message, Ctrl-C prints nothing, and any other exception
    prints the traceback of the user's code.
    """
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF  # as the system does: -1 is 255
        print(error.code, file=sys.stderr)
        return 1
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    show(error)
    return 1


def show(error: BaseException) -> None:
    """Print the traceback of `error` through sys.excepthook, without uprof's frames."""
    for each in _chain(error):
        each.with_traceback(_without_own_frames(each.__traceback__))
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception:  # a broken hook of the program
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


_OWN = str(Path(__file__).absolute().parent) + os.sep


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return `trace` without uprof's frames, unless the exception is uprof's own."""
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
    """Return the error and its location in one line, such as `ValueError: bad at train.py:3`."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    trace = _without_own_frames(error.__traceback__)
    if isinstance(error, SyntaxError) or trace is None:
        return text
    while trace.tb_next is not None:
        trace = trace.tb_next
    return text


# Minimum CPU time of child processes to report them; a command that prints a version needs less.
_MIN_CHILDREN_S = 0.2


class UntrackedWork:
    """Detects work in other threads and processes, which cannot be tracked."""

    def __init__(self) -> None:
        self.in_threads = 0
        """Number of module calls, backward passes and optimizer steps in other threads."""
        self._children_before_s = _children_s()

    def reason(self) -> tuple[str, str] | None:
        """Return a description of the untracked work and a hint; None if nothing was detected."""
        if self.in_threads:
            return (
                "the workload runs its model in another thread; only the thread in which it "
                "started is tracked",
                "run the model in the main thread, or use unified_prof.profile() in that thread",
            )
        running = len(multiprocessing.active_children())
        children_s = _children_s() - self._children_before_s
        if running or children_s > _MIN_CHILDREN_S:
            still = f", {running} still running" if running else ""
            return (
                f"the workload runs in child processes ({children_s:.1f} s of CPU time"
                f"{still}), which are not tracked",
                "run each process under uprof, for example with `torchrun --no-python uprof run "
                "...`, or use unified_prof.profile() in the function that trains",
            )
        return None


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


PREFIXES = ("uprof", "skyline", "deepview")
_PARTS = ("model_provider", "input_provider", "iteration_provider")
_EXPECTED = {
    "model_provider": "no parameter",
    "input_provider": "exactly one parameter, named batch_size, with an int as its default",
    "iteration_provider": "exactly one parameter, the model",
}


class Providers(Struct, frozen=True):
    """The three functions of a script with providers, with checked signatures."""

    script: str
    names: tuple[str, str, str]
    model: Callable[[], Any]
    inputs: Callable[..., Any]
    iteration: Callable[[Any], Any]


def prefix_of(source: bytes | str, filename: str) -> str | None:
    """Return the prefix of the providers that `source` defines; None if there are none.

    The source is only parsed, because the way to run the script depends on the result. Raises
    SyntaxError if `source` is not valid Python, and CaptureError if some of the three functions are
    missing.
    """
    defined = set(_top_level_names(ast.parse(source, filename).body))
    begun: list[tuple[str, list[str]]] = []
    for prefix in PREFIXES:
        missing = [f"{prefix}_{part}" for part in _PARTS if f"{prefix}_{part}" not in defined]
        if not missing:
            return prefix
        if len(missing) < len(_PARTS):
            begun.append((prefix, missing))
    if not begun:
        return None
    prefix, missing = begun[0]
    found = [name for part in _PARTS if (name := f"{prefix}_{part}") in defined]
    raise CaptureError(
        f"{filename} defines {' and '.join(found)}, but not {' and '.join(missing)}",
        hint="define all three providers, or none to run the script unmodified",
        slug="missing-provider",
    )


def _top_level_names(body: Iterable[ast.stmt]) -> Iterable[str]:
    """Yield the names that module code binds, also inside `if`, `try` and `with`."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        else:
            for field in ("body", "orelse", "finalbody", "handlers"):
                for child in getattr(node, field, ()):
                    nested = child.body if isinstance(child, ast.ExceptHandler) else [child]
                    if not (field == "body" and _is_main_guard(node)):
                        yield from _top_level_names(nested)


def _is_main_guard(node: ast.stmt) -> bool:
    """Return True for `if __name__ == "__main__":`, which never applies in provider scripts."""
    return isinstance(node, ast.If) and "__name__" in {
        n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)
    }


def checked_providers(namespace: dict[str, Any], prefix: str, script: str) -> Providers:
    """Return the providers of `namespace`.

    Raises CaptureError if a provider is missing, is not a function or has an unexpected signature.
    """
    functions = []
    for part in _PARTS:
        name = f"{prefix}_{part}"
        function = namespace.get(name)
        if not callable(function):
            found = "is not defined" if function is None else f"is {_a(function)}, not a function"
            raise CaptureError(f"{script}: {name} {found}", slug="wrong-provider")
        _check_signature(function, name, part, script)
        functions.append(function)
    model, inputs, iteration = functions
    names = tuple(f"{prefix}_{part}" for part in _PARTS)
    return Providers(script, (names[0], names[1], names[2]), model, inputs, iteration)


def _check_signature(function: Any, name: str, part: str, script: str) -> None:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    simple = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    if part == "input_provider":
        fine = (
            len(parameters) == 1
            and parameters[0].name == "batch_size"
            and parameters[0].kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD,
                                       inspect.Parameter.KEYWORD_ONLY)
            and type(parameters[0].default) is int
        )  # fmt: skip
    else:
        fine = simple and len(parameters) == (1 if part == "iteration_provider" else 0)
    if not fine:
        line = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_firstlineno", None)
        where = script if line is None else f"{script}:{line}"
        raise CaptureError(
            f"{where}: found {name}{signature}, expected {_EXPECTED[part]}", slug="wrong-provider"
        )


def checked_model(providers: Providers, model: Any, device: str) -> Any:
    """Return `model` if it can be called and is on `device`.

    Raises CaptureError if the model cannot be called, or is on another device.
    """
    from torch.nn import Module

    name = providers.names[0]
    if not callable(model):
        raise CaptureError(
            f"{providers.script}: {name}() returned {_a(model)}, expected a callable model",
            slug="wrong-provider",
        )
    if isinstance(model, Module):
        found = {parameter.device.type for parameter in model.parameters()}
        if found and device not in found:
            others = " and ".join(sorted(found))
            raise CaptureError(
                f"{providers.script}: {name}() returned a model on {others}, expected {device}",
                hint=f"run: uprof run --backend {sorted(found)[0]}, or move the model to {device}",
                slug="wrong-device",
            )
    return model


def checked_inputs(providers: Providers, inputs: Any) -> tuple[Any, ...]:
    """Return `inputs` as a tuple of the arguments of an iteration.

    Raises CaptureError if `inputs` is a tensor or is not iterable.
    """
    import torch

    if isinstance(inputs, torch.Tensor) or not isinstance(inputs, Iterable):
        raise CaptureError(
            f"{providers.script}: {providers.names[1]}() returned {_a(inputs)}, "
            "expected a tuple of the iteration's arguments",
            hint="for one input write: return (tensor,)",
            slug="wrong-provider",
        )
    return tuple(inputs)


def checked_iteration(providers: Providers, iteration: Any) -> Callable[..., Any]:
    """Return `iteration` if it can be called.

    Raises CaptureError if the iteration cannot be called.
    """
    if not callable(iteration):
        raise CaptureError(
            f"{providers.script}: {providers.names[2]}(model) returned {_a(iteration)}, "
            "expected a function that runs one iteration",
            slug="wrong-provider",
        )
    return iteration  # type: ignore[no-any-return]


def _a(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
