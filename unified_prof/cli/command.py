"""Basis of all commands: declaration of options, and help screens.

A command is a function whose parameters are declared by `option(...)` or `argument(...)`. A
parameter whose type is a dataclass stands for the fields of that dataclass. Types determine how
values are read: `bool` is a flag, `list` is repeatable, a Literal is a choice.

Every option can also be set by a variable named after it (`UPROF_GATE_FORMAT` for `uprof gate
--format`). Help has sections, and examples come before exit codes.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from unified_prof.base import streams
from unified_prof.errors import UsageError

HELP = "--help"
HELP_ALL = "--help-all"  # Shows the whole help of a command with options that are rarely used.
_PAGE = "unified_prof.help_page"  # Key of the shown page in the context.


REQUIRED = MISSING  # Default of an option that must be given.


def option(help: str = "", names: str | None = "", *, default: Any = None, **settings: Any) -> Any:
    """Declare an option, as the default of a parameter or field, or in `Annotated`.

    Args:
        help: Help text, also with the default if that is not a constant.
        names: Names and metavar as in the help, "-o --output DIR"; without names, the option is
            named after its Python parameter.
        default: Value if the option is not given, or REQUIRED.
        settings: Those of `click.Option`, `choices`, `min` and `max` (limits of a number),
            `section` (heading in the help), and `shown_by` (option that shows this one if `--help`
            does not).
    """
    return field(default=default, metadata={"names": names, "settings": {"help": help, **settings}})


flag = functools.partial(option, default=False)
# Options that only --help-all shows.
rare_option = functools.partial(option, shown_by=HELP_ALL)
rare_flag = functools.partial(rare_option, default=False)


def argument(help: str = "", metavar: str | None = None, **settings: Any) -> Any:
    """Declare a positional argument."""
    return option(help, None, **{"default": REQUIRED, "metavar": metavar, **settings})


def refuse(
    wrong: object, message: str, *, hint: str | None = None, slug: str = "contradicting-options"
) -> None:
    """Raise UsageError if `wrong` is true."""
    if wrong:
        raise UsageError(message, hint=hint, slug=slug)


class Argument(click.Argument):
    """Positional argument with a help text."""

    def __init__(self, *args: Any, help: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.help = help

    @property
    def title(self) -> str:
        """Name in the help."""
        return self.metavar or str(self.name).upper()


class Option(click.Option):
    """Option that belongs to a section and a page of the help."""

    def __init__(
        self, *args: Any, section: str | None = None, shown_by: str = HELP, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.shown_by = shown_by
        self.allow_from_autoenv = False  # variables are named after the option, not the parameter
        self.section = section

    @property
    def long_name(self) -> str:
        """Name with two dashes."""
        return next((name for name in self.opts if name.startswith("--")), self.opts[0])

    @property
    def is_setting(self) -> bool:
        """True if variables and pyproject.toml may set this option.

        Excludes --help, --version and similar options: in an environment they would make every
        command succeed without doing anything.
        """
        return self.expose_value and not self.is_eager


def _refuse_empty(value: Any, param: click.Parameter | None, ctx: click.Context | None) -> None:
    """Raise UsageError for an empty path, which would mean the current directory."""
    if os.fspath(value) or param is None or (ctx and ctx.resilient_parsing):
        return
    is_output = "--output" in param.opts
    name = "-o" if is_output else param.opts[0]
    if isinstance(param, click.Argument):
        name = f"argument {param.make_metavar(ctx)}" if ctx else f"argument {name.upper()}"
    raise UsageError(
        f"{name} is empty, expected a path",
        hint="a shell variable may be unset; use `.` for the current directory",
        slug="empty-output" if is_output else "empty-path",
    )


class _PathType(click.Path):
    """Path of a file or directory, or URL; commands report unreadable files themselves."""

    name = "path"

    def __init__(self, kind: type[Path] | type[str]) -> None:
        super().__init__(readable=False)
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        _refuse_empty(value, param, ctx)
        return self._kind(os.fsdecode(super().convert(value, param, ctx)))


class _NumberType(click.ParamType[Any]):
    def __init__(self, kind: type[int] | type[float], low: float | None, high: float | None):
        self.name = "integer" if kind is int else "float"
        self._kind, self._low, self._high = kind, low, high

    def convert(self, value: Any, param: Any, ctx: Any) -> int | float:
        try:
            number = self._kind(value)
        except (TypeError, ValueError, OverflowError):
            what = "a whole number" if self._kind is int else "a number"
            self.fail(f"expected {what}, found {value!r}", param, ctx)
        if self._low is not None and number < self._low:
            self.fail(f"expected {self._low} or more, found {number}", param, ctx)
        if self._high is not None and number > self._high:
            self.fail(f"expected {self._high} or less, found {number}", param, ctx)
        return number


class _ChoiceType(click.Choice[str]):
    """Choice whose error names the most similar value."""

    def get_invalid_choice_message(self, value: Any, ctx: Any) -> str:
        near = get_close_matches(str(value), map(str, self.choices), n=1)
        message = super().get_invalid_choice_message(value, ctx).removesuffix(".")
        return f"{message}; did you mean {near[0]}?" if near else message


class _FlagType(click.types.BoolParamType):
    def convert(self, value: Any, param: Any, ctx: Any) -> bool:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"expected true or false, found {value!r}", param, ctx)


def _value_type(kind: Any, settings: dict[str, Any], *, is_place: bool) -> click.ParamType[Any]:
    low, high = settings.pop("min", None), settings.pop("max", None)
    choices = get_args(kind) if get_origin(kind) is Literal else settings.pop("choices", ())
    if choices:
        return _ChoiceType(list(choices))
    if kind is bool:
        return _FlagType()
    if kind in (int, float):
        return _NumberType(kind, low, high)
    if kind is Path or is_place:
        return _PathType(kind)
    assert kind is str, kind
    return click.STRING


def _parameter(parameter: inspect.Parameter) -> click.Parameter:
    """Return the Click parameter that an annotated Python parameter declares."""
    kind, declared, default = parameter.annotation, parameter.default, parameter.default
    if get_origin(kind) is Annotated:
        kind, declared = get_args(kind)
    else:
        default = declared.default
    words, settings = declared.metadata["names"], dict(declared.metadata["settings"])
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (one for one in get_args(kind) if one is not type(None))
    several = get_origin(kind) is list
    if several:
        (kind,) = get_args(kind)
    is_argument = words is None
    names = [word for word in (words or "").split() if word.startswith("-")]
    is_place = is_argument or "--output" in names
    settings["type"] = _value_type(kind, settings, is_place=is_place)
    is_required = default in (inspect.Parameter.empty, REQUIRED)
    if not is_required and default is not None:
        settings["default"] = default
    if is_argument:
        settings |= {"nargs": -1} if several else {}
        return Argument([parameter.name], required=is_required, **settings)
    if metavar := " ".join(words.split()[len(names) :]):
        settings["metavar"] = metavar
    if kind is bool:
        settings.setdefault("is_flag", True)
    return Option(
        [parameter.name, *(names or [f"--{parameter.name.replace('_', '-')}"])],
        required=is_required and kind is not bool,
        multiple=several,
        **settings,
    )


def make_command(
    function: Callable[..., Any],
    name: str,
    *,
    cls: type[Command] | None = None,
    replaced_by: str | None = None,
    tables: Mapping[str, Sequence[Option]] = MappingProxyType({}),
    **settings: Any,
) -> Command:
    """Return the command that runs `function`; its docstring is the help.

    Args:
        function: Function with declared parameters; dataclass parameters stand for their fields.
        name: Name of the command.
        cls: Class of the command.
        replaced_by: New spelling, if `name` is a former one: the command is hidden, prints it, and
            has the flags in it.
        tables: Parameter -> options that are passed to it as one dict; it has the options that were
            given.
        settings: Other arguments of `click.Command`.
    """
    params: list[click.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if parameter.name in tables:
            params += tables[parameter.name]
        elif is_dataclass(kind):
            groups[parameter.name] = kind
            params += map(_parameter, _fields(kind, parameter.default))
        else:
            params.append(_parameter(parameter))
    if any(getattr(one, "shown_by", HELP) == HELP_ALL for one in params):
        params.append(help_page(HELP_ALL, "Show all options and exit codes, and exit."))
    several = {one.name for one in params if one.multiple or one.nargs == -1}

    @functools.wraps(function)
    def call(**values: Any) -> Any:
        if replaced_by is not None and not values.get("quiet"):
            former = click.get_current_context().command_path
            streams.tell(f"uprof: note: `{former}` is now `uprof {replaced_by}`")
        for key in several.intersection(values):
            values[key] = list(values[key]) or None
        for key, group in groups.items():
            values[key] = group(**{one.name: values.pop(one.name) for one in fields(group)})
        for key, options in tables.items():
            given = {one.name: values.pop(one.name) for one in options if one.expose_value}
            values[key] = {name: value for name, value in given.items() if value is not None}
        return function(**values)

    settings |= {"hidden": True} if replaced_by is not None else {}
    settings.setdefault("help", inspect.getdoc(function))
    made = (cls or Command)(name, params=params, callback=call, **settings)
    made.replaced_by = replaced_by
    return made


def help_page(name: str, help: str, *, note: str | None = None) -> Option:
    """Return the option that shows the options which declare it as `shown_by`.

    HELP_ALL shows those of --help, too. A page with a note at its top has neither arguments nor
    examples.
    """

    def show(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            context.meta[_PAGE] = (name, note)
            click.echo(context.get_help())
            context.exit()

    flag: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
    return Option([name], **flag, callback=show, help=help, section=OUTPUT)


def _page(context: click.Context) -> tuple[str, str | None]:
    """Return the page of the help to show, and its note."""
    page: tuple[str, str | None] = context.meta.get(_PAGE, (HELP, None))
    return page


def options_of(group: Any) -> list[Any]:
    """Return the options that the fields of a dataclass declare."""
    return list(map(_parameter, _fields(group, None)))


def _fields(group: Any, declared: Any) -> Iterator[inspect.Parameter]:
    """Yield the fields of a dataclass as parameters; `declared` may replace their declarations."""
    annotations = get_type_hints(group, include_extras=True)
    replaced = getattr(declared, "metadata", {})
    for one in fields(group):
        default, kind = one if one.metadata else one.default, inspect.Parameter.KEYWORD_ONLY
        default = replaced.get(one.name, default)
        yield inspect.Parameter(one.name, kind, default=default, annotation=annotations[one.name])


Force = Annotated[bool, option("Overwrite existing files.", "--force")]
Quiet = Annotated[bool, option("Print errors only.", "-q --quiet")]
AsJson = Annotated[bool, option("Print the result as JSON.", "--json")]
Convert = Annotated[
    bool,
    option(
        "Also accept recordings of other profilers; reports are cached in ~/.cache/uprof.",
        "--convert",
    ),
]
FullNames = Annotated[bool, rare_option("Do not truncate names in tables.", "--full-names")]
Noise = Annotated[
    str | None,
    rare_option(
        "Run-to-run variation of an unchanged workload on this machine, for example 2%. "
        "[default: measured by `uprof gate --self-test`]",
        "SHARE",
    ),
]
ReportPath = Annotated[
    Path, argument("A report of any kind, or a directory of reports.", "FILE|DIR")
]
_MORE = "Further report of the {}, as another sample. Repeatable."
MoreBase = Annotated[list[Path] | None, rare_option(_MORE.format("baseline"), "--base FILE")]
MoreNew = Annotated[list[Path] | None, rare_option(_MORE.format("candidate"), "--new FILE")]
OneRank = Annotated[int | None, option("Select one rank of a multi-rank run.", "N", min=0)]
SCHEMA_HELP = "Schema revision: documented, latest, or the name of a revision."
Schema = Annotated[str, option(SCHEMA_HELP, "--schema REVISION")]


def formats_of(*choices: str, help: str = "Output format.") -> Any:
    """Declare the formats of a parameter of type `ResultOptions`."""
    help += " [default: by -o, else text]"
    return field(metadata={"format_": option(help, "--format", choices=choices)})


_CommandFunction = TypeVar("_CommandFunction", bound=Callable[..., Any])

OUTPUT = "Output"
_OUTPUT_OPTIONS = frozenset(
    "--output --force --format --json --quiet --verbose --dry-run --no-backup --help".split()
)
_MIN_OPTIONS_FOR_SECTIONS = 9  # Commands with fewer options have one section only.
_MAX_NAME_WIDTH = 24  # Help texts of options with longer names begin on the next line.


class _HelpFormatting:
    """Behavior that commands and groups share."""

    params: list[Any]
    epilog: str | None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read arguments, settings and environment variables."""
        if ctx.auto_envvar_prefix is not None:
            for param in self.params:
                if isinstance(param, Option) and param.is_setting:
                    name = param.long_name[2:].replace("-", "_").upper()
                    param.envvar = f"{ctx.auto_envvar_prefix}_{name}"
        return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help, which cannot be set by a variable."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.allow_from_autoenv = False
        return option

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the `Usage:` line."""
        pieces = ["[OPTIONS]"]
        for param in self.params:
            if isinstance(param, Argument):
                many = param.nargs == -1 and not param.title.endswith(("...", "]"))
                pieces.append(f"{param.title}..." if many else param.title)
        return pieces

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Write nothing: `format_options` writes arguments, also before Click 8.5."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by section."""
        page, note = _page(ctx)
        arguments = [(one.title, one.help) for one in self.params if isinstance(one, Argument)]
        if arguments and note is None:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        pages = {HELP, HELP_ALL} if page == HELP_ALL else {page}
        for title, options in self.sections(ctx).items():
            if shown := [one for one in options if getattr(one, "shown_by", HELP) in pages]:
                with formatter.section(title):
                    formatter.write_dl(list(map(option_help, shown)), col_max=_MAX_NAME_WIDTH)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring; its first paragraph only if --help-all shows the rest."""
        page, note = _page(ctx)
        text = note or str(self.help)  # type: ignore[attr-defined]
        if page == HELP and any(HELP_ALL in one.opts for one in self.params):
            text = text.partition("\n\n")[0]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write examples and exit codes."""
        if _page(ctx)[1] is not None:
            return
        from unified_prof.cli.examples import EXAMPLES  # only help and errors need it

        if examples := EXAMPLES.get(" ".join(ctx.command_path.split()[1:])):
            width = max(len(command) for command, _ in examples)
            with formatter.section("Examples"):
                for command, purpose in examples:
                    formatter.write(f"  {command:{width}}  {purpose}".rstrip() + "\n")
        super().format_epilog(ctx, formatter)  # type: ignore[misc]

    def sections(self, ctx: Any) -> dict[str, list[Any]]:
        """Return the options by section title, in display order."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]  # type: ignore[attr-defined]
        options = [param for param in options if not param.hidden]
        several = len(options) >= _MIN_OPTIONS_FOR_SECTIONS
        sections: dict[str, list[Any]] = {"Options": []}
        for option in options:
            title = getattr(option, "section", None)
            if title is None:
                is_output = several and _OUTPUT_OPTIONS.intersection(option.opts)
                title = OUTPUT if is_output else "Options"
            sections.setdefault(title, []).append(option)
        return {title: found for title, found in sections.items() if found}


class Command(_HelpFormatting, click.Command):
    """A command of uprof."""

    replaced_by: str | None = None  # The new spelling of a former name.

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read arguments, settings and environment variables.

        Raises UsageError if an option is unknown or missing, or there are too many arguments.
        """
        flags = {name for param in self.params for name in param.opts if name.startswith("-")}
        args = [*(word for word in (self.replaced_by or "").split() if word in flags), *args]
        given = list(args)
        ctx.allow_extra_args = True
        try:
            extra = super().parse_args(ctx, args)
        except click.NoSuchOption as err:
            raise UsageError(
                f"no such option: {err.option_name}",
                hint=self.option_hint(ctx, err.option_name, given)
                or f"see `{ctx.command_path} --help`",
                slug="wrong-command-line",
            ) from None
        except click.MissingParameter as err:
            path = self.replaced_by or " ".join(ctx.command_path.split()[1:])
            from unified_prof.cli.examples import EXAMPLES

            examples = EXAMPLES.get(path, ())[:3]
            lines = ", ".join(f"`{command}`" for command, _ in examples)
            what = f"missing {err.param_type or 'parameter'} {err.param_hint or ''}".strip()
            if err.param is not None:
                hint = err.param.get_error_hint(ctx)
                what = f"missing {err.param.param_type_name} {hint}"
            raise UsageError(
                what,
                hint=f"for example {lines}" if lines else f"see `{ctx.command_path} --help`",
                slug="wrong-command-line",
            ) from None
        if extra and not ctx.resilient_parsing:
            raise self._extra_arguments(ctx, given, extra)
        return extra

    def option_hint(
        self, ctx: click.Context, name: str, args: Sequence[str], *, cutoff: float = 0.6
    ) -> str | None:
        """Return a hint about an unknown option, or None if no name is similar.

        `cutoff` is the minimum similarity of names; see `difflib.get_close_matches`.
        """
        known = [one for param in self.params for one in param.opts if one.startswith("--")]
        near = [f"-{one}" for one in args if f"-{one}" in known]  # -by for --by
        near = ["--help"] if name == "-h" else near
        near = near or get_close_matches(name, known, cutoff=cutoff)
        return f"did you mean {near[0]}?" if near else None

    def _extra_arguments(
        self, ctx: click.Context, args: Sequence[str], extra: Sequence[str]
    ) -> UsageError:
        hint = f"see `{ctx.command_path} --help`"
        files = [Path(one) for one in args if Path(one).is_file()]
        folders = {path.parent for path in files}
        if len(files) > len(extra) and len(folders) == 1 and str(*folders) != ".":
            hint = f"pass the directory: {ctx.command_path} {folders.pop()}"
        return UsageError(
            f"unexpected extra argument{'s' * (len(extra) > 1)}: {' '.join(extra)}",
            hint=hint,
            slug="wrong-command-line",
        )


class Group(_HelpFormatting, click.Group):
    """Group of commands; help lists them in the order of registration."""

    def __init__(self, name: str | None = None, **settings: Any) -> None:
        super().__init__(name, **{"no_args_is_help": True, **settings})

    def command(  # type: ignore[override]
        self, name: str | None = None, *, cls: type[Command] | None = None, **settings: Any
    ) -> Callable[[_CommandFunction], _CommandFunction]:
        """Return a decorator that adds a function as a command; see `make_command`."""

        def add(function: _CommandFunction) -> _CommandFunction:
            self.add_command(make_command(function, name or function.__name__, cls=cls, **settings))
            return function

        return add

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands in display order."""
        return list(self.commands)

    def summary_of(self, ctx: Any, name: str) -> str | None:
        """Return the first sentence of a command's help, or None if the command is hidden."""
        command = self.get_command(ctx, name)
        return None if command is None or command.hidden else command.get_short_help_str(limit=200)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the `Usage:` line."""
        return [*super().collect_usage_pieces(ctx), "COMMAND [ARGS]..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands with their first sentences, then the options."""
        summaries = [(name, self.summary_of(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, text in summaries if text is not None])
        _HelpFormatting.format_options(self, ctx, formatter)


# All commands that have been imported, by name; modules add them with the decorator `command`.
COMMANDS = Group()
command = COMMANDS.command


def option_help(option: click.Option) -> tuple[str, str]:
    """Return an option's names with its metavar, and its help with its default."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    if not option.is_flag:
        kind = option.type
        usual = {"integer": "N", "float": "NUMBER", "path": "PATH"}.get(kind.name, "TEXT")
        choices = "|".join(kind.choices) if isinstance(kind, click.Choice) else usual
        names += f" {option.metavar or choices}"
    text = option.help or ""
    default = option.to_info_dict()["default"]
    if isinstance(default, str | int | float) and default is not False and not option.is_flag:
        text += f" [default: {default}]"
    if option.required:
        text += " [required]"
    return names, text
