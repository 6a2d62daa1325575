"""Device tasks of a schedule: streams, launches, and the waits of tasks and calls."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, Lookup, by_key, distinct
from unified_prof.explain.schedule import graph
from unified_prof.explain.schedule.graph import Edges
from unified_prof.recording import host_calls, names
from unified_prof.recording.calls import COMMUNICATION, UNKNOWN
from unified_prof.recording.recording import Recording
from unified_prof.recording.tasks import WAIT

# Maximum clock skew of host and device; a task that began earlier has another launch.
_SKEW_NS = 100_000


class ScheduledTasks(Struct, frozen=True, eq=False):
    """Device tasks: first kernels, collectives and copies (work), then event waits and records."""

    # Row of each work task in `Recording.work`, ascending.
    row: Ints
    start_ns: Ints
    end_ns: Ints
    device: Ints
    stream: Ints  # Device and stream as one number; a collective has that of its tasks.
    # Launching call, NOWHERE if unknown, and its start (the task's start if unknown).
    call: Ints
    launched_ns: Ints
    skew_ns: int  # Minimum shift of host times, so that no task begins before its launch.
    # Masks of tasks that record an event or wait for one.
    records: Bools
    waits: Bools

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def work(self) -> int:
        """Number of kernels, collectives and copies, which come first."""
        return len(self.row)

    @property
    def launch_ns(self) -> Ints:
        """Launch of each task, by the device clock."""
        return np.where(self.call >= 0, self.launched_ns - self.skew_ns, self.launched_ns)

    @property
    def moment_ns(self) -> Ints:
        """Begin of each device task, end of each event wait."""
        is_work = np.arange(len(self)) < self.work
        return np.where(is_work, self.start_ns, self.end_ns)

    @property
    def takes_ns(self) -> Ints:
        """Duration of each device task, 0 for event waits."""
        is_work = np.arange(len(self)) < self.work
        return np.where(is_work, self.end_ns - self.start_ns, 0)

    def queued_before(self, queued_ns: int) -> Bools:
        """Return a mask of the tasks that were enqueued before the recording, which end by then."""
        return (self.call < 0) & (self.start_ns < queued_ns)


def load_tasks(recording: Recording, until_ns: int | None = None) -> ScheduledTasks:
    """Return the device tasks of a recording that began before `until_ns`."""
    work, tasks, calls = recording.work, recording.tasks, recording.host_calls
    begun = work.start_ns.to_array()
    rows = np.arange(len(work)) if until_ns is None else np.flatnonzero(begun < until_ns)
    begun = begun[rows]
    waiting = (tasks.kind == WAIT) & tasks.is_program_task
    if until_ns is not None:
        waiting &= tasks.start_ns < until_ns
    waits = np.flatnonzero(waiting)
    texts = [(text or "").lower() for text in tasks.type_texts]
    of_type = tasks.type[waits]
    connection = np.concatenate((work.connection[rows], tasks.connection[waits]))
    call = calls.launching(connection).astype(np.int64)
    start = np.concatenate((begun, tasks.start_ns[waits]))
    launched = np.append(calls.start_ns, 0)[call]
    early = (launched - start)[call >= 0]
    early = early[early <= _SKEW_NS]

    def is_type(word: str) -> Bools:
        result = np.array([*(word in text for text in texts), False])[of_type]
        return np.concatenate((np.zeros(len(rows), bool), result))

    return ScheduledTasks(
        row=rows,
        start_ns=start,
        end_ns=np.concatenate((begun + work.duration_ns[rows], tasks.end_ns[waits])),
        device=np.concatenate((work.device[rows], tasks.device[waits].astype(np.int64))),
        stream=np.concatenate((_streams(recording, rows), _key(tasks.device, tasks.stream)[waits])),
        call=call,
        launched_ns=np.where(call >= 0, launched, start),
        skew_ns=max(int(early.max(initial=0)), 0),
        records=is_type("record"),
        waits=is_type("wait"),
    )


def _key(device: NDArray[np.integer], stream: NDArray[np.integer]) -> Ints:
    return device.astype(np.int64) << 32 | (stream.astype(np.int64) & 0xFFFFFFFF)


def _streams(recording: Recording, rows: Ints) -> Ints:
    """Return the stream of each task; a collective has the stream of its tasks."""
    work, tasks = recording.work, recording.tasks
    of_row = work.stream[rows]
    stream = _key(work.device[rows], of_row)
    whole = np.flatnonzero((work.kind[rows] == COMMUNICATION) & (of_row == UNKNOWN))
    if len(whole) and len(tasks):
        connection = work.connection[rows[whole]]
        task = Lookup(tasks.connection.astype(np.int64)).rows(connection)
        known = (task >= 0) & (connection >= 0)
        known &= tasks.device[task] == work.device[rows[whole]]
        stream[whole[known]] = _key(tasks.device, tasks.stream)[task[known]]
    return stream


class _LaunchOrder:
    """Tasks of each stream in the order of their launches."""

    def __init__(self, tasks: ScheduledTasks) -> None:
        known = np.flatnonzero(tasks.call >= 0)
        order = np.lexsort((tasks.moment_ns[known], tasks.launched_ns[known], tasks.stream[known]))
        self._rows = known[order]
        self._stream = tasks.stream[self._rows]
        self._launched = tasks.launched_ns[self._rows]

    def before(self, stream: Ints, at_ns: Ints) -> Ints:
        """Return the last task launched on a stream before a time, or NOWHERE."""
        low, place = self._places(stream, at_ns)
        result = place > low
        return np.where(result, np.append(self._rows, NOWHERE)[place - 1], NOWHERE)

    def after(self, stream: Ints, at_ns: Ints) -> Ints:
        """Return the first task launched on a stream at a time or later, or NOWHERE."""
        _, place = self._places(stream, at_ns)
        high = np.searchsorted(self._stream, stream, side="right")
        return np.where(place < high, np.append(self._rows, NOWHERE)[place], NOWHERE)

    def _places(self, stream: Ints, at_ns: Ints) -> tuple[Ints, Ints]:
        low = np.searchsorted(self._stream, stream, side="left")
        place = np.empty(len(stream), np.int64)
        for one, rows in by_key(stream):
            begin = int(np.searchsorted(self._stream, one, side="left"))
            end = int(np.searchsorted(self._stream, one, side="right"))
            launched = self._launched[begin:end]
            place[rows] = begin + np.searchsorted(launched, at_ns[rows], side="left")
        return low.astype(np.int64), place


TRIES = 256  # Maximum number of earlier tasks to examine for the one that a call waited for.
_CLOSE_NS = 10_000  # Maximum time from the end of a task to the start of one that waited for it...
_SOON_NS = 5_000  # ...if the wait was not recorded and is inferred from times alone.
# Maximum time until a waiting stream notices a recorded event (17 to 59 µs on a 910A).
_POLL_NS = 100_000
_MAX_LATENCY_NS = 50_000  # Maximum launch latency of an idle device; the rest has another cause.
# A task waited for something else if it starts this many usual latencies after its launch.
_LATE = 3


def edges(recording: Recording, tasks: ScheduledTasks, launches: Ints, first: int) -> list[Edges]:
    """Return the dependencies of device tasks.

    `launches` is the moment of each task's launch (NOWHERE: unknown), `first` the moment of the
    first task; the others follow in their order.
    """
    before, touching = _before(tasks)
    moment = tasks.moment_ns
    after = np.flatnonzero(before != NOWHERE)
    gap = moment[after] - tasks.end_ns[before[after]]
    # Usual gaps and latencies are those of tasks that waited for nothing else: a task was queued if
    # its launch had arrived at the device before the task before it ended.
    known = np.flatnonzero(launches != NOWHERE)
    delay = moment[known] - tasks.launch_ns[known]
    until = np.append(tasks.end_ns, 0)[before]
    arrived = tasks.launch_ns + _usual_latency(tasks, known, delay, until)
    queued = (arrived[after] < tasks.end_ns[before[after]]) & (gap < _CLOSE_NS)
    usual_gap = _usual(gap[queued], 1_000)
    awaited = _awaited(recording, tasks, before, usual_gap)
    np.maximum.at(until, awaited.target, tasks.end_ns[awaited.source])
    usual_delay = _usual_latency(tasks, known, delay, until)
    lag = np.minimum(gap, usual_gap)
    between = [
        Edges.uniform(before[after], after, lag, behind=True, kind=graph.STREAM),
        Edges.uniform(touching[0], touching[1], 0, behind=False, kind=graph.STREAM),
        awaited,
        _inferred_waits(tasks, before, awaited, usual_gap, usual_delay),
    ]
    lag = np.clip(delay, 0, usual_delay)
    launched = Edges.uniform(launches[known], known + first, lag, behind=False, kind=graph.LAUNCH)
    return [launched, *(one.moved(first) for one in between)]


def _usual_latency(tasks: ScheduledTasks, known: Ints, delay: Ints, until: Ints) -> int:
    """Return the usual time from a launch to its task if the device is idle since `until`."""
    idle = (until[known] <= tasks.launch_ns[known]) & (delay >= 0)
    return min(_usual(delay[idle], 5_000), _MAX_LATENCY_NS)


def _usual(values: Ints, otherwise: int) -> int:
    """Return the lower quartile, because long times may have unrecorded causes."""
    return int(np.percentile(values, 25, method="lower")) if len(values) else otherwise


def _before(tasks: ScheduledTasks) -> tuple[Ints, tuple[Ints, Ints]]:
    """Return the previous task on the stream of each task, and pairs that overlap there."""
    moment, end = tasks.moment_ns, tasks.end_ns
    result = np.full(len(tasks), NOWHERE, np.int64)
    sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for _, rows in by_key(tasks.stream):
        rows = rows[np.lexsort((end[rows], moment[rows]))]
        by_end = np.argsort(end[rows], kind="stable")
        last = np.searchsorted(end[rows][by_end], moment[rows], side="right") - 1
        # A task that ends at the same moment precedes only if it comes before in order.
        place = np.append(by_end, NOWHERE)[last]
        own = np.arange(len(rows))
        while (later := (last >= 0) & (place >= own)).any():
            last[later] -= 1
            place = np.where(last >= 0, by_end[last], NOWHERE)
        result[rows] = np.where(last >= 0, rows[place], NOWHERE)
        overlapping = np.flatnonzero((own > 0) & (place != own - 1))
        sources.append(rows[overlapping - 1])
        targets.append(rows[overlapping])
    return result, (np.concatenate(sources), np.concatenate(targets))


def _awaited(recording: Recording, tasks: ScheduledTasks, before: Ints, usual_gap: int) -> Edges:
    """Return the waits for events, recorded as calls on GPUs and as tasks on NPUs."""
    moment = tasks.moment_ns
    pairs = [(np.zeros(0, np.int64),) * 2]
    events = host_calls.stream_waits(recording.source, recording.strings, recording.host_calls)
    if len(events):
        latest = _LaunchOrder(tasks)
        awaited = latest.before(events.awaited_stream, events.recorded_ns)
        waiting = latest.after(events.stream, events.at_ns)
        both = (awaited != NOWHERE) & (waiting != NOWHERE)
        pairs.append((awaited[both], waiting[both]))
    elif not tasks.waits.any():
        pairs.append(_awaited_by_calls(recording, tasks))
    for _, rows in by_key(tasks.device):
        records, waiting = rows[tasks.records[rows]], rows[tasks.waits[rows]]
        if not len(records):
            continue
        records = records[np.argsort(moment[records], kind="stable")]
        last = np.searchsorted(moment[records], moment[waiting], side="right") - 1
        for _ in range(4):  # a stream does not wait for its own event
            own = (last >= 0) & (tasks.stream[records[last]] == tasks.stream[waiting])
            last[own] -= 1
        record = np.where(last >= 0, records[last], 0)
        since = moment[waiting] - moment[record]
        # If the stream was ready before, it polled for the event.
        ready = np.append(tasks.end_ns, 0)[before[waiting]]
        waited = (moment[record] > ready) & (since <= _POLL_NS)
        close = (last >= 0) & ((since <= _CLOSE_NS) | waited)
        close &= tasks.stream[record] != tasks.stream[waiting]
        pairs.append((record[close], waiting[close]))
    pairs.append(_recorded_before(recording, tasks))
    one, other = map(np.concatenate, zip(*pairs, strict=True))
    lag = np.clip(moment[other] - tasks.end_ns[one], 0, usual_gap)
    return Edges.uniform(one, other, lag, behind=True, kind=graph.EVENT)


def _recorded_before(recording: Recording, tasks: ScheduledTasks) -> tuple[Ints, Ints]:
    """Return each record of an event that the next call of its thread lets a stream wait for."""
    events = np.flatnonzero((tasks.records | tasks.waits) & (tasks.call >= 0))
    thread = recording.host_calls.thread[tasks.call[events]]
    events = events[np.lexsort((tasks.launched_ns[events], thread))]
    thread = recording.host_calls.thread[tasks.call[events]]
    one, other = events[:-1], events[1:]
    pair = tasks.records[one] & tasks.waits[other] & (thread[:-1] == thread[1:])
    pair &= (tasks.stream[one] != tasks.stream[other]) & (tasks.device[one] == tasks.device[other])
    return one[pair], other[pair]


def _awaited_by_calls(recording: Recording, tasks: ScheduledTasks) -> tuple[Ints, Ints]:
    """Infer waits from the order of calls if events were not recorded.

    The next launch of a thread after a StreamWaitEvent waits for the last task that was launched
    before on another stream and was done by then.
    """
    calls, moment = recording.host_calls, tasks.moment_ns
    nothing = np.zeros(0, np.int64)
    known = np.flatnonzero(tasks.call[: tasks.work] >= 0)
    if len(np.unique(tasks.stream[known])) < 2:
        return nothing, nothing
    wait_calls = np.flatnonzero(calls.matching(recording.strings, names.WAITS_FOR_EVENT))
    known = known[np.argsort(tasks.launched_ns[known], kind="stable")]
    launched = tasks.launched_ns[known]
    thread = calls.thread[tasks.call[known]]
    source, target = [nothing], [nothing]
    for one, rows in by_key(calls.thread[wait_calls]):
        own = np.flatnonzero(thread == one)
        at = calls.start_ns[wait_calls[rows]]
        following = np.searchsorted(launched[own], at, side="left")
        inside = following < len(own)
        waiting = known[own[following[inside]]]
        last = np.searchsorted(launched, at[inside], side="left") - 1
        looking = np.flatnonzero(last >= 0)
        for _ in range(TRIES):
            done = known[last[looking]]
            fits = tasks.stream[done] != tasks.stream[waiting[looking]]
            fits &= tasks.device[done] == tasks.device[waiting[looking]]
            fits &= tasks.end_ns[done] <= moment[waiting[looking]]
            source.append(done[fits])
            target.append(waiting[looking[fits]])
            last[looking[~fits]] -= 1
            looking = looking[~fits]
            looking = looking[last[looking] >= 0]
            if not len(looking):
                break
    return np.concatenate(source), np.concatenate(target)


def _inferred_waits(
    tasks: ScheduledTasks, before: Ints, awaited: Edges, usual_gap: int, usual_delay: int
) -> Edges:
    """Infer waits from times alone.

    A task that begins long after its launch and its stream's last task, and just after the end of a
    task on another stream, waited for that task.
    """
    moment = tasks.moment_ns
    ready = np.zeros(len(tasks), np.int64)
    on_stream = before != NOWHERE
    ready[on_stream] = tasks.end_ns[before[on_stream]]
    since_launch = np.where(tasks.call >= 0, tasks.launch_ns, 0)
    # Smaller delays are noise.
    much = max(_LATE * usual_delay, _CLOSE_NS)
    ready = np.where(since_launch > ready, since_launch + much - _SOON_NS, ready)
    np.maximum.at(ready, awaited.target, tasks.end_ns[awaited.source])
    late = np.flatnonzero(moment - ready > _SOON_NS)
    late = late[late < tasks.work]
    sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for device, rows in by_key(tasks.device[late]):
        here = np.flatnonzero(tasks.device == device)
        here = here[here < tasks.work]
        here = here[np.argsort(tasks.end_ns[here], kind="stable")]
        waiting = late[rows]
        last = np.searchsorted(tasks.end_ns[here], moment[waiting], side="right") - 1
        done = here[np.maximum(last, 0)]
        # A task without a known launch follows the last task of the device.
        unlaunched = tasks.call[waiting] < 0
        close = moment[waiting] - tasks.end_ns[done] <= _SOON_NS
        good = (last >= 0) & (tasks.stream[done] != tasks.stream[waiting])
        good &= (close & (tasks.end_ns[done] > ready[waiting])) | (
            unlaunched & (before[waiting] == NOWHERE)
        )
        sources.append(done[good])
        targets.append(waiting[good])
    source, target = np.concatenate(sources), np.concatenate(targets)
    lag = np.clip(moment[target] - tasks.end_ns[source], 0, usual_gap)
    return Edges.uniform(source, target, lag, behind=True, kind=graph.SEEN)


def waited_for(
    recording: Recording, tasks: ScheduledTasks, call: Ints, own: Bools
) -> tuple[Ints, Ints]:
    """Return pairs of a synchronizing call (index in `call`) and a task that it waited for.

    `own` is a mask of calls that wait for their own task.
    """
    calls = recording.host_calls
    launched_ns = _latest_launches(recording, tasks)
    known = np.flatnonzero(launched_ns < _NEVER)
    known = known[np.argsort(tasks.end_ns[known], kind="stable")]
    result: list[tuple[Ints, Ints]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]

    def add_last(which: Ints, rows: Ints) -> None:
        """Add, of some tasks, the last one that each call can have waited for."""
        begin, end = calls.start_ns[call[which]], calls.end_ns[call[which]] - tasks.skew_ns
        end += graph.ROUNDING_NS
        last = np.searchsorted(tasks.end_ns[rows], end, side="right") - 1
        looking = np.flatnonzero(last >= 0)
        for _ in range(TRIES):
            at = rows[last[looking]]
            fits = (tasks.call[at] == call[which[looking]]) | (launched_ns[at] < begin[looking])
            result.append((which[looking[fits]], at[fits]))
            last[looking[~fits]] -= 1
            looking = looking[~fits]
            looking = looking[last[looking] >= 0]
            if not len(looking):
                break

    of_devices = calls.matching(recording.strings, names.SYNCHRONIZES_DEVICE)
    copies = np.flatnonzero(np.isin(tasks.call, call[own]))
    copied = Lookup(np.where(own, call, NOWHERE)).rows(tasks.call[copies])
    result.append((copied.astype(np.int64), copies))
    events = host_calls.call_waits(recording.source, calls, call)
    its = _LaunchOrder(tasks).before(events.awaited_stream, events.recorded_ns)
    result.append((events.call[its != NOWHERE], its[its != NOWHERE]))
    open_ones = ~own
    open_ones[events.call[its != NOWHERE]] = False
    streams = {number: known[rows] for number, rows in by_key(tasks.stream[known])}
    for number, rows in by_key(events.on_stream):
        which = events.on_stream_call[rows]
        which = which[open_ones[which]]
        open_ones[which] = False
        add_last(which, streams.get(number, known[:0]))
    whole = np.flatnonzero(open_ones & of_devices[call])
    if len(streams) <= _STREAMS:
        for rows in streams.values():
            add_last(whole, rows)
        open_ones[whole] = False
    add_last(np.flatnonzero(open_ones), known)
    return (
        np.concatenate([which for which, _ in result]),
        np.concatenate([piece for _, piece in result]),
    )


_NEVER = np.iinfo(np.int64).max


def _latest_launches(recording: Recording, tasks: ScheduledTasks) -> Ints:
    """Return the latest possible launch of each task; _NEVER if unknown.

    A task without a recorded launch, before others of its stream whose launches are recorded, was
    launched before the recording began.
    """
    known = np.flatnonzero(tasks.call >= 0)
    streams, number = distinct(tasks.stream)
    last = np.full(len(streams), np.iinfo(np.int64).min)
    np.maximum.at(last, number[known], tasks.moment_ns[known])
    before = (tasks.call < 0) & (tasks.moment_ns < last[number])
    # Invalid times are negative.
    first_ns = max(int(recording.host_calls.start_ns.to_array().min(initial=_NEVER)), 1)
    return np.where(tasks.call >= 0, tasks.launched_ns, np.where(before, first_ns - 1, _NEVER))


# A launch call of this length may wait for a full launch queue; the shorter limit is for so many
# queued tasks (CUDA queues about 1,000)...
_BLOCKED_NS, _BLOCKED_AT_DEPTH_NS, _DEPTH = 200_000, 20_000, 500
_FREED_NS = 100_000  # ...until this time after a task ended.


def blocked_launches(recording: Recording, tasks: ScheduledTasks) -> tuple[Ints, Ints]:
    """Return the launch calls that wait because the launch queue is full, and what frees it.

    They take long and return soon after the end of a task, while earlier tasks are still queued or
    run. Launches of graphs take long by themselves.

    Returns:
        Rows of the calls, and the last task that ended before each of them returned.
    """
    calls = recording.host_calls
    rows = np.flatnonzero(calls.matching(recording.strings, names.LAUNCHES) & calls.is_valid)
    length = calls.end_ns[rows] - calls.start_ns[rows]
    rows, length = (values[length >= _BLOCKED_AT_DEPTH_NS] for values in (rows, length))
    if not len(rows) or not len(tasks):
        return rows[:0], rows[:0]
    begin, end = calls.start_ns[rows] - tasks.skew_ns, calls.end_ns[rows] - tasks.skew_ns
    by_end = np.argsort(tasks.end_ns, kind="stable")
    last = np.searchsorted(tasks.end_ns[by_end], end, side="right") - 1
    freed_by = by_end[np.maximum(last, 0)]
    depth = np.searchsorted(np.sort(tasks.launch_ns), begin) - (last + 1)
    found = length >= np.where(depth >= _DEPTH, _BLOCKED_AT_DEPTH_NS, _BLOCKED_NS)
    found &= (depth > 0) & (last >= 0) & (end - tasks.end_ns[freed_by] <= _FREED_NS)
    return rows[found], freed_by[found]


# Up to this many streams, a wait for a device waits for the last task of each stream.
_STREAMS = 64
