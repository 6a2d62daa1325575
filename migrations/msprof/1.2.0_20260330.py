"""More data types and a transport for collectives.

Released in: 2026-03-30, msprof 26.0.0 (CANN 9.0.0).
Old rows: unchanged.
"""

from unified_prof.migrate import steps

revision = "1.2.0_20260330"
down_revision = "1.2.0_20260128"


def upgrade() -> None:
    steps.change_enum(
        "ENUM_HCCL_DATA_TYPE", add={14: "HIF8", 15: "FP8E4M3", 16: "FP8E5M2", 17: "FP8E8M0"}
    )
    steps.change_enum("ENUM_HCCL_TRANSPORT_TYPE", add={3: "UB"})
