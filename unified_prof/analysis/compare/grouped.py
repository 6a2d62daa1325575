"""What of two runs is compared as one: a pair of operations, or all those of a line or module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from unified_prof.analysis.compare.alignment import Ints, Pairs
from unified_prof.analysis.compare.comparable import Operations, Place

By = Literal["operation", "line", "module", "annotation"]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """What is compared as one: a pair of operations, one alone, or those of a line or module."""

    places: Sequence[Place]
    """As in the new run, or as in the base run where it is gone."""
    base_places: Sequence[Place | None]
    moved: Sequence[bool]
    base: tuple[Ints, Ints]
    """Rows of the base run's operations and the group of each."""
    new: tuple[Ints, Ints]


def one_by_one(base: Operations, new: Operations, pairs: Pairs) -> Groups:
    """Return the pairs in program order of the base run, then what is new, then what is gone."""
    first, second = pairs
    only_new = np.delete(np.arange(len(new)), second)
    only_base = np.delete(np.arange(len(base)), first)
    paired, added, count = len(first), len(first) + len(only_new), len(base) + len(only_new)
    gone = [base.places[i] for i in only_base.tolist()]
    return Groups(
        places=[new.places[j] for j in (*second.tolist(), *only_new.tolist())] + gone,
        base_places=[
            *(base.places[i] for i in first.tolist()),
            *[None] * len(only_new),
            *gone,
        ],
        moved=[*_out_of_order(second), *[False] * (count - paired)],
        base=(
            np.concatenate((first, only_base)),
            np.concatenate((np.arange(paired), np.arange(added, count))),
        ),
        new=(np.concatenate((second, only_new)), np.arange(added)),
    )


def _out_of_order(second: Ints) -> list[bool]:
    """Return which pairs stand before one that precedes them on the other side."""
    before = np.maximum.accumulate(np.append(-1, second))[:-1]
    late: list[bool] = (second < before).tolist()
    return late


def summed_up(single: Groups, by: By) -> Groups:
    """Return the groups of all operations of one line or one module, in order of the first."""
    if by == "operation":
        return single
    keys = [place.line if by == "line" else place.module for place in single.places]
    numbers: dict[str | None, int] = {}
    group = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    members: list[list[int]] = [[] for _ in numbers]
    for index, own in enumerate(group.tolist()):
        members[own].append(index)
    sums = [_sum(key, single, rows, by) for key, rows in zip(numbers, members, strict=True)]

    def regrouped(side: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
        return side[0], group[side[1]]

    return Groups(
        places=[place for place, _ in sums],
        base_places=[base_place for _, base_place in sums],
        moved=[False] * len(sums),
        base=regrouped(single.base),
        new=regrouped(single.new),
    )


def _sum(
    key: str | None, single: Groups, members: Sequence[int], by: By
) -> tuple[Place, Place | None]:
    names = list(dict.fromkeys(single.places[index].name for index in members))
    name = names[0] if len(names) == 1 else ", ".join(names[:3]) + (", ..." if names[3:] else "")
    module = key if by == "module" else single.places[members[0]].module
    place = Place(name=name, module=module, line=key if by == "line" else None, kind=by)
    before = next(
        (one for index in members if (one := single.base_places[index]) is not None), None
    )
    if before is None:
        return place, None
    return place, replace(place, line=before.line if by == "line" else None)
