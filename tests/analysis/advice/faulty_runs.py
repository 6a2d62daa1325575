"""Hand-written recordings of runs with one performance fault; times are in ns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.analysis.builders import Device
from unified_prof.explain.api import open_analyses
from unified_prof.recording.model import Advice, Finding

US = 1_000
MS = 1_000_000
STREAM = 7
HOST = 1
"""Thread that launches."""


class FaultyRun(Device):
    """Writes a recording with runtime calls and kernels."""

    def api(
        self, start: int, end: int, name: str, *, thread: int = HOST, connection: int | None = None
    ) -> int:
        """Add a runtime call; return the connection id of the tasks it launches."""
        if connection is None:
            self._connections += 1
            connection = self._connections
        self.runtime(start, end, name, connection, thread=thread)
        return connection

    def kernel(
        self,
        start: int,
        end: int,
        *,
        launched: int | None = None,
        takes: int = 2 * US,
        name: str = "add_kernel",
        op_type: str = "Add",
        stream: int = STREAM,
        **more: Any,
    ) -> int:
        """Add a kernel and, if `launched` is a time, the call that launched it."""
        connection = -1
        if launched is not None:
            connection = self.api(launched, launched + takes, "cudaLaunchKernel")
        return self.task(
            start, end, connection=connection, kernel=(name, op_type), stream=stream, **more
        )


def advice(path: Path) -> Advice:
    """Return the advice for a recording."""
    with open_analyses(path) as (analysis,):
        return analysis.advice()


def findings_by_kind(path: Path) -> dict[str, Finding]:
    """Return the findings for a recording by kind."""
    return {one.kind: one for one in advice(path).findings}


def saving_ns(finding: Finding) -> int:
    """Return the time per step that a finding estimates to save."""
    return round(finding.cost_ms_per_step * MS)
