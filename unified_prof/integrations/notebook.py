"""Magics `%%uprof` and `%uprof`: profile a cell or a statement and show the result.

The first line of a `%%uprof` cell is replaced by a string constant, and the syntax tree of the rest
is moved into a `with` block. Therefore tracebacks and reports show the line numbers of the cell,
and other magics and `await` work as usual.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import shutil
import tempfile
import weakref
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from unified_prof.base.run_spec import ITERATIONS, MEMORY, MODULE, PROJECT, RUN_TIME, WARMUP
from unified_prof.errors import CaptureError, UprofError, UsageError
from unified_prof.pipeline import live
from unified_prof.pipeline.live import Profile, notebook_name, running_cell

_MAGIC = re.compile(r"%%uprof(?P<options>[ \t].*)?$")
_BLOCK = "_uprof_block"  # Name of the block while its cell runs.
VARIABLE = "prof"  # Default name of the variable that holds the profile.


def load(shell: Any) -> None:
    """Add the magics to a shell; may be called again."""
    unload(shell)
    shell.input_transformers_cleanup.append(mark)
    shell.ast_transformers.append(CellTransformer())
    shell.register_magic_function(_magic_of(shell), "line_cell", "uprof")


def unload(shell: Any) -> None:
    """Remove the magics."""
    for transformers in (shell.input_transformers_cleanup, shell.ast_transformers):
        transformers[:] = [
            one for one in transformers if one is not mark and not isinstance(one, CellTransformer)
        ]
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("uprof", None)


def mark(lines: list[str]) -> list[str]:
    """Return the lines of a cell; a first line `%%uprof ...` becomes a string constant."""
    if not lines or _MAGIC.match(lines[0].rstrip()) is None:
        return lines
    return [f"{lines[0].rstrip()!r}\n", *lines[1:]]


class CellTransformer(ast.NodeTransformer):
    """Moves the statements after the marker into a `with` block that profiles them."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        """Wrap a marked cell in the block; the cell keeps the value of its last expression."""
        options = _options_of(node)
        if options is None:
            return node
        first, *body = node.body
        # Future imports must stay at the top.
        top = [
            one for one in body if isinstance(one, ast.ImportFrom) and one.module == "__future__"
        ]
        body = [one for one in body if one not in top]
        after = _parsed(f"{_BLOCK}.pop_value()")
        if body and isinstance(last := body[-1], ast.Expr):
            target = _parsed(f"{_BLOCK}.value = None")
            assert isinstance(target, ast.Assign)
            target.value = last.value
            body[-1] = ast.copy_location(target, last)
        made = f"__import__({__name__!r}, fromlist=['Block']).Block({options!r})"
        block = _parsed(f"with {made} as {_BLOCK}: pass")
        assert isinstance(block, ast.With)
        block.body = body or block.body
        end = node.body[-1]
        node.body = [*top, ast.copy_location(block, first), ast.copy_location(after, end)]
        return ast.fix_missing_locations(node)


def _options_of(node: ast.Module) -> str | None:
    """Return the options of a marked cell, or None for another cell."""
    first = node.body[0] if node.body else None
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return None
    text = first.value.value
    # `mark` puts the string into the first line.
    found = _MAGIC.match(text) if isinstance(text, str) and first.lineno == 1 else None
    return None if found is None else (found["options"] or "").strip()


def _parsed(source: str) -> Any:
    return ast.parse(source).body[0]


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises UsageError instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"%%uprof: {message}", hint="%uprof? shows its options", slug="wrong-command-line"
        )

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise UsageError(
            message or "%%uprof shows its options with %uprof?", slug="wrong-command-line"
        )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = _Parser(prog="%%uprof", add_help=False, allow_abbrev=False)
    made.add_argument("-o", "--output", metavar="DIR", help="output directory of the reports")
    made.add_argument(
        "--into", default=VARIABLE, metavar="NAME", help="variable of the profile (default: prof)"
    )
    made.add_argument("--warmup", type=int, default=WARMUP, metavar="N")
    made.add_argument("--iterations", type=int, default=ITERATIONS, metavar="N")
    made.add_argument("--device", metavar="TYPE", help="cpu, cuda or npu")
    made.add_argument("--report", action="append", choices=(RUN_TIME, MEMORY))
    made.add_argument("--scope", choices=(MODULE, PROJECT), default=MODULE)
    made.add_argument("--include", action="append", default=[], metavar="PACKAGE")
    made.add_argument("-q", "--quiet", action="store_true", help="show nothing")
    return made


class Block:
    """Context manager that profiles its body and stores the profile in a notebook variable.

    A failed measurement is reported without failing the cell; an exception of the body is raised
    with its traceback.
    """

    def __init__(self, options: str, statement: str | None = None) -> None:
        self._text = options
        self._statement = statement
        # Value of the last line of the body, if it is an expression.
        self.value: object = None
        self._running: AbstractContextManager[Profile] | None = None
        self._profile: Profile | None = None

    def __enter__(self) -> Block:
        try:
            self._begin()
        except UprofError as err:
            raise _plain(err) from None
        return self

    def _begin(self) -> None:
        self._options = options = _read(self._text)
        if find_spec("torch") is None:
            raise UsageError(
                "%%uprof needs torch, which is not installed",
                hint="pip install 'unified-prof[torch]'; reading reports does not need it",
                slug="missing-package",
            )
        directory, self._holder = _place(options.output)
        running = live.profile(
            directory,
            device=options.device,
            reports=tuple(options.report or (RUN_TIME, MEMORY)),
            warmup=options.warmup,
            iterations=options.iterations,
            scope=options.scope,
            include=tuple(options.include),
            command=self._command(),
            force=True,
        )
        profile = running.__enter__()
        self._running, self._profile = running, profile

    def _command(self) -> list[str]:
        """Return notebook, cell and magic, to be recorded instead of the kernel's command."""
        magic = "%%uprof" if self._statement is None else "%uprof"
        places = filter(None, (notebook_name(), running_cell()))
        return [*places, magic, *shlex.split(self._text), *filter(None, (self._statement,))]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._running is not None
        assert self._profile is not None
        profile = self._profile
        try:
            self._running.__exit__(kind, error, traceback)
        except CaptureError as err:
            if error is not None:  # the error of the body takes precedence
                raise
            profile.failure = profile.failure or str(err)
        except UprofError as err:
            raise _plain(err) from None
        finally:
            if error is not None:
                error.__traceback__ = traceback
            self._leave(profile)
            if error is not None:
                _forget()
        if error is None and not self._options.quiet:
            _show(profile)

    def pop_value(self) -> object:
        """Return the value of the last line of the body, and clear it."""
        _forget()
        value, self.value = self.value, None
        return value

    def _leave(self, profile: Profile) -> None:
        profile.keep = self._holder
        if self._holder is None:
            directory = profile.directory.resolve()
            _written[directory] = {file.resolve() for file in profile.files.values()}
        if (shell := _shell()) is not None:
            shell.user_ns[self._options.into] = profile


def _magic_of(shell: Any) -> Any:
    def uprof(line: str, cell: str | None = None) -> object:
        if cell is not None:  # called from code; typed cells are handled by `mark`
            shell.run_cell(f"%%uprof {line}\n{cell}").raise_error()
            return None
        options, statement = _split(line)
        if not statement:
            raise _plain(
                UsageError(
                    "nothing to measure", hint="%uprof [options] statement", slug="nothing-to-run"
                )
            )
        with Block(options, statement) as block:
            try:
                code = compile(statement, "<uprof>", "eval")
            except SyntaxError:
                exec(compile(statement, "<uprof>", "exec"), shell.user_global_ns)
            else:
                block.value = eval(code, shell.user_global_ns)
        return block.pop_value()

    uprof.__doc__ = (
        "Measure a statement (%uprof) or a cell (%%uprof) of PyTorch, operation by operation.\n\n"
        f"{parser().format_help()}"
    )
    return uprof


def _read(text: str) -> argparse.Namespace:
    try:
        words = shlex.split(text)
    except ValueError as err:
        raise UsageError(f"%%uprof: {err}", slug="wrong-command") from None
    options = parser().parse_args(words)
    if not options.into.isidentifier():
        raise UsageError(
            f"%%uprof: {options.into!r} is not a variable name", slug="wrong-option-value"
        )
    return options


def _split(line: str) -> tuple[str, str]:
    """Return the options before a statement, and the statement."""
    alone = {"-q", "--quiet"}
    at, takes_value = 0, False
    for found in re.finditer(r"\S+", line):
        word = found[0]
        if not takes_value and not word.startswith("-"):
            break
        takes_value = not takes_value and word not in alone and "=" not in word
        at = found.end()
    return line[:at].strip(), line[at:].strip()


class _Folder:
    """Temporary directory that is deleted with the last profile that refers to it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="uprof-notebook-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


_written: dict[Path, set[Path]] = {}  # Directory -> reports that earlier cells wrote there.


def _place(output: str | None) -> tuple[Path, _Folder | None]:
    """Return the output directory, after deleting the reports of earlier cells in it."""
    if output is None:
        holder = _Folder()
        return holder.path, holder
    directory = Path(output).expanduser()
    for file in _written.pop(directory.resolve(), ()):
        file.unlink(missing_ok=True)
    return directory, None


def _show(profile: Profile) -> None:
    from IPython.display import display

    display(profile)


def _forget() -> None:
    if (shell := _shell()) is not None:
        shell.user_ns.pop(_BLOCK, None)


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    return get_ipython()


def _plain(error: UprofError) -> Exception:
    """Return an error that IPython shows without a traceback."""
    from IPython.core.error import UsageError as ShellError

    shown: Exception = ShellError(f"{error}\n{error.hint}" if error.hint else str(error))
    return shown
