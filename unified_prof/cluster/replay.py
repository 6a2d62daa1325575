"""Replay of a recorded run with changes: how long a step would take without a fault.

Each rank's timeline is a sequence of intervals (kernels and the idle time around them) between the
starts and ends of its communication. A collective ends one transfer time after its last member has
started. A rank waits for that end only if its recorded device was idle until then. The gain of
fixing a fault is the time that a replay without the fault saves. It is less than the wait that the
fault caused, because another rank would then be last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints
from unified_prof.cluster.matching import MatchedCollectives
from unified_prof.cluster.rank_partial import (
    MARK_END,
    MARK_START,
    MARK_STEP,
    NO_VALUE,
    Columns,
    Partial,
)
from unified_prof.cluster.waits import Waits
from unified_prof.recording.collectives import POINT_TO_POINT


@dataclass(frozen=True, slots=True)
class ReplayChange:
    """Differences from the recorded run; ranks are indices, times are ns."""

    work: Mapping[int, float] = field(default_factory=dict)  # Rank -> factor of its kernel times.
    # (rank, step) -> factor of its kernel times in that step, instead of `work`.
    work_at: Mapping[tuple[int, int], float] = field(default_factory=dict)
    # Rank -> reduction of the idle time after each of its kernels.
    gap_ns: Mapping[int, float] = field(default_factory=dict)
    # (rank, mark) -> reduction of the interval after that mark of its partial.
    interval_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    # Event -> factor of its transfer time.
    transfer: Mapping[int, float] = field(default_factory=dict)

    @property
    def ranks(self) -> set[int]:
        """Ranks whose own time changes."""
        by_rank = {*self.work, *self.gap_ns}
        return by_rank | {rank for rank, _ in (*self.work_at, *self.interval_ns)}

    @staticmethod
    def merge(changes: Sequence[ReplayChange]) -> ReplayChange:
        """Combine changes: multiply factors; use the largest reduction of the same time."""
        merged = ReplayChange(*({} for _ in fields(ReplayChange)))
        work_at: Any = merged.work_at
        for change in changes:
            for name in ("work", "work_at", "transfer"):
                target = getattr(merged, name)
                for key, factor in getattr(change, name).items():
                    target[key] = target.get(key, 1.0) * factor
            for name in ("gap_ns", "interval_ns"):
                target = getattr(merged, name)
                for key, ns in getattr(change, name).items():
                    target[key] = max(target.get(key, 0.0), ns)
        for rank, step in work_at:
            work_at[rank, step] *= merged.work.get(rank, 1.0)
        return merged


RUN, BEGIN, AWAIT, STEP_BEGIN = range(4)  # Codes of program entries.
# Maximum delay between two operations of a group if the second one was already enqueued, ns.
_QUEUED_NS = 5_000
# Minimum idle time before an end that shows that the rank waited for that end, ns.
_MIN_IDLE_NS = 10_000
# Maximum time from an end to the next kernel of a rank that waited for it, if other kernels ran
# during the operation, ns; or a tenth of the idle time before the end.
_RESUME_NS = 20_000
# Maximum number of operations to replay; for a longer run, only the first steps are replayed.
_MAX_OPERATIONS = 400_000


@dataclass(slots=True)
class RankProgram:
    """Program of a rank: entries of a code and up to three values.

    The values depend on the code. RUN: kernel time, idle time, number of kernels. BEGIN: delay
    after the previous event, previous event, event. AWAIT: event (third value). STEP_BEGIN and
    INPUT: step (third value).
    """

    code: list[int]
    first: list[float]
    second: list[float]
    third: list[int]
    begin: float  # Start of the program on the common clock, ns.
    mark: list[int] = field(default_factory=list)  # For each entry, its mark in the partial.


class MarkInterval(NamedTuple):
    """Part of a rank's timeline between two marks."""

    mark: int
    step: int
    # (kind of group, kind of operation) that ends before it; None if it follows another mark.
    operation: tuple[str, str] | None
    ns: float  # Its kernel time or idle time.
    kernels: int
    communicates: bool  # True if communication runs at the same time.


def build_program(
    partial: Partial,
    event_of: Ints,
    shift: int,
    steps: Sequence[int],
    *,
    cut: bool,
    within: bool,
    usual_transfer: float,
) -> RankProgram:
    """Return the program of a rank.

    Args:
        partial: The rank.
        event_of: Event of each of its operations; NO_VALUE for unmatched ones.
        shift: Offset of its clock, ns.
        steps: The replayed steps.
        cut: True if `steps` are only some of the recorded steps.
        within: True to also omit everything before the first of `steps`.
        usual_transfer: Transfer time of sends and receives whose other end is missing, ns.
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
    if not count:
        return RankProgram([], [], [], [], 0.0)
    what, op = marks["what"], marks["op"]
    time, lead, busy, tail = marks["time"], marks["lead"], marks["busy"], marks["tail"]
    kernels = marks["kernels"]
    length = np.append(np.diff(time), lead[-1] + busy[-1] + tail[-1])
    is_end = what == MARK_END
    matched = np.full(count, NO_VALUE, np.int64)
    of_op = what != MARK_STEP
    matched[of_op] = event_of[op[of_op]]
    # Idle time just before each mark, and whether the device is idle at that mark.
    before = np.r_[0, np.where(busy > 0, tail, length)[:-1]]
    gaps = int((length - lead - tail - busy)[busy > 0].sum()) / max(int(kernels.sum()), 1)
    enough = max(_MIN_IDLE_NS, 2 * gaps)
    uncovered = np.zeros(count, bool)
    uncovered[of_op] = ops["covered"][op[of_op]] == 0
    no_kernels = busy == 0
    resumes = no_kernels | (lead <= np.maximum(before / 10, _RESUME_NS))
    in_idle = is_end & (matched >= 0) & (before > 0) & (uncovered | (resumes & (before >= enough)))
    transfers = [at for at, kind in enumerate(partial.kinds) if kind in POINT_TO_POINT]
    behind, delay = _queued(marks, ops, matched, transfers)
    # A start right after the end of another operation does not show what the device did.
    passed = np.append(delay >= 0, False)
    passed[:count] &= no_kernels
    ahead = np.where(passed, count, np.arange(count + 1))[1:]
    ahead = np.minimum.accumulate(ahead[::-1])[::-1]
    ends_next = np.r_[in_idle, False][ahead]
    # If the device stays idle until a later end, the rank waited for that end.
    awaited = in_idle & ~(no_kernels & ends_next)
    # Idle time before an awaited end becomes shorter if the end is earlier.
    idle = np.where(ends_next, np.where(no_kernels, 0, length - busy - tail), length - busy)
    # If the other end of a transfer is missing, the cause of its wait is unknown.
    lost = is_end & (matched < 0) & uncovered
    lost[of_op] &= np.isin(ops["kind"][op[of_op]], transfers)
    next_lost = np.r_[lost[1:], False] & no_kernels
    idle = np.where(next_lost, np.minimum(idle, usual_transfer), idle)
    # A mark has up to three entries, in this order.
    code = np.full((count, 3), [NO_VALUE, STEP_BEGIN, RUN])
    first, second, third = np.zeros((3, count, 3))
    begins = (what == MARK_START) & (matched >= 0)
    code[begins, 0], code[awaited, 0] = BEGIN, AWAIT
    first[begins, 0], second[begins, 0], third[:, 0] = delay[begins], behind[begins], matched
    of_step = (what == MARK_STEP) & (op >= 0)
    step = np.full(count, NO_VALUE, np.int64)
    step[of_step] = partial.steps["step"][op[of_step]]
    third[:, 1] = step
    first[:, 2], second[:, 2], third[:, 2] = busy, idle, kernels
    there = np.empty((count, 3), bool)
    there[:, 0] = code[:, 0] != NO_VALUE
    there[:, 1] = of_step & np.isin(step, list(steps))
    there[:, 2] = (busy != 0) | (idle != 0)
    return RankProgram(
        code[there].tolist(),
        first[there].tolist(),
        second[there].tolist(),
        third[there].astype(np.int64).tolist(),
        float(int(time[0]) + shift),
        np.repeat(number, there.sum(axis=1)).tolist(),
    )


def _queued(
    marks: Columns, ops: Columns, matched: Ints, transfers: Sequence[int]
) -> tuple[Ints, Ints]:
    """Return for each start the previous event of its queue, and the delay after it.

    The collectives of a group of all kinds share one queue; its sends and its receives have
    their own. An operation that starts right after another one was already enqueued. Other
    operations start when their rank reaches them, or later: their delay is NO_VALUE. For marks that
    are not starts, both values are NO_VALUE.
    """
    behind, delays = np.full((2, len(matched)), NO_VALUE, np.int64)
    of_event = np.flatnonzero((marks["what"] != MARK_STEP) & (matched >= 0))
    op, is_end = marks["op"][of_event], marks["what"][of_event] == MARK_END
    kind = np.where(np.isin(ops["kind"][op], transfers), ops["kind"][op], NO_VALUE)
    queue = ops["group"][op] * (int(ops["kind"].max(initial=0)) + 2) + kind
    for one in np.unique(queue).tolist():
        starts, ends = (of_event[(queue == one) & (is_end == side)] for side in (False, True))
        if not len(ends):
            continue
        place = np.searchsorted(marks["time"][ends], marks["time"][starts], side="right") - 1
        other = ends[np.maximum(place, 0)]
        follows = (place >= 0) & (marks["op"][other] != marks["op"][starts])
        delay = (marks["time"][starts] - marks["time"][other])[follows]
        behind[starts[follows]] = matched[other[follows]]
        delays[starts[follows]] = np.where(delay <= _QUEUED_NS, delay, NO_VALUE)
    return behind, delays


class Replay:
    """The programs of all ranks, to be replayed with changes."""

    def __init__(
        self,
        matched: MatchedCollectives,
        waits: Waits,
        offset: Ints,
        steps: Sequence[int],
        *,
        within: bool = False,
    ) -> None:
        """Prepare a replay.

        Args:
            matched: The run.
            waits: Waits and transfer times of its communication.
            offset: Clock offset of each rank, ns.
            steps: Steps to replay; limited to the first ones that can be replayed in seconds.
            within: True to omit everything before the first of `steps`.
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
    def _members(self) -> list[int]:
        result: list[int] = self._inputs[0].events.members.tolist()
        return result

    @cached_property
    def _durations(self) -> NDArray[np.float64]:
        matched, waits, _ = self._inputs
        return usual_durations(matched, waits)

    @cached_property
    def _programs(self) -> list[RankProgram]:
        matched, waits, offset = self._inputs
        event_of = _events_of_operations(matched, self.steps if self._is_part else None)
        begins = [
            begin + int(offset[index])
            for index, partial in enumerate(matched.partials)
            if (begin := partial.mark_figures().begin) is not None
        ]
        complete = matched.transfers & matched.events.complete
        usual = float(np.median(waits.transfer[complete])) if complete.any() else float("inf")
        return [
            build_program(
                partial,
                event_of[index],
                int(offset[index]) - min(begins, default=0),
                self.steps,
                cut=self._is_part,
                within=self._within,
                usual_transfer=usual,
            )
            for index, partial in enumerate(matched.partials)
        ]

    def limited_to(self, steps: Sequence[int]) -> Replay:
        """Return a replay of `steps` only, limited to the first ones that fit `_MAX_OPERATIONS`."""
        return Replay(*self._inputs, steps, within=True)

    def gain_ns(self, change: ReplayChange) -> float:
        """Return the total time that a change saves over all replayed steps, ns.

        The saving is measured on the first rank, whose step times usually appear in logs; in a long
        run it is the same on all ranks. If the first rank saves nothing, the saving is measured on
        the slowest rank that the change does not affect: no rank waits for the last operation of
        an affected rank.
        """
        before, after = self._as_recorded, self.ends(change)[0]
        gain = before[0] - after[0]
        if abs(gain) >= 1:
            return gain
        others = [rank for rank in range(len(before)) if rank not in change.ranks]
        others = others or list(range(len(before)))
        return max(before[rank] for rank in others) - max(after[rank] for rank in others)

    def mark_intervals(self, rank: int, *, idle: bool) -> list[MarkInterval]:
        """Return the intervals of a rank in order, with their idle time or kernel time."""
        matched = self._inputs[0]
        partial, program = matched.partials[rank], self._programs[rank]
        groups = [
            matched.groups[number].kind if number >= 0 else "other"
            for number in [*matched.numbers[rank].tolist(), NO_VALUE]
        ]
        table, marks = partial.communication, partial.marks
        is_open = np.cumsum(np.array([1, -1, 0])[marks["what"]]) > 0
        result: list[MarkInterval] = []
        entries = zip(
            *(program.code, program.first, program.second, program.third, program.mark), strict=True
        )
        step = NO_VALUE
        for code, busy_ns, idle_ns, number, mark in entries:
            if code == STEP_BEGIN:
                step = number
            elif code == RUN:
                operation = None
                if int(marks["what"][mark]) == MARK_END:
                    op = int(marks["op"][mark])
                    kind = partial.kinds[int(table["kind"][op])]
                    operation = (groups[int(table["group"][op])], kind)
                ns = idle_ns if idle else busy_ns
                result.append(MarkInterval(mark, step, operation, ns, number, bool(is_open[mark])))
        return result

    @cached_property
    def _as_recorded(self) -> list[float]:
        return self.ends(ReplayChange())[0]

    def ends(self, change: ReplayChange) -> tuple[list[float], list[float | None]]:
        """Replay the run; return the end of each rank and event, ns; None if it never ends."""
        duration = self._durations
        if change.transfer:
            duration = duration.copy()
            transfer = self._inputs[1].transfer
            for event, factor in change.transfer.items():
                duration[event] -= float(transfer[event]) * (1 - factor)
        durations = duration.tolist()
        missing = list(self._members)
        last = [0.0] * len(missing)
        end: list[float | None] = [None] * len(missing)
        blocked: dict[int, list[int]] = {}
        behind: dict[int, list[tuple[int, float, float]]] = {}
        at = [0] * len(self._programs)
        now = [rank.begin for rank in self._programs]
        works = [change.work.get(index, 1.0) for index in range(len(self._programs))]
        by_step = {rank for rank, _ in change.work_at}
        by_stretch = {rank for rank, _ in change.interval_ns}
        todo = list(range(len(self._programs)))[::-1]

        def begin(event: int, time: float) -> None:
            nonlocal todo
            settled = [(event, time)]
            while settled:
                one, when = settled.pop()
                if when > last[one]:
                    last[one] = when
                missing[one] -= 1
                if missing[one]:
                    continue
                finish = end[one] = last[one] + durations[one]
                todo += blocked.pop(one, ())
                settled += [
                    (other, max(finish + delay, soonest))
                    for other, delay, soonest in behind.pop(one, ())
                ]

        while True:
            if not todo and not (todo := _release_one(at, now, blocked)):
                break
            index = todo.pop()
            rank = self._programs[index]
            code, first, second, third = rank.code, rank.first, rank.second, rank.third
            work = works[index]
            gap = change.gap_ns.get(index, 0.0)
            mark = rank.mark if index in by_stretch else None
            time, place, count = now[index], at[index], len(code)
            while place < count:
                what = code[place]
                if what == RUN:
                    idle = second[place]
                    if gap:
                        idle = max(idle - gap * third[place], 0.0)
                    took = first[place] * work + idle
                    if mark is not None:
                        took = max(took - change.interval_ns.get((index, mark[place]), 0.0), 0.0)
                    time += took
                elif what == BEGIN:
                    event, after, delay = third[place], int(second[place]), first[place]
                    # Operations of one communicator run one after another.
                    soonest = 0.0 if delay >= 0 else time
                    delay = max(delay, 0.0)
                    if after < 0:
                        begin(event, time)
                    elif (finish := end[after]) is None:
                        behind.setdefault(after, []).append((event, delay, soonest))
                    else:
                        begin(event, max(finish + delay, soonest))
                elif what == AWAIT:
                    finish = end[third[place]]
                    if finish is None:
                        blocked.setdefault(third[place], []).append(index)
                        break
                    time = max(time, finish)
                elif index in by_step:
                    usual = change.work.get(index, 1.0)
                    work = works[index] = change.work_at.get((index, third[place]), usual)
                place += 1
            now[index], at[index] = time, place
        return now, end


def _release_one(at: list[int], now: list[float], blocked: dict[int, list[int]]) -> list[int]:
    """Unblock the earliest of the ranks that wait for events that can never end.

    If recorded times contradict each other, ranks may wait for each other in a cycle.
    """
    waiting = [rank for members in blocked.values() for rank in members]
    if not waiting:
        return []
    released = min(waiting, key=lambda rank: now[rank])
    for members in blocked.values():
        if released in members:
            members.remove(released)
    at[released] += 1
    return [released]


def usual_durations(matched: MatchedCollectives, waits: Waits) -> NDArray[np.float64]:
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

    Args:
        matched: The run.
        steps: The replayed steps; None means all. Events that extend beyond them are unmatched.
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
