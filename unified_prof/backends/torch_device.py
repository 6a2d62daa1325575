"""What the CPU and CUDA backends share: run the workload in this process under the tracker."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unified_prof.backends.base import MEMORY, RUN_TIME, Capture, RunSpec, check_options

DEVICE_VARIABLE = "UPROF_DEVICE"


def torch_missing_reason() -> str | None:
    """Return why torch cannot be imported, or None when it can."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as err:
        if err.name == "torch":
            return "PyTorch is not installed"
        return f"PyTorch is installed but needs {err.name}"
    except Exception as err:  # a broken installation can raise anything
        return f"PyTorch is installed but cannot be imported ({err})"
    return None


@contextmanager
def _world_of_workload(device: str) -> Iterator[None]:
    """Tell the workload by UPROF_DEVICE what is profiled; undo afterwards what it changed.

    It may leave another working folder and other output streams behind, and ours are needed for
    writing and telling the result.
    """
    folder, stdout, stderr = Path.cwd(), sys.stdout, sys.stderr
    before = os.environ.get(DEVICE_VARIABLE)
    os.environ[DEVICE_VARIABLE] = device
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr
        with suppress(OSError):  # the folder is gone
            os.chdir(folder)
        if before is None:
            os.environ.pop(DEVICE_VARIABLE, None)
        else:
            os.environ[DEVICE_VARIABLE] = before


class TorchBackend(ABC):
    """Track a workload in this process on one type of torch device."""

    name: str
    reports: tuple[str, ...] = (RUN_TIME, MEMORY)

    def unavailable_reason(self) -> str | None:
        """Return why this backend cannot run here, or None when it can; asks the device."""
        return torch_missing_reason() or self.device_missing_reason()

    @abstractmethod
    def device_missing_reason(self) -> str | None:
        """Return why torch, which is importable, cannot use the device, or None."""

    def run(self, spec: RunSpec) -> Capture:
        """Run the workload and measure it; see `tracking.workload.run_workload`."""
        check_options(self.name, spec)
        from unified_prof.tracking.workload import run_workload

        process = os.getpid()
        with _world_of_workload(self.name):
            outcome = run_workload(
                self.name,
                target=spec.target,
                is_module=spec.is_module,
                arguments=spec.arguments,
                reports=spec.reports,
                project_root=spec.project_root,
                warmup=spec.warmup,
                iterations=spec.iterations,
                scope=spec.scope,
                stop_after=spec.stop_after,
                progress=spec.progress,
            )
        if os.getpid() != process:
            # The workload forked, and this is the child at its end: the report is its parent's.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(outcome.exit_code)
        return Capture(outcome.exit_code, outcome.tracked, failure=outcome.failure)
