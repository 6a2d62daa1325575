"""Opens a `*_ascend_pt` directory of torch_npu's profiler: control files, clock, FRAMEWORK/ files.

Files in FRAMEWORK/ contain type-length-value records. A value consists of a fixed part and of
fields, which are type-length-value encoded, too. In damaged files, reading stops at a record that
extends beyond the end of the file, records shorter than their fixed part are skipped, and fields
that do not fit are dropped; all of these are counted as anomalies.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import struct
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Ints
from unified_prof.base.columns import Coverage, Sink
from unified_prof.decoders.prof import directory
from unified_prof.decoders.prof.directory import Control, ProfDirectory
from unified_prof.errors import RawFormatError, system_errors

FRAMEWORK = "FRAMEWORK"
METADATA = "profiler_metadata.json"
_PROF = re.compile(r"PROF_\d+_\d+_[0-9a-zA-Z]+")
_INFO = re.compile(r"profiler_info(?:_\d+)?\.json")
# Prefixes of names in META_DATA that describe the database and must not be overwritten.
_RESERVED_NAMES = ("SCHEMA_VERSION", "UPROF_")
_NO_RANK = -1
_MAX_RANKS = 1 << 31
OPERATORS = "torch.op_range"
MARKS = "torch.op_mark"
MEMORY = "torch.memory_usage"
CALLS = "torch.python_tracer_func"
CALL_NAMES = "torch.python_tracer_hash"
COLLECTIONS = "torch.gc_record"
_FILES = (OPERATORS, MARKS, MEMORY, CALLS, CALL_NAMES, COLLECTIONS)
# Has no table; torch_npu uses it for its memory timeline only.
PARAMETERS = "torch.param_tensor_info"


class HostClock(Struct, frozen=True):
    """Parameters to convert timestamps of FRAMEWORK/ to Unix time in ns, as torch_npu does."""

    # True if timestamps are values of the system counter, False if they are monotonic ns.
    counts: bool
    mhz: float
    start_count: int
    start_monotonic_ns: int
    offset_ns: int  # Offset from the monotonic clock to Unix time.


class AscendFolder:
    """A `*_ascend_pt` directory and its control files; `problems` lists unreadable files."""

    def __init__(self, path: Path) -> None:
        """List the directory."""
        self.path = path
        # (anomaly name, message) for each file that could not be read.
        self.problems: list[tuple[str, str]] = []
        names = listed(path)
        # First PROF_* directory, which is the one that torch_npu uses.
        self.prof = next((path / n for n in names if _PROF.match(n) and (path / n).is_dir()), None)
        self._info_file = next((path / name for name in names if _INFO.fullmatch(name)), None)
        framework = path / FRAMEWORK
        self._framework = listed(framework) if framework.is_dir() else []

    @property
    def has_framework(self) -> bool:
        """True if FRAMEWORK/ contains a file that is decoded."""
        return any(name.startswith(_FILES) for name in self._framework)

    def file(self, name: str) -> Path | None:
        """Return the file in FRAMEWORK/ whose name starts with `name`, None if there is none."""
        found = [file for file in self._framework if file.startswith(name)]
        if len(found) > 1:
            detail = f"{FRAMEWORK}: {', '.join(found[1:])} beside {found[0]}"
            self.problems.append(("undecoded_data", detail))
        return self.path / FRAMEWORK / found[0] if found else None

    def other_files(self) -> list[str]:
        """Return the names of unknown files in FRAMEWORK/."""
        known = (*_FILES, PARAMETERS)
        return [name for name in self._framework if not name.startswith(known)]

    def write_coverage(self, covered: Container[str], sink: Sink) -> None:
        """Write the size of all raw files that are not `covered` yet."""
        coverage = Coverage()
        for name in self._framework:
            kind = f"{FRAMEWORK}/{name}"
            if kind not in covered and (path := self.path / kind).is_file():
                size = path.stat().st_size
                is_decoded = name.startswith(_FILES)
                lost = {"skipped" if is_decoded else "without_table": size}
                coverage.add(kind, "bytes", size, **lost)
        for path in sorted(self.path.iterdir()):
            if path in (self._info_file, self.path / METADATA) and path.is_file():
                coverage.add(path.name, "bytes", path.stat().st_size)
            elif _PROF.match(path.name) and path != self.prof:
                sizes = [file.lstat().st_size for file in path.rglob("*") if file.is_file()]
                coverage.add(path.name, "bytes", sum(sizes), without_table=sum(sizes))
        coverage.write(sink)

    @cached_property
    def info(self) -> Control:
        """Content of `profiler_info*.json`; empty if the file is missing or invalid."""
        if self._info_file is None:
            return Control(self.path, {})
        try:
            return directory.read_json(self._info_file)
        except RawFormatError as err:
            self.problems.append(("unreadable_file", str(err)))
            return Control(self._info_file, {})

    @cached_property
    def metadata(self) -> dict[str, str]:
        """Content of `profiler_metadata.json`, with values as JSON strings as in torch_npu."""
        path = self.path / METADATA
        if not path.is_file():
            return {}
        try:
            values = directory.read_json(path).values
        except RawFormatError as err:
            self.problems.append(("unreadable_file", str(err)))
            return {}
        return {str(name): _json(value) for name, value in values.items()}

    def write_metadata(self, sink: Sink) -> None:
        """Write META_DATA: metadata of the user and of torch_npu."""
        for name, value in self.metadata.items():
            if name.startswith(_RESERVED_NAMES):
                self.problems.append(("reserved_name", f"{METADATA}: {name}"))
            else:
                sink.write("META_DATA", {"name": [name], "value": [value]})

    @property
    def rank(self) -> int | None:
        """Rank of the process; None if no rank was recorded."""
        rank = self.info.integer("rank_id", _NO_RANK)
        return rank if rank is not None and 0 <= rank < _MAX_RANKS else None

    @property
    def level(self) -> str:
        """`_profiler_level`: Level_none, Level0, Level1 or Level2."""
        return _inner(_inner(self.info, "config"), "experimental_config").text("_profiler_level")

    def clock(self, prof: ProfDirectory | None) -> HostClock:
        """Return the clock of FRAMEWORK/; the host's clock in PROF_* is preferred."""
        if self._info_file is None:
            self.problems.append(("no_profiler_info", f"{self.path} has no profiler_info*.json"))
        start, end = _inner(self.info, "start_info"), _inner(self.info, "end_info")
        counts = start.text("syscnt_enable").lower() in ("true", "1")
        mhz = _frequency(start.text("freq"))
        count, monotonic = start.integer("start_cnt", 0) or 0, start.integer("start_monotonic", 0)
        offset = 0
        if prof is not None:
            part = (prof.host or prof.devices[0]).start
            begin, begin_monotonic = map(part.integer, ("collectionTimeBegin", "clockMonotonicRaw"))
            if begin is not None and begin_monotonic is not None:
                offset = begin * 1000 - begin_monotonic
        log = None
        if prof is not None and prof.host is not None:
            with suppress(RawFormatError):
                found = directory.find_control(prof.host.path, "host_start.log")
                log = None if found is None else directory.read_start_log(found)
            ticks = None if log is None else log.counter("cntvct")
            raw_ns = None if log is None else log.counter("clock_monotonic_raw")
            if ticks is not None and raw_ns is not None:
                records = prof.host.info.records("CPU")
                mhz = _frequency(records[0].text("Frequency") if records else "")
                count, monotonic = ticks, raw_ns
        if not offset:
            at, at_monotonic = end.integer("collectionTimeEnd"), end.integer("MonotonicTimeEnd")
            if at is None or at_monotonic is None:
                detail = f"{self.info.path} has no end_info: times are relative to the start"
                self.problems.append(("no_clock", detail))
            else:
                offset = at - at_monotonic
        return HostClock(counts, mhz, count, monotonic or 0, offset)


def listed(path: Path) -> list[str]:
    """Return the names in a directory, sorted."""
    with system_errors(RawFormatError, f"cannot list {path}", slug="cannot-read"):
        return sorted(child.name for child in path.iterdir())


def _inner(values: Control, key: str) -> Control:
    value = values.values.get(key)
    return Control(values.path, value if isinstance(value, dict) else {})


def _frequency(text: str) -> float:
    try:
        mhz = float(text)
    except ValueError:
        return 100.0
    return mhz if math.isfinite(mhz) and mhz > 0 else 100.0


def _json(value: Any) -> str:
    """Return a value as JSON in the format of Python's json module, as torch_npu writes it."""
    try:
        return json.dumps(value)
    except (ValueError, RecursionError):
        return msgspec.json.encode(value).decode()


_LATEST = 1 << 62


def epoch_ns(raw: Ints | NDArray[np.uint64], clock: HostClock) -> Ints:
    """Return Unix times in ns; times beyond 64 bits are clipped.

    As in torch_npu, ticks are multiplied by ns per tick in float64, and the result is truncated.
    """
    stamps = raw.astype(np.int64)
    if not clock.counts:
        return _shifted(stamps, clock.offset_ns)
    ticks = _shifted(stamps, -clock.start_count).astype(np.float64)
    passed = np.clip(ticks * (1000 / clock.mhz), -float(_LATEST), float(_LATEST))
    return _shifted(passed.astype(np.int64), clock.start_monotonic_ns + clock.offset_ns)


def _shifted(times: Ints, by: int) -> Ints:
    by = max(-_LATEST, min(by, _LATEST))
    return np.clip(times, -_LATEST, _LATEST) + by


# Start (-1: absent) and length of the last field of a type in every record, by type.
Fields = dict[int, tuple[Ints, Ints]]
_PIECE_BYTES = 4 << 20
_MAX_RECORD_BYTES = 64 << 20  # Maximum size of a record, since records are read completely.
# Maximum number of fields of a record that are looked at.
_MAX_FIELDS = 1_000
_HEAD = struct.Struct("<HI")
_LENGTH, _LENGTH_AT = struct.Struct("<I"), 2
CUT_OFF = "cut_off"
DAMAGED = "damaged_record"


class Layout(Struct, frozen=True):
    """One version of a record's fixed part."""

    fixed: np.dtype[Any]
    # True if the record length identifies the layout (no fields), False if the fields do.
    by_length: bool = False


class Batch(Struct, frozen=True):
    """Records of one layout, in file order."""

    data: bytes
    fixed: NDArray[Any]
    fields: Fields
    number: Ints  # Index of each record in the file.


def read_records(
    path: Path, kind: int, layouts: Sequence[Layout], wanted: tuple[int, ...], sink: Sink
) -> Iterator[Batch]:
    """Yield the records of one type in a file in batches of a few megabytes, one batch per layout.

    Records of other types are counted and dropped. The first of the possible layouts of the fixed
    part that fits is used; `wanted` are the types of the fields to find.
    """
    number = read = 0
    for data, starts, ends, kinds in _pieces(path, sink):
        if other := int((kinds != kind).sum()):
            first = int(kinds[np.argmax(kinds != kind)])
            sink.anomaly(DAMAGED, other, f"{path}: a record of type {first}")
        chosen = kinds == kind
        part = _Piece(path, data, starts[chosen], ends[chosen], number + np.flatnonzero(chosen))
        number += len(kinds)
        read += int((ends - starts)[chosen].sum()) + _HEAD.size * int(chosen.sum())
        yield from _batches(part, layouts, wanted, sink)
    _write_coverage(path, read, sink)


def read_flat(path: Path, layout: np.dtype[Any], sink: Sink) -> NDArray[Any]:
    """Return the records of a file with fixed-size records; an incomplete last record is counted.

    Raises RawFormatError if the file cannot be read.
    """
    with _opened(path) as file:
        records = np.fromfile(file, layout)
        rest = path.stat().st_size % layout.itemsize
    if rest:
        sink.anomaly(CUT_OFF, 1, f"{path}: {rest} bytes at the end are not a complete record")
    _write_coverage(path, records.nbytes, sink)
    return records


def _write_coverage(path: Path, read: int, sink: Sink) -> None:
    coverage, size = Coverage(), path.stat().st_size
    coverage.add(f"{FRAMEWORK}/{path.name}", "bytes", size, skipped=max(size - read, 0))
    coverage.write(sink)


def _pieces(path: Path, sink: Sink) -> Iterator[tuple[bytes, Ints, Ints, Ints]]:
    """Yield chunks of data with the starts, ends and types of their values."""
    data = b""
    with _opened(path) as file:
        while more := file.read(_PIECE_BYTES):
            if more.count(0) == len(more):
                begin = file.tell() - len(more)
                if (end := _end_of_hole(path, begin)) > begin:
                    sink.anomaly(DAMAGED, 1, f"{path}: a hole of {end - begin:,} bytes")
                    file.seek(end)
                    data = b""
                    continue
            data += more
            starts, ends, kinds, after = _chain(data)
            if len(starts):
                yield data, starts, ends, kinds
            data = data[after:]
            data = _complete_record(path, file, data, sink)
    if data:
        sink.anomaly(CUT_OFF, 1, f"{path}: {len(data)} bytes at the end are not a complete record")


def _end_of_hole(path: Path, at: int) -> int:
    """Return the end of the hole of a sparse file at a position; `at` if there is no hole.

    A hole reads as zeros, and six zeros are a record of type 0: it may have billions of them.
    """
    if not hasattr(os, "SEEK_HOLE"):
        return at
    with path.open("rb", buffering=0) as file:
        if os.lseek(file.fileno(), at, os.SEEK_HOLE) != at:
            return at
        try:
            return os.lseek(file.fileno(), at, os.SEEK_DATA)
        except OSError:  # no data follows
            return file.seek(0, os.SEEK_END)


def _chain(data: bytes) -> tuple[Ints, Ints, Ints, int]:
    """Return starts, ends and types of complete values, and the offset of the other bytes."""
    heads: list[int] = []
    add, length, size, last = heads.append, _LENGTH.unpack_from, _HEAD.size, len(data)
    at = 0
    while at + size <= last:
        end = at + size + length(data, at + _LENGTH_AT)[0]
        if end > last:
            break
        add(at)
        at = end
    begin = np.array(heads, np.int64)
    array = np.frombuffer(data, np.uint8)
    kinds = array[begin] + (array[begin + 1].astype(np.int64) << 8)
    return begin + size, np.append(begin[1:], at)[: len(begin)], kinds, at


def _complete_record(path: Path, file: BinaryIO, data: bytes, sink: Sink) -> bytes:
    """Read the rest of a record that is longer than a chunk; skip it if it is too long."""
    if len(data) < _HEAD.size:
        return data
    length = _HEAD.size + _HEAD.unpack_from(data)[1]
    missing = length - len(data)
    if missing <= _PIECE_BYTES:
        return data
    if missing > path.stat().st_size - file.tell():
        sink.anomaly(CUT_OFF, 1, f"{path}: the file ends before a record of {length:,} bytes does")
        file.seek(0, 2)
        return b""
    if length > _MAX_RECORD_BYTES:
        sink.anomaly("oversized_record", 1, f"{path}: a record of {length:,} bytes")
        file.seek(missing, 1)
        return b""
    return data + file.read(missing - 1)


class _Piece(Struct, frozen=True):
    """Records of one type in a chunk of a file."""

    path: Path
    data: bytes
    starts: Ints
    ends: Ints
    number: Ints

    def take(self, rows: Ints) -> _Piece:
        return _Piece(self.path, self.data, self.starts[rows], self.ends[rows], self.number[rows])


def _batches(
    piece: _Piece, layouts: Sequence[Layout], wanted: tuple[int, ...], sink: Sink
) -> Iterator[Batch]:
    for layout in layouts:
        size = layout.fixed.itemsize
        if layout.by_length:
            fits = piece.ends - piece.starts == size
            fields: Fields = {}
        else:
            fits, fields = _fields(piece, size, wanted)
        if fits.any():
            yield _batch(piece, np.flatnonzero(fits), layout, fields)
        piece = piece.take(np.flatnonzero(~fits))
    if len(piece.starts):
        length = int(piece.ends[0] - piece.starts[0])
        detail = f"{piece.path}: a record of {length} bytes matches no layout"
        sink.anomaly(DAMAGED, len(piece.starts), detail)
        if not layouts[0].by_length:
            # The fields do not end with the record: keep the fixed part and the fields that fit.
            size = layouts[0].fixed.itemsize
            piece = piece.take(np.flatnonzero(piece.ends - piece.starts >= size))
            if len(piece.starts):
                _, fields = _fields(piece, size, wanted)
                yield _batch(piece, np.arange(len(piece.starts)), layouts[0], fields)


def _batch(piece: _Piece, rows: Ints, layout: Layout, fields: Fields) -> Batch:
    data, size = piece.data, layout.fixed.itemsize
    fixed = b"".join([data[start : start + size] for start in piece.starts[rows].tolist()])
    return Batch(
        data,
        np.frombuffer(fixed, layout.fixed),
        {kind: (start[rows], length[rows]) for kind, (start, length) in fields.items()},
        piece.number[rows],
    )


def _fields(piece: _Piece, fixed_bytes: int, wanted: tuple[int, ...]) -> tuple[Bools, Fields]:
    """Return a mask of the records that their fields fill exactly, and the wanted fields."""
    array = np.frombuffer(piece.data, np.uint8)
    at, ends = piece.starts + fixed_bytes, piece.ends
    none = np.full(len(at), -1, np.int64)
    fields = {kind: (none.copy(), np.zeros(len(at), np.int64)) for kind in wanted}
    active = np.flatnonzero(at + _HEAD.size <= ends)
    for _ in range(_MAX_FIELDS):
        if not len(active):
            break
        here = at[active]
        kind = array[here] + (array[here + 1].astype(np.int64) << 8)
        length = np.zeros(len(here), np.int64)
        for place in range(4):
            length += array[here + 2 + place].astype(np.int64) << 8 * place
        start = here + _HEAD.size
        fits = start + length <= ends[active]
        active, kind, start, length = active[fits], kind[fits], start[fits], length[fits]
        for wanted_kind, (starts, lengths) in fields.items():
            chosen = kind == wanted_kind
            starts[active[chosen]] = start[chosen]
            lengths[active[chosen]] = length[chosen]
        at[active] = start + length
        active = active[at[active] + _HEAD.size <= ends[active]]
    return at == ends, fields


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file; an OSError of the block becomes RawFormatError."""
    with system_errors(RawFormatError, f"{path}: cannot be read", slug="cannot-read"):
        if not stat.S_ISREG(path.stat().st_mode):
            raise RawFormatError(f"{path} is not a regular file", slug="not-a-regular-file")
        with path.open("rb") as file:
            yield file
