"""The `uprof` command: one Typer application, one error boundary, one file per command."""

from __future__ import annotations

import sys
from importlib import import_module

import typer

from unified_prof import signals, streams
from unified_prof.cli import boundary, config
from unified_prof.cli.command_line import Application, Group
from unified_prof.version import VERSION

# One module a command (or group of commands, or several that are alike). Each has a function
# `register(app)`; heavy imports belong inside the commands' functions.
MODULES: tuple[str, ...] = (
    "run",
    "recover",
    "conversion",
    "report",
    "trace",
    "export",
    "diff",
    "gate",
    "baseline",
    "db",
    "doctor",
)


class _Root(Group):
    order = (
        *("run", "build", "import", "report", "trace", "export", "diff", "gate", "baseline"),
        *("db", "recover", "doctor"),
    )


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


for _module in MODULES:
    import_module(f"unified_prof.cli.{_module}").register(app)


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
