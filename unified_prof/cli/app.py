"""The `uprof` command: one Typer application, one error boundary, one file per command."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from unified_prof import signals, streams
from unified_prof.cli import boundary, config, thrift
from unified_prof.cli.command_line import Application, Group
from unified_prof.version import VERSION

# Command (or group of commands) -> its module in this package, and the first sentence of its help,
# in the order of the screen. A module has a function `register(app)`; heavy imports belong inside
# the commands' functions. The sentence stands here so that the screen needs no module.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Profile a PyTorch workload: a script with providers, or any training script."),
    "build": (
        "conversion",
        "Build the databases of recorded Ascend PROF_* directories: no CANN, no NPU needed.",
    ),
    "import": (
        "conversion",
        "Make msprof databases of what other profilers recorded: no torch, no device needed.",
    ),
    "report": ("report", "Show where the time and the memory of a run went."),
    "advise": (
        "advise",
        "Say what could be better in a run, the costliest first, and what to try.",
    ),
    "what-if": ("what_if", "Say what a step would gain if something took less time."),
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
        "skyline_names",
        "Write the run time report of a script into one file, as Skyline's `time`.",
    ),
    "memory": (
        "skyline_names",
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
            import_module(f"unified_prof.cli.{COMMANDS[name][0]}").register(part)
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
        code = boundary.exit_code_of(lambda: _run(argv))
    sys.exit(code)


def _run(argv: list[str] | None) -> object:
    command = typer.main.get_command(app)
    return command.main(argv, prog_name="uprof", standalone_mode=False)
