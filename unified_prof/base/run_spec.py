"""Specification and results of a run: plain records without torch and without a database.

Every option of a run is a field of `RunSpec`, which is passed unchanged from where it is created
(`uprof run`, `unified_prof.profile`) to where it is used, including other processes (`as_data`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from unified_prof.errors import UsageError

RUN_TIME = "run-time"
MEMORY = "memory"
TIMELINE = "timeline"


@dataclass(frozen=True, slots=True)
class Frame:
    """Stack frame in a file of the project."""

    file_path: str  # Relative to the project root, with forward slashes.
    line_number: int  # From 1.


@dataclass(frozen=True, slots=True)
class GapRecord:
    """Time before an operation in which no other operation ran, and its source lines."""

    # Relative to the project root.
    file_path: str
    first_line: int
    last_line: int
    ms: tuple[float, ...]  # One value per sample of the operation.


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """One invocation of an operation, measured in every matched iteration that contains it.

    The sample tuples have one value per such iteration, in order.
    """

    name: str
    frames: tuple[Frame, ...]  # Innermost frame first.
    # Qualified name of the innermost module; '' is the root model, None means outside any module.
    module_path: str | None
    module_class: str | None
    forward_ms: tuple[float, ...]
    # None if the operation took no part in the backward pass.
    backward_ms: tuple[float, ...] | None
    # Time since the previous operation; None for the first one of a forward pass.
    gap: GapRecord | None = None
    # Indexes in `TrackedRun.iterations` of the samples; None for all matched iterations.
    iterations: tuple[int, ...] | None = None
    # Index in `TrackedRun.regions` of the innermost region around it; None if there is none.
    region: int | None = None
    # Time of its recomputation by activation checkpointing in the backward pass; None if never.
    recomputed_ms: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class WeightRecord:
    """Parameter of the model; a tied parameter appears once, under its first name."""

    name: str
    # Qualified name of the module that owns it.
    module_path: str
    module_class: str | None
    size_bytes: int
    grad_size_bytes: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class ActivationRecord:
    """Memory of the tensors that an operation was the first to save for the backward pass."""

    operation_name: str
    module_path: str | None
    module_class: str | None
    size_bytes: int
    frames: tuple[Frame, ...]
    region: int | None = None  # As in `OperationRecord`.


@dataclass(frozen=True, slots=True)
class RegionRecord:
    """Region marked by the program."""

    name: str
    # Index in `TrackedRun.regions` of the surrounding region, which precedes it; None if outermost.
    around: int | None
    counts: tuple[int, ...]  # Number of times it was opened in each of `TrackedRun.iterations`.
    peak_usage_bytes: int | None = None  # Peak allocation while it was open; None if not measured.


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """Measurements of one iteration as a whole."""

    total_ms: float
    forward_ms: float | None
    backward_ms: float | None
    peak_usage_bytes: int | None
    # True if it shares at least half of its operations with the report's entries; other iterations
    # have no samples.
    matched: bool
    # Part of the total in which the thread waited for a busy processor; None if unknown, or if
    # times are device times.
    waited_ms: float | None = None
    forward_waited_ms: float | None = None  # The same for the forward time.
    backward_waited_ms: float | None = None  # The same for the backward time.
    # CPU time of all threads of the process within the total; None if unknown, or if times are
    # device times.
    cpu_ms: float | None = None
    forward_cpu_ms: float | None = None  # The same for the forward time.
    backward_cpu_ms: float | None = None  # The same for the backward time.
    # Times outside the passes by part, such as optimizer, without waiting for a processor.
    parts_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """Measurements of one workload in one process."""

    # Device type and name, such as `cuda: NVIDIA H200` or `cpu: <model name>`.
    device: str
    operations: tuple[OperationRecord, ...]
    weights: tuple[WeightRecord, ...]
    activations: tuple[ActivationRecord, ...]
    iterations: tuple[IterationRecord, ...]
    # Peak allocation during one whole iteration; None if it could not be measured.
    peak_usage_bytes: int | None
    # False if the workload ended (error, Ctrl-C) before all requested iterations were measured.
    complete: bool
    # Name -> (count, description of the first case).
    anomalies: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    # Provenance known to the tracker: torch, driver, device, options.
    facts: Mapping[str, str] = field(default_factory=dict)
    regions: tuple[RegionRecord, ...] = ()


TURNS_VARIABLE = "UPROF_TURNS"  # Variable with the `Turns` of a run, as JSON.
# Prefix of facts with exact counts of an iteration, and the fact that names counts that vary.
COUNTED, VARYING = "counted ", "counts that vary"


@dataclass(frozen=True, slots=True)
class Turns:
    """A run that steps in turn with another one; see `tracking.lockstep`."""

    # File descriptors of the pipes from and to the gate.
    read: int
    write: int
    lifeline: int  # Descriptor that is closed when the gate ends, even if it is killed.
    is_first: bool  # True if exact metrics and memory are measured, too.
    # Number of iterations per sample of the run time; all but one are timed only as a whole.
    per_sample: int

    @classmethod
    def of_environment(cls) -> Turns | None:
        """Return what the gate set for this process, which its children do not inherit."""
        text = os.environ.pop(TURNS_VARIABLE, None)
        if text is None:
            return None
        turns = cls(**json.loads(text))
        for descriptor in (turns.read, turns.write, turns.lifeline):
            os.set_inheritable(descriptor, False)
        return turns

    def applied_to(self, spec: RunSpec) -> RunSpec:
        """Return the specification of a run that takes turns and ends after the measurement."""
        if RUN_TIME not in spec.reports:
            return spec  # it has no iterations to take turns with
        reports = spec.reports if self.is_first else (RUN_TIME,)
        return replace(spec, reports=reports, stop_after=True, turns=self)


MODULE = "module"
PROJECT = "project"
SCOPES = (MODULE, PROJECT)

WARMUP = 2  # Default number of iterations before measuring.
ITERATIONS = 10  # Default number of measured iterations.


@dataclass(frozen=True, slots=True)
class Recording:
    """Raw recording that a backend left on disk for a decoder."""

    # Kind of its source in `pipeline.sources`, such as `prof` or `kineto`.
    kind: str
    path: Path
    native: Path | None = None  # Database written by the vendor's exporter, if it exists.
    # Runs the vendor's exporter, which may take minutes; None if there is no exporter. Raises
    # CaptureError on failure and leaves nothing behind.
    export: Callable[[], Path] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Capture:
    """Result of a profiled run: exit code, measurements and raw recordings."""

    exit_code: int  # Exit code of the workload; 1 after an exception, 130 after Ctrl-C.
    # None if no iteration was measured completely.
    tracked: TrackedRun | None = None
    recordings: tuple[Recording, ...] = ()
    failure: str | None = None  # Reason why the measurement is missing or partial, as a sentence.
    # Provenance known only to the backend.
    facts: Mapping[str, str | None] = field(default_factory=dict)
    # Unexpected exception in uprof after the workload ended, or in `RunSpec.on_measured`; does not
    # change the exit code.
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Specification of a run, the same for every backend.

    Raises UsageError if a value is not valid.
    """

    target: str  # Path of a script, or a module name if `is_module`.
    is_module: bool = False  # True if `target` is a module name, as for `python -m`.
    arguments: tuple[str, ...] = ()  # Arguments of the workload, its `sys.argv[1:]`.
    reports: tuple[str, ...]  # Any of RUN_TIME, MEMORY and TIMELINE.
    output_dir: Path  # Existing directory; a backend may keep raw recordings below it.
    project_root: Path  # Frames in files below it are the user's.
    warmup: int = WARMUP  # Number of iterations before measuring.
    iterations: int = ITERATIONS  # Number of iterations to measure for the run time.
    # `module`: operations below a module of the project; `project`: all with a frame of the
    # project.
    scope: str = MODULE
    include: tuple[str, ...] = ()  # Additional packages whose frames are kept, by dotted names.
    # Batch size passed to the input provider of a script; None for its default.
    batch_size: int | None = None
    stop_after: bool = False  # End the script after the requested iterations.
    turns: Turns | None = None  # Set if another run steps in turn with this one.
    # Options of one backend, checked by it before anything starts.
    options: Mapping[str, object] = field(default_factory=dict)
    # Command recorded in reports; None for the command line of this process.
    command: tuple[str, ...] | None = None

    # Called with short progress messages, never within a measured region.
    progress: Callable[[str], None] = lambda _: None
    # Called once in the process of the workload as soon as everything is measured, while the
    # workload continues, with the records and recordings of the later `Capture`. Its exit code is 0
    # at that time, and `tracked` is None if only instruments measured. All instruments have stopped
    # and torch is restored, so reports can be written before the workload is killed or calls
    # `os._exit`; the records do not change afterwards. It runs on the workload's thread between two
    # iterations, with the workload's working directory and `sys.stdout`. It is not called if
    # measuring ended early or there was nothing to measure. An exception does not reach the
    # workload but becomes `Capture.error`.
    on_measured: Callable[[Capture], None] = lambda _: None
    # Called between iterations with the measurements so far, so that they can be saved in case the
    # process is killed: after the first iteration, then so rarely that it takes at most 2 % of the
    # time. An exception becomes an anomaly.
    on_partial: Callable[[TrackedRun], None] | None = None
    # Called with each output line of an external program that runs the workload.
    relay: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UsageError(
                f"the number of warm-up iterations is {self.warmup}; it must not be negative",
                slug="wrong-option-value",
            )
        if self.iterations < 1:
            raise UsageError(
                f"the number of iterations is {self.iterations}; it must be at least 1",
                slug="wrong-option-value",
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(
                f"the batch size is {self.batch_size}; it must be at least 1",
                slug="wrong-option-value",
            )
        if self.scope not in SCOPES:
            raise UsageError(
                f"unknown scope {self.scope!r}, expected {' or '.join(SCOPES)}",
                slug="wrong-option-value",
            )

    @property
    def asks_for_operations(self) -> bool:
        """True if a requested report needs measurements of operations."""
        return RUN_TIME in self.reports or MEMORY in self.reports

    def as_data(self) -> dict[str, Any]:
        """Return all fields except callbacks as plain data, for `of_data` in another process."""
        return {name: _plain(getattr(self, name)) for name in _data_names()}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> RunSpec:
        """Return the RunSpec from the result of `as_data`, without callbacks."""
        import msgspec

        types = get_type_hints(cls)
        return cls(
            **{
                name: msgspec.convert(value, types[name], dec_hook=_of_plain)
                for name, value in data.items()
            }
        )


def _data_names() -> list[str]:
    listeners = {"progress", "on_measured", "on_partial", "relay", "turns"}
    return [one.name for one in fields(RunSpec) if one.name not in listeners]


def _of_plain(kind: type, value: object) -> object:
    return Path(str(value)) if kind is Path else value


def _plain(value: object) -> object:
    """Return a value converted to JSON types."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
