"""Keep a device behind the host: kernels that only take time, where it could catch up.

How far the device is behind is not asked of it, which would cost as much as an event. It is known
at least: a kernel of a known length that is launched now is not over before that length has gone
by. Where that does not cover what is to come, another is launched. A device that is busy anyway is
held up by that for as long as the host takes for its part of the program, which is a small part.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

Place = tuple[int, int]
"""Number of a device, number of a stream of it."""

_UNKNOWN_NS = 500_000
"""What a call may take of the host's time that was not seen before."""
_SLACK_NS = 100_000
_SHORTEST_NS = 400_000
_LONGEST_NS = 50_000_000
_MARGIN = 1.5
"""A kernel is made so much longer than is counted on: clocks of devices change their speed."""
_FORGETS = 0.7
"""How much of what a call took once is remembered the next time."""
_TRIAL = 200_000
_WARM_NS = 5_000_000
_FILL_BYTES = 2**26
_PAIRS = 25
_SERIES = 4
_HOLDS_NS = 20_000_000
_TRIES = 3


class Lag:
    """Holds the devices of one kind back.

    Args:
        spin: Launches, on the current stream of the current device, what takes about so many
            units of time there.
        within: Returns a context in which a device is the current one.
        event: Makes an event that can be timed.
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
        """What lies between two events besides the work; see `_event_cost_ns`."""
        self._until_ns: dict[Place, int] = {}
        self._needs: dict[Any, int] = {}
        self._launched: list[tuple[Any, Any, int]] = []

    def is_needed(self, place: Place, what: Any, now_ns: int) -> bool:
        """Whether the device could catch up with the host before a call is complete."""
        need = self._needs.get(what, _UNKNOWN_NS)
        return now_ns + need > self._until_ns.get(place, 0)

    def hold_back(self, place: Place, what: Any) -> None:
        """Give the device something to do, on the stream that is current there."""
        counted = max(2 * self._needs.get(what, _UNKNOWN_NS), _SHORTEST_NS)
        units = int(counted * _MARGIN * self._units_per_ns)
        begin, end = self._event(), self._event()
        with self._within(place[0]):
            now_ns = perf_counter_ns()
            begin.record()
            self._spin(units)
            end.record()
        self._until_ns[place] = max(now_ns, self._until_ns.get(place, 0)) + counted
        self._launched.append((begin, end, counted))

    def took(self, what: Any, host_ns: int) -> None:
        """Learn how long the host took for a call."""
        before = self._needs.get(what, 0)
        need = max(int(1.5 * host_ns) + _SLACK_NS, int(_FORGETS * before))
        self._needs[what] = min(need, _LONGEST_NS)

    def covers(self, place: Place, now_ns: int) -> bool:
        """Whether the device is certain to be behind at this moment."""
        return now_ns < self._until_ns.get(place, 0)

    def held(self) -> bool:
        """Whether all took as long as was counted on, now that the device was waited for."""
        launched, self._launched = self._launched, []
        held = True
        for begin, end, counted_ns in launched:
            took_ns = begin.elapsed_time(end) * 1e6
            if took_ns < counted_ns:
                held = False
                self._units_per_ns *= counted_ns / max(took_ns, 1.0)
        return held

    def forget(self) -> None:
        """Begin anew: the device was waited for."""
        self._until_ns.clear()


def _calibrated(
    spin: Callable[[int], None], event: Callable[[], Any], wait: Callable[[], None]
) -> float:
    """Return how many units take a nanosecond, as fast as the device runs once it is warm."""
    units, rate = _TRIAL, 1.0
    for _ in range(3):
        spin(_TRIAL)  # what is timed begins on a device that works
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
    """Return what two events around some work show beyond what the work adds to a full queue.

    A device takes time to write an event down and to begin again: 2.1 us on an H100, where the
    smallest kernels take 1.2 us and the gap to the next 0.85 us. Several kernels between two
    events tell what one more adds, and that from what one alone takes leaves the events'. It is
    0 where the device caught up with the host each time.
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


def lag_of(kind: str, module: Any) -> Lag:
    """Return what holds back devices of a kind, of which torch has `module`."""
    import torch

    event = getattr(torch, "Event", None) if hasattr(torch, "accelerator") else None

    def new_event() -> Any:
        if event is None:
            return module.Event(enable_timing=True)
        return event(kind, enable_timing=True)

    return Lag(_spinner(kind, module), module.device, new_event, module.synchronize)


def _spinner(kind: str, module: Any) -> Callable[[int], None]:
    """Return what keeps a device of a kind busy: its module's own kernel, or filling of memory."""
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


_FILL_UNITS = 10_000
"""Units that one filling counts for."""
