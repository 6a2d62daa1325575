"""`uprof cluster report`, `diff` and `gate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from unified_prof.cli import output as printing
from unified_prof.cli.command import (
    FORMAT,
    AsJsonFormat,
    Force,
    FullNames,
    OutputFile,
    Quiet,
    argument,
    option,
)
from unified_prof.cli.gate_sides import SUFFIXES as GATE_SUFFIXES
from unified_prof.cli.gate_sides import Allowed, FormatOption, append_summary, verdict_text
from unified_prof.errors import StoreError, UsageError
from unified_prof.report import formats
from unified_prof.report.formats import (
    CLUSTER_BREAKDOWNS,
    CLUSTER_FORMAT_NAMES,
    CLUSTER_SUFFIXES,
    ClusterRequest,
)

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.report.formats import Format


if TYPE_CHECKING:
    ShapeOption = Enum
    ByOption = Enum
else:
    ShapeOption = Enum("ShapeOption", {name: name for name in CLUSTER_FORMAT_NAMES}, type=str)
    ByOption = Enum("ByOption", {name: name for name in CLUSTER_BREAKDOWNS}, type=str)

_DIFF_SUFFIXES = {"text": (".txt",), "json": (".json",), "markdown": (".md", ".markdown")}

Run = Annotated[
    str,
    argument(metavar="RUN", help="Directory or URL of a cluster run, or its cluster.sqlite."),
]


class DiffFormat(str, Enum):
    """Output format of a comparison."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class RoleOption(str, Enum):
    """How ranks are grouped for a comparison."""

    STAGE = "stage"
    ROLE = "role"
    RANK = "rank"


@contextmanager
def open_run(location: str, *, with_partials: bool = False) -> Iterator[Overview]:
    """Open a cluster run; the summary of a URL is copied to a temporary file while it is open.

    Args:
        location: Its directory, its summary file, or the URL of either.
        with_partials: If True, the partials of a URL are copied too.

    Raises:
        StoreError: The run is missing or damaged.
    """
    from unified_prof.cluster.overview import Overview
    from unified_prof.cluster.rank_partial import SUMMARY_FILE_NAME
    from unified_prof.cluster.stored_run import open_run
    from unified_prof.pipeline.remote import fetch, fetch_part

    copy = fetch(location) if with_partials else fetch_part(location, SUMMARY_FILE_NAME)
    with copy as path, open_run(path, location) as run:
        yield Overview(run)


def report(
    context: click.Context,
    run: Run,
    by: Annotated[
        ByOption | None,
        option(help="Show only this table.", show_default="an overview"),
    ] = None,
    rank: Annotated[int | None, option(min=0, metavar="N", help="Show only this rank.")] = None,
    step: Annotated[int | None, option(metavar="N", help="Show only this step, by rank.")] = None,
    top: Annotated[
        int | None,
        option(
            min=1,
            help="Number of rows per table.",
            show_default="one screen; all for json and csv",
        ),
    ] = None,
    format_: Annotated[ShapeOption | None, FORMAT] = None,
    output: OutputFile = None,
    full_names: FullNames = False,
    force: Force = False,
    json_: AsJsonFormat = False,
    strict: Annotated[
        bool, option("--strict", help="Exit with 7 if a rank is missing or damaged.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Show where a multi-rank run loses time: ranks, hosts, links, steps."""
    file = printing.output_file(output)
    asked = format_ and format_.value
    shape = formats.find_format(
        printing.choose_format(context, CLUSTER_SUFFIXES, asked=asked, as_json=json_, file=file)
    )
    width, color = printing.terminal() if file is None and shape.for_people else (None, False)
    request = ClusterRequest(
        by=None if by is None else by.value,
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
    import sys

    from unified_prof.report.formats import produce_cluster
    from unified_prof.sqlite.atomic import refuse_existing

    if file is None and not shape.for_terminal and sys.stdout.isatty():
        raise UsageError(
            f"{shape.name} cannot be shown on a terminal",
            hint="write it to a file with -o",
            slug="not-for-a-terminal",
        )
    if file is not None:
        refuse_existing(file, overwrite=force)
    text = produce_cluster(shape, overview, request)
    if file is None:
        printing.put(text, for_people=shape.for_people)
        return
    printing.write(file, text, force=force)
    if not quiet:
        printing.print_message(f"{file}: {shape.name}, {file.stat().st_size:,} bytes")


def diff(
    context: click.Context,
    base: Annotated[str, argument(metavar="BASE", help="Baseline run.")],
    new: Annotated[str, argument(metavar="NEW", help="Candidate run.")],
    by: Annotated[
        RoleOption,
        option(help="Group ranks by pipeline stage, by stage and data rank, or not at all."),
    ] = RoleOption.STAGE,
    top: Annotated[int, option(min=1, help="Number of rows per table.")] = 20,
    format_: Annotated[
        DiffFormat | None,
        option(
            "--format",
            help="Output format; json has all rows.",
            show_default="by the extension of -o, or text",
        ),
    ] = None,
    output: OutputFile = None,
    force: Force = False,
    json_: AsJsonFormat = False,
    full_names: FullNames = False,
    quiet: Quiet = False,
) -> None:
    """Compare two multi-rank runs by role of the ranks; their number may differ."""
    from unified_prof.cluster import run_comparison
    from unified_prof.report import cluster_comparison

    file = printing.output_file(output)
    asked = format_ and format_.value
    shape = printing.choose_format(context, _DIFF_SUFFIXES, asked=asked, as_json=json_, file=file)
    with ExitStack() as stack:
        before, after = (stack.enter_context(open_run(path)) for path in (base, new))
        _warn(before, after, quiet=quiet)
        found = run_comparison.compare_cluster_runs(before, after, by=by.value)
        if shape == "json":
            text = cluster_comparison.cluster_difference_json(found)
        else:
            document = cluster_comparison.cluster_difference_document(found, top=top)
            text = printing.render(document, shape, to_file=file is not None, full_names=full_names)
    if file is None:
        printing.put(text, for_people=shape == "text")
    else:
        printing.write(file, text, force=force)


def gate(
    *,
    context: click.Context,
    base: Annotated[str, argument(metavar="BASE", help="Baseline run.")],
    new: Annotated[str, argument(metavar="NEW", help="Candidate run.")],
    metric: Annotated[
        list[str] | None,
        option(
            metavar="METRIC",
            help="Metric: step, slowest-rank, stage, imbalance or exposed-communication.",
            show_default="step",
        ),
    ] = None,
    max_regress: Annotated[
        str, option(metavar="SHARE", help="Largest accepted regression: 5% or 0.05.")
    ] = "5%",
    min_abs: Annotated[
        list[str] | None,
        option(metavar="AMOUNT", help="Ignore regressions below this time.", show_default="0.05ms"),
    ] = None,
    format_: Annotated[FormatOption | None, FORMAT] = None,
    output: OutputFile = None,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJsonFormat = False,
) -> None:
    """Fail if the steps of a multi-rank run are slower than those of its baseline."""
    from unified_prof.cluster import run_comparison

    file = printing.output_file(output)
    asked = format_ and format_.value
    shape = FormatOption(
        printing.choose_format(context, GATE_SUFFIXES, asked=asked, as_json=json_, file=file)
    )
    limits = Allowed(max_regress=max_regress, min_abs=min_abs).limits()
    with ExitStack() as stack:
        before, after = (stack.enter_context(open_run(path)) for path in (base, new))
        verdict = run_comparison.gate_cluster_run(before, after, metric or ["step"], limits)
        _warn(before, after, quiet=quiet)
    labels = (base, new)
    if file is not None:
        printing.write(file, verdict_text(verdict, labels, shape, to_file=True), force=force)
    elif not (quiet and shape is FormatOption.TEXT):
        printing.put(verdict_text(verdict, labels, shape), for_people=shape is FormatOption.TEXT)
    append_summary(lambda: verdict_text(verdict, labels, FormatOption.MARKDOWN))
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
