"""Huawei Ascend NPUs, profiled by CANN's msprof command."""

from __future__ import annotations

from unified_prof.backends.base import TIMELINE, Capture, RunSpec
from unified_prof.errors import DeviceUnavailableError


class NpuBackend:
    """Run a workload under msprof."""

    name = "npu"
    reports: tuple[str, ...] = (TIMELINE,)

    def unavailable_reason(self) -> str | None:
        """Say truthfully that this release cannot drive msprof."""
        return "this version of uprof cannot drive msprof yet"

    def run(self, spec: RunSpec) -> Capture:
        """Refuse to run; see `unavailable_reason`."""
        raise DeviceUnavailableError(f"backend 'npu' cannot run here: {self.unavailable_reason()}")
