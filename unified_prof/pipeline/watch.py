"""Watch a running program: one row per step, and captures when something happens.

The program's thread measures each step and compares its length with a limit. A second thread wakes
up twice a second; it writes the rows, looks for drift and memory growth, reads requests, and starts
the processes that explain captures.
"""

from __future__ import annotations

import itertools
import os
import platform
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

from msgspec import Struct

from unified_prof.backends.msprof_outcome import DynamicRecording
from unified_prof.backends.npu_launcher import MarkIterations
from unified_prof.base import streams
from unified_prof.base.text import NS_PER_MS, printable
from unified_prof.compare.step_changes import StepChanges
from unified_prof.errors import INTERRUPTED, UprofError
from unified_prof.pipeline.outputs import make_directory, rank_here
from unified_prof.pipeline.watch_captures import (
    CAPTURES,
    TRACE_NAME,
    Budget,
    Conversions,
    Requests,
    new_directory,
)
from unified_prof.sqlite.watch_file import StepRow, WatchEvent, WatchFile
from unified_prof.tracking.live import tracked_by
from unified_prof.tracking.watch import StepCapture, StepCollector

_INTERVAL_S = 0.5
# Rows that may wait for the disk; more would fill the memory if it hangs.
_MAX_ROWS = 1_000_000
_HOST_ONLY = "; the capture contains the host only"
_HEALTHY_AFTER = 50  # Steps before the capture of healthy steps.
_EXPLAIN_S = 60.0  # Longest time to wait at the end of the run for captures to be explained.


class Exporter(Protocol):
    """Passes steps on to another system, on the writing thread."""

    def export(self, rows: Sequence[StepRow], events: Sequence[WatchEvent]) -> None:
        """Pass on the rows and events since the last call."""

    def close(self) -> None:
        """Pass on the rest and stop."""


class WatchSettings(Struct, frozen=True):
    """Triggers of captures, and their size."""

    steps: int = 5  # Steps per capture.
    slow_factor: float = 2.0  # A step is slow if it takes this many times the running median.
    drift_percent: float = 10.0  # Steps drift if they take this much longer for good.
    # Seconds between captures at fixed intervals; None: no such captures.
    every_s: float | None = None
    # Maximum share of the time that triggered captures may take; 0: no captures at all.
    share: float = 0.02
    details: tuple[str, ...] = ("shapes",)  # Details of captures, see `tracking.timeline.DETAILS`.


class _Capture(Struct):
    """A capture that is wanted, and its recording once it has started."""

    event: WatchEvent
    from_step: int = 0
    steps: int | None = None  # Number of steps; None: as in the settings.
    is_free: bool = True  # True if it does not count against the budget.
    recording: StepCapture | None = None
    slowed_ns: int = 0  # Time that its steps took longer than usual.
    place: Path | None = None  # Its directory.
    on_npu: DynamicRecording | None = None  # Recording of msprof, which starts before the steps.

    def includes_npu(self) -> bool:
        """Return True if msprof records; otherwise note in the event why it does not."""
        if self.on_npu is None or self.on_npu.failure is None:
            return self.on_npu is not None
        if _HOST_ONLY not in self.event.text:
            self.event.text += f"{_HOST_ONLY} ({self.on_npu.failure})"
        return False


class Watch:
    """Context manager that watches the program of this thread.

    `folder` is the same for all ranks, `facts` are rows of UPROF_RUN; exporters receive all rows
    and events. The program's stack ends at the code objects `bottoms`. Raises OutputError if the
    directory or file cannot be written, and DeviceUnavailableError if the device cannot be used
    here.
    """

    def __init__(
        self,
        folder: Path,
        device: str,
        *,
        settings: WatchSettings | None = None,
        facts: Mapping[str, str | None] | None = None,
        exporters: Sequence[Exporter] = (),
        bottoms: Sequence[CodeType] = (),
    ) -> None:
        self.folder = folder.absolute()  # the program may change its directory
        self.settings = settings or WatchSettings()
        self.exit_code = 0
        rank = rank_here()
        self._number = rank.number or 0
        self._exporters = list(exporters)
        self._collector = StepCollector(device, self._take, self._after_step, bottoms)
        self._changes = StepChanges(
            slow_factor=self.settings.slow_factor, drift_percent=self.settings.drift_percent
        )
        self._budget = Budget(self.settings.share)
        self._conversions = Conversions(self.folder)
        self._numbers = itertools.count()
        self._rows: deque[StepRow] = deque()
        self._events: deque[WatchEvent] = deque()
        # Events of slow steps whose rows are not known yet, by step.
        self._slow: dict[int, WatchEvent] = {}
        self._lost = 0
        self._is_off = False  # True after the file could not be written.
        self._wanted: deque[_Capture] = deque()
        # Captures for which msprof must start first.
        self._attaching: deque[_Capture] = deque() if device == "npu" else self._wanted
        self._msprof: DynamicRecording | None = None
        self._active: _Capture | None = None
        self._recorded: deque[_Capture] = deque()  # Captures that have ended.
        # Captures whose steps are not all written, by the number of the event.
        self._counted: dict[int, _Capture] = {}
        self._was_healthy = False
        self._interval_began_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uprof watch", daemon=True)
        self._signaled: Any = None
        make_directory(self.folder)
        self._requests = Requests(self.folder, self._number)
        self._file = WatchFile(
            self.folder,
            self._number,
            {
                "rank": str(self._number),
                "world_size": str(rank.world_size or 1),
                "host": platform.node(),
                "pid": str(os.getpid()),
                **(facts or {}),
                "device": device,
                "began_ns": str(time.time_ns()),
            },
        )

    def __enter__(self) -> Watch:
        self._marks = tracked_by(self._collector)
        self._marks.__enter__()
        self._collector.begin()
        self._listen()
        self._owner = os.getpid()
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if os.getpid() != self._owner:  # a forked child leaves the block
            return
        active, self._active = self._active, None
        if active is not None and active.recording is not None:
            active.recording.stop()
            self._recorded.append(active)
        self._collector.end()
        self._marks.__exit__(None, None, None)
        if self._signaled is not None:
            signal.signal(signal.SIGUSR2, self._signaled)
        if error is not None:
            otherwise = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
            code = error.code if isinstance(error, SystemExit) else otherwise
            self.exit_code = code if isinstance(code, int) else int(code is not None)
        self._over.set()
        self._thread.join()

    def leave_out(self) -> None:
        """Count the time since the last step, such as a validation, to no step."""
        self._collector.leave_out()

    def _listen(self) -> None:
        """Let SIGUSR2 request a capture, unless the program or its launcher handles it."""
        number = getattr(signal, "SIGUSR2", None)
        if number is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(number) is signal.SIG_DFL:
            self._signaled = signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: Any) -> None:
        self._attaching.append(_Capture(self._event("signal", "SIGUSR2 requested a capture")))

    def _event(self, kind: str, text: str, step: int | None = None) -> WatchEvent:
        step = self._collector.steps if step is None else step
        return WatchEvent(next(self._numbers), time.time_ns(), step, kind, text)

    # On the program's thread.

    def _take(self, row: StepRow) -> None:
        if len(self._rows) < _MAX_ROWS and not self._is_off:
            self._rows.append(row)
        else:
            self._lost += 1

    def _after_step(self, step: int, length_ns: int) -> None:
        if self._active is not None:
            self._go_on(self._active)
        elif length_ns > self._changes.slow_limit_ns:
            self._step_was_slow(step, length_ns)
        if self._wanted and self._active is None and step + 1 >= self._wanted[0].from_step:
            self._start(self._wanted.popleft(), step)

    def _step_was_slow(self, step: int, length_ns: int) -> None:
        if not self._changes.is_unusual(step, length_ns):
            return
        text = f"step {step:,} took {length_ns / NS_PER_MS:,.1f} ms"
        event = self._slow[step] = self._event("slow_step", text, step)
        if not self._budget.allows():
            self._events.append(event)
        elif self._attaching is self._wanted:
            self._start(_Capture(event, is_free=False), step)
        elif self._attaching:
            self._events.append(event)
        else:
            self._attaching.append(_Capture(event, is_free=False))

    def _start(self, capture: _Capture, step: int) -> None:
        event = capture.event
        try:
            place = capture.place or self._make_place(event, step + 1)
            steps = capture.steps or self.settings.steps
            device = self._collector.device.kind
            marks = [MarkIterations()] if capture.includes_npu() else []
            capture.recording = StepCapture(
                place / TRACE_NAME, device, steps, self.settings.details, marks
            )
            event.capture, event.status = f"{CAPTURES}/{place.name}", "recording"
            self._active, self._collector.event = capture, event.id
            self._counted[event.id] = capture
            self._events.append(event)
            self._go_on(capture)
        except Exception as error:  # a failing capture must not disturb the program
            self._failed(capture, error)

    def _make_place(self, event: WatchEvent, step: int) -> Path:
        name = f"rank{self._number}_step{step}_{event.kind}"
        return new_directory(self.folder / CAPTURES, name)

    def _go_on(self, capture: _Capture) -> None:
        assert capture.recording is not None
        try:
            if capture.recording.advance():
                self._active = self._collector.event = None
                self._recorded.append(capture)
        except Exception as error:
            self._failed(capture, error)

    def _failed(self, capture: _Capture, error: Exception | str) -> None:
        if self._active is capture:
            self._active = self._collector.event = None
        if capture.on_npu is not None:
            capture.on_npu.has_stopped()
        event = capture.event
        event.status = event.capture and "failed"
        event.finding = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._events.append(event)

    # On the writing thread.

    def _run(self) -> None:
        while not self._is_off:
            is_over = self._over.wait(_INTERVAL_S)
            try:
                self._write()
            except Exception as error:  # a full disk must not end the program
                reason = error if isinstance(error, UprofError) else repr(error)
                streams.tell(f"uprof: watching ended: {printable(str(reason))}")
                self._is_off = True
                self._rows.clear()
            if is_over:
                break
        with suppress(Exception):
            if not self._is_off:
                self._finish()
        if self._msprof is not None:
            self._msprof.kill()
        for exporter in self._exporters:
            with suppress(Exception):
                exporter.close()

    def _write(self) -> None:
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        for row in rows:
            if row.event is not None and (capture := self._counted.get(row.event)) is not None:
                usual_ns = round(self._changes.slow_limit_ns / self.settings.slow_factor)
                capture.slowed_ns += max(0, row.length_ns - usual_ns)
            if (event := self._slow.pop(row.step, None)) is not None:
                event.text = self._changes.slow(row).text
                self._events.append(event)
        for change in self._changes.add(rows):
            event = self._event(change.kind, change.text, change.step)
            if self._budget.allows() and not (self._wanted or self._attaching):
                self._attaching.append(_Capture(event, is_free=False))
            else:
                self._events.append(event)
        self._look_for_reasons()
        self._end_recordings()
        if self._attaching is not self._wanted:
            self._attach()
        self._events.extend(self._conversions.poll())
        if self._lost:
            lost, self._lost = self._lost, 0
            words = f"{lost:,} steps were not written, because the disk did not respond"
            self._events.append(self._event("lost", words))
        self._hand_over(rows)

    def _hand_over(self, rows: Sequence[StepRow] = ()) -> None:
        """Write rows and events, and pass them on."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        if not rows and not events:
            return
        self._file.append(rows, events)
        for exporter in self._exporters[:]:
            try:
                exporter.export(rows, events)
            except Exception as error:  # a server must not disturb the program
                self._exporters.remove(exporter)
                streams.tell(f"uprof: an exporter failed and is off: {printable(repr(error))}")

    def _look_for_reasons(self) -> None:
        """Request the captures that are due."""
        for request in self._requests.new():
            event = self._event("request", f"capture {request.name} was requested")
            self._attaching.append(_Capture(event, request.from_step, request.steps))
        if self._wanted or self._attaching or self._active is not None or not self.settings.share:
            return
        every_s, now_s = self.settings.every_s, time.monotonic()
        if not self._was_healthy and self._collector.steps >= _HEALTHY_AFTER:
            self._was_healthy = True
            event = self._event("healthy", "capture of usual steps, for comparison")
            self._attaching.append(_Capture(event))
        elif every_s and now_s - self._interval_began_s > every_s and self._budget.allows():
            self._interval_began_s = now_s
            event = self._event("interval", "capture at a fixed interval")
            self._attaching.append(_Capture(event, is_free=False))

    def _attach(self) -> None:
        """Start msprof for the next capture of an NPU; it may start late, but is not waited for."""
        while self._attaching and not (
            self._wanted or self._active or self._recorded or self._over.is_set()
        ):
            capture = self._attaching[0]
            try:
                if capture.on_npu is None:
                    if self._msprof is not None and not self._msprof.has_stopped():
                        return
                    capture.place = self._make_place(capture.event, self._collector.steps)
                    self._msprof = capture.on_npu = DynamicRecording(capture.place)
                if not capture.on_npu.has_started:
                    return
                self._wanted.append(capture)
            except UprofError as error:
                self._failed(capture, error)
            self._attaching.popleft()

    def _end_recordings(self) -> None:
        for _ in range(len(self._recorded)):
            capture = self._recorded.popleft()
            if capture.on_npu is None or capture.on_npu.has_stopped():
                self._capture_ended(capture)
            else:
                self._recorded.append(capture)

    def _capture_ended(self, capture: _Capture) -> None:
        assert capture.recording is not None
        failure = capture.recording.failure
        spent_ns = capture.recording.spent_ns + capture.slowed_ns
        self._budget.spend(spent_ns, is_free=capture.is_free)
        self._counted.pop(capture.event.id, None)
        if not capture.includes_npu() and failure is not None:
            self._failed(capture, failure)
            return
        capture.event.status = "converting"
        self._events.append(capture.event)
        self._conversions.add(capture.event)

    def _finish(self) -> None:
        """Wait until captures are explained, and close the file."""
        end_s = time.monotonic() + _EXPLAIN_S
        while (self._recorded or not self._conversions.is_idle) and time.monotonic() < end_s:
            self._end_recordings()
            self._events.extend(self._conversions.poll())
            self._hand_over()
            time.sleep(0.05)
        self._conversions.stop()
        self._hand_over()
        self._file.close({"exit_code": str(self.exit_code), "ended_ns": str(time.time_ns())})
