"""Commands that run a workload: `run` profiles it, `watch` follows it, `capture` records steps."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unified_prof.base import signals, streams
from unified_prof.base.run_spec import MEMORY, RUN_TIME, Turns
from unified_prof.base.text import printable
from unified_prof.cli import command as cli
from unified_prof.cli import output as printing
from unified_prof.cli.output import Printer
from unified_prof.cli.run_options import (
    MeasurementOptions,
    WorkloadCommand,
    WorkloadOptions,
    check,
    make_backend,
    names_in,
    npu_options,
    timeline_details,
    with_npu_pairs,
)
from unified_prof.errors import CaptureError, UsageError
from unified_prof.pipeline.outputs import (
    ALL,
    RankSelection,
    default_directory,
    exec_unprofiled,
    is_measured,
    parse_ranks,
    rank_of,
)
from unified_prof.sqlite.atomic import output_errors, refuse_existing

if TYPE_CHECKING:
    from unified_prof.backends.registry import Backend
    from unified_prof.base.run_spec import RunSpec
    from unified_prof.pipeline.live import RunResult


# Backends whose start takes seconds; backends of other packages check their targets themselves.
_LOADING_TORCH = ("auto", "cpu", "cuda", "npu")


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Prints the result of a run."""

    quiet: bool  # Print errors only.
    json: bool  # Print the result to stdout as one JSON line instead of text.
    top: int  # Rows of the table of operations.
    # Text -> replacement in messages, for files that are moved later.
    renamed: Mapping[str, str] = field(default_factory=dict)

    def written(self, files: Mapping[str, tuple[Path, ...]]) -> None:
        """Print that the reports are written; the workload continues."""
        if folders := sorted({str(path.parent) for paths in files.values() for path in paths}):
            where = printable(", ".join(folders))
            start = printing.WIPE if streams.is_terminal() else ""  # erase the progress line
            line = f"uprof: measurement complete, reports in {where} (the script is still running)"
            self._say(start + line)

    def _say(self, line: str) -> None:
        for text, replacement in self.renamed.items():
            line = line.replace(text, replacement)
        if not self.quiet:
            streams.tell(line)

    def ended(self, result: RunResult) -> None:
        """Print the result.

        Raises OutputError if the JSON result of a successful workload cannot be written to stdout.
        """
        rank = result.rank
        if rank is not None and rank.is_distributed:
            self._say(f"uprof: {printable(result.line)}")
        if rank is None or not rank.is_distributed or rank.number == 0:
            self._say_figures(result)
        if result.failure:
            streams.tell(f"uprof: {printable(result.failure)}")
        if self.json:
            try:
                streams.hand_over(json.dumps(result.fields()))
            except Exception:
                if not result.exit_code:
                    raise

    def _say_figures(self, result: RunResult) -> None:
        if result.files and not self.quiet:
            from unified_prof.report.document import Document
            from unified_prof.report.report_document import MORE_IN_REPORT, add_run_footer

            document = Document(more=MORE_IN_REPORT)
            command = add_run_footer(document, result.files, top=self.top)
            self._say(printing.message_text(document))
            where = printable(str(result.directory))
            self._say(f"\nnext  {command} {where}\npage  uprof view {where}")


@cli.command(
    "run",
    cls=WorkloadCommand,
    tables={"npu_options": npu_options()},
    no_args_is_help=True,
    epilog="Exit codes: the workload's own code if it is not 0; otherwise 0 success; 2 usage "
    "error; 4 device missing; 5 capture failed; 9 output cannot be written; 130 interrupted.",
)
def run(
    *,
    what: WorkloadOptions,
    backend: str = cli.option(
        "auto, cpu, cuda, npu, or a backend of another package. auto selects the first of npu, "
        "cuda, cpu that is available.",
        default="auto",
    ),
    output: Path | None = cli.option(
        "Directory for the reports. [default: uprof_SCRIPT_TIME]", "-o --output DIR"
    ),
    measured: MeasurementOptions,
    dry_run: bool = cli.flag("Print the command that would run, and exit."),
    ranks: str = cli.option(
        "Ranks to profile, for example 0,8-15 or every:8. Other ranks run unprofiled.",
        "LIST",
        default="all",
    ),
    batch_sizes: str | None = cli.rare_option(
        "Run once per batch size, for example 8,16,32.", "LIST"
    ),
    memory: str | None = cli.rare_option(
        "Memory limit for the largest-batch estimate, for example 24GiB.", "SIZE"
    ),
    strict: bool = cli.rare_flag(
        "Fail if a rank cannot be measured although its workload succeeded. By default, only "
        "single-process runs fail; a rank writes a report with the reason."
    ),
    force: cli.Force = False,
    quiet: cli.Quiet = False,
    verbose: bool = cli.flag("Show more operations.", "-v --verbose"),
    json_: bool = cli.flag("Print the result as JSON; workload output goes to stderr.", "--json"),
    npu_options: Mapping[str, object],
) -> None:
    """Profile a PyTorch workload, such as a training script.

    All arguments after SCRIPT, or after -m MODULE, belong to the workload. `uprof run --help-npu`
    shows the options of --backend npu.
    """
    npu_options, selected = with_npu_pairs(npu_options), parse_ranks(ranks)
    workload = what.workload(attach="pid" in npu_options)
    if not dry_run and not is_measured(rank_of(), selected):
        exec_unprofiled(workload)
    say = Printer(quiet).lines
    if not dry_run and "pid" not in npu_options and backend in _LOADING_TORCH:
        # JSON and the report of a rank contain the reason of a failure.
        check(workload, syntax=not json_ and not rank_of().is_distributed)
    chosen = make_backend(backend, say, unchecked=dry_run)
    folder = output or default_directory(workload.target, workload.is_module, rank_of())
    spec = measured.spec(workload, chosen, folder, npu_options)
    if dry_run:
        describe: Callable[[RunSpec], list[str]] | None = getattr(chosen, "describe", None)
        if describe is None:
            raise UsageError(
                f"backend {chosen.name!r} runs the workload in this process; there is no "
                "command to print",
                slug="option-of-another-backend",
            )
        for line in describe(spec):
            click.echo(line)
        return
    if (turns := Turns.of_environment()) is not None:
        spec = turns.applied_to(spec)
    from unified_prof.sqlite.run_spool import recovery_hint

    if not force and (hint := recovery_hint(spec.output_dir)) is not None:
        say(f"uprof: hint: {hint}")
    spec = replace(spec, relay=_say_all_but_info if quiet else streams.tell)
    if batch_sizes is not None or memory is not None:
        from unified_prof.pipeline.run_summary import BatchSizes, run_sizes

        wanted = BatchSizes.parse(batch_sizes, memory, spec)
        raise click.exceptions.Exit(
            run_sizes(
                wanted,
                lambda one: _run(
                    chosen,
                    one,
                    RunEnd(quiet=True, json=False, top=10),
                    force=force,
                    strict=strict,
                    ranks=selected,
                    own_stdout=json_,
                ),
                as_json=json_,
            )
        )
    shown = RunEnd(quiet=quiet, json=json_, top=50 if verbose else 10)
    exit_code = _run(chosen, spec, shown, force=force, strict=strict, ranks=selected)
    raise click.exceptions.Exit(exit_code)


def _run(
    backend: Backend,
    spec: RunSpec,
    shown: RunEnd,
    *,
    force: bool,
    strict: bool,
    ranks: RankSelection,
    own_stdout: bool = False,
) -> int:
    """Run, print the result and return the exit code.

    With `own_stdout`, output of the workload goes to stderr because stdout holds the result.
    """
    from unified_prof.pipeline import live as pipeline

    result = None
    try:
        with (
            printing.progress(shown.quiet) as progress,
            streams.as_found(),
            streams.stdout_to_stderr(enabled=shown.json or own_stdout),
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
    finally:  # also if a signal that arrived while the reports were written ends the process now
        if result is not None:
            shown.ended(result)
    return signals.status_of(result.exit_code)


def _say_all_but_info(line: str) -> None:
    if not line.startswith("[INFO]"):
        streams.tell(line)


# Former commands `uprof time` and `uprof memory`: Skyline's spelling, one report each.
def _skyline(
    report: str,
    entry_point: str = cli.argument("Script to profile, with or without providers.", "ENTRY_POINT"),
    output: Path = cli.option("Report to write.", "-o --output FILE", default=cli.REQUIRED),
    backend: str = cli.option("auto, cpu or cuda.", default="auto"),
    log_file: Path | None = cli.option("Ignored, for compatibility with Skyline.", hidden=True),
    debug: bool = cli.flag("Ignored, for compatibility with Skyline.", "--debug", hidden=True),
    force: cli.Force = False,
    quiet: cli.Quiet = False,
) -> None:
    """Write one report of a script, as Skyline's `time` and `memory`."""
    target = output.absolute()
    refuse_existing(target, overwrite=force)
    with output_errors(target):
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        chosen = make_backend(backend, Printer(quiet).lines)
        workload = WorkloadOptions([entry_point]).workload(attach=False)
        spec = MeasurementOptions(report=report).spec(workload, chosen, folder, {})
        spec = replace(spec, relay=_say_all_but_info if quiet else streams.tell)
        made = folder / f"{report.replace('-', '_')}.sqlite"
        renamed = {f"{folder.name}/{made.name}": target.name, folder.name: target.name}
        shown = RunEnd(quiet=quiet, json=False, top=10, renamed=renamed)
        exit_code = _run(chosen, spec, shown, force=True, strict=False, ranks=ALL)
        if made.exists():
            refuse_existing(target, overwrite=force)
            with output_errors(target):
                made.replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    raise click.exceptions.Exit(exit_code)


for _name, _report, _what in (("time", RUN_TIME, "run time"), ("memory", MEMORY, "memory")):
    cli.command(
        _name,
        help=f"Write only the {_what} report of a script, like Skyline's `{_name}`.\n\n"
        "`uprof run` has more options and writes both reports at once.",
        no_args_is_help=True,
        epilog="Exit codes: as `uprof run`; 9 if the file exists (use --force).",
        replaced_by=f"run --report {_name}",
    )(partial(_skyline, _report))


@cli.command(
    "watch",
    cls=WorkloadCommand,
    no_args_is_help=True,
    epilog="Exit codes: the workload's own code if it is not 0; otherwise 0 success; 2 usage "
    "error; 4 device missing; 9 output cannot be written.",
)
def watch(
    *,
    what: WorkloadOptions,
    backend: str = cli.option(
        "auto, cpu, cuda or npu; auto selects the first that is available.", default="auto"
    ),
    output: Path | None = cli.option(
        "Directory of the files, the same for all ranks. [default: uprof_SCRIPT_TIME]",
        "-o --output DIR",
    ),
    capture_steps: int = cli.option("Steps per capture.", default=5, min=1, max=1000),
    slow: float = cli.option(
        "Capture after a step that takes K times the running median.", "K", default=2.0, min=1.0
    ),
    drift: float = cli.option(
        "Capture if the step time grows by this share and does not recover.",
        "PERCENT",
        default=10.0,
        min=1.0,
    ),
    every: float | None = cli.option("Also capture at this interval.", "SECONDS", min=1.0),
    share: float = cli.option(
        "Maximum share of the run in triggered captures; 0: only requested captures.",
        "PERCENT",
        default=2.0,
        min=0.0,
        max=100.0,
    ),
    export: str | None = cli.option(
        "Also export each step to opentelemetry, prometheus, tensorboard, wandb, mlflow "
        "(comma-separated).",
        "LIST",
    ),
    live: bool = cli.flag("Show the steps below the script's output if that is a terminal."),
    attach: Path | None = cli.option("Show the watched run in DIR instead of starting one.", "DIR"),
    timeline_detail: str | None = cli.rare_option(
        "Captures also record shapes, stacks and memory (comma-separated), or none. [default: "
        "shapes]",
        "LIST",
    ),
    ranks: str = cli.rare_option(
        "Ranks to watch, for example 0,8-15 or every:8.", "LIST", default="all"
    ),
    quiet: cli.Quiet = False,
) -> None:
    """Measure time and memory of every step of a workload.

    Each rank writes one row per step to DIR/watch_rankN.db. A timeline of some steps is captured
    after a slow step, if step times or memory grow, on SIGUSR2, and on `uprof capture DIR`.
    `uprof report DIR` shows the run, also while it continues.
    """
    if attach is not None:
        cli.refuse(
            what.command or what.module, "--attach shows a watched run and takes no workload"
        )
        from unified_prof.cli import watch_live

        watch_live.attach(attach)
        return
    workload = what.workload(attach=False)
    if not is_measured(rank_of(), parse_ranks(ranks)):
        exec_unprofiled(workload)
    check(workload, syntax=True)
    from unified_prof.backends.msprof_outcome import MODE, MODE_VARIABLE
    from unified_prof.backends.torch_device import workload_environment
    from unified_prof.pipeline import provenance
    from unified_prof.pipeline.watch import Watch, WatchSettings
    from unified_prof.tracking.workload import run_watched

    # Steps need no msprof.
    chosen = make_backend(backend, lambda _: None, unchecked=backend == "npu")
    if chosen.name == "npu":
        os.environ.setdefault(MODE_VARIABLE, MODE)
    folder = output or default_directory(workload.target, workload.is_module, rank_of())
    settings = WatchSettings(
        steps=capture_steps,
        slow_factor=slow,
        drift_percent=drift,
        every_s=every,
        share=share / 100,
        details=timeline_details(timeline_detail),
    )
    spec = MeasurementOptions(report="timeline").spec(workload, chosen, folder, {})
    facts = provenance.of_run(spec, chosen.name, rank_of(), provenance.now())
    exporters = []
    if names := names_in(export or ""):
        from unified_prof.integrations.watch_exporters import open_exporters

        known = {name: value for name, value in facts.items() if value is not None}
        exporters = open_exporters(names, folder, known)
    is_first = not rank_of().number
    printer = Printer(quiet=quiet or not is_first)
    printer.lines(f"uprof: watching, steps in {folder}")
    shows = live and is_first and streams.is_terminal() and sys.stdout.isatty()
    if live and not shows:
        printer.note("--live needs a terminal at stdout and stderr")
    view: AbstractContextManager[None] = nullcontext()
    if shows:
        from unified_prof.cli import watch_live

        view = watch_live.below(folder)
    with (
        view,
        streams.as_found(),
        signals.ended_by_signals(in_children=False),
        signals.held_back_from_end_of_workload(),
        workload_environment(chosen.name),
    ):
        make = partial(
            Watch, folder, chosen.name, settings=settings, facts=facts, exporters=exporters
        )
        code = run_watched(spec, lambda bottoms: make(bottoms=bottoms))
    if not printer.quiet:
        from unified_prof.report.watch_document import run_figures, watch_document
        from unified_prof.sqlite.watch_file import read_folder

        document = watch_document(run_figures(read_folder(folder), folder))
        streams.tell(printing.message_text(document))
    raise click.exceptions.Exit(signals.status_of(code))


@cli.command(
    "capture",
    epilog="Exit codes: 0 success; 2 usage error; 5 capture failed or timed out; 7 no "
    "watched run; 9 request cannot be written.",
)
def capture(
    target: str = cli.argument("Directory or process id of a watched run.", "DIR|PID"),
    steps: int = cli.option("Steps to record.", default=5, min=1, max=1000),
    ranks: str = cli.option(
        "Ranks to record, for example 0,8-15 or every:8.", "LIST", default="all"
    ),
    timeout: float = cli.option(
        "Longest time to wait; 0: do not wait.", "SECONDS", default=120.0, min=0.0
    ),
    *,
    printer: Printer,
) -> None:
    """Record a timeline of some steps of a watched workload.

    All ranks record the same steps. Prints the directory and the first finding of each capture.
    """
    from unified_prof.pipeline import watch_captures as captures
    from unified_prof.sqlite.watch_file import read_folder

    folder = captures.folder_of(int(target)) if target.isdecimal() else Path(target)
    known, chosen = read_folder(folder), parse_ranks(ranks)
    running = [rank for rank in sorted(known) if rank in chosen and known[rank].is_running]
    cli.refuse(
        not running,
        f"no selected rank of {folder} is running",
        hint=f"see the steps so far with uprof report {folder}",
        slug="no-such-rank",
    )
    request = captures.CaptureRequest(
        f"{time.time_ns()}_{os.getpid()}", captures.common_step(known, running), steps, (*running,)
    )
    captures.ask(folder, request)
    waiting, made, failed = set(running), list[dict[str, Any]](), False
    for rank, event in captures.follow(folder, known, request, timeout):
        waiting.discard(rank)
        failed |= event is None or event.status != "ready"
        if event is not None:
            place = str(folder / (event.capture or ""))
            fields = {"rank": rank, "status": event.status, "finding": event.finding}
            made.append({"directory": place, **fields})
            if not printer.json_:
                printing.put(printable(f"{place}: {event.finding or event.status}") + "\n")
    printer.json(lambda: {"captures": made})
    if waiting and timeout:
        numbers = ", ".join(map(str, sorted(waiting)))
        raise CaptureError(
            f"no capture of rank {numbers} after {timeout:g} s",
            hint="the steps may be longer; it is made at the end of a step: see uprof report",
            slug="nothing-measured",
        )
    if failed:
        raise CaptureError(
            f"{len(made)} of {len(running)} captures were made, the others failed or the run ended",
            slug="nothing-measured",
        )
    if not timeout:
        printer.lines(f"uprof: requested, see uprof report {folder}")
