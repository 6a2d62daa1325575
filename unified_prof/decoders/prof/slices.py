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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.prof.layouts import RecordType
from unified_prof.errors import RawFormatError

PIECE_BYTES = 4 << 20
"""About how much of a file is in memory at a time."""

Records = NDArray[Any]

_SLICE = re.compile(r"(?P<name>.+)\.slice_(?P<index>\d{1,9})")
# Files that readers must skip: companions of the collector, marks of other parsers.
_COMPANIONS = (".done", ".complete", ".zip")
_DEVICE_SUFFIX = re.compile(
    r"(?P<name>.+)\.data\.(?:\d+\.dev\.profiler_default_tag\.)?\d+|(?P<plain>.+)\.data"
)
_APP_SUFFIX = re.compile(r"(?P<name>.+\.app)\.\d+")


@dataclass(frozen=True, slots=True)
class RawFile:
    """All slices of one kind of record, in reading order."""

    name: str
    paths: tuple[Path, ...]
    sizes: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all slices together."""
        return sum(self.sizes)

    def count(self, record: RecordType) -> int:
        """Return how many whole records the slices hold."""
        return self.size_bytes // record.itemsize

    def pieces(
        self, record: RecordType, piece_bytes: int = PIECE_BYTES, *, magic: int | None = None
    ) -> Iterator[Records]:
        """Yield the records of all slices, in file order, a few megabytes at a time.

        A piece is the caller's: it is not reused. Bytes that are no whole record are skipped: those
        before the first one, or those after the last one if `magic` shows that the file begins
        with a record.

        Args:
            record: the type of the records.
            piece_bytes: about how much to read at a time.
            magic: what the records have in their field `magic`.

        Raises:
            RawFormatError: a slice cannot be read.
        """
        remainder = self.size_bytes % record.itemsize
        left = self.size_bytes - remainder
        if remainder and magic is not None and self._begins_whole(record, remainder, magic):
            remainder = 0
        per_piece = max(1, piece_bytes // record.itemsize) * record.itemsize
        with closing(_Source(self.paths, remainder)) as source:
            while left > 0:
                buffer = np.empty(min(per_piece, left), np.uint8)
                filled = source.fill(buffer.data)
                whole = filled // record.itemsize
                if whole:
                    yield buffer[: whole * record.itemsize].view(record)
                if filled < len(buffer):
                    return  # the file shrank since it was listed
                left -= filled

    def by_slice(self) -> list[RawFile]:
        """Return every slice as a file of its own, where none continues the one before."""
        return [
            RawFile(self.name, (path,), (size,))
            for path, size in zip(self.paths, self.sizes, strict=True)
        ]

    def _begins_whole(self, record: RecordType, remainder: int, magic: int) -> bool:
        buffer = np.zeros(remainder + record.itemsize, np.uint8)
        with closing(_Source(self.paths, 0)) as source:
            source.fill(buffer.data)
        first, second = (
            int(buffer[at : at + record.itemsize].view(record)["magic"][0]) for at in (0, remainder)
        )
        return first == magic != second

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
    return RawFormatError(f"cannot read {err.filename or path or 'a slice'}: {err.strerror}")


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The record files of one `data/` folder, by name without device number and slice."""

    path: Path
    files: dict[str, RawFile]
    unfinished: tuple[str, ...]
    """Files that have no `.done` companion: still being written, or left by a crash."""
    links: tuple[str, ...]
    """Symbolic links and other non-regular files, which are not read."""

    def get(self, *names: str) -> RawFile | None:
        """Return the files called `names` as one, in that order; None when none is there.

        For host records name the file without its ageing prefix: `host_file` does the joining.
        """
        found = [self.files[name] for name in names if name in self.files]
        if not found:
            return None
        return RawFile(
            found[0].name,
            tuple(path for file in found for path in file.paths),
            tuple(size for file in found for size in file.sizes),
        )

    def host_file(self, kind: str) -> RawFile | None:
        """Return a host record file such as `compact.task_track`: unaging, then aging slices."""
        return self.get(f"unaging.{kind}", f"aging.{kind}")


def scan(folder: Path) -> DataFolder:
    """List the record files of `folder`; a missing folder is an empty one.

    Raises:
        RawFormatError: the folder cannot be listed.
    """
    slices: dict[str, list[tuple[int, str, Path, int]]] = {}
    links: list[str] = []
    done: set[str] = set()
    seen: list[str] = []
    for path, mode, size in _entries(folder):
        if path.name.endswith(_COMPANIONS):
            if path.name.endswith(".done"):
                done.add(path.name[: -len(".done")])
            continue
        if not stat.S_ISREG(mode):
            if not stat.S_ISDIR(mode):
                links.append(path.name)
            continue
        match = _SLICE.fullmatch(path.name)
        name, index = (match["name"], int(match["index"])) if match else (path.name, 0)
        seen.append(path.name)
        slices.setdefault(_kind(name), []).append((index, path.name, path, size))
    files = {}
    for kind, parts in slices.items():
        parts.sort(key=lambda part: part[:2])
        files[kind] = RawFile(
            kind, tuple(part[2] for part in parts), tuple(part[3] for part in parts)
        )
    unfinished = tuple(sorted(name for name in seen if name not in done))
    return DataFolder(folder, files, unfinished, tuple(sorted(links)))


def _kind(name: str) -> str:
    """Strip what follows the kind: `hbm.data.0` and `host_cpu.data` are `hbm` and `host_cpu`."""
    if name.startswith(("aging.", "unaging.")):
        return name.removesuffix(".data")
    if match := _APP_SUFFIX.fullmatch(name):
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
        raise RawFormatError(f"cannot list {folder}: {err.strerror}") from err
