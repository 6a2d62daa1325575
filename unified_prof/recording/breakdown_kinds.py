"""Names, titles and modules of all breakdowns (`report --by`), and the weights of call stacks.

Each breakdown has an entry in `KINDS`, which names a module of `explain`, and one in that module's
`BREAKDOWNS`. The command line, all output formats and the HTML page use this table. A module is
imported when one of its breakdowns is computed; most reports need only a few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

By = str  # The name of a breakdown, one of `KINDS`.


@dataclass(frozen=True, slots=True)
class Kind:
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
            "no complete step was recorded (call profiler.step() after each iteration)",
            detailed="note",
        ),
    )
}

# The breakdowns with a distribution of times (`report --stats`).
STATISTICS_OF: tuple[By, ...] = ("operation", "kernel")

# Frames above operations in a call stack: modules or source lines.
Place = Literal["module", "line"]
PLACES: tuple[Place, ...] = ("module", "line")


@dataclass(frozen=True, slots=True)
class Measure:
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
