"""Which operations of two recordings are the same, whatever each backend calls them.

Most have one name on both sides (`names.canonical`). Of the others those are paired that do work of
one class in the same modules, in the same order; then those of one class with the same shapes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import UNKNOWN
from unified_prof.analysis.compare.device.leaves import Leaves, distinct
from unified_prof.analysis.compare.device.side import Side

Ints = NDArray[np.int64]

_ALIKE = 0.5
"""Part of the fewer of two operations' calls that has to be in the same places."""
_CANDIDATES = 32
"""Operations without a counterpart that may share a place: where more do, it tells nothing."""

Key = tuple[int, int]
"""Class and operation, as numbers in the labels."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """The operations of both sides, numbered so that counterparts have one number."""

    base: Ints
    """The number of each row of the base's leaves."""
    new: Ints
    keys: tuple[tuple[Key | None, Key | None], ...]
    """Class and operation on each side, by number; None: the side has no counterpart."""


def pair(base: Side, new: Side) -> Pairing:
    """Find the counterpart of each operation."""
    sides = [_Operations(side) for side in (base, new)]
    mine, theirs = (dict.fromkeys(side.keys) for side in sides)
    keys: list[tuple[Key | None, Key | None]] = [(key, key) for key in mine if key in theirs]
    left = [[key for key in mine if key not in theirs], [key for key in theirs if key not in mine]]
    for column in ("module", "shape"):
        found = _by_places(sides, left, column)
        keys += found
        paired = [{pair[side] for pair in found} for side in (0, 1)]
        left = [[key for key in left[side] if key not in paired[side]] for side in (0, 1)]
    keys += [(key, None) for key in left[0]] + [(None, key) for key in left[1]]
    numbers: list[dict[Key, int]] = [{}, {}]
    for number, pair_of_keys in enumerate(keys):
        for side, key in zip(numbers, pair_of_keys, strict=True):
            if key is not None:
                side[key] = number
    of_base, of_new = (
        np.array([known[key] for key in side.keys], np.int64)[side.of_row]
        if len(side.keys)
        else np.zeros(0, np.int64)
        for side, known in zip(sides, numbers, strict=True)
    )
    return Pairing(of_base, of_new, tuple(keys))


class _Operations:
    """The operations of one side, in order of first use, and where they were called."""

    def __init__(self, side: Side) -> None:
        columns = side.leaves.columns
        self._leaves: Leaves = side.leaves
        self._shares = side.shares
        classes, operations = columns["class"], columns["operation"]
        number, first = distinct(classes, operations)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.of_row: Ints = rank[number]
        first = first[order]
        self.keys: list[Key] = list(
            zip(classes[first].tolist(), operations[first].tolist(), strict=True)
        )

    def places(self, wanted: Sequence[Key], column: str) -> dict[Key, dict[int, float]]:
        """Return how often a step calls each of the operations, by module (or shape)."""
        keep = set(wanted)
        found: dict[Key, dict[int, float]] = {key: {} for key in wanted}
        if not keep:
            return found
        chosen = np.array([key in keep for key in self.keys], bool)
        where = self._leaves.columns[column]
        rows = np.flatnonzero(chosen[self.of_row] & (where != UNKNOWN))
        for key, place, calls in zip(
            self.of_row[rows].tolist(),
            where[rows].tolist(),
            self._leaves.calls[rows].tolist(),
            strict=True,
        ):
            own = found[self.keys[key]]
            own[place] = own.get(place, 0.0) + calls / self._shares
        return found


def _by_places(
    sides: Sequence[_Operations], left: Sequence[Sequence[Key]], column: str
) -> list[tuple[Key | None, Key | None]]:
    """Pair operations of one class that are called in the same places, the most alike first."""
    places = [side.places(keys, column) for side, keys in zip(sides, left, strict=True)]
    at: tuple[defaultdict[Key, list[int]], ...] = (defaultdict(list), defaultdict(list))
    for side in (0, 1):
        for index, key in enumerate(left[side]):
            for place in places[side][key]:
                at[side][key[0], place].append(index)
    shared: defaultdict[tuple[int, int], float] = defaultdict(float)
    for where, mine in at[0].items():
        theirs = at[1].get(where, [])
        if max(len(mine), len(theirs)) > _CANDIDATES:
            continue
        for one in mine:
            for other in theirs:
                shared[one, other] += min(
                    places[0][left[0][one]][where[1]], places[1][left[1][other]][where[1]]
                )
    calls = [[sum(places[side][key].values()) for key in left[side]] for side in (0, 1)]
    ranked = sorted(
        (-common / min(calls[0][one], calls[1][other]), abs(one - other), one, other)
        for (one, other), common in shared.items()
        if common > 0
    )
    taken: tuple[set[int], set[int]] = (set(), set())
    found: list[tuple[Key | None, Key | None]] = []
    for share, _, one, other in ranked:
        if -share >= _ALIKE and one not in taken[0] and other not in taken[1]:
            taken[0].add(one)
            taken[1].add(other)
            found.append((left[0][one], left[1][other]))
    return found
