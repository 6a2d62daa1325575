"""SQLite's integers of one to nine bytes, many at a time."""

from __future__ import annotations

import numpy as np

from unified_prof.store.btree.pages import Bytes, Int64s

_MORE = 0x80
_BITS = np.uint8(0x7F)
_LONGEST = 9


def read_varints(data: Bytes, places: Int64s) -> tuple[Int64s, Int64s]:
    """Return the numbers that begin at `places`, and where what follows them begins.

    Nothing is read past the end of `data`: a number that would go there ends with it.
    """
    byte = data[places]
    goes_on = byte >= _MORE
    after = places + 1
    if not goes_on.any():
        return byte.astype(np.int64), after
    values = (byte & _BITS).astype(np.int64)
    going: Int64s | slice = slice(None)  # all of them, as long as they are equally long
    for position in range(1, _LONGEST):
        if not goes_on.all():
            going = np.flatnonzero(goes_on) if isinstance(going, slice) else going[goes_on]
        at = after[going]
        byte = data[np.minimum(at, len(data) - 1)]
        after[going] = at + 1
        if position == _LONGEST - 1:  # the last has all its eight bits
            values[going] = values[going] << 8 | byte
            break
        values[going] = values[going] << 7 | byte & _BITS
        goes_on = byte >= _MORE
        if not goes_on.any():
            break
    return values, after
