"""String ids of what operators are told by: names behind hashes, lists of tensors.

Operators come by the million and their texts by the hundred. Each is looked up once for a whole
recording; what comes later finds its id in a table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.pool import Pool
from unified_prof.columns import Strings
from unified_prof.decoders.prof.host.tensors import TensorTexts
from unified_prof.decoders.prof.raw.dictionaries import Dictionaries

_SCHEDULE_SUFFIX = "AicpuKernel"
_COMMUNICATION_SUFFIX = "AivKernel"
_SIDES = ("formats", "data_types", "shapes")
_UNKNOWN = -1


class HashTexts:
    """Texts behind columns of hashes: interned on use, and asked for their endings."""

    def __init__(self, dictionaries: Dictionaries, strings: Strings) -> None:
        self._dictionaries, self._strings = dictionaries, strings
        self._pool = Pool()
        self._ids = np.zeros(0, np.int64)
        self._schedules, self._communicates = np.zeros(0, bool), np.zeros(0, bool)
        self._has_text = np.zeros(0, bool)

    def known(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Tell which hashes have a text."""
        place = self._places(hashes)
        return self._has_text[place]

    def ids(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return string ids."""
        place = self._interned(hashes)  # it may make the table longer
        return self._ids[place]

    def names(
        self, hashes: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return string ids, whether names end as schedulers do, whether as communication."""
        place = self._interned(hashes)
        return self._ids[place], self._schedules[place], self._communicates[place]

    def _interned(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint32]:
        place = self._places(hashes)
        new = hashes[self._ids[place] == _UNKNOWN]
        if len(new):
            distinct = np.unique(new)
            texts = [self._dictionaries.text(value) for value in distinct.tolist()]
            at = self._pool.index_of(distinct)
            self._ids[at] = self._strings.intern_all(texts)
            self._schedules[at] = [text.endswith(_SCHEDULE_SUFFIX) for text in texts]
            self._communicates[at] = [text.endswith(_COMMUNICATION_SUFFIX) for text in texts]
        return place

    def _places(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint32]:
        place = self._pool.index_of(hashes)
        if new := self._pool.values[len(self._ids) :].tolist():
            knows = [self._dictionaries.knows(value) for value in new]
            no = np.zeros(len(new), bool)
            self._ids = np.concatenate([self._ids, np.full(len(new), _UNKNOWN)])
            self._has_text = np.concatenate([self._has_text, np.array(knows)])
            self._schedules = np.concatenate([self._schedules, no])
            self._communicates = np.concatenate([self._communicates, no])
        return place


class ListTexts:
    """Texts of lists of tensors: three of the inputs, three of the outputs."""

    COLUMNS = 2 * len(_SIDES)

    def __init__(self, texts: TensorTexts, strings: Strings, *, captured: bool) -> None:
        self._texts, self._strings, self._captured = texts, strings, captured
        self._ids = np.zeros((0, self.COLUMNS), np.int32)

    def ids(self, lists: NDArray[Any]) -> NDArray[np.int32]:
        """Return the string ids of lists, a row each."""
        if len(self._ids) < len(self._texts):
            more = np.full((len(self._texts) - len(self._ids), self.COLUMNS), _UNKNOWN, np.int32)
            self._ids = np.concatenate([self._ids, more])
        new = np.unique(lists[self._ids[lists, 0] == _UNKNOWN])
        if len(new):
            both = [self._texts.texts(index, captured=self._captured) for index in new.tolist()]
            for column in range(self.COLUMNS):
                side, part = divmod(column, len(_SIDES))
                self._ids[new, column] = self._strings.intern_all(
                    getattr(sides[side], _SIDES[part]) for sides in both
                )
        found: NDArray[np.int32] = self._ids[lists]
        return found
