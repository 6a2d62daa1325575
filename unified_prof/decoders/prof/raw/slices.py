"""Finds the data files of one `data/` folder and reads their slices as one stream.

A recording stores each kind of record in slices `<name>.slice_<K>`. A slice may end inside a
record and the collector drops the oldest slices first, so slices are joined in numeric order and
the remainder of the total size is dropped at the front. Symbolic links are never followed.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.prof.raw import slice_runs
from unified_prof.decoders.prof.raw.layouts import RecordType
from unified_prof.decoders.prof.raw.slice_runs import Slice
from unified_prof.errors import RawFormatError

PIECE_BYTES = 4 << 20
"""About how much of a file is in memory at a time."""

Records = NDArray[Any]

_SAMPLE_RECORDS = 64
_DONE_BYTES = 4096
_SAID = re.compile(rb"filesize:\s*(\d{1,15})\b")
_SLICE = re.compile(r"(?P<name>.+)\.slice_(?P<index>\d{1,9})")
# Files that readers must skip: companions of the collector, marks of other parsers.
_COMPANIONS = (".done", ".complete", ".zip")
_DEVICE_SUFFIX = re.compile(
    r"(?P<name>.+)\.data\.(?:\d+\.dev\.profiler_default_tag\.)?\d+|(?P<plain>.+)\.data"
)
_CCU_SUFFIX = re.compile(r"(?P<name>ccu\d+\.(?:instr|stat))\.\d+")
_APP_SUFFIX = re.compile(r"(?P<name>.+\.app)\.\d+")


@dataclass(frozen=True, slots=True)
class RawFile:
    """All slices of one kind of record, in reading order."""

    name: str
    streams: tuple[tuple[Slice, ...], ...]
    """Slices that continue each other; usually one stream."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in reading order."""
        return tuple(part.path for stream in self.streams for part in stream)

    @property
    def size_bytes(self) -> int:
        """Size of all slices together."""
        return sum(part.size for stream in self.streams for part in stream)

    def count(self, record: RecordType) -> int:
        """Return how many whole records the slices hold at most."""
        return self.size_bytes // record.itemsize

    def pieces(
        self, record: RecordType, piece_bytes: int = PIECE_BYTES, *, magic: int | None = None
    ) -> Iterator[Records]:
        """Yield the records of all slices, in file order, a few megabytes at a time.

        A piece is the caller's: it is not reused. Bytes that are no whole record are skipped: those
        before the first one, or those at the end if the records show that it was lost.

        Args:
            record: the type of the records.
            piece_bytes: about how much to read at a time.
            magic: what the records have in their field `magic`.

        Raises:
            RawFormatError: a slice cannot be read.
        """
        per_piece = max(1, piece_bytes // record.itemsize) * record.itemsize
        for stream in self.streams:
            for run, candidates in slice_runs.runs(stream, record.itemsize):
                paths = [part.path for part in run]
                skip = candidates[0]
                if len(candidates) > 1:
                    head = _head(paths, _SAMPLE_RECORDS * record.itemsize)
                    skip = slice_runs.most_plausible(head, record, candidates, magic)
                size = sum(part.size for part in run) - skip
                yield from _read(paths, skip, size, record, per_piece)

    def by_slice(self) -> list[RawFile]:
        """Return every slice as a file of its own, where none continues the one before."""
        return [RawFile(self.name, ((part,),)) for stream in self.streams for part in stream]

    def read_bytes(self) -> bytes:
        """Return all slices joined; for text files and dictionaries.

        Raises:
            RawFormatError: a slice cannot be read.
        """
        try:
            return b"".join(path.read_bytes() for path in self.paths)
        except OSError as err:
            raise _unreadable(err, self.paths[0]) from err

    def lines(self) -> list[str]:
        r"""Return the text lines of all slices; undecodable bytes appear as `\xNN`."""
        return self.read_bytes().decode("utf-8", "backslashreplace").split("\n")


def _read(
    paths: list[Path], skip: int, size: int, record: RecordType, per_piece: int
) -> Iterator[Records]:
    """Yield the whole records in `size` bytes after the first `skip`."""
    left = size // record.itemsize * record.itemsize
    with closing(_Source(paths, skip)) as source:
        while left > 0:
            buffer = np.empty(min(per_piece, left), np.uint8)
            filled = source.fill(buffer.data)
            whole = filled // record.itemsize
            if whole:
                yield buffer[: whole * record.itemsize].view(record)
            if filled < len(buffer):
                return  # the file shrank since it was listed
            left -= filled


def _head(paths: list[Path], size: int) -> NDArray[np.uint8]:
    """Return the first bytes of some files."""
    buffer = np.zeros(size, np.uint8)
    with closing(_Source(paths, 0)) as source:
        return buffer[: source.fill(buffer.data)]


class _Source:
    """The bytes of several files one after another."""

    def __init__(self, paths: Sequence[Path], skip: int) -> None:
        self._paths = iter(paths)
        self._open: Any = None
        self._skip = skip

    def fill(self, view: memoryview) -> int:
        """Read into the caller's buffer; less than its size only when everything is read.

        Raises:
            RawFormatError: a file cannot be read.
        """
        filled = 0
        try:
            while filled < len(view) and (self._open is not None or self._open_next()):
                count = int(self._open.readinto(view[filled:]))
                filled += count
                if not count:
                    self.close()
        except OSError as err:
            raise _unreadable(err) from err
        return filled

    def close(self) -> None:
        """Close the file that is being read."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _open_next(self) -> bool:
        path = next(self._paths, None)
        if path is None:
            return False
        self._open = path.open("rb", buffering=0)
        self._skip -= self._open.seek(min(self._skip, path.stat().st_size))
        return True


def _unreadable(err: OSError, path: Path | None = None) -> RawFormatError:
    return RawFormatError(
        f"cannot read {err.filename or path or 'a slice'}: {err.strerror}", slug="cannot-read"
    )


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The record files of one `data/` folder, by name without device number and slice."""

    path: Path
    files: dict[str, RawFile]
    unfinished: tuple[str, ...]
    """Files that have no `.done` companion: still being written, or left by a crash."""
    links: tuple[str, ...]
    """Symbolic links and other non-regular files, which are not read."""
    lost: tuple[str, ...]
    """What is missing of slices, a phrase each: their end, or whole ones between others."""

    def get(self, *names: str) -> RawFile | None:
        """Return the files called `names` as one, in that order; None when none is there.

        For host records name the file without its ageing prefix: `host_file` does the joining.
        """
        found = [self.files[name] for name in names if name in self.files]
        if not found:
            return None
        return RawFile(found[0].name, tuple(stream for file in found for stream in file.streams))

    def host_file(self, kind: str) -> RawFile | None:
        """Return a host record file such as `compact.task_track`: unaging, then aging slices."""
        return self.get(f"unaging.{kind}", f"aging.{kind}")


def scan(folder: Path) -> DataFolder:
    """List the record files of `folder`; a missing folder is an empty one.

    Raises:
        RawFormatError: the folder cannot be listed.
    """
    streams: dict[str, list[Slice]] = {}
    links: list[str] = []
    said: dict[str, int] = {}
    for path, mode, size in _entries(folder):
        if path.name.endswith(_COMPANIONS):
            if path.name.endswith(".done") and stat.S_ISREG(mode):
                said[path.name[: -len(".done")]] = _said_size(path)
        elif stat.S_ISREG(mode):
            match = _SLICE.fullmatch(path.name)
            name, index = (match["name"], int(match["index"])) if match else (path.name, 0)
            streams.setdefault(_kind(name), []).append(Slice(path, size, index))
        elif not stat.S_ISDIR(mode):
            links.append(path.name)
    unfinished, lost, files = [], [], {}
    for kind, found in streams.items():
        found.sort(key=lambda part: (part.index, part.path.name))
        unfinished += [part.path.name for part in found if part.path.name not in said]
        stream = tuple(replace(part, said=said.get(part.path.name, 0)) for part in found)
        lost += slice_runs.losses(stream)
        files[kind] = RawFile(kind, (stream,))
    return DataFolder(
        folder, files, tuple(sorted(unfinished)), tuple(sorted(links)), tuple(sorted(lost))
    )


def _said_size(done: Path) -> int:
    """Return the size that a `.done` companion tells, 0 if it does not."""
    try:
        with done.open("rb") as source:
            match = _SAID.search(source.read(_DONE_BYTES))
    except OSError:
        return 0
    return int(match[1]) if match else 0


def _kind(name: str) -> str:
    """Strip what follows the kind: `hbm.data.0` and `host_cpu.data` are `hbm` and `host_cpu`."""
    if name.startswith(("aging.", "unaging.")):
        return name.removesuffix(".data")
    if match := _APP_SUFFIX.fullmatch(name) or _CCU_SUFFIX.fullmatch(name):
        return match["name"]
    match = _DEVICE_SUFFIX.fullmatch(name)
    return (match["name"] or match["plain"]) if match else name


def _entries(folder: Path) -> Iterator[tuple[Path, int, int]]:
    try:
        for path in sorted(folder.iterdir()):
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue  # removed while we were looking
            yield path, status.st_mode, status.st_size
    except FileNotFoundError:
        return
    except OSError as err:
        raise RawFormatError(f"cannot list {folder}: {err.strerror}", slug="cannot-read") from err
