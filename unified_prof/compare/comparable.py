"""Model of one side of a comparison, independent of its source.

A report, several reports of the same workload, and a stored baseline all become a `Run`, the only
input of `diff` and `gate`.

On a shared machine, a thread that is ready to run may wait for a processor. This time is not a
property of the program. Whole iterations on a host are therefore compared by the CPU time of the
process, which other programs affect least, unless the program is idle for a part of them (input,
sleep, other processes). In that case, the time spent waiting for a processor is subtracted. Either
requires that it is known for all compared times (total, forward and backward) on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from unified_prof.arrays.grouping import Floats, Ints
from unified_prof.compare.alignment import NO_KEY, Pairs, align, number
from unified_prof.compare.confidence import Sample

# Limits of a run that is read from bytes, far above any real one.
_MANY, _MOST = Meta(max_length=100_000), Meta(max_length=4_000_000)

# Operation -> kernel -> time in nanoseconds.
Kernels = Annotated[Mapping[str, Annotated[Mapping[str, float], _MANY]], _MANY]

# Metric -> value of each measured iteration.
Samples = Annotated[Mapping[str, Floats], Meta(max_length=100)]

TOTAL, FORWARD, BACKWARD, PEAK = "total", "forward", "backward", "peak-memory"
TIMES = (TOTAL, FORWARD, BACKWARD)
# Metrics that do not depend on how busy the machine is, and their units. Peak memory is one, too.
EXACT: Mapping[str, Literal["n", "B"]] = {
    "operation-calls": "n",
    "aten-calls": "n",
    "kernels": "n",
    "flops": "n",
    "bytes": "B",
    "activation-bytes": "B",
    "copies": "n",
    "synchronizations": "n",
    "graph-breaks": "n",
    "recompilations": "n",
}
# Those that do not depend on the shapes of the inputs, which may be random.
SHAPELESS = ("operation-calls", "aten-calls", "copies", "synchronizations")
OPERATIONS = "operations"  # Key of the operation matrices in `Run.lengths`.

# Kinds of places whose name alone does not identify them.
AT_PEAK = "at peak"  # Kind of the memory blocks in use at the peak of a snapshot.
_NOT_OPERATIONS = ("weight", "activation", "between", AT_PEAK)


class Place(Struct, frozen=True):
    """Identity of an operation, a weight or an activation across runs."""

    name: str
    module: str | None  # Qualified module path; None if unknown.
    # Innermost project frame, `file:line`; None if unknown.
    line: str | None
    kind: str = "operation"


def pair(base: Sequence[Place], new: Sequence[Place]) -> Pairs:
    """Return the indexes of equal places in both sides, aligned by their keys."""
    keys = _numbered_keys([*base, *new])
    return align([level[: len(base)] for level in keys], [level[len(base) :] for level in keys])


def _numbered_keys(places: Sequence[Place]) -> list[Ints]:
    """Return the keys for alignment as numbers, most specific first; NO_KEY if one does not apply.

    Line numbers shift with every edit above them, so the file is a less specific key. The name
    alone is enough for an operation between two aligned pairs, but not for a weight (most are
    called `weight`) or for the time between operations.
    """
    kind = _numbers([place.kind for place in places])
    name = _numbers([place.name for place in places])
    module = _numbers([place.module for place in places])
    line = _numbers([place.line for place in places])
    module_or_empty = _numbers([place.module or "" for place in places])
    line_or_empty = _numbers([place.line or "" for place in places])
    file = _numbers(
        [None if place.line is None else place.line.rpartition(":")[0] for place in places]
    )
    is_operation = np.array([place.kind not in _NOT_OPERATIONS for place in places], bool)
    has_module = module != NO_KEY
    kind_and_name = _pair_numbers(kind, name)
    return [
        np.where(
            is_operation | has_module | (line != NO_KEY),
            _pair_numbers(_pair_numbers(kind_and_name, module_or_empty), line_or_empty),
            NO_KEY,
        ),
        np.where(has_module, _pair_numbers(kind_and_name, module), NO_KEY),
        np.where(
            (file != NO_KEY) & (is_operation | ~has_module),
            _pair_numbers(kind_and_name, file),
            NO_KEY,
        ),
        np.where(is_operation, kind_and_name, NO_KEY),
    ]


def _numbers(texts: Sequence[str | None]) -> Ints:
    return number(texts, ())[0]


def _pair_numbers(a: Ints, b: Ints) -> Ints:
    """Return one number per pair (a, b); equal pairs have the same number."""
    width = int(b.max(initial=0)) + 2
    result: Ints = np.unique(a * width + b + 1, return_inverse=True)[1]
    return result


def group_sums(matrix: Floats, group: Ints, count: int) -> Floats:
    """Return the sum of the rows of each group per column; NaN if no row has a value."""
    known = ~np.isnan(matrix)
    summed = np.zeros((count, matrix.shape[1]))
    np.add.at(summed, group, np.where(known, matrix, 0.0))
    measured = np.zeros(summed.shape, bool)
    np.logical_or.at(measured, group, known)
    summed[~measured] = np.nan
    return summed


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """Operations in program order, with a time for each sample.

    The matrices have shape (operations, samples), in nanoseconds. NaN means not measured or, for
    backward times, that the operation has no backward pass.
    """

    places: Annotated[tuple[Place, ...], _MOST]
    forward_ns: Floats
    backward_ns: Floats
    # Names of the regions around each operation, outermost first; empty if none were recorded.
    regions: Annotated[tuple[tuple[str, ...], ...], _MOST] = ()

    def __post_init__(self) -> None:
        if not len(self.places) == len(self.forward_ns) == len(self.backward_ns):
            raise ValueError("the numbers of operations and of rows of times differ")
        if self.regions and len(self.regions) != len(self.places):
            raise ValueError("the numbers of operations and of regions differ")

    @classmethod
    def none(cls) -> Operations:
        """Return an empty list of operations, for a run without times."""
        return cls((), np.empty((0, 1)), np.empty((0, 1)))

    def __len__(self) -> int:
        return len(self.places)

    def summed(self) -> Operations:
        """Return one operation per place, with the times of all its calls, in first-seen order."""
        first: dict[Place, int] = {}
        number = np.array([first.setdefault(place, len(first)) for place in self.places], np.int64)

        def sums(matrix: Floats) -> Floats:
            return group_sums(matrix, number, len(first))

        regions = dict(zip(reversed(self.places), reversed(self.regions), strict=False))
        named = tuple(regions[place] for place in first) if regions else ()
        return Operations(tuple(first), sums(self.forward_ns), sums(self.backward_ns), named)

    @property
    def total_ns(self) -> Floats:
        """Sum of forward and backward; NaN if neither was measured."""
        neither = np.isnan(self.forward_ns) & np.isnan(self.backward_ns)
        total: Floats = np.nan_to_num(self.forward_ns) + np.nan_to_num(self.backward_ns)
        total[neither] = np.nan
        return total


class Sized(Struct, frozen=True):
    """Weight or activation, with its size."""

    place: Place
    size_bytes: int


class Run(Struct, frozen=True, eq=False):
    """Measurements of one workload, from one or several runs."""

    label: str  # Name for display: the file, the files, the baseline.
    # Families of the reports it was read from.
    families: Annotated[frozenset[str], Meta(max_length=10)]
    clock: str  # Clock that timed the operations: operation, device or host.
    # Provenance.
    facts: Annotated[Mapping[str, str], _MANY]
    operations: Operations
    sizes: Annotated[tuple[Sized, ...], _MOST]
    totals: Samples  # Whole iterations: TOTAL, FORWARD, BACKWARD in nanoseconds, PEAK in bytes.
    # Part of those times spent waiting for a processor, in nanoseconds; NaN or missing if unknown.
    waited: Samples = field(default_factory=dict)
    # CPU time of the process within those times, in nanoseconds; NaN or missing if unknown.
    cpu: Samples = field(default_factory=dict)
    # Exact counts of one iteration, by metric; see EXACT.
    counts: Annotated[Mapping[str, float], _MANY] = field(default_factory=dict)
    # Parts of the median iteration, which add up to it, in nanoseconds; see
    # `Totals.iteration_parts_ns`.
    parts_ns: Annotated[Mapping[str, float], _MANY] = field(default_factory=dict)
    # Operation name -> dtypes of its inputs, sorted; only of host recordings that have them.
    types: Annotated[Mapping[str, tuple[str, ...]], _MANY] = field(default_factory=dict)
    # True if each operation is the sum of all calls with its place, because there are too many.
    summed: bool = False
    # Kernels by operation name, if recorded; average of a step if there are steps.
    kernels: Kernels = field(default_factory=dict)
    # Number of steps of a device recording that the samples cover; None if the samples are
    # iterations of a tracked workload or whole recordings.
    steps: int | None = None
    outside_steps_ns: float = 0.0  # Device work outside all steps, which is not compared.
    # Metric or OPERATIONS -> number of samples of each run, in order; a missing key means one run.
    lengths: Annotated[Mapping[str, tuple[int, ...]], Meta(max_length=100)] = field(
        default_factory=dict
    )

    def sample(self, metric: str) -> Sample:
        """Return the finite values of a metric, run by run; empty if it was not measured."""
        values = self.totals.get(metric, np.empty(0))
        return self._finite_sample(values, metric)

    def sample_of(self, values: Floats) -> Sample:
        """Return the finite values of an array with one value per column of `operations`."""
        return self._finite_sample(values, OPERATIONS)

    def columns_of_runs(self) -> list[slice]:
        """Return the columns of `operations` that belong to each run."""
        count = self.operations.forward_ns.shape[1]
        ends = np.cumsum(self.lengths.get(OPERATIONS, (count,))).tolist()
        return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]

    def _finite_sample(self, values: Floats, metric: str) -> Sample:
        lengths = self.lengths.get(metric, (len(values),))
        finite = np.isfinite(values)
        run = np.repeat(np.arange(len(lengths)), lengths)
        kept = np.bincount(run[finite], minlength=len(lengths)).tolist()
        return Sample.from_values(values[finite], kept)

    def check(self) -> None:
        """Raise ValueError if `lengths` contradicts the samples, as in a damaged store."""
        counts = {metric: len(values) for metric, values in self.totals.items()}
        counts[OPERATIONS] = self.operations.forward_ns.shape[1]
        for metric, lengths in self.lengths.items():
            if min(lengths, default=0) < 0 or sum(lengths) != counts.get(metric, 0):
                raise ValueError(
                    f"the run lengths of {metric} do not add up to the number of samples"
                )

    def with_summed_calls(self) -> Run:
        """Return the same run with one operation per place."""
        if self.summed:
            return self
        return replace(self, operations=self.operations.summed(), summed=True)

    def with_label(self, label: str) -> Run:
        """Return the same run with another label."""
        return replace(self, label=label)


def alike(runs: Sequence[Run]) -> Sequence[Run]:
    """Return the runs with the calls of all of them summed if those of any are.

    Otherwise, the sum of a run would be paired with a single call of another one.
    """
    return [run.with_summed_calls() for run in runs] if any(run.summed for run in runs) else runs


def pool(runs: Sequence[Run]) -> Run:
    """Return one run with the samples of several runs of the same workload.

    Operations, facts, sizes and kernels are those of the first run. An operation that another run
    lacks has no samples of that run. Raises ValueError if `runs` is empty, or the runs were timed
    by different clocks.
    """
    if not runs:
        raise ValueError("no runs to pool")
    first = runs[0]
    if len(runs) == 1:
        return first
    if len({run.clock for run in runs}) > 1:
        raise ValueError("runs timed by different clocks cannot be pooled")
    runs = alike(runs)
    first = runs[0]
    return replace(
        first,
        label=", ".join(run.label for run in runs),
        families=frozenset().union(*(run.families for run in runs)),
        operations=_pooled_operations([run.operations for run in runs]),
        totals=_concatenated([run.totals for run in runs]),
        waited=_concatenated([run.waited for run in runs]),
        cpu=_concatenated([run.cpu for run in runs]),
        parts_ns=_mean_parts([run.parts_ns for run in runs if run.parts_ns]),
        lengths=_lengths(runs),
        steps=None if first.steps is None else sum(run.steps or 0 for run in runs),
        outside_steps_ns=sum(run.outside_steps_ns for run in runs),
    )


def _mean_parts(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each part, which add up to the mean of the median iterations."""
    parts = dict.fromkeys(part for run in runs for part in run)
    return {part: sum(run.get(part, 0.0) for run in runs) / len(runs) for part in parts}


def _lengths(runs: Sequence[Run]) -> dict[str, tuple[int, ...]]:
    """Return the number of samples of each run, per metric."""
    result: dict[str, list[int]] = {}
    for run in runs:
        for metric, values in run.totals.items():
            result.setdefault(metric, []).extend(run.lengths.get(metric, (len(values),)))
        columns = run.operations.forward_ns.shape[1]
        result.setdefault(OPERATIONS, []).extend(run.lengths.get(OPERATIONS, (columns,)))
    return {metric: tuple(lengths) for metric, lengths in result.items()}


def _pooled_operations(sides: Sequence[Operations]) -> Operations:
    """Return the first run's operations with the samples of all runs."""
    first = sides[0]
    forward, backward = [first.forward_ns], [first.backward_ns]
    for side in sides[1:]:
        rows_of_first, rows_of_side = pair(first.places, side.places)
        for matrices, values in ((forward, side.forward_ns), (backward, side.backward_ns)):
            rows = np.full((len(first), values.shape[1]), np.nan)
            rows[rows_of_first] = values[rows_of_side]
            matrices.append(rows)
    return Operations(
        first.places,
        np.concatenate(forward, axis=1),
        np.concatenate(backward, axis=1),
        first.regions,
    )


def _concatenated(samples: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    """Return the samples of each metric, concatenated over all runs."""
    return {
        metric: np.concatenate([sample[metric] for sample in samples if metric in sample])
        for metric in dict.fromkeys(metric for sample in samples for metric in sample)
    }


@dataclass(frozen=True, slots=True)
class Waiting:
    """Treatment of the time spent waiting for a processor in a comparison."""

    left_out: bool  # True if the compared times do not contain it.
    # Waiting as a share of the iterations' time, 0 to 1; None if unknown.
    base_share: float | None
    new_share: float | None
    clock: Literal["cpu", "wall"] = "wall"  # Clock of the compared times of whole iterations.


# Largest share of an iteration in which the process neither ran nor waited for a processor. Above
# it, CPU time could hide a slowdown.
MAX_IDLE = 0.05


def program_times(base: Run, new: Run) -> tuple[Run, Run, Waiting | None]:
    """Return both runs with CPU times if possible, else as `exclude_waiting` does."""
    common = [metric for metric in TIMES if metric in base.totals and metric in new.totals]
    known = common and all(
        _is_known(found, run, metric)
        for run in (base, new)
        for metric in common
        for found in (run.cpu, run.waited)
    )
    if not known or max(_idle_share(base), _idle_share(new)) > MAX_IDLE:
        return exclude_waiting(base, new)
    waiting = Waiting(True, _share(base), _share(new), "cpu")
    base, new = (
        replace(run, totals={**run.totals, **{one: run.cpu[one] for one in common}})
        for run in (base, new)
    )
    return base, new, waiting


def _idle_share(run: Run) -> float:
    total = run.totals.get(TOTAL)
    if total is None or not total.sum():
        return 0.0
    return float(np.median((total - run.waited[TOTAL] - run.cpu[TOTAL]) / np.maximum(total, 1.0)))


def exclude_waiting(base: Run, new: Run) -> tuple[Run, Run, Waiting | None]:
    """Return both runs without processor wait time, if that is known for all compared times.

    The last value describes how wait time was treated; None if neither run recorded it.
    """
    shares = (_share(base), _share(new))
    if shares == (None, None):
        return base, new, None
    common = [metric for metric in TIMES if metric in base.totals and metric in new.totals]
    left_out = all(_is_known(run.waited, run, metric) for run in (base, new) for metric in common)
    if left_out:
        base, new = _without_waiting(base), _without_waiting(new)
    return base, new, Waiting(left_out, *shares)


def _is_known(found: Samples, run: Run, metric: str) -> bool:
    values = found.get(metric)
    return (
        values is not None and len(values) == len(run.totals[metric]) and not np.isnan(values).any()
    )


def _without_waiting(run: Run) -> Run:
    totals: Mapping[str, Floats] = {
        metric: np.maximum(values - run.waited[metric], 0.0)
        if metric in TIMES and _is_known(run.waited, run, metric)
        else values
        for metric, values in run.totals.items()
    }
    return replace(run, totals=totals)


def _share(run: Run) -> float | None:
    """Return the share of the measured time that was wait time, or None if unknown."""
    if TOTAL not in run.totals or not _is_known(run.waited, run, TOTAL):
        return None
    total = float(run.totals[TOTAL].sum())
    return float(run.waited[TOTAL].sum()) / total if total > 0 else None
