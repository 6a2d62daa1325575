"""A `*_ascend_pt` folder: what torch_npu's profiler leaves, and what it says of the recording.

Time stamps of FRAMEWORK/ to ns since 1970.

Reads the files of FRAMEWORK/: records of type, length and value, and flat ones.

A record is a fixed part and fields, each again type, length and value. Nothing in a file is
trusted: a record that does not end within the file ends the reading, one that is shorter than its
fixed part is skipped, fields that do not fit are left out; all of it is counted.
"""

from __future__ import annotations

import json
import math
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Ints
from unified_prof.base.columns import Sink
from unified_prof.decoders.prof import directory
from unified_prof.decoders.prof.directory import Control, ProfDirectory
from unified_prof.errors import RawFormatError

FRAMEWORK = "FRAMEWORK"
METADATA = "profiler_metadata.json"

_PROF = re.compile(r"PROF_\d+_\d+_[0-9a-zA-Z]+")
_INFO = re.compile(r"profiler_info(?:_\d+)?\.json")
_OWN_NAMES = ("SCHEMA_VERSION", "UPROF_")
"""Rows of META_DATA with such names say what the file is."""
_NO_RANK = -1
_MOST_RANKS = 1 << 31

OPERATORS = "torch.op_range"
MARKS = "torch.op_mark"
MEMORY = "torch.memory_usage"
CALLS = "torch.python_tracer_func"
CALL_NAMES = "torch.python_tracer_hash"
COLLECTIONS = "torch.gc_record"
_FILES = (OPERATORS, MARKS, MEMORY, CALLS, CALL_NAMES, COLLECTIONS)
PARAMETERS = "torch.param_tensor_info"
"""Feeds no table: torch_npu reads it for its memory timeline only."""


@dataclass(frozen=True, slots=True)
class HostClock:
    """How torch_npu turns its collector's time stamps into ns since 1970."""

    counts: bool
    """Whether they are values of the system counter, and not ns of the monotonic clock."""
    mhz: float
    start_count: int
    start_monotonic_ns: int
    offset_ns: int
    """Of the epoch to the monotonic clock."""


class AscendFolder:
    """The folder and its control files; a file that cannot be read is listed in `problems`."""

    def __init__(self, path: Path) -> None:
        """Look into the folder.

        Raises:
            RawFormatError: it cannot be listed.
        """
        self.path = path
        self.problems: list[tuple[str, str]] = []
        """(anomaly name, message) of what is left out."""
        names = listed(path)
        self.prof = next((path / n for n in names if _PROF.match(n) and (path / n).is_dir()), None)
        """The PROF_* directory inside; torch_npu takes the first as well."""
        self._info_file = next((path / name for name in names if _INFO.fullmatch(name)), None)
        framework = path / FRAMEWORK
        self._framework = listed(framework) if framework.is_dir() else []

    @property
    def has_framework(self) -> bool:
        """Whether FRAMEWORK/ is there and has a file that feeds a table."""
        return any(name.startswith(_FILES) for name in self._framework)

    def file(self, name: str) -> Path | None:
        """Return a file of FRAMEWORK/ whose name begins as given, None where there is none."""
        found = [one for one in self._framework if one.startswith(name)]
        if len(found) > 1:
            self.problems.append(
                ("undecoded_data", f"{FRAMEWORK}: {', '.join(found[1:])} beside {found[0]}")
            )
        return self.path / FRAMEWORK / found[0] if found else None

    def other_files(self) -> list[str]:
        """Return the files of FRAMEWORK/ that nothing here knows."""
        known = (*_FILES, PARAMETERS)
        return [name for name in self._framework if not name.startswith(known)]

    @cached_property
    def info(self) -> Control:
        """`profiler_info*.json`; empty where it is missing or no JSON."""
        if self._info_file is None:
            return Control(self.path, {})
        try:
            return directory.read_json(self._info_file)
        except RawFormatError as err:
            self.problems.append(("unreadable_file", str(err)))
            return Control(self._info_file, {})

    @cached_property
    def metadata(self) -> dict[str, str]:
        """What `profiler_metadata.json` holds, values as JSON as torch_npu writes them."""
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
        """Write META_DATA: what the user and torch_npu added to the recording."""
        for name, value in self.metadata.items():
            if name.startswith(_OWN_NAMES):
                self.problems.append(("reserved_name", f"{METADATA}: {name}"))
            else:
                sink.write("META_DATA", {"name": [name], "value": [value]})

    @property
    def rank(self) -> int | None:
        """The process of a distributed run; None where it was recorded without ranks."""
        rank = self.info.integer("rank_id", _NO_RANK)
        return rank if rank is not None and 0 <= rank < _MOST_RANKS else None

    @property
    def level(self) -> str:
        """`_profiler_level`: Level_none, Level0, Level1 or Level2."""
        return _inner(_inner(self.info, "config"), "experimental_config").text("_profiler_level")

    def clock(self, prof: ProfClock | None) -> HostClock:
        """Return how to read the time stamps of FRAMEWORK/.

        Args:
            prof: What PROF_* says of its host; None without PROF_*.
        """
        if self._info_file is None:
            self.problems.append(("no_profiler_info", f"{self.path} has no profiler_info*.json"))
        start, end = _inner(self.info, "start_info"), _inner(self.info, "end_info")
        counts = start.text("syscnt_enable").lower() in ("true", "1")
        mhz = _frequency(start.text("freq"))
        count, monotonic = start.integer("start_cnt", 0) or 0, start.integer("start_monotonic", 0)
        offset = 0
        if prof is not None:
            offset = prof.offset_ns
            if prof.start_count is not None and prof.start_monotonic_ns is not None:
                mhz, count, monotonic = prof.mhz, prof.start_count, prof.start_monotonic_ns
        if not offset:
            at, at_monotonic = end.integer("collectionTimeEnd"), end.integer("MonotonicTimeEnd")
            if at is None or at_monotonic is None:
                self.problems.append(
                    ("no_clock", f"{self.info.path} has no end_info: times count from the start")
                )
            else:
                offset = at - at_monotonic
        return HostClock(counts, mhz, count, monotonic or 0, offset)


@dataclass(frozen=True, slots=True)
class ProfClock:
    """What the control files of PROF_* say of the host's clock."""

    mhz: float
    start_count: int | None
    start_monotonic_ns: int | None
    offset_ns: int


def clock_of(prof: ProfDirectory) -> ProfClock:
    """Read the host's clock from a PROF_* directory."""
    part = prof.host or prof.devices[0]
    mhz, count, monotonic = 100.0, None, None
    if prof.host is not None:
        records = prof.host.info.records("CPU")
        mhz = _frequency(records[0].text("Frequency") if records else "")
        try:
            found = directory.find(prof.host.path, "host_start.log", required=False)
            log = None if found is None else directory.read_start_log(found)
        except RawFormatError:
            log = None
        if log is not None:
            count, monotonic = log.counter("cntvct"), log.counter("clock_monotonic_raw")
    begin = part.start.integer("collectionTimeBegin")
    begin_monotonic = part.start.integer("clockMonotonicRaw")
    if begin is None or begin_monotonic is None:
        return ProfClock(mhz, count, monotonic, 0)
    return ProfClock(mhz, count, monotonic, begin * 1000 - begin_monotonic)


def listed(path: Path) -> list[str]:
    """Return the names in a folder, sorted.

    Raises:
        RawFormatError: it cannot be listed.
    """
    try:
        return sorted(child.name for child in path.iterdir())
    except OSError as err:
        raise RawFormatError(f"cannot list {path}: {err.strerror}", slug="cannot-read") from err


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
    """Return a value as Python's own writer does, which torch_npu uses."""
    try:
        return json.dumps(value)
    except (ValueError, RecursionError):
        return msgspec.json.encode(value).decode()


_LATEST = 1 << 62


def epoch_ns(raw: NDArray[np.int64] | NDArray[np.uint64], clock: HostClock) -> Ints:
    """Return the times; what is beyond 64 bits becomes the latest or earliest possible time.

    As torch_npu computes them: ticks times ns a tick as float64, truncated.
    """
    stamps = raw.astype(np.int64)
    if not clock.counts:
        return _moved(stamps, clock.offset_ns)
    ticks = _moved(stamps, -clock.start_count).astype(np.float64)
    passed = np.clip(ticks * (1000 / clock.mhz), -float(_LATEST), float(_LATEST))
    return _moved(passed.astype(np.int64), clock.start_monotonic_ns + clock.offset_ns)


def _moved(times: Ints, by: int) -> Ints:
    by = max(-_LATEST, min(by, _LATEST))
    return np.clip(times, -_LATEST, _LATEST) + by


Fields = dict[int, tuple[Ints, Ints]]
"""Start (-1: absent) and length of a field in every record, by its type; the last of several."""

_PIECE_BYTES = 4 << 20
_LARGEST_RECORD = 64 << 20
"""A record is in memory as a whole; no genuine one comes near."""
_MOST_FIELDS = 1_000
_HEAD = struct.Struct("<HI")
_LENGTH, _LENGTH_AT = struct.Struct("<I"), 2

CUT_OFF = "cut_off"
DAMAGED = "damaged_record"


@dataclass(frozen=True, slots=True)
class Layout:
    """One version of a record's fixed part."""

    fixed: np.dtype[Any]
    by_length: bool = False
    """Told by the whole length, for records without fields; else by whether the fields fit."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one layout, in file order."""

    data: bytes
    fixed: NDArray[Any]
    fields: Fields
    number: Ints
    """Place of each record among all of the file."""


def read_records(
    path: Path, kind: int, layouts: Sequence[Layout], wanted: tuple[int, ...], sink: Sink
) -> Iterator[Batch]:
    """Yield the records of a file, some megabytes at a time, newest layout first.

    Args:
        path: The file.
        kind: Type of its records; others are counted and left out.
        layouts: What the fixed part may be; a record is of the first that fits.
        wanted: Types of the fields to look for.
        sink: Told of what is left out.

    Raises:
        RawFormatError: it cannot be read.
    """
    number = 0
    for data, starts, ends, kinds in _pieces(path, sink):
        if other := int((kinds != kind).sum()):
            sink.anomaly(DAMAGED, other, f"{path}: a record of type {_first(kinds, kind)}")
        own = kinds == kind
        part = _Piece(path, data, starts[own], ends[own], number + np.flatnonzero(own))
        number += len(kinds)
        yield from _batches(part, layouts, wanted, sink)


def read_flat(path: Path, layout: np.dtype[Any], sink: Sink) -> NDArray[Any]:
    """Return the records of a file without heads; the rest of a record at the end is counted.

    Raises:
        RawFormatError: it cannot be read.
    """
    with _opened(path) as file:
        try:
            records = np.fromfile(file, layout)
        except OSError as err:
            raise _unreadable(path, err) from err
        rest = path.stat().st_size % layout.itemsize
    if rest:
        sink.anomaly(CUT_OFF, 1, f"{path}: {rest} bytes at the end are no whole record")
    return records


def _pieces(path: Path, sink: Sink) -> Iterator[tuple[bytes, Ints, Ints, Ints]]:
    """Yield data with the start and end of every value in it, and the types."""
    data = b""
    with _opened(path) as file:
        try:
            while more := file.read(_PIECE_BYTES):
                data += more
                starts, ends, kinds, after = _chain(data)
                if len(starts):
                    yield data, starts, ends, kinds
                data = data[after:]
                data = _whole_record(path, file, data, sink)
        except OSError as err:
            raise _unreadable(path, err) from err
    if data:
        sink.anomaly(CUT_OFF, 1, f"{path}: {len(data)} bytes at the end are no whole record")


def _chain(data: bytes) -> tuple[Ints, Ints, Ints, int]:
    """Return start and end of every whole value, the types, and where the rest begins."""
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


def _whole_record(path: Path, file: BinaryIO, data: bytes, sink: Sink) -> bytes:
    """Read on to the end of a record that is longer than a piece; skip one that is too long."""
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
    if length > _LARGEST_RECORD:
        sink.anomaly("oversized_record", 1, f"{path}: a record of {length:,} bytes")
        file.seek(missing, 1)
        return b""
    return data + file.read(missing - 1)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Records of one type in a stretch of a file."""

    path: Path
    data: bytes
    starts: Ints
    ends: Ints
    number: Ints

    def of(self, rows: Ints) -> _Piece:
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
        piece = piece.of(np.flatnonzero(~fits))
    if len(piece.starts):
        length = int(piece.ends[0] - piece.starts[0])
        told = f"{piece.path}: a record of {length} bytes fits no layout"
        sink.anomaly(DAMAGED, len(piece.starts), told)
        if not layouts[0].by_length:
            # Its fields do not end where it does: the fixed part is kept, and what fits.
            size = layouts[0].fixed.itemsize
            piece = piece.of(np.flatnonzero(piece.ends - piece.starts >= size))
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


def _fields(
    piece: _Piece, fixed_bytes: int, wanted: tuple[int, ...]
) -> tuple[NDArray[np.bool_], Fields]:
    """Return which records their fields fill exactly, and where the wanted fields are."""
    array = np.frombuffer(piece.data, np.uint8)
    at, ends = piece.starts + fixed_bytes, piece.ends
    fields = {
        kind: (np.full(len(at), -1, np.int64), np.zeros(len(at), np.int64)) for kind in wanted
    }
    active = np.flatnonzero(at + _HEAD.size <= ends)
    for _ in range(_MOST_FIELDS):
        if not len(active):
            break
        here = at[active]
        kind = array[here] + (array[here + 1].astype(np.int64) << 8)
        length = np.zeros(len(here), np.int64)
        for place in range(4):
            length += array[here + 2 + place].astype(np.int64) << 8 * place
        start = here + _HEAD.size
        whole = start + length <= ends[active]
        active, kind, start, length = active[whole], kind[whole], start[whole], length[whole]
        for one, (starts, lengths) in fields.items():
            chosen = kind == one
            starts[active[chosen]] = start[chosen]
            lengths[active[chosen]] = length[chosen]
        at[active] = start + length
        active = active[at[active] + _HEAD.size <= ends[active]]
    return at == ends, fields


def _first(kinds: Ints, wanted: int) -> int:
    return int(kinds[np.argmax(kinds != wanted)])


def _opened(path: Path) -> BinaryIO:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise RawFormatError(f"{path} is not a regular file", slug="not-a-regular-file")
        return path.open("rb")
    except OSError as err:
        raise _unreadable(path, err) from err


def _unreadable(path: Path, err: OSError) -> RawFormatError:
    return RawFormatError(f"{path}: cannot be read: {err.strerror or err}", slug="cannot-read")
