"""Peak memory of one whole iteration, in an iteration of its own without any other tracking."""

from __future__ import annotations

import functools
import gc
import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

from unified_prof.tracking.activations import plain_tensors, storage_of
from unified_prof.tracking.device import Device, MemoryUse
from unified_prof.tracking.regions import RegionWatch
from unified_prof.tracking.timeline import another_is_prepared
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Patches

_ERRORS_ONLY = 2
_MARK = "uprof: the measured iteration begins"
_CHANGE = "uprof: a region opens or closes"
_MAX_CHANGES = 50_000
"""Of regions within the iteration: beyond that it is left in peace, and regions have no peak."""


class PeakMeter(Protocol):
    """An instrument that knows the peak once it has stopped."""

    lead_in: int
    """Iterations it must see before the one it measures."""
    peak_bytes: int | None
    failure: str | None
    """Why there is no peak."""
    facts: dict[str, str]
    region_peaks: dict[int, int]
    """Peak while each region was open, where regions have one."""

    def start(self) -> None: ...  # noqa: D102
    def begin_iteration(self, index: int) -> None: ...  # noqa: D102
    def end_iteration(self, index: int) -> None: ...  # noqa: D102
    def stop(self, complete: bool) -> None: ...  # noqa: D102
    def forget(self) -> None: ...  # noqa: D102


class AllocatorPeak:
    """The peak as the device's allocator counts it; its own maximum starts anew for that.

    On several devices it is the sum of theirs. Where regions open and close, the maximum is read
    and starts anew, so that each stretch in between has its own.
    """

    lead_in = 0

    def __init__(self, device: Device, regions: RegionWatch) -> None:
        self._device = device
        self._regions = regions
        self.region_peaks: dict[int, int] = {}
        self._highest: dict[int, int] = {}
        """By innermost region: the highest of the stretches so far."""
        self._uses: dict[int, MemoryUse] = {}
        """By device: the same of all stretches so far."""
        self._changes = 0
        self.peak_bytes: int | None = None
        self.failure: str | None = None
        self.facts: dict[str, str] = {}
        """What is known beyond the peak, for each device."""
        self._before: dict[int, MemoryUse] = {}

    def start(self) -> None:
        """Nothing to prepare."""

    def begin_iteration(self, index: int) -> None:
        """Start a new maximum."""
        self._highest, self._uses, self._changes = {}, {}, 0
        self._before = {one.device: one for one in self._device.reset_peaks()}
        self._regions.tell(self._stretch_ends)

    def end_iteration(self, index: int) -> None:
        """Read the maximum."""
        innermost = self._regions.innermost
        self._regions.follow_no_more()
        self._read(innermost)
        uses = self._uses.values()
        if not uses:
            self.failure = f"torch tells no allocated memory for {self._device.kind}"
            return
        self.peak_bytes = sum(one.peak_allocated_bytes for one in uses)
        if self._changes <= _MAX_CHANGES:
            self.region_peaks = self._regions.regions.with_those_around(self._highest)
        for one in uses:
            self._describe(one)

    def _stretch_ends(self, innermost: int) -> None:
        """Read the maximum of the stretch since the last change of what regions are open."""
        self._changes += 1
        if self._changes <= _MAX_CHANGES:
            self._read(innermost)
            self._device.reset_peaks()

    def _read(self, innermost: int) -> None:
        uses = self._device.memory_use()
        peak = sum(one.peak_allocated_bytes for one in uses)
        self._highest[innermost] = max(self._highest.get(innermost, 0), peak)
        for one in uses:
            self._uses[one.device] = _highest(self._uses.get(one.device, one), one)

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
        """Look at regions no more."""
        self._regions.follow_no_more()

    def forget(self) -> None:
        """Nothing to forget."""


def _highest(before: MemoryUse, now: MemoryUse) -> MemoryUse:
    """Return how things stand now, with the higher maxima of two stretches."""
    reserved = (before.peak_reserved_bytes, now.peak_reserved_bytes)
    known = [one for one in reserved if one is not None]
    return replace(
        now,
        peak_allocated_bytes=max(before.peak_allocated_bytes, now.peak_allocated_bytes),
        peak_reserved_bytes=max(known) if known else None,
    )


class ProfiledPeak:
    """The peak on the CPU: what is alive as the iteration begins, and every allocation in it.

    Allocations and releases are as torch's own profiler records them. It reports the release
    only of what it saw allocated, so it runs from the iteration before on: what that one leaves
    behind (gradients) is then known. Where regions open and close it is told that too, by a mark.
    """

    lead_in = 1

    def __init__(self, internals: TorchInternals, regions: RegionWatch) -> None:
        self._internals = internals
        self._regions = regions
        self.region_peaks: dict[int, int] = {}
        self._innermost: list[int] = []
        """The innermost region until each change."""
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
            self._innermost.clear()
            self._regions.tell(self._changes)

    def _changes(self, innermost: int) -> None:
        """Mark where what regions are open changes."""
        import torch

        if len(self._innermost) < _MAX_CHANGES:
            self._innermost.append(innermost)
            with torch.autograd.profiler.record_function(_CHANGE):
                pass

    def end_iteration(self, index: int) -> None:
        """End the profile with the measured iteration."""
        if self._profiler is not None and index == self.lead_in:
            innermost = [*self._innermost, self._regions.innermost]
            self._regions.follow_no_more()
            profiler = self._finish()
            events = profiler.kineto_results.events()
            began = next((event.start_ns() for event in events if event.name() == _MARK), None)
            if began is None:
                self.failure = "torch's profiler did not record the iteration's begin"
                return
            memory = sorted(
                (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
            )
            times, levels = [began], [0]
            for at, size in memory:
                if at >= began:
                    times.append(at)
                    levels.append(levels[-1] + size)
            self.peak_bytes = self._live_bytes + max(levels)
            changes = sorted(event.start_ns() for event in events if event.name() == _CHANGE)
            if len(changes) == len(innermost) - 1 < _MAX_CHANGES:
                self.region_peaks = self._peaks(times, levels, changes, innermost)

    def _peaks(
        self, times: list[int], levels: list[int], changes: list[int], innermost: list[int]
    ) -> dict[int, int]:
        """Return the peak while each region was open.

        Args:
            times: when the level changed...
            levels: ...and to what.
            changes: when regions opened or closed.
            innermost: the innermost region until each of these, and at last.
        """
        # Each stretch begins with the level that the one before it ended with.
        ends = [max(1, bisect_left(times, one)) for one in changes]
        highest: dict[int, int] = {}
        for region, (first, behind) in zip(
            innermost, pairwise([1, *ends, len(levels)]), strict=True
        ):
            peak = self._live_bytes + max(levels[first - 1 : behind])
            highest[region] = max(highest.get(region, peak), peak)
        return self._regions.regions.with_those_around(highest)

    def stop(self, complete: bool) -> None:
        """End the profile where the iteration did not end."""
        self._regions.follow_no_more()
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
            self._regions.follow_no_more()
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
