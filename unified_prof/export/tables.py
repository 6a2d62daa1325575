"""Export of a report's tables to Parquet or Arrow files.

Ids of strings and enums are replaced by their texts. With `ids` they stay numbers, and the
dictionary tables are written too. Tables are read and written in batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Bools
from unified_prof.base import arrow_files
from unified_prof.errors import UsageError
from unified_prof.export.files import OutputFiles, Written
from unified_prof.schema import catalogue, msprof
from unified_prof.sqlite.reader import Report
from unified_prof.sqlite.statements import quoted

# Rows per row group; this many are in memory at a time.
ROWS = 1 << 17
_KEPT_TEXTS = 1 << 17
_ASKED_AT_ONCE = 500
_STRINGS = "STRING_IDS"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Values that were written as null: of another type than their column, or ids without text."""

    table: str
    column: str
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export of tables: files, and values that were written as null."""

    files: Sequence[Written]
    left_out: Sequence[LeftOut]

    def fields(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Yield the result as lines of text."""
        for file in self.files:
            yield f"  {file.name}  rows: {file.entries:,}"
        for one in self.left_out:
            yield f"  null in {one.table}.{one.column}: {one.count:,}, {one.why}"


def write(
    report: Report,
    directory: Path,
    kind: str,
    *,
    only: Collection[str] = (),
    ids: bool = False,
    force: bool = False,
) -> Exported:
    """Write tables of an open report into an existing directory, one file each, or none at all.

    `kind` is `parquet` or `arrow` (the IPC file format, which Feather 2 is); an empty `only`
    selects all tables that have rows. If `ids`, columns of ids stay numbers. Raises UsageError if
    there is no such table, or pyarrow is not installed, StoreError if the report is damaged, and
    OutputError if a file exists or cannot be written.
    """
    pyarrow = arrow_files.pyarrow()
    if unknown := [table for table in only if table not in report.tables]:
        raise UsageError(
            f"{report.path} has no table {unknown[0]}",
            hint=f"available: {', '.join(report.tables)}",
            slug="no-such-table",
        )
    lost: Counter[tuple[str, str, str]] = Counter()  # Table, column, reason.
    texts = _Texts(report)
    with OutputFiles(directory, force=force) as files:
        for table in only or report.tables:
            if not only and not ids and _is_dictionary(table):
                continue
            source = _Table(pyarrow, report, table, texts, lost, ids=ids)
            parts = source.parts()
            first = next(parts, None)
            if first is None and not only:
                continue
            with (
                files.file(f"{table}.{kind}") as file,
                arrow_files.opened(kind, str(file.partial), source.schema) as writer,
            ):
                for part in chain([] if first is None else [first], parts):
                    writer.write(part)
                    file.entries += part.num_rows
            source.count_nulls()
    if not files.written:
        raise UsageError(f"{report.path} has no table with rows", slug="nothing-to-export")
    left_out = [LeftOut(table, name, count, why) for (table, name, why), count in lost.items()]
    return Exported(files.written, left_out)


def _is_dictionary(table: str) -> bool:
    return table == _STRINGS or table.startswith("ENUM_")


class _Table:
    """Reader of one table as typed record batches."""

    def __init__(
        self,
        pyarrow: Any,
        report: Report,
        table: str,
        texts: _Texts,
        lost: Counter[tuple[str, str, str]],
        *,
        ids: bool,
    ) -> None:
        self._pyarrow, self._report, self.table = pyarrow, report, table
        self._texts, self._lost = texts, lost
        refers = {} if ids else _references(report).get(table, {})
        self._refers = {name: to for name, to in refers.items() if to in report.tables}
        self._types = {name: _type(declared) for name, declared in _declared(report, table)}
        # Columns of times that are declared as text.
        self._in_digits = {one for one in _times(table) if self._types.get(one) == "text"}
        for name in self._in_digits:
            self._types[name] = "integer"
        self._missing: set[str] = set()
        types = {
            "integer": pyarrow.int64(),
            "real": pyarrow.float64(),
            "text": pyarrow.string(),
            "blob": pyarrow.binary(),
        }
        self.schema = pyarrow.schema(
            [
                (name, types["text" if name in self._refers else kind])
                for name, kind in self._types.items()
            ]
        )

    def parts(self) -> Iterator[Any]:
        """Yield the rows as record batches; nothing if the table is empty."""
        for columns in self._columns():
            arrays = [self._array(one.name, columns[one.name], one.type) for one in self.schema]
            yield self._pyarrow.record_batch(arrays, schema=self.schema)

    def count_nulls(self) -> None:
        """Count the values that their column type cannot hold."""
        allowed = {"integer": ("integer",), "real": ("integer", "real")}
        for name in sorted(self._missing):
            kinds = ", ".join(f"'{one}'" for one in allowed[self._types[name]])
            value = self._expression(name)
            ((count,),) = self._report.rows(
                f"SELECT count(*) FROM {quoted(self.table)}"
                f" WHERE {quoted(name)} IS NOT NULL AND typeof({value}) NOT IN ({kinds})"
            )
            if count:
                self._lost[self.table, name, "not a number, in a column of numbers"] += count

    def _columns(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the columns in batches of about ROWS rows."""
        if set(self._types.values()) == {"integer"}:
            wanted = {name: self._expression(name) for name in self._types}
            yield from _rebatch(self._report.batches(self.table, wanted))
            return
        chosen = ", ".join(f"{self._expression(name)} AS {quoted(name)}" for name in self._types)
        yield from self._report.parts(f"SELECT {chosen} FROM {quoted(self.table)}", rows=ROWS)

    def _expression(self, name: str) -> str:
        column = quoted(name)
        if name not in self._in_digits:
            return column
        return f"iif({column} GLOB '[0-9]*', CAST({column} AS INTEGER), NULL)"

    def _array(self, name: str, values: NDArray[Any], kind: Any) -> Any:
        pyarrow = self._pyarrow
        if name in self._refers:
            texts, number, unknown = self._texts.lookup(self._refers[name], values)
            if unknown:
                why = f"ids without a row in {self._refers[name]}"
                self._lost[self.table, name, why] += unknown
            return pyarrow.array(texts, kind).take(pyarrow.array(number))
        declared = self._types[name]
        if declared in ("integer", "real"):
            return self._numbers(name, values, int if declared == "integer" else float, kind)
        shown = [_as(declared, value) for value in np.ma.getdata(values).tolist()]
        return pyarrow.array(shown, kind, mask=_absent(values))

    def _numbers(self, name: str, values: NDArray[Any], number: type, kind: Any) -> Any:
        array = self._pyarrow.array
        absent = _absent(values)
        data = np.ma.getdata(values)
        if data.dtype == np.int64:
            if number is int:
                absent |= data == MISSING
            if absent.any():
                self._missing.add(name)
            return array(data if number is int else data.astype(np.float64), mask=absent)
        if data.dtype == np.float64 and number is float:
            return array(data, mask=absent | np.isnan(data))
        self._missing.add(name)
        good = (int,) if number is int else (int, float)
        return array(
            [number(one) if type(one) in good and _fits(one) else None for one in data.tolist()],
            kind,
        )


def _fits(value: float) -> bool:
    return -(2.0**63) <= value < 2.0**63


def _as(declared: str, value: Any) -> Any:
    """Convert a value to the declared type of its column, text or bytes."""
    if value is None:
        return None
    if declared == "blob":
        return value if isinstance(value, bytes) else str(value).encode()
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _absent(values: NDArray[Any]) -> Bools:
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.getmaskarray(values).copy()
    if values.dtype == object:
        return np.array([one is None for one in values.tolist()], bool)
    return np.zeros(len(values), bool)


def _rebatch(pieces: Iterator[dict[str, NDArray[Any]]]) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield batches of ROWS rows from batches of any size; the last one may be smaller."""
    waiting: list[dict[str, NDArray[Any]]] = []
    rows = 0
    for piece in pieces:
        waiting.append(piece)
        rows += len(next(iter(piece.values())))
        if rows >= ROWS:
            whole = _concatenate(waiting)
            first = 0
            while rows - first >= ROWS:
                yield {name: one[first : first + ROWS] for name, one in whole.items()}
                first += ROWS
            waiting, rows = [{name: one[first:] for name, one in whole.items()}], rows - first
    if rows:
        yield _concatenate(waiting)


def _concatenate(pieces: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([one[name] for one in pieces]) for name in pieces[0]}


class _Texts:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._known: dict[tuple[str, int], str | None] = {}

    def lookup(
        self, table: str, ids: NDArray[Any]
    ) -> tuple[list[str | None], NDArray[np.intp], int]:
        """Return the distinct texts, the index of each id's text, and the number of unknown ids."""
        absent = _absent(ids)
        data: NDArray[Any] = np.ma.getdata(ids)
        if data.dtype != np.int64:
            values = data.tolist()
            data = np.array([one if type(one) is int and _fits(one) else MISSING for one in values])
        data = np.where(absent, MISSING, data)
        distinct, number, counts = np.unique(data, return_inverse=True, return_counts=True)
        self._fetch(table, distinct.tolist())
        found = [self._known.get((table, one)) for one in distinct.tolist()]
        lost = sum(
            count
            for one, text, count in zip(distinct.tolist(), found, counts.tolist(), strict=True)
            if text is None and one != MISSING
        )
        return found, number, lost

    def _fetch(self, table: str, ids: list[int]) -> None:
        if len(self._known) > _KEPT_TEXTS:
            self._known.clear()
        wanted = [one for one in ids if (table, one) not in self._known and one != MISSING]
        text = "value" if table == _STRINGS else "name"
        for first in range(0, len(wanted), _ASKED_AT_ONCE):
            some = wanted[first : first + _ASKED_AT_ONCE]
            marks = ", ".join("?" * len(some))
            query = f"SELECT id, {text} FROM {quoted(table)} WHERE id IN ({marks})"
            for number, value in self._report.rows(query, some):
                self._known[table, number] = None if value is None else str(_as("text", value))


def _declared(report: Report, table: str) -> list[tuple[str, str]]:
    """Return name and declared type of a table's columns in the newest revision."""
    declared = {
        str(name): str(kind or "")
        for _, name, kind, *_ in report.rows(f"PRAGMA main.table_info({quoted(table)})")
    }
    newest = catalogue.load(report.family, "latest").tables | catalogue.extension_tables()
    if table in newest:
        declared = {one.name: one.type for one in newest[table].columns} | {
            name: kind
            for name, kind in declared.items()
            if name in report.columns(f"SELECT * FROM {quoted(table)} LIMIT 0")
        }
    return list(declared.items())


def _type(declared: str) -> str:
    """Return the type of values that a declared column type means, by SQLite's affinity rules."""
    text = declared.upper()
    if "INT" in text:
        return "integer"
    if any(one in text for one in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in text:
        return "blob"
    return "real"


def _references(report: Report) -> dict[str, dict[str, str]]:
    """Return the columns that hold ids of texts: table -> column -> dictionary table."""
    if report.family != catalogue.MSPROF:
        return {}
    revision = report.revision or catalogue.resolve(catalogue.MSPROF, "latest")
    found: dict[str, dict[str, str]] = {}
    for one in msprof.references(revision):
        if _is_dictionary(one.target_table):
            found.setdefault(one.table, {})[one.column] = one.target_table
    return found


@cache
def _times(table: str) -> frozenset[str]:
    """Return the columns that hold timestamps, regardless of their declared type."""
    return msprof.times(table)
