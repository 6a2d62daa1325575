"""Models of tables about device memory (usage and traffic) and about sampled device cores."""

from __future__ import annotations

from sqlalchemy import REAL
from sqlalchemy.orm import Mapped

from unified_prof.schema.msprof.session import (
    BYTES,
    BYTES_PER_S,
    MHZ,
    NUMERIC,
    PERCENT,
    MsprofBase,
    RowIdentity,
    Text,
    column,
    enum_id,
    string_id,
    time_ns,
    written,
)

_HARDWARE = "--sys-hardware-mem and --sys-hardware-mem-freq"


class NpuMemory(RowIdentity, MsprofBase):
    """Device memory in use by the recorded process, or by all processes."""

    __tablename__ = "NPU_MEM"
    __table_args__ = written(_HARDWARE)
    type_id: Mapped[int | None] = string_id(
        "type", "app: the recorded process; device: all processes"
    )
    ddr: Mapped[float | None] = column("ddr", "DDR memory in use", NUMERIC, unit=BYTES)
    hbm: Mapped[float | None] = column("hbm", "on-chip memory in use", NUMERIC, unit=BYTES)
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample")
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")

    type = Text("type_id")


class NpuModuleMemory(RowIdentity, MsprofBase):
    """Device memory reserved by one component of the software stack."""

    __tablename__ = "NPU_MODULE_MEM"
    __table_args__ = written(_HARDWARE)
    module_id: Mapped[int | None] = enum_id(
        "moduleId", "ENUM_MODULE", "number of the component, given by the driver"
    )
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample")
    total_reserved: Mapped[float | None] = column(
        "totalReserved", "reserved by the component", NUMERIC, unit=BYTES
    )
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")

    module = Text("module_id")


class NpuOpMemory(RowIdentity, MsprofBase):
    """An allocation or release of device memory for a graph engine operator."""

    __tablename__ = "NPU_OP_MEM"
    __table_args__ = written("--task-memory (operators of the graph engine only)")
    operator_name_id: Mapped[int | None] = string_id("operatorName", "the operator")
    addr: Mapped[int | None] = column("addr", "address of the memory")
    type_id: Mapped[int | None] = string_id("type", "allocate or release")
    size: Mapped[int | None] = column("size", "size of the memory", unit=BYTES)
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "when")
    global_tid: Mapped[int | None] = column(
        "globalTid",
        "thread: process number in the upper 32 bits, thread number in the lower 32",
    )
    total_allocate: Mapped[float | None] = column(
        "totalAllocate", "total allocated after this event", NUMERIC, unit=BYTES
    )
    total_reserve: Mapped[float | None] = column(
        "totalReserve", "total reserved after this event", NUMERIC, unit=BYTES
    )
    component_id: Mapped[int | None] = string_id("component", "allocating component, such as GE")
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")

    operator_name = Text("operator_name_id")
    type = Text("type_id")
    component = Text("component_id")


class Hbm(RowIdentity, MsprofBase):
    """Traffic of one on-chip memory controller, in one direction."""

    __tablename__ = "HBM"
    __table_args__ = written(_HARDWARE)
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample")
    bandwidth: Mapped[float | None] = column("bandwidth", "traffic", NUMERIC, unit=BYTES_PER_S)
    hbm_id: Mapped[int | None] = column("hbmId", "number of the controller")
    type_id: Mapped[int | None] = string_id("type", "read or write")

    type = Text("type_id")


class Ddr(RowIdentity, MsprofBase):
    """Traffic of the device's DDR memory."""

    __tablename__ = "DDR"
    __table_args__ = written(_HARDWARE)
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample")
    read: Mapped[float | None] = column("read", "read", NUMERIC, unit=BYTES_PER_S)
    write: Mapped[float | None] = column("write", "written", NUMERIC, unit=BYTES_PER_S)


class Llc(RowIdentity, MsprofBase):
    """Hit rate and traffic of one last-level cache, for reads or writes."""

    __tablename__ = "LLC"
    __table_args__ = written(f"{_HARDWARE}; --llc-profiling says which direction")
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    llc_id: Mapped[int | None] = column("llcId", "number of the cache")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample")
    hit_rate: Mapped[float | None] = column(
        "hitRate", "share of accesses that hit", REAL, unit=PERCENT
    )
    throughput: Mapped[int | None] = column("throughput", "traffic", unit=BYTES_PER_S)
    mode_id: Mapped[int | None] = string_id("mode", "read or write")

    mode = Text("mode_id")


class Qos(RowIdentity, MsprofBase):
    """Memory traffic of one quality-of-service class."""

    __tablename__ = "QOS"
    __table_args__ = written(_HARDWARE)
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    event_name_id: Mapped[int | None] = string_id("eventName", "the class", NUMERIC)
    bandwidth: Mapped[float | None] = column(
        "bandwidth", "traffic; wraps at 4 GiB/s", NUMERIC, unit=BYTES_PER_S
    )
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample", NUMERIC)
    die_id: Mapped[int | None] = column(
        "dieId", "die of the device; -1: not distinguished", NUMERIC
    )

    event_name = Text("event_name_id")


class AccPmu(RowIdentity, MsprofBase):
    """Load levels of one DVPP or DSA accelerator."""

    __tablename__ = "ACC_PMU"
    __table_args__ = written(_HARDWARE)
    acc_id: Mapped[int | None] = column("accId", "number of the accelerator")
    read_bw_level: Mapped[int | None] = column("readBwLevel", "level of its read traffic")
    write_bw_level: Mapped[int | None] = column("writeBwLevel", "level of its write traffic")
    read_ost_level: Mapped[int | None] = column("readOstLevel", "level of its reads in flight")
    write_ost_level: Mapped[int | None] = column("writeOstLevel", "level of its writes in flight")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample", NUMERIC)
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")


class SocBandwidthLevel(RowIdentity, MsprofBase):
    """Load levels of the chip's internal networks."""

    __tablename__ = "SOC_BANDWIDTH_LEVEL"
    __table_args__ = written(_HARDWARE)
    l2_buffer_bw_level: Mapped[int | None] = column("l2BufferBwLevel", "level of the L2 buffer")
    mata_bw_level: Mapped[int | None] = column("mataBwLevel", "level of the MATA")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample", NUMERIC)
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")


_SAMPLED = "--ai-core with --aic-mode=sample-based; --aic-metrics says which counters"


class SamplePmuTimeline(RowIdentity, MsprofBase):
    """Activity of one core in one sampling interval."""

    __tablename__ = "SAMPLE_PMU_TIMELINE"
    __table_args__ = written(_SAMPLED)
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample")
    total_cycle: Mapped[int | None] = column("totalCycle", "cycles in the interval")
    usage: Mapped[float | None] = column(
        "usage",
        "share of the interval in which the core was busy; the first sample is invalid (huge)",
        NUMERIC,
        unit=PERCENT,
    )
    freq: Mapped[float | None] = column("freq", "its frequency", NUMERIC, unit=MHZ)
    core_id: Mapped[int | None] = column("coreId", "number of the core")
    core_type_id: Mapped[int | None] = string_id("coreType", "AIC or AIV")

    core_type = Text("core_type_id")


class SamplePmuSummary(RowIdentity, MsprofBase):
    """Value of one hardware counter of one core over the whole recording."""

    __tablename__ = "SAMPLE_PMU_SUMMARY"
    __table_args__ = written(_SAMPLED)
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    metric_id: Mapped[int | None] = string_id("metric", "the counter")
    value: Mapped[float | None] = column("value", "value of the counter, in its unit", NUMERIC)
    core_id: Mapped[int | None] = column("coreId", "number of the core")
    core_type_id: Mapped[int | None] = string_id("coreType", "AIC or AIV")

    metric = Text("metric_id")
    core_type = Text("core_type_id")


class AicoreFrequency(RowIdentity, MsprofBase):
    """A change of the core frequency; the first row is the start of the recording."""

    __tablename__ = "AICORE_FREQ"
    __table_args__ = written("if a device was recorded")
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the change", NUMERIC)
    freq: Mapped[int | None] = column("freq", "frequency from this time on", unit=MHZ)
    die_id: Mapped[int | None] = column(
        "dieId", "die of the device; -1: not distinguished", NUMERIC
    )
