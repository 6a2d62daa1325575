"""`uprof cluster report|diff|gate`: what a run of many ranks says, alone and beside another.

Ranks of a run that are shown together: `uprof trace --ranks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unified_prof.cli import convert as converting
from unified_prof.cli import output as printing
from unified_prof.cli import output as shapes
from unified_prof.cli import report_ranks
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

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its cluster.sqlite.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")
]


class DiffFormat(str, Enum):
    """How a difference is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class RoleOption(str, Enum):
    """What ranks are put together by."""

    STAGE = "stage"
    ROLE = "role"
    RANK = "rank"


@contextmanager
def opened(path: Path) -> Iterator[Overview]:
    """Open a run for its figures.

    Raises:
        StoreError: there is none, or it is damaged.
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
        typer.Option(help="Show this table alone.", show_default="a screen of all"),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Show this rank alone.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="Show this step alone, by ranks.")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Rows of each table.", show_default="a screen; all for json, csv"),
    ] = None,
    format_: Annotated[
        ShapeOption | None,
        typer.Option("--format", help="How to print it.", show_default="by -o's ending, or text"),
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
    """Show what costs a run of many ranks its time: ranks, hosts, links, steps."""
    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = formats.find_format(
        shapes.chosen(context, CLUSTER_SUFFIXES, asked=asked, as_json=json_, file=file)
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
    with opened(run) as overview:
        show(overview, shape, request, file, force=force, quiet=quiet)
        missing = overview.coverage if overview.missing else ""
    if missing and not quiet:
        printing.say(f"uprof: warning: {missing}")
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
        OutputError: it cannot be written.
        UsageError: the terminal cannot show the format; the run has no such rank or step.
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
        printing.say(f"{file}: {shape.name}, {file.stat().st_size:,} bytes")


def diff(
    context: typer.Context,
    base: Annotated[Path, typer.Argument(metavar="BASE", help="A run: before.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A run: after.")],
    by: Annotated[
        RoleOption, typer.Option(help="Put ranks together by stage, stage and data rank, or not.")
    ] = RoleOption.STAGE,
    top: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 20,
    format_: Annotated[
        DiffFormat | None,
        typer.Option(
            "--format",
            help="How to print it; json has every row.",
            show_default="by -o's ending, or text",
        ),
    ] = None,
    output: Output = None,
    force: Force = False,
    json_: AsJsonFormat = False,
    full_names: FullNames = False,
    quiet: Quiet = False,
) -> None:
    """Compare two runs of many ranks by what ranks do, so that 64 and 128 ranks compare."""
    from unified_prof.cluster import run_comparison
    from unified_prof.report import cluster_comparison

    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = shapes.chosen(context, _DIFF_SUFFIXES, asked=asked, as_json=json_, file=file)
    with ExitStack() as stack:
        before, after = (stack.enter_context(opened(path)) for path in (base, new))
        _warn(before, after, quiet=quiet)
        found = run_comparison.compare_cluster_runs(before, after, by=by.value)
        if shape == "json":
            text = cluster_comparison.cluster_difference_json(found)
        elif shape == "markdown":
            text = cluster_comparison.cluster_difference_markdown(
                found, top=top, full_names=full_names
            )
        else:
            width, color = (None, False) if file else printing.terminal()
            text = cluster_comparison.cluster_difference_text(
                found, top=top, width=width, color=color, full_names=full_names
            )
    if file is None:
        printing.put(text, for_people=shape == "text")
    else:
        printing.write(file, text, force=force)


def gate(
    *,
    context: typer.Context,
    base: Annotated[Path, typer.Argument(metavar="BASE", help="A run: before.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A run: after.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC",
            help="step, slowest-rank, imbalance or exposed-communication.",
            show_default="step",
        ),
    ] = None,
    max_regress: Annotated[
        str, typer.Option(metavar="SHARE", help="How much worse is too much: 5% or 0.05.")
    ] = "5%",
    min_abs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AMOUNT", help="And by at least so much: a time.", show_default="0.05ms"
        ),
    ] = None,
    format_: Annotated[
        FormatOption | None,
        typer.Option(
            "--format", help="How to print the verdict.", show_default="by -o's ending, or text"
        ),
    ] = None,
    output: Output = None,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJsonFormat = False,
) -> None:
    """Refuse a run of many ranks that is slower than a base allows, judged by its steps."""
    from unified_prof.cluster import run_comparison

    file = shapes.file_of(output)
    asked = format_ and format_.value
    shape = FormatOption(
        shapes.chosen(context, GATE_SUFFIXES, asked=asked, as_json=json_, file=file)
    )
    limits = Allowed(max_regress=max_regress, min_abs=min_abs).limits()
    with ExitStack() as stack:
        before, after = (stack.enter_context(opened(path)) for path in (base, new))
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
    """Tell of ranks that are missing."""
    for one in sides:
        if one.missing and not quiet:
            printing.say(f"uprof: warning: {one.run.path}: {one.coverage}")


def register(app: Any) -> None:
    """Add the commands to the group `uprof cluster`."""
    app.command(
        "report",
        epilog="Exit code: 0 fine, even if ranks are missing; with --strict 7 then. 2 wrong use "
        "(no such rank or step), 7 no run or one that cannot be read, 9 the output cannot be "
        "written.",
    )(report)
    app.command("diff", epilog="Exit code: 0 fine, 7 no run or one that cannot be read.")(diff)
    app.command(
        "gate",
        epilog="Exit code: 0 fine, 1 a regression, 3 inconclusive (fewer than five steps, or they "
        "scatter too much), 2 wrong use, 7 no run or one that cannot be read.",
    )(gate)


_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 256
"""Ranks of one trace: viewers draw no more, and each of them is read whole."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which ranks, and which step of them."""

    ranks: tuple[int, ...] | None
    """None: those that tell most of the step."""
    step: int | None

    @classmethod
    def of(cls, ranks: str | None, step: int | None) -> Wanted:
        """Return what `0,8-11` means.

        Raises:
            UsageError: it is no list of ranks, or of too many.
        """
        if ranks is None:
            return cls(None, step)
        found: dict[int, None] = {}
        for piece in ranks.split(","):
            match = _RANGE.fullmatch(piece.strip())
            low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if low > high:
                raise UsageError(
                    f"--ranks takes numbers such as 0,8-11, not {ranks!r}",
                    hint="say which ranks",
                    slug="wrong-ranks",
                )
            if high - low >= _MOST or len(found) + high - low >= _MOST:
                raise UsageError(
                    f"--ranks: a trace takes {_MOST} ranks at most, not {ranks!r}",
                    slug="wrong-ranks",
                )
            found |= dict.fromkeys(range(low, high + 1))
        return cls(tuple(found), step)


@dataclass(frozen=True, slots=True)
class Together:
    """Ranks on one clock, as far as there is one."""

    named: list[tuple[str, OverTime]]
    """Each with the prefix of its names."""
    ranks: list[int]
    islands: list[list[int]]
    """The ranks by the clock that they share."""


@contextmanager
def timelines(
    path: Path, wanted: Wanted, *, convert: bool, quiet: bool, output: Path | None = None
) -> Iterator[Together]:
    """Open the recordings of chosen ranks of a run, moved to its common clock.

    Raises:
        StoreError: there is no run, or a rank's recording is not there any more.
        UsageError: the run has no such rank or step; a recording has to be converted first.
    """
    from unified_prof.cluster.step_lanes import (
        ShiftedTimeline,
        ranks_by_clock,
        ranks_of_interest,
        step_window,
    )
    from unified_prof.explain.api import open_reports

    with ExitStack() as stack:
        overview = stack.enter_context(report_ranks.of_run(path, quiet=quiet, needed=True))
        if overview is None:
            raise report_ranks.no_run(path, "--ranks and --step are for those; leave them out")
        numbers = wanted.ranks if wanted.ranks is not None else ranks_of_interest(overview)
        chosen = [overview.rank(number).rank for number in numbers]
        found: list[tuple[str, OverTime]] = []
        for rank in chosen:
            window = step_window(overview.run, rank, wanted.step)
            file = recording_of(overview, rank)
            ready = converting.reports_of(
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
            printing.say(
                "uprof: warning: these ranks share no event that would tell their clocks: "
                + "; ".join(", ".join(map(str, ranks)) for ranks in together.values())
            )
        yield Together(found, [one.rank for one in chosen], [*together.values()])


def recording_of(overview: Overview, rank: RankRecord) -> Path:
    """Return where a rank's recording lies: as it was named, or beside the run.

    Raises:
        StoreError: it is not there.
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
        f"the recording of rank {rank.rank}, {rank.file}, is not there any more",
        hint=f"{run.path} was made of it; bring it back, or build the run again",
        slug="rank-without-recording",
    )
