"""Time and memory of a device, whichever it is, through what torch offers for every device.

Graphs that a program captured and replays: what is in them is no call that could be timed.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.text import NS_PER_MS
from unified_prof.errors import DeviceUnavailableError
from unified_prof.tracking.torch_names import Patches

Mark = int
"""A point in time as one clock takes it: nanoseconds of the host, or the number of an event."""

NO_MARK: Mark = -1
"""No point was taken: the device is not in use yet, or may not be touched now."""

Marks = Sequence[Mark] | NDArray[np.int64]
Moment = Mapping[int, Mark]
"""A mark on each of several devices, by their numbers."""
Milliseconds = NDArray[np.float64]


class Clock(Protocol):
    """Takes points in time cheaply; says only afterwards how far apart they were."""

    def mark(self) -> Mark:
        """Take the current point of the device's time, without waiting for the device."""

    def moment(self) -> Moment:
        """Take the current point of every device that is used."""

    def elapsed_between_ms(self, start: Moment, end: Moment) -> float:
        """Return the time between two moments, of the slowest device; only after `synchronize`."""

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the time from `start` to `end`; only after `synchronize`."""

    def all_elapsed_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return the time from each of `starts` to its end; only after `synchronize`."""

    def work_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return how long the work between marks took, without what taking the marks takes."""

    def is_doubtful(self, starts: Marks) -> NDArray[np.bool_]:
        """Whether what began at each of `starts` may hold time that is none of its own."""

    def before_wait(self, starts: Marks) -> Marks:
        """Return when each call came up, where that is not when it began."""

    def synchronize(self) -> None:
        """Wait until everything that was marked has happened."""

    def forget(self) -> None:
        """Let go of all marks taken so far; nobody will ask for them again."""


class HostClock:
    """The CPU's own time: operations are over when they return."""

    mark = staticmethod(time.perf_counter_ns)

    def moment(self) -> Moment:
        """Return the current time under the number of the one device there is."""
        return {0: time.perf_counter_ns()}

    def elapsed_between_ms(self, start: Moment, end: Moment) -> float:
        """Return the time between two moments in milliseconds."""
        return self.elapsed_ms(start[0], end[0])

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the time from `start` to `end` in milliseconds."""
        return float(end - start) / NS_PER_MS

    def all_elapsed_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return the time from each of `starts` to its end in milliseconds."""
        return (np.array(ends, np.int64) - np.array(starts, np.int64)) / NS_PER_MS

    def work_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return the time from each of `starts` to its end: a mark takes next to nothing."""
        return self.all_elapsed_ms(starts, ends)

    def is_doubtful(self, starts: Marks) -> NDArray[np.bool_]:
        """Nothing is."""
        return np.zeros(len(starts), np.bool_)

    def before_wait(self, starts: Marks) -> Marks:
        """Nothing is made to wait."""
        return starts

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def forget(self) -> None:
        """Nothing is kept."""


class DeviceFault(Exception):  # noqa: N818
    """An operation of the program's failed on the device, which is told only when one waits."""


class Device:
    """One kind of device as the tracker needs it.

    Raises:
        DeviceUnavailableError: torch cannot use such a device here.
    """

    def __init__(self, kind: str) -> None:
        import torch

        self.kind = kind
        self.module: Any = getattr(torch, kind, None)
        """What torch has for this kind of device."""
        self.used: set[int] = set()
        """The devices that the program was seen to use, by their numbers."""
        if kind != "cpu" and not (self.is_touched or self._is_there()):
            raise DeviceUnavailableError(f"torch finds no {kind} device here", slug="no-device")

    def _is_there(self) -> bool:
        available = getattr(self.module, "is_available", None)
        if available is None:
            return False
        with runtime_left_alone():
            return asked_in_child(lambda: "yes" if available() else "no") == "yes"

    @property
    def is_cpu(self) -> bool:
        """Whether operations run on the host itself."""
        return self.kind == "cpu"

    @property
    def is_touched(self) -> bool:
        """Whether the program has begun to use it; before that nobody else may."""
        asked = getattr(self.module, "is_initialized", None)
        return not self.is_cpu and (self.module is not None if asked is None else bool(asked()))

    @property
    def is_capturing(self) -> bool:
        """Whether the program captures a graph now: whoever waits for the device then spoils it."""
        asked = getattr(self.module, "is_current_stream_capturing", None)
        return asked is not None and self.is_touched and bool(asked())

    def describe(self) -> str:
        """Return the device type and the name of the model, such as `cpu: <model name>`."""
        name = _cpu_name() if self.is_cpu else ""
        if self.is_touched:
            function = getattr(self.module, "get_device_name", None)
            try:
                name = str(function() or "") if function is not None else ""
            except Exception:  # of a device that has failed
                name = ""
        return f"{self.kind}: {name}" if name else self.kind

    def reset_peaks(self) -> tuple[MemoryUse, ...]:
        """Start a new maximum on every device in use; return how things stand."""
        before = self.memory_use()
        reset = getattr(self.module, "reset_peak_memory_stats", None)
        if reset is not None:
            for one in before:
                reset(one.device)
        return before

    def memory_use(self) -> tuple[MemoryUse, ...]:
        """Return what torch's allocator has counted on every device in use; empty: it does not."""
        allocated = getattr(self.module, "max_memory_allocated", None)
        if not self.is_touched or allocated is None:
            return ()
        reserved = getattr(self.module, "max_memory_reserved", None)
        counted = getattr(self.module, "memory_stats", None)
        found = []
        for device in sorted(self.used | {int(self.module.current_device())}):
            counts = counted(device) if counted is not None else {}
            found.append(
                MemoryUse(
                    device,
                    int(allocated(device)),
                    None if reserved is None else int(reserved(device)),
                    counts.get("num_alloc_retries"),
                    counts.get("num_ooms"),
                )
            )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What torch's allocator has counted on one device; pools of others' are not in it."""

    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    """With what is cached for later; None: not counted."""
    retries: int | None
    """How often the cache was emptied to find memory."""
    failures: int | None
    """How often there was none."""


def asked_in_child(ask: Callable[[], str]) -> str:
    """Return what `ask` returns in a forked child; what it does to the runtime ends with that."""
    if not hasattr(os, "fork"):
        return ask()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.write(write, ask().encode("utf-8", "replace"))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        told = answer.read().decode("utf-8", "replace")
    os.waitpid(child, 0)
    return told


@contextmanager
def runtime_left_alone() -> Iterator[None]:
    """Have torch ask the driver's library for devices, not the runtime: the program may fork yet.

    A process that has asked the runtime can use no device in the children that it forks.
    """
    before = os.environ.get(_ASK_THE_LIBRARY)
    os.environ[_ASK_THE_LIBRARY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ASK_THE_LIBRARY]
        else:
            os.environ[_ASK_THE_LIBRARY] = before


_ASK_THE_LIBRARY = "PYTORCH_NVML_BASED_CUDA_CHECK"


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


class GraphReplays:
    """Counts the replays of captured graphs on one kind of device.

    Args:
        device: The kind of device.
        is_measuring: Whether a replay now falls into what is measured.
    """

    def __init__(self, device: Device, is_measuring: Callable[[], bool]) -> None:
        self._graph_type: Any = getattr(device.module, f"{device.kind.upper()}Graph", None)
        self._is_measuring = is_measuring
        self._patches = Patches()
        self.count = 0

    def install(self) -> None:
        """Begin to count; `remove` ends it."""
        replay = getattr(self._graph_type, "replay", None)
        if replay is None:
            return

        @functools.wraps(replay)
        def counted_replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self.count += self._is_measuring()
            return replay(graph, *args, **kwargs)

        self._patches.replace(self._graph_type, "replay", counted_replay)

    def remove(self) -> None:
        """Leave torch as it was found."""
        self._patches.restore()
