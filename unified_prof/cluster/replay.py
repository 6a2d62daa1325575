"""What is otherwise in a run that is walked again.

What each rank does, in order, as entries that can be walked.

A rank's timeline is a row of stretches (kernels and the idle time around them) cut by the begins
and ends of its communication; an end that the device stood idle for is one that it awaits.

What a step would take if something were otherwise: the recorded run, walked again.

Every rank's timeline is a row of stretches (kernels and the idle time around them) cut by the
begins and ends of its communication. A collective ends when its last member has begun, plus what
it takes itself; a rank goes on past an end only where the recording shows that it stood idle for
it. Walking that with a culprit's kernels shortened gives what the run would gain, which is less
than the waiting it caused: somebody else would then come last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Ints
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
from unified_prof.recording.collectives import POINT_TO_POINT as _TRANSFERS


@dataclass(frozen=True, slots=True)
class ReplayChange:
    """What is otherwise."""

    work: Mapping[int, float] = field(default_factory=dict)
    """Rank (by number) -> what its kernels' time is multiplied with."""
    work_at: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(rank, step) -> the same in that step."""
    gap_ns: Mapping[int, float] = field(default_factory=dict)
    """Rank -> what the idle time behind each of its kernels is shortened by."""
    input_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(rank, step) -> what its idle time at the step's begin is shortened by."""
    stretch_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(rank, mark) -> what the stretch behind that mark of its partial is shortened by."""

    @property
    def ranks(self) -> set[int]:
        """Those whose own time is otherwise."""
        by_rank = {*self.work, *self.gap_ns}
        return by_rank | {rank for rank, _ in (*self.work_at, *self.input_ns, *self.stretch_ns)}

    transfer: Mapping[int, float] = field(default_factory=dict)
    """Event -> what its transfer is multiplied with."""


# What a rank's program consists of.
GO, BEGIN, AWAIT, STEP_BEGIN, INPUT = range(5)
_QUEUED_NS = 5_000
"""An operation that begins this soon after another one of its group was waiting for it."""
_LEAST_IDLE_NS = 10_000
"""An end beside kernels that comes in less idle time came there by chance."""


@dataclass(slots=True)
class RankProgram:
    """What a rank does, entry by entry: a code, and up to three values that it gives a meaning."""

    code: list[int]
    first: list[float]
    second: list[float]
    third: list[int]
    begin: float
    """When it begins, on the common clock."""
    mark: list[int] = field(default_factory=list)
    """Of each entry, the mark of the partial that it comes of."""


def build_program(
    one: Partial,
    event_of: Ints,
    shift: int,
    steps: Sequence[int],
    *,
    cut: bool,
    within: bool,
    usual: float,
) -> RankProgram:
    """Return what a rank does.

    Args:
        one: the rank.
        event_of: the event of each of its operations, NONE of those without a mate.
        shift: of its clock.
        steps: those that are walked.
        cut: whether they are not all that there are.
        within: whether what is before the first of them is left out as well.
        usual: how long a transfer moves data whose other end is not there.
    """
    number = _kept(one, steps, within=within) if cut else np.arange(len(one.marks["time"]))
    marks = {name: values[number] for name, values in one.marks.items()}
    ops = one.communication
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
    # Time idle just before each mark, and whether the device is idle when it comes.
    before = np.r_[0, np.where(busy > 0, tail, length)[:-1]]
    gaps = int((length - lead - tail - busy)[busy > 0].sum()) / max(int(kernels.sum()), 1)
    enough = max(_LEAST_IDLE_NS, 2 * gaps)
    uncovered = np.zeros(count, bool)
    uncovered[of_op] = ops["covered"][op[of_op]] == 0
    in_idle = is_end & (matched >= 0) & (before > 0) & (uncovered | (before >= enough))
    nothing = busy == 0
    behind, delay = _queued(marks, ops, matched)
    # What began there only because another operation had ended tells nothing of the device.
    passed = np.append(delay >= 0, False)
    passed[:count] &= nothing
    ahead = np.where(passed, count, np.arange(count + 1))[1:]
    ahead = np.minimum.accumulate(ahead[::-1])[::-1]
    ends_next = np.r_[in_idle, False][ahead]
    # Where the device stays idle until another end comes, it is that one that was waited for.
    awaited = in_idle & ~(nothing & ends_next)
    # The idle time before an end that is waited for goes when the end comes earlier.
    waits_next = ends_next
    idle = np.where(waits_next, np.where(nothing, 0, length - busy - tail), length - busy)
    # Of a transfer without its other end it is not known what its wait was for.
    kinds = np.isin(ops["kind"], [at for at, kind in enumerate(one.kinds) if kind in _TRANSFERS])
    lost = is_end & (matched < 0) & uncovered
    lost[of_op] &= kinds[op[of_op]]
    next_lost = np.r_[lost[1:], False] & nothing
    idle = np.where(next_lost, np.minimum(idle, usual), idle)
    # A mark is up to four entries, in this order.
    code = np.full((count, 4), [NO_VALUE, STEP_BEGIN, GO, INPUT])
    first, second, third = np.zeros((3, count, 4))
    begins = (what == MARK_START) & (matched >= 0)
    code[begins, 0], code[awaited, 0] = BEGIN, AWAIT
    first[begins, 0], second[begins, 0], third[:, 0] = delay[begins], behind[begins], matched
    of_step = (what == MARK_STEP) & (op >= 0)
    step = np.full(count, NO_VALUE, np.int64)
    step[of_step] = one.steps["step"][op[of_step]]
    third[:, 1], third[:, 3] = step, step
    first[:, 2], second[:, 2], third[:, 2] = busy, idle, kernels
    there = np.empty((count, 4), bool)
    there[:, 0] = code[:, 0] != NO_VALUE
    there[:, 1] = there[:, 3] = of_step & np.isin(step, list(steps))
    there[:, 2] = (busy != 0) | (idle != 0)
    return RankProgram(
        code[there].tolist(),
        first[there].tolist(),
        second[there].tolist(),
        third[there].astype(np.int64).tolist(),
        float(int(time[0]) + shift),
        np.repeat(number, there.sum(axis=1)).tolist(),
    )


def _queued(marks: Columns, ops: Columns, matched: Ints) -> tuple[Ints, Ints]:
    """Return for each mark the event behind whose end, one of its group, it begins, and the delay.

    One that follows at once was asked for earlier, when nobody knows: it begins when the other
    one ends. The delay of one that does not is NONE: it begins where it stands, or later. Of all
    other marks both are NONE.
    """
    behind, delays = np.full((2, len(matched)), NO_VALUE, np.int64)
    of_event = np.flatnonzero((marks["what"] != MARK_STEP) & (matched >= 0))
    op, is_end = marks["op"][of_event], marks["what"][of_event] == MARK_END
    alike = ops["group"][op] * (int(ops["kind"].max(initial=0)) + 1) + ops["kind"][op]
    for one in np.unique(alike).tolist():
        starts, ends = (of_event[(alike == one) & (is_end == side)] for side in (False, True))
        if not len(ends):
            continue
        place = np.searchsorted(marks["time"][ends], marks["time"][starts], side="right") - 1
        other = ends[np.maximum(place, 0)]
        follows = (place >= 0) & (marks["op"][other] != marks["op"][starts])
        delay = (marks["time"][starts] - marks["time"][other])[follows]
        behind[starts[follows]] = matched[other[follows]]
        delays[starts[follows]] = np.where(delay <= _QUEUED_NS, delay, NO_VALUE)
    return behind, delays


def _kept(one: Partial, steps: Sequence[int], *, within: bool) -> Ints:
    """Return the marks up to the end of the last of some steps, from the first one's begin on."""
    time = one.marks["time"]
    chosen = np.isin(one.steps["step"], list(steps))
    last = int(one.steps["end"][chosen].max(initial=0))
    kept = time < last
    if within:
        kept &= time >= int(one.steps["start"][chosen].min(initial=last))
    return np.flatnonzero(kept)


_MOST_OPERATIONS = 400_000
"""So many operations of all ranks are walked; of a longer run the first steps."""


class Replay:
    """The programs of all ranks."""

    def __init__(
        self,
        matched: MatchedCollectives,
        waits: Waits,
        offset: Ints,
        steps: Sequence[int],
        *,
        within: bool = False,
    ) -> None:
        """Make them.

        Args:
            matched: the run.
            waits: what its communication took.
            offset: of each rank's clock.
            steps: the steps to walk, from the first one on as many as can be walked in some
                seconds.
            within: what is before the first of them is left out as well.
        """
        self._made_of = (matched, waits, offset)
        self._transfer = waits.transfer.astype(np.float64)
        self.steps = tuple(_walked(matched, steps))
        """Those that are walked."""
        self._within = within
        self._is_part = within or len(self.steps) < len(steps)

    @cached_property
    def _members(self) -> list[int]:
        members: list[int] = self._made_of[0].events.members.tolist()
        return members

    @cached_property
    def _least(self) -> NDArray[np.float64]:
        matched, waits, _ = self._made_of
        return _takes(matched, waits)

    @cached_property
    def _ranks(self) -> list[RankProgram]:
        """The programs; those of a healthy run nobody asks for."""
        matched, waits, offset = self._made_of
        event_of = _events_of_rows(matched, self.steps if self._is_part else None)
        origin = min(
            (
                int(one.marks["time"][0]) + int(offset[i])
                for i, one in enumerate(matched.partials)
                if len(one.marks["time"])
            ),
            default=0,
        )
        usual = _usual_transfer(matched, waits)
        return [
            build_program(
                one,
                event_of[index],
                int(offset[index]) - origin,
                self.steps,
                cut=self._is_part,
                within=self._within,
                usual=usual,
            )
            for index, one in enumerate(matched.partials)
        ]

    def over(self, steps: Sequence[int]) -> Replay:
        """Return the walk of these steps alone, as many from the first one on as can be."""
        return Replay(*self._made_of, steps, within=True)

    def cost_ns(self, change: ReplayChange) -> float:
        """Return what a step would gain, on average."""
        return self.gain_ns(change) / max(len(self.steps), 1)

    def gain_ns(self, change: ReplayChange) -> float:
        """Return what all steps together would gain.

        That is what the first rank would, whose steps people read in logs: in a long run all
        ranks gain alike. Where it has nothing to do with it, what the last of those would that
        change nothing themselves: what a culprit does last of all nobody waits for.
        """
        before, after = self._as_recorded, self.ends(change)[0]
        gain = before[0] - after[0]
        if abs(gain) >= 1:
            return gain
        others = [rank for rank in range(len(before)) if rank not in change.ranks]
        others = others or list(range(len(before)))
        return max(before[rank] for rank in others) - max(after[rank] for rank in others)

    def longest_idle(self, rank: int, idle_ns: Mapping[int, float]) -> dict[tuple[int, int], float]:
        """Return where a rank's longest idle times are, as a change of stretches.

        Args:
            rank: the rank.
            idle_ns: step -> how much idle time is looked for there.
        """
        program = self._ranks[rank]
        stretches: dict[int, list[tuple[float, int]]] = {}
        step = NO_VALUE
        for what, idle, number, mark in zip(
            program.code, program.second, program.third, program.mark, strict=True
        ):
            if what == STEP_BEGIN:
                step = number
            elif what == GO and idle > 0:
                stretches.setdefault(step, []).append((idle, mark))
        found: dict[tuple[int, int], float] = {}
        for step, wanted in idle_ns.items():
            for idle, mark in sorted(stretches.get(step, ()), reverse=True):
                if wanted <= 0:
                    break
                found[rank, mark] = min(idle, wanted)
                wanted -= idle
        return found

    @cached_property
    def _as_recorded(self) -> list[float]:
        return self.ends(ReplayChange())[0]

    def ends(self, change: ReplayChange) -> tuple[list[float], list[float | None]]:
        """Walk the run; return when each rank and each event end."""
        least = self._least
        if change.transfer:
            least = least.copy()
            for event, factor in change.transfer.items():
                least[event] -= self._transfer[event] * (1 - factor)
        takes = least.tolist()
        missing = list(self._members)
        last = [0.0] * len(missing)
        end: list[float | None] = [None] * len(missing)
        blocked: dict[int, list[int]] = {}
        behind: dict[int, list[tuple[int, float, float]]] = {}
        at = [0] * len(self._ranks)
        now = [rank.begin for rank in self._ranks]
        works = [change.work.get(index, 1.0) for index in range(len(self._ranks))]
        by_step = {rank for rank, _ in change.work_at}
        by_stretch = {rank for rank, _ in change.stretch_ns}
        todo = list(range(len(self._ranks)))[::-1]

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
                finish = end[one] = last[one] + takes[one]
                todo += blocked.pop(one, ())
                settled += [
                    (other, max(finish + delay, soonest))
                    for other, delay, soonest in behind.pop(one, ())
                ]

        while True:
            if not todo and not (todo := self._freed(at, now, blocked)):
                break
            index = todo.pop()
            rank = self._ranks[index]
            code, first, second, third = rank.code, rank.first, rank.second, rank.third
            work = works[index]
            gap = change.gap_ns.get(index, 0.0)
            mark = rank.mark if index in by_stretch else None
            time, place, count = now[index], at[index], len(code)
            while place < count:
                what = code[place]
                if what == GO:
                    idle = second[place]
                    if gap:
                        idle = max(idle - gap * third[place], 0.0)
                    took = first[place] * work + idle
                    if mark is not None:
                        took = max(took - change.stretch_ns.get((index, mark[place]), 0.0), 0.0)
                    time += took
                elif what == BEGIN:
                    event, after, delay = third[place], int(second[place]), first[place]
                    # Operations of one communicator follow one another, whoever asks for them.
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
                elif what == INPUT:
                    time = max(time - change.input_ns.get((index, third[place]), 0.0), 0.0)
                elif index in by_step:
                    usual = change.work.get(index, 1.0)
                    work = works[index] = change.work_at.get((index, third[place]), usual)
                place += 1
            now[index], at[index] = time, place
        return now, end

    def _freed(self, at: list[int], now: list[float], blocked: dict[int, list[int]]) -> list[int]:
        """Let one rank go on that waits for what can never come, the earliest.

        Recordings whose times contradict one another may have ranks wait in a circle.
        """
        waiting = [index for members in blocked.values() for index in members]
        if not waiting:
            return []
        freed = min(waiting, key=lambda index: now[index])
        for members in blocked.values():
            if freed in members:
                members.remove(freed)
        at[freed] += 1
        return [freed]


def _takes(matched: MatchedCollectives, waits: Waits) -> NDArray[np.float64]:
    """Return what each event takes when all have come.

    Of one with members missing nobody knows who came last: it takes as long as others like it.
    """
    events = matched.events
    result = waits.least.astype(np.float64)
    sizes = np.array([group.size for group in matched.groups] or [0], np.int64)[events.group]
    sizes[events.src >= 0] = 2
    usual: dict[tuple[int, int, int], float] = {}
    keys = np.stack([events.kind, events.bytes, sizes], 1)
    partly = np.flatnonzero(~events.complete)
    for at in partly.tolist():
        key = (int(keys[at, 0]), int(keys[at, 1]), int(keys[at, 2]))
        if key not in usual:
            like = events.complete & (keys == keys[at]).all(axis=1)
            usual[key] = float(np.median(waits.least[like])) if like.any() else np.inf
        result[at] = min(result[at], usual[key])
    return result


def _walked(matched: MatchedCollectives, steps: Sequence[int]) -> list[int]:
    """Return so many steps, from the first one on, as can be walked in some seconds."""
    chosen: list[int] = []
    walked = 0
    for step in steps:
        walked += int((matched.rows.step == step).sum())
        if chosen and walked > _MOST_OPERATIONS:
            break
        chosen.append(step)
    return chosen


def _events_of_rows(matched: MatchedCollectives, steps: Sequence[int] | None) -> list[Ints]:
    """Return for each rank the event of each of its operations, NONE where it has no mate.

    Args:
        matched: The run.
        steps: The only steps that are walked: an event that is not whole in these is none.
    """
    rows, events = matched.rows, matched.events
    result = [
        np.full(len(one.communication["start"]), NO_VALUE, np.int64) for one in matched.partials
    ]
    usable = np.flatnonzero(rows.event >= 0)
    alone = np.zeros(len(events), bool)
    if steps is not None:
        outside = ~np.isin(rows.step[usable], list(steps))
        alone[rows.event[usable[outside]]] = True
    usable = usable[~alone[rows.event[usable]]]
    order = usable[np.argsort(rows.rank[usable], kind="stable")]
    edges = np.searchsorted(rows.rank[order], np.arange(len(result) + 1))
    for index, one in enumerate(result):
        mine = order[edges[index] : edges[index + 1]]
        one[rows.op[mine]] = rows.event[mine]
    return result


def _usual_transfer(matched: MatchedCollectives, waits: Waits) -> float:
    """Return how long a transfer moves data, for those whose other end is not there."""
    whole = matched.transfers & matched.events.complete
    return float(np.median(waits.transfer[whole])) if whole.any() else float("inf")
