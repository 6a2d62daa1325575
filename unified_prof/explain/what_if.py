"""What a step would take if something took less time: the recorded schedule run again.

What depends on what stays as it was recorded: the order on streams and threads, launches before
work, waits on events, synchronising calls. What is not explained by these (a slow launch, a gap of
unknown reason) stays as long as it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals, nesting
from unified_prof.arrays.types import Ints
from unified_prof.errors import UsageError
from unified_prof.explain.schedule import builder, graph
from unified_prof.explain.schedule.builder import Scheduled
from unified_prof.recording.calls import KINDS
from unified_prof.recording.idle import is_input
from unified_prof.recording.recording import Recording

WITHOUT = math.inf
"""The factor of what is not done at all."""

_NOTHING = np.zeros(0, np.int64)
_OF_WORK = ("kernel", "communication", "copy")
CLASSES = (*_OF_WORK, "host", "input", "synchronising")
"""Names that stand for all of a kind: work of devices, work of the host, what it waits in."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Parts of a recording that are to take less time."""

    work: NDArray[np.bool_] | None = None
    """Which rows of `Recording.work`; None: no work of devices."""
    ranges: Ints = field(default_factory=lambda: _NOTHING)
    """Rows of `Recording.framework` whose time on the host, with all within, is meant."""
    calls: Ints = field(default_factory=lambda: _NOTHING)
    """Rows of `Recording.host_calls`, likewise. Without a synchronising call its thread goes on."""
    between: bool = False
    """Whether all work of the host is meant, between its calls too."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What would be gained, in all steps together."""

    before_ns: int
    """Length of the steps as recorded."""
    after_ns: int
    """What they would take."""
    steps: int
    """How many they are; 1 where none is known: the whole recording."""
    by_step_ns: tuple[tuple[str, int, int], ...]
    """Name, length before and after of each step."""
    changed_ns: int
    """What the changed parts take less in all, on the path or not."""

    @property
    def gain_ns(self) -> int:
        """What all steps gain together."""
        return self.before_ns - self.after_ns

    @property
    def per_step_ns(self) -> float:
        """What a step gains on average."""
        return self.gain_ns / self.steps


_schedules: WeakKeyDictionary[Recording, list[Scheduled | None]] = WeakKeyDictionary()


def schedule_of(recording: Recording) -> Scheduled | None:
    """Return the schedule of a recording, made once; None: nothing ran at known times."""
    known = _schedules.get(recording)
    if known is None:
        known = _schedules[recording] = [builder.of_recording(recording)]
    return known[0]


def gain_ns(recording: Recording, selection: Selection, factor: float = WITHOUT) -> float:
    """Return what a step would gain on average if a part of a recording were so much faster.

    Args:
        recording: the recording.
        selection: the part.
        factor: how much faster; 2 is half the time, WITHOUT none of it.

    Returns:
        Nanoseconds; 0.0 where nothing of the recording has known times.
    """
    found = gain(recording, [(selection, factor)])
    return 0.0 if found is None else found.per_step_ns


def gain(recording: Recording, changes: Sequence[tuple[Selection, float]]) -> Gain | None:
    """Return what all steps would gain if parts of a recording were faster; None: nothing ran."""
    scheduled = schedule_of(recording)
    if scheduled is None:
        return None
    schedule = scheduled.schedule
    takes, lag = schedule.takes_ns.astype(np.float64), schedule.edges.lag_ns.astype(np.float64)
    for selection, factor in changes:
        if not factor > 0:
            raise UsageError(
                f"nothing gets faster by the factor {factor:g}: it is above 0",
                slug="wrong-option-value",
            )
        if selection.work is not None:
            moments = scheduled.of_piece[: scheduled.pieces.work][
                selection.work[scheduled.pieces.row]
            ]
            takes[moments] /= factor
        lag -= _on_host(recording, scheduled, selection) * (1 - 1 / factor)
        if factor == WITHOUT and len(selection.calls):
            lag[_returns(scheduled, selection.calls)] = -np.inf
    new_takes: Ints = np.rint(takes).astype(np.int64)
    never = np.isneginf(lag)
    new_lag: Ints = np.rint(np.where(never, 0, np.maximum(lag, 0))).astype(np.int64)
    # What is not waited for any more may end whenever it likes.
    whole = int(schedule.time_ns[-1] - schedule.time_ns[0]) + int(new_takes.max(initial=0)) + 1
    new_lag[never] = -whole
    after = scheduled.steps_ns(schedule.again(new_takes, new_lag))
    before = scheduled.steps_ns()
    of_host = schedule.edges.kind == graph.HOST
    saved = int((schedule.takes_ns - new_takes).sum())
    saved += int((schedule.edges.lag_ns - new_lag)[of_host].sum())
    return Gain(
        before_ns=int(before.sum()),
        after_ns=int(after.sum()),
        steps=len(before),
        by_step_ns=tuple(zip(scheduled.step_names, before.tolist(), after.tolist(), strict=True)),
        changed_ns=saved,
    )


def _on_host(
    recording: Recording, scheduled: Scheduled, selection: Selection
) -> NDArray[np.float64]:
    """Return how much of the time of each edge a thread spent in what is selected."""
    edges, point = scheduled.schedule.edges, scheduled.point_of
    result = np.zeros(len(edges))
    own = np.flatnonzero(edges.kind == graph.HOST)
    if selection.between:
        result[own] = edges.lag_ns[own]
        return result
    skew = scheduled.host.skew_ns
    of_edge = scheduled.host.thread[point[edges.source[own]]]
    begins = scheduled.schedule.time_ns[edges.source[own]] + skew
    until = scheduled.schedule.time_ns[edges.target[own]] + skew
    length = in_ranges_ns(recording, selection, of_edge, begins, until)
    result[own] = np.minimum(length, edges.lag_ns[own])
    return result


def in_ranges_ns(
    recording: Recording, selection: Selection, thread: Ints, start_ns: Ints, end_ns: Ints
) -> Ints:
    """Return how long some stretches of threads were in the ranges and calls that are selected."""
    calls, framework = recording.host_calls, recording.framework
    threads, starts, ends = [_NOTHING], [_NOTHING], [_NOTHING]
    if len(selection.calls):
        threads.append(calls.thread[selection.calls])
        starts.append(calls.start_ns[selection.calls])
        ends.append(calls.end_ns[selection.calls])
    if len(selection.ranges) and framework is not None:
        threads.append(framework.thread[selection.ranges])
        starts.append(framework.start_ns[selection.ranges])
        ends.append(framework.end_ns[selection.ranges])
    of, start, end = (np.concatenate(part) for part in (threads, starts, ends))
    result = np.zeros(len(thread), np.int64)
    for one in np.unique(of).tolist():
        mine = of == one
        covered = intervals.merge(start[mine], end[mine])
        here = np.flatnonzero(thread == one)
        result[here] = _covered(covered, end_ns[here]) - _covered(covered, start_ns[here])
    return result


def _covered(covered: intervals.IntervalSet, at_ns: Ints) -> Ints:
    """Return how much of the time before each moment a set covers."""
    if not len(covered):
        return np.zeros(len(at_ns), np.int64)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(covered.end_ns - covered.start_ns)))
    last = np.searchsorted(covered.start_ns, at_ns, side="right") - 1
    length = covered.end_ns[last] - covered.start_ns[last]
    inside = np.minimum(at_ns - covered.start_ns[last], length)
    found: Ints = np.where(last >= 0, before[last] + inside, 0)
    return found


def _returns(scheduled: Scheduled, calls: Ints) -> Ints:
    """Return the edges by which some synchronising calls wait for work."""
    edges, waits = scheduled.schedule.edges, scheduled.host.waits
    ends = scheduled.of_point[waits.end[np.isin(waits.call, calls)]]
    waiting = (edges.kind == graph.SYNCHRONISING) & edges.behind & np.isin(edges.target, ends)
    return np.flatnonzero(waiting)


def select(recording: Recording, name: str) -> Selection:
    """Return what a name of the user's stands for.

    That is one of CLASSES; or kernels, collectives and kinds of copies of that name, or operations:
    their work on devices if they have any, else their time on the host; or calls of the runtime.
    `host:NAME` is the time on the host alone. Names may hold `*`, as file names do.

    Raises:
        UsageError: nothing of that name was recorded.
    """
    if name in CLASSES:
        return _class(recording, name)
    on_host = name.startswith("host:")
    wanted = name.removeprefix("host:")
    work = np.zeros(len(recording.work), bool) if on_host else _work_named(recording, wanted)
    if work.any():
        return Selection(work=work)
    ranges = _ranges_named(recording, wanted)
    calls = _calls_named(recording, wanted)
    if len(ranges) or len(calls):
        return Selection(ranges=ranges, calls=calls)
    near = get_close_matches(wanted, sorted(_names(recording)), n=3, cutoff=0.4)
    raise UsageError(
        f"nothing in the recording is called {name}",
        hint=f"near it: {', '.join(near)}" if near else f"classes are {', '.join(CLASSES)}",
        slug="nothing-of-that-name",
    )


def without(recording: Recording, name: str) -> Selection:
    """Return what would be gone without a name: of an operation, its time on the host as well."""
    found = select(recording, name)
    if found.work is None or name in CLASSES:
        return found
    return Selection(
        work=found.work,
        ranges=_ranges_named(recording, name),
        calls=_calls_named(recording, name),
    )


def _class(recording: Recording, name: str) -> Selection:
    if name in _OF_WORK:
        return Selection(work=recording.work.kind == KINDS.index(name))
    if name == "host":
        return Selection(between=True)
    if name == "input":
        framework = recording.framework
        return Selection(ranges=_NOTHING if framework is None else framework.matching(is_input))
    scheduled = schedule_of(recording)
    return Selection(calls=_NOTHING if scheduled is None else scheduled.host.waits.call)


def _work_named(recording: Recording, wanted: str) -> NDArray[np.bool_]:
    work, framework = recording.work, recording.framework
    texts: list[str]
    found = np.zeros(len(work), bool)
    if not len(work):
        return found
    for column in (work.kernel, work.operator):
        flags = np.array([*(_is(text, wanted) for text in work.labels.texts), False])
        found |= flags[column]
    if framework is not None:
        call, _ = work.launches
        texts, number = framework.names(np.arange(len(framework)))
        named = np.array([_is(text, wanted) for text in texts])[number]
        if named.any():
            # The operation that work counts for, or one within it that launched the work.
            within = nesting.nearest_marked(framework.parent.to_array(), named) != nesting.NONE
            inner = framework.innermost(work.connection.to_array())
            found |= np.append(named, False)[call] | np.append(within, False)[inner]
    return found


def _ranges_named(recording: Recording, wanted: str) -> Ints:
    framework = recording.framework
    if framework is None:
        return _NOTHING
    return framework.matching(lambda text: _is(text, wanted))


def _calls_named(recording: Recording, wanted: str) -> Ints:
    calls, strings = recording.host_calls, recording.strings
    ids = np.unique(calls.name)
    chosen = [number for number in ids.tolist() if _is(strings.get(number), wanted)]
    return np.flatnonzero(np.isin(calls.name, chosen)) if chosen else _NOTHING


def _is(text: str | None, wanted: str) -> bool:
    return text is not None and (text == wanted or ("*" in wanted and fnmatchcase(text, wanted)))


def _names(recording: Recording) -> set[str]:
    work, framework = recording.work, recording.framework
    _ = work.kernel, work.operator
    names = set(work.labels.texts)
    if framework is not None:
        names.update(framework.names(np.zeros(0, np.int64))[0])
    ids = np.unique(recording.host_calls.name).tolist()
    names.update(text for text in recording.strings.texts(ids) if text)
    return {*names, *CLASSES}
