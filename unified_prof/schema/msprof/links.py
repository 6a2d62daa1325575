"""Models of tables about links: network ports, PCIe, HCCS, unified bus and links between dies."""

from __future__ import annotations

from sqlalchemy.orm import Mapped

from unified_prof.schema.msprof.session import (
    BYTES,
    BYTES_PER_S,
    NUMERIC,
    MsprofBase,
    RowIdentity,
    Text,
    column,
    string_id,
    time_ns,
    written,
)

NS = "ns"
PACKETS_PER_S = "packets/s"
_INPUT_OUTPUT = "--sys-io-profiling and --sys-io-sampling-freq"
_INTERCONNECTION = "--sys-interconnection-profiling and --sys-interconnection-freq"


class _NetworkPort(RowIdentity):
    """Mixin for the counters of one network port; totals count from the start of the driver."""

    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample")
    bandwidth: Mapped[int | None] = column("bandwidth", "bandwidth of the port", unit=BYTES_PER_S)
    rx_packet_rate: Mapped[float | None] = column(
        "rxPacketRate", "packets received", NUMERIC, unit=PACKETS_PER_S
    )
    rx_byte_rate: Mapped[float | None] = column("rxByteRate", "received", NUMERIC, unit=BYTES_PER_S)
    rx_packets: Mapped[int | None] = column("rxPackets", "total packets received")
    rx_bytes: Mapped[int | None] = column("rxBytes", "total data received", unit=BYTES)
    rx_errors: Mapped[int | None] = column("rxErrors", "total damaged packets received")
    rx_dropped: Mapped[int | None] = column("rxDropped", "total packets lost while receiving")
    tx_packet_rate: Mapped[float | None] = column(
        "txPacketRate", "packets sent", NUMERIC, unit=PACKETS_PER_S
    )
    tx_byte_rate: Mapped[float | None] = column("txByteRate", "sent", NUMERIC, unit=BYTES_PER_S)
    tx_packets: Mapped[int | None] = column("txPackets", "total packets sent")
    tx_bytes: Mapped[int | None] = column("txBytes", "total data sent", unit=BYTES)
    tx_errors: Mapped[int | None] = column("txErrors", "total damaged packets sent")
    tx_dropped: Mapped[int | None] = column("txDropped", "total packets lost while sending")
    func_id: Mapped[int | None] = column("funcId", "the port")


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
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "end of the interval")
    mac_tx_pfc_pkt: Mapped[int | None] = column("macTxPfcPkt", "pause frames sent by the MAC")
    mac_rx_pfc_pkt: Mapped[int | None] = column("macRxPfcPkt", "pause frames received by the MAC")
    mac_tx_byte: Mapped[int | None] = column("macTxByte", "data sent by the MAC", unit=BYTES)
    mac_tx_bandwidth: Mapped[float | None] = column(
        "macTxBandwidth", "send rate of the MAC", NUMERIC, unit=BYTES_PER_S
    )
    mac_rx_byte: Mapped[int | None] = column("macRxByte", "data received by the MAC", unit=BYTES)
    mac_rx_bandwidth: Mapped[float | None] = column(
        "macRxBandwidth", "receive rate of the MAC", NUMERIC, unit=BYTES_PER_S
    )
    mac_tx_bad_byte: Mapped[int | None] = column(
        "macTxBadByte", "sent damaged by the MAC", unit=BYTES
    )
    mac_rx_bad_byte: Mapped[int | None] = column(
        "macRxBadByte", "received damaged by the MAC", unit=BYTES
    )
    roce_tx_pkt: Mapped[int | None] = column("roceTxPkt", "packets sent by the RoCE engine")
    roce_rx_pkt: Mapped[int | None] = column("roceRxPkt", "packets received by the RoCE engine")
    roce_tx_err_pkt: Mapped[int | None] = column(
        "roceTxErrPkt", "damaged packets sent by the RoCE engine"
    )
    roce_rx_err_pkt: Mapped[int | None] = column(
        "roceRxErrPkt", "damaged packets received by the RoCE engine"
    )
    roce_tx_cnp_pkt: Mapped[int | None] = column(
        "roceTxCnpPkt", "congestion notifications sent by the RoCE engine"
    )
    roce_rx_cnp_pkt: Mapped[int | None] = column(
        "roceRxCnpPkt", "congestion notifications received by the RoCE engine"
    )
    roce_new_pkt_rty: Mapped[int | None] = column(
        "roceNewPktRty", "packets resent by the RoCE engine after a timeout"
    )
    nic_tx_byte: Mapped[int | None] = column("nicTxByte", "data sent by the card", unit=BYTES)
    nic_tx_bandwidth: Mapped[float | None] = column(
        "nicTxBandwidth", "send rate of the card", NUMERIC, unit=BYTES_PER_S
    )
    nic_rx_byte: Mapped[int | None] = column("nicRxByte", "data received by the card", unit=BYTES)
    nic_rx_bandwidth: Mapped[float | None] = column(
        "nicRxBandwidth", "receive rate of the card", NUMERIC, unit=BYTES_PER_S
    )


class Pcie(RowIdentity, MsprofBase):
    """Traffic between host and device over PCIe, in one sampling interval."""

    __tablename__ = "PCIE"
    __table_args__ = written(_INTERCONNECTION)
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample")
    tx_post_min: Mapped[float | None] = column(
        "txPostMin", "minimum rate of posted data sent", NUMERIC, unit=BYTES_PER_S
    )
    tx_post_max: Mapped[float | None] = column(
        "txPostMax", "maximum rate of posted data sent", NUMERIC, unit=BYTES_PER_S
    )
    tx_post_avg: Mapped[float | None] = column(
        "txPostAvg", "mean rate of posted data sent", NUMERIC, unit=BYTES_PER_S
    )
    tx_nonpost_min: Mapped[float | None] = column(
        "txNonpostMin", "minimum rate of non-posted data sent", NUMERIC, unit=BYTES_PER_S
    )
    tx_nonpost_max: Mapped[float | None] = column(
        "txNonpostMax", "maximum rate of non-posted data sent", NUMERIC, unit=BYTES_PER_S
    )
    tx_nonpost_avg: Mapped[float | None] = column(
        "txNonpostAvg", "mean rate of non-posted data sent", NUMERIC, unit=BYTES_PER_S
    )
    tx_cpl_min: Mapped[float | None] = column(
        "txCplMin", "minimum rate of completions sent", NUMERIC, unit=BYTES_PER_S
    )
    tx_cpl_max: Mapped[float | None] = column(
        "txCplMax", "maximum rate of completions sent", NUMERIC, unit=BYTES_PER_S
    )
    tx_cpl_avg: Mapped[float | None] = column(
        "txCplAvg", "mean rate of completions sent", NUMERIC, unit=BYTES_PER_S
    )
    tx_nonpost_latency_min: Mapped[float | None] = column(
        "txNonpostLatencyMin",
        "minimum latency of non-posted requests (unit uncertain before 2024-09-02)",
        NUMERIC,
        unit=NS,
    )
    tx_nonpost_latency_max: Mapped[float | None] = column(
        "txNonpostLatencyMax",
        "maximum latency of non-posted requests (unit uncertain before 2024-09-02)",
        NUMERIC,
        unit=NS,
    )
    tx_nonpost_latency_avg: Mapped[float | None] = column(
        "txNonpostLatencyAvg",
        "mean latency of non-posted requests (unit uncertain before 2024-09-02)",
        NUMERIC,
        unit=NS,
    )
    rx_post_min: Mapped[float | None] = column(
        "rxPostMin", "minimum rate of posted data received", NUMERIC, unit=BYTES_PER_S
    )
    rx_post_max: Mapped[float | None] = column(
        "rxPostMax", "maximum rate of posted data received", NUMERIC, unit=BYTES_PER_S
    )
    rx_post_avg: Mapped[float | None] = column(
        "rxPostAvg", "mean rate of posted data received", NUMERIC, unit=BYTES_PER_S
    )
    rx_nonpost_min: Mapped[float | None] = column(
        "rxNonpostMin", "minimum rate of non-posted data received", NUMERIC, unit=BYTES_PER_S
    )
    rx_nonpost_max: Mapped[float | None] = column(
        "rxNonpostMax", "maximum rate of non-posted data received", NUMERIC, unit=BYTES_PER_S
    )
    rx_nonpost_avg: Mapped[float | None] = column(
        "rxNonpostAvg", "mean rate of non-posted data received", NUMERIC, unit=BYTES_PER_S
    )
    rx_cpl_min: Mapped[float | None] = column(
        "rxCplMin", "minimum rate of completions received", NUMERIC, unit=BYTES_PER_S
    )
    rx_cpl_max: Mapped[float | None] = column(
        "rxCplMax", "maximum rate of completions received", NUMERIC, unit=BYTES_PER_S
    )
    rx_cpl_avg: Mapped[float | None] = column(
        "rxCplAvg", "mean rate of completions received", NUMERIC, unit=BYTES_PER_S
    )


class Hccs(RowIdentity, MsprofBase):
    """Traffic between devices over HCCS."""

    __tablename__ = "HCCS"
    __table_args__ = written(_INTERCONNECTION)
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "end of the interval")
    tx_throughput: Mapped[float | None] = column("txThroughput", "sent", NUMERIC, unit=BYTES_PER_S)
    rx_throughput: Mapped[float | None] = column(
        "rxThroughput", "received", NUMERIC, unit=BYTES_PER_S
    )


class Ub(RowIdentity, MsprofBase):
    """Traffic of one port of the unified bus."""

    __tablename__ = "UB"
    __table_args__ = written(f"{_INTERCONNECTION} (Ascend 950)")
    device_id: Mapped[int | None] = column("deviceId", "the device", NUMERIC, refers="NPU_INFO.id")
    port_id: Mapped[int | None] = column("portId", "the port", NUMERIC)
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample", NUMERIC)
    rx_udma_bind: Mapped[float | None] = column("rxUdmaBind", "data received by UDMA", NUMERIC)
    tx_udma_bind: Mapped[float | None] = column("txUdmaBind", "data sent by UDMA", NUMERIC)


class Sio(RowIdentity, MsprofBase):
    """Traffic between the dies of one chip, by kind of message."""

    __tablename__ = "SIO"
    __table_args__ = written(_INTERCONNECTION)
    device_id: Mapped[int | None] = column("deviceId", "the device", NUMERIC, refers="NPU_INFO.id")
    name_id: Mapped[int | None] = string_id("name", "the die", NUMERIC)
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "end of the interval", NUMERIC)
    rx_req: Mapped[float | None] = column("rxReq", "requests received", NUMERIC, unit=BYTES_PER_S)
    rx_rsp: Mapped[float | None] = column("rxRsp", "responses received", NUMERIC, unit=BYTES_PER_S)
    rx_snp: Mapped[float | None] = column("rxSnp", "snoops received", NUMERIC, unit=BYTES_PER_S)
    rx_dat: Mapped[float | None] = column("rxDat", "data received", NUMERIC, unit=BYTES_PER_S)
    tx_req: Mapped[float | None] = column("txReq", "requests sent", NUMERIC, unit=BYTES_PER_S)
    tx_rsp: Mapped[float | None] = column("txRsp", "responses sent", NUMERIC, unit=BYTES_PER_S)
    tx_snp: Mapped[float | None] = column("txSnp", "snoops sent", NUMERIC, unit=BYTES_PER_S)
    tx_dat: Mapped[float | None] = column("txDat", "data sent", NUMERIC, unit=BYTES_PER_S)

    name = Text("name_id")
