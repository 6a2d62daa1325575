"""Commands `uprof watch` and `uprof capture`: follow a running program, and record some steps."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from unified_prof.base import signals, streams
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
    timeline_details,
)
from unified_prof.errors import CaptureError
from unified_prof.pipeline.outputs import (
    default_directory,
    exec_unprofiled,
    is_measured,
    parse_ranks,
    rank_of,
)


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
    from unified_prof.backends.msprof_dynamic import MODE, MODE_VARIABLE
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
