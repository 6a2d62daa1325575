"""Encoding of rows as cells of table leaf pages.

Rows of the same shape (the same NULL columns and serial types, and length fields of the same size)
have their bytes at the same positions, so a column is written for all of them at once. Shapes are
encoded one after the other, with their rows in the order of the block; most blocks have one shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.sqlite.pages import format as layout
from unified_prof.sqlite.pages import row_encoder
from unified_prof.sqlite.pages.row_encoder import NULL, NUMBER, TEXT, Field, Fixed, Varying

# Indexes of rows in a block; None: all rows.
_Rows = NDArray[np.int64] | None
_FEW_SHAPES = 1 << 16
# Bytes of values by kind: NULL, numbers, texts; and of their serial types.
_BODY_BYTES = np.array([0, *range(TEXT), *[0] * row_encoder.MAX_VARINT_BYTES])
_TYPE_BYTES = np.array([*[1] * (TEXT + 1), *range(1, row_encoder.MAX_VARINT_BYTES + 1)])


class Cells(Struct, frozen=True):
    """Concatenated cells of a table leaf, not yet divided into pages."""

    flat: NDArray[np.uint8]
    sizes: NDArray[np.int64] | int  # Bytes of each cell.
    payloads: NDArray[np.int64] | int  # Bytes of the record at the end of each cell.


class _Sizes(Struct, frozen=True):
    """Sizes of the parts of each row of a block."""

    payload: NDArray[np.int64] | int
    rowid_width: NDArray[np.int64] | int
    payload_width: NDArray[np.int64] | int
    header: NDArray[np.int64] | int  # Bytes of a record's header, including its length.


def encode(fields: Sequence[Field], rowids: NDArray[np.int64]) -> Cells:
    """Return the cells of a block of rows, at least one.

    `fields` are the table's columns in order; a column that is the row id is NULL.
    """
    sizes = _sizes(fields, rowids)
    flat: NDArray[np.uint8] | None = None
    total = sizes.payload_width + sizes.rowid_width + sizes.payload
    if not isinstance(total, int) and (packed := _packed(fields, rowids, sizes)) is not None:
        return Cells(packed, total, sizes.payload)
    for rows in _shapes(fields, sizes):
        at = 0 if rows is None else int(rows[0])
        pieces = _pieces(fields, rowids, sizes, rows, at)
        if rows is None and len(pieces) == 1 and isinstance(total, int):
            matrix = pieces[0].rendered(len(rowids))
            return Cells(matrix.reshape(-1), total, sizes.payload)
        total = np.broadcast_to(np.asarray(total, np.int64), len(rowids))
        if flat is None:
            ends = np.cumsum(total)
            flat = np.empty(int(ends[-1]), np.uint8)
        places = (ends - total) if rows is None else (ends - total)[rows]
        for piece in pieces:
            piece.put(flat, places)
    assert flat is not None
    return Cells(flat, total, sizes.payload)


def _packed(
    fields: Sequence[Field], rowids: NDArray[np.int64], sizes: _Sizes
) -> NDArray[np.uint8] | None:
    """Return the cells of rows of numbers, made with the largest sizes and then shortened.

    None if the table has texts, or sizes other than those of numbers differ.
    """
    widths = (sizes.header, sizes.rowid_width, sizes.payload_width)
    if not all(isinstance(width, int) for width in widths) or any(
        isinstance(field, Varying) and field.texts is not None for field in fields
    ):
        return None
    piece = _Piece()
    piece.varint(sizes.payload, _int(sizes.payload_width))
    piece.varint(rowids, _int(sizes.rowid_width))
    piece.same(row_encoder.encoded(_int(sizes.header)))
    for field in fields:
        if isinstance(field, Fixed) or isinstance(field.kinds, int):
            _add_type(piece, field, None, 0)
        else:
            types = np.where(field.kinds == NULL, np.uint8(layout.NULL), np.uint8(field.types))
            piece.bytes(types[:, np.newaxis])
    kept = []
    for field in fields:
        if isinstance(field, Fixed):
            piece.same(field.body)
        elif field.bits is not None:
            each = _BODY_BYTES[field.kinds]
            width = int(np.max(each))
            if not width:
                continue  # NULL, 0 and 1 have no bytes besides their types.
            at = piece.number(field.bits << 8 * (width - each) if each.ndim else field.bits, width)
            if each.ndim:
                table = np.arange(width) < np.arange(width + 1)[:, np.newaxis]
                kept.append((at, table.view(f"V{width}")[each, 0]))
    cells = piece.rendered(len(rowids))
    keep = np.ones(cells.shape, np.bool_)
    for at, part in kept:
        np.ndarray(part.shape, part.dtype, keep, at, keep.strides[:1])[:] = part
    return cells[keep]


def _sizes(fields: Sequence[Field], rowids: NDArray[np.int64]) -> _Sizes:
    header: NDArray[np.int64] | int = 0
    body: NDArray[np.int64] | int = 0
    for field in fields:
        if isinstance(field, Fixed):
            header = header + row_encoder.width_of(field.type)
            body = body + len(field.body)
            continue
        header = header + (1 if field.texts is None else _TYPE_BYTES[field.kinds])
        body = body + _BODY_BYTES[field.kinds]
        if field.texts is not None:
            body = body + _one_or_all(field.texts.lengths)
    header = _one_or_all(header)
    # The length of the header includes itself; one byte can state up to 127.
    own = np.where(np.asarray(header) < 127, 1, np.where(np.asarray(header) < 16382, 2, 3))
    header = _one_or_all(header + own)
    payload = _one_or_all(header + body)
    return _Sizes(
        payload=payload,
        rowid_width=_varint_widths(rowids),
        payload_width=_varint_widths(np.atleast_1d(payload)),
        header=header,
    )


def _varint_widths(values: NDArray[np.int64]) -> NDArray[np.int64] | int:
    least, most = row_encoder.width_of(int(values.min())), row_encoder.width_of(int(values.max()))
    return most if least == most else _one_or_all(row_encoder.widths_of(values))


def _one_or_all(values: NDArray[np.int64] | int) -> NDArray[np.int64] | int:
    """Return the common value of an array if all values are equal, else the array."""
    if isinstance(values, int):
        return values
    first = int(values.flat[0])
    return first if bool((values == first).all()) else values


def _shapes(fields: Sequence[Field], sizes: _Sizes) -> Iterator[_Rows]:
    """Yield the rows of each shape, in ascending order."""
    differing = [
        kinds
        for field in fields
        if isinstance(field, Varying) and not isinstance(kinds := field.kinds, int)
    ] + [
        widths for widths in (sizes.rowid_width, sizes.payload_width) if not isinstance(widths, int)
    ]
    if not differing:
        yield None
        return
    codes: NDArray[np.int64] = np.zeros(len(differing[0]), np.int64)
    for values in differing:
        codes *= int(values.max()) + 1
        codes += values
        if int(codes.max()) > _FEW_SHAPES:
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    found = np.bincount(codes)
    known = np.flatnonzero(found)
    if len(known) == 1:
        yield None
        return
    if len(known) <= 8:
        for code in known:
            yield np.flatnonzero(codes == code)
        return
    order = np.argsort(codes, kind="stable")
    yield from np.split(order, np.cumsum(found[known])[:-1])


class _Piece:
    """Bytes at the same positions in all rows of a shape, optionally followed by a text."""

    def __init__(self) -> None:
        self._same = bytearray()
        self._bytes: list[tuple[int, NDArray[np.uint8]]] = []
        self._numbers: list[tuple[int, NDArray[np.int64], int]] = []
        self._varints: list[tuple[int, NDArray[np.int64], int]] = []
        # All texts, with the start and the length of each.
        self.text: tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]] | None = None

    def same(self, value: bytes) -> None:
        """Add bytes that are equal in all rows."""
        self._same += value

    def bytes(self, values: NDArray[np.uint8]) -> None:
        """Add an array of bytes with one row per record."""
        self._bytes.append((len(self._same), values))
        self._same += bytearray(values.shape[1])

    def number(self, values: NDArray[np.int64], width: int) -> int:
        """Add one integer per row; return its position."""
        self._numbers.append((at := len(self._same), values, width))
        self._same += bytes(width)
        return at

    def varint(self, values: NDArray[np.int64] | int, width: int) -> None:
        """Add one varint per row, all of the same width."""
        if isinstance(values, int):
            self.same(row_encoder.encoded(values))
        else:
            self._varints.append((len(self._same), values, width))
            self._same += bytes(width)

    def rendered(self, rows: int) -> NDArray[np.uint8]:
        """Return the bytes of all rows."""
        cells = np.empty((rows, len(self._same)), np.uint8)
        cells[:] = np.frombuffer(self._same, np.uint8)
        for at, values in self._bytes:
            _put_items(cells, at, values)
        for at, integers, width in self._numbers:
            place_integers(cells, at, integers, width)
        for at, integers, width in self._varints:
            row_encoder.place(cells, at, integers, width)
        return cells

    def put(self, flat: NDArray[np.uint8], places: NDArray[np.int64]) -> None:
        """Write the bytes of every row at its position, and advance the positions."""
        if size := len(self._same):
            cells = self.rendered(len(places))
            # One item per row, with the size of the row's bytes: NumPy copies items faster than
            # rows.
            items = np.ndarray((len(flat) - size + 1,), f"V{size}", flat, 0, (1,))
            items[places] = cells.view(f"V{size}")[:, 0]
            places += size
        if self.text is not None:
            source, starts, lengths = self.text
            ends = np.cumsum(lengths)
            index = np.arange(int(ends[-1]))
            before = ends - lengths
            flat[index + np.repeat(places - before, lengths)] = source[
                index + np.repeat(starts - before, lengths)
            ]
            places += lengths


def _pieces(
    fields: Sequence[Field], rowids: NDArray[np.int64], sizes: _Sizes, rows: _Rows, at: int
) -> list[_Piece]:
    """Return the pieces for the rows of one shape; row `at` is one of these rows."""
    piece = _Piece()
    piece.varint(_rows_of(sizes.payload, rows), _int(_rows_of(sizes.payload_width, at)))
    piece.varint(rowids if rows is None else rowids[rows], _int(_rows_of(sizes.rowid_width, at)))
    piece.same(row_encoder.encoded(_int(_rows_of(sizes.header, at))))
    for field in fields:
        _add_type(piece, field, rows, at)
    pieces = [piece]
    for field in fields:
        if isinstance(field, Fixed):
            piece.same(field.body)
            continue
        kind = field.kind_at(at)
        if NUMBER < kind <= TEXT:
            assert field.bits is not None
            piece.number(field.bits if rows is None else field.bits[rows], kind - NUMBER)
        elif kind > TEXT:
            assert field.texts is not None
            lengths = field.texts.lengths
            each = _one_or_all(lengths) if isinstance(field.kinds, int) else lengths
            if isinstance(each, int):
                if not each:
                    continue
                texts = field.texts.flat.reshape(-1, each)
                piece.bytes(texts if rows is None else texts[rows])
                continue
            starts = np.cumsum(lengths) - lengths
            piece.text = (
                field.texts.flat,
                starts if rows is None else starts[rows],
                lengths if rows is None else lengths[rows],
            )
            pieces.append(piece := _Piece())
    return pieces


def _add_type(piece: _Piece, field: Field, rows: _Rows, at: int) -> None:
    """Add a column's serial type to the headers of a shape."""
    if isinstance(field, Fixed):
        piece.same(row_encoder.encoded(field.type))
        return
    kind = field.kind_at(at)
    if kind == NULL:
        piece.same(bytes([layout.NULL]))
    elif kind <= TEXT:
        if isinstance(field.types, int):
            piece.same(bytes([field.types]))
        else:
            types = field.types[:, np.newaxis]
            piece.bytes(types if rows is None else types[rows])
    else:
        assert field.texts is not None
        lengths = field.texts.lengths if rows is None else field.texts.lengths[rows]
        piece.varint(layout.FIRST_TEXT + 2 * lengths, kind - TEXT)


def _rows_of(values: NDArray[np.int64] | int, rows: _Rows | int) -> NDArray[np.int64] | int:
    if isinstance(values, int) or rows is None:
        return values
    found = values[rows]
    return found if isinstance(found, np.ndarray) else int(found)


def _int(value: NDArray[np.int64] | int) -> int:
    assert isinstance(value, int)
    return value


def _put_items(cells: NDArray[np.uint8], at: int, values: NDArray[np.uint8]) -> None:
    """Write rows of bytes into the rows of `cells`, from byte `at` on."""
    rows, width = values.shape
    if width <= 1:
        cells[:, at : at + width] = values
    else:
        values = np.ascontiguousarray(values)
        target = np.ndarray((rows,), f"V{width}", cells, at, (cells.shape[1],))
        target[:] = values.view(f"V{width}")[:, 0]


def place_integers(
    cells: NDArray[np.uint8], at: int, values: NDArray[np.int64], width: int
) -> None:
    """Write the last `width` bytes of each integer into its row of `cells`, from byte `at` on."""
    rows, size = cells.shape
    if width == 1:
        cells[:, at] = values
    elif width in (2, 4, 8):
        np.ndarray((rows,), f">i{width}", cells, at, (size,))[:] = values
    else:
        swapped = values.astype(">i8")
        np.ndarray((rows,), f"V{width}", cells, at, (size,))[:] = np.ndarray(
            (rows,), f"V{width}", swapped, 8 - width, (8,)
        )
