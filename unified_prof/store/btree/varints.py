"""SQLite's integers of one to nine bytes, many at a time."""

from __future__ import annotations

import numpy as np

from unified_prof.store.btree.pages import Bytes, Int64s

_MORE = 0x80
_LONGEST = 9


def read_varints(data: Bytes, places: Int64s) -> tuple[Int64s, Int64s]:
    """Return the numbers that begin at `places`, and where what follows them begins.

    Nothing is read past the end of `data`: a number that would go there ends with it.
    """
    first = data[places]
    values = first.astype(np.int64)
    if not len(first) or int(first.max()) < _MORE:
        return values, places + 1
    second = data[np.minimum(places + 1, len(data) - 1)]
    two = first >= _MORE
    values = np.where(two, (values & 0x7F) << 7 | second & 0x7F, values)
    after = places + 1 + two
    longer = np.flatnonzero(two & (second >= _MORE))
    if len(longer):
        values[longer], after[longer] = _long_ones(data, places[longer])
    return values, after


def _long_ones(data: Bytes, places: Int64s) -> tuple[Int64s, Int64s]:
    """Read numbers of more than two bytes, all bytes of one place in turn."""
    values = np.zeros(len(places), np.int64)
    after = places.copy()
    going = np.arange(len(places))
    for position in range(_LONGEST):
        byte = data[np.minimum(after[going], len(data) - 1)]
        if position == _LONGEST - 1:  # the last has all its eight bits
            values[going] = values[going] << 8 | byte
            after[going] += 1
            break
        values[going] = values[going] << 7 | byte & 0x7F
        after[going] += 1
        going = going[byte >= _MORE]
        if not len(going):
            break
    return values, after
