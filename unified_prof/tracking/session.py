"""Everything that tracking one workload takes, put together and taken apart again."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import CodeType
from typing import Any

from unified_prof.base.run_spec import MEMORY, RUN_TIME, Capture, RunSpec, TrackedRun
from unified_prof.errors import CaptureError
from unified_prof.tracking.code_entries import MODEL_CODE, Project
from unified_prof.tracking.device import Device, DeviceFault, GraphReplays
from unified_prof.tracking.driver import Driver, Instrument, Saving, Stage
from unified_prof.tracking.interception import Interception
from unified_prof.tracking.modules import Weights
from unified_prof.tracking.operations import (
    ITERATIONS_PER_SAMPLE,
    ActivationTracker,
    OperationTracker,
)
from unified_prof.tracking.peak import AllocatorPeak, PeakMeter, ProfiledPeak
from unified_prof.tracking.program import Elsewhere, last_user_line
from unified_prof.tracking.raw_calls import CallSites, Measured, ModuleNames
from unified_prof.tracking.regions import RegionWatch
from unified_prof.tracking.results import Results
from unified_prof.tracking.stack_walker import StackWalker
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Anomalies

NOTHING_MARKED = (
    "nothing marked iterations (no optimizer stepped, and neither a backward pass nor a call of a "
    "model was repeated): the whole workload is one"
)


class Session:
    """Tracks one workload in this process; there is at most one at a time."""

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
        self.elsewhere = Elsewhere()
        self.ended_well = False
        """The program came to its end without an error."""
        self.report_error: Exception | None = None
        """What `RunSpec.on_measured` raised."""
        self._final: TrackedRun | None = None
        self._saving = Saving()
        self.faults: list[str] = []
        """What uprof itself failed in, or the device."""
        self.device_fault: str | None = None
        """What of the program's failed on the device, as told to us when we waited for it."""
        self.on_abandon: list[Callable[[], None]] = []
        """What else is to be let go of in a forked child."""
        self.sites = CallSites()
        parts = (
            self.device,
            self.walker,
            self.interception,
            self.modules,
            self.internals,
            self.sites,
            self.regions,
        )
        self.run_time = OperationTracker(*parts)
        self.memory = ActivationTracker(*parts, self.weights)
        self.whole = ActivationTracker(*parts, self.weights)
        self.whole.with_set_up = True
        """Sees a script up to its first step: all there is, if it never steps."""
        self.peak: PeakMeter = (
            ProfiledPeak(self.internals, self.regions)
            if self.device.is_cpu
            else AllocatorPeak(self.device, self.regions)
        )

    def install(self, bottoms: Sequence[CodeType]) -> None:
        """Take the places in torch; the stack below any of `bottoms` is not the program's."""
        global _current
        for code in bottoms:
            self.walker.set_bottom(code)
        self.weights.install()
        self.interception.install()
        self.graphs.install()
        self.regions.install()
        _current = weakref.ref(self)
        _register_fork_handler()

    def remove(self) -> None:
        """Give every place in torch back."""
        global _current
        _current = None
        self.regions.remove()
        self.graphs.remove()
        self.interception.remove()
        self.weights.remove()

    def abandon(self) -> None:
        """Leave a forked child's program alone: what is recorded there would reach nobody."""
        for abandon in self.on_abandon:
            abandon()
        for tracker in (self.run_time, self.memory, self.whole):
            tracker.stop(complete=False)
        self.peak.forget()
        self.remove()

    def stages(self, *, whole_first: bool) -> list[Stage]:
        """Return the stages of measuring.

        Run time and memory are measured in different iterations, so that neither disturbs the
        other. One iteration's run time comes first, for programs that end early.

        Args:
            whole_first: The first iteration holds the program's set-up. It counts as warm-up,
                and is what is reported if no other iteration is complete.
        """
        asked = self.spec
        stages = []
        warmup = asked.warmup
        if whole_first:
            recorders = self._recorders_of_whole()
            stages.append(Stage("first iteration", (self.whole, *recorders), 1))
            if recorders:
                self.whole.on_call = recorders[0].saw
            warmup -= 1
        stages.append(Stage("warm-up", (), max(0, warmup)))
        remaining = asked.iterations if RUN_TIME in asked.reports else 0
        each = self.run_time.iterations_per_sample = ITERATIONS_PER_SAMPLE
        if remaining:
            stages.append(Stage("run time", (self.run_time,), each))
        if MEMORY in asked.reports:
            stages.append(Stage("activations and weights", (self.memory,), 1))
            stages.append(Stage("peak memory", (self.peak,), self.peak.lead_in + 1))
        stages.append(Stage("run time", (self.run_time,), each * (remaining - 1)))
        if self.instruments:
            lead_in = max(getattr(one, "lead_in", 0) for one in self.instruments)
            stages.append(Stage("timeline", self.instruments, lead_in + asked.iterations))
        return [stage for stage in stages if stage.iterations > 0]

    def driver(self, *, whole_first: bool) -> Driver:
        """Return a driver through the stages; everything is taken down after the last."""
        self.run_time.begins_with_forward = not whole_first
        return Driver(
            self.stages(whole_first=whole_first),
            self.spec.progress,
            on_finished=self.remove,
            on_failure=self._stage_failed,
            on_iteration=self._save,
        )

    def _save(self, running: Sequence[Instrument]) -> None:
        """Hand over what the complete iterations gave, lest it is lost with the process.

        Args:
            running: What is not stopped; nothing but the trackers may see how this takes time.
        """
        trackers = (self.whole, self.run_time, self.memory)
        hand_over = self.spec.on_partial
        if hand_over is None or any(one not in trackers for one in running):
            return
        # What waits for a device would empty its queue, and the next iteration begin otherwise.
        if running and not self.device.is_cpu:
            return
        measured = (*(one.count for one in trackers), self.peak.peak_bytes)
        with self._saving.of(measured) as is_due:
            if not is_due:
                return
            with self.anomalies.fenced("not_saved_meanwhile", "for `uprof recover`"):
                so_far = self.result_or_none()
                if so_far is not None:
                    hand_over(so_far)

    def _device_failed(self, error: DeviceFault) -> None:
        """An operation of the program's failed on the device, and we were the first to wait."""
        self.device_fault = f"an operation of the workload failed on the device ({error})"
        if self.device_fault not in self.faults:
            self.faults.append(self.device_fault)
            self.anomalies.add("operation_failed_on_device", self.device_fault)

    def _stage_failed(self, stage: Stage, error: Exception) -> None:
        """An instrument failed: what it would have measured is missing, the rest is not."""
        if isinstance(error, DeviceFault):
            self._device_failed(error)
            return
        fault = f"{stage.name} could not be measured ({last_user_line(error)})"
        self.faults.append(fault)
        self.anomalies.add("measuring_failed", fault)
        if self.peak in stage.instruments:
            self.peak.failure = fault

    def optimizer_begins(self) -> None:
        """Note that an optimizer steps; its operations are of no pass and not recorded."""
        for tracker in (self.run_time, self.memory, self.whole):
            tracker.note_optimizer_step()
        self.interception.pause()

    def optimizer_ended(self) -> None:
        """An optimizer has stepped."""
        self.interception.resume()

    def add_model(self, model: Any) -> None:
        """Name the modules of `model` as its own `named_modules()` does."""
        from torch.nn import Module

        if isinstance(model, Module):
            self.modules.add_root(model)

    def _recorders_of_whole(self) -> list[Any]:
        """Return what else records a program that may mark no iterations: one at most."""
        parts = (getattr(one, "whole_program", None) for one in self.instruments)
        return [one for one in parts if one is not None][:1]

    def note_never_stepped(self) -> None:
        """Say in the report that the whole program is shown as one iteration."""
        for recorder in self._recorders_of_whole():
            recorder.is_all_there_is()
        self.facts["whole_program"] = NOTHING_MARKED

    def why_incomplete(self, error: BaseException | None) -> str:
        """Say why not everything was measured that was asked for."""
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
            elsewhere = self.elsewhere.reason()
            return elsewhere[0] if elsewhere else NOTHING_MARKED
        if RUN_TIME not in self.spec.reports:
            return f"{what} before all was measured"
        return f"{what} after {done} of {asked} measured iterations"

    @property
    def has_some_of_all(self) -> bool:
        """Whether the program ended well and all kinds of figures were measured, if fewer times."""
        asked = self.spec
        return (
            self.ended_well
            and not self.instruments
            and (RUN_TIME not in asked.reports or self.run_time.count > 0)
            and (MEMORY not in asked.reports or self.peak.peak_bytes is not None)
        )

    def hint(self) -> str:
        """Say what to do where not one iteration was measured."""
        elsewhere = self.elsewhere.reason()
        if elsewhere is not None:
            return elsewhere[1]
        if "whole_program" in self.facts:
            return "call unified_prof.step() at the end of each iteration"
        return "let it run for more iterations, or ask for fewer with --warmup and --iterations"

    def forget_set_up(self) -> None:
        """Drop the first iteration, with all that it holds, once later ones have it all."""
        reports = self.spec.reports
        if (RUN_TIME not in reports or self.run_time.count) and (
            MEMORY not in reports or self.memory.count
        ):
            self.whole.clear()

    def restarted(self) -> None:
        """Forget what was measured before the program's iterations were understood."""
        self.run_time.clear()
        self.memory.clear()

    def result(self, *, complete: bool) -> TrackedRun | None:
        """Return what the complete iterations gave, None if there is not one.

        May be asked at any time, also again, on the thread that is tracked; it changes nothing.
        Once everything was measured (`measured`) the answer stays the same.

        Args:
            complete: Whether all that was asked for is there.

        Raises:
            CaptureError: Iterations were complete, but there was nothing to measure in them.
        """
        if self._final is not None:
            return self._final
        return Results(self, complete=complete).run()

    def measured(self) -> None:
        """Everything was measured: settle the result and tell it while the program runs on.

        Whatever goes wrong here is left to the end of the program, which asks again.
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
        """Return what was measured of a program that failed, if there is anything."""
        try:
            return self.result(complete=False)
        except CaptureError:
            return None

    def iterations_of(self, tracker: OperationTracker, report: str) -> list[Measured]:
        """Return what a tracker measured for a report, or else of the first iteration."""
        if report not in self.spec.reports:
            return []
        try:
            return tracker.iterations or self.whole.iterations
        except DeviceFault as error:
            self._device_failed(error)
            return tracker.settled or self.whole.settled


_current: weakref.ref[Session] | None = None
_fork_handler_registered = False


def _register_fork_handler() -> None:
    """Stop tracking in forked children: they run their part of the program untouched."""
    global _fork_handler_registered
    if not _fork_handler_registered and hasattr(os, "register_at_fork"):
        _fork_handler_registered = True
        os.register_at_fork(after_in_child=_abandon_in_child)


def _abandon_in_child() -> None:
    session = None if _current is None else _current()
    if session is not None:
        session.abandon()
