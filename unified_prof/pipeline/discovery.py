"""From what a user names to recordings: files, folders of them, and patterns.

Standard input as a recording: a file of this process's own, for as long as it is needed.

Recordings are read more than once, and some from their ends. So what comes through a pipe is kept
in a private folder, unpacked where it is packed, and taken away again.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import os
import re
import shlex
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

from unified_prof.errors import OutputError, RawFormatError, UprofError, UsageError
from unified_prof.pipeline import analysis_db, sources
from unified_prof.pipeline.sources import Source
from unified_prof.sqlite.atomic import temporary_folder

DEEPEST = 64
"""Folders below the given one that are looked into: few systems open paths much longer."""
MOST_ENTRIES = 250_000
"""Files and folders that are looked at below one that is named: about half a minute."""

_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Found:
    """A recording and the source that takes it."""

    path: Path
    source: Source


def find(
    paths: Sequence[Path],
    progress: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[Found | tuple[Path, UprofError]]:
    """Yield every recording that `paths` name, once each, or why a path names none.

    A folder that is no recording is searched at any depth, links to folders aside; one that cannot
    be listed does not keep the others from being found. A text with `*`, `?` or `[` that names no
    file is a pattern, in which `**` means any depth.

    Args:
        paths: What the user names.
        progress: Told in a few words what is going on.
        note: Told in a sentence what was passed over and may hold recordings.
    """
    seen: set[str] = set()
    for given in paths:
        try:
            for path in _expanded(given):
                for found in _recordings(path, progress, note):
                    if not isinstance(found, Found):
                        yield found
                        continue
                    real = os.path.realpath(found.path)
                    if real not in seen:
                        seen.add(real)
                        yield found
        except UprofError as err:
            yield given, err


def refusal(path: Path) -> UprofError:
    """Return why nothing takes `path`, naming what it is where that can be told."""
    takes = "; ".join(source.what for source in sources.SOURCES)
    try:
        mode = path.stat().st_mode
    except OSError as err:
        text = "no such file" if isinstance(err, FileNotFoundError) else err.strerror
        return RawFormatError(f"{path}: {text}", hint=_hint_of_missing(path), slug="no-such-file")
    if stat.S_ISDIR(mode):
        if reports := analysis_db.databases_in(path):
            return UsageError(
                f"{path} holds no raw data, only the finished database of a recording:"
                " there is nothing to convert",
                hint=f"show it with `uprof report {shlex.quote(str(reports[0]))}`",
                slug="already-a-report",
            )
        return RawFormatError(
            f"{path} is not a recording and contains none",
            hint=f"expected {takes}; links to directories are not followed",
            slug="not-a-recording",
        )
    if not stat.S_ISREG(mode):
        return RawFormatError(
            f"{path} is not a regular file",
            hint="write its content to a file first",
            slug="not-a-regular-file",
        )
    return _refused_file(path, takes)


def _refused_file(path: Path, takes: str) -> UprofError:
    if (known := sources.recognised(path)) is not None:
        return RawFormatError(
            f"{path} is {known.what}, which uprof cannot convert",
            hint=known.hint(path),
            slug="unsupported-recording",
        )
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as err:
        return RawFormatError(f"cannot read {path}: {err.strerror or err}", slug="cannot-read")
    if head.startswith(_SQLITE):
        return _refused_database(path, takes)
    what = "is empty" if not head else "is not a format that uprof can convert"
    return RawFormatError(
        f"{path} {what}", hint=f"expected {takes}", slug="not-a-recording" if head else "empty-file"
    )


def _refused_database(path: Path, takes: str) -> UprofError:
    from unified_prof.sqlite.detect import detect

    try:
        found = detect(path)
    except UprofError as err:
        return err
    if found.family is not None:
        return UsageError(
            f"{path} is a finished report, nothing to convert",
            hint=f"show it with `uprof report {path}`",
            slug="already-a-report",
        )
    return RawFormatError(
        f"{path} is {found.description}, which uprof cannot convert",
        hint=f"expected {takes}",
        slug="unsupported-recording",
    )


def _hint_of_missing(path: Path) -> str | None:
    return "the pattern matches nothing" if glob.has_magic(str(path)) else None


def _expanded(given: Path) -> Iterable[Path]:
    if os.path.lexists(given) or not glob.has_magic(str(given)):
        return [given]
    names = glob.glob(str(given), recursive=True)  # noqa: PTH207 (Path.glob takes no whole paths)
    return [Path(name) for name in sorted(names)] or [given]


def _recordings(
    path: Path, progress: Callable[[str], None], note: Callable[[str], None]
) -> Iterator[Found | tuple[Path, UprofError]]:
    """Yield `path` if it is a recording, else those below it and why some were not looked for.

    Raises:
        UprofError: there is none.
    """
    if not path.is_dir():
        source = sources.source_of(path)
        if source is None:
            raise refusal(path)
        yield Found(path, source)
        return
    if (source := sources.surely(path)) is not None:
        yield Found(path, source)
        return
    search = _Search(path, progress)
    count = 0
    for found in search.below():
        count += 1
        yield found
    for sentence in search.passed_over():
        note(sentence)
    if not count:
        if (source := sources.source_of(path)) is None:
            raise refusal(path)
        yield Found(path, source)


# Names that only recordings have; other files of a directory are ignored if no source takes them.
_NAMED_AS_RECORDING = re.compile(
    r"trace(?!_view)[^/]*\.json$|\.json\.(?:gz|xz|bz2|zst|zip)$|rank[_-]?\d+[^/]*\.(?:json|pickle)$",
    re.IGNORECASE,
)


class _Search:
    """Looks for recordings below a folder; nothing is looked for inside of one."""

    def __init__(self, folder: Path, progress: Callable[[str], None]) -> None:
        self._folder = folder
        self._progress = progress
        self._links: list[Path] = []
        self._too_deep: list[Path] = []

    def below(self) -> Iterator[Found | tuple[Path, UprofError]]:
        """Yield what there is, by name, and why some folders were not looked into.

        Raises:
            RawFormatError: the folder itself cannot be listed.
        """
        levels = [iter(self._children(self._folder))]
        looked_at = 0
        while levels:
            child = next(levels[-1], None)
            if child is None:
                levels.pop()
                continue
            if looked_at == MOST_ENTRIES:
                yield self._folder, self._too_many(child)
                return
            looked_at += 1
            path = Path(child.path)
            if (source := sources.surely(path)) is not None:
                yield Found(path, source)
            elif _NAMED_AS_RECORDING.search(child.name) and child.is_file():
                # Empty, cut or unreadable: to leave it out in silence would lose a rank.
                source = sources.source_of(path)
                error = refusal(path) if source is None else None
                if source is not None:
                    yield Found(path, source)
                elif isinstance(error, RawFormatError):
                    yield path, error
            elif child.is_dir(follow_symlinks=False):
                if len(levels) > DEEPEST:
                    self._too_deep.append(path)
                    continue
                try:
                    levels.append(iter(self._children(path)))
                except RawFormatError as err:
                    yield path, err

    def passed_over(self) -> Iterator[str]:
        """Say what was not looked into, though nothing is wrong with it."""
        for what, paths in (
            ("links outside the directory are not followed", self._links),
            (
                f"directories more than {DEEPEST} levels below {self._folder} are not searched",
                self._too_deep,
            ),
        ):
            if paths:
                yield f"{what}: {min(paths)}" + (
                    f" and {len(paths) - 1:,} more" if paths[1:] else ""
                )

    def _children(self, folder: Path) -> list[os.DirEntry[str]]:
        """Return what a folder holds that can be a recording or hold one, by name."""
        self._progress(f"searching {folder}")
        try:
            with os.scandir(folder) as entries:
                found = list(islice(entries, 4 * MOST_ENTRIES))  # some are of no use
        except OSError as err:
            raise RawFormatError(
                f"cannot list {folder}: {err.strerror or err}", slug="cannot-read"
            ) from err
        return sorted(filter(self._is_of_use, found), key=lambda entry: entry.name)

    def _is_of_use(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith("."):
            return False
        try:
            if entry.is_dir(follow_symlinks=False):
                return True
            if entry.is_symlink() and entry.is_dir():
                if not Path(os.path.realpath(entry.path)).is_relative_to(self._real):
                    self._links.append(Path(entry.path))
                return False
            return entry.is_file()
        except OSError:  # a link in a circle, or into what we may not see
            return False

    @cached_property
    def _real(self) -> str:
        return os.path.realpath(self._folder)

    def _too_many(self, child: os.DirEntry[str]) -> RawFormatError:
        return RawFormatError(
            f"{self._folder} has more than {MOST_ENTRIES:,} files and directories: "
            f"{child.path} and everything after it was skipped",
            hint="give the directories of the recordings",
            slug="input-too-long",
        )


NAME = "stdin"
"""What the file is called, and what its report is named after."""
MOST_BYTES = 16 << 30
"""What is taken, unpacked: more is a mistake, or a recording to be had as a file."""
_CHUNK = 1 << 20
_LONGEST_MAGIC = 6
_PACKED: tuple[tuple[bytes, Callable[[Any], Any]], ...] = (
    (b"\x1f\x8b", lambda stream: gzip.GzipFile(fileobj=stream)),
    (b"\xfd7zXZ\0", lzma.LZMAFile),
    (b"BZh", bz2.BZ2File),
)
_DAMAGED = (zlib.error, lzma.LZMAError, OSError)


@contextmanager
def as_file(progress: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
    """Yield a file with what stdin holds.

    Raises:
        UsageError: it is closed, or a terminal.
        RawFormatError: it is empty, or too long.
        OutputError: it cannot be kept in the folder for temporary files.
    """
    stream = _stream()
    with ExitStack() as resources:
        try:
            path = resources.enter_context(temporary_folder()) / NAME
            progress("reading standard input")
            _keep(stream, path)
        except OSError as err:
            raise OutputError(
                f"cannot store standard input in a temporary file: {err.strerror or err}",
                hint="set TMPDIR to another directory",
                slug="no-temporary-space",
            ) from err
        yield path


def _stream() -> IO[bytes]:
    stream: IO[bytes] | None = getattr(sys.stdin, "buffer", None)
    try:
        if stream is None or stream.closed:
            raise UsageError(
                "standard input is closed, nothing to convert", slug="no-standard-input"
            )
        if stream.isatty():
            raise UsageError(
                "standard input is a terminal",
                hint="pipe a recording: `... | uprof import -`",
                slug="no-standard-input",
            )
    except ValueError:  # raised by isatty() of a stream that was closed underneath
        raise UsageError(
            "standard input is closed, nothing to convert", slug="no-standard-input"
        ) from None
    return stream


def _keep(stream: IO[bytes], path: Path) -> None:
    kept = 0
    with path.open("xb") as file:
        for chunk in _chunks(stream):
            kept += len(chunk)
            if kept > MOST_BYTES:
                raise RawFormatError(
                    f"standard input is longer than {MOST_BYTES:,} bytes",
                    hint="write it to a file instead",
                    slug="input-too-long",
                )
            file.write(chunk)
    if not kept:
        raise RawFormatError("standard input is empty", slug="empty-file")


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield what the stream holds, unpacked; of what is cut off, all that is there.

    Raises:
        RawFormatError: it is packed and damaged.
    """
    joined = _Joined(stream.read(_LONGEST_MAGIC), stream)
    unpack = next((unpack for magic, unpack in _PACKED if joined.head.startswith(magic)), None)
    if unpack is None:
        while chunk := joined.read(_CHUNK):
            yield chunk
        return
    unpacked = unpack(joined)
    try:
        while chunk := unpacked.read1(_CHUNK):
            yield chunk
    except EOFError:
        return  # whoever reads it finds it cut off
    except _DAMAGED as err:
        raise RawFormatError(
            f"standard input is compressed and damaged: {err}", slug="damaged-recording"
        ) from err


class _Joined:
    """A stream whose first bytes were read to see what it is."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self.head = head
        self._left = head
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes; a few of the head come alone."""
        if self._left:
            found = self._left if size < 0 else self._left[:size]
            self._left = self._left[len(found) :]
            return found if size >= 0 else found + self._stream.read()
        return self._stream.read(size)
