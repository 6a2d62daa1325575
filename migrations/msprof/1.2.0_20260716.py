"""Overlap of computing and communicating; SIMT kernels, dies, buses and units of new devices.

Released in: 2026-07-16, msprof 26.1.0 (CANN 9.1.0), in steps since 2026-05-08. The enum of the
overlaps was called ENUM_OVERLAY_ANALYSIS_TYPE for a month. Bandwidths of collectives count 1000
instead of 1024 (2026-05-08), a missing end of the recording is its start + 30 minutes
(2026-05-06).
Old rows: gridDim and blockDim are N/A, dieId is -1, rankSize is NULL: exporters have no mark for
an unknown one. Where 7 is RESERVED in ENUM_HCCL_LINK_TYPE it stays so.
Bandwidths and missing ends stay as they are and are counted.
"""

import sqlalchemy as sa
from alembic import op

from unified_prof.migrate import steps

revision = "1.2.0_20260716"
down_revision = "1.2.0_20260330"

NO_DIE = -1
DPU_COLUMNS = (
    "globalTid",
    "startNs",
    "endNs",
    "globalTaskId",
    "streamId",
    "taskId",
    "opName",
    "args",
)
TABLES = {
    "UB": ("deviceId", "portId", "timestampNs", "rxUdmaBind", "txUdmaBind"),
    "SIO": (
        "deviceId",
        "name",
        "timestampNs",
        "rxReq",
        "rxRsp",
        "rxSnp",
        "rxDat",
        "txReq",
        "txRsp",
        "txSnp",
        "txDat",
    ),
    "CCU": ("deviceId", "globalTaskId", "name", "startNs", "endNs", "args"),
}


def upgrade() -> None:
    steps.add_texts("COMPUTE_TASK_INFO", "gridDim", "blockDim")
    steps.add_column("COMMUNICATION_OP", sa.Column("rankSize", sa.INTEGER()))
    steps.add_column("AICORE_FREQ", sa.Column("dieId", sa.NUMERIC()), unknown=NO_DIE)
    steps.add_column("QOS", sa.Column("dieId", sa.NUMERIC()), unknown=NO_DIE)
    steps.create_table(
        "OVERLAP_ANALYSIS",
        steps.key("id"),
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("startNs", sa.NUMERIC()),
        sa.Column("endNs", sa.NUMERIC()),
        sa.Column("type", sa.INTEGER()),
    )
    steps.create_table(
        "DPU_TASK",
        sa.Column("dpuDeviceId", sa.INTEGER()),
        *(sa.Column(name, sa.NUMERIC()) for name in DPU_COLUMNS),
    )
    for table, columns in TABLES.items():
        steps.create_table(table, *(sa.Column(name, sa.NUMERIC()) for name in columns))
    if steps.has("ENUM_OVERLAY_ANALYSIS_TYPE") and not steps.has("ENUM_OVERLAP_ANALYSIS_TYPE"):
        op.rename_table("ENUM_OVERLAY_ANALYSIS_TYPE", "ENUM_OVERLAP_ANALYSIS_TYPE")
    steps.create_enum(
        "ENUM_OVERLAP_ANALYSIS_TYPE",
        {
            0: "COMPUTE",
            1: "COMMUNICATION",
            2: "COMM_NOT_OVERLAP_COMP",
            3: "FREE",
            65535: "RESERVE",
        },
    )
    steps.change_enum("ENUM_HCCL_LINK_TYPE", add={7: "UB", 8: "UBoE"})
    steps.change_enum("ENUM_HCCL_TRANSPORT_TYPE", add={4: "ROCE"})
    _count_changed_meanings()


def _count_changed_meanings() -> None:
    if "bandwidth" in steps.state().columns.get("COMMUNICATION_TASK_INFO", ()):
        steps.anomaly(
            "communication_bandwidth_factor",
            steps.count("COMMUNICATION_TASK_INFO WHERE bandwidth <> 0"),
            "COMMUNICATION_TASK_INFO.bandwidth is GB/s * 1024**3; newer files have * 1000**3",
        )
    if steps.has("SESSION_TIME_INFO", "startTimeNs", "endTimeNs"):
        steps.anomaly(
            "session_end_unknown",
            steps.count("SESSION_TIME_INFO WHERE endTimeNs < startTimeNs"),
            "SESSION_TIME_INFO.endTimeNs is no time: the recording was not stopped properly",
        )
