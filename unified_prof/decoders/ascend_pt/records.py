"""Reads the files of FRAMEWORK/: records of type, length and value, and flat ones.

A record is a fixed part and fields, each again type, length and value. Nothing in a file is
trusted: a record that does not end within the file ends the reading, one that is shorter than its
fixed part is skipped, fields that do not fit are left out; all of it is counted.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.errors import RawFormatError

Ints = NDArray[np.int64]
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
