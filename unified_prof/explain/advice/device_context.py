"""Inputs shared by the advice rules for one device: analyzed time, device tasks, findings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import MISSING, Frame, Ints, Lookup
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.packed import BLOCK, narrow
from unified_prof.base.columns import API_PYTHON
from unified_prof.base.text import parsed_fact
from unified_prof.explain import kernel_classes
from unified_prof.explain.advice.idle_segments import (
    COVERED_SHARE,
    EVIDENCE_ROWS,
    MIN_SHARE,
    AnalyzedTime,
    Flags,
    describe_run,
    evidence_row,
)
from unified_prof.explain.schedule.selection import Selection
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL, UNKNOWN
from unified_prof.recording.idle import LATE_NS, LAUNCHED
from unified_prof.recording.model import Evidence, Finding, Sureness
from unified_prof.recording.python_frames import ADDRESS, user_frame
from unified_prof.recording.source import possible, recorded_facts
from unified_prof.recording.task_order import ComputedColumn

LAUNCH_GAP_NS = 10_000  # Longer gaps between kernels are not launch gaps of the device.
WINDOW = 2 * BLOCK  # Labels of tasks looked up at a time.

PARTS = 1_000_000  # Fractions are read from the database as integers in this unit.
# The operation of a finding is named if at least this share of so many samples is of it. Longer
# names are those of kernels.
_SAMPLES, _MOST, _MAX_NAME = 100, 0.6, 60
# A function that is so many times longer than a gap does not explain it, as a training loop.
MAX_COVER_LENGTHS = 20
# Shorter gaps are between launches: the function around them does not explain them.
MIN_NAMED_GAP_NS = 500_000
_REDUCER = "torch.distributed.ddp.reducer::"  # Prefix of the functions of DDP in C++.

FRAME = re.compile(r"(?P<file>[^\n]+?)\((?P<line>\d+)\): (?P<name>.+)$")


def code_place(text: str) -> str:
    """Return `step at train.py:12` for `train.py(12): step`; other names as they are."""
    frame = FRAME.match(text)
    return text if frame is None else f"{frame['name']} at {frame['file']}:{frame['line']}"


def is_optimizer_step(name: str) -> bool:
    """Return True for the range that torch records around a step of an optimizer."""
    return name.startswith("Optimizer.step")


Place = tuple[str, str | None]  # An operation and its source line.


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


class HostCode(Struct, frozen=True, eq=False):
    """Python functions and annotations of the host: when, on which thread, index of the name."""

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    number: Ints
    texts: list[str]

    def covering(
        self, begin: int, end: int, thread: int | None, *, ended: bool = False
    ) -> list[str]:
        """Return the names of those that cover most of an interval, innermost first.

        If `ended`, they also end in it.
        """
        length = self.end_ns - self.start_ns
        overlap = np.minimum(self.end_ns, end) - np.maximum(self.start_ns, begin)
        covers = overlap >= COVERED_SHARE * (end - begin)
        covers &= length <= MAX_COVER_LENGTHS * (end - begin)
        if thread is not None:
            covers &= self.thread == thread
        if ended:
            covers &= self.end_ns <= end
        rows = np.flatnonzero(covers)
        rows = rows[np.argsort(length[rows], kind="stable")]
        return [self.texts[number] for number in self.number[rows].tolist()]

    def place(self, begin: int, end: int, thread: int | None = None, *, ended: bool = False) -> str:
        """Return the innermost function or else annotation of the program, as for `covering`."""
        code = self.covering(begin, end, thread, ended=ended)
        others = [one for one in code if not one.startswith("<") and not FRAME.match(one)]
        return code_place(next(filter(user_frame, code), others[0] if others else ""))


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


class DeviceContext(AnalyzedTime):
    """Inputs of the advice rules for one device (device=None: host-only recording)."""

    @cached_property
    def explained(self) -> Flags:
        """Mask of the tasks that the findings so far remove; rules add theirs."""
        return np.zeros(len(self.tasks), bool)

    @cached_property
    def collections(self) -> IntervalSet:
        """Garbage collections of a millisecond or more (MindStudio advisor's threshold)."""
        table = self.recording.source.integers(
            "GC_RECORD", {"start": "startNs", "duration": "endNs - startNs"}
        )
        start, length = table["start"], table["duration"]
        long = possible(start, length) & (length >= LATE_NS)
        return intervals.merge(start[long], (start + length)[long])

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

    def removal(self, rows: Ints) -> Selection:
        """Return the change without some tasks, and without operations that launch no others."""
        return self.saving(rows) | self.launching(rows)

    def launching(self, rows: Ints) -> Selection:
        """Return the change without operations that launch some tasks and no others."""
        framework = self.recording.framework
        if framework is None or not len(rows):
            return Selection()
        calls = framework.outermost(self.recording.work.connection[self.tasks.row])
        rest = np.delete(calls, rows)
        return Selection(ranges=np.setdiff1d(calls[rows], np.append(rest, -1)))

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

    def kernel_share(self, selected: Flags) -> float:
        """Return the share of kernel time of some tasks."""
        return self.busy_ns(selected) / self.compute_ns if self.compute_ns else 0.0

    def launch_gaps(self, rows: Ints) -> tuple[int, Ints]:
        """Return the host-bound time before some tasks, and the gap of a full queue before each."""
        work, row = self.recording.work, self.tasks.row[rows]
        selected, gap_ns = np.zeros(len(work), bool), np.zeros(len(work), np.int64)
        selected[row] = True
        host_bound_ns = 0
        for idle, host_bound in self.host_bound_windows():
            before = selected[idle.task] & (idle.task >= 0)
            host_bound_ns += int(idle.length_ns[before & host_bound].sum())
            gap = before & ~host_bound & (idle.reason == LAUNCHED)
            gap &= idle.length_ns <= LAUNCH_GAP_NS
            np.add.at(gap_ns, idle.task[gap], idle.length_ns[gap])
        return host_bound_ns, gap_ns[row]

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

    def place(self, row: int) -> Place:
        """Return the operation that launched a task, and its source line."""
        return self.recording.work.place(int(self.tasks.row[row]))

    def evidence(
        self,
        rows: Ints,
        time_ns: Ints | None = None,
        place: Callable[[int], Place] | None = None,
    ) -> tuple[Evidence, ...]:
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
            operation, line = (place or self.place)(longest)
            launched_by = None if operation == name else operation
            figures = int(count[at]), int(total[at]), int(self.tasks.start_ns[longest])
            result.append(evidence_row(name, *figures, operation=launched_by, line=line))
        return tuple(result)

    def mostly(
        self, rows: Ints, time_ns: NDArray[Any], place: Callable[[int], Place] | None = None
    ) -> str:
        """Name the operation and the line that launched most of some tasks by time, if one did.

        Looks at the tasks at equally spaced parts of their total time.
        """
        until = np.cumsum(time_ns)
        if not len(until) or not until[-1] > 0:
            return ""
        at = np.searchsorted(until, until[-1] * (np.arange(_SAMPLES) + 0.5) / _SAMPLES)
        tasks, count = np.unique(rows[at], return_counts=True)
        operations, at_lines = Counter[str](), Counter[tuple[str, str]]()
        for task, samples in zip(tasks.tolist(), count.tolist(), strict=True):
            name, line = (place or self.place)(task)
            operations[name] += samples
            at_lines[name, line or ""] += samples
        ((name, samples),) = operations.most_common(1)
        if samples < _MOST * _SAMPLES or len(name) > _MAX_NAME:
            name = ""
        lines = Counter[str]()
        for (operation, line), samples in at_lines.items():
            lines[line] += samples * (name in ("", operation))
        ((line, samples),) = lines.most_common(1)
        where = f" at {line.rpartition('/')[2]}" if line and samples >= _MOST * _SAMPLES else ""
        return f"; mostly {name}{where}".replace("  ", " ") if name or where else ""

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
        """Python functions and annotations of the host, without profiler steps and operations.

        The functions of DDP in C++ are recorded as operations, but are none.
        """
        recording, framework = self.recording, self.recording.framework
        frames = recording.python_calls
        if framework is None:
            return HostCode(*frames)
        ranges = np.flatnonzero(framework.is_annotation)
        ranges = np.union1d(ranges, framework.matching(lambda text: text.startswith(_REDUCER)))
        names, name = framework.names(ranges)
        wanted = np.array([not recording.is_step_range(text) for text in names] or [False])[name]
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
        steps = framework.matching(self.recording.is_step_range)
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
        place: Callable[[int], Place] | None = None,
        **details: Any,
    ) -> Cause:
        """Return a finding about tasks that could take less time; by default, none at all.

        With `names_place`, its text ends with the operation and line that lose most of the time;
        `place` returns those of a task if they are not the ones that the reports show.
        """
        time_ns = self.tasks.length_ns[rows] if lost_ns is None else lost_ns
        if names_place:
            text += self.mostly(rows, time_ns, place)
        if "evidence" not in details:
            details["evidence"] = self.evidence(rows, time_ns.astype(np.int64), place)
        return self.finding(
            float(time_ns.sum()), text, change=self.saving(rows, lost_ns), **details
        )


def matrix_kernels(context: DeviceContext) -> Flags:
    """Return a mask of matmul, convolution and attention kernels."""
    result: Flags = context.in_class(*names.MATRIX) & (context.tasks.kind == KERNEL)
    return result


def on_ai_cpu(context: DeviceContext) -> Flags:
    """Return a mask of the kernels that ran on an AI CPU."""
    tasks, row = context.recording.tasks, context.task_row
    slow = np.array([names.ON_AI_CPU(text) for text in [*tasks.type_texts, ""]])
    result: Flags = (context.tasks.kind == KERNEL) & (row >= 0)
    result &= slow[np.append(tasks.type, -1)[row]]
    return result


def highest_ratio(context: DeviceContext, counters: re.Pattern[str]) -> NDArray[np.float64]:
    """Return the maximum of given pipe ratios for each task; NaN if not recorded."""
    table = context.recording.source.integers(
        context.recording.task_counters,
        {"id": "globalTaskId", "name": "name", "value": f"CAST(value * {PARTS} AS INTEGER)"},
    )
    ids = np.unique(table["name"])
    texts = context.recording.strings.texts(ids.tolist())
    ratios = ids[[bool(counters.match(text or "")) for text in texts]]
    selected = np.isin(table["name"], ratios) & (table["value"] != MISSING)
    if not selected.any():
        return np.full(len(context.tasks), np.nan)
    keys, number = np.unique(table["id"][selected], return_inverse=True)
    highest = np.zeros(len(keys), np.int64)
    np.maximum.at(highest, number, table["value"][selected])
    row = context.table_row(keys)
    return np.where(row >= 0, highest[row] / PARTS, np.nan)


AMD_WAVE = 64  # Threads of a warp of AMD's data center devices.
_GRID = re.compile(r"\d{1,10},\d{1,10},\d{1,10}")  # Sizes of a grid are 32-bit numbers.


def processors(context: DeviceContext) -> str:
    """Return the vendor's term for multiprocessors."""
    is_amd = context.device_property("warpSize") == AMD_WAVE
    return "compute units" if is_amd else "multiprocessors"


def blocks_per_processor(context: DeviceContext) -> NDArray[np.float64]:
    """Return the blocks per multiprocessor of each task, as recorded or from its grid; else < 0.

    On AMD only grids are recorded, those of one call in threads.
    """
    share_of_units = f"CAST(blocksPerSm * {PARTS} AS INTEGER)"
    blocks = context.task_column("UPROF_GPU_TASKS", share_of_units) / PARTS
    units = context.device_property("numSms")
    rows = np.flatnonzero((blocks < 0) & (context.tasks.kind == KERNEL))
    if units is None or not len(rows):
        return blocks
    calls, tasks = context.recording.host_calls, context.tasks
    call = calls.launching(context.recording.work.connection[tasks.row[rows]])
    in_threads = calls.matching(context.recording.strings, names.LAUNCHES_THREADS)
    in_threads = np.append(in_threads, False)[call]

    def sizes(column: str) -> NDArray[np.float64]:
        ids, number = np.unique(
            context.task_column("UPROF_GPU_TASKS", column)[rows], return_inverse=True
        )
        texts = [text or "" for text in context.recording.strings.texts(ids.tolist())]
        found = [prod(map(int, text.split(","))) if _GRID.fullmatch(text) else -1 for text in texts]
        return np.array(found, np.float64)[number]

    per_block = np.maximum(sizes("blockDim"), 1) if in_threads.any() else 1.0
    blocks[rows] = sizes("gridDim") / np.where(in_threads, per_block, 1.0) / units
    return blocks
