"""Pairs and groups of ranks whose data moves more slowly than that of others like them.

Like ones move as many bytes, inside a host or between hosts, and groups are as large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unified_prof.cluster.links import Floats, across
from unified_prof.cluster.matching import Matched
from unified_prof.cluster.partial import NONE
from unified_prof.cluster.spread import deviation, farthest, median_of_others
from unified_prof.cluster.waits import Waits

LEAST_RATIO = 1.25
"""What is slower by less is not worth a name, however sure."""

_SURE_OF_TWO = 1.5
"""Of two alike one is called slow only from here on: nobody else says which one is usual."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A pair or a group whose data moves more slowly than that of others like it."""

    ranks: tuple[int, ...]
    """By number in `Matched.ranks`; of a pair two."""
    pair: bool
    ratio: float
    events: tuple[int, ...]
    gb_per_s: float
    like_gb_per_s: float
    group: int = NONE
    steps: tuple[int, ...] = ()
    """Those in which it is; none: in all."""


def slow_pairs(matched: Matched, waits: Waits) -> list[Slow]:
    """Return pairs of ranks whose transfers take longer than those of like pairs."""
    events = matched.events
    usable = np.flatnonzero(
        matched.transfers & events.complete & (waits.transfer > 0) & (events.bytes > 0)
    )
    by_class: dict[tuple[object, int], dict[tuple[int, int], list[int]]] = {}
    for event in usable.tolist():
        ends = (int(events.src[event]), int(events.dst[event]))
        key = (across(matched, *ends), int(events.bytes[event]))
        by_class.setdefault(key, {}).setdefault(ends, []).append(event)
    worst: dict[tuple[int, int], Slow] = {}
    for (_, size), pairs in by_class.items():
        keys = list(pairs)
        took = np.array([float(np.median(waits.transfer[pairs[key]])) for key in keys])
        for place, ratio, usual in _outliers(took):
            ends = keys[place]
            pair = (min(ends), max(ends))
            found = Slow(pair, True, ratio, tuple(pairs[ends]), size / took[place], size / usual)
            old = worst.get(pair)
            both = found if old is None or found.ratio > old.ratio else old
            joined = found.events if old is None else (*old.events, *found.events)
            worst[pair] = Slow(pair, True, both.ratio, joined, both.gb_per_s, both.like_gb_per_s)
    return sorted(worst.values(), key=lambda one: -one.ratio)


def slow_groups(matched: Matched, waits: Waits) -> list[Slow]:
    """Return groups whose collectives move data more slowly than those of like groups."""
    events = matched.events
    usable = np.flatnonzero(
        ~matched.transfers & events.complete & (waits.transfer > 0) & (events.bytes > 0)
    )
    number = {rank: index for index, rank in enumerate(matched.ranks)}
    hosts = [
        len({matched.facts[number[rank]].host for rank in group.ranks if rank in number})
        for group in matched.groups
    ]
    by_class: dict[tuple[int, int, int, int], dict[int, list[int]]] = {}
    for event, group, kind, size in zip(
        usable.tolist(),
        events.group[usable].tolist(),
        events.kind[usable].tolist(),
        events.bytes[usable].tolist(),
        strict=True,
    ):
        key = (kind, size, matched.groups[group].size, hosts[group])
        by_class.setdefault(key, {}).setdefault(group, []).append(event)
    worst: dict[int, Slow] = {}
    for (_, size, *_), groups in by_class.items():
        keys = list(groups)
        took = np.array([float(np.median(waits.transfer[groups[key]])) for key in keys])
        for place, ratio, usual in _outliers(took):
            group = keys[place]
            ranks = tuple(sorted(number[rank] for rank in matched.groups[group].ranks))
            found = Slow(
                ranks,
                len(ranks) == 2,
                ratio,
                tuple(groups[group]),
                size / took[place],
                size / usual,
                group,
            )
            old = worst.get(group)
            # The largest messages say most about bandwidth.
            best = (
                found
                if old is None or len(found.events) * size > moved_bytes(matched, old)
                else old
            )
            events_of = found.events if old is None else (*old.events, *found.events)
            worst[group] = Slow(
                ranks,
                best.pair,
                best.ratio,
                events_of,
                best.gb_per_s,
                best.like_gb_per_s,
                group,
            )
    return sorted(worst.values(), key=lambda one: -one.ratio)


def moved_bytes(matched: Matched, slow: Slow) -> int:
    """Return how many bytes the slow events moved together."""
    return int(matched.events.bytes[list(slow.events)].sum())


def scatter(took: Floats) -> float:
    """Return how far times usually lie apart, as logarithms.

    From the middle of all: of three the slow one takes the others' median of others with it.
    """
    logs = np.log(took)
    return deviation(logs - np.median(logs))


def _outliers(took: Floats) -> list[tuple[int, float, float]]:
    """Return (place, ratio, what is usual) of times that are longer than chance allows."""
    if len(took) < 2:
        return []
    usual = median_of_others(took)
    away = np.log(took / usual)
    if len(took) == 2:
        return [
            (place, float(np.exp(away[place])), float(usual[place]))
            for place in range(2)
            if away[place] > np.log(_SURE_OF_TWO)
        ]
    limit = max(farthest(len(took)) * scatter(took), np.log(LEAST_RATIO))
    return [
        (int(place), float(np.exp(away[place])), float(usual[place]))
        for place in np.flatnonzero(away > limit)
    ]
