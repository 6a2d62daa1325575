"""Measure the peak memory of one iteration, without other tracking in that iteration."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from unified_prof.tracking.activations import plain_tensors, storage_of
from unified_prof.tracking.device import Device, MemoryUse
from unified_prof.tracking.driver import Instrument
from unified_prof.tracking.regions import RegionWatch
from unified_prof.tracking.timeline import ProfilersHere, without_log_messages
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Patches, instances

_ERRORS_ONLY = 2
_MARK = "uprof: the measured iteration begins"
_CHANGE = "uprof: a region opens or closes"
# Report fact. Scratch memory of oneDNN and MKL, for example, is not in torch's allocator.
_IS_OF = {"peak_is_of": "torch's allocator; memory of other libraries is not included"}
# Maximum number of region changes in the iteration; beyond it, peaks of regions are not reported.
_MAX_CHANGES = 50_000


class PeakMeter(Instrument):
    """Measures peak memory."""

    lead_in = 0
    """Number of iterations that it needs before the measured iteration."""

    def __init__(self, regions: RegionWatch) -> None:
        self._regions = regions
        self.peak_bytes: int | None = None
        self.failure: str | None = None
        """Reason why the peak could not be measured."""
        self.facts: dict[str, str] = {}
        """Further figures for each device."""
        self.region_peaks: dict[int, int] = {}
        """Peak while each region was open, if regions are measured."""

    def stop(self, complete: bool) -> None:
        """Stop watching regions."""
        self._regions.stop_following()

    def forget(self) -> None:
        """Drop what a forked child lacks."""


class AllocatorPeak(PeakMeter):
    """Peak reported by the device's allocator; resets the allocator's maximum.

    For several devices, it is the sum of their peaks. The maximum is also read and reset when
    regions open or close, so that each interval in between has its own peak.
    """

    def __init__(self, device: Device, regions: RegionWatch) -> None:
        super().__init__(regions)
        self._device = device
        self._highest: dict[int, int] = {}
        """Highest peak so far by innermost region."""
        self._uses: dict[int, MemoryUse] = {}
        """Memory use by device, with the highest peaks so far."""
        self._changes = 0
        self._before: dict[int, MemoryUse] = {}

    def begin_iteration(self, index: int) -> None:
        """Reset the maximum."""
        self._highest, self._uses, self._changes = {}, {}, 0
        self._before = {one.device: one for one in self._device.reset_peaks()}
        self._regions.notify(self._stretch_ends)

    def end_iteration(self, index: int) -> None:
        """Read the maximum."""
        innermost = self._regions.innermost
        self._regions.stop_following()
        self._read(innermost)
        uses = self._uses.values()
        if not uses:
            self.failure = f"torch reports no allocated memory for {self._device.kind}"
            return
        self.peak_bytes = sum(one.peak_allocated_bytes for one in uses)
        if self._changes <= _MAX_CHANGES:
            self.region_peaks = self._regions.regions.including_inner(self._highest)
        for one in uses:
            self._describe(one)

    def _stretch_ends(self, innermost: int) -> None:
        """Read and reset the maximum before a region opens or closes."""
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
        self.facts.update(_IS_OF)


def _highest(before: MemoryUse, now: MemoryUse) -> MemoryUse:
    """Return the current memory use `now` with the higher peak of `before` and `now`."""
    reserved = (before.peak_reserved_bytes, now.peak_reserved_bytes)
    known = [one for one in reserved if one is not None]
    return replace(
        now,
        peak_allocated_bytes=max(before.peak_allocated_bytes, now.peak_allocated_bytes),
        peak_reserved_bytes=max(known) if known else None,
    )


class ProfiledPeak(PeakMeter):
    """Peak on the CPU: memory in use at the start of the iteration, plus allocations during it.

    torch's profiler records allocations and releases. It reports releases only of blocks whose
    allocation it has seen. It is therefore started one iteration earlier, to see the allocations
    that remain from that iteration, such as gradients. Region changes are marked in the profile.
    """

    lead_in = 1

    def __init__(self, internals: TorchInternals, regions: RegionWatch) -> None:
        super().__init__(regions)
        self._internals = internals
        self._innermost: list[int] = []
        """For each change, the innermost region before it."""
        self._profiler: Any = None
        self._before: ProfilersHere | None = None
        self._patches = Patches()
        self._live_bytes = 0
        self._log_level_before: int | None = None

    def start(self) -> None:
        """Start torch's profiler, unless the program uses it."""
        from torch.autograd.profiler import profile

        internals = self._internals
        self.peak_bytes = self.failure = None
        self._before = ProfilersHere(self._regions.note_entered())
        if internals.profiler_enabled() or self._before.is_active:
            self.failure = "the program runs torch's profiler itself"
            return
        # A process has only one profiler: ours must stop if the program starts its own.
        giving_way = internals.replace(self._patches, "profiler_prepare", self._wrap_prepare)
        if not giving_way or not internals.has("profiler_enabled"):
            self._patches.restore()
            self.failure = "torch's profiler could not be made to yield to the program's"
            return
        ours = profile(profile_memory=True)
        self._log_level_before = internals.set_log_level(_ERRORS_ONLY)
        try:
            self._profiler = without_log_messages(ours.__enter__)
        finally:
            if self._profiler is None:
                self._patches.restore()
                internals.set_log_level(self._log_level_before)

    def begin_iteration(self, index: int) -> None:
        """Measure the memory in use when the measured iteration begins."""
        import torch

        if self._profiler is not None and index == self.lead_in:
            self._live_bytes = live_tensor_bytes("cpu", self._internals.storage_key)
            with torch.autograd.profiler.record_function(_MARK):
                pass
            self._innermost.clear()
            self._regions.notify(self._changes)

    def _changes(self, innermost: int) -> None:
        """Mark a change of the open regions in the profile."""
        import torch

        if len(self._innermost) < _MAX_CHANGES:
            self._innermost.append(innermost)
            with torch.autograd.profiler.record_function(_CHANGE):
                pass

    def end_iteration(self, index: int) -> None:
        """End the profile with the measured iteration and compute the peak."""
        if self._profiler is not None and index == self.lead_in:
            innermost = [*self._innermost, self._regions.innermost]
            self._regions.stop_following()
            profiler = self._finish()
            events = profiler.kineto_results.events()
            began = next((event.start_ns() for event in events if event.name() == _MARK), None)
            if began is None:
                self.failure = "torch's profiler did not record the beginning of the iteration"
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
            self.facts.update(_IS_OF)
            changes = sorted(event.start_ns() for event in events if event.name() == _CHANGE)
            if len(changes) == len(innermost) - 1 < _MAX_CHANGES:
                self.region_peaks = self._peaks(times, levels, changes, innermost)

    def _peaks(
        self, times: list[int], levels: list[int], changes: list[int], innermost: list[int]
    ) -> dict[int, int]:
        """Return the peak while each region was open.

        `levels` are the allocated bytes after each of `times`, relative to the start, `innermost`
        the innermost region before each of `changes` of regions, and at the end.
        """
        # Each interval begins with the level at the end of the one before.
        ends = [max(1, bisect_left(times, one)) for one in changes]
        highest: dict[int, int] = {}
        for region, (first, behind) in zip(
            innermost, pairwise([1, *ends, len(levels)]), strict=True
        ):
            peak = self._live_bytes + max(levels[first - 1 : behind])
            highest[region] = max(highest.get(region, peak), peak)
        return self._regions.regions.including_inner(highest)

    def stop(self, complete: bool) -> None:
        """End the profile if the iteration did not end."""
        super().stop(complete)
        if self._profiler is not None:
            self._finish()
        self._patches.restore()

    def forget(self) -> None:
        """Drop the profiler in a forked child, which lacks its threads."""
        self._profiler = None
        self._patches.restore()

    def _wrap_prepare(self, prepare: Any) -> Any:
        @functools.wraps(prepare)
        def prepare_after_ours(other: Any, *args: Any, **kwargs: Any) -> Any:
            with self._internals.anomalies.recording_failures(
                "peak_usage_not_measured", "giving way"
            ):
                self._give_up()
            return prepare(other, *args, **kwargs)

        return prepare_after_ours

    def _give_up(self) -> None:
        if self._profiler is not None:
            self._regions.stop_following()
            self._finish()
            self.failure = "the program started torch's profiler during the measured iteration"

    def _finish(self) -> Any:
        profiler, self._profiler = self._profiler, None
        self._patches.restore()
        without_log_messages(lambda: profiler.__exit__(None, None, None))
        if self._before is not None:
            self._before.end_later_ranges()
        self._internals.set_log_level(self._log_level_before)
        return profiler


def live_tensor_bytes(device: str, storage_key: Callable[[Any], int]) -> int:
    """Return the total bytes of all storages on `device` that Python tensors refer to."""
    import torch

    storages: dict[int, int] = {}
    tensors = instances(torch.Tensor)
    tensors += [t.grad for t in tensors if t.is_leaf and t.requires_grad and t.grad is not None]
    for tensor in tensors:
        for part in plain_tensors(tensor):
            storage = storage_of(part)
            # The storage's device: fake tensors of a compiler only pretend to be on one.
            if storage is not None and storage.device.type == device:
                storages[storage_key(storage)] = storage.nbytes()
    return sum(storages.values())
