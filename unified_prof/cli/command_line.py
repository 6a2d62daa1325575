"""How every command appears on the command line: variables, help by sections, examples.

Typer names variables after Python's parameters and lists all options in one heap. Here a variable
is named after its option (`UPROF_GATE_FORMAT` for `uprof gate --format`), the screen has sections,
and examples stand where people look first: before the exit codes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from unified_prof.cli import values
from unified_prof.cli.examples import EXAMPLES
from unified_prof.errors import UsageError

_Function = TypeVar("_Function", bound=Callable[..., Any])

OUTPUT = "Output"
_OUTPUT_OPTIONS = frozenset(
    "--output --force --format --json --quiet --verbose --dry-run --no-backup".split()
)
_ENOUGH_FOR_SECTIONS = 9
"""With fewer options than this, one section is easier to read than several."""

_METAVARS = (
    (r"<int( range)?>", "N"),
    (r"<float( range)?>", "NUMBER"),
    (r"<(str|text)>", "TEXT"),
    (r"<path>", "PATH"),
    (r"<([^>]*)>", r"\1"),
)
_EXTRA = re.compile(r"\s*\[((?:default|required|env var|x[<>]|[0-9]+<)[^\[\]]*)\]$")


class Application(typer.Typer):
    """A group of commands; what is added to it is a `Command` unless asked otherwise."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            **{
                "cls": Group,
                "no_args_is_help": True,
                "pretty_exceptions_enable": False,
                "rich_markup_mode": None,  # its tables cut long names off at 80 columns
                **settings,
            }
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """Return the decorator that adds a command."""
        return super().command(name, **{"cls": Command, **settings})


class _Shown:
    """What commands and groups of commands have in common."""

    folded: dict[str, str] = {}  # noqa: RUF012 (replaced as a whole, never changed)
    """Sections that --help does not show -> the option that does."""
    params: list[Any]
    epilog: str | None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read arguments, settings and variables."""
        for param in self.params:
            _name_variable(param, ctx.auto_envvar_prefix)
            values.make_plain(param)
        self._refuse_empty_output(ctx, args)
        return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]

    def _refuse_empty_output(self, ctx: Any, args: list[str]) -> None:
        """Raise UsageError for `-o ''`: an empty path means this folder, and nobody means that."""
        if ctx.resilient_parsing or not any(arg == "" or arg.endswith("=") for arg in args):
            return
        given, _, _ = self.make_parser(ctx).parse_args(list(args))  # type: ignore[attr-defined]
        outputs = [param.name for param in self.params if "--output" in param.opts]
        if any(given.get(name) == "" for name in outputs):
            raise UsageError(
                "-o is empty, expected a name",
                hint="a variable of the shell may be empty; `-o .` means this folder",
                slug="empty-output",
            )

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help, which no variable can ask for."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.allow_from_autoenv = False
            values.make_plain(option)
        return option

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the line that begins with `Usage:`."""
        pieces = ["[OPTIONS]"]
        for param in self.params:
            if param.param_type_name == "argument":
                name = param.metavar or param.name.upper()
                many = param.nargs == -1 and not name.endswith(("...", "]"))
                pieces.append(f"{name}..." if many else name)
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the options by sections."""
        arguments = [
            (param.metavar or param.name.upper(), param.help or "")
            for param in self.params
            if param.param_type_name == "argument" and not param.hidden
        ]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        for title, options in self._sections(ctx).items():
            if title not in self.folded:
                write_section(formatter, ctx, title, options)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write examples, and what the exit code says."""
        if examples := EXAMPLES.get(" ".join(ctx.command_path.split()[1:])):
            with formatter.section("Examples"):
                for line in _in_columns(examples):
                    formatter.write(f"  {line}\n")
        super().format_epilog(ctx, formatter)  # type: ignore[misc]

    def _sections(self, ctx: Any) -> dict[str, list[Any]]:
        """Return the options by the titles of their sections, in the order of the screen."""
        options = [param for param in self.get_params(ctx) if param.param_type_name == "option"]  # type: ignore[attr-defined]
        options = [param for param in options if not param.hidden]
        several = len(options) >= _ENOUGH_FOR_SECTIONS
        sections: dict[str, list[Any]] = {"Options": []}
        for option in options:
            title = getattr(option, "rich_help_panel", None)
            if title is None:
                is_output = several and _OUTPUT_OPTIONS.intersection(option.opts)
                title = OUTPUT if is_output else "Options"
            sections.setdefault(title, []).append(option)
        sections.setdefault(OUTPUT, []).extend(
            option for option in options if several and "--help" in option.opts
        )
        if several:
            sections["Options"] = [one for one in sections["Options"] if "--help" not in one.opts]
        return {title: found for title, found in sections.items() if found}


class Command(_Shown, TyperCommand):
    """A command of uprof."""


class Group(_Shown, TyperGroup):
    """A group of commands."""

    order: tuple[str, ...] = ()
    """The commands in the order of the screen; others follow."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the screen."""
        names = list(self.commands)  # Typer asks for each command to name them
        return [name for name in self.order if name in names] + [
            name for name in names if name not in self.order
        ]

    def summary_of(self, ctx: Any, name: str) -> str | None:
        """Return the first sentence of a command's help; None: it is not listed."""
        command = self.get_command(ctx, name)
        return None if command is None or command.hidden else command.get_short_help_str(limit=200)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the line that begins with `Usage:`."""
        return [*super().collect_usage_pieces(ctx), "COMMAND [ARGS]..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with its whole first sentence, then the options."""
        told = ((name, self.summary_of(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, summary in told if summary is not None])
        super().format_options(ctx, formatter)


def write_section(formatter: Any, ctx: Any, title: str, options: list[Any]) -> None:
    """Write one section of options."""
    with formatter.section(title):
        formatter.write_dl([_record(option, ctx) for option in options])


def is_setting(param: Any) -> bool:
    """Return whether variables and pyproject.toml may set a parameter.

    Not --help, --version and the like: left behind in an environment or a file, they would turn
    every command into one that does nothing and succeeds.
    """
    return bool(param.param_type_name == "option" and param.expose_value and not param.is_eager)


def _name_variable(param: Any, prefix: str | None) -> None:
    """Name an option's variable after its first long name."""
    if param.param_type_name == "option" and prefix is not None:
        name = next((one[2:] for one in param.opts if one.startswith("--")), None)
        if name is not None and is_setting(param):
            param.envvar = f"{prefix}_{name.replace('-', '_').upper()}"
        param.show_envvar = False
        param.allow_from_autoenv = False


def _record(option: Any, ctx: Any) -> tuple[str, str]:
    """Return an option's names with what it takes, and its help with its default."""
    names, text = option.get_help_record(ctx)
    for pattern, metavar in _METAVARS:
        names = re.sub(pattern, metavar, names)
    names = names.replace(" / ", ", ")
    extra = _EXTRA.search(text)
    if extra is None:
        return names, text
    text = text[: extra.start()]
    default = re.search(r"default: (\((.*)\)|[^;]*)", extra[1])
    if default is not None:
        text += f" [default: {default[2] or default[1]}]"
    if "required" in extra[1].split("; "):
        text += " [required]"
    return names, text


def _in_columns(examples: tuple[tuple[str, str], ...]) -> Iterator[str]:
    width = max(len(command) for command, _ in examples)
    for command, purpose in examples:
        yield f"{command:{width}}  {purpose}".rstrip()
