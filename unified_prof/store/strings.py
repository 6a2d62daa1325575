"""The string pool behind STRING_IDS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray


class StringPool:
    """Gives every distinct text an id: dense from 0, in the order of first use."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def intern(self, text: str) -> int:
        """Return the id of `text`, allocating one the first time it is seen."""
        return self._ids.setdefault(text, len(self._ids))

    def intern_all(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return the ids of `texts`, in their order."""
        ids = self._ids
        return np.fromiter((ids.setdefault(text, len(ids)) for text in texts), np.int64)

    def batches(self, size: int) -> Iterator[tuple[list[int], list[str]]]:
        """Yield the ids and texts, at most `size` at a time, in the order of the ids."""
        texts = iter(self._ids)
        first = 0
        while batch := list(islice(texts, size)):
            yield list(range(first, first + len(batch))), batch
            first += len(batch)
