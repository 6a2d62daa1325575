"""npu_mem: how much memory of devices was in use, by process and in all."""

from __future__ import annotations

from unified_prof.export.mindstudio.delivery import Delivery
from unified_prof.export.mindstudio.recording import Recording
from unified_prof.export.mindstudio.registry import deliverable


@deliverable("npu_mem", tables=("NPU_MEM",))
def write(recording: Recording, _delivery: Delivery) -> None:
    """Say that the file cannot be had."""
    recording.leave_out(
        "npu_mem", "the file", "the database has DDR and HBM of NPU_MEM, not their sum; see msprof"
    )
