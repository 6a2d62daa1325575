"""`uprof cluster report`, `diff` and `gate`, and the ranks of `uprof trace --ranks`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unified_prof.cli import output as printing
from unified_prof.cli import output as shapes
from unified_prof.cli import report_input, report_ranks
from unified_prof.cli.command import AsJsonFormat, Force, FullNames, Quiet
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
    from unified_prof.cluster.stored_run import RankRecord
    from unified_prof.explain.report_questions import OverTime
    from unified_prof.report.formats import Format


if TYPE_CHECKING:
    ShapeOption = Enum
    ByOption = Enum
else:
    ShapeOption = Enum("ShapeOption", {name: name for name in CLUSTER_FORMAT_NAMES}, type=str)
    ByOption = Enum("ByOption", {name: name for name in CLUSTER_BREAKDOWNS}, type=str)

_DIFF_SUFFIXES = {"text": (".txt",), "json": (".json",), "markdown": (".md", ".markdown")}

Run = Annotated[
    Path, typer.Argument(metavar="RUN", help=("Directory of a cluster run, or its cluster.sqlite."))
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help=("Write to FILE instead of stdout.")),
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
def open_run(path: Path) -> Iterator[Overview]:
    """Open a cluster run.

    Raises:
        StoreError: The run is missing or damaged.
    """
    from unified_prof.cluster.overview import Overview
    from unified_prof.cluster.stored_run import open_run

    with open_run(path) as run:
        yield Overview(run)


def report(
    context: typer.Context,
    run: Run,
    by: Annotated[
        ByOption | None,
        typer.Option(help="Show only this table.", show_default="an overview"),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Show only this rank.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="Show only this step, by rank.")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of rows per table.",
            show_default=("one screen; all for json and csv"),
        ),
    ] = None,
    format_: Annotated[
        ShapeOption | None,
        typer.Option(
            "--format", help="Output format.", show_default=("by the extension of -o, or text")
        ),
    ] = None,
    output: Output = None,
    full_names: FullNames = False,
    force: Force = False,
    json_: AsJsonFormat = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 7 if a rank is missing or damaged.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Show where a multi-rank run loses time: ranks, hosts, links, steps."""
    file = shapes.output_file(output)
    asked = format_ and format_.value
    shape = formats.find_format(
        shapes.choose_format(context, CLUSTER_SUFFIXES, asked=asked, as_json=json_, file=file)
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
    with open_run(run) as overview:
        show(overview, shape, request, file, force=force, quiet=quiet)
        missing = overview.coverage if overview.missing else ""
    if missing and not quiet:
        printing.print_message(f"uprof: warning: {missing}")
    if missing and strict:
        raise typer.Exit(StoreError.exit_code)


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
    context: typer.Context,
    base: Annotated[Path, typer.Argument(metavar="BASE", help="Baseline run.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Candidate run.")],
    by: Annotated[
        RoleOption,
        typer.Option(
            help=("Group ranks by pipeline stage, by stage and data rank, or not at all.")
        ),
    ] = RoleOption.STAGE,
    top: Annotated[int, typer.Option(min=1, help="Number of rows per table.")] = 20,
    format_: Annotated[
        DiffFormat | None,
        typer.Option(
            "--format",
            help="Output format; json has all rows.",
            show_default="by the extension of -o, or text",
        ),
    ] = None,
    output: Output = None,
    force: Force = False,
    json_: AsJsonFormat = False,
    full_names: FullNames = False,
    quiet: Quiet = False,
) -> None:
    """Compare two multi-rank runs by role of the ranks; their number may differ."""
    from unified_prof.cluster import run_comparison
    from unified_prof.report import cluster_comparison

    file = shapes.output_file(output)
    asked = format_ and format_.value
    shape = shapes.choose_format(context, _DIFF_SUFFIXES, asked=asked, as_json=json_, file=file)
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
    context: typer.Context,
    base: Annotated[Path, typer.Argument(metavar="BASE", help="Baseline run.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Candidate run.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC",
            help="Metric: step, slowest-rank, imbalance or exposed-communication.",
            show_default="step",
        ),
    ] = None,
    max_regress: Annotated[
        str, typer.Option(metavar="SHARE", help="Largest accepted regression: 5% or 0.05.")
    ] = "5%",
    min_abs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AMOUNT", help="Ignore regressions below this time.", show_default="0.05ms"
        ),
    ] = None,
    format_: Annotated[
        FormatOption | None,
        typer.Option(
            "--format",
            help="Output format of the verdict.",
            show_default=("by the extension of -o, or text"),
        ),
    ] = None,
    output: Output = None,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJsonFormat = False,
) -> None:
    """Fail if the steps of a multi-rank run are slower than those of its baseline."""
    from unified_prof.cluster import run_comparison

    file = shapes.output_file(output)
    asked = format_ and format_.value
    shape = FormatOption(
        shapes.choose_format(context, GATE_SUFFIXES, asked=asked, as_json=json_, file=file)
    )
    limits = Allowed(max_regress=max_regress, min_abs=min_abs).limits()
    with ExitStack() as stack:
        before, after = (stack.enter_context(open_run(path)) for path in (base, new))
        verdict = run_comparison.gate_cluster_run(before, after, metric or ["step"], limits)
        _warn(before, after, quiet=quiet)
    labels = (str(base), str(new))
    if file is not None:
        printing.write(file, verdict_text(verdict, labels, shape, to_file=True), force=force)
    elif not (quiet and shape is FormatOption.TEXT):
        printing.put(verdict_text(verdict, labels, shape), for_people=shape is FormatOption.TEXT)
    append_summary(lambda: verdict_text(verdict, labels, FormatOption.MARKDOWN))
    raise typer.Exit(verdict.exit_code)


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


_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
# Maximum ranks per trace; viewers cannot draw more, and each rank is read in full.
_MAX_RANKS = 256


@dataclass(frozen=True, slots=True)
class RankSelection:
    """Selection of ranks and of a step."""

    # None selects the most informative ranks of the step.
    ranks: tuple[int, ...] | None
    step: int | None

    @classmethod
    def of(cls, ranks: str | None, step: int | None) -> RankSelection:
        """Parse `0,8-11`.

        Raises:
            UsageError: Not a list of ranks, or too many ranks.
        """
        if ranks is None:
            return cls(None, step)
        found: dict[int, None] = {}
        for piece in ranks.split(","):
            match = _RANGE.fullmatch(piece.strip())
            low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if low > high:
                raise UsageError(
                    f"--ranks {ranks!r}: expected numbers such as 0,8-11",
                    hint="select ranks",
                    slug="wrong-ranks",
                )
            if high - low >= _MAX_RANKS or len(found) + high - low >= _MAX_RANKS:
                raise UsageError(
                    f"--ranks {ranks!r}: a trace can have at most {_MAX_RANKS} ranks",
                    slug="wrong-ranks",
                )
            found |= dict.fromkeys(range(low, high + 1))
        return cls(tuple(found), step)


@dataclass(frozen=True, slots=True)
class RankTimelines:
    """Timelines of several ranks on a common clock."""

    # (prefix of its track names, timeline) of each rank.
    named: list[tuple[str, OverTime]]
    ranks: list[int]
    # Ranks grouped by the clock that they share.
    islands: list[list[int]]


@contextmanager
def timelines(
    path: Path, wanted: RankSelection, *, convert: bool, quiet: bool, output: Path | None = None
) -> Iterator[RankTimelines]:
    """Open the recordings of selected ranks, shifted to the common clock.

    Raises:
        StoreError: The run or a rank's recording is missing.
        UsageError: The run has no such rank or step, or a recording must be converted first.
    """
    from unified_prof.cluster.step_lanes import (
        ShiftedTimeline,
        ranks_by_clock,
        ranks_of_interest,
        step_window,
    )
    from unified_prof.explain.api import open_reports

    with ExitStack() as stack:
        overview = stack.enter_context(report_ranks.open_ranks(path, quiet=quiet, needed=True))
        if overview is None:
            raise report_ranks.not_a_run_error(
                path, ("leave out --ranks and --step, which apply to cluster runs")
            )
        numbers = wanted.ranks if wanted.ranks is not None else ranks_of_interest(overview)
        chosen = [overview.rank(number).rank for number in numbers]
        found: list[tuple[str, OverTime]] = []
        for rank in chosen:
            window = step_window(overview.run, rank, wanted.step)
            file = recording_of(overview, rank)
            ready = report_input.reports_of(
                file, convert=convert, quiet=quiet, several=False, output=output
            )
            reports = stack.enter_context(open_reports(ready.path))
            told = f"rank {rank.rank}" + (f" ({rank.host})" if rank.host else "")
            found += [
                (f"{told}: ", ShiftedTimeline(one, overview.run.clock(rank), window))
                for one in reports.analyses
            ]
        together = ranks_by_clock(chosen)
        if not quiet and (len(together) > 1 or None in together):
            printing.print_message(
                "uprof: warning: clocks cannot be aligned, no common event between ranks: "
                + "; ".join(", ".join(map(str, ranks)) for ranks in together.values())
            )
        yield RankTimelines(found, [one.rank for one in chosen], [*together.values()])


def recording_of(overview: Overview, rank: RankRecord) -> Path:
    """Return the path of a rank's recording: as given, or beside the run.

    Raises:
        StoreError: The recording is missing.
    """
    run = overview.run
    if rank.file is None:
        raise StoreError(
            f"rank {rank.rank} of {run.path} has no recording",
            hint=rank.why or "",
            slug="rank-without-recording",
        )
    named = Path(rank.file)
    for candidate in (named, run.file.parent / named, run.file.parent.parent / named):
        if candidate.exists():
            return candidate
    raise StoreError(
        f"the recording of rank {rank.rank} is missing: {rank.file}",
        hint=f"restore it, or build {run.path} again",
        slug="rank-without-recording",
    )
