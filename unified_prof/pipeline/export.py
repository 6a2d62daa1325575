"""Exports reports as timelines, MindStudio text files, flame graph stacks, or tables.

A PROF_* directory is converted to a temporary report first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from unified_prof.errors import OutputError, StoreError, UsageError
from unified_prof.explain.api import Opened
from unified_prof.explain.report_questions import Analysis, OverTime
from unified_prof.export import tables
from unified_prof.export.files import Layout
from unified_prof.export.mindstudio import writer
from unified_prof.export.mindstudio.writer import Exported
from unified_prof.export.tables import Exported as ExportTablesExported
from unified_prof.pipeline import analysis_db, outputs
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.sources import Source, find_source
from unified_prof.recording.breakdown_kinds import MEASURES, Place
from unified_prof.recording.stacks import Frame, Stacks, below, merge
from unified_prof.report.figures import readable_answers
from unified_prof.report.viewer_traces import (
    OnUnreadable,
    TraceContents,
    WithCriticalPath,
    write_chrome_trace,
    write_perfetto_trace,
)
from unified_prof.sqlite.atomic import refuse_existing, replacing, temporary_folder
from unified_prof.sqlite.reader import open_report

_DATABASE = re.compile(r"msprof_\d{1,16}\.db")
# Kinds of recordings that are converted first.
_SOURCES = ("prof",)


def export(
    path: Path,
    directory: Path,
    *,
    force: bool = False,
    raw: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write the files of `msprof --type=text` for a report or a PROF_* directory.

    Args:
        path: An msprof database or a PROF_* directory.
        directory: Receives the files; it is created if missing.
        force: If True, files of the same names may be replaced.
        raw: If True, names are written as by msprof, without protection from formulas.
        progress: Called with a short description of the current step.

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


def is_converted_first(path: Path) -> bool:
    """Return True if `path` is a recording that `export` converts to a temporary database."""
    return path.is_dir() and (source := find_source(path)) is not None and source.kind in _SOURCES


@contextmanager
def _database(path: Path, progress: Callable[[str], None]) -> Iterator[Path]:
    """Yield the database for `path`: itself, the one in the directory, or a temporary one."""
    if not path.is_dir():
        yield path
        return
    source = find_source(path)
    if source is None or source.kind not in _SOURCES:
        yield _database_in(path, source)
        return
    try:
        with temporary_folder() as folder:
            target = folder / "msprof.db"
            convert(path, target, source=source, schema="latest", progress=progress)
            yield target
    except OSError as err:
        raise OutputError(
            f"cannot create a temporary database: {err.strerror or err}", slug="no-temporary-space"
        ) from err


def _database_in(path: Path, source: Source | None) -> Path:
    """Return the only database in a directory that is not a PROF_* directory."""
    try:
        found = sorted(file for file in path.iterdir() if _DATABASE.fullmatch(file.name))
        recordings = sorted(child for child in path.glob("PROF_*") if child.is_dir())
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err.strerror or err}", slug="cannot-read") from err
    if len(found) == 1:
        return found[0]
    if source is not None:
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
        hint = f"use {inside[0]}" if inside else "use a PROF_* directory or a database"
    raise StoreError(f"{path} has {what}, expected one to export", hint=hint, slug="no-report")


@dataclass(frozen=True, slots=True)
class Part:
    """One measure in an exported file, with its unit and totals."""

    measure: str
    unit: str
    stacks: int
    total: int


def export_stacks(
    opened: Opened,
    output: Path,
    layout: Layout,
    *,
    measure: str | None = None,
    by: Place | None = None,
    force: bool = False,
) -> list[Part]:
    """Write the stacks of reports to one file; with several reports, each has its own root frame.

    Args:
        opened: The reports.
        output: The file.
        layout: Name of a stack format.
        measure: The measure to write; None: all measures, or the first if the format supports only
            one.
        by: Frames above the operations; None: modules if recorded, otherwise source lines if
            recorded.
        force: If True, the file may be replaced.

    Raises:
        UsageError: no report has the measure or the frames.
        StoreError: no report can be read completely.
        OutputError: the file exists or cannot be written.
    """
    refuse_existing(output, overwrite=force)
    several = len(opened.analyses) > 1

    def ask(analysis: Analysis) -> dict[str, Stacks]:
        wanted = [name for name in analysis.measures if measure in (None, name)]
        if measure is None and not layout.several:
            wanted = wanted[:1]
        found = {name: analysis.stacks(name, by) for name in wanted}
        if several:
            label = analysis.path.replace(f"{opened.path}/", "")
            found = {name: below(Frame(label, "report"), s) for name, s in found.items()}
        return found

    found = readable_answers(opened, ask)
    names = [name for name in MEASURES if any(name in stacks for stacks in found)]
    if not names:
        available = dict.fromkeys(name for a in opened.analyses for name in a.measures)
        raise UsageError(
            f"{opened.path} contains no stacks of {measure or 'any measure'}",
            hint=f"available: {', '.join(available)}" if available else "see `uprof report`",
            slug="no-stacks",
        )
    if not layout.several:
        names = names[:1]
    parts = [
        (
            f"{opened.path.name}: {MEASURES[name].title}",
            merge(own[name] for own in found if name in own),
        )
        for name in names
    ]
    with replacing(output, overwrite=force) as partial:
        layout.write_stacks(partial, parts)
    return [
        Part(stacks.measure.name, stacks.measure.unit, len(stacks.samples), stacks.total)
        for _, stacks in parts
    ]


def export_tables(
    path: Path,
    directory: Path,
    layout: Layout,
    *,
    only: Collection[str] = (),
    ids: bool = False,
    force: bool = False,
) -> ExportTablesExported:
    """Write each table of a report to its own file; supports all kinds of reports.

    Args:
        path: The report.
        directory: Receives the files; it is created if missing.
        layout: Name of a table format.
        only: Names of the tables; empty: all tables with rows.
        ids: If True, string ids are kept; otherwise they are replaced by the strings.
        force: If True, files of the same names may be replaced.

    Raises:
        UsageError: a table does not exist, or pyarrow is not installed.
        StoreError: the file is not a report, or is damaged.
        OutputError: a file exists or cannot be written.
    """
    if path.is_dir():
        raise UsageError(
            f"{path} is a directory, expected one report",
            hint="choose one of its reports",
            slug="several-reports",
        )
    with open_report(path, any_revision=True) as report, outputs.output_directory(directory):
        return tables.write(report, directory, layout.name, only=only, ids=ids, force=force)


def timed_reports(opened: Opened, *, with_path: bool) -> list[tuple[str, OverTime]]:
    """Return the reports with timestamps, each with a prefix for its track names.

    Raises:
        UsageError: No report has timestamps.
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


def write_timeline(
    output: Path, named: list[tuple[str, OverTime]], lose: OnUnreadable | None, *, force: bool
) -> TraceContents:
    """Write the trace atomically in the format of the file's extension."""
    write = write_chrome_trace if output.name.endswith(".json") else write_perfetto_trace
    with replacing(output, overwrite=force) as partial:
        return write(partial, named, lose)
