"""Integer columns of big tables, straight from SQLite into NumPy.

A row of a Python cursor costs a tuple and an object a value. Here SQLite itself prints a column of
16,384 rows as one text, and NumPy parses that: half the time of `np.fromiter` over a cursor. All
but the parsing happens outside Python's global lock, so a big table is read by two threads.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read.source import Source
from unified_prof.errors import StoreError
from unified_prof.store.reader import open_report

MISSING = np.iinfo(np.int64).min
"""Stands for NULL and for a value that is no integer. No column of a report means this number."""

_CHUNK_ROWS = 16_384
_TWO_READERS_FROM_ROWS = 1_000_000
_INT32 = 1 << 31
# A character that no text among the values has: `1,2` beside a NULL would pass for two numbers.
# Counting the values instead costs three times as much.
_SEPARATOR = "\x1f"
_DIGITS = b"0123456789-" + _SEPARATOR.encode()

Columns = list[NDArray[Any]]


def fetch(
    source: Source, table: str, columns: Mapping[str, str], *, narrow: Collection[str] = ()
) -> dict[str, NDArray[np.int64]]:
    """Return integer expressions over all rows of a table, in the file's order of rows.

    Args:
        source: the open report.
        table: a table of the newest schema; one that the file lacks has no rows.
        columns: name in the result -> SQL expression over the table's columns.
        narrow: columns that may come as int32 where their values allow it, to save memory.
    """
    if table not in source.tables:
        return {name: np.empty(0, np.int64) for name in columns}
    expressions = list(columns.values())
    small = [name in narrow for name in columns]
    if not _is_plain(source, table, expressions):
        return dict(zip(columns, _through_view(source, table, expressions, small), strict=True))
    chunks = _chunks(source, table)
    half = len(chunks) // 2
    if len(chunks) * _CHUNK_ROWS < _TWO_READERS_FROM_ROWS or (os.cpu_count() or 1) < 2:
        half = 0
    with ThreadPoolExecutor(max_workers=1) as pool:
        other = pool.submit(_read_apart, source, table, expressions, small, chunks[:half])
        mine = [_read(source, table, expressions, small, chunk) for chunk in chunks[half:]]
        parts = other.result() + mine
    result = {}
    for index, name in enumerate(columns):
        pieces = [part[index] for part in parts]
        for part in parts:
            part[index] = _NOTHING  # so that pieces and whole of only one column exist at a time
        result[name] = np.concatenate(pieces) if pieces else _NOTHING
    return result


@dataclass(frozen=True, slots=True)
class Window:
    """Where the rows of one step of `windows` stand, for a query of one's own."""

    sql: str
    """What follows FROM."""
    values: tuple[int, ...]


def windows(
    source: Source, table: str, columns: Mapping[str, str]
) -> Iterator[tuple[dict[str, NDArray[np.int64]], Window]]:
    """Yield integer expressions of some thousand rows at a time, for tables too big to hold.

    A table that needs a view comes in one piece.
    """
    expressions = list(columns.values())
    small = [False] * len(expressions)
    if not _is_plain(source, table, expressions):
        whole = _through_view(source, table, expressions, small)
        yield dict(zip(columns, whole, strict=True)), Window(f'"{table}"', ())
        return
    for chunk in _chunks(source, table):
        found = _read(source, table, expressions, small, chunk)
        window = Window(f'main."{table}" WHERE rowid BETWEEN ? AND ?', chunk)
        yield dict(zip(columns, found, strict=True)), window


_NOTHING = np.empty(0, np.int64)


def _is_plain(source: Source, table: str, expressions: Sequence[str]) -> bool:
    """Whether the table as it lies in the file has row ids and all that the expressions name.

    Where it has, the view that gives an older table the newest shape need not be asked.
    """
    try:
        source.rows(f'SELECT rowid, {", ".join(expressions)} FROM main."{table}" LIMIT 0')
    except StoreError:
        return False
    return True


def _chunks(source: Source, table: str) -> list[tuple[int, int]]:
    """Return ranges of row ids that together hold every row; ids may be sparse."""
    ((last,),) = source.rows(f'SELECT max(rowid) FROM main."{table}"')
    result: list[tuple[int, int]] = []
    after = np.iinfo(np.int64).min
    while last is not None and after < last:
        query = f'SELECT min(rowid) FROM main."{table}" WHERE rowid > ?'
        first = int(source.rows(query, (int(after),))[0][0])
        after = min(first + _CHUNK_ROWS - 1, last)
        result.append((first, after))
    return result


def _read_apart(
    source: Source,
    table: str,
    expressions: Sequence[str],
    small: Sequence[bool],
    chunks: Sequence[tuple[int, int]],
) -> list[Columns]:
    """Read chunks over a connection of this thread's own."""
    if not chunks:
        return []
    with open_report(source.path, any_revision=True) as own:
        return [_read(own, table, expressions, small, chunk) for chunk in chunks]


def _read(
    source: Source,
    table: str,
    expressions: Sequence[str],
    small: Sequence[bool],
    chunk: tuple[int, int],
) -> Columns:
    where = f'FROM main."{table}" WHERE rowid BETWEEN ? AND ?'
    printed = ", ".join(f"CAST(group_concat({one}, '{_SEPARATOR}') AS BLOB)" for one in expressions)
    ((count, *texts),) = source.rows(f"SELECT count(*), {printed} {where}", chunk)
    result = []
    for text, expression, may_be_small in zip(texts, expressions, small, strict=True):
        values = _parse(text, count)
        if values is None:
            # Something else than integers is among them.
            rows = source.rows(f"SELECT {_integer_or_missing(expression)} {where}", chunk)
            values = np.array(rows, np.int64).reshape(-1)
        result.append(_narrowed(values, may_be_small=may_be_small))
    return result


def _parse(text: bytes | None, count: int) -> NDArray[np.int64] | None:
    """Return the numbers in `text`, or None if it is not `count` integers."""
    if text is None or text.translate(None, _DIGITS):
        return None
    if b"-" in text and (b"-\x1f" in text or text.endswith(b"-")):
        return None  # NumPy would take a lone sign for 0
    try:
        values = np.fromstring(text, np.int64, sep=_SEPARATOR)
    except ValueError:  # an empty text between two others
        return None
    return values if len(values) == count else None


def _through_view(
    source: Source, table: str, expressions: Sequence[str], small: Sequence[bool]
) -> Columns:
    """Fetch from a view, which lays the newest shape over an older table."""
    select = ", ".join(
        f"{_integer_or_missing(one)} AS c{index}" for index, one in enumerate(expressions)
    )
    found = source.columns(f'SELECT {select} FROM "{table}"')
    result = []
    for index, may_be_small in enumerate(small):
        result.append(_narrowed(found.pop(f"c{index}"), may_be_small=may_be_small))
    return result


def _narrowed(values: NDArray[np.int64], *, may_be_small: bool) -> NDArray[Any]:
    if may_be_small and values.min(initial=0) >= -_INT32 and values.max(initial=0) < _INT32:
        return values.astype(np.int32)
    return values


def _integer_or_missing(expression: str) -> str:
    # The smallest integer has no literal of its own in SQL.
    return f"iif(typeof({expression}) = 'integer', {expression}, {MISSING + 1} - 1)"
