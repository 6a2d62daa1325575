"""Options of `uprof run`, and the `RunSpec` that they describe.

An option about measuring is a field here and in `base.run_spec.RunSpec`; `MeasurementOptions.spec`
connects them. Options of the NPU backend are rows of `backends.msprof_plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unified_prof.backends.cann import CHIPS, UNKNOWN
from unified_prof.backends.msprof_plan import DEFAULT_PRESET, OPTION_GROUPS, PRESETS
from unified_prof.base import run_spec as asked
from unified_prof.base.text import printable
from unified_prof.cli import command as cli
from unified_prof.errors import UsageError
from unified_prof.pipeline.outputs import Workload

if TYPE_CHECKING:
    from unified_prof.backends.registry import Backend


_NPU_PAGE = "--help-npu"


_NPU = {"section": "Recording and storage", "shown_by": _NPU_PAGE}


@dataclass(frozen=True, slots=True)
class _GeneralOptions:
    """Options of --backend npu that are not options of msprof."""

    preset: str | None = cli.option(
        f"How much to record: {', '.join(PRESETS)}. Single options override the preset; options "
        f"that msprof does not support on this chip are left out. [default: {DEFAULT_PRESET}]",
        "NAME",
        **_NPU,
    )
    npu_chip: str | None = cli.option(
        f"Chip: {', '.join(chip.name for chip in CHIPS)}; {UNKNOWN}: do not detect the chip, and "
        "leave out options that msprof rejects. [default: detected by msprof and npu-smi]",
        "NAME",
        **_NPU,
    )
    exporter: str | None = cli.option(
        "Exporter that builds the database; msprof handles what uprof cannot decode. "
        "[default: uprof]",
        "uprof|native",
        **_NPU,
    )
    schema: str | None = cli.rare_option(f"{cli.SCHEMA_HELP} [default: documented]", "REVISION")
    pid: int | None = cli.option(
        "Record a running process (started with PROFILING_MODE=dynamic) for --duration seconds, or "
        "until Ctrl-C, instead of starting a workload.",
        "PID",
        **_NPU,
    )
    npu: list[str] | None = cli.option(
        "Any of these options in short form: `--npu preset=full --npu l2=on`. Repeatable.",
        "KEY=VALUE",
        **_NPU,
    )
    msprof_arg: list[str] | None = cli.option(
        "Pass another argument to msprof. Repeatable.", metavar="--NAME=VALUE", **_NPU
    )


def npu_options() -> list[cli.Option]:
    """Return the options of --backend npu, and --help-npu."""
    show_help = cli.help_page(
        _NPU_PAGE,
        "Show the options of --backend npu and exit.",
        note="Options of msprof, checked before anything starts; in brackets the database tables "
        "that each fills. `uprof run --help` shows other options.",
    )
    options = [show_help, *cli.options_of(_GeneralOptions)]
    for section, rows in OPTION_GROUPS.items():
        for row in rows:
            metavar = (",".join if row.many else "|".join)(row.values) or "TEXT"
            options.append(
                cli.Option(
                    [row.name, f"--{row.flag}"],
                    metavar=f"1-{row.most}" if row.most else metavar,
                    help=row.help,
                    section=section,
                    shown_by=_NPU_PAGE,
                )
            )
    return options


def with_npu_pairs(given: Mapping[str, object]) -> dict[str, object]:
    """Return the given options of --backend npu with the pairs of `--npu KEY=VALUE` added.

    Raises UsageError if a pair names no such option, or one that is also given by its full name.
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


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """The workload, as on a `python` command line."""

    command: list[str] | None = cli.argument(
        "Workload; all arguments after SCRIPT belong to it.", "SCRIPT [ARGS]", default=None
    )
    module: str | None = cli.option("Run a module, like python -m.", "-m --module MODULE")

    def workload(self, *, attach: bool) -> Workload:
        """Return the workload to run, or an empty one if --pid records a running process.

        Raises UsageError if no workload is given, or both a workload and --pid.
        """
        command = tuple(self.command or ())
        if attach:
            given = command or self.module is not None
            cli.refuse(given, "--pid records a running process and takes no workload")
            return Workload("process", False, ())
        if self.module is not None:
            return Workload(self.module, True, command)
        cli.refuse(
            not command,
            "no workload given",
            hint="uprof run SCRIPT [ARGS]... or -m MODULE [ARGS]...",
            slug="nothing-to-run",
        )
        return Workload(command[0], False, command[1:])


def check(workload: Workload, *, syntax: bool) -> None:
    """Check a script before torch is imported, see `check_script`; exits if it is not valid."""
    from unified_prof.tracking.program import check_script

    if not workload.is_module and not check_script(
        workload.target, workload.arguments, syntax=syntax
    ):
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """Reports and iterations to measure, and which operations to keep."""

    report: str | None = cli.option(
        "Reports to write: run-time, memory, timeline; comma-separated. [default: depends on the "
        "backend]",
        "LIST",
    )
    timeline_detail: str | None = cli.rare_option(
        "Timeline on cpu or cuda: also record shapes, stacks and memory (comma-separated), or "
        "none. All of them almost double the step time. [default: shapes]",
        "LIST",
    )
    warmup: int = cli.option("Iterations to skip before measuring.", default=asked.WARMUP, min=0)
    iterations: int = cli.option("Iterations to measure.", default=asked.ITERATIONS, min=1)
    project_root: Path | None = cli.rare_option(
        "Directory of the user's own files, which appear in stack frames. [default: the current "
        "directory, or the script's if it is outside]",
        "DIR",
    )
    scope: str = cli.rare_option(
        "module: operations called below a module of the project; project: all operations with a "
        "frame in the project, for example a loss outside the model.",
        default=asked.MODULE,
        choices=(asked.MODULE, asked.PROJECT),
    )
    include: list[str] | None = cli.rare_option(
        "Keep frames of this package below the user's own, for example mylibrary.models. "
        "Repeatable. [default: model code of transformers, diffusers, timm, torchvision]",
        "PACKAGE",
    )
    batch_size: int | None = cli.rare_option(
        "Batch size to request from the input provider.", min=1
    )
    stop_after: bool = cli.flag("End the script when the measurement is complete.")

    def spec(
        self, workload: Workload, backend: Backend, output: Path, npu_options: Mapping[str, object]
    ) -> asked.RunSpec:
        """Return the specification of a run of `workload` on `backend`.

        Raises:
            UsageError: An unknown report, or a path that is not a directory.
        """
        detail: dict[str, object] = {}
        if self.timeline_detail is not None:
            detail["timeline_detail"] = timeline_details(self.timeline_detail)
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
            options={**npu_options, **detail},
        )


def _reports(text: str | None, backend: Backend) -> tuple[str, ...]:
    from unified_prof.backends.registry import default_reports

    if text is None:
        return default_reports(backend)
    known = (asked.RUN_TIME, asked.MEMORY, asked.TIMELINE)
    names = [asked.RUN_TIME if name == "time" else name for name in names_in(text)]
    unknown = [name for name in names if name not in known]
    cli.refuse(
        unknown or not names,
        f"unknown report {unknown[0]!r}" if unknown else "--report is empty",
        hint=f"known reports: {', '.join(known)}",
        slug="unknown-report",
    )
    return tuple(name for name in known if name in names)


def names_in(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def timeline_details(detail: str | None) -> tuple[str, ...]:
    """Return the details that --timeline-detail names; `none` is no detail."""
    names = (*names_in(detail or "shapes"),)
    return () if names == ("none",) else names


def _project_root(given: Path | None, workload: Workload) -> Path:
    if given is not None:
        what = f"--project-root {printable(str(given))} is not a directory"
        cli.refuse(not given.is_dir(), what, slug="no-folder")
        return given.resolve()
    here = Path.cwd()
    script = Path(workload.target).resolve()
    return here if workload.is_module or script.is_relative_to(here) else script.parent


def make_backend(name: str, say: Callable[[str], None], *, unchecked: bool = False) -> Backend:
    """Return a backend; `unchecked` if the machine need not be able to run it."""
    from unified_prof.backends import registry

    if name != registry.AUTO:
        return registry.make(name) if unchecked else registry.load(name)
    chosen = registry.choose()
    say(f"uprof: backend {chosen.name}")
    return chosen


MODULE_OPTIONS = ("-m", "--module")


class WorkloadCommand(cli.Command):
    """Command that stops parsing options at the first positional argument, or after `-m MODULE`.

    Same as Python: in `python -m pkg --epochs 3` the option belongs to the module.
    """

    allow_interspersed_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse our options out of `args` and leave the workload's unchanged."""
        options = [one for one in self.params if isinstance(one, cli.Option) and not one.is_flag]
        with_value = {name for option in options for name in option.opts}
        return super().parse_args(ctx, end_options_after_module(args, with_value))

    def option_hint(
        self, ctx: click.Context, name: str, args: Sequence[str], *, cutoff: float = 0.8
    ) -> str:
        """Return a hint about an unknown option, which is probably an option of the script."""
        hint = super().option_hint(ctx, name, args, cutoff=cutoff)
        return hint or "options of the script go after its name: uprof run SCRIPT --OPTION"

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line."""
        return ["[OPTIONS]", "[--]", "SCRIPT|-m MODULE", "[ARGS]..."]


def end_options_after_module(args: list[str], with_value: Collection[str]) -> list[str]:
    """Return `args` with `--` inserted after `-m MODULE` if that ends our options.

    `with_value` has the names of our options that take a value.
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
