"""Pairs and groups whose data moves more slowly in some steps than in others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unified_prof.cluster.links import Floats, Ints
from unified_prof.cluster.matching import Matched
from unified_prof.cluster.partial import NONE
from unified_prof.cluster.slow_links import LEAST_RATIO, Slow, moved_bytes, scatter
from unified_prof.cluster.spread import farthest, median_of_others
from unified_prof.cluster.waits import Waits

_FEW_CELLS = 4
"""So many medians of steps are needed to know what is usual among them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """What the same pair or group did in one step, of the same kind and size."""

    who: Ints
    """A pair in its direction, below 0, or a group."""
    like: Ints
    """Those of the same number can be compared."""
    step: Ints
    took: Floats
    """The median of its events."""
    events: list[Ints]


def slow_at_times(matched: Matched, waits: Waits) -> list[Slow]:
    """Return pairs and groups whose data moves more slowly in some steps than in others.

    Compared are the medians of a step, with those of all steps and likes, and with those of
    likes in the same step: what is slow for all at once is no link's fault.
    """
    events = matched.events
    usable = np.flatnonzero(
        events.complete & (waits.transfer > 0) & (events.bytes > 0) & (events.step >= 0)
    )
    if not len(usable) or int(events.step[usable].min()) == int(events.step[usable].max()):
        return []
    number = {rank: index for index, rank in enumerate(matched.ranks)}
    cells = _cells(matched, usable, waits.transfer[usable], number)
    found: dict[tuple[int, ...] | int, Slow] = {}
    edges = np.flatnonzero(np.r_[True, np.diff(cells.like) != 0, True])
    for begin, end in pairwise(edges.tolist()):
        if end - begin < _FEW_CELLS:
            continue
        own = np.arange(begin, end)
        for one, hot, ratio, usual in _at_times(cells.who[own], cells.step[own], cells.took[own]):
            if one < 0:
                ranks = tuple(sorted(divmod(-1 - one, len(matched.ranks))))
            else:
                ranks = tuple(sorted(number[rank] for rank in matched.groups[one].ranks))
            chosen = own[hot]
            mine = np.concatenate([cells.events[cell] for cell in chosen.tolist()]).tolist()
            size = int(events.bytes[mine[0]])
            slow = Slow(
                ranks,
                len(ranks) == 2,
                ratio,
                tuple(mine),
                size / (usual * ratio),
                size / usual,
                NONE if one < 0 else one,
                tuple(sorted(set(cells.step[chosen].tolist()))),
            )
            key = ranks if one < 0 else one
            old = found.get(key)
            found[key] = slow if old is None else _together(matched, old, slow)
    return sorted(found.values(), key=lambda one: -one.ratio)


def _cells(
    matched: Matched, usable: NDArray[np.intp], took: Ints, number: Mapping[int, int]
) -> _Cells:
    """Return the cells of events, those alike one after another."""
    events = matched.events
    # Who: a pair in its direction, or a group.
    pair = -1 - (events.src[usable] * len(matched.ranks) + events.dst[usable])
    who = np.where(matched.transfers[usable], pair, events.group[usable])
    like, step = _likes(matched, usable, number), events.step[usable]
    order = np.lexsort((took, step, who, like))
    who, like, took, step = who[order], like[order], took[order], step[order]
    new = np.ones(len(order), bool)
    new[1:] = np.logical_or.reduce([one[1:] != one[:-1] for one in (like, who, step)])
    heads = np.flatnonzero(new)
    n = np.diff(np.r_[heads, len(order)])
    middle = (took[heads + (n - 1) // 2] + took[heads + n // 2]) / 2
    return _Cells(who[heads], like[heads], step[heads], middle, np.split(usable[order], heads[1:]))


def _likes(matched: Matched, usable: NDArray[np.intp], number: Mapping[int, int]) -> Ints:
    """Number events so that those alike have the same: kind, bytes, members, across hosts."""
    events = matched.events
    host_of = {name: at for at, name in enumerate({facts.host for facts in matched.facts})}
    host = np.array([host_of[facts.host] for facts in matched.facts])
    sends, group = matched.transfers[usable], events.group[usable]
    hosts = np.array(
        [
            len({matched.facts[number[rank]].host for rank in one.ranks if rank in number})
            for one in matched.groups
        ]
        or [0]
    )
    sizes = np.array([one.size for one in matched.groups] or [0])
    far = host[events.src[usable]] != host[events.dst[usable]]
    like = np.zeros(len(usable), np.int64)
    for column in (
        np.where(sends, NONE, events.kind[usable]),
        events.bytes[usable],
        np.where(sends, 2, sizes[group]),
        np.where(sends, far, hosts[group]),
    ):
        found, code = np.unique(column, return_inverse=True)
        like = like * len(found) + code.reshape(-1)
    return like


def _together(matched: Matched, old: Slow, slow: Slow) -> Slow:
    """Return one of two findings of the same pair or group; the larger one gives the figures."""
    best = slow if moved_bytes(matched, slow) > moved_bytes(matched, old) else old
    return replace(
        best,
        events=(*old.events, *slow.events),
        steps=tuple(sorted({*old.steps, *slow.steps})),
    )


def _at_times(
    who: Ints, step: Ints, took: Floats
) -> Iterator[tuple[int, NDArray[np.intp], float, float]]:
    """Yield (who, which cells, ratio, what is usual) of whoever is slow in some steps alone."""
    usual = median_of_others(took)
    away = np.log(took / usual)
    then = np.full(len(took), np.nan)
    for one in np.unique(step).tolist():
        mine = np.flatnonzero(step == one)
        if len(mine) > 2:
            then[mine] = np.log(took[mine] / median_of_others(took[mine]))
    least = np.log(LEAST_RATIO)
    hot = away > max(farthest(len(took)) * scatter(took), least)
    # Where nobody did the same in that step, the first one may be slow for all.
    hot &= np.where(np.isfinite(then), then > least, step > step.min())
    for one in np.unique(who[hot]).tolist():
        mine = np.flatnonzero(who == one)
        chosen = mine[hot[mine]]
        rest = away[np.setdiff1d(mine, chosen)]
        level = float(np.median(away[chosen]))
        if len(rest) and (rest < level / 2).all():
            yield one, chosen, float(np.exp(level)), float(np.median(usual[chosen]))
