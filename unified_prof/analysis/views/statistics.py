"""How single times of one thing are distributed: an average hides the slow ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import KINDS, UNKNOWN, Calls

Ints = NDArray[np.integer]
Figures = dict[tuple[str, str], Mapping[str, float | None]]


def of_operations(calls: Calls) -> Figures:
    """Return the figures of each operation's calls, by name and kind."""
    if calls.total_ns is None:
        return {}
    texts = calls.labels.texts
    found = _by_key(calls.name.astype(np.int64) * len(KINDS) + calls.kind, calls.total_ns)
    return {(texts[key // len(KINDS)], KINDS[key % len(KINDS)]): one for key, one in found.items()}


def of_kernels(calls: Calls) -> Figures:
    """Return the figures of each kernel's runs; of runs of several kinds the first one's counts."""
    if calls.total_ns is None:
        return {}
    texts = calls.labels.texts
    kind = np.zeros(len(texts), np.int8)
    kind[calls.name[::-1]] = calls.kind[::-1]
    found = _by_key(calls.name.astype(np.int64), calls.total_ns)
    return {(texts[key], KINDS[kind[key]]): one for key, one in found.items()}


def _by_key(key: Ints, times_ns: Ints) -> dict[int, Mapping[str, float | None]]:
    """Return smallest, median, 99th percentile, largest and standard deviation of the times."""
    known = np.flatnonzero(times_ns != UNKNOWN)
    key, times = key[known], times_ns[known]
    order = np.lexsort((times, key))
    key, times = key[order], times[order].astype(np.int64)
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
    count = np.diff(np.append(first, len(key)))
    columns = {
        "min_ns": times[first].tolist(),
        "median_ns": _percentiles(times, first, count, 50),
        "p99_ns": _percentiles(times, first, count, 99),
        "max_ns": times[first + count - 1].tolist(),
        "stddev_ns": _deviations(times, first, count),
    }
    return {
        one: dict(zip(columns, values, strict=True))
        for one, values in zip(
            key[first].tolist(), zip(*columns.values(), strict=True), strict=True
        )
    }


def _percentiles(times: Ints, first: Ints, count: Ints, percent: int) -> list[int]:
    """Return a percentile of each group; between two times it lies on the line through them.

    The lower of the two would make the 99th of fifty times one that is exceeded twice, and the
    99th of two times the smaller one.
    """
    if not len(first):
        return []
    place, hundredths = np.divmod((count - 1) * percent, 100)
    low, high = times[first + place], times[first + np.minimum(place + 1, count - 1)]
    between: Ints = low + np.rint((high - low) * hundredths / 100).astype(np.int64)
    return [int(one) for one in between]


def _deviations(times: Ints, first: Ints, count: Ints) -> list[float | None]:
    """Return the standard deviation of each group as of a sample; one time alone has none."""
    if not len(first):
        return []
    mean = np.add.reduceat(times, first) / count
    away = np.add.reduceat((times - np.repeat(mean, count)) ** 2, first)
    deviation = np.sqrt(away / np.maximum(count - 1, 1)).tolist()
    return [
        value if number > 1 else None
        for value, number in zip(deviation, count.tolist(), strict=True)
    ]
