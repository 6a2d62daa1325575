"""Host use of CPU, memory, disk and network; network counters; operator states.

Released in: 2025-06-20 (host tables 2025-05-19, NETDEV_STATS 2025-06-03), CANN 8.2.RC1.
Old rows: opState and hf32Eligible are N/A.
"""

import sqlalchemy as sa

from unified_prof.migrate import steps

revision = "1.1.1_20250620"
down_revision = "1.1.1_20250327"

HOST_TABLES = {
    "CPU_USAGE": ("timestampNs", "cpuId", "usage"),
    "HOST_MEM_USAGE": ("timestampNs", "usage"),
    "HOST_DISK_USAGE": ("timestampNs", "readRate", "writeRate", "usage"),
    "HOST_NETWORK_USAGE": ("timestampNs", "usage", "speed"),
    "OSRT_API": ("name", "globalTid", "startNs", "endNs"),
}
NETDEV_COLUMNS = {
    "deviceId": sa.INTEGER,
    "timestampNs": sa.INTEGER,
    "macTxPfcPkt": sa.INTEGER,
    "macRxPfcPkt": sa.INTEGER,
    "macTxByte": sa.INTEGER,
    "macTxBandwidth": sa.NUMERIC,
    "macRxByte": sa.INTEGER,
    "macRxBandwidth": sa.NUMERIC,
    "macTxBadByte": sa.INTEGER,
    "macRxBadByte": sa.INTEGER,
    "roceTxPkt": sa.INTEGER,
    "roceRxPkt": sa.INTEGER,
    "roceTxErrPkt": sa.INTEGER,
    "roceRxErrPkt": sa.INTEGER,
    "roceTxCnpPkt": sa.INTEGER,
    "roceRxCnpPkt": sa.INTEGER,
    "roceNewPktRty": sa.INTEGER,
    "nicTxByte": sa.INTEGER,
    "nicTxBandwidth": sa.NUMERIC,
    "nicRxByte": sa.INTEGER,
    "nicRxBandwidth": sa.NUMERIC,
}


def upgrade() -> None:
    steps.add_texts("COMPUTE_TASK_INFO", "opState", "hf32Eligible")
    for table, columns in HOST_TABLES.items():
        steps.create_table(table, *(sa.Column(name, sa.NUMERIC()) for name in columns))
    steps.create_table(
        "NETDEV_STATS", *(sa.Column(name, type_()) for name, type_ in NETDEV_COLUMNS.items())
    )
