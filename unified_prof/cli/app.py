"""The one place where exceptions become words on stderr and an exit code.

The `uprof` command: one Typer application, one error boundary, one file per command.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from unified_prof.base import signals, streams
from unified_prof.base.text import printable
from unified_prof.cli import command as thrift
from unified_prof.cli import config
from unified_prof.cli.command import Application, Group
from unified_prof.cli.output import put_error
from unified_prof.errors import BUG_EXIT_CODE, UprofError, UsageError
from unified_prof.version import VERSION

INTERRUPTED = 130
READER_LEFT = 141
"""What shells report of a program that SIGPIPE ended."""

# Typer has a Click of its own since 0.26; all of Click's errors have this method.
_OF_CLICK = "format_message"

# How Typer's parser of values puts it -> how a person would.
_OF_PARSERS = (
    (r": Value error, ", ": "),
    (r": Input should be (.*?)(?:, unable to .*)?$", r": expected \1"),
    (r"expected (greater|less) than", r"expected a number \1 than"),
    (r"a number (greater) than or equal to (\S+)", r"\2 or more"),
    (r"a number (less) than or equal to (\S+)", r"\2 or less"),
    (r"a valid integer", "a whole number"),
    (r"a valid boolean", "true or false"),
)


def exit_code_of(work: Callable[[], object]) -> int:
    """Run a command and return its exit code; whatever it raises has been told on stderr.

    Args:
        work: Runs the command; returns its exit code, or something that is no number for 0.
    """
    try:
        code = work()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SystemExit as end:
        return _of_system_exit(end)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except streams.ReaderLeft:
        return READER_LEFT
    except UprofError as err:
        put_error(err)
        return err.exit_code
    except Exception as err:
        return _of_other(err)


def _of_system_exit(end: SystemExit) -> int:
    try:
        sys.stdout.flush()
    except streams.ReaderLeft:
        return READER_LEFT
    except UprofError as err:
        put_error(err)
        return err.exit_code
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    streams.tell(printable(str(end.code)))
    return 1


def _of_other(error: Exception) -> int:
    if hasattr(error, _OF_CLICK):
        return _of_click(error)
    if isinstance(error, FileNotFoundError) and not _folder_exists():
        put_error(
            UsageError(
                "the current folder does not exist any more",
                hint="cd to one that does",
                slug="no-current-folder",
            )
        )
        return UsageError.exit_code
    _put_bug(error)
    return BUG_EXIT_CODE


def _of_click(error: Any) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ in ("NoArgsIsHelpError",):
        streams.tell(error.format_message())
        return int(error.exit_code)
    hint = None if context is None else f"`{context.command_path} --help` shows what there is"
    put_error(UprofError(_sentence(error.format_message()), hint=hint, slug="wrong-command-line"))
    return int(error.exit_code)


def _sentence(message: str) -> str:
    """Return one of Click's sentences as all our messages are: small at the start, no full stop."""
    for words, ours in _OF_PARSERS:
        message = re.sub(words, ours, message)
    message = message.strip().removesuffix(".")
    return message[:1].lower() + message[1:]


def _folder_exists() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 (the question is whether it can be asked)
    except OSError:
        return False
    return True


def _put_bug(error: Exception) -> None:
    """Tell an unforeseen exception in one line, with the details in a file."""
    from unified_prof.base.redaction import redact

    what = printable(redact(f"{type(error).__name__}: {error}"))[:300]
    details = redact("".join(traceback.format_exception(error)))
    try:
        path = _write_details(details)
    except OSError:
        streams.tell(details)
        hint = None
    else:
        hint = f"it is a bug in uprof; please report it with {path}"
    put_error(UprofError(f"this should not have happened: {what}", hint=hint, slug="bug"))


def _write_details(details: str) -> Path:
    from unified_prof.base.redaction import redact_arguments

    number, name = tempfile.mkstemp(prefix="uprof-bug-", suffix=".txt")
    with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(
            f"uprof {VERSION}, Python {platform.python_version()}, {platform.platform()}\n"
            f"command: {redact_arguments(sys.argv)!r}\n\n{details}"
        )
    return Path(name)


# Command (or group of commands) -> its module in this package, and the first sentence of its help,
# in the order of the screen. A module has a function `register(app)`; heavy imports belong inside
# the commands' functions. The sentence stands here so that the screen needs no module.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Profile a PyTorch workload: a script with providers, or any training script."),
    "build": (
        "convert",
        "Build the databases of recorded Ascend PROF_* directories: no CANN, no NPU needed.",
    ),
    "import": (
        "convert",
        "Make msprof databases of what other profilers recorded: no torch, no device needed.",
    ),
    "report": ("report", "Show where the time and the memory of a run went."),
    "advise": (
        "advise",
        "Say what could be better in a run, the costliest first, and what to try.",
    ),
    "what-if": (
        "advise:register_what_if",
        "Say what a step would gain if something took less time.",
    ),
    "trace": (
        "trace",
        "Write the timeline of a report: streams, host calls, who launched whom, counters.",
    ),
    "view": ("view", "Show a run in the browser: its page, or its timeline in Perfetto."),
    "export": (
        "export",
        "Write a report for other tools: flame graphs, pprof, Parquet, msprof's text files.",
    ),
    "diff": ("diff", "Compare two runs, operation by operation."),
    "gate": ("gate", "Refuse a run that is slower, or takes more memory, than a base allows."),
    "baseline": ("baseline", "Keep runs to compare later ones with: save, list, show, history."),
    "cluster": (
        "cluster",
        "Many ranks as one run: who is slow, who waits for whom, which link, which step.",
    ),
    "db": ("db", "Versions of report files: recognise, check, migrate and create them."),
    "time": (
        "skyline_commands",
        "Write the run time report of a script into one file, as Skyline's `time`.",
    ),
    "memory": (
        "skyline_commands",
        "Write the memory report of a script into one file, as Skyline's `memory`.",
    ),
    "recover": ("recover", "Make reports of what a killed run had measured."),
    "doctor": (
        "doctor",
        "Say which backends can run here and why the others cannot, and what is installed.",
    ),
}

_RUN_PROGRAMS = frozenset({"run", "time", "memory"})
"""Commands within which somebody's program runs."""


class _Commands(Mapping[str, Any]):
    """The commands by name, each made when it is asked for.

    To import all of them and turn their functions into options takes a tenth of a second.
    """

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            part = Application()
            module, _, function = COMMANDS[name][0].partition(":")
            getattr(import_module(f"unified_prof.cli.{module}"), function or "register")(part)
            self._made |= typer.main.get_group(part).commands
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Root(Group):
    order = tuple(COMMANDS)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]  # nobody adds to it

    def summary_of(self, ctx: Any, name: str) -> str | None:
        """Return the first sentence of a command's help, without making the command."""
        return COMMANDS[name][1]


app = Application(
    name="uprof",
    cls=_Root,
    add_completion=True,
    context_settings={"auto_envvar_prefix": "UPROF"},
    epilog="Every option has a variable, UPROF_GATE_FORMAT for `gate --format`, and a key in "
    "pyproject.toml, `format` in [tool.uprof.gate]. Options beat variables, variables the file.",
    help="One profiler for PyTorch on NVIDIA CUDA, Huawei Ascend NPUs and the CPU.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"uprof {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    if context.invoked_subcommand in _RUN_PROGRAMS:
        thrift.as_usual()
    else:
        context.with_resource(thrift.one_thread())
    if context.invoked_subcommand != "run":
        # `run` sees to it itself: there the workload's own handlers count.
        context.with_resource(signals.ended_by_signals())
    if (path := config.find()) is not None:
        context.default_map = {**config.defaults(path, context.command)}


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit: this is the one error boundary.

    Raises:
        SystemExit: always, with the exit code of `unified_prof.errors`.
    """
    with streams.guarded(), thrift.seldom_collecting():
        code = exit_code_of(lambda: _run(argv))
    sys.exit(code)


def _run(argv: list[str] | None) -> object:
    command = typer.main.get_command(app)
    return command.main(argv, prog_name="uprof", standalone_mode=False)
