"""Pair the operations of two runs, tolerating inserted, removed and moved ones.

Both sequences are in program order. Each element carries several keys, from the most to the
least specific (for an operation: module path, source line and name; module path and name; ...).
The most specific key is aligned first, over the whole sequences; what it leaves unpaired is
aligned by the next one, but only inside the gap between two pairs, so that a weak key cannot pair
across a strong one. What is left after the last key is paired by the most specific keys wherever
it stands: it was moved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence

Pair = tuple[int, int]
"""Position in the one sequence, position in the other."""

Keys = Sequence[Hashable]
"""One element's keys, most specific first; None: it has no such key and it pairs with nothing."""

# A gap of at most this many cells is solved exactly; a larger one by occurrence.
_EXACT_CELLS = 250_000


def align(base: Sequence[Keys], new: Sequence[Keys], *, moved_levels: int = 2) -> list[Pair]:
    """Return pairs of equal elements, in order of the first sequence; each element at most once.

    Args:
        base: the keys of each element of the one sequence; all with the same number of keys.
        new: likewise for the other.
        moved_levels: how many of the most specific keys may pair out of order.
    """
    levels = len(base[0]) if base else len(new[0]) if new else 0
    anchors: list[Pair] = []
    for level in range(levels):
        found: list[Pair] = []
        for base_gap, new_gap in _gaps(anchors, len(base), len(new)):
            left = [base[i][level] for i in base_gap]
            right = [new[j][level] for j in new_gap]
            for i, j in common_subsequence(left, right):
                found.append((base_gap[i], new_gap[j]))
        anchors = sorted(anchors + found)
    return sorted(anchors + _moved(base, new, anchors, moved_levels))


def common_subsequence(base: Sequence[Hashable], new: Sequence[Hashable]) -> list[Pair]:
    """Return a long common subsequence of the two, as pairs of positions in rising order.

    It is the longest one where the parts that differ are small; elements that are None take part
    in none. Time is about linear for sequences that are alike.
    """
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
        if anchors := _rising(_unique_pairs(part_a, part_b)):
            # Elements that occur once on each side split the problem; they pair in the parts.
            splits = [(low_a + i, low_b + j) for i, j in anchors]
            pairs.extend(splits)
            for start, end in zip(
                [(low_a - 1, low_b - 1), *splits], [*splits, (high_a, high_b)], strict=True
            ):
                work.append((start[0] + 1, end[0], start[1] + 1, end[1]))
        elif len(part_a) * len(part_b) <= _EXACT_CELLS:
            pairs.extend((low_a + i, low_b + j) for i, j in _longest(part_a, part_b))
        else:
            by_occurrence = _rising(_occurrence_pairs(part_a, part_b))
            pairs.extend((low_a + i, low_b + j) for i, j in by_occurrence)
    return sorted(pairs)


def _same(a: Hashable, b: Hashable) -> bool:
    return a is not None and a == b


def _gaps(anchors: Sequence[Pair], count_a: int, count_b: int) -> list[tuple[range, range]]:
    """Return the stretches between neighbouring anchors in which both sides have elements."""
    starts = [(-1, -1), *anchors]
    ends = [*anchors, (count_a, count_b)]
    return [
        (range(start[0] + 1, end[0]), range(start[1] + 1, end[1]))
        for start, end in zip(starts, ends, strict=True)
        if start[0] + 1 < end[0] and start[1] + 1 < end[1]
    ]


def _positions(part: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for position, element in enumerate(part):
        if element is not None:
            found[element].append(position)
    return found


def _unique_pairs(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Pair]:
    in_a, in_b = _positions(a), _positions(b)
    return [
        (where[0], in_b[element][0])
        for element, where in in_a.items()
        if len(where) == 1 and len(in_b.get(element, ())) == 1
    ]


def _occurrence_pairs(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Pair]:
    in_a, in_b = _positions(a), _positions(b)
    return sorted(
        pair
        for element, where in in_a.items()
        for pair in zip(where, in_b.get(element, ()), strict=False)
    )


def _rising(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the longest selection of pairs (given in order of the first) that rises in both."""
    tails: list[int] = []
    tail_index: list[int] = []
    previous: list[int] = []
    for index, (_, second) in enumerate(pairs):
        place = bisect_left(tails, second)
        previous.append(tail_index[place - 1] if place else -1)
        if place == len(tails):
            tails.append(second)
            tail_index.append(index)
        else:
            tails[place] = second
            tail_index[place] = index
    chain: list[Pair] = []
    index = tail_index[-1] if tail_index else -1
    while index >= 0:
        chain.append(pairs[index])
        index = previous[index]
    return chain[::-1]


def _longest(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Pair]:
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


def _moved(
    base: Sequence[Keys], new: Sequence[Keys], anchors: Sequence[Pair], levels: int
) -> list[Pair]:
    """Pair what is still alone by its keys, in order of occurrence, wherever it stands."""
    free_a = sorted(set(range(len(base))) - {i for i, _ in anchors})
    free_b = sorted(set(range(len(new))) - {j for _, j in anchors})
    pairs: list[Pair] = []
    for level in range(levels if base and new else 0):
        found = _occurrence_pairs([base[i][level] for i in free_a], [new[j][level] for j in free_b])
        pairs.extend((free_a[i], free_b[j]) for i, j in found)
        taken_a, taken_b = {i for i, _ in found}, {j for _, j in found}
        free_a = [position for i, position in enumerate(free_a) if i not in taken_a]
        free_b = [position for j, position in enumerate(free_b) if j not in taken_b]
    return pairs
