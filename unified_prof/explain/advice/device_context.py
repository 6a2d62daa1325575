"""Inputs shared by the advice rules for one device: analyzed steps, device tasks, idle time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import MISSING, Frame, Ints, Lookup
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.packed import BLOCK, narrow
from unified_prof.base.columns import API_PYTHON
from unified_prof.base.text import parsed_fact
from unified_prof.explain import kernel_classes
from unified_prof.explain.advice.idle_segments import (
    EVIDENCE_ROWS,
    MAX_STEP_MEDIANS,
    MIN_SHARE,
    MIN_STEPS_WITH_WARM_UP,
    NO_IDLE,
    PAUSE_SHARE,
    Flags,
    IdleSegments,
    describe_run,
    evidence_row,
    host_bound_masks,
)
from unified_prof.explain.schedule.selection import Selection
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL, UNKNOWN
from unified_prof.recording.device import TimeSlice
from unified_prof.recording.idle import HOST, LATE_NS, NOT_KNOWN, REASONS, SYNCHRONISING
from unified_prof.recording.model import Evidence, Finding, Sureness
from unified_prof.recording.python_frames import ADDRESS
from unified_prof.recording.recording import Recording
from unified_prof.recording.source import possible, recorded_facts
from unified_prof.recording.task_order import ComputedColumn

WINDOW = 2 * BLOCK  # Labels of tasks looked up at a time.

PARTS = 1_000_000  # Fractions are read from the database as integers in this unit.
# The operation of a finding is named if at least this share of so many samples is of it. Longer
# names are those of kernels.
_SAMPLES, _MOST, _MAX_NAME = 100, 0.6, 60
# A function or call is named with a gap if it covers at least this share of it...
COVERED_SHARE = 0.5
# ...unless it is so many times longer that it does not explain the gap, as a training loop.
MAX_COVER_LENGTHS = 20
# Shorter gaps are between launches: the function around them does not explain them.
MIN_NAMED_GAP_NS = 500_000

FRAME = re.compile(r"(?P<file>[^\n]+?)\((?P<line>\d+)\): (?P<name>.+)$")
_STEP = re.compile(r"ProfilerStep\b")
# Functions in which a thread waits for others: `queue.py(171): get`, `<built-in method poll ...>`.
_WAITS = re.compile(
    r"\b(?:queues?|threading|selectors|socket|connection)\.py\(\d+\): "
    r"(?:get|wait|select|poll|accept|recv\w*)$"
    r"|^<built-in (?:method|function) (?:acquire|select|poll|sleep|recv\w*)\b"
)


def is_optimizer_step(name: str) -> bool:
    """Return True for the range that torch records around a step of an optimizer."""
    return name.startswith("Optimizer.step")


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTasks(Frame):
    """Device tasks that started in the analyzed steps, by start time."""

    # Row of each task in `Recording.work`.
    row: NDArray[np.int32]
    start_ns: Ints
    # Duration and stream of each task, in the narrowest type.
    packed_length_ns: NDArray[np.integer]
    kind: NDArray[np.int8]
    packed_stream: NDArray[np.integer]

    @property
    def length_ns(self) -> Ints:
        """Duration of each task."""
        return self.packed_length_ns.astype(np.int64)

    @property
    def stream(self) -> Ints:
        """Stream of each task."""
        return self.packed_stream.astype(np.int64)

    @property
    def end_ns(self) -> Ints:
        """End of each task."""
        return self.start_ns + self.packed_length_ns

    def spans(self, rows: Ints | Flags) -> IntervalSet:
        """Return the union of the intervals of some tasks."""
        return intervals.merge(self.start_ns[rows], self.end_ns[rows])


@dataclass(frozen=True, slots=True, eq=False)
class HostCode:
    """Python functions and annotations of the host: when, on which thread, index of the name."""

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    number: Ints
    texts: list[str]

    def covering(self, begin: int, end: int, thread: int | None) -> list[str]:
        """Return the names of those that cover most of an interval, innermost first."""
        length = self.end_ns - self.start_ns
        overlap = np.minimum(self.end_ns, end) - np.maximum(self.start_ns, begin)
        covers = overlap >= COVERED_SHARE * (end - begin)
        covers &= length <= MAX_COVER_LENGTHS * (end - begin)
        if thread is not None:
            covers &= self.thread == thread
        rows = np.flatnonzero(covers)
        rows = rows[np.argsort(length[rows], kind="stable")]
        return [self.texts[number] for number in self.number[rows].tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """A finding with the change whose gain is its cost.

    Attributes:
        finding: The finding. Its cost is an estimate, without the dependencies of the schedule.
        change: What takes no time once the cause is removed; None: the estimate is the cost.
        least: Minimum gain as a share of the analyzed time.
        outside_ns: Part of the estimate in steps that are not analyzed; None: the finding does not
            compare steps.
    """

    finding: Finding
    change: Selection | None
    least: float
    outside_ns: float | None = None


class DeviceContext:
    """Inputs of the advice rules for one device (device=None: host-only recording).

    Attributes:
        analyzed: Indices of the analyzed steps.
        device_id: Number of the device in the tables; None if the recording has only one.
        quick: True if only cheap rules run, because the recording is large.
        claimed: Idle time that the findings so far explain; later rules leave it out.
    """

    def __init__(self, recording: Recording, device: str | None, *, quick: bool = False) -> None:
        self.recording = recording
        self.quick = quick
        self.device = device
        self.device_id = None if device is None else recording.device_numbers[device]
        self.claimed = intervals.EMPTY
        self.analyzed = analyzed_steps(recording)

    @cached_property
    def explained(self) -> Flags:
        """Mask of the tasks that the findings so far remove; rules add theirs."""
        return np.zeros(len(self.tasks), bool)

    def claim(self, explained: IntervalSet) -> None:
        """Record that a finding explains the idle time within some intervals."""
        self.claimed = intervals.union(self.claimed, explained)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the analyzed steps; empty if no steps were recorded."""
        names = [self.recording.steps[at][0] for at in self.analyzed]
        return tuple(
            int(name) if name.isdecimal() else at
            for at, name in zip(self.analyzed, names, strict=True)
        )

    @cached_property
    def windows(self) -> IntervalSet:
        """Interval of each analyzed step, or the whole window. Intervals may touch."""
        recording = self.recording
        if self.analyzed:
            if self.device is not None:
                steps = recording.step_windows[self.device]
                begin, end = steps.start_ns[self.analyzed], steps.end_ns[self.analyzed]
            else:
                times = [recording.steps[at][1:] for at in self.analyzed]
                begin, end = np.array(times, np.int64).T
            return IntervalSet(begin, end)
        if self.device is not None:
            return intervals.subtract(recording.devices[self.device].window, self.pauses)
        framework = recording.framework
        if framework is None or not len(framework):
            return intervals.EMPTY
        return intervals.hull(
            intervals.merge(framework.start_ns.to_array(), framework.end_ns.to_array())
        )

    @cached_property
    def pauses(self) -> IntervalSet:
        """Very long steps, or without steps long gaps in which the device had nothing to do.

        Loading, compiling and pauses between phases look like a very slow host. Shorter gaps are
        pauses if the program waits in a queue or for a socket, as servers do for requests. Input
        waits and late kernels are not pauses.
        """
        if self.analyzed:
            long = set(range(1, len(self.recording.steps))) - set(self.analyzed)
            times = [self.recording.steps[at][1:] for at in sorted(long)]
            return intervals.merge(*np.array(times, np.int64).reshape(-1, 2).T)
        if self.device is None:
            return intervals.EMPTY
        window, waits = self.recording.devices[self.device].window, self._waits_for_work
        begins, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        share = 0.0 if len(waits) else PAUSE_SHARE
        for segments in self.recording.idle_time.long_segments(self.device, share):
            length = segments.end_ns - segments.start_ns
            waiting = intervals.covered(waits, segments.start_ns, segments.end_ns)
            pause = (waiting >= COVERED_SHARE * length) & (length >= LATE_NS)
            pause |= length > PAUSE_SHARE * window.total_ns
            pause &= np.isin(segments.reason, (HOST, SYNCHRONISING, NOT_KNOWN))
            begins.append(segments.start_ns[pause])
            ends.append(segments.end_ns[pause])
        gaps = intervals.merge(np.concatenate(begins), np.concatenate(ends))
        return intervals.intersect(window, gaps)

    @cached_property
    def _waits_for_work(self) -> IntervalSet:
        """Time in which a thread that launches tasks waits in functions of the standard library."""
        recording = self.recording
        if self.quick:
            return intervals.EMPTY
        frames, calls = recording.python_calls, recording.host_calls
        launching = calls.launching(recording.work.connection.to_array())
        threads = np.unique(calls.thread[launching[launching >= 0]])
        waits = np.array([bool(_WAITS.search(text)) for text in frames.texts] or [False])
        rows = np.flatnonzero(waits[frames.name] & np.isin(frames.thread, threads))
        return intervals.merge(frames.start_ns[rows], frames.end_ns[rows])

    @cached_property
    def window(self) -> IntervalSet:
        """Union of the analyzed intervals."""
        return intervals.merge(self.windows.start_ns, self.windows.end_ns)

    @cached_property
    def analyzed_ns(self) -> int:
        """Length of the analyzed time."""
        return self.window.total_ns

    @property
    def step_count(self) -> int:
        """Number of steps by which costs are divided."""
        return max(len(self.analyzed), 1)

    @cached_property
    def host_window(self) -> IntervalSet:
        """Union of the analyzed steps on the host, which may be ahead of the device."""
        times = [self.recording.steps[at][1:] for at in self.analyzed]
        return intervals.merge(*np.array(times, np.int64).T) if times else self.window

    @cached_property
    def collections(self) -> IntervalSet:
        """Garbage collections of a millisecond or more (MindStudio advisor's threshold)."""
        table = self.recording.source.integers(
            "GC_RECORD", {"start": "startNs", "duration": "endNs - startNs"}
        )
        start, length = table["start"], table["duration"]
        long = possible(start, length) & (length >= LATE_NS)
        return intervals.merge(start[long], (start + length)[long])

    def share(self, time_ns: float) -> float:
        """Return a time as a share of the analyzed time."""
        return time_ns / self.analyzed_ns if self.analyzed_ns else 0.0

    def clip(self, start_ns: Ints, end_ns: Ints) -> IntervalSet:
        """Return the union of intervals within the analyzed time."""
        return intervals.intersect(intervals.merge(start_ns, end_ns), self.window)

    def is_analyzed(self, at_ns: Ints) -> Flags:
        """Return a mask of the timestamps within the analyzed time."""
        return intervals.holding(self.window, at_ns) >= 0

    @cached_property
    def compute(self) -> IntervalSet:
        """Intervals in which kernels ran, within the analyzed time."""
        assert self.device is not None
        return intervals.intersect(self.recording.devices[self.device].compute, self.window)

    @cached_property
    def compute_ns(self) -> int:
        """Time in which kernels ran, within the analyzed time."""
        return self._time_in(self.window, lambda time_slice: time_slice.compute)

    @cached_property
    def idle_ns(self) -> int:
        """Idle time of the device within the analyzed time; without a device, all of it."""
        return self.idle_in(self.window)

    def idle_in(self, selected: IntervalSet) -> int:
        """Return the idle time of the device in a part of the analyzed time."""
        if self.device is None:
            return selected.total_ns
        return selected.total_ns - self._time_in(selected, lambda time_slice: time_slice.busy)

    def _time_in(self, selected: IntervalSet, part_of: Callable[[TimeSlice], IntervalSet]) -> int:
        """Return the length of a part of the device's time in some intervals, slice by slice."""
        assert self.device is not None
        return sum(
            intervals.intersect(
                part_of(one), intervals.part(selected, one.begin_ns, one.until_ns)
            ).total_ns
            for one in self.recording.devices[self.device].time_slices()
        )

    def idle_windows(self) -> Iterator[IdleSegments]:
        """Yield the idle time by reason in windows, at least one.

        All segments of one gap are in the same window.
        """
        assert self.device is not None
        pending = NO_IDLE
        for segments in self.recording.idle_time.parts(self.device):
            start, end, row, _ = intervals.overlaps(
                IntervalSet(segments.start_ns, segments.end_ns), self.window
            )
            task, sync = segments.next_task[row], segments.sync[row]
            parts = [pending, IdleSegments(start, end, segments.reason[row], task, sync)]
            idle = IdleSegments.concatenate(parts)
            cut = len(idle.task)
            if cut and idle.task[-1] >= 0:
                others = np.flatnonzero(idle.task != idle.task[-1])
                cut = int(others[-1]) + 1 if len(others) else 0
            yield idle.take(slice(0, cut))
            pending = idle.take(slice(cut, None))
        yield pending

    @cached_property
    def sync_idle(self) -> IdleSegments:
        """Idle time caused by synchronizations."""
        return self.idle_where(lambda idle: idle.reason == SYNCHRONISING)

    def host_bound_windows(self) -> Iterator[tuple[IdleSegments, Flags]]:
        """Yield `idle_windows`, each with a mask of its host-bound time.

        That is the time until the launch of the next task, plus the latency of a launch to an idle
        device: a host that is one launch ahead hides both.
        """
        yield from zip(self.idle_windows(), self._host_bound, strict=True)

    @cached_property
    def _host_bound(self) -> list[Flags]:
        windows = self.recording.work.in_time(self.device_id)
        starts = (rows.start_ns[self.is_analyzed(rows.start_ns)] for rows in windows)
        return list(host_bound_masks(self.recording, self.idle_windows, starts))

    def idle_where(self, condition: Callable[[IdleSegments], Flags]) -> IdleSegments:
        """Return the idle segments for which a condition on windows holds."""
        parts = [idle.take(condition(idle)) for idle in self.idle_windows()]
        return IdleSegments.concatenate(parts)

    @cached_property
    def idle(self) -> IdleSegments:
        """All idle segments at once; large for long recordings, unlike `idle_windows`."""
        return self.idle_where(lambda idle: np.ones(len(idle.reason), bool))

    def max_idle_ns(self, *reasons: int) -> int:
        """Return an upper bound of the idle time for some reasons, cheaper than `idle`."""
        return int(self._idle_by_reason[list(reasons)].sum())

    @cached_property
    def _idle_by_reason(self) -> Ints:
        """Idle time by reason, analyzed or not."""
        assert self.device is not None
        sums = np.zeros(len(REASONS), np.int64)
        for segments in self.recording.idle_time.parts(self.device):
            np.add.at(sums, segments.reason, segments.end_ns - segments.start_ns)
        return sums

    @cached_property
    def tasks(self) -> DeviceTasks:
        """Device tasks within the analyzed steps."""
        columns: dict[str, list[NDArray[Any]]] = {
            "row": [np.zeros(0, np.int32)],
            "start_ns": [np.zeros(0, np.int64)],
            "packed_length_ns": [np.zeros(0, np.int32)],
            "kind": [np.zeros(0, np.int8)],
            "packed_stream": [np.zeros(0, np.int32)],
        }
        for window in self.recording.work.windows():
            selected = self.is_analyzed(window.start_ns)
            if self.device_id is not None:
                selected &= window.device == self.device_id
            rows = np.flatnonzero(selected)
            columns["row"].append((rows + window.first).astype(np.int32))
            columns["start_ns"].append(window.start_ns[rows])
            columns["packed_length_ns"].append(narrow(window.duration_ns[rows]))
            columns["kind"].append(window.kind[rows].astype(np.int8))
            columns["packed_stream"].append(narrow(window.stream[rows]))
        result = {name: np.concatenate(columns.pop(name)) for name in list(columns)}
        start = result["start_ns"]
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable").astype(np.int32)
            result = {name: column[order] for name, column in result.items()}
        return DeviceTasks(**result)

    def saving(self, rows: Ints, saved_ns: NDArray[Any] | None = None) -> Selection:
        """Return the change by which some tasks take less time; by default, no time at all."""
        share = np.zeros(len(self.recording.work), np.float64)
        length = np.maximum(self.tasks.length_ns[rows], 1)
        share[self.tasks.row[rows]] = 1 if saved_ns is None else np.maximum(saved_ns, 0) / length
        return Selection(work=share)

    @cached_property
    def task_row(self) -> NDArray[np.int32]:
        """Row of each task in `Recording.tasks`, -1 of collectives."""
        return self.recording.work.task[self.tasks.row]

    def task_column(self, table: str, value: str) -> Ints:
        """Return a column of a table with a globalTaskId for each task, MISSING if it has none."""
        found = self.recording.source.integers(table, {"id": "globalTaskId", "value": value})
        return np.append(found["value"], MISSING)[self.table_row(found["id"])]

    def device_property(self, name: str) -> int | None:
        """Return a positive integer that the recording states about the device, or None."""
        if "UPROF_GPU_DEVICES" not in self.recording.source.tables:
            return None
        value = f"CASE name WHEN '{name}' THEN CAST(value AS INTEGER) ELSE 0 END"
        table = self.recording.source.integers(
            "UPROF_GPU_DEVICES", {"device": "deviceId", "value": value}
        )
        known = table["value"] > 0
        if self.device_id is not None:
            known &= table["device"] == self.device_id
        return next(iter(table["value"][known].tolist()), None)

    def ranges(self, wanted: Callable[[str], bool], *, ahead: bool = False) -> Ints:
        """Return the framework's ranges with given names that begin in the analyzed steps.

        If `ahead`, the steps are those of the host, which may be ahead of the device.
        """
        framework = self.recording.framework
        assert framework is not None
        found = framework.matching(wanted)
        window = self.host_window if ahead else self.window
        return found[intervals.holding(window, framework.start_ns[found]) >= 0]

    def busy_ns(self, rows: Ints | Flags) -> int:
        """Return the time in which some tasks ran."""
        return self.clip(self.tasks.start_ns[rows], self.tasks.end_ns[rows]).total_ns

    def table_row(self, ids: Ints) -> NDArray[np.int32]:
        """Return the row of each task in a table with given globalTaskIds, -1 if it has none."""
        identity = np.append(self.recording.tasks.identity, MISSING)[self.task_row]
        return Lookup(ids).rows(identity)

    @cached_property
    def kernel(self) -> NDArray[np.int32]:
        """Kernel name of each task, as index into `Recording.work.labels`."""
        return self._label_of_tasks(self.recording.work.kernel)

    @cached_property
    def operator(self) -> NDArray[np.int32]:
        """Operator type of each task, as index into `Recording.work.labels`."""
        return self._label_of_tasks(self.recording.work.operator)

    def _label_of_tasks(self, column: ComputedColumn) -> NDArray[np.int32]:
        row = self.tasks.row
        result = np.empty(len(row), np.int32)
        for low in range(0, len(row), WINDOW):
            result[low : low + WINDOW] = column[row[low : low + WINDOW]]
        return result

    def matches(self, column: NDArray[np.integer], wanted: Callable[[str], bool]) -> Flags:
        """Return a mask of the tasks whose name in `kernel` or `operator` is wanted."""
        texts = self.recording.work.labels.texts
        matching = np.zeros(len(texts), bool)
        used = np.unique(column)
        matching[used] = [wanted(texts[number]) for number in used.tolist()]
        result: Flags = matching[column]
        return result

    def has_name(self, wanted: Callable[[str], bool]) -> Flags:
        """Return a mask of the tasks whose kernel or operator has a wanted name."""
        return self.matches(self.kernel, wanted) | self.matches(self.operator, wanted)

    @cached_property
    def task_class(self) -> NDArray[np.int8]:
        """Class of each task by its names, as index into `kernel_classes.CLASSES`."""
        nothing = np.zeros(len(self.tasks), np.int64)
        return kernel_classes.classes_of(
            self.recording.work.labels,
            *(self.tasks.kind, self.kernel, self.operator, nothing + UNKNOWN, nothing),
        ).astype(np.int8)

    def in_class(self, *classes: str) -> Flags:
        """Return a mask of the tasks of some classes of `kernel_classes`."""
        numbers = [kernel_classes.CLASSES.index(name) for name in classes]
        return np.isin(self.task_class, numbers)

    @cached_property
    def in_optimizer(self) -> Flags:
        """Mask of the tasks that an optimizer step launched."""
        return kernel_classes.in_optimizer(self.recording, self.tasks.row)

    def launched_in(self, wanted: Callable[[str], bool]) -> Flags:
        """Return a mask of the tasks that were launched within ranges of given names."""
        framework = self.recording.framework
        if framework is None:
            return np.zeros(len(self.tasks), bool)
        ranges = np.zeros(len(framework), bool)
        ranges[framework.matching(wanted)] = True
        found = framework.innermost(self.recording.work.connection.to_array(), ranges)
        result: Flags = found[self.tasks.row] >= 0
        return result

    @cached_property
    def is_compiled(self) -> bool:
        """True if the program uses torch.compile."""
        framework, texts = self.recording.framework, self.recording.work.labels.texts
        if framework is not None and len(framework.matching(names.COMPILED_REGION)):
            return True
        return any(names.COMPILED_KERNEL(texts[name]) for name in np.unique(self.kernel).tolist())

    def evidence(self, rows: Ints, time_ns: Ints | None = None) -> tuple[Evidence, ...]:
        """Return the longest of some kernels as evidence, with their launching operations."""
        if not len(rows):
            return ()
        time = self.tasks.length_ns[rows] if time_ns is None else time_ns
        kernels, number = np.unique(self.kernel[rows], return_inverse=True)
        total = np.bincount(number, weights=time)
        count = np.bincount(number)
        result = []
        for at in np.argsort(-total, kind="stable")[:EVIDENCE_ROWS].tolist():
            same = np.flatnonzero(number == at)
            longest = int(rows[same[int(time[same].argmax())]])
            name = self.recording.work.labels.texts[int(kernels[at])]
            operation, line = self.recording.work.place(int(self.tasks.row[longest]))
            launched_by = None if operation == name else operation
            figures = int(count[at]), int(total[at]), int(self.tasks.start_ns[longest])
            result.append(evidence_row(name, *figures, operation=launched_by, line=line))
        return tuple(result)

    def _mostly(self, rows: Ints, time_ns: NDArray[Any]) -> str:
        """Name the operation and line that launched most of some tasks by time; empty if none did.

        Looks at the tasks at equally spaced parts of their total time.
        """
        until = np.cumsum(time_ns)
        if not len(until) or not until[-1] > 0:
            return ""
        at = np.searchsorted(until, until[-1] * (np.arange(_SAMPLES) + 0.5) / _SAMPLES)
        tasks, count = np.unique(self.tasks.row[rows[at]], return_counts=True)
        operations, lines = Counter[str](), Counter[tuple[str, str]]()
        for task, samples in zip(tasks.tolist(), count.tolist(), strict=True):
            name, line = self.recording.work.place(task)
            operations[name] += samples
            lines[name, line or ""] += samples
        ((name, samples),) = operations.most_common(1)
        if samples < _MOST * _SAMPLES or len(name) > _MAX_NAME:
            return ""
        (((_, line), samples),) = lines.most_common(1)
        where = f" at {line.rpartition('/')[2]}" if line and samples >= _MOST * _SAMPLES else ""
        return f"; mostly {name}{where}"

    @cached_property
    def facts(self) -> dict[str, str]:
        """Provenance of the recording."""
        return dict(recorded_facts(self.recording.source))

    @cached_property
    def profiler_overhead(self) -> tuple[str, ...]:
        """Profiler options of the recording that slow the host, such as `with_stack`."""
        metadata = parsed_fact(self.facts, "trace_metadata", dict)
        if not metadata and self.is_npu:
            source = self.recording.source
            metadata = {"profile_memory": "OP_MEMORY" in source.tables}
            if "PYTORCH_API" in source.tables:
                frames = f"SELECT 1 FROM PYTORCH_API WHERE type = {API_PYTHON} LIMIT 1"
                metadata["with_stack"] = bool(source.rows(frames))
        return tuple(name for name in ("with_stack", "profile_memory") if metadata.get(name))

    @property
    def is_npu(self) -> bool:
        """True if msprof or torch_npu recorded the device."""
        return self.device is not None and "UPROF_GPU_TASKS" not in self.recording.source.tables

    @property
    def paused(self) -> str:
        """State of the device, or else of the program, while the host does other work."""
        return "program waits" if self.device is None else "device is idle"

    @property
    def slowed_host(self) -> str:
        """A clause for findings about host time; empty if the profiler hardly slows the host."""
        options = ", ".join(self.profiler_overhead)
        return f"; the profiler itself slows the host ({options})" if options else ""

    @cached_property
    def host_code(self) -> HostCode:
        """Python functions and annotations of the host, without profiler steps and operations."""
        recording, framework = self.recording, self.recording.framework
        frames = recording.python_calls
        if framework is None:
            return HostCode(*frames)
        ranges = np.flatnonzero(framework.is_annotation)
        names, name = framework.names(ranges)
        wanted = np.array([not _STEP.match(text) for text in names] or [False])[name]
        ranges, name = ranges[wanted], name[wanted]
        return HostCode(
            np.concatenate((frames.start_ns, framework.start_ns[ranges])),
            np.concatenate((frames.end_ns, framework.end_ns[ranges])),
            np.concatenate((frames.thread, framework.thread[ranges])),
            np.concatenate((frames.name, name + len(frames.texts))),
            [*frames.texts, *(ADDRESS.sub("", text) for text in names)],
        )

    @cached_property
    def step_threads(self) -> list[int]:
        """Threads that run the steps."""
        framework = self.recording.framework
        if framework is None:
            return []
        steps = framework.matching(lambda text: _STEP.match(text) is not None)
        threads: list[int] = np.unique(framework.thread[steps]).tolist()
        return threads

    def finding(
        self,
        cost_ns: float,
        text: str,
        *,
        kind: str = "",
        advice: str,
        sure: Sureness,
        change: Selection | None = None,
        least: float = MIN_SHARE,
        outside_ns: float | None = None,
        figures: Mapping[str, Any] | None = None,
        evidence: Iterable[Evidence] = (),
        steps: Sequence[int] | None = None,
    ) -> Cause:
        """Return a finding of this device with the change that removes its cause.

        Its kind is by default the name of its rule.
        """
        finding = Finding(
            kind=kind,
            **describe_run(self.facts),
            steps=self.steps if steps is None else tuple(steps),
            cost_ms_per_step=cost_ns / self.step_count / 1e6,
            text=text,
            figures=dict(figures or {}),
            advice=advice,
            sure=sure,
            evidence=tuple(evidence),
        )
        return Cause(finding, change, least, outside_ns)

    def tasks_finding(
        self,
        text: str,
        rows: Ints,
        lost_ns: NDArray[Any] | None = None,
        *,
        names_place: bool = True,
        **details: Any,
    ) -> Cause:
        """Return a finding about tasks that could take less time; by default, none at all.

        With `names_place`, its text ends with the operation and line that lose most of the time.
        """
        time_ns = self.tasks.length_ns[rows] if lost_ns is None else lost_ns
        if names_place:
            text += self._mostly(rows, time_ns)
        if "evidence" not in details:
            details["evidence"] = self.evidence(rows, time_ns.astype(np.int64))
        return self.finding(
            float(time_ns.sum()), text, change=self.saving(rows, lost_ns), **details
        )


def analyzed_steps(recording: Recording) -> list[int]:
    """Return the steps to analyze: not the first of several, and no extremely long ones.

    A step may be long on the host because it waits for several batches, or for the device.
    """
    _, begin, end = zip(*recording.steps, strict=True) if recording.steps else ((), (), ())
    begin_ns, end_ns = np.array(begin, np.int64), np.array(end, np.int64)
    length = end_ns - begin_ns
    kept, several = length > 0, len(length) >= MIN_STEPS_WITH_WARM_UP
    if several and not (usual := _usual_steps(length)).all():
        host = recording.idle_time.host
        waits = intervals.union(host.input, host.blocked)
        on_device = np.array(recording.step_lengths_ns, np.int64)
        work = length - intervals.covered(waits, begin_ns, end_ns)
        kept &= usual | (_usual_steps(work) & _usual_steps(on_device))
    analyzed: list[int] = np.flatnonzero(kept).tolist()
    return analyzed[1:] if several and kept[0] else analyzed


def _usual_steps(length: Ints) -> Flags:
    """Return a mask of the steps of at most three medians."""
    return np.asarray(length <= MAX_STEP_MEDIANS * float(np.median(length[1:])))


def matrix_kernels(context: DeviceContext) -> Flags:
    """Return a mask of matmul, convolution and attention kernels."""
    result: Flags = context.in_class(*names.MATRIX) & (context.tasks.kind == KERNEL)
    return result
