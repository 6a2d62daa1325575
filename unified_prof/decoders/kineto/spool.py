"""Keeps rows outside memory and gives them back sorted, window by window.

Joining the parts of a trace needs all of it in another order: host events by time, launches and
kernels by correlation id. Rows are collected up to a limit, sorted, and put away in a temporary
file as a run; runs are merged block by block. Memory does not grow with the trace.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.errors import OutputError

Rows = NDArray[Any]
"""A structured array: one field per column."""

RUN_ROWS = 1 << 18
WINDOW_ROWS = 1 << 15
_MIN_BLOCK_ROWS = 256


class Spool:
    """Rows of one dtype, to be read back sorted by the int64 field `key`.

    Rows of equal key keep the order in which they were appended. A context manager: its file is
    gone when the block ends.
    """

    def __init__(self, dtype: np.dtype[Any], key: str, *, run_rows: int = RUN_ROWS) -> None:
        self.dtype = dtype
        self.key = key
        self.rows = 0
        self._run_rows = run_rows
        self._pending: list[Rows] = []
        self._pending_rows = 0
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []  # (first row, behind the last row) in the file

    def append(self, rows: Rows) -> None:
        """Add a batch of rows."""
        if len(rows):
            self.rows += len(rows)
            self._pending.append(rows)
            self._pending_rows += len(rows)
            if self._pending_rows >= self._run_rows:
                self._put_away()

    def _sorted_pending(self) -> Rows:
        rows = np.concatenate(self._pending) if self._pending else np.empty(0, dtype=self.dtype)
        self._pending, self._pending_rows = [], 0
        keys = rows[self.key]
        if len(keys) > 1 and (keys[1:] < keys[:-1]).any():
            rows = rows[np.argsort(keys, kind="stable")]
        return rows

    def _put_away(self) -> None:
        rows = self._sorted_pending()
        with _translated():
            if self._file is None:
                self._file = _temporary_file()
            self._file.write(rows.view(np.uint8).data)
        first = self._runs[-1][1] if self._runs else 0
        self._runs.append((first, first + len(rows)))

    def cursors(self) -> list[Cursor]:
        """Return a cursor for each run; appending afterwards is not allowed."""
        if self._file is None:
            if self._pending:
                self._pending = [self._sorted_pending()]
            return [Cursor(self, rows) for rows in self._pending]
        if self._pending:
            self._put_away()
        return [Cursor(self, np.empty(0, dtype=self.dtype), *run) for run in self._runs]

    def read(self, first: int, rows: int) -> Rows:
        """Return `rows` rows of the file, from row `first` on."""
        assert self._file is not None
        self._file.seek(first * self.dtype.itemsize)
        data = self._file.read(rows * self.dtype.itemsize)
        return np.frombuffer(data, dtype=self.dtype)

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pending = []
        if self._file is not None:
            self._file.close()


class TextSpool:
    """Keeps texts outside memory, each under the place it was put."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._size = 0

    def append(self, text: bytes) -> int:
        """Put `text` away and return its place."""
        at = self._size
        with _translated():
            if self._file is None:
                self._file = _temporary_file()
            self._file.write(text)
        self._size += len(text)
        return at

    def read(self, at: int, size: int) -> str | None:
        """Return the text of `size` bytes at `at`, None for none."""
        if not size or self._file is None:
            return None
        self._file.seek(at)
        return self._file.read(size).decode("utf-8", "replace")

    def close(self) -> None:
        """Forget all texts."""
        if self._file is not None:
            self._file.close()


def _temporary_file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="uprof-")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise OutputError(
            f"cannot put rows away in {tempfile.gettempdir()}: {err.strerror or err}",
            hint="make room there, or name another folder in TMPDIR",
        ) from err


class Cursor:
    """A position in one sorted run, of which one block is in memory."""

    def __init__(self, spool: Spool, block: Rows, first: int = 0, end: int = 0) -> None:
        self._spool = spool
        self._block = block
        self._first = first
        self._end = end

    @property
    def exhausted(self) -> bool:
        """Whether everything not yet taken is in memory."""
        return self._first >= self._end

    @property
    def last_key(self) -> int | None:
        """The largest key in memory, None without rows."""
        return int(self._block[self._spool.key][-1]) if len(self._block) else None

    def load(self, rows: int) -> None:
        """Bring the rows in memory up to at least `rows`, where the run has them."""
        missing = min(rows - len(self._block), self._end - self._first)
        if missing > 0:
            more = self._spool.read(self._first, missing)
            self._first += missing
            self._block = np.concatenate((self._block, more)) if len(self._block) else more

    def take_through(self, key: int | None) -> Rows:
        """Remove and return the rows in memory whose key is not above `key` (None: all)."""
        keys = self._block[self._spool.key]
        cut = len(keys) if key is None else int(np.searchsorted(keys, key, side="right"))
        taken, self._block = self._block[:cut], self._block[cut:]
        return taken

    def __len__(self) -> int:
        return len(self._block)


def windows(*spools: Spool, window_rows: int = WINDOW_ROWS) -> Iterator[tuple[Rows, ...]]:
    """Read several spools in step: each window holds all their rows of one range of keys.

    Yields:
        One sorted array per spool. No key appears in two windows; keys only grow.
    """
    groups = [spool.cursors() for spool in spools]
    cursors = [cursor for group in groups for cursor in group]
    if not cursors:
        return
    block = max(_MIN_BLOCK_ROWS, window_rows // len(cursors))
    wanted = block
    while True:
        for cursor in cursors:
            cursor.load(wanted)
        # Up to the smallest key that some run may continue behind, everything is in memory;
        # that key itself may go on in the same run, so it waits for the next window.
        limits = [cursor.last_key for cursor in cursors if not cursor.exhausted]
        bound = min((limit for limit in limits if limit is not None), default=None)
        taken = tuple(
            _merge(
                [cursor.take_through(None if bound is None else bound - 1) for cursor in group],
                spool,
            )
            for group, spool in zip(groups, spools, strict=True)
        )
        if any(len(rows) for rows in taken):
            wanted = block
            yield taken
        elif bound is None:
            return
        else:
            wanted = 2 * max(len(cursor) for cursor in cursors)


def _merge(parts: list[Rows], spool: Spool) -> Rows:
    parts = [part for part in parts if len(part)]
    if not parts:
        return np.empty(0, dtype=spool.dtype)
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate(parts)
    return rows[np.argsort(rows[spool.key], kind="stable")]
