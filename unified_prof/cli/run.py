"""`uprof run`: profile a workload."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from unified_prof.cli.npu_options import with_npu_options
from unified_prof.cli.options import Force, Quiet
from unified_prof.cli.workload_command import WorkloadCommand
from unified_prof.errors import UsageError

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
    stop_after: Annotated[
        bool, typer.Option("--stop-after", help="End the script once all is measured.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command that would run, and end.")
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
    from unified_prof.backends.base import RunSpec
    from unified_prof.cli import run_text
    from unified_prof.pipeline import outputs
    from unified_prof.pipeline import run as pipeline

    target, arguments = _workload(module, command or [], attach="pid" in npu_options)
    say = _silent if quiet else _say
    chosen = _backend(backend, say, dry_run=dry_run)
    directory = output or outputs.default_directory(target, module is not None, outputs.rank_of())
    with _progress(enabled=sys.stderr.isatty() and not quiet) as progress:
        spec = RunSpec(
            target=target,
            is_module=module is not None,
            arguments=tuple(arguments),
            reports=_reports(report, chosen),
            output_dir=directory,
            project_root=_project_root(project_root, target, is_module=module is not None),
            warmup=warmup,
            iterations=iterations,
            scope=scope.value,
            stop_after=stop_after,
            options={**npu_options, **_timeline_options(timeline_detail)},
            progress=progress,
            relay=_say_all_but_info if quiet else _say,
        )
        if dry_run:
            _show_command(chosen, spec)
            return
        with _termination_as_exit(), _stdout_to_stderr(enabled=json_):
            result = pipeline.run(chosen, spec, force=force)
    for line in run_text.as_lines(result, verbose=verbose):
        say(line)
    if result.failure:
        typer.echo(f"uprof: {result.failure}", err=True)
    if json_:
        typer.echo(json.dumps(run_text.as_json(result)))
    raise typer.Exit(result.exit_code)


def _workload(module: str | None, command: list[str], *, attach: bool) -> tuple[str, list[str]]:
    if attach:
        if module is not None or command:
            raise UsageError("--pid records a running process, there is no workload to start")
        return "process", []
    if module is not None:
        return module, command
    if not command:
        raise UsageError("nothing to run", hint="uprof run SCRIPT [ARGS]... or -m MODULE [ARGS]...")
    return command[0], command[1:]


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


def _project_root(given: Path | None, target: str, *, is_module: bool) -> Path:
    if given is not None:
        if not given.is_dir():
            raise UsageError(f"--project-root {given} is not a folder")
        return given.resolve()
    here = Path.cwd()
    script = Path(target).resolve()
    return here if is_module or script.is_relative_to(here) else script.parent


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _say_all_but_info(line: str) -> None:
    if not line.startswith("[INFO]"):
        _say(line)


def _silent(_: str) -> None:
    pass


@contextmanager
def _progress(*, enabled: bool) -> Iterator[Callable[[str], None]]:
    """Yield what shows a few words on one line of the terminal, wiped at the end."""
    if not enabled:
        yield _silent
        return
    wipe = "\r\x1b[K"
    try:
        # What the workload prints next begins at the left again.
        yield lambda text: typer.echo(f"{wipe}uprof: {text}\r", err=True, nl=False)
    finally:
        typer.echo(wipe, err=True, nl=False)


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """Let SIGTERM end the workload like sys.exit, so that what was measured is still written."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    owner = os.getpid()
    signal.signal(signal.SIGTERM, leave)
    # A process forked by the workload (a data loader's worker) dies of SIGTERM as ever.
    os.register_at_fork(
        after_in_child=lambda: (
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if signal.getsignal(signal.SIGTERM) is leave
            else None
        )
    )
    try:
        yield
    finally:
        if os.getpid() == owner and signal.getsignal(signal.SIGTERM) is leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _stdout_to_stderr(*, enabled: bool) -> Iterator[None]:
    """Send what the workload prints to stderr, also from C and from its children."""
    if not enabled:
        yield
        return
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
