"""The operations of each region together: one counts for every region around it."""

from __future__ import annotations

import numpy as np

from unified_prof.analysis.compare.alignment import Ints
from unified_prof.analysis.compare.changes import explained_by, middle_delta
from unified_prof.analysis.compare.comparable import Operations, Place
from unified_prof.analysis.compare.grouped import Groups
from unified_prof.analysis.compare.judging import Floats

NO_REGION = "(outside any region)"


class Regions:
    """The groups of all operations of one region, each in every region around it."""

    def __init__(self, single: Groups, base: Operations, new: Operations) -> None:
        around = _regions_around(single, base, new)
        numbers: dict[str, int] = {}
        pairs = [
            (index, numbers.setdefault(name, len(numbers)))
            for index, names in enumerate(around)
            for name in dict.fromkeys(names or (NO_REGION,))
        ]
        members: list[list[int]] = [[] for _ in numbers]
        for index, own in pairs:
            members[own].append(index)
        places = [Place(name, None, None, "annotation") for name in numbers]
        base_places = [
            place if any(single.base_places[index] is not None for index in rows) else None
            for place, rows in zip(places, members, strict=True)
        ]

        def regrouped(side: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
            found = [
                (row, number)
                for row, index in zip(*(one.tolist() for one in side), strict=True)
                for number in groups_of[index]
            ]
            rows, groups = np.array(found, np.int64).reshape(-1, 2).T
            return rows, groups

        groups_of: list[list[int]] = [[] for _ in around]
        for index, own in pairs:
            groups_of[index].append(own)
        self.groups = Groups(
            places=places,
            base_places=base_places,
            moved=[False] * len(places),
            base=regrouped(single.base),
            new=regrouped(single.new),
        )
        delta_ns = middle_delta(base, new, single)[2]
        explained_ns = np.array(explained_by(delta_ns.tolist()))
        self.explained_ns: Floats = np.array([explained_ns[rows].sum() for rows in members])


def _regions_around(single: Groups, base: Operations, new: Operations) -> list[tuple[str, ...]]:
    """Return the regions around each pair, or what is alone: as in the new run where it has any."""
    found: list[tuple[str, ...]] = [()] * len(single.places)
    for operations, (rows, groups) in ((base, single.base), (new, single.new)):
        if operations.regions:
            for row, index in zip(rows.tolist(), groups.tolist(), strict=True):
                found[index] = operations.regions[row]
    return found
