"""By how much sequences of ranks are apart: a recording may begin some collectives later."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_AGREEMENT = 0.9
"""How many of the sizes must be equal for two sequences to be taken for the same."""
_FARTHEST_SHIFT = 4096


def aligned(steps: Sequence[Ints], sizes: Sequence[Ints]) -> list[int] | None:
    """Return by how much each sequence is to be shifted so that equal numbers mean one event."""
    reference = max(range(len(steps)), key=lambda at: len(steps[at]))
    result = []
    for step, size in zip(steps, sizes, strict=True):
        found = _by_steps(step, steps[reference], size, sizes[reference])
        if found is None:
            found = _by_sizes(size, sizes[reference])
        if found is None:
            return None
        result.append(found)
    low = min(result)
    return [one - low for one in result]


def _by_steps(step: Ints, other: Ints, size: Ints, other_size: Ints) -> int | None:
    """Shift so that each step that both have begins at the same number."""
    mine, mine_at = np.unique(step, return_index=True)
    theirs, theirs_at = np.unique(other, return_index=True)
    both, left, right = np.intersect1d(mine, theirs, return_indices=True)
    # A first step may be cut off, and -1 is no step.
    differences = [
        int(theirs_at[at] - mine_at[here])
        for number, here, at in zip(both.tolist(), left.tolist(), right.tolist(), strict=True)
        if number >= 0 and (mine_at[here] or theirs_at[at] or _equal_counts(step, other, number))
    ]
    if not differences:
        return None
    shift = max(set(differences), key=differences.count)
    return shift if _agreement(size, other_size, shift) >= _AGREEMENT else None


def _equal_counts(step: Ints, other: Ints, number: int) -> bool:
    return int((step == number).sum()) == int((other == number).sum())


def _by_sizes(size: Ints, other: Ints) -> int | None:
    """Shift so that sizes agree, where one shift does that best."""
    if len(size) == len(other) and _agreement(size, other, 0) >= _AGREEMENT:
        return 0
    farthest = min(max(len(size), len(other)) // 2, _FARTHEST_SHIFT)
    scores = {at: _agreement(size, other, at) for at in range(-farthest, farthest + 1)}
    best = max(scores.values())
    winners = [at for at, score in scores.items() if score == best]
    return winners[0] if best >= _AGREEMENT and len(winners) == 1 else None


def _agreement(size: Ints, other: Ints, shift: int) -> float:
    """Return which part of the sizes agree where `size[n]` stands beside `other[n + shift]`."""
    low, high = max(0, shift), min(len(other), len(size) + shift)
    if high <= low:
        return 0.0
    return float((size[low - shift : high - shift] == other[low:high]).mean())
