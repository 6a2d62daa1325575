"""Recordings of one fault each, a few hundred rows written out by hand; times in ns."""

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
"""The thread that launches."""


class Plant(Device):
    """A recording in the making, with calls of the runtime."""

    def __enter__(self) -> Plant:
        super().__enter__()
        return self

    def api(
        self, start: int, end: int, name: str, *, thread: int = HOST, connection: int | None = None
    ) -> int:
        """Add a call of the runtime; return what ties it to the work it launches."""
        if connection is None:
            self._connections += 1
            connection = self._connections
        row: dict[str, Any] = {
            "startNs": [self.T0 + start],
            "endNs": [self.T0 + end],
            "type": 5000,
            "globalTid": thread,
            "connectionId": connection,
            "name": self.text(name),
        }
        self.writer.write("CANN_API", row)
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
        """Add a kernel, and the call that launched it where `launched` says when it began."""
        connection = -1
        if launched is not None:
            connection = self.api(launched, launched + takes, "cudaLaunchKernel")
        return self.task(
            start, end, connection=connection, kernel=(name, op_type), stream=stream, **more
        )

    def step(self, number: int, start: int, end: int) -> None:
        """Add a step of the profiler."""
        row: dict[str, Any] = {"id": [number], "startNs": self.T0 + start, "endNs": self.T0 + end}
        self.writer.write("STEP_TIME", row)


def advice(path: Path) -> Advice:
    """Return what is said of a recording."""
    with open_analyses(path) as (analysis,):
        return analysis.advice()


def found(path: Path) -> dict[str, Finding]:
    """Return its findings by kind."""
    return {one.kind: one for one in advice(path).findings}


def cost_ns(finding: Finding) -> int:
    """Return what a finding costs a step."""
    return round(finding.cost_ms_per_step * MS)
