"""Breakdowns by operation, kernel, stream, step, launch, queue and sequence, among others.

Launches are classified as in HolisticTraceAnalysis: kernels shorter than their launch, slow
launches, and late kernels, which waited behind others. A task is queued from the start of its
launch to its own start; the host blocks if about a thousand launches of a stream are queued. A
sequence has the tasks that a call of an outermost operation launched, in order of start, if there
are at least three; backward is a separate operation. On Ascend, whose kernel names are numbered,
sequences consist of operator types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np

from unified_prof.arrays.grouping import Ints, Runs, by_key
from unified_prof.arrays.packed import codes
from unified_prof.base.text import NS_PER_US
from unified_prof.recording import annotations as annotated
from unified_prof.recording import breakdowns
from unified_prof.recording.breakdowns import finish
from unified_prof.recording.calls import sort_rows
from unified_prof.recording.device import step_rows, stream_rows, with_vendor
from unified_prof.recording.framework import NONE
from unified_prof.recording.model import THEN, Breakdown, BreakdownSpec, By, Row, Series
from unified_prof.recording.recording import Recording
from unified_prof.recording.source import device_name
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
        recording.device_numbers,
        recording.tasks,
        recording.comms,
        recording.task_steps,
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


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
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
