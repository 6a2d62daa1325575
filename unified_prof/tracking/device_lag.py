"""Keep a device behind the host with kernels that only take time.

The lag is not queried, because a query would cost as much as an event. Its minimum is known: a
kernel of known length cannot end before that length has passed since its launch. If the lag does
not cover the next call, another kernel is launched.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

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
