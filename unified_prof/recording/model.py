"""Breakdowns by name, and the result types of analyses, shared by reports and multi-rank analysis.

Each breakdown (`report --by`) has an entry in `KINDS`, which names a module of `explain`, and one
in that module's `BREAKDOWNS`. The command line, all output formats and the HTML page use this
table. A module is imported when one of its breakdowns is computed; most reports need only a few.

Times are whole nanoseconds, sizes bytes. None means "not measured", never zero; renderers must not
turn it into a number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct, field

from unified_prof.base.display import Displayed
from unified_prof.base.records import asdict

if TYPE_CHECKING:  # NumPy doubles the time of `uprof report --help`.
    import numpy as np
    from numpy.typing import NDArray

    from unified_prof.base.columns import CoveredPart
    from unified_prof.recording.recording import Recording

By = str  # The name of a breakdown, one of `KINDS`.


class Kind(Struct, frozen=True):
    """Title, headings and module of one breakdown."""

    by: By
    title: str  # Heading on the HTML page.
    why_not: str  # Reason shown if a recording lacks the data, and how to record it.
    # Module of `explain` whose `BREAKDOWNS` computes it from an msprof database.
    module: str = "basic_breakdowns"
    counted: str = "calls"  # Heading of the column of counts.
    detailed: str = "detail"  # Heading of the column of details.
    # True if it is computed only with `--by NAME`, not in reports with all breakdowns.
    when_asked: bool = False


class BreakdownSpec(Struct, frozen=True):
    """How to compute one breakdown, and when it is available."""

    # Returns True if the recording has the data; must be cheap, as it is called for every report.
    supports: Callable[[Recording], bool]
    compute: Callable[[Recording], Breakdown]
    # Returns True if it is cheap enough for reports that do not ask for it by name.
    is_quick: Callable[[Recording], bool] = lambda _: True


KINDS: dict[By, Kind] = {
    kind.by: kind
    for kind in (
        Kind(
            "operation",
            "Operations",
            "neither device work nor framework operations were recorded",
            detailed="line",
        ),
        Kind(
            "module",
            "Modules",
            "no nn.Module was recorded (torch.profiler needs with_modules or with_stack)",
            detailed="class",
        ),
        Kind(
            "line",
            "Source lines",
            "no call stack of the user's files was recorded (torch.profiler needs with_stack)",
            detailed="operation",
        ),
        Kind(
            "stack",
            "Call stacks",
            "no call stack of the user's files was recorded (torch.profiler needs with_stack)",
            detailed="operation",
            when_asked=True,
        ),
        Kind(
            "segment",
            "Segments of the allocator",
            "no memory snapshot (torch.cuda.memory._dump_snapshot) with segments",
            counted="blocks",
            detailed="pool",
        ),
        Kind(
            "kernel",
            "Kernels",
            "no device work was recorded",
            counted="runs",
            detailed="operator type",
        ),
        Kind(
            "group",
            "Groups of ranks",
            "no collective with a known group was recorded (table COMMUNICATION_OP)",
            detailed="collectives",
        ),
        Kind(
            "stream",
            "Streams",
            "no device task was recorded",
            counted="tasks",
            detailed="task types",
        ),
        Kind(
            "annotation",
            "Annotations",
            "no annotated ranges were recorded (torch.profiler.record_function, NVTX, mstx) "
            "on a GPU or in a host-only recording",
            counted="ranges",
            detailed="measured",
        ),
        Kind(
            "launch",
            "Launches",
            "no launch call was recorded with the tasks that it launched (table CANN_API)",
            counted="launches",
            when_asked=True,
        ),
        Kind(
            "queue",
            "Queues of streams",
            "no launch call was recorded with the tasks that it launched (table CANN_API)",
            counted="launches",
            when_asked=True,
        ),
        Kind(
            "sequence",
            "Kernels that follow one another",
            "no device work or no framework operation was recorded",
            detailed="kernels in order",
            when_asked=True,
        ),
        Kind(
            "self",
            "Operations at every depth",
            "no framework operation was recorded (table PYTORCH_API)",
            module="self_time",
            when_asked=True,
        ),
        Kind(
            "shape",
            "Operations by their inputs",
            "no input shapes were recorded (torch.profiler needs record_shapes)",
            module="self_time",
            detailed="inputs",
            when_asked=True,
        ),
        Kind(
            "class",
            "Classes of work",
            "no device work was recorded",
            module="kernel_classes",
            counted="runs",
            detailed="mostly",
            when_asked=True,
        ),
        Kind(
            "path",
            "Critical path",
            "neither device work nor framework operations were recorded",
            module="critical_path",
            counted="sections",
            detailed="what",
            when_asked=True,
        ),
        Kind(
            "roofline",
            "Roofline",
            "no shapes of device operations were recorded (torch.profiler needs record_shapes)",
            module="roofline",
            detailed="limit",
        ),
        Kind("idle", "Idle time", "no device work was recorded", counted="gaps", detailed="line"),
        Kind(
            "step",
            "Steps",
            "no complete step was recorded (call profiler.step(), or mark ranges `step N`)",
            detailed="note",
        ),
    )
}

# The breakdowns with a distribution of times (`report --stats`).
STATISTICS_OF: tuple[By, ...] = ("operation", "kernel")

# Frames above operations in a call stack: modules or source lines.
Place = Literal["module", "line"]
PLACES: tuple[Place, ...] = ("module", "line")


class Measure(Struct, frozen=True):
    """Weight of call stacks."""

    name: str
    unit: Literal["nanoseconds", "bytes"]
    title: str


# In the order of files: timelines have device, host and memory, tracked workloads the others.
MEASURES: dict[str, Measure] = {
    one.name: one
    for one in (
        Measure("device", "nanoseconds", "device time"),
        Measure("time", "nanoseconds", "time of operations, forward and backward"),
        Measure("forward", "nanoseconds", "forward time of operations"),
        Measure("backward", "nanoseconds", "backward time of operations"),
        Measure("host", "nanoseconds", "host time"),
        Measure("memory", "bytes", "memory"),
    )
}


# Source of `total_ns`: device tasks, host ranges, tracked operations, or none.
Clock = Literal["device", "host", "operation", "none"]
THEN = " → "  # Separator of the names in a sequence.


class Row(Struct, frozen=True):
    """One row of a breakdown: everything recorded under one key."""

    name: str  # Operation, module path, `file:line`, kernel, group, ...
    kind: str  # Kind of the row: operation, kernel, communication, copy, weight, module, ...
    count: int  # Number of calls, kernel executions or entries in the row.
    total_ns: int | None = None  # Time of the row; for a framework operation forward plus backward.
    forward_ns: int | None = None
    backward_ns: int | None = None
    weight_bytes: int | None = None
    gradient_bytes: int | None = None
    activation_bytes: int | None = None
    # Allocated bytes, in recordings that have allocations instead of activations.
    allocated_bytes: int | None = None
    detail: str | None = None  # Module class, operator type or task types.
    # Additional figures of this breakdown; names end with the unit (`busy_ns`), except counts.
    extra: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int | None:
        """Sum of the measured sizes, None if no size was measured."""
        sizes = self.weight_bytes, self.gradient_bytes, self.activation_bytes, self.allocated_bytes
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    @property
    def average_ns(self) -> float | None:
        """Average time per call."""
        return None if self.total_ns is None or not self.count else self.total_ns / self.count


class Breakdown(Struct, frozen=True):
    """Time and memory of a report by one key; rows in descending order of time or size."""

    by: By
    rows: tuple[Row, ...]
    total_ns: int | None  # Sum of the rows' times; None if the report has no times.
    size_bytes: int | None  # Sum of the rows' sizes; None if the report has no sizes.
    # Time that percentages refer to, such as an iteration; None: `total_ns`.
    whole_ns: int | None = None

    def percent(self, row: Row) -> float | None:
        """Return the row's percentage of the total time or, without times, of the total size."""
        if self.total_ns is not None:
            return _percent(row.total_ns, self.whole_ns or self.total_ns)
        return _percent(row.size_bytes, self.size_bytes)


def _percent(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


class Samples(Struct, frozen=True, eq=False):
    """The measurements behind medians; NaN is "not measured".

    The matrices have one row for each timed operation of `Analysis.calls`, in its order, and one
    column for each iteration that was averaged.
    """

    forward_ns: NDArray[np.float64]
    backward_ns: NDArray[np.float64]


class Gaps(Struct, frozen=True, eq=False):
    """Time between operations, by the source lines that may have spent it."""

    # Index in `Analysis.calls` of the timed operation after each gap, ascending.
    before: NDArray[np.int64]
    lines: tuple[str, ...]  # `file:line`, or `file:first-last` if several lines are possible.
    gap_ns: NDArray[np.float64]  # One row per gap, one column per iteration; NaN is "not measured".


class Step(Struct, frozen=True):
    """One measured iteration of a tracked workload, or one step of a recording."""

    name: str
    total_ns: int | None
    forward_ns: int | None = None
    backward_ns: int | None = None
    # True if it ran the operations shown in the report; other iterations are not averaged.
    matched: bool = True
    peak_bytes: int | None = None  # Peak memory in use during the step.
    # Part of the total in which the program's thread waited for a CPU core.
    waited_ns: int | None = None
    forward_waited_ns: int | None = None
    backward_waited_ns: int | None = None
    cpu_ns: int | None = None  # CPU time of all threads of the process.
    forward_cpu_ns: int | None = None
    backward_cpu_ns: int | None = None
    # Times outside the passes by part, such as optimizer, without waiting for a CPU.
    parts_ns: Mapping[str, int] = field(default_factory=dict)

    @property
    def run_ns(self) -> int:
        """Total without waiting for a CPU; 0 if unknown."""
        return (self.total_ns or 0) - (self.waited_ns or 0)

    @property
    def is_periodic(self) -> bool:
        """True if evaluation, compilation or a checkpoint takes PERIODIC_SHARE of it."""
        minimum_ns = PERIODIC_SHARE * self.run_ns
        return any(self.parts_ns.get(part, 0) > minimum_ns for part in PERIODIC_PARTS)


# Work that many programs do every N iterations only.
PERIODIC_PARTS = ("forward_without_gradients", "compilation", "saving")
PERIODIC_SHARE = 0.1  # Minimum share of an iteration that such work takes.


def timed_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the iterations whose times are known.

    The parts of an iteration are measured after the one whose operations may not have matched.
    """
    return [step for step in steps if step.total_ns and (step.matched or step.parts_ns)]


def typical_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the iterations to average: those without periodic work, if several have none.

    A single one without is an exception among iterations that evaluate each time.
    """
    timed = timed_steps(steps)
    usual = [step for step in timed if not step.is_periodic]
    is_mixed = 1 < len(usual) < len(timed)
    return usual if is_mixed else [step for step in steps if step.matched]


class Totals(Struct, frozen=True):
    """Headline figures of one report."""

    total_ns: int | None = None  # Total time of all operations, or of all device tasks.
    forward_ns: int | None = None
    backward_ns: int | None = None
    other_ns: int | None = None  # Time in neither pass, such as optimizer steps.
    # Time of recomputation within backward passes (activation checkpointing).
    recomputed_ns: int | None = None
    count: int | None = None  # Number of operations or device tasks in `total_ns`.
    weight_bytes: int | None = None
    gradient_bytes: int | None = None
    activation_bytes: int | None = None
    peak_bytes: int | None = None  # Peak memory.
    iteration_ns: int | None = None  # Median time of a measured iteration.
    # 90th percentile of the measured iterations, not interpolated: of up to ten, it is the maximum.
    # None for one iteration.
    iteration_p90_ns: int | None = None
    # Mean of the middle one or two iterations, so that forward and backward add up to the median.
    iteration_forward_ns: int | None = None
    iteration_backward_ns: int | None = None
    # Time in which the thread waited for a CPU core, in the same iterations.
    iteration_waited_ns: int | None = None
    # Parts of the same iterations, which add up to `iteration_ns`: passes without waiting for a
    # CPU, optimizer, data_loading and others, `other`, `waiting_for_cpu`.
    iteration_parts_ns: Mapping[str, int] = field(default_factory=dict)
    iterations: int | None = None
    optimizer_state_bytes: int | None = None
    # Most activation bytes that exist at once; each of several backward passes frees its own.
    most_activation_bytes: int | None = None


class DeviceTime(Struct, frozen=True):
    """Time of one device by kind of task, in its window and, if known, in its steps.

    Busy time is the time of kernels, collectives and copies. Waits, event records, notifications
    and the profiler's marks at both ends of the recording do not count.
    """

    device: str
    # From the start of the first task to the end of the last; in `steps`, the total time of all
    # steps.
    window_ns: int
    compute_ns: int  # Union of the compute kernels.
    # Union of the collectives, each from its first task to its last; None: no collectives.
    communication_ns: int | None
    overlap_ns: int | None  # Communication overlapped with compute kernels.
    copy_ns: int  # Union of the copies and memsets that are not part of a collective.
    busy_ns: int  # Union of compute, communication and copies.
    tasks: int  # Number of all tasks, including waits.
    steps: DeviceTime | None = None  # The same figures for the steps; None: no step is known.

    @property
    def idle_ns(self) -> int:
        """Time in the window in which the device is idle."""
        return self.window_ns - self.busy_ns

    @property
    def share_basis(self) -> DeviceTime:
        """The device time that percentages refer to: of the steps if known, else of the window."""
        return self if self.steps is None else self.steps


class Distribution(Struct, frozen=True):
    """Count, median, p90, maximum and sum of durations."""

    count: int
    median_ns: int
    p90_ns: int
    max_ns: int
    total_ns: int

    @classmethod
    def from_values(cls, values_ns: NDArray[np.integer]) -> Distribution | None:
        """Return the distribution of values, None if there are none."""
        import numpy as np

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


class PmuFigure(Struct, frozen=True):
    """One hardware counter of one operator type."""

    op_type: str
    counter: str
    tasks: int
    mean: float
    total: float | None  # Sum over the tasks; None for ratios and rates.


class ModelUse(Struct, frozen=True):
    """FLOPs of the matrix units of a device, and their share of the peak (MFU)."""

    device: str
    flops: int  # FLOPs of all matrix operations with known shapes, recomputation included.
    time_ns: int  # Total time of the steps, else the time from the first task to the last.
    steps: int | None  # Number of steps; None: the figures are those of the window.
    # MFU: share of the peaks of the data types; None: peaks or too many shapes are unknown.
    share: float | None
    known_share: float  # Share of kernel time with known FLOPs.
    peak: str  # The peaks as text; empty: unknown.
    uncertain: bool
    by_step: tuple[tuple[str, int, float | None], ...] = ()  # Name, FLOPs and MFU of each step.


class Series(Struct, frozen=True, eq=False):
    """One quantity over time."""

    name: str
    unit: str  # `B`, `B/s`, `MHz`, `%`, `launches`, or another unit named in the recording.
    device: str
    time_ns: NDArray[np.int64]
    value: NDArray[np.float64]


class Anomaly(Struct, frozen=True):
    """A kind of skipped, truncated, unmatched or inconsistent data, with its number."""

    name: str
    count: int
    detail: str | None
    # `recorded`: reported by the writer of the report; `found`: found by the analysis.
    source: Literal["recorded", "found"]


class NotMeasured(Struct, frozen=True):
    """A common figure that this report does not have, and the reason."""

    what: str
    why: str


class Summary(Struct, frozen=True):
    """Summary of one report."""

    path: str
    # Family of the report file: skyline-run-time, skyline-memory, msprof; joined by ` + `.
    family: str
    revision: str
    clock: Clock
    # Provenance (device, versions, options) as (name, value) pairs.
    facts: tuple[tuple[str, str], ...]
    totals: Totals
    devices: tuple[DeviceTime, ...]
    anomalies: tuple[Anomaly, ...]
    not_measured: tuple[NotMeasured, ...]
    available: tuple[By, ...]  # The breakdowns that this report has.
    coverage: tuple[CoveredPart, ...] = ()  # How much of a converted recording was decoded.


# Confidence of a finding: certain: measured; likely: measured, cause inferred; possible: one of
# several explanations.
Sureness: TypeAlias = Literal["certain", "likely", "possible"]

# One row of evidence: `name`, and `line`, `count`, `total_ns` if known.
Evidence: TypeAlias = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A cause of lost time."""

    kind: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    links: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    cost_ms_per_step: float  # Estimated saving per step, ms.
    text: str
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    advice: str = ""  # A concrete change to try.
    sure: Sureness = "certain"
    evidence: tuple[Evidence, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        result = asdict(self)
        for name in ("ranks", "hosts", "steps", "evidence"):
            result[name] = list(result[name])
        result["links"] = [list(pair) for pair in self.links]
        return result


class NotJudged(Struct, frozen=True):
    """A skipped rule and the data that it lacks."""

    kind: str
    why: str
    applies: bool = True  # False if the rule is for another kind of device.


@dataclasses.dataclass(frozen=True, slots=True)
class Advice(Displayed):
    """Findings of one recording, most expensive first."""

    findings: tuple[Finding, ...]
    not_judged: tuple[NotJudged, ...] = ()
    judged: tuple[str, ...] = ()  # Rules without findings.
    steps: int = 0  # Number of analyzed steps; 0: the window of a recording without steps.
    recorded_steps: int = 0  # From three steps on, the first is a warm-up and is not analyzed.
    step_ms: float | None = None  # Time of a step by `statistic`, ms; None: not measured.
    statistic: Literal["average", "median"] = "average"
    # Time per step that is saved without all causes, ms; costs never add up to more. None: unknown.
    together_ms: float | None = None
    # Number of gaps not analyzed, because a pause without steps looks like a slow host.
    pauses: int = 0
    paused_ms: float = 0.0  # Total time of these gaps on the device with the highest total, ms.
    # Call that the host is in for most of the longest of these gaps; None: unknown, or none.
    paused_in: str | None = None
    # Without steps, time from the first host call to the first device task, if it is longer than
    # the analyzed time, ms, and the call that takes most of it.
    before_ms: float | None = None
    before_in: str | None = None
    # Share of the device time in graph replays whose operations were recorded only in the capture.
    replayed_share: float = 0.0
    # File beside the recording that probably has the capture of these graphs; None: not found.
    capture: str | None = None
    # True if all rules ran, False if only the fast ones ran (large recordings).
    complete: bool = True
    captures: bool = False  # True if nothing was found in a recording that captures device graphs.
