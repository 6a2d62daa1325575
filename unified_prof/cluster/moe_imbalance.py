"""Experts that get more tokens than others, step for step: the ranks beside them wait for theirs.

A router never divides tokens evenly, and how unevenly changes from batch to batch: a little of
both is no fault. What counts is whose load stays above what is planned for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Floats, Ints
from unified_prof.cluster.matching import ClusterGroup
from unified_prof.cluster.rank_partial import MARK_END, MARK_START
from unified_prof.cluster.replay import ReplayChange
from unified_prof.cluster.rule_context import (
    RuleContext,
    chance_limit,
    list_first,
    make_finding,
    replay_cost,
)
from unified_prof.recording.model import Finding

EXPERT_IMBALANCE = "expert_imbalance"

_LEAST_LOAD = 1.25
"""Over the mean of its group: the capacity that routers usually give an expert, who then drop what
goes beyond; up to there memory and time are planned for."""
_MOST_STEPS = 0.75
"""In so many of the steps a rank has more than that: what changes from step to step evens out."""
_EVEN = 1.02
"""Where nobody's messages are longer than this many times the mean, they are padded: what experts
compute tells their load then."""
_EXPERTS_AT_WORK = 1.1
"""Between two exchanges of a group, who works longest works so many times the mean: experts."""
GENERAL_SLOWNESS = 0.9
"""Where so much of a rank's kernels are slower, that is no matter of tokens."""
_NO_EXPERTS = ("tp", "cp", "pp")


@dataclass(frozen=True, slots=True)
class _Group:
    """What the ranks of one group of experts got and did; steps by those that are compared."""

    members: tuple[int, ...]
    """By number in the run."""
    events: Ints
    """Its exchanges, in their order."""
    step: Ints
    sent: Floats
    """Members by exchanges: bytes; NaN where that is not recorded."""
    work: Floats
    """Members by exchanges: time of kernels from its end to the next one's begin."""
    first: Ints
    """Members by exchanges: the mark at which it ends, and the next one begins."""
    last: Ints


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """A rank whose experts get more than others."""

    rank: int
    ratio: float
    """Its load over the mean of its group."""
    by_bytes: bool
    """Whether messages said so; else the work of experts did."""
    work_ratio: float
    """The same of its experts' time."""


def expert_imbalance(case: RuleContext) -> Iterator[Finding]:
    """Ranks whose experts get more tokens than those of others in their group."""
    groups = list(_groups(case))
    hot = [(group, load) for group in groups for load in _hot(case, group)]
    if not hot:
        return
    loads = sorted((load for _, load in hot), key=lambda one: (-one.ratio, one.rank))
    concerned = {id(group): group for group, _ in hot}.values()
    cost = replay_cost(case, _balanced(case, list(concerned)), case.steps)
    ranks = [load.rank for load in loads]
    first = loads[0]
    numbers = case.global_ranks(ranks)
    what = "as many tokens" if first.by_bytes else "as much work (messages have equal sizes)"
    if len(loads) == 1:
        members = case.global_ranks(next(iter(concerned)).members)
        text = (
            f"expert imbalance: {case.named(first.rank)}: its experts get "
            f"{first.ratio:.2f} times {what} as the mean of ranks {list_first(members)}"
        )
    else:
        text = (
            f"expert imbalance: experts of {len(loads)} ranks ({list_first(numbers)}) get "
            f"up to {first.ratio:.2f} times {what} as the mean of their group"
        )
    figures = {
        "load": round(first.ratio, 4),
        "work": round(first.work_ratio, 4),
        "loads": {
            str(number): round(load.ratio, 4) for number, load in zip(numbers, loads, strict=True)
        },
    }
    text = f"{text}, in every step; {cost.words}"
    yield make_finding(case, EXPERT_IMBALANCE, ranks, case.steps, cost, text, figures)


def _groups(case: RuleContext) -> Iterator[_Group]:
    """Yield the groups of experts that exchange tokens, all of whose ranks are there."""
    matched = case.matched
    events, rows = matched.events, matched.rows
    exchange = matched.is_kind(events.kind, "all_to_all")
    usable = ~matched.transfers & events.complete & np.isin(events.step, list(case.steps))
    number = {rank: index for index, rank in enumerate(matched.ranks)}
    for at, group in enumerate(matched.groups):
        if not _may_have_experts(group) or not all(rank in number for rank in group.ranks):
            continue
        mine = np.flatnonzero(usable & (events.group == at))
        if len(chosen := mine[exchange[mine]]):
            mine = chosen
        elif group.kind != "ep":
            continue
        if not len(mine) or int(events.members[mine].min()) != len(group.ranks):
            continue
        mine = mine[np.argsort(rows.start[events.first[mine]], kind="stable")]
        members = tuple(sorted(number[rank] for rank in group.ranks))
        at_rows = events.first[mine] + np.arange(len(members))[:, None]
        size = rows.bytes[at_rows].astype(np.float64)
        yield _Group(
            members,
            mine,
            events.step[mine],
            np.where(size >= 0, size, np.nan),
            *_between(case, members, rows.op[at_rows], events.step[mine]),
        )


def _may_have_experts(group: ClusterGroup) -> bool:
    return group.told and len(group.ranks) > 1 and group.kind not in _NO_EXPERTS


def _between(
    case: RuleContext, members: Sequence[int], ops: Ints, step: Ints
) -> tuple[Floats, Ints, Ints]:
    """Return the work of each member between exchanges, and the marks around it."""
    work = np.zeros(ops.shape)
    first, last = np.zeros(ops.shape, np.int64), np.zeros(ops.shape, np.int64)
    # What follows the last exchange of a step is not for experts.
    inside = np.r_[step[1:] == step[:-1], False]
    for place, index in enumerate(members):
        marks = case.matched.partials[index].marks
        count = len(case.matched.partials[index].communication["start"])
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


def _hot(case: RuleContext, group: _Group) -> Iterator[ExpertLoad]:
    """Yield the members that have more than others, step for step."""
    by_bytes = bool(np.isfinite(group.sent).all()) and bool(group.sent.sum() > 0)
    if by_bytes:
        mean = group.sent.sum(axis=1) / group.sent.sum(axis=1).mean()
        by_bytes = float(mean.max()) > _EVEN
    work = group.work[:, _of_experts(group)]
    works = work.sum(axis=1)
    work_ratio = works / works.mean() if works.sum() else np.ones(len(works))
    load, step = group.sent, group.step
    if not by_bytes:
        load, step = work, group.step[_of_experts(group)]
    if not load.shape[1]:
        return
    share = load / np.maximum(load.mean(axis=0), 1.0)
    doubt = share.std(axis=1) / np.sqrt(share.shape[1])
    ratio = load.sum(axis=1) / max(float(load.sum(axis=1).mean()), 1.0)
    steps = np.unique(step)
    by_step = np.stack([load[:, step == one].sum(axis=1) for one in steps.tolist()], 1)
    above = by_step / np.maximum(by_step.mean(axis=0), 1.0) >= _LEAST_LOAD
    sure = ratio - chance_limit(len(case.matched.ranks)) * doubt > 1.0
    hot = (ratio >= _LEAST_LOAD) & (above.mean(axis=1) >= _MOST_STEPS) & sure
    if not by_bytes:  # a rank whose kernels are all slower has no more tokens for that
        hot &= ~(case.evidence.general[list(group.members)] > GENERAL_SLOWNESS)
    for place in np.flatnonzero(hot).tolist():
        yield ExpertLoad(
            group.members[place], float(ratio[place]), by_bytes, float(work_ratio[place])
        )


def _of_experts(group: _Group) -> NDArray[np.bool_]:
    """Return after which exchanges experts work: there its members' times differ."""
    mean = group.work.mean(axis=0)
    return np.asarray((mean > 0) & (group.work.max(axis=0) > _EXPERTS_AT_WORK * mean))


def _balanced(case: RuleContext, groups: Sequence[_Group]) -> ReplayChange:
    """Return the run in which experts of these groups have as much as each other in the long run.

    How unlike they are from one exchange to the next stays as it is.
    """
    stretches: dict[tuple[int, int], float] = {}
    transfers: dict[int, float] = {}
    for group in groups:
        experts = np.flatnonzero(_of_experts(group)).tolist()
        works = group.work[:, experts].sum(axis=1)
        for place, index in enumerate(group.members if works.all() else ()):
            busy = case.matched.partials[index].marks["busy"]
            less = 1 - float(works.mean() / works[place])
            for at in experts:
                for mark in range(group.first[place, at], group.last[place, at]):
                    stretches[index, mark] = float(busy[mark]) * less
        sent = np.nan_to_num(group.sent)
        sums = sent.sum(axis=1)
        if not sums.all():
            continue
        longest = sent.max(axis=0)
        even = (sent * (sums.mean() / sums)[:, None]).max(axis=0)
        for at in np.flatnonzero(longest > 0).tolist():
            transfers[int(group.events[at])] = float(even[at] / longest[at])
    return ReplayChange(stretch_ns=stretches, transfer=transfers)
