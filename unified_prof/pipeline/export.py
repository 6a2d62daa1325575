"""`uprof export`: a report, or a recording on its way through one, as other tools' files.

`uprof export` of stacks: what weighs what in a report, for tools that draw flame graphs.

`uprof export` of tables: a report's as Parquet or Arrow files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from unified_prof.errors import OutputError, StoreError, UsageError
from unified_prof.explain.api import Opened
from unified_prof.explain.report_questions import Analysis
from unified_prof.export import tables
from unified_prof.export.files import Layout
from unified_prof.export.mindstudio import writer
from unified_prof.export.mindstudio.writer import Exported
from unified_prof.export.tables import Exported as ExportTablesExported
from unified_prof.pipeline import outputs
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.sources import Source, find_source
from unified_prof.recording.breakdown_kinds import MEASURES, Place
from unified_prof.recording.stacks import Frame, Stacks, below, merge
from unified_prof.report.figures import readable_answers
from unified_prof.sqlite.atomic import refuse_existing, replacing, temporary_folder
from unified_prof.sqlite.reader import open_report

_DATABASE = re.compile(r"msprof_\d{1,16}\.db")
_SOURCES = ("prof",)
"""Kinds of recordings that are built into a database first."""


def export(
    path: Path,
    directory: Path,
    *,
    force: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write the deliverables of `msprof --type=text` of a report or a PROF_* directory.

    Args:
        path: an msprof database, or a PROF_* directory, of which one is built for the time.
        directory: where the files go; it is made where it is missing.
        force: whether files of the same names may be replaced.
        progress: told what is going on.

    Raises:
        UsageError: it is something else that uprof knows, or has nothing to write.
        RawFormatError: the recording is damaged beyond use.
        StoreError: it is no report, or a damaged one.
        OutputError: a file exists or cannot be written.
    """
    with _database(path, progress) as database, open_report(database, any_revision=True) as report:
        writer.refuse_others(report)
        with outputs.output_directory(directory):
            return writer.write(report, directory, force=force, progress=progress)


def is_built_on_the_way(path: Path) -> bool:
    """Tell whether `path` is a recording of which `export` builds a database for itself."""
    return path.is_dir() and (source := find_source(path)) is not None and source.kind in _SOURCES


@contextmanager
def _database(path: Path, progress: Callable[[str], None]) -> Iterator[Path]:
    """Yield the database of `path`: itself, the one in a folder, or one built for the time."""
    if not path.is_dir():
        yield path
        return
    source = find_source(path)
    if source is None or source.kind not in _SOURCES:
        yield _beside(path, source)
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


def _beside(path: Path, source: Source | None) -> Path:
    """Return the only database in a folder without a recording that is taken."""
    try:
        found = sorted(one for one in path.iterdir() if _DATABASE.fullmatch(one.name))
        below = sorted(one for one in path.glob("PROF_*") if one.is_dir())
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
        hint = f"choose one of them: {', '.join(one.name for one in found[:3])}"
    else:
        what = "neither a recording nor a database msprof_*.db"
        hint = f"use {below[0]}" if below else "use a PROF_* directory or a database"
    raise StoreError(f"{path} has {what}, expected one to export", hint=hint, slug="no-report")


@dataclass(frozen=True, slots=True)
class Part:
    """One measure of a file that was written."""

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
    """Write the stacks of reports as one file; of several, each under a frame of its own.

    Args:
        opened: the reports.
        output: the file.
        layout: one of stacks.
        measure: the only one; None: all that there are, or the first where a file holds one.
        by: what stands above operations; None: modules, else lines, else nothing.
        force: whether the file may be replaced.

    Raises:
        UsageError: no report has the measure, or what is to stand above operations.
        StoreError: no report can be read to its end.
        OutputError: the file exists or cannot be written.
    """
    refuse_existing(output, overwrite=force)
    several = len(opened.analyses) > 1

    def ask(analysis: Analysis) -> dict[str, Stacks]:
        wanted = [one for one in analysis.measures if measure in (None, one)]
        if measure is None and not layout.several:
            wanted = wanted[:1]
        found = {one: analysis.stacks(one, by) for one in wanted}
        if several:
            label = analysis.path.replace(f"{opened.path}/", "")
            found = {one: below(Frame(label, "report"), own) for one, own in found.items()}
        return found

    found = readable_answers(opened, ask)
    names = [one for one in MEASURES if any(one in own for own in found)]
    if not names:
        have = dict.fromkeys(one for analysis in opened.analyses for one in analysis.measures)
        raise UsageError(
            f"{opened.path} has no stacks of {measure or 'any measure'}: not measured",
            hint=f"available: {', '.join(have)}" if have else "see `uprof report`",
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
        Part(one.measure.name, one.measure.unit, len(one.samples), one.total) for _, one in parts
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
    """Write tables of a report of any family as files of their own.

    Args:
        path: the report.
        directory: where the files go; it is made where it is missing.
        layout: one of tables.
        only: the tables; none: all that have rows.
        ids: whether ids of texts stay as they are.
        force: whether files of the same names may be replaced.

    Raises:
        UsageError: there is no such table, or pyarrow is not installed.
        StoreError: it is no report, or a damaged one.
        OutputError: a file exists or cannot be written.
    """
    if path.is_dir():
        raise UsageError(
            f"{path} is a directory, but tables are exported from one report",
            hint="choose one of its reports",
            slug="several-reports",
        )
    with open_report(path, any_revision=True) as report, outputs.output_directory(directory):
        return tables.write(report, directory, layout.name, only=only, ids=ids, force=force)
