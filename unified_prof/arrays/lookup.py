"""Rows by key: where wanted values stand in a column."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NOWHERE = -1
"""Where a value stands that is not there."""


def find(keys: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """Return the first place of every wanted value in ascending `keys`, or `NOWHERE`."""
    if not len(keys):
        return np.full(len(wanted), NOWHERE, np.int64)
    place = np.searchsorted(keys, wanted).astype(np.int64, copy=False)
    np.minimum(place, len(keys) - 1, out=place)
    place[keys[place] != wanted] = NOWHERE
    return place


class Lookup:
    """Row numbers by key, for keys that are mostly dense from 0, as globalTaskId is."""

    def __init__(self, keys: NDArray[np.integer]) -> None:
        self._dense: NDArray[np.int32] | None = None
        if len(keys) and keys.min() >= 0 and keys.max() < 4 * len(keys) + 1024:
            # One place before the first key and one behind the last stand for all other keys.
            self._dense = np.full(int(keys.max()) + 3, NOWHERE, np.int32)
            self._dense[1:][keys[::-1]] = np.arange(len(keys) - 1, -1, -1, dtype=np.int32)
        else:
            self._order = np.append(np.argsort(keys, kind="stable"), NOWHERE).astype(np.int32)
            self._sorted = keys[self._order[:-1]]

    def rows(self, keys: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the first row that has each key, NOWHERE where there is none."""
        if self._dense is not None:
            # `take` clips keys outside the table to its ends, which are no rows by construction.
            return self._dense.take(keys.astype(np.int64) + 1, mode="clip")
        return self._order[find(self._sorted, keys)]
