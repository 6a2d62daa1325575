"""Student's t distribution: how far a mean of few values may lie from the truth."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_NORMAL_FROM = 1e6
"""Degrees of freedom from which it is the normal distribution to all digits that count."""


def two_sided(t: float, degrees: float) -> float:
    """Return the probability of a value at least `t` away from 0.

    Args:
        t: the value, in standard errors; infinite is allowed.
        degrees: degrees of freedom, above 0; infinite is the normal distribution.
    """
    t = abs(t)
    if math.isinf(t):
        return 0.0
    if degrees >= _NORMAL_FROM:
        return math.erfc(t / math.sqrt(2))
    return _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


@lru_cache(maxsize=256)
def quantile(alpha: float, degrees: float) -> float:
    """Return the t that is passed on either side with probability `alpha` in all."""
    if degrees >= _NORMAL_FROM:
        return NormalDist().inv_cdf(1 - alpha / 2)
    low, high = 0.0, 1.0
    while two_sided(high, degrees) > alpha:
        low, high = high, high * 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, degrees) > alpha else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x > (a + 1) / (a + b + 2):
        return 1 - front * _fraction(1 - x, b, a) / b
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _not_zero(1 + term * d, tiny)
            c = _not_zero(1 + term / c, tiny)
            value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return value


def _not_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
