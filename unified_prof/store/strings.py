"""The string pool behind STRING_IDS."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray


class StringPool:
    """Gives every distinct text an id: dense from 0, in the order of first use."""

    def __init__(self) -> None:
        # An unknown text gets the next number, without a line of Python.
        self._ids: defaultdict[str, int] = defaultdict(count().__next__)

    def __len__(self) -> int:
        return len(self._ids)

    def intern(self, text: str) -> int:
        """Return the id of `text`, allocating one the first time it is seen."""
        return self._ids[text]

    def intern_all(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return the ids of `texts`, in their order."""
        return np.fromiter(map(self._ids.__getitem__, texts), np.int64)

    def batches(self, size: int) -> Iterator[tuple[list[int], list[str]]]:
        """Yield the ids and texts, at most `size` at a time, in the order of the ids."""
        texts = iter(self._ids)
        first = 0
        while batch := list(islice(texts, size)):
            yield list(range(first, first + len(batch))), batch
            first += len(batch)
