"""Measure every step of a running program at a cost of some microseconds per step.

The ends of steps and the parts of a step are found as in tracked runs (`training_loop`, `passes`),
but no operation is recorded. On a device, events mark the passes; their times are read some steps
later, without waiting for the device.
"""

from __future__ import annotations

import functools
import gc
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from types import CodeType
from typing import Any

from unified_prof.sqlite.watch_file import StepRow
from unified_prof.tracking.device import Device, HostClock
from unified_prof.tracking.driver import MEASURING, Instrument
from unified_prof.tracking.interception import Interception
from unified_prof.tracking.passes import (
    BACKWARD,
    DATA_LOADING,
    FORWARD,
    GRADIENT_CLIPPING,
    OPTIMIZER,
    OTHER,
    READS,
    RECOMPUTATION,
    SEPARATE_READS,
    ZERO_GRAD,
    Passes,
    batch_size,
)
from unified_prof.tracking.timeline import TimelineInstrument
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Anomalies, Patches
from unified_prof.tracking.training_loop import InferredLoop, StepWatcher

# Column of a watch file for each part of a step.
_COLUMN = {
    FORWARD: FORWARD,
    BACKWARD: BACKWARD,
    RECOMPUTATION: BACKWARD,
    OPTIMIZER: OPTIMIZER,
    ZERO_GRAD: OPTIMIZER,
    GRADIENT_CLIPPING: OPTIMIZER,
}
_PASSES = (FORWARD, BACKWARD, OPTIMIZER)
_NS_PER_MS = 1e6
# Steps whose events may be outstanding; a device that hangs must not fill the memory.
_MAX_OUTSTANDING = 1_000
# Reading the memory, and marking passes on a device, may take this share of the time.
_MEMORY_SHARE, _MARKS_SHARE = 0.0003, 0.003
_MAX_MARK_NS, _MAX_INTERVAL = 100_000, 1024
_CLOCK = HostClock()


class DeviceParts:
    """Marks the passes of steps with events of the current device.

    A mark takes the host some microseconds. Of short steps, only every second, fourth, eighth, ...
    is marked: numbers that ranks have in common.
    """

    def __init__(self, device: Device) -> None:
        import torch

        self._device = device
        self._new: Callable[[], Any] = (
            (lambda: torch.Event(device.kind, enable_timing=True))
            if hasattr(torch, "accelerator")
            else (lambda: device.module.Event(enable_timing=True))
        )
        self._pool: list[Any] = []
        self._part = OTHER
        self._marks: list[tuple[Any, str]] | None = []
        self._interval, self._began_ns, self._due_ns = 1, 0, 0

    def switch(self, part: str) -> None:
        """Begin a part; reads of the host are within the pass that they interrupt."""
        if part == READS:
            return
        column = _COLUMN.get(part, OTHER)
        if column == self._part or self._marks is None:
            return
        began_ns = perf_counter_ns()
        try:
            if not self._device.is_touched or self._device.is_capturing:
                raise RuntimeError
            event = self._pool.pop() if self._pool else self._new()
            event.record()
        except Exception:  # capturing, or a failed device: the program's next call reports it
            self._marks = None
            return
        self._marks.append((event, column))
        self._part = column
        self._paid(began_ns)

    def begin(self, step: int) -> None:
        """Begin a step, and mark it unless the marks of the last one have cost too much."""
        now_ns, self._part = perf_counter_ns(), OTHER
        self._marks = None
        if step % self._interval:
            return
        if now_ns < self._due_ns:
            self._interval = min(2 * self._interval, _MAX_INTERVAL)
            return
        if now_ns - self._began_ns > 4 * (self._due_ns - self._began_ns):
            self._interval = max(self._interval // 2, 1)
        self._marks, self._began_ns, self._due_ns = [], now_ns, now_ns

    def end(self) -> list[tuple[Any, str]]:
        """Return the marks of the step that ends; none if they are incomplete."""
        marks, self._marks = self._marks or [], None
        return marks

    def read(self, marks: list[tuple[Any, str]]) -> dict[str, int] | None:
        """Return the nanoseconds of each pass; None if the device has not passed the marks yet."""
        began_ns = perf_counter_ns()
        found = dict.fromkeys(_PASSES, 0)
        if marks and not marks[-1][0].query():
            return None
        for (start, column), (end, _) in pairwise(marks):
            if column != OTHER:
                found[column] += round(start.elapsed_time(end) * _NS_PER_MS)
        self._pool += [event for event, _ in marks]
        self._paid(began_ns)
        return found

    def _paid(self, began_ns: int) -> None:
        spent_ns = perf_counter_ns() - began_ns  # more than the maximum: a full queue of launches
        self._due_ns += round(min(spent_ns, _MAX_MARK_NS) / _MARKS_SHARE)


class StepParts(Passes):
    """Adds up the host time of the parts of a step; one object serves all steps."""

    def __init__(self, on_device: DeviceParts | None) -> None:
        super().__init__(_CLOCK, None)
        self._on_device = on_device
        self.restart()

    def restart(self) -> None:
        """Begin a step."""
        self.host_ns: dict[str, int] = {}
        """Part -> nanoseconds."""
        self._part, self.separates_reads = OTHER, True
        self.began_ns = self._since_ns = perf_counter_ns()
        self.await_forward()

    def switch(self, part: str) -> None:
        """Begin `part` and end the current one."""
        now_ns = perf_counter_ns()
        spent_ns = now_ns - self._since_ns
        self.host_ns[self._part] = self.host_ns.get(self._part, 0) + spent_ns
        self._since_ns, self._part = now_ns, part
        self.separates_reads = part in SEPARATE_READS
        if self._on_device is not None:
            self._on_device.switch(part)


class StepCollector:
    """Finds the steps of this thread's program and passes a row for each to `take`.

    Args:
        device: torch device type.
        take: Called with each row, in order; on a device some steps later.
        on_step: Called between two steps with the number and length in ns of the one that ended.
            The time that it takes belongs to no step.
        bottoms: Code objects at which the program's stack ends.

    Raises:
        DeviceUnavailableError: The device cannot be used here.
    """

    def __init__(
        self,
        device: str,
        take: Callable[[StepRow], None],
        on_step: Callable[[int, int], None],
        bottoms: Sequence[CodeType] = (),
    ) -> None:
        self.device = Device(device)
        self.anomalies = Anomalies()
        self.event: int | None = None
        """Number of the event whose capture slows the current step."""
        self._take = take
        self._on_step = on_step
        self._internals = TorchInternals(self.anomalies)
        self._interception = Interception(self._internals)
        self._patches = Patches()
        self._on_device = None if self.device.is_cpu else DeviceParts(self.device)
        self._outstanding: deque[tuple[StepRow, list[tuple[Any, str]]]] = deque()
        self._parts: StepParts | None = None
        self._step = self._samples = self._start_ns = self._cpu_ns = 0
        self._gc_ns = self._gc_began_ns = self._memory_due_ns = 0
        self._statm = -1
        self._steps = StepWatcher(
            self._interception,
            boundary=self._marked,
            joined=self._restarted,
            step_begins=self._optimizer_begins,
            step_ended=self._optimizer_ended,
        )
        self._unmarked = InferredLoop(
            self._interception,
            boundary=lambda: self._interception.outside_engine(self._end_step),
            joined=self._restarted,
            measuring=lambda: self._step > 0,
            bottoms=frozenset(bottoms),
        )

    @property
    def steps(self) -> int:
        """Number of complete steps."""
        return self._step

    @property
    def elsewhere(self) -> int:
        """Number of optimizer steps and model calls in other threads, which are not measured."""
        return self._steps.elsewhere + self._unmarked.elsewhere

    def begin(self) -> None:
        """Start to measure on this thread, with the first end of a step."""
        self._interception.install_parts()
        self._internals.replace(self._patches, "dataloader_next", self._wrap_loader)
        self._steps.install()
        self._unmarked.install()
        gc.callbacks.append(self._collected)
        with suppress(OSError):
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        MEASURING.add(self)

    def end(self) -> None:
        """Stop and pass on the remaining rows."""
        if self._on_device is not None:
            with suppress(Exception):
                self.device.module.synchronize()
        self._read(last=True)
        self.abandon()

    def abandon(self) -> None:
        """Stop without using the device, as in a forked child."""
        MEASURING.discard(self)
        self._parts = self._on_device = None
        self._outstanding.clear()
        self._steps.remove()
        self._unmarked.remove()
        self._patches.restore()
        self._interception.remove()
        with suppress(ValueError):
            gc.callbacks.remove(self._collected)
        if self._statm >= 0:
            os.close(self._statm)
            self._statm = -1

    def mark(self, samples: int | None = None) -> None:
        """End a step, as marked by the program."""
        if samples is not None:
            self._samples = samples
        self._steps.marked()

    def leave_out(self) -> None:
        """Begin the current step again."""
        if self._parts is not None:
            self._restarted()

    def _marked(self) -> None:
        """Handle an optimizer step or mark; other events no longer end steps."""
        if self._interception.on_backward is not None:
            self._unmarked.remove()
        self._interception.outside_engine(self._end_step)

    def _restarted(self) -> None:
        """Handle another kind of end: the current step is not complete."""
        if self._steps.steps and self._interception.on_backward is not None:
            self._unmarked.remove()
        self._interception.outside_engine(self._begin_again)

    def _optimizer_begins(self) -> None:
        if self._parts is not None:
            self._parts.optimizer_steps()

    def _optimizer_ended(self) -> None:
        if self._parts is not None:
            self._parts.optimizer_ended()

    def _end_step(self) -> None:
        parts = self._parts
        if parts is not None:
            if not self.device.is_cpu and self.device.is_capturing:
                return
            parts.switch(OTHER)
            length_ns = perf_counter_ns() - parts.began_ns
            self._finish(parts, length_ns)
            step, self._step = self._step, self._step + 1
            was_captured = self.event is not None
            self._on_step(step, length_ns)
            if not was_captured and self.event is None:
                self._begin_step()
                return
        self._begin_again()

    def _begin_again(self) -> None:
        self._cpu_ns = process_time_ns()
        self._begin_step()

    def _begin_step(self) -> None:
        """Begin a step at the end of the last one, by the clock of CPU time."""
        if self._on_device is not None:
            self._on_device.begin(self._step)
        self._samples = self._gc_ns = 0
        self._start_ns = time.time_ns()
        if self._parts is None:
            self._parts = StepParts(self._on_device)
        else:
            self._parts.restart()
        self._interception.observe(self._parts)

    def _finish(self, parts: StepParts, length_ns: int) -> None:
        ns_of = parts.host_ns.get
        allocated, reserved = self._memory()
        before_ns, self._cpu_ns = self._cpu_ns, process_time_ns()
        row = StepRow(
            self._step,
            self._start_ns,
            length_ns,
            ns_of(DATA_LOADING, 0),
            ns_of(FORWARD, 0),
            ns_of(BACKWARD, 0) + ns_of(RECOMPUTATION, 0),
            ns_of(OPTIMIZER, 0) + ns_of(ZERO_GRAD, 0) + ns_of(GRADIENT_CLIPPING, 0),
            ns_of(READS, 0),
            self._gc_ns,
            self._cpu_ns - before_ns,
            allocated,
            reserved,
            self._samples or None,
            self.event,
        )
        if self._on_device is None:
            self._take(row)
            return
        self._outstanding.append((row, self._on_device.end()))
        self._read(last=False)

    def _read(self, *, last: bool) -> None:
        """Pass on the rows of steps that the device has completed; all of them if `last`."""
        waiting, on_device = self._outstanding, self._on_device
        while waiting and on_device is not None:
            row, marks = waiting[0]
            try:
                passes = on_device.read(marks) if marks else None
            except Exception:  # an event of a failed device, or of another one
                passes, marks = None, []
            if marks and passes is None and not last and len(waiting) < _MAX_OUTSTANDING:
                return
            waiting.popleft()
            values = dict.fromkeys(_PASSES) if passes is None else passes
            self._take(
                row._replace(
                    forward_ns=values[FORWARD],
                    backward_ns=values[BACKWARD],
                    optimizer_ns=values[OPTIMIZER],
                    device_ns=None if passes is None else sum(passes.values()),
                )
            )

    def _memory(self) -> tuple[int | None, int | None]:
        """Return allocated and reserved bytes; None if unknown, or not due."""
        began_ns = perf_counter_ns()
        if began_ns < self._memory_due_ns:
            return None, None
        found: tuple[int | None, int | None] = None, None
        try:
            if self.device.is_cpu:
                if self._statm >= 0:
                    pages = int(os.pread(self._statm, 64, 0).split()[1])
                    found = pages * os.sysconf("SC_PAGE_SIZE"), None
            elif self.device.is_touched:
                module = self.device.module
                found = int(module.memory_allocated()), int(module.memory_reserved())
        except Exception:  # a failed device, or a module without these functions
            self._memory_due_ns = 1 << 62
            return None, None
        cost_ns = perf_counter_ns() - began_ns
        self._memory_due_ns = began_ns + round(cost_ns / _MEMORY_SHARE)
        return found

    def _collected(self, phase: str, _info: Any) -> None:
        now_ns = perf_counter_ns()
        if phase == "start":
            self._gc_began_ns = now_ns
        elif self._gc_began_ns:
            self._gc_ns += now_ns - self._gc_began_ns

    def _wrap_loader(self, call: Any) -> Any:
        collector = self

        @functools.wraps(call)
        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            batch = call(self, *args, **kwargs)
            if collector._parts is not None and collector._interception.is_tracked_thread():
                collector._samples += batch_size(batch)
            return batch

        return counted


class StepCapture:
    """Records a timeline of the next steps, on the program's thread.

    Args:
        path: Trace file to write.
        device: torch device type.
        steps: Number of steps to record.
        details: Details to record, see `timeline.DETAILS`.
        marks: Further instruments for the recorded steps.
    """

    def __init__(
        self,
        path: Path,
        device: str,
        steps: int,
        details: tuple[str, ...],
        marks: Sequence[Instrument] = (),
    ) -> None:
        self._timeline = TimelineInstrument(path, device, details)
        self._instruments = (self._timeline, *marks)
        for mark in marks:
            mark.start()
        self._wanted = self._timeline.lead_in + steps
        self._done = -1
        self._collection: Any = nullcontext()
        self.spent_ns = 0
        """Time that the program's thread spent on starting, stopping and writing the recording."""

    def advance(self) -> bool:
        """End a step and begin the next one; return True once the recording is over."""
        began_ns = perf_counter_ns()
        if self._done >= 0:
            for one in self._instruments:
                one.end_iteration(self._done)
        self._done += 1
        is_over = self._done >= self._wanted
        if is_over:
            self._unmark_collections()
            self._timeline.stop(complete=True)  # torch's profiler is not thread-safe
        else:
            if not self._done:
                gc.callbacks.append(self._collected)
            for one in self._instruments:
                one.begin_iteration(self._done)
        self.spent_ns += perf_counter_ns() - began_ns
        return is_over

    def stop(self) -> None:
        """End the recording early."""
        self._unmark_collections()
        for one in self._instruments:
            one.stop(complete=False)

    def _unmark_collections(self) -> None:
        with suppress(ValueError):
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, _info: Any) -> None:
        """Mark a garbage collection in the timeline, which torch records only with stacks."""
        from torch.profiler import record_function

        if phase == "start":
            self._collection = record_function("Python GC")  # as torch names them
            self._collection.__enter__()
        else:
            self._collection.__exit__(None, None, None)

    @property
    def failure(self) -> str | None:
        """Reason why there is no trace after the recording; None if it was written."""
        return None if self._timeline.written else self._timeline.remarks or "no step was recorded"
