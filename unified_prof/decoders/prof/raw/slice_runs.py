"""Where records begin in slices of which something was lost.

Slices continue each other and end with a whole record; the collector drops the oldest ones. So
the first record begins where the bytes from there to the end are a multiple of a record. That
holds across a slice whose end was lost, if its `.done` companion tells how long it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.prof.raw.layouts import RecordType

_CONVINCING = 0.75
_TIMES = ("timestamp", "timestamp_us", "timestamp_ns", "host_ticks", "end")
_LEAP, _LATEST = np.uint64(1 << 42), np.uint64(1 << 62)


@dataclass(frozen=True, slots=True)
class Slice:
    """One file of a stream of records."""

    path: Path
    size: int
    index: int = 0
    said: int = 0
    """The size that its `.done` companion tells; more than `size` if the end was lost."""


def runs(
    stream: Sequence[Slice], record_bytes: int
) -> Iterator[tuple[Sequence[Slice], tuple[int, ...]]]:
    """Yield slices between which nothing is lost, and how many bytes may precede their records.

    The first number is what the sizes tell. There is a second where sizes cannot tell which side
    of a slice was lost: the records decide (`most_plausible`).
    """
    starts = [0] + [
        place
        for place in range(1, len(stream))
        if _cut(stream[place - 1]) or _gap(stream[place - 1], stream[place])
    ]
    for start, stop in zip(starts, [*starts[1:], len(stream)], strict=True):
        run = stream[start:stop]
        told = _before_first(stream, start, stop, record_bytes)
        candidates = [told]
        if len(run) == 1 and _cut(run[0]):
            candidates.append((told + run[0].size - run[0].said) % record_bytes)
        elif told and start == 0:
            candidates.append(0)
        yield run, tuple(dict.fromkeys(candidates))


def most_plausible(
    head: NDArray[np.uint8], record: RecordType, candidates: Sequence[int], magic: int | None
) -> int:
    """Return how many bytes of `head` come before its first record.

    Args:
        head: the first few records, cut somewhere.
        record: their type.
        candidates: what may be.
        magic: what the field `magic` must be; it also finds records that no candidate does.
            Without one, times must not go backwards or leap.
    """
    best, score = candidates[0], -1.0
    for tried in (candidates, range(record.itemsize if magic is not None else 0)):
        for skip in tried:
            whole = max(len(head) - skip, 0) // record.itemsize * record.itemsize
            found = _plausibility(head[skip : skip + whole].view(record), magic)
            if found > score:
                best, score = skip, found
        if score > _CONVINCING:
            break
    return best


def _plausibility(sample: NDArray[Any], magic: int | None) -> float:
    if not len(sample):
        return 0.0
    if magic is not None:
        return float((sample["magic"] == magic).mean())
    time = next((name for name in _TIMES if name in (sample.dtype.names or ())), None)
    if time is None:
        return 0.0
    values = sample[time].astype(np.uint64)
    steady = (values[1:] >= values[:-1]) & (values[1:] - values[:-1] < _LEAP)
    return float(np.r_[values[0] < _LATEST, steady].mean())


def losses(stream: Sequence[Slice]) -> list[str]:
    """Say what of a stream is lost, a phrase each."""
    found = [
        f"{part.path.name} has {part.size} bytes and should have {part.said}"
        for part in stream
        if _cut(part)
    ]
    found += [
        f"nothing between {before.path.name} and {after.path.name}"
        for before, after in itertools.pairwise(stream)
        if _gap(before, after)
    ]
    return found


def _before_first(stream: Sequence[Slice], start: int, stop: int, record_bytes: int) -> int:
    """Return how many bytes of a run come before its first record."""
    if not _gaps(stream[start:]):  # count from the end, which is that of a record
        return sum(_length(part) for part in stream[start:]) % record_bytes
    if stream[0].index == 0 and not _gaps(stream[:stop]):  # from the very first byte
        return -sum(_length(part) for part in stream[:start]) % record_bytes
    return sum(_length(part) for part in stream[start:stop]) % record_bytes


def _gaps(stream: Sequence[Slice]) -> bool:
    return any(_gap(before, after) for before, after in itertools.pairwise(stream))


def _gap(before: Slice, after: Slice) -> bool:
    return after.index > before.index + 1


def _cut(part: Slice) -> bool:
    return part.size < part.said


def _length(part: Slice) -> int:
    return max(part.size, part.said)
