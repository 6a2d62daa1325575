"""The `uprof` command: one Typer application, one error boundary, one file per command."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from unified_prof import signals, streams
from unified_prof.cli import boundary, config
from unified_prof.cli.command_line import Application, Group
from unified_prof.version import VERSION

# Command (or group of commands) -> its module in this package, in the order of the screen. A module
# has a function `register(app)`; heavy imports belong inside the commands' functions.
COMMANDS: dict[str, str] = {
    "run": "run",
    "build": "conversion",
    "import": "conversion",
    "report": "report",
    "trace": "trace",
    "export": "export",
    "diff": "diff",
    "gate": "gate",
    "baseline": "baseline",
    "cluster": "cluster",
    "db": "db",
    "recover": "recover",
    "doctor": "doctor",
}


class _Commands(Mapping[str, Any]):
    """The commands by name, each made when it is asked for.

    To import all of them and turn their functions into options takes a tenth of a second.
    """

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            part = Application()
            import_module(f"unified_prof.cli.{COMMANDS[name]}").register(part)
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
    with streams.guarded():
        code = boundary.exit_code_of(lambda: _run(argv))
    sys.exit(code)


def _run(argv: list[str] | None) -> object:
    command = typer.main.get_command(app)
    return command.main(argv, prog_name="uprof", standalone_mode=False)
