"""Which part each rank has in the run: its place in tensor, data, pipeline ... parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unified_prof.cluster.matching import ClusterGroup, Matched

Ints = NDArray[np.int64]

KINDS = ("tp", "dp", "pp", "ep", "cp")


@dataclass(frozen=True, slots=True, eq=False)
class Roles:
    """Of each rank of a `Matched`."""

    place: dict[str, list[int | None]]
    """Kind -> the rank's place; None where nothing says it."""
    peers: Ints
    """Ranks with equal numbers do the same work: those of one pipeline stage."""
    by_stage: bool
    """Whether stages said so; else it was judged by the work itself."""


def roles(matched: Matched, steps: list[int]) -> Roles:
    """Find out, from what groups are called, else from what they do."""
    _name_groups(matched)
    place = {kind: _places(matched, kind) for kind in KINDS}
    stages = place["pp"]
    if any(group.kind == "pp" for group in matched.groups):
        peers = np.array([-1 if stage is None else stage for stage in stages], np.int64)
        return Roles(place, peers, True)
    return Roles(place, _by_work(matched, steps), False)


def _name_groups(matched: Matched) -> None:
    """Give groups without a telling title a kind: by who is in them, and what they do."""
    world = _world(matched)
    transfers = set(matched.events.group[matched.transfers].tolist())
    others = set(matched.events.group[~matched.transfers].tolist())
    unnamed: list[tuple[int, ClusterGroup]] = []
    for number, group in enumerate(matched.groups):
        if group.kind != "other" or group.titles:
            continue
        if number in transfers and number not in others:
            group.kind = "pp"
        elif group.told and len(group.ranks) == world:
            group.kind = "world"
        elif group.told:
            unnamed.append((number, group))
    strides = {_stride(group.ranks) for _, group in unnamed}
    if len(strides) == 2 and min(strides) == 1:
        # Megatron's and everybody's order: ranks beside one another are tensor parallel.
        for _, group in unnamed:
            group.kind = "tp" if _stride(group.ranks) == 1 else "dp"


def _stride(ranks: tuple[int, ...]) -> int:
    ordered = sorted(ranks)
    steps = {b - a for a, b in pairwise(ordered)}
    return steps.pop() if len(steps) == 1 else 0


def _world(matched: Matched) -> int:
    told = [one.world_size for one in matched.facts if one.world_size]
    return max(told, default=0) or (max(matched.ranks, default=-1) + 1)


def _places(matched: Matched, kind: str) -> list[int | None]:
    """Return each rank's place in its group of a kind; 0 where the run is not divided so."""
    groups = [group for group in matched.groups if group.kind == kind and group.told]
    place: dict[int, int] = {}
    for group in sorted(groups, key=lambda one: one.size):
        for at, rank in enumerate(sorted(group.ranks)):
            place.setdefault(rank, at)
    named = any(group.kind in KINDS for group in matched.groups)
    found: list[int | None] = []
    for rank, facts in zip(matched.ranks, matched.facts, strict=True):
        alone = facts.shape.get(kind) == 1 or (named and not groups)
        found.append(place.get(rank, 0 if alone else None))
    return found


def _by_work(matched: Matched, steps: list[int]) -> Ints:
    """Put ranks together that run the same kernels equally often."""
    signatures: dict[tuple[tuple[str, int], ...], int] = {}
    result = np.empty(len(matched.ranks), np.int64)
    for index, one in enumerate(matched.partials):
        counts: dict[str, int] = {}
        table = one.kernels
        inside = np.isin(table["step"], steps)
        for name, n in zip(
            table["name"][inside].tolist(), table["n"][inside].tolist(), strict=True
        ):
            counts[one.names[name]] = counts.get(one.names[name], 0) + n
        key = tuple(sorted(counts.items()))
        result[index] = signatures.setdefault(key, len(signatures))
    # Nearly as many kinds of work as ranks: counts depend on the data, and say nothing.
    if len(signatures) > max(2, len(matched.ranks) // 2):
        result[:] = 0
    return result
