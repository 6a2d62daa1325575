"""Costs that all ranks share: setup, network, idle time, bubbles, messages, exposed transfers.

No rank is at fault, so they are priced one after the other, with all faults of ranks, hosts and
links fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import Bools, Floats, Ints, Runs
from unified_prof.base.text import SIZES, scaled
from unified_prof.cluster.idle_rules import (
    HOST_BOUND,
    MIN_STEPS,
    idle_intervals,
    location,
    row_medians,
)
from unified_prof.cluster.moe_imbalance import has_experts
from unified_prof.cluster.rank_partial import MARK_START
from unified_prof.cluster.rank_signals import pipelines
from unified_prof.cluster.replay import ReplayChange
from unified_prof.cluster.rule_context import NS_PER_MS, Candidate, RuleContext, format_time
from unified_prof.cluster.slow_network import slow_network
from unified_prof.cluster.waits import exposed_waits, mostly_recorded

COLLECTIVE_SETUP = "collective_setup"
EXPOSED_COMMUNICATION = "exposed_communication"
SMALL_BUCKETS = "small_buckets"
PIPELINE_BUBBLE = "pipeline_bubble"
UNEQUAL_BATCHES = "unequal_batches"

# Minimum share of the step that is saved without setup, small messages or long idle time, or with
# overlap.
_MIN_SHARE = 0.1
_MIN_BUBBLE_SHARE = 0.2  # The same for a pipeline; with enough micro-batches, less is left.
_MIN_BUBBLE_COST_SHARE = 0.05  # Minimum share of the step that more micro-batches save.
_MIN_UNEQUAL_SHARE = 0.05  # Minimum share of the step that equal batches save.
# Maximum variance of the mean work of ranks, as a multiple of that by chance, if batches are the
# cause.
_MAX_VARIANCE_RATIO = 4.0
_BATCHES_PER_STAGE = 4  # Usual number of micro-batches per pipeline stage in a step.
# Latency is most of the time of smaller messages. DDP closes a bucket when it exceeds its limit, so
# that buckets of 1 MB are up to twice as large.
_SMALL_BYTES = 2 << 20
_MIN_SMALL_PER_STEP = 10
_LARGE_GB_PER_S = 20.0  # Rate of large messages if the run has none to compare with.


def shared_costs(context: RuleContext, fixed: ReplayChange) -> Iterator[Candidate]:
    """Yield the costs without a rank at fault, in the order in which they are priced.

    `fixed` is the change that removes all faults.
    """
    if not context.is_watched and len(context.steps):
        gain_ns = context.replay.gain_ns(fixed) / max(len(context.replay.steps), 1)
        mean_ns = float(np.nanmean(context.signals.length_at))  # The gain is a mean as well.
        context = replace(context, step_ns=min(context.step_ns, mean_ns - gain_ns))
        yield from _collective_setup(context)
        yield from _unequal_batches(context, fixed)
        if not fixed.transfer:
            yield from slow_network(context)
        yield from _idle_at_places(context)
        yield from _pipeline_bubble(context, fixed, gain_ns)
        yield from _small_buckets(context)
        yield from _exposed_communication(context)


def _candidate(
    context: RuleContext,
    kind: str,
    change: ReplayChange,
    text: str,
    figures: dict[str, Any],
    *,
    bound_ns: float = 0.0,
    least: float = _MIN_SHARE,
    is_bound: bool = True,
) -> Candidate:
    return Candidate(
        kind,
        (),
        context.steps,
        change,
        text,
        figures,
        bound_ns=bound_ns,
        min_cost_ns=least * context.step_ns,
        is_bound=is_bound,
    )


def _collective_setup(context: RuleContext) -> Iterator[Candidate]:
    """Yield the setup of communicators, if their longest setup is most of it.

    The first collective of a communicator connects its ranks; others have a short setup.
    """
    events = context.matched.events
    known = np.isin(events.step, context.steps) & mostly_recorded(context.matched)
    setup = np.where(known, context.waits.setup, 0).clip(0)
    longest = np.zeros(len(context.matched.groups) + 1, np.int64)
    np.maximum.at(longest, events.group, setup)
    if 2 * int(longest.sum()) <= int(setup.sum()) or not setup.any():
        return
    ns = float(setup @ events.members) / len(context.matched.ranks) / len(context.steps)
    ns = min(ns, float(_exposed_ns(context).max()))
    text = (
        "collective setup: the first collective of a communicator connects its ranks, which occurs "
        "once: record later steps"
    )
    figures = {"setup_ms_per_step": ns / NS_PER_MS}
    yield _candidate(context, COLLECTIVE_SETUP, ReplayChange(), text, figures, bound_ns=ns)


def _unequal_batches(context: RuleContext, fixed: ReplayChange) -> Iterator[Candidate]:
    """Yield kernel times that differ in each step, if they are longest on many ranks in turn.

    With the change, the ranks with the same role share the work of each step equally. Ranks with
    another fault (`fixed`) stay as they are.
    """
    work, peers = context.signals.work_at, context.roles.peers
    if len(context.steps) < MIN_STEPS or context.on_hosts or has_experts(context):
        return
    work_at: dict[tuple[int, int], float] = {}
    most, turns, bound_ns = 1.0, set[int](), 0.0
    for role in np.unique(peers).tolist():
        members = np.setdiff1d(np.flatnonzero(peers == role), list(fixed.ranks))
        if len(members) < 2 or not work[members].all():
            continue
        ratio = work[members] / work[members].mean(axis=0)
        longest = np.bincount(ratio.argmax(axis=0), minlength=len(members))
        if _differ_always(np.log(ratio)):
            continue
        bound_ns += float((work[members].max(axis=0) - work[members].mean(axis=0)).mean())
        most = max(most, float((ratio.max(axis=0) / ratio.min(axis=0)).max()))
        turns.update(members[longest > 0].tolist())
        for rank, of_rank in zip(members.tolist(), (1 / ratio).tolist(), strict=True):
            for step, factor in zip(context.signals.steps, of_rank, strict=True):
                work_at[rank, step] = factor
    if bound_ns < _MIN_UNEQUAL_SHARE * context.step_ns or not work_at:
        return
    text = (
        f"unequal batches: kernel times of ranks with the same role differ by up to {most:.2f} "
        f"times in a step, and are longest on {len(turns)} ranks in turn, as with sequences of "
        "different lengths: give all ranks equally many tokens in each step"
    )
    figures = {"factor": round(most, 4), "ranks_in_turn": len(turns)}
    change = ReplayChange(work_at=work_at)
    yield _candidate(
        *(context, UNEQUAL_BATCHES, change, text, figures),
        least=_MIN_UNEQUAL_SHARE,
        is_bound=False,
    )


def _differ_always(ratio: Floats) -> bool:
    """Return True if differences between ranks (rows) are more than chance makes of their steps."""
    steps = ratio.shape[1]
    by_chance = float(ratio.var(axis=1, ddof=1).mean()) / steps
    return bool(ratio.mean(axis=1).var(ddof=1) > _MAX_VARIANCE_RATIO * by_chance)


def _idle_at_places(context: RuleContext) -> Iterator[Candidate]:
    """Yield the idle time that all devices have at a few places of every step, if it is long."""
    signals = context.signals
    idle_ns = float(row_medians(signals.idle_at).min(initial=np.inf))  # others may be late
    is_long = idle_ns > _MIN_SHARE * context.step_ns
    ranks = range(len(signals.idle_at))
    if not is_long or len(context.steps) < MIN_STEPS or len(ranks) < 2 or context.on_hosts:
        return
    by_step = dict.fromkeys(signals.steps, idle_ns)  # what a step has more is a pause
    cut = {at: ns for rank in ranks for at, ns in idle_intervals(context, rank, by_step).items()}
    if not cut:
        return
    where = location(context, max(cut, key=lambda at: cut[at]))
    text = (
        f"host-bound: the devices of all ranks are idle for {format_time(idle_ns)} or more in "
        f"every step, mostly {where}; `uprof advise --rank {context.global_ranks([0])[0]}` may "
        "name the cause"
    )
    figures = {"idle_ms_per_step": round(idle_ns / NS_PER_MS, 4), "where": where}
    cost = (HOST_BOUND, (), context.steps, ReplayChange(interval_ns=cut), text, figures)
    yield Candidate(*cost, min_cost_ns=_MIN_SHARE * context.step_ns)


def _pipeline_bubble(
    context: RuleContext, fixed: ReplayChange, gain_ns: float
) -> Iterator[Candidate]:
    """Yield the wait for other stages that even the rank with the least of it has.

    Stages wait in receives, and in collectives at the end of a step; sends do not delay them. If
    faults are fixed (`fixed`, which saves `gain_ns` per step), ranks wait less.
    """
    matched, rows, events = context.matched, context.matched.rows, context.matched.events
    sent = np.unique(np.stack((events.src, events.dst))[:, matched.transfers], axis=1)
    pairs = set(zip(*sent.tolist(), strict=True))
    if not pairs or moves_around(pairs):
        return
    chosen = np.flatnonzero((rows.event >= 0) & np.isin(rows.step, list(context.steps)))
    exposed_ns = np.maximum(exposed_waits(matched, context.waits)[chosen], 0)
    rank, event = rows.rank[chosen], rows.event[chosen]
    receives = events.dst[event] == rank
    if not receives.any():
        return
    steps = len(np.unique(rows.step[chosen]))
    ranks = len(matched.ranks)
    lines, line = pipelines([*pairs]), -1 - np.arange(ranks)  # that of each rank
    for number, members in enumerate(lines):
        line[list(members)] = number
    of_group = [line[matched.present(one.ranks)] for one in matched.groups]
    spans = [len(np.unique(one)) < len(one) for one in of_group]
    between = receives | (np.array([*spans, False])[events.group[event]] & (events.src[event] < 0))
    bubbles = np.bincount(rank, exposed_ns * between, ranks) / steps
    bubbles = np.minimum(bubbles, _exposed_ns(context))
    if gain_ns:
        saved_ns = context.replay.saved_ns(fixed) / max(len(context.replay.steps), 1)
        bubbles = np.maximum(bubbles - (gain_ns - saved_ns), 0)
    bubble_ns = float(bubbles[np.unique(rank[receives])].min())
    if bubble_ns < _MIN_BUBBLE_SHARE * context.step_ns:
        return
    # Stages send to the next one once per micro-batch; more often if they interleave, so that the
    # last one sends to the first one.
    pair = events.src[event[receives]] * ranks + rank[receives]
    batches = round(float(np.bincount(pair).max()) / steps)
    usual = _BATCHES_PER_STAGE * max(map(len, lines))
    advice, cost_ns = "use more micro-batches per step or a zero-bubble schedule", bubble_ns
    if len(pairs) < 2 * sum(map(len, lines)) and 0 < batches < usual:
        advice = f"use {usual} micro-batches per step instead of {batches}, or interleaved stages"
        # All micro-batches share a bubble, and each of them has the gaps between its kernels.
        idle_ns = float(np.nanmedian(context.signals.idle_at))
        cost_ns = bubble_ns * (1 - batches / usual) - idle_ns * (usual / batches - 1)
    text = (
        "pipeline bubble: every rank waits for other stages, the busiest one for "
        f"{bubble_ns / context.step_ns:.1%} of the step: {advice}"
    ).replace("%", " %")
    figures = {"bubble_ms_per_step": bubble_ns / NS_PER_MS, "batches_per_step": batches}
    kind, least = PIPELINE_BUBBLE, _MIN_BUBBLE_COST_SHARE
    yield _candidate(context, kind, ReplayChange(), text, figures, bound_ns=cost_ns, least=least)


def moves_around(pairs: set[tuple[int, int]]) -> bool:
    """Return True if data moves around in one direction, as in ring attention.

    `pairs` are (source, target). The stages of a pipeline form no ring, or send gradients back.
    """
    back = sum((target, source) in pairs for source, target in pairs)
    return 2 * back < len(pairs) and len({source < target for source, target in pairs}) > 1


def _usable(context: RuleContext) -> Bools:
    """Return a mask of the collectives whose transfer time is known."""
    events, transfer = context.matched.events, context.waits.transfer
    inside = np.isin(events.step, list(context.steps))
    usable: Bools = inside & events.complete & (events.members > 1) & (transfer > 0)
    return usable & ~context.matched.transfers


def _small_buckets(context: RuleContext) -> Iterator[Candidate]:
    """Yield many small messages; the change transfers them at the rate of large ones."""
    events, transfer = context.matched.events, context.waits.transfer
    usable = _usable(context) & (events.bytes > 0)
    small, large = usable & (events.bytes < _SMALL_BYTES), usable & (events.bytes >= _SMALL_BYTES)
    places = np.flatnonzero(small)
    # Only many small messages of one kind in one group could be fewer.
    keys = np.stack((events.group[places], events.kind[places]), 1)
    if not len(keys):
        return
    _, number, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    many = count >= _MIN_SMALL_PER_STEP * len(np.unique(events.step[places]))
    places = places[many[number.ravel()]]
    if not len(places):
        return
    rate = _LARGE_GB_PER_S
    if large.any():
        rate = max(float(np.median(events.bytes[large] / transfer[large])), rate)
    factors = np.minimum(events.bytes[places] / rate / transfer[places], 1.0)
    text = (
        f"small messages: {_most(context, places)}, cost their latency on all ranks: use larger "
        "buckets or one flat buffer"
    )
    figures = {
        "small_per_step": len(places) / len(context.steps),
        "gb_per_s": float(np.median(events.bytes[places] / transfer[places])),
        "large_gb_per_s": rate,
    }
    change = ReplayChange(
        transfer=dict(zip(places.tolist(), factors.tolist(), strict=True)),
        setup=_without_latency(context, places),
        interval_ns=_late_launches(context, places),
    )
    yield _candidate(context, SMALL_BUCKETS, change, text, figures, is_bound=False)


def _without_latency(context: RuleContext, places: Ints) -> dict[int, float]:
    """Return factors that remove the setup of events, except those that connect a communicator."""
    group, setup = context.matched.events.group, context.waits.setup
    order = np.lexsort((setup, group))
    connects = order[Runs(group[order]).last]  # the longest setup of each group
    return dict.fromkeys(np.setdiff1d(places, connects).tolist(), 0.0)


def _late_launches(context: RuleContext, places: Ints) -> dict[tuple[int, int], float]:
    """Return {(rank, mark): idle time} before messages that the device was idle for."""
    rows, cut = context.matched.rows, dict[tuple[int, int], float]()
    chosen = np.flatnonzero(np.isin(rows.event[:], places))
    of_rank = rows.rank[chosen]
    for rank, partial in enumerate(context.matched.partials):
        marks = partial.marks
        starts = (marks["what"] == MARK_START) & np.isin(
            marks["op"], rows.op[chosen[of_rank == rank]]
        )
        before = np.flatnonzero(starts) - 1
        before = before[before >= 0]
        idle = np.where(marks["busy"] > 0, marks["tail"], np.r_[np.diff(marks["time"]), 0])[before]
        cut |= {(rank, mark): ns for mark, ns in zip(before.tolist(), idle.tolist(), strict=True)}
    return cut


def _exposed_communication(context: RuleContext) -> Iterator[Candidate]:
    """Yield transfers that delay the ranks; the change is full overlap with compute."""
    places = np.flatnonzero(_usable(context))
    # Overlap saves no more, so shorter times need no replay.
    if not len(places) or _exposed_ns(context).max() < _MIN_SHARE * context.step_ns:
        return
    text = (
        f"exposed communication: all ranks wait for transfers, {_most(context, places)}: overlap "
        "them with compute, or make them fewer or smaller"
    )
    figures = {"transfer_ms_per_step": _per_step_ms(context, places)}
    change = ReplayChange(
        transfer=dict.fromkeys(places.tolist(), 0.0), setup=_without_latency(context, places)
    )
    yield _candidate(context, EXPOSED_COMMUNICATION, change, text, figures)


def _exposed_ns(context: RuleContext) -> Floats:
    """Return the mean exposed communication per step of each rank."""
    steps = [(one.steps["exposed"], one.steps["step"]) for one in context.matched.partials]
    return np.array([np.mean(ns[np.isin(step, context.steps)]) for ns, step in steps])


def _per_step_ms(context: RuleContext, places: Ints) -> float:
    """Return the time of transfers per step, mean over the ranks."""
    total_ns = context.waits.transfer[places] @ context.matched.events.members[places]
    return float(total_ns) / len(context.matched.ranks) / len(context.steps) / NS_PER_MS


def _most(context: RuleContext, places: Ints) -> str:
    """Return the kind, size and number of the events with the longest transfers."""
    matched, events = context.matched, context.matched.events
    keys = np.stack((events.kind[places], events.bytes[places]), 1)
    found, number = np.unique(keys, axis=0, return_inverse=True)
    number = number.ravel()
    most = int(np.bincount(number, context.waits.transfer[places]).argmax())
    kind, size = (int(value) for value in found[most])
    alike, of_size = number == most, f" of {scaled(size, SIZES)}" if size > 0 else ""
    if alike.sum() < len(context.steps):  # sizes that differ from step to step
        alike = keys[:, 0] == kind
        low, high = int(keys[alike, 1].min()), int(keys[alike, 1].max())
        of_size = f" of {scaled(max(low, 0), SIZES)} to {scaled(high, SIZES)}"
    count = int(alike.sum()) / len(np.unique(events.group[places[alike]])) / len(context.steps)
    return f"most in {matched.kinds[kind]}{of_size}, {count:,.3g} per step"
