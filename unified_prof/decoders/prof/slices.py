"""Where records begin in slices of which something was lost.

Slices continue each other and end with a whole record; the collector drops the oldest ones. So
the first record begins where the bytes from there to the end are a multiple of a record. That
holds across a slice whose end was lost, if its `.done` companion tells how long it was.

Finds the data files of one `data/` folder and reads their slices as one stream.

A recording stores each kind of record in slices `<name>.slice_<K>`. A slice may end inside a
record and the collector drops the oldest slices first, so slices are joined in numeric order and
the remainder of the total size is dropped at the front. Symbolic links are never followed.

How much of a recording is in memory at a time.
"""

from __future__ import annotations

import itertools
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.prof.layouts import RecordType
from unified_prof.decoders.spool import Spool
from unified_prof.errors import RawFormatError

_CONVINCING = 0.75
_TIMES = ("timestamp", "timestamp_us", "timestamp_ns", "host_ticks", "end")
_LEAP, _LATEST = np.uint64(1 << 42), np.uint64(1 << 62)


@dataclass(frozen=True, slots=True)
class Slice:
    """One file of a stream of records."""

    path: Path
    size: int
    index: int = 0
    said: int = 0
    """The size that its `.done` companion tells; more than `size` if the end was lost."""


def runs(
    stream: Sequence[Slice], record_bytes: int
) -> Iterator[tuple[Sequence[Slice], tuple[int, ...]]]:
    """Yield slices between which nothing is lost, and how many bytes may precede their records.

    The first number is what the sizes tell. There is a second where sizes cannot tell which side
    of a slice was lost: the records decide (`most_plausible`).
    """
    starts = [0] + [
        place
        for place in range(1, len(stream))
        if _cut(stream[place - 1]) or _gap(stream[place - 1], stream[place])
    ]
    for start, stop in zip(starts, [*starts[1:], len(stream)], strict=True):
        run = stream[start:stop]
        told = _before_first(stream, start, stop, record_bytes)
        candidates = [told]
        if len(run) == 1 and _cut(run[0]):
            candidates.append((told + run[0].size - run[0].said) % record_bytes)
        elif told and start == 0:
            candidates.append(0)
        yield run, tuple(dict.fromkeys(candidates))


def most_plausible(
    head: NDArray[np.uint8], record: RecordType, candidates: Sequence[int], magic: int | None
) -> int:
    """Return how many bytes of `head` come before its first record.

    Args:
        head: the first few records, cut somewhere.
        record: their type.
        candidates: what may be.
        magic: what the field `magic` must be; it also finds records that no candidate does.
            Without one, times must not go backwards or leap.
    """
    best, score = candidates[0], -1.0
    for tried in (candidates, range(record.itemsize if magic is not None else 0)):
        for skip in tried:
            whole = max(len(head) - skip, 0) // record.itemsize * record.itemsize
            found = _plausibility(head[skip : skip + whole].view(record), magic)
            if found > score:
                best, score = skip, found
        if score > _CONVINCING:
            break
    return best


def _plausibility(sample: NDArray[Any], magic: int | None) -> float:
    if not len(sample):
        return 0.0
    if magic is not None:
        return float((sample["magic"] == magic).mean())
    time = next((name for name in _TIMES if name in (sample.dtype.names or ())), None)
    if time is None:
        return 0.0
    values = sample[time].astype(np.uint64)
    steady = (values[1:] >= values[:-1]) & (values[1:] - values[:-1] < _LEAP)
    return float(np.r_[values[0] < _LATEST, steady].mean())


def losses(stream: Sequence[Slice]) -> list[str]:
    """Say what of a stream is lost, a phrase each."""
    found = [
        f"{part.path.name} has {part.size} bytes and should have {part.said}"
        for part in stream
        if _cut(part)
    ]
    found += [
        f"nothing between {before.path.name} and {after.path.name}"
        for before, after in itertools.pairwise(stream)
        if _gap(before, after)
    ]
    return found


def _before_first(stream: Sequence[Slice], start: int, stop: int, record_bytes: int) -> int:
    """Return how many bytes of a run come before its first record."""
    if not _gaps(stream[start:]):  # count from the end, which is that of a record
        return sum(_length(part) for part in stream[start:]) % record_bytes
    if stream[0].index == 0 and not _gaps(stream[:stop]):  # from the very first byte
        return -sum(_length(part) for part in stream[:start]) % record_bytes
    return sum(_length(part) for part in stream[start:stop]) % record_bytes


def _gaps(stream: Sequence[Slice]) -> bool:
    return any(_gap(before, after) for before, after in itertools.pairwise(stream))


def _gap(before: Slice, after: Slice) -> bool:
    return after.index > before.index + 1


def _cut(part: Slice) -> bool:
    return part.size < part.said


def _length(part: Slice) -> int:
    return max(part.size, part.said)


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
            for run, candidates in runs(stream, record.itemsize):
                paths = [part.path for part in run]
                skip = candidates[0]
                if len(candidates) > 1:
                    head = _head(paths, _SAMPLE_RECORDS * record.itemsize)
                    skip = most_plausible(head, record, candidates, magic)
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
        lost += losses(stream)
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


@dataclass(frozen=True, slots=True)
class Workspace:
    """Sizes that bound the memory of decoding, whatever the length of the recording."""

    window_rows: int = 1 << 17
    """Rows that are joined at a time, of all kinds together."""
    run_bytes: int = 4 << 20
    """Rows of one kind that are collected before they are sorted and put away."""

    def spool(self, dtype: np.dtype[Any], key: str = "key") -> Spool:
        """Return a place for rows that are to come back sorted."""
        return Spool(dtype, key, run_rows=max(1, self.run_bytes // dtype.itemsize))
