"""Rules about idle devices: slow launches, late input, pauses, and waits for absent ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from unified_prof.arrays.grouping import NO_VALUE, Bools, Floats, Ints
from unified_prof.cluster.matching import run_size
from unified_prof.cluster.rank_partial import MARK_START, MARK_STEP
from unified_prof.cluster.rank_signals import (
    chance_limit,
    median_elsewhere,
    robust_deviation,
    spread_of_alike,
)
from unified_prof.cluster.replay import ReplayChange, usual_durations
from unified_prof.cluster.rule_context import (
    MIN_STEP_SHARE,
    NS_PER_MS,
    Candidate,
    RuleContext,
    excess_segments,
    format_time,
    group_by_host,
    join_first,
    lasting,
    remove_excess,
    steps_text,
)
from unified_prof.cluster.waits import mostly_recorded

HOST_BOUND = "host_bound"
LATE_INPUT = "late_input"
LATE_RANK = "late_rank"
PAUSE_OF_ALL = "pause_of_all"
SCATTERED_PAUSES = "scattered_pauses"
WAITS_FOR_ABSENT = "waits_for_absent"

_MIN_GAP_EXCESS = 0.5  # Minimum relative increase of the gap between kernels to be reported.
_USUAL_GAP_NS = 2_000.0  # Usual gap between two enqueued kernels on devices of any vendor, ns.
# Minimum share of a step that all ranks wait for input, or are idle between kernels.
_MIN_INPUT_SHARE_OF_ALL = 0.1
_MIN_IDLE_SHARE_OF_ALL = 0.05
# Minimum idle time, as a share of a step, to report without a recorded cause.
_MIN_IDLE_SHARE = 0.005
# With fewer ranks, half of them may be late: each rank is compared with its own other steps.
_MIN_RANKS = 5
MIN_STEPS = 3  # Minimum number of compared steps to determine usual values.
# Maximum share of one segment in excess idle time that is spread over a step.
_MAX_LONGEST_SHARE = 0.5
_MIN_PAUSE_SHARE = 0.3  # Minimum share of one interval in the excess idle time of a pause.
_COMPARED_RANKS = 5  # Maximum number of ranks to compare a pause with.
# A pause of all ranks is a step of this multiple of the median step, on this share of the ranks.
_PAUSED_STEP_FACTOR = 1.5
_PAUSED_RANKS = 0.75
# Minimum number of ranks, and of pauses, to report pauses in different steps as one finding.
_MIN_PAUSED_RANKS = 3
_MIN_PAUSES = 4
_MIN_ABSENT_WAIT = 0.01  # Minimum share of the step that ranks wait for an absent rank.
# Minimum ratio of the wait for an absent rank to the longest wait for a present one.
_MIN_ABSENT_FACTOR = 1.5
# Maximum number of absent ranks in a group to name the one that the others wait for.
_MAX_ABSENT_RANKS = 4


def idle_devices(context: RuleContext) -> Iterator[Candidate]:
    """Yield slow launches and pauses: idle devices without another recorded cause."""
    signals = context.signals
    paused = np.zeros(len(context.steps), bool)
    if len(context.steps) >= MIN_STEPS and not context.is_watched:
        paused, found = _pause_of_all(context)
        yield from found
    idle = np.where(paused, np.nan, signals.idle_at)
    launch_bound: dict[int, float] = {}
    if not context.on_hosts:  # between operations of a process, Python code runs
        launch_bound = _slow_launches_by_gaps(context)
        if not launch_bound:
            yield from _idle_on_all_ranks(context)
        launch_bound |= _slow_launches_by_host(context, idle, launch_bound)
    excess = idle - signals.peers_idle_at
    # Slow launches affect all steps: only much more idle time in some of them is a pause.
    for rank, ns in launch_bound.items():
        excess[rank] = idle[rank] - row_medians(idle[[rank]])[0] - ns / 2
    late = _outliers(context, excess, idle, _MIN_IDLE_SHARE) & (excess > _wait_for_missing(context))
    if len(context.steps) < MIN_STEPS:  # which of two steps is usual is unknown
        late = late & late.all(axis=1, keepdims=True)
    pauses: list[Candidate] = []
    together: dict[str | None, dict[int, dict[int, float]]] = {}
    for rank in np.flatnonzero(late.any(axis=1)).tolist():
        places = np.flatnonzero(late[rank]).tolist()
        steps = tuple(signals.steps[at] for at in places)
        late_ns = {signals.steps[at]: float(excess[rank, at]) for at in places}
        in_all = set(steps) >= set(context.steps)
        spread = in_all and not context.on_hosts and _is_spread(context, rank)
        late_launches_ns = _MIN_PAUSE_SHARE * len(context.steps) * launch_bound.get(rank, 0.0)
        if rank not in launch_bound and spread:
            launch_bound[rank] = float(np.nansum(excess[rank])) / len(context.steps)
        elif sum(late_ns.values()) >= late_launches_ns and _has_pause(
            context, rank, late_ns, in_all=in_all
        ):
            pauses.append(_late_ranks(context, steps, {rank: late_ns}))
            if in_all:
                together.setdefault(pauses[-1].figures["where"], {})[rank] = late_ns
    for ranks, host in group_by_host(context, [*launch_bound]):
        yield _slow_launches(context, ranks, host, launch_bound, pauses)
    # Ranks that are late at one point of every step hide each other's cost: they are one finding.
    for alike in (one for one in together.values() if len(one) > 1):
        pauses = [one for one in pauses if one.ranks[0] not in alike]
        yield _late_ranks(context, context.steps, alike)
    yield from _scattered_pauses(context, pauses) or pauses


def _wait_for_missing(context: RuleContext) -> Ints:
    """Return how long ranks wait for missing ones in each step, ns, where few are recorded.

    A shorter delay of a recorded rank costs nothing.
    """
    events = context.matched.events
    waits = np.where(mostly_recorded(context.matched), 0, context.waits.setup).clip(0)
    steps = np.array(context.signals.steps, np.int64)
    known = np.flatnonzero((waits > 0) & np.isin(events.step, steps))
    total = np.zeros(len(steps), np.int64)
    np.add.at(total, np.searchsorted(steps, events.step[known]), waits[known])
    return total


def _slow_launches_by_gaps(context: RuleContext) -> dict[int, float]:
    """Return {rank: idle ns per step} for devices that are idle after most kernels."""
    signals = context.signals
    excess = signals.gap - signals.peers_gap
    if not np.isfinite(excess).any():
        return {}
    per_step = excess * signals.launches / max(len(context.steps), 1)
    limit = chance_limit(len(excess)) * signals.gap_spread
    # A single long pause is not evidence of slow launches.
    general = signals.median_gap - signals.peers_median_gap > _MIN_GAP_EXCESS * excess
    slow: Bools = general & (excess > np.maximum(limit, _MIN_GAP_EXCESS * signals.peers_gap))
    slow = slow & (per_step > MIN_STEP_SHARE * context.step_ns)
    # Between operations of communication the device is idle as well.
    more = row_medians(signals.idle_at) - np.nan_to_num(_idle_elsewhere(context, signals.idle_at))
    return {
        rank: max(float(per_step[rank]), float(more[rank]))
        for rank in np.flatnonzero(slow).tolist()
    }


def _idle_elsewhere(context: RuleContext, idle: Floats) -> Floats:
    """Return the median idle time per step of the peers of each rank on other hosts, ns."""
    hosts = [context.host(rank) for rank in range(len(idle))]
    return median_elsewhere(row_medians(idle), context.roles.peers, hosts)


def _idle_on_all_ranks(context: RuleContext) -> Iterator[Candidate]:
    """Yield the ranks that are idle between kernels for longer than devices need, if most are."""
    signals = context.signals
    size, _ = run_size(context.matched)
    if not len(signals.gap) or 2 * len(signals.gap) < size:  # a sample of the ranks
        return
    gap_ns = float(np.median(signals.gap))
    idle_ns = gap_ns * float(np.median(signals.launches)) / max(len(context.steps), 1)
    is_long = gap_ns > 2 * _USUAL_GAP_NS and idle_ns > _MIN_IDLE_SHARE_OF_ALL * context.step_ns
    if not is_long or float(np.median(signals.median_gap)) <= _MIN_GAP_EXCESS * gap_ns:
        return
    ranks = np.flatnonzero(signals.gap > 2 * _USUAL_GAP_NS).tolist()
    cut: dict[tuple[int, int], float] = {}
    for rank in ranks:  # the device is idle after the last kernel before a collective as well
        for one in context.replay.mark_intervals(rank, idle=True):
            cut[rank, one.mark] = max(one.ns - _USUAL_GAP_NS * (one.kernels + 1), 0.0)
    who = "all" if len(ranks) == len(signals.gap) else f"{len(ranks)} of {len(signals.gap)}"
    text = (
        f"host-bound: the devices of {who} ranks are idle for {gap_ns / 1e3:.1f} "
        f"µs after each kernel on average (usual gap: {_USUAL_GAP_NS / 1e3:.0f} µs)"
    )
    figures = {
        "gap_us": round(gap_ns / 1e3, 2),
        "usual_gap_us": _USUAL_GAP_NS / 1e3,
        "idle_ms_per_step": round(idle_ns / NS_PER_MS, 4),
    }
    change = ReplayChange(interval_ns=cut)
    yield Candidate(HOST_BOUND, ranks, context.steps, change, text, figures)


def late_input(context: RuleContext) -> Iterator[Candidate]:
    """Yield ranks whose devices are idle while their hosts wait for the data of a step."""
    signals = context.signals
    excess = signals.input_at - signals.peers_input_at
    late = _outliers(context, excess, signals.input_at, MIN_STEP_SHARE)
    # Ranks that are late in the same steps hide each other's cost: they are one finding.
    by_steps: dict[tuple[int, ...], list[int]] = {}
    for rank in np.flatnonzero(late.any(axis=1)).tolist():
        by_steps.setdefault(tuple(np.flatnonzero(late[rank]).tolist()), []).append(rank)
    found: list[Candidate] = []
    for places, ranks in by_steps.items():
        steps = tuple(signals.steps[at] for at in places)
        change = _earlier_input(context, excess, ranks, places)
        late_ns = float(np.median(excess[np.ix_(ranks, places)]))
        who = f"{context.describe(ranks[0])}: its {context.device} waits"
        if len(ranks) > 1:
            who = f"ranks {join_first(context.global_ranks(ranks))}: the {context.device} waits"
        text = (
            f"late input: {who} {format_time(late_ns)} longer for input than others"
            f"{steps_text(context, steps, ' in every step')}"
        )
        figures = {
            "late_ms": round(late_ns / NS_PER_MS, 4),
            "input_ms": round(float(np.nanmedian(signals.input_at[ranks])) / NS_PER_MS, 4),
        }
        fault = (LATE_INPUT, ranks, steps, change, text, figures)
        found += [Candidate(*fault, bound_ns=late_ns)]
    text = "late input: {} wait {} for input, {} longer than others"
    cause = "as for batches that take longer to load: use more workers or prefetch more"
    yield from _in_turn(context, LATE_INPUT, text, cause, found) or found
    known = np.isfinite(signals.input_at)
    if late.any() or not known.any():
        return
    usual_ns = float(np.median(signals.input_at[known]))
    if usual_ns <= _MIN_INPUT_SHARE_OF_ALL * context.step_ns:
        return
    ranks = np.flatnonzero(known.any(axis=1)).tolist()
    text = (
        f"late input: all ranks wait {format_time(usual_ns)} for input"
        f"{steps_text(context, context.steps, ' in every step')}"
    )
    figures = {"input_ms": round(usual_ns / NS_PER_MS, 4)}
    change = _earlier_input(context, signals.input_at, ranks, range(len(signals.steps)))
    yield Candidate(LATE_INPUT, ranks, context.steps, change, text, figures)


def _earlier_input(
    context: RuleContext, waits: Floats, ranks: Sequence[int], places: Sequence[int]
) -> ReplayChange:
    """Return the change that removes waits for input (ranks x steps) in the steps at `places`."""
    cut: dict[tuple[int, int], float] = {}
    steps = context.signals.steps
    for rank in ranks:
        by_step = {steps[at]: float(np.nan_to_num(waits[rank, at])) for at in places}
        cut |= idle_intervals(context, rank, by_step, longest=False)
    return ReplayChange(interval_ns=cut)


def _outliers(context: RuleContext, excess: Floats, values: Floats, min_share: float) -> Bools:
    """Return a ranks x steps mask of excess that is significant and above a share of the step."""
    known = np.isfinite(excess)
    if not known.any():
        return known
    spread = excess
    if len(excess) < _MIN_RANKS:
        own = np.where(known, values, np.nan)
        with np.errstate(invalid="ignore"):
            spread = own - row_medians(own)[:, None]
    limit = chance_limit(int(known.sum())) * robust_deviation(spread[known])
    return lasting(context, known & (excess > max(limit, min_share * context.step_ns)))


def _pause_of_all(context: RuleContext) -> tuple[Bools, list[Candidate]]:
    """Return a mask of the steps in which all ranks pause, and their candidate."""
    signals = context.signals
    length, idle = signals.length_at, signals.idle_at
    usual_length, usual_idle = row_medians(length), row_medians(idle)
    with np.errstate(invalid="ignore"):
        longer = length - usual_length[:, None]
        more_idle = idle - usual_idle[:, None]
        paused_ranks = (length > _PAUSED_STEP_FACTOR * usual_length[:, None]) & (
            more_idle > longer / 2
        )
    paused = paused_ranks.mean(axis=0) >= _PAUSED_RANKS
    places = np.flatnonzero(paused).tolist()
    if not places or len(places) > len(context.steps) / 2:
        return np.zeros(len(context.steps), bool), []
    steps = tuple(signals.steps[at] for at in places)
    cut: dict[tuple[int, int], float] = {}
    for rank in range(len(context.matched.ranks)):
        by_step = {signals.steps[at]: float(more_idle[rank, at]) for at in places}
        cut |= idle_intervals(context, rank, by_step)
    pause_ns = float(np.median(more_idle[:, places]))
    longest_ns = float(np.median(length[:, places]))
    text = (
        f"pause of all ranks{steps_text(context, steps)}: they are idle or copy "
        f"for {format_time(pause_ns)} longer than usual (step {format_time(longest_ns)}, median "
        f"{format_time(context.step_ns)}), for example to save a checkpoint"
    )
    figures = {
        "pause_ms": round(pause_ns / NS_PER_MS, 4),
        "step_ms": round(longest_ns / NS_PER_MS, 4),
    }
    ranks = list(range(len(context.matched.ranks)))
    change = ReplayChange(interval_ns=cut)
    return paused, [Candidate(PAUSE_OF_ALL, ranks, steps, change, text, figures, bound_ns=pause_ns)]


def _slow_launches_by_host(
    context: RuleContext, idle: Floats, known: Mapping[int, float]
) -> dict[int, float]:
    """Return {rank: excess idle ns per step} for hosts whose devices are idle all the time."""
    hosts = [context.host(rank) for rank in range(len(idle))]
    if len(set(hosts)) < 2 or None in hosts:
        return {}
    median = row_medians(idle)
    excess = median - _idle_elsewhere(context, idle)
    limit = max(
        chance_limit(len(median)) * spread_of_alike(median, context.roles.peers, hosts),
        _MIN_IDLE_SHARE * context.step_ns,
    )
    late = (excess > limit) & (excess > _MIN_GAP_EXCESS * (median - excess))
    result: dict[int, float] = {}
    for ranks, host in group_by_host(context, np.flatnonzero(late).tolist()):
        by_rank = {rank: float(excess[rank]) for rank in ranks if rank not in known}
        spread = len(ranks) - len(by_rank) + sum(_is_spread(context, rank) for rank in by_rank)
        if host is not None and spread > len(ranks) / 2:
            result |= by_rank
    return result


def _is_spread(context: RuleContext, rank: int) -> bool:
    """Return True if excess idle time is spread over each step, as slow launches cause it."""
    segments = excess_segments(context, rank, _elsewhere(context, rank), idle=True)
    excess = sorted((segment.excess_ns for segment in segments), reverse=True)
    return sum(excess[: len(context.replay.steps)]) < _MAX_LONGEST_SHARE * sum(excess)


def _has_pause(
    context: RuleContext, rank: int, idle_ns: Mapping[int, float], *, in_all: bool
) -> bool:
    """Return True if the longest interval explains excess idle time, which is given by step.

    If late launches limit all ranks, the last one need not be much later. In all steps, it may be
    at many places, but not in usual gaps between kernels, which ranks that wait have as well.
    """
    replay = context.replay_of([*idle_ns])
    gap_ns = _usual_gap(context, rank) if in_all else 0.0
    longest: list[dict[int, float]] = []
    for one in (rank, *_elsewhere(context, rank)[:_COMPARED_RANKS]):
        longest.append({})
        for interval in replay.mark_intervals(one, idle=True):
            ns = max(interval.ns - gap_ns * (interval.kernels + 1), 0.0)
            other = longest[-1].get(interval.step, 0.0)
            longest[-1][interval.step] = ns + other if in_all else max(ns, other)
    own, *others = longest
    usual = {step: np.median([one.get(step, 0.0) for one in others] or [0.0]) for step in own}
    shares = [(own[step] - usual[step]) / idle_ns[step] for step in own.keys() & idle_ns]
    return not shares or float(np.median(shares)) >= _MIN_PAUSE_SHARE


def _elsewhere(context: RuleContext, rank: int) -> list[int]:
    """Return the ranks on other hosts with the role of a rank; all if no other rank has it."""
    peers, host = context.roles.peers, context.host(rank)
    if len(context.hosts(range(len(peers)))) == 1:
        host = None
    alike = peers == peers[rank]
    if alike.sum() == 1 and not context.roles.by_stage:
        alike[:] = True
    return [
        one
        for one in np.flatnonzero(alike).tolist()
        if one != rank and (host is None or context.host(one) != host)
    ]


def _slow_launches(
    context: RuleContext,
    ranks: list[int],
    host: str | None,
    excess_ns: Mapping[int, float],
    pauses: Sequence[Candidate],
) -> Candidate:
    """Return the candidate for ranks that are idle because their hosts launch slowly.

    Idle time of `pauses` is not included.
    """
    signals = context.signals
    cut: dict[tuple[int, int], float] = {}
    usual = np.array([_usual_gap(context, rank) for rank in ranks])
    for rank, usual_ns in zip(ranks, usual.tolist(), strict=True):
        gap_ns = max(float(signals.gap[rank]) - usual_ns, 0.0)
        intervals = context.replay.mark_intervals(rank, idle=True)
        if elsewhere := _elsewhere(context, rank):
            segments = excess_segments(context, rank, elsewhere, idle=True)
            cut |= remove_excess(rank, segments, sum(segment.excess_ns for segment in segments))
        else:
            idle_ns = sum(interval.ns for interval in intervals if not interval.communicates)
            share = min(excess_ns[rank] * len(context.replay.steps) / idle_ns, 1.0)
            cut |= {(rank, interval.mark): interval.ns * share for interval in intervals}
        # The excess may exclude idle time during communication, so reduce the gaps there as well.
        for one in intervals:
            late_ns = min(one.ns, gap_ns * one.kernels)
            cut[rank, one.mark] = max(late_ns, cut.get((rank, one.mark), 0.0))
    for place, ns in ReplayChange.merge([one.change for one in pauses]).interval_ns.items():
        cut[place] = max(cut.get(place, 0.0) - ns, 0.0)
    gap_us, usual_us = (float(np.median(values)) / 1e3 for values in (signals.gap[ranks], usual))
    idle_ms = float(np.median([excess_ns[rank] for rank in ranks])) / NS_PER_MS
    figures = {
        "gap_us": round(gap_us, 2),
        "usual_gap_us": round(usual_us, 2),
        "idle_ms_per_step": round(idle_ms, 4),
    }
    idle = (
        f"idle for {gap_us:.1f} µs after each kernel, compared with {usual_us:.1f} µs on other "
        f"ranks ({format_time(idle_ms * NS_PER_MS)} more per step): kernels are launched late"
    )
    text = f"host-bound: {context.describe(ranks[0])}: its device is {idle}"
    if host is not None:
        text = f"host-bound: host {host}: the devices of {len(ranks)} ranks are {idle}"
    change = ReplayChange(interval_ns=cut)
    return Candidate(HOST_BOUND, ranks, context.steps, change, text, figures)


def _usual_gap(context: RuleContext, rank: int) -> float:
    """Return the idle time after each kernel of the peers; of all others if a rank has none."""
    others = context.signals.gap[_elsewhere(context, rank)]
    of_all = float(np.median(others)) if len(others) else 0.0
    return float(np.nan_to_num(context.signals.peers_gap[rank], nan=of_all))


def idle_intervals(
    context: RuleContext, rank: int, idle_ns: Mapping[int, float], *, longest: bool = True
) -> dict[tuple[int, int], float]:
    """Return {(rank, mark): reduction} that removes `idle_ns` (by step), longest or first ones."""
    cut: dict[tuple[int, int], float] = {}
    left_ns = dict(idle_ns)
    intervals = context.replay_of([*idle_ns]).mark_intervals(rank, idle=True)
    for interval in sorted(intervals, key=lambda one: -one.ns if longest else one.mark):
        if (left := left_ns.get(interval.step, 0.0)) > 0 and interval.ns > 0:
            cut[rank, interval.mark] = min(interval.ns, left)
            left_ns[interval.step] = left - interval.ns
    return cut


def _late_ranks(
    context: RuleContext, steps: tuple[int, ...], idle_ns: Mapping[int, Mapping[int, float]]
) -> Candidate:
    """Return the candidate for excess idle time, which is given by rank and step."""
    ranks = [*idle_ns]
    late_ns = float(np.median([ns for by_step in idle_ns.values() for ns in by_step.values()]))
    cut: dict[tuple[int, int], float] = {}
    for rank, by_step in idle_ns.items():
        cut |= idle_intervals(context, rank, by_step)
    where = location(context, max(cut, key=lambda at: cut[at])) if cut else None
    cause = f"`uprof advise --rank {context.global_ranks(ranks)[0]}` may name the cause"
    if context.is_watched:
        where, cause = "in other Python code", "the cause is not recorded"
    if not context.matched.facts[ranks[0]].loader_recorded:
        cause = "a possible cause is late input (no data loader was recorded)"
    who = f"{context.describe(ranks[0])}: its {context.device} is"
    if len(ranks) > 1:
        who = f"ranks {join_first(context.global_ranks(ranks))}: the {context.device} is"
    text = (
        f"straggler: {who} idle {format_time(late_ns)} longer than others"
        f"{steps_text(context, steps, ' in every step')}"
        f"{f', mostly {where}' if where else ''}, and other ranks wait for it; {cause}"
    )
    figures = {"late_ms": round(late_ns / NS_PER_MS, 4), "where": where}
    change = ReplayChange(interval_ns=cut)
    return Candidate(LATE_RANK, ranks, steps, change, text, figures, bound_ns=late_ns)


def _scattered_pauses(context: RuleContext, pauses: Sequence[Candidate]) -> list[Candidate]:
    """Return one candidate for pauses of many ranks in different steps; none if there are few."""
    cause = (
        "as with unsynchronized garbage collection (see gc.freeze and gc.disable) or other "
        "processes on the hosts"
    )
    return _in_turn(
        context, SCATTERED_PAUSES, "scattered pauses: {} pause {} for {}", cause, pauses
    )


def _in_turn(
    context: RuleContext, kind: str, text: str, cause: str, found: Sequence[Candidate]
) -> list[Candidate]:
    """Return one candidate for many ranks that are late in different steps; none if few are.

    `text` has places for the ranks, the number of times and the shortest and longest one.
    """
    ranks = sorted({rank for one in found for rank in one.ranks})
    count = sum(len(one.steps) * len(one.ranks) for one in found)
    steps = tuple(sorted({step for one in found for step in one.steps}))
    everywhere = any(set(one.steps) >= set(context.steps) for one in found)
    if len(ranks) < _MIN_PAUSED_RANKS or count < _MIN_PAUSES or len(steps) < 2 or everywhere:
        return []
    late_ms = sorted(one.figures["late_ms"] for one in found)
    shortest, longest = (format_time(late_ms[at] * NS_PER_MS) for at in (0, -1))
    who = f"{len(ranks)} ranks ({join_first(context.global_ranks(ranks))})"
    what = text.format(who, f"{count} times", f"{shortest} to {longest}")
    figures = {"pauses": count, "late_ms": late_ms[len(late_ms) // 2]}
    change = ReplayChange.merge([one.change for one in found])
    fault = (kind, ranks, steps, change, f"{what}, in different steps, {cause}", figures)
    return [Candidate(*fault, bound_ns=max(one.bound_ns for one in found))]


def location(context: RuleContext, interval: tuple[int, int]) -> str:
    """Describe the position of an interval (rank, mark) in a rank's timeline."""
    rank, mark = interval
    marks = context.matched.partials[rank].marks
    following = mark + 1
    last = following >= len(marks["what"])
    lead, busy, tail = (int(marks[name][mark]) for name in ("lead", "busy", "tail"))
    length = lead + busy + tail if last else int(marks["time"][following] - marks["time"][mark])
    between = length - lead - busy - tail
    starts = not last and int(marks["what"][following]) == MARK_START
    operation = _operation(context, rank, int(marks["op"][following])) if starts else None
    if busy and between > max(lead, tail):
        return f"between {context.kernels}{f' before its {operation}' if operation else ''}"
    if int(marks["what"][mark]) == MARK_STEP and (lead >= tail or not busy):
        return "at the start of the step"
    if operation and (tail > lead or not busy):
        return f"before its {operation}"
    if int(marks["what"][mark]) == MARK_STEP:
        return "after its first kernels"
    return f"after its {_operation(context, rank, int(marks['op'][mark]))}"


def _operation(context: RuleContext, rank: int, op: int) -> str:
    """Describe a communication operation of a rank: its kind and that of its group."""
    partial = context.matched.partials[rank]
    kind = partial.kinds[int(partial.communication["kind"][op])]
    group = int(partial.communication["group"][op])
    number = int(context.matched.numbers[rank][group]) if group >= 0 else NO_VALUE
    group_kind = context.matched.groups[number].kind if number >= 0 else "other"
    return kind if group_kind == "other" else f"{kind} ({group_kind})"


def absent_ranks(context: RuleContext) -> Iterator[Candidate]:
    """Yield absent ranks that all present members of their groups wait for."""
    matched = context.matched
    events = matched.events
    usable = np.flatnonzero(~events.complete & ~matched.transfers & (events.step >= 0))
    usable = usable[np.isin(events.step[usable], list(context.steps))]
    if not len(usable):
        return
    usual, least = usual_durations(matched, context.waits), context.waits.least[usable]
    # If no collective of a size is complete, the shortest one has waited least.
    keys = np.stack([events.group[usable], events.kind[usable], events.bytes[usable]], 1)
    place = np.unique(keys, axis=0, return_inverse=True)[1].ravel()
    shortest = np.full(len(usable), np.iinfo(np.int64).max)
    np.minimum.at(shortest, place, least)
    unknown = (usual[usable] >= least) & (least > _MIN_ABSENT_FACTOR * shortest[place])
    usual[usable[unknown]] = shortest[place[unknown]]
    present = set(matched.ranks)
    waits: dict[tuple[int, ...], dict[int, float]] = {}
    # The first collective of a group includes its setup.
    _, first = np.unique(events.group, return_index=True)
    for event in np.setdiff1d(usable, first).tolist():
        group = matched.groups[int(events.group[event])]
        absent = tuple(sorted(set(group.ranks) - present))
        late_ns = float(context.waits.least[event]) - float(usual[event])
        if not group.is_recorded or not 0 < len(absent) <= _MAX_ABSENT_RANKS or late_ns <= 0:
            continue
        by_step = waits.setdefault(absent, {})
        step = int(events.step[event])
        by_step[step] = by_step.get(step, 0.0) + late_ns
    steps = max(len(context.steps), 1)
    expected_ns = float(_waits_if_absent(context).max()) / steps
    # Collectives wait at the same time, and kernels run meanwhile.
    chosen = [np.isin(one.steps["step"], list(context.steps)) for one in matched.partials]
    exposed = (one.steps["exposed"] for one in matched.partials)
    exposed_ns = np.median([ns[at].sum() for ns, at in zip(exposed, chosen, strict=True)]) / steps
    for absent, by_step in waits.items():
        wait_ns = min(sum(by_step.values()) / steps, float(exposed_ns))
        if wait_ns < max(_MIN_ABSENT_FACTOR * expected_ns, _MIN_ABSENT_WAIT * context.step_ns):
            continue
        who = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {join_first(absent)}"
        text = (
            f"waits for an absent rank: all present ranks of its groups wait for {who}, whose "
            f"recording is missing, for a total of {format_time(wait_ns)} per step"
        )
        figures = {"wait_ms_per_step": round(wait_ns / NS_PER_MS, 4)}
        fault = (WAITS_FOR_ABSENT, (), context.steps, ReplayChange(), text, figures)
        yield Candidate(*fault, bound_ns=wait_ns, global_ranks=absent)


def _waits_if_absent(context: RuleContext) -> Floats:
    """Return the total time that all other present ranks wait for each rank, ns.

    The wait for an absent rank is compared with this.
    """
    events, rows = context.matched.events, context.matched.rows
    result = np.zeros(len(context.matched.ranks))
    usable = np.flatnonzero(
        (events.members > 1)
        & ~context.matched.transfers
        & np.isin(events.step, list(context.steps))
    )
    if not len(usable):
        return result
    count = int(events.members.sum())
    order = np.lexsort((context.waits.wait[:count], rows.event[:count]))
    second = context.waits.wait[order[events.first[usable] + 1]]
    np.add.at(result, rows.rank[context.waits.last[usable]], second)
    return result


def row_medians(values: Floats) -> Floats:
    """Return the median of the finite values of each row; 0 if there are none."""
    result = np.zeros(len(values))
    for index, row in enumerate(values):
        if (known := row[np.isfinite(row)]).size:
            result[index] = float(np.median(known))
    return result
