"""Instruments that record operations: their times, and the bytes that they save."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any

from unified_prof.base.text import NS_PER_MS
from unified_prof.tracking.activations import (
    InUse,
    SavedTensors,
    SizedWeight,
    optimizer_state_bytes,
    program_settings,
    untrained_calls,
)
from unified_prof.tracking.device import LONG_NS, HostClock, WaitingTime
from unified_prof.tracking.device_clock import Clock, EventClock, Lag, make_lag
from unified_prof.tracking.driver import Instrument
from unified_prof.tracking.function_mode import Runner, make_mode, make_runner
from unified_prof.tracking.passes import Passes
from unified_prof.tracking.raw_calls import (
    MAX_CALLS,
    Iteration,
    MeasuredIteration,
    NamedModule,
    Recorder,
    measure,
)
from unified_prof.tracking.torch_names import Anomalies, leaf_of

if TYPE_CHECKING:
    from unified_prof.tracking.session import Session
    from unified_prof.tracking.wasted_work import WastedWork

# Number of recorded calls and autograd nodes, about a megabyte, at which they are converted to
# times. A conversion takes as long as thirty operations of a small iteration.
_MAX_RAW = 10_000
_MAX_RAW_ON_DEVICE = 200_000  # The same on a device, which has no work during a conversion.
# Limit of the sizes of the samples kept: about 10,000 samples of a few calls, or 700 of 5,000.
_MAX_SIZE = 4_000_000
_WASTED_WORK = "wasted_work_not_looked_for", "repeated values and padding"
ITERATIONS_PER_SAMPLE = 2  # Number of iterations per sample of the run time.


class OperationTracker(Instrument):
    """Records the operations of iterations and their times.

    A sample takes `iterations_per_sample` iterations. In the first one, every operation is timed,
    with a device kept behind the host. In the others, only the passes are timed, so that the
    duration of an iteration does not contain the overhead of tracking. If the program ends
    after the first iteration of the only sample, that iteration is the result.
    """

    def __init__(self, session: Session) -> None:
        device = self.device = session.device
        self._regions = session.regions
        self._sites = session.sites
        self._internals = internals = session.internals
        self._walker = session.walker
        self._interception = session.interception
        self.modules = session.modules
        self.with_setup = False
        """True if iterations contain the program's setup."""
        self.begins_with_forward = False
        """True if iterations begin with the forward pass and do not load data before it."""
        self.on_call: Callable[[FrameType], None] | None = None
        """Called before each call, with its frame; must not raise."""
        self.events: EventClock | None = None
        """The device's clock; None if the host's clock is used."""
        if not device.is_cpu:
            self.events = EventClock(device.kind, device.module, internals.anomalies, device.used)
        self.clock: Clock = self.events or HostClock()
        self.iterations_per_sample = 1
        """1, or more if all but the first iteration of a sample are timed only as a whole."""
        self.lengths: dict[int, tuple[int, ...]] = {}
        """Sequence lengths of the model's arguments by the number of the sample."""
        self.part_lines: dict[str, str] = {}
        """`file:line` in the project at which each part of an iteration began first."""
        self.samples: list[int] = []
        """Samples that data loaders returned, for each iteration whose passes are timed."""
        self._passes: Passes | None = None
        self._raw: list[Iteration] = []
        self._raw_size = 0
        self._measured: list[MeasuredIteration] = []
        self.is_training = self.detects_anomalies = False
        """True if an optimizer has stepped; if `torch.autograd.set_detect_anomaly` was on."""
        self.one_in = 1
        """One in so many samples is kept, so that long runs need no more memory."""
        self.left_out = 0
        """Number of samples that were not kept."""
        self.irregularities_left_out = Anomalies()
        """Irregularities of these samples."""
        self._recorder: Recorder | None = None
        self._waiting: WaitingTime | None = None
        self._run: Runner = _not_started

    def start(self) -> None:
        """Prepare recording on this thread."""
        recorder = Recorder(
            get_ident(), self.clock.mark, Iteration(self.clock), self.events, self._internals
        )
        self._set_callbacks(recorder)
        if self.device.is_cpu:  # the time of a device does not depend on the host's processor
            self._waiting = recorder.waiting = WaitingTime()
        run = make_runner(recorder, self._walker, self.modules, self._sites)
        if self.on_call is not None:
            run = _with_callback(run, self.on_call)
        self._run = self._wrapped(run, recorder)
        recorder.mode = make_mode(recorder, self._run)
        self._recorder = recorder

    def _set_callbacks(self, recorder: Recorder) -> None:
        """Set further callbacks of the recorder."""

    def _wrapped(self, run: Runner, recorder: Recorder) -> Runner:
        """Return `run`, or a function that calls it."""
        return run

    def begin_iteration(self, index: int) -> None:
        """Begin an iteration."""
        assert self._recorder is not None
        if index % self.iterations_per_sample:
            if self.events is not None:
                self.events.release()
            self._passes = Passes(self.clock, self._waiting, self._note_line, self.part_lines)
            self._passes.is_training = self.is_training
            self._interception.observe(self._passes)
            self._passes.begin()
            return
        if self._recorder.checkpoints:
            self._recorder.checkpoints.clear()
        if self.events is not None and self.iterations_per_sample > 1 and self.device.is_touched:
            self.events.lag = self.events.lag or self._lag()
        iteration = self._recorder.iteration = Iteration(
            self.clock, with_setup=self.with_setup, begins_with_forward=self.begins_with_forward
        )
        self._regions.follow(iteration)
        self._interception.activate(self._recorder, self._run)
        self._note_waiting()
        iteration.first_sequence = self._internals.sequence_number()
        iteration.begin = self.clock.mark()

    def end_iteration(self, index: int) -> None:
        """End the iteration and keep it."""
        assert self._recorder is not None
        if self._passes is not None:
            passes, self._passes = self._passes, None
            passes.end()
            self.samples.append(passes.samples)
            self.detects_anomalies |= passes.detects_anomalies
            self._interception.deactivate()
            self._raw[-1].untracked.append(passes)
            is_complete = (index + 1) % self.iterations_per_sample == 0
            limit = _MAX_RAW if self.device.is_cpu else _MAX_RAW_ON_DEVICE
            if is_complete and self._raw_size > limit:
                self._convert()
                self.clock.forget()  # no marks are in use between two samples
            return
        iteration = self._recorder.iteration
        iteration.number = self._samples
        iteration.end = self.clock.mark()
        self._note_waiting()
        self._interception.deactivate()
        self._regions.stop_following()
        self._walker.forget_frames(sys._getframe())
        with self._internals.anomalies.recording_failures(
            "modules_not_named", "paths of some modules"
        ):
            self.modules.settle()
        if self._interception.lengths:
            self.lengths[iteration.number] = self._interception.lengths[-1]
        self._raw.append(iteration)
        self._raw_size += iteration.size

    def stop(self, complete: bool) -> None:
        """Stop recording, also within an iteration."""
        self._passes = None
        if self._recorder is not None:
            self._interception.deactivate()
            self._regions.stop_following()
            self._walker.forget_frames(sys._getframe())
            self._recorder = None
            self._run = _not_started  # it holds the last iteration
            if complete:
                self._convert()
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    @property
    def iterations(self) -> list[MeasuredIteration]:
        """Complete iterations, converted to times; waits for the device."""
        self._convert()
        return self._measured

    @property
    def available_iterations(self) -> list[MeasuredIteration]:
        """Complete iterations that are available without waiting for the device."""
        return self._measured

    @property
    def count(self) -> int:
        """Number of complete samples."""
        samples = self._samples
        return samples - self._is_half if samples > 1 else samples

    def clear(self) -> None:
        """Discard all measurements."""
        self._raw.clear()
        self._measured.clear()
        self.lengths.clear()
        self.one_in, self.left_out = 1, 0
        self.irregularities_left_out = Anomalies()
        self.clock.forget()

    @property
    def _samples(self) -> int:
        return len(self._raw) + len(self._measured) + self.left_out

    @property
    def _is_half(self) -> bool:
        """True if the last sample is half complete: only its first iteration is."""
        is_open = bool(self._raw) and not self._raw[-1].untracked
        return self.iterations_per_sample > 1 and is_open

    def _lag(self) -> Lag | None:
        lag = None
        with self._internals.anomalies.recording_failures(
            "device_not_held_back", "times of short operations may contain host time"
        ):
            lag = make_lag(self.device.kind, self.device.module)
            if self.events is not None:
                self.events.event_ms = lag.event_ns / NS_PER_MS
        return lag

    def _convert(self) -> None:
        """Convert marks to times, which need far less memory."""
        raw, self._raw, self._raw_size = self._raw, [], 0
        if raw and self.iterations_per_sample > 1 and not raw[-1].untracked:
            half = raw.pop()
            if self._recorder is not None:
                self._raw = [half]  # in the middle of a sample
            elif not (raw or self._measured):
                raw = [half]
        if raw:
            self.clock.synchronize()
            anomalies, sites = self._internals.anomalies, self._sites.sites
            self._measured += [measure(one, anomalies, sites) for one in raw]
            self._thin_out()
            if self._recorder is None:
                self.clock.forget()

    def _thin_out(self) -> None:
        """Keep every second sample, every fourth and so on, if all need too much memory."""
        while True:
            kept = [one for one in self._measured if one.number % self.one_in == 0]
            dropped = [one for one in self._measured if one.number % self.one_in]
            with self.irregularities_left_out.recording_failures(
                "oddities_not_looked_for", "irregularities of the iterations"
            ):
                count_irregularities(dropped, self.irregularities_left_out)
            self.left_out += len(dropped)
            self._measured = kept
            if sum(one.size for one in kept) <= _MAX_SIZE or len(kept) < 2:
                return
            self.one_in *= 2

    def _note_waiting(self) -> None:
        """Read how long this thread has waited."""
        if self._waiting is not None and self._recorder is not None:
            self._waiting.note(self._recorder.iteration.waits)

    def _note_line(self, part: str, frame: FrameType) -> None:
        """Note the line of the project at which `part` begins."""
        self.part_lines[part] = ""
        with self._internals.anomalies.recording_failures(
            "parts_not_placed", "lines of the parts of an iteration"
        ):
            stack = self._walker.walk(frame)[2]
            if stack and stack[0].path is not None:
                self.part_lines[part] = f"{stack[0].path}:{stack[0].line(stack[1])}"

    def note_optimizer_step(self) -> None:
        """Note that an optimizer step begins, which ends a forward pass."""
        self.is_training = True
        if self._passes is not None:
            self._passes.optimizer_steps()
        elif self._recorder is not None:
            iteration = self._recorder.iteration
            iteration.optimizer_steps.append(iteration.count)
            last, now = iteration.last_mark, self.clock.mark()
            if self._waiting is not None and now - last > LONG_NS:
                self._waiting.note_interval(iteration.waits, last, now)

    def note_model_ended(self) -> None:
        """Note the end of a call of the model in a program without backward passes."""
        if self._passes is not None:
            self._passes.forward_ended()

    def note_optimizer_ended(self) -> None:
        """Note that an optimizer step ends."""
        if self._passes is not None:
            self._passes.optimizer_ended()


class ActivationTracker(OperationTracker):
    """Records the bytes that each operation saves for the backward pass; its times are not used."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._weights = session.weights
        self._argument_devices: set[str] = set()
        self._used: dict[int, Any] = {}
        """Weak references by id to parameters that an operation or a backward pass used."""
        self._roots: dict[NamedModule, None] = {}
        """Roots of the modules that have run so far."""
        self._in_backward: set[int] = set()
        self._nodes: list[tuple[Any, int]] = []
        """Autograd nodes of the backward pass that begins, and their calls."""
        self.untrained: set[int] = set()
        """Calls of the last iteration whose gradients reach only parameters in no optimizer."""
        self._saved: SavedTensors | None = None
        self.last_saved: SavedTensors | None = None
        """Saved tensors of the last iteration."""
        self.most_saved_bytes = 0
        """Most saved bytes that existed at once in the last iteration."""
        self.saved_bytes: list[dict[int, int] | None] = []
        """For each iteration: bytes by index of the call, -1 for bytes that no call of the backward
        pass saved. None if torch does not report saved tensors."""
        self.weight_records: tuple[SizedWeight, ...] = ()
        """Weights and their gradients at the end of the last iteration."""
        self.optimizer_state_bytes: int | None = None
        """Bytes of the optimizer state at the end of the last iteration."""
        self.program_settings: dict[str, str] = {}
        """Settings of optimizers and data loaders at the end of the last iteration."""
        self.wasted: WastedWork | None = None
        """Finds operations that compute known values, if set."""
        self.irregularities = Anomalies()
        """Anomalies of these weights."""
        self.devices: set[str] = set()
        """Device types of the parameters, or of the arguments if there are no parameters."""

    def _set_callbacks(self, recorder: Recorder) -> None:
        recorder.on_call = self._on_call
        recorder.on_node = self._on_node
        recorder.on_engine = self._on_engine

    def _wrapped(self, run: Runner, recorder: Recorder) -> Runner:
        wasted = self.wasted
        if wasted is None:
            return run
        failures = self._internals.anomalies.recording_failures

        def numbered(
            label: Any, func: Any, frame: FrameType, args: Any, kwargs: Any, *more: Any
        ) -> Any:
            if more or recorder.in_engine:
                return run(label, func, frame, args, kwargs, *more)
            key, iteration = None, recorder.iteration
            with failures(*_WASTED_WORK):
                key = wasted.key(label, args, kwargs)
                wasted.function_begins(label, func)
            call = iteration.count
            result = run(label, func, frame, args, kwargs)
            wasted.running = None
            with failures(*_WASTED_WORK):
                wasted.note(key, result, call if iteration.count > call else None)
            return result

        return numbered

    def begin_iteration(self, index: int) -> None:
        """Start measuring saved bytes."""
        assert self._recorder is not None
        self._argument_devices.clear()
        self._in_backward.clear()
        self.untrained = set()
        self._saved = SavedTensors(self.device.kind, self._recorder)
        with self._internals.anomalies.recording_failures(
            "activations_not_measured", "the activations"
        ):
            self._saved.start(self._weights.parameters(), self.modules.members(self._roots))
        self._used.clear()
        if self.wasted is not None:
            self.wasted.begin()
            self._interception.on_read = self._note_read
        super().begin_iteration(index)

    def end_iteration(self, index: int) -> None:
        """Keep the saved bytes by call, and the sizes of the weights."""
        assert self._saved is not None
        assert self._recorder is not None
        self._interception.on_read = None
        known = self._recorder.iteration.backwards and self._internals.has(
            "sequence_number", "node_number"
        )
        sites = set(self._recorder.iteration.columns()[0].tolist())
        super().end_iteration(index)
        saved, self._saved = self._saved, None
        self.last_saved = saved
        self.saved_bytes.append(saved.stop(self._in_backward if known else None))
        self.most_saved_bytes = saved.most_bytes
        parameters = {item.device.type for item in self._weights.parameters()}
        self.devices = parameters or set(self._argument_devices)
        if self.device.kind in self.devices:
            used = None
            self.irregularities = Anomalies()
            with self.irregularities.recording_failures(
                "weights_of_all_modules", "selection of the modules that ran"
            ):
                used = self._in_use(sites)
            with self.irregularities.recording_failures("weights_not_listed", "the weights"):
                optimizers = list(self._interception.optimizers)
                self.optimizer_state_bytes = optimizer_state_bytes(
                    optimizers, self.device.kind, self._internals.storage_key
                )
                workers = self._interception.loader_workers
                self.program_settings = program_settings(optimizers, workers)
                self.weight_records = self._weights.records(
                    self.device.kind, self.modules, used, self.irregularities
                )

    def _in_use(self, sites: set[int]) -> InUse | None:
        """Return the modules and parameters that an iteration used; None if unknown."""
        modules = [self._sites.sites[number].module for number in sorted(sites)]
        roots = dict.fromkeys(module.root for module in modules if module is not None)
        self._roots |= roots
        parameters = {key for key, weak in self._used.items() if weak() is not None}
        return InUse(self.modules.members(roots), parameters) if roots or parameters else None

    def clear(self) -> None:
        """Discard all measurements."""
        super().clear()
        self.saved_bytes.clear()
        self.weight_records = ()

    def stop(self, complete: bool) -> None:
        """Stop recording, also within an iteration."""
        super().stop(complete)
        self._interception.on_read = None
        if self._saved is not None:
            self._saved.stop()
            self._saved = None

    def _note_read(self, method: str) -> None:
        assert self.wasted is not None
        if self._interception.is_tracked_thread():
            with self._internals.anomalies.recording_failures(*_WASTED_WORK):
                self.wasted.note_read(method)

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
        self._nodes.append((node, call))
        if call >= 0:
            self._in_backward.add(call)
        elif (leaf := leaf_of(node)) is not None:
            self._used[id(leaf)] = weakref.ref(leaf)
        with self._internals.anomalies.recording_failures(
            "saved_numbers_not_counted", "numbers saved by a node"
        ):
            self._saved.saved_numbers(node, call)

    def _on_engine(self, runs: bool) -> None:
        if runs:
            nodes, self._nodes = self._nodes, []
            with self._internals.anomalies.recording_failures(
                "untrained_not_found", "gradients that no optimizer uses"
            ):
                found = untrained_calls(nodes, self._interception.optimizers)
                needed = {call for _, call in nodes} - found
                self.untrained = (self.untrained | found) - needed
        if self._saved is not None:
            with self._internals.anomalies.recording_failures(
                "saved_tensor_not_counted", "tensors saved around a backward pass"
            ):
                (self._saved.pause if runs else self._saved.resume)()


def _not_started(*_: Any) -> Any:
    raise AssertionError("begin_iteration before start")


def _with_callback(run: Runner, on_call: Callable[[FrameType], None]) -> Runner:
    """Wrap `run` so that it calls `on_call` first."""

    def announced(label: Any, func: Any, frame: FrameType, *call: Any) -> Any:
        on_call(frame)
        return run(label, func, frame, *call)

    return announced


def count_irregularities(iterations: Sequence[MeasuredIteration], anomalies: Anomalies) -> None:
    """Count irregularities of the iterations as anomalies."""
    for iteration in iterations:
        number = iteration.number
        for value in iteration.losses:
            if not math.isfinite(value):
                anomalies.add("loss_not_finite", f"iteration {number}: the loss is {value}")
        anomalies.add(
            "backward_nodes_not_of_this_iteration",
            f"iteration {number}: the graph contains nodes created by another thread or before the "
            "iteration; their backward time is not assigned to an operation",
            iteration.foreign_nodes,
        )
        anomalies.add(
            "operations_not_recorded",
            f"iteration {number}: only its first {MAX_CALLS} operations were kept",
            iteration.dropped_calls,
        )
