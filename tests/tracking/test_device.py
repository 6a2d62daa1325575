"""Clocks and devices, without one: marks of a device are events, read only at the end."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tracking.workloads import PROVIDERS, Workload, in_backward, names
from unified_prof.errors import DeviceUnavailableError
from unified_prof.tracking.watch import device as device_module
from unified_prof.tracking.watch.device import Device, HostClock

TRACKING = Path(device_module.__file__).parent


class LateClock:
    """A clock whose marks can be compared only after a synchronisation."""

    def __init__(self) -> None:
        self.synchronisations = 0
        self.happened = 0
        self.marked: list[int] = []

    def mark(self) -> int:
        self.marked.append(time.perf_counter_ns())
        return len(self.marked) - 1

    def elapsed_ms(self, start: int, end: int) -> float:
        assert max(start, end) < self.happened, "read before it happened"
        return (self.marked[end] - self.marked[start]) / 1e6

    def all_elapsed_ms(self, starts: Any, ends: Any) -> Any:
        pairs = zip(starts, ends, strict=True)
        return np.array([self.elapsed_ms(int(a), int(b)) for a, b in pairs], float)

    def synchronize(self) -> None:
        self.happened = len(self.marked)
        self.synchronisations += 1

    def forget(self) -> None:
        pass


def test_a_device_is_waited_for_only_after_a_stage(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, iterations = LateClock(), 5
    monkeypatch.setattr(Device, "clock", lambda self: clock)
    monkeypatch.setattr(Device, "is_cpu", False)
    monkeypatch.setattr(Device, "reset_peak", lambda self: None)
    monkeypatch.setattr(Device, "peak_bytes", lambda self: 1234)
    monkeypatch.setattr(Device, "describe", lambda self: "cpu: as if it were a device")
    tracked = workload.model(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 8)

            def forward(self, x):
                return self.lin(x).relu()
        """,
        providers=PROVIDERS,
        iterations=iterations,
    )
    assert clock.synchronisations == 3  # the first run time, memory, the other run times
    assert names(tracked) == in_backward(tracked) == ["linear", "relu"]
    assert tracked.peak_usage_bytes == 1234
    for operation in tracked.operations:
        assert min(operation.forward_ms) > 0
        assert operation.backward_ms is not None
        assert min(operation.backward_ms) > 0
    for one in tracked.iterations:
        assert one.forward_ms is not None
        assert one.backward_ms is not None
        assert one.forward_ms + one.backward_ms < one.total_ms


def test_no_device_is_named_in_the_tracker() -> None:
    for path in TRACKING.glob("*.py"):
        code = re.sub(r'""".*?"""|#.*', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "cuda" not in code.replace("__cuda_array_interface__", ""), path.name


def test_the_host_clock_counts_nanoseconds() -> None:
    assert HostClock().elapsed_ms(1_000_000, 3_500_000) == 2.5


def test_a_device_that_torch_does_not_know() -> None:
    with pytest.raises(DeviceUnavailableError, match="torch finds no nonsense device here"):
        Device("nonsense")


def test_the_cpu_has_a_name_and_no_allocator_peak() -> None:
    device = Device("cpu")
    assert device.describe().startswith("cpu")
    assert device.peak_bytes() is None


def test_an_event_clock_uses_the_devices_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class FakeEvent:
        def __init__(self, enable_timing: bool) -> None:
            made.append(self)
            self.recorded = False

        def record(self) -> None:
            self.recorded = True

        def elapsed_time(self, other: Any) -> float:
            return 1.5

    class FakeModule:
        Event = FakeEvent
        waited = 0

        @classmethod
        def synchronize(cls) -> None:
            cls.waited += 1

    monkeypatch.setattr(torch, "fake", FakeModule, raising=False)
    monkeypatch.setattr(torch, "Event", FakeEvent, raising=False)
    clock = device_module.EventClock("fake")
    start, end = clock.mark(), clock.mark()
    clock.synchronize()
    assert clock.elapsed_ms(start, end) == 1.5
    assert [one.recorded for one in made] == [True, True]
    assert FakeModule.waited == 1
