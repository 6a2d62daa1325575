"""HCCS: throughput between the chips of a board, hccs.data (text).

NIC and ROCE: traffic of the device's network interfaces, nic.data and roce.data (text).

NETDEV_STATS: counters of the device's network port, netdev_stats.data (text).

PCIE: bandwidth and latency of the PCIe link, pcie.data.

UB: what the ports of the unified bus moved for the DMA units, ub.data of platforms 15 and 16.

ACC_PMU, SOC_BANDWIDTH_LEVEL and SIO: samples that the task scheduler logs with its tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.columns import Column, Sink
from unified_prof.decoders.prof import sampling
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.layouts import STARS_MAGIC, V6_PLATFORMS
from unified_prof.decoders.prof.slices import Records

_FIELDS = 3  # time, bytes sent, bytes received


def decode_hccs(device: DeviceDirectory, sink: Sink) -> None:
    """Write HCCS: bytes per second between neighbouring samples, at the time of the later one.

    As in the exporter's databases they are rounded to a thousandth MB/s, and the last sample is
    missing.
    """
    file = device.data.get("hccs")
    if file is None:
        return
    clock = sampling.device_monotonic_clock(device, "hccs.data")
    rows = sampling.IntegerRows(device, sink, "hccs.data", _FIELDS, header_lines=1)
    table = rows.read(file)
    table = table[:-1]
    if len(table) < 2:
        return
    time, counts = table[:, 0], table[:, 1:]
    duration_ns = np.diff(time).astype(np.float64)
    throughput = [
        np.trunc(sampling.rounded(megabytes, 3) * sampling.BYTES_PER_MB)
        for megabytes in (
            sampling.megabytes_per_second(np.diff(column), duration_ns, 1) for column in counts.T
        )
    ]
    sampling.write_samples(
        sink,
        "HCCS",
        device,
        {
            "deviceId": device.device_id,
            "timestampNs": clock.to_ns(time[1:]),
            "txThroughput": throughput[0],
            "rxThroughput": throughput[1],
        },
    )


_TABLES = {"nic": "NIC", "roce": "ROCE"}
_BYTES_PER_MB = 1 << 20

# Time and bandwidth (MB/s), then these.
_COLUMNS = (
    "rxPacketRate",
    "rxByteRate",
    "rxPackets",
    "rxBytes",
    "rxErrors",
    "rxDropped",
    "txPacketRate",
    "txByteRate",
    "txPackets",
    "txBytes",
    "txErrors",
    "txDropped",
    "funcId",
)
_FIELDS_NIC = 2 + len(_COLUMNS)
_HEADER = "rxPacket/s"


def decode_nic(device: DeviceDirectory, sink: Sink) -> None:
    """Write NIC and ROCE: one row a line."""
    for kind, table in _TABLES.items():
        file = device.data.get(kind)
        if file is None:
            continue
        clock = sampling.device_monotonic_clock(device, f"{kind}.data")
        for lines in sampling.text_lines(file):
            rows = _parse(lines)
            found = sum(_HEADER not in line for line in lines)
            sampling.count_damaged(sink, device, f"{kind}.data", found - len(rows))
            if not rows:
                continue
            values = np.array(rows, np.float64)
            columns: dict[str, Column] = {
                "deviceId": device.device_id,
                "timestampNs": clock.to_ns(np.array([row[0] for row in rows], np.int64)),
                "bandwidth": values[:, 1] * _BYTES_PER_MB,
            }
            for place, name in enumerate(_COLUMNS, start=2):
                columns[name] = values[:, place]
            sampling.write_samples(sink, table, device, columns)


def _parse(lines: Sequence[str]) -> list[list[float]]:
    rows = []
    for line in lines:
        time, *fields = line.replace(":", " ", 1).split()
        time_ns = sampling.integer(time)
        if time_ns is None or time_ns < 0 or len(fields) < _FIELDS_NIC - 1:
            continue
        try:
            # Rates may be written with decimals; a type id may follow the function id.
            rows.append([time_ns, *(float(field) for field in fields[: _FIELDS_NIC - 1])])
        except ValueError:
            continue
    return rows


# In the order of a line, after its time.
_COUNTERS = (
    "macTxPfcPkt",
    "macRxPfcPkt",
    "macTxByte",
    "macRxByte",
    "macTxBadByte",
    "macRxBadByte",
    "roceTxPkt",
    "roceRxPkt",
    "roceTxErrPkt",
    "roceRxErrPkt",
    "roceTxCnpPkt",
    "roceRxCnpPkt",
    "roceNewPktRty",
    "nicTxByte",
    "nicRxByte",
)
_BANDWIDTHS = {
    "macTxByte": "macTxBandwidth",
    "macRxByte": "macRxBandwidth",
    "nicTxByte": "nicTxBandwidth",
    "nicRxByte": "nicRxBandwidth",
}


def decode_netdev_stats(device: DeviceDirectory, sink: Sink) -> None:
    """Write NETDEV_STATS: what was counted between neighbouring samples.

    A row has the time of the later sample; a counter that went backwards counts as 0. The times
    are those of the host's monotonic clock.
    """
    file = device.data.get("netdev_stats")
    if file is None:
        return
    rows = sampling.IntegerRows(device, sink, "netdev_stats.data", 1 + len(_COUNTERS))
    table = rows.read(file)
    if len(table) < 2:
        return
    time = table[:, 0]
    seconds = np.diff(time).astype(np.float64) / 1e9
    columns: dict[str, Column] = {
        "deviceId": device.device_id,
        "timestampNs": device.clocks.monotonic.to_ns(time[1:]),
    }
    for place, name in enumerate(_COUNTERS, start=1):
        counted = np.maximum(np.diff(table[:, place]), 0)
        columns[name] = counted
        if name in _BANDWIDTHS:
            columns[_BANDWIDTHS[name]] = np.divide(
                counted, seconds, out=np.zeros(len(counted)), where=seconds > 0
            )
    sampling.write_samples(sink, "NETDEV_STATS", device, columns)


_BYTES_PER_MICROSECOND = 1_000_000  # in bytes per second
_LATENCY = "txNonpostLatency"
# In the order of the record's values.
_QUANTITIES = ("txPost", "txNonpost", "txCpl", _LATENCY, "rxPost", "rxNonpost", "rxCpl")
_STATISTICS = ("Min", "Max", "Avg")


def decode_pcie(device: DeviceDirectory, sink: Sink) -> None:
    """Write PCIE: bandwidths in bytes per second, latencies in ns."""
    clock = None
    for records in sampling.pieces(device, "pcie", "pcie"):
        clock = clock or sampling.device_monotonic_clock(device, "pcie.data")
        values = records["values"].astype(np.int64)
        inverted = values[:, 1] < values[:, 0]
        if inverted.any():
            sink.anomaly(
                "pcie_maximum_below_minimum",
                int(inverted.sum()),
                f"{device.data.path}: samples in which nothing was measured",
            )
            records, values = records[~inverted], values[~inverted]
        times_ns = clock.to_ns(records["timestamp"])
        columns: dict[str, Column] = {"deviceId": device.device_id, "timestampNs": times_ns}
        for place, quantity in enumerate(_QUANTITIES):
            factor = 1 if quantity == _LATENCY else _BYTES_PER_MICROSECOND
            for offset, statistic in enumerate(_STATISTICS):
                columns[quantity + statistic] = values[:, 3 * place + offset] * factor
        sampling.write_samples(sink, "PCIE", device, columns)


_FILE = "ub"


def decode_unified_bus(device: DeviceDirectory, sink: Sink) -> None:
    """Write UB: one row a port and sample.

    The exporter keeps 32 bits of both counters; they are whole here.
    """
    if device.platform not in V6_PLATFORMS:
        sink.anomaly(
            "ub_not_evaluated", 1, f"{device.data.path}: ub.data of platform {device.platform}"
        )
        return
    clock = sampling.start_clock(device)
    for records in sampling.pieces(device, _FILE, "ub"):
        times_ns = clock.to_ns(records["time_us"])
        sampling.write_samples(
            sink,
            "UB",
            device,
            {
                "deviceId": device.device_id,
                "portId": records["port_id"],
                "timestampNs": times_ns,
                "rxUdmaBind": records["rx_bind"],
                "txUdmaBind": records["tx_bind"],
            },
        )


_SIO, _ACC_PMU, _INTER_SOC = 25, 26, 28
_FUNCTION_BITS = 0x3F

_TASK_LOG = "stars_soc"
_SAMPLE_LOG = "stars_soc_profile"

# Platform 5: what is beside ACC_PMU in the task log is not evaluated.
_ONLY_ACC_PMU_IN_TASK_LOG = (5,)
# Platforms 15 and 16: the task log has records of another size.
_NO_SAMPLES_IN_TASK_LOG = (15, 16)

_SIO_COUNTERS = ("Req", "Rsp", "Snp", "Dat")


def decode_stars_samples(device: DeviceDirectory, sink: Sink) -> None:
    """Write the three tables from whatever samples the logs have."""
    _write_acc_pmu(device, sink)
    _write_bandwidth_levels(device, sink)
    _write_sio(device, sink)


def _write_acc_pmu(device: DeviceDirectory, sink: Sink) -> None:
    # Genuine databases of platforms other than 5 have reads and writes exchanged.
    read, write = ("read", "write") if device.platform == 5 else ("write", "read")
    for records, times_ns in sample_records(device, _ACC_PMU, "stars_acc_pmu"):
        columns: dict[str, Column] = {
            "accId": records["acc_id"],
            "readBwLevel": records[f"{read}_bandwidth"],
            "writeBwLevel": records[f"{write}_bandwidth"],
            "readOstLevel": records[f"{read}_ost"],
            "writeOstLevel": records[f"{write}_ost"],
            "timestampNs": times_ns,
            "deviceId": device.device_id,
        }
        sampling.write_samples(sink, "ACC_PMU", device, columns)


def _write_bandwidth_levels(device: DeviceDirectory, sink: Sink) -> None:
    """The record has the mata level in bits 2..0, but genuine databases have it exchanged."""
    for records, times_ns in sample_records(device, _INTER_SOC, "stars_inter_soc"):
        level = records["bw_level"]
        columns: dict[str, Column] = {
            "l2BufferBwLevel": level & 0x7,
            "mataBwLevel": level >> 3 & 0xFF,
            "timestampNs": times_ns,
            "deviceId": device.device_id,
        }
        sampling.write_samples(sink, "SOC_BANDWIDTH_LEVEL", device, columns)


def _write_sio(device: DeviceDirectory, sink: Sink) -> None:
    """Counters are those since the previous sample of the die, whose first one is left out."""
    v6 = device.platform in _NO_SAMPLES_IN_TASK_LOG
    neighbours = sampling.Neighbours()
    for records, times_ns in sample_records(device, _SIO, "stars_sio_v6" if v6 else "stars_sio"):
        die = (records["w0"] >> 10 if v6 else records["acc_id"]).astype(np.int64)
        exact_ns = sampling.rounded_device_ns(device, records["timestamp"])
        known, (before_ns,) = neighbours.previous(die, exact_ns)
        later, seconds = records[known], (exact_ns - before_ns)[known] / 1e9
        prefix = "D-DIE" if v6 else "die "
        dies, row = np.unique(die[known], return_inverse=True)
        names = np.asarray(sink.strings.intern_all(f"{prefix}{die}" for die in dies.tolist()))
        columns: dict[str, Column] = {
            "deviceId": device.device_id,
            "name": names[row] if len(names) else names,
            "timestampNs": times_ns[known],
        }
        for direction in ("rx", "tx"):
            for counter in _SIO_COUNTERS:
                counted = later[f"{counter.lower()}_{direction}"].astype(np.float64)
                columns[direction + counter] = np.divide(
                    counted, seconds, out=np.zeros(len(counted)), where=seconds > 0
                )
        sampling.write_samples(sink, "SIO", device, columns)


def sample_records(
    device: DeviceDirectory, function: int, layout: str
) -> Iterator[tuple[Records, NDArray[np.int64]]]:
    """Yield the records of one kind from both logs, and their times.

    Args:
        device: whose logs.
        function: the function code of the kind.
        layout: how its records look.
    """
    files = [_SAMPLE_LOG]
    if device.platform not in _NO_SAMPLES_IN_TASK_LOG and (
        function == _ACC_PMU or device.platform not in _ONLY_ACC_PMU_IN_TASK_LOG
    ):
        files.insert(0, _TASK_LOG)
    clock = None
    for file_name in files:
        for piece in sampling.pieces(device, file_name, layout):
            wanted = (piece["w0"] & _FUNCTION_BITS == function) & (piece["magic"] == STARS_MAGIC)
            if wanted.any():
                clock = clock or sampling.device_clock(device, f"{file_name}.data")
                records = piece[wanted]
                yield records, clock.to_ns(records["timestamp"])
