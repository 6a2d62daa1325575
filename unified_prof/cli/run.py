"""`uprof run`: profile a workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof import signals, streams
from unified_prof.cli import hints
from unified_prof.cli.npu_options import with_npu_options
from unified_prof.cli.options import Force, Quiet
from unified_prof.cli.run_end import WIPE, RunEnd
from unified_prof.cli.untouched import Workload, is_measured, run_untouched
from unified_prof.cli.workload_command import WorkloadCommand
from unified_prof.errors import UsageError
from unified_prof.pipeline.outputs import default_directory
from unified_prof.pipeline.ranks import Chosen, rank_of
from unified_prof.pipeline.ranks import chosen_ranks as chosen_ranks_of
from unified_prof.plain import printable

if TYPE_CHECKING:
    from unified_prof.backends.base import Backend, RunSpec


class Scope(str, Enum):
    """Which operations a report keeps."""

    MODULE = "module"
    PROJECT = "project"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "run",
        cls=WorkloadCommand,
        no_args_is_help=True,
        epilog=(
            "Exit code: the workload's own when it is not 0; otherwise 0, 2 wrong use, 4 no such "
            "device, 5 nothing could be measured, 9 the output cannot be written; 130 after Ctrl-C."
        ),
    )(with_npu_options(run))


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]",
            help="The workload; everything after SCRIPT is its own.",
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("-m", "--module", metavar="MODULE", help="Run a module, as python -m does."),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            help="auto, cpu, cuda, npu, or one from another package. auto takes the first of "
            "npu, cuda, cpu whose device answers."
        ),
    ] = "auto",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Folder of the reports.",
            show_default="uprof_SCRIPT_TIME",
        ),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Of run-time, memory and timeline, separated by commas.",
            show_default="the backend's usual",
        ),
    ] = None,
    timeline_detail: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="What a timeline on cpu or cuda holds besides times, of shapes, stacks and "
            "memory, separated by commas; or none. Less is faster.",
            show_default="all",
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, help="Iterations to let pass before measuring.")
    ] = 2,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations to measure.")] = 10,
    project_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Files below it are yours and appear in stack frames.",
            show_default="this folder, or the script's if it lies elsewhere",
        ),
    ] = None,
    scope: Annotated[
        Scope,
        typer.Option(
            help="module: operations called below a module of the project; project: all with a "
            "frame in the project, such as a loss outside the model."
        ),
    ] = Scope.MODULE,
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE",
            help="Keep the lines of this package below yours, such as mylibrary.models; may be "
            "given several times.",
            show_default="model code of transformers, diffusers, timm, torchvision",
        ),
    ] = None,
    stop_after: Annotated[
        bool, typer.Option("--stop-after", help="End the script once all is measured.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command that would run, and end.")
    ] = False,
    ranks: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Of several ranks, those to measure, such as 0,8-15 or every:8. The others run "
            "as they would without uprof.",
        ),
    ] = "all",
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail where a rank cannot be measured although its workload did well. Without it "
            "only a run of one process fails; a rank leaves a report that says why.",
        ),
    ] = False,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="More operations.")] = False,
    json_: Annotated[
        bool,
        typer.Option(
            "--json", help="The result as one line on stdout; the workload's goes to stderr."
        ),
    ] = False,
    *,
    npu_options: Mapping[str, object],
) -> None:
    """Profile a PyTorch workload: a script with providers, or any training script.

    Everything after SCRIPT, or after -m MODULE, belongs to the workload. `uprof run --help-npu`
    shows the options that only --backend npu has.
    """
    chosen_ranks = chosen_ranks_of(ranks)
    workload = _workload(module, command or [], attach="pid" in npu_options)
    if not dry_run and not is_measured(rank_of(), chosen_ranks):
        run_untouched(workload)
    from unified_prof.backends.base import RunSpec

    say = _silent if quiet else streams.tell
    chosen = _backend(backend, say, dry_run=dry_run)
    spec = RunSpec(
        target=workload.target,
        is_module=workload.is_module,
        arguments=workload.arguments,
        reports=_reports(report, chosen),
        output_dir=output or default_directory(workload.target, workload.is_module, rank_of()),
        project_root=_project_root(project_root, workload),
        warmup=warmup,
        iterations=iterations,
        scope=scope.value,
        include=tuple(include or ()),
        stop_after=stop_after,
        options={**npu_options, **_timeline_options(timeline_detail)},
        relay=_say_all_but_info if quiet else streams.tell,
    )
    if dry_run:
        _show_command(chosen, spec)
        return
    if not force and (hint := hints.unrecovered(spec.output_dir)) is not None:
        say(f"uprof: hint: {printable(hint)}")
    shown = RunEnd(quiet=quiet, json=json_, top=50 if verbose else 10)
    exit_code = _run(chosen, spec, shown, force=force, strict=strict, ranks=chosen_ranks)
    raise typer.Exit(exit_code)


def _run(
    backend: Backend, spec: RunSpec, shown: RunEnd, *, force: bool, strict: bool, ranks: Chosen
) -> int:
    """Run and show what came of it; return the exit code."""
    from unified_prof.pipeline import run as pipeline

    result = None
    try:
        with (
            _progress(enabled=streams.is_terminal() and not shown.quiet) as progress,
            streams.as_found(),
            streams.stdout_to_stderr(enabled=shown.json),
            signals.ended_by_signals(in_children=False),
            signals.held_back_from_end_of_workload(),
        ):
            result = pipeline.run(
                backend,
                replace(spec, progress=progress),
                force=force,
                strict=strict,
                ranks=ranks,
                on_written=shown.written,
            )
    finally:  # also where a signal that came while the reports were written ends us now
        if result is not None:
            shown.ended(result)
    return result.exit_code


def _workload(module: str | None, command: list[str], *, attach: bool) -> Workload:
    if attach:
        if module is not None or command:
            raise UsageError("--pid records a running process, there is no workload to start")
        return Workload("process", False, ())
    if module is not None:
        return Workload(module, True, tuple(command))
    if not command:
        raise UsageError("nothing to run", hint="uprof run SCRIPT [ARGS]... or -m MODULE [ARGS]...")
    return Workload(command[0], False, tuple(command[1:]))


def _backend(name: str, say: Callable[[str], None], *, dry_run: bool) -> Backend:
    from unified_prof.backends import registry

    if name != registry.AUTO:
        return registry.make(name) if dry_run else registry.load(name)
    chosen = registry.choose()
    say(f"uprof: backend {chosen.name}")
    return chosen


def _show_command(backend: Backend, spec: RunSpec) -> None:
    describe: Callable[[RunSpec], list[str]] | None = getattr(backend, "describe", None)
    if describe is None:
        raise UsageError(
            f"backend {backend.name!r} runs the workload in this process, there is no command"
        )
    for line in describe(spec):
        typer.echo(line)


def _reports(text: str | None, backend: Backend) -> tuple[str, ...]:
    from unified_prof.backends.base import MEMORY, RUN_TIME, TIMELINE
    from unified_prof.backends.registry import default_reports

    if text is None:
        return default_reports(backend)
    known = (RUN_TIME, MEMORY, TIMELINE)
    asked = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in asked if name not in known]:
        raise UsageError(f"no report {unknown[0]!r}", hint=f"known: {', '.join(known)}")
    if not asked:
        raise UsageError("--report names no report", hint=f"known: {', '.join(known)}")
    return tuple(name for name in known if name in asked)


def _timeline_options(detail: str | None) -> dict[str, object]:
    if detail is None:
        return {}
    names = tuple(name.strip() for name in detail.split(",") if name.strip())
    return {"timeline_detail": () if names == ("none",) else names}


def _project_root(given: Path | None, workload: Workload) -> Path:
    if given is not None:
        if not given.is_dir():
            raise UsageError(f"--project-root {printable(str(given))} is not a folder")
        return given.resolve()
    here = Path.cwd()
    script = Path(workload.target).resolve()
    return here if workload.is_module or script.is_relative_to(here) else script.parent


def _say_all_but_info(line: str) -> None:
    if not line.startswith("[INFO]"):
        streams.tell(line)


def _silent(_: str) -> None:
    pass


@contextmanager
def _progress(*, enabled: bool) -> Iterator[Callable[[str], None]]:
    """Yield what shows a few words on one line of the terminal, wiped at the end."""
    if not enabled:
        yield _silent
        return
    wipe = WIPE
    try:
        # What the workload prints next begins at the left again.
        yield lambda text: streams.tell(f"{wipe}uprof: {text}\r", end="")
    finally:
        streams.tell(wipe, end="")
