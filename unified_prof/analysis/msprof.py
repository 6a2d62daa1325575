"""An msprof database of any version, plain or with the PyTorch tables, made on any device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.calls import UNKNOWN, Calls, Ints
from unified_prof.analysis.model import (
    Breakdown,
    By,
    Clock,
    DeviceTime,
    Distribution,
    NotMeasured,
    PmuFigure,
    Row,
    Series,
    Step,
    Summary,
    Totals,
)
from unified_prof.analysis.read import collectives, counters, groups, provenance
from unified_prof.analysis.read.collectives import Collectives, device_name
from unified_prof.analysis.read.framework import Framework
from unified_prof.analysis.read.groups import Group
from unified_prof.analysis.read.host_calls import HostCalls
from unified_prof.analysis.read.source import (
    Findings,
    Source,
    oddities_of_file,
    recorded_anomalies,
)
from unified_prof.analysis.read.tasks import NOTHING_KNOWN, Strings, Tasks, possible
from unified_prof.analysis.views import annotated, breakdowns, step_trace, timeline, tracks
from unified_prof.analysis.views.communication import CollectiveNames
from unified_prof.analysis.views.device import (
    DeviceWork,
    OfSteps,
    StepWindows,
    step_rows,
    step_windows,
    stream_rows,
    with_vendor,
)
from unified_prof.analysis.views.idle import WhyIdle
from unified_prof.analysis.views.idle_time import IdleTime
from unified_prof.analysis.views.step_trace import Ran, StepTrace
from unified_prof.analysis.views.timeline import Timeline
from unified_prof.analysis.views.tracks import Track
from unified_prof.analysis.views.work import Work, host_calls, step_of
from unified_prof.errors import UsageError
from unified_prof.store.integers import MISSING


class MsprofAnalysis(Analysis):
    """One msprof database; what it holds decides what can be asked."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._findings = Findings()
        self._strings = Strings(source)

    @property
    def path(self) -> str:
        """The file."""
        return str(self._source.path)

    @property
    def family(self) -> str:
        """Family of its schema."""
        return self._source.family

    @cached_property
    def calls(self) -> Calls:
        """Framework operations and other device work; host ranges if there is no device work."""
        if self._clock == "host":
            assert self._framework is not None
            return host_calls(self._framework)
        return self.work.calls

    @cached_property
    def work(self) -> Work:
        """Every kernel, copy and collective."""
        allocations = counters.allocations(self._source, self._strings)
        return Work(self._tasks, self._comms, self._framework, self._collective_names, allocations)

    @cached_property
    def summary(self) -> Summary:
        """Headline figures."""
        totals = self._totals()
        return Summary(
            path=self.path,
            family=self.family,
            revision=self._source.revision or "unknown",
            clock=self._clock,
            facts=tuple(provenance.facts(self._source)),
            totals=totals,
            devices=tuple(self._device_time(name) for name in self._devices),
            anomalies=(
                *oddities_of_file(self._source),
                *recorded_anomalies(self._source),
                *self._findings.anomalies(),
            ),
            not_measured=tuple(self._not_measured(totals)),
            available=self._available,
        )

    def breakdown(self, by: By) -> Breakdown:
        """Divide the report by `by`."""
        if by not in self._available:
            raise UsageError(
                f"{self._source.path} has no breakdown by {by}: {_WHY_NOT[by]}",
                hint=f"it has: {', '.join(self._available) or 'none'}",
            )
        if by == "kernel":
            return breakdowns.finish(by, self.work.kernel_rows())
        if by == "stream":
            return breakdowns.finish(by, stream_rows(self._tasks))
        if by == "group":
            compute = {
                only: self._devices[name].compute for name, only in self._device_numbers.items()
            }
            return breakdowns.finish(by, self._collective_names.group_rows(compute))
        if by == "annotation":
            devices = {only: self._devices[name] for name, only in self._device_numbers.items()}
            return annotated.breakdown(
                self._annotations, devices, self._tasks, self._launched_ns, self._strings
            )
        if by == "idle":
            return breakdowns.finish(by, self._idle_time.rows())
        if by == "step":
            return breakdowns.finish(by, self._step_rows())
        return breakdowns.by_label(self.calls, by)

    def steps(self) -> tuple[Step, ...]:
        """Return the recorded steps in order of time."""
        return tuple(Step(name, end_ns - start_ns) for name, start_ns, end_ns in self._steps)

    def step_traces(self) -> tuple[StepTrace, ...]:
        """Return the steps as torch_npu counts them."""
        return self._step_traces

    def why_idle(self) -> tuple[WhyIdle, ...]:
        """Return the idle time of each device by reason, in all and in each step."""
        if self._clock != "device":
            return ()
        return tuple(self._idle_time.totals(self._steps, self._step_windows))

    def groups(self) -> dict[str, Group]:
        """Return the groups of META_DATA.parallel_group_info that collectives ran in."""
        return self._collective_names.known_groups

    def kernels_of_operations(self) -> list[tuple[str, Row]]:
        """Return the kernels under each operation; where there are steps, those of the steps."""
        if self._clock != "device":
            return []
        return self.work.kernels_of_operations(self._steps)

    def steps_of_calls(self) -> tuple[int, Ints] | None:
        """Return how many steps there are and the step of each call, UNKNOWN if in none."""
        start_ns = self.calls.start_ns
        if not self._steps or start_ns is None:
            return None
        return len(self._steps), step_of(start_ns.astype(np.int64), self._steps)

    def launch_delay(self) -> Distribution | None:
        """Return the time from a launching host call's start to the start of its first task."""
        tasks, calls = self._tasks, self._calls
        if not len(tasks) or not len(calls):
            return None
        row = calls.launching(tasks.connection)
        linked = row >= 0
        if not linked.any():
            return None
        never = np.iinfo(np.int64).max
        first = np.full(len(calls), never)
        np.minimum.at(first, row[linked], tasks.start_ns[linked])
        launching = first != never
        return Distribution.of(first[launching] - calls.start_ns[launching])

    def timeline(self, limit: int | None = None) -> Timeline | None:
        """Return the device's work over time."""
        return timeline.build(self._tasks, self._comms, self._collective_names, limit=limit)

    def tracks(self) -> Iterator[Track]:
        """Yield streams and host threads as tracks of slices."""
        return tracks.tracks(
            self._source, self._tasks, self._comms, self._collective_names, self._strings
        )

    def memory_series(self) -> tuple[Series, ...]:
        """Return memory in use over time."""
        return counters.memory_series(self._source, self._strings)

    def counter_series(self) -> tuple[Series, ...]:
        """Return bandwidths and frequencies over time."""
        return counters.counter_series(self._source, self._strings)

    def pmu(self) -> tuple[PmuFigure, ...]:
        """Return hardware counters by operator type."""
        return counters.pmu_figures(self._source)

    @cached_property
    def _tasks(self) -> Tasks:
        return Tasks(self._source, self._strings, self._findings)

    @cached_property
    def _comms(self) -> Collectives:
        return collectives.load(self._source, self._tasks, self._findings)

    @cached_property
    def _collective_names(self) -> CollectiveNames:
        return CollectiveNames(self._comms, self._strings, groups.load(self._source))

    @cached_property
    def _calls(self) -> HostCalls:
        return HostCalls(self._source)

    @cached_property
    def _framework(self) -> Framework | None:
        if "PYTORCH_API" not in self._source.tables:
            return None
        framework = Framework(self._source, self._strings, self._findings)
        return framework if len(framework) else None

    @cached_property
    def _clock(self) -> Clock:
        if len(self.work):
            return "device"
        return "none" if self._framework is None else "host"

    def _step_rows(self) -> list[Row]:
        rows = step_rows(
            self._steps,
            self._devices,
            self._step_windows,
            self._device_numbers,
            self._tasks,
            self._comms,
            self._of_steps,
        )
        return with_vendor(rows, self._step_traces)

    @cached_property
    def _idle_time(self) -> IdleTime:
        found = IdleTime(
            self._source, self._strings, self._tasks, self.work, self._framework, self._calls
        )
        for name, number in self._device_numbers.items():
            found.add(name, number, self._devices[name], self._step_windows.get(name))
        return found

    @cached_property
    def _step_traces(self) -> tuple[StepTrace, ...]:
        if not len(self._tasks) or not step_trace.is_of_ascend(self._source):
            return ()
        tasks = self._tasks
        ran = Ran(tasks.device, tasks.connection, tasks.start_ns, tasks.end_ns, tasks.identity)
        ranges = step_trace.ranges(self._source, ran, self._calls)
        work = step_trace.read_work(self._source, ran)
        return tuple(step_trace.traces(self._source, work, ranges))

    def _device_time(self, name: str) -> DeviceTime:
        work = self._devices[name]
        found = work.time(name, work.window)
        windows = self._step_windows.get(name)
        return found if windows is None else replace(found, steps=work.time(name, windows.all))

    @cached_property
    def _step_windows(self) -> dict[str, StepWindows]:
        """The time of the steps on each device, empty where there are none."""
        if not self._steps:
            return {}
        return {
            name: step_windows(self._steps, self._tasks, self._comms, self._of_steps, only)
            for name, only in self._device_numbers.items()
        }

    @cached_property
    def _annotations(self) -> annotated.Ranges:
        return annotated.read(self._source, self._strings)

    def _launched_ns(self) -> NDArray[np.int64]:
        """Return when the host launched each task, its own start where that is not known."""
        calls, started = self._calls, self._tasks.start_ns
        if not len(calls):
            return started
        row = calls.launching(self._tasks.connection)
        found: NDArray[np.int64] = np.where(row >= 0, calls.start_ns[row], started)
        return found

    @cached_property
    def _of_steps(self) -> OfSteps:
        """The step that launched each piece of work, by the starts of its calls."""
        calls = self._calls

        def step(connection: Ints, start_ns: NDArray[np.int64]) -> NDArray[np.int32]:
            row = calls.launching(connection)
            starts = calls.start_ns[row] if len(calls) else start_ns
            return step_of(np.where(row >= 0, starts, start_ns), self._steps).astype(np.int32)

        return OfSteps(
            step(self._tasks.connection, self._tasks.start_ns),
            step(self._comms.connection, self._comms.start_ns),
        )

    @cached_property
    def _devices(self) -> dict[str, DeviceWork]:
        return {
            name: DeviceWork(self._tasks, self._comms, only)
            for name, only in self._device_numbers.items()
        }

    @cached_property
    def _device_numbers(self) -> dict[str, int | None]:
        """Name -> number, None where there is only one."""
        numbers = np.unique(np.concatenate((np.unique(self._tasks.device), self._comms.device)))
        rows = self._source.rows("SELECT id, name FROM NPU_INFO")
        names = {number: name for number, name in rows if name not in NOTHING_KNOWN}
        result: dict[str, int | None] = {}
        for number in numbers.tolist():
            model = names.get(number)
            name = device_name(number) + (f" ({model})" if model else "")
            result[name] = None if len(numbers) == 1 else number
        return result

    @cached_property
    def _steps(self) -> list[tuple[str, int, int]]:
        columns = {"id": "id", "start": "startNs", "duration": "endNs - startNs"}
        found = self._source.integers("STEP_TIME", columns)
        valid = possible(found["start"], found["duration"])
        bad = int(len(valid) - valid.sum())
        self._findings.add("impossible_step_time", f"{bad} steps are left out", bad)
        if valid.any():
            order = np.flatnonzero(valid)[np.argsort(found["start"][valid], kind="stable")]
            return [
                (
                    str(found["id"][row]) if found["id"][row] != MISSING else "?",
                    int(found["start"][row]),
                    int(found["start"][row] + found["duration"][row]),
                )
                for row in order
            ]
        return self._framework.steps() if self._framework is not None else []

    @cached_property
    def _available(self) -> tuple[By, ...]:
        return breakdowns.available(
            self.calls,
            steps=bool(self._steps),
            kernels=self._clock == "device",
            groups=self._collective_names.in_groups,
            streams=len(self._tasks) > 0,
            annotations=self._clock == "device" and len(self._annotations) > 0,
        )

    def _totals(self) -> Totals:
        sums = self.calls.sums()
        steps = [end - start for _, start, end in self._steps]
        return Totals(
            total_ns=sums["total_ns"],
            forward_ns=sums["forward_ns"],
            backward_ns=sums["backward_ns"],
            other_ns=self.work.other_pass_ns() if self._clock == "device" else None,
            count=self._timed_calls() if self._clock != "none" else None,
            peak_bytes=counters.peak_memory(self._source, self._strings),
            iteration_ns=int(np.median(steps)) if steps else None,
            iterations=len(steps) or None,
        )

    def _timed_calls(self) -> int:
        total = self.calls.total_ns
        return 0 if total is None else int((total != UNKNOWN).sum())

    def _not_measured(self, totals: Totals) -> list[NotMeasured]:
        missing = []
        if self._clock == "none":
            missing.append(NotMeasured("device time", "no device task was recorded (table TASK)"))
        elif self._clock == "host":
            missing.append(
                NotMeasured(
                    "device time",
                    "no device task was recorded; the times are those of the host",
                )
            )
        if self._clock == "device" and self._framework is None:
            missing.append(
                NotMeasured(
                    "forward and backward times, modules, source lines",
                    "no framework operation was recorded (table PYTORCH_API)",
                )
            )
        elif self._clock == "device" and totals.backward_ns is None:
            missing.append(NotMeasured("backward times", "no work was launched in a backward pass"))
        expected = ("step",) if self._framework is None else ("module", "line", "step")
        missing += [
            NotMeasured(f"time by {by}", _WHY_NOT[by])
            for by in expected
            if by not in self._available
        ]
        if totals.peak_bytes is None:
            missing.append(NotMeasured("peak memory", "no memory use was recorded"))
        return missing


_WHY_NOT: dict[str, str] = {
    "operation": "neither device work nor framework operations were recorded",
    "module": "no nn.Module was recorded (torch.profiler needs with_modules or with_stack)",
    "line": "no call stack of the user's files was recorded (torch.profiler needs with_stack)",
    "kernel": "no device work was recorded",
    "group": "no collective with its group was recorded (table COMMUNICATION_OP)",
    "stream": "no device task was recorded",
    "annotation": "no annotated range was recorded on a GPU (torch.profiler.record_function, NVTX)",
    "idle": "no device work was recorded",
    "step": "no step was recorded (call profiler.step() after each iteration)",
}
