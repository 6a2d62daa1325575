"""Models of sampled tables: device memory and its traffic, device cores, links of devices."""

from __future__ import annotations

from sqlalchemy import REAL

from unified_prof.schema.msprof.session import (
    BYTES,
    BYTES_PER_S,
    MHZ,
    NUMERIC,
    PERCENT,
    MsprofBase,
    RowIdentity,
    column,
    enum_id,
    rate,
    string_id,
    time_ns,
    written,
)

_HARDWARE = "--sys-hardware-mem and --sys-hardware-mem-freq"


class NpuMemory(RowIdentity, MsprofBase):
    """Device memory in use by the recorded process, or by all processes."""

    __tablename__ = "NPU_MEM"
    __table_args__ = written(_HARDWARE)
    type_id, type = string_id("type", "app: the recorded process; device: all processes")
    ddr = column("ddr", "DDR memory in use", NUMERIC, unit=BYTES)
    hbm = column("hbm", "on-chip memory in use", NUMERIC, unit=BYTES)
    timestamp_ns = time_ns("timestampNs", "the sample")
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")


class NpuModuleMemory(RowIdentity, MsprofBase):
    """Device memory reserved by one component of the software stack."""

    __tablename__ = "NPU_MODULE_MEM"
    __table_args__ = written(_HARDWARE)
    module_id, module = enum_id(
        "moduleId", "ENUM_MODULE", "number of the component, given by the driver"
    )
    timestamp_ns = time_ns("timestampNs", "the sample")
    total_reserved = column("totalReserved", "reserved by the component", NUMERIC, unit=BYTES)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")


class NpuOpMemory(RowIdentity, MsprofBase):
    """An allocation or release of device memory for a graph engine operator."""

    __tablename__ = "NPU_OP_MEM"
    __table_args__ = written("--task-memory (operators of the graph engine only)")
    operator_name_id, operator_name = string_id("operatorName", "the operator")
    addr = column("addr", "address of the memory")
    type_id, type = string_id("type", "allocate or release")
    size = column("size", "size of the memory", unit=BYTES)
    timestamp_ns = time_ns("timestampNs", "when")
    global_tid = column(
        "globalTid", "thread: process number in the upper 32 bits, thread number in the lower 32"
    )
    total_allocate = column(
        "totalAllocate", "total allocated after this event", NUMERIC, unit=BYTES
    )
    total_reserve = column("totalReserve", "total reserved after this event", NUMERIC, unit=BYTES)
    component_id, component = string_id("component", "allocating component, such as GE")
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")


class Hbm(RowIdentity, MsprofBase):
    """Traffic of one on-chip memory controller, in one direction."""

    __tablename__ = "HBM"
    __table_args__ = written(_HARDWARE)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns = time_ns("timestampNs", "the sample")
    bandwidth = rate("bandwidth", "traffic")
    hbm_id = column("hbmId", "number of the controller")
    type_id, type = string_id("type", "read or write")


class Ddr(RowIdentity, MsprofBase):
    """Traffic of the device's DDR memory."""

    __tablename__ = "DDR"
    __table_args__ = written(_HARDWARE)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns = time_ns("timestampNs", "the sample")
    read = rate("read", "read")
    write = rate("write", "written")


class Llc(RowIdentity, MsprofBase):
    """Hit rate and traffic of one last-level cache, for reads or writes."""

    __tablename__ = "LLC"
    __table_args__ = written(f"{_HARDWARE}; --llc-profiling says which direction")
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    llc_id = column("llcId", "number of the cache")
    timestamp_ns = time_ns("timestampNs", "the sample")
    hit_rate = column("hitRate", "share of accesses that hit", REAL, unit=PERCENT)
    throughput = column("throughput", "traffic", unit=BYTES_PER_S)
    mode_id, mode = string_id("mode", "read or write")


class Qos(RowIdentity, MsprofBase):
    """Memory traffic of one quality-of-service class."""

    __tablename__ = "QOS"
    __table_args__ = written(_HARDWARE)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    event_name_id, event_name = string_id("eventName", "the class", NUMERIC)
    bandwidth = rate("bandwidth", "traffic; wraps at 4 GiB/s")
    timestamp_ns = time_ns("timestampNs", "the sample", NUMERIC)
    die_id = column("dieId", "die of the device; -1: not distinguished", NUMERIC)


class AccPmu(RowIdentity, MsprofBase):
    """Load levels of one DVPP or DSA accelerator."""

    __tablename__ = "ACC_PMU"
    __table_args__ = written(_HARDWARE)
    acc_id = column("accId", "number of the accelerator")
    read_bw_level = column("readBwLevel", "level of its read traffic")
    write_bw_level = column("writeBwLevel", "level of its write traffic")
    read_ost_level = column("readOstLevel", "level of its reads in flight")
    write_ost_level = column("writeOstLevel", "level of its writes in flight")
    timestamp_ns = time_ns("timestampNs", "the sample", NUMERIC)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")


class SocBandwidthLevel(RowIdentity, MsprofBase):
    """Load levels of the chip's internal networks."""

    __tablename__ = "SOC_BANDWIDTH_LEVEL"
    __table_args__ = written(_HARDWARE)
    l2_buffer_bw_level = column("l2BufferBwLevel", "level of the L2 buffer")
    mata_bw_level = column("mataBwLevel", "level of the MATA")
    timestamp_ns = time_ns("timestampNs", "the sample", NUMERIC)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")


_SAMPLED = "--ai-core with --aic-mode=sample-based; --aic-metrics says which counters"


class SamplePmuTimeline(RowIdentity, MsprofBase):
    """Activity of one core in one sampling interval."""

    __tablename__ = "SAMPLE_PMU_TIMELINE"
    __table_args__ = written(_SAMPLED)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns = time_ns("timestampNs", "the sample")
    total_cycle = column("totalCycle", "cycles in the interval")
    usage = column(
        "usage",
        "share of the interval in which the core was busy; the first sample is invalid (huge)",
        NUMERIC,
        unit=PERCENT,
    )
    freq = column("freq", "its frequency", NUMERIC, unit=MHZ)
    core_id = column("coreId", "number of the core")
    core_type_id, core_type = string_id("coreType", "AIC or AIV")


class SamplePmuSummary(RowIdentity, MsprofBase):
    """Value of one hardware counter of one core over the whole recording."""

    __tablename__ = "SAMPLE_PMU_SUMMARY"
    __table_args__ = written(_SAMPLED)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    metric_id, metric = string_id("metric", "the counter")
    value = column("value", "value of the counter, in its unit", NUMERIC)
    core_id = column("coreId", "number of the core")
    core_type_id, core_type = string_id("coreType", "AIC or AIV")


class AicoreFrequency(RowIdentity, MsprofBase):
    """A change of the core frequency; the first row is the start of the recording."""

    __tablename__ = "AICORE_FREQ"
    __table_args__ = written("if a device was recorded")
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns = time_ns("timestampNs", "the change", NUMERIC)
    freq = column("freq", "frequency from this time on", unit=MHZ)
    die_id = column("dieId", "die of the device; -1: not distinguished", NUMERIC)


PACKETS_PER_S = "packets/s"
_INPUT_OUTPUT = "--sys-io-profiling and --sys-io-sampling-freq"
_INTERCONNECTION = "--sys-interconnection-profiling and --sys-interconnection-freq"
_DELAY = "latency of non-posted requests (unit uncertain before 2024-09-02)"


class _NetworkPort(RowIdentity):
    """Mixin for the counters of one network port; totals count from the start of the driver."""

    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns = time_ns("timestampNs", "the sample")
    bandwidth = column("bandwidth", "bandwidth of the port", unit=BYTES_PER_S)
    rx_packet_rate = column("rxPacketRate", "packets received", NUMERIC, unit=PACKETS_PER_S)
    rx_byte_rate = rate("rxByteRate", "received")
    rx_packets = column("rxPackets", "total packets received")
    rx_bytes = column("rxBytes", "total data received", unit=BYTES)
    rx_errors = column("rxErrors", "total damaged packets received")
    rx_dropped = column("rxDropped", "total packets lost while receiving")
    tx_packet_rate = column("txPacketRate", "packets sent", NUMERIC, unit=PACKETS_PER_S)
    tx_byte_rate = rate("txByteRate", "sent")
    tx_packets = column("txPackets", "total packets sent")
    tx_bytes = column("txBytes", "total data sent", unit=BYTES)
    tx_errors = column("txErrors", "total damaged packets sent")
    tx_dropped = column("txDropped", "total packets lost while sending")
    func_id = column("funcId", "the port")


class Nic(_NetworkPort, MsprofBase):
    """Traffic of one port of the device's network card."""

    __tablename__ = "NIC"
    __table_args__ = written(_INPUT_OUTPUT)


class Roce(_NetworkPort, MsprofBase):
    """Traffic of one RoCE port."""

    __tablename__ = "ROCE"
    __table_args__ = written(_INPUT_OUTPUT)


class NetdevStats(RowIdentity, MsprofBase):
    """Counters of the network hardware in one sampling interval, for example for congestion."""

    __tablename__ = "NETDEV_STATS"
    __table_args__ = written(_INPUT_OUTPUT)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns = time_ns("timestampNs", "end of the interval")
    mac_tx_pfc_pkt = column("macTxPfcPkt", "pause frames sent by the MAC")
    mac_rx_pfc_pkt = column("macRxPfcPkt", "pause frames received by the MAC")
    mac_tx_byte = column("macTxByte", "data sent by the MAC", unit=BYTES)
    mac_tx_bandwidth = rate("macTxBandwidth", "send rate of the MAC")
    mac_rx_byte = column("macRxByte", "data received by the MAC", unit=BYTES)
    mac_rx_bandwidth = rate("macRxBandwidth", "receive rate of the MAC")
    mac_tx_bad_byte = column("macTxBadByte", "sent damaged by the MAC", unit=BYTES)
    mac_rx_bad_byte = column("macRxBadByte", "received damaged by the MAC", unit=BYTES)
    roce_tx_pkt = column("roceTxPkt", "packets sent by the RoCE engine")
    roce_rx_pkt = column("roceRxPkt", "packets received by the RoCE engine")
    roce_tx_err_pkt = column("roceTxErrPkt", "damaged packets sent by the RoCE engine")
    roce_rx_err_pkt = column("roceRxErrPkt", "damaged packets received by the RoCE engine")
    roce_tx_cnp_pkt = column("roceTxCnpPkt", "congestion notifications sent by the RoCE engine")
    roce_rx_cnp_pkt = column("roceRxCnpPkt", "congestion notifications received by the RoCE engine")
    roce_new_pkt_rty = column("roceNewPktRty", "packets resent by the RoCE engine after a timeout")
    nic_tx_byte = column("nicTxByte", "data sent by the card", unit=BYTES)
    nic_tx_bandwidth = rate("nicTxBandwidth", "send rate of the card")
    nic_rx_byte = column("nicRxByte", "data received by the card", unit=BYTES)
    nic_rx_bandwidth = rate("nicRxBandwidth", "receive rate of the card")


class Pcie(RowIdentity, MsprofBase):
    """Traffic between host and device over PCIe, in one sampling interval."""

    __tablename__ = "PCIE"
    __table_args__ = written(_INTERCONNECTION)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns = time_ns("timestampNs", "the sample")
    tx_post_min = rate("txPostMin", "minimum rate of posted data sent")
    tx_post_max = rate("txPostMax", "maximum rate of posted data sent")
    tx_post_avg = rate("txPostAvg", "mean rate of posted data sent")
    tx_nonpost_min = rate("txNonpostMin", "minimum rate of non-posted data sent")
    tx_nonpost_max = rate("txNonpostMax", "maximum rate of non-posted data sent")
    tx_nonpost_avg = rate("txNonpostAvg", "mean rate of non-posted data sent")
    tx_cpl_min = rate("txCplMin", "minimum rate of completions sent")
    tx_cpl_max = rate("txCplMax", "maximum rate of completions sent")
    tx_cpl_avg = rate("txCplAvg", "mean rate of completions sent")
    tx_nonpost_latency_min = column("txNonpostLatencyMin", f"minimum {_DELAY}", NUMERIC, unit="ns")
    tx_nonpost_latency_max = column("txNonpostLatencyMax", f"maximum {_DELAY}", NUMERIC, unit="ns")
    tx_nonpost_latency_avg = column("txNonpostLatencyAvg", f"mean {_DELAY}", NUMERIC, unit="ns")
    rx_post_min = rate("rxPostMin", "minimum rate of posted data received")
    rx_post_max = rate("rxPostMax", "maximum rate of posted data received")
    rx_post_avg = rate("rxPostAvg", "mean rate of posted data received")
    rx_nonpost_min = rate("rxNonpostMin", "minimum rate of non-posted data received")
    rx_nonpost_max = rate("rxNonpostMax", "maximum rate of non-posted data received")
    rx_nonpost_avg = rate("rxNonpostAvg", "mean rate of non-posted data received")
    rx_cpl_min = rate("rxCplMin", "minimum rate of completions received")
    rx_cpl_max = rate("rxCplMax", "maximum rate of completions received")
    rx_cpl_avg = rate("rxCplAvg", "mean rate of completions received")


class Hccs(RowIdentity, MsprofBase):
    """Traffic between devices over HCCS."""

    __tablename__ = "HCCS"
    __table_args__ = written(_INTERCONNECTION)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns = time_ns("timestampNs", "end of the interval")
    tx_throughput = rate("txThroughput", "sent")
    rx_throughput = rate("rxThroughput", "received")


class Ub(RowIdentity, MsprofBase):
    """Traffic of one port of the unified bus."""

    __tablename__ = "UB"
    __table_args__ = written(f"{_INTERCONNECTION} (Ascend 950)")
    device_id = column("deviceId", "the device", NUMERIC, refers="NPU_INFO.id")
    port_id = column("portId", "the port", NUMERIC)
    timestamp_ns = time_ns("timestampNs", "the sample", NUMERIC)
    rx_udma_bind = column("rxUdmaBind", "data received by UDMA", NUMERIC)
    tx_udma_bind = column("txUdmaBind", "data sent by UDMA", NUMERIC)


class Sio(RowIdentity, MsprofBase):
    """Traffic between the dies of one chip, by kind of message."""

    __tablename__ = "SIO"
    __table_args__ = written(_INTERCONNECTION)
    device_id = column("deviceId", "the device", NUMERIC, refers="NPU_INFO.id")
    name_id, name = string_id("name", "the die", NUMERIC)
    timestamp_ns = time_ns("timestampNs", "end of the interval", NUMERIC)
    rx_req = rate("rxReq", "requests received")
    rx_rsp = rate("rxRsp", "responses received")
    rx_snp = rate("rxSnp", "snoops received")
    rx_dat = rate("rxDat", "data received")
    tx_req = rate("txReq", "requests sent")
    tx_rsp = rate("txRsp", "responses sent")
    tx_snp = rate("txSnp", "snoops sent")
    tx_dat = rate("txDat", "data sent")
