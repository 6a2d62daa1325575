"""A cache of reports for commands that read recordings directly (`--convert`).

Reports are stored below `$XDG_CACHE_HOME/uprof/reports` (default `~/.cache`). Each directory is
named after a hash of the recording's content, so that a changed recording gets a new directory.
Reports are written atomically: several processes may request the same report. If the cache exceeds
`MAX_BYTES`, the least recently used reports are removed, except those used within the last
`MIN_AGE_S` seconds. The whole directory may be deleted at any time.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct

from unified_prof.errors import OutputError, RawFormatError, UprofError, UsageError, system_errors
from unified_prof.pipeline import discovery, outputs, sources
from unified_prof.pipeline.convert import convert, prefixed
from unified_prof.pipeline.discovery import FoundRecording
from unified_prof.recording import run_directory
from unified_prof.recording.source import Missing
from unified_prof.schema import catalogue
from unified_prof.sqlite.atomic import remove_abandoned
from unified_prof.sqlite.opening import detect
from unified_prof.version import VERSION

# Maximum size of the cache, and seconds after its last use in which a report is kept.
MAX_BYTES = 20 << 30
MIN_AGE_S = 3600
_SCHEMA = "documented"
_SAMPLE_BYTES = 64 << 10
_DATABASES = (".db", ".sqlite")
_GONE = ".gone-"


class CachedReports(Struct, frozen=True):
    """Reports to read instead of a path."""

    path: Path  # A report, or a directory of reports if the path contains several recordings.
    # Recordings and their reports; empty if the path names reports.
    converted: tuple[tuple[FoundRecording, Path], ...] = ()
    # Recordings that could not be converted, and directories that could not be searched.
    missing: tuple[Missing, ...] = ()


def reports_of(
    path: Path,
    *,
    several: bool = True,
    progress: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> CachedReports:
    """Return the report of a recording, or the reports of a directory of recordings.

    Paths other than reports, recordings and directories of them are returned unchanged. `note` is
    called with a note about files that were skipped. Raises UsageError if the path contains several
    recordings, but `several` is false, RawFormatError if no recording could be converted, and
    OutputError if the cache cannot be written.
    """
    found, failed = _recordings(path, progress, note)
    if not found and not failed:
        return CachedReports(path)
    if len(found) > 1 and not several:
        choices = ", ".join(str(recording.path) for recording in found[:3])
        raise UsageError(
            f"{path} has {len(found)} recordings",
            hint=f"choose one of: {choices}",
            slug="several-recordings",
        )
    converted: list[tuple[FoundRecording, Path]] = []
    names = discovery.report_names(found, ranked=True)
    for number, (recording, name) in enumerate(zip(found, names, strict=True), start=1):
        at = f"{number} of {len(found)}, " if len(found) > 1 else ""
        try:
            report = _report(recording, name, prefixed(progress, at))
            converted.append((recording, report))
        except OutputError:
            raise
        except UprofError as err:
            failed.append((recording.path, err))
    if not converted or (failed and not several):
        raise failed[0][1]
    if len(converted) == 1 and not failed:
        return CachedReports(converted[0][1], tuple(converted))
    directory = _linked_directory([report for _, report in converted])
    missing = []
    for path, error in failed:
        name, source = str(path), sources.find_source(path)
        with suppress(UprofError, OSError):
            if source is not None and (rank := source.rank(path)) is not None:
                name = f"rank {rank}"
        missing.append(Missing(name, str(error)))
    return CachedReports(directory, tuple(converted), tuple(missing))


def root() -> Path:
    """Return the directory of the cache; a relative XDG_CACHE_HOME is invalid and ignored."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError as err:
            raise OutputError(
                "no home directory for cached reports",
                hint="set XDG_CACHE_HOME",
                slug="no-home-folder",
            ) from err
    return base / "uprof" / "reports"


def _recordings(
    path: Path, progress: Callable[[str], None], note: Callable[[str], None]
) -> tuple[list[FoundRecording], list[tuple[Path, UprofError]]]:
    """Return recordings and failures at `path`; both are empty for reports and unknown files."""
    if not path.is_dir():
        # A damaged database may be of any kind, so only a certain recording is converted.
        is_database = path.suffix in _DATABASES
        find_source = sources.certain_source if is_database else sources.find_source
        source = find_source(path) if path.is_file() else None
        return ([] if source is None else [FoundRecording(path, source)]), []
    if _holds_reports(path):
        return [], []
    found: list[FoundRecording] = []
    failed: list[tuple[Path, UprofError]] = []
    for recording in discovery.find([path], progress, note):
        if isinstance(recording, FoundRecording):
            found.append(recording)
        elif recording[0] != path or found:
            failed.append(recording)
    return found, failed


def _holds_reports(path: Path) -> bool:
    for file in run_directory.databases(path).files:
        with suppress(UprofError):
            if detect(file).family not in (None, catalogue.CLUSTER):
                return True
    return False


def _report(found: FoundRecording, name: str, progress: Callable[[str], None]) -> Path:
    try:
        entry = root() / _content_name(found)
    except OSError as err:
        raise RawFormatError(
            f"{err.filename or found.path}: {err.strerror or err}", slug="cannot-read"
        ) from err
    report = entry / f"{name}.db"
    if not report.is_file():
        _make_directory(entry)
        _make_room(keep=entry)
        try:
            convert(
                *(found.path, report),
                source=found.source,
                schema=_SCHEMA,
                force=True,
                progress=progress,
            )
        except BaseException:
            with suppress(OSError):  # another process uses it
                entry.rmdir()
            raise
    _touch(entry)
    return report


def _make_directory(entry: Path) -> None:
    outputs.make_directory(entry.parents[1])
    with suppress(OSError):  # making the entry below raises the error
        entry.parent.mkdir(mode=0o700)
    outputs.make_directory(entry)
    remove_abandoned(entry)


def _content_name(found: FoundRecording) -> str:
    """Return a name for the content of a recording.

    The name is a hash of the beginning, end, length and modification time of each file. A change in
    the middle of a long file changes its modification time.
    """
    digest = blake2b(digest_size=16)

    def add(*facts: object) -> None:
        digest.update(repr(facts).encode("utf-8", "backslashreplace") + b"\n")

    path, source = found.path, found.source
    add(VERSION, _SCHEMA, source.kind, sorted(source.identity(path).items()))
    add(source.modified_ns(path))
    for file in _files(path):
        with file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            add(str(file.relative_to(path)), status.st_size, status.st_mtime_ns)
            digest.update(stream.read(_SAMPLE_BYTES))
            if status.st_size > _SAMPLE_BYTES:
                stream.seek(max(_SAMPLE_BYTES, status.st_size - _SAMPLE_BYTES))
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for place, directories, names in os.walk(path):
        directories.sort()
        for name in sorted(names):
            if (file := Path(place, name)).is_file():
                yield file


def _linked_directory(reports: Sequence[Path]) -> Path:
    """Return a directory with links to reports in several directories."""
    digest = blake2b(repr([str(report) for report in reports]).encode(), digest_size=16)
    directory = root() / f"{digest.hexdigest()}-all"
    _make_directory(directory)
    for report in reports:
        # A link from an earlier run is the same: its target is part of the directory's name.
        with (
            system_errors(OutputError, f"cannot write {directory}", slug="cannot-write"),
            suppress(FileExistsError),
        ):
            (directory / report.name).symlink_to(Path("..", report.parent.name, report.name))
    _touch(directory)
    return directory


def _touch(entry: Path) -> None:
    with suppress(OSError):  # it may be removed, or belong to another user
        os.utime(entry)


def _make_room(keep: Path) -> None:
    """Remove the least recently used reports until the size is below the limit."""
    entries: list[tuple[float, int, Path]] = []
    with suppress(OSError), os.scandir(keep.parent) as found:
        for entry in found:
            with suppress(OSError):
                path = Path(entry.path)
                if entry.name.startswith(_GONE):
                    shutil.rmtree(path, ignore_errors=True)
                elif path != keep and entry.is_dir(follow_symlinks=False):
                    size = sum(file.lstat().st_size for file in path.iterdir())
                    entries.append((entry.stat().st_mtime, size, path))
    total = sum(size for _, size, _ in entries)
    for used, size, path in sorted(entries):
        if total <= MAX_BYTES or used > time.time() - MIN_AGE_S:
            break
        total -= size
        with suppress(OSError):
            gone = path.with_name(f"{_GONE}{path.name}")
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
