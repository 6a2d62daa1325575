"""Ranks that others wait for, and whose device stood idle meanwhile: nothing says why.

What has a cause is told by it: slower kernels, late launches of all of them, input. What is left
is one long stop (a pause of the interpreter, a checkpoint, a logger, another program on that host,
a loader that was not recorded), of which the recording has the place and the length alone.

What costs the run time, in words that say no more than their evidence.

A finding needs evidence of its own cause (kernels, gaps, input, moving data); that others wait
for a rank is none, since late work is handed on. Its cost is what a step would gain without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unified_prof.arrays.types import Floats
from unified_prof.cluster.moe_imbalance import EXPERT_IMBALANCE, GENERAL_SLOWNESS, expert_imbalance
from unified_prof.cluster.rank_partial import MARK_START, MARK_STEP, NO_VALUE
from unified_prof.cluster.replay import ReplayChange
from unified_prof.cluster.rule_context import (
    MIN_STEP_SHARE,
    NS_PER_MS,
    Cost,
    RuleContext,
    chance_limit,
    group_by_host,
    list_first,
    make_finding,
    replay_cost,
    robust_deviation,
    slowness_in_steps,
    steps_suffix,
)
from unified_prof.cluster.slow_links import SlowLink, slow_groups, slow_in_some_steps, slow_pairs
from unified_prof.recording.model import Finding

LATE_RANK = "late_rank"

_LEAST_SHARE = 0.005
"""Idle time that is a smaller part of a step is not worth a name without a cause."""
_OTHERS_WAIT = 0.5
"""So much of the idle time others must have waited for it: else it was late for nobody."""
_FEW_RANKS = 5


def late_ranks(case: RuleContext) -> Iterator[Finding]:
    """Ranks that are late, their device idle, for no reason that the recording has."""
    evidence = case.evidence
    gaps = np.maximum(evidence.middle_gap - evidence.peers_middle_gap, 0.0)
    launch = np.nan_to_num(gaps * evidence.kernels / max(len(evidence.steps), 1))
    excess = evidence.idle_at - evidence.peers_idle_at - launch[:, None]
    known = np.isfinite(excess)
    if not known.any():
        return
    scatter = excess
    if len(excess) < _FEW_RANKS:  # half of them may be late: compare with itself
        own = np.where(known, evidence.idle_at, np.nan)
        scatter = own - _middle(own)[:, None]
    limit = chance_limit(int(known.sum())) * robust_deviation(scatter[known])
    limit = max(limit, _LEAST_SHARE * case.step_ns)
    late_at = known & (excess > limit)
    if not late_at.any():
        return
    caused = _caused(case)
    for one in np.flatnonzero(late_at.any(axis=1)).tolist():
        places = [
            at
            for at in np.flatnonzero(late_at[one]).tolist()
            if caused is None
            or evidence.steps[at] not in caused
            or caused[evidence.steps[at]][one] > _OTHERS_WAIT * excess[one, at]
        ]
        if places:
            steps = tuple(evidence.steps[at] for at in places)
            yield _late(case, one, steps, {evidence.steps[at]: excess[one, at] for at in places})


def _late(
    case: RuleContext, one: int, steps: tuple[int, ...], idle_ns: Mapping[int, float]
) -> Finding:
    late_ns = float(np.median(list(idle_ns.values())))
    walk = case.walk
    if not set(steps) <= set(walk.steps) and not set(steps) >= set(case.steps):
        walk = walk.over(case.with_communication(steps))
    stops = walk.longest_idle(one, idle_ns)
    cost = replay_cost(case, ReplayChange(stretch_ns=stops), steps, late_ns)
    where = _place(case, max(stops, key=lambda at: stops[at])) if stops else None
    why = "cause unknown from its recording"
    if not case.matched.facts[one].loader_recorded:
        why = "possibly late input (no data loader was recorded), otherwise cause unknown"
    text = (
        f"straggler: {case.named(one)}: its device is idle {late_ns / NS_PER_MS:.2f} ms "
        f"longer than others{steps_suffix(case, steps) or ' in every step'}"
        f"{f', mostly {where}' if where else ''}, "
        f"and other ranks wait for it; {why}; {cost.words}"
    )
    figures = {"late_ms": round(late_ns / NS_PER_MS, 4), "where": where}
    return make_finding(case, LATE_RANK, [one], steps, cost, text, figures)


def _place(case: RuleContext, stop: tuple[int, int]) -> str:
    """Say where a stretch of a rank's timeline lies."""
    rank, mark = stop
    one = case.matched.partials[rank]
    marks = one.marks
    behind = mark + 1
    last = behind >= len(marks["what"])
    lead, busy, tail = (int(marks[name][mark]) for name in ("lead", "busy", "tail"))
    length = lead + busy + tail if last else int(marks["time"][behind] - marks["time"][mark])
    between = length - lead - busy - tail
    begins = not last and int(marks["what"][behind]) == MARK_START
    following = _name_ranks(case, rank, int(marks["op"][behind])) if begins else None
    if busy and between > max(lead, tail):
        return f"between kernels{f' before its {following}' if following else ''}"
    if int(marks["what"][mark]) == MARK_STEP and (lead >= tail or not busy):
        return "at the start of the step"
    if following and (tail > lead or not busy):
        return f"before its {following}"
    return f"after its {_name_ranks(case, rank, int(marks['op'][mark]))}"


def _name_ranks(case: RuleContext, rank: int, op: int) -> str:
    """Name a communication operation of a rank: its kind, and that of its group."""
    one = case.matched.partials[rank]
    kind = one.kinds[int(one.communication["kind"][op])]
    group = int(one.communication["group"][op])
    number = int(case.matched.numbers[rank][group]) if group >= 0 else NO_VALUE
    told = case.matched.groups[number].kind if number >= 0 else "other"
    return kind if told == "other" else f"{kind} ({told})"


def _caused(case: RuleContext) -> dict[int, Floats] | None:
    """Return by step how long others waited for each rank; None: nothing is known of waiting."""
    rows, events, waits = case.matched.rows, case.matched.events, case.waits
    whole = np.flatnonzero(events.complete & (events.members > 1) & (events.step >= 0))
    if not len(whole):
        return None
    total = np.zeros(len(events))
    known = np.flatnonzero((rows.event >= 0) & (waits.wait > 0))
    # Of many that wait for one the longest wait counts: they wait at the same time.
    np.maximum.at(total, rows.event[known], waits.wait[known])
    ranks = len(case.matched.ranks)
    found: dict[int, Floats] = {}
    culprit = rows.rank[waits.last[whole]]
    for step in np.unique(events.step[whole]).tolist():
        mine = events.step[whole] == step
        found[step] = np.zeros(ranks)
        np.add.at(found[step], culprit[mine], total[whole][mine])
    return found


def _middle(values: Floats) -> Floats:
    result = np.zeros(len(values))
    for index, row in enumerate(values):
        if (known := row[np.isfinite(row)]).size:
            result[index] = float(np.median(known))
    return result


SLOW_RANK = "slow_rank"
SLOW_HOST = "slow_host"
SLOW_LAUNCH = "slow_launch"
LATE_INPUT = "late_input"
SLOW_LINK = "slow_link"

_LEAST_SLOWNESS = 0.015
"""Kernels that are slower by less are not worth a name, however sure."""
_LEAST_SLOWNESS_AT = 0.03
"""The same of kernels that are slower in some steps only, which are fewer."""
_LEAST_STEPS = 3
"""Of two steps the one is as good a measure of what is usual as the other."""
_LEAST_GENERAL = 0.6
"""Of a slow rank most kinds of kernel are slower; of one with more work some."""
_LEAST_EXCESS = 0.5
"""Gaps that are longer by a smaller part are not worth a name."""
_USUAL_GAP_NS = 2_000.0
"""What a device needs between two kernels that both wait for it, of any vendor."""
_MUCH_IDLE = 0.1
"""Where all ranks alike wait so much of a step for input, that is a finding of its own."""
_IDLE_OF_ALL = 0.05
"""The same of devices that stand idle between kernels, where that is longer than usual, too."""


def find_all(case: RuleContext) -> list[Finding]:
    """Return all findings, the costliest first; none of a healthy run."""
    found = [one for rule in RULES for one in rule(case)]
    found = [one for one in found if not _is_of_experts(case, one, found)]
    return sorted(found, key=lambda one: (-one.cost_ms_per_step, one.kind, one.ranks))


def _is_of_experts(case: RuleContext, one: Finding, found: Sequence[Finding]) -> bool:
    """Say whether a rank's kernels are slower only because its experts have more to do."""
    if one.kind != SLOW_RANK:
        return False
    more = {rank for other in found if other.kind == EXPERT_IMBALANCE for rank in other.ranks}
    general = case.evidence.general[case.matched.ranks.index(one.ranks[0])]
    return one.ranks[0] in more and not general > GENERAL_SLOWNESS


def slow_kernels(case: RuleContext) -> Iterator[Finding]:
    """Ranks whose kernels take longer than those of other ranks with the same work."""
    evidence = case.evidence
    usual = np.maximum(evidence.slowness_scatter, evidence.slowness_error)
    if len(case.matched.ranks) < 4:  # too few to know how far ranks lie apart
        usual = evidence.slowness_error
    limit = np.maximum(chance_limit(len(case.matched.ranks)) * usual, _LEAST_SLOWNESS)
    slow = np.flatnonzero((evidence.slowness > limit) & (evidence.general >= _LEAST_GENERAL))
    at_times = dict(_slow_at_times(case))
    always = [one for one in slow.tolist() if one not in at_times]
    for ranks, host in group_by_host(case, always):
        factors = {one: float(np.exp(evidence.slowness[one])) for one in ranks}
        worst = max(ranks, key=lambda one: factors[one])
        steps = tuple(
            step
            for at, step in enumerate(evidence.steps)
            if evidence.slowness_at[worst, at] > evidence.slowness[worst] / 2
        )
        cost = replay_cost(
            case, ReplayChange(work={one: 1 / f for one, f in factors.items()}), case.steps
        )
        error = float(evidence.slowness_error[worst])
        yield _slow(case, host, factors, error, steps, cost, "")
    groups: dict[tuple[int, ...], list[int]] = {}
    for one, (steps, _, _) in at_times.items():
        groups.setdefault(steps, []).append(one)
    for steps, members in groups.items():
        for ranks, host in group_by_host(case, members):
            factors = {one: float(np.exp(at_times[one][1])) for one in ranks}
            healed = {(one, step): 1 / f for one, f in factors.items() for step in steps}
            places = [evidence.steps.index(step) for step in steps]
            excess = max(
                float(np.mean(evidence.work_at[one, places])) * (1 - 1 / f)
                for one, f in factors.items()
            )
            cost = replay_cost(case, ReplayChange(work_at=healed), steps, excess)
            worst = max(ranks, key=lambda one: factors[one])
            where = steps_suffix(case, steps)
            yield _slow(case, host, factors, at_times[worst][2], steps, cost, where)


def _slow_at_times(case: RuleContext) -> Iterator[tuple[int, tuple[tuple[int, ...], float, float]]]:
    """Yield (rank, (steps, slowness there, its error)) of those that are slow in some steps."""
    evidence = case.evidence
    at = evidence.slowness_at
    known = np.isfinite(at)
    if at.shape[1] < _LEAST_STEPS or not known.any():
        return
    limit = max(chance_limit(int(known.sum())) * robust_deviation(at), _LEAST_SLOWNESS_AT)
    hot = known & (at > limit)
    for one in np.flatnonzero(hot.any(axis=1)).tolist():
        rest = at[one, known[one] & ~hot[one]]
        if not len(rest) or (rest >= float(np.median(at[one, hot[one]])) / 2).any():
            continue
        steps = tuple(evidence.steps[place] for place in np.flatnonzero(hot[one]).tolist())
        slowness, error, general = slowness_in_steps(case.matched, case.roles.peers, one, steps)
        if slowness > _LEAST_SLOWNESS_AT and general >= _LEAST_GENERAL:
            yield one, (steps, slowness, error)


def _slow(
    case: RuleContext,
    host: str | None,
    factors: Mapping[int, float],
    error: float,
    steps: Sequence[int],
    cost: Cost,
    where: str,
) -> Finding:
    evidence = case.evidence
    ranks = list(factors)
    worst = max(ranks, key=lambda one: factors[one])
    factor = factors[worst]
    peers = "pipeline stage" if case.roles.by_stage else "role"
    if where:
        places = [evidence.steps.index(step) for step in steps]
        work = float(np.mean(evidence.work_at[worst, places]))
        usual = work / factor
    else:
        work = evidence.work[worst] / max(len(evidence.steps), 1)
        usual = evidence.peers_work[worst] / max(len(evidence.steps), 1)
    figures = {
        "factor": round(factor, 4),
        "factor_error": round(error * factor, 4),
        "work_ms_per_step": work / NS_PER_MS,
        "peers_work_ms_per_step": usual / NS_PER_MS,
    }
    if host is None:
        text = (
            f"slow kernels: {case.named(worst)}:{where} its kernels take {factor:.3f} "
            f"times as long as those of the other ranks with its {peers}; {cost.words}"
        )
        return make_finding(case, SLOW_RANK, ranks, steps, cost, text, figures)
    text = (
        f"slow host {host}:{where} kernels of {len(ranks)} of its ranks take up to "
        f"{factor:.2f} times as long as on other hosts with the same {peers}; {cost.words}"
    )
    return make_finding(case, SLOW_HOST, ranks, steps, cost, text, figures)


def idle_between_kernels(case: RuleContext) -> Iterator[Finding]:
    """Ranks whose devices stand idle between kernels longer than others': their hosts are late."""
    evidence = case.evidence
    excess = evidence.gap - evidence.peers_gap
    if not np.isfinite(excess).any():
        yield from _all_idle(case)
        return
    per_step = excess * evidence.kernels / max(len(evidence.steps), 1)
    limit = np.maximum(
        chance_limit(len(excess)) * evidence.gap_scatter, _LEAST_EXCESS * evidence.peers_gap
    )
    # One long stop is not a late launch of every kernel.
    general = evidence.middle_gap - evidence.peers_middle_gap > _LEAST_EXCESS * excess
    late = general & (excess > limit) & (per_step > MIN_STEP_SHARE * case.step_ns)
    idle = np.flatnonzero(late).tolist()
    hosts = group_by_host(case, idle)
    for ranks, host in hosts:
        cut = {one: float(excess[one]) for one in ranks}
        cost = replay_cost(case, ReplayChange(gap_ns=cut), case.steps)
        gap = float(np.median(evidence.gap[ranks]))
        usual = float(np.median(evidence.peers_gap[ranks]))
        figures = {
            "gap_us": round(gap / 1e3, 2),
            "usual_gap_us": round(usual / 1e3, 2),
            "idle_ms_per_step": round(float(np.median(per_step[ranks])) / NS_PER_MS, 4),
        }
        idle_words = f"idle {gap / 1e3:.1f} µs after each kernel, {usual / 1e3:.1f} µs elsewhere"
        if host is None:
            text = f"host-bound: {case.named(ranks[0])}: its device is {idle_words}; {cost.words}"
            yield make_finding(case, SLOW_LAUNCH, ranks, case.steps, cost, text, figures)
        else:
            text = (
                f"host-bound: host {host}: the devices of {_count(ranks)} are {idle_words}; "
                f"{cost.words}"
            )
            yield make_finding(case, SLOW_HOST, ranks, case.steps, cost, text, figures)
    if not hosts:
        yield from _all_idle(case)


def _all_idle(case: RuleContext) -> Iterator[Finding]:
    """All ranks alike: there is nobody to compare with but the device itself."""
    evidence = case.evidence
    if not len(evidence.gap):
        return
    gap = float(np.median(evidence.gap))
    idle = gap * float(np.median(evidence.kernels)) / max(len(evidence.steps), 1)
    if gap <= 2 * _USUAL_GAP_NS or idle <= _IDLE_OF_ALL * case.step_ns:
        return
    ranks = list(range(len(case.matched.ranks)))
    cut = {one: max(float(evidence.gap[one]) - _USUAL_GAP_NS, 0.0) for one in ranks}
    cost = replay_cost(case, ReplayChange(gap_ns=cut), case.steps)
    hosts = case.hosts(ranks)
    where = f"host {hosts[0]}" if len(hosts) == 1 else "all hosts"
    text = (
        f"host-bound: {where}: the devices of all {_count(ranks)} are equally idle, "
        f"{gap / 1e3:.1f} µs after each kernel; compared with {_USUAL_GAP_NS / 1e3:.0f} µs "
        f"this {cost.words}"
    )
    figures = {
        "gap_us": round(gap / 1e3, 2),
        "usual_gap_us": _USUAL_GAP_NS / 1e3,
        "idle_ms_per_step": round(idle / NS_PER_MS, 4),
    }
    yield make_finding(case, SLOW_HOST, ranks, case.steps, cost, text, figures)


def late_input(case: RuleContext) -> Iterator[Finding]:
    """Ranks whose devices stand idle while their hosts wait for the data of a step."""
    evidence = case.evidence
    excess = evidence.input_at - evidence.peers_input_at
    known = np.isfinite(excess)
    if known.any():
        scatter = excess
        if len(excess) < _FEW_RANKS:  # half of them may be late: compare with itself
            scatter = evidence.input_at - np.nanmedian(evidence.input_at, axis=1)[:, None]
        limit = chance_limit(int(known.sum())) * robust_deviation(scatter[known])
        limit = max(limit, MIN_STEP_SHARE * case.step_ns)
        late_at = known & (excess > limit)
    else:
        late_at = known
    late = np.flatnonzero(late_at.any(axis=1)).tolist()
    for one in late:
        steps = np.flatnonzero(late_at[one]).tolist()
        cut = {(one, evidence.steps[at]): float(excess[one, at]) for at in steps}
        late_ns = float(np.median(excess[one, steps]))
        late_ms = late_ns / NS_PER_MS
        numbers = tuple(evidence.steps[at] for at in steps)
        cost = replay_cost(case, ReplayChange(input_ns=cut), numbers, late_ns)
        text = (
            f"late input: {case.named(one)}: its device waits for input {late_ms:.2f} ms "
            f"longer than others{steps_suffix(case, numbers) or ' in every step'}; "
            f"{cost.words}"
        )
        figures = {"late_ms": round(late_ms, 4), "input_ms": _median_ms(evidence.input_at[one])}
        yield make_finding(case, LATE_INPUT, [one], numbers, cost, text, figures)
    if not late:
        yield from _all_late(case)


def _all_late(case: RuleContext) -> Iterator[Finding]:
    at = case.evidence.input_at
    known = np.isfinite(at)
    if not known.any() or float(np.median(at[known])) <= _MUCH_IDLE * case.step_ns:
        return
    ranks = np.flatnonzero(known.any(axis=1)).tolist()
    cut = {
        (one, step): float(at[one, number])
        for one in ranks
        for number, step in enumerate(case.evidence.steps)
        if known[one, number]
    }
    cost = replay_cost(case, ReplayChange(input_ns=cut), case.steps)
    text = (
        "late input: all ranks: their devices wait for input "
        f"{float(np.median(at[known])) / NS_PER_MS:.2f} ms in every step; {cost.words}"
    )
    figures = {"input_ms": round(float(np.median(at[known])) / NS_PER_MS, 4)}
    yield make_finding(case, LATE_INPUT, ranks, case.steps, cost, text, figures)


def slow_links(case: RuleContext) -> Iterator[Finding]:
    """Pairs and groups whose data moves more slowly than that of others like them."""
    pairs = slow_pairs(case.matched, case.waits)
    groups = slow_groups(case.matched, case.waits)
    at_times = slow_in_some_steps(case.matched, case.waits)
    told = {(slow.ranks, slow.group) for slow in at_times}
    always = [slow for slow in (*pairs, *groups) if (slow.ranks, slow.group) not in told]
    for slow in (*always, *at_times):
        steps = tuple(step for step in case.steps if step in slow.steps) or case.steps
        change = ReplayChange(transfer=dict.fromkeys(slow.events, 1 / slow.ratio))
        cost = replay_cost(case, change, steps)
        # Networks hiccup: what is slow now and then and costs nothing is not worth a name.
        if cost.each_ns is not None and cost.each_ns < MIN_STEP_SHARE * case.step_ns:
            continue
        ranks = case.global_ranks(slow.ranks)
        rates = f"{slow.gb_per_s:.1f} GB/s, similar links {slow.like_gb_per_s:.1f} GB/s"
        figures: dict[str, Any] = {
            "factor": round(slow.ratio, 4),
            "gb_per_s": round(slow.gb_per_s, 3),
            "like_gb_per_s": round(slow.like_gb_per_s, 3),
            "told": slow.pair,
        }
        where = steps_suffix(case, steps)
        if slow.pair:
            ends = f"ranks {ranks[0]} and {ranks[1]}{_on(case, slow)}"
            text = f"slow link: between {ends}{where} {slow.ratio:.2f} times slower: {rates}"
            ways = [(ranks[0], ranks[1])]
        else:
            kind = case.matched.groups[slow.group].kind
            text = (
                f"slow link: within the {kind} group of ranks "
                f"{list_first(ranks)}{_on(case, slow)}: "
                f"its collectives transfer data{where} {slow.ratio:.2f} times slower than "
                "those of similar groups; the link cannot be determined"
            )
            order = [rank for rank in case.matched.groups[slow.group].ranks if rank in ranks]
            ways = [*zip(order, [*order[1:], order[0]], strict=True)]
        text = f"{text}; {cost.words}"
        found = make_finding(case, SLOW_LINK, slow.ranks, steps, cost, text, figures)
        yield replace(found, links=tuple(ways))


def _on(case: RuleContext, slow: SlowLink) -> str:
    hosts = case.hosts(slow.ranks)
    if not hosts:
        return ""
    return f" ({hosts[0]})" if len(hosts) == 1 else f" (between {list_first(hosts)})"


RULES: tuple[Callable[[RuleContext], Iterator[Finding]], ...] = (
    slow_kernels,
    idle_between_kernels,
    late_input,
    late_ranks,
    expert_imbalance,
    slow_links,
)


def _count(ranks: Sequence[int]) -> str:
    return f"{len(ranks)} ranks" if len(ranks) > 1 else "its rank"


def _median_ms(values: Floats) -> float:
    return round(float(np.nanmedian(values)) / NS_PER_MS, 4)
