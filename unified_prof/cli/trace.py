"""Timelines of `uprof export` for viewers."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.cli import output as printing
from unified_prof.cli.command import flag, option
from unified_prof.cli.report_input import Reader
from unified_prof.errors import StoreError, UsageError
from unified_prof.pipeline import rank_runs

if TYPE_CHECKING:
    from unified_prof.explain.api import Opened
    from unified_prof.explain.report_questions import OverTime
    from unified_prof.recording.source import Coverage
    from unified_prof.report.viewer_traces import OnUnreadable, TraceContents

_CHROME = (".json",)


@dataclass(frozen=True, slots=True)
class TimelineOptions:
    """Options of timelines."""

    ranks: str | None = option(
        metavar="N,...",
        help="Timelines of a cluster run: these ranks on one clock, for example 0,8-11.",
    )
    step: int | None = option(metavar="N", help="Timelines of a cluster run: only this step.")
    critical_path: bool = flag(
        "--critical-path", "--path", help="Timelines: add a track of the critical path."
    )


def write_timeline(
    path: Path,
    output: Path,
    options: TimelineOptions,
    reader: Reader,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Write a timeline and print what was written.

    Raises:
        UprofError: Same as `write_ranks` and `write_reports`.
    """
    from unified_prof.report.figures import coverage_fields
    from unified_prof.sqlite.atomic import refuse_existing

    refuse_existing(output, overwrite=force)
    ranks, step, with_path = options.ranks, options.step, options.critical_path
    if ranks is not None or step is not None:
        if with_path:
            raise UsageError(
                "--critical-path cannot be combined with --ranks and --step",
                slug="contradicting-options",
            )
        wanted = RankSelection.parse(ranks, step)
        traced = write_ranks(path, output, wanted, reader, force=force)
        if as_json:
            printing.put_json(
                {"output": str(output), **asdict(traced.written), "ranks": traced.ranks}
                | {"clock_islands": traced.islands}
            )
        elif not reader.quiet:
            printing.print_message(trace_summary(output, traced.written))
        return
    written, coverage = write_reports(path, output, reader, with_path=with_path, force=force)
    if as_json:
        printing.put_json(
            {"output": str(output), **asdict(written), "coverage": coverage_fields(coverage)}
        )
    elif not reader.quiet:
        printing.print_message(trace_summary(output, written))
    printing.end_if_missing(coverage.sentence if coverage.missing else "")


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
    def parse(cls, ranks: str | None, step: int | None) -> RankSelection:
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
class RankTrace:
    """Content of a trace of several ranks."""

    written: TraceContents
    ranks: list[int]
    # Ranks grouped by the clock that they share.
    islands: list[list[int]]


def write_ranks(
    path: Path, output: Path, wanted: RankSelection, reader: Reader, *, force: bool
) -> RankTrace:
    """Write the timelines of selected ranks, shifted to the common clock.

    Raises:
        StoreError: The run or a rank's recording is missing.
        UsageError: The run has no such rank or step, or a recording must be converted first.
        OutputError: The file cannot be written.
    """
    from unified_prof.cluster.step_lanes import (
        ShiftedTimeline,
        ranks_by_clock,
        ranks_of_interest,
        step_window,
    )
    from unified_prof.explain.api import open_reports

    with ExitStack() as stack:
        overview = stack.enter_context(reader.ranks(path, needed=True))
        if overview is None:
            raise rank_runs.not_a_run_error(
                path, "leave out --ranks and --step, which apply to cluster runs"
            )
        numbers = wanted.ranks if wanted.ranks is not None else ranks_of_interest(overview)
        chosen = [overview.rank(number).rank for number in numbers]
        found: list[tuple[str, OverTime]] = []
        for rank in chosen:
            window = step_window(overview.run, rank, wanted.step)
            file = stack.enter_context(rank_runs.fetch_recording(overview, rank))
            ready = reader.reports(file, several=False)
            reports = stack.enter_context(open_reports(ready.path))
            label = f"rank {rank.rank}" + (f" ({rank.host})" if rank.host else "")
            found += [
                (f"{label}: ", ShiftedTimeline(one, overview.run.clock(rank), window))
                for one in reports.analyses
            ]
        together = ranks_by_clock(chosen)
        if not reader.quiet and (len(together) > 1 or None in together):
            printing.print_message(
                "uprof: warning: clocks cannot be aligned, no common event between ranks: "
                + "; ".join(", ".join(map(str, ranks)) for ranks in together.values())
            )
        written = _write(output, found, None, force=force)
        return RankTrace(written, [one.rank for one in chosen], [*together.values()])


def write_reports(
    path: Path, output: Path, reader: Reader, *, with_path: bool, force: bool
) -> tuple[TraceContents, Coverage]:
    """Write the timeline of a report, or of all reports in a directory, and return its content.

    Raises:
        StoreError: There is no report, or the only one is damaged.
        UsageError: No report has timestamps.
        OutputError: The file cannot be written.
    """
    from unified_prof.explain.api import open_reports

    ready = reader.reports(path)
    with printing.with_convert_hint(path), open_reports(ready.path, ready.missing) as opened:
        named = _timed_reports(opened, with_path=with_path)

        def lose(lost: OverTime, error: StoreError) -> None:
            (analysis,) = (one for one in opened.analyses if one.path == lost.path)
            opened.lose(analysis, error, part="the trace is incomplete")

        written = _write(output, named, lose if len(named) > 1 else None, force=force)
        return written, opened.coverage


def _write(
    output: Path, named: list[tuple[str, OverTime]], lose: OnUnreadable | None, *, force: bool
) -> TraceContents:
    """Write the trace atomically in the format of the file's extension."""
    from unified_prof.report.viewer_traces import write_chrome_trace, write_perfetto_trace
    from unified_prof.sqlite.atomic import replacing

    write = write_chrome_trace if output.name.endswith(_CHROME) else write_perfetto_trace
    with replacing(output, overwrite=force) as partial:
        return write(partial, named, lose)


def trace_summary(output: Path, written: TraceContents) -> str:
    """Summarize the content of a trace."""
    return (
        f"{output}: {written.slices:,} slices on {written.tracks:,} tracks, "
        f"{written.flows:,} flows, {written.counters:,} counters"
    )


def _timed_reports(opened: Opened, *, with_path: bool) -> list[tuple[str, OverTime]]:
    """Return the reports with timestamps, each with a prefix for its track names."""
    from unified_prof.report.figures import readable_answers
    from unified_prof.report.viewer_traces import WithCriticalPath

    # A memory snapshot has no tracks, but memory over time.
    has_times = readable_answers(
        opened,
        lambda analysis: (
            analysis,
            next(analysis.tracks(), None) is not None or bool(analysis.memory_series()),
        ),
    )
    found = [analysis for analysis, answer in has_times if answer]
    if not found:
        family = has_times[0][0].family
        why = (
            "no device tasks, host calls or memory were recorded"
            if family == "msprof"
            else "Skyline reports have durations but no timestamps"
        )
        raise UsageError(
            f"{opened.path} has no timeline: {why}",
            hint="record one with `uprof run --report timeline`",
            slug="no-timeline",
        )
    several = len(found) > 1
    return [
        (f"{Path(one.path).stem}: " if several else "", WithCriticalPath(one) if with_path else one)
        for one in found
    ]
