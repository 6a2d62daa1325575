"""What an analysis answers, in plain data: the same shapes for both report families.

Times are whole nanoseconds, sizes bytes. None always means "not measured", never zero; whoever
prints it must not turn it into a number.

What costs a run time, in one shape for one recording and for many ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.display import Displayed
from unified_prof.recording.breakdown_kinds import By

Clock = Literal["device", "host", "operation", "none"]
"""Whose time `total_ns` is: kernels on a device, host ranges, operations (Skyline), or nobody's."""


THEN = " → "
"""Stands between names of things that follow one another."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a breakdown: everything recorded under one key."""

    name: str
    """What the row is about: an operation, a module path, `file:line`, a kernel, a group..."""
    kind: str
    """What sort of thing it is: operation, kernel, communication, copy, weight, module, ..."""
    count: int
    """Calls, kernel executions or entries that the row sums up."""
    total_ns: int | None = None
    """Time of the row; for a framework operation its forward and backward together."""
    forward_ns: int | None = None
    backward_ns: int | None = None
    weight_bytes: int | None = None
    gradient_bytes: int | None = None
    activation_bytes: int | None = None
    allocated_bytes: int | None = None
    """Bytes asked of the allocator, where the recording has them instead of activations."""
    detail: str | None = None
    """One more word about it: the module's class, the operator type, the task types."""
    extra: Mapping[str, float | None] = field(default_factory=dict)
    """Figures that only this breakdown has, named with their unit (`busy_ns`); counts have none."""

    @property
    def size_bytes(self) -> int | None:
        """The sum of the sizes that are known, None if none is."""
        sizes = (
            self.weight_bytes,
            self.gradient_bytes,
            self.activation_bytes,
            self.allocated_bytes,
        )
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    @property
    def average_ns(self) -> float | None:
        """Time of one call on average."""
        return None if self.total_ns is None or not self.count else self.total_ns / self.count


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A report's time and memory, divided by one key; rows in falling order of time or size."""

    by: By
    rows: tuple[Row, ...]
    total_ns: int | None
    """What the rows' percentages refer to; None if the report has no times."""
    size_bytes: int | None
    """The sum of the rows' sizes; None if the report has no sizes."""

    def percent(self, row: Row) -> float | None:
        """Return the row's share of the time (of the size, where there is no time) in percent."""
        if self.total_ns is not None:
            return _percent(row.total_ns, self.total_ns)
        return _percent(row.size_bytes, self.size_bytes)


def _percent(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The single measurements behind medians; NaN is "not measured".

    The matrices have one row for each timed operation of `Analysis.calls`, in its order, and one
    column for each iteration that was averaged.
    """

    forward_ns: NDArray[np.float64]
    backward_ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Time between operations, which belongs to none, by the lines that may have taken it."""

    before: NDArray[np.int64]
    """Index of the timed operation of `Analysis.calls` that follows, rising."""
    lines: tuple[str, ...]
    """`file:line`, or `file:first-last` where several lines are possible."""
    gap_ns: NDArray[np.float64]
    """One row a gap, one column an iteration, as in `Samples`; NaN is "not measured"."""


@dataclass(frozen=True, slots=True)
class Step:
    """One measured iteration of a tracked workload, or one step of a recording."""

    name: str
    total_ns: int | None
    forward_ns: int | None = None
    backward_ns: int | None = None
    matched: bool = True
    """Whether it ran the operations that the report shows; the others are not averaged."""
    peak_bytes: int | None = None
    """Highest memory in use during it."""
    waited_ns: int | None = None
    """Part of the total in which the program's thread waited for a processor."""
    forward_waited_ns: int | None = None
    backward_waited_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """The headline figures of one report."""

    total_ns: int | None = None
    """Sum of the time of all operations (or of all device work)."""
    forward_ns: int | None = None
    backward_ns: int | None = None
    other_ns: int | None = None
    """Time known to be in neither pass: optimizer steps and the like."""
    recomputed_ns: int | None = None
    """Time in which activation checkpointing ran operations again, within backward passes."""
    count: int | None = None
    """Operations (or pieces of device work) in that sum."""
    weight_bytes: int | None = None
    gradient_bytes: int | None = None
    activation_bytes: int | None = None
    peak_bytes: int | None = None
    """Highest memory in use at any time."""
    iteration_ns: int | None = None
    """Median time of a whole measured iteration."""
    iteration_p90_ns: int | None = None
    """90th percentile of the measured iterations; None for one iteration."""
    iteration_forward_ns: int | None = None
    """Of the iterations in the middle, whose time the median is: so the parts add up to it."""
    iteration_backward_ns: int | None = None
    iteration_waited_ns: int | None = None
    """Time of the same iterations in which their thread had no processor: others used it."""
    iterations: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """How one device spent its window, and its steps where they are known.

    Work is what computes, communicates or copies. Tasks that only wait, record or notify are none,
    nor are the marks that a profiler sets at both ends of its recording.
    """

    device: str
    window_ns: int
    """From the start of the first work to the end of the last; of `steps`, the time of all."""
    compute_ns: int
    """Union of the compute kernels."""
    communication_ns: int | None
    """Union of the collectives, each from its first task to its last; None: there is none."""
    overlap_ns: int | None
    """Communication that ran while a compute kernel did."""
    copy_ns: int
    """Union of the copies and memory sets that belong to no collective."""
    busy_ns: int
    """Union of all three."""
    tasks: int
    """All tasks of the device, waiting ones too."""
    steps: DeviceTime | None = None
    """The same figures of the steps alone; None: no step is known."""

    @property
    def idle_ns(self) -> int:
        """Window in which none of the three ran."""
        return self.window_ns - self.busy_ns

    @property
    def told_of(self) -> DeviceTime:
        """What its shares are told of: the steps where they are known, else the window."""
        return self if self.steps is None else self.steps


@dataclass(frozen=True, slots=True)
class Distribution:
    """Five numbers about many durations."""

    count: int
    median_ns: int
    p90_ns: int
    max_ns: int
    total_ns: int

    @classmethod
    def of(cls, values_ns: NDArray[np.integer]) -> Distribution | None:
        """Describe the values, or return None if there are none."""
        if not len(values_ns):
            return None
        median, p90 = np.percentile(values_ns, (50, 90), method="lower").astype(np.int64)
        return cls(
            len(values_ns),
            int(median),
            int(p90),
            int(values_ns.max()),
            int(values_ns.sum(dtype=np.int64)),
        )


@dataclass(frozen=True, slots=True)
class PmuFigure:
    """One hardware counter of one operator type."""

    op_type: str
    counter: str
    tasks: int
    mean: float
    total: float | None
    """Sum over the tasks; None for ratios and rates, whose sum means nothing."""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What a device calculated on its matrix units, against what it could have (MFU)."""

    device: str
    flops: int
    """Of all matrix operations whose shapes are known, those calculated again included."""
    time_ns: int
    """In which: the steps, else from the first to the last work."""
    steps: int | None
    """How many steps; None: none is known, it is of the window."""
    share: float | None
    """Of the peaks for the types they were of (MFU); None: peaks or too many shapes are unknown."""
    told_share: float
    """How much of the time of kernels is of operations whose cost is known: the rest may have
    calculated more."""
    peak: str
    """The peaks, in words; empty: none is known."""
    uncertain: bool
    by_step: tuple[tuple[str, int, float | None], ...] = ()
    """Name of each step, its FLOPs and its share."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One quantity over time."""

    name: str
    unit: str
    """`B`, `B/s`, `MHz`, `%`, `launches`, or what a recording calls a unit of its own."""
    device: str
    time_ns: NDArray[np.int64]
    value: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something skipped, truncated, unmatched or odd that the reader must know about."""

    name: str
    count: int
    detail: str | None
    source: Literal["recorded", "found"]
    """Whether the report's maker wrote it down or the analysis found it."""


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A figure that people expect and this report does not have, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Summary:
    """One report at a glance."""

    path: str
    family: str
    """Family of the report file: skyline-run-time, skyline-memory, msprof; joined by ` + `."""
    revision: str
    clock: Clock
    facts: tuple[tuple[str, str], ...]
    """Provenance: device, versions, options, as (name, value)."""
    totals: Totals
    devices: tuple[DeviceTime, ...]
    anomalies: tuple[Anomaly, ...]
    not_measured: tuple[NotMeasured, ...]
    available: tuple[By, ...]
    """The breakdowns that this report can give."""


Sureness: TypeAlias = Literal["certain", "likely", "possible"]
"""How sure a finding is: measured as such; measured, and its cause inferred; one of several
explanations of what was measured."""

Evidence: TypeAlias = Mapping[str, Any]
"""One row behind a finding: `name`, and what else is known of it (`line`, `count`, `total_ns`)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that costs the run time."""

    kind: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    links: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    cost_ms_per_step: float
    """What a step would gain without it."""
    text: str
    figures: dict[str, Any] = field(default_factory=dict)
    advice: str = ""
    """One concrete thing to try."""
    sure: Sureness = "certain"
    evidence: tuple[Evidence, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        found = asdict(self)
        for name in ("ranks", "hosts", "steps", "evidence"):
            found[name] = list(found[name])
        found["links"] = [list(pair) for pair in self.links]
        return found


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A rule that could not be asked, and what it lacked."""

    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class Advice(Displayed):
    """What can be said of one recording, the costliest first; a healthy one has no finding."""

    findings: tuple[Finding, ...]
    not_judged: tuple[NotJudged, ...] = ()
    judged: tuple[str, ...] = ()
    """The rules that were asked and found nothing."""
    steps: int = 0
    """How many steps were judged; 0: the recording has none, its window is one."""
    step_ms: float | None = None
    """How long one of them took on average, ms; None: nothing was timed."""
    pauses: int = 0
    """Gaps that were not judged: without steps nobody can tell a pause from a slow host."""
    paused_ms: float = 0.0
    """Their length, on the device that has most of them, ms."""
    complete: bool = True
    """Whether all rules were asked, not only those that a report of a large recording has time for.
    """
