"""Plan the iterations of one workload (`stages`), and set up and remove what tracks them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import CodeType
from typing import Any

from unified_prof.base.run_spec import MEMORY, RUN_TIME, Capture, RunSpec, TrackedRun, Turns
from unified_prof.errors import CaptureError
from unified_prof.tracking.activations import Weights
from unified_prof.tracking.code_entries import MODEL_CODE, Project
from unified_prof.tracking.device import Device, DeviceFault, GraphReplays
from unified_prof.tracking.driver import MEASURING, Driver, Instrument, Saving, Stage
from unified_prof.tracking.interception import Interception
from unified_prof.tracking.lockstep import (
    COUNTED_ITERATIONS,
    OperatorCounts,
    TurnTaker,
    use_one_thread,
)
from unified_prof.tracking.operations import (
    ITERATIONS_PER_SAMPLE,
    ActivationTracker,
    OperationTracker,
)
from unified_prof.tracking.peak import AllocatorPeak, PeakMeter, ProfiledPeak
from unified_prof.tracking.program import UntrackedWork, last_user_line
from unified_prof.tracking.raw_calls import CallSites, MeasuredIteration, ModuleNames
from unified_prof.tracking.regions import RegionWatch
from unified_prof.tracking.results import Results
from unified_prof.tracking.stack_walker import StackWalker
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Anomalies
from unified_prof.tracking.wasted_work import WastedWork

NOTHING_MARKED = (
    "no iterations were found (no optimizer step, no repeated backward pass or model call): the "
    "whole workload is reported as one; call unified_prof.step() after each iteration"
)


_MIN_SHIFTED = 8  # Minimum number of run-time samples of which half are of even iterations.


class Session:
    """Tracks one workload in this process; only one can exist at a time."""

    def __init__(self, device: str, spec: RunSpec, instruments: Sequence[Instrument] = ()) -> None:
        self.device = Device(device)
        self.spec = spec
        self.instruments = tuple(instruments)
        self.anomalies = Anomalies()
        self.modules = ModuleNames()
        self.walker = StackWalker(Project(spec.project_root, (*MODEL_CODE, *spec.include)))
        self.internals = TorchInternals(self.anomalies)
        self.interception = Interception(self.internals)
        self.graphs = GraphReplays(self.device, lambda: self.interception.is_measuring)
        self.weights = Weights(self.walker, self.internals)
        self.regions = RegionWatch(self.internals)
        self.facts: dict[str, str] = {}
        self.untracked_work = UntrackedWork()
        self.ended_well = False
        """True if the program ended without an error."""
        self.incomplete = "the workload ended before the measurement was complete"
        self.report_error: Exception | None = None
        """Exception that `RunSpec.on_measured` raised."""
        self._final: TrackedRun | None = None
        self._saving = Saving()
        self.faults: list[str] = []
        """Failures of uprof or of the device."""
        self.device_fault: str | None = None
        """Failure of the program on the device, which a synchronization reported."""
        self.on_abandon: list[Callable[[], None]] = []
        """Called in a forked child, to release shared resources."""
        self.sites = CallSites()
        self.run_time = OperationTracker(self)
        self.memory = ActivationTracker(self)
        self.first_iteration = ActivationTracker(self)
        self.first_iteration.with_setup = True
        """Tracks a script up to its first step, or all of it if it never steps."""
        if self.device.is_cpu:
            self.memory.wasted = self.first_iteration.wasted = WastedWork(self.internals)
        self.peak: PeakMeter = (
            ProfiledPeak(self.internals, self.regions)
            if self.device.is_cpu
            else AllocatorPeak(self.device, self.regions)
        )

    def install(self, bottoms: Sequence[CodeType]) -> None:
        """Patch torch; `bottoms` are the code objects at which the program's stack ends."""
        for code in bottoms:
            self.walker.set_bottom(code)
        self.weights.install()
        self.interception.install()
        self.graphs.install()
        self.regions.install()
        MEASURING.add(self)

    def remove(self) -> None:
        """Undo all patches."""
        MEASURING.discard(self)
        self.regions.remove()
        self.graphs.remove()
        self.interception.remove()
        self.weights.remove()

    def abandon(self) -> None:
        """Stop tracking in a forked child, whose records would be lost."""
        for abandon in self.on_abandon:
            abandon()
        for tracker in (self.run_time, self.memory, self.first_iteration):
            tracker.stop(complete=False)
        self.peak.forget()
        self.remove()

    def stages(self, *, setup_first: bool) -> list[Stage]:
        """Return the stages of the measurement.

        Run time and memory are measured in different iterations, so that the measurements do not
        affect each other. One sample of the run time comes first, for programs that end early. If
        `setup_first`, the first iteration contains the program's setup: it counts as warm-up, and
        is reported if no other iteration is complete.
        """
        asked = self.spec
        stages = []
        warmup = asked.warmup
        if setup_first:
            recorders = self._recorders_of_whole()
            stages.append(Stage("first iteration", (self.first_iteration, *recorders), 1))
            if recorders:
                self.first_iteration.on_call = recorders[0].count_operation
            warmup -= 1
        stages.append(Stage("warm-up", (), max(0, warmup)))
        if asked.turns is not None:
            stages += self._stages_in_turn(asked.turns)
            return [stage for stage in stages if stage.iterations > 0]
        remaining = asked.iterations if RUN_TIME in asked.reports else 0
        each = self.run_time.iterations_per_sample = ITERATIONS_PER_SAMPLE
        if remaining:
            stages.append(Stage("run time", (self.run_time,), each))
        memory = self._memory_stages()
        stages += memory
        # As many even as odd iterations are timed, so that work of every second or fourth one is
        # in half or a quarter of the samples: one iteration is left out in the middle.
        first = remaining - 1
        if remaining >= _MIN_SHIFTED:
            is_odd = sum(stage.iterations for stage in memory) % 2
            first = (remaining - 1 + is_odd) // 2
        stages.append(Stage("run time", (self.run_time,), each * first))
        if remaining - 1 > first:
            stages.append(Stage("iteration that is not measured", (), 1))
            stages.append(Stage("run time", (self.run_time,), each * (remaining - 1 - first)))
        if self.instruments:
            lead_in = max(getattr(one, "lead_in", 0) for one in self.instruments)
            stages.append(Stage("timeline", self.instruments, lead_in + asked.iterations))
        return [stage for stage in stages if stage.iterations > 0]

    def _memory_stages(self) -> list[Stage]:
        if MEMORY not in self.spec.reports:
            return []
        return [
            Stage("activations and weights", (self.memory,), 1),
            Stage("peak memory", (self.peak,), self.peak.lead_in + 1),
        ]

    def _stages_in_turn(self, turns: Turns) -> list[Stage]:
        """Return the stages of a run that takes turns until the gate ends the measurement."""
        synchronize = None if self.device.is_cpu else self.run_time.clock.synchronize
        if self.device.is_cpu:
            use_one_thread()
        taker = TurnTaker(turns, synchronize)
        self.run_time.iterations_per_sample = turns.per_sample
        stages = self._memory_stages()
        if turns.is_first:
            counts = OperatorCounts(self.device.kind, self.facts)
            stages.append(Stage("counts", (counts,), COUNTED_ITERATIONS))
        steps = Stage("in turn", (taker, self.run_time), sys.maxsize, lambda: taker.is_over)
        return [*stages, steps]

    def driver(self, *, setup_first: bool) -> Driver:
        """Return a driver for the stages; patches are removed after the last one."""
        self.run_time.begins_with_forward = not setup_first
        return Driver(
            self.stages(setup_first=setup_first),
            self.spec.progress,
            on_finished=self.remove,
            on_failure=self._stage_failed,
            on_iteration=self._save,
        )

    def _save(self, running: Sequence[Instrument]) -> None:
        """Pass the result so far to `RunSpec.on_partial`, in case the process is killed.

        Only trackers among the `running` instruments tolerate the delay of saving.
        """
        trackers = (self.first_iteration, self.run_time, self.memory)
        hand_over = self.spec.on_partial
        if hand_over is None or any(one not in trackers for one in running):
            return
        # Waiting for a device would empty its queue and change the next iteration.
        if running and not self.device.is_cpu:
            return
        measured = (*(one.count for one in trackers), self.peak.peak_bytes)
        with self._saving.when_due(measured) as is_due:
            if not is_due:
                return
            with self.anomalies.recording_failures("not_saved_meanwhile", "for `uprof db recover`"):
                so_far = self.result_or_none()
                if so_far is not None:
                    hand_over(so_far)

    def _device_failed(self, error: DeviceFault) -> None:
        """Record an operation of the program that failed on the device."""
        self.device_fault = f"an operation of the workload failed on the device ({error})"
        if self.device_fault not in self.faults:
            self.faults.append(self.device_fault)
            self.anomalies.add("operation_failed_on_device", self.device_fault)

    def _stage_failed(self, stage: Stage, error: Exception) -> None:
        """Record that an instrument failed; the others continue."""
        if isinstance(error, DeviceFault):
            self._device_failed(error)
            return
        fault = f"{stage.name} could not be measured ({last_user_line(error)})"
        self.faults.append(fault)
        self.anomalies.add("measuring_failed", fault)
        if self.peak in stage.instruments:
            self.peak.failure = fault

    def optimizer_begins(self) -> None:
        """Note that an optimizer step begins; its operations are not recorded."""
        for tracker in (self.run_time, self.memory, self.first_iteration):
            tracker.note_optimizer_step()
        self.interception.pause()

    def optimizer_ended(self) -> None:
        """Note that an optimizer step ends."""
        self.run_time.note_optimizer_ended()
        self.interception.resume()

    def add_model(self, model: Any) -> None:
        """Name the modules of `model` as in its `named_modules()`."""
        from torch.nn import Module

        if isinstance(model, Module):
            self.modules.add_root(model)

    def _recorders_of_whole(self) -> list[Any]:
        """Return the recorders for programs that mark no iterations, if there are any."""
        parts = (getattr(one, "whole_program", None) for one in self.instruments)
        return [one for one in parts if one is not None][:1]

    def note_whole_program(self) -> None:
        """Record that the whole program is reported as one iteration."""
        for recorder in self._recorders_of_whole():
            recorder.program_ended()
        self.facts["whole_program"] = NOTHING_MARKED

    def why_incomplete(self, error: BaseException | None) -> str:
        """Return the reason why not everything was measured."""
        done = self.run_time.count
        asked = self.spec.iterations
        if isinstance(error, KeyboardInterrupt):
            what = "interrupted by Ctrl-C"
        elif isinstance(error, SystemExit) and error.code:
            what = f"the workload exited with {error.code}"
        elif error is not None and not isinstance(error, SystemExit):
            what = f"the workload failed ({last_user_line(error)})"
        else:
            what = "the workload ended"
        if what == "the workload ended" and "whole_program" in self.facts:
            elsewhere = self.untracked_work.reason()
            return elsewhere[0] if elsewhere else NOTHING_MARKED
        if RUN_TIME not in self.spec.reports:
            return f"{what} before the measurement was complete"
        return f"{what} after {done:,} of {asked:,} measured iterations"

    @property
    def measured_each_kind(self) -> bool:
        """True if the program ended normally and each kind of figure was measured at least once."""
        asked = self.spec
        return (
            self.ended_well
            and not self.instruments
            and (RUN_TIME not in asked.reports or self.run_time.count > 0)
            and (MEMORY not in asked.reports or self.peak.peak_bytes is not None)
        )

    def hint(self) -> str:
        """Return a hint for a run without a measured iteration."""
        elsewhere = self.untracked_work.reason()
        if elsewhere is not None:
            return elsewhere[1]
        if "whole_program" in self.facts:
            return "call unified_prof.step() after each iteration"
        return "run more iterations, or request fewer with --warmup and --iterations"

    def discard_setup(self) -> None:
        """Discard the first iteration if later iterations provide all figures."""
        reports = self.spec.reports
        if (RUN_TIME not in reports or self.run_time.count) and (
            MEMORY not in reports or self.memory.count
        ):
            self.first_iteration.clear()

    def restarted(self) -> None:
        """Discard measurements made before the program's iterations were identified."""
        self.run_time.clear()
        self.memory.clear()

    def result(self, *, complete: bool) -> TrackedRun | None:
        """Return the result of the complete iterations; None if there are none.

        This can be called at any time on the tracked thread, and changes nothing. After `measured`
        was called, the result remains the same. `complete` is True if everything requested was
        measured. Raises CaptureError if iterations are complete, but contain nothing to measure.
        """
        if self._final is not None:
            return self._final
        return Results(self, complete=complete).run()

    def measured(self) -> None:
        """Store the result and pass it on while the program continues.

        Errors are raised at the end of the program, when the result is requested again.
        """
        with suppress(Exception):
            self._final = self.result(complete=True)
        if self._final is None and not self.instruments:
            return
        try:
            self.spec.on_measured(Capture(0, self._final))
        except Exception as error:
            self.report_error = error

    def result_or_none(self) -> TrackedRun | None:
        """Return the result of a program that failed; None if there is none."""
        try:
            return self.result(complete=False)
        except CaptureError:
            return None

    def iterations_of(self, tracker: OperationTracker, report: str) -> list[MeasuredIteration]:
        """Return the iterations of a tracker, or the first iteration if it has no others."""
        if report not in self.spec.reports:
            return []
        try:
            return tracker.iterations or self.first_iteration.iterations
        except DeviceFault as error:
            self._device_failed(error)
            return tracker.available_iterations or self.first_iteration.available_iterations
