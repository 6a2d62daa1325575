"""SQLite's integers of variable length: seven bits a byte, the first bytes with their high bit set.

Nine bytes hold 64 bits, the ninth all eight of its own; negative numbers always take nine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LONGEST = 9
_FIRST_OF_WIDTH = np.array([1 << 7 * width for width in range(1, LONGEST)], np.int64)


def encoded(value: int) -> bytes:
    """Return one number as a varint."""
    value &= 2**64 - 1
    width = width_of(value)
    if width == LONGEST:
        return encoded_in(value >> 8, 8)[:-1] + bytes([value >> 8 & 0x7F | 0x80, value & 0xFF])
    return encoded_in(value, width)


def encoded_in(value: int, width: int) -> bytes:
    """Return a number of at most 7 * `width` bits as a varint of `width` bytes."""
    groups = [value >> 7 * k & 0x7F | 0x80 for k in range(width - 1, -1, -1)]
    groups[-1] &= 0x7F
    return bytes(groups)


def width_of(value: int) -> int:
    """Return how many bytes the varint of a number takes."""
    value &= 2**64 - 1
    return min(max((value.bit_length() + 6) // 7, 1), LONGEST)


def widths_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes the varint of each number takes."""
    widths = np.searchsorted(_FIRST_OF_WIDTH, values, side="right") + 1
    return np.where(values < 0, LONGEST, widths)


def place(cells: NDArray[np.uint8], at: int, values: NDArray[np.int64], width: int) -> None:
    """Write a varint of `width` bytes into each row of `cells`, from column `at` on.

    Args:
        cells: Row by byte.
        at: Where in each row.
        values: One number a row, each of which takes `width` bytes.
        width: See `widths_of`.
    """
    rest = values
    if width == LONGEST:
        cells[:, at + LONGEST - 1] = values
        rest = values >> 8  # its high bits are the sign's, and are cut off below
    low = LONGEST - 2 if width == LONGEST else width - 1
    for k in range(low, -1, -1):
        part = rest.astype(np.uint8)
        if k == low and width < LONGEST:
            part &= 0x7F
        else:
            part |= 0x80
        cells[:, at + k] = part
        if k:
            rest = rest >> 7
