"""The schedule of a recording: host threads with their launches and waits, devices and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import NOWHERE, Bools, Frame, Ints, Runs, by_key, distinct, rising
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.explain.schedule import device, graph
from unified_prof.explain.schedule.device import ScheduledTasks
from unified_prof.explain.schedule.graph import Edges, Schedule, Segments
from unified_prof.explain.schedule.selection import Selection, in_ranges_ns
from unified_prof.recording import names
from unified_prof.recording.framework import Framework
from unified_prof.recording.host_calls import HostCalls
from unified_prof.recording.recording import Recording
from unified_prof.recording.source import Strings
from unified_prof.recording.steps import step_of

# Role of a moment; moments of one thread with equal times are in this order.
(
    _SYNC_END,
    _QUEUE_END,
    _HANDED,
    _FETCHED,
    _STEP,
    _TAKEN,
    _QUEUE_BEGIN,
    _ENQUEUED,
    _LAUNCH,
    _SYNC_BEGIN,
) = range(10)
# Range in which a DataLoader waits for a batch of its worker processes...
_WORKERS = "_MultiProcessingDataLoaderIter.__next__"
# ...if it takes at least this long and this share of the time between two batches; otherwise the
# batch was ready, and taking it from the queue takes its time.
_FETCH_NS = 200_000
_FETCH_SHARE = 0.02
_IDLE_NS = 10_000  # Minimum idle time of a thread that may have waited for another thread.
# Maximum time until a thread takes the next item of a queue that is not empty.
_PICKED_UP_NS = 5_000
_RETURNS_NS = 5_000  # Maximum duration of a synchronizing call without a wait.
# Minimum duration of a call that copies pageable memory through a buffer of the driver: it returns
# up to 0.1 ms before its copy is done, when the last part is in the buffer.
_STAGES_NS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Synchronizing calls and blocked launches: row of the calls, moments of begin and end."""

    call: Ints
    begin: Ints
    end: Ints
    own: Bools  # True if the call waits for its own task: a copy.
    full: Bools  # True if the call launches, and waits for a full launch queue.


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """Moments of all threads, by thread and time."""

    thread: Ints
    time_ns: Ints
    # Moment of the start of each host call, NOWHERE if it launches nothing.
    launched_by: Ints
    waits: Waits
    # Moments of the ends and begins of steps on their thread, if known.
    step_ends: Ints
    step_begins: Ints
    # Ranges in which the host waits for a batch of worker processes, and moments of their ends.
    fetches: Ints
    fetched: Ints
    edges: list[Edges]
    skew_ns: int  # Host clock minus the clock of the moments.

    def __len__(self) -> int:
        return len(self.time_ns)


class _Points:
    """Collects moments; each keeps its number when they are sorted."""

    def __init__(self, skew_ns: int) -> None:
        self._skew_ns = skew_ns
        self._threads: list[Ints] = []
        self._times: list[Ints] = []
        self._roles: list[Ints] = []
        self.count = 0

    def add(self, thread: Ints, time_ns: Ints, role: int) -> Ints:
        """Add moments and return their numbers."""
        self._threads.append(thread.astype(np.int64, copy=False))
        # Ends of steps are not shifted: they are measured with the clock of the host.
        self._times.append(time_ns if role == _STEP else time_ns - self._skew_ns)
        self._roles.append(np.full(len(time_ns), role, np.int64))
        numbers = np.arange(self.count, self.count + len(time_ns))
        self.count += len(time_ns)
        return numbers

    def ordered(self) -> tuple[Ints, Ints, Ints]:
        """Return sorted threads and times, and the position of each number."""
        nothing = np.zeros(0, np.int64)
        thread, time, role = (
            np.concatenate([nothing, *parts]) for parts in (self._threads, self._times, self._roles)
        )
        order = np.lexsort((role, time, thread))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return thread[order], time[order], place


def load_moments(
    recording: Recording,
    launching: Ints,
    done_ns: Ints,
    steps: Sequence[tuple[str, int, int]],
    blocked: Ints,
    skew_ns: int,
    until_ns: int | None = None,
) -> Host:
    """Return the moments of the threads that launch tasks or wait for them.

    Args:
        recording: Source of calls and ranges.
        launching: Distinct calls that launched tasks.
        done_ns: End of the last task of each of them.
        steps: Name, begin and end of each step.
        blocked: Launch calls (rows of the calls) that wait because the launch queue is full.
        skew_ns: Host clock minus device clock; moments use the device clock.
        until_ns: Leave out synchronizing calls from this time on.
    """
    calls, framework = recording.host_calls, recording.framework
    points = _Points(skew_ns)
    launches = points.add(calls.thread[launching], calls.start_ns[launching], _LAUNCH)
    blocked = blocked[np.isin(calls.thread[blocked], calls.thread[launching])]
    syncs = _synchronizing(calls, recording.strings, launching, framework)
    syncs = np.concatenate((np.setdiff1d(syncs, blocked), blocked))
    if until_ns is not None:
        syncs = syncs[calls.start_ns[syncs] < until_ns]
    begins = points.add(calls.thread[syncs], calls.start_ns[syncs], _SYNC_BEGIN)
    ends = points.add(calls.thread[syncs], calls.end_ns[syncs], _SYNC_END)
    copies = _blocking_copies(calls, recording.strings, launching, done_ns + skew_ns, syncs)
    copied = points.add(calls.thread[launching[copies]], calls.end_ns[launching[copies]], _SYNC_END)
    queue = recording.task_queue
    put = points.add(queue.enqueue_thread, queue.enqueue_ns, _ENQUEUED)
    taken = points.add(queue.dequeue_thread, queue.dequeue_ns, _QUEUE_BEGIN)
    points.add(queue.dequeue_thread, queue.end_ns, _QUEUE_END)
    threads = np.unique(
        np.concatenate((calls.thread[launching], calls.thread[syncs], queue.enqueue_thread))
    )
    if not len(launching) and framework is not None:
        threads = np.union1d(threads, framework.threads)
    handed = _handovers(calls, framework, np.setdiff1d(threads, queue.dequeue_thread))
    given = points.add(handed.from_thread, handed.given_ns, _HANDED)
    got = points.add(handed.to_thread, handed.taken_ns, _TAKEN)
    fetches = _fetches(framework)
    ends_of_fetches = (np.zeros(0, np.int64),) * 2
    if framework is not None:
        fetches = fetches[np.isin(framework.thread[fetches], threads)]
        ends_of_fetches = framework.thread[fetches], framework.end_ns[fetches]
    fetched = points.add(*ends_of_fetches, _FETCHED)
    main = _main_thread(recording, launching, syncs)
    on_main = np.full(len(steps) if main is not None else 0, main or 0, np.int64)
    windows = np.array([step[1:] for step in steps], np.int64).reshape(-1, 2)[: len(on_main)]
    step_begins = points.add(on_main, windows[:, 0], _STEP)
    step_ends = points.add(on_main, windows[:, 1], _STEP)

    thread, time, place = points.ordered()
    lag = np.diff(time)
    kind = np.full(len(lag), graph.HOST, np.int8)
    # A synchronizing call takes little time itself; a thread that takes over was idle before.
    begin_at = np.concatenate((place[begins], place[launches[copies]]))
    end_at = np.concatenate((place[ends], place[copied]))
    # By rounding, the next call may begin before it ends; otherwise launches are within the call.
    following = np.minimum(begin_at + 1, end_at)
    inside = (following > begin_at) & (time[following] >= time[end_at] - graph.ROUNDING_NS)
    end_at = np.where(inside, following, end_at)
    at = begin_at[inside]
    lag[at] = np.minimum(lag[at], _RETURNS_NS)
    kind[at] = graph.SYNCHRONIZING
    at = place[got] - 1
    behind = at >= 0
    at, since = at[behind], handed.idle_since_ns[behind]
    lag[at] = np.minimum(lag[at], np.maximum(since - skew_ns - time[at], 0))
    at = place[taken] - 1
    at = at[at >= 0]
    lag[at] = np.minimum(lag[at], _PICKED_UP_NS)
    same = np.flatnonzero(thread[1:] == thread[:-1])
    chain = Edges(same, same + 1, lag[same], np.zeros(len(same), bool), kind[same])
    queued = Edges.uniform(
        place[put], place[taken], np.minimum(queue.dequeue_ns - queue.enqueue_ns, _PICKED_UP_NS),
        behind=False, kind=graph.QUEUE,
    )  # fmt: skip
    woken = Edges.uniform(
        place[given], place[got], handed.taken_ns - handed.given_ns, behind=False, kind=graph.HANDED
    )
    launched_by = np.full(len(calls), NOWHERE, np.int64)
    launched_by[launching] = place[launches]
    return Host(
        thread=thread,
        time_ns=time,
        launched_by=launched_by,
        waits=Waits(
            call=np.concatenate((syncs, launching[copies])),
            begin=begin_at,
            end=end_at,
            own=np.repeat([False, True], [len(syncs), len(copies)]),
            full=np.isin(np.concatenate((syncs, launching[copies])), blocked),
        ),
        step_ends=place[step_ends],
        step_begins=place[step_begins],
        fetches=fetches,
        fetched=place[fetched],
        edges=[chain, queued, woken],
        skew_ns=skew_ns,
    )


def _fetches(framework: Framework | None) -> Ints:
    """Return the ranges in which the host waits for a batch of worker processes."""
    if framework is None:
        return np.zeros(0, np.int64)
    ranges = framework.matching(lambda text: _WORKERS in text)
    lengths: Ints = framework.end_ns[ranges] - framework.start_ns[ranges]
    starts = np.sort(framework.start_ns[ranges])
    between = float(np.median(np.diff(starts))) if len(starts) > 1 else 0.0
    return ranges[lengths >= max(_FETCH_NS, _FETCH_SHARE * between)]


def _synchronizing(
    calls: HostCalls, strings: Strings, launching: Ints, framework: Framework | None
) -> Ints:
    """Return the outermost synchronizing calls of relevant threads, by thread and time."""
    chosen = np.flatnonzero(calls.matching(strings, names.SYNCHRONIZES) & calls.is_valid)
    threads = np.unique(calls.thread[launching])
    if framework is not None:
        threads = np.union1d(threads, framework.threads)
    chosen = chosen[np.isin(calls.thread[chosen], threads)]
    thread, start, end = calls.thread[chosen], calls.start_ns[chosen], calls.end_ns[chosen]
    order = intervals.call_order(thread, start, end)
    outermost = intervals.parents(thread[order], start[order], end[order]) == intervals.NONE
    result: Ints = chosen[order[outermost]]
    return result


def _blocking_copies(
    calls: HostCalls, strings: Strings, launching: Ints, done_ns: Ints, syncs: Ints
) -> Ints:
    """Return the launching calls of copies that block until the copy is done, or almost done."""
    begin, length = calls.start_ns[launching], calls.end_ns[launching] - calls.start_ns[launching]
    takes = done_ns - begin
    within = (takes <= length + graph.ROUNDING_NS) | (
        (takes <= 2 * length) & (length >= _STAGES_NS)
    )
    within &= (takes > 0) & ~np.isin(launching, syncs)
    chosen = np.flatnonzero(within)
    copies = calls.matching(strings, lambda text: "memcpy" in (text or "").lower())
    return chosen[copies[launching[chosen]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Handovers(Frame):
    """Moments at which a thread continued after another one had finished."""

    from_thread: Ints
    given_ns: Ints
    to_thread: Ints
    taken_ns: Ints
    idle_since_ns: Ints


def _handovers(calls: HostCalls, framework: Framework | None, threads: Ints) -> _Handovers:
    """Infer where a thread waited for another one; such waits are not recorded.

    If a thread continues after idle time in which another one was active and then stopped, it
    waited for that one: for example the thread that called autograd's backward thread.
    """
    active: dict[int, IntervalSet] = {}
    for thread in threads.tolist() if len(threads) > 1 else []:
        selected = np.flatnonzero((calls.thread == thread) & calls.is_valid)
        starts, ends = [calls.start_ns[selected]], [calls.end_ns[selected]]
        if framework is not None:
            selected = np.flatnonzero(framework.thread == thread)
            selected = selected[framework.is_operation(selected)]
            starts.append(framework.start_ns[selected])
            ends.append(framework.end_ns[selected])
        active[thread] = intervals.merge(
            np.concatenate(starts), np.concatenate(ends), keep_empty=True
        )
    parts = [_Handovers(*(np.zeros((5, 0), np.int64)))]
    for thread, one in active.items():
        before = np.concatenate((np.zeros(1, np.int64), one.end_ns))[: len(one)]
        waited = one.start_ns - before >= _IDLE_NS
        begins, since = one.start_ns[waited], before[waited]
        best, giver = since.copy(), np.full(len(begins), thread)
        for other, its in active.items():
            if other == thread or not len(its):
                continue
            last = np.searchsorted(its.end_ns, begins, side="right") - 1
            ended = np.where(last >= 0, its.end_ns[last], 0)
            following = np.append(its.start_ns, np.iinfo(np.int64).max)[last + 1]
            idle = (following >= begins) & (following - ended >= _IDLE_NS) & (last >= 0)
            better = idle & (ended > best)
            best[better], giver[better] = ended[better], other
        found = _Handovers(giver, best, np.full(len(begins), thread), begins, since)
        parts.append(found.take(giver != thread))
    return _Handovers.concatenate(parts)


def _main_thread(recording: Recording, launching: Ints, syncs: Ints) -> int | None:
    """Return the thread that runs the steps, or None if no host data were recorded."""
    calls, framework = recording.host_calls, recording.framework
    if framework is not None:
        steps = framework.matching(recording.is_step_range)
        if len(steps):
            return int(framework.thread[steps[0]])
    used = np.concatenate((launching, syncs))
    if len(used):
        return int(calls.thread[used[calls.start_ns[used].argmin()]])
    if framework is not None and len(framework.threads):
        operations = framework.matching(lambda text: True)
        return int(framework.thread[operations[framework.start_ns[operations].argmin()]])
    return None


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
    threads = load_moments(recording, calls, done, steps_analyzed, blocked, tasks.skew_ns, until_ns)
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
    The first one begins after the tasks that were enqueued before the recording.
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
    done = np.append(max(int(host_begin[0]), recording.queued_ns), end[:-1])
    begin = np.minimum(np.maximum(host_begin, done), end)
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
        step[tasks.queued_before(recording.queued_ns)[work]] = NOWHERE
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
