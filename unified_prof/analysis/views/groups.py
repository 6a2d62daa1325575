"""Rows by their key, in one pass over the rows, however many keys there are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def by_key(keys: NDArray[np.integer]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each distinct key, in rising order, with its rows in theirs."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable").astype(np.int64)
    ordered = keys[order]
    heads = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    yield from zip(ordered[heads].tolist(), np.split(order, heads[1:]), strict=True)
