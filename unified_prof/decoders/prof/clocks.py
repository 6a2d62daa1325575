"""Converts counters of the host and the device to Unix times in nanoseconds.

    host ticks    t -> (t - C_host) * 1000 / F_host + M      (monotonic ns; t itself without F_host)
    device ticks  t -> (t - C_dev)  * 1000 / F_dev  + M
    device ns     t -> t + M - D
    monotonic ns  t -> t + collectionTimeBegin * 1000 - clockMonotonicRaw    (since 1970)

F are frequencies in MHz as decimal strings. M is clock_monotonic_raw in host_start.log plus
cntvct_diff * 1000 / F_host (1000 without F_host), D is clock_monotonic_raw in dev_start.log, C are
the counters in these logs. The computation uses rational arithmetic on int64, because float64 is
not exact enough; results are truncated to nanoseconds at the end. `Timeline` packs threads and host
times into keys that sort by thread, then time.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Pool
from unified_prof.errors import RawFormatError

Int64 = NDArray[np.int64]

# Replaces times beyond int64 (year 2262), which are always damaged.
MAX_NS = (1 << 63) - 1

_INT64_LIMIT = 1 << 63
# Frequency of a host counter that shows nanoseconds.
_NANOSECONDS_MHZ = 1000


@dataclass(frozen=True, slots=True)
class LinearClock:
    """ns = floor(ticks * rate + offset_ns), both rational."""

    rate: Fraction
    offset_ns: Fraction

    def to_ns(self, ticks: NDArray[Any]) -> Int64:
        """Convert counter values (any integer array) to int64 ns.

        Times before 1970 become 0, times beyond int64 become `MAX_NS`; both indicate damaged data.
        """
        ticks = np.asarray(ticks)
        if not ticks.size:
            return np.zeros(ticks.shape, np.int64)
        denominator = lcm(self.rate.denominator, self.offset_ns.denominator)
        multiplier = int(self.rate * denominator)
        offset, rest = divmod(int(self.offset_ns * denominator), denominator)
        if not self._fits(multiplier, denominator, offset):
            return self._to_ns_slowly(ticks)
        lowest = _first_tick_at(0, multiplier, denominator, offset, rest)
        highest = _first_tick_at(_INT64_LIMIT, multiplier, denominator, offset, rest)
        unusable = bool(ticks.min() < lowest or ticks.max() >= highest)
        if unusable:
            early, late = ticks < lowest, ticks >= highest
            ticks = np.where(early | late, np.asarray(0, ticks.dtype), ticks)
        # Partial sums may overflow even if the result does not; wrapping cancels out.
        with np.errstate(over="ignore"):
            if denominator == 1:
                result = ticks.astype(np.int64) * multiplier + offset
            else:
                wide = ticks.astype(np.int64 if ticks.dtype.kind == "i" else np.uint64)
                quotient, remainder = (
                    part.astype(np.int64) for part in np.divmod(wide, wide.dtype.type(denominator))
                )
                result = (
                    quotient * multiplier + offset + (remainder * multiplier + rest) // denominator
                )
        if unusable:
            result[early] = 0
            result[late] = MAX_NS
        return np.asarray(result, np.int64)

    def finer(self, parts: int, origin_ns: int) -> LinearClock:
        """Return a clock with unit 1 / parts ns and origin `origin_ns`, rounded to nearest."""
        return LinearClock(self.rate * parts, (self.offset_ns - origin_ns) * parts + Fraction(1, 2))

    def duration(self) -> LinearClock:
        """Return a clock that converts differences of counter values."""
        return LinearClock(self.rate, Fraction(0))

    def tick_to_ns(self, tick: int) -> int:
        """Convert one counter value."""
        exact = tick * self.rate + self.offset_ns
        return min(max(exact.numerator // exact.denominator, 0), MAX_NS)

    def _fits(self, multiplier: int, denominator: int, offset: int) -> bool:
        return multiplier * (denominator + 1) < _INT64_LIMIT and abs(offset) < _INT64_LIMIT

    def _to_ns_slowly(self, ticks: NDArray[Any]) -> Int64:
        """Convert with Python integers; used if the products do not fit into int64."""
        return np.array(
            [self.tick_to_ns(tick) for tick in ticks.ravel().tolist()], np.int64
        ).reshape(ticks.shape)


@dataclass(frozen=True, slots=True)
class Readings:
    """Values from which clocks are computed, for decoders that must round as the exporter does.

    The names in brackets are those of the formulas above.
    """

    start_ns: Fraction
    """Host monotonic time of the start [M]."""
    begin_us: int
    """Unix time of the start [collectionTimeBegin]."""
    begin_monotonic_ns: int
    """Monotonic time of the host at that Unix time [clockMonotonicRaw]."""
    device_mhz: Decimal | None = None
    """Frequency of the device counter [F_dev]."""
    device_counter: int | None = None
    """Device counter at the start [C_dev]."""
    device_monotonic_ns: int | None = None
    """Monotonic time of the device at the start [D]."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks of one host or device directory."""

    host: LinearClock
    """Clock of the host counter (api, task_track, npu_module_mem, ...)."""
    host_origin_ticks: int
    """Host counter at the start of the recording."""
    monotonic: LinearClock
    """Host monotonic nanoseconds."""
    readings: Readings
    device_origin_ticks: int = 0
    """Device counter at the start of the recording."""
    device: LinearClock | None = None
    """Clock of the device counter (task logs, PMU, frequency)."""
    device_monotonic: LinearClock | None = None
    """Clock of the device's monotonic ns (HCCS, NIC, RoCE, PCIe, sampled PMU)."""
    since_start_us: LinearClock | None = None
    """Clock of microseconds since the device's start (HBM, LLC, DDR, NPU memory of version 1.0)."""


def build_clocks(
    *,
    host_mhz: Decimal | None,
    host_monotonic_ns: int,
    host_counter: int,
    host_counter_diff: int,
    begin_us: int,
    begin_monotonic_ns: int,
    device_mhz: Decimal | None = None,
    device_counter: int | None = None,
    device_monotonic_ns: int | None = None,
) -> Clocks:
    """Build the clocks of a directory from the values of its control files.

    Args:
        host_mhz: frequency of the host counter; None if host times are in ns.
        host_monotonic_ns: clock_monotonic_raw of host_start.log.
        host_counter: cntvct of host_start.log.
        host_counter_diff: cntvct_diff of host_start.log, 0 if missing.
        begin_us: collectionTimeBegin of start_info, Unix time in microseconds.
        begin_monotonic_ns: clockMonotonicRaw of start_info.
        device_mhz: hwts_frequency; this and the next two are None for a host directory.
        device_counter: cntvct of dev_start.log.
        device_monotonic_ns: clock_monotonic_raw of dev_start.log.
    """
    local = Fraction(begin_us * 1000 - begin_monotonic_ns)
    start = Fraction(host_monotonic_ns)
    start += Fraction(host_counter_diff * 1000) / Fraction(host_mhz or _NANOSECONDS_MHZ)
    device = device_monotonic = None
    if device_mhz is not None and device_counter is not None:
        device = _counter(device_mhz, device_counter, start + local)
    if device_monotonic_ns is not None:
        device_monotonic = LinearClock(Fraction(1), start + local - device_monotonic_ns)
    return Clocks(
        host=(
            LinearClock(Fraction(1), local)
            if host_mhz is None
            else _counter(host_mhz, host_counter, start + local)
        ),
        host_origin_ticks=host_monotonic_ns if host_mhz is None else host_counter,
        monotonic=LinearClock(Fraction(1), local),
        readings=Readings(
            start,
            begin_us,
            begin_monotonic_ns,
            device_mhz,
            device_counter,
            device_monotonic_ns,
        ),
        device_origin_ticks=device_counter or 0,
        device=device,
        device_monotonic=device_monotonic,
        since_start_us=LinearClock(Fraction(1000), start + local),
    )


def _counter(mhz: Decimal, origin: int, origin_ns: Fraction) -> LinearClock:
    rate = Fraction(1000) / Fraction(mhz)
    return LinearClock(rate, origin_ns - origin * rate)


def _first_tick_at(ns: int, multiplier: int, denominator: int, offset: int, rest: int) -> int:
    """Return the first tick whose exact time is at least `ns`."""
    needed = (ns - offset) * denominator - rest
    return -(-needed // multiplier)


Keys = NDArray[np.uint64]

_TIME_BITS = 48
_TIME_MASK = np.uint64((1 << _TIME_BITS) - 1)
_BEFORE_START = 1 << 46
_MAX_THREADS = 1 << (64 - _TIME_BITS)


class Timeline:
    """Packs (thread, host counter) into sortable keys: thread in the high bits, time below.

    With a counter of 100 MHz, times may be up to about 8 days before and 24 days after the start of
    the recording; with a counter in ns, a tenth of that.
    """

    def __init__(self, origin_ticks: int) -> None:
        self.base = max(0, origin_ticks - _BEFORE_START)
        self.threads = Pool()
        # Differences of unsigned times wrap: times before the base are above this.
        self._max_relative = np.uint64(min(int(_TIME_MASK), (1 << 64) - 1 - self.base))

    def fits(self, ticks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return a mask of the times that can be packed."""
        return np.asarray(ticks - np.uint64(self.base) <= self._max_relative)

    def pack(self, thread_id: NDArray[Any], ticks: NDArray[np.uint64]) -> Keys:
        """Return the keys of times; times that do not fit are clipped.

        Raises:
            RawFormatError: there are more threads than supported.
        """
        rank = self.threads.index_of(thread_id).astype(np.uint64)
        if len(self.threads) > _MAX_THREADS:
            raise RawFormatError(
                f"records of more than {_MAX_THREADS} threads",
                slug="damaged-recording",
            )
        return rank << np.uint64(_TIME_BITS) | self._relative(ticks)

    def move(self, keys: Keys, ticks: NDArray[np.uint64]) -> Keys:
        """Return keys with the threads of `keys` and other times."""
        return (keys & ~_TIME_MASK) | self._relative(ticks)

    def ticks(self, keys: Keys) -> NDArray[np.uint64]:
        """Return the times of keys."""
        return (keys & _TIME_MASK) + np.uint64(self.base)

    def thread_ids(self, keys: Keys) -> NDArray[np.int64]:
        """Return the thread ids of keys."""
        ranks = keys >> np.uint64(_TIME_BITS)
        return np.asarray(self.threads.values[ranks], np.int64)

    def _relative(self, ticks: NDArray[np.uint64]) -> NDArray[np.uint64]:
        base = np.uint64(self.base)
        relative = ticks - base
        if len(relative) and relative.max() > self._max_relative:
            relative = np.minimum(np.maximum(ticks, base) - base, _TIME_MASK)
        return np.asarray(relative, np.uint64)
