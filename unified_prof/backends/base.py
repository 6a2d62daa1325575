"""What a backend is: the few things the pipeline asks of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from unified_prof.errors import UsageError
from unified_prof.runs.spec import MEMORY, RUN_TIME, TIMELINE, Capture, Recording, RunSpec

__all__ = [
    "MEMORY",
    "RUN_TIME",
    "TIMELINE",
    "Backend",
    "Capture",
    "Recording",
    "RunSpec",
    "check_options",
]


def check_options(backend: str, spec: RunSpec, known: Collection[str] = ()) -> None:
    """Raise UsageError when `spec` has an option that `backend` does not know."""
    if unknown := sorted({*spec.options} - {*known}):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in unknown)
        raise UsageError(
            f"backend {backend!r} has no option {flags}", slug="option-of-another-backend"
        )


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
