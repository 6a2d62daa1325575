"""Findings of a multi-rank run: all rules, and the rules about kernels.

A rule needs evidence of a cause. Waiting ranks alone are not evidence, because a delay propagates
from rank to rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import NO_VALUE, Floats
from unified_prof.cluster.idle_rules import absent_ranks, idle_devices, late_input
from unified_prof.cluster.matching import run_size
from unified_prof.cluster.moe_imbalance import (
    EXPERT_IMBALANCE,
    GENERAL_SLOWNESS,
    expert_imbalance,
    has_experts,
)
from unified_prof.cluster.rank_signals import (
    KernelRatios,
    chance_limit,
    collect_signals,
    kernel_ratios,
    robust_deviation,
    slowness_in_steps,
    upper_cluster,
)
from unified_prof.cluster.replay import ReplayChange
from unified_prof.cluster.rule_context import (
    NS_PER_MS,
    Candidate,
    RuleContext,
    cost_findings,
    cost_shared,
    excess_segments,
    format_time,
    group_by_host,
    join_first,
    lasting,
    remove_excess,
    steps_text,
)
from unified_prof.cluster.shared_costs import shared_costs
from unified_prof.cluster.slow_links import slow_links
from unified_prof.cluster.slow_network import retransmissions
from unified_prof.recording.model import Finding
from unified_prof.recording.names import ATTENTION, CONVOLUTION, MATMUL, class_of_kernel

SLOW_RANK = "slow_rank"
SLOW_HOST = "slow_host"
SLOW_KERNEL = "slow_kernel"
UNEQUAL_STAGES, MORE_WORK = "unequal_stages", "more_work"

# Minimum slowness (logarithm of a ratio) of the kernels of a slow rank; healthy devices of one
# model differ by up to 2.6 %.
_MIN_SLOWNESS = 0.03
_MAX_USUAL_SPREAD = 0.015  # Maximum spread between ranks that the slow half of a role must exceed.
# With fewer ranks, a slow rank and its peer are too large a part of the spread between ranks, which
# is then measured on the other roles.
_MIN_RANKS_FOR_SPREAD = 8
_MIN_RANKS_IN_TURN = 3  # Minimum number of ranks, each slow in other steps, for one finding.
_MIN_STEPS = 3  # Minimum number of steps to distinguish usual from unusual steps.
_MIN_STANDARD_ERRORS = 2.0  # Minimum mean slowness of steps in multiples of its standard error.
# Minimum share of kernel time in slower kinds of kernel for a rank to be slow in general. If a rank
# has more work (experts, data), only some kinds are slower.
_MIN_SLOWER_SHARE = 0.6
# Minimum slowness of a single kind of kernel, and the same if there is one peer (logarithms).
_MIN_KERNEL_SLOWNESS = float(np.log(1.15))
_MIN_KERNEL_SLOWNESS_OF_TWO = float(np.log(1.25))
# Minimum additional time of the slower kinds of kernel, as a share of the step.
_MIN_KERNEL_SHARE = 0.005
# Classes of kernels whose time is inversely proportional to the clock.
_MATRIX_CLASSES = {MATMUL, CONVOLUTION, ATTENTION}
_MIN_SLOW_STEPS = 0.75  # Minimum share of the steps in which a kind of kernel must be slower.
# Minimum ratio of the work of a pipeline stage to the median stage to report the stage.
_MIN_STAGE_FACTOR = 1.08
_MAX_CLOCK_SHARE = 0.97  # Maximum clock of a rank, as a share of that of its peers, to name it.
_MAX_SLOW_REST = 0.1  # Maximum share of slow blocks among the other ones of a watched rank.
# Minimum number of steps, and minimum correlation with the step number, for a trend; that of a jump
# is 0.87 or less.
_MIN_TREND_STEPS = 5
_MIN_TREND_CORRELATION = 0.9


def find_all(context: RuleContext) -> tuple[list[Finding], list[Finding]]:
    """Return the faults and the costs that all ranks share; a healthy run has no faults."""
    stalled = [*retransmissions(context)]
    context = _without_stalls(context, stalled)
    candidates = [one for rule in RULES for one in rule(context) if one.is_computed()]
    candidates = stalled + candidates
    loaded = {
        rank
        for candidate in candidates
        if candidate.kind == EXPERT_IMBALANCE
        for rank in candidate.ranks
    }
    candidates = [one for one in candidates if not _is_due_to_load(context, one, loaded)]
    faults = cost_findings(context, candidates)
    fixed = ReplayChange.merge([one.change for one in candidates])
    shared = [one for one in shared_costs(context, fixed) if one.is_computed()]
    return faults, cost_shared(context, fixed, shared)


def _without_stalls(context: RuleContext, stalled: Sequence[Candidate]) -> RuleContext:
    """Return the context with the usual times of collectives that timed out."""
    waits = context.waits
    times = {name: getattr(waits, name).copy() for name in ("least", "transfer", "setup")}
    for one in stalled:
        for event, factor in one.change.transfer.items():
            for ns in times.values():
                ns[event] = round(ns[event] * factor)
    return replace(context, waits=replace(waits, **times))


def _is_due_to_load(context: RuleContext, candidate: Candidate, loaded: set[int]) -> bool:
    """Return True if kernels are slow because experts get more tokens."""
    rank = next(iter(candidate.ranks), NO_VALUE)
    if candidate.kind != SLOW_RANK or rank not in loaded:
        return candidate.kind == SLOW_KERNEL and rank in loaded
    peers = context.roles.peers
    return slowness_in_steps(context.matched, peers, rank, candidate.steps)[2] <= GENERAL_SLOWNESS


def slow_ranks(context: RuleContext) -> Iterator[Candidate]:
    """Yield ranks and hosts whose kernels take longer than those of ranks with the same role."""
    if context.is_watched and len(context.signals.kernels.names) > 1:
        for number in range(len(context.signals.kernels.names)):
            yield from slow_ranks(_only_pass(context, number))
        return
    always = _slow_in_all_steps(context)
    at_times = dict(_slow_in_some_steps(context))
    in_all = {rank: factor for rank, factor in always.items() if rank not in at_times}
    for ranks, host in _group(context, list(in_all)):
        factors = {rank: in_all[rank] for rank in ranks}
        change = _without_slowness(context, factors, context.steps)
        worst = max(ranks, key=lambda rank: factors[rank])
        error = float(context.signals.kernels.error[worst])
        yield _slow_rank(context, host, factors, error, context.steps, change)
    if len(at_times) == len({steps for steps, _, _ in at_times.values()}) >= _MIN_RANKS_IN_TURN:
        yield _slow_in_turn(context, at_times)
        return
    by_steps: dict[tuple[int, ...], list[int]] = {}
    for rank, (steps, _, _) in at_times.items():
        by_steps.setdefault(steps, []).append(rank)
    for steps, members in by_steps.items():
        for ranks, host in _group(context, members):
            factors = {rank: at_times[rank][1] for rank in ranks}
            change = _without_slowness(context, factors, steps)
            worst = max(ranks, key=lambda rank: factors[rank])
            yield _slow_rank(context, host, factors, at_times[worst][2], steps, change)


def _without_slowness(
    context: RuleContext, factors: Mapping[int, float], steps: Sequence[int]
) -> ReplayChange:
    """Return the change that makes ranks faster, by a factor or as they become slower."""
    work: dict[int, float] = {}
    work_at: dict[tuple[int, int], float] = {}
    for rank, factor in factors.items():
        by_step = dict.fromkeys(steps, factor)
        if trend := _trend(context, rank):
            line = np.linspace(*trend, len(context.steps)).clip(1.0)
            by_step = dict(zip(context.steps, line.tolist(), strict=True))
        elif set(steps) >= set(context.steps):
            work[rank] = context.healthy_work(rank, factor)
            continue
        work_at |= {
            (rank, step): context.healthy_work(rank, slower) for step, slower in by_step.items()
        }
    return ReplayChange(work=work, work_at=work_at)


def _slow_in_turn(
    context: RuleContext, at_times: Mapping[int, tuple[tuple[int, ...], float, float]]
) -> Candidate:
    """Return the candidate for ranks that are slower one after the other."""
    work_at = {
        (rank, step): context.healthy_work(rank, factor)
        for rank, (steps, factor, _) in at_times.items()
        for step in steps
    }
    factor = max(factor for _, factor, _ in at_times.values())
    steps = tuple(sorted({step for _, step in work_at}))
    text = (
        f"slow {context.kernels} on ranks {join_first(context.global_ranks([*at_times]))}, each in "
        f"other steps{steps_text(context, steps)}: they take up to {factor:.2f} times as long as "
        "those of other ranks, as if the longest sequences or other work moved between ranks"
    )
    figures = {"factor": round(factor, 4)}
    change = ReplayChange(work_at=work_at)
    return Candidate(SLOW_RANK, [*at_times], steps, change, text, figures)


def _only_pass(context: RuleContext, number: int) -> RuleContext:
    """Return the context with one pass of the steps of watched ranks as their only kernels."""
    found = []
    for partial in context.matched.partials:
        inside = partial.kernels["name"] == number
        columns = {name: values[inside] for name, values in partial.kernels.items()}
        columns["name"] = columns["name"] - number
        names = (partial.names[number],)
        found.append(replace(partial, names=names, kernels=columns))
    matched = replace(context.matched, partials=tuple(found))
    signals = collect_signals(matched, context.roles, context.steps)
    return replace(context, matched=matched, signals=signals, work=context.signals.work)


def _group(context: RuleContext, ranks: Sequence[int]) -> Iterator[tuple[list[int], str | None]]:
    """Group slow ranks by host; the slow half of a role that spans hosts is one group."""
    half = _slow_half(context)
    found = group_by_host(context, ranks)
    yield from (one for one in found if one[1] is not None or one[0][0] not in half)
    if together := [ranks[0] for ranks, host in found if host is None and ranks[0] in half]:
        yield together, None


def _slow_in_all_steps(context: RuleContext) -> dict[int, float]:
    """Return {rank: factor} for ranks whose kernels are slower over all steps."""
    kernels, peers = context.signals.kernels, context.roles.peers
    ranks = len(context.matched.ranks)
    usual = np.maximum(robust_deviation(kernels.offset), kernels.error)
    if ranks < 4:  # too few to measure the spread between ranks
        usual = kernels.error
    elif ranks < _MIN_RANKS_FOR_SPREAD:
        for rank, role in enumerate(peers.tolist()):
            others = kernels.offset[peers != role]
            if len(others) > 1:
                usual[rank] = max(robust_deviation(others), kernels.error[rank])
    limit = np.maximum(chance_limit(ranks) * usual, _MIN_SLOWNESS)
    slow = (kernels.slowness > limit) & (kernels.slower_share >= _MIN_SLOWER_SHARE)
    found = {rank: float(np.exp(kernels.slowness[rank])) for rank in np.flatnonzero(slow).tolist()}
    found = _slow_half(context) | found  # several slow ranks widen the spread, and hide each other
    return {rank: factor for rank, factor in found.items() if _is_steady(context, rank)}


def _is_steady(context: RuleContext, rank: int) -> bool:
    """Return False if a rank may be slower by chance, as its data differs from step to step."""
    values = context.signals.slowness_at[rank]
    values = values[np.isfinite(values)]
    if len(values) < _MIN_STEPS:
        return True
    error = float(values.std(ddof=1)) / np.sqrt(len(values))
    return bool(values.mean() >= _MIN_STANDARD_ERRORS * error)


def _slow_half(context: RuleContext) -> dict[int, float]:
    """Return {rank: factor} for roles in which up to half of the ranks are distinctly slower."""
    kernels, peers = context.signals.kernels, context.roles.peers
    result: dict[int, float] = {}
    for role in np.unique(peers).tolist():
        members = np.flatnonzero(peers == role)
        above = upper_cluster(kernels.offset[members])
        if above is None:
            continue
        spread = robust_deviation(kernels.offset[members][above == 0])
        if float(above.max()) < chance_limit(len(members)) * min(spread, _MAX_USUAL_SPREAD):
            continue
        for rank, away in zip(members.tolist(), above.tolist(), strict=True):
            if away > 0:
                result[rank] = float(np.exp(away))
    return result


def _slow_in_some_steps(
    context: RuleContext,
) -> Iterator[tuple[int, tuple[tuple[int, ...], float, float]]]:
    """Yield (rank, (steps, factor, error)) for ranks that are slower only in some steps."""
    signals = context.signals
    slowness = signals.slowness_at
    known = np.isfinite(slowness)
    if slowness.shape[1] < _MIN_STEPS or not known.any():
        return
    limit = chance_limit(int(known.sum())) * robust_deviation(slowness)
    slow = lasting(context, known & (slowness > max(limit, _MIN_SLOWNESS)))
    allowed = _MAX_SLOW_REST if context.is_watched else 0.0
    for rank in np.flatnonzero(slow.any(axis=1)).tolist():
        rest = slowness[rank, known[rank] & ~slow[rank]]
        half = float(np.median(slowness[rank, slow[rank]])) / 2
        if not len(rest) or (rest >= half).mean() > allowed:
            continue
        steps = tuple(signals.steps[at] for at in np.flatnonzero(slow[rank]).tolist())
        found, error, share = slowness_in_steps(context.matched, context.roles.peers, rank, steps)
        if found > max(_MIN_SLOWNESS, 2 * error) and share >= _MIN_SLOWER_SHARE:
            yield rank, (steps, float(np.exp(found)), error)


def _slow_rank(
    context: RuleContext,
    host: str | None,
    factors: Mapping[int, float],
    error: float,
    steps: Sequence[int],
    change: ReplayChange,
) -> Candidate:
    signals = context.signals
    ranks = list(factors)
    worst = max(ranks, key=lambda rank: factors[rank])
    factor = factors[worst]
    peers = "pipeline stage" if context.roles.by_stage else "role"
    places = [signals.steps.index(step) for step in steps]
    work_ns = signals.work_at[[worst]][:, places].mean(axis=1)
    figures: dict[str, Any] = {
        "factor": round(factor, 4),
        "factor_error": round(error * factor, 4),
        "work_ms_per_step": float(work_ns[0]) / NS_PER_MS,
        "peers_work_ms_per_step": float(work_ns[0]) / factor / NS_PER_MS,
    }
    where, work = steps_text(context, steps), context.kernels
    kind = SLOW_RANK if host is None else SLOW_HOST
    amount, others = f"take up to {factor:.2f}", f"other ranks with the same {peers}"
    if host is not None:
        who = f"slow host {host}: {work} of {len(ranks)} of its ranks"
        others = f"ranks with the same {peers} on other hosts"
    elif len(ranks) > 1:
        who = f"slow {work}: ranks {join_first(context.global_ranks(ranks))}: their {work}"
    else:
        who = f"slow {work}: {context.describe(worst)}: its {work}"
        is_exact = error * factor < 0.02
        amount = f"take {factor:.2f}" if is_exact else f"take {factor:.2f} ± {error * factor:.2f}"
    text = f"{who} {amount} times as long{where} as those of {others}"
    cause, clocks = _low_clock(context, worst)
    text, figures = text + cause, figures | clocks
    if trend := _trend(context, worst):
        figures["trend"] = [round(value, 4) for value in trend]
        text += f", rising from {trend[0]:.2f} to {trend[1]:.2f} times over the recorded steps"
    bound_ns = float(work_ns[0]) * (1 - 1 / factor)
    return Candidate(kind, ranks, tuple(steps), change, text, figures, bound_ns=bound_ns)


def _low_clock(context: RuleContext, rank: int) -> tuple[str, dict[str, Any]]:
    """Return a phrase and figures about the recorded clock of a rank if others' are higher."""
    peers = context.roles.peers
    own, *others = (
        context.matched.facts[one].clock_mhz
        for one in [rank, *np.flatnonzero((peers == peers[rank]) & (np.arange(len(peers)) != rank))]
    )
    known = [one for one in others if one]
    if own is None or not known or own > _MAX_CLOCK_SHARE * (usual := float(np.median(known))):
        return "", {}
    text = (
        f"; its {context.device} runs at a mean of {own:,.0f} MHz, the others at {usual:,.0f} MHz: "
        "check its temperature and power limit"
    )
    return text, {"clock_mhz": own, "peers_clock_mhz": usual}


def _trend(context: RuleContext, rank: int) -> tuple[float, float] | None:
    """Return the first and last factor of a rank whose kernels become slower step by step."""
    values: Floats = context.signals.slowness_at[rank]
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < _MIN_TREND_STEPS or float(np.ptp(values[known])) < _MIN_SLOWNESS:
        return None
    x, y = known - known.mean(), values[known] - values[known].mean()
    slope = float((x * y).sum() / (x * x).sum())
    correlation = float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))
    if correlation < _MIN_TREND_CORRELATION:
        return None
    first, last = (float(values[known].mean() + slope * x[at]) for at in (0, -1))
    return float(np.exp(first)), float(np.exp(last))


def slow_kernels(context: RuleContext) -> Iterator[Candidate]:
    """Yield ranks on which a kind of kernel is always slower with the same number of calls."""
    kernels = context.signals.kernels
    steps = max(len(context.steps), 1)
    if context.is_watched:  # each pass is compared by `slow_ranks`
        return
    in_general = {*_slow_in_all_steps(context), *(rank for rank, _ in _slow_in_some_steps(context))}
    spread = np.array([robust_deviation(kernels.ratio[:, at]) for at in range(len(kernels.names))])
    limit = np.maximum(chance_limit(kernels.ratio.size) * spread, _MIN_KERNEL_SLOWNESS)
    peers = context.roles.peers
    with np.errstate(invalid="ignore"):
        excess = kernels.total * (1 - np.exp(-kernels.ratio))
        slower = kernels.ratio > limit
    for rank in np.flatnonzero(slower.any(axis=1)).tolist():
        members = np.flatnonzero(peers == peers[rank])
        if rank in in_general or len(members) < 2:
            continue
        others = members[members != rank]
        found: dict[int, float] = {}
        for at in np.flatnonzero(slower[rank]).tolist():
            usual_count = float(np.median(kernels.count[others, at]))
            if kernels.count[rank, at] != usual_count:
                continue
            if len(others) == 1 and kernels.ratio[rank, at] < _MIN_KERNEL_SLOWNESS_OF_TWO:
                continue
            # The number of expert calls varies with the number of tokens.
            if has_experts(context) and kernels.shortest[rank, at] < kernels.peers_mean[rank, at]:
                continue
            found[at] = float(excess[rank, at])
        saved_ns = sum(found.values()) / steps
        if saved_ns < _MIN_KERNEL_SHARE * context.step_ns:
            continue
        at = max(found, key=lambda one: found[one])
        if not _is_always_slower(context, rank, members.tolist(), kernels.names[at]):
            continue
        factor = float(np.exp(kernels.ratio[rank, at]))
        name, module = kernels.names[at], _module(context, rank, kernels.names[at])
        kernel = f"{name} ({module})" if module else name
        kinds = "kind of kernel is" if len(found) == 2 else "kinds of kernel are"
        more = f" ({len(found) - 1} more {kinds} slower)" if len(found) > 1 else ""
        figures = {
            "factor": round(factor, 4),
            "kernel": name,
            "module": module,
            "kernels": [kernels.names[one] for one in found],
            "excess_ms_per_step": saved_ns / NS_PER_MS,
        }
        text = (
            f"slow kernel: {context.describe(rank)}: {kernel} takes "
            f"{factor:.2f} times as long per call as on other ranks{more}, "
            f"{format_time(saved_ns)} more per step; its other kernels are not slower"
        )
        cause, clocks = _low_clock(context, rank)
        if not cause and _are_all_matrix_kernels(kernels, rank, found):
            cause = (
                "; all its matrix kernels are slower alike, as with a low clock: check its clock, "
                "temperature and power limit"
            )
        text, figures = text + cause, figures | clocks
        segments = excess_segments(context, rank, others.tolist(), idle=False)
        saved_all_ns = saved_ns * len(context.replay.steps)
        change = ReplayChange(interval_ns=remove_excess(rank, segments, saved_all_ns))
        yield Candidate(SLOW_KERNEL, [rank], context.steps, change, text, figures)


def _are_all_matrix_kernels(kernels: KernelRatios, rank: int, found: Collection[int]) -> bool:
    """Return True if `found` are matrix kernels of a rank, which are all slower alike."""
    matrix = [
        at
        for at in np.flatnonzero(np.isfinite(kernels.ratio[rank])).tolist()
        if class_of_kernel(kernels.names[at]) in _MATRIX_CLASSES
    ]
    is_alike = len(matrix) > 1 and np.ptp(kernels.ratio[rank, matrix]) < _MIN_SLOWNESS
    return bool(is_alike) and {*matrix} >= {*found}


def _is_always_slower(context: RuleContext, rank: int, members: Sequence[int], name: str) -> bool:
    """Return True if a kind of kernel is slower than on the peers in most steps."""
    role = np.zeros(len(members), np.int64)
    results: list[bool] = []
    for step in context.steps:
        kernels = kernel_ratios(context.matched, role, [step], members)
        if name in kernels.names:
            ratio = kernels.ratio[members.index(rank), kernels.names.index(name)]
            results.append(bool(ratio > _MIN_KERNEL_SLOWNESS / 2))
    return bool(results) and sum(results) >= _MIN_SLOW_STEPS * len(results)


def _module(context: RuleContext, rank: int, name: str) -> str:
    """Return the module with the most time in a kind of kernel; empty if none is recorded."""
    partial = context.matched.partials[rank]
    table = partial.kernels
    totals: dict[str, int] = {}
    for number, module, total in zip(
        *(table[column].tolist() for column in ("name", "module", "total")), strict=True
    ):
        if partial.names[number] == name:
            totals[partial.modules[module]] = totals.get(partial.modules[module], 0) + total
    return max(totals, key=lambda total: totals[total], default="")


def unequal_stages(context: RuleContext) -> Iterator[Candidate]:
    """Yield pipeline stages, or ranks with a role alone, that have more work than the others."""
    peers, work = context.roles.peers, context.signals.work
    by_stage = context.roles.by_stage
    is_sample = 2 * len(peers) < run_size(context.matched)[0]
    if not by_stage and (is_sample or context.is_watched or has_experts(context)):
        return
    stages = np.array([stage for stage in np.unique(peers).tolist() if stage >= 0], np.int64)
    if len(stages) < 2:
        return
    # The lower median, because one of two ranks may be slow.
    per_stage = np.array(
        [float(np.quantile(work[peers == one], 0.5, method="lower")) for one in stages.tolist()]
    )
    steps = max(len(context.steps), 1)
    for at, stage in enumerate(stages.tolist()):
        others = np.delete(per_stage, at)
        usual = float(np.median(others))
        members = np.flatnonzero(peers == stage).tolist()
        # A stage of one rank has more work if its kernels are not slower per call.
        if len(members) < 2 and not context.signals.kernels.slowness[members[0]] < _MIN_SLOWNESS:
            continue
        if len(members) > 1 and not by_stage:  # not one rank that also logs or validates
            continue
        least = max(_MIN_STAGE_FACTOR * usual, others.max() * (1 + (_MIN_STAGE_FACTOR - 1) / 2))
        if not usual or per_stage[at] < least:
            continue
        rest = work[(peers != stage) & (peers >= 0)]
        if len(others) == 1 and work[members].min() < _MIN_STAGE_FACTOR * rest.max():
            continue  # one of the ranks, and not the stage, may be slow
        factor = float(per_stage[at]) / usual
        change = ReplayChange(work=dict.fromkeys(members, 1 / factor))
        known = np.flatnonzero(peers >= 0)
        even = per_stage.mean() / per_stage[np.searchsorted(stages, peers[known])]
        balanced = ReplayChange(work=dict(zip(known.tolist(), even.tolist(), strict=True)))
        saved_ms = context.replay.gain_ns(balanced) / max(len(context.replay.steps), 1) / NS_PER_MS
        text = (
            f"unequal pipeline stages: stage {stage} has {factor:.2f} times the kernel time of the "
            f"{'median' if len(others) > 1 else 'other'} stage "
            f"({format_time(per_stage[at] / steps)} compared with "
            f"{format_time(usual / steps)}; balancing all stages would save "
            f"{format_time(saved_ms * NS_PER_MS)} per step)"
        )
        hosts, elsewhere = context.hosts(members), np.flatnonzero(peers != stage).tolist()
        if not by_stage:  # its communication may be hidden by its work
            kernels = context.signals.kernels
            more = kernels.total - np.median(np.delete(kernels.total, members, 0), axis=0)
            name = kernels.names[int(more[members[0]].argmax())]
            text = (
                f"more work: {context.describe(members[0])} has {factor:.2f} times the kernel "
                f"time of the others ({format_time(per_stage[at] / steps)} compared with "
                f"{format_time(usual / steps)}), most of the difference in {name}"
            )
        elif len(hosts) == 1 and not {*hosts} & {*context.hosts(elsewhere)}:
            text += f"; it is alone on host {hosts[0]}, and a slow host would look the same"
        figures = {
            "stage": stage,
            "factor": round(factor, 4),
            "work_ms_per_step": float(per_stage[at]) / steps / NS_PER_MS,
            "usual_work_ms_per_step": usual / steps / NS_PER_MS,
            "balanced_gain_ms": saved_ms,
            **({} if by_stage else {"kernel": name}),
        }
        kind = UNEQUAL_STAGES if by_stage else MORE_WORK
        fault = (kind, members, context.steps, change, text, figures)
        yield Candidate(*fault, is_bound=not by_stage)


RULES: tuple[Callable[[RuleContext], Iterator[Candidate]], ...] = (
    slow_ranks,
    slow_kernels,
    unequal_stages,
    idle_devices,
    late_input,
    absent_ranks,
    expert_imbalance,
    slow_links,
)
