"""Breakdowns by operation, kernel, stream, step, launch, queue and sequence, among others.

Launches are classified as in HolisticTraceAnalysis: kernels shorter than their launch, slow
launches, and late kernels, which waited behind others. A task is queued from the start of its
launch to its own start; the host blocks if about a thousand launches of a stream are queued. A
sequence has the tasks that a call of an outermost operation launched, in order of start, if there
are at least three; backward is a separate operation. On Ascend, whose kernel names are numbered,
sequences consist of operator types.

Call stacks have device time by launching operation, and host time by thread.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Bools, Ints, Runs, by_key
from unified_prof.arrays.packed import codes
from unified_prof.base.text import NS_PER_US
from unified_prof.recording import annotations as annotated
from unified_prof.recording import breakdowns
from unified_prof.recording.breakdowns import (
    Frame,
    Stacks,
    StackSums,
    finish,
    frames_of_place,
    path_samples,
    place_of,
    stacks_of_calls,
)
from unified_prof.recording.calls import SIZES, sort_rows
from unified_prof.recording.device import step_rows, stream_rows, with_vendor
from unified_prof.recording.framework import BACKWARD, NONE, Framework
from unified_prof.recording.model import THEN, Breakdown, BreakdownSpec, By, Place, Row, Series
from unified_prof.recording.python_frames import ADDRESS
from unified_prof.recording.recording import Recording
from unified_prof.recording.source import device_name, possible
from unified_prof.recording.task_order import LaunchedTasks
from unified_prof.recording.timeline import stacked, thin_line


def _has_calls(recording: Recording) -> bool:
    return _is_of_device(recording) or len(recording.packed_calls) > 0


def _has_places(recording: Recording) -> bool:
    return recording.has_operations and _has_calls(recording)


def _has_stacks(recording: Recording, by: By) -> bool:
    return recording.packed_calls.has(by) if _has_places(recording) else recording.has_memory_blocks


def _by_stack(recording: Recording, by: By) -> Breakdown:
    if _has_places(recording):
        return breakdowns.by_label(recording.packed_calls, by)
    return breakdowns.memory_at_peak(recording.source, recording.strings, by)


def _operations(recording: Recording) -> Breakdown:
    if _is_of_device(recording) and not recording.has_operations:
        return breakdowns.finish("operation", recording.work.operation_rows())
    return breakdowns.by_label(recording.packed_calls, "operation")


def _is_of_device(recording: Recording) -> bool:
    return recording.clock == "device"


def _has_annotations(recording: Recording) -> bool:
    if _is_of_device(recording):
        return len(recording.annotations) > 0
    return len(recording.regions) > 0


def _groups(recording: Recording) -> Breakdown:
    compute = {
        only: recording.devices[name].compute for name, only in recording.device_numbers.items()
    }
    return breakdowns.finish("group", recording.collective_names.group_rows(compute))


def _annotations(recording: Recording) -> Breakdown:
    if not _is_of_device(recording):
        return annotated.breakdown_regions(recording.regions, recording.strings)
    devices = {only: recording.devices[name] for name, only in recording.device_numbers.items()}
    return annotated.breakdown(
        recording.annotations, devices, recording.tasks, recording.launched_ns, recording.strings
    )


def _steps(recording: Recording) -> list[Row]:
    rows = step_rows(
        recording.steps,
        recording.step_lengths_ns,
        recording.devices,
        recording.step_windows,
    )
    return with_vendor(rows, recording.step_traces)


# A longer launch is slow; a task that starts later than this after its launch returned is late.
SLOW_CALL_NS = 50 * NS_PER_US
LATE_NS = 100 * NS_PER_US
NOT_RECORDED = "(launch not recorded)"


def has_launches(recording: Recording) -> bool:
    """Return True if the recording has host calls and device tasks."""
    return len(recording.tasks) > 0 and len(recording.host_calls) > 0


def _launches(recording: Recording) -> Breakdown:
    found = recording.launches.one_per_call
    ids, number = codes(recording.host_calls.name[found.call])
    names = recording.strings.texts(ids)
    rows = [_launch_row(names[own] or "(unnamed call)", found, at) for own, at in by_key(number)]
    rows = sort_rows(rows)
    if found.unknown:
        rows.append(Row(name=NOT_RECORDED, kind="launch", count=found.unknown))
    return finish("launch", rows)


def _launch_row(name: str, found: LaunchedTasks, at: Ints) -> Row:
    called, work = found.returned_ns[at] - found.called_ns[at], found.work_ns[at]
    delay = np.sort(found.started_ns[at] - found.called_ns[at])
    waited = np.sort(np.maximum(found.started_ns[at] - found.returned_ns[at], 0))
    return Row(
        name=name,
        kind="launch",
        count=len(at),
        total_ns=int(called.sum()),
        extra={
            "work_ns": int(work.sum()),
            "delay_median_ns": _quantile(delay, 0.5),
            "delay_p99_ns": _quantile(delay, 0.99),
            "delay_max_ns": int(delay[-1]),
            "waited_median_ns": _quantile(waited, 0.5),
            "waited_p99_ns": _quantile(waited, 0.99),
            "short_kernels": int(((called <= SLOW_CALL_NS) & (work < called)).sum()),
            "slow_calls": int((called > SLOW_CALL_NS).sum()),
            "late_kernels": int((waited > LATE_NS).sum()),
        },
    )


def _quantile(ordered: Ints, share: float) -> int:
    """Return the lower quantile of ascending values."""
    return int(ordered[int(share * (len(ordered) - 1))])


FULL = 1024  # Launches that a CUDA stream queues before the host waits.
TOO_MANY = 2_000_000  # Maximum number of tasks for series of queue lengths, which take memory.


class Queue(Struct, frozen=True, eq=False):
    """The length of one stream's queue: `length[i]` from `time_ns[i]` to the next time."""

    device: int
    stream: int
    launches: int
    time_ns: Ints
    length: Ints


def queues(found: LaunchedTasks) -> Iterator[Queue]:
    """Yield the queue of each stream, by device and stream."""
    places = found.device << 32 | (found.stream & 0xFFFFFFFF)
    for _, own in by_key(places):
        called = found.called_ns[own]
        # Clocks of host and device differ slightly: no task starts before its launch.
        started = np.maximum(found.started_ns[own], called)
        time_ns, length = stacked(called, started, np.ones(len(own)))
        yield Queue(
            device=int(found.device[own[0]]),
            stream=int(found.stream[own[0]]),
            launches=len(own),
            time_ns=time_ns,
            length=length.astype(np.int64),
        )


def series(recording: Recording) -> tuple[Series, ...]:
    """Return the length of each stream's queue over time."""
    if not has_launches(recording) or len(recording.tasks) > TOO_MANY:
        return ()
    return tuple(
        Series(
            f"queue of stream {queue.stream}",
            "launches",
            device_name(queue.device),
            *thin_line(queue.time_ns, queue.length.astype(np.float64)),
        )
        for queue in queues(recording.launches)
    )


def _queues(recording: Recording) -> Breakdown:
    found = list(queues(recording.launches))
    several = len({queue.device for queue in found}) > 1
    rows = [_queue_row(queue, several) for queue in found]
    rows.sort(key=lambda row: (-row.count, row.name))
    return Breakdown("queue", tuple(rows), None, None)


def _queue_row(queue: Queue, several: bool) -> Row:
    lasted = np.diff(queue.time_ns)
    length = queue.length[:-1]
    window = int(lasted.sum())
    name = f"stream {queue.stream}"
    return Row(
        name=f"{device_name(queue.device)} {name}" if several else name,
        kind="queue",
        count=queue.launches,
        total_ns=int(lasted[length > 0].sum()),
        extra={
            "window_ns": window,
            "empty_ns": int(lasted[length == 0].sum()),
            "full_ns": int(lasted[length >= FULL].sum()),
            "longest": int(queue.length.max()),
            "mean_length": float((lasted * length).sum() / window) if window else None,
        },
    )


MIN_SEQUENCE = 3  # Minimum number of tasks of a sequence.


def _has_sequences(recording: Recording) -> bool:
    return recording.clock == "device" and recording.framework is not None


def _sequences(recording: Recording) -> Breakdown:
    framework, work = recording.framework, recording.work
    assert framework is not None
    start, lasted = work.start_ns.to_array(), work.duration_ns.to_array().astype(np.int64)
    # Kernel names of an Ascend are numbered: operator types repeat.
    is_ascend = any("Ascend" in name for name in recording.devices)
    kernel = work.operator if is_ascend else work.kernel
    call = framework.outermost(work.connection.to_array())
    order = np.lexsort((start, call))
    order = order[call[order] != NONE]
    call, start, lasted, kernel = call[order], start[order], lasted[order], kernel[order]
    runs = Runs(call)
    first, size = runs.starts, runs.sizes
    texts, name = framework.names(call[first])
    found: dict[tuple[int, bytes], list[int]] = {}
    for number in np.flatnonzero(size >= MIN_SEQUENCE).tolist():
        own = slice(int(first[number]), int(first[number] + size[number]))
        sums = found.setdefault((int(name[number]), kernel[own].tobytes()), [0, 0, 0, 0])
        at = call[first[number] : first[number] + 1]
        sums[0] += 1
        sums[1] += int(lasted[own].sum())
        sums[2] += int((start[own] + lasted[own]).max() - start[own][0])
        sums[3] += int((framework.end_ns[at] - framework.start_ns[at])[0])
    rows = []
    for (operation, sequence), (count, time, elapsed, host) in found.items():
        labels = np.frombuffer(sequence, kernel.dtype).tolist()
        rows.append(
            Row(
                name=texts[operation],
                kind="sequence",
                count=count,
                total_ns=time,
                detail=join_names(work.labels.texts[label] for label in labels),
                extra={"kernels": len(labels), "elapsed_ns": elapsed, "host_ns": host},
            )
        )
    return finish("sequence", sort_rows(rows))


def join_names(kernels: Iterable[str]) -> str:
    """Join names in order, merging repeated ones with their count."""
    runs = [(name, len(list(own))) for name, own in groupby(kernels)]
    return THEN.join(name if count == 1 else f"{name} x{count}" for name, count in runs)


BREAKDOWNS = {
    "operation": BreakdownSpec(_has_calls, _operations),
    "module": BreakdownSpec(
        lambda one: _has_places(one) and one.packed_calls.has("module"),
        lambda one: breakdowns.by_label(one.packed_calls, "module"),
    ),
    "line": BreakdownSpec(partial(_has_stacks, by="line"), partial(_by_stack, by="line")),
    "stack": BreakdownSpec(partial(_has_stacks, by="stack"), partial(_by_stack, by="stack")),
    "segment": BreakdownSpec(
        lambda one: "UPROF_MEMORY_SEGMENTS" in one.source.tables,
        lambda one: breakdowns.memory_segments(one.source, one.strings),
    ),
    "kernel": BreakdownSpec(
        _is_of_device, lambda one: breakdowns.finish("kernel", one.work.kernel_rows())
    ),
    "group": BreakdownSpec(lambda one: one.collective_names.in_groups, _groups),
    "stream": BreakdownSpec(
        lambda one: len(one.tasks) > 0,
        lambda one: breakdowns.finish("stream", stream_rows(one.tasks)),
    ),
    "annotation": BreakdownSpec(_has_annotations, _annotations),
    "idle": BreakdownSpec(
        _is_of_device, lambda one: breakdowns.finish("idle", one.idle_time.rows())
    ),
    "step": BreakdownSpec(
        lambda one: bool(one.steps), lambda one: breakdowns.finish("step", _steps(one))
    ),
    "launch": BreakdownSpec(has_launches, _launches),
    "queue": BreakdownSpec(has_launches, _queues),
    "sequence": BreakdownSpec(_has_sequences, _sequences),
}


# Between an operation and the operations of its backward pass.
BACKWARD_PASS = Frame("(backward)", "pass")
_NO_NAME = "(unnamed)"
_STEP_NUMBER = re.compile(r"[\s#*_:=-]*\d+(?!\w).*$", re.DOTALL)
_PYTHON = re.compile(r"(?P<file>[^\n]+?)\((?P<line>\d+)\)(?:: (?P<name>.+))?$")


def measures(recording: Recording) -> tuple[str, ...]:
    """Return the available weights of stacks."""
    has_framework = recording.framework is not None
    has_host = has_framework or len(recording.host_calls) or len(_marks(recording)[0])
    known = {
        "device": recording.clock == "device",
        "host": has_host,
        "memory": has_framework and any(map(recording.packed_calls.count_measured, SIZES)),
    }
    return tuple(name for name, is_known in known.items() if is_known)


def stacks(recording: Recording, measure: str, by: Place | None) -> Stacks:
    """Return the stacks weighted with one of `measures`.

    `by` selects the frames above operations: modules or lines; None: what was recorded. Host time
    ignores it: its stacks contain all recorded ranges.

    Raises:
        UsageError: The selected frames were not recorded.
    """
    if measure == "host":
        return host_stacks(recording)
    path = str(recording.source.path)
    if measure == "memory":
        return stacks_of_calls(recording.calls, measure, place_of(recording.calls, by, path))
    if not recording.has_operations:
        if by is not None:
            place_of(recording.calls, by, path)
        # Stacks of kernels by operator, for recordings without framework operations.
        work, gathering = recording.work, StackSums()
        _ = work.operator_numbers, work.kernel_numbers
        texts = work.labels.texts
        frames = _operator_frames(texts)
        for window in work.windows():
            operator, kernel = window.operator.astype(np.int64), window.kernel
            _add_kernels(gathering, operator, kernel, window.duration_ns, texts, frames)
        return gathering.stacks("device")
    return _device_stacks(recording, place_of(recording.calls, by, path))


class _Operations:
    """The operations of a framework as frames above kernels."""

    def __init__(self, framework: Framework, place: Place | None) -> None:
        self._framework, self._place = framework, place
        ranges = np.arange(len(framework), dtype=np.int64)
        operation = framework.is_operation(ranges)
        inside = operation & (framework.parent != NONE)
        inside[inside] = operation[framework.parent[inside]]
        parent = np.where(inside, framework.parent, NONE)
        self._names, self._codes = framework.names(ranges)
        self._path, self._up, self._last = intervals.paths(parent, self._codes)

    def above(
        self, calls: Ints, named: Ints, backward: Bools, innermost: Ints
    ) -> tuple[Ints, Callable[[int], tuple[Frame, ...]]]:
        """Return a key for the frames above each device task, and a function from key to frames.

        The module or line of `calls` comes first, followed by the operation `named` (NONE if it
        contains `innermost`, the operation that launched the task). `backward` marks tasks of its
        backward pass.
        """
        places, place = self._places(calls)
        codes, paths = np.append(self._codes, NONE), np.append(self._path, NONE)
        name_sizes, path_sizes = len(self._names) + 1, len(self._up) + 1
        key = place * name_sizes + codes[named] + 1
        key = (key * 2 + backward) * path_sizes + paths[innermost] + 1

        def frames(number: int) -> tuple[Frame, ...]:
            number, path = divmod(number, path_sizes)
            number, again = divmod(number, 2)
            at, name = divmod(number, name_sizes)
            first = (self._frame(name - 1),) if name else ()
            return (*places[at], *first, *(BACKWARD_PASS,) * again, *self._frames_to(path - 1))

        return key, frames

    def _places(self, calls: Ints) -> tuple[list[tuple[Frame, ...]], Ints]:
        if self._place is None:
            return [()], np.zeros(len(calls), np.int64)
        of = self._framework.modules if self._place == "module" else self._framework.stacks
        texts, number = of(calls)
        return [frames_of_place(self._place, text) for text in texts], number.astype(np.int64)

    def _frame(self, code: int) -> Frame:
        return Frame(self._names[code] or _NO_NAME, "operation")

    def _frames_to(self, path: int) -> tuple[Frame, ...]:
        result = []
        while path != NONE:
            result.append(self._frame(int(self._last[path])))
            path = int(self._up[path])
        return tuple(result[::-1])


def _device_stacks(recording: Recording, place: Place | None) -> Stacks:
    """Return device time by launching operations, down to the kernel.

    Backward tasks are below the forward operation of their autograd node, as in other breakdowns,
    and there below the operations of the backward pass.
    """
    work, framework, captured = recording.work, recording.framework, recording.work.captured
    gathering = StackSums()
    kernel, operator = work.kernel.to_array(), work.operator.to_array()
    duration = work.duration_ns.to_array()
    texts = work.labels.texts
    rest = np.ones(len(work), bool)
    if captured is not None:
        replayed = captured.call != NONE
        rest &= ~replayed
        calls = captured.call[replayed]
        key, frames = _Operations(captured.framework, place).above(
            calls, calls, captured.passes[replayed] == BACKWARD, np.full(len(calls), NONE)
        )
        _add_kernels(gathering, key, kernel[replayed], duration[replayed], texts, frames)
    if framework is None:
        key, frames = operator.astype(np.int64), _operator_frames(texts)
    else:
        call, passes = (column.to_array().astype(np.int64) for column in work.launches)
        connection = work.connection.to_array()
        # The outermost range may be the one that launched the task.
        apart = np.where(framework.outermost(connection) == call, NONE, call)
        key, frames = _Operations(framework, place).above(
            call, apart, (passes == BACKWARD) & (apart != NONE), framework.innermost(connection)
        )
    _add_kernels(gathering, key[rest], kernel[rest], duration[rest], texts, frames)
    return gathering.stacks("device")


def _operator_frames(texts: list[str]) -> Callable[[int], tuple[Frame, ...]]:
    """Return a function from the number of an operator to its frame."""
    return lambda number: (Frame(texts[number], "operation"),)


def _add_kernels(
    gathering: StackSums,
    key: Ints,
    kernel: NDArray[np.integer],
    duration_ns: NDArray[np.integer],
    texts: list[str],
    frames: Callable[[int], tuple[Frame, ...]],
) -> None:
    """Add device tasks below the frames that their keys identify."""
    outer, which = np.unique(key, return_inverse=True)
    pairs, at = np.unique(which * len(texts) + kernel, return_inverse=True)
    sums = np.bincount(at, duration_ns, minlength=len(pairs)).astype(np.int64).tolist()
    counts = np.bincount(at, minlength=len(pairs)).tolist()
    above = [frames(number) for number in outer.tolist()]
    for pair, weight, count in zip(pairs.tolist(), sums, counts, strict=True):
        before, name = above[pair // len(texts)], texts[pair % len(texts)]
        if before and before[-1].name == name:
            before = before[:-1]  # collectives, and kernels with the name of their operator
        gathering.add((*before, Frame(name, "kernel")), weight, count)


def host_stacks(recording: Recording) -> Stacks:
    """Return the self time of recorded ranges and calls of each host thread."""
    parts = [_ranges(recording), _host_calls(recording)]
    thread, start, end, name, kind = (np.concatenate(one) for one in zip(*parts, strict=True))
    rank = np.repeat([0, 1], [len(part[0]) for part in parts])
    order = intervals.call_order(thread, start, end, rank)
    thread, start, end, name, kind = (one[order] for one in (thread, start, end, name, kind))
    parent = intervals.parents(thread, start, end)
    inside = parent != NONE
    # Due to rounding, a call may end slightly after the one around it.
    within = np.minimum(end, end[parent])[inside] - start[inside]
    taken = np.bincount(parent[inside], within, minlength=len(start)).astype(np.int64)
    own = np.maximum(end - start - taken, 0)
    codes, label = np.unique(name * 2 + (kind == _IN_PYTHON), return_inverse=True)
    frames = [
        _host_frame(recording, recording.strings.get(code // 2), python=bool(code % 2))
        for code in codes.tolist()
    ]
    # Steps that differ only in their number are one frame.
    distinct = list(dict.fromkeys(frames))
    of = {frame: number for number, frame in enumerate(distinct)}
    label = np.array([of[frame] for frame in frames], np.int64)[label]
    threads, number = np.unique(thread, return_inverse=True)
    names = [(Frame(f"thread {thread & 0xFFFFFFFF}", "thread"),) for thread in threads.tolist()]
    gathering = StackSums()
    for one in path_samples(
        *intervals.paths(parent, label),
        own,
        distinct.__getitem__,
        begin=names.__getitem__ if len(threads) > 1 else lambda _: (),
        beginning=number,
    ):
        gathering.add(one.frames, one.weight, one.count)
    return gathering.stacks("host")


_IN_PYTHON, _OTHER = 1, 0

# Thread, start, end, id of the name, _IN_PYTHON or _OTHER.
_Columns = tuple[Ints, Ints, Ints, Ints, Ints]


def _ranges(recording: Recording) -> _Columns:
    framework = recording.framework
    if framework is None:
        return _marks(recording)
    python = np.where(framework.is_python, _IN_PYTHON, _OTHER)
    return (
        framework.thread.to_array(),
        framework.start_ns.to_array(),
        framework.end_ns.to_array(),
        framework.name_ids(np.arange(len(framework))),
        python,
    )


def _marks(recording: Recording) -> _Columns:
    columns = {"thread": "globalTid", "start": "startNs", "end": "endNs", "name": "message"}
    return _usable(**recording.source.integers("MSTX_EVENTS", columns))


def _host_calls(recording: Recording) -> _Columns:
    calls = recording.host_calls
    columns = (calls.thread, calls.start_ns, calls.end_ns, calls.name)
    return _usable(*(column.to_array() for column in columns))


def _usable(thread: Ints, start: Ints, end: Ints, name: Ints) -> _Columns:
    with np.errstate(over="ignore"):
        good = possible(start, end - start)
    good &= (start > 0) & (end > start)
    thread, start, end, name = (
        column[good].astype(np.int64) for column in (thread, start, end, name)
    )
    return thread, start, end, name, np.full(len(thread), _OTHER, np.int64)


def _host_frame(recording: Recording, text: str | None, *, python: bool) -> Frame:
    """Return the frame of a host range by its recorded name."""
    if text is None:
        return Frame(_NO_NAME, "range")
    if recording.is_step_range(text):
        return Frame(_STEP_NUMBER.sub("", text), "range")
    if python and (match := _PYTHON.match(text)) is not None:
        file = match["file"].replace("\\", "/")
        name = match["name"] or posixpath.basename(file)
        return Frame(name, "function", file, int(match["line"]))
    return Frame(ADDRESS.sub("", text), "range")
