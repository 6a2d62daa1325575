"""What travels between decoding and storing: batches of columns, never one object per row.

A decoder knows a `Sink` and nothing of databases; `unified_prof.store` provides the real one
and a test can provide a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

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
