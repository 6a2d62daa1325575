"""Peak memory of one whole iteration, in an iteration of its own without any other tracking."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from unified_prof.tracking.device import Device
from unified_prof.tracking.patches import Patches
from unified_prof.tracking.sizes import plain_tensors, storage_of

_ERRORS_ONLY = 2
_MARK = "uprof: the measured iteration begins"


class PeakMeter(Protocol):
    """An instrument that knows the peak once it has stopped."""

    lead_in: int
    """Iterations it must see before the one it measures."""
    peak_bytes: int | None
    failure: str | None
    """Why there is no peak."""

    def start(self) -> None: ...  # noqa: D102
    def begin_iteration(self, index: int) -> None: ...  # noqa: D102
    def end_iteration(self, index: int) -> None: ...  # noqa: D102
    def stop(self, complete: bool) -> None: ...  # noqa: D102
    def forget(self) -> None: ...  # noqa: D102


class AllocatorPeak:
    """The peak as the device's allocator counts it; its own maximum starts anew for that."""

    lead_in = 0

    def __init__(self, device: Device) -> None:
        self._device = device
        self.peak_bytes: int | None = None
        self.failure: str | None = None

    def start(self) -> None:
        """Nothing to prepare."""

    def begin_iteration(self, index: int) -> None:
        """Start a new maximum."""
        self._device.reset_peak()

    def end_iteration(self, index: int) -> None:
        """Read the maximum."""
        self.peak_bytes = self._device.peak_bytes()
        if self.peak_bytes is None:
            self.failure = f"torch tells no allocated memory for {self._device.kind}"

    def stop(self, complete: bool) -> None:
        """Nothing to undo."""

    def forget(self) -> None:
        """Nothing to forget."""


class ProfiledPeak:
    """The peak on the CPU: what is alive as the iteration begins, and every allocation in it.

    Allocations and releases are as torch's own profiler records them. It reports the release
    only of what it saw allocated, so it runs from the iteration before on: what that one leaves
    behind (gradients) is then known.
    """

    lead_in = 1

    def __init__(self) -> None:
        self.peak_bytes: int | None = None
        self.failure: str | None = None
        self._profiler: Any = None
        self._patches = Patches()
        self._live_bytes = 0
        self._log_level_before: int | None = None

    def start(self) -> None:
        """Start torch's profiler, unless the program uses it."""
        import torch
        from torch.autograd import profiler

        self.peak_bytes = self.failure = None
        if torch.autograd._profiler_enabled():
            self.failure = "the program runs torch's profiler itself"
            return
        profile = profiler.profile
        self._log_level_before = _log_level(_ERRORS_ONLY)
        self._profiler = _quietly(lambda: profile(profile_memory=True).__enter__())
        # There is only one profiler: the program's comes first should it want to start.
        prepare = profile._prepare_trace

        def prepare_after_ours(other: Any) -> None:
            self._give_up()
            prepare(other)

        self._patches.replace(profile, "_prepare_trace", prepare_after_ours)

    def begin_iteration(self, index: int) -> None:
        """Count what is alive when the measured iteration begins."""
        import torch

        if self._profiler is not None and index == self.lead_in:
            self._live_bytes = live_tensor_bytes("cpu")
            with torch.autograd.profiler.record_function(_MARK):
                pass

    def end_iteration(self, index: int) -> None:
        """End the profile with the measured iteration."""
        if self._profiler is not None and index == self.lead_in:
            profiler = self._finish()
            events = profiler.kineto_results.events()
            began = next(event.start_ns() for event in events if event.name() == _MARK)
            memory = sorted(
                (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
            )
            balance = highest = 0
            for at, size in memory:
                if at >= began:
                    balance += size
                    highest = max(highest, balance)
            self.peak_bytes = self._live_bytes + highest

    def stop(self, complete: bool) -> None:
        """End the profile where the iteration did not end."""
        if self._profiler is not None:
            self._finish()
        self._patches.restore()

    def forget(self) -> None:
        """Leave the profiler alone in a forked child, where its threads are missing."""
        self._profiler = None
        self._patches.restore()

    def _give_up(self) -> None:
        if self._profiler is not None:
            self._finish()
            self.failure = "the program started torch's profiler during the measured iteration"

    def _finish(self) -> Any:
        profiler, self._profiler = self._profiler, None
        self._patches.restore()
        _quietly(lambda: profiler.__exit__(None, None, None))
        _log_level(self._log_level_before)
        return profiler


def live_tensor_bytes(device: str) -> int:
    """Return the bytes of all storages on `device` that tensors in Python hold now."""
    import torch

    storages: dict[int, int] = {}
    # By type, not isinstance: that would wake up lazy proxies.
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    tensors += [t.grad for t in tensors if t.is_leaf and t.requires_grad and t.grad is not None]
    for tensor in tensors:
        for part in plain_tensors(tensor):
            storage = storage_of(part)
            # The storage's device: a compiler's fake tensors only pretend to be on one.
            if storage is not None and storage.device.type == device:
                storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def _quietly(action: Callable[[], Any]) -> Any:
    """Run `action` without the profiler's own lines on stderr."""
    name = "KINETO_LOG_LEVEL"
    chosen = os.environ.get(name)
    if chosen is None:
        os.environ[name] = "99"
    try:
        return action()
    finally:
        if chosen is None:
            del os.environ[name]


def _log_level(level: int | None) -> int | None:
    """Set torch's C++ log level and return the one before; None leaves or finds it unknown.

    The profiled allocator logs a warning for the first block it sees released that it did not
    see allocated, which is what happens to everything older than the profile.
    """
    import torch

    if level is None:
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        flag = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None
    before, flag.value = flag.value, level
    return before
