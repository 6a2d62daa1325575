"""What a backend is: the few things the pipeline asks of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from unified_prof.errors import UsageError
from unified_prof.runs.records import TrackedRun

RUN_TIME = "run-time"
MEMORY = "memory"
TIMELINE = "timeline"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What to run and what to measure; the same for every backend."""

    target: str
    """Path of a script, or a module name when `is_module`."""
    is_module: bool
    arguments: tuple[str, ...]
    """The workload's own arguments."""
    reports: tuple[str, ...]
    """Of RUN_TIME, MEMORY, TIMELINE."""
    output_dir: Path
    """Exists; a backend may keep raw recordings below it."""
    project_root: Path
    warmup: int
    iterations: int
    scope: str = "module"
    """`module`: operations below a module of the project; `project`: all with a project frame."""
    include: tuple[str, ...] = ()
    """Packages of others whose frames are kept besides the project's, by their dotted names."""
    stop_after: bool = False
    """End the script once the asked iterations are measured."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options only one backend knows, checked by that backend before anything starts."""
    progress: Callable[[str], None] = lambda _: None
    """Told in a few words what is going on; never called from a measured region."""
    on_measured: Callable[[Capture], None] = lambda _: None
    """Called once by a backend that measures within the workload's process, as soon as all is
    measured and while the workload runs on: with the records and recordings of the `Capture` that
    `run` will return, so that reports can be written at once. The capture's exit code is 0 as yet.
    See `tracking.workload.run_workload` for where it runs; its exceptions leave `run` at the end
    of a workload that succeeded, and are told in `Capture.failure` otherwise."""
    on_partial: Callable[[TrackedRun], None] | None = None
    """Called now and then before that by such a backend, with what the complete iterations have
    given so far; see `tracking.workload.run_workload`."""
    relay: Callable[[str], None] = lambda _: None
    """Told what another program that runs the workload says, line by line."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Something raw that a backend left on disk for a decoder."""

    kind: str
    """`kind` of its source, of those in `pipeline.sources`: `prof` or `kineto`."""
    path: Path
    native: Path | None = None
    """The vendor's own database of it, where the vendor's exporter made one."""


@dataclass(frozen=True, slots=True)
class Capture:
    """What a backend brings back."""

    exit_code: int
    """The workload's own."""
    tracked: TrackedRun | None = None
    recordings: tuple[Recording, ...] = ()
    failure: str | None = None
    """Why the measurement is missing or partial, in a sentence for the user."""
    facts: Mapping[str, str | None] = field(default_factory=dict)
    """Provenance that only the backend knows."""
    error: Exception | None = None
    """What nobody foresaw, after the workload had ended: a bug, and no reason to end otherwise."""


def check_options(backend: str, spec: RunSpec, known: Collection[str] = ()) -> None:
    """Raise UsageError when `spec` has an option that `backend` does not know."""
    if unknown := sorted({*spec.options} - {*known}):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in unknown)
        raise UsageError(f"backend {backend!r} has no option {flags}")


class Backend(Protocol):
    """Runs a workload on one kind of device.

    It neither writes reports nor opens databases: it returns records and raw recordings.

    Two more members are used where a backend has them: `default_reports`, the families it
    produces when none are asked for (otherwise `reports`), and `doubt()`, which like
    `unavailable_reason()` returns why `auto` should pass it over, but does not keep a user from
    asking for it by name.
    """

    name: str
    reports: tuple[str, ...]
    """The report families it can produce, of RUN_TIME, MEMORY, TIMELINE."""

    def unavailable_reason(self) -> str | None:
        """Return why this backend cannot run here, or None when it can; asks the device."""

    def run(self, spec: RunSpec) -> Capture:
        """Run the workload and measure it.

        Raises:
            UsageError: an option this backend cannot honour, found before anything started.
            DeviceUnavailableError: the device went away.
            CaptureError: the profiler failed, or the workload broke the providers' rules.
        """
