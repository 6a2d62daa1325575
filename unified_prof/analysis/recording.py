"""One msprof database as columns: what every analysis of it starts from.

A `Recording` reads nothing before it is asked for, and nothing twice. Analyses (`views`, `explain`)
are functions of it; `msprof.MsprofAnalysis` answers the questions of `base` with them.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import Calls, Ints
from unified_prof.analysis.held_calls import HeldCalls
from unified_prof.analysis.model import Clock
from unified_prof.analysis.read import collectives, counters, groups, operators
from unified_prof.analysis.read.collectives import Collectives, device_name
from unified_prof.analysis.read.framework import Framework
from unified_prof.analysis.read.host_calls import HostCalls
from unified_prof.analysis.read.possible import possible
from unified_prof.analysis.read.source import Findings, Source
from unified_prof.analysis.read.strings import NOTHING_KNOWN, Strings
from unified_prof.analysis.read.tasks import Tasks
from unified_prof.analysis.views import annotated, regions, step_trace
from unified_prof.analysis.views.communication import CollectiveNames
from unified_prof.analysis.views.device import DeviceWork, OfSteps, StepWindows, step_windows
from unified_prof.analysis.views.idle_time import IdleTime
from unified_prof.analysis.views.launched import Launched, launched
from unified_prof.analysis.views.operation_calls import host_calls
from unified_prof.analysis.views.replayed import Capture
from unified_prof.analysis.views.step_trace import Ran, StepTrace
from unified_prof.analysis.views.steps import step_of
from unified_prof.analysis.views.work import Work
from unified_prof.store.integers import MISSING


class Recording:
    """The tables of one msprof database, joined.

    Attributes:
        source: the file.
        findings: what was odd in what has been read so far.
        strings: STRING_IDS and the ENUM tables.
        captured_in: the recording of the capture of graphs that are replayed here, if it is given.
    """

    def __init__(self, source: Source, captured_in: Recording | None = None) -> None:
        self.source = source
        self.captured_in = captured_in
        self.findings = Findings()
        self.strings = Strings(source)

    @property
    def calls(self) -> Calls:
        """All of `held_calls` at once."""
        return self.held_calls.whole()

    @cached_property
    def held_calls(self) -> HeldCalls:
        """Framework operations and other device work; host ranges if there is no device work."""
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
            work.captured = capture.of(
                self.source, self.strings, self.host_calls, self.tasks, work.task, self.findings
            )
        return work

    @cached_property
    def capture(self) -> Capture | None:
        """The graphs that were captured here; None: no operation was recorded."""
        if self.framework is None:
            return None
        return Capture(self.tasks, self.host_calls, self.framework, self.strings)

    @cached_property
    def tasks(self) -> Tasks:
        """Every task of a device."""
        return Tasks(self.source, self.strings, self.findings)

    @cached_property
    def comms(self) -> Collectives:
        """Every collective, over its tasks."""
        return collectives.load(self.source, self.tasks, self.findings)

    @cached_property
    def collective_names(self) -> CollectiveNames:
        """What collectives and their groups are called."""
        return CollectiveNames(self.comms, self.strings, groups.load(self.source))

    @cached_property
    def host_calls(self) -> HostCalls:
        """Calls of runtimes and drivers on the host (CANN_API), by connection."""
        return HostCalls(self.source)

    @cached_property
    def framework(self) -> Framework | None:
        """Operations of the framework on the host (PYTORCH_API); None: there are none."""
        if "PYTORCH_API" not in self.source.tables:
            return None
        framework = Framework(self.source, self.strings, self.findings, self.host_calls)
        return framework if len(framework) else None

    @cached_property
    def has_shapes(self) -> bool:
        """Whether shapes of operations, or of operators, were recorded."""
        return operators.shapes_recorded(self.source)

    @property
    def has_operations(self) -> bool:
        """Whether the operations of a framework are known: from here, or from the capture."""
        return self.framework is not None or self.work.captured is not None

    @cached_property
    def clock(self) -> Clock:
        """Whose time the report's times are."""
        if len(self.work):
            return "device"
        return "none" if self.framework is None else "host"

    @cached_property
    def steps(self) -> list[tuple[str, int, int]]:
        """The steps: name, start and end on the host, in ns, by start."""
        columns = {"id": "id", "start": "startNs", "duration": "endNs - startNs"}
        found = self.source.integers("STEP_TIME", columns)
        valid = possible(found["start"], found["duration"])
        bad = int(len(valid) - valid.sum())
        self.findings.add("impossible_step_time", f"{bad} steps are left out", bad)
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
        return self.framework.steps() if self.framework is not None else []

    @cached_property
    def step_windows(self) -> dict[str, StepWindows]:
        """The time of the steps on each device, empty where there are none."""
        if not self.steps:
            return {}
        return {
            name: step_windows(self.steps, self.tasks, self.comms, self.of_steps, only)
            for name, only in self.device_numbers.items()
        }

    @property
    def step_lengths_ns(self) -> list[int]:
        """How long each step lasted: on its devices where any did its work, else on the host.

        A host that need not wait runs ahead of its device, and is done with a step long before.
        Of several devices the one counts that took longest.
        """
        if self.clock != "device":
            return [end_ns - start_ns for _, start_ns, end_ns in self.steps]
        lengths = [windows.end_ns - windows.start_ns for windows in self.step_windows.values()]
        return [int(one) for one in np.max(lengths, axis=0)] if lengths else []

    @cached_property
    def of_steps(self) -> OfSteps:
        """The step that launched each piece of work, by the starts of its calls."""
        calls, steps = self.host_calls, self.steps

        def step(connection: Ints, start_ns: NDArray[np.int64]) -> NDArray[np.int32]:
            row = calls.launching(connection)
            starts = calls.start_ns[row] if len(calls) else start_ns
            return step_of(np.where(row >= 0, starts, start_ns), steps).astype(np.int32)

        return OfSteps(step, self.tasks, self.comms)

    @cached_property
    def devices(self) -> dict[str, DeviceWork]:
        """The work of each device, by its name."""
        return {
            name: DeviceWork(self.tasks, self.comms, only)
            for name, only in self.device_numbers.items()
        }

    @cached_property
    def device_numbers(self) -> dict[str, int | None]:
        """Name -> number, None where there is only one."""
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

    def launched_ns(self) -> NDArray[np.int64]:
        """Return when the host launched each task, its own start where that is not known."""
        calls, started = self.host_calls, self.tasks.start_ns
        if not len(calls):
            return started
        row = calls.launching(self.tasks.connection)
        found: NDArray[np.int64] = np.where(row >= 0, calls.start_ns[row], started)
        return found

    @cached_property
    def launches(self) -> Launched:
        """The work of all devices by the call and stream that launched it."""
        return launched(self.tasks, self.host_calls)

    @cached_property
    def annotations(self) -> annotated.Ranges:
        """Annotated ranges on a GPU."""
        return annotated.read(self.source, self.strings)

    @cached_property
    def regions(self) -> regions.Regions:
        """Regions that the program marked on the host."""
        return regions.Regions(self.source, self.strings)

    @cached_property
    def idle_time(self) -> IdleTime:
        """Why each device was idle."""
        found = IdleTime(
            self.source, self.strings, self.tasks, self.work, self.framework, self.host_calls
        )
        for name, number in self.device_numbers.items():
            found.add(name, number, self.devices[name], self.step_windows.get(name))
        return found

    @cached_property
    def step_traces(self) -> tuple[StepTrace, ...]:
        """The steps as torch_npu counts them, Ascend only."""
        if not len(self.tasks) or not step_trace.is_of_ascend(self.source):
            return ()
        tasks = self.tasks
        ran = Ran(tasks.device, tasks.connection, tasks.start_ns, tasks.end_ns, tasks.identity)
        ranges = step_trace.ranges(self.source, ran, self.host_calls)
        work = step_trace.read_work(self.source, ran)
        return tuple(step_trace.traces(self.source, work, ranges))
