"""What travels between decoding and storing: batches of columns, never one object per row.

A decoder knows a `Sink` and nothing of databases; `unified_prof.sqlite` provides the real one
and a test can provide a list. What comes as tables, in a database or in files of columns, reaches
its decoder as `Tables`.

Counts what was skipped, unmatched, unknown or not measurable, for a report to say so.

The one counter of anomalies: decoders, the tracker, the writer of reports and their readers all
count into one of these, and `UPROF_ANOMALIES` is what it looks like on disk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any] | Sequence[Any] | int | float | str | None
"""One column of a batch: an array, a sequence (None is NULL), or one value for every row."""


class Strings(Protocol):
    """The pool behind STRING_IDS: dense ids from 0 in the order of first use."""

    def intern(self, text: str) -> int:
        """Return the id of `text`, allocating one the first time it is seen."""

    def intern_all(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return the ids of `texts`, in their order."""


class Sink(Protocol):
    """Takes decoded rows, table by table, in any order of tables and in any batch size."""

    @property
    def strings(self) -> Strings:
        """The string pool of the file being written."""

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        """Append one batch to `table` and return its number of rows.

        Column names are those of the newest schema revision. Arrays and sequences of one batch
        have the same length; a scalar stands for that value in every row. Missing columns are
        NULL. Unsigned 64-bit values wrap to signed ones (UINT64_MAX is stored as -1).
        """

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        """Count something skipped, truncated, unmatched or unknown under `name`.

        Counts of the same name add up; the first `detail` given is kept.
        """


Cells = Mapping[str, Any]
"""A slice of rows by column: an int64 or float64 array, or a list of texts and None."""


class Tables(Protocol):
    """Tables that another tool left, whatever their files are, and however much they hold."""

    @property
    def names(self) -> Sequence[str]:
        """What tables there are."""

    @property
    def unreadable(self) -> Mapping[str, int]:
        """How many values so far were not what was asked for, by `TABLE.column`."""

    def columns(self, table: str) -> Collection[str]:
        """Return the names of the columns of `table`; none where it is not there."""

    def slices(
        self,
        table: str,
        numbers: Mapping[str, int],
        *,
        reals: Sequence[str] = (),
        texts: Sequence[str] = (),
        only: tuple[str, Collection[int] | None] | None = None,
    ) -> Iterator[Cells]:
        """Yield the rows of `table` in their order, some thousands at a time.

        Args:
            table: Its name; one that is not there has no rows.
            numbers: Columns of whole numbers, and what stands for NULL, for what is no number,
                and for a column that the table lacks.
            reals: Columns of measurements; NaN stands for NULL.
            texts: Columns of texts, None for NULL; very long ones are cut.
            only: A column and the whole numbers in it whose rows are wanted; None: any value.

        Raises:
            UprofError: the file is damaged.
        """


class Entry(NamedTuple):
    """How many cases there were, and the first of them in words."""

    cases: int
    detail: str
    """Empty: nobody put a case into words."""


class Ledger(Mapping[str, Entry]):
    """Name of an anomaly (snake_case) -> its count and first case, in order of first occurrence."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, detail: str = "", count: int = 1) -> None:
        """Count `count` cases of `name`; none at all leaves no trace.

        Counts of the same name add up; the first `detail` that says something is kept.
        """
        if count:
            before, first = self._entries.get(name, (0, ""))
            self._entries[name] = Entry(before + int(count), first or detail)

    def merge(self, others: Mapping[str, tuple[int, str]]) -> None:
        """Add what was counted elsewhere."""
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
