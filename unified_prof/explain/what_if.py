"""Estimated step time if parts of a recording took less time: the recorded schedule is replayed.

Dependencies stay as recorded: the order on streams and threads, launches before tasks, waits on
events, synchronizing calls. Time that these do not explain (a slow launch, a gap of unknown reason)
keeps its length. Worker processes of a DataLoader keep their pace as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals, nesting
from unified_prof.arrays.grouping import Ints
from unified_prof.errors import UsageError
from unified_prof.explain.schedule import builder, graph
from unified_prof.explain.schedule.builder import Scheduled
from unified_prof.recording.calls import KINDS
from unified_prof.recording.idle import is_input
from unified_prof.recording.recording import Recording

WITHOUT = math.inf  # Factor of parts that are removed.

_NO_ROWS = np.zeros(0, np.int64)
_TASK_CLASSES = ("kernel", "communication", "copy")
# Names that select everything of a kind: device tasks, host time, and synchronizing calls.
CLASSES = (*_TASK_CLASSES, "host", "input", "synchronising")


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Parts of a recording that take less time."""

    work: NDArray[np.bool_] | None = None  # Mask of `Recording.work`; None: no device tasks.
    # Rows of `Recording.framework` whose host time, nested calls included, is selected.
    ranges: Ints = field(default_factory=lambda: _NO_ROWS)
    # Rows of `Recording.host_calls`, likewise. If a synchronizing call is removed, its thread does
    # not wait.
    calls: Ints = field(default_factory=lambda: _NO_ROWS)
    host: bool = False  # True: all host time except input, between calls as well.


@dataclass(frozen=True, slots=True)
class Gain:
    """Time saved, in all steps together."""

    # Length of the steps as recorded, and as estimated.
    before_ns: int
    after_ns: int
    steps: int  # Number of steps; 1 if none were recorded: the whole recording.
    # Name, recorded and estimated length of each step.
    by_step_ns: tuple[tuple[str, int, int], ...]
    changed_ns: int  # Time by which the changed parts are shorter, on the critical path or not.

    @property
    def gain_ns(self) -> int:
        """Time saved in all steps together."""
        return self.before_ns - self.after_ns

    @property
    def per_step_ns(self) -> float:
        """Mean time saved per step."""
        return self.gain_ns / self.steps


_schedules: WeakKeyDictionary[Recording, list[Scheduled | None]] = WeakKeyDictionary()


def schedule_of(recording: Recording) -> Scheduled | None:
    """Return the schedule of a recording, cached; None if nothing has known times."""
    cached = _schedules.get(recording)
    if cached is None:
        cached = _schedules[recording] = [builder.build_schedule(recording)]
    return cached[0]


def gain(recording: Recording, changes: Sequence[tuple[Selection, float]]) -> Gain | None:
    """Return the time saved if parts are faster by factors; None if nothing has known times.

    Raises:
        UsageError: A factor is not above 0.
    """
    scheduled = schedule_of(recording)
    if scheduled is None:
        return None
    schedule, edges = scheduled.schedule, scheduled.schedule.edges
    task_ns, lag = schedule.takes_ns.astype(np.float64), edges.lag_ns.astype(np.float64)
    for selection, factor in changes:
        if not factor > 0:
            raise UsageError(
                f"invalid factor {factor:g}: it must be greater than 0", slug="wrong-option-value"
            )
        if selection.work is not None:
            moments = scheduled.task_moments[: scheduled.tasks.work][
                selection.work[scheduled.tasks.row]
            ]
            task_ns[moments] /= factor
        lag -= _host_ns(recording, scheduled, selection) * (1 - 1 / factor)
        if factor == WITHOUT and len(selection.calls):
            lag[_wait_edges(scheduled, selection.calls)] = -np.inf
        if len(np.intersect1d(selection.ranges, scheduled.host.fetches)):
            # Faster input: workers no longer keep their recorded pace.
            lag[edges.kind == graph.FETCHED] = -np.inf
    new_task_ns: Ints = np.rint(task_ns).astype(np.int64)
    removed = np.isneginf(lag)
    new_lag: Ints = np.rint(np.where(removed, 0, np.maximum(lag, 0))).astype(np.int64)
    # A removed dependency never decides, however late its source is.
    span = int(schedule.time_ns[-1] - schedule.time_ns[0]) + int(new_task_ns.max(initial=0)) + 1
    new_lag[removed] = -span
    after = scheduled.steps_ns(schedule.replay(new_task_ns, new_lag))
    before = scheduled.steps_ns()
    on_host = edges.kind == graph.HOST
    saved = int((schedule.takes_ns - new_task_ns).sum())
    saved += int((edges.lag_ns - new_lag)[on_host].sum())
    return Gain(
        before_ns=int(before.sum()),
        after_ns=int(after.sum()),
        steps=len(before),
        by_step_ns=tuple(zip(scheduled.step_names, before.tolist(), after.tolist(), strict=True)),
        changed_ns=saved,
    )


def _host_ns(
    recording: Recording, scheduled: Scheduled, selection: Selection
) -> NDArray[np.float64]:
    """Return the time of each edge that its thread spent in the selected calls."""
    edges, point = scheduled.schedule.edges, scheduled.point_of_moment
    result = np.zeros(len(edges))
    rows = np.flatnonzero(edges.kind == graph.HOST)
    skew = scheduled.host.skew_ns
    thread = scheduled.host.thread[point[edges.source[rows]]]
    start = scheduled.schedule.time_ns[edges.source[rows]] + skew
    end = scheduled.schedule.time_ns[edges.target[rows]] + skew
    if selection.host:
        fetching = in_ranges_ns(recording, select(recording, "input"), thread, start, end)
        result[rows] = np.maximum(edges.lag_ns[rows] - fetching, 0)
    else:
        length = in_ranges_ns(recording, selection, thread, start, end)
        result[rows] = np.minimum(length, edges.lag_ns[rows])
    return result


def in_ranges_ns(
    recording: Recording, selection: Selection, thread: Ints, start_ns: Ints, end_ns: Ints
) -> Ints:
    """Return the time that intervals of threads overlap with the selected ranges and calls."""
    calls, framework = recording.host_calls, recording.framework
    threads, starts, ends = [_NO_ROWS], [_NO_ROWS], [_NO_ROWS]
    for table, rows in ((calls, selection.calls), (framework, selection.ranges)):
        if table is not None and len(rows):
            threads.append(table.thread[rows])
            starts.append(table.start_ns[rows])
            ends.append(table.end_ns[rows])
    range_thread, start, end = (np.concatenate(part) for part in (threads, starts, ends))
    result = np.zeros(len(thread), np.int64)
    for number in np.unique(range_thread).tolist():
        same = range_thread == number
        covered = intervals.merge(start[same], end[same])
        rows = np.flatnonzero(thread == number)
        result[rows] = intervals.covered(covered, start_ns[rows], end_ns[rows])
    return result


def _wait_edges(scheduled: Scheduled, calls: Ints) -> Ints:
    """Return the edges by which some synchronizing calls wait for tasks."""
    edges, waits = scheduled.schedule.edges, scheduled.host.waits
    ends = scheduled.point_moments[waits.end[np.isin(waits.call, calls)]]
    waiting = (edges.kind == graph.SYNCHRONISING) & edges.behind & np.isin(edges.target, ends)
    return np.flatnonzero(waiting)


def select(recording: Recording, name: str) -> Selection:
    """Return the parts of a recording that a name selects.

    The name is one of CLASSES; or that of kernels, collectives or kinds of copies; or of
    operations: their device tasks if they have any, else their host time; or of runtime calls.
    `host:NAME` is host time alone. Names may contain `*` as in file names.

    Raises:
        UsageError: No recorded item has that name.
    """
    if name in CLASSES:
        if name in _TASK_CLASSES:
            return Selection(work=recording.work.kind == KINDS.index(name))
        if name == "host":
            return Selection(host=True)
        if name == "input":
            framework = recording.framework
            return Selection(ranges=_NO_ROWS if framework is None else framework.matching(is_input))
        scheduled = schedule_of(recording)
        return Selection(calls=_NO_ROWS if scheduled is None else scheduled.host.waits.call)
    on_host = name.startswith("host:")
    wanted = name.removeprefix("host:")
    work = np.zeros(len(recording.work), bool) if on_host else _matching_work(recording, wanted)
    if work.any():
        return Selection(work=work)
    ranges, calls = _matching_ranges(recording, wanted), _matching_calls(recording, wanted)
    if len(ranges) or len(calls):
        return Selection(ranges=ranges, calls=calls)
    near = get_close_matches(wanted, sorted(_names(recording)), n=3, cutoff=0.4)
    raise UsageError(
        f"nothing in the recording is named {name}",
        hint=f"similar names: {', '.join(near)}" if near else f"classes are {', '.join(CLASSES)}",
        slug="nothing-of-that-name",
    )


def without(recording: Recording, name: str) -> Selection:
    """Return the selection to remove for a name: device tasks, host time, waits in its ranges."""
    selection = select(recording, name)
    if name in CLASSES:
        return selection
    if selection.work is not None:
        ranges, calls = _matching_ranges(recording, name), _matching_calls(recording, name)
        selection = Selection(work=selection.work, ranges=ranges, calls=calls)
    scheduled, framework = schedule_of(recording), recording.framework
    if scheduled is None or framework is None or not len(selection.ranges):
        return selection
    waits, table = scheduled.host.waits.call, recording.host_calls
    start, end = table.start_ns[waits], table.end_ns[waits]
    ranges_only = Selection(ranges=selection.ranges)
    inside = in_ranges_ns(recording, ranges_only, table.thread[waits], start, end)
    waits = waits[inside >= end - start]
    return replace(selection, calls=np.union1d(selection.calls, waits))


def _matching_work(recording: Recording, pattern: str) -> NDArray[np.bool_]:
    work, framework = recording.work, recording.framework
    result = np.zeros(len(work), bool)
    if not len(work):
        return result
    for column in (work.kernel, work.operator):
        result |= np.array([*(_matches(text, pattern) for text in work.labels.texts), False])[
            column
        ]
    if framework is not None:
        call, _ = work.launches
        texts, number = framework.names(np.arange(len(framework)))
        matching = np.array([_matches(text, pattern) for text in texts])[number]
        if matching.any():
            # The operation that a task is attributed to, or one within it that launched the task.
            within = nesting.nearest_marked(framework.parent.to_array(), matching) != nesting.NONE
            inner = framework.innermost(work.connection.to_array())
            result |= np.append(matching, False)[call] | np.append(within, False)[inner]
    return result


def _matching_ranges(recording: Recording, pattern: str) -> Ints:
    framework = recording.framework
    if framework is None:
        return _NO_ROWS
    return framework.matching(lambda text: _matches(text, pattern))


def _matching_calls(recording: Recording, pattern: str) -> Ints:
    calls, strings = recording.host_calls, recording.strings
    return np.flatnonzero(calls.matching(strings, lambda text: _matches(text, pattern)))


def _matches(text: str | None, pattern: str) -> bool:
    return text is not None and (text == pattern or ("*" in pattern and fnmatchcase(text, pattern)))


def _names(recording: Recording) -> set[str]:
    work, framework = recording.work, recording.framework
    _ = work.kernel, work.operator  # adds their names to the labels
    names = set(work.labels.texts)
    if framework is not None:
        names.update(framework.names(_NO_ROWS)[0])
    ids = np.unique(recording.host_calls.name).tolist()
    names.update(text for text in recording.strings.texts(ids) if text)
    return {*names, *CLASSES}
