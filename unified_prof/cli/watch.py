"""Commands `uprof watch` and `uprof capture`: follow a running program, and record some steps."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from unified_prof.base import signals, streams
from unified_prof.base.text import printable
from unified_prof.cli import output as printing
from unified_prof.cli.command import HELP_ALL, AsJson, Quiet, argument, command, flag, option
from unified_prof.cli.run_options import (
    MeasurementOptions,
    WorkloadCommand,
    WorkloadOptions,
    check_script,
    timeline_details,
)
from unified_prof.errors import CaptureError, UsageError
from unified_prof.pipeline.distributed import (
    exec_unprofiled,
    is_measured,
    parse_ranks,
    rank_of,
)
from unified_prof.pipeline.outputs import default_directory


@command(
    "watch",
    cls=WorkloadCommand,
    no_args_is_help=True,
    epilog="Exit codes: the workload's own code if it is not 0; otherwise 0 success; 2 usage "
    "error; 4 device missing; 9 output cannot be written.",
)
def watch(
    *,
    what: WorkloadOptions,
    backend: str = option(
        default="auto", help="auto, cpu, cuda or npu; auto selects the first that is available."
    ),
    output: Path | None = option(
        "-o",
        "--output",
        metavar="DIR",
        help="Directory of the files, the same for all ranks.",
        show_default="uprof_SCRIPT_TIME",
    ),
    capture_steps: int = option(default=5, min=1, max=1000, help="Steps per capture."),
    slow: float = option(
        default=2.0,
        min=1.0,
        metavar="K",
        help="Capture after a step of K times the running median.",
    ),
    drift: float = option(
        default=10.0,
        min=1.0,
        metavar="PERCENT",
        help="Capture if steps take this much longer for good.",
    ),
    every: float | None = option(min=1.0, metavar="SECONDS", help="Also capture at this interval."),
    share: float = option(
        default=2.0,
        min=0.0,
        max=100.0,
        metavar="PERCENT",
        help="Most of the time that triggered captures may take; 0: only requested ones.",
    ),
    export: str | None = option(
        metavar="LIST",
        help="Also pass steps to opentelemetry, prometheus, tensorboard, wandb, mlflow "
        "(comma-separated).",
    ),
    live: bool = flag(help="Show the steps below the script's output if that is a terminal."),
    attach: Path | None = option(metavar="DIR", help="Show a watched run, from another terminal."),
    timeline_detail: str | None = option(
        metavar="LIST",
        help="Captures also record shapes, stacks and memory (comma-separated), or none.",
        show_default="shapes",
        shown_by=HELP_ALL,
    ),
    ranks: str = option(
        default="all",
        metavar="LIST",
        help="Ranks to watch, for example 0,8-15 or every:8.",
        shown_by=HELP_ALL,
    ),
    quiet: Quiet = False,
) -> None:
    """Watch a workload for its whole run: time, parts and memory of each step.

    Each rank writes one row per step to DIR/watch_rankN.db. A timeline of some steps is captured
    after a slow step, if step times or memory grow, on SIGUSR2, and on `uprof capture DIR`.
    `uprof report DIR` shows the run, also while it continues.
    """
    if attach is not None:
        if what.command or what.module is not None:
            raise UsageError(
                "--attach shows a watched run and takes no workload", slug="contradicting-options"
            )
        from unified_prof.cli import watch_live

        watch_live.attach(attach)
        return
    workload = what.workload(attach=False)
    if not is_measured(rank_of(), parse_ranks(ranks)):
        exec_unprofiled(workload)
    check_script(workload, syntax=True)
    from unified_prof.backends import registry
    from unified_prof.backends.msprof_dynamic import MODE, MODE_VARIABLE
    from unified_prof.backends.torch_device import workload_environment
    from unified_prof.pipeline import provenance
    from unified_prof.pipeline.watch import Watch, WatchSettings
    from unified_prof.tracking.workload import run_watched

    if backend == "npu":  # steps need no msprof
        chosen = registry.make(backend)
    else:
        chosen = registry.choose() if backend == registry.AUTO else registry.load(backend)
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
    names = [name.strip() for name in (export or "").split(",") if name.strip()]
    exporters = []
    if names:
        from unified_prof.integrations.watch_exporters import open_exporters

        exporters = open_exporters(
            names, folder, {name: value for name, value in facts.items() if value is not None}
        )
    is_first = not rank_of().number
    if not quiet and is_first:
        streams.tell(f"uprof: watching, steps in {printable(str(folder))}")
    shows = live and is_first and streams.is_terminal() and sys.stdout.isatty()
    if live and is_first and not shows and not quiet:
        streams.tell("uprof: note: --live needs a terminal at stdout and stderr")
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
        code = run_watched(
            spec,
            lambda bottoms: Watch(
                folder,
                chosen.name,
                settings=settings,
                facts=facts,
                exporters=exporters,
                bottoms=bottoms,
            ),
        )
    if not quiet and is_first:
        _say_summary(folder)
    raise click.exceptions.Exit(signals.status_of(code))


def _say_summary(folder: Path) -> None:
    from unified_prof.report.watch_document import run_figures, watch_document
    from unified_prof.sqlite.watch_file import read_folder

    document = watch_document(run_figures(read_folder(folder), folder))
    streams.tell(printing.message_text(document))


@command(
    "capture",
    epilog="Exit codes: 0 success; 2 usage error; 5 no capture in time, or it failed; 7 no "
    "watched run; 9 request cannot be written.",
)
def capture(
    target: str = argument(metavar="DIR|PID", help="Directory of a watched run, or its process."),
    steps: int = option(default=5, min=1, max=1000, help="Steps to record."),
    ranks: str = option(
        default="all", metavar="LIST", help="Ranks to record, for example 0,8-15 or every:8."
    ),
    timeout: float = option(
        default=120.0, min=0.0, metavar="SECONDS", help="Longest time to wait; 0: do not wait."
    ),
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Record a timeline of some steps of a running, watched workload.

    All ranks record the same steps. Prints the directory and the first finding of each capture.
    """
    from unified_prof.pipeline import watch_captures as captures
    from unified_prof.sqlite.watch_file import read_folder

    folder = captures.folder_of(int(target)) if target.isdecimal() else Path(target)
    known = read_folder(folder)
    chosen = parse_ranks(ranks)
    running = [rank for rank in sorted(known) if rank in chosen and known[rank].is_running]
    if not running:
        raise UsageError(
            f"no selected rank of {folder} is running",
            hint=f"see the steps so far with uprof report {folder}",
            slug="no-such-rank",
        )
    name = f"{time.time_ns()}_{os.getpid()}"
    request = captures.CaptureRequest(
        name, captures.common_step(known, running), steps, tuple(running)
    )
    captures.ask(folder, request)
    end_s = time.monotonic() + timeout
    waiting, made, failed = set(running), list[dict[str, Any]](), False
    while waiting and time.monotonic() < end_s:
        time.sleep(0.2)
        known = read_folder(folder, known)
        for rank in sorted(waiting):
            for event in known[rank].events:
                is_over = event.status in _DONE or (event.capture is None and event.finding)
                if event.kind == "request" and name in event.text and is_over:
                    failed |= event.status != "ready"
                    waiting.discard(rank)
                    fields = {"rank": rank, "status": event.status, "finding": event.finding}
                    place = folder / (event.capture or "")
                    made.append({"directory": str(place), **fields})
                    if not json_:
                        told = event.finding or str(event.status)
                        printing.put(f"{printable(str(place))}: {printable(told)}\n")
            if rank in waiting and not known[rank].is_running:
                waiting.discard(rank)
                failed = True
    if json_:
        printing.put_json({"captures": made})
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
    if not quiet and not timeout:
        streams.tell(f"uprof: requested, see uprof report {printable(str(folder))}")


_DONE = ("ready", "failed")
