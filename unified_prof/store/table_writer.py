"""Appends batches of columns to one table, as fast as the driver allows.

Rows go in by INSERT statements of many rows each: binding a whole statement's values in one call
is what makes Python as fast as a C program that binds row by row (docs/performance.md). Columns
that are the same in every row of a batch are bound once a statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from unified_prof.errors import UsageError
from unified_prof.store.batches import Constant, Numbers, Objects, Plain, Source, is_text, non_null
from unified_prof.store.layouts import Layout

_ROWS_PER_STATEMENT = 200
_ROWS_PER_BLOCK = 32 * _ROWS_PER_STATEMENT  # converted to Python values at a time
_TEXT_PER_BLOCK = 8_000_000  # characters; more go in row by row, to keep memory flat
_NUMERIC = ("INT", "NUMERIC", "REAL", "DOUB", "FLOA")


class TableWriter:
    """One table of the file being written; creating it is the first thing it does."""

    def __init__(self, connection: Connection, layout: Layout, *, parameter_limit: int) -> None:
        self.layout = layout
        self.rows = 0
        self._connection = connection
        self._columns = layout.spec.columns
        self._rows_per_statement = max(
            1, min(_ROWS_PER_STATEMENT, parameter_limit // len(self._columns))
        )
        marks = ", ".join("?" * len(self._columns))
        self._one_row = f'INSERT INTO "{layout.spec.name}" VALUES ({marks})'
        self._many_rows: dict[tuple[int, ...], str] = {}
        self._indexes = [
            _Index(connection, name, sql, layout.index_columns[name])
            for name, sql in layout.spec.indexes
        ]
        connection.exec_driver_sql(layout.spec.create_sql)

    def append(self, sources: Mapping[str, Source], rows: int) -> None:
        """Append `rows` rows; columns without a source are NULL.

        Args:
            sources: Newest column name -> its values.
            rows: Number of rows, at least 1.

        Raises:
            UsageError: text or NULL where the table cannot have it.
        """
        ordered = [sources.get(name, Constant(None)) for name in self.layout.sources]
        self._refuse_impossible(ordered, rows)
        by_file_name = dict(zip(self.layout.spec.column_names, ordered, strict=True))
        for index in self._indexes:
            index.before(by_file_name, rows)
        self._insert([_reduced(source, rows) for source in ordered], rows)
        self.rows += rows

    def finish(self) -> None:
        """Create the indexes that were cheaper to leave until now."""
        for index in self._indexes:
            index.finish()

    def _refuse_impossible(self, ordered: list[Source], rows: int) -> None:
        for column, source in zip(self._columns, ordered, strict=True):
            where = f"{self.layout.table}.{column.name}"
            if is_text(source) and any(word in column.type.upper() for word in _NUMERIC):
                raise UsageError(f"{where} is {column.type}, found text (text is interned first)")
            # SQLite would make up a number for a NULL in an INTEGER PRIMARY KEY.
            if column.primary_key and non_null(source, rows) < rows:
                raise UsageError(f"{where} is the key of its table, found NULL")

    def _insert(self, ordered: list[Source], rows: int) -> None:
        size = self._rows_per_statement
        start = 0
        if rows >= size:
            constant = tuple(j for j, s in enumerate(ordered) if isinstance(s, Constant))
            varying = [source for source in ordered if not isinstance(source, Constant)]
            statement = self._statement(constant)
            head = [source.value for source in ordered if isinstance(source, Constant)]
            whole = rows - rows % size
            while start < whole:
                stop = min(start + _ROWS_PER_BLOCK // size * size, whole)
                parts = [source.part(start, stop) for source in varying]
                if _text_size(varying, parts) > _TEXT_PER_BLOCK:
                    self._insert_one_by_one(ordered, start, stop)
                else:
                    self._insert_block(statement, head, parts, stop - start)
                start = stop
        if start < rows:
            self._insert_one_by_one(ordered, start, rows)

    def _insert_block(
        self, statement: str, head: list[Plain], parts: list[list[Any]], rows: int
    ) -> None:
        """Insert whole statements: `head` once, then the rows of `parts` one after the other."""
        width = len(parts)
        values: list[object] = [None] * (width * rows)
        for j, part in enumerate(parts):
            values[j::width] = part
        step = width * self._rows_per_statement
        execute = self._connection.exec_driver_sql
        for first in range(0, len(values), step):
            execute(statement, (*head, *values[first : first + step]))

    def _insert_one_by_one(self, ordered: list[Source], start: int, stop: int) -> None:
        columns = [
            repeat(source.value, stop - start)
            if isinstance(source, Constant)
            else source.part(start, stop)
            for source in ordered
        ]
        rows = zip(*columns, strict=True)
        while batch := list(islice(rows, _ROWS_PER_STATEMENT)):
            self._connection.exec_driver_sql(self._one_row, batch)

    def _statement(self, constant: tuple[int, ...]) -> str:
        """Return the statement for one full set of rows.

        The constant columns are its first parameters; every row refers to them by number.
        """
        text = self._many_rows.get(constant)
        if text is None:
            numbers = {column: number for number, column in enumerate(constant, start=1)}
            following = len(constant)
            rows = []
            for _ in range(self._rows_per_statement):
                marks = []
                for column in range(len(self._columns)):
                    number = numbers.get(column)
                    if number is None:
                        number = following = following + 1
                    marks.append(f"?{number}")
                rows.append(f"({','.join(marks)})")
            text = f'INSERT INTO "{self.layout.spec.name}" VALUES {",".join(rows)}'
            self._many_rows[constant] = text
        return text


class _Index:
    """One index, made at the cheaper moment.

    Rows that come in the index's order cost half as much with the index in place as indexing
    them afterwards; rows out of order cost several times more. So it is there from the first
    batch on, as long as every batch goes on where the last one ended.
    """

    def __init__(
        self, connection: Connection, name: str, create_sql: str, columns: tuple[str, ...]
    ) -> None:
        self._connection = connection
        self._name = name
        self._create_sql = create_sql
        self._columns = columns
        self._last: tuple[int, ...] | None = None
        self._exists = False
        self._waits = False

    def before(self, sources: Mapping[str, Source], rows: int) -> None:
        """Prepare for a batch that is about to be appended."""
        if self._waits:
            return
        keys = [_integers(sources[name], rows) for name in self._columns]
        self._waits = not self._follows(keys)
        if self._waits and self._exists:
            self._connection.exec_driver_sql(f'DROP INDEX "{self._name}"')
            self._exists = False
        elif not self._waits and not self._exists:
            self._connection.exec_driver_sql(self._create_sql)
            self._exists = True

    def finish(self) -> None:
        """Create the index if it is not there yet."""
        if not self._exists:
            self._connection.exec_driver_sql(self._create_sql)

    def _follows(self, keys: list[NDArray[np.int64] | None]) -> bool:
        """Tell whether the batch is sorted and begins where the last one ended."""
        known = [key for key in keys if key is not None]
        if len(known) < len(keys):
            return False
        first = tuple(int(key[0]) for key in known)
        if self._last is not None and first < self._last:
            return False
        self._last = tuple(int(key[-1]) for key in known)
        return _is_sorted(known)


def _is_sorted(keys: list[NDArray[np.int64]]) -> bool:
    """Tell whether rows come in the order of the first key, then of the second, and so on."""
    undecided = np.ones(len(keys[0]) - 1, np.bool_)
    for key in keys:
        if bool(np.any(undecided & (key[1:] < key[:-1]))):
            return False
        undecided &= key[1:] == key[:-1]
        if not undecided.any():
            break
    return True


def _integers(source: Source, rows: int) -> NDArray[np.int64] | None:
    if isinstance(source, Constant) and isinstance(source.value, int):
        return np.broadcast_to(np.int64(source.value), rows)
    if isinstance(source, Numbers) and source.array.dtype == np.int64:
        return source.array
    return None


def _reduced(source: Source, rows: int) -> Source:
    """Return a column whose integers are all the same as a constant."""
    if rows >= _ROWS_PER_STATEMENT and isinstance(source, Numbers):
        array = source.array
        first = array[0]
        if array.dtype == np.int64 and array[-1] == first and bool((array == first).all()):
            return Constant(int(first))
    return source


def _text_size(sources: list[Numbers | Objects], parts: list[list[Any]]) -> int:
    """Return the number of characters in the parts that may hold text."""
    return sum(
        len(value)
        for source, part in zip(sources, parts, strict=True)
        if is_text(source)
        for value in part
        if isinstance(value, str)
    )
