"""Time and memory of a device, measured through torch's common interface for devices."""

from __future__ import annotations

import functools
import gc
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.base.process_tuning import environment
from unified_prof.base.text import NS_PER_MS
from unified_prof.errors import DeviceUnavailableError
from unified_prof.tracking.torch_names import Patches

Mark = int  # A point in time on one clock: host time in nanoseconds, or the number of an event.

NO_MARK: Mark = -1  # No mark was taken: the device is not in use yet, or must not be accessed now.

Marks = Sequence[Mark] | NDArray[np.int64]
# A mark on each of several devices, by device number.
Moment = Mapping[int, Mark]
Milliseconds = NDArray[np.float64]


class HostClock:
    """Clock of the host, for the CPU: operations are complete when they return.

    `device_clock.EventClock` has the same methods for a device: marks cost little, and the times
    between them are computed later, after `synchronize`.
    """

    mark = staticmethod(time.perf_counter_ns)

    def moment(self) -> Moment:
        """Return the current time, for device number 0."""
        return {0: time.perf_counter_ns()}

    def elapsed_between_ms(self, start: Moment, end: Moment) -> float:
        """Return the time between two moments in milliseconds."""
        return self.elapsed_ms(start[0], end[0])

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the time from `start` to `end` in milliseconds."""
        return float(end - start) / NS_PER_MS

    def all_elapsed_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return the times from `starts` to `ends` in milliseconds."""
        return (np.array(ends, np.int64) - np.array(starts, np.int64)) / NS_PER_MS

    def work_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return the times from `starts` to `ends`: the cost of a mark is negligible."""
        return self.all_elapsed_ms(starts, ends)

    def is_doubtful(self, starts: Marks) -> NDArray[np.bool_]:
        """Return False for each start."""
        return np.zeros(len(starts), np.bool_)

    def before_wait(self, starts: Marks) -> Marks:
        """Return `starts`, because no call is delayed."""
        return starts

    def synchronize(self) -> None:
        """Do nothing."""

    def forget(self) -> None:
        """Do nothing."""


class DeviceFault(Exception):  # noqa: N818
    """An operation of the program failed on the device, as reported by a synchronization."""


class Device:
    """Interface of the tracker to one kind of device.

    Raises DeviceUnavailableError if torch cannot use this kind of device here.
    """

    def __init__(self, kind: str) -> None:
        import torch

        self.kind = kind
        self.module: Any = getattr(torch, kind, None)
        """torch's module for this kind of device, None if there is none."""
        self.used: set[int] = set()
        """Numbers of the devices that the program uses, as far as seen."""
        if kind != "cpu" and not (self.is_touched or self._is_there()):
            raise DeviceUnavailableError(f"torch finds no {kind} device here", slug="no-device")

    def _is_there(self) -> bool:
        available = getattr(self.module, "is_available", None)
        if available is None:
            return False
        with driver_library_only():
            return run_in_child(lambda: "yes" if available() else "no") == "yes"

    @property
    def is_cpu(self) -> bool:
        """True if operations run on the host itself."""
        return self.kind == "cpu"

    @property
    def is_touched(self) -> bool:
        """True if the program has started to use the device; uprof must not use it before."""
        asked = getattr(self.module, "is_initialized", None)
        return not self.is_cpu and (self.module is not None if asked is None else bool(asked()))

    @property
    def is_capturing(self) -> bool:
        """True if the program is capturing a graph; a synchronization would break the capture."""
        asked = getattr(self.module, "is_current_stream_capturing", None)
        return asked is not None and self.is_touched and bool(asked())

    def describe(self) -> str:
        """Return the device type and the name of the model, such as `cpu: <model name>`."""
        name = _cpu_name() if self.is_cpu else ""
        if self.is_touched:
            function = getattr(self.module, "get_device_name", None)
            try:
                name = str(function() or "") if function is not None else ""
            except Exception:  # the device has failed
                name = ""
        return f"{self.kind}: {name}" if name else self.kind

    def reset_peaks(self) -> tuple[MemoryUse, ...]:
        """Reset the peaks of every device in use; return the memory use before the reset."""
        before = self.memory_use()
        reset = getattr(self.module, "reset_peak_memory_stats", None)
        if reset is not None:
            for one in before:
                reset(one.device)
        return before

    def memory_use(self) -> tuple[MemoryUse, ...]:
        """Return the allocator's counters of every device in use; empty if it has none."""
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


class MemoryUse(Struct, frozen=True):
    """Counters of torch's allocator on one device; pools of other libraries are not included."""

    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    """Peak of reserved memory, including cached memory; None if unknown."""
    retries: int | None
    """Number of allocations that were retried after emptying the cache."""
    failures: int | None
    """Number of failed allocations."""


def run_in_child(ask: Callable[[], str]) -> str:
    """Run `ask` in a forked child, so that this process does not start a device runtime."""
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
def driver_library_only() -> Iterator[None]:
    """Within the block, make torch count devices through the driver library, not the runtime.

    If a process initializes the runtime, its forked children cannot use a device.
    """
    with environment("PYTORCH_NVML_BASED_CUDA_CHECK", "1"):
        yield


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
    """Counts replays of captured graphs on one kind of device while `is_measuring()` is true."""

    def __init__(self, device: Device, is_measuring: Callable[[], bool]) -> None:
        self._graph_type: Any = getattr(device.module, f"{device.kind.upper()}Graph", None)
        self._is_measuring = is_measuring
        self._patches = Patches()
        self.count = 0

    def install(self) -> None:
        """Start counting; `remove` ends it."""
        replay = getattr(self._graph_type, "replay", None)
        if replay is None:
            return

        @functools.wraps(replay)
        def counted_replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self.count += self._is_measuring()
            return replay(graph, *args, **kwargs)

        self._patches.replace(self._graph_type, "replay", counted_replay)

    def remove(self) -> None:
        """Undo the patch."""
        self._patches.restore()


_NEVER = (0, 0, 0)

_held: tuple[int, int, int] | None = None  # Thresholds before automatic collection was suspended.


@contextmanager
def collection_held_off() -> Iterator[None]:
    """Suspend automatic garbage collection within the block.

    This sets thresholds instead of calling `gc.disable`, because the program may query and change
    that state. Thresholds that the program sets within the block are kept.
    """
    global _held
    if _held is not None or gc.get_threshold()[0] == 0:  # nested, or suspended by the program
        yield
        return
    _held = gc.get_threshold()
    gc.set_threshold(*_NEVER)
    try:
        yield
    finally:
        _give_back()


def _give_back() -> None:
    global _held
    before, _held = _held, None
    # Python 3.14 has no third threshold and always returns 0 for it.
    if before is not None and gc.get_threshold()[0] == 0:
        gc.set_threshold(*before)


if hasattr(os, "register_at_fork"):  # in a child forked by another thread, the block never ends
    os.register_at_fork(after_in_child=_give_back)


_SCHEDSTAT = Path("/proc/thread-self/schedstat")
# Maximum attempts to take a reading, and the minimum duration of an interrupted attempt.
_READINGS = 3
_UNDISTURBED_NS = 100_000
# Minimum length of intervals after which a reading is taken. A thread that loses its processor
# waits for milliseconds, so shorter intervals contain almost no waiting.
LONG_NS = 500_000


def waited_within(
    waits: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int]]
) -> float | None:
    """Return how long the thread waited within `spans`, in nanoseconds.

    Returns None if there are fewer than two readings.

    Args:
        waits: Readings; waiting is assumed to be evenly distributed between two readings.
        spans: Disjoint intervals (start, end) on the same clock.
    """
    if len(waits) < 2:
        return None
    moments, waited = zip(*waits, strict=True)
    # Relative to the first reading: floats cannot represent the full numbers exactly.
    known = np.interp(
        [(start - moments[0], end - moments[0]) for start, end in spans] or [(0, 0)],
        [moment - moments[0] for moment in moments],
        [one - waited[0] for one in waited],
    )
    return float((known[:, 1] - known[:, 0]).sum())


# Readings in order: host time, and total wait time of the thread until then, in nanoseconds.
Waits = list[tuple[int, int]]


def waited_ms(waits: Waits, starts: Marks, ends: Marks) -> Milliseconds:
    """Return how long the thread waited in each interval, in ms; 0 with fewer than two readings."""
    if len(waits) < 2 or waits[-1][1] == waits[0][1]:
        return np.zeros(len(starts))
    moments, waited = np.array(waits, np.int64).T
    before, after = (
        np.interp(np.asarray(marks) - moments[0], moments - moments[0], waited - waited[0])
        for marks in (starts, ends)
    )
    found: Milliseconds = (after - before) / NS_PER_MS
    return found


class WaitingTime:
    """Reads the wait time of the thread that created it; a reading takes about 2 us."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # another system, or a kernel that does not count
            self._file = None

    def read_ns(self) -> int | None:
        """Return how long the thread has waited so far; None if the system does not report it."""
        if self._file is None:
            return None
        try:
            return int(os.pread(self._file, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None

    def note(self, waits: Waits) -> int | None:
        """Add a reading to `waits` and return its time; None if the system does not report it."""
        # Retry if interrupted: waiting during the reading would be counted in another interval.
        for _ in range(_READINGS):
            before = perf_counter_ns()
            waited_ns = self.read_ns()
            moment = perf_counter_ns()
            if moment - before < _UNDISTURBED_NS:
                break
        if waited_ns is None:
            return None
        waits.append((moment, waited_ns))
        return moment

    def note_interval(self, waits: Waits, start: int, end: int) -> None:
        """Charge the wait since the last reading to the interval from `start` to `end`."""
        if waits and (waited_ns := self.read_ns()) is not None:
            moment, waited_before_ns = waits[-1]
            waits.append((max(start, moment), waited_before_ns))
            waits.append((max(end, moment), waited_ns))

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
