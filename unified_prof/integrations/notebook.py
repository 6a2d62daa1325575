"""`%%uprof` and `%uprof`: measure a cell, or a statement, and show where its time went.

A cell that begins with `%%uprof` stays a cell: its first line becomes a text that does nothing,
and in the tree of its code all the rest moves into a `with` block. So the cell's own lines are the
frames of tracebacks and reports, other magics in it work, and `await` does as everywhere.
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
_BLOCK = "_uprof_block"
"""Name of the block while its cell runs."""
VARIABLE = "prof"
"""Where a profile is left unless told."""


def load(shell: Any) -> None:
    """Add the magics to a shell; harmless the second time."""
    unload(shell)
    shell.input_transformers_cleanup.append(marked)
    shell.ast_transformers.append(Wrapping())
    shell.register_magic_function(_magic_of(shell), "line_cell", "uprof")


def unload(shell: Any) -> None:
    """Take them away again."""
    for transformers in (shell.input_transformers_cleanup, shell.ast_transformers):
        transformers[:] = [
            one for one in transformers if one is not marked and not isinstance(one, Wrapping)
        ]
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("uprof", None)


def marked(lines: list[str]) -> list[str]:
    """Return a cell with `%%uprof ...` in its first line as a text; other cells as they are."""
    if not lines or _MAGIC.match(lines[0].rstrip()) is None:
        return lines
    return [f"{lines[0].rstrip()!r}\n", *lines[1:]]


class Wrapping(ast.NodeTransformer):
    """Moves what follows the marking text into a block that measures it."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        """Return a marked cell with its block; the value of its last line stays its value."""
        options = _options_of(node)
        if options is None:
            return node
        first, *body = node.body
        # What Python wants at the top of a cell stays there.
        top = [
            one for one in body if isinstance(one, ast.ImportFrom) and one.module == "__future__"
        ]
        body = [one for one in body if one not in top]
        after = _parsed(f"{_BLOCK}.take()")
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
    """Return the options of a marked cell, None of any other."""
    first = node.body[0] if node.body else None
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return None
    text = first.value.value
    # `marked` puts it into the first line, where a text of the user's own hardly begins like that.
    found = _MAGIC.match(text) if isinstance(text, str) and first.lineno == 1 else None
    return None if found is None else (found["options"] or "").strip()


def _parsed(source: str) -> Any:
    return ast.parse(source).body[0]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"%%uprof: {message}", hint="%uprof? shows its options", slug="wrong-command-line"
        )

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise UsageError(
            message or "%%uprof shows its options with %uprof?", slug="wrong-command-line"
        )


def parser() -> argparse.ArgumentParser:
    """Return what reads the options."""
    made = _Parser(prog="%%uprof", add_help=False, allow_abbrev=False)
    made.add_argument("-o", "--output", metavar="DIR", help="folder of the reports")
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
    """Measures its body as `unified_prof.profile` does, and leaves the profile in a variable.

    What cannot be measured is told and is no error of the cell; an exception of the body passes
    through with its own traceback.
    """

    def __init__(self, options: str, statement: str | None = None) -> None:
        self._text = options
        self._statement = statement
        self.value: object = None
        """Of the body's last line, where that is an expression."""
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
                "%%uprof measures programs of PyTorch, and torch is not installed here",
                hint="pip install 'unified-prof[torch]'; reports can be read without it",
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
        """Return notebook, cell and magic: the line that a person wrote, not the kernel's."""
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
            if error is not None:  # the body's own comes first
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

    def take(self) -> object:
        """Return the value of the body's last line, once."""
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
        if cell is not None:  # called by other code: of cells that people run, `marked` makes one
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
        return block.take()

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
            f"%%uprof: {options.into!r} is no name of a variable", slug="wrong-option-value"
        )
    return options


def _split(line: str) -> tuple[str, str]:
    """Return the options before a statement, and the statement as it stands."""
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
    """A temporary folder that goes with the last profile that has its reports there."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="uprof-notebook-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


_written: dict[Path, set[Path]] = {}
"""By folder, the reports that cells of this program left there."""


def _place(output: str | None) -> tuple[Path, _Folder | None]:
    """Return the folder for the reports, without those that an earlier cell left in it."""
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
    """Return an error that shells show without a traceback: it is no bug of the cell's."""
    from IPython.core.error import UsageError as Told

    told: Exception = Told(f"{error}\n{error.hint}" if error.hint else str(error))
    return told
