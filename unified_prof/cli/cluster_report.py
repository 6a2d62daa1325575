"""`uprof cluster report`, `diff` and `gate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from unified_prof.cli import output as printing
from unified_prof.cli.command import (
    AsJsonFormat,
    Force,
    FullNames,
    OutputFile,
    Quiet,
    argument,
    flag,
    format_option,
    option,
)
from unified_prof.cli.gate_sides import SUFFIXES as GATE_SUFFIXES
from unified_prof.cli.gate_sides import Allowed, print_verdict, verdict_text
from unified_prof.errors import StoreError
from unified_prof.report import formats
from unified_prof.report.formats import (
    CLUSTER_FORMAT_NAMES,
    CLUSTER_SUFFIXES,
    ClusterBreakdown,
    ClusterRequest,
)

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.report.formats import Format


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


def report(
    context: click.Context,
    run: Run,
    by: ClusterBreakdown | None = option(help="Show only this table.", show_default="an overview"),
    rank: int | None = option(min=0, metavar="N", help="Show only this rank."),
    step: int | None = option(metavar="N", help="Show only this step, by rank."),
    top: int | None = option(
        min=1, help="Number of rows per table.", show_default="one screen; all for json and csv"
    ),
    format_: str | None = format_option(CLUSTER_FORMAT_NAMES),
    output: OutputFile = None,
    full_names: FullNames = False,
    force: Force = False,
    json_: AsJsonFormat = False,
    strict: bool = flag(help="Exit with 7 if a rank is missing or damaged."),
    quiet: Quiet = False,
) -> None:
    """Show where a multi-rank run loses time: ranks, hosts, links, steps."""
    file, name = printing.destination(context, CLUSTER_SUFFIXES, output, format_, json_)
    shape = formats.find_format(name)
    width, color = printing.terminal() if file is None and shape.for_people else (None, False)
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
        show(overview, shape, request, file, force=force, quiet=quiet)
        missing = overview.coverage if overview.missing else ""
    if missing and not quiet:
        printing.print_message(f"uprof: warning: {missing}")
    if missing and strict:
        raise click.exceptions.Exit(StoreError.exit_code)


def show(
    overview: Overview,
    shape: Format,
    request: ClusterRequest,
    file: Path | None,
    *,
    force: bool,
    quiet: bool,
) -> None:
    """Print a run, or write it to a file.

    Raises:
        OutputError: The file cannot be written.
        UsageError: The terminal cannot show the format, or the run has no such rank or step.
    """
    from unified_prof.report.formats import produce_cluster
    from unified_prof.sqlite.atomic import refuse_existing

    printing.refuse_terminal(shape.name, file, for_terminal=shape.for_terminal)
    if file is not None:
        refuse_existing(file, overwrite=force)
    text = produce_cluster(shape, overview, request)
    note = "" if quiet else shape.name
    printing.deliver(text, file, force=force, for_people=shape.for_people, note=note)


def diff(
    context: click.Context,
    base: str = argument(metavar="BASE", help="Baseline run."),
    new: str = argument(metavar="NEW", help="Candidate run."),
    by: Literal["stage", "role", "rank"] = option(
        default="stage",
        help="Group ranks by pipeline stage, by stage and data rank, or not at all.",
    ),
    top: int = option(default=20, min=1, help="Number of rows per table."),
    format_: str | None = format_option(
        _DIFF_SUFFIXES,
        help="Output format; json has all rows.",
        show_default="by the extension of -o, or text",
    ),
    output: OutputFile = None,
    force: Force = False,
    json_: AsJsonFormat = False,
    full_names: FullNames = False,
    quiet: Quiet = False,
) -> None:
    """Compare two multi-rank runs by role of the ranks; their number may differ."""
    from unified_prof.cluster import run_comparison
    from unified_prof.report import cluster_comparison

    file, shape = printing.destination(context, _DIFF_SUFFIXES, output, format_, json_)
    with ExitStack() as stack:
        before, after = (stack.enter_context(open_run(path)) for path in (base, new))
        _warn(before, after, quiet=quiet)
        found = run_comparison.compare_cluster_runs(before, after, by=by)
        if shape == "json":
            text = cluster_comparison.cluster_difference_json(found)
        else:
            document = cluster_comparison.cluster_difference_document(found, top=top)
            text = printing.render(document, shape, to_file=file is not None, full_names=full_names)
    printing.deliver(text, file, force=force, for_people=shape == "text")


def gate(
    *,
    context: click.Context,
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
    format_: str | None = format_option(GATE_SUFFIXES),
    output: OutputFile = None,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJsonFormat = False,
) -> None:
    """Fail if the steps of a multi-rank run are slower than those of its baseline."""
    from unified_prof.cluster import run_comparison

    file, shape = printing.destination(context, GATE_SUFFIXES, output, format_, json_)
    limits = Allowed(max_regress=max_regress, min_abs=min_abs).limits()
    with ExitStack() as stack:
        before, after = (stack.enter_context(open_run(path)) for path in (base, new))
        verdict = run_comparison.gate_cluster_run(before, after, metric or ["step"], limits)
        _warn(before, after, quiet=quiet)
    labels = (base, new)

    def text(shape: str, to_file: bool = False) -> str:
        return verdict_text(verdict, labels, shape, to_file=to_file)

    print_verdict(text, shape, file, force=force, quiet=quiet)
    raise click.exceptions.Exit(verdict.exit_code)


def _warn(*sides: Overview, quiet: bool) -> None:
    """Warn about missing ranks."""
    for one in sides:
        if one.missing and not quiet:
            printing.print_message(f"uprof: warning: {one.run.path}: {one.coverage}")


def register(app: Any) -> None:
    """Register the commands of `uprof cluster`."""
    app.command(
        "report",
        epilog="Exit codes: 0 success, also if ranks are missing (with --strict 7); 2 usage "
        "error (no such rank or step); 7 run missing or unreadable; 9 output cannot be "
        "written.",
    )(report)
    app.command("diff", epilog="Exit codes: 0 success; 7 run missing or unreadable.")(diff)
    app.command(
        "gate",
        epilog="Exit codes: 0 passed; 1 regression; 2 usage error; 3 inconclusive (fewer than "
        "five steps, or too much variance); 7 run missing or unreadable.",
    )(gate)
