"""Command group `uprof cluster`: build, report, diff and gate of multi-rank runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import click

from unified_prof.cli import command as cli
from unified_prof.cli import output as printing
from unified_prof.cli.gate import FORMATS as GATE_FORMATS
from unified_prof.cli.gate import LimitOptions, end_with_verdict
from unified_prof.cli.output import Printer, ResultOptions
from unified_prof.errors import StoreError, UsageError
from unified_prof.pipeline.report_input import open_run_at
from unified_prof.report import formats
from unified_prof.report.formats import ClusterBreakdown, ClusterRequest

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.pipeline.cluster import ClusterOutcome
    from unified_prof.pipeline.cluster_inputs import Input

cluster = cli.Group(
    name="cluster", help="Analyze a multi-rank run: stragglers, collective waits, slow links."
)
cli.COMMANDS.add_command(cluster)

_BUILD_EPILOG = (
    "Results of an earlier call are reused unless --force is given, so an interrupted "
    "build continues. Unreadable ranks are listed with the reason; the others are "
    "analyzed. Exit codes: 0 success, also if ranks are missing, unless --strict; 2 usage "
    "error, or two files of one rank; 6 an input is not a recording; 7 no rank can be read, "
    "or with --strict not all; 8 the run was written by a newer uprof; 9 the run cannot be "
    "written; 10 the scheduler does not respond, was lost, or has no workers."
)


@cluster.command("build", no_args_is_help=True, epilog=_BUILD_EPILOG)
def build(
    inputs: list[str] = cli.argument(
        "Directories of ranks at any depth, databases, PROF_*, *_ascend_pt, traces; patterns, "
        "URLs (s3://BUCKET/RUN), RANK=FILE.",
        "INPUT...",
    ),
    output: str = cli.option(
        "Directory or URL of the run to write.", "-o --output RUN", default="run.cluster"
    ),
    jobs: int | None = cli.option(
        "Number of processes on this machine. [default: one per processor; 1 for few ranks]", min=1
    ),
    scheduler: str | None = cli.option(
        "Use Dask: a scheduler's address (tcp://HOST:PORT) or file, or local:N for N worker "
        "processes on this machine.",
        "--scheduler --dask ADDRESS|FILE.json|local:N",
    ),
    strict: bool = cli.flag("Exit with 7 if a rank is missing or damaged."),
    watch: bool = cli.flag("Add ranks as their files appear, until all are read."),
    verbose: bool = cli.flag("Show Dask's log."),
    force: cli.Force = False,
    *,
    printer: Printer,
) -> None:
    """Read the recordings of all ranks and combine them into one run."""
    from unified_prof.pipeline import cluster as pipeline
    from unified_prof.pipeline.remote import StorageDirectory

    if jobs is not None and scheduler:
        raise UsageError(
            "--jobs applies to local processes, not to Dask", slug="option-without-effect"
        )
    with printer.progress() as progress:
        rebuilt = False

        def refresh(found: Sequence[Input] | None = None) -> ClusterOutcome:
            return pipeline.build(
                inputs,
                output,
                scheduler=scheduler,
                jobs=jobs,
                force=force and not rebuilt,
                verbose=verbose,
                progress=progress,
                note=printer.note,
                inputs=found,
            )

        if watch:
            # Before the first recording appears, which may take hours.
            pipeline.refuse_others(StorageDirectory(output), force=force)
            outcomes = pipeline.watch(inputs, refresh, note=printer.note)
        else:
            outcomes = iter((refresh(),))
        for outcome in outcomes:
            rebuilt = True
            printer.lines(*outcome.lines())
            printer.json(outcome.fields)
    if strict and not outcome.is_complete:
        raise click.exceptions.Exit(StoreError.exit_code)


Run = Annotated[
    str, cli.argument("Directory or URL of a cluster run, or its cluster.sqlite.", "RUN")
]
Base = Annotated[str, cli.argument("Baseline run.", "BASE")]
New = Annotated[str, cli.argument("Candidate run.", "NEW")]


@cluster.command(
    "report",
    epilog="Exit codes: 0 success, also if ranks are missing (with --strict 7); 2 usage "
    "error (no such rank or step); 7 run missing or unreadable; 9 output cannot be written.",
)
def report(
    run: Run,
    by: ClusterBreakdown | None = cli.option("Show only this table. [default: an overview]"),
    rank: int | None = cli.option("Show only this rank.", "N", min=0),
    step: int | None = cli.option("Show only this step, by rank.", "N"),
    top: int | None = cli.option(
        "Number of rows per table. [default: one screen; all for json and csv]", min=1
    ),
    result: ResultOptions = cli.formats_of(*formats.CLUSTER_FORMAT_NAMES),
    full_names: cli.FullNames = False,
    strict: bool = cli.flag("Exit with 7 if a rank is missing or damaged."),
) -> None:
    """Show where a multi-rank run loses time: ranks, hosts, links, steps."""
    target = result.target()
    shape = formats.find_format(target.shape)
    width, color = (None, False) if target.file or not target.is_text else printing.terminal()
    request = ClusterRequest(
        by=by, rank=rank, step=step, top=top, full_names=full_names, width=width, color=color
    )
    with open_run_at(run, with_partials=shape.name == "html") as overview:
        text = formats.produce_cluster(shape, overview, request)
        target.deliver(text, note=not result.quiet)
        missing = overview.coverage if overview.missing else ""
    if missing:
        result.printer.warning(missing)
    if missing and strict:
        raise click.exceptions.Exit(StoreError.exit_code)


@cluster.command("diff", epilog="Exit codes: 0 success; 7 run missing or unreadable.")
def diff(
    base: Base,
    new: New,
    by: Literal["stage", "role", "rank"] = cli.option(
        "Group ranks by pipeline stage, by stage and data rank, or not at all.", default="stage"
    ),
    top: int = cli.option("Number of rows per table.", default=20, min=1),
    result: ResultOptions = cli.formats_of(
        "text", "json", "markdown", help="Output format; json has all rows."
    ),
    full_names: cli.FullNames = False,
) -> None:
    """Compare two multi-rank runs, also of different sizes, by role of the ranks."""
    from unified_prof.cluster import run_comparison
    from unified_prof.report import cluster_text

    target = result.target()
    with open_run_at(base) as before, open_run_at(new) as after:
        _warn(before, after, printer=result.printer)
        found = run_comparison.compare_cluster_runs(before, after, by=by)
        text = target.render(
            lambda: cluster_text.cluster_difference_fields(found),
            lambda: cluster_text.cluster_difference_document(found, top=top),
            full_names=full_names,
        )
    target.deliver(text, note=not result.quiet)


@cluster.command(
    "gate",
    epilog="Exit codes: 0 passed; 1 regression; 2 usage error; 3 inconclusive (fewer than "
    "five steps, or too much variance); 7 run missing or unreadable.",
)
def gate(
    *,
    base: Base,
    new: New,
    metric: list[str] | None = cli.option(
        "Metric: step, slowest-rank, stage, imbalance or exposed-communication. [default: step]",
        "METRIC",
    ),
    allowed: LimitOptions,
    result: ResultOptions = cli.formats_of(*GATE_FORMATS),
) -> None:
    """Fail if the steps of a multi-rank run are slower than those of its baseline."""
    from unified_prof.cluster import run_comparison

    target, limits = result.target(), allowed.limits()
    with open_run_at(base) as before, open_run_at(new) as after:
        verdict = run_comparison.gate_cluster_run(before, after, metric or ["step"], limits)
        _warn(before, after, printer=result.printer)
    end_with_verdict(verdict, {"": (base, new)}, target, quiet=result.quiet)


def _warn(*sides: Overview, printer: Printer) -> None:
    for one in sides:
        if one.missing:
            printer.warning(f"{one.run.path}: {one.coverage}")
