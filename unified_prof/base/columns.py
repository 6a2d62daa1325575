"""Interfaces between decoders and storage, which exchange batches of columns.

A decoder writes to a `Sink` and does not depend on a database; `unified_prof.sqlite` implements the
interface, and a test can use a list. Decoders read tabular input through `Tables`.

Decoders, the tracker, writers and readers count anomalies (skipped, unmatched or unknown data) in a
`Ledger`, which is stored as `UPROF_ANOMALIES`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

# Column of a batch: an array, a sequence (None is NULL), or one value for all rows.
Column = NDArray[Any] | Sequence[Any] | int | float | str | None


class Strings(Protocol):
    """Pool of STRING_IDS: dense ids from 0 in order of first use."""

    def intern(self, text: str) -> int:
        """Return the id of `text`, allocating one on first use."""

    def intern_all(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return the ids of `texts` in order."""


class Sink(Protocol):
    """Receiver of decoded rows; tables may be written in any order and with any batch size."""

    @property
    def strings(self) -> Strings:
        """String pool of the file."""

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        """Append one batch to `table` and return its number of rows.

        Column names are those of the newest schema revision. Arrays and sequences of a batch have
        the same length; a scalar applies to all rows. Missing columns are NULL. Unsigned 64-bit
        values wrap to signed ones (UINT64_MAX is stored as -1).
        """

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        """Count skipped, truncated, unmatched or unknown data under `name`.

        Counts of the same name add up; the first `detail` is kept.
        """


# Rows by column: int64 or float64 arrays, or lists of texts and None.
Cells = Mapping[str, Any]


class Tables(Protocol):
    """Tables written by another tool, independent of file format and size."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the tables."""

    @property
    def unreadable(self) -> Mapping[str, int]:
        """Number of values with the wrong type so far, by `TABLE.column`."""

    def columns(self, table: str) -> Collection[str]:
        """Return the column names of `table`; empty if it does not exist."""

    def slices(
        self,
        table: str,
        numbers: Mapping[str, int],
        *,
        reals: Sequence[str] = (),
        texts: Sequence[str] = (),
        only: tuple[str, Collection[int] | None] | None = None,
    ) -> Iterator[Cells]:
        """Yield the rows of `table` in order, a few thousand at a time.

        Args:
            table: Name; a missing table has no rows.
            numbers: Integer columns and their value for NULL, non-numbers and missing columns.
            reals: Columns of measurements; NaN for NULL.
            texts: Text columns, None for NULL; very long texts are truncated.
            only: A column, and the integers in it that select rows; None for all rows.

        Raises:
            UprofError: The file is damaged.
        """


class Entry(NamedTuple):
    """Count of an anomaly and the description of its first case."""

    cases: int
    # Empty if there is no description.
    detail: str


class Ledger(Mapping[str, Entry]):
    """Name of an anomaly (snake_case) -> count and first case, in order of first occurrence."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, detail: str = "", count: int = 1) -> None:
        """Add `count` occurrences of `name`; a count of zero adds nothing.

        Counts of the same name add up; the first non-empty `detail` is kept.
        """
        if count:
            before, first = self._entries.get(name, (0, ""))
            self._entries[name] = Entry(before + int(count), first or detail)

    def merge(self, others: Mapping[str, tuple[int, str]]) -> None:
        """Add the counts of another ledger."""
        for name, (count, detail) in others.items():
            self.add(name, detail, count)

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._entries!r})"
