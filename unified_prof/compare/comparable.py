"""One side of a comparison: what was measured of a workload, whatever it was read from.

A report file, several report files of the same workload, and a stored baseline all become a `Run`;
comparing and gating know nothing else.

What the times of two runs mean: with or without the waiting for a processor, alike for all.

On a machine that others use, a thread that is ready to run waits for its turn. That time is no
property of the program, so it is taken off, where it is known of everything that is compared:
of the total, the forward and the backward time, and on both sides. Where it is not, nothing is
taken off. So the parts never exceed the whole, and never is the one time held against the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from msgspec import Meta

from unified_prof.arrays.types import Floats, Ints
from unified_prof.compare.alignment import NO_KEY, Pairs, align, number
from unified_prof.compare.confidence import Sample

# Bounds of what is believed where a run is read from bytes, far above any real one.
_MANY, _MOST = Meta(max_length=100_000), Meta(max_length=4_000_000)

Kernels = Annotated[Mapping[str, Annotated[Mapping[str, float], _MANY]], _MANY]
"""Operation -> kernel -> time in nanoseconds."""

Samples = Annotated[Mapping[str, Floats], Meta(max_length=100)]
"""Metric -> a value for each measured iteration."""

TOTAL, FORWARD, BACKWARD, PEAK = "total", "forward", "backward", "peak-memory"
TIMES = (TOTAL, FORWARD, BACKWARD)
OPERATIONS = "operations"
"""Where a run's columns of operations stand among the lengths of its metrics."""


_NOT_OPERATIONS = ("weight", "activation", "between")


@dataclass(frozen=True, slots=True)
class Place:
    """What identifies an operation, a weight or an activation from one run to the next."""

    name: str
    module: str | None
    """Qualified module path; None: not known."""
    line: str | None
    """Innermost project frame, `file:line`; None: not known."""
    kind: str = "operation"

    @property
    def keys(self) -> tuple[tuple[str, ...] | None, ...]:
        """Keys to align by, most specific first; None where this place has no such key.

        A line number shifts with every edit above it, so below the exact line stands the file.
        The name alone says enough of an operation between two pairs, but nothing of a weight
        (most are called `weight`) or of the time between operations.
        """
        kind, name, module, line = self.kind, self.name, self.module, self.line
        file = line.rpartition(":")[0] if line is not None else None
        operation = kind not in _NOT_OPERATIONS
        return (
            (kind, name, module or "", line or "")
            if operation or module is not None or line is not None
            else None,
            (kind, name, module) if module is not None else None,
            (kind, name, file) if file is not None and (operation or module is None) else None,
            (kind, name) if operation else None,
        )


def pair(base: Sequence[Place], new: Sequence[Place]) -> Pairs:
    """Return which places of the two are the same, by their keys."""
    keys = _numbered_keys([*base, *new])
    return align([level[: len(base)] for level in keys], [level[len(base) :] for level in keys])


def _numbered_keys(places: Sequence[Place]) -> list[Ints]:
    """Return `Place.keys` as numbers, level by level: as tuples they would take a gibibyte."""
    kind = _numbers([place.kind for place in places])
    name = _numbers([place.name for place in places])
    module = _numbers([place.module for place in places])
    line = _numbers([place.line for place in places])
    said_module = _numbers([place.module or "" for place in places])
    said_line = _numbers([place.line or "" for place in places])
    file = _numbers(
        [None if place.line is None else place.line.rpartition(":")[0] for place in places]
    )
    is_operation = np.array([place.kind not in _NOT_OPERATIONS for place in places], bool)
    has_module = module != NO_KEY
    named = _joint(kind, name)
    return [
        np.where(
            is_operation | has_module | (line != NO_KEY),
            _joint(_joint(named, said_module), said_line),
            NO_KEY,
        ),
        np.where(has_module, _joint(named, module), NO_KEY),
        np.where((file != NO_KEY) & (is_operation | ~has_module), _joint(named, file), NO_KEY),
        np.where(is_operation, named, NO_KEY),
    ]


def _numbers(texts: Sequence[str | None]) -> Ints:
    return number(texts, ())[0]


def _joint(a: Ints, b: Ints) -> Ints:
    """Return numbers of pairs, equal where both are."""
    width = int(b.max(initial=0)) + 2
    joint: Ints = np.unique(a * width + b + 1, return_inverse=True)[1]
    return joint


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """Operations in program order, with a time for each sample.

    The matrices have the shape (operations, samples), in nanoseconds; NaN is "not measured", which
    for the backward time means that the operation took no part in the backward pass.
    """

    places: Annotated[tuple[Place, ...], _MOST]
    forward_ns: Floats
    backward_ns: Floats
    regions: Annotated[tuple[tuple[str, ...], ...], _MOST] = ()
    """The names of the regions around each, the outermost first; none where no region is known."""

    def __post_init__(self) -> None:
        if not len(self.places) == len(self.forward_ns) == len(self.backward_ns):
            raise ValueError("an operation has no row of times, or a row no operation")
        if self.regions and len(self.regions) != len(self.places):
            raise ValueError("an operation has no regions, or regions no operation")

    @classmethod
    def none(cls) -> Operations:
        """Return no operations, of a run that measured no times."""
        return cls((), np.empty((0, 1)), np.empty((0, 1)))

    def __len__(self) -> int:
        return len(self.places)

    @property
    def total_ns(self) -> Floats:
        """Forward and backward together; NaN only where neither was measured."""
        neither = np.isnan(self.forward_ns) & np.isnan(self.backward_ns)
        total: Floats = np.nan_to_num(self.forward_ns) + np.nan_to_num(self.backward_ns)
        total[neither] = np.nan
        return total


@dataclass(frozen=True, slots=True)
class Sized:
    """Something of the model that takes memory."""

    place: Place
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Everything of one workload that can be compared."""

    label: str
    """What to call it: the file, the files, the baseline."""
    families: Annotated[frozenset[str], Meta(max_length=10)]
    """Families of the report files it was read from."""
    clock: str
    """Whose time the operations have: operation, device or host."""
    facts: Annotated[Mapping[str, str], _MANY]
    """Provenance."""
    operations: Operations
    sizes: Annotated[tuple[Sized, ...], _MOST]
    totals: Samples
    """Whole iterations: TOTAL, FORWARD, BACKWARD as the clock measured, in nanoseconds; PEAK in
    bytes."""
    waited: Samples = field(default_factory=dict)
    """Part of each of those times in which the program's thread waited for a processor, in
    nanoseconds; NaN is "not known", and so is a metric that is not here."""
    kernels: Kernels = field(default_factory=dict)
    """The kernels under the operations of each name, where the recording shows them; of one step
    on average, where there are steps."""
    steps: int | None = None
    """Steps of a device recording that the samples are of; None: the samples are something else,
    iterations of a tracked workload or whole recordings."""
    outside_steps_ns: float = 0.0
    """Work of a recording with steps that belongs to none of them: it is not compared."""
    lengths: Annotated[Mapping[str, tuple[int, ...]], Meta(max_length=100)] = field(
        default_factory=dict
    )
    """Metric, or OPERATIONS -> how many of its samples are of each run, in order; all are of one
    run where it is not here."""

    def sample(self, metric: str) -> Sample:
        """Return the finite values of a metric, run by run; none where it was not measured."""
        values = self.totals.get(metric, np.empty(0))
        return self._of_runs(values, metric)

    def sample_of(self, values: Floats) -> Sample:
        """Return the finite ones of values that stand in the columns of `operations`."""
        return self._of_runs(values, OPERATIONS)

    def columns_of_runs(self) -> list[slice]:
        """Return which columns of `operations` are of each run."""
        count = self.operations.forward_ns.shape[1]
        ends = np.cumsum(self.lengths.get(OPERATIONS, (count,))).tolist()
        return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]

    def _of_runs(self, values: Floats, metric: str) -> Sample:
        lengths = self.lengths.get(metric, (len(values),))
        finite = np.isfinite(values)
        run = np.repeat(np.arange(len(lengths)), lengths)
        kept = np.bincount(run[finite], minlength=len(lengths)).tolist()
        return Sample.of(values[finite], kept)

    def check(self) -> None:
        """Refuse a run whose runs are not those of its samples, such as one from a damaged store.

        Raises:
            ValueError: which samples they are.
        """
        counts = {metric: len(values) for metric, values in self.totals.items()}
        counts[OPERATIONS] = self.operations.forward_ns.shape[1]
        for metric, lengths in self.lengths.items():
            if min(lengths, default=0) < 0 or sum(lengths) != counts.get(metric, 0):
                raise ValueError(f"the runs of {metric} are not those of its samples")

    def named(self, label: str) -> Run:
        """Return the same run under another label."""
        return replace(self, label=label)


def pool(runs: Sequence[Run]) -> Run:
    """Join several runs of the same workload into one with all their samples.

    Operations are those of the first run; an operation that another run lacks has no sample of it.
    What does not vary from run to run (facts, sizes, kernels) is the first run's.

    Raises:
        ValueError: there is no run, or they differ in whose time they measured.
    """
    if not runs:
        raise ValueError("nothing to pool")
    first = runs[0]
    if len(runs) == 1:
        return first
    if len({run.clock for run in runs}) > 1:
        raise ValueError("runs of different kinds cannot be pooled")
    return replace(
        first,
        label=", ".join(run.label for run in runs),
        families=frozenset().union(*(run.families for run in runs)),
        operations=_pooled_operations([run.operations for run in runs]),
        totals=_joined([run.totals for run in runs]),
        waited=_joined([run.waited for run in runs]),
        lengths=_lengths(runs),
        steps=None if first.steps is None else sum(run.steps or 0 for run in runs),
        outside_steps_ns=sum(run.outside_steps_ns for run in runs),
    )


def _lengths(runs: Sequence[Run]) -> dict[str, tuple[int, ...]]:
    """Return how many samples each run has of each metric; none of them gets lost in the pool."""
    found: dict[str, list[int]] = {}
    for run in runs:
        for metric, values in run.totals.items():
            found.setdefault(metric, []).extend(run.lengths.get(metric, (len(values),)))
        columns = run.operations.forward_ns.shape[1]
        found.setdefault(OPERATIONS, []).extend(run.lengths.get(OPERATIONS, (columns,)))
    return {metric: tuple(lengths) for metric, lengths in found.items()}


def _pooled_operations(sides: Sequence[Operations]) -> Operations:
    """Return the first side's operations with the samples of all."""
    first = sides[0]
    forward, backward = [first.forward_ns], [first.backward_ns]
    for side in sides[1:]:
        mine, theirs = pair(first.places, side.places)
        for matrices, values in ((forward, side.forward_ns), (backward, side.backward_ns)):
            rows = np.full((len(first), values.shape[1]), np.nan)
            rows[mine] = values[theirs]
            matrices.append(rows)
    return Operations(
        first.places,
        np.concatenate(forward, axis=1),
        np.concatenate(backward, axis=1),
        first.regions,
    )


def _joined(samples: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    """Return each metric's samples of all runs, one run after the other."""
    return {
        metric: np.concatenate([one[metric] for one in samples if metric in one])
        for metric in dict.fromkeys(metric for one in samples for metric in one)
    }


@dataclass(frozen=True, slots=True)
class Waiting:
    """How two runs were made comparable in what they waited for."""

    left_out: bool
    """Whether the times compared are without it; else they are as the clock measured."""
    base_share: float | None
    """Part of the whole iterations' time that was waiting, 0 to 1; None: not known."""
    new_share: float | None


def alike(base: Run, new: Run) -> tuple[Run, Run, Waiting | None]:
    """Return both runs with times of one definition, and which; None: neither knows its waiting."""
    shares = (_share(base), _share(new))
    if shares == (None, None):
        return base, new, None
    common = [metric for metric in TIMES if metric in base.totals and metric in new.totals]
    left_out = all(_known(run, metric) for run in (base, new) for metric in common)
    if left_out:
        base, new = _without_waiting(base), _without_waiting(new)
    return base, new, Waiting(left_out, *shares)


def _known(run: Run, metric: str) -> bool:
    waited = run.waited.get(metric)
    return (
        waited is not None and len(waited) == len(run.totals[metric]) and not np.isnan(waited).any()
    )


def _without_waiting(run: Run) -> Run:
    totals: Mapping[str, Floats] = {
        metric: np.maximum(values - run.waited[metric], 0.0)
        if metric in TIMES and _known(run, metric)
        else values
        for metric, values in run.totals.items()
    }
    return replace(run, totals=totals)


def _share(run: Run) -> float | None:
    """Return the part of the measured time that was waiting, None where that is not known."""
    if TOTAL not in run.totals or not _known(run, TOTAL):
        return None
    total = float(run.totals[TOTAL].sum())
    return float(run.waited[TOTAL].sum()) / total if total > 0 else None
