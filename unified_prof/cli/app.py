"""The `uprof` application: command table, settings, and the error boundary.

This is the only place where exceptions become messages and exit codes.
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
# Exit code that shells report for a process ended by SIGPIPE.
READER_LEFT = 141

# Typer vendors Click since 0.26, so `isinstance` cannot be used; all Click errors have this method.
_CLICK_ERRORS = "format_message"

# Typer's wording of invalid values -> ours.
_TYPER_WORDING = (
    (r": Value error, ", ": "),
    (r": Input should be (.*?)(?:, unable to .*)?$", r": expected \1"),
    (r"expected (greater|less) than", r"expected a number \1 than"),
    (r"a number (greater) than or equal to (\S+)", r"\2 or more"),
    (r"a number (less) than or equal to (\S+)", r"\2 or less"),
    (r"a valid integer", "a whole number"),
    (r"a valid boolean", "true or false"),
)


def exit_code_of(work: Callable[[], object]) -> int:
    """Run a command, print its error if it raises one, and return the exit code.

    Args:
        work: Runs the command; a result that is not a number means 0.
    """
    try:
        code = work()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SystemExit as end:
        return _system_exit_code(end)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except streams.ReaderLeft:
        return READER_LEFT
    except UprofError as err:
        put_error(err)
        return err.exit_code
    except Exception as err:
        return _unexpected_error_code(err)


def _system_exit_code(end: SystemExit) -> int:
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


def _unexpected_error_code(error: Exception) -> int:
    if hasattr(error, _CLICK_ERRORS):
        return _click_error_code(error)
    if isinstance(error, FileNotFoundError) and not _folder_exists():
        put_error(
            UsageError(
                "the current directory no longer exists",
                hint="cd to an existing directory",
                slug="no-current-folder",
            )
        )
        return UsageError.exit_code
    _report_bug(error)
    return BUG_EXIT_CODE


def _click_error_code(error: Any) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ in ("NoArgsIsHelpError",):
        streams.tell(error.format_message())
        return int(error.exit_code)
    hint = None if context is None else f"see `{context.command_path} --help`"
    put_error(UprofError(_sentence(error.format_message()), hint=hint, slug="wrong-command-line"))
    return int(error.exit_code)


def _sentence(message: str) -> str:
    """Return a Click message in our form: lower case at the start, no full stop."""
    for words, ours in _TYPER_WORDING:
        message = re.sub(words, ours, message)
    message = message.strip().removesuffix(".")
    return message[:1].lower() + message[1:]


def _folder_exists() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 (the question is whether it can be asked)
    except OSError:
        return False
    return True


def _report_bug(error: Exception) -> None:
    """Report an unexpected exception in one line and write its details to a file."""
    from unified_prof.base.redaction import redact

    what = printable(redact(f"{type(error).__name__}: {error}"))[:300]
    details = redact("".join(traceback.format_exception(error)))
    try:
        path = _write_details(details)
    except OSError:
        streams.tell(details)
        hint = None
    else:
        hint = f"this is a bug in uprof; please report it with {path}"
    put_error(UprofError(f"internal error: {what}", hint=hint, slug="bug"))


def _write_details(details: str) -> Path:
    from unified_prof.base.redaction import redact_arguments

    number, name = tempfile.mkstemp(prefix="uprof-bug-", suffix=".txt")
    with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(
            f"uprof {VERSION}, Python {platform.python_version()}, {platform.platform()}\n"
            f"command: {redact_arguments(sys.argv)!r}\n\n{details}"
        )
    return Path(name)


# Command or group -> module with its `register(app)`, and the first sentence of its help, in
# display order. The sentences are here so that `uprof --help` imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Profile a PyTorch workload: any training script, or a script with providers."),
    "build": (
        "convert",
        "Convert Ascend PROF_* directories to databases, without CANN or an NPU.",
    ),
    "import": (
        "convert",
        "Convert recordings of other profilers to databases, without torch or a device.",
    ),
    "report": ("report", "Show time and memory of a run per operation, kernel, module or line."),
    "advise": (
        "advise",
        "List findings by cost, with what to try.",
    ),
    "what-if": (
        "advise:register_what_if",
        "Estimate the step time if kernels, copies or host work were faster.",
    ),
    "trace": (
        "trace",
        "Write a timeline for Perfetto or Chrome: streams, host calls, launches, counters.",
    ),
    "view": ("view", "Open a run in the browser: as a page, or its timeline in Perfetto."),
    "export": (
        "export",
        "Export a report: flame graphs, pprof, Parquet, or the text files of msprof.",
    ),
    "diff": ("diff", "Compare two runs operation by operation."),
    "gate": ("gate", "Fail if a run is slower or uses more memory than its baseline."),
    "baseline": ("baseline", "Save runs as baselines and compare later runs with them."),
    "cluster": (
        "cluster",
        "Analyze a multi-rank run: stragglers, collective waits, slow links.",
    ),
    "db": ("db", "Inspect, check, upgrade and create report files."),
    "time": (
        "skyline_commands",
        "Write only the run time report of a script, like Skyline's `time`.",
    ),
    "memory": (
        "skyline_commands",
        "Write only the memory report of a script, like Skyline's `memory`.",
    ),
    "recover": ("recover", "Recover the reports of a run whose process was killed."),
    "doctor": (
        "doctor",
        "Show which backends can run on this machine, and what is installed.",
    ),
}

# Commands that run the user's program in this process.
_RUN_PROGRAMS = frozenset({"run", "time", "memory"})


class _Commands(Mapping[str, Any]):
    """Commands by name, each built on first use.

    Building all of them takes 0.1 s.
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
        """Return the first sentence of a command's help without importing the command."""
        return COMMANDS[name][1]


app = Application(
    name="uprof",
    cls=_Root,
    add_completion=True,
    context_settings={"auto_envvar_prefix": "UPROF"},
    epilog="Every option can also be set by an environment variable (UPROF_GATE_FORMAT for `gate "
    "--format`) or in pyproject.toml (`format` in [tool.uprof.gate]). Options take "
    "precedence over variables, variables over the file.",
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
        thrift.restore_garbage_collection()
    else:
        context.with_resource(thrift.limit_blas_threads())
    if context.invoked_subcommand != "run":
        # `run` handles signals itself because the workload's handlers must stay in place.
        context.with_resource(signals.ended_by_signals())
    if (path := config.find()) is not None:
        context.default_map = {**config.defaults(path, context.command)}


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit.

    Raises:
        SystemExit: Always, with an exit code of `unified_prof.errors`.
    """
    with streams.guarded(), thrift.reduced_garbage_collection():
        code = exit_code_of(lambda: _run(argv))
    sys.exit(code)


def _run(argv: list[str] | None) -> object:
    command = typer.main.get_command(app)
    return command.main(argv, prog_name="uprof", standalone_mode=False)
