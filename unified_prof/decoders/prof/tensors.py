"""Converts tensor records of operators to strings: formats, data types, shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Ints, Pool
from unified_prof.base.columns import NOT_AVAILABLE

TENSORS_PER_RECORD = 5
_WORDS = 11
_MAX_CACHED = 1 << 16  # Maximum number of distinct records kept in memory, 0.25 KB each.
# Names by number, as in the graph engine.
_FORMATS = (
    "NCHW NHWC ND NC1HWC0 FRACTAL_Z NC1C0HWPAD NHWC1C0 FSR_NCHW FRACTAL_DECONV C1HWNC0"
    " FRACTAL_DECONV_TRANSPOSE FRACTAL_DECONV_SP_STRIDE_TRANS NC1HWC0_C04 FRACTAL_Z_C04"
    " CHWN FRACTAL_DECONV_SP_STRIDE8_TRANS HWCN NC1KHKWHWC0 BN_WEIGHT FILTER_HWCK"
    " HASHTABLE_LOOKUP_LOOKUPS HASHTABLE_LOOKUP_KEYS HASHTABLE_LOOKUP_VALUE"
    " HASHTABLE_LOOKUP_OUTPUT HASHTABLE_LOOKUP_HITS C1HWNCoC0 MD NDHWC FRACTAL_ZZ"
    " FRACTAL_NZ NCDHW DHWCN NDC1HWC0 FRACTAL_Z_3D CN NC DHWNC FRACTAL_Z_3D_TRANSPOSE"
    " FRACTAL_ZN_LSTM FRACTAL_Z_G RESERVED ALL NULL ND_RNN_BIAS FRACTAL_ZN_RNN NYUV NYUV_A"
    " NCL FRACTAL_Z_WINO C1HWC0"
).split()
_DATA_TYPES = (
    "FLOAT FLOAT16 INT8 INT32 UINT8 - INT16 UINT16 UINT32 INT64 UINT64 DOUBLE BOOL STRING"
    " DUAL_SUB_INT8 DUAL_SUB_UINT8 COMPLEX64 COMPLEX128 QINT8 QINT16 QINT32 QUINT8 QUINT16"
    " RESOURCE STRING_REF DUAL DT_VARIANT DT_BF16 DT_UNDEFINED DT_INT4 DT_UINT1 DT_INT2 DT_UINT2"
    " DT_COMPLEX32 DT_HIFLOAT8 DT_FLOAT8_E5M2 DT_FLOAT8_E4M3FN DT_FLOAT8_E8M0 DT_FLOAT6_E3M2"
    " DT_FLOAT6_E2M3 DT_FLOAT4_E2M1 DT_FLOAT4_E1M2"
).split()


def format_text(word: int, *, captured: bool = False) -> str:
    """Return the name of a format (low byte), with its sub-format (bits 8 to 23).

    For unknown formats the number is returned: the low byte, or the entire word for captured
    operators.
    """
    primary, sub = word & 0xFF, word >> 8 & 0xFFFF
    if captured and primary >= len(_FORMATS):
        return str(word)
    name = _FORMATS[primary] if primary < len(_FORMATS) else str(primary)
    return f"{name}:{sub}" if sub else name


def data_type_text(number: int, *, captured: bool = False) -> str:
    """Return the name of a data type; its number if unknown, `UNDEFINED` if captured."""
    if number < len(_DATA_TYPES) and _DATA_TYPES[number] != "-":
        return _DATA_TYPES[number]
    return "UNDEFINED" if captured else str(number)


class SideTexts(Struct, frozen=True):
    """Strings that describe the inputs or outputs of an operator."""

    formats: str
    data_types: str
    shapes: str


class TensorTexts:
    """Assigns indexes to distinct lists of tensors; index 0 is the empty list."""

    WORDS_PER_RECORD = TENSORS_PER_RECORD * _WORDS

    def __init__(self) -> None:
        self._lists: list[bytes] = [b""]
        self._index: dict[bytes, int] = {b"": 0}
        self._known = _RecordCache()

    def __len__(self) -> int:
        return len(self._lists)

    def signatures(
        self, tensors: NDArray[np.uint32], number: NDArray[np.uint32]
    ) -> NDArray[np.uint32]:
        """Return the list index of each record.

        A record of `tensors` has 55 words: five tensors of kind, format, data type and 8
        dimensions, of which the first `number` are used.
        """
        words = np.ascontiguousarray(tensors)
        number = np.minimum(number, TENSORS_PER_RECORD).astype(np.uint32)
        checksum = words.astype(np.uint64) @ _MIX + number * np.uint64(0x9E3779B97F4A7C15)
        if len(self._known) > _MAX_CACHED:
            self._known = _RecordCache()  # with many shapes, few occur again
        place = self._known.places(checksum, words, number, self._intern_records)
        index = self._known.lists[place]
        # Lists with the checksum of another list are found by their words.
        if not self._known.all_equal(place, words, number):
            other = np.flatnonzero(self._known.mismatches(place, words, number))
            index[other] = self._intern_records(words[other], number[other])
        return index

    def _intern_records(
        self, words: NDArray[np.uint32], number: NDArray[np.uint32]
    ) -> NDArray[np.uint32]:
        used = enumerate(number.tolist())
        lists = [self.intern(words[row, : count * _WORDS].tobytes()) for row, count in used]
        return np.array(lists, np.uint32)

    def concatenate(self, before: NDArray[Any], after: NDArray[Any]) -> NDArray[np.uint32]:
        """Concatenate pairs of lists, given by index, and return the new indexes."""
        pair = before.astype(np.uint64) << np.uint64(32) | after
        distinct, inverse = np.unique(pair, return_inverse=True)
        index = [
            self.intern(self._lists[both >> 32] + self._lists[both & 0xFFFFFFFF])
            for both in distinct.tolist()
        ]
        return np.array(index, np.uint32)[inverse]

    def numbers(self, indexes: NDArray[Any]) -> Ints:
        """Return the number of tensors in each list."""
        sizes = [len(self._lists[index]) for index in indexes.tolist()]
        return np.array(sizes, np.int64) // (4 * _WORDS)

    def texts(self, index: int, *, captured: bool = False) -> tuple[SideTexts, SideTexts]:
        """Return the strings for the inputs and for the outputs in a list.

        For operators of captured graphs, the exporter uses other names of unknown values.
        """
        words = np.frombuffer(self._lists[index], "<u4").reshape(-1, _WORDS).tolist()
        return (
            _side([tensor for tensor in words if tensor[0] == 0], captured=captured),
            _side([tensor for tensor in words if tensor[0] == 1], captured=captured),
        )

    def intern(self, words: bytes) -> int:
        """Return the index of a list of tensors, which is given as 11 words per tensor."""
        index = self._index.setdefault(words, len(self._lists))
        if index == len(self._lists):
            self._lists.append(words)
        return index


class _RecordCache:
    """First record with each checksum, and the list index of the record."""

    def __init__(self) -> None:
        self._checksums = Pool()
        self._words = np.zeros((0, TENSORS_PER_RECORD * _WORDS), np.uint32)
        self._number = np.zeros(0, np.uint32)
        self.lists = np.zeros(0, np.uint32)

    def __len__(self) -> int:
        return len(self.lists)

    def places(
        self,
        checksum: NDArray[np.uint64],
        words: NDArray[np.uint32],
        number: NDArray[np.uint32],
        lists: Callable[[NDArray[np.uint32], NDArray[np.uint32]], NDArray[np.uint32]],
    ) -> NDArray[np.uint32]:
        """Return the cached row for each checksum; unknown records are added to the cache.

        `lists` returns the list indexes of new records from their words and numbers of tensors.
        """
        place = self._checksums.index_of(checksum)
        known, found = len(self), len(self._checksums)
        if found > known:
            new = np.flatnonzero(place >= known)
            first = np.empty(found - known, np.int64)
            first[place[new[::-1]] - known] = new[::-1]
            self._words = np.concatenate([self._words, words[first]])
            self._number = np.concatenate([self._number, number[first]])
            self.lists = np.concatenate([self.lists, lists(words[first], number[first])])
        return place

    def all_equal(
        self, place: NDArray[np.uint32], words: NDArray[np.uint32], number: NDArray[np.uint32]
    ) -> bool:
        """Return True if all records are equal to the cached records at `place`."""
        row_bytes = f"V{self._words.shape[1] * self._words.itemsize}"
        known = self._words.view(row_bytes)[:, 0].take(place).view(np.uint32)
        return np.array_equal(known.reshape(words.shape), words) and np.array_equal(
            self._number[place], number
        )

    def mismatches(
        self, place: NDArray[np.uint32], words: NDArray[np.uint32], number: NDArray[np.uint32]
    ) -> Bools:
        """Return a mask of the records that differ from the cached records at `place`."""
        different = (self._words[place] != words).any(axis=1) | (self._number[place] != number)
        return np.asarray(different)


# Powers of an odd number: a checksum of the words of a record, modulo 2**64.
_MIX = np.cumprod(np.full(TENSORS_PER_RECORD * _WORDS, 0x9E3779B97F4A7C15, np.uint64))


def _side(tensors: list[list[int]], *, captured: bool) -> SideTexts:
    if not tensors:
        return SideTexts(NOT_AVAILABLE, NOT_AVAILABLE, NOT_AVAILABLE)
    return SideTexts(
        ";".join(format_text(tensor[1], captured=captured) for tensor in tensors),
        ";".join(data_type_text(tensor[2], captured=captured) for tensor in tensors),
        '"' + ";".join(_shape(tensor[3:]) for tensor in tensors) + '"',
    )


def _shape(dimensions: list[int]) -> str:
    """Return the dimensions before the first 0 as a string."""
    end = dimensions.index(0) if 0 in dimensions else len(dimensions)
    return ",".join(map(str, dimensions[:end]))
