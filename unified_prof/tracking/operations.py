"""The instruments that record operations: one for their time, one for what they save."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

from unified_prof.base.text import NS_PER_MS
from unified_prof.tracking.activations import SavedTensors
from unified_prof.tracking.device import Clock, Device, HostClock
from unified_prof.tracking.device_clock import EventClock
from unified_prof.tracking.function_mode import Runner, make_mode, make_runner
from unified_prof.tracking.interception import Interception
from unified_prof.tracking.interference import WaitingTime
from unified_prof.tracking.launch_delay import Lag, lag_of
from unified_prof.tracking.modules import InUse, SizedWeight, Weights
from unified_prof.tracking.passes import Passes
from unified_prof.tracking.raw_calls import (
    CallSites,
    Iteration,
    Measured,
    ModuleNames,
    NamedModule,
    Recorder,
    measure,
)
from unified_prof.tracking.regions import RegionWatch
from unified_prof.tracking.stack_walker import StackWalker
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Anomalies, leaf_of

_KEPT_RAW = 10_000
"""Calls and autograd nodes that may stay as they were marked until a stage has ended; that takes a
megabyte. Turning them into times costs a small iteration as much as thirty of its operations."""
# Iterations that one sample of the run time takes.
ITERATIONS_PER_SAMPLE = 2


class OperationTracker:
    """Records the operations of iterations and their times.

    A sample takes two iterations (`ITERATIONS_PER_SAMPLE`): in the first one every operation is
    timed (and a device is kept behind the host for that), in the second one only the passes are, so
    that the duration of an iteration does not contain the time of tracking. The last sample may be
    half of one: if there is no other, it counts.
    """

    def __init__(
        self,
        device: Device,
        walker: StackWalker,
        interception: Interception,
        modules: ModuleNames,
        internals: TorchInternals,
        sites: CallSites,
        regions: RegionWatch,
    ) -> None:
        self.device = device
        self._regions = regions
        self._sites = sites
        self._internals = internals
        self.modules = modules
        self.with_set_up = False
        """Whether the iterations hold the program's set-up."""
        self.begins_with_forward = False
        """Whether they begin with the forward pass, no data being loaded before it."""
        self.on_call: Callable[[FrameType], None] | None = None
        """Told of each call, before it, in which frame it stands; must raise nothing."""
        self.events: EventClock | None = None
        """The device's clock; None: it is the host's."""
        if not device.is_cpu:
            self.events = EventClock(device.kind, device.module, internals.anomalies, device.used)
        self.clock: Clock = self.events or HostClock()
        self.iterations_per_sample = 1
        """ITERATIONS_PER_SAMPLE if every other iteration is timed as a whole only."""
        self._passes: Passes | None = None
        self._raw: list[Iteration] = []
        self._measured: list[Measured] = []
        self._walker = walker
        self._interception = interception
        self._recorder: Recorder | None = None
        self._waiting: WaitingTime | None = None
        self._run: Runner = _not_started

    def start(self) -> None:
        """Prepare to watch torch's calls on this thread."""
        recorder = Recorder(
            get_ident(),
            self.clock.mark,
            Iteration(self.clock),
            self.events,
            self._internals,
        )
        self._listen(recorder)
        if self.device.is_cpu:  # a device's time does not depend on the host's processor
            self._waiting = recorder.waiting = WaitingTime()
            recorder.note_waiting = self._note_waiting
        self._run = make_runner(recorder, self._walker, self.modules, self._sites)
        if self.on_call is not None:
            self._run = _announced(self._run, self.on_call)
        recorder.mode = make_mode(recorder, self._run)
        self._recorder = recorder

    def _listen(self, recorder: Recorder) -> None:
        """Ask to be told more than what is recorded anyway."""

    def begin_iteration(self, index: int) -> None:
        """Record a new iteration."""
        assert self._recorder is not None
        if index % self.iterations_per_sample:
            if self.events is not None:
                self.events.get_ahead_no_more()
            self._passes = Passes(self.clock, self._waiting)
            self._interception.observe(self._passes)
            self._passes.begin()
            return
        self._recorder.checkpoints.clear()
        if self.events is not None and self.iterations_per_sample > 1 and self.device.is_touched:
            self.events.lag = self.events.lag or self._lag()
        iteration = self._recorder.iteration = Iteration(
            self.clock,
            with_set_up=self.with_set_up,
            begins_with_forward=self.begins_with_forward,
        )
        self._regions.follow(iteration)
        self._interception.activate(self._recorder, self._run)
        self._note_waiting()
        iteration.first_sequence = self._internals.sequence_number()
        iteration.begin = self.clock.mark()

    def end_iteration(self, index: int) -> None:
        """Keep the iteration."""
        assert self._recorder is not None
        if self._passes is not None:
            passes, self._passes = self._passes, None
            passes.end()
            self._interception.deactivate()
            self._raw[-1].whole = passes
            if self.device.is_cpu and sum(one.size for one in self._raw) > _KEPT_RAW:
                self._settle()
            return
        iteration = self._recorder.iteration
        iteration.end = self.clock.mark()
        self._note_waiting()
        self._interception.deactivate()
        self._regions.follow_no_more()
        self._walker.forget_frames(sys._getframe())
        with self._internals.anomalies.fenced("modules_not_named", "the paths of some modules"):
            self.modules.settle()
        self._raw.append(iteration)

    def stop(self, complete: bool) -> None:
        """Stop watching, also in the midst of an iteration."""
        self._passes = None
        if self._recorder is not None:
            self._interception.deactivate()
            self._regions.follow_no_more()
            self._walker.forget_frames(sys._getframe())
            self._recorder = None
            self._run = _not_started  # it holds the last iteration
            if complete:
                self._settle()
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    @property
    def iterations(self) -> list[Measured]:
        """The complete iterations in numbers; on a device this waits for it."""
        self._settle()
        return self._measured

    @property
    def settled(self) -> list[Measured]:
        """Those of them that are known without waiting."""
        return self._measured

    @property
    def count(self) -> int:
        """How many samples are complete."""
        samples = len(self._raw) + len(self._measured)
        return samples - self._is_half if samples > 1 else samples

    def clear(self) -> None:
        """Forget what was measured."""
        self._raw.clear()
        self._measured.clear()
        self.clock.forget()

    @property
    def _is_half(self) -> bool:
        """Whether the operations of the last sample are known, and the whole is not."""
        is_open = bool(self._raw) and self._raw[-1].whole is None
        return self.iterations_per_sample > 1 and is_open

    def _lag(self) -> Lag | None:
        lag = None
        with self._internals.anomalies.fenced(
            "device_not_held_back", "times of short operations may hold time of the host"
        ):
            lag = lag_of(self.device.kind, self.device.module)
            if self.events is not None:
                self.events.event_ms = lag.event_ns / NS_PER_MS
        return lag

    def _settle(self) -> None:
        """Turn marks into times, which take far less room."""
        raw, self._raw = self._raw, []
        if raw and self.iterations_per_sample > 1 and raw[-1].whole is None:
            half = raw.pop()
            if self._recorder is not None:
                self._raw = [half]  # in the midst of a sample
            elif not (raw or self._measured):
                raw = [half]
        if raw:
            self.clock.synchronize()
            anomalies, sites = self._internals.anomalies, self._sites.sites
            self._measured += [measure(one, anomalies, sites) for one in raw]
            if self._recorder is None or self.device.is_cpu:
                self.clock.forget()

    def _note_waiting(self) -> None:
        """Note how long this thread has waited for the processor; a pass begins or ends here."""
        if self._waiting is None or self._recorder is None:
            return
        self._waiting.note(self._recorder.iteration.waits)
        if self._recorder.iteration.waits and self._recorder.on_call is None:
            self._recorder.on_call = self._forward_begins

    def _forward_begins(self, _args: Any, _kwargs: Any, module: Any) -> None:
        """Note the waiting before the first operation of the model; what came before is no pass."""
        if module is not None and self._recorder is not None:
            self._note_waiting()
            self._recorder.on_call = None

    def note_optimizer_step(self) -> None:
        """Note that an optimizer begins its step: what ran before is forward."""
        if self._passes is not None:
            self._passes.optimizer_steps()
        elif self._recorder is not None:
            iteration = self._recorder.iteration
            iteration.optimizer_steps.append(iteration.count)
            self._note_waiting()


class ActivationTracker(OperationTracker):
    """Records what each operation saves for the backward pass; its times do not count."""

    def __init__(
        self,
        device: Device,
        walker: StackWalker,
        interception: Interception,
        modules: ModuleNames,
        internals: TorchInternals,
        sites: CallSites,
        regions: RegionWatch,
        weights: Weights,
    ) -> None:
        super().__init__(device, walker, interception, modules, internals, sites, regions)
        self._weights = weights
        self._argument_devices: set[str] = set()
        self._used: dict[int, Any] = {}
        """Weak references to the parameters that an operation or a backward pass used, by id."""
        self._roots: dict[NamedModule, None] = {}
        """Roots of the modules that ran in any iteration so far."""
        self._in_backward: set[int] = set()
        self._saved: SavedTensors | None = None
        self.saved_bytes: list[dict[int, int] | None] = []
        """For each iteration: bytes by index of the call; -1 is what no call of the backward
        pass saved. None where torch does not tell."""
        self.weight_records: tuple[SizedWeight, ...] = ()
        """As they were, with their gradients, when the last iteration ended."""
        self.oddities = Anomalies()
        """What was odd about those weights."""
        self.devices: set[str] = set()
        """Device types of the parameters, or of the arguments where there are none."""

    def _listen(self, recorder: Recorder) -> None:
        recorder.on_call = self._on_call
        recorder.on_node = self._on_node
        recorder.on_engine = self._on_engine

    def begin_iteration(self, index: int) -> None:
        """Begin to watch what is saved."""
        assert self._recorder is not None
        self._argument_devices.clear()
        self._in_backward.clear()
        self._saved = SavedTensors(self.device.kind, self._recorder)
        with self._internals.anomalies.fenced("activations_not_measured", "the activations"):
            self._saved.start(self._weights.parameters(), self.modules.members(self._roots))
        self._used.clear()
        super().begin_iteration(index)

    def end_iteration(self, index: int) -> None:
        """Keep what was saved, by call, and what the weights take."""
        assert self._saved is not None
        assert self._recorder is not None
        known = self._recorder.iteration.backwards and self._internals.has(
            "sequence_number", "node_number"
        )
        sites = set(self._recorder.iteration.columns()[0].tolist())
        super().end_iteration(index)
        saved, self._saved = self._saved, None
        self.saved_bytes.append(saved.stop(self._in_backward if known else None))
        parameters = {item.device.type for item in self._weights.parameters()}
        self.devices = parameters or set(self._argument_devices)
        if self.device.kind in self.devices:
            used = None
            self.oddities = Anomalies()
            with self.oddities.fenced("weights_of_all_modules", "which modules ran"):
                used = self._in_use(sites)
            with self.oddities.fenced("weights_not_listed", "the weights"):
                self.weight_records = self._weights.records(
                    self.device.kind, self.modules, used, self.oddities
                )

    def _in_use(self, sites: set[int]) -> InUse | None:
        """Return what an iteration used of the program's modules, None if that is not known."""
        modules = [self._sites.sites[number].module for number in sorted(sites)]
        roots = dict.fromkeys(module.root for module in modules if module is not None)
        self._roots |= roots
        parameters = {key for key, weak in self._used.items() if weak() is not None}
        return InUse(self.modules.members(roots), parameters) if roots or parameters else None

    def clear(self) -> None:
        """Forget what was measured."""
        super().clear()
        self.saved_bytes.clear()
        self.weight_records = ()

    def stop(self, complete: bool) -> None:
        """Stop watching, also in the midst of an iteration."""
        super().stop(complete)
        if self._saved is not None:
            self._saved.stop()
            self._saved = None

    def _on_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], module: Any) -> None:
        import torch

        assert self._saved is not None
        arguments = (*args, *kwargs.values())
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                self._argument_devices.add(argument.device.type)
            for one in argument if isinstance(argument, (list, tuple)) else (argument,):
                if isinstance(one, torch.nn.Parameter):
                    self._used[id(one)] = weakref.ref(one)
        self._saved.exclude_parameters(arguments)
        self._saved.exclude_state_of(module)

    def _on_node(self, node: Any, call: int) -> None:
        assert self._saved is not None
        if call >= 0:
            self._in_backward.add(call)
        elif (leaf := leaf_of(node)) is not None:
            self._used[id(leaf)] = weakref.ref(leaf)
        with self._internals.anomalies.fenced("saved_numbers_not_counted", "those of a node"):
            self._saved.saved_numbers(node, call)

    def _on_engine(self, runs: bool) -> None:
        if self._saved is not None:
            with self._internals.anomalies.fenced("saved_tensor_not_counted", "around a backward"):
                (self._saved.pause if runs else self._saved.resume)()


def _not_started(*_: Any) -> Any:
    raise AssertionError("begin_iteration before start")


def _announced(run: Runner, on_call: Callable[[FrameType], None]) -> Runner:
    """Return `run`, told to `on_call` before each call."""

    def announced(label: Any, func: Any, frame: FrameType, *call: Any) -> Any:
        on_call(frame)
        return run(label, func, frame, *call)

    return announced
