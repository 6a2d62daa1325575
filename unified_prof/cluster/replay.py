"""Replay of a recorded run with changes: how long a step would take without a fault.

The ranks share one schedule, the engine of a single recording's what-if. Each rank's timeline is a
sequence of intervals (kernels and the idle time around them) between the starts and ends of its
communication. A collective ends one transfer time after its last member has
started. A rank waits for that end only if its recorded device was idle until then. The gain of
fixing a fault is the time that a replay without the fault saves. It is less than the wait that the
fault caused, because another rank would then be last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from unified_prof.arrays.grouping import NO_VALUE, NOWHERE, Bools, Floats, Frame, Ints, find
from unified_prof.cluster.matching import MatchedCollectives
from unified_prof.cluster.rank_partial import MARK_END, MARK_START, MARK_STEP, Columns, Partial
from unified_prof.cluster.waits import Waits
from unified_prof.explain.schedule import graph
from unified_prof.explain.schedule.graph import Edges, Schedule
from unified_prof.recording.collectives import POINT_TO_POINT, RECEIVE, SEND


@dataclass(frozen=True, slots=True)
class ReplayChange:
    """Differences from the recorded run; ranks are indices, times are ns."""

    work: Mapping[int, float] = field(default_factory=dict)  # Rank -> factor of its kernel times.
    # (rank, step) -> factor of its kernel times in that step, instead of `work`.
    work_at: Mapping[tuple[int, int], float] = field(default_factory=dict)
    # (rank, mark) -> reduction of the interval after that mark of its partial.
    interval_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    # Event -> factor of its transfer time.
    transfer: Mapping[int, float] = field(default_factory=dict)
    # The same for the time in which it moves no data: latency.
    setup: Mapping[int, float] = field(default_factory=dict)

    @property
    def ranks(self) -> set[int]:
        """Ranks whose own time changes."""
        return {*self.work, *(rank for rank, _ in (*self.work_at, *self.interval_ns))}

    @staticmethod
    def merge(changes: Sequence[ReplayChange]) -> ReplayChange:
        """Combine changes: multiply factors; use the largest reduction of the same time."""
        merged = ReplayChange(*({} for _ in fields(ReplayChange)))
        work_at: Any = merged.work_at
        cut: Any = merged.interval_ns
        for change in changes:
            for name in ("work", "work_at", "transfer", "setup"):
                target = getattr(merged, name)
                for key, factor in getattr(change, name).items():
                    target[key] = target.get(key, 1.0) * factor
            for place, ns in change.interval_ns.items():
                cut[place] = max(cut.get(place, 0.0), ns)
        for rank, step in work_at:
            work_at[rank, step] *= merged.work.get(rank, 1.0)
        return merged


_NO_CHANGE = ReplayChange()
_NOTHING = np.empty(0, np.int64)
# Maximum delay between two operations of a group if the second one was already enqueued, ns.
_QUEUED_NS = 5_000
# Minimum share of the operations of a queue that start when reduce-scatters end, to wait for them.
_MIN_CHAINED_SHARE = 0.75
# Minimum idle time before an end that shows that the rank waited for that end, ns.
_MIN_IDLE_NS = 10_000
# Maximum time from an end to the next kernel of a rank that waited for it, if other kernels ran
# during the operation, ns; or a tenth of the idle time before the end.
_RESUME_NS = 20_000
# Minimum share of the own time before a send that passes after the receive that it needs.
_MIN_NEEDED_SHARE = 0.9
# Maximum number of operations to replay; for a longer run, only the first steps are replayed.
_MAX_OPERATIONS = 400_000


@dataclass(frozen=True, slots=True, eq=False)
class RankTimeline(Frame):
    """Replayed marks of a rank, and the interval after each."""

    mark: Ints  # Number of the mark in the partial.
    step: Ints  # Replayed step that it belongs to; NO_VALUE before the first one.
    busy_ns: Ints
    idle_ns: Ints  # Idle time that does not depend on other ranks.
    kernels: Ints
    event: Ints  # Event that starts or ends at the mark; NO_VALUE if unmatched.
    starts: Bools  # True if the event starts.
    awaited: Bools  # True if the rank waits for the end of the event.
    # Event before in the same queue, NO_VALUE without one, and the time until the operation starts
    # if it was already enqueued, else NO_VALUE.
    behind: Ints
    delay_ns: Ints
    # Event of the receive whose data is sent, NO_VALUE without one, and the row from which on the
    # rank's own time depends on it.
    needs: Ints
    since: Ints

    def own_ns(self, rank: int, change: ReplayChange, cuts: Mapping[int, float]) -> Ints:
        """Return the time of each interval that is not spent waiting, with a change.

        `cuts` has the reduction of the interval after each mark, from `change.interval_ns`.
        """
        # The gain is divided by the replayed steps, so nothing before them may change.
        inside = self.step >= 0
        work = np.full(len(self), 1.0)
        work[inside] = change.work.get(rank, 1.0)
        for (changed, step), factor in change.work_at.items():
            if changed == rank:
                work[self.step == step] = factor
        own: Floats = self.busy_ns * work + self.idle_ns
        if cuts:
            marks, cut = np.array(sorted(cuts.items())).T
            place = find(self.mark, marks.astype(np.int64))
            own[place[place != NOWHERE]] -= cut[place != NOWHERE]
        return np.rint(np.maximum(own, 0.0)).astype(np.int64)

    @property
    def points(self) -> Ints:
        """Rows of the moments: starts that follow the rank's own time, and awaited ends."""
        return np.flatnonzero(self.awaited | (self.starts & (self.delay_ns < 0)))

    def lags(self, own_ns: Ints) -> Ints:
        """Return the own time between moments: begin of the rank, its points, and its end."""
        passed = np.append(0, np.cumsum(own_ns))
        lags: Ints = np.diff(passed[np.concatenate(([0], self.points, [len(self)]))])
        return lags

    def needed_ns(self, own_ns: Ints) -> Ints:
        """Return the own time from each needed receive to the send of the result."""
        passed, sends = np.append(0, np.cumsum(own_ns)), np.flatnonzero(self.needs >= 0)
        result: Ints = passed[sends] - passed[self.since[sends]]
        return result


class MarkInterval(NamedTuple):
    """Part of a rank's timeline between two marks."""

    mark: int
    step: int
    # (kind of group, kind of operation) that ends before it; None if it follows another mark.
    operation: tuple[str, str] | None
    ns: float  # Its kernel time or idle time.
    kernels: int
    communicates: bool  # True if communication runs at the same time.


def build_timeline(
    partial: Partial,
    event_of: Ints,
    steps: Sequence[int],
    *,
    cut: bool,
    within: bool,
    usual_transfer: float,
) -> RankTimeline:
    """Return the timeline of a rank in the replayed steps.

    `event_of` is the event of each of its operations (NO_VALUE: unmatched). If `cut`, there are
    other recorded steps; if `within`, everything before the first replayed step is omitted.
    `usual_transfer` is the time in ns of sends and receives whose other end is missing.
    """
    time = partial.marks["time"]
    number = np.arange(len(time))
    if cut:
        chosen = np.isin(partial.steps["step"], list(steps))
        last = int(partial.steps["end"][chosen].max(initial=0))
        kept = time < last
        if within:
            kept &= time >= int(partial.steps["start"][chosen].min(initial=last))
        number = np.flatnonzero(kept)
    marks = {name: values[number] for name, values in partial.marks.items()}
    ops = partial.communication
    count = len(marks["time"])
    what, op = marks["what"], marks["op"]
    time, lead, busy, tail = marks["time"], marks["lead"], marks["busy"], marks["tail"]
    kernels = marks["kernels"]
    length = np.append(np.diff(time), (lead + busy + tail)[-1:])
    is_end = what == MARK_END
    matched = np.full(count, NO_VALUE, np.int64)
    of_op = what != MARK_STEP
    matched[of_op] = event_of[op[of_op]]
    # Idle time just before each mark, and whether the device is idle at that mark.
    before = np.r_[0, np.where(busy > 0, tail, length)][:count]
    gaps = int((length - lead - tail - busy)[busy > 0].sum()) / max(int(kernels.sum()), 1)
    enough = max(_MIN_IDLE_NS, 2 * gaps)
    uncovered = np.zeros(count, bool)
    uncovered[of_op] = ops["covered"][op[of_op]] == 0
    no_kernels = busy == 0
    resumes = no_kernels | (lead <= np.maximum(before / 10, _RESUME_NS))
    in_idle = is_end & (matched >= 0) & (before > 0) & (uncovered | (resumes & (before >= enough)))
    # If a receive ends at the same time as a send, its data is what the rank waited for.
    sends, receives, peer = _messages(marks, partial)
    sent, got = np.flatnonzero(is_end & sends & in_idle), np.flatnonzero(is_end & receives)
    nearest = np.append(got, 0)[np.searchsorted(time[got], time[sent] - _RESUME_NS)]
    near = (is_end & receives)[nearest] & (np.abs(time[nearest] - time[sent]) <= _RESUME_NS)
    beside, in_idle[nearest[near]] = sent[near], True
    transfers = [at for at, kind in enumerate(partial.kinds) if kind in POINT_TO_POINT]
    scatters = [at for at, kind in enumerate(partial.kinds) if kind == "reduce_scatter"]
    behind, delay = _queued(marks, ops, matched, transfers, scatters)
    # A start right after the end of another operation does not show what the device did.
    passed = np.append(delay >= 0, False)
    passed[beside], in_idle[beside] = True, False
    passed[:count] &= no_kernels
    ahead = np.where(passed, count, np.arange(count + 1))[1:]
    ahead = np.minimum.accumulate(ahead[::-1])[::-1]
    ends_next = np.r_[in_idle, False][ahead]
    # If the device stays idle until a later end, the rank waited for that end.
    awaited = in_idle & ~(no_kernels & ends_next)
    # Idle time before an awaited end becomes shorter if the end is earlier.
    idle = np.where(ends_next, np.where(no_kernels, 0, length - busy - tail), length - busy)
    # If the other end of a transfer is missing, the cause of its wait is unknown.
    lost = is_end & (matched < 0) & uncovered & (sends | receives)
    next_lost = np.r_[lost, False][1:] & no_kernels
    idle = np.where(next_lost, np.minimum(idle, usual_transfer), idle)
    begins = (what == MARK_STEP) & (op >= 0)
    step = np.full(count, NO_VALUE, np.int64)
    step[begins] = partial.steps["step"][op[begins]]
    begins &= np.isin(step, list(steps))
    latest = np.maximum.accumulate(np.where(begins, np.arange(count), NO_VALUE))
    sends &= (what == MARK_START) & (matched >= 0)
    receives &= is_end & (matched >= 0)
    since = np.where(sends | (what == MARK_STEP), np.arange(count), 0)
    since = np.maximum.accumulate(np.r_[0, since])[:count]
    passed_ns = np.append(0, np.cumsum(busy + idle.astype(np.int64)))[:count]
    own_ns = passed_ns - passed_ns[since]
    received = _needed(time, own_ns, sends, receives, peer)
    needs = np.where((received >= 0) & (delay < 0), matched[received], NO_VALUE)
    return RankTimeline(
        mark=number,
        step=np.append(step, NO_VALUE)[latest],
        busy_ns=busy,
        idle_ns=idle.astype(np.int64),
        kernels=kernels,
        event=matched,
        starts=(what == MARK_START) & (matched >= 0),
        awaited=awaited,
        behind=behind,
        delay_ns=delay,
        needs=needs,
        since=np.maximum(since, received),
    )


def _messages(marks: Columns, partial: Partial) -> tuple[Bools, Bools, Ints]:
    """Return masks of the marks of sends and of receives, and the other rank of each mark."""
    op = np.where(marks["what"] == MARK_STEP, -1, marks["op"])
    kind, peer = (np.append(partial.communication[name], -1)[op] for name in ("kind", "peer"))
    names = np.array([*partial.kinds, ""])[kind]
    return names == SEND, names == RECEIVE, peer


def _needed(time: Ints, own_ns: Ints, sends: Bools, receives: Bools, peer: Ints) -> Ints:
    """Return for each send the row of the receive that it needs, NO_VALUE without one.

    A pipeline stage receives data, computes for `own_ns`, and sends the result, in the order of the
    data. If data came before the stage was ready, the recording does not show that it was needed.
    """
    needs = np.full(len(time), NO_VALUE)
    for source in np.unique(peer[receives]).tolist():
        got = np.flatnonzero(receives & (peer == source))
        for target in np.unique(peer[sends]).tolist():
            sent = np.flatnonzero(sends & (peer == target))
            least_ns = _MIN_NEEDED_SHARE * own_ns[sent]
            if len(sent) == len(got) and (time[sent] - time[got] >= least_ns).all():
                needs[sent] = np.maximum(needs[sent], got)
    return needs


def _queued(
    marks: Columns,
    ops: Columns,
    matched: Ints,
    transfers: Sequence[int],
    scatters: Sequence[int],
) -> tuple[Ints, Ints]:
    """Return for each start the previous event of its queue, and the delay after it.

    The collectives of a group of all kinds share one queue; its sends and its receives have
    their own. An operation that starts right after another one was already enqueued; so were those
    of a queue that nearly always starts right after a reduce-scatter. Other operations start when
    their rank reaches them, or later: their delay is NO_VALUE. For marks that are not starts, both
    values are NO_VALUE.
    """
    behind, delays = np.full((2, len(matched)), NO_VALUE, np.int64)
    of_event = np.flatnonzero((marks["what"] != MARK_STEP) & (matched >= 0))
    op, is_end = marks["op"][of_event], marks["what"][of_event] == MARK_END
    kind = np.where(np.isin(ops["kind"][op], transfers), ops["kind"][op], NO_VALUE)
    queue = ops["group"][op] * (int(ops["kind"].max(initial=0)) + 2) + kind
    all_scattered = of_event[is_end & np.isin(ops["kind"][op], scatters)]
    for one in np.unique(queue).tolist():
        starts, ends = (of_event[(queue == one) & (is_end == side)] for side in (False, True))
        if not len(ends):
            continue
        other, delay = _end_before(marks, starts, ends)
        follows = other >= 0
        behind[starts[follows]] = matched[other[follows]]
        delays[starts[follows]] = np.where(delay <= _QUEUED_NS, delay, NO_VALUE)[follows]
        if not len(all_scattered):
            continue
        # With HSDP, the all-reduce of a shard starts when its reduce-scatter ends.
        other, delay = _end_before(marks, starts, all_scattered)
        chained = (other >= 0) & (delay <= _QUEUED_NS) & (delays[starts] == NO_VALUE)
        if chained.sum() >= _MIN_CHAINED_SHARE * len(starts):
            behind[starts[chained]] = matched[other[chained]]
            delays[starts[chained]] = delay[chained]
    return behind, delays


def _end_before(marks: Columns, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the last of `ends` before each start, NO_VALUE without one, and the time between."""
    place = np.searchsorted(marks["time"][ends], marks["time"][starts], side="right") - 1
    other = ends[np.maximum(place, 0)]
    follows = (place >= 0) & (marks["op"][other] != marks["op"][starts])
    return np.where(follows, other, NO_VALUE), marks["time"][starts] - marks["time"][other]


class _Graph:
    """Moments of all ranks and ends of events, with what each of them waits for."""

    def __init__(
        self,
        timelines: Sequence[RankTimeline],
        begin_ns: Ints,
        duration_ns: Floats,
        transfer_ns: Ints,
        setup_ns: Ints,
        members: Ints,
    ) -> None:
        """Arrange the moments; times and members are those of ranks and of events."""
        self._timelines = timelines
        self._duration_ns, self._transfer_ns, self._setup_ns = duration_ns, transfer_ns, setup_ns
        sizes = [len(one.points) + 2 for one in timelines]
        first = np.cumsum([0, *sizes])
        events = int(first[-1])
        own_ns = [one.own_ns(rank, _NO_CHANGE, {}) for rank, one in enumerate(timelines)]
        own = [one.lags(ns) for one, ns in zip(timelines, own_ns, strict=True)]
        ends = first[1:] - 1
        moments = np.setdiff1d(np.arange(events), ends)
        # The edges of each rank's own time come first, so that their places are known.
        self._first_edge = first - np.arange(len(first))
        chain = Edges.uniform(
            moments, moments + 1, np.concatenate([_NOTHING, *own]), behind=False, kind=graph.HOST
        )
        parts, started = [chain], [_NOTHING]
        for begin, one, ns in zip(first.tolist(), timelines, own_ns, strict=False):
            moment = np.full(len(one), NO_VALUE)
            moment[one.points] = begin + 1 + np.arange(len(one.points))
            started.append(one.event[one.starts])
            reached = one.starts & (one.delay_ns < 0)
            follows, needs = one.starts & (one.behind >= 0), one.needs >= 0
            for source, to, lag, kind in (
                (moment[reached], events + one.event[reached], 0, graph.MEMBER),
                (
                    *(events + one.behind[follows], events + one.event[follows]),
                    *(np.maximum(one.delay_ns[follows], 0), graph.MEMBER),
                ),
                (events + one.event[one.awaited], moment[one.awaited], 0, graph.COLLECTIVE),
                (events + one.needs[needs], moment[needs], one.needed_ns(ns), graph.EVENT),
            ):
                parts.append(Edges.uniform(source, to, lag, behind=False, kind=kind))
        edges = Edges.concatenate(parts)
        self._needs = np.split(
            np.flatnonzero(edges.kind == graph.EVENT),
            np.cumsum([(one.needs >= 0).sum() for one in timelines])[:-1],
        )
        self._into = np.flatnonzero(edges.kind == graph.MEMBER)
        self._event = edges.target[self._into] - events
        self._lag_ns = edges.lag_ns  # Without the durations of events.
        count = len(members)
        absent = np.bincount(np.concatenate(started), minlength=count) < members
        begins = np.zeros(events + count, np.int64)
        begins[first[:-1]] = begin_ns
        self._schedule, place, self._kept = Schedule.earliest(
            begins,
            replace(edges, lag_ns=self._lags(_NO_CHANGE)),
            np.isin(edges.kind, (graph.COLLECTIVE, graph.EVENT)),
            np.concatenate((np.zeros(events, bool), absent)),
        )
        self._ends = place[ends]

    def _lags(self, change: ReplayChange) -> Ints:
        """Return the lag of each edge with a change."""
        duration_ns = self._duration_ns.copy()
        for part, part_ns in (
            (change.transfer, self._transfer_ns),
            (change.setup, self._setup_ns),
        ):
            for event, factor in part.items():
                duration_ns[event] -= float(part_ns[event]) * (1 - factor)
        result = self._lag_ns.copy()
        result[self._into] += np.rint(duration_ns).astype(np.int64)[self._event]
        cuts: dict[int, dict[int, float]] = {}
        for (rank, mark), ns in change.interval_ns.items():
            cuts.setdefault(rank, {})[mark] = ns
        for rank in change.ranks:
            timeline = self._timelines[rank]
            own_ns = timeline.own_ns(rank, change, cuts.get(rank, {}))
            result[slice(*self._first_edge[rank : rank + 2])] = timeline.lags(own_ns)
            result[self._needs[rank]] = timeline.needed_ns(own_ns)
        return result

    def ends_ns(self, change: ReplayChange = _NO_CHANGE) -> list[int]:
        """Return the end of each rank with a change."""
        time_ns = self._schedule.replay(lag_ns=self._lags(change)[self._kept])
        ends_ns: list[int] = time_ns[self._ends].tolist()
        return ends_ns


class Replay:
    """The schedule of all ranks, to be replayed with changes."""

    def __init__(
        self,
        matched: MatchedCollectives,
        waits: Waits,
        offset: Ints,
        steps: Sequence[int],
        *,
        within: bool = False,
    ) -> None:
        """Prepare a replay; `offset` is the clock offset of each rank in ns.

        `steps` are limited to the first ones that can be replayed in seconds. If `within`,
        everything before them is omitted.
        """
        self._inputs = (matched, waits, offset)
        self._within = within
        chosen: list[int] = []
        operations = 0
        for step in steps:
            operations += matched.rows.step.count(step)
            if chosen and operations > _MAX_OPERATIONS:
                break
            chosen.append(step)
        self.steps = tuple(chosen)  # The replayed steps.
        self._is_part = within or len(self.steps) < len(steps)

    @cached_property
    def _timelines(self) -> list[RankTimeline]:
        matched, waits, _ = self._inputs
        event_of = _events_of_operations(matched, self.steps if self._is_part else None)
        complete = matched.transfers & matched.events.complete
        usual = float(np.median(waits.transfer[complete])) if complete.any() else float("inf")
        return [
            build_timeline(
                partial,
                event_of[index],
                self.steps,
                cut=self._is_part,
                within=self._within,
                usual_transfer=usual,
            )
            for index, partial in enumerate(matched.partials)
        ]

    @cached_property
    def _graph(self) -> _Graph:
        matched, waits, offset = self._inputs
        begins = [
            int(partial.marks["time"][one.mark[0]]) + shift if len(one) else None
            for partial, one, shift in zip(
                matched.partials, self._timelines, offset.tolist(), strict=True
            )
        ]
        first = min((begin for begin in begins if begin is not None), default=0)
        begin_ns = np.array([0 if begin is None else begin - first for begin in begins], np.int64)
        setup = waits.setup.clip(0)
        times = (begin_ns, usual_durations(matched, waits), waits.transfer, setup)
        return _Graph(self._timelines, *times, matched.events.members)

    def limited_to(self, steps: Sequence[int]) -> Replay:
        """Return a replay of `steps` only, limited to the first ones that fit `_MAX_OPERATIONS`."""
        return Replay(*self._inputs, steps, within=True)

    @cached_property
    def _unchanged_ends_ns(self) -> list[int]:
        return self._graph.ends_ns()

    def gain_ns(self, change: ReplayChange) -> float:
        """Return the total time that a change saves over all replayed steps, ns.

        The saving is measured on the rank that ends last, because the next step waits for it; but
        if the recording of that rank is longer than others, on the first rank.
        """
        if change == _NO_CHANGE:
            return 0.0
        before, after = self._unchanged_ends_ns, self._graph.ends_ns(change)
        return max(before[0] - after[0], max(before) - max(after))

    def saved_ns(self, change: ReplayChange) -> Floats:
        """Return the reduction of each rank's own time by a change, ns; waits are not included."""
        result = np.zeros(len(self._timelines))
        cuts: dict[int, dict[int, float]] = {}
        for (rank, mark), ns in change.interval_ns.items():
            cuts.setdefault(rank, {})[mark] = ns
        for rank in change.ranks:
            one = self._timelines[rank]
            after_ns = one.own_ns(rank, change, cuts.get(rank, {})).sum()
            result[rank] = float(one.own_ns(rank, _NO_CHANGE, {}).sum() - after_ns)
        return result

    def mark_intervals(self, rank: int, *, idle: bool) -> list[MarkInterval]:
        """Return the intervals of a rank in order, with their idle time or kernel time."""
        matched = self._inputs[0]
        partial, timeline = matched.partials[rank], self._timelines[rank]
        groups = [
            matched.groups[number].kind if number >= 0 else "other"
            for number in [*matched.numbers[rank].tolist(), NO_VALUE]
        ]
        table, marks = partial.communication, partial.marks
        is_open = np.cumsum(np.array([1, -1, 0])[marks["what"]]) > 0
        ended = np.where(marks["what"] == MARK_END, marks["op"], NO_VALUE)
        shown = timeline.take((timeline.busy_ns != 0) | (timeline.idle_ns != 0))
        ns = shown.idle_ns if idle else shown.busy_ns
        columns = (shown.mark, shown.step, ended[shown.mark], ns, shown.kernels)
        return [
            MarkInterval(
                mark,
                step,
                (groups[int(table["group"][op])], partial.kinds[int(table["kind"][op])])
                if op != NO_VALUE
                else None,
                ns,
                kernels,
                bool(is_open[mark]),
            )
            for mark, step, op, ns, kernels in zip(*(c.tolist() for c in columns), strict=True)
        ]


def usual_durations(matched: MatchedCollectives, waits: Waits) -> Floats:
    """Return the duration of each event after its last member has started, ns.

    If members are missing, the last one may be among them. The duration is then limited to the
    median of complete events of the same kind and size.
    """
    events = matched.events
    result = waits.least.astype(np.float64)
    sizes = np.array([group.size for group in matched.groups] or [0], np.int64)[events.group]
    sizes[events.src >= 0] = 2
    usual: dict[tuple[int, ...], float] = {}
    keys = np.stack([events.kind, events.bytes, sizes], 1)
    for at in np.flatnonzero(~events.complete).tolist():
        key = tuple(keys[at].tolist())
        if key not in usual:
            alike = events.complete & (keys == keys[at]).all(axis=1)
            usual[key] = float(np.median(waits.least[alike])) if alike.any() else np.inf
        result[at] = min(result[at], usual[key])
    return result


def _events_of_operations(matched: MatchedCollectives, steps: Sequence[int] | None) -> list[Ints]:
    """Return for each rank the event of each of its operations; NO_VALUE for unmatched ones.

    Events that extend beyond the replayed steps (None: all steps) are unmatched.
    """
    rows, events = matched.rows, matched.events
    result = [np.full(partial.operations, NO_VALUE, np.int64) for partial in matched.partials]
    usable = np.flatnonzero(rows.event >= 0)
    if steps is not None:
        cut = np.zeros(len(events), bool)
        cut[rows.event[usable[~np.isin(rows.step[usable], list(steps))]]] = True
        usable = usable[~cut[rows.event[usable]]]
    order = usable[np.argsort(rows.rank[usable], kind="stable")]
    edges = np.searchsorted(rows.rank[order], np.arange(len(result) + 1))
    for index, event_of in enumerate(result):
        chosen = order[edges[index] : edges[index + 1]]
        event_of[rows.op[chosen]] = rows.event[chosen]
    return result
