"""The `uprof` command: one Typer application, one error boundary, one file per command."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import typer

from unified_prof.cli import config
from unified_prof.cli.command_line import Application, Group
from unified_prof.errors import UprofError
from unified_prof.version import VERSION

# One module a command (or group of commands, or several that are alike). Each has a function
# `register(app)`; heavy imports belong inside the commands' functions.
MODULES: tuple[str, ...] = (
    "run",
    "conversion",
    "report",
    "trace",
    "diff",
    "gate",
    "baseline",
    "db",
    "doctor",
)


class _Root(Group):
    order = (
        *("run", "build", "import", "report", "trace", "diff", "gate", "baseline", "db"),
        "doctor",
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
    if (path := config.find(Path.cwd())) is not None:
        context.default_map = {**config.defaults(path, context.command)}


for _module in MODULES:
    import_module(f"unified_prof.cli.{_module}").register(app)


def main(argv: list[str] | None = None) -> None:
    """Run the command line; a UprofError becomes one or two stderr lines and its exit code."""
    try:
        app(argv)
    except UprofError as err:
        typer.echo(f"uprof: error: {err}", err=True)
        if err.hint:
            typer.echo(f"uprof: hint: {err.hint}", err=True)
        sys.exit(err.exit_code)
