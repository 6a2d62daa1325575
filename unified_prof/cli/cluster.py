"""Command group `uprof cluster`: build, report, diff and gate of multi-rank runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import click

from unified_prof.cli import output as printing
from unified_prof.cli.command import (
    COMMANDS,
    AsJson,
    Force,
    FullNames,
    Group,
    Quiet,
    argument,
    flag,
    formats_of,
    option,
)
from unified_prof.cli.gate import SUFFIXES as GATE_SUFFIXES
from unified_prof.cli.gate import Allowed, end_with_verdict
from unified_prof.cli.output import ResultOptions
from unified_prof.errors import StoreError, UsageError
from unified_prof.report import formats
from unified_prof.report.formats import CLUSTER_SUFFIXES, ClusterBreakdown, ClusterRequest

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.pipeline.cluster import ClusterOutcome
    from unified_prof.pipeline.cluster_inputs import Input


cluster = Group(
    name="cluster",
    help="Analyze a multi-rank run: stragglers, collective waits, slow links.",
)
COMMANDS.add_command(cluster)

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
    inputs: list[str] = argument(
        metavar="INPUT...",
        help="Directories of ranks at any depth, databases, PROF_*, *_ascend_pt, traces; "
        "patterns, URLs (s3://BUCKET/RUN), RANK=FILE.",
    ),
    output: str = option(
        "-o",
        "--output",
        default="run.cluster",
        metavar="RUN",
        help="Directory or URL of the run to write.",
    ),
    jobs: int | None = option(
        min=1,
        help="Number of processes on this machine.",
        show_default="one per processor; 1 for few ranks",
    ),
    scheduler: str | None = option(
        metavar="ADDRESS|FILE.json",
        help="Use a Dask scheduler: tcp://HOST:PORT, or its scheduler file.",
    ),
    dask: str | None = option(
        metavar="local:N", help="Use N Dask worker processes on this machine."
    ),
    strict: bool = flag(help="Exit with 7 if a rank is missing or damaged."),
    watch: bool = flag(help="Add ranks as their files appear, until all are read."),
    verbose: bool = flag(help="Show Dask's log."),
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Read the recordings of all ranks and combine them into one run."""
    from unified_prof.pipeline import cluster as pipeline
    from unified_prof.pipeline.remote import StorageDirectory

    if dask is not None and (scheduler is not None or not dask.startswith("local")):
        raise UsageError(
            f"--dask {dask}: expected local:N"
            if scheduler is None
            else "--dask and --scheduler cannot be combined",
            hint="--scheduler connects to a running scheduler",
            slug="wrong-scheduler",
        )
    if jobs is not None and (dask or scheduler):
        raise UsageError(
            "--jobs applies to local processes, not to Dask", slug="option-without-effect"
        )
    with printing.progress(quiet) as progress:
        rebuilt = False

        note = printing.say_unless(quiet, "note")

        def refresh(found: Sequence[Input] | None = None) -> ClusterOutcome:
            return pipeline.build(
                inputs,
                output,
                scheduler=dask or scheduler,
                jobs=jobs,
                force=force and not rebuilt,
                verbose=verbose,
                progress=progress,
                note=note,
                inputs=found,
            )

        if watch:
            # Before the first recording appears, which may take hours.
            pipeline.refuse_others(StorageDirectory(output), force=force)
            outcomes = pipeline.watch(inputs, refresh, note=note)
        else:
            outcomes = iter((refresh(),))
        for outcome in outcomes:
            rebuilt = True
            for line in () if quiet else outcome.lines():
                printing.print_message(line)
            if json_:
                printing.put_json(outcome.fields())
    if strict and not outcome.is_complete:
        raise click.exceptions.Exit(StoreError.exit_code)


_DIFF_SUFFIXES = {"text": (".txt",), "json": (".json",), "markdown": (".md", ".markdown")}

Run = Annotated[
    str,
    argument(metavar="RUN", help="Directory or URL of a cluster run, or its cluster.sqlite."),
]


@contextmanager
def open_run(location: str, *, with_partials: bool = False) -> Iterator[Overview]:
    """Open a cluster run; the summary of a URL is copied to a temporary file while it is open.

    Args:
        location: Its directory, its summary file, a directory of watch files, or a URL of these.
        with_partials: If True, the partials of a URL are copied too.

    Raises:
        StoreError: The run is missing or damaged.
    """
    from unified_prof.cluster.overview import Overview
    from unified_prof.cluster.rank_partial import SUMMARY_FILE_NAME
    from unified_prof.cluster.stored_run import open_run
    from unified_prof.pipeline.rank_runs import open_watched
    from unified_prof.pipeline.remote import fetch, fetch_part

    with open_watched(location) as watched:
        if watched is not None:
            yield watched
            return
    copy = fetch(location) if with_partials else fetch_part(location, SUMMARY_FILE_NAME)
    with copy as path, open_run(path, location) as run:
        yield Overview(run)


@cluster.command(
    "report",
    epilog="Exit codes: 0 success, also if ranks are missing (with --strict 7); 2 usage "
    "error (no such rank or step); 7 run missing or unreadable; 9 output cannot be written.",
)
def report(
    run: Run,
    by: ClusterBreakdown | None = option(help="Show only this table.", show_default="an overview"),
    rank: int | None = option(min=0, metavar="N", help="Show only this rank."),
    step: int | None = option(metavar="N", help="Show only this step, by rank."),
    top: int | None = option(
        min=1, help="Number of rows per table.", show_default="one screen; all for json and csv"
    ),
    result: ResultOptions = formats_of(CLUSTER_SUFFIXES),
    full_names: FullNames = False,
    strict: bool = flag(help="Exit with 7 if a rank is missing or damaged."),
) -> None:
    """Show where a multi-rank run loses time: ranks, hosts, links, steps."""
    target = result.target(CLUSTER_SUFFIXES)
    shape = formats.find_format(target.shape)
    is_shown = target.file is None and target.shape == printing.TEXT
    width, color = printing.terminal() if is_shown else (None, False)
    request = ClusterRequest(
        by=by,
        rank=rank,
        step=step,
        top=top,
        full_names=full_names,
        width=width,
        color=color,
    )
    with open_run(run, with_partials=shape.name == "html") as overview:
        target.refuse_terminal(for_terminal=shape.for_terminal)
        target.refuse_existing()
        text = formats.produce_cluster(shape, overview, request)
        target.deliver(text, note=not result.quiet)
        missing = overview.coverage if overview.missing else ""
    if missing and not result.quiet:
        printing.print_message(f"uprof: warning: {missing}")
    if missing and strict:
        raise click.exceptions.Exit(StoreError.exit_code)


@cluster.command("diff", epilog="Exit codes: 0 success; 7 run missing or unreadable.")
def diff(
    base: str = argument(metavar="BASE", help="Baseline run."),
    new: str = argument(metavar="NEW", help="Candidate run."),
    by: Literal["stage", "role", "rank"] = option(
        default="stage",
        help="Group ranks by pipeline stage, by stage and data rank, or not at all.",
    ),
    top: int = option(default=20, min=1, help="Number of rows per table."),
    result: ResultOptions = formats_of(
        _DIFF_SUFFIXES,
        help="Output format; json has all rows.",
        show_default="by the extension of -o, or text",
    ),
    full_names: FullNames = False,
) -> None:
    """Compare two multi-rank runs by role of the ranks; their number may differ."""
    from unified_prof.cluster import run_comparison
    from unified_prof.report import cluster_comparison

    target = result.target(_DIFF_SUFFIXES)
    with open_run(base) as before, open_run(new) as after:
        _warn(before, after, quiet=result.quiet)
        found = run_comparison.compare_cluster_runs(before, after, by=by)
        text = target.render_document(
            lambda: cluster_comparison.cluster_difference_json(found),
            lambda: cluster_comparison.cluster_difference_document(found, top=top),
            full_names=full_names,
        )
    target.deliver(text)


@cluster.command(
    "gate",
    epilog="Exit codes: 0 passed; 1 regression; 2 usage error; 3 inconclusive (fewer than "
    "five steps, or too much variance); 7 run missing or unreadable.",
)
def gate(
    base: str = argument(metavar="BASE", help="Baseline run."),
    new: str = argument(metavar="NEW", help="Candidate run."),
    metric: list[str] | None = option(
        metavar="METRIC",
        help="Metric: step, slowest-rank, stage, imbalance or exposed-communication.",
        show_default="step",
    ),
    max_regress: str = option(
        default="5%", metavar="SHARE", help="Largest accepted regression: 5% or 0.05."
    ),
    min_abs: list[str] | None = option(
        metavar="AMOUNT", help="Ignore regressions below this time.", show_default="0.05ms"
    ),
    result: ResultOptions = formats_of(GATE_SUFFIXES),
) -> None:
    """Fail if the steps of a multi-rank run are slower than those of its baseline."""
    from unified_prof.cluster import run_comparison

    target = result.target(GATE_SUFFIXES)
    limits = Allowed(max_regress=max_regress, min_abs=min_abs).limits()
    with open_run(base) as before, open_run(new) as after:
        verdict = run_comparison.gate_cluster_run(before, after, metric or ["step"], limits)
        _warn(before, after, quiet=result.quiet)
    end_with_verdict(verdict, {"": (base, new)}, target, quiet=result.quiet)


def _warn(*sides: Overview, quiet: bool) -> None:
    """Warn about missing ranks."""
    for one in sides:
        if one.missing and not quiet:
            printing.print_message(f"uprof: warning: {one.run.path}: {one.coverage}")
