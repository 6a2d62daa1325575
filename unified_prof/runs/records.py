"""What tracking a workload yields: plain records, without torch and without a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Frame:
    """One stack frame in a file of the user's project."""

    file_path: str
    """Relative to the project root, with forward slashes."""
    line_number: int
    """From 1."""


@dataclass(frozen=True, slots=True)
class GapRecord:
    """The time before an operation in which no other operation ran, and the lines that took it."""

    file_path: str
    """Relative to the project root."""
    first_line: int
    last_line: int
    ms: tuple[float, ...]
    """One value for each of the operation's own samples."""


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """One invocation of one operation, measured in every matched iteration that has it.

    The two sample tuples have one value per such iteration, in the order of those iterations.
    """

    name: str
    frames: tuple[Frame, ...]
    """Most specific first."""
    module_path: str | None
    """Qualified name of the innermost module running; '' is the root model, None no module."""
    module_class: str | None
    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...] | None
    """None: the operation took no part in the backward pass."""
    gap: GapRecord | None = None
    """Time since the operation before; None for the first one of a forward pass."""
    iterations: tuple[int, ...] | None = None
    """Which of `TrackedRun.iterations` the samples are of; None: every matched one."""
    region: int | None = None
    """Where in `TrackedRun.regions` the innermost one around it stands; None: in none."""


@dataclass(frozen=True, slots=True)
class WeightRecord:
    """One parameter; a tied one appears once, under its first name."""

    name: str
    module_path: str
    """Qualified name of the module that owns it."""
    module_class: str | None
    size_bytes: int
    grad_size_bytes: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class ActivationRecord:
    """The bytes that one operation was the first to save for the backward pass."""

    operation_name: str
    module_path: str | None
    module_class: str | None
    size_bytes: int
    frames: tuple[Frame, ...]
    region: int | None = None
    """As of an operation."""


@dataclass(frozen=True, slots=True)
class RegionRecord:
    """A region that the program marks, within another one or in none."""

    name: str
    around: int | None
    """Where in `TrackedRun.regions` the one around it stands, which is before it."""
    counts: tuple[int, ...]
    """How many times it was opened in each of `TrackedRun.iterations`."""
    peak_usage_bytes: int | None = None
    """Highest allocation while it was open; None: not measured."""


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """One measured iteration as a whole."""

    total_ms: float
    forward_ms: float | None
    backward_ms: float | None
    peak_usage_bytes: int | None
    matched: bool
    """Whether it shares at least half of its operations with the report's entries; other
    iterations give these no samples."""
    waited_ms: float | None = None
    """Part of the total in which the program's thread waited for a processor that others had;
    None: not known, or the times are a device's."""
    forward_waited_ms: float | None = None
    """Part of the forward time in which it waited likewise."""
    backward_waited_ms: float | None = None
    """Part of the backward time in which it waited likewise."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """Everything measured of one workload in one process."""

    device: str
    """Device type and name, such as `cuda: NVIDIA H200` or `cpu: <model name>`."""
    operations: tuple[OperationRecord, ...]
    weights: tuple[WeightRecord, ...]
    activations: tuple[ActivationRecord, ...]
    iterations: tuple[IterationRecord, ...]
    peak_usage_bytes: int | None
    """Highest allocation during one whole iteration; None: it could not be measured."""
    complete: bool
    """False: the workload ended (error, Ctrl-C) before all asked iterations were measured."""
    anomalies: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Name -> (count, first case in words)."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Provenance the tracker knows: torch, driver, device, options."""
    regions: tuple[RegionRecord, ...] = ()
