"""Rule about slow links: hosts, ranks, pairs and groups that transfer data slowly.

Transfer times exclude waiting: for a send and its receive, the shorter duration is used; for a
collective, its shortest duration without setup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NO_VALUE, Bools, Floats, Ints, Runs, distinct
from unified_prof.cluster.matching import MatchedCollectives
from unified_prof.cluster.rank_signals import (
    chance_limit,
    median_of_others,
    robust_deviation,
    upper_cluster,
)
from unified_prof.cluster.replay import ReplayChange
from unified_prof.cluster.rule_context import (
    MIN_STEP_SHARE,
    Candidate,
    RuleContext,
    join_first,
    steps_text,
)
from unified_prof.cluster.summary_rows import COLLECTIVE, MeasuredLink, measure_links
from unified_prof.cluster.waits import Waits

SLOW_LINK, SLOW_HOST_LINK = "slow_link", "slow_host_link"

MIN_RATIO = 1.25  # Minimum ratio of a slow transfer time to the usual one.
# The same if two clusters of times are of similar size, so that the usual one is unknown.
_MIN_RATIO_OF_TWO = 1.5
# Minimum share of slow links of a host or rank to report the host or rank as the cause.
_MIN_CAUSE_SHARE = 0.75
# Messages of an exchange whose sizes differ by less than this factor are equal, or padded.
PADDED = 1.02
_MIN_RING = 5  # Minimum number of ranks of a ring in which late ranks and slow links differ.
# Minimum number and median size of the parts of collectives to compare a pair of ranks.
_MIN_PARTS, _MIN_PART_BYTES = 8, 1 << 20
_LEAST_RATE = 1e-9  # GB/s, for parts without a rate.


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A directed pair of ranks, or a group, whose transfers are slower than comparable ones."""

    ranks: tuple[int, ...]  # Indices of the ranks, sorted.
    # Sender and receiver; None for a group of more than two ranks or of collectives.
    ends: tuple[int, int] | None
    group: int  # Number of the group; NO_VALUE for sends and receives.
    ratio: float
    events: tuple[int, ...]
    gb_per_s: float
    usual_gb_per_s: float
    steps: tuple[int, ...] = ()  # Affected steps; empty: all.
    # True if most comparable links are as slow: reported only if they have a common cause.
    is_majority: bool = False

    def merge(self, other: SlowLink, matched: MatchedCollectives) -> SlowLink:
        """Return two findings about the same ranks as one, with the figures of the larger."""
        largest = max(self, other, key=lambda one: int(matched.events.bytes[[*one.events]].sum()))
        return replace(
            largest,
            ends=self.ends if self.ends == other.ends else None,
            events=(*self.events, *other.events),
            steps=tuple(sorted({*self.steps, *other.steps})),
        )


_End = tuple[str, str | int]  # (`rank`, index), (`host`, name) or (`device`, number on its host).
# Common cause of slow links, as source and target: one end, two hosts, or one device number on all
# hosts (a rail) as both.
_Cause = tuple[_End | None, _End | None]


def compare_links(
    matched: MatchedCollectives, waits: Waits
) -> tuple[list[SlowLink], set[tuple[int, int] | int], int]:
    """Compare the transfer times of pairs and groups.

    Comparable transfers have the same size and are all within hosts or all between hosts; groups
    also have the same kind of collective, size and number of hosts. If hosts are unknown, links are
    compared only with their own other steps, because links between hosts are usually slower.

    Returns:
        The slow links, all compared ones (pairs of sender and receiver, and numbers of groups), and
        the number of links that were not compared because hosts are unknown.
    """
    events = matched.events
    moved = events.complete & (waits.transfer > 0) & (events.bytes > 0)
    usable = np.flatnonzero(moved & ~_depends_on_load(matched))
    compared: set[tuple[int, int] | int] = set()
    if not len(usable):
        return [], compared, 0
    hosts = [facts.host for facts in matched.facts]
    cells = _cells(matched, usable, waits.transfer[usable])
    in_steps: dict[int, SlowLink] = {}
    always: dict[int, SlowLink] = {}
    unknown: set[int] = set()

    def add(
        found: dict[int, SlowLink], link: int, members: list[int], ratio: float, usual: float,
        steps: tuple[int, ...] = (), *, is_majority: bool = False,
    ) -> None:  # fmt: skip
        ends, ranks = _ends(matched, link), _members(matched, link)
        size = int(events.bytes[members[0]])
        rates = (size / (usual * ratio), size / usual)
        group = NO_VALUE if ends else link
        slow = SlowLink(
            tuple(sorted(ranks)), ends, group, ratio, tuple(members), *rates, steps, is_majority
        )
        found[link] = found[link].merge(slow, matched) if link in found else slow

    edges = np.flatnonzero(np.r_[True, np.diff(cells.comparable) != 0, True])
    for begin, end in pairwise(edges.tolist()):
        inside = np.arange(begin, end)
        inside = inside[cells.step[inside] >= 0]
        if len(inside) >= _MIN_CELLS and np.ptp(cells.step[inside]) > 0:
            arrays = (cells.link[inside], cells.step[inside], cells.took[inside])
            for link, places, ratio, usual in _slow_cells(*arrays):
                chosen = inside[places]
                members = np.concatenate([cells.events[at] for at in chosen.tolist()]).tolist()
                steps = tuple(sorted(set(cells.step[chosen].tolist())))
                add(in_steps, link, members, ratio, usual, steps)
        links, first = np.unique(cells.link[begin:end], return_index=True)
        bounds = [*(first + begin).tolist(), end]
        members_of = [
            np.concatenate(cells.events[low:high]).tolist() for low, high in pairwise(bounds)
        ]
        took: list[float] = []
        known: list[int] = []
        for at, link in enumerate(links.tolist()):
            if any(hosts[rank] is None for rank in _members(matched, link)):
                unknown.add(link)
                continue
            known.append(at)
            took.append(float(np.median(waits.transfer[members_of[at]])))
        if len(known) > 1:  # a link without comparable ones can never be found to be slow
            compared |= {_ends(matched, int(links[at])) or int(links[at]) for at in known}
        for place, ratio, usual, is_majority in _slow_times(np.array(took)):
            at = known[place]
            link = int(links[at])
            add(always, link, members_of[at], ratio, usual, is_majority=is_majority)
    slow = [*in_steps.values(), *(one for link, one in always.items() if link not in in_steps)]
    return slow, compared, len(unknown)


def _depends_on_load(matched: MatchedCollectives) -> Bools:
    """Return a mask of the exchanges of groups whose members send different amounts.

    They take as long as the busiest rank receives, even if all send equally many bytes.
    """
    events = matched.events
    exchange = matched.is_kind(events.kind, "all_to_all")
    if not exchange.any():
        return exchange
    sent = matched.rows.bytes[: int(events.members.sum())]
    most, least = (one.reduceat(sent, events.first) for one in (np.maximum, np.minimum))
    uneven = exchange & (most > PADDED * least)
    return exchange & np.isin(events.group, events.group[uneven])


def _ends(matched: MatchedCollectives, link: int) -> tuple[int, int] | None:
    """Return sender and receiver of a link of `_Cells`; None for a group."""
    return divmod(-1 - link, len(matched.ranks)) if link < 0 else None


def _members(matched: MatchedCollectives, link: int) -> Sequence[int]:
    """Return the ranks (indices) of a link."""
    return _ends(matched, link) or matched.present(matched.groups[link].ranks)


def link_spread(took: Floats) -> float:
    """Return the robust deviation of the logarithms of times from their median."""
    logs = np.log(took)
    return robust_deviation(logs - np.median(logs))


def _slow_times(took: Floats) -> list[tuple[int, float, float, bool]]:
    """Return (position, ratio, usual time, is_majority) for each time that is longer than usual.

    These are the times far above the median of the others. If there are none, or most are far above
    it, but the times form two distinct clusters, these are the times of the upper cluster.
    """
    if len(took) < 2:
        return []
    usual = median_of_others(took)
    away = np.log(took / usual)
    limit = max(chance_limit(len(took)) * link_spread(took), np.log(MIN_RATIO))
    if len(took) == 2:
        limit = np.log(_MIN_RATIO_OF_TWO)
    elif (
        not 0 < 2 * (away > limit).sum() <= len(took)
        and (above := upper_cluster(np.log(took), majority=True)) is not None
    ):
        away, limit = above, np.log(_MIN_RATIO_OF_TWO)
        usual = took / np.exp(above)
    slow = np.flatnonzero(away > limit).tolist()
    is_majority = 2 * len(slow) > len(took)
    return [(at, float(np.exp(away[at])), float(usual[at]), is_majority) for at in slow]


def slow_links(context: RuleContext) -> Iterator[Candidate]:
    """Yield hosts, ranks, pairs and groups that transfer data more slowly than others."""
    matched, waits = context.matched, context.waits
    slow, compared, count = compare_links(matched, waits)
    parts, compared_parts = _slow_parts(matched, waits, {at for one in slow for at in one.events})
    slow, compared = [*slow, *parts], compared | compared_parts
    if count:
        matched.left_out.add(
            "links_not_compared", "links of ranks on unknown hosts are not compared", count
        )
    by_steps: dict[tuple[int, ...], list[SlowLink]] = {}
    for one in slow:
        by_steps.setdefault(one.steps, []).append(one)
    for links in by_steps.values():
        left = links
        while found := _common_cause(context, compared, left):
            causes, members = found
            left = [one for one in left if one not in members]
            yield _common_cause_candidate(context, causes, members)
        pairs: dict[tuple[tuple[int, ...], int], SlowLink] = {}
        for one in (one for one in left if not one.is_majority):
            key = (one.ranks, one.group)
            pairs[key] = pairs[key].merge(one, matched) if key in pairs else one
        for one in pairs.values():
            yield _link_candidate(context, one)
    yield from _slow_exchanges(context)


def _slow_parts(
    matched: MatchedCollectives, waits: Waits, known: set[int]
) -> tuple[list[SlowLink], set[tuple[int, int] | int]]:
    """Compare the pairs of ranks between which NPUs record the parts of collectives.

    Only pairs within a host are compared: the tasks of RDMA are shorter than the transfers. `known`
    are the events of links that are slow as a whole.

    Returns:
        The slow pairs, and all compared ones.
    """
    events = matched.events
    usable = events.complete & (events.group >= 0) & (waits.transfer > 0) & ~matched.transfers
    classes: dict[int, list[MeasuredLink]] = {}
    for link in measure_links(matched, waits):
        if link.kind == COLLECTIVE and link.across is False and link.n >= _MIN_PARTS:
            order = (link.bytes // link.n).bit_length()
            classes.setdefault(order, []).append(link)
    slow: list[SlowLink] = []
    compared: set[tuple[int, int] | int] = set()
    for order, links in classes.items():
        if order < _MIN_PART_BYTES.bit_length():
            continue
        compared |= {(one.src, one.dst) for one in links}
        took = np.array([1 / max(one.p50, _LEAST_RATE) for one in links])
        for at, ratio, usual, is_majority in _slow_times(took):
            one = links[at]
            if ratio < _MIN_RATIO_OF_TWO:
                continue
            both = [
                number
                for number, group in enumerate(matched.groups)
                if {one.src, one.dst} <= set(matched.present(group.ranks))
            ]
            places = set(np.flatnonzero(usable & np.isin(events.group, both)).tolist()) - known
            if places:
                ends, moved = (one.src, one.dst), tuple(sorted(places))
                rates, ranks = (one.p50, 1 / usual), tuple(sorted(ends))
                slow.append(SlowLink(ranks, ends, NO_VALUE, ratio, moved, *rates, (), is_majority))
    return slow, compared


def _slow_exchanges(context: RuleContext) -> Iterator[Candidate]:
    """Yield two neighbours in a group that have no short exchange with their neighbours.

    A slow link of a ring delays all ranks, but those at its ends alone have no short exchange. A
    late rank delays its two neighbours, which are no neighbours of each other.
    """
    matched, events = context.matched, context.matched.events
    usable = matched.is_kind(events.kind, "coalesced", "send_receive") & (events.bytes > 0)
    usable &= events.complete & ~matched.transfers & np.isin(events.step, context.steps)
    keys = np.stack((events.group, events.kind, events.bytes), 1)
    for key in np.unique(keys[usable], axis=0):
        places = np.flatnonzero(usable & (keys == key).all(axis=1))
        group, size = matched.groups[int(key[0])], int(key[2])
        ranks = matched.present(group.ranks)
        inside = (events.first[places][:, None] + np.arange(len(ranks))).ravel()
        rank, length = matched.rows.rank[inside], matched.rows.length[inside]
        shortest = np.full(len(matched.ranks), np.iinfo(np.int64).max)
        np.minimum.at(shortest, rank, length)
        took = shortest[[*ranks]]
        usual = float(np.median(took))
        slow = np.flatnonzero(took > _MIN_RATIO_OF_TWO * usual)
        is_pair = len(slow) == 2 and np.ptp(slow) in (1, len(ranks) - 1)
        if len(ranks) < _MIN_RING or not is_pair or np.sort(took)[-3] > MIN_RATIO * usual:
            continue
        pair = tuple(ranks[at] for at in slow.tolist())
        rates = size / float(took[slow].min()), size / usual
        link = SlowLink(pair, None, int(key[0]), rates[1] / rates[0], (*places.tolist(),), *rates)
        # The replay lets exchanges end together, but the two ranks alone determine the speed.
        exposed_ns = np.minimum(length - matched.rows.covered[inside], length - usual).clip(0)
        cost_ns = float(exposed_ns[np.isin(rank, pair)].sum()) / 2 / len(context.steps)
        yield replace(_link_candidate(context, link), cost_ns=cost_ns)


def _causes(context: RuleContext, link: tuple[int, int] | int, ranks: Sequence[int]) -> set[_Cause]:
    """Return the common ends that could be the cause of a slow link."""
    result: set[_Cause] = set()
    hosts: list[_End] = [("host", host) for host in context.hosts(ranks)]
    sources, targets = hosts, hosts
    if not isinstance(link, int):
        result |= {(("rank", link[0]), None), (None, ("rank", link[1]))}
        ends: list[_End] = [("host", str(context.host(rank))) for rank in link]
        sources, targets = ends[:1], ends[1:]
    if len(hosts) > 1:
        result |= {(one, None) for one in sources} | {(None, one) for one in targets}
        devices = {context.matched.facts[rank].device_id or 0 for rank in ranks}
        result |= {(("device", one), ("device", one)) for one in devices if len(devices) == 1}
    if len(hosts) == 2:
        result |= {(one, other) for one in sources for other in targets if one != other}
    return result


def _common_cause(
    context: RuleContext, compared: set[tuple[int, int] | int], slow: Sequence[SlowLink]
) -> tuple[list[_Cause], list[SlowLink]] | None:
    """Return the causes that explain most slow links, and those links; None without such causes.

    A cause explains links if most of the links that it takes part in are slow. Both directions of
    one host are one cause.
    """
    matched = context.matched
    totals: dict[_Cause, int] = {}
    for link in compared:
        ranks = matched.present(matched.groups[link].ranks) if isinstance(link, int) else link
        for cause in _causes(context, link, ranks):
            totals[cause] = totals.get(cause, 0) + 1
    members: dict[_Cause, list[SlowLink]] = {}
    for one in slow:
        link = one.group if one.ends is None else one.ends
        for cause in _causes(context, link, one.ranks):
            members.setdefault(cause, []).append(one)
    rails = sum(source == target for source, target in totals)
    explained = {
        cause: links
        for cause, links in members.items()
        if len({one.ranks for one in links}) > 1
        and len(links) >= _MIN_CAUSE_SHARE * totals.get(cause, 0)
        and (rails > 1 or cause[0] != cause[1])  # with one number for all devices, it says nothing
    }
    if not explained:
        return None

    def preference(cause: _Cause) -> tuple[int, int, bool]:
        source, target = cause
        count = len(explained[cause])
        if source and target:
            # If these are all links of both hosts, either host could be the cause.
            one_sided = (explained.get((source, None), ()), explained.get((None, target), ()))
            either = source == target or all(len(links) == count for links in one_sided)
            return count, 2 if either else 0, True
        return count, 3 if ("rank" in (source or target or ())) else 1, source is not None

    best = max(sorted(explained, key=str), key=preference)
    links = explained[best]
    causes = [best]
    opposite = best[1], best[0]
    if opposite != best and (more := explained.get(opposite)):
        causes.append(opposite)
        links = [*links, *(one for one in more if one not in links)]
    return causes, links


def _common_cause_candidate(
    context: RuleContext, causes: Sequence[_Cause], links: Sequence[SlowLink]
) -> Candidate:
    """Return the candidate for slow links with a common cause."""
    steps = links[0].steps or context.steps
    ratio, rate, usual = (
        float(np.median([getattr(link, name) for link in links]))
        for name in ("ratio", "gb_per_s", "usual_gb_per_s")
    )
    ends = [link.ends for link in links if link.ends is not None]
    involved = sorted({rank for link in links for rank in link.ranks})
    ends_of = [end for end in causes[0] if end]
    kind, name = ends_of[0]
    names = [f"{kind} {end[1]}" for end in ends_of]
    if kind == "rank":
        involved, names = [int(name)], [context.describe(int(name))]
    elif len(names) == 1:
        involved = [rank for rank in involved if context.host(rank) == name]
        names.append(f"other {kind}s")
    names.append("other ranks")
    direction = "out" if causes[0][0] else "in"
    if len(causes) > 1 or kind == "device":
        direction = "both"
    words = {
        "out": f"traffic from {names[0]} to {names[1]}",
        "in": f"traffic from {names[1]} to {names[0]}",
        "both": f"traffic between {names[0]} and {names[1]}",
    }[direction]
    if kind == "device":
        words = f"traffic between devices {name} of different hosts (one rail)"
    text = (
        f"slow link: {words} takes {ratio:.2f} times as long{steps_text(context, steps)} as on "
        f"similar links ({len(links)} links or groups, {rate:.1f} GB/s compared with "
        f"{usual:.1f} GB/s)"
    )
    figures = {
        "factor": round(ratio, 4),
        "gb_per_s": round(rate, 3),
        "like_gb_per_s": round(usual, 3),
        "host": name if kind == "host" else None,
        "direction": direction,
        "links": len(links),
    }
    transfer = {event: 1 / link.ratio for link in links for event in link.events}
    change, kind = ReplayChange(transfer=transfer), SLOW_LINK if kind == "rank" else SLOW_HOST_LINK
    named = tuple((context.matched.ranks[a], context.matched.ranks[b]) for a, b in sorted(ends))
    return Candidate(kind, involved, tuple(steps), change, text, figures, links=named)


def _link_candidate(context: RuleContext, slow: SlowLink) -> Candidate:
    """Return the candidate for one pair or group."""
    steps = tuple(step for step in context.steps if step in slow.steps) or context.steps
    ranks = context.global_ranks(slow.ranks)
    rates = f"{slow.gb_per_s:.1f} GB/s compared with {slow.usual_gb_per_s:.1f} GB/s"
    is_pair = len(ranks) == 2
    figures = {
        "factor": round(slow.ratio, 4),
        "gb_per_s": round(slow.gb_per_s, 3),
        "like_gb_per_s": round(slow.usual_gb_per_s, 3),
        "link_known": is_pair,
    }
    where, hosts = steps_text(context, steps), context.hosts(slow.ranks)
    location = f" (host{'s' if len(hosts) > 1 else ''} {join_first(hosts)})" if hosts else ""
    if is_pair:
        ranks = context.global_ranks(slow.ends or slow.ranks)
        text = (  # without ends, both directions are slow
            f"slow link: ranks {ranks[0]} {'to' if slow.ends else 'and'} {ranks[1]}{location}: "
            "transfers take "
            f"{slow.ratio:.2f} times as long{where} as on similar links ({rates})"
        )
        links: tuple[tuple[int, int], ...] = ((ranks[0], ranks[1]),)
    else:
        group = context.matched.groups[slow.group]
        text = (
            f"slow link: {group.kind} group of ranks {join_first(ranks)}{location}: its transfers "
            f"take {slow.ratio:.2f} times as long{where} as those of similar groups; the link "
            "cannot be determined"
        )
        ring = [rank for rank in group.ranks if rank in ranks]
        links = tuple(zip(ring, [*ring[1:], ring[0]], strict=True))
    # Occasionally slow links that cost nothing are normal in networks.
    least_ns = MIN_STEP_SHARE * context.step_ns if slow.steps else 0.0
    change = ReplayChange(transfer=dict.fromkeys(slow.events, 1 / slow.ratio))
    fault = (SLOW_LINK, slow.ranks, steps, change, text, figures)
    return Candidate(*fault, links=links, min_cost_ns=least_ns)


_MIN_CELLS = 4  # Minimum number of per-step medians to determine the usual time.


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Cells: the transfers of one pair or group in one step, of the same kind and size."""

    link: Ints  # For each cell, its directed pair (negative) or the number of its group.
    comparable: Ints  # Cells with the same number are comparable.
    step: Ints
    took: Floats  # Median transfer time, ns.
    events: list[Ints]


def _cells(matched: MatchedCollectives, usable: NDArray[np.intp], took: Ints) -> _Cells:
    """Return the cells of events; comparable ones are adjacent."""
    events = matched.events
    link, sends = events.group[usable], usable[matched.transfers[usable]]
    pairs = events.src[sends] * len(matched.ranks) + events.dst[sends]
    link[matched.transfers[usable]] = -1 - pairs
    comparable, step = _comparable(matched, usable), events.step[usable]
    order = np.lexsort((took, step, link, comparable))
    link, comparable, took, step = (column[order] for column in (link, comparable, took, step))
    cells = Runs(comparable, link, step)
    heads, n = cells.starts, cells.sizes
    median = (took[heads + (n - 1) // 2] + took[heads + n // 2]) / 2
    return _Cells(
        link[heads], comparable[heads], step[heads], median, np.split(usable[order], heads[1:])
    )


def _comparable(matched: MatchedCollectives, usable: NDArray[np.intp]) -> Ints:
    """Return equal numbers for events of the same kind, bytes, members and number of hosts."""
    events = matched.events
    host_of = {name: at for at, name in enumerate({facts.host for facts in matched.facts})}
    host = np.array([host_of[facts.host] for facts in matched.facts])
    sends, group = matched.transfers[usable], events.group[usable]
    hosts = np.array(
        [
            len({matched.facts[rank].host for rank in matched.present(group.ranks)})
            for group in matched.groups
        ]
        or [0]
    )
    sizes = np.array([group.size for group in matched.groups] or [0])
    between = host[events.src[usable]] != host[events.dst[usable]]
    result = np.zeros(len(usable), np.int64)
    for column in (
        np.where(sends, NO_VALUE, events.kind[usable]),
        events.bytes[usable],
        np.where(sends, 2, sizes[group]),
        np.where(sends, between, hosts[group]),
    ):
        found, code = distinct(column.astype(np.int64))
        result = result * len(found) + code
    return result


def _slow_cells(
    link: Ints, step: Ints, took: Floats
) -> Iterator[tuple[int, NDArray[np.intp], float, float]]:
    """Yield (link, positions, ratio, usual time) for links that are slow only in some steps."""
    usual = median_of_others(took)
    away = np.log(took / usual)
    in_step = np.full(len(took), np.nan)
    for one in np.unique(step).tolist():
        places = np.flatnonzero(step == one)
        if len(places) > 2:
            in_step[places] = np.log(took[places] / median_of_others(took[places]))
    minimum = np.log(MIN_RATIO)
    slow = away > max(chance_limit(len(took)) * link_spread(took), minimum)
    # The first step may be slow for all links, so it needs comparable links.
    slow &= np.where(np.isfinite(in_step), in_step > minimum, step > step.min())
    for one in np.unique(link[slow]).tolist():
        places = np.flatnonzero(link == one)
        chosen = places[slow[places]]
        rest = away[np.setdiff1d(places, chosen)]
        level = float(np.median(away[chosen]))
        if len(rest) and (rest < level / 2).all():
            yield one, chosen, float(np.exp(level)), float(np.median(usual[chosen]))
