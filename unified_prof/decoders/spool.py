"""External sorting of rows, and synchronized reading of several sorted spools in windows.

Joins need rows in a different order than the files: host events by time, launches and kernels by
identity. A spool collects rows up to a limit, sorts them and writes them to a temporary file as a
run; `windows` merges the runs block by block. Memory use does not grow with the recording.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from io import BufferedRandom
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints, order_of_keys
from unified_prof.errors import OutputError

Rows = NDArray[Any]  # A structured array: one field per column.


def row_type(fields: str, **structured: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of rows with fields such as "key u8, words 6u2, is_end ?".

    `structured` contains the types of fields with nested records, by the name used in `fields`.
    """
    pairs = (field.split() for field in fields.split(","))
    return np.dtype([(name, structured.get(kind, kind)) for name, kind in pairs])


def selected(rows: Rows, places: NDArray[Any]) -> Rows:
    """Return the rows at the given indexes, or in a mask.

    NumPy copies structured rows field by field, which is ten times slower than copying bytes.
    """
    if places.dtype == np.bool_:
        places = np.flatnonzero(places)
    return rows.view(f"V{rows.dtype.itemsize}").take(places).view(rows.dtype)


def copied(rows: Rows) -> Rows:
    """Return a copy of rows, made by copying bytes."""
    return rows.view(f"V{rows.dtype.itemsize}").copy().view(rows.dtype)


def stacked(parts: Sequence[Rows]) -> Rows:
    """Concatenate the rows of all parts (at least one)."""
    if len(parts) == 1:
        return parts[0]
    dtype = parts[0].dtype
    return np.concatenate([part.view(f"V{dtype.itemsize}") for part in parts]).view(dtype)


def put(rows: Rows, name: str, places: Ints, records: Rows) -> None:
    """Set a structured field of some rows by copying bytes.

    `places` are distinct ascending indexes of rows, with one record each.
    """
    assert rows.dtype.fields is not None
    dtype, offset = rows.dtype.fields[name][:2]
    as_bytes = f"V{dtype.itemsize}"
    target = np.ndarray((len(rows),), as_bytes, rows, offset, rows.strides)
    target[places if len(places) < len(rows) else slice(None)] = records.view(as_bytes)


class Scratch:
    """Temporary binary file that is created on the first `append`."""

    def __init__(self) -> None:
        self.size = 0
        self._file: BufferedRandom | None = None

    def append(self, data: Any) -> int:
        """Append bytes and return their offset. Raises OutputError if the disk is full."""
        place = self.size
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="uprof-")  # noqa: SIM115
            self.size += self._file.write(data)
        except OSError as err:
            raise OutputError(
                f"cannot write temporary rows to {tempfile.gettempdir()}: {err.strerror or err}",
                hint="free disk space there, or set TMPDIR to another directory",
                slug="no-temporary-space",
            ) from err
        return place

    def read(self, place: int, size: int) -> bytes:
        """Return `size` bytes at an offset."""
        if not size or self._file is None:
            return b""
        self._file.seek(place)
        return self._file.read(size)

    def fill(self, place: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes at an offset."""
        if self._file is not None:
            self._file.seek(place)
            self._file.readinto(buffer)

    def text(self, place: int, size: int) -> str | None:
        """Return the string of `size` bytes at an offset, None if `size` is 0."""
        return self.read(place, size).decode("utf-8", "replace") if size else None

    def close(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()


RUN_ROWS = 1 << 18


class _Run(Struct, frozen=True):
    """Sorted rows in a file."""

    rows: int
    first_key: int
    place: int  # Offset of the rows, if they were not written by columns.
    constant: Rows | None = None  # One row with the values of constant columns.
    places: dict[str, int] = field(default_factory=dict)  # Offset of each of the other columns.


def _is_constant(column: NDArray[Any]) -> bool:
    if column.ndim > 1 or column.itemsize not in (1, 2, 4, 8):
        return False
    bits = column.view(f"u{column.itemsize}")  # NaN is not equal to itself
    return bool((bits == bits[0]).all())


class Spool:
    """Rows of one dtype that are read back sorted by a 64-bit integer field.

    Rows with equal keys keep the order in which they were appended. Use as a context manager; the
    temporary file is removed on exit. `run_rows` rows are collected before they are sorted and
    written. If `by_column`, columns are written separately and constant ones omitted, which is 1.5
    times slower unless there are many constant columns.
    """

    def __init__(
        self, dtype: np.dtype[Any], key: str, *, run_rows: int = RUN_ROWS, by_column: bool = False
    ) -> None:
        self.dtype, self._by_column, self.key = dtype, by_column, key
        self.rows = 0
        self._run_rows = run_rows
        self._pending: list[Rows] = []
        self._pending_rows = 0
        self._scratch = Scratch()
        self._runs: list[_Run] = []

    def append(self, rows: Rows) -> None:
        """Add a batch of rows."""
        if len(rows):
            self.rows += len(rows)
            self._pending.append(rows)
            self._pending_rows += len(rows)
            if self._pending_rows >= self._run_rows:
                self._write_run()

    def _sorted_pending(self) -> Rows:
        rows = stacked(self._pending) if self._pending else np.empty(0, dtype=self.dtype)
        self._pending, self._pending_rows = [], 0
        order = order_of_keys(rows[self.key])
        return rows if order is None else selected(rows, order)

    def _write_run(self) -> None:
        if self._by_column:
            self._write_columns()
            return
        rows = self._sorted_pending()
        place = self._scratch.append(rows.data)
        self._runs.append(_Run(len(rows), int(rows[self.key][0]), place))

    def _write_columns(self) -> None:
        """Write the pending rows column by column, without constant columns."""
        keys = np.concatenate([part[self.key] for part in self._pending])
        order = order_of_keys(keys)
        constant = np.zeros(1, self.dtype)
        places: dict[str, int] = {}
        for name in self.dtype.names or ():
            # With an explicit output array, because NumPy would remove the padding of the dtype.
            column = np.empty(len(keys), self.dtype[name])
            np.concatenate([part[name] for part in self._pending], out=column)
            if _is_constant(column):
                constant[name] = column[0]
            else:
                column = column if order is None else column[order]
                places[name] = self._scratch.append(column.data)
        first = int(keys[0] if order is None else keys[order[0]])
        self._runs.append(_Run(len(keys), first, 0, constant, places))
        self._pending, self._pending_rows = [], 0

    def cursors(self) -> list[Cursor]:
        """Return a cursor for each run; no rows may be appended afterwards."""
        if not self._runs:
            if self._pending:
                self._pending = [self._sorted_pending()]
            return [Cursor(self, rows) for rows in self._pending if len(rows)]
        if self._pending:
            self._write_run()
        nothing = np.empty(0, dtype=self.dtype)
        return [Cursor(self, nothing, run) for run in self._runs]

    def read(self, run: _Run, first: int, count: int) -> Rows:
        """Return `count` rows of a run, starting at row `first`."""
        if run.constant is None:
            rows = np.empty(count, self.dtype)
            self._scratch.fill(run.place + first * self.dtype.itemsize, rows.view(np.uint8).data)
            return rows
        as_bytes = f"V{self.dtype.itemsize}"
        rows = np.empty(count, as_bytes)
        rows[:] = run.constant.view(as_bytes)
        rows = rows.view(self.dtype)
        for name, place in run.places.items():
            dtype = self.dtype[name]
            read = self._scratch.read(place + first * dtype.itemsize, count * dtype.itemsize)
            rows[name] = np.frombuffer(read, dtype)
        return rows

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._pending = []
        self._scratch.close()


class Cursor:
    """Position in one sorted run; one block of the run is in memory."""

    def __init__(self, spool: Spool, block: Rows, run: _Run | None = None) -> None:
        self._spool, self._block, self._run = spool, block, run
        self._first = 0
        self._end = 0 if run is None else run.rows
        # Smallest key that was not taken yet; invalid if finished.
        self.next_key = int(block[spool.key][0]) if run is None else run.first_key

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return self._spool.dtype.itemsize

    @property
    def exhausted(self) -> bool:
        """True if all remaining rows are in memory."""
        return self._first >= self._end

    @property
    def finished(self) -> bool:
        """True if all rows were taken."""
        return self.exhausted and not len(self._block)

    @property
    def last_key(self) -> int:
        """Largest key in memory; requires rows in memory."""
        return int(self._block[self._spool.key][-1])

    def __len__(self) -> int:
        return len(self._block)

    def load(self, rows: int) -> None:
        """Read rows until at least `rows` are in memory or the run ends."""
        missing = min(rows - len(self._block), self._end - self._first)
        if missing > 0 and self._run is not None:
            more = self._spool.read(self._run, self._first, missing)
            self._first += missing
            self._block = stacked((self._block, more)) if len(self._block) else more

    def trim(self, rows: int) -> None:
        """Drop rows in memory beyond `rows`, if they can be read again."""
        if self._end and len(self._block) > rows:
            self._first -= len(self._block) - rows
            self._block = self._block[:rows]
        if len(self._block):
            self._block = copied(self._block)  # a view would keep the taken rows in memory

    def take_below(self, key: int | None) -> Rows:
        """Remove and return the rows in memory with keys below `key` (None: all rows)."""
        keys = self._block[self._spool.key]
        cut = len(keys)
        if key is not None:
            cut = int(np.searchsorted(keys, keys.dtype.type(key), side="left"))
        taken, self._block = self._block[:cut], self._block[cut:]
        if not len(self._block):
            # An empty view would keep the complete block in memory.
            self._block = np.empty(0, dtype=self._spool.dtype)
            self.load(1)
        if len(self._block):
            self.next_key = int(self._block[self._spool.key][0])
        return taken


WINDOW_ROWS = 1 << 15
_MIN_BLOCK_ROWS = 256
_RUNS_EXPECTED = 8  # Number of overlapping runs that is assumed for the first window.
_HELD_BYTES = 16 << 20  # Maximum bytes of all runs in memory between windows.
_LIMIT_WINDOWS = 4  # Maximum number of windows in memory at a time.


def windows(*spools: Spool, window_rows: int = WINDOW_ROWS) -> Iterator[tuple[Rows, ...]]:
    """Read several spools together; each window contains all their rows in one range of keys.

    For each window, only runs with keys in its range are read.

    Yields:
        One sorted array per spool. Keys are ascending; no key appears in two windows.
    """
    groups = [spool.cursors() for spool in spools]
    live = [cursor for group in groups for cursor in group]
    fewest = min(_MIN_BLOCK_ROWS, window_rows)
    wanted = max(fewest, window_rows // min(_RUNS_EXPECTED, max(1, len(live))))
    limit = _LIMIT_WINDOWS * window_rows
    while live:
        live.sort(key=lambda cursor: cursor.next_key)
        bound, active = _activate(live, wanted, window_rows, limit)
        taken = tuple(
            _merge([cursor.take_below(bound) for cursor in group if cursor in active], spool)
            for group, spool in zip(groups, spools, strict=True)
        )
        count = sum(len(rows) for rows in taken)
        if count:
            yield taken
        wanted = _next_wanted(count, len(active), window_rows, fewest) if count else 2 * wanted
        for cursor in active:
            cursor.trim(max(fewest, _HELD_BYTES // (len(live) * cursor.row_bytes)))
        # If many runs overlap everywhere, read fewer rows of more runs.
        limit = 2 * limit if count < window_rows // 8 else _LIMIT_WINDOWS * window_rows
        live = [cursor for cursor in live if not cursor.finished]


def _next_wanted(count: int, active: int, window_rows: int, fewest: int) -> int:
    """Return the number of rows to read from each run: twice the number used in the last window.

    If the keys of runs are far apart (several threads), the windows alternate between runs.
    """
    return max(fewest, min(window_rows, 2 * count) // active)


def _activate(
    cursors: list[Cursor], wanted: int, window_rows: int, limit: int
) -> tuple[int | None, set[Cursor]]:
    """Read blocks of the first runs; return the key below which all rows are in memory.

    `cursors` are sorted by their next keys, and blocks have `wanted` rows. Reading stops at
    `window_rows` rows if no other run overlaps them, at `limit` rows in any case.
    """
    bound: int | None = None
    active: set[Cursor] = set()
    loaded, first_key, reach = 0, cursors[0].next_key, cursors[0].next_key
    for cursor in cursors:
        if bound is not None and cursor.next_key >= bound:
            break
        enough = loaded >= limit or (loaded >= window_rows and cursor.next_key > reach)
        if enough and cursor.next_key > first_key:
            bound = cursor.next_key
            break
        cursor.load(wanted)
        active.add(cursor)
        loaded += len(cursor)
        reach = max(reach, cursor.last_key)
        if not cursor.exhausted:
            bound = cursor.last_key if bound is None else min(bound, cursor.last_key)
    return bound, active


def _merge(parts: list[Rows], spool: Spool) -> Rows:
    parts = [part for part in parts if len(part)]
    if not parts:
        return np.empty(0, dtype=spool.dtype)
    if len(parts) == 1:
        return parts[0]
    rows = stacked(parts)
    order = order_of_keys(rows[spool.key])
    return rows if order is None else selected(rows, order)
