"""Texts of FRAMEWORK files: every different one once, by a small number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Strings
from unified_prof.vocabulary import NO_TEXT as NO_TEXT_ID
from unified_prof.vocabulary import NOT_AVAILABLE

NO_TEXT = -1
"""Number of a field that is not there, or empty."""
NO_NAME = NO_TEXT_ID
"""String id of an empty name: torch_npu gives it no row in STRING_IDS."""
NOT_UTF8 = NOT_AVAILABLE

Ints = NDArray[np.int64]


class Texts:
    """Numbers different texts from 0, in the order of first use."""

    def __init__(self, change: Callable[[str], str] = lambda text: text) -> None:
        self._numbers: defaultdict[bytes, int] = defaultdict(count().__next__)
        self._change = change
        self._numbers[b""] = NO_TEXT

    def numbers(self, data: bytes, start: Ints, length: Ints) -> Ints:
        """Return the number of the text in every field; of absent ones `start` is negative."""
        raws = [
            data[a : a + n] if a >= 0 else b""
            for a, n in zip(start.tolist(), length.tolist(), strict=True)
        ]
        return np.fromiter(map(self._numbers.__getitem__, raws), np.int64, len(raws))

    def numbers_of(self, texts: Iterable[str]) -> Ints:
        """Return the numbers of texts; of empty ones `NO_TEXT`."""
        raws = (text.encode("utf-8", "backslashreplace") for text in texts)
        return np.fromiter(map(self._numbers.__getitem__, raws), np.int64)

    @property
    def all(self) -> list[str]:
        """The texts by number; what is no UTF-8 is `N/A`."""
        return [self._change(decoded(raw)) for raw in self._numbers if raw]

    def marked(self, test: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Tell which texts pass a test, by number; the last answer is that of no text."""
        return np.array([*map(test, self.all), test("")], bool)


def decoded(raw: bytes) -> str:
    """Return the text of a field."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return NOT_UTF8


def string_ids(strings: Strings, texts: Texts, numbers: Ints) -> Ints:
    """Return the ids in STRING_IDS of texts; those of no text are `NO_NAME`."""
    ids = np.append(strings.intern_all(texts.all), NO_NAME)
    return np.asarray(ids[numbers])
