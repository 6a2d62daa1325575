"""Looks many values up in a sorted column at once."""

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
