"""Expert imbalance: experts that always get more tokens than others, so that other ranks wait.

Routers never distribute tokens evenly, and the distribution changes from batch to batch. The rule
reports only a load that stays above the usual expert capacity, or one far above it that moves from
rank to rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unified_prof.arrays.grouping import Bools, Floats, Ints
from unified_prof.cluster.matching import ClusterGroup
from unified_prof.cluster.rank_partial import MARK_END, MARK_START
from unified_prof.cluster.rank_signals import chance_limit
from unified_prof.cluster.replay import ReplayChange
from unified_prof.cluster.rule_context import Candidate, RuleContext, join_first
from unified_prof.cluster.slow_links import PADDED

EXPERT_IMBALANCE = "expert_imbalance"
# Share of slower kernels above which a rank is slow for another reason than its tokens.
GENERAL_SLOWNESS = 0.9
# Minimum ratio of the load to the mean of the group: the usual capacity factor of routers.
_MIN_LOAD = 1.25
_MIN_STEPS = 0.75  # Minimum share of the steps (or exchanges) in which the load must be that high.
# Minimum ratio of the highest load in an exchange to the mean, if it is not always the same rank.
_MIN_MOVING_LOAD = 1.5
# Minimum ratio of the longest kernel time of a rank to the mean between two exchanges of experts.
_MIN_EXPERT_RATIO = 1.1
_KINDS_WITHOUT_EXPERTS = ("tp", "cp", "pp")


@dataclass(frozen=True, slots=True)
class _Group:
    """Exchanges and work of the ranks of one expert group; arrays are members x exchanges."""

    members: tuple[int, ...]  # Indices of the ranks.
    events: Ints  # Its exchanges, in order.
    step: Ints
    sent: Floats  # Bytes; NaN if not recorded.
    work: Floats  # Kernel time from the end of an exchange to the start of the next one, ns.
    first: Ints  # Mark of the end of the exchange.
    last: Ints  # Mark of the start of the next one.


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """A rank whose experts get more tokens than others."""

    rank: int
    ratio: float  # Ratio of its load to the mean of its group.
    # True if the load was measured in bytes, False if in kernel time of the experts.
    by_bytes: bool
    work_ratio: float  # Ratio of the kernel time of its experts to the mean of its group.


def has_experts(context: RuleContext) -> bool:
    """Return True if the run has expert groups."""
    matched = context.matched
    exchanges = matched.is_kind(matched.events.kind, "all_to_all")
    groups = np.unique(matched.events.group[exchanges]).tolist()
    return any(_may_have_experts(matched.groups[group]) for group in groups) or any(
        group.kind == "ep" for group in matched.groups
    )


def expert_imbalance(context: RuleContext) -> Iterator[Candidate]:
    """Yield the ranks whose experts get more tokens than those of others in their group."""
    found = list(_groups(context))
    overloaded = [(group, load) for group in found for load in _overloaded(context, group)]
    if not overloaded:
        yield from _moving_load(context, found)
        return
    loads = sorted((load for _, load in overloaded), key=lambda one: (-one.ratio, one.rank))
    groups = [*{id(group): group for group, _ in overloaded}.values()]
    ranks = [load.rank for load in loads]
    first = loads[0]
    numbers = context.global_ranks(ranks)
    ratio = f"{'up to ' if len(loads) > 1 else ''}{first.ratio:.2f}"
    load = f"get {ratio} times the mean number of tokens"
    if not first.by_bytes:
        load = f"take {ratio} times the mean kernel time (message sizes are equal)"
    if len(loads) == 1:
        members = join_first(context.global_ranks(groups[0].members))
        text = (
            f"expert imbalance: {context.describe(first.rank)}: its experts {load} of ranks "
            f"{members}"
        )
    else:
        text = (
            f"expert imbalance: experts of {len(loads)} ranks ({join_first(numbers)}) {load} of "
            "their group"
        )
    figures = {
        "load": round(first.ratio, 4),
        "work": round(first.work_ratio, 4),
        "loads": {
            str(number): round(load.ratio, 4) for number, load in zip(numbers, loads, strict=True)
        },
    }
    change = _balanced(context, groups)
    text = f"{text}, in every step"
    yield Candidate(EXPERT_IMBALANCE, ranks, context.steps, change, text, figures)


def _moving_load(context: RuleContext, groups: Sequence[_Group]) -> Iterator[Candidate]:
    """Yield the groups in which one rank gets far more tokens, but not always the same."""
    found = []
    for group in groups:
        by_bytes, loads, _ = _load(group)
        highest = loads.max(axis=0) / np.maximum(loads.mean(axis=0), 1.0)
        if highest.size and np.quantile(highest, 1 - _MIN_STEPS) >= _MIN_MOVING_LOAD:
            found.append((group, float(np.median(highest)), by_bytes))
    if not found:
        return
    ranks = sorted({rank for group, *_ in found for rank in group.members})
    load = max(ratio for _, ratio, _ in found)
    amount = f"get {load:.2f} times the mean number of tokens"
    if not any(by_bytes for *_, by_bytes in found):
        amount = f"take {load:.2f} times the mean kernel time (message sizes are equal)"
    text = (
        f"expert imbalance: in most exchanges, the experts of one rank {amount}; the rank changes "
        f"(among {join_first(context.global_ranks(ranks))})"
    )
    change = _balanced(context, [group for group, *_ in found], each=True)
    figures = {"load": round(load, 4)}
    yield Candidate(EXPERT_IMBALANCE, ranks, context.steps, change, text, figures)


def _groups(context: RuleContext) -> Iterator[_Group]:
    """Yield the expert groups that exchange tokens and whose ranks are all present."""
    matched = context.matched
    events, rows = matched.events, matched.rows
    exchange = matched.is_kind(events.kind, "all_to_all")
    usable = ~matched.transfers & events.complete & np.isin(events.step, list(context.steps))
    for at, group in enumerate(matched.groups):
        if not _may_have_experts(group) or len(matched.present(group.ranks)) < len(group.ranks):
            continue
        inside = np.flatnonzero(usable & (events.group == at))
        if len(chosen := inside[exchange[inside]]):
            inside = chosen
        elif group.kind != "ep":
            continue
        if not len(inside) or int(events.members[inside].min()) != len(group.ranks):
            continue
        inside = inside[np.argsort(rows.start[events.first[inside]], kind="stable")]
        members = tuple(sorted(matched.present(group.ranks)))
        at_rows = events.first[inside] + np.arange(len(members))[:, None]
        size = rows.bytes[at_rows].astype(np.float64)
        yield _Group(
            members,
            inside,
            events.step[inside],
            np.where(size >= 0, size, np.nan),
            *_work_between(context, members, rows.op[at_rows], events.step[inside]),
        )


def _may_have_experts(group: ClusterGroup) -> bool:
    return group.is_recorded and len(group.ranks) > 1 and group.kind not in _KINDS_WITHOUT_EXPERTS


def _work_between(
    context: RuleContext, members: Sequence[int], ops: Ints, step: Ints
) -> tuple[Floats, Ints, Ints]:
    """Return `work`, `first` and `last` of a `_Group`."""
    work = np.zeros(ops.shape)
    first, last = np.zeros(ops.shape, np.int64), np.zeros(ops.shape, np.int64)
    # Kernels after the last exchange of a step are not those of experts.
    inside = np.r_[step[1:] == step[:-1], False]
    for place, index in enumerate(members):
        marks = context.matched.partials[index].marks
        count = context.matched.partials[index].operations
        begins, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for found, what in ((begins, MARK_START), (ends, MARK_END)):
            at = np.flatnonzero(marks["what"] == what)
            found[marks["op"][at]] = at
        busy = np.r_[0, np.cumsum(marks["busy"])]
        first[place] = ends[ops[place]]
        following = np.r_[begins[ops[place][1:]], 0]
        last[place] = np.where(inside, np.maximum(following, first[place]), first[place])
        work[place] = busy[last[place]] - busy[first[place]]
    return work, first, last


def _overloaded(context: RuleContext, group: _Group) -> Iterator[ExpertLoad]:
    """Yield the members that have more load than others in nearly every step."""
    by_bytes, load, step = _load(group)
    with_experts = _have_experts(group)
    work = group.work[:, with_experts]
    total_work = work.sum(axis=1)
    work_ratio = total_work / total_work.mean() if total_work.sum() else np.ones(len(total_work))
    if not load.shape[1]:
        return
    share = load / np.maximum(load.mean(axis=0), 1.0)
    error = share.std(axis=1) / np.sqrt(share.shape[1])
    ratio = load.sum(axis=1) / max(float(load.sum(axis=1).mean()), 1.0)
    by_step = np.stack([load[:, step == one].sum(axis=1) for one in np.unique(step).tolist()], 1)
    above = by_step / np.maximum(by_step.mean(axis=0), 1.0) >= _MIN_LOAD
    significant = ratio - chance_limit(len(context.matched.ranks)) * error > 1.0
    overloaded = (ratio >= _MIN_LOAD) & (above.mean(axis=1) >= _MIN_STEPS) & significant
    if not by_bytes:  # a rank whose kernels are all slower does not have more tokens
        general = context.signals.kernels.slower_share[list(group.members)]
        overloaded &= ~(general > GENERAL_SLOWNESS)
    for place in np.flatnonzero(overloaded).tolist():
        yield ExpertLoad(
            group.members[place], float(ratio[place]), by_bytes, float(work_ratio[place])
        )


def _load(group: _Group) -> tuple[bool, Floats, Ints]:
    """Return True if bytes show the load, the load of each member and exchange, and its steps."""
    # All ranks send equally many tokens to experts: only what experts send back shows their load.
    varies = _varies(group)
    if np.isfinite(group.sent).all() and varies.any():
        return True, group.sent[:, varies], group.step[varies]
    with_experts = _have_experts(group)
    return False, group.work[:, with_experts], group.step[with_experts]


def _have_experts(group: _Group) -> Bools:
    """Return a mask of the exchanges that are followed by expert kernels (member times differ)."""
    mean = group.work.mean(axis=0)
    return np.asarray((mean > 0) & (group.work.max(axis=0) > _MIN_EXPERT_RATIO * mean))


def _varies(group: _Group) -> Bools:
    """Return a mask of the exchanges whose members send different amounts."""
    return np.asarray(group.sent.max(axis=0) > PADDED * group.sent.mean(axis=0))


def _balanced(
    context: RuleContext, groups: Sequence[_Group], *, each: bool = False
) -> ReplayChange:
    """Return the change that gives the experts of these groups the same load.

    If `each`, the load is the same in each exchange; otherwise only their totals are the same.
    """
    intervals: dict[tuple[int, int], float] = {}
    transfers: dict[int, float] = {}
    for group in groups:
        with_experts = _have_experts(group)
        experts = np.flatnonzero(with_experts).tolist()
        factor = _evening(group.work[:, experts], each=each)
        for place, rank in enumerate(group.members):
            busy = context.matched.partials[rank].marks["busy"]
            for at, share in zip(experts, factor[place].tolist(), strict=True):
                for mark in range(group.first[place, at], group.last[place, at]):
                    intervals[rank, mark] = float(busy[mark]) * (1 - share)
        sent = np.nan_to_num(group.sent)
        back = sent * _varies(group)
        even = np.where(back > 0, back * _evening(back, each=each), sent)
        # Experts send back what they have received, which took as long.
        received, even_received = (
            np.where(with_experts, np.roll(one, -1, axis=1), 0) for one in (back, even * (back > 0))
        )
        longest = np.maximum(sent, received).max(axis=0)
        after = np.maximum(even, even_received).max(axis=0)
        for at in np.flatnonzero(longest > 0).tolist():
            transfers[int(group.events[at])] = min(float(after[at] / longest[at]), 1.0)
    return ReplayChange(interval_ns=intervals, transfer=transfers)


def _evening(load: Floats, *, each: bool) -> Floats:
    """Return the factors, members x exchanges, that give all members the same load."""
    total = load if each else np.broadcast_to(load.sum(axis=1, keepdims=True), load.shape)
    return np.where(total > 0, total.mean(axis=0) / np.where(total > 0, total, 1), 1.0)
