"""Peak memory of one whole iteration, in an iteration of its own without any other tracking."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable
from typing import Any, Protocol

from unified_prof.tracking.patches import Patches
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.watch.device import Device, MemoryUse
from unified_prof.tracking.watch.other_profilers import another_is_prepared
from unified_prof.tracking.watch.sizes import plain_tensors, storage_of

_ERRORS_ONLY = 2
_MARK = "uprof: the measured iteration begins"


class PeakMeter(Protocol):
    """An instrument that knows the peak once it has stopped."""

    lead_in: int
    """Iterations it must see before the one it measures."""
    peak_bytes: int | None
    failure: str | None
    """Why there is no peak."""
    facts: dict[str, str]

    def start(self) -> None: ...  # noqa: D102
    def begin_iteration(self, index: int) -> None: ...  # noqa: D102
    def end_iteration(self, index: int) -> None: ...  # noqa: D102
    def stop(self, complete: bool) -> None: ...  # noqa: D102
    def forget(self) -> None: ...  # noqa: D102


class AllocatorPeak:
    """The peak as the device's allocator counts it; its own maximum starts anew for that.

    On several devices it is the sum of theirs.
    """

    lead_in = 0

    def __init__(self, device: Device) -> None:
        self._device = device
        self.peak_bytes: int | None = None
        self.failure: str | None = None
        self.facts: dict[str, str] = {}
        """What is known beyond the peak, for each device."""
        self._before: dict[int, MemoryUse] = {}

    def start(self) -> None:
        """Nothing to prepare."""

    def begin_iteration(self, index: int) -> None:
        """Start a new maximum."""
        self._before = {one.device: one for one in self._device.reset_peaks()}

    def end_iteration(self, index: int) -> None:
        """Read the maximum."""
        uses = self._device.memory_use()
        if not uses:
            self.failure = f"torch tells no allocated memory for {self._device.kind}"
            return
        self.peak_bytes = sum(one.peak_allocated_bytes for one in uses)
        for one in uses:
            self._describe(one)

    def _describe(self, use: MemoryUse) -> None:
        before, place = self._before.get(use.device), f"{self._device.kind}:{use.device}"
        self.facts[f"peak_allocated_bytes {place}"] = str(use.peak_allocated_bytes)
        if use.peak_reserved_bytes is not None:
            self.facts[f"peak_reserved_bytes {place}"] = str(use.peak_reserved_bytes)
        if use.retries is not None:
            retries = use.retries - ((before and before.retries) or 0)
            self.facts[f"allocation_retries {place}"] = str(retries)
        if use.failures is not None:
            failures = use.failures - ((before and before.failures) or 0)
            self.facts[f"allocation_failures {place}"] = str(failures)
        self.facts["peak_is_of"] = "torch's allocator; pools of other libraries are not seen"

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

    def __init__(self, internals: TorchInternals) -> None:
        self._internals = internals
        self.peak_bytes: int | None = None
        self.failure: str | None = None
        self.facts: dict[str, str] = {}
        self._profiler: Any = None
        self._patches = Patches()
        self._live_bytes = 0
        self._log_level_before: int | None = None

    def start(self) -> None:
        """Start torch's profiler, unless the program uses it."""
        from torch.autograd.profiler import profile

        internals = self._internals
        self.peak_bytes = self.failure = None
        if internals.profiler_enabled() or another_is_prepared():
            self.failure = "the program runs torch's profiler itself"
            return
        # There is only one profiler: the program's comes first should it want to start.
        giving_way = internals.replace(self._patches, "profiler_prepare", self._wrap_prepare)
        if not giving_way or not internals.has("profiler_enabled"):
            self._patches.restore()
            self.failure = "torch's profiler could not give way to one of the program's own"
            return
        ours = profile(profile_memory=True)
        self._log_level_before = internals.set_log_level(_ERRORS_ONLY)
        try:
            self._profiler = _quietly(ours.__enter__)
        finally:
            if self._profiler is None:
                self._patches.restore()
                internals.set_log_level(self._log_level_before)

    def begin_iteration(self, index: int) -> None:
        """Count what is alive when the measured iteration begins."""
        import torch

        if self._profiler is not None and index == self.lead_in:
            self._live_bytes = live_tensor_bytes("cpu", self._internals.storage_key)
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

    def _wrap_prepare(self, prepare: Any) -> Any:
        @functools.wraps(prepare)
        def prepare_after_ours(other: Any, *args: Any, **kwargs: Any) -> Any:
            with self._internals.anomalies.fenced("peak_usage_not_measured", "giving way"):
                self._give_up()
            return prepare(other, *args, **kwargs)

        return prepare_after_ours

    def _give_up(self) -> None:
        if self._profiler is not None:
            self._finish()
            self.failure = "the program started torch's profiler during the measured iteration"

    def _finish(self) -> Any:
        profiler, self._profiler = self._profiler, None
        self._patches.restore()
        _quietly(lambda: profiler.__exit__(None, None, None))
        self._internals.set_log_level(self._log_level_before)
        return profiler


def live_tensor_bytes(device: str, storage_key: Callable[[Any], int]) -> int:
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
                storages[storage_key(storage)] = storage.nbytes()
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
