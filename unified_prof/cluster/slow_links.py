"""Which way data moved, and how quickly.

Only moving data counts, never waiting: transfers by what the shorter of the two ends took,
collectives by their least duration without set-up.

Pairs and groups of ranks whose data moves more slowly than that of others like them.

Like ones move as many bytes, inside a host or between hosts, and groups are as large.

Pairs and groups whose data moves more slowly in some steps than in others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Floats, Ints
from unified_prof.cluster.matching import MatchedCollectives
from unified_prof.cluster.rank_partial import NO_VALUE
from unified_prof.cluster.rule_context import chance_limit, median_of_others, robust_deviation
from unified_prof.cluster.waits import Waits

P2P, COLLECTIVE = "p2p", "collective"
_NS = 1e9


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """What moved from one rank (by number in `Matched.ranks`) to another."""

    src: int
    dst: int
    kind: str
    across: bool | None
    n: int
    bytes: int
    transfer_ns: int
    wait_ns: int | None
    p50: float
    """bytes/ns, which is GB/s"""
    p99: float
    like: float | None


def crosses_hosts(matched: MatchedCollectives, a: int, b: int) -> bool | None:
    """Say whether two ranks are on different hosts; None where that is not known."""
    one, other = matched.facts[a].host, matched.facts[b].host
    return None if one is None or other is None else one != other


def measure_links(matched: MatchedCollectives, waits: Waits) -> list[MeasuredLink]:
    """Return all of them, transfers first."""
    return [*_transfers(matched, waits), *_parts(matched)]


def _transfers(matched: MatchedCollectives, waits: Waits) -> list[MeasuredLink]:
    events = matched.events
    usable = np.flatnonzero(
        matched.transfers & events.complete & (waits.transfer > 0) & (events.bytes > 0)
    )
    if not len(usable):
        return []
    # Both rows of a transfer follow one another; the receiver's wait is that of its row.
    rows = matched.rows
    first = events.first[usable]
    receiver = np.where(rows.rank[first] == events.dst[usable], first, first + 1)
    rate = events.bytes[usable] / waits.transfer[usable]
    src, dst = events.src[usable], events.dst[usable]
    order = np.lexsort((rate, dst, src))
    src, dst, rate = src[order], dst[order], rate[order]
    usable, receiver = usable[order], receiver[order]
    heads = np.flatnonzero(np.r_[True, (np.diff(src) != 0) | (np.diff(dst) != 0)])
    n = np.diff(np.r_[heads, len(src)])
    size = np.add.reduceat(events.bytes[usable], heads)
    total = np.add.reduceat(waits.transfer[usable], heads)
    waited = np.add.reduceat(np.maximum(waits.wait[receiver], 0), heads)
    p50, p99 = rate[heads + n // 2], rate[heads + n // 100]
    between = [
        crosses_hosts(matched, int(a), int(b)) for a, b in zip(src[heads], dst[heads], strict=True)
    ]
    like = _like(between, _size_class(size / n), p50)
    return [
        MeasuredLink(*row)
        for row in zip(
            src[heads].tolist(),
            dst[heads].tolist(),
            [P2P] * len(heads),
            between,
            n.tolist(),
            size.tolist(),
            total.tolist(),
            waited.tolist(),
            p50.tolist(),
            p99.tolist(),
            like,
            strict=True,
        )
    ]


def _parts(matched: MatchedCollectives) -> list[MeasuredLink]:
    number = {rank: index for index, rank in enumerate(matched.ranks)}
    found: dict[tuple[int, int], list[float]] = {}
    for one in matched.partials:
        table = one.links
        for src, dst, n, size, total, p50, p99 in zip(
            *(v.tolist() for v in table.values()), strict=True
        ):
            if src in number and dst in number:
                row = found.setdefault((number[src], number[dst]), [0, 0, 0, 0.0, np.inf, 0])
                row[0] += n
                row[1] += size
                row[2] += total
                if n > row[5]:
                    row[3], row[5] = p50 / _NS, n
                row[4] = min(row[4], p99 / _NS)
    keys = sorted(found)
    between = [crosses_hosts(matched, *key) for key in keys]
    size = np.array([found[key][1] / found[key][0] for key in keys])
    p50 = np.array([found[key][3] for key in keys])
    like = _like(between, _size_class(size), p50)
    return [
        MeasuredLink(
            *key,
            COLLECTIVE,
            far,
            int(row[0]),
            int(row[1]),
            int(row[2]),
            None,
            row[3],
            row[4],
            usual,
        )
        for key, far, usual in zip(keys, between, like, strict=True)
        for row in [found[key]]
    ]


def _size_class(size: Floats) -> Ints:
    return np.floor(np.log2(np.maximum(size, 1))).astype(np.int64)


def _like(between: list[bool | None], size: Ints, rate: Floats) -> list[float | None]:
    """Return the median rate of links between or inside hosts with sizes of the same order."""
    classes: dict[tuple[bool | None, int], list[int]] = {}
    for index, (far, order) in enumerate(zip(between, size.tolist(), strict=True)):
        classes.setdefault((far, order), []).append(index)
    result: list[float | None] = [None] * len(between)
    for members in classes.values():
        usual = float(np.median(rate[members]))
        for index in members:
            result[index] = usual
    return result


LEAST_RATIO = 1.25
"""What is slower by less is not worth a name, however sure."""

_SURE_OF_TWO = 1.5
"""Of two alike one is called slow only from here on: nobody else says which one is usual."""


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A pair or a group whose data moves more slowly than that of others like it."""

    ranks: tuple[int, ...]
    """By number in `Matched.ranks`; of a pair two."""
    pair: bool
    ratio: float
    events: tuple[int, ...]
    gb_per_s: float
    like_gb_per_s: float
    group: int = NO_VALUE
    steps: tuple[int, ...] = ()
    """Those in which it is; none: in all."""


def slow_pairs(matched: MatchedCollectives, waits: Waits) -> list[SlowLink]:
    """Return pairs of ranks whose transfers take longer than those of like pairs."""
    events = matched.events
    usable = np.flatnonzero(
        matched.transfers & events.complete & (waits.transfer > 0) & (events.bytes > 0)
    )
    by_class: dict[tuple[object, int], dict[tuple[int, int], list[int]]] = {}
    for event in usable.tolist():
        ends = (int(events.src[event]), int(events.dst[event]))
        key = (crosses_hosts(matched, *ends), int(events.bytes[event]))
        by_class.setdefault(key, {}).setdefault(ends, []).append(event)
    worst: dict[tuple[int, int], SlowLink] = {}
    for (_, size), pairs in by_class.items():
        keys = list(pairs)
        took = np.array([float(np.median(waits.transfer[pairs[key]])) for key in keys])
        for place, ratio, usual in _outliers(took):
            ends = keys[place]
            pair = (min(ends), max(ends))
            found = SlowLink(
                pair, True, ratio, tuple(pairs[ends]), size / took[place], size / usual
            )
            old = worst.get(pair)
            both = found if old is None or found.ratio > old.ratio else old
            joined = found.events if old is None else (*old.events, *found.events)
            worst[pair] = SlowLink(
                pair, True, both.ratio, joined, both.gb_per_s, both.like_gb_per_s
            )
    return sorted(worst.values(), key=lambda one: -one.ratio)


def slow_groups(matched: MatchedCollectives, waits: Waits) -> list[SlowLink]:
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
    worst: dict[int, SlowLink] = {}
    for (_, size, *_), groups in by_class.items():
        keys = list(groups)
        took = np.array([float(np.median(waits.transfer[groups[key]])) for key in keys])
        for place, ratio, usual in _outliers(took):
            group = keys[place]
            ranks = tuple(sorted(number[rank] for rank in matched.groups[group].ranks))
            found = SlowLink(
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
            worst[group] = SlowLink(
                ranks,
                best.pair,
                best.ratio,
                events_of,
                best.gb_per_s,
                best.like_gb_per_s,
                group,
            )
    return sorted(worst.values(), key=lambda one: -one.ratio)


def moved_bytes(matched: MatchedCollectives, slow: SlowLink) -> int:
    """Return how many bytes the slow events moved together."""
    return int(matched.events.bytes[list(slow.events)].sum())


def link_scatter(took: Floats) -> float:
    """Return how far times usually lie apart, as logarithms.

    From the middle of all: of three the slow one takes the others' median of others with it.
    """
    logs = np.log(took)
    return robust_deviation(logs - np.median(logs))


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
    limit = max(chance_limit(len(took)) * link_scatter(took), np.log(LEAST_RATIO))
    return [
        (int(place), float(np.exp(away[place])), float(usual[place]))
        for place in np.flatnonzero(away > limit)
    ]


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


def slow_in_some_steps(matched: MatchedCollectives, waits: Waits) -> list[SlowLink]:
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
    found: dict[tuple[int, ...] | int, SlowLink] = {}
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
            slow = SlowLink(
                ranks,
                len(ranks) == 2,
                ratio,
                tuple(mine),
                size / (usual * ratio),
                size / usual,
                NO_VALUE if one < 0 else one,
                tuple(sorted(set(cells.step[chosen].tolist()))),
            )
            key = ranks if one < 0 else one
            old = found.get(key)
            found[key] = slow if old is None else _together(matched, old, slow)
    return sorted(found.values(), key=lambda one: -one.ratio)


def _cells(
    matched: MatchedCollectives, usable: NDArray[np.intp], took: Ints, number: Mapping[int, int]
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


def _likes(
    matched: MatchedCollectives, usable: NDArray[np.intp], number: Mapping[int, int]
) -> Ints:
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
        np.where(sends, NO_VALUE, events.kind[usable]),
        events.bytes[usable],
        np.where(sends, 2, sizes[group]),
        np.where(sends, far, hosts[group]),
    ):
        found, code = np.unique(column, return_inverse=True)
        like = like * len(found) + code.reshape(-1)
    return like


def _together(matched: MatchedCollectives, old: SlowLink, slow: SlowLink) -> SlowLink:
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
    hot = away > max(chance_limit(len(took)) * link_scatter(took), least)
    # Where nobody did the same in that step, the first one may be slow for all.
    hot &= np.where(np.isfinite(then), then > least, step > step.min())
    for one in np.unique(who[hot]).tolist():
        mine = np.flatnonzero(who == one)
        chosen = mine[hot[mine]]
        rest = away[np.setdiff1d(mine, chosen)]
        level = float(np.median(away[chosen]))
        if len(rest) and (rest < level / 2).all():
            yield one, chosen, float(np.exp(level)), float(np.median(usual[chosen]))
