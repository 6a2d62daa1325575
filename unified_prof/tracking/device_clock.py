"""Time on a device, measured with events in its streams.

The time between two events is that of the work between them only if the device is behind the host.
Otherwise it contains time in which the device waited for the host, including uprof's overhead.
Before a call is timed, the device therefore gets work (`Lag`) that lasts until the host has
enqueued the whole call. The cost of the events themselves is measured once (`Lag.event_ns`) and
subtracted. If the work may have been too short, this is checked: the time of a call is doubtful if
its first event completed before its last event was recorded.

This module must not raise within a program, access a device that the program has not accessed
(which would prevent forking), or add anything to a graph that the program captures.

`Lag` keeps a device behind the host with kernels that only take time. The lag is not queried,
because a query would cost as much as an event. Its minimum is known: a kernel of known length
cannot end before that length has passed since its launch. If the lag does not cover the next call,
another kernel is launched.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unified_prof.tracking.device import (
    NO_MARK,
    DeviceFault,
    HostClock,
    Mark,
    Marks,
    Milliseconds,
    Moment,
)
from unified_prof.tracking.torch_names import Anomalies, in_one_line

Place = tuple[int, int]  # Device number, stream number.

# Host time assumed for the first call of a kind.
_UNKNOWN_NS = 500_000
_SLACK_NS = 100_000
_MIN_NS = 400_000
_MAX_NS = 50_000_000
# Kernels are longer than required by this factor, because the clock speed of devices changes.
_MARGIN = 1.5
# Share of the last call's host time in the estimate for the next call of its kind.
_REMEMBERED_SHARE = 0.7
_TRIAL = 200_000
_WARM_NS = 5_000_000
_FILL_BYTES = 2**26
_PAIRS = 25
_SERIES = 4
_HOLDS_NS = 20_000_000
_TRIES = 3


class Lag:
    """Delays the devices of one kind.

    Args:
        spin: Launches work of about the given number of time units on the current stream of the
            current device.
        within: Returns a context manager that makes the given device current.
        event: Creates an event with timing.
        wait: Waits for the current device.
    """

    def __init__(
        self,
        spin: Callable[[int], None],
        within: Callable[[int], Any],
        event: Callable[[], Any],
        wait: Callable[[], None],
    ) -> None:
        self._spin = spin
        self._within = within
        self._event = event
        self._units_per_ns = _calibrated(spin, event, wait)
        self.event_ns = _event_cost_ns(spin, event, wait, self._units_per_ns)
        """Time that two events add to the work between them; see `_event_cost_ns`."""
        self._until_ns: dict[Place, int] = {}
        self._needs: dict[Any, int] = {}
        self._launched: list[tuple[Any, Any, int, int]] = []

    def is_needed(self, place: Place, what: Any, now_ns: int) -> bool:
        """Return True if the device may catch up with the host before a call is complete."""
        need = self._needs.get(what, _UNKNOWN_NS)
        return now_ns + need > self._until_ns.get(place, 0)

    def hold_back(self, place: Place, what: Any) -> None:
        """Launch work that occupies the current stream of the device."""
        counted = max(2 * self._needs.get(what, _UNKNOWN_NS), _MIN_NS)
        units = int(counted * _MARGIN * self._units_per_ns)
        begin, end = self._event(), self._event()
        with self._within(place[0]):
            now_ns = perf_counter_ns()
            begin.record()
            self._spin(units)
            end.record()
        self._until_ns[place] = max(now_ns, self._until_ns.get(place, 0)) + counted
        self._launched.append((begin, end, units, counted))

    def record_host_time(self, what: Any, host_ns: int) -> None:
        """Record the host time of a call."""
        before = self._needs.get(what, 0)
        need = max(int(1.5 * host_ns) + _SLACK_NS, int(_REMEMBERED_SHARE * before))
        self._needs[what] = min(need, _MAX_NS)

    def covers(self, place: Place, now_ns: int) -> bool:
        """Return True if the device is certainly behind the host at this moment."""
        return now_ns < self._until_ns.get(place, 0)

    def lasted(self) -> bool:
        """Return True if all kernels took as long as assumed; the device must be synchronized."""
        launched, self._launched = self._launched, []
        held = True
        for begin, end, units, counted_ns in launched:
            took_ns = begin.elapsed_time(end) * 1e6
            if took_ns < counted_ns:
                held = False
                self._units_per_ns = max(self._units_per_ns, units / max(took_ns, 1.0))
        return held

    def forget(self) -> None:
        """Discard the lag after the device was synchronized."""
        self._until_ns.clear()


def _calibrated(
    spin: Callable[[int], None], event: Callable[[], Any], wait: Callable[[], None]
) -> float:
    """Return the units per nanosecond at the speed of a warm device."""
    units, rate = _TRIAL, 1.0
    for _ in range(3):
        spin(_TRIAL)  # so that the timed work begins on a busy device
        begin, end = event(), event()
        begin.record()
        spin(units)
        end.record()
        wait()
        took_ns = max(begin.elapsed_time(end) * 1e6, 1.0)
        rate = units / took_ns
        units = max(_TRIAL, int(rate * _WARM_NS))
    return rate


def _event_cost_ns(
    spin: Callable[[int], None],
    event: Callable[[], Any],
    wait: Callable[[], None],
    units_per_ns: float,
) -> float:
    """Return the time that two events add to the work between them on a busy device.

    A device takes time to record an event and to continue: 2.1 us on an H100, where the smallest
    kernels take 1.2 us and the gap to the next one 0.85 us. The difference between measurements
    with one and with several kernels is the time of the additional kernels; what then remains for
    one kernel is the time of the events. Returns 0 if the device caught up with the host each time.
    """
    holds_ns = _HOLDS_NS
    for _ in range(_TRIES):
        spin(int(holds_ns * units_per_ns))
        pairs: dict[int, list[tuple[Any, Any]]] = {1: [], _SERIES: []}
        for _ in range(_PAIRS):
            for count, recorded in pairs.items():
                begin, end = event(), event()
                begin.record()
                for _ in range(count):
                    spin(1)
                end.record()
                recorded.append((begin, end))
        was_behind = not pairs[1][0][0].query()
        wait()
        if was_behind:
            one_ns, series_ns = (
                1e6 * float(statistics.median(begin.elapsed_time(end) for begin, end in recorded))
                for recorded in pairs.values()
            )
            return max(0.0, one_ns - (series_ns - one_ns) / (_SERIES - 1))
        holds_ns *= 4
    return 0.0


def make_lag(kind: str, module: Any) -> Lag:
    """Return a `Lag` for devices of a kind; `module` is torch's module for them."""
    import torch

    event = getattr(torch, "Event", None) if hasattr(torch, "accelerator") else None

    def new_event() -> Any:
        if event is None:
            return module.Event(enable_timing=True)
        return event(kind, enable_timing=True)

    return Lag(_spinner(kind, module), module.device, new_event, module.synchronize)


def _spinner(kind: str, module: Any) -> Callable[[int], None]:
    """Return a function that keeps a device busy with torch's `_sleep` or with memory fills."""
    sleep: Callable[[int], None] | None = getattr(module, "_sleep", None)
    if sleep is not None:
        return sleep
    import torch

    buffers: dict[int, Any] = {}

    def fill(units: int) -> None:
        device = int(module.current_device())
        with torch.no_grad(), torch._C.DisableTorchFunction():
            buffer = buffers.get(device)
            if buffer is None:
                place = f"{kind}:{device}"
                buffer = buffers[device] = torch.zeros(_FILL_BYTES, dtype=torch.uint8, device=place)
            for _ in range(max(1, units // _FILL_UNITS)):
                buffer.zero_()

    return fill


_FILL_UNITS = 10_000  # Number of time units of one fill.


_LISTS = (list, tuple)


class EventClock:
    """Records events before and after the work of a call; a mark is the number of an event.

    Args:
        kind: Device type.
        module: torch's module for it.
        anomalies: Counts events that could not be recorded or read.
        used: Numbers of the devices in use; the clock adds devices that it sees.
    """

    def __init__(self, kind: str, module: Any, anomalies: Anomalies, used: set[int]) -> None:
        import torch

        self._torch = torch
        self._kind = kind
        self._module = module
        self._anomalies = anomalies
        self.used = used
        self.lag: Lag | None = None
        """Keeps the device behind the host; None if the device is not delayed."""
        self.event_ms = 0.0
        """Time that two events add to the work between them, measured on a delayed device."""
        self.in_capture = 0
        """Number of calls that were captured into a graph and not timed."""
        self._untouched = True
        self._several = int(module.device_count()) > 1
        self.is_capturing: Callable[[], bool] = getattr(
            module, "is_current_stream_capturing", lambda: False
        )
        """Returns True if calls are being captured into a graph."""
        self._current, self._stream_of = _places(torch, module)
        self._numbers = itertools.count()
        self._events: dict[Mark, tuple[Any, int]] = {}
        self._pool: dict[int, list[Any]] = {}
        """Unused events by device."""
        self._calls: dict[Mark, tuple[Place, Any, int]] = {}
        """Device and stream, kind and host start time of each call in progress."""
        self._before: dict[Mark, Mark] = {}
        """For each delayed call, the event before the delay."""
        self._doubtful: set[Mark] = set()
        self.timed = 0
        """Number of timed calls and nodes."""
        self.caught_up = 0
        """Number of timed calls and nodes during which the device caught up with the host."""

    def mark(self) -> Mark:
        """Record an event in the current stream of the current device."""
        return NO_MARK if self._is_closed() else self._record(self._current())

    def moment(self) -> Moment:
        """Record an event on every device that the program uses."""
        if self._is_closed():
            return {}
        if not self._several:
            here = self._current()
            return {here: self._record(here)}
        return {device: self._record(device) for device in sorted(self.used | {self._current()})}

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any], what: Any) -> Mark:
        """Start timing a call with these arguments; `what` identifies the kind of call."""
        if self._is_closed():
            self.in_capture += not self._untouched
            return NO_MARK
        device = self._device_of(args, kwargs) if self._several else self._current()
        return self._begin(device, what)

    def follow(self, previous: Mark, what: Any) -> tuple[Mark, Mark]:
        """End the interval that began at `previous` and start another one; return both marks.

        Both must be on the same device and stream, as in threads of the autograd engine.
        """
        if self._is_closed():
            return NO_MARK, NO_MARK
        start = self._begin(self._current(), what, previous)
        return self._before.get(start, start), start

    def after(self, start: Mark) -> Mark:
        """End the interval that began at `start`."""
        if start not in self._calls:
            return NO_MARK
        if (
            self.is_capturing()
        ):  # it began before the capture: its end would become part of the graph
            del self._calls[start]
            return NO_MARK
        end = self._record(self._calls[start][0][0])
        self._finish(start)
        return end

    def _finish(self, start: Mark) -> None:
        """After the last event, check if the device was behind the host throughout the interval."""
        if start not in self._calls:
            return
        place, what, began_ns = self._calls.pop(start)
        now_ns = perf_counter_ns()
        lag = self.lag
        if lag is not None:
            lag.record_host_time(what, now_ns - began_ns)
        if lag is None or not lag.covers(place, now_ns):
            try:
                caught_up = bool(self._events[start][0].query())
            except Exception as error:
                caught_up = True
                self._note("event_not_read", error)
            if caught_up:
                self._doubtful.add(start)
                self.caught_up += 1

    def is_doubtful(self, starts: Marks) -> NDArray[np.bool_]:
        """Return True for each start whose interval may contain waiting for the host."""
        return np.array([int(start) in self._doubtful for start in starts], np.bool_)

    def before_wait(self, starts: Marks) -> Marks:
        """Return the mark of each call before it was delayed."""
        return [self._before.get(int(start), int(start)) for start in starts]

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the device time between two events in milliseconds; NaN if unknown."""
        if start == NO_MARK or end == NO_MARK:
            return float("nan")
        (first, here), (last, there) = self._events[start], self._events[end]
        if here != there:  # times of different devices cannot be compared
            return float("nan")
        try:
            return float(first.elapsed_time(last))
        except Exception as error:  # an event of a failed device
            self._note("event_not_read", error)
            return float("nan")

    def all_elapsed_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return the device times from `starts` to `ends` in milliseconds."""
        pairs = zip(starts, ends, strict=True)
        return np.array([self.elapsed_ms(int(a), int(b)) for a, b in pairs], np.float64)

    def work_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return the time that the work between marks takes on a busy device.

        It includes the kernels and the gaps after them, but not the cost of the two events.
        """
        found: Milliseconds = np.maximum(self.all_elapsed_ms(starts, ends) - self.event_ms, 0.0)
        return found

    def elapsed_between_ms(self, start: Moment, end: Moment) -> float:
        """Return the longest time of all devices between two moments."""
        spans = [self.elapsed_ms(start[one], end[one]) for one in start if one in end]
        return max(spans, default=float("nan"))

    def synchronize(self) -> None:
        """Wait for all devices in use.

        Raises:
            DeviceFault: An operation failed; the first synchronization reports it.
        """
        if self._untouched:
            return
        try:
            for device in sorted(self.used | {self._current()}) if self._several else (None,):
                self._module.synchronize(device)
            if self.lag is not None and not self.lag.lasted():
                self._doubtful.update(self._events)
        except Exception as error:
            raise DeviceFault(in_one_line(error)) from error

    def release(self) -> None:
        """Let the device catch up, so that following work runs without the added delay."""
        if self.lag is not None:
            self.synchronize()
            self.lag.forget()

    def forget(self) -> None:
        """Discard all marks and reuse their events."""
        for event, device in self._events.values():
            self._pool.setdefault(device, []).append(event)
        self._events.clear()
        self._calls.clear()
        self._before.clear()
        self._doubtful.clear()

    def _begin(self, device: int, what: Any, previous: Mark = NO_MARK) -> Mark:
        """Start an interval; end the interval `previous` before the device is delayed."""
        place = self._place(device)
        lag, before = self.lag, NO_MARK
        began_ns = perf_counter_ns()
        if lag is not None and lag.is_needed(place, what, began_ns):
            before = self._record(device)
            self._finish(previous)
            try:
                lag.hold_back(place, what)
            except Exception as error:  # the program's next call reports it
                self.lag = None
                self._anomalies.add("device_not_held_back", in_one_line(error))
            began_ns = perf_counter_ns()
            start = self._record(device)
        else:
            start = self._record(device)
            self._finish(previous)
        if start != NO_MARK:
            self.timed += 1
            self._calls[start] = (place, what, began_ns)
            if before != NO_MARK:
                self._before[start] = before
        return start

    def _place(self, device: int) -> Place:
        return device, int(self._stream_of(device).stream_id)

    def _is_closed(self) -> bool:
        """Return True if no event may be recorded now."""
        if self._untouched:
            if not getattr(self._module, "is_initialized", lambda: True)():
                return True
            self._untouched = False
        return self.is_capturing()

    def _record(self, device: int) -> Mark:
        """Record an event in the current stream of a device."""
        try:
            here = device == self._current()
            event = self._pooled(device)
            if here:
                event.record()
            else:
                event.record(self._stream_of(device))
        except Exception as error:  # the program's next call reports it
            self._note("event_not_recorded", error)
            return NO_MARK
        number = next(self._numbers)  # called from any thread of the autograd engine
        self._events[number] = (event, device)
        self.used.add(device)
        return number

    def _pooled(self, device: int) -> Any:
        try:
            return self._pool[device].pop()
        except (KeyError, IndexError):
            pass
        # torch.Event serves every accelerator from torch 2.6 on; before, each has its own.
        if hasattr(self._torch, "accelerator"):
            return self._torch.Event(f"{self._kind}:{device}", enable_timing=True)
        return self._module.Event(enable_timing=True)

    def _device_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the device of the first tensor argument, or of the argument `device`."""
        for one in (*args, *kwargs.values()):
            found = one
            if type(one) in _LISTS:
                found = next((each for each in one if isinstance(each, self._torch.Tensor)), None)
            if isinstance(found, self._torch.Tensor):
                try:
                    place = found.device
                except Exception:  # a subclass without a device
                    continue
                if place.type == self._kind and place.index is not None:
                    return int(place.index)
        asked = kwargs.get("device")
        if isinstance(asked, int):
            return asked
        if asked is not None:
            try:
                place = self._torch.device(asked)
            except Exception:  # the call itself will raise
                return self._current()
            if place.type == self._kind and place.index is not None:
                return int(place.index)
        return self._current()

    def _note(self, name: str, error: Exception) -> None:
        self._anomalies.add(name, f"an operation is not timed: {in_one_line(error)}")


Clock: TypeAlias = HostClock | EventClock


def _places(torch: Any, module: Any) -> tuple[Callable[[], int], Callable[[int], Any]]:
    """Return two functions: current device, and current stream of a device."""
    accelerator = getattr(torch, "accelerator", None)
    for name in ("current_device_index", "current_device_idx"):  # the second one up to torch 2.7
        current = getattr(accelerator, name, None)
        if current is not None:
            break
    return (
        current or module.current_device,
        getattr(accelerator, "current_stream", None) or module.current_stream,
    )
