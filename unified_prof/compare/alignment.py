"""Alignment of the operations of two runs, which tolerates inserted, removed and moved operations.

Both sequences are in program order. Each element has several keys, from the most to the least
specific (for an operation: module path, source line and name; module path and name; ...). The most
specific key is aligned first, over the whole sequences. Unpaired elements are aligned by the next
key, but only within the gap between two pairs, so that a weak key cannot pair across a strong one.
Elements left after the last key are paired by the most specific keys at any position: they moved.

Keys are numbered first, so that sequences of a million elements are compared as arrays. Short
sections, of which there may be many, are compared as lists.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from unified_prof.arrays.grouping import Ints, occurrence

Pair = tuple[int, int]  # Position in the baseline, position in the candidate.
Pairs = tuple[Ints, Ints]  # The same as two arrays of equal length.

NO_KEY = -1  # Number of a key that an element does not have.

# Gaps up to this number of cells are solved exactly, larger ones by occurrence.
_EXACT_CELLS = 250_000

# Sequences up to this total length are compared as lists, which is faster than with NumPy.
_MAX_LIST_LENGTH = 200


def align(base: Sequence[Ints], new: Sequence[Ints], *, moved_levels: int = 2) -> Pairs:
    """Return pairs of equal elements in order of the baseline, each element at most once.

    Each side has a key number for each element (or NO_KEY) per level, most specific first. Keys of
    the `moved_levels` most specific levels may pair out of order.
    """
    pairs = _NO_PAIRS
    for left, right in zip(base, new, strict=True):
        pairs = _sorted([pairs, *_in_gaps(left, right, pairs)])
    if base:
        pairs = _sorted([pairs, *_moved(base, new, pairs, moved_levels)])
    return pairs


def number(base: Sequence[Hashable], new: Sequence[Hashable]) -> tuple[Ints, Ints]:
    """Return the keys of both sides as numbers from 0, equal for equal keys; None is NO_KEY."""
    numbers: dict[Hashable, int] = {None: NO_KEY}
    setdefault, known = numbers.setdefault, numbers.__len__
    result = [
        np.fromiter((setdefault(key, known() - 1) for key in side), np.int64, len(side))
        for side in (base, new)
    ]
    return result[0], result[1]


_NO_PAIRS: Pairs = (np.empty(0, np.int64), np.empty(0, np.int64))


def _sorted(parts: Sequence[Pairs]) -> Pairs:
    """Return all pairs in order of the baseline."""
    first, second = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    return _in_order(first, second)


def _in_order(first: Ints, second: Ints) -> Pairs:
    order = np.argsort(first)
    return first[order], second[order]


def _in_gaps(base: Ints, new: Ints, anchors: Pairs) -> list[Pairs]:
    """Return pairs within the gaps between consecutive anchors."""
    few: list[Pair] = []
    result: list[Pairs] = []
    for low_a, high_a, low_b, high_b in _gaps(anchors, len(base), len(new)):
        if high_a - low_a + high_b - low_b <= _MAX_LIST_LENGTH:
            left, right = base[low_a:high_a].tolist(), new[low_b:high_b].tolist()
            few += [(low_a + i, low_b + j) for i, j in _common_in_lists(left, right)]
        else:
            first, second = common_subsequence(base[low_a:high_a], new[low_b:high_b])
            result.append((low_a + first, low_b + second))
    return [*result, _columns(few)]


def _columns(pairs: Sequence[Pair]) -> Pairs:
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _gaps(anchors: Pairs, count_a: int, count_b: int) -> list[list[int]]:
    """Return (low_a, high_a, low_b, high_b) of the gaps in which both sides have elements."""
    first, second = anchors
    gaps = np.stack(
        (
            np.append(0, first + 1),
            np.append(first, count_a),
            np.append(0, second + 1),
            np.append(second, count_b),
        ),
        axis=1,
    )
    result: list[list[int]] = gaps[(gaps[:, 0] < gaps[:, 1]) & (gaps[:, 2] < gaps[:, 3])].tolist()
    return result


def common_subsequence(base: Ints, new: Ints) -> Pairs:
    """Return the positions of a long common subsequence of numbered keys, in ascending order.

    It is the longest one if the differing parts are small. NO_KEY is never paired. The time is
    about linear for similar sequences.
    """
    result: list[Pairs] = []
    few: list[Pair] = []
    work = [(0, len(base), 0, len(new))]
    while work:
        low_a, high_a, low_b, high_b = work.pop()
        part_a, part_b = base[low_a:high_a], new[low_b:high_b]
        if len(part_a) + len(part_b) <= _MAX_LIST_LENGTH:
            pairs = _common_in_lists(part_a.tolist(), part_b.tolist())
            few += [(low_a + i, low_b + j) for i, j in pairs]
            continue
        before = _equal_prefix(part_a, part_b)
        after = _equal_prefix(part_a[before:][::-1], part_b[before:][::-1])
        if before or after:
            ends = np.append(np.arange(before), np.arange(-after, 0))
            result.append((low_a + ends % len(part_a), low_b + ends % len(part_b)))
            middle = (low_a + before, high_a - after, low_b + before, high_b - after)
            if middle[0] < middle[1] and middle[2] < middle[3]:
                work.append(middle)
            continue
        # Pairs of keys that occur once on each side, in order of the baseline.
        (keys_a, at_a), (keys_b, at_b) = _once(part_a), _once(part_b)
        _, in_a, in_b = np.intersect1d(keys_a, keys_b, assume_unique=True, return_indices=True)
        anchors = _ascending(*_in_order(at_a[in_a], at_b[in_b]))
        if len(anchors[0]):
            # Elements that occur once on each side split the problem into independent parts.
            result.append((low_a + anchors[0], low_b + anchors[1]))
            work += [
                (low_a + gap[0], low_a + gap[1], low_b + gap[2], low_b + gap[3])
                for gap in _gaps(anchors, len(part_a), len(part_b))
            ]
        elif len(part_a) * len(part_b) <= _EXACT_CELLS:
            exact = _longest(part_a.tolist(), part_b.tolist())
            few += [(low_a + i, low_b + j) for i, j in exact]
        else:
            by_occurrence = _ascending(*_occurrence_pairs(part_a, part_b))
            result.append((low_a + by_occurrence[0], low_b + by_occurrence[1]))
    return _sorted([*result, _columns(few)])


def _equal_prefix(a: Ints, b: Ints) -> int:
    """Return the number of equal elements at the beginning."""
    size = min(len(a), len(b))
    differs = (a[:size] != b[:size]) | (a[:size] == NO_KEY)
    return int(np.argmax(differs)) if differs.any() else size


def _once(part: Ints) -> Pairs:
    """Return the keys that occur once, and their positions."""
    keys, first, count = np.unique(part, return_index=True, return_counts=True)
    single = (count == 1) & (keys != NO_KEY)
    return keys[single], first[single]


def _occurrence_pairs(a: Ints, b: Ints) -> Pairs:
    """Return pairs of equal keys: the n-th occurrence in `a` and the n-th one in `b`."""
    size = int(max(a.max(initial=0), b.max(initial=0))) + 1
    where_a, where_b = np.flatnonzero(a != NO_KEY), np.flatnonzero(b != NO_KEY)
    key_a = occurrence(a[where_a]) * size + a[where_a]
    key_b = occurrence(b[where_b]) * size + b[where_b]
    _, in_a, in_b = np.intersect1d(key_a, key_b, assume_unique=True, return_indices=True)
    return _in_order(where_a[in_a], where_b[in_b])


def _ascending(first: Ints, second: Ints) -> Pairs:
    """Return the longest selection of pairs that ascends on both sides; `first` is ascending."""
    if (second[1:] > second[:-1]).all():
        return first, second
    chosen = _longest_ascending(second.tolist())
    return first[chosen], second[chosen]


def _longest_ascending(values: Sequence[int]) -> list[int]:
    """Return the positions of the longest ascending subsequence."""
    tails: list[int] = []
    tail_index: list[int] = []
    previous: list[int] = []
    for index, value in enumerate(values):
        place = bisect_left(tails, value)
        previous.append(tail_index[place - 1] if place else -1)
        if place == len(tails):
            tails.append(value)
            tail_index.append(index)
        else:
            tails[place] = value
            tail_index[place] = index
    chain: list[int] = []
    index = tail_index[-1] if tail_index else -1
    while index >= 0:
        chain.append(index)
        index = previous[index]
    return chain[::-1]


def _moved(base: Sequence[Ints], new: Sequence[Ints], anchors: Pairs, levels: int) -> list[Pairs]:
    """Return pairs of unpaired elements by their keys, in order of occurrence, at any position."""
    free_a = np.delete(np.arange(len(base[0])), anchors[0])
    free_b = np.delete(np.arange(len(new[0])), anchors[1])
    result = []
    for left, right in zip(base[:levels], new[:levels], strict=True):
        in_a, in_b = _occurrence_pairs(left[free_a], right[free_b])
        result.append((free_a[in_a], free_b[in_b]))
        free_a, free_b = np.delete(free_a, in_a), np.delete(free_b, in_b)
    return result


def _common_in_lists(base: Sequence[int], new: Sequence[int]) -> list[Pair]:
    """Return the pairs of `common_subsequence` for two short lists, in any order."""
    pairs: list[Pair] = []
    work = [(0, len(base), 0, len(new))]
    while work:
        low_a, high_a, low_b, high_b = work.pop()
        while low_a < high_a and low_b < high_b and _same(base[low_a], new[low_b]):
            pairs.append((low_a, low_b))
            low_a, low_b = low_a + 1, low_b + 1
        while low_a < high_a and low_b < high_b and _same(base[high_a - 1], new[high_b - 1]):
            high_a, high_b = high_a - 1, high_b - 1
            pairs.append((high_a, high_b))
        if low_a == high_a or low_b == high_b:
            continue
        part_a, part_b = base[low_a:high_a], new[low_b:high_b]
        in_a, in_b = _positions(part_a), _positions(part_b)
        unique = [
            (where[0], in_b[element][0])
            for element, where in in_a.items()
            if len(where) == 1 and len(in_b.get(element, ())) == 1
        ]
        if unique:
            splits = [
                (low_a + unique[index][0], low_b + unique[index][1])
                for index in _longest_ascending([j for _, j in unique])
            ]
            pairs.extend(splits)
            for start, end in zip(
                [(low_a - 1, low_b - 1), *splits], [*splits, (high_a, high_b)], strict=True
            ):
                work.append((start[0] + 1, end[0], start[1] + 1, end[1]))
        else:
            pairs.extend((low_a + i, low_b + j) for i, j in _longest(part_a, part_b))
    return pairs


def _same(a: int, b: int) -> bool:
    return a == b and a != NO_KEY


def _positions(part: Sequence[int]) -> dict[int, list[int]]:
    result: dict[int, list[int]] = defaultdict(list)
    for position, element in enumerate(part):
        if element != NO_KEY:
            result[element].append(position)
    return result


def _longest(a: Sequence[int], b: Sequence[int]) -> list[Pair]:
    """Return a longest common subsequence by dynamic programming."""
    # lengths[i][j]: longest common subsequence of a[i:] and b[j:].
    lengths = [[0] * (len(b) + 1)]
    for element in reversed(a):
        below = lengths[-1]
        row = [0] * (len(b) + 1)
        for j in range(len(b) - 1, -1, -1):
            row[j] = below[j + 1] + 1 if _same(element, b[j]) else max(below[j], row[j + 1])
        lengths.append(row)
    lengths.reverse()
    pairs: list[Pair] = []
    i = j = 0
    while i < len(a) and j < len(b):
        if _same(a[i], b[j]):
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs
