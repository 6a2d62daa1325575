"""Pages written behind those that SQLite has written, in a database that it is not using just now.

What SQLite knows of such a file is its header: its number of pages, and a counter of changes by
which it learns that what it remembers of the file is old.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.store.btree import format as layout

_COUNTER_AND_PAGES = struct.Struct(">II")
_COUNTER_AND_PAGES_AT = 24
_VALID_FOR = struct.Struct(">I")
_VALID_FOR_AT = 92
_MOST_PAGES = 0xFFFF_FFFE


class PageFile:
    """A database whose pages are written here between `begin` and `end`, by SQLite otherwise."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=0)
        self._header: layout.Header | None = None
        self._pages = 0
        self._changed = False

    @property
    def header(self) -> layout.Header:
        """The file's header, as of `begin`."""
        assert self._header is not None, "SQLite has the file"
        return self._header

    @property
    def suitable(self) -> bool:
        """Whether the file is one that pages can be added to: plain, and in UTF-8."""
        header = self.header
        return (
            header.encoding == layout.UTF8
            and header.largest_root == 0
            and header.change_counter == header.version_valid_for
            and not header.wal
        )

    def begin(self) -> None:
        """Learn what SQLite has made of the file, which it lets go of until `end`."""
        self._file.seek(0)
        start = self._file.read(layout.HEADER_BYTES)
        header = layout.read_header(start)
        assert header is not None, "SQLite has written no header"
        self._header = header
        self._pages = header.pages
        self._changed = False

    def next_numbers(self, count: int) -> NDArray[np.int64]:
        """Return the numbers that the next pages get."""
        numbers = self._pages + 1 + np.arange(count)
        return numbers + (numbers >= self.header.lock_page) * (self._pages < self.header.lock_page)

    def append(self, pages: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Write new pages; return their numbers.

        Args:
            pages: Page by byte, contiguous.
        """
        numbers = self.next_numbers(len(pages))
        last = int(numbers[-1])
        if last > _MOST_PAGES:
            raise OSError("a database cannot have that many pages")
        before = int(np.searchsorted(numbers, self.header.lock_page))
        for part in (slice(0, before), slice(before, None)):
            if len(numbers[part]):
                self._write(int(numbers[part][0]), pages[part])
        self._pages = last
        return numbers

    def rewrite(self, number: int, page: NDArray[np.uint8]) -> None:
        """Write a page in the place of one that the file has."""
        self._write(number, page)

    def end(self) -> None:
        """Say in the header what has come, and leave the file to SQLite."""
        header = self.header
        if self._changed:
            counter = (header.change_counter + 1) & 0xFFFF_FFFF
            self._put(_COUNTER_AND_PAGES_AT, _COUNTER_AND_PAGES.pack(counter, self._pages))
            self._put(_VALID_FOR_AT, _VALID_FOR.pack(counter))
        self._header = None

    def close(self) -> None:
        """Let go of the file; SQLite may not be reading or writing it at that moment."""
        self._file.close()

    def _write(self, number: int, pages: NDArray[np.uint8]) -> None:
        """Write pages that follow each other, the first of them as the one of that number."""
        self._changed = True
        self._put((number - 1) * self.header.page_bytes, pages.reshape(-1).data)

    def _put(self, at: int, data: bytes | memoryview) -> None:
        self._file.seek(at)
        while len(data):
            # Less than asked for where a limit or a full disk is near: the next attempt says which.
            written = self._file.write(data)
            data = data[written:]
