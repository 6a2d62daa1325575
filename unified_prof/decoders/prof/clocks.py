"""Converts counters of the host and the device to Unix times in nanoseconds.

    host ticks    t -> (t - C_host) * 1000 / F_host + M      (monotonic ns; t itself without F_host)
    device ticks  t -> (t - C_dev)  * 1000 / F_dev  + M
    device ns     t -> t + M - D
    monotonic ns  t -> t + collectionTimeBegin * 1000 - clockMonotonicRaw    (since 1970)

F are frequencies in MHz as decimal strings. M is clock_monotonic_raw in host_start.log plus
cntvct_diff * 1000 / F_host (1000 without F_host), D is clock_monotonic_raw in dev_start.log, C are
the counters in these logs. The computation uses rational arithmetic on int64, because float64 is
not exact enough; results are truncated to nanoseconds at the end.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

# Replaces times beyond int64 (year 2262), which are always damaged.
MAX_NS = (1 << 63) - 1
_INT64_LIMIT = 1 << 63
_NANOSECONDS_MHZ = 1000  # Frequency of a host counter that shows nanoseconds.


class LinearClock(Struct, frozen=True):
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
        if multiplier * (denominator + 1) >= _INT64_LIMIT or abs(offset) >= _INT64_LIMIT:
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

    def _to_ns_slowly(self, ticks: NDArray[Any]) -> Int64:
        """Convert with Python integers; used if the products do not fit into int64."""
        converted = [self.tick_to_ns(tick) for tick in ticks.ravel().tolist()]
        return np.array(converted, np.int64).reshape(ticks.shape)


class Readings(Struct, frozen=True):
    """Inputs of the clock formulas, for decoders that must round as the exporter does.

    The names in brackets are those of the formulas above.
    """

    start_ns: Fraction  # Host monotonic time of the start [M].
    begin_us: int  # Unix time of the start [collectionTimeBegin].
    begin_monotonic_ns: int  # Monotonic time of the host at that Unix time [clockMonotonicRaw].
    device_mhz: Decimal | None = None  # Frequency of the device counter [F_dev].
    device_counter: int | None = None  # Device counter at the start [C_dev].
    device_monotonic_ns: int | None = None  # Monotonic time of the device at the start [D].


class Clocks(Struct, frozen=True):
    """Clocks of one host or device directory."""

    host: LinearClock  # Clock of the host counter (api, task_track, npu_module_mem, ...).
    host_origin_ticks: int  # Host counter at the start of the recording.
    monotonic: LinearClock  # Host monotonic nanoseconds.
    readings: Readings
    # Clock of microseconds since the device's start (HBM, LLC, DDR, NPU memory of version 1.0).
    since_start_us: LinearClock
    device_origin_ticks: int  # Device counter at the start of the recording; 0 if unknown.
    device: LinearClock | None  # Clock of the device counter (task logs, PMU, frequency).
    # Clock of the device's monotonic ns (HCCS, NIC, RoCE, PCIe, sampled PMU).
    device_monotonic: LinearClock | None


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

    `host_mhz` is None if host times are in ns. `begin_us` and `begin_monotonic_ns` are
    collectionTimeBegin and clockMonotonicRaw of start_info; the others, except frequencies, are
    values of host_start.log and dev_start.log. Those of the device are None for a host directory.
    """
    local = Fraction(begin_us * 1000 - begin_monotonic_ns)
    start = Fraction(host_monotonic_ns)
    start += Fraction(host_counter_diff * 1000) / Fraction(host_mhz or _NANOSECONDS_MHZ)
    device = device_monotonic = None
    if device_mhz is not None and device_counter is not None:
        device = _counter(device_mhz, device_counter, start + local)
    if device_monotonic_ns is not None:
        device_monotonic = LinearClock(Fraction(1), start + local - device_monotonic_ns)
    monotonic = LinearClock(Fraction(1), local)
    return Clocks(
        host=_counter(host_mhz, host_counter, start + local) if host_mhz is not None else monotonic,
        host_origin_ticks=host_monotonic_ns if host_mhz is None else host_counter,
        monotonic=monotonic,
        readings=Readings(
            start, begin_us, begin_monotonic_ns, device_mhz, device_counter, device_monotonic_ns
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
