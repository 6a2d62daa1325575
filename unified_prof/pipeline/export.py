"""`uprof export`: a report, or a recording on its way through one, as other tools' files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from unified_prof.errors import OutputError, StoreError, UsageError
from unified_prof.export.mindstudio import writing
from unified_prof.export.mindstudio.writing import Exported
from unified_prof.pipeline import outputs
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.sources import Source, source_of
from unified_prof.store.ownership import temporary_folder
from unified_prof.store.reader import open_report

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
        writing.refuse_others(report)
        with outputs.output_directory(directory):
            return writing.write(report, directory, force=force, progress=progress)


def is_built_on_the_way(path: Path) -> bool:
    """Tell whether `path` is a recording of which `export` builds a database for itself."""
    return path.is_dir() and (source := source_of(path)) is not None and source.kind in _SOURCES


@contextmanager
def _database(path: Path, progress: Callable[[str], None]) -> Iterator[Path]:
    """Yield the database of `path`: itself, the one in a folder, or one built for the time."""
    if not path.is_dir():
        yield path
        return
    source = source_of(path)
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
            f"cannot make a temporary database: {err.strerror or err}", slug="no-temporary-space"
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
            f"{path} is {source.what}, expected an msprof database or a PROF_* directory",
            hint=f"run `uprof {source.command} {path}` first, or give --convert",
            slug="not-converted",
        )
    if found:
        what = f"{len(found)} databases"
        hint = f"name one of them: {', '.join(one.name for one in found[:3])}"
    else:
        what = "neither a recording nor a database msprof_*.db"
        hint = f"name {below[0]}" if below else "name a PROF_* directory or a database"
    raise StoreError(f"{path} holds {what}, expected one to export", hint=hint, slug="no-report")
