"""The options of `uprof run` for the NPU backend, made from its table of options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from unified_prof.backends.msprof_options import (
    BY_NAME,
    DEFAULT_PRESET,
    GROUPS,
    OPTIONS,
    PRESETS,
    MsprofOption,
)
from unified_prof.backends.npu_chips import CHIPS, UNKNOWN
from unified_prof.cli.command_line import OUTPUT, write_section
from unified_prof.cli.options import SCHEMA_HELP

SECTION = "Ascend NPU (--backend npu)"
_FIRST_GROUP = "What is recorded, and what becomes of it"
_Run = Callable[..., None]


def with_npu_options(run: _Run) -> _Run:
    """Return `run` with one more parameter a table entry, which it gets as `npu_options`.

    `npu_options` holds those that were given: name -> value.
    """
    parameters = [*_general(), *(_parameter(option) for option in OPTIONS)]
    help_npu = _help()
    names = [parameter.name for parameter in parameters]

    @functools.wraps(run)
    def wrapper(**arguments: Any) -> None:
        arguments.pop(help_npu.name, None)
        given = {name: arguments.pop(name) for name in names}
        run(**arguments, npu_options={k: v for k, v in given.items() if v not in (None, [])})

    own = inspect.signature(run, eval_str=True)
    kept = [p for p in own.parameters.values() if p.name != "npu_options"]
    wrapper.__signature__ = own.replace(parameters=[*kept, help_npu, *parameters])  # type: ignore[attr-defined]
    return wrapper


def _general() -> list[inspect.Parameter]:
    presets = ", ".join(PRESETS)
    return [
        _made(
            "preset",
            str | None,
            metavar="NAME",
            help=f"How much to record: {presets}. Single options override it; what msprof does not"
            " take on this chip is left out.",
            show_default=DEFAULT_PRESET,
        ),
        _made(
            "npu_chip",
            str | None,
            metavar="NAME",
            help=f"The chip, of {', '.join(chip.name for chip in CHIPS)}; {UNKNOWN}: ask nobody,"
            " and leave out what msprof refuses.",
            show_default="asked of msprof and npu-smi",
        ),
        _made(
            "exporter",
            str | None,
            metavar="uprof|native",
            help="Who builds the database; what uprof cannot decode is exported by msprof.",
            show_default="uprof",
        ),
        _made(
            "schema",
            str | None,
            metavar="REVISION",
            help=SCHEMA_HELP,
            show_default="documented",
            section=None,
        ),
        _made(
            "pid",
            int | None,
            metavar="PID",
            help="Record a running process (started with PROFILING_MODE=dynamic) for --duration"
            " seconds, or until Ctrl-C, instead of starting a workload.",
        ),
        _made(
            "msprof_arg",
            list[str] | None,
            metavar="--NAME=VALUE",
            help="Any other argument for msprof; may be given several times.",
        ),
    ]


def _parameter(option: MsprofOption) -> inspect.Parameter:
    if option.range:
        metavar = f"{option.range[0]}-{option.range[1]}"
    elif option.values:
        metavar = (",".join if option.many else "|".join)(option.values)
    else:
        metavar = "TEXT"
    return _made(option.name, str | None, metavar=metavar, help=option.help)


def _help() -> inspect.Parameter:
    info = typer.Option(
        "--help-npu",
        help="Show the options of --backend npu and exit.",
        is_eager=True,
        expose_value=False,
        callback=_show_section,
        rich_help_panel=OUTPUT,
    )
    return inspect.Parameter(
        "help_npu",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, info],
    )


def _show_section(context: typer.Context, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    command: Any = context.command
    formatter: Any = context.make_formatter()
    options = [one for one in command.params if getattr(one, "rich_help_panel", None) == SECTION]
    formatter.write_usage(
        context.command_path, "--backend npu [OPTIONS] [--] SCRIPT|-m MODULE [ARGS]..."
    )
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(
            "These are msprof's own options, checked before anything starts, with the tables of "
            "the database that each fills in brackets. `uprof run --help` shows all others."
        )
    for title in (_FIRST_GROUP, *GROUPS):
        of_group = [one for one in options if _group_of(one.name) == title]
        write_section(formatter, context, title, of_group)
    typer.echo(formatter.getvalue().rstrip("\n"))
    raise typer.Exit


def _group_of(name: str) -> str:
    return BY_NAME[name].group if name in BY_NAME else _FIRST_GROUP


def _made(
    name: str, kind: Any, *, section: str | None = SECTION, **settings: Any
) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    info = typer.Option(flag, rich_help_panel=section, **settings)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, info],
    )
