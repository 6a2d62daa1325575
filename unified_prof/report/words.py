"""Figures and names as people read them."""

from __future__ import annotations

from unified_prof.plain import printable
from unified_prof.units import TIMES, scaled

neutral = printable

NOT_MEASURED = "-"
"""What stands where a figure was not measured: never a zero."""

_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))

_FLOPS = (
    (10**15, "PFLOP"),
    (10**12, "TFLOP"),
    (10**9, "GFLOP"),
    (10**6, "MFLOP"),
    (10**3, "kFLOP"),
    (1, "FLOP"),
)
_RATES = ((10**12, "TB/s"), (10**9, "GB/s"), (10**6, "MB/s"), (10**3, "kB/s"), (1, "B/s"))


def duration(value_ns: float | None) -> str:
    """Return a duration with three significant digits in the unit that fits."""
    return NOT_MEASURED if value_ns is None else scaled(value_ns, TIMES)


def size(value_bytes: float | None) -> str:
    """Return a size with three significant digits in the binary unit that fits."""
    return NOT_MEASURED if value_bytes is None else scaled(value_bytes, _SIZES)


def flops(value: float | None) -> str:
    """Return a number of floating-point operations with three significant digits."""
    return NOT_MEASURED if value is None else scaled(value, _FLOPS)


def flops_per_second(value_tflops: float | None) -> str:
    """Return TFLOP/s with three significant digits in the unit that fits."""
    if value_tflops is None:
        return NOT_MEASURED
    return scaled(value_tflops * 1e12, _FLOPS) + "/s"


def gb_per_second(value: float | None) -> str:
    """Return decimal GB/s with three significant digits in the unit that fits."""
    return NOT_MEASURED if value is None else scaled(value * 1e9, _RATES)


def percent(value: float | None) -> str:
    """Return a percentage with one decimal; a small one that is not zero does not look like it."""
    if value is None:
        return NOT_MEASURED
    if 0 < value < 0.1:
        return "<0.1 %"
    return f"{value:.1f} %"


def share(part: float | None, whole: float | None) -> str:
    """Return `part` as a percentage of `whole`."""
    return percent(None if part is None or not whole else 100 * part / whole)


def number(value: float | None) -> str:
    """Return a count with separators, a mean of counts with three significant digits."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
