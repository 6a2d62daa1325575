"""What each rank does, in order, as entries that can be walked.

A rank's timeline is a row of stretches (kernels and the idle time around them) cut by the begins
and ends of its communication; an end that the device stood idle for is one that it awaits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.collective_kinds import POINT_TO_POINT as _TRANSFERS
from unified_prof.cluster.partial import END, NONE, START, STEP, Columns, Partial

Ints = NDArray[np.int64]

# What a rank's program consists of.
GO, BEGIN, AWAIT, STEP_BEGIN, INPUT = range(5)
_QUEUED_NS = 5_000
"""An operation that begins this soon after another one of its group was waiting for it."""
_LEAST_IDLE_NS = 10_000
"""An end beside kernels that comes in less idle time came there by chance."""


@dataclass(slots=True)
class Program:
    """What a rank does, entry by entry: a code, and up to three values that it gives a meaning."""

    code: list[int]
    first: list[float]
    second: list[float]
    third: list[int]
    begin: float
    """When it begins, on the common clock."""
    mark: list[int] = field(default_factory=list)
    """Of each entry, the mark of the partial that it comes of."""


def program_of(
    one: Partial,
    event_of: Ints,
    shift: int,
    steps: Sequence[int],
    *,
    cut: bool,
    within: bool,
    usual: float,
) -> Program:
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
        return Program([], [], [], [], 0.0)
    what, op = marks["what"], marks["op"]
    time, lead, busy, tail = marks["time"], marks["lead"], marks["busy"], marks["tail"]
    kernels = marks["kernels"]
    length = np.append(np.diff(time), lead[-1] + busy[-1] + tail[-1])
    is_end = what == END
    matched = np.full(count, NONE, np.int64)
    of_op = what != STEP
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
    code = np.full((count, 4), [NONE, STEP_BEGIN, GO, INPUT])
    first, second, third = np.zeros((3, count, 4))
    begins = (what == START) & (matched >= 0)
    code[begins, 0], code[awaited, 0] = BEGIN, AWAIT
    first[begins, 0], second[begins, 0], third[:, 0] = delay[begins], behind[begins], matched
    of_step = (what == STEP) & (op >= 0)
    step = np.full(count, NONE, np.int64)
    step[of_step] = one.steps["step"][op[of_step]]
    third[:, 1], third[:, 3] = step, step
    first[:, 2], second[:, 2], third[:, 2] = busy, idle, kernels
    there = np.empty((count, 4), bool)
    there[:, 0] = code[:, 0] != NONE
    there[:, 1] = there[:, 3] = of_step & np.isin(step, list(steps))
    there[:, 2] = (busy != 0) | (idle != 0)
    return Program(
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
    behind, delays = np.full((2, len(matched)), NONE, np.int64)
    of_event = np.flatnonzero((marks["what"] != STEP) & (matched >= 0))
    op, is_end = marks["op"][of_event], marks["what"][of_event] == END
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
        delays[starts[follows]] = np.where(delay <= _QUEUED_NS, delay, NONE)
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
