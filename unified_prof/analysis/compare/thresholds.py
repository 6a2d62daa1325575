"""Thresholds as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.compare.between import Noise

_KNOWN = 1e9
"""Degrees of freedom of what somebody knows: no estimate of a few runs."""

_NUMBER = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_TIMES_NS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_SIZES_BYTES = {
    "B": 1,
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}


def fraction(text: str, option: str = "--max-regress") -> float:
    """Return `5%` or `0.05` as 0.05.

    Raises:
        UsageError: it is neither, or a bare number above 1, which is hardly meant as a factor.
    """
    match = re.fullmatch(rf"\s*{_NUMBER}\s*(%?)\s*", text)
    if match is None:
        raise UsageError(
            f"{option} takes a percentage or a fraction, not {text!r}",
            hint="for example 5% or 0.05",
            slug="wrong-threshold",
        )
    number = float(match[1])
    if not match[2] and number > 1:
        raise UsageError(
            f"{option} {text.strip()} without a percent sign would be {number:.0%}",
            hint=f"write {match[1]}%, or {number:.0%} if that is meant",
            slug="wrong-threshold",
        )
    return number / (100 if match[2] else 1)


def absolute(texts: Sequence[str]) -> tuple[float | None, float | None]:
    """Return the least change of a time in ns and of a size in bytes, from `0.05ms`, `1MiB`.

    Raises:
        UsageError: one of them is neither a time nor a size, or there are two of a kind.
    """
    time_ns: float | None = None
    size_bytes: float | None = None
    for text in texts:
        match = re.fullmatch(rf"\s*{_NUMBER}\s*([A-Za-zµ]+)\s*", text)
        if match is not None and match[2] in _TIMES_NS and time_ns is None:
            time_ns = float(match[1]) * _TIMES_NS[match[2]]
        elif match is not None and match[2] in _SIZES_BYTES and size_bytes is None:
            size_bytes = float(match[1]) * _SIZES_BYTES[match[2]]
        else:
            raise UsageError(
                f"--min-abs takes one time and one size at most, each with its unit, not {text!r}",
                hint="for example --min-abs 0.05ms --min-abs 1MiB",
                slug="wrong-threshold",
            )
    return time_ns, size_bytes


def told_noise(text: str) -> Noise:
    """Return how much runs differ, as somebody says.

    Raises:
        UsageError: the text is no share.
    """
    from unified_prof.analysis.compare.between import Noise

    return Noise(fraction(text, "--noise"), _KNOWN, "--noise")
