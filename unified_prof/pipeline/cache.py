"""What a command reads in place of what was named, without what it takes to convert it.

Reports of recordings that nobody wants to keep: made when they are asked for, and remembered.

They lie below `$XDG_CACHE_HOME/uprof/reports` (`~/.cache`), in folders that are named after the
content of recordings: one that changes gets another. Reports appear there when they are complete,
so two processes may ask for the same one at a time. Together they take `MOST_BYTES` at most, but
for those that were used within `KEPT_S`; those that nobody used longest go first. The whole folder
may be deleted at any time.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path

from unified_prof.errors import OutputError, RawFormatError, UprofError, UsageError
from unified_prof.pipeline import discovery, output_paths, outputs, sources
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.discovery import Found
from unified_prof.recording import run_directory as report_folders
from unified_prof.recording.source import Missing
from unified_prof.schema import catalogue
from unified_prof.sqlite.atomic import remove_abandoned
from unified_prof.sqlite.detect import detect
from unified_prof.version import VERSION


@dataclass(frozen=True, slots=True)
class Ready:
    """What can be read in place of what was named."""

    path: Path
    """A report; a folder of them where a folder held several recordings."""
    made: tuple[tuple[Found, Path], ...] = ()
    """The recordings, each with its report; none where reports were named."""
    lost: tuple[tuple[Path, UprofError], ...] = ()
    """Recordings that could not be converted, and folders that were not looked into."""

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The lost ones as part of what is told of a folder of reports."""
        return tuple(Missing(_whose(path), str(error)) for path, error in self.lost)


def _whose(path: Path) -> str:
    """Return `rank 3` where the recording says it, else the recording."""
    from unified_prof.pipeline import sources

    source = sources.source_of(path)
    with suppress(UprofError, OSError):
        if source is not None and (rank := source.rank(path)) is not None:
            return f"rank {rank}"
    return str(path)


MOST_BYTES = 20 << 30
KEPT_S = 3600
"""For so long after it was asked for a report is surely there."""

_SCHEMA = "documented"
_SAMPLE_BYTES = 64 << 10
_DATABASES = (".db", ".sqlite")
_GONE = ".gone-"


def reports_of(
    path: Path,
    *,
    several: bool = True,
    progress: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> Ready:
    """Return the report of a recording, or of all in a folder; `path` itself where it is one.

    Args:
        path: A report, a recording, a folder of either, or anything else, which is returned.
        several: Whether more than one report is of use.
        progress: Told in a few words what is going on.
        note: Told in a sentence what was not looked into.

    Raises:
        UsageError: there are several recordings, and one is wanted.
        RawFormatError: no recording could be converted.
        OutputError: the cache cannot be written.
    """
    found, lost = _recordings(path, progress, note)
    if not found and not lost:
        return Ready(path)
    if len(found) > 1 and not several:
        names = ", ".join(str(one.path) for one in found[:3])
        raise UsageError(
            f"{path} has {len(found)} recordings",
            hint=f"choose one of: {names}",
            slug="several-recordings",
        )
    made: list[tuple[Found, Path]] = []
    for number, (one, name) in enumerate(
        zip(found, output_paths.names_naming(found, ranked=True), strict=True), start=1
    ):
        at = f"{number} of {len(found)}, " if len(found) > 1 else ""
        try:
            made.append((one, _report(one, name, partial(_tell_of, progress, at))))
        except OutputError:
            raise
        except UprofError as err:
            lost.append((one.path, err))
    if not made or (lost and not several):
        raise lost[0][1]
    if len(made) == 1 and not lost:
        return Ready(made[0][1], tuple(made))
    return Ready(_together([report for _, report in made]), tuple(made), tuple(lost))


def root() -> Path:
    """Return the folder of all reports; a relative XDG_CACHE_HOME counts as none, as agreed."""
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
) -> tuple[list[Found], list[tuple[Path, UprofError]]]:
    """Return the recordings that `path` names, none where it is a report or nothing we know."""
    if not path.is_dir():
        # A damaged database may be anything: it is converted where it surely is a recording.
        of = sources.surely if path.suffix in _DATABASES else sources.source_of
        source = of(path) if path.is_file() else None
        return ([] if source is None else [Found(path, source)]), []
    if _holds_reports(path):
        return [], []
    found: list[Found] = []
    lost: list[tuple[Path, UprofError]] = []
    for one in discovery.find([path], progress, note):
        if isinstance(one, Found):
            found.append(one)
        elif one[0] != path or found:
            lost.append(one)
    return found, lost


def _holds_reports(path: Path) -> bool:
    for file in report_folders.databases(path).files:
        with suppress(UprofError):
            if detect(file).family not in (None, catalogue.CLUSTER):
                return True
    return False


def _tell_of(progress: Callable[[str], None], recording: str, stage: str) -> None:
    progress(f"{recording}{stage}")


def _report(found: Found, name: str, progress: Callable[[str], None]) -> Path:
    try:
        entry = root() / _content_of(found)
    except OSError as err:
        raise RawFormatError(
            f"{err.filename or found.path}: {err.strerror or err}", slug="cannot-read"
        ) from err
    report = entry / f"{name}.db"
    if not report.is_file():
        _make_folder(entry)
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
            with suppress(OSError):  # another process is at it
                entry.rmdir()
            raise
    _note_use(entry)
    return report


def _make_folder(entry: Path) -> None:
    outputs.make_directory(entry.parents[1])
    with suppress(OSError):  # what keeps it from being made keeps the entry too, and is told then
        entry.parent.mkdir(mode=0o700)
    outputs.make_directory(entry)
    remove_abandoned(entry)


def _content_of(found: Found) -> str:
    """Return a name for what a recording holds, from its files' ends, lengths and times.

    Of a long file the middle is not read: who changes that changes its time as well.
    """
    digest = blake2b(digest_size=16)

    def add(*facts: object) -> None:
        digest.update(repr(facts).encode("utf-8", "backslashreplace") + b"\n")

    path, source = found.path, found.source
    add(VERSION, _SCHEMA, source.kind, sorted(source.identity(path).items()))
    add(source.changed_ns(path))
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
    for place, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            if (file := Path(place, name)).is_file():
                yield file


def _together(reports: Sequence[Path]) -> Path:
    """Return a folder with links to reports that lie in folders of their own."""
    digest = blake2b(repr([str(report) for report in reports]).encode(), digest_size=16)
    folder = root() / f"{digest.hexdigest()}-all"
    _make_folder(folder)
    for report in reports:
        try:
            (folder / report.name).symlink_to(Path("..", report.parent.name, report.name))
        except FileExistsError:
            pass  # from an earlier time: what it leads to is part of the folder's name
        except OSError as err:
            raise OutputError(
                f"cannot write {folder}: {err.strerror or err}", slug="cannot-write"
            ) from err
    _note_use(folder)
    return folder


def _note_use(entry: Path) -> None:
    with suppress(OSError):  # it may have gone, or be somebody else's
        os.utime(entry)


def _make_room(keep: Path) -> None:
    """Remove what nobody used longest, until the rest is short enough."""
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
        if total <= MOST_BYTES or used > time.time() - KEPT_S:
            break
        total -= size
        with suppress(OSError):
            gone = path.with_name(f"{_GONE}{path.name}")
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
