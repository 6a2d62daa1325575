"""Clock of a device whose streams, events and speed are simulated in virtual time."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from unified_prof.tracking import device_clock
from unified_prof.tracking.device import NO_MARK, DeviceFault
from unified_prof.tracking.device_clock import EventClock, Lag, make_lag
from unified_prof.tracking.torch_names import Anomalies

US, MS = 1_000, 1_000_000
EVENT_NS = 2_000  # what the device takes to record an event


class Event:
    """An event of the simulated device."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.at_ns = 0

    def record(self, stream: Any = None) -> None:
        if self._machine.fails:
            raise RuntimeError("the device failed")
        self.at_ns = self._machine.occupy(EVENT_NS, None if stream is None else stream.device_index)

    def query(self) -> bool:
        return self.at_ns <= self._machine.now_ns

    def elapsed_time(self, other: Event) -> float:
        if self._machine.fails:
            raise RuntimeError("the device failed")
        return (other.at_ns - self.at_ns) / MS


class Machine:
    """A host and two devices; also what `torch.cuda` is for the clock."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * MS
        self.unit_ns = 2.0
        self.current = 0
        self.initialized = True
        self.fails = self.capturing = False
        self.launch_ns = 1 * US
        self.events = 0
        self.spun: list[int] = []
        self.free_ns = {0: 0, 1: 0}

    def occupy(self, took_ns: float, device: int | None = None) -> int:
        """Launch work; return when it ends."""
        place = self.current if device is None else device
        self.now_ns += self.launch_ns
        self.free_ns[place] = int(max(self.now_ns, self.free_ns[place]) + took_ns)
        return self.free_ns[place]

    def _sleep(self, units: int) -> None:
        self.spun.append(units)
        self.occupy(units * self.unit_ns)

    def Event(self, *, enable_timing: bool) -> Event:  # noqa: N802
        assert enable_timing
        self.events += 1
        return Event(self)

    @contextmanager
    def device(self, index: int) -> Any:
        before, self.current = self.current, index
        yield
        self.current = before

    def synchronize(self, device: int | None = None) -> None:
        if self.fails:
            raise RuntimeError("the device failed")
        self.now_ns = max(self.now_ns, self.free_ns[self.current if device is None else device])

    def device_count(self) -> int:
        return len(self.free_ns)

    def current_device(self) -> int:
        return self.current

    def current_stream(self, device: int) -> Any:
        return SimpleNamespace(stream_id=7, device_index=device)

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.delattr(torch, "accelerator", raising=False)
    monkeypatch.setattr(device_clock, "perf_counter_ns", lambda: made.now_ns)
    return made


@pytest.fixture
def lag(machine: Machine) -> Lag:
    return make_lag("cuda", machine)


@pytest.fixture
def clock(machine: Machine, lag: Lag) -> EventClock:
    made = EventClock("cuda", machine, Anomalies(), set())
    made.lag, made.event_ms = lag, lag.event_ns / MS
    return made


HERE = (0, 7)


def test_event_cost_is_measured_on_a_device_that_is_behind(lag: Lag) -> None:
    assert lag.event_ns == pytest.approx(EVENT_NS)


@pytest.mark.parametrize(
    ("launch_ns", "unit_ns", "event_ns", "delays_ms"),
    [
        (100 * US, 2.0, EVENT_NS, [20, 80]),  # 225 launches take longer than the first delay
        (2 * MS, 200.0, 0, [20, 80, 320]),  # the device always catches up: the cost is unknown
    ],
)
def test_event_cost_is_measured_again_with_longer_delays_if_the_device_catches_up(
    machine: Machine, launch_ns: int, unit_ns: float, event_ns: int, delays_ms: list[int]
) -> None:
    machine.launch_ns, machine.unit_ns = launch_ns, unit_ns
    assert make_lag("cuda", machine).event_ns == pytest.approx(event_ns)
    delays = [units * unit_ns / MS for units in machine.spun[6:] if units > 1]
    assert delays == pytest.approx(delays_ms, rel=0.02)


def test_delay_lasts_twice_the_expected_host_time_of_a_call(machine: Machine, lag: Lag) -> None:
    assert lag.is_needed(HERE, "conv", machine.now_ns)
    lag.hold_back(HERE, "conv")
    # Nothing is known of the call: 0.5 ms are assumed, and the kernel is 1.5 times as long.
    until_ns = machine.now_ns - 3 * US + 1 * MS
    assert machine.spun[-1] * machine.unit_ns == pytest.approx(1.5 * MS, rel=0.01)
    assert lag.covers(HERE, until_ns - 1)
    assert not lag.covers(HERE, until_ns)
    assert not lag.covers((0, 8), machine.now_ns), "another stream"
    assert not lag.is_needed(HERE, "conv", until_ns - MS // 2)
    assert lag.is_needed(HERE, "conv", until_ns - MS // 2 + 1)
    lag.hold_back(HERE, "conv")
    assert lag.covers(HERE, until_ns + 1 * MS - 1), "it begins after the first one"
    assert not lag.covers(HERE, until_ns + 1 * MS)
    lag.forget()
    assert not lag.covers(HERE, machine.now_ns)


@pytest.mark.parametrize(
    ("host_ns", "expected_ns"),
    [
        ([], 2 * 500 * US),
        ([0], 400 * US),  # the minimum
        ([200 * US], 2 * (300 + 100) * US),
        ([1_000 * US, 0], 2 * 0.7 * (1_500 + 100) * US),  # 70 % of a longer one is remembered
        ([100 * MS], 2 * 50 * MS),  # the maximum
    ],
)
def test_expected_host_time_follows_the_calls_of_a_kind(
    machine: Machine, lag: Lag, host_ns: list[int], expected_ns: float
) -> None:
    for took_ns in host_ns:
        lag.record_host_time("conv", took_ns)
    lag.hold_back(HERE, "conv")
    assert machine.spun[-1] * machine.unit_ns == pytest.approx(1.5 * expected_ns, rel=0.01)


def test_delay_is_longer_after_the_device_became_faster(machine: Machine, lag: Lag) -> None:
    lag.hold_back(HERE, "conv")
    machine.synchronize()
    assert lag.lasted()
    assert lag.lasted(), "each delay is checked once"
    before = machine.spun[-1]
    machine.unit_ns /= 4
    for _ in range(5):
        lag.hold_back(HERE, "conv")
    machine.synchronize()
    assert not lag.lasted()
    lag.hold_back(HERE, "conv")
    machine.synchronize()
    assert machine.spun[-1] == pytest.approx(before * 4, rel=0.01), "five delays, one correction"
    assert lag.lasted()


def test_work_time_is_that_of_the_kernels(machine: Machine, clock: EventClock) -> None:
    marks = []
    for work_ns in (5 * US, 70 * US):
        start = clock.before((), {}, "conv")
        machine.occupy(work_ns)
        marks.append((start, clock.after(start)))
    clock.synchronize()
    starts, ends = zip(*marks, strict=True)
    assert clock.work_ms(starts, ends) == pytest.approx([0.005, 0.07])
    assert clock.all_elapsed_ms(starts, ends) == pytest.approx([0.007, 0.072])
    assert clock.work_ms(starts[:1], starts[:1]).tolist() == [0], "never negative"
    assert (clock.timed, clock.caught_up) == (2, 0)
    assert clock.is_doubtful(starts).tolist() == [False, False]
    # Only the first call was delayed; its delay began at the mark before.
    first, second = clock.before_wait(starts)
    assert (first < starts[0], second == starts[1]) == (True, True)
    assert clock.elapsed_ms(first, starts[0]) == pytest.approx(1.5 + EVENT_NS / MS, rel=0.01)


def test_time_is_doubtful_if_the_device_caught_up(machine: Machine, clock: EventClock) -> None:
    start = clock.before((), {}, "conv")
    machine.now_ns += 100 * MS
    clock.after(start)
    assert clock.is_doubtful([start, start + 1]).tolist() == [True, False]
    assert (clock.timed, clock.caught_up) == (1, 1)


def test_time_without_a_delay_is_exact_if_busy(machine: Machine, clock: EventClock) -> None:
    clock.lag = None
    machine.occupy(10 * MS)
    busy = clock.before((), {}, "conv")
    clock.after(busy)
    machine.synchronize()
    idle = clock.before((), {}, "conv")
    machine.now_ns += EVENT_NS
    clock.after(idle)
    assert clock.is_doubtful([busy, idle]).tolist() == [False, True]


def test_too_short_delays_make_all_times_doubtful(machine: Machine, clock: EventClock) -> None:
    machine.unit_ns /= 4
    start = clock.before((), {}, "conv")
    clock.after(start)
    clock.release()
    assert clock.is_doubtful([start]).tolist() == [True]
    assert clock.lag is not None
    assert not clock.lag.covers(HERE, 0), "no delay is left"


def test_following_interval_begins_after_its_delay(machine: Machine, clock: EventClock) -> None:
    first = clock.before((), {}, "forward")
    machine.occupy(5 * US)
    machine.now_ns += 1_200 * US  # the delay is over, its kernel certainly lasted 1 ms only
    end, second = clock.follow(first, "backward")
    assert end < second
    machine.occupy(9 * US)
    third_end, third = clock.follow(second, "backward")
    assert third_end == third, "no delay was needed"
    assert clock.after(first) == NO_MARK, "it has ended"
    clock.synchronize()
    assert clock.work_ms([first, second], [end, third_end]) == pytest.approx([0.005, 0.009])


def test_nothing_is_recorded_before_a_device_is_used(machine: Machine, clock: EventClock) -> None:
    machine.initialized = False
    recorded = machine.events
    assert clock.mark() == clock.before((), {}, "conv") == NO_MARK
    assert clock.follow(NO_MARK, "conv") == (NO_MARK, NO_MARK)
    assert (clock.moment(), clock.in_capture, machine.events) == ({}, 0, recorded)
    machine.fails = True
    clock.synchronize()
    machine.fails, machine.initialized = False, True
    assert clock.mark() != NO_MARK
    machine.initialized = False
    assert clock.mark() != NO_MARK, "a device that was used stays so"


def test_captured_calls_are_counted_and_not_timed(machine: Machine, clock: EventClock) -> None:
    start = clock.before((), {}, "conv")
    machine.capturing = True
    assert clock.after(start) == clock.before((), {}, "conv") == NO_MARK
    machine.capturing = False
    assert clock.after(start) == NO_MARK
    assert (clock.in_capture, clock.timed) == (1, 1)


def test_devices_are_marked_and_compared_separately(machine: Machine, clock: EventClock) -> None:
    begin = clock.moment()
    assert (set(begin), clock.used) == ({0}, {0})
    machine.current = 1
    begin = clock.moment()
    machine.occupy(3 * MS)
    machine.occupy(5 * MS, 0)
    end = clock.moment()
    assert set(end) == {0, 1}
    clock.synchronize()
    assert machine.now_ns >= max(machine.free_ns.values()), "it waits for both"
    assert clock.elapsed_between_ms(begin, end) == pytest.approx(5 + EVENT_NS / MS, rel=0.001)
    assert np.isnan(clock.elapsed_ms(begin[0], end[1]))
    assert np.isnan(clock.elapsed_ms(begin[0], NO_MARK))
    assert np.isnan(clock.elapsed_ms(NO_MARK, end[0]))
    assert np.isnan(clock.elapsed_between_ms({0: begin[0]}, {1: end[1]}))


def test_marks_of_a_single_device_are_those_of_the_current_one(machine: Machine) -> None:
    del machine.free_ns[1]
    clock = EventClock("cuda", machine, Anomalies(), {5})
    assert set(clock.moment()) == {0}
    machine.occupy(2 * MS)
    clock.synchronize()
    assert machine.now_ns == machine.free_ns[0]


class OnDevice(torch.Tensor):  # type: ignore[misc]
    """A tensor that says where it is."""

    device = SimpleNamespace(type="cuda", index=1)


class Nowhere(torch.Tensor):  # type: ignore[misc]
    @property
    def device(self) -> Any:
        raise RuntimeError


ON_1, ON_CPU = torch.ones(1).as_subclass(OnDevice), torch.ones(1)


@pytest.mark.parametrize(
    ("args", "kwargs", "device"),
    [
        ((), {}, 0),
        ((ON_1,), {}, 1),
        ((ON_CPU, ON_1), {}, 1),
        ((torch.ones(1).as_subclass(Nowhere), ON_1), {}, 1),
        ((2, [3, ON_1]), {}, 1),
        (([ON_CPU],), {"out": ON_1}, 1),
        ((), {"device": 1}, 1),
        ((), {"device": "cuda:1"}, 1),
        ((), {"device": torch.device("cuda", 1)}, 1),
        ((), {"device": "cuda"}, 0),
        ((), {"device": "cpu"}, 0),
        ((), {"device": "no such device"}, 0),
        ((ON_CPU,), {"device": None}, 0),
    ],
)
def test_call_is_timed_on_the_device_of_its_arguments(
    clock: EventClock, args: tuple[Any, ...], kwargs: dict[str, Any], device: int
) -> None:
    clock.before(args, kwargs, "conv")
    assert clock.used == {device}


def test_events_are_reused_after_marks_are_dropped(machine: Machine, clock: EventClock) -> None:
    clock.lag = None
    first = [clock.mark() for _ in range(3)]
    created = machine.events
    clock.forget()
    again = [clock.mark() for _ in range(3)]
    assert machine.events == created
    assert not set(first) & set(again)
    clock.mark()
    assert machine.events == created + 1


def test_failed_device_is_reported_once_and_not_raised(machine: Machine, clock: EventClock) -> None:
    start, end = clock.mark(), clock.mark()
    machine.fails = True
    assert clock.before((), {}, "conv") == NO_MARK
    assert clock.mark() == NO_MARK
    assert np.isnan(clock.elapsed_ms(start, end))
    assert (clock.lag, clock.timed) == (None, 0)
    assert set(clock._anomalies) == {"event_not_recorded", "device_not_held_back", "event_not_read"}
    with pytest.raises(DeviceFault, match="the device failed"):
        clock.synchronize()


def test_device_without_a_wait_kernel_fills_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, str]] = []
    filled: list[int] = []

    def zeros(size: int, *, dtype: torch.dtype, device: str) -> Any:
        made.append((size, device))
        return SimpleNamespace(zero_=lambda: filled.append(size))

    monkeypatch.setattr(torch, "zeros", zeros)
    current = 1
    spin = device_clock._spinner("npu", SimpleNamespace(current_device=lambda: current))
    spin(1)
    spin(29_999)
    assert len(filled) == 1 + 2
    current = 0
    spin(30_000)
    assert (len(filled), made) == (6, [(2**26, "npu:1"), (2**26, "npu:0")])
