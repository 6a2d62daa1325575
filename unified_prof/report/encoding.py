"""Columns of numbers as short text, for the page: LEB128 in base64."""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray


def encode(values: NDArray[np.integer]) -> str:
    """Return numbers from 0 as base64 of seven bits a byte, the lowest first.

    The highest bit of a byte says that more follow. Most durations and gaps take two or three
    bytes, a fourth of what they take as decimal text.

    Raises:
        ValueError: a number is negative.
    """
    if len(values) and values.min() < 0:
        raise ValueError("only numbers from 0 have this encoding")
    left = values.astype(np.uint64)
    lengths = np.ones(len(left), np.int64)
    rest = left >> np.uint64(7)
    while rest.any():
        lengths += rest > 0
        rest >>= np.uint64(7)
    offsets = np.cumsum(lengths) - lengths
    result = np.zeros(int(lengths.sum()), np.uint8)
    for place in range(int(lengths.max(initial=0))):
        has = lengths > place
        byte = (left[has] & np.uint64(127)).astype(np.uint8)
        byte[lengths[has] > place + 1] |= 128
        result[offsets[has] + place] = byte
        left >>= np.uint64(7)
    return base64.b64encode(result.tobytes()).decode("ascii")
