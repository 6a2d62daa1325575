"""`uprof cluster build`: the recordings of many ranks to one run on disk.

`uprof cluster`: many ranks as one run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from unified_prof.base import streams
from unified_prof.cli import cluster_report
from unified_prof.cli import output as printing
from unified_prof.cli.command import Application, AsJson, Force, Quiet
from unified_prof.errors import StoreError, UsageError

if TYPE_CHECKING:
    from unified_prof.pipeline.cluster import ClusterOutcome


_EPILOG = (
    "What an earlier call has read is used again, unless --force: a call that was stopped goes on."
    " A rank that"
    " cannot be read is named with the reason, and the others' answer stands. Exit code: 0, also"
    " where ranks lack, unless --strict; 2 wrong use, or two files of one rank; 7 no rank can be"
    " read, or with --strict not all; 8 the run there is of a newer uprof; 9 the run cannot be"
    " written; 10 the scheduler does not answer, was lost, or has no workers."
)


def build(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Folders of ranks at any depth, databases, PROF_*, *_ascend_pt, traces; patterns,"
            " URLs (s3://BUCKET/RUN), RANK=FILE.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="RUN", help="Folder or URL of the run."),
    ] = "run.cluster",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes on this machine.",
            show_default="one a processor; 1 for few ranks",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|FILE.json",
            help="Work on a scheduler of Dask's: tcp://HOST:PORT, or the file it writes.",
        ),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(metavar="local:N", help="Work on N processes of Dask's on this machine."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 7 if a rank is missing or damaged.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Let Dask log.")] = False,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Read the ranks of a run, each by itself, and put them together."""
    from unified_prof.pipeline.cluster import build as make

    if dask is not None and (scheduler is not None or not dask.startswith("local")):
        raise UsageError(
            f"--dask {dask} is not local:N"
            if scheduler is None
            else "--dask or --scheduler, not both",
            hint="--scheduler names a scheduler that runs already",
            slug="wrong-scheduler",
        )
    if jobs is not None and (dask or scheduler):
        raise UsageError(
            "--jobs is of this machine's own processes, not of Dask's", slug="option-without-effect"
        )
    enabled = streams.is_terminal() and not quiet
    with printing.progress_line(enabled=enabled) as progress:
        outcome = make(
            inputs,
            output,
            scheduler=dask or scheduler,
            jobs=jobs,
            force=force,
            verbose=verbose,
            progress=progress,
            note=lambda text: None if quiet else printing.say(f"uprof: note: {text}"),
        )
    if not quiet:
        _tell(outcome)
    if json_:
        printing.put_json(_record(outcome))
    if strict and not outcome.whole:
        raise typer.Exit(StoreError.exit_code)


def _tell(outcome: ClusterOutcome) -> None:
    if not outcome.whole:
        printing.say(f"uprof: warning: {outcome.coverage}")
        hints = [one.hint for one in outcome.unread if one.rank is None and one.hint is not None]
        for hint in dict.fromkeys(hints):
            printing.say(f"uprof: hint: {hint}")
    steps = f"{len(outcome.steps)} step{'s' if len(outcome.steps) != 1 else ''}"
    what = "nothing new" if outcome.already else f"{outcome.new:,} read now"
    ranks = f"{outcome.ranks_read:,} rank{'s' if outcome.ranks_read != 1 else ''}"
    printing.say(f"{outcome.target}: {ranks}, {steps}; {what}")
    for text in outcome.findings[:_FEW]:
        printing.say(f"  {text}")
    if len(outcome.findings) > _FEW:
        printing.say(f"  and {len(outcome.findings) - _FEW} more findings")
    elif not outcome.findings:
        printing.say("  no finding")


_FEW = 3


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


def register_build(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("build", no_args_is_help=True, epilog=_EPILOG)(build)


cluster = Application(
    name="cluster",
    help="Many ranks as one run: who is slow, who waits for whom, which link, which step.",
)
register_build(cluster)
cluster_report.register(cluster)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(cluster)
