"""Finds the data files of a `data/` directory and reads their slices as one stream.

Each kind of record is stored in consecutive slices `<name>.slice_<K>`. A slice may end inside a
record; only the last slice always ends with a complete record. The collector drops the oldest
slices first, so an incomplete record is skipped at the front. If the end of a slice was lost, the
size in its `.done` file is used. Symbolic links are not followed.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from unified_prof.decoders.prof.layouts import RecordType, record_type
from unified_prof.decoders.spool import Spool
from unified_prof.errors import RawFormatError

# Share of plausible records above which an offset is accepted without trying others.
_MIN_PLAUSIBLE = 0.75
_TIMES = ("timestamp", "timestamp_us", "timestamp_ns", "host_ticks", "end")
_MAX_STEP, _MAX_TIME = np.uint64(1 << 42), np.uint64(1 << 62)


class Slice(Struct, frozen=True):
    """One file in a stream of records."""

    path: Path
    size: int
    index: int = 0
    recorded_size: int = 0  # Size in the `.done` file; larger than `size` if the end was lost.


def _runs(
    stream: Sequence[Slice], record_bytes: int
) -> Iterator[tuple[Sequence[Slice], tuple[int, ...]]]:
    """Yield runs of consecutive slices, and the possible offsets of the first record in each run.

    The first offset follows from the sizes. There is a second one if the sizes do not determine
    which end of a slice was lost; `_most_plausible` chooses by the records.
    """
    starts = [0] + [
        place
        for place in range(1, len(stream))
        if _is_cut(stream[place - 1]) or _has_gap(stream[place - 1], stream[place])
    ]
    for start, stop in zip(starts, [*starts[1:], len(stream)], strict=True):
        run = stream[start:stop]
        by_size = _before_first(stream, start, stop, record_bytes)
        candidates = [by_size]
        if len(run) == 1 and _is_cut(run[0]):
            candidates.append((by_size + run[0].size - run[0].recorded_size) % record_bytes)
        elif by_size and start == 0:
            candidates.append(0)
        yield run, tuple(dict.fromkeys(candidates))


def _most_plausible(
    head: NDArray[np.uint8], record: RecordType, candidates: Sequence[int], magic: int | None
) -> int:
    """Return the most plausible offset of the first record in the bytes `head`.

    If `magic` is given and no candidate matches it, other offsets are tried. If it is None, an
    offset is plausible if times neither decrease nor jump.
    """
    best, score = candidates[0], -1.0
    for offsets in (candidates, range(record.itemsize if magic is not None else 0)):
        for skip in offsets:
            size = max(len(head) - skip, 0) // record.itemsize * record.itemsize
            found = _plausibility(head[skip : skip + size].view(record), magic)
            if found > score:
                best, score = skip, found
        if score > _MIN_PLAUSIBLE:
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
    steady = (values[1:] >= values[:-1]) & (values[1:] - values[:-1] < _MAX_STEP)
    return float(np.r_[values[0] < _MAX_TIME, steady].mean())


def _losses(stream: Sequence[Slice]) -> list[str]:
    """Return a description of each lost part of a stream."""
    found = [
        f"{part.path.name} has {part.size} bytes, expected {part.recorded_size}"
        for part in stream
        if _is_cut(part)
    ]
    return found + [
        f"missing slices between {before.path.name} and {after.path.name}"
        for before, after in itertools.pairwise(stream)
        if _has_gap(before, after)
    ]


def _before_first(stream: Sequence[Slice], start: int, stop: int, record_bytes: int) -> int:
    """Return the offset of the first record of a run, computed from the sizes."""

    def length(parts: Sequence[Slice]) -> int:
        return sum(max(part.size, part.recorded_size) for part in parts)

    def is_complete(parts: Sequence[Slice]) -> bool:
        return not any(_has_gap(before, after) for before, after in itertools.pairwise(parts))

    if is_complete(stream[start:]):  # from the end, which is the end of a record
        return length(stream[start:]) % record_bytes
    if stream[0].index == 0 and is_complete(stream[:stop]):  # from the first byte
        return -length(stream[:start]) % record_bytes
    return length(stream[start:stop]) % record_bytes


def _has_gap(before: Slice, after: Slice) -> bool:
    return after.index > before.index + 1


def _is_cut(part: Slice) -> bool:
    return part.size < part.recorded_size


# Approximate number of bytes of a file in memory.
PIECE_BYTES = 4 << 20
Records = NDArray[Any]
_SAMPLE_RECORDS = 64
# Maximum size of text files and dictionaries, which are read completely.
_MAX_WHOLE_BYTES = 1 << 30
_MAX_LINE_BYTES = 64 << 20  # Maximum size of a line.
# Size from which on a hole in a file is the end of its data.
_MAX_HOLE_BYTES = 1 << 30
_DONE_BYTES = 4096
_RECORDED_SIZE = re.compile(rb"filesize:\s*(\d{1,15})\b")
_SLICE = re.compile(r"(?P<name>.+)\.slice_(?P<index>\d{1,9})")
# Suffixes of files to skip: companions of the collector, marks of other parsers.
_COMPANIONS = (".done", ".complete", ".zip")
_DEVICE_SUFFIX = re.compile(
    r"(?P<name>.+)\.data\.(?:\d+\.dev\.profiler_default_tag\.)?\d+|(?P<plain>.+)\.data"
)
_CCU_SUFFIX = re.compile(r"(?P<name>ccu\d+\.(?:instr|stat))\.\d+")
_APP_SUFFIX = re.compile(r"(?P<name>.+\.app)\.\d+")


@dataclass(frozen=True, slots=True)
class RawFile:
    """Slices of one kind of record, in reading order; false if there are none."""

    name: str
    streams: tuple[tuple[Slice, ...], ...]  # Streams of consecutive slices; usually there is one.
    # Bytes in valid records that were read so far, by file.
    read: dict[Path, int] = field(default_factory=dict, compare=False)

    def __bool__(self) -> bool:
        return bool(self.streams)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in reading order."""
        return tuple(part.path for stream in self.streams for part in stream)

    @property
    def size_bytes(self) -> int:
        """Total size of the slices."""
        return sum(part.size for stream in self.streams for part in stream)

    def count(self, layout: str | RecordType) -> int:
        """Return the maximum number of complete records in the slices."""
        return self.size_bytes // _record_type(layout).itemsize

    def pieces(
        self, layout: str | RecordType, piece_bytes: int = PIECE_BYTES, *, magic: int | None = None
    ) -> Iterator[Records]:
        """Yield the records of all slices in file order, about `piece_bytes` at a time.

        The yielded arrays are not reused. Bytes before the first and after the last complete record
        are skipped; `magic`, the value of the records' field of that name, helps to find the first.
        """
        record = _record_type(layout)
        per_piece = max(1, piece_bytes // record.itemsize) * record.itemsize
        for stream in self.streams:
            for run, candidates in _runs(stream, record.itemsize):
                paths = [part.path for part in run]
                skip = candidates[0]
                if len(candidates) > 1:
                    head = np.zeros(_SAMPLE_RECORDS * record.itemsize, np.uint8)
                    with closing(_FileChain(paths, 0)) as source:
                        head = head[: source.fill(head.data)]
                    skip = _most_plausible(head, record, candidates, magic)
                size = sum(part.size for part in run) - skip
                taken = 0
                for piece in _read(paths, skip, size, record, per_piece):
                    bad = 0 if magic is None else np.count_nonzero(piece["magic"] != magic)
                    taken += (len(piece) - int(bad)) * record.itemsize
                    self._note_read(run, taken)
                    yield piece

    def _note_read(self, run: Sequence[Slice], size: int) -> None:
        for part in run:
            found = min(part.size, size)
            self.read[part.path] = max(self.read.get(part.path, 0), found)
            size -= found

    def by_slice(self) -> list[RawFile]:
        """Return every slice as a separate file."""
        return [
            RawFile(self.name, ((part,),), self.read) for stream in self.streams for part in stream
        ]

    def read_bytes(self) -> bytes:
        """Return the bytes of all slices; use for text files and dictionaries."""
        if self.size_bytes > _MAX_WHOLE_BYTES:
            raise RawFormatError(
                f"{self.paths[0]} is larger than {_MAX_WHOLE_BYTES >> 20:,} MiB",
                slug="damaged-recording",
            )
        try:
            text = b"".join(path.read_bytes() for path in self.paths)
        except OSError as err:
            raise _unreadable(err, self.paths[0]) from err
        for stream in self.streams:
            self._note_read(stream, len(text))
        return text

    def lines(self) -> list[str]:
        r"""Return the text lines of all slices; undecodable bytes are replaced by `\xNN`."""
        return self.read_bytes().decode("utf-8", "backslashreplace").split("\n")

    def line_batches(self) -> Iterator[list[str]]:
        """Yield the non-empty lines of a text file, a few megabytes at a time."""
        rest = b""
        for piece in self.pieces(np.dtype(np.uint8)):
            complete, newline, rest_of_piece = piece.tobytes().rpartition(b"\n")
            if not newline:
                rest += rest_of_piece
                if len(rest) > _MAX_LINE_BYTES:
                    raise RawFormatError(
                        f"{self.paths[0]} has a line of more than {_MAX_LINE_BYTES >> 20} MiB",
                        slug="damaged-recording",
                    )
                continue
            yield _non_empty_lines(rest + complete)
            rest = rest_of_piece
        if rest:
            yield _non_empty_lines(rest)


def _record_type(layout: str | RecordType) -> RecordType:
    return record_type(layout) if isinstance(layout, str) else layout


def _non_empty_lines(raw: bytes) -> list[str]:
    lines = raw.decode("utf-8", "backslashreplace").split("\n")
    return [line for line in lines if line.strip()]


def _read(
    paths: list[Path], skip: int, size: int, record: RecordType, per_piece: int
) -> Iterator[Records]:
    """Yield the complete records in `size` bytes after the first `skip`."""
    left = size // record.itemsize * record.itemsize
    with closing(_FileChain(paths, skip)) as source:
        while left > 0:
            buffer = np.empty(min(per_piece, left), np.uint8)
            filled = source.fill(buffer.data)
            count = filled // record.itemsize
            if count:
                yield buffer[: count * record.itemsize].view(record)
            if filled < len(buffer):
                return  # the file shrank since it was listed
            left -= filled


class _FileChain:
    """Several files as one stream of bytes, without the first `skip` bytes."""

    def __init__(self, paths: Sequence[Path], skip: int) -> None:
        self._paths = iter(paths)
        self._open: Any = None
        self._skip = skip

    def fill(self, view: memoryview) -> int:
        """Fill a buffer; return the number of bytes, smaller than the buffer only at the end."""
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
    """Record files in a `data/` directory, by name without device number and slice."""

    path: Path
    files: dict[str, RawFile]
    # Files without a `.done` file, which are still being written or were left by a crash.
    unfinished: tuple[str, ...]
    links: tuple[str, ...]  # Symbolic links and other non-regular files, which are not read.
    lost: tuple[str, ...]  # Descriptions of lost ends of slices and of gaps between slices.
    # Bytes in valid records that were read so far, by file.
    read: dict[Path, int] = field(default_factory=dict, compare=False)

    def get(self, *names: str) -> RawFile:
        """Return the files with these names as one `RawFile`; it is false if all are missing."""
        found = [self.files[name] for name in names if name in self.files]
        streams = tuple(stream for file in found for stream in file.streams)
        return RawFile(found[0].name if found else names[0], streams, self.read)

    def host_file(self, kind: str) -> RawFile:
        """Return a host record file such as `compact.task_track`: unaging, then aging slices."""
        return self.get(f"unaging.{kind}", f"aging.{kind}")


def scan(folder: Path) -> DataFolder:
    """List the record files in a directory; empty if it does not exist."""
    streams: dict[str, list[Slice]] = {}
    links: list[str] = []
    recorded: dict[str, int] = {}
    for path, mode, size in _entries(folder):
        if path.name.endswith(_COMPANIONS):
            if path.name.endswith(".done") and stat.S_ISREG(mode):
                recorded[path.name[: -len(".done")]] = _recorded_size(path)
        elif stat.S_ISREG(mode):
            match = _SLICE.fullmatch(path.name)
            name, index = (match["name"], int(match["index"])) if match else (path.name, 0)
            data = _bytes_before_hole(path, size)
            lost_size = size if data < size else 0
            streams.setdefault(_kind(name), []).append(Slice(path, data, index, lost_size))
        elif not stat.S_ISDIR(mode):
            links.append(path.name)
    unfinished, lost, files = [], [], {}
    read: dict[Path, int] = {}
    for kind, found in streams.items():
        found.sort(key=lambda part: (part.index, part.path.name))
        unfinished += [part.path.name for part in found if part.path.name not in recorded]
        stream = tuple(
            replace(part, recorded_size=max(part.recorded_size, recorded.get(part.path.name, 0)))
            for part in found
        )
        lost += _losses(stream)
        files[kind] = RawFile(kind, (stream,), read)
    return DataFolder(
        folder, files, tuple(sorted(unfinished)), tuple(sorted(links)), tuple(sorted(lost)), read
    )


def _bytes_before_hole(path: Path, size: int) -> int:
    """Return the number of bytes before the first large hole of a sparse file.

    A hole reads as zeros: that of a damaged file may have more than can be read.
    """
    if size <= _MAX_HOLE_BYTES or not hasattr(os, "SEEK_HOLE"):
        return size
    end = 0
    with suppress(OSError), path.open("rb", buffering=0) as file:
        while (hole := os.lseek(file.fileno(), end, os.SEEK_HOLE)) < size:
            try:
                end = os.lseek(file.fileno(), hole, os.SEEK_DATA)
            except OSError:  # no data follows
                end = size
            if end - hole > _MAX_HOLE_BYTES:
                return hole
            if end == size:
                break
    return size


def _recorded_size(done: Path) -> int:
    """Return the size in a `.done` file, 0 if there is none."""
    if not done.is_file():
        return 0
    try:
        with done.open("rb") as source:
            match = _RECORDED_SIZE.search(source.read(_DONE_BYTES))
    except OSError:
        return 0
    return int(match[1]) if match else 0


def _kind(name: str) -> str:
    """Return the kind in a file name: `hbm` for `hbm.data.0`, `host_cpu` for `host_cpu.data`."""
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
                continue  # removed meanwhile
            yield path, status.st_mode, status.st_size
    except FileNotFoundError:
        return
    except OSError as err:
        raise RawFormatError(f"cannot list {folder}: {err.strerror}", slug="cannot-read") from err


class Workspace(Struct, frozen=True):
    """Limits of memory use during decoding, independent of the length of the recording."""

    window_rows: int = 1 << 17  # Number of rows (of all kinds) to join at a time.
    # Bytes of rows of one kind to collect before they are sorted and written to a file.
    run_bytes: int = 4 << 20

    def spool(self, dtype: np.dtype[Any], key: str = "key") -> Spool:
        """Return a spool that sorts rows by `key`."""
        return Spool(dtype, key, run_rows=max(1, self.run_bytes // dtype.itemsize))
