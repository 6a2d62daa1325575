"""The pages of a database, read from the file itself and not through SQLite."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unified_prof.store.btree.format import HEADER_BYTES, Header, read_header

if TYPE_CHECKING:
    from io import FileIO

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]

SLACK = 8
"""Bytes after the last page of what `Pages.read` returns: any place in it starts eight bytes."""


class Irregular(Exception):  # noqa: N818 - a turn of the road, never seen outside the store
    """Pages are not as those of a plain, whole table: what they say, SQLite shall say."""


class Pages:
    """The pages of a file that nobody changes; the caller holds a lock on it.

    Raises:
        Irregular: it has no pages that could be read without SQLite.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file
        header = None
        try:
            state = os.fstat(file.fileno())
            file.seek(0)
            header = read_header(file.read(HEADER_BYTES) or b"")
        except OSError as err:
            raise Irregular from err
        if header is None:
            raise Irregular
        self.header: Header = header
        self._buffer = np.empty(0, np.uint8)
        self._state = (state.st_size, state.st_mtime_ns)
        self._count = state.st_size // header.page_bytes
        if header.version_valid_for == header.change_counter:
            self._count = min(self._count, header.pages)

    def read(self, numbers: Int64s, *, again: bool = False) -> Bytes:
        """Return pages, one after another, and SLACK zeros.

        Args:
            numbers: Of the pages, from 1.
            again: Whether to put them where the last pages read with this flag were, which are
                gone then; a large array for every call would leave holes in memory.

        Raises:
            Irregular: a number is none of a page of a table, or the file has changed.
        """
        size = self.header.page_bytes
        if not len(numbers) or int(numbers.min()) < 1 or int(numbers.max()) > self._count:
            raise Irregular
        if (numbers == self.header.lock_page).any():
            raise Irregular
        data = np.empty(len(numbers) * size + SLACK, np.uint8) if not again else self._buffer
        if again and len(data) != len(numbers) * size + SLACK:
            data = self._buffer = np.empty(len(numbers) * size + SLACK, np.uint8)
        data[-SLACK:] = 0
        view = data.data
        cuts = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        firsts = numbers[cuts[:-1]].tolist()
        try:
            for first, begin, end in zip(firsts, cuts, cuts[1:], strict=False):
                self._file.seek((first - 1) * size)
                if self._file.readinto(view[begin * size : end * size]) != (end - begin) * size:
                    raise Irregular
            state = os.fstat(self._file.fileno())
        except OSError as err:
            raise Irregular from err
        if (state.st_size, state.st_mtime_ns) != self._state:
            raise Irregular
        return data
