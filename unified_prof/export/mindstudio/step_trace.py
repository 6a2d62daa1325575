"""step_trace: one row for each iteration of a model or of a program's steps."""

from __future__ import annotations

from unified_prof.export.mindstudio.delivery import Delivery
from unified_prof.export.mindstudio.recording import Recording
from unified_prof.export.mindstudio.registry import deliverable


@deliverable("step_trace", tables=("TASK",))
def write(recording: Recording, _delivery: Delivery) -> None:
    """Say that the file cannot be had; steps of PyTorch (STEP_TIME) are others, timed on hosts."""
    recording.leave_out("step_trace", "the file", "no table has the bounds of iterations")
