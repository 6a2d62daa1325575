"""Foundations of every command: option groups, shared options, help screens, process tuning.

Option groups: a parameter whose type is a dataclass stands for the fields of that dataclass.

Values: Typer (0.29) lets pydantic build a validator per parameter, 0.1 s for every command. Plain
values (names, paths, choices, numbers within bounds) are converted here instead; all others, and
all errors, go to Typer. Other Typer versions are left alone.

Help: variables are named after options (`UPROF_GATE_FORMAT` for `uprof gate --format`), options
have sections, and examples come before exit codes.

Process tuning: imports create some 100,000 objects that all live on, and Python's garbage collector
visits them 120 times: a tenth of a small command's CPU time. NumPy's BLAS starts a thread per
processor that nothing here uses. Both are restored before a user's program runs.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from unified_prof.cli.examples import EXAMPLES
from unified_prof.errors import UsageError


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with dataclass parameters replaced by the fields of their dataclasses."""
    own = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in own.parameters.items()
        if is_dataclass(parameter.annotation)
    }

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        made = {
            name: group(**{one.name: arguments.pop(one.name) for one in fields(group)})
            for name, group in groups.items()
        }
        command(**arguments, **made)

    parameters: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        parameters += _fields(groups[name]) if name in groups else [_by_name(parameter)]
    wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapper


def _fields(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=types[one.name],
        )
        for one in fields(group)
    ]


def _by_name(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AsJsonFormat = Annotated[bool, typer.Option("--json", help="Same as --format json.")]
FullNames = Annotated[bool, typer.Option("--full-names", help="Do not truncate names in tables.")]
Noise = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="Run-to-run variation of an unchanged workload on this machine, for example 2%.",
        show_default="measured by `uprof gate --self-test`",
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Write to FILE instead of stdout."),
]
OneRank = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Select one rank of a multi-rank run.")
]
SCHEMA_HELP = "Schema revision: documented, latest, or the name of a revision."
Schema = Annotated[str, typer.Option("--schema", metavar="REVISION", help=SCHEMA_HELP)]


_Number = TypeVar("_Number", int, float)
# Longer numbers are left to Typer.
_DIGITS = 10

# Parameter settings that need no further validation.
_UNCHECKED = {
    "parser": None,
    "exists": False,
    "file_okay": True,
    "dir_okay": True,
    "writable": False,
    "resolve_path": False,
    "allow_dash": False,
    "path_type": None,
    "clamp": False,
}


class _NotPlain(Exception):  # noqa: N818 (none that anybody sees)
    """A value that Typer has to convert."""


def make_plain(param: Any) -> None:
    """Let a Typer parameter accept plain values without a validator."""
    made = getattr(param, "_runtime_param", "")
    if made is None and callable(getattr(param, "get_runtime_param", None)):
        param._runtime_param = _Plain(param)


class _Plain:
    """Stands in for a parameter's validator; builds the real one for values that are not plain."""

    def __init__(self, param: Any) -> None:
        self._param = param

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert a value."""
        try:
            return _plain(value, param)
        except _NotPlain:
            pass
        self._param._runtime_param = None  # it makes its own
        return self._param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _plain(value: Any, param: Any) -> Any:
    """Convert a plain value.

    Raises:
        _Odd: The value is not plain.
    """
    several = param.multiple or param.nargs == -1
    if value is None:
        return () if several else None
    about, kind = param.type_descriptor.parameter_info, param.type_descriptor.annotation
    if any(getattr(about, name, usual) not in (usual, None) for name, usual in _UNCHECKED.items()):
        raise _NotPlain
    if several and get_origin(kind) is list and isinstance(value, tuple | list):
        (kind,) = get_args(kind)
        return [_convert_one(each, kind, about) for each in value]
    return _convert_one(value, kind, about)


def _convert_one(value: Any, kind: Any, about: Any) -> Any:
    if not isinstance(kind, type):
        raise _NotPlain
    if issubclass(kind, Enum):
        return _choice(value, kind)
    if kind is int:
        return _within(_integer(value), about)
    if kind is float and type(value) is float:
        return _within(value, about)
    if kind is Path and isinstance(value, str | Path):
        # An existing path without read permission is an error that Typer reports.
        if not os.fspath(value) or (os.path.exists(value) and not os.access(value, os.R_OK)):  # noqa: PTH110
            raise _NotPlain
        return Path(_text(value)) if isinstance(value, str) else value
    if kind is str:
        return _text(value)
    raise _NotPlain


def _choice(value: Any, kind: type[Enum]) -> Enum:
    for one in kind:
        if value is one or (type(value) is str and value == one.value):
            return one
    raise _NotPlain


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < _DIGITS:
        return int(value)
    raise _NotPlain


def _within(number: _Number, about: Any) -> _Number:
    if (about.min is not None and number < about.min) or (
        about.max is not None and number > about.max
    ):
        raise _NotPlain
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _NotPlain
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that are no text
        raise _NotPlain from None
    return value


_CommandFunction = TypeVar("_CommandFunction", bound=Callable[..., Any])

OUTPUT = "Output"
_OUTPUT_OPTIONS = frozenset(
    "--output --force --format --json --quiet --verbose --dry-run --no-backup".split()
)
# Commands with fewer options have one section only.
_MIN_OPTIONS_FOR_SECTIONS = 9

_METAVARS = (
    (r"<int( range)?>", "N"),
    (r"<float( range)?>", "NUMBER"),
    (r"<(str|text)>", "TEXT"),
    (r"<path>", "PATH"),
    (r"<([^>]*)>", r"\1"),
)
_EXTRA_SECTIONS = re.compile(r"\s*\[((?:default|required|env var|x[<>]|[0-9]+<)[^\[\]]*)\]$")


class Application(typer.Typer):
    """Group of commands, built with our `Command` class."""

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

    def command(
        self, name: str | None = None, **settings: Any
    ) -> Callable[[_CommandFunction], _CommandFunction]:
        """Return a decorator that adds a command."""
        return super().command(name, **{"cls": Command, **settings})


class _HelpFormatting:
    """Behavior that commands and groups share."""

    # Sections that --help hides -> option that shows them.
    folded: dict[str, str] = {}  # noqa: RUF012 (replaced as a whole, never changed)
    params: list[Any]
    epilog: str | None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read arguments, settings and environment variables."""
        for param in self.params:
            _name_variable(param, ctx.auto_envvar_prefix)
            make_plain(param)
        self._refuse_empty_output(ctx, args)
        return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]

    def _refuse_empty_output(self, ctx: Any, args: list[str]) -> None:
        """Raise UsageError for `-o ''`, which would mean the current directory."""
        if ctx.resilient_parsing or not any(arg == "" or arg.endswith("=") for arg in args):
            return
        given, _, _ = self.make_parser(ctx).parse_args(list(args))  # type: ignore[attr-defined]
        outputs = [param.name for param in self.params if "--output" in param.opts]
        if any(given.get(name) == "" for name in outputs):
            raise UsageError(
                "-o is empty, expected a path",
                hint="a shell variable may be unset; use `-o .` for the current directory",
                slug="empty-output",
            )

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help, which cannot be set by a variable."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.allow_from_autoenv = False
            make_plain(option)
        return option

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the `Usage:` line."""
        pieces = ["[OPTIONS]"]
        for param in self.params:
            if param.param_type_name == "argument":
                name = param.metavar or param.name.upper()
                many = param.nargs == -1 and not name.endswith(("...", "]"))
                pieces.append(f"{name}..." if many else name)
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by section."""
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
        """Write examples and exit codes."""
        if examples := EXAMPLES.get(" ".join(ctx.command_path.split()[1:])):
            with formatter.section("Examples"):
                for line in _in_columns(examples):
                    formatter.write(f"  {line}\n")
        super().format_epilog(ctx, formatter)  # type: ignore[misc]

    def _sections(self, ctx: Any) -> dict[str, list[Any]]:
        """Return the options by section title, in display order."""
        options = [param for param in self.get_params(ctx) if param.param_type_name == "option"]  # type: ignore[attr-defined]
        options = [param for param in options if not param.hidden]
        several = len(options) >= _MIN_OPTIONS_FOR_SECTIONS
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


class Command(_HelpFormatting, TyperCommand):
    """A command of uprof."""


class Group(_HelpFormatting, TyperGroup):
    """A group of commands."""

    # Commands in display order; others follow.
    order: tuple[str, ...] = ()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the command names in display order."""
        names = list(self.commands)  # Typer asks for each command to name them
        return [name for name in self.order if name in names] + [
            name for name in names if name not in self.order
        ]

    def summary_of(self, ctx: Any, name: str) -> str | None:
        """Return the first sentence of a command's help, or None if the command is hidden."""
        command = self.get_command(ctx, name)
        return None if command is None or command.hidden else command.get_short_help_str(limit=200)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the `Usage:` line."""
        return [*super().collect_usage_pieces(ctx), "COMMAND [ARGS]..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands with their first sentences, then the options."""
        told = ((name, self.summary_of(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, summary in told if summary is not None])
        super().format_options(ctx, formatter)


def write_section(formatter: Any, ctx: Any, title: str, options: list[Any]) -> None:
    """Write one section of options."""
    with formatter.section(title):
        formatter.write_dl([_record(option, ctx) for option in options])


def is_setting(param: Any) -> bool:
    """Return True if variables and pyproject.toml may set a parameter.

    Excludes --help, --version and similar options: in an environment they would make every command
    succeed without doing anything.
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
    """Return an option's names and metavar, and its help with its default."""
    names, text = option.get_help_record(ctx)
    for pattern, metavar in _METAVARS:
        names = re.sub(pattern, metavar, names)
    names = names.replace(" / ", ", ")
    extra = _EXTRA_SECTIONS.search(text)
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


# New objects between two garbage collections; at most a few dozen MB of garbage.
_GC_THRESHOLD = 200_000
_THREADS = "OPENBLAS_NUM_THREADS"

# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h, and the maximum of the former.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT, _MOST_KEPT = 32 << 20, 256 << 20

# Python's own thresholds while ours are active.
_default_thresholds: tuple[int, int, int] | None = None
# True if no user program has run in this process.
_is_only_uprof = False


@contextmanager
def reduced_garbage_collection() -> Iterator[None]:
    """Collect garbage rarely within the block, or until `restore_garbage_collection` is called."""
    global _default_thresholds, _is_only_uprof
    if _default_thresholds is None and gc.get_threshold()[0]:  # 0: collection is disabled
        _default_thresholds, _is_only_uprof = gc.get_threshold(), True
        gc.set_threshold(_GC_THRESHOLD, *_default_thresholds[1:])
    try:
        yield
    finally:
        _restore()


def restore_garbage_collection() -> None:
    """Restore Python's garbage collection before a user's program runs."""
    global _is_only_uprof
    _is_only_uprof = False
    _restore()


def _restore() -> None:
    global _default_thresholds
    if _default_thresholds is not None:
        gc.set_threshold(*_default_thresholds)
        _default_thresholds = None


def skip_exit_collection() -> None:
    """Skip the garbage collection at process exit; must be the last call."""
    if _is_only_uprof:
        gc.freeze()


def keep_memory() -> None:
    """Let the GNU C library keep freed memory until the process ends.

    By default it returns freed megabytes to the kernel, which clears every page when they are
    allocated again: a twentieth of a conversion's time. Peak memory does not change.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library, or none of that name
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
    mallopt(_TRIM_THRESHOLD, _MOST_KEPT)


@contextmanager
def limit_blas_threads() -> Iterator[None]:
    """Keep NumPy from starting BLAS threads on import; a number set by the user is kept."""
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(_THREADS, None)
