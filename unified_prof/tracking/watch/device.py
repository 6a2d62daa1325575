"""Time and memory of a device, whichever it is, through what torch offers for every device."""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unified_prof.errors import DeviceUnavailableError
from unified_prof.units import NS_PER_MS

Mark = int
"""A point in time as one clock takes it: nanoseconds of the host, or the number of an event."""

Marks = Sequence[Mark] | NDArray[np.int64]
Milliseconds = NDArray[np.float64]


class Clock(Protocol):
    """Takes points in time cheaply; says only afterwards how far apart they were."""

    def mark(self) -> Mark:
        """Take the current point of the device's time, without waiting for the device."""

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the time from `start` to `end`; only after `synchronize`."""

    def all_elapsed_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return the time from each of `starts` to its end; only after `synchronize`."""

    def synchronize(self) -> None:
        """Wait until everything that was marked has happened."""

    def forget(self) -> None:
        """Let go of all marks taken so far; nobody will ask for them again."""


class HostClock:
    """The CPU's own time: operations are over when they return."""

    mark = staticmethod(time.perf_counter_ns)

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the time from `start` to `end` in milliseconds."""
        return float(end - start) / NS_PER_MS

    def all_elapsed_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return the time from each of `starts` to its end in milliseconds."""
        return (np.array(ends, np.int64) - np.array(starts, np.int64)) / NS_PER_MS

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def forget(self) -> None:
        """Nothing is kept."""


class EventClock:
    """A device's own time: events recorded in its current stream, known by their numbers."""

    def __init__(self, device: str) -> None:
        import torch

        self._module = getattr(torch, device)
        # torch.Event serves every accelerator from torch 2.6 on; each has its own before that.
        self._event = torch.Event if hasattr(torch, "accelerator") else self._module.Event
        self._numbers = itertools.count()
        self._events: dict[Mark, Any] = {}

    def mark(self) -> Mark:
        """Record an event in the current stream."""
        event = self._event(enable_timing=True)
        event.record()
        number = next(self._numbers)  # of whichever thread of the autograd engine asks
        self._events[number] = event
        return number

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the device time between two events in milliseconds."""
        return float(self._events[start].elapsed_time(self._events[end]))

    def all_elapsed_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return the device time between each of `starts` and its end in milliseconds."""
        pairs = zip(starts, ends, strict=True)
        return np.array([self.elapsed_ms(int(a), int(b)) for a, b in pairs], np.float64)

    def synchronize(self) -> None:
        """Wait for the device once."""
        self._module.synchronize()

    def forget(self) -> None:
        """Free all events."""
        self._events.clear()


class Device:
    """One kind of device as the tracker needs it.

    Raises:
        DeviceUnavailableError: torch cannot use such a device here.
    """

    def __init__(self, kind: str) -> None:
        import torch

        self.kind = kind
        self._module = getattr(torch, kind, None)
        if kind != "cpu":
            available = getattr(self._module, "is_available", lambda: False)
            if not available():
                raise DeviceUnavailableError(f"torch finds no {kind} device here")

    @property
    def is_cpu(self) -> bool:
        """Whether operations run on the host itself."""
        return self.kind == "cpu"

    def clock(self) -> Clock:
        """Return a clock of this device."""
        return HostClock() if self.is_cpu else EventClock(self.kind)

    def describe(self) -> str:
        """Return the device type and the name of the model, such as `cpu: <model name>`."""
        name = _cpu_name() if self.is_cpu else str(self._module_call("get_device_name") or "")
        return f"{self.kind}: {name}" if name else self.kind

    def reset_peak(self) -> None:
        """Start a new maximum of allocated bytes; the allocator keeps only one."""
        self._module_call("reset_peak_memory_stats")

    def peak_bytes(self) -> int | None:
        """Return the most bytes allocated since the last reset, None where torch cannot tell."""
        peak = self._module_call("max_memory_allocated")
        return None if peak is None else int(peak)

    def _module_call(self, name: str) -> Any:
        function = getattr(self._module, name, None)
        return None if self.is_cpu or function is None else function()


def _cpu_name() -> str:
    try:
        for line in (
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        ):
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
