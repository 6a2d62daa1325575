"""The first revision that uprof migrates from; the file was just renamed to msprof_<time>.db.

Released in: 2024-03-28, CANN 8.0.RC1. Keys and indexes have settled: 15 columns are declared
primary keys at most, TASK and COMMUNICATION_TASK_INFO have an index each, META_DATA does not
exist yet.
Old rows: there are none; files from before this revision are not migrated.
"""

import sqlalchemy as sa
from alembic import op

from unified_prof.migrate import steps

revision = "pre_20240328"
down_revision = None

API_TYPES = {
    5000: "runtime",
    5500: "hccl",
    10000: "node",
    15000: "model",
    20000: "acl",
}

MODULES = {
    0: "SLOG",
    1: "IDEDD",
    2: "IDEDH",
    3: "HCCL",
    4: "FMK",
    5: "HIAIENGINE",
    6: "DVPP",
    7: "RUNTIME",
    8: "CCE",
    9: "HDC",
    10: "DRV",
    11: "MDCFUSION",
    12: "MDCLOCATION",
    13: "MDCPERCEPTION",
    14: "MDCFSM",
    15: "MDCCOMMON",
    16: "MDCMONITOR",
    17: "MDCBSWP",
    18: "MDCDEFAULT",
    19: "MDCSC",
    20: "MDCPNC",
    21: "MLL",
    22: "DEVMM",
    23: "KERNEL",
    24: "LIBMEDIA",
    25: "CCECPU",
    26: "ASCENDDK",
    27: "ROS",
    28: "HCCP",
    29: "ROCE",
    30: "TEFUSION",
    31: "PROFILING",
    32: "DP",
    33: "APP",
    34: "TS",
    35: "TSDUMP",
    36: "AICPU",
    37: "LP",
    38: "TDT",
    39: "FE",
    40: "MD",
    41: "MB",
    42: "ME",
    43: "IMU",
    44: "IMP",
    45: "GE",
    46: "MDCFUSA",
    47: "CAMERA",
    48: "ASCENDCL",
    49: "TEEOS",
    50: "ISP",
    51: "SIS",
    52: "HSM",
    53: "DSS",
    54: "PROCMGR",
    55: "BBOX",
    56: "AIVECTOR",
    57: "TBE",
    58: "FV",
    59: "MDCMAP",
    60: "TUNE",
    61: "HSS",
    62: "FFTS",
    63: "OP",
    64: "UDF",
    65: "HICAID",
    66: "TSYNC",
    67: "AUDIO",
    68: "TPRT",
    69: "ASCENDCKERNEL",
    70: "ASYS",
    71: "ATRACE",
    72: "RTC",
    73: "SYSMONITOR",
    74: "MBUFF",
    75: "CUSTOM",
}


def upgrade() -> None:
    op.create_table(
        "STRING_IDS",
        steps.key("id"),
        sa.Column("value", sa.TEXT()),
    )
    op.create_table(
        "SESSION_TIME_INFO",
        sa.Column("startTimeNs", sa.INTEGER()),
        sa.Column("endTimeNs", sa.INTEGER()),
    )
    op.create_table(
        "NPU_INFO",
        sa.Column("id", sa.INTEGER()),
        sa.Column("name", sa.TEXT()),
    )
    op.create_table(
        "TASK",
        sa.Column("startNs", sa.INTEGER()),
        sa.Column("endNs", sa.INTEGER()),
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("connectionId", sa.INTEGER()),
        sa.Column("globalTaskId", sa.INTEGER()),
        sa.Column("globalPid", sa.INTEGER()),
        sa.Column("taskType", sa.INTEGER()),
        sa.Column("contextId", sa.INTEGER()),
        sa.Column("streamId", sa.INTEGER()),
        sa.Column("taskId", sa.INTEGER()),
        sa.Column("modelId", sa.INTEGER()),
    )
    op.create_index("TaskIndex", "TASK", ["startNs", "globalTaskId"])
    op.create_table(
        "COMPUTE_TASK_INFO",
        sa.Column("name", sa.INTEGER()),
        steps.key("globalTaskId"),
        sa.Column("block_dim", sa.INTEGER()),
        sa.Column("mixBlockDim", sa.INTEGER()),
        sa.Column("taskType", sa.INTEGER()),
        sa.Column("opType", sa.INTEGER()),
        sa.Column("inputFormats", sa.INTEGER()),
        sa.Column("inputDataTypes", sa.INTEGER()),
        sa.Column("inputShapes", sa.INTEGER()),
        sa.Column("outputFormats", sa.INTEGER()),
        sa.Column("outputDataTypes", sa.INTEGER()),
        sa.Column("outputShapes", sa.INTEGER()),
    )
    op.create_table(
        "COMMUNICATION_TASK_INFO",
        sa.Column("name", sa.INTEGER()),
        sa.Column("globalTaskId", sa.INTEGER()),
        sa.Column("taskType", sa.INTEGER()),
        sa.Column("planeId", sa.INTEGER()),
        sa.Column("groupName", sa.INTEGER()),
        sa.Column("notifyId", sa.INTEGER()),
        sa.Column("rdmaType", sa.INTEGER()),
        sa.Column("srcRank", sa.INTEGER()),
        sa.Column("dstRank", sa.INTEGER()),
        sa.Column("transportType", sa.INTEGER()),
        sa.Column("size", sa.INTEGER()),
        sa.Column("dataType", sa.INTEGER()),
        sa.Column("linkType", sa.INTEGER()),
        sa.Column("opId", sa.INTEGER()),
    )
    op.create_index("CommunicationTaskIndex", "COMMUNICATION_TASK_INFO", ["globalTaskId"])
    op.create_table(
        "COMMUNICATION_OP",
        sa.Column("opName", sa.INTEGER()),
        sa.Column("startNs", sa.INTEGER()),
        sa.Column("endNs", sa.INTEGER()),
        sa.Column("connectionId", sa.INTEGER()),
        sa.Column("groupName", sa.INTEGER()),
        steps.key("opId"),
        sa.Column("relay", sa.INTEGER()),
        sa.Column("retry", sa.INTEGER()),
        sa.Column("dataType", sa.INTEGER()),
        sa.Column("algType", sa.INTEGER()),
        sa.Column("count", sa.NUMERIC()),
    )
    op.create_table(
        "CANN_API",
        sa.Column("startNs", sa.INTEGER()),
        sa.Column("endNs", sa.INTEGER()),
        sa.Column("type", sa.INTEGER()),
        sa.Column("globalTid", sa.INTEGER()),
        steps.key("connectionId"),
        sa.Column("name", sa.INTEGER()),
    )
    op.create_table(
        "NPU_MEM",
        sa.Column("type", sa.INTEGER()),
        sa.Column("ddrUsage", sa.NUMERIC()),
        sa.Column("hbmUsage", sa.NUMERIC()),
        sa.Column("timestampNs", sa.INTEGER()),
        sa.Column("deviceId", sa.INTEGER()),
    )
    op.create_table(
        "NPU_MODULE_MEM",
        sa.Column("moduleId", sa.INTEGER()),
        sa.Column("timestampNs", sa.INTEGER()),
        sa.Column("totalReserved", sa.NUMERIC()),
        sa.Column("deviceId", sa.INTEGER()),
    )
    op.create_table(
        "NPU_OP_MEM",
        sa.Column("operatorName", sa.INTEGER()),
        sa.Column("addr", sa.INTEGER()),
        sa.Column("type", sa.INTEGER()),
        sa.Column("size", sa.INTEGER()),
        sa.Column("timestampNs", sa.INTEGER()),
        sa.Column("globalTid", sa.INTEGER()),
        sa.Column("totalAllocate", sa.NUMERIC()),
        sa.Column("totalReserve", sa.NUMERIC()),
        sa.Column("component", sa.INTEGER()),
        sa.Column("deviceId", sa.INTEGER()),
    )
    op.create_table(
        "NIC",
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("timestampNs", sa.INTEGER()),
        sa.Column("bandwidth", sa.INTEGER()),
        sa.Column("rxPacketRate", sa.NUMERIC()),
        sa.Column("rxByteRate", sa.NUMERIC()),
        sa.Column("rxPackets", sa.INTEGER()),
        sa.Column("rxBytes", sa.INTEGER()),
        sa.Column("rxErrors", sa.INTEGER()),
        sa.Column("rxDropped", sa.INTEGER()),
        sa.Column("txPacketRate", sa.NUMERIC()),
        sa.Column("txByteRate", sa.NUMERIC()),
        sa.Column("txPackets", sa.INTEGER()),
        sa.Column("txBytes", sa.INTEGER()),
        sa.Column("txErrors", sa.INTEGER()),
        sa.Column("txDropped", sa.INTEGER()),
        sa.Column("funcId", sa.INTEGER()),
    )
    op.create_table(
        "ROCE",
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("timestampNs", sa.INTEGER()),
        sa.Column("bandwidth", sa.INTEGER()),
        sa.Column("rxPacketRate", sa.NUMERIC()),
        sa.Column("rxByteRate", sa.NUMERIC()),
        sa.Column("rxPackets", sa.INTEGER()),
        sa.Column("rxBytes", sa.INTEGER()),
        sa.Column("rxErrors", sa.INTEGER()),
        sa.Column("rxDropped", sa.INTEGER()),
        sa.Column("txPacketRate", sa.NUMERIC()),
        sa.Column("txByteRate", sa.NUMERIC()),
        sa.Column("txPackets", sa.INTEGER()),
        sa.Column("txBytes", sa.INTEGER()),
        sa.Column("txErrors", sa.INTEGER()),
        sa.Column("txDropped", sa.INTEGER()),
        sa.Column("funcId", sa.INTEGER()),
    )
    op.create_table(
        "HBM",
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("timestampNs", sa.INTEGER()),
        sa.Column("bandwidth", sa.NUMERIC()),
        sa.Column("hbmId", sa.INTEGER()),
        sa.Column("type", sa.INTEGER()),
    )
    op.create_table(
        "DDR",
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("timestampNs", sa.INTEGER()),
        sa.Column("read", sa.NUMERIC()),
        sa.Column("write", sa.NUMERIC()),
    )
    op.create_table(
        "LLC",
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("llcId", sa.INTEGER()),
        sa.Column("timestampNs", sa.INTEGER()),
        sa.Column("hitRate", sa.REAL()),
        sa.Column("throughput", sa.INTEGER()),
        sa.Column("mode", sa.INTEGER()),
    )
    op.create_table(
        "TASK_PMU_INFO",
        sa.Column("globalTaskId", sa.INTEGER()),
        sa.Column("name", sa.INTEGER()),
        sa.Column("value", sa.NUMERIC()),
    )
    op.create_table(
        "SAMPLE_PMU_TIMELINE",
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("timestampNs", sa.INTEGER()),
        sa.Column("totalCycle", sa.INTEGER()),
        sa.Column("usage", sa.NUMERIC()),
        sa.Column("freq", sa.NUMERIC()),
        sa.Column("coreId", sa.INTEGER()),
        sa.Column("coreType", sa.INTEGER()),
    )
    op.create_table(
        "SAMPLE_PMU_SUMMARY",
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("metric", sa.INTEGER()),
        sa.Column("value", sa.NUMERIC()),
        sa.Column("coreId", sa.INTEGER()),
        sa.Column("coreType", sa.INTEGER()),
    )
    op.create_table(
        "PCIE",
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("timestampNs", sa.INTEGER()),
        sa.Column("txPostMin", sa.NUMERIC()),
        sa.Column("txPostMax", sa.NUMERIC()),
        sa.Column("txPostAvg", sa.NUMERIC()),
        sa.Column("txNonpostMin", sa.NUMERIC()),
        sa.Column("txNonpostMax", sa.NUMERIC()),
        sa.Column("txNonpostAvg", sa.NUMERIC()),
        sa.Column("txCplMin", sa.NUMERIC()),
        sa.Column("txCplMax", sa.NUMERIC()),
        sa.Column("txCplAvg", sa.NUMERIC()),
        sa.Column("txNonpostLatencyMin", sa.NUMERIC()),
        sa.Column("txNonpostLatencyMax", sa.NUMERIC()),
        sa.Column("txNonpostLatencyAvg", sa.NUMERIC()),
        sa.Column("rxPostMin", sa.NUMERIC()),
        sa.Column("rxPostMax", sa.NUMERIC()),
        sa.Column("rxPostAvg", sa.NUMERIC()),
        sa.Column("rxNonpostMin", sa.NUMERIC()),
        sa.Column("rxNonpostMax", sa.NUMERIC()),
        sa.Column("rxNonpostAvg", sa.NUMERIC()),
        sa.Column("rxCplMin", sa.NUMERIC()),
        sa.Column("rxCplMax", sa.NUMERIC()),
        sa.Column("rxCplAvg", sa.NUMERIC()),
    )
    op.create_table(
        "HCCS",
        sa.Column("deviceId", sa.INTEGER()),
        sa.Column("timestampNs", sa.INTEGER()),
        sa.Column("txThroughput", sa.NUMERIC()),
        sa.Column("rxThroughput", sa.NUMERIC()),
    )
    op.create_table(
        "ACC_PMU",
        sa.Column("accId", sa.INTEGER()),
        sa.Column("readBwLevel", sa.INTEGER()),
        sa.Column("writeBwLevel", sa.INTEGER()),
        sa.Column("readOstLevel", sa.INTEGER()),
        sa.Column("writeOstLevel", sa.INTEGER()),
        sa.Column("timestampNs", sa.NUMERIC()),
        sa.Column("deviceId", sa.INTEGER()),
    )
    op.create_table(
        "SOC_BANDWIDTH_LEVEL",
        sa.Column("l2BufferBwLevel", sa.INTEGER()),
        sa.Column("mataBwLevel", sa.INTEGER()),
        sa.Column("timestampNs", sa.NUMERIC()),
        sa.Column("deviceId", sa.INTEGER()),
    )
    steps.create_enum("ENUM_API_TYPE", API_TYPES)
    steps.create_enum("ENUM_MODULE", MODULES)
