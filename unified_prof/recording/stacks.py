"""Weighted call stacks for flame graphs, computed from `Calls`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints
from unified_prof.errors import UsageError
from unified_prof.recording.breakdown_kinds import MEASURES, PLACES, Measure, Place
from unified_prof.recording.breakdowns import NO_LINE, NO_MODULE, module_parts
from unified_prof.recording.calls import SIZES, UNKNOWN, Calls, sums_by
from unified_prof.recording.framework import NOT_ATTRIBUTED

What = Literal[
    "report", "thread", "module", "line", "function", "range", "operation", "kernel", "pass"
]


@dataclass(frozen=True, slots=True)
class Frame:
    """One level of a stack."""

    name: str
    what: What
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One stack, outermost frame first, with its weight."""

    frames: tuple[Frame, ...]
    weight: int
    count: int  # Number of tasks, calls or entries in the sum.


@dataclass(frozen=True, slots=True)
class Stacks:
    """Distinct stacks with their weights by one measure; all weights are positive."""

    measure: Measure
    samples: tuple[Sample, ...]

    @property
    def total(self) -> int:
        """The sum of all weights."""
        return sum(sample.weight for sample in self.samples)


class StackSums:
    """Sums samples by their frames."""

    def __init__(self) -> None:
        self._found: dict[tuple[Frame, ...], list[int]] = {}

    def add(self, frames: tuple[Frame, ...], weight: int, count: int) -> None:
        """Add a sample; one with weight 0 is left out."""
        if weight > 0:
            own = self._found.setdefault(frames, [0, 0])
            own[0] += weight
            own[1] += count

    def stacks(self, measure: str) -> Stacks:
        """Return the sums, the heaviest first."""
        result = [Sample(frames, *sums) for frames, sums in self._found.items()]
        result.sort(key=lambda one: -one.weight)
        return Stacks(MEASURES[measure], tuple(result))


def below(first: Frame, stacks: Stacks) -> Stacks:
    """Return stacks with an additional outermost frame."""
    samples = [
        Sample((first, *sample.frames), sample.weight, sample.count) for sample in stacks.samples
    ]
    return Stacks(stacks.measure, tuple(samples))


def merge(parts: Iterable[Stacks]) -> Stacks:
    """Merge stacks of one measure."""
    parts = list(parts)
    gathering = StackSums()
    for part in parts:
        for sample in part.samples:
            gathering.add(sample.frames, sample.weight, sample.count)
    return gathering.stacks(parts[0].measure.name)


def place_of(calls: Calls, wanted: Place | None, path: str) -> Place | None:
    """Return the kind of frames to use above operations: as requested, else modules, else lines.

    Raises:
        UsageError: the requested kind was not recorded.
    """
    have: list[Place] = [one for one in PLACES if getattr(calls, _COLUMNS[one]) is not None]
    if wanted is None:
        return have[0] if have else None
    if wanted not in have:
        raise UsageError(
            f"{path} has no stacks by {wanted}: not recorded",
            hint=f"it has stacks by {have[0]}" if have else "omit --by for stacks by operation",
            slug="no-stacks",
        )
    return wanted


_COLUMNS: dict[Place, str] = {"module": "module", "line": "stack"}


def frames_of_place(place: Place, text: str | None) -> tuple[Frame, ...]:
    """Return the frames of a module path, or of lines joined by newlines; no frames for None."""
    if place == "module":
        if text is None or text == NOT_ATTRIBUTED:
            return (Frame(text or NO_MODULE, "module"),)
        return tuple(Frame(part, "module") for part in module_parts(text))
    if text is None:
        return (Frame(NO_LINE, "line"),)
    return tuple(map(_line, text.split("\n")))


def _line(text: str) -> Frame:
    file, _, number = text.rpartition(":")
    return Frame(text, "line", file, int(number)) if number.isdecimal() else Frame(text, "line")


def stacks_of_calls(calls: Calls, measure: str, place: Place | None) -> Stacks:
    """Return stacks of modules or lines, weighted by a measure of the calls."""
    texts = calls.labels.texts
    label = None if place is None else getattr(calls, _COLUMNS[place])
    key = calls.name.astype(np.int64)
    if label is not None:
        key = (label.astype(np.int64) + 1) * len(texts) + key
    distinct, number = np.unique(key, return_inverse=True)
    gathering = StackSums()
    for column in _columns(calls, measure):
        known = column != UNKNOWN
        count = np.bincount(number[known], minlength=len(distinct)).tolist()
        sums = sums_by(number, len(distinct), column)
        for pair, weight, entries in zip(distinct.tolist(), sums, count, strict=True):
            above: tuple[Frame, ...] = ()
            if place is not None:
                above = frames_of_place(place, calls.labels.text(pair // len(texts) - 1))
            operation = Frame(texts[pair % len(texts)], "operation")
            gathering.add((*above, operation), weight or 0, entries)
    return gathering.stacks(measure)


def measured(calls: Calls, measure: str) -> bool:
    """Return True if any call has a value of a measure."""
    return any(bool((column != UNKNOWN).any()) for column in _columns(calls, measure))


def _columns(calls: Calls, measure: str) -> list[Ints]:
    columns: dict[str, tuple[str, ...]] = {
        "time": ("total_ns",),
        "forward": ("forward_ns",),
        "backward": ("backward_ns",),
        "memory": SIZES,
    }
    result = (getattr(calls, name) for name in columns[measure])
    return [one for one in result if one is not None]


def path_samples(
    number: Ints,
    above: Ints,
    own: Ints,
    weight: Ints,
    frame: Callable[[int], Frame],
    *,
    begin: Callable[[int], tuple[Frame, ...]] = lambda _: (),
    beginning: NDArray[np.int64] | None = None,
) -> Iterator[Sample]:
    """Yield samples of nested ranges, from the result of `arrays.nesting.paths`.

    Args:
        number: number of each range's path.
        above: the path above each path, as from `paths`.
        own: the last label of each path, as from `paths`.
        weight: weight of each range without nested ones.
        frame: returns the frame of a label.
        begin: returns the outer frames of a group of ranges from its number.
        beginning: group of each range, such as its thread; None: all have number 0.
    """
    first = np.zeros(len(number), np.int64) if beginning is None else beginning
    some = weight > 0
    pairs, which = np.unique(first[some] * len(above) + number[some], return_inverse=True)
    sums = np.bincount(which, weight[some], minlength=len(pairs)).astype(np.int64).tolist()
    counts = np.bincount(which, minlength=len(pairs)).tolist()
    known: dict[int, tuple[Frame, ...]] = {}
    labels: dict[int, Frame] = {}

    def path(node: int) -> tuple[Frame, ...]:
        missing = []
        while node >= 0 and node not in known:
            missing.append(node)
            node = int(above[node])
        for each in reversed(missing):
            label, up = int(own[each]), int(above[each])
            if label not in labels:
                labels[label] = frame(label)
            known[each] = (*(known[up] if up >= 0 else ()), labels[label])
            node = each
        return known[node]

    for pair, total, count in zip(pairs.tolist(), sums, counts, strict=True):
        yield Sample((*begin(pair // len(above)), *path(pair % len(above))), total, count)
