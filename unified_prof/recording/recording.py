"""Columns of one msprof database, the input of breakdowns, advice rules and other analyses.

`Recording` reads each table once, on first access.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import cast

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Ints
from unified_prof.recording import collectives, counters, operators
from unified_prof.recording import steps as step_trace
from unified_prof.recording.annotations import STEP, Ranges, Regions
from unified_prof.recording.annotations import read as read_annotations
from unified_prof.recording.breakdowns import host_calls
from unified_prof.recording.calls import COMMUNICATION, COPY, KERNEL, UNKNOWN, Calls, PackedCalls
from unified_prof.recording.collectives import CollectiveNames, Collectives
from unified_prof.recording.device import DeviceWork, StepWindows, TaskSteps, step_windows
from unified_prof.recording.device_tasks import Work
from unified_prof.recording.framework import Framework
from unified_prof.recording.host_calls import HostCalls, TaskQueue, load_task_queue
from unified_prof.recording.idle_time import IdleTime
from unified_prof.recording.model import BreakdownSpec, By, Clock, Kind
from unified_prof.recording.names import LAUNCHES, LAUNCHES_GRAPH
from unified_prof.recording.python_frames import PythonCalls, python_calls
from unified_prof.recording.source import (
    NOTHING_KNOWN,
    Findings,
    Source,
    Strings,
    device_name,
    possible,
    recorded_anomalies,
    task_counters,
)
from unified_prof.recording.steps import (
    HostRanges,
    LaunchedWork,
    Steps,
    StepTrace,
    TaskTimes,
    is_numbered,
    numbered_steps,
    step_of,
)
from unified_prof.recording.task_order import Capture, LaunchedTasks, join_launches
from unified_prof.recording.tasks import Tasks

# Minimum share of the usual number of calls of a step, in a trace that is cut off.
COMPLETE_SHARE = 0.75


class Recording:
    """The tables of one msprof database, joined.

    Attributes:
        source: the file.
        findings: inconsistencies in the data read so far.
        strings: STRING_IDS and the ENUM tables.
        captured_in: the recording with the captures of the graphs replayed here, if given.
    """

    def __init__(self, source: Source, captured_in: Recording | None = None) -> None:
        self.source, self.captured_in = source, captured_in
        self.findings = Findings()
        self.strings = Strings(source)

    @property
    def calls(self) -> Calls:
        """The calls of `packed_calls` as plain columns."""
        return self.packed_calls.to_calls()

    @cached_property
    def packed_calls(self) -> PackedCalls:
        """Framework operations and other device tasks; without device tasks, host ranges."""
        if self.clock == "host":
            assert self.framework is not None
            return host_calls(self.framework)
        return self.work.calls

    @cached_property
    def work(self) -> Work:
        """Every kernel, copy and collective."""
        allocations = counters.allocations(self.source, self.strings)
        work = Work(self.tasks, self.comms, self.framework, self.collective_names, allocations)
        capture = None if self.captured_in is None else self.captured_in.capture
        if capture is not None:
            work.captured = capture.attribute(
                self.source, self.strings, self.host_calls, self.tasks, work.task, self.findings
            )
        return work

    @cached_property
    def capture(self) -> Capture | None:
        """The captured graphs; None if no operations were recorded."""
        if self.framework is None:
            return None
        return Capture(self.tasks, self.host_calls, self.framework, self.strings)

    @cached_property
    def tasks(self) -> Tasks:
        """All device tasks."""
        return Tasks(self.source, self.strings, self.findings)

    @cached_property
    def comms(self) -> Collectives:
        """All collectives, each from its first task to its last."""
        return collectives.load_collectives(self.source, self.tasks, self.findings)

    @cached_property
    def collective_names(self) -> CollectiveNames:
        """Names of collectives and their groups."""
        return CollectiveNames(
            self.source, self.comms, self.strings, collectives.load_groups(self.source)
        )

    @cached_property
    def host_calls(self) -> HostCalls:
        """Runtime and driver calls on the host (CANN_API)."""
        return HostCalls(self.source)

    @cached_property
    def python_calls(self) -> PythonCalls:
        """Calls of Python functions of at least 0.2 ms."""
        return python_calls(self.source, self.strings)

    @cached_property
    def framework(self) -> Framework | None:
        """Host ranges of the framework (PYTORCH_API); None if not recorded."""
        if "PYTORCH_API" not in self.source.tables:
            return None
        framework = Framework(self.source, self.strings, self.findings, self.host_calls)
        return framework if len(framework) else None

    @cached_property
    def has_shapes(self) -> bool:
        """True if shapes of operations or operators were recorded."""
        return operators.shapes_recorded(self.source)

    @property
    def has_operations(self) -> bool:
        """True if framework operations are known, from this recording or that of the capture."""
        return self.framework is not None or self.work.captured is not None

    @property
    def has_memory_blocks(self) -> bool:
        """True for a memory snapshot, which has the allocator's blocks with call chains."""
        return "UPROF_MEMORY_BLOCKS" in self.source.tables

    @property
    def task_counters(self) -> str:
        """Table of the AI core counters of tasks."""
        return task_counters(self.source)

    @cached_property
    def clock(self) -> Clock:
        """Source of the report's times."""
        if len(self.work):
            return "device"
        return "none" if self.framework is None else "host"

    @cached_property
    def steps(self) -> list[tuple[str, int, int]]:
        """Name, start and end of each complete step on the host, ns, in order of start."""
        steps = [*self._profiler_steps] or [step[:3] for step in self.numbered_steps]
        if self.has_remnant([(start, end) for _, start, end in steps]):
            steps.pop()
        if self.cut_ns == step_trace.FOREVER or not steps:
            return steps
        # If the file is not sorted, earlier steps may lack events, too.
        calls, times_ns = np.sort(self.host_calls.start_ns.to_array()), [step[1:] for step in steps]
        count = np.diff(np.searchsorted(calls, np.array(times_ns, np.int64)), axis=1)[:, 0]
        # The first step may have many more calls than the others, and a few others, too.
        later = np.sort(count[1:] if len(count) > 2 else count)
        complete = count >= COMPLETE_SHARE * later[-1 - len(later) // 4]
        complete &= np.array([end_ns for _, end_ns in times_ns]) <= self.cut_ns
        if not complete.all():
            first, dropped = steps[int(np.argmin(complete))][0], int((~complete).sum())
            self.findings.add("incomplete_step", f"from step {first} on", dropped)
        return [steps[at] for at in np.flatnonzero(complete).tolist()]

    @cached_property
    def _profiler_steps(self) -> list[tuple[str, int, int]]:
        """Steps that the profiler recorded."""
        columns = {"id": "id", "start": "startNs", "duration": "endNs - startNs"}
        result = self.source.integers("STEP_TIME", columns)
        valid = possible(result["start"], result["duration"])
        bad = int(len(valid) - valid.sum())
        self.findings.add("impossible_step_time", f"{bad} steps are left out", bad)
        if not valid.any():
            return [] if self.framework is None else self.framework.steps()
        order = np.flatnonzero(valid)[np.argsort(result["start"][valid], kind="stable")]
        return [
            (
                str(result["id"][row]) if result["id"][row] != MISSING else "?",
                int(result["start"][row]),
                int(result["start"][row] + result["duration"][row]),
            )
            for row in order
        ]

    @cached_property
    def numbered_steps(self) -> list[tuple[str, int, int, str]]:
        """Number, start, end and name of the steps that the program marks, such as `step 3`.

        Empty if the profiler recorded steps.
        """
        if self._profiler_steps or not any(map(is_numbered, self.strings.all())):
            return []
        if self.framework is not None:
            rows = self.framework.matching(is_numbered)
            names, name = self.framework.names(rows)
            thread, start, end = (
                column[rows]
                for column in (
                    self.framework.thread,
                    self.framework.start_ns,
                    self.framework.end_ns,
                )
            )
            ranges = HostRanges(thread, start, end, name.astype(np.int64))
        else:
            marks = Regions(self.source, self.strings, STEP.match)
            distinct, number = np.unique(marks.name, return_inverse=True)
            names = [text or "" for text in self.strings.texts(distinct.tolist())]
            ranges = HostRanges(marks.thread, marks.start_ns, marks.end_ns, number)
        is_step = np.array([is_numbered(text) and not STEP.match(text) for text in names], bool)
        return numbered_steps(ranges.take(is_step[ranges.name]), names, self._launched_work())

    def _launched_work(self) -> LaunchedWork:
        """Return kernels and collectives by their launch; without device tasks, operations."""
        if self.clock == "host" and self.framework is not None:
            calls = self.framework.calls
            start, end = self.framework.start_ns[calls], self.framework.end_ns[calls]
            return LaunchedWork(start, self.framework.thread[calls], end - start)
        rows = np.flatnonzero(np.isin(self.tasks.kind, (KERNEL, COMMUNICATION)))
        call = self.host_calls.launching(self.tasks.connection[rows])
        # Threads of task queues launch for the program.
        known = (call >= 0) & ("UPROF_GPU_TASKS" in self.source.tables)
        thread = np.full(len(rows), -1, np.int64)
        thread[known] = self.host_calls.thread[call[known]]
        return LaunchedWork(
            self.program_ns(call, self.tasks.start_ns[rows]), thread, self.tasks.duration_ns[rows]
        )

    def is_step_range(self, text: str) -> bool:
        """Return True if ranges of this name are steps, of a profiler or of the program."""
        return STEP.match(text) is not None or text in self._step_range_names

    @cached_property
    def _step_range_names(self) -> frozenset[str]:
        return frozenset(name for *_, name in self.numbered_steps)

    def has_remnant(self, steps: Sequence[tuple[int, int]]) -> bool:
        """Return True if the host does nothing in the last of several steps.

        `profiler.step()` begins a step after the last iteration, which ends with the recording.
        """
        lengths = [end - start for start, end in steps]
        if len(steps) < 2 or 10 * lengths[-1] > statistics.median(lengths[:-1]):
            return False  # Saves reading all calls.
        framework = () if self.framework is None else (self.framework.start_ns,)
        begun_ns = [one.to_array() for one in (self.host_calls.start_ns, *framework)]
        first, last = (
            sum(int(((one > start) & (one < end)).sum()) for one in begun_ns)
            for start, end in (steps[0], steps[-1])
        )
        return first > 0 and last == 0

    @cached_property
    def cut_ns(self) -> int:
        """Time after which a file that is cut off lacks events; `FOREVER` if it is not cut off.

        Traces list operations, calls and tasks each in order of start, and the end of a step with
        its start.
        """
        if all(anomaly.name != "cut_off" for anomaly in recorded_anomalies(self.source)):
            return step_trace.FOREVER
        starts = [self.host_calls.start_ns.to_array(), self.tasks.start_ns]
        if self.framework is not None:
            starts.append(self.framework.start_ns.to_array())
        return min((int(one.max()) for one in starts if len(one)), default=step_trace.FOREVER)

    @cached_property
    def sample(self) -> str:
        """How much of the operations a trace contains from which most were removed, or empty."""
        found = {one.name: one.detail for one in recorded_anomalies(self.source)}
        return found.get("sampled_trace") or ""

    @property
    def sample_note(self) -> str:
        """A sentence about a trace from which most operations were removed, or empty."""
        if not self.sample:
            return ""
        return f"sampled trace: {self.sample}, so idle time and sums are not those of the program"

    @cached_property
    def step_windows(self) -> dict[str, StepWindows]:
        """The time of the steps on each device; empty without steps."""
        if not self.steps:
            return {}
        return {
            name: step_windows(self.steps, self.tasks, self.comms, self.task_steps, only)
            for name, only in self.device_numbers.items()
        }

    def windows_of(self, steps: Steps, device: int | None) -> StepWindows:
        """Return the time of given host steps on a device; None is all devices as one."""
        return step_windows(steps, self.tasks, self.comms, self._task_steps(steps), device)

    @property
    def step_lengths_ns(self) -> list[int]:
        """Length of each step: on the slowest device, or on the host if there are no device tasks.

        A host that does not synchronize runs ahead and finishes a step long before its device.
        """
        if self.clock != "device":
            return [end_ns - start_ns for _, start_ns, end_ns in self.steps]
        lengths = [windows.end_ns - windows.start_ns for windows in self.step_windows.values()]
        return [int(one) for one in np.max(lengths, axis=0)] if lengths else []

    @cached_property
    def task_steps(self) -> TaskSteps:
        """The step that launched each device task; see `program_ns`."""
        return self._task_steps(self.steps)

    def _task_steps(self, steps: Steps) -> TaskSteps:
        def step(connection: Ints, start_ns: Ints) -> NDArray[np.int32]:
            row = self.host_calls.launching(connection)
            result = step_of(self.program_ns(row, start_ns), steps).astype(np.int32)
            result[(row < 0) & (start_ns < self.queued_ns)] = UNKNOWN
            return result

        return TaskSteps(step, self.tasks, self.comms, self.queued_ns)

    @cached_property
    def queued_ns(self) -> int:
        """End of the tasks that were enqueued before the recording began; 0 if none is known.

        A stream runs tasks in their order: those that run after the first recorded launch, and
        before its task, were launched earlier.
        """
        calls, end_ns, launched_ns = self.host_calls, 0, step_trace.FOREVER
        if not len(calls) or len(self.device_numbers) != 1:
            return 0
        for rows in self.tasks.in_time():
            row = calls.launching(rows.connection)
            known = np.flatnonzero(row >= 0)
            before = (row < 0) & np.isin(rows.kind, (KERNEL, COPY, COMMUNICATION))
            before &= rows.start_ns < rows.start_ns[known].min(initial=step_trace.FOREVER)
            end_ns = max(end_ns, int(rows.end_ns[before].max(initial=0)))
            if len(known):
                first = known[rows.start_ns[known].argmin()]
                launched_ns = int(calls.start_ns[row[[first]]][0])
                break
        launches = calls.matching(self.strings, lambda text: LAUNCHES(text) or LAUNCHES_GRAPH(text))
        if calls.start_ns[launches].min(initial=launched_ns) < launched_ns:
            return 0  # It may have launched the tasks before.
        return end_ns if end_ns > launched_ns else 0

    def program_ns(self, row: NDArray[np.integer], otherwise_ns: Ints) -> Ints:
        """Return when the program enqueued the launches in rows of `host_calls`.

        Without a task queue, the program launches itself. Rows below 0 are unknown launches.
        """
        result, known = np.array(otherwise_ns, np.int64), row >= 0
        if known.any():
            calls, launches = self.host_calls, row[known]
            begun = calls.start_ns[launches]
            result[known] = self.task_queue.enqueued_ns(calls.thread[launches], begun)
        return result

    @cached_property
    def task_queue(self) -> TaskQueue:
        """Entries of torch_npu's task queue."""
        return load_task_queue(self.source, self.strings)

    @cached_property
    def devices(self) -> dict[str, DeviceWork]:
        """The tasks of each device, by device name."""
        return {
            name: DeviceWork(self.tasks, self.comms, only)
            for name, only in self.device_numbers.items()
        }

    @cached_property
    def device_numbers(self) -> dict[str, int | None]:
        """Device name -> number; None if there is only one device."""
        numbers = np.unique(np.concatenate((self.tasks.devices, self.comms.device))).astype(
            np.int64
        )
        rows = self.source.rows("SELECT id, name FROM NPU_INFO")
        names = {number: name for number, name in rows if name not in NOTHING_KNOWN}
        result: dict[str, int | None] = {}
        for number in numbers.tolist():
            model = names.get(number)
            name = device_name(number) + (f" ({model})" if model else "")
            result[name] = None if len(numbers) == 1 else number
        return result

    def launched_ns(self) -> Ints:
        """Return the launch time of each task, or its start if the launch time is unknown."""
        calls, started = self.host_calls, self.tasks.start_ns
        if not len(calls):
            return started
        row = calls.launching(self.tasks.connection)
        return np.where(row >= 0, calls.start_ns[row], started)

    @cached_property
    def launches(self) -> LaunchedTasks:
        """Device tasks by launch call and stream."""
        return join_launches(self.tasks, self.host_calls)

    @cached_property
    def annotations(self) -> Ranges:
        """Annotated ranges on a GPU, without steps."""
        return read_annotations(self.source, self.strings, self.is_step_range)

    @cached_property
    def regions(self) -> Regions:
        """Annotated ranges on the host, without steps."""
        return Regions(self.source, self.strings, self.is_step_range)

    @cached_property
    def idle_time(self) -> IdleTime:
        """Idle time of each device by reason."""
        result = IdleTime(
            self.source, self.strings, self.tasks, self.work, self.framework, self.host_calls
        )
        for name, number in self.device_numbers.items():
            result.add(name, number, self.devices[name], self.step_windows.get(name))
        return result

    @cached_property
    def step_traces(self) -> tuple[StepTrace, ...]:
        """Figures of each step by torch_npu's definitions; Ascend only."""
        if not len(self.tasks) or not step_trace.is_of_ascend(self.source):
            return ()
        tasks = self.tasks
        ran = TaskTimes(
            tasks.device, tasks.connection, tasks.start_ns, tasks.end_ns, tasks.identity
        )
        ranges = step_trace.ranges(self.source, ran, self.host_calls)
        work = step_trace.read_work(self.source, ran)
        return tuple(step_trace.traces(self.source, work, ranges))


def breakdown_spec(kind: Kind) -> BreakdownSpec:
    """Return the specification of a breakdown; imports its module."""
    module = import_module(f"unified_prof.explain.{kind.module}")
    return cast(dict[By, BreakdownSpec], module.BREAKDOWNS)[kind.by]
