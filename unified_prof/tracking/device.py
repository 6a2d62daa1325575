"""Time and memory of a device, whichever it is, through what torch offers for every device."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any, Protocol

from unified_prof.errors import DeviceUnavailableError
from unified_prof.units import NS_PER_MS

Mark = Any
"""A point in time as one clock takes it: whole ns, or a recorded event of the device."""


class Clock(Protocol):
    """Takes points in time cheaply; says only afterwards how far apart they were."""

    def mark(self) -> Mark:
        """Take the current point of the device's time, without waiting for the device."""

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the time from `start` to `end`; only after `synchronize`."""

    def synchronize(self) -> None:
        """Wait until everything that was marked has happened."""


class HostClock:
    """The CPU's own time: operations are over when they return."""

    mark = staticmethod(time.perf_counter_ns)

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the time from `start` to `end` in milliseconds."""
        return float(end - start) / NS_PER_MS

    def synchronize(self) -> None:
        """Nothing to wait for."""


class EventClock:
    """A device's own time: events recorded in its current stream."""

    def __init__(self, device: str) -> None:
        import torch

        self._module = getattr(torch, device)
        # torch.Event serves every accelerator from torch 2.6 on; each has its own before that.
        self._event = torch.Event if hasattr(torch, "accelerator") else self._module.Event

    def mark(self) -> Mark:
        """Record an event in the current stream."""
        event = self._event(enable_timing=True)
        event.record()
        return event

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the device time between two events in milliseconds."""
        return float(start.elapsed_time(end))

    def synchronize(self) -> None:
        """Wait for the device once."""
        self._module.synchronize()


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
