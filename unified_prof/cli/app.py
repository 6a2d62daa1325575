"""The `uprof` application: command table, settings, and the error boundary.

This is the only place where exceptions become messages and exit codes. Defaults come from
`[tool.uprof]` of pyproject.toml; options and then `UPROF_*` variables take precedence. A key is a
long option without dashes in the table of its command: `[tool.uprof.gate]` `max-regress = "5%"`.
`[tool.uprof.devices."NAME"]` has the peaks of a device for rooflines.
"""

from __future__ import annotations

import errno
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from unified_prof.base import signals, streams
from unified_prof.base.process_tuning import (
    limit_blas_threads,
    reduced_garbage_collection,
    refuse_small_address_space,
    restore_garbage_collection,
)
from unified_prof.base.text import printable
from unified_prof.cli import command
from unified_prof.cli.command import Group, Option, refuse
from unified_prof.cli.output import put_error
from unified_prof.errors import (
    BUG_EXIT_CODE,
    INTERRUPTED,
    OutputError,
    StoreError,
    SystemLimitError,
    UprofError,
    UsageError,
    system_errors,
)
from unified_prof.version import VERSION

# Longer keys would take memory that grows with the square of their length.
_MAX_DOTS = 1000
_REPOSITORY = (".git", ".hg", ".svn", ".jj")


# Options that a project's pyproject.toml may set. The file may come with a cloned repository, so it
# must not decide what uprof writes, runs, attaches to or connects to. Options that are not listed
# are accepted on the command line and in UPROF_* variables only.
PROJECT_SETTINGS = frozenset(
    """
    against ai-core aic-freq aic-metrics aic-mode aicpu all ascendcl backend base base-with baseline
    batch-size batch-sizes by capture-steps convert critical-path debug delay device drift dry-run
    duration every exporter family faster format full-names ge-api history host-sys host-sys-usage
    host-sys-usage-freq idle ids include iterations jobs json l2 last layout live llc-profiling
    max-regress measure memory metric min-abs msproftx mstx-domain-exclude mstx-domain-include new
    new-with no-open noise npu-chip npu-events nts-metrics path perfetto port preset project-root
    quiet rank ranks report rounds runtime-api schema scope share slow sort stats step steps
    stop-after storage-limit strict sys-cpu-freq sys-cpu-profiling sys-hardware-mem
    sys-hardware-mem-freq sys-interconnection-freq sys-interconnection-profiling sys-io-profiling
    sys-io-sampling-freq sys-pid-profiling sys-pid-sampling-freq sys-profiling sys-sampling-freq
    table task-block task-memory task-time timeline-detail timeout to top verbose warmup watch
    what-if with without workload
    """.split()
)


def find_settings(start: Path | None = None) -> Path | None:
    """Return the nearest pyproject.toml in `start` or a directory above it.

    The search ends at the root of a repository and at the user's home directory. The default of
    `start` is the current directory, which may have been deleted.
    """
    try:
        start = start or Path.cwd()
        home = Path.home().resolve()
    except (OSError, RuntimeError):
        return None
    for folder in (start, *start.parents):
        candidate = folder / "pyproject.toml"
        if candidate.is_file():
            return candidate
        if folder == home or any((folder / name).exists() for name in _REPOSITORY):
            return None
    return None


def read_settings(path: Path, root: click.Command) -> dict[str, Any]:
    """Return the table of `path` as Click's default map for the commands of `root`.

    Raises UsageError if the file cannot be read, is not TOML, or names an unknown command, option
    or device figure.
    """
    with system_errors(UsageError, f"{path} cannot be read", slug="settings-unreadable"):
        text = path.read_bytes()
    if b"uprof" not in text and b"\\u" not in text and b"\\U" not in text:
        # Most projects have no such table; skip the TOML parser for them.
        return {}
    dots = max(line.count(b".") for line in text.splitlines())
    refuse(dots > _MAX_DOTS, f"{path}: a key has too many parts", slug="settings-unreadable")
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document = tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as err:  # also an integer of thousands of digits
        why = (
            "nested too deeply to be read" if isinstance(err, RecursionError) else "not a TOML file"
        )
        raise UsageError(f"{path}: {why}: {err}", slug="settings-unreadable") from None
    tool = document.get("tool", {})
    refuse(not isinstance(tool, dict), f"{path}: `tool` is not a table", slug="wrong-setting")
    table = tool.get("uprof", {})
    refuse(not isinstance(table, dict), f"{path}: tool.uprof is not a table", slug="wrong-setting")
    _check_integers(table, str(path))
    if "devices" in table:
        from unified_prof.explain.roofline import peaks

        peaks.add(table.pop("devices"), f"{path}: [tool.uprof.devices")
    return _of_command(table, root, f"{path}: [tool.uprof")


def _check_integers(value: object, where: str) -> None:
    """Refuse integers that do not fit into 64 bits, as TOML requires."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise UsageError(f"{where}: an integer has more than 64 bits", slug="wrong-setting")
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            _check_integers(one, where)


def _of_command(table: Mapping[str, Any], command: click.Command, where: str) -> dict[str, Any]:
    """Translate the table of one command and of its subcommands."""
    subcommands: Mapping[str, click.Command] = getattr(command, "commands", {})
    options = {
        option.removeprefix("--"): parameter
        for parameter in command.params
        if isinstance(parameter, Option) and parameter.is_setting
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    }
    result: dict[str, Any] = {}
    for key, value in table.items():
        if key in subcommands and isinstance(value, dict):
            result[key] = _of_command(value, subcommands[key], f"{where}.{key}")
            continue
        refuse(
            key in subcommands,
            f"{where}] {key}: expected a table of settings",
            hint=f"write its options below a line {where.rpartition(': ')[2]}.{key}]",
            slug="wrong-setting",
        )
        refuse(
            key in options and key not in PROJECT_SETTINGS,
            f"{where}] {key}: not accepted from pyproject.toml, because it decides what uprof"
            " writes, runs or connects to",
            hint=f"use --{key} on the command line, or its UPROF_ variable",
            slug="untrusted-setting",
        )
        if (parameter := options.get(key)) is not None and parameter.name is not None:
            result[parameter.name] = _value(value, f"{where}] {key}")
        else:
            known = ", ".join(sorted({*(options.keys() & PROJECT_SETTINGS), *subcommands}))
            raise UsageError(
                f"{where}] unknown setting {key!r}",
                hint=(f"known settings: {known}"),
                slug="wrong-setting",
            )
    return result


def _value(value: object, where: str) -> object:
    """Convert a setting for Click: text, a number, or a list for a repeatable option."""
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return [str(one) for one in value]
    if isinstance(value, bool | str | int | float):
        return value
    raise UsageError(f"{where}: unexpected type {type(value).__name__}", slug="wrong-setting")


READER_LEFT = 141  # Exit code that shells report for a process ended by SIGPIPE.

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_EXHAUSTED = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN})
# In messages of errors of other types: threads and shared libraries.
_SIGNS_OF_EXHAUSTION = ("start new thread", "Cannot allocate memory", "failed to map segment")


def exit_code_of(work: Callable[[], object]) -> int:
    """Run a command, print its error if it raises one, and return the exit code.

    A result of `work` that is not a number means 0.
    """
    try:
        code = work()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SystemExit as end:
        return exit_code_of(partial(_system_exit_code, end))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except streams.ReaderLeft:
        return READER_LEFT
    except UprofError as err:
        put_error(err)
        return err.exit_code
    except Exception as err:
        return _unexpected_error_code(err)


def _system_exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    streams.tell(printable(str(end.code)))
    return 1


def _unexpected_error_code(error: Exception) -> int:
    # Before Python 3.12, the exception of a signal in `__set_name__` becomes a RuntimeError.
    if isinstance(error.__cause__, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error.__cause__, SystemExit):
        return exit_code_of(partial(_system_exit_code, error.__cause__))
    if isinstance(error, click.ClickException):
        return _click_error_code(error)
    if (known := _system_error(error)) is not None:
        put_error(known)
        return known.exit_code
    _report_bug(error)
    return BUG_EXIT_CODE


def _system_error(error: Exception) -> UprofError | None:
    """Return the error to show if a directory, permission, space or memory is missing."""
    if isinstance(error, FileNotFoundError) and not _folder_exists():
        return UsageError(
            "the current directory no longer exists",
            hint="cd to an existing directory",
            slug="no-current-folder",
        )
    number = error.errno if isinstance(error, OSError) else None
    text = printable((error.strerror if isinstance(error, OSError) else None) or str(error))[:300]
    if isinstance(error, OSError) and number == errno.ENAMETOOLONG:
        name = printable(str(error.filename))[:80]
        return StoreError(f"cannot read {name}...: {text}", slug="cannot-read")
    if isinstance(error, PermissionError) and error.filename:
        path = printable(str(error.filename))
        hint = "check the permissions of the file and of its directories"
        return StoreError(f"cannot read {path}: {text}", hint=hint, slug="cannot-read")
    causes = f"{error} {error.__cause__}"
    if number in _NO_SPACE or text.startswith("No usable temporary directory"):
        hint = "free some space, or set TMPDIR to another directory"
        return OutputError(f"cannot write: {text}", hint=hint, slug="no-temporary-space")
    exhausted = isinstance(error, MemoryError) or number in _EXHAUSTED
    if exhausted or any(sign in causes for sign in _SIGNS_OF_EXHAUSTION):
        return SystemLimitError(
            f"memory, file descriptors or processes ran out: {text or 'out of memory'}",
            hint="raise the limit (`ulimit -a` lists them), or use less data at once",
            slug="system-limit",
        )
    return None


def _click_error_code(error: click.ClickException) -> int:
    message = error.format_message()
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        streams.tell(message)
        return error.exit_code
    context = getattr(error, "ctx", None)
    hint = None if context is None else f"see `{context.command_path} --help`"
    parameter = getattr(error, "param", None)
    if context is not None and parameter is not None:
        source = context.get_parameter_source(parameter.name)
        if source is ParameterSource.ENVIRONMENT:
            hint = f"it is set in the environment variable {parameter.envvar}"
        elif source is ParameterSource.DEFAULT_MAP:
            hint = f"it is set in {printable(str(find_settings()))}"
    # uprof's style: lower case at the start, no full stop.
    message = message[:1].lower() + message[1:].strip().removesuffix(".")
    put_error(UprofError(message, hint=hint, slug="wrong-command-line"))
    return error.exit_code


def _folder_exists() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 (checks that the directory still exists)
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

    text = (
        f"uprof {VERSION}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: {redact_arguments(sys.argv)!r}\n\n{details}"
    )
    number, name = tempfile.mkstemp(prefix="uprof-bug-", suffix=".txt")
    try:
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except BaseException:  # the disk is full or memory ran out
        Path(name).unlink()
        raise
    return Path(name)


# Command or group -> first sentence of its help, in display order. The sentences are here so that
# `uprof --help` imports no command.
COMMANDS = {
    "run": "Profile a PyTorch workload, such as a training script.",
    "watch": "Measure time and memory of every step of a workload.",
    "capture": "Record a timeline of some steps of a watched workload.",
    "convert": "Convert recordings of other profilers to databases, without torch, CANN or "
    "a device.",
    "report": "Show time and memory of a run per operation, kernel, module or line.",
    "advise": "List findings by cost with advice, or estimate the gain of a change.",
    "view": "Open a run in the browser: as a page, or its timeline in Perfetto.",
    "export": "Export a report: timelines, flame graphs, pprof, Parquet, or the text "
    "files of msprof.",
    "diff": "Compare two runs operation by operation.",
    "gate": "Fail if a run is slower or uses more memory than its baseline.",
    "baseline": "Save runs as baselines and compare later runs with them.",
    "cluster": "Analyze a multi-rank run: stragglers, collective waits, slow links.",
    "check": "Check that a recording is decoded completely, or compare another exporter's "
    "database.",
    "anonymize": "Replace names, paths and texts of a recording, so that you can share it.",
    "db": "Inspect, check, upgrade, create and recover report files.",
    "mcp": "Serve reports to coding agents (MCP server on stdio).",
    "lsp": "Show costs of Python lines in the editor (language server on stdio).",
    "schema": "Print the JSON Schema of a command's JSON output.",
    "doctor": "Show which backends can run on this machine, and what is installed.",
}

# Former names; they are hidden.
_FORMER = ("build", "import", "what-if", "trace", "time", "memory", "recover")
# Module -> commands that it declares besides the one of its name.
_MODULES = {
    "run": ("time", "memory", "watch", "capture"),
    "convert": ("check", "anonymize", "build", "import"),
    "agents": ("mcp", "lsp", "schema", "doctor"),
    "report": ("advise", "what-if", "view"),
    "gate": ("diff",),
    "export": ("trace",),
    "db": ("recover",),
}

# Commands that run the user's program in this process.
_RUN_PROGRAMS = frozenset({"run", "watch", "time", "memory"})

# Commands of other tools -> commands of uprof.
_SIMILAR = {"profile": "run", "record": "run", "stat": "report", "show": "report", "open": "view"}


class _Commands(Mapping[str, Any]):
    """Commands by name, each built on first use.

    Building all of them takes 0.1 s.
    """

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS and name not in _FORMER:
            raise KeyError(name)
        if name not in command.COMMANDS.commands:
            module = next((one for one, names in _MODULES.items() if name in names), name)
            import_module(f"unified_prof.cli.{module}")
        return command.COMMANDS.commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*COMMANDS, *_FORMER))

    def __len__(self) -> int:
        return len(COMMANDS) + len(_FORMER)


class _Root(Group):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]  # it is only read

    def summary_of(self, ctx: Any, name: str) -> str | None:
        """Return the first sentence of a command's help without importing the command."""
        return COMMANDS.get(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` name, or raise UsageError with the nearest name."""
        name = args[0]
        if name not in _RUN_PROGRAMS:
            refuse_small_address_space()
            ctx.with_resource(limit_blas_threads())  # before the command's module imports NumPy
        if name not in self.commands and not name.startswith("-"):
            near = [_SIMILAR[name]] if name in _SIMILAR else get_close_matches(name, COMMANDS)
            raise UsageError(
                f"no such command '{name}'",
                hint=f"did you mean `uprof {near[0]}`?" if near else "see `uprof --help`",
                slug="wrong-command-line",
            )
        return super().resolve_command(ctx, args)


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"uprof {VERSION}")
        context.exit()


def _print_completion(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is not None and not context.resilient_parsing:
        script = get_completion_class(shell)
        assert script is not None
        click.echo(script(context.command, {}, "uprof", "_UPROF_COMPLETE").source())
        context.exit()


@click.pass_context
def _prepare(context: click.Context) -> None:
    if context.invoked_subcommand in _RUN_PROGRAMS:
        restore_garbage_collection()
    if context.invoked_subcommand not in ("run", "watch"):
        # These handle signals themselves because the workload's handlers must stay in place.
        context.with_resource(signals.ended_by_signals())
    if (path := find_settings()) is not None:
        context.default_map = {**read_settings(path, context.command)}


app = _Root(
    name="uprof",
    callback=_prepare,
    params=[
        Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version and exit.",
        ),
        Option(
            ["--show-completion"],
            type=click.Choice(["bash", "zsh", "fish"]),
            is_eager=True,
            expose_value=False,
            callback=_print_completion,
            help="Print the completion script of a shell, to be added to its start-up file.",
        ),
    ],
    context_settings={"auto_envvar_prefix": "UPROF"},
    epilog="Every option can also be set by an environment variable (UPROF_GATE_FORMAT for `gate "
    "--format`) or in pyproject.toml (`format` in [tool.uprof.gate]). Options take "
    "precedence over variables, variables over the file.",
    help="One profiler for PyTorch on NVIDIA CUDA, Huawei Ascend NPUs and the CPU.",
)


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit.

    Raises:
        SystemExit: With an exit code of `unified_prof.errors`. If a signal ended the workload of
            `uprof run`, the signal ends this process, too.
    """
    with streams.guarded(), reduced_garbage_collection():
        code = exit_code_of(lambda: app.main(argv, prog_name="uprof", standalone_mode=False))
    signals.end_process(code)
