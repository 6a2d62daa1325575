"""Options of `uprof run`, and the `RunSpec` that they describe.

An option about measuring is a field here and in `base.run_spec.RunSpec`; `MeasurementOptions.spec`
connects them. Options of the NPU backend are rows of `backends.msprof_options`.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unified_prof.backends.cann import CHIPS, UNKNOWN
from unified_prof.backends.msprof_options import (
    BY_NAME,
    DEFAULT_PRESET,
    OPTIONS,
    PRESETS,
)
from unified_prof.base import run_spec as asked
from unified_prof.base import streams
from unified_prof.base.text import printable
from unified_prof.cli.command import (
    HELP_ALL,
    SCHEMA_HELP,
    Command,
    Option,
    Quiet,
    argument,
    flag,
    help_page,
    option,
)
from unified_prof.errors import UsageError
from unified_prof.pipeline.distributed import Workload

if TYPE_CHECKING:
    from unified_prof.backends.registry import Backend


_NPU_PAGE = "--help-npu"


def npu_options() -> list[Option]:
    """Return the options of --backend npu, and --help-npu."""
    options = [_npu_option(name, **settings) for name, settings in _GENERAL.items()]
    for row in OPTIONS:
        if row.range:
            metavar = f"{row.range[0]}-{row.range[1]}"
        elif row.values:
            metavar = (",".join if row.many else "|".join)(row.values)
        else:
            metavar = "TEXT"
        options.append(_npu_option(row.name, metavar=metavar, help=row.help))
    show_help = help_page(
        _NPU_PAGE,
        "Show the options of --backend npu and exit.",
        note="Options of msprof, checked before anything starts; in brackets the database tables "
        "that each fills. `uprof run --help` shows other options.",
    )
    return [show_help, *options]


# Options of --backend npu that are not options of msprof.
_GENERAL: dict[str, dict[str, Any]] = {
    "preset": {
        "metavar": "NAME",
        "help": f"How much to record: {', '.join(PRESETS)}. Single options override the preset; "
        "options that msprof does not support on this chip are left out.",
        "show_default": DEFAULT_PRESET,
    },
    "npu_chip": {
        "metavar": "NAME",
        "help": f"Chip: {', '.join(chip.name for chip in CHIPS)}; {UNKNOWN}: do not detect the "
        "chip, and leave out options that msprof rejects.",
        "show_default": "detected by msprof and npu-smi",
    },
    "exporter": {
        "metavar": "uprof|native",
        "help": "Exporter that builds the database; msprof handles what uprof cannot decode.",
        "show_default": "uprof",
    },
    "schema": {
        "metavar": "REVISION",
        "help": SCHEMA_HELP,
        "show_default": "documented",
        "section": None,
        "shown_by": HELP_ALL,
    },
    "pid": {
        "type": int,
        "metavar": "PID",
        "help": "Record a running process (started with PROFILING_MODE=dynamic) for --duration"
        " seconds, or until Ctrl-C, instead of starting a workload.",
    },
    "npu": {
        "multiple": True,
        "metavar": "KEY=VALUE",
        "help": "Any of these options in short form: `--npu preset=full --npu l2=on`. Repeatable.",
    },
    "msprof_arg": {
        "multiple": True,
        "metavar": "--NAME=VALUE",
        "help": "Pass another argument to msprof. Repeatable.",
    },
}


def with_npu_pairs(given: Mapping[str, object]) -> dict[str, object]:
    """Return the given options of --backend npu with the pairs of `--npu KEY=VALUE` added.

    Raises:
        UsageError: A pair names no such option, or one that is also given by its full name.
    """
    options = {one.name: one for one in npu_options() if one.expose_value and one.name != "npu"}
    result = {name: value for name, value in given.items() if name != "npu"}
    pairs: Any = given.get("npu") or ()
    added: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        name = key.strip().lstrip("-").replace("-", "_")
        if name not in options or not separator:
            near = get_close_matches(name, options, n=1)
            raise UsageError(
                f"--npu {pair!r}: expected KEY=VALUE with the name of an option",
                hint=f"did you mean {near[0]}=...?" if near else "see `uprof run --help-npu`",
                slug="wrong-command-line",
            )
        if name in result:
            raise UsageError(
                f"--npu {pair} and --{name.replace('_', '-')} contradict each other",
                slug="contradicting-options",
            )
        converted = options[name].type.convert(value, options[name], None)
        added[name] = [*added.get(name, ()), converted] if options[name].multiple else converted
    return result | added


def _npu_option(name: str, **settings: Any) -> Option:
    section = BY_NAME[name].group if name in BY_NAME else "Recording and storage"
    settings = {"section": section, "shown_by": _NPU_PAGE, **settings}
    return Option([name, f"--{name.replace('_', '-')}"], **settings)


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """The workload, as on a `python` command line."""

    command: list[str] | None = argument(
        default=None,
        metavar="SCRIPT [ARGS]",
        help="Workload; all arguments after SCRIPT belong to it.",
    )
    module: str | None = option(
        "-m", "--module", metavar="MODULE", help="Run a module, like python -m."
    )

    def workload(self, *, attach: bool) -> Workload:
        """Return the workload to run, or an empty one if --pid records a running process.

        Raises:
            UsageError: No workload is given, or both a workload and --pid.
        """
        command = self.command or []
        if attach:
            if self.module is not None or command:
                raise UsageError(
                    "--pid records a running process and takes no workload",
                    slug="contradicting-options",
                )
            return Workload("process", False, ())
        if self.module is not None:
            return Workload(self.module, True, tuple(command))
        if not command:
            raise UsageError(
                "no workload given",
                hint="uprof run SCRIPT [ARGS]... or -m MODULE [ARGS]...",
                slug="nothing-to-run",
            )
        return Workload(command[0], False, tuple(command[1:]))


def check_script(workload: Workload, *, syntax: bool) -> None:
    """Check that the script exists and, if `syntax`, is valid Python, before torch is imported.

    Raises:
        UsageError: The script does not exist.
        Exit: It is not valid Python; Python's message has been printed.
    """
    path = Path(workload.target)
    if workload.is_module:
        return
    if path.exists():
        if not syntax:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they are shown when it runs
                compile(path.read_bytes(), str(path.absolute()), "exec", dont_inherit=True)
        except SyntaxError as error:
            sys.excepthook(SyntaxError, error.with_traceback(None), None)
            streams.tell(f"uprof: {printable(f'{path.name}: {type(error).__name__}: {error.msg}')}")
            raise click.exceptions.Exit(1) from None
        except (OSError, ValueError):  # reported when it is read
            pass
        return
    words = [*workload.target.split(), *workload.arguments]
    if re.fullmatch(r"python[0-9.]*", Path(words[0]).name):
        hint = f"leave out `{words[0]}`: uprof run {' '.join(words[1:])}".rstrip()
    else:
        folder = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        near = get_close_matches(path.name, folder, n=1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else "give the path of a .py file"
    raise UsageError(f"no such script: {workload.target}", hint=hint, slug="no-script")


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """Reports and iterations to measure, and which operations to keep."""

    report: str | None = option(
        metavar="LIST",
        help="Reports to write: run-time, memory, timeline; comma-separated.",
        show_default="depends on the backend",
    )
    timeline_detail: str | None = option(
        metavar="LIST",
        help="Timeline on cpu or cuda: also record shapes, stacks and memory "
        "(comma-separated), or none. All of them almost double the step time.",
        show_default="shapes",
        shown_by=HELP_ALL,
    )
    warmup: int = option(default=asked.WARMUP, min=0, help="Iterations to skip before measuring.")
    iterations: int = option(default=asked.ITERATIONS, min=1, help="Iterations to measure.")
    project_root: Path | None = option(
        metavar="DIR",
        help="Directory of the user's own files, which appear in stack frames.",
        show_default="the current directory, or the script's if it is outside",
        shown_by=HELP_ALL,
    )
    scope: str = option(
        default=asked.MODULE,
        choices=(asked.MODULE, asked.PROJECT),
        help="module: operations called below a module of the project; project: all "
        "operations with a frame in the project, for example a loss outside the "
        "model.",
        shown_by=HELP_ALL,
    )
    include: list[str] | None = option(
        metavar="PACKAGE",
        help="Keep frames of this package below the user's own, for example "
        "mylibrary.models. Repeatable.",
        show_default="model code of transformers, diffusers, timm, torchvision",
        shown_by=HELP_ALL,
    )
    batch_size: int | None = option(
        min=1, help="Batch size to request from the input provider.", shown_by=HELP_ALL
    )
    stop_after: bool = flag(help="End the script when the measurement is complete.")

    def spec(
        self,
        workload: Workload,
        backend: Backend,
        output: Path,
        npu_options: Mapping[str, object],
    ) -> asked.RunSpec:
        """Return the specification of a run of `workload` on `backend`.

        Raises:
            UsageError: An unknown report, or a path that is not a directory.
        """
        return asked.RunSpec(
            target=workload.target,
            is_module=workload.is_module,
            arguments=workload.arguments,
            reports=_reports(self.report, backend),
            output_dir=output,
            project_root=_project_root(self.project_root, workload),
            warmup=self.warmup,
            iterations=self.iterations,
            scope=self.scope,
            include=tuple(self.include or ()),
            batch_size=self.batch_size,
            stop_after=self.stop_after,
            options={**npu_options, **_timeline_options(self.timeline_detail)},
        )


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Options of the output."""

    quiet: Quiet = False
    verbose: bool = flag("-v", "--verbose", help="Show more operations.")
    json_: bool = flag("--json", help="Print the result as JSON; workload output goes to stderr.")


def _reports(text: str | None, backend: Backend) -> tuple[str, ...]:
    from unified_prof.backends.registry import default_reports

    if text is None:
        return default_reports(backend)
    known = (asked.RUN_TIME, asked.MEMORY, asked.TIMELINE)
    names = [name.strip() for name in text.split(",") if name.strip()]
    names = [asked.RUN_TIME if name == "time" else name for name in names]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            f"unknown report {unknown[0]!r}",
            hint=(f"known reports: {', '.join(known)}"),
            slug="unknown-report",
        )
    if not names:
        raise UsageError(
            "--report is empty", hint=(f"known reports: {', '.join(known)}"), slug="unknown-report"
        )
    return tuple(name for name in known if name in names)


def _timeline_options(detail: str | None) -> dict[str, object]:
    return {} if detail is None else {"timeline_detail": timeline_details(detail)}


def timeline_details(detail: str | None) -> tuple[str, ...]:
    """Return the details that --timeline-detail names; `none` is no detail."""
    names = tuple(name.strip() for name in (detail or "shapes").split(",") if name.strip())
    return () if names == ("none",) else names


def _project_root(given: Path | None, workload: Workload) -> Path:
    if given is not None:
        if not given.is_dir():
            raise UsageError(
                f"--project-root {printable(str(given))} is not a directory", slug="no-folder"
            )
        return given.resolve()
    here = Path.cwd()
    script = Path(workload.target).resolve()
    return here if workload.is_module or script.is_relative_to(here) else script.parent


MODULE_OPTIONS = ("-m", "--module")


class WorkloadCommand(Command):
    """Command that stops parsing options at the first positional argument, or after `-m MODULE`.

    Same as Python: in `python -m pkg --epochs 3` the option belongs to the module.
    """

    allow_interspersed_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse our options out of `args` and leave the workload's unchanged."""
        return super().parse_args(ctx, end_options_after_module(args, self._options_with_value()))

    def option_hint(
        self, ctx: click.Context, name: str, args: Sequence[str], *, cutoff: float = 0.8
    ) -> str:
        """Return a hint about an unknown option, which is probably an option of the script."""
        hint = super().option_hint(ctx, name, args, cutoff=cutoff)
        return hint or "options of the script go after its name: uprof run SCRIPT --OPTION"

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line."""
        return ["[OPTIONS]", "[--]", "SCRIPT|-m MODULE", "[ARGS]..."]

    def _options_with_value(self) -> frozenset[str]:
        names: set[str] = set()
        for param in self.params:
            flag: Any = getattr(param, "is_flag", False)
            if param.param_type_name == "option" and not flag:
                names.update(param.opts)
        return frozenset(names)


def end_options_after_module(args: list[str], with_value: frozenset[str]) -> list[str]:
    """Return `args` with `--` inserted after `-m MODULE` if that ends our options.

    Args:
        args: Arguments of the command.
        with_value: Names of our options that take a value.
    """
    position = 0
    while position < len(args):
        argument = args[position]
        name, equals, _ = argument.partition("=")
        if argument == "--" or not argument.startswith("-"):
            break
        if name in MODULE_OPTIONS or (argument.startswith("-m") and not argument.startswith("--")):
            end = position + (2 if argument in MODULE_OPTIONS else 1)
            return [*args[:end], "--", *args[end:]]
        position += 2 if not equals and argument in with_value else 1
    return args
