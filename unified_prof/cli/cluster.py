"""Command group `uprof cluster`, and `uprof cluster build`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from unified_prof.cli import cluster_report
from unified_prof.cli import output as printing
from unified_prof.cli.command import AsJson, Force, Group, Quiet, argument, flag, option
from unified_prof.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_prof.pipeline.cluster import ClusterOutcome
    from unified_prof.pipeline.cluster_inputs import Input


_EPILOG = (
    "Results of an earlier call are reused unless --force is given, so an interrupted "
    "build continues. Unreadable ranks are listed with the reason; the others are "
    "analyzed. Exit codes: 0 success, also if ranks are missing, unless --strict; 2 usage "
    "error, or two files of one rank; 6 an input is not a recording; 7 no rank can be read, "
    "or with --strict not all; 8 the run was written by a newer uprof; 9 the run cannot be "
    "written; 10 the scheduler does not respond, was lost, or has no workers."
)


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
            if not quiet:
                _print_summary(outcome)
            if json_:
                printing.put_json(_record(outcome))
    if strict and not outcome.is_complete:
        raise click.exceptions.Exit(StoreError.exit_code)


def _print_summary(outcome: ClusterOutcome) -> None:
    if not outcome.is_complete:
        printing.print_message(f"uprof: warning: {outcome.coverage}")
        hints = [one.hint for one in outcome.unread if one.rank is None and one.hint is not None]
        for hint in dict.fromkeys(hints):
            printing.print_message(f"uprof: hint: {hint}")
    steps = f"{len(outcome.steps)} step{'s' if len(outcome.steps) != 1 else ''}"
    what = "no recording changed" if outcome.already else f"recordings read: {outcome.new:,}"
    ranks = f"{outcome.ranks_read:,} rank{'s' if outcome.ranks_read != 1 else ''}"
    printing.print_message(f"{outcome.target}: {ranks}, {steps}; {what}")
    for text in outcome.findings[:_MAX_LISTED]:
        printing.print_message(f"  {text}")
    if len(outcome.findings) > _MAX_LISTED:
        printing.print_message(f"  and {len(outcome.findings) - _MAX_LISTED} more findings")
    elif not outcome.findings:
        printing.print_message("  no findings")


_MAX_LISTED = 3


def _record(outcome: ClusterOutcome) -> dict[str, Any]:
    return {
        "run": outcome.target,
        "world_size": outcome.world_size,
        "ranks_read": outcome.ranks_read,
        "new": outcome.new,
        "steps": list(outcome.steps),
        "absent": list(outcome.absent),
        "unread": [{"rank": one.rank, "file": one.file, "why": one.why} for one in outcome.unread],
        "findings": list(outcome.findings),
    }


def register_build(app: Group) -> None:
    """Register the command."""
    app.command("build", no_args_is_help=True, epilog=_EPILOG)(build)


cluster = Group(
    name="cluster",
    help="Analyze a multi-rank run: stragglers, collective waits, slow links.",
)
register_build(cluster)
cluster_report.register(cluster)


def register(app: Group) -> None:
    """Register the commands."""
    app.add_command(cluster)
