"""Export reports as timelines, MindStudio text files, flame graph stacks, or tables.

A PROF_* directory is converted to a temporary report first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from unified_prof.cluster.overview import Overview
from unified_prof.cluster.step_lanes import (
    ShiftedTimeline,
    ranks_by_clock,
    ranks_of_interest,
    step_window,
)
from unified_prof.errors import OutputError, StoreError, UsageError, system_errors
from unified_prof.explain.api import Opened, open_reports
from unified_prof.explain.report_questions import Analysis, OverTime
from unified_prof.export.files import Layout
from unified_prof.export.mindstudio import writer
from unified_prof.export.mindstudio.writer import Exported
from unified_prof.export.stacks import WRITERS
from unified_prof.pipeline import analysis_db, outputs, report_input
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.outputs import RankSelection
from unified_prof.pipeline.sources import find_source
from unified_prof.recording import run_directory
from unified_prof.recording.breakdowns import Frame, Stacks, below, merge
from unified_prof.recording.model import MEASURES, Place
from unified_prof.report import names
from unified_prof.report.figures import coverage_fields, readable_answers
from unified_prof.report.viewer_traces import (
    OnUnreadable,
    WithCriticalPath,
    write_chrome_trace,
    write_perfetto_trace,
)
from unified_prof.sqlite.atomic import refuse_existing, replacing, temporary_folder
from unified_prof.sqlite.reader import open_report

if TYPE_CHECKING:
    from unified_prof.export import tables
    from unified_prof.pipeline.report_input import Reader

_DATABASE = re.compile(r"msprof_\d{1,16}\.db")
_SOURCES = ("prof",)  # Kinds of recordings that are converted first.
# Maximum ranks per trace; viewers cannot draw more, and each rank is read in full.
_MAX_RANKS = 256


class Selection(Struct, frozen=True):
    """Selection of an export; each field applies to one kind of layout."""

    # Timelines: ranks of a multi-rank run; None for the most informative ones of the step.
    ranks: RankSelection | None = None
    step: int | None = None  # Timelines: the only step of a multi-rank run.
    with_path: bool = False  # Timelines: add a track of the critical path.
    # Stacks: the only measure, and the frames above the operations.
    measure: str | None = None
    by: Place | None = None
    # Tables: the only tables; and whether ids of strings stay as they are.
    tables: Collection[str] = ()
    ids: bool = False
    raw: bool = False  # Files of msprof: names without the protection from formulas.


class ExportResult(Struct, frozen=True):
    """Result of an export."""

    fields: dict[str, Any]  # Plain data for JSON.
    lines: list[str]  # Lines of text.
    # Description of what could not be read; empty if everything was read.
    missing: str = ""
    warnings: Sequence[str] = ()


def export_report(
    path: Path, output: Path, layout: Layout, reader: Reader, selected: Selection, *, force: bool
) -> ExportResult:
    """Export a report, a directory of reports or a multi-rank run.

    Raises:
        UprofError: Same as the functions for the kinds of layouts.
    """
    about: dict[str, Any] = {"output": str(output), "layout": layout.name}
    if layout.makes == "timeline":
        refuse_existing(output, overwrite=force)
        if selected.ranks is None and selected.step is None:
            with_path = selected.with_path
            return export_timeline(path, output, reader, with_path=with_path, force=force)
        if selected.with_path:
            raise UsageError(
                "--critical-path cannot be combined with --ranks and --step",
                slug="contradicting-options",
            )
        return export_ranks(path, output, reader, selected.ranks, selected.step, force=force)
    if layout.makes == "stacks":
        with reader.opened(path) as opened:
            profiles = _export_stacks(opened, output, layout, selected, force=force)
            coverage = opened.coverage
        about |= {"profiles": profiles, "coverage": coverage_fields(coverage)}
        lines = []
        for one in profiles:
            show = names.format_size if one["unit"] == "bytes" else names.format_duration
            lines.append(
                f"{output}: {one['measure']}: {one['stacks']:,} stacks, total {show(one['total'])}"
            )
        return ExportResult(about, lines, coverage.sentence if coverage.missing else "")
    if layout.makes == "deliverables" and _is_converted_first(path):
        # The conversion must keep rows that a report does not show.
        reader = replace(reader, convert=False)
    ready = reader.reports(path, several=False).path
    with reader.with_hint(path), reader.messages.progress() as progress:
        done: tables.Exported | Exported
        if layout.makes != "tables":
            done = export(ready, output, force=force, raw=selected.raw, progress=progress)
        elif ready.is_dir():
            reports = ", ".join(str(one) for one in run_directory.databases(ready).files[:3])
            raise UsageError(
                f"{ready} is a directory, expected one report",
                hint=f"choose one of its reports: {reports}",
                slug="several-reports",
            )
        else:
            only, ids = selected.tables, selected.ids
            with open_report(ready, any_revision=True) as report, outputs.output_directory(output):
                # SQLAlchemy's models take as long as the timeline of 30,000 tasks.
                from unified_prof.export import tables

                done = tables.write(report, output, layout.name, only=only, ids=ids, force=force)
    return ExportResult(
        about | done.fields(), [f"{output}: {len(done.files)} files", *done.lines()]
    )


def export_timeline(
    path: Path, output: Path, reader: Reader, *, with_path: bool = False, force: bool = False
) -> ExportResult:
    """Write the timeline of a report, or of all reports in a directory.

    Raises StoreError if there is no report, or the only one is damaged, UsageError if no report has
    timestamps, and OutputError if the file cannot be written.
    """
    with reader.opened(path) as opened:
        named = _timed_reports(opened, with_path=with_path)

        def lose(lost: OverTime, error: StoreError) -> None:
            (analysis,) = (one for one in opened.analyses if one.path == lost.path)
            opened.lose(analysis, error, part="the trace is incomplete")

        lose_one = lose if len(named) > 1 else None
        written = _write_timeline(output, named, lose_one, force=force)
        # Tables that turned out to be damaged are part of it now.
        coverage = opened.coverage
        fields = written.fields | {"coverage": coverage_fields(coverage)}
        missing = coverage.sentence if coverage.missing else ""
        return structs.replace(written, fields=fields, missing=missing)


def export_ranks(
    path: Path,
    output: Path,
    reader: Reader,
    chosen: RankSelection | None = None,
    step: int | None = None,
    *,
    force: bool = False,
) -> ExportResult:
    """Write the timelines of ranks of a multi-rank run, shifted to the common clock.

    Without `chosen`, the most informative ranks of the step are written; `step` is the only step,
    or None for all. Raises StoreError if the run or a rank's recording is missing, UsageError if
    the run has no such rank or step, or a recording must be converted first, and OutputError if the
    file cannot be written.
    """
    with ExitStack() as stack:
        overview = stack.enter_context(reader.ranks(path, needed=True))
        if overview is None:
            raise report_input.not_a_run_error(
                path, "leave out --ranks and --step, which apply to cluster runs"
            )
        ranks = [overview.rank(number).rank for number in _numbers(overview, chosen)]
        found: list[tuple[str, OverTime]] = []
        for rank in ranks:
            step_window(overview.run, rank, step, ())  # Names a damaged rank before it is opened.
            file = stack.enter_context(report_input.fetch_recording(overview, rank))
            ready = reader.reports(file, several=False)
            label = f"rank {rank.rank}" + (f" ({rank.host})" if rank.host else "")
            for one in stack.enter_context(open_reports(ready.path)).analyses:
                window = step_window(overview.run, rank, step, one.step_spans())
                found.append((f"{label}: ", ShiftedTimeline(one, overview.run.clock(rank), window)))
        written = _write_timeline(output, found, None, force=force)
        # Ranks grouped by the clock that they share.
        groups = ranks_by_clock(ranks)
        fields = {"ranks": [one.rank for one in ranks], "clock_islands": [*groups.values()]}
        warnings = []
        if len(groups) > 1 or None in groups:
            numbers = "; ".join(", ".join(map(str, group)) for group in groups.values())
            warnings = [f"clocks cannot be aligned, no common event between ranks: {numbers}"]
        return structs.replace(written, fields=written.fields | fields, warnings=warnings)


def _numbers(overview: Overview, chosen: RankSelection | None) -> list[int]:
    """Return the numbers of the chosen ranks. Raises UsageError if there are too many."""
    if chosen is None:
        return ranks_of_interest(overview)
    known = [rank.rank for rank in overview.run.ranks]
    if chosen.size(known) > _MAX_RANKS:
        raise UsageError(
            f"--ranks: a trace can have at most {_MAX_RANKS} ranks", slug="wrong-ranks"
        )
    return chosen.numbers(known)


def export(
    path: Path,
    directory: Path,
    *,
    force: bool = False,
    raw: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write the files of `msprof --type=text` for a report or a PROF_* directory.

    The directory is created if missing. If `force`, files of the same names may be replaced; if
    `raw`, names are written as by msprof, without protection from formulas.

    Raises:
        UsageError: another kind of report or recording, or there is nothing to write.
        RawFormatError: the recording is damaged beyond use.
        StoreError: the file is not a report, or is damaged.
        OutputError: a file exists or cannot be written.
    """
    with _database(path, progress) as database, open_report(database, any_revision=True) as report:
        writer.refuse_others(report)
        with outputs.output_directory(directory):
            return writer.write(report, directory, force=force, raw=raw, progress=progress)


def _is_converted_first(path: Path) -> bool:
    """Return True if `path` is a recording that `export` converts to a temporary database."""
    return path.is_dir() and (source := find_source(path)) is not None and source.kind in _SOURCES


@contextmanager
def _database(path: Path, progress: Callable[[str], None]) -> Iterator[Path]:
    """Yield the database for `path`: itself, the one in the directory, or a temporary one."""
    if not path.is_dir():
        yield path
    elif not _is_converted_first(path):
        yield _database_in(path)
    else:
        with (
            system_errors(
                OutputError, "cannot create a temporary database", slug="no-temporary-space"
            ),
            temporary_folder() as folder,
        ):
            target = folder / "msprof.db"
            convert(path, target, schema="latest", progress=progress)
            yield target


def _database_in(path: Path) -> Path:
    """Return the only database in a directory that is not a PROF_* directory."""
    with system_errors(StoreError, f"cannot read {path}", slug="cannot-read"):
        found = sorted(file for file in path.iterdir() if _DATABASE.fullmatch(file.name))
        recordings = sorted(child for child in path.glob("PROF_*") if child.is_dir())
    if len(found) == 1:
        return found[0]
    if (source := find_source(path)) is not None:
        raise UsageError(
            f"{path} is {source.description}, expected an msprof database or a PROF_* directory",
            hint=f"run `uprof convert {path}` first, or use --convert",
            slug="not-converted",
        )
    if found:
        what = f"{len(found)} databases"
        hint = f"choose one of them: {', '.join(file.name for file in found[:3])}"
    else:
        what = "neither a recording nor a database msprof_*.db"
        inside = recordings or analysis_db.databases_in(path)
        hint = (
            f"use {inside[0]}"
            if inside
            else "use a PROF_* directory or a database, or choose a --layout such as speedscope"
        )
    raise StoreError(f"{path} has {what}, expected one to export", hint=hint, slug="no-report")


def _export_stacks(
    opened: Opened, output: Path, layout: Layout, selected: Selection, *, force: bool
) -> list[dict[str, Any]]:
    """Write the stacks of reports to one file; with several reports, each has its own root frame.

    Without a selected measure, all are written, or the first if the format supports only one.
    Without selected frames, they are modules if recorded, otherwise source lines if recorded.

    Returns:
        Measure, unit, number of stacks and total of each profile in the file.
    """
    measure = selected.measure
    refuse_existing(output, overwrite=force)
    several = len(opened.analyses) > 1

    def ask(analysis: Analysis) -> dict[str, Stacks]:
        wanted = [name for name in analysis.measures if measure in (None, name)]
        if measure is None and not layout.several:
            wanted = wanted[:1]
        found = {name: analysis.stacks(name, selected.by) for name in wanted}
        if several:
            label = analysis.path.replace(f"{opened.path}/", "")
            found = {name: below(Frame(label, "report"), s) for name, s in found.items()}
        return found

    found = readable_answers(opened, ask)
    measures = [name for name in MEASURES if any(name in stacks for stacks in found)]
    if not measures:
        available = dict.fromkeys(name for a in opened.analyses for name in a.measures)
        raise UsageError(
            f"{opened.path} contains no stacks of {measure or 'any measure'}",
            hint=f"available: {', '.join(available)}" if available else "see `uprof report`",
            slug="no-stacks",
        )
    if not layout.several:
        measures = measures[:1]
    parts = [
        (
            f"{opened.path.name}: {MEASURES[name].title}",
            merge(own[name] for own in found if name in own),
        )
        for name in measures
    ]
    with replacing(output, overwrite=force) as partial:
        WRITERS[layout.name](partial, parts)
    return [
        {
            "measure": stacks.measure.name,
            "unit": stacks.measure.unit,
            "stacks": len(stacks.samples),
            "total": stacks.total,
        }
        for _, stacks in parts
    ]


def _timed_reports(opened: Opened, *, with_path: bool) -> list[tuple[str, OverTime]]:
    """Return the reports with timestamps, each with a prefix for its track names.

    Raises UsageError if no report has timestamps.
    """
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


def _write_timeline(
    output: Path, named: list[tuple[str, OverTime]], lose: OnUnreadable | None, *, force: bool
) -> ExportResult:
    """Write the trace atomically in the format of the file's extension."""
    write = write_chrome_trace if output.name.endswith(".json") else write_perfetto_trace
    with replacing(output, overwrite=force) as partial:
        written = write(partial, named, lose)
    fields = {"output": str(output), **asdict(written)}
    line = (
        f"{output}: {written.slices:,} slices on {written.tracks:,} tracks, "
        f"{written.flows:,} flows, {written.counters:,} counters"
    )
    return ExportResult(fields, [line])
