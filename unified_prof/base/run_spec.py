"""The kinds of report that a run is asked for; names alone, for whoever needs no more.

What tracking a workload yields: plain records, without torch and without a database.

What a run is asked to do, in one record that goes down whole, and what it brings back.

Every wish of the user's is a field of `RunSpec` and stands nowhere else between the place where it
is said (an option of `uprof run`, an argument of `unified_prof.profile`) and the place that acts on
it: not in signatures on the way, nor in what another process is told (`as_data`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from unified_prof.errors import UsageError

RUN_TIME = "run-time"
MEMORY = "memory"
TIMELINE = "timeline"


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
    recomputed_ms: tuple[float, ...] | None = None
    """Time in which activation checkpointing ran it again within the backward pass; None: never."""


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


MODULE = "module"
PROJECT = "project"
SCOPES = (MODULE, PROJECT)

WARMUP = 2
"""Iterations that pass before measuring unless asked otherwise."""
ITERATIONS = 10
"""Iterations that are measured unless asked otherwise."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Something raw that a backend left on disk for a decoder."""

    kind: str
    """`kind` of its source, of those in `pipeline.sources`: `prof` or `kineto`."""
    path: Path
    native: Path | None = None
    """The vendor's own database of it, where the vendor's exporter made one."""
    export: Callable[[], Path] | None = field(default=None, compare=False)
    """Lets the vendor's exporter make one now, which may take minutes; None: there is no way.
    Raises CaptureError where it makes none, and leaves nothing behind then."""


@dataclass(frozen=True, slots=True)
class Capture:
    """What a run brings back."""

    exit_code: int
    """The workload's own; 1 after an exception of its own, 130 after Ctrl-C."""
    tracked: TrackedRun | None = None
    """None: not one iteration was measured completely."""
    recordings: tuple[Recording, ...] = ()
    failure: str | None = None
    """Why the measurement is missing or partial, in a sentence for the user."""
    facts: Mapping[str, str | None] = field(default_factory=dict)
    """Provenance that only the backend knows."""
    error: Exception | None = None
    """What nobody foresaw, after the workload had ended, or what `RunSpec.on_measured` raised: a
    bug, and no reason to end otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What to run and what to measure; the same for every backend.

    Raises:
        UsageError: A value makes no sense.
    """

    target: str
    """Path of a script, or a module name when `is_module`."""
    is_module: bool = False
    """Whether `target` is a module name, as for `python -m`."""
    arguments: tuple[str, ...] = ()
    """The workload's own arguments, its `sys.argv[1:]`."""
    reports: tuple[str, ...]
    """Of RUN_TIME, MEMORY, TIMELINE."""
    output_dir: Path
    """Exists; a backend may keep raw recordings below it."""
    project_root: Path
    """Frames in files below it are the user's."""
    warmup: int = WARMUP
    """Iterations to let pass before measuring."""
    iterations: int = ITERATIONS
    """Iterations to measure for the run time."""
    scope: str = MODULE
    """`module`: operations below a module of the project; `project`: all with a project frame."""
    include: tuple[str, ...] = ()
    """Packages of others whose frames are kept besides the project's and those of the model code
    of known libraries, by their dotted names."""
    batch_size: int | None = None
    """What the input provider of a script is asked for; None: its own default."""
    stop_after: bool = False
    """End the script once the asked iterations are measured."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options only one backend knows, checked by that backend before anything starts."""
    command: tuple[str, ...] | None = None
    """What reports say was run, in words; None: the command line of this process."""

    progress: Callable[[str], None] = lambda _: None
    """Told in a few words what is going on; never called from a measured region."""
    on_measured: Callable[[Capture], None] = lambda _: None
    """Called once by what measures within the workload's process, as soon as all is measured and
    while the workload runs on: with the records and recordings of the `Capture` that the run will
    return. Its exit code is 0 as yet, and its `tracked` None where only instruments measured.

    Nothing is measured any more by then, all instruments have stopped and torch is as it was
    found, so the reports can be written at once, before the workload can be killed or leave by
    `os._exit`. Nothing that comes later changes the records. It runs on the workload's thread,
    between two iterations, in whatever working folder and with whatever `sys.stdout` the workload
    has by then. It is not called where measuring ended early or there was nothing to measure. An
    exception of its does not reach the workload; it is `Capture.error`."""
    on_partial: Callable[[TrackedRun], None] | None = None
    """Called now and then before that, between two iterations, with what the complete ones have
    given so far, so that it can be kept from being lost with the process: after the first of them
    at once, later so rarely that it takes a fiftieth of the time. An exception of its becomes an
    anomaly."""
    relay: Callable[[str], None] = lambda _: None
    """Told what another program that runs the workload says, line by line."""

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UsageError(
                f"warm-up is {self.warmup} iterations; it cannot be negative",
                slug="wrong-option-value",
            )
        if self.iterations < 1:
            raise UsageError(
                f"{self.iterations} iterations to measure; at least 1 is needed",
                slug="wrong-option-value",
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(
                f"a batch of {self.batch_size}; at least 1 is needed", slug="wrong-option-value"
            )
        if self.scope not in SCOPES:
            raise UsageError(
                f"no scope {self.scope!r}; there are {' and '.join(SCOPES)}",
                slug="wrong-option-value",
            )

    @property
    def asks_for_operations(self) -> bool:
        """Whether a report is asked for that is made from operations."""
        return RUN_TIME in self.reports or MEMORY in self.reports

    def as_data(self) -> dict[str, Any]:
        """Return all but who listens here, for `of_data` in another process."""
        return {name: _plain(getattr(self, name)) for name in _data_names()}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> RunSpec:
        """Return what `as_data` was made from; nobody listens."""
        import msgspec

        types = get_type_hints(cls)
        return cls(
            **{
                name: msgspec.convert(value, types[name], dec_hook=_of_plain)
                for name, value in data.items()
            }
        )


def _data_names() -> list[str]:
    listeners = {"progress", "on_measured", "on_partial", "relay"}
    return [one.name for one in fields(RunSpec) if one.name not in listeners]


def _of_plain(kind: type, value: object) -> object:
    return Path(str(value)) if kind is Path else value


def _plain(value: object) -> object:
    """Return `value` as JSON has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
