"""Inputs of the cluster rules, candidates for findings, and their costs.

A rule yields candidates: faults, each with the change that fixes it. The cost of a candidate is the
time per step that a replay of the run with that change saves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import Bools, Floats
from unified_prof.base.text import TIMES, scaled
from unified_prof.cluster.matching import MatchedCollectives
from unified_prof.cluster.rank_signals import RankRoles, RankSignals
from unified_prof.cluster.replay import MarkInterval, Replay, ReplayChange
from unified_prof.cluster.waits import Waits
from unified_prof.recording.model import Finding

NS_PER_MS = 1e6
MIN_STEP_SHARE = 0.002  # Minimum share of a step for a time to count as a symptom.
# Minimum cost of a finding as a share of the step; parts of watched steps are times of a busy host.
_MIN_COST_SHARE, _MIN_WATCHED_COST_SHARE = 0.001, 0.005
# Minimum share of a host's ranks with a fault to report the host instead of the ranks.
_MIN_HOST_SHARE = 0.75
# Share of a rank's collectives with missing members above which its costs are lower bounds.
_MAX_INCOMPLETE_SHARE = 0.05
# Minimum number of consecutive blocks of watched steps for a finding, also as a part of all blocks.
_MIN_BLOCKS = 3
_MIN_BLOCK_SHARE = 6
# A fault that gains this many times less than another one of the same ranks may be a part of it.
_MIN_PART_FACTOR = 10
_MAX_STEPS_LISTED = 5  # Maximum number of steps listed in a sentence.


@dataclass(frozen=True, slots=True)
class RuleContext:
    """Input of the rules; ranks are indices in `matched.ranks` unless called global."""

    matched: MatchedCollectives
    waits: Waits
    roles: RankRoles
    signals: RankSignals
    replay: Replay
    steps: tuple[int, ...]  # The compared steps.
    step_ns: float  # Median length of a step.
    work: Floats | None = None  # All work of each rank, ns, if `signals` have one pass only.

    @property
    def on_hosts(self) -> bool:
        """True if no device was recorded, and the operations of processes are compared."""
        return all(facts.vendor is None for facts in self.matched.facts)

    @property
    def is_watched(self) -> bool:
        """True if ranks were only watched, and the passes of their steps are compared."""
        return all(facts.watched for facts in self.matched.facts)

    @property
    def device(self) -> str:
        """The word for what works or is idle."""
        return "process" if self.on_hosts else "device"

    @property
    def kernels(self) -> str:
        """The word for units of work."""
        if self.is_watched and len(names := self.signals.kernels.names) == 1:
            return names[0]
        return "operations" if self.on_hosts else "kernels"

    def healthy_work(self, rank: int, factor: float) -> float:
        """Return the work of a rank as a share of its recorded work if it were `factor` faster."""
        share = 1.0 if self.work is None else float(self.signals.work[rank] / self.work[rank])
        return 1 - share * (1 - 1 / factor)

    def host(self, rank: int) -> str | None:
        """Return the host of a rank."""
        return self.matched.facts[rank].host

    def hosts(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """Return the sorted distinct hosts of ranks."""
        return tuple(sorted({host for rank in ranks if (host := self.host(rank)) is not None}))

    def describe(self, rank: int) -> str:
        """Return a text with the number of a rank and its host."""
        host = self.host(rank)
        name = f"rank {self.matched.ranks[rank]}"
        return name if host is None else f"{name} on {host}"

    def global_ranks(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Convert rank indices to global ranks."""
        return tuple(self.matched.ranks[rank] for rank in ranks)

    def has_steps(self) -> bool:
        """Return True if steps were recorded; otherwise the whole recording is one step."""
        return any(facts.steps_recorded for facts in self.matched.facts)

    def replay_of(self, steps: Sequence[int]) -> Replay:
        """Return a replay of those of `steps` whose collectives are in memory."""
        if set(steps) <= set(self.replay.steps) or set(steps) >= set(self.steps):
            return self.replay
        present = set(np.unique(self.matched.rows.step).tolist())
        return self.replay.limited_to([step for step in steps if step in present])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible finding, before its cost is known."""

    kind: str
    ranks: Sequence[int]  # Indices of the ranks at fault.
    steps: tuple[int, ...]
    change: ReplayChange  # Change of the run that removes the fault.
    text: str  # The sentence without its cost.
    figures: dict[str, Any]
    links: tuple[tuple[int, int], ...] = ()  # Global ranks of both ends of each slow link.
    # Upper bound of the cost in each of `steps`, used if none of them can be replayed.
    bound_ns: float = 0.0
    min_cost_ns: float = 0.0  # Minimum cost per affected step for this kind of finding.
    global_ranks: tuple[int, ...] | None = None  # Global ranks at fault if they have no recording.
    cost_ns: float | None = None  # Cost in each of `steps` if a replay cannot estimate it.
    # True if the change fixes more than the fault, so that its gain is an upper bound.
    is_bound: bool = False

    def is_computed(self) -> bool:
        """Return False if a figure is no number, because the run has nothing to compare with."""
        figures = [one for one in self.figures.values() if isinstance(one, float)]
        return all(map(math.isfinite, (self.cost_ns or 0.0, self.bound_ns, *figures)))


def cost_findings(context: RuleContext, candidates: Sequence[Candidate]) -> list[Finding]:
    """Return the candidates that cost time as findings, costliest first.

    A fault may cost nothing by itself because another fault hides it. Its cost is then the gain
    from fixing it after all others.
    """
    if not candidates:
        return []
    alone = [_gain(context, candidate) for candidate in candidates]
    together: float | None = None
    findings: list[Finding] = []
    # If hosts run ahead of their devices, the last step is much longer than the median one.
    lengths = context.signals.length_at
    mean_ns = float(np.nanmean(lengths)) if np.isfinite(lengths).any() else context.step_ns
    for at, (candidate, (gain_ns, replayed)) in enumerate(zip(candidates, alone, strict=True)):
        affected = len(candidate.steps)
        share = affected / max(len(context.steps), 1)
        if set(candidate.steps) >= set(context.steps):
            share = 1.0
        condition = ""
        least = _MIN_WATCHED_COST_SHARE if context.is_watched else _MIN_COST_SHARE
        needed = max(least * mean_ns, candidate.min_cost_ns * share)
        cost_ns = gain_ns / replayed * share if replayed else candidate.bound_ns * share
        if cost_ns < needed and replayed and len(candidates) > 1:
            if together is None:
                together = context.replay.gain_ns(
                    ReplayChange.merge([c.change for c in candidates])
                )
            others = [one.change for other, one in enumerate(candidates) if other != at]
            gain_ns = together - context.replay.gain_ns(ReplayChange.merge(others))
            cost_ns = gain_ns / replayed * share
            condition = " once the other findings are fixed"
        costlier = [
            other.change
            for other, (ns, _) in zip(candidates, alone, strict=True)
            if ns > _MIN_PART_FACTOR * gain_ns > 0 and set(other.ranks) >= set(candidate.ranks)
        ]
        if replayed and costlier:  # it may be a part of another fault of the same ranks
            fixed = context.replay.gain_ns(ReplayChange.merge(costlier))
            both = context.replay.gain_ns(ReplayChange.merge([*costlier, candidate.change]))
            cost_ns = min(cost_ns, (both - fixed) / replayed * share)
        if cost_ns >= needed:
            findings.append(_finding(context, candidate, cost_ns, share, bool(replayed), condition))
    return sorted(
        findings, key=lambda finding: (-finding.cost_ms_per_step, finding.kind, finding.ranks)
    )


def cost_shared(
    context: RuleContext, fixed: ReplayChange, candidates: Sequence[Candidate]
) -> list[Finding]:
    """Return the candidates without a rank at fault that cost time as findings, costliest first.

    Their costs are gains after all faults (`fixed`) and the candidates before them are fixed.
    """
    findings: list[Finding] = []
    for candidate in candidates:
        cost_ns = candidate.bound_ns
        if candidate.change != ReplayChange():
            both = ReplayChange.merge([fixed, candidate.change])
            gain_ns = context.replay.gain_ns(both) - context.replay.gain_ns(fixed)
            cost_ns = gain_ns / max(len(context.replay.steps), 1)
            if cost_ns >= candidate.min_cost_ns:
                fixed = both
        if cost_ns >= candidate.min_cost_ns:
            findings.append(_finding(context, candidate, cost_ns, 1.0, True, ""))
    return sorted(findings, key=lambda finding: -finding.cost_ms_per_step)


def _finding(
    context: RuleContext,
    candidate: Candidate,
    cost_ns: float,
    share: float,
    is_replayed: bool,
    condition: str,
) -> Finding:
    """Return a candidate as a finding; `share` is that of its steps."""
    qualifier = "at most " if candidate.is_bound or not is_replayed else ""
    if not qualifier and _has_incomplete_collectives(context, candidate.ranks):
        qualifier = "at least "
    figures, cost = candidate.figures, format_time(cost_ns)
    if share < 1:
        figures = figures | {"cost_ms_in_these_steps": cost_ns / share / NS_PER_MS}
        in_these = format_time(cost_ns / share)
        cost = f"{in_these} in each of these steps ({cost} per step on average)"
    else:
        cost += " per step" if context.has_steps() else " over the whole recording"
    return Finding(
        candidate.kind,
        candidate.global_ranks or context.global_ranks(candidate.ranks),
        context.hosts(candidate.ranks),
        candidate.links,
        candidate.steps,
        round(cost_ns / NS_PER_MS, 6),
        f"{candidate.text}; costs {qualifier}{cost}{condition}",
        {
            name: round(float(value), 6) if isinstance(value, float) else value
            for name, value in figures.items()
        },
    )


def _gain(context: RuleContext, candidate: Candidate) -> tuple[float, int]:
    """Return the gain over all replayed steps, ns, and how many of them the candidate changes."""
    if candidate.change == ReplayChange():
        return 0.0, 0
    replay = context.replay_of(candidate.steps)
    everywhere = set(candidate.steps) >= set(context.steps)
    replayed = len(replay.steps if everywhere else set(candidate.steps) & set(replay.steps))
    if candidate.cost_ns is not None:
        return candidate.cost_ns * replayed, replayed
    return (replay.gain_ns(candidate.change) if replayed else 0.0), replayed


def _has_incomplete_collectives(context: RuleContext, ranks: Sequence[int]) -> bool:
    events, rows = context.matched.events, context.matched.rows
    if events.complete.all():
        return False
    matched = np.flatnonzero((rows.event >= 0) & np.isin(rows.rank, list(ranks)))
    complete = events.complete[rows.event[matched]]
    return bool(len(complete)) and float((~complete).mean()) > _MAX_INCOMPLETE_SHARE


@dataclass(frozen=True, slots=True)
class Segment:
    """Part of a rank's timeline between two ends of the same kind of collective."""

    excess_ns: float  # How much longer the segment takes than on other ranks.
    parts: tuple[tuple[int, float], ...]  # (mark, ns) for each of its intervals.


def excess_segments(
    context: RuleContext, rank: int, others: Sequence[int], *, idle: bool
) -> list[Segment]:
    """Return the segments in which a rank has more kernel or idle time than others of its role.

    Segments end at the rank's most frequent kind of collective. Each is compared with the same
    segment of the ranks that have equally many. Without such ranks, each interval is a segment
    with the same share of excess.
    """
    intervals = context.replay.mark_intervals(rank, idle=idle)
    counts: dict[tuple[str, str], int] = {}
    for one in intervals:
        if one.operation is not None:
            counts[one.operation] = counts.get(one.operation, 0) + 1
    anchor = max(counts, key=lambda operation: counts[operation], default=None)
    segments = _segments(intervals, anchor)
    elsewhere = [context.replay.mark_intervals(other, idle=idle) for other in others]
    others_ns = [sum(interval.ns for interval in one) for one in elsewhere]
    found = [_segments(one, anchor) for one in elsewhere]
    found = [one for one in found if len(one) == len(segments)]
    if not found:
        own_ns = sum(interval.ns for interval in intervals)
        usual_ns = float(np.median(others_ns)) if others_ns else 0.0
        share = max(1 - usual_ns / own_ns, 0.0) if own_ns else 0.0
        return [
            Segment(share * interval.ns, ((interval.mark, interval.ns),))
            for interval in intervals
            if share * interval.ns > 0
        ]
    usual = np.median([[sum(ns for _, ns in part) for part in one] for one in found], axis=0)
    result: list[Segment] = []
    for parts, usual_ns in zip(segments, usual.tolist(), strict=True):
        excess_ns = sum(ns for _, ns in parts) - usual_ns
        if excess_ns > 0:
            result.append(Segment(excess_ns, tuple(parts)))
    return result


def _segments(
    intervals: Sequence[MarkInterval], anchor: tuple[str, str] | None
) -> list[list[tuple[int, float]]]:
    """Return lists of (mark, ns) of the intervals, split at the ends of an operation."""
    segments: list[list[tuple[int, float]]] = [[]]
    for interval in intervals:
        if interval.operation == anchor:
            segments.append([])
        segments[-1].append((interval.mark, interval.ns))
    return segments


def remove_excess(
    rank: int, segments: Sequence[Segment], total_ns: float
) -> dict[tuple[int, int], float]:
    """Return {(rank, mark): reduction} that removes `total_ns` in proportion to the excess."""
    excess_ns = sum(segment.excess_ns for segment in segments)
    cut: dict[tuple[int, int], float] = {}
    for segment in segments:
        share = min(total_ns / excess_ns, 1.0) * segment.excess_ns
        length_ns = sum(ns for _, ns in segment.parts)
        for mark, ns in segment.parts:
            cut[rank, mark] = min(ns / length_ns, 1.0) * share
    return cut


def group_by_host(context: RuleContext, ranks: Sequence[int]) -> list[tuple[list[int], str | None]]:
    """Group ranks by host if most ranks of that host are among them.

    Returns:
        (ranks, host) for such hosts, and ([rank], None) for each other rank.
    """
    by_host: dict[str, list[int]] = {}
    for rank in range(len(context.matched.ranks)):
        if (host := context.host(rank)) is not None:
            by_host.setdefault(host, []).append(rank)
    left = set(ranks)
    result: list[tuple[list[int], str | None]] = []
    for host, members in by_host.items():
        chosen = [rank for rank in members if rank in left]
        if len(members) > 1 and len(chosen) >= _MIN_HOST_SHARE * len(members):
            result.append((chosen, host))
            left -= set(chosen)
    return [*result, *(([rank], None) for rank in sorted(left))]


def lasting(context: RuleContext, late: Bools) -> Bools:
    """Return a mask, ranks x steps; of watched steps without short runs.

    A process that waits for a processor from time to time is no finding.
    """
    blocks = late.shape[1]
    least = min(max(_MIN_BLOCKS, -(-blocks // _MIN_BLOCK_SHARE)), blocks)
    if not context.is_watched:
        return late
    count = blocks - least + 1
    begins = np.logical_and.reduce([late[:, at : at + count] for at in range(least)])
    result = np.zeros_like(late)
    for at in range(least):
        result[:, at : at + count] |= begins
    return result


def steps_text(context: RuleContext, steps: Sequence[int], everywhere: str = "") -> str:
    """Return a phrase such as ` in steps 2 and 5`; `everywhere` if these are all compared steps."""
    if set(steps) >= set(context.steps):
        return everywhere if len(context.steps) > 1 else ""
    if len(steps) == 1:
        return f" in step {steps[0]}"
    if len(steps) > 2 and tuple(steps) == context.steps[-len(steps) :]:
        return f" since step {steps[0]}"
    if len(steps) <= _MAX_STEPS_LISTED:
        return f" in steps {', '.join(map(str, steps[:-1]))} and {steps[-1]}"
    return f" in {len(steps)} of {len(context.steps)} steps ({join_first(steps, 5)})"


def join_first(items: Sequence[object], limit: int = 8) -> str:
    """Return the first items as text, followed by `...` if there are more."""
    return ", ".join(map(str, items[:limit])) + (", ..." if len(items) > limit else "")


def format_time(ns: float) -> str:
    """Return a time with three significant digits, as in all other output."""
    return scaled(ns, TIMES)
