"""Moments of host threads: launches, waits, handovers between threads, ends of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import NOWHERE, Bools, Frame, Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.explain.schedule import graph
from unified_prof.explain.schedule.graph import Edges
from unified_prof.recording import names
from unified_prof.recording.framework import Framework
from unified_prof.recording.host_calls import HostCalls
from unified_prof.recording.recording import Recording
from unified_prof.recording.source import Strings

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
    main = _main_thread(framework, calls, launching, syncs)
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


def _main_thread(
    framework: Framework | None, calls: HostCalls, launching: Ints, syncs: Ints
) -> int | None:
    """Return the thread that runs the steps, or None if no host data were recorded."""
    if framework is not None:
        steps = framework.matching(lambda text: text.startswith("ProfilerStep#"))
        if len(steps):
            return int(framework.thread[steps[0]])
    used = np.concatenate((launching, syncs))
    if len(used):
        return int(calls.thread[used[calls.start_ns[used].argmin()]])
    if framework is not None and len(framework.threads):
        operations = framework.matching(lambda text: True)
        return int(framework.thread[operations[framework.start_ns[operations].argmin()]])
    return None
