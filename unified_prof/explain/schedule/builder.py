"""The schedule of a recording: host threads, devices and steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from unified_prof.arrays.grouping import NOWHERE, Ints, Runs, by_key, distinct, rising
from unified_prof.explain.schedule import device, graph, host
from unified_prof.explain.schedule.device import ScheduledTasks
from unified_prof.explain.schedule.graph import Edges, Schedule, Segments
from unified_prof.explain.schedule.host import Host
from unified_prof.explain.schedule.selection import Selection, in_ranges_ns
from unified_prof.recording.recording import Recording
from unified_prof.recording.steps import step_of

# Maximum number of tasks; of longer recordings only the first steps (at least one) are analyzed.
MAX_TASKS = 4_000_000


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A recording as a schedule of moments, which are numbered in order of time."""

    schedule: Schedule
    tasks: ScheduledTasks
    host: Host
    # Moment of each device task, and of each point of the host.
    task_moments: Ints
    point_moments: Ints
    # Names of the steps; one empty name if none was recorded: the whole recording.
    step_names: tuple[str, ...]
    step_begin_ns: Ints
    step_end_ns: Ints
    step_ends: Ints  # Moment at which each step has ended on the host and on all devices.
    steps_left_out: int  # Number of steps of a long recording that are not analyzed.
    step_begins: Ints  # Moment at which each step begins on the host, NOWHERE if unknown.
    is_partial: bool  # True if the recording is long and only its beginning is scheduled.

    @cached_property
    def task_of_moment(self) -> Ints:
        """Device task of each moment; NOWHERE for moments of the host."""
        return _inverse(self.task_moments, len(self.schedule))

    @cached_property
    def point_of_moment(self) -> Ints:
        """Host point of each moment; NOWHERE for moments of devices."""
        return _inverse(self.point_moments, len(self.schedule))

    def path(self, step: int) -> Segments:
        """Return the critical path of a step."""
        begin = int(self.step_begin_ns[step])
        return self.schedule.path(int(self.step_ends[step]), begin)

    def steps_ns(self, time_ns: Ints | None = None) -> Ints:
        """Return the length of each step, as recorded or with other times of the moments."""
        if time_ns is None:
            return self.step_end_ns - self.step_begin_ns
        ends = np.maximum.accumulate(time_ns[self.step_ends])
        done = np.concatenate((self.step_begin_ns[:1], ends[:-1]))
        # A step whose begin is unknown follows the one before it as in the recording.
        recorded = np.concatenate((self.step_begin_ns[:1], self.step_end_ns[:-1]))
        unknown = done + self.step_begin_ns - recorded
        begins = np.where(self.step_begins >= 0, time_ns[self.step_begins], unknown)
        result: Ints = np.maximum(ends - np.maximum(begins, done), 0)
        return result


def _inverse(moments: Ints, count: int) -> Ints:
    result = np.full(count, NOWHERE, np.int64)
    result[moments] = np.arange(len(moments))
    return result


def build_schedule(recording: Recording, max_tasks: int | None = None) -> Scheduled | None:
    """Return the schedule of a recording, or None without device tasks and host data.

    If there are more than `max_tasks` tasks, only the first steps (at least one) are scheduled.
    """
    steps_analyzed, until_ns = _analyzed(recording, max_tasks or MAX_TASKS)
    tasks = device.load_tasks(recording, until_ns)
    launched = np.flatnonzero(tasks.call >= 0)
    calls = rising(tasks.call[launched])
    done = np.zeros(len(calls), np.int64)
    np.maximum.at(done, np.searchsorted(calls, tasks.call[launched]), tasks.end_ns[launched])
    blocked, freed_by = device.blocked_launches(recording, tasks)
    threads = host.load_moments(
        recording, calls, done, steps_analyzed, blocked, tasks.skew_ns, until_ns
    )
    if not len(tasks) and not len(threads):
        return None
    names, begin, end = _steps(recording, steps_analyzed, tasks, threads)
    points, count, steps = len(threads), len(tasks), len(names)
    # Numbers before sorting: host points, device tasks, ends of steps.
    time = np.concatenate((threads.time_ns, tasks.moment_ns, end))
    takes = np.concatenate((np.zeros(points, np.int64), tasks.takes_ns, np.zeros(steps, np.int64)))
    launches = np.append(threads.launched_by, NOWHERE)[tasks.call]
    edges = [*threads.edges, *device.edges(recording, tasks, launches, points)]
    waits = threads.waits
    which, awaited = device.waited_for(recording, tasks, waits.call, waits.own)
    is_sync, full = ~waits.full[which], np.flatnonzero(waits.full)
    freed_by = freed_by[np.searchsorted(blocked, waits.call[full])]
    which = np.concatenate((which[is_sync], full))
    awaited = np.concatenate((awaited[is_sync], freed_by))
    ends = waits.end[which]
    returned = threads.time_ns[ends] - tasks.end_ns[awaited]
    # The usual time to return is that after the last awaited task of calls that waited.
    order = np.lexsort((tasks.end_ns[awaited], ends))
    last = order[Runs(ends[order]).last]
    begins = threads.time_ns[waits.begin[which[last]]]
    waited = last[tasks.end_ns[awaited[last]] > begins]
    usual = int(np.median(returned[waited])) if len(waited) else 0
    # A copy of pageable memory may end after its call.
    lag = np.clip(returned, np.where(waits.own[which], returned, 0), usual)
    edges.append(Edges.uniform(awaited + points, ends, lag, behind=True, kind=graph.SYNCHRONIZING))
    edges += _ends(recording, steps_analyzed, tasks, threads, end, points)
    # Workers keep their pace: batches arrive no earlier than recorded, after the first moment.
    first = np.full(len(threads.fetched), int(time.argmin()))
    lag = threads.time_ns[threads.fetched] - time.min()
    edges.append(Edges.uniform(first, threads.fetched, lag, behind=False, kind=graph.FETCHED))
    # At equal times event records come before waits, and waits before work.
    task_rank = np.where(tasks.records, 1, np.where(tasks.waits, 2, 3))
    rank = np.concatenate((np.zeros(points, np.int64), task_rank, np.full(steps, 4)))
    order = np.lexsort((time + takes, rank, time))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    all_edges = Edges.concatenate(edges)
    edges.clear()  # to free memory: the schedule copies the columns
    np.take(place, all_edges.source, out=all_edges.source)
    np.take(place, all_edges.target, out=all_edges.target)
    schedule = Schedule(time[order], takes[order], all_edges)
    del all_edges
    begins = np.full(steps, NOWHERE, np.int64)
    begins[: len(threads.step_begins)] = place[threads.step_begins]
    return Scheduled(
        schedule=schedule,
        tasks=tasks,
        host=threads,
        task_moments=place[points : points + count],
        point_moments=place[:points],
        step_names=names,
        step_begin_ns=begin,
        step_end_ns=end,
        step_ends=place[points + count :],
        steps_left_out=len(recording.steps) - len(steps_analyzed),
        step_begins=begins,
        is_partial=until_ns is not None,
    )


def _analyzed(
    recording: Recording, max_tasks: int
) -> tuple[list[tuple[str, int, int]], int | None]:
    """Return the steps to analyze, and the time to analyze until, if the recording is long."""
    steps, work = recording.steps, recording.work
    if len(work) <= max_tasks:
        return steps, None
    start = work.start_ns.to_array()
    if not steps:
        return steps, int(np.partition(start, max_tasks)[max_tasks])
    done = np.cumsum(np.bincount(np.maximum(step_of(start, steps), 0), minlength=len(steps)))
    many = max(int(np.searchsorted(done, max_tasks, side="right")), 1)
    return steps[:many], None if many == len(steps) else steps[many][1]


def _steps(
    recording: Recording, steps: list[tuple[str, int, int]], tasks: ScheduledTasks, threads: Host
) -> tuple[tuple[str, ...], Ints, Ints]:
    """Return name, begin and end of each step across the host and all devices.

    A step ends with the host and the last of its tasks on any device; the next one begins there.
    """
    if not steps:
        times = [tasks.moment_ns, tasks.end_ns, threads.time_ns]
        known = np.concatenate(times)
        return ("",), known.min(keepdims=True), known.max(keepdims=True)
    host_begin = np.array([step[1] for step in steps], np.int64)
    end = np.array([step[2] for step in steps], np.int64)
    for windows in recording.step_windows.values():
        end = np.maximum(end, windows.end_ns[: len(steps)])
    end = np.maximum.accumulate(end)
    begin = np.minimum(np.maximum(host_begin, np.append(host_begin[:1], end[:-1])), end)
    return tuple(step[0] for step in steps), begin, end


def _ends(
    recording: Recording,
    steps: list[tuple[str, int, int]],
    tasks: ScheduledTasks,
    threads: Host,
    end: Ints,
    points: int,
) -> list[Edges]:
    """Return the dependencies of step ends: on the host and on the device tasks of the step."""
    first = points + len(tasks)
    work = np.arange(tasks.work)
    if steps:
        launched = recording.program_ns(tasks.call[work], tasks.launched_ns[work])
        step = step_of(launched, steps)
        on_host = threads.step_ends
        hosts = np.arange(len(on_host))
    else:
        step = np.zeros(len(work), np.int64)
        on_host = Runs(threads.thread).last
        hosts = np.zeros(len(on_host), np.int64)
    result = [Edges.uniform(on_host, first + hosts, 0, behind=False, kind=graph.DONE)]
    # The last task of the step on each stream.
    selected = work[step >= 0]
    key, number = distinct(tasks.stream[selected])
    places = step[selected] * max(len(key), 1) + number
    lasts = [rows[tasks.end_ns[selected[rows]].argmax()] for _, rows in by_key(places)]
    last_of = selected[np.array(lasts, np.int64)]
    result.append(
        Edges.uniform(last_of + points, first + step[last_of], 0, behind=True, kind=graph.DONE)
    )
    # A step without other dependencies ends with the one before it.
    several = np.arange(len(end) - 1)
    result.append(
        Edges.uniform(first + several, first + several + 1, 0, behind=False, kind=graph.DONE)
    )
    return result


_schedules: WeakKeyDictionary[Recording, dict[int, Scheduled | None]] = WeakKeyDictionary()


def schedule_of(recording: Recording, max_tasks: int | None = None) -> Scheduled | None:
    """Return the schedule of a recording, cached; None if nothing has known times.

    If there are more than `max_tasks` tasks, only the first steps (at least one) are in it.
    """
    cached = _schedules.setdefault(recording, {})
    key = min(max_tasks or MAX_TASKS, len(recording.work))
    if key not in cached:
        cached[key] = build_schedule(recording, max_tasks)
    return cached[key]


def without_ranges(recording: Recording, ranges: Ints) -> Selection:
    """Return the selection to remove for ranges: host time, and waits of calls in them."""
    scheduled, selection = schedule_of(recording), Selection(ranges=ranges)
    if scheduled is None:
        return selection
    table, waits = recording.host_calls, scheduled.host.waits.call[~scheduled.host.waits.full]
    start, end = table.start_ns[waits], table.end_ns[waits]
    inside = in_ranges_ns(recording, selection, table.thread[waits], start, end)
    return replace(selection, calls=waits[inside >= end - start])
