"""Numbers of blocks get the names they deserve.

Released in: 2026-01-28 (blockDim, mixBlockDim become blockNum, mixBlockNum).
Old rows: unchanged.
"""

from unified_prof.migrate import steps

revision = "1.2.0_20260128"
down_revision = "1.2.0_20251226"


def upgrade() -> None:
    steps.rename_column("COMPUTE_TASK_INFO", "blockDim", "blockNum")
    steps.rename_column("COMPUTE_TASK_INFO", "mixBlockDim", "mixBlockNum")
