"""Defines the interface of backends and finds backends by name; they are imported lazily."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from msgspec import Struct

from unified_prof.base.run_spec import Capture, RunSpec
from unified_prof.errors import DeviceUnavailableError, UprofError, UsageError


def check_options(backend: str, spec: RunSpec, known: Collection[str] = ()) -> None:
    """Raise UsageError if `spec` has an option that `backend` does not know."""
    if unknown := sorted({*spec.options} - {*known}):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in unknown)
        raise UsageError(
            f"backend {backend!r} has no option {flags}", slug="option-of-another-backend"
        )


class Backend(Protocol):
    """Runs a workload on one kind of device.

    A backend returns measurements and raw recordings; it does not write reports or open databases.
    Two members are optional: `default_reports`, the reports produced by default (if missing,
    `reports`), and `doubt()`, which returns why `auto` should not choose the backend although the
    user can.
    """

    name: str
    reports: tuple[str, ...]  # Kinds of reports that it can produce: RUN_TIME, MEMORY, TIMELINE.

    def unavailable_reason(self) -> str | None:
        """Return why this backend cannot run here, None if it can; accesses the device."""

    def run(self, spec: RunSpec) -> Capture:
        """Run the workload and measure it.

        Raises:
            UsageError: The backend does not support an option; raised before the workload starts.
            DeviceUnavailableError: The device is no longer available.
            CaptureError: The profiler failed, or the providers of the workload are invalid.
        """


ENTRY_POINT_GROUP = "unified_prof.backends"
AUTO = "auto"
_INSTALL_TORCH = "run `pip install 'unified-prof[torch]'`"

# Name -> (module:class, how to install what it needs), in the order of `auto`.
_BUILTIN: dict[str, tuple[str, str]] = {
    "npu": ("unified_prof.backends.npu:NpuBackend", "run `pip install 'unified-prof[npu]'`"),
    "cuda": ("unified_prof.backends.torch_device:CudaBackend", _INSTALL_TORCH),
    "cpu": ("unified_prof.backends.torch_device:CpuBackend", _INSTALL_TORCH),
}


class Availability(Struct, frozen=True):
    """Availability of a backend: whether it can run here, and why not."""

    name: str
    reason: str | None  # Reason why it cannot run, None if it can.
    doubt: str | None = None  # Reason why `auto` does not choose it although the user can.


def names() -> tuple[str, ...]:
    """Return the names of all backends: built-in backends first, then those of other packages."""
    return (*_BUILTIN, *sorted(_third_party()))


def load(name: str) -> Backend:
    """Return the backend with this name, which can run here.

    Raises UsageError if there is no backend with this name, and DeviceUnavailableError if a
    required package is not installed, or the backend cannot run.
    """
    backend = make(name)
    if reason := backend.unavailable_reason():
        raise DeviceUnavailableError(
            f"backend {name!r} is not available: {reason}",
            hint="see `uprof doctor` for available backends",
            slug="backend-unavailable",
        )
    return backend


def choose() -> Backend:
    """Return the first built-in backend with an available device, in the order npu, cuda, cpu.

    Raises:
        DeviceUnavailableError: No backend can run here; the message contains the reason for each.
    """
    refusals: list[str] = []
    for name in _BUILTIN:
        backend = make(name)
        reason = backend.unavailable_reason() or doubt(backend)
        if reason is None:
            return backend
        refusals.append(f"{name}: {reason}")
    raise DeviceUnavailableError(
        f"no backend is available ({'; '.join(refusals)})",
        hint=_INSTALL_TORCH,
        slug="backend-unavailable",
    )


def doubt(backend: Backend) -> str | None:
    """Return why `auto` should not choose a backend, or None."""
    ask: Callable[[], str | None] = getattr(backend, "doubt", lambda: None)
    return ask()


def default_reports(backend: Backend) -> tuple[str, ...]:
    """Return the reports that a backend produces by default."""
    reports: tuple[str, ...] = getattr(backend, "default_reports", backend.reports)
    return reports


def survey() -> Iterator[Availability]:
    """Return the availability of every backend; a broken backend does not stop the others."""
    for name in names():
        try:
            backend = make(name)
            yield Availability(name, backend.unavailable_reason(), doubt(backend))
        except UprofError as err:
            yield Availability(name, str(err))


def make(name: str) -> Backend:
    """Return the backend with this name, even if it cannot run here.

    Raises UsageError if there is no backend with this name, and DeviceUnavailableError if a
    required package is not installed.
    """
    if name in _BUILTIN:
        target, install = _BUILTIN[name]
    elif entry := _third_party().get(name):
        package = entry.dist.name if entry.dist else entry.module
        target, install = entry.value, f"see the installation instructions of {package}"
    else:
        similar = {"gpu": "cuda", "nvidia": "cuda", "ascend": "npu", "host": "cpu"}.get(name)
        near = [similar] if similar else get_close_matches(name, names(), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"unknown backend {name!r}",
            hint=f"{meant}known: {AUTO}, {', '.join(names())}",
            slug="unknown-backend",
        )
    module, _, attribute = target.partition(":")
    try:
        backend: Backend = getattr(import_module(module), attribute)()
    except ImportError as err:
        needed = err.name or str(err)
        raise DeviceUnavailableError(
            f"backend {name!r} requires {needed}", hint=install, slug="backend-not-installed"
        ) from err
    except AttributeError as err:
        raise DeviceUnavailableError(
            f"backend {name!r} is broken: {err}", slug="backend-broken"
        ) from err
    return backend


def _third_party() -> dict[str, EntryPoint]:
    """Return the backends of other packages; they cannot replace a built-in name."""
    found = entry_points(group=ENTRY_POINT_GROUP)
    return {entry.name: entry for entry in found if entry.name not in _BUILTIN}
