"""More data types for collectives, and N/A in all their enums.

Released in: 2024-07-11 (data types 2024-06-25), CANN 8.0.RC3.
Old rows: unchanged.
"""

from unified_prof.migrate import steps

revision = "1.0.0_20240711"
down_revision = "1.0.0_20240521"


def upgrade() -> None:
    steps.change_enum(
        "ENUM_HCCL_DATA_TYPE",
        add={
            7: "UINT8",
            8: "UINT16",
            9: "UINT32",
            10: "FP64",
            11: "BFP16",
            12: "INT128",
            65534: "N/A",
        },
    )
    for enum in ("ENUM_HCCL_LINK_TYPE", "ENUM_HCCL_TRANSPORT_TYPE", "ENUM_HCCL_RDMA_TYPE"):
        steps.change_enum(enum, add={65534: "N/A"})
