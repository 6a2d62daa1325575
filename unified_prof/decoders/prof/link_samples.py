"""Decodes samples of links and of the task scheduler.

Tables: HCCS, NIC, ROCE, NETDEV_STATS, PCIE, UB, ACC_PMU, SOC_BANDWIDTH_LEVEL and SIO.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.columns import Sink
from unified_prof.decoders.prof import sampling
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.layouts import STARS_MAGIC, V6_PLATFORMS
from unified_prof.decoders.prof.slices import Records

# A line of hccs.data: time, bytes sent, bytes received.
_HCCS_FIELDS = 3


def decode_hccs(device: DeviceDirectory, sink: Sink) -> None:
    """Write HCCS (hccs.data, text): throughput between samples, with the time of the later one.

    As in the exporter, each sample is compared with the previous one, and the first with the last.
    Intervals in which a counter decreases are skipped. The last row is dropped unless it is the
    only one. Rates are rounded to 0.001 MB/s.
    """
    samples = sampling.integer_rows(device, sink, "hccs", _HCCS_FIELDS, header_lines=1)
    if not len(samples):
        return
    clock = sampling.device_monotonic_clock(device, "hccs.data")
    samples = samples[np.argsort(samples[:, 0], kind="stable")]
    time = np.r_[samples[1:, 0], samples[0, 0]]
    change = np.roll(samples, -1, axis=0) - samples
    forward: NDArray[np.bool_] = np.all(change[:, 1:] >= 0, axis=1)
    if backward := int((~forward[:-1]).sum()):
        sink.anomaly("counter_went_backwards", backward, f"{device.data.path}/hccs.data")
    rows = np.flatnonzero(forward)
    if len(rows) > 1:
        rows = rows[:-1]
    duration_ns = change[rows, 0].astype(np.float64)
    sent, received = (
        np.trunc(
            sampling.rounded(sampling.megabytes_per_second(change[rows, column], duration_ns, 1), 3)
            * sampling.BYTES_PER_MB
        )
        for column in (1, 2)
    )
    sampling.write_samples(
        sink, device, "HCCS", clock.to_ns(time[rows]), txThroughput=sent, rxThroughput=received
    )


# The columns of a line of nic.data and roce.data after time and bandwidth (MB/s).
_NIC_COLUMNS = (
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
_NIC_FIELDS = 2 + len(_NIC_COLUMNS)
_NIC_HEADER = "rxPacket/s"


def decode_nic(device: DeviceDirectory, sink: Sink) -> None:
    """Write NIC (nic.data, text): one row per line."""
    _decode_interface(device, sink, "nic")


def decode_roce(device: DeviceDirectory, sink: Sink) -> None:
    """Write ROCE (roce.data, text): one row per line."""
    _decode_interface(device, sink, "roce")


def _decode_interface(device: DeviceDirectory, sink: Sink, kind: str) -> None:
    file = device.data.get(kind)
    if file is None:
        return
    clock = sampling.device_monotonic_clock(device, f"{kind}.data")
    for lines in sampling.text_lines(file):
        rows = _interface_rows(lines)
        found = sum(_NIC_HEADER not in line for line in lines)
        sampling.count_damaged(sink, device, kind, found - len(rows))
        if not rows:
            continue
        values = np.array(rows, np.float64)
        columns: dict[str, Any] = {
            name: values[:, place] for place, name in enumerate(_NIC_COLUMNS, start=2)
        }
        sampling.write_samples(
            sink,
            device,
            kind.upper(),
            clock.to_ns(np.array([row[0] for row in rows], np.int64)),
            bandwidth=values[:, 1] * sampling.BYTES_PER_MB,
            **columns,
        )


def _interface_rows(lines: Sequence[str]) -> list[list[float]]:
    """Return the times and numbers of the lines with the expected format."""
    rows = []
    for line in lines:
        time, *fields = line.replace(":", " ", 1).split()
        time_ns = sampling.integer(time)
        if time_ns is None or time_ns < 0 or len(fields) < _NIC_FIELDS - 1:
            continue
        try:
            # Rates may have decimals; a type id may follow the function id.
            rows.append([time_ns, *(float(field) for field in fields[: _NIC_FIELDS - 1])])
        except ValueError:
            continue
    return rows


# The counters of a line of netdev_stats.data, after its time.
_NETDEV_COUNTERS = (
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
_NETDEV_BANDWIDTHS = {
    "macTxByte": "macTxBandwidth",
    "macRxByte": "macRxBandwidth",
    "nicTxByte": "nicTxBandwidth",
    "nicRxByte": "nicRxBandwidth",
}


def decode_netdev_stats(device: DeviceDirectory, sink: Sink) -> None:
    """Write NETDEV_STATS (netdev_stats.data, text): changes since the previous sample.

    A counter that decreased counts as 0. Times are those of the host's monotonic clock.
    """
    samples = sampling.integer_rows(device, sink, "netdev_stats", 1 + len(_NETDEV_COUNTERS))
    if len(samples) < 2:
        return
    seconds = np.diff(samples[:, 0]).astype(np.float64) / 1e9
    columns: dict[str, Any] = {}
    for place, name in enumerate(_NETDEV_COUNTERS, start=1):
        counted = np.maximum(np.diff(samples[:, place]), 0)
        columns[name] = counted
        if name in _NETDEV_BANDWIDTHS:
            columns[_NETDEV_BANDWIDTHS[name]] = sampling.ratio(counted, seconds)
    times_ns = device.clocks.monotonic.to_ns(samples[1:, 0])
    sampling.write_samples(sink, device, "NETDEV_STATS", times_ns, **columns)


_PCIE_BYTES_PER_S = 1_000_000  # One byte per microsecond.
_PCIE_LATENCY = "txNonpostLatency"
# In the order of the record's values, a minimum, maximum and average each.
_PCIE_QUANTITIES = ("txPost", "txNonpost", "txCpl", _PCIE_LATENCY, "rxPost", "rxNonpost", "rxCpl")
_PCIE_STATISTICS = ("Min", "Max", "Avg")


def decode_pcie(device: DeviceDirectory, sink: Sink) -> None:
    """Write PCIE (pcie.data): bandwidths in bytes per second, latencies in ns."""
    clock = None
    for records in sampling.pieces(device, "pcie", "pcie"):
        clock = clock or sampling.device_monotonic_clock(device, "pcie.data")
        values = records["values"].astype(np.int64)
        inverted = values[:, 1] < values[:, 0]
        if inverted.any():
            sink.anomaly(
                "pcie_maximum_below_minimum",
                int(inverted.sum()),
                f"{device.data.path}: samples without a measurement",
            )
            records, values = records[~inverted], values[~inverted]
        columns: dict[str, Any] = {}
        for place, quantity in enumerate(_PCIE_QUANTITIES):
            factor = 1 if quantity == _PCIE_LATENCY else _PCIE_BYTES_PER_S
            for offset, statistic in enumerate(_PCIE_STATISTICS):
                columns[quantity + statistic] = values[:, 3 * place + offset] * factor
        sampling.write_samples(sink, device, "PCIE", clock.to_ns(records["timestamp"]), **columns)


def decode_unified_bus(device: DeviceDirectory, sink: Sink) -> None:
    """Write UB (ub.data): one row per port and sample.

    The exporter keeps only 32 bits of both counters; this decoder keeps all 64.
    """
    clock = sampling.start_clock(device)
    for records in sampling.pieces(device, "ub", "ub"):
        sampling.write_samples(
            sink,
            device,
            "UB",
            clock.to_ns(records["time_us"]),
            portId=records["port_id"],
            rxUdmaBind=records["rx_bind"],
            txUdmaBind=records["tx_bind"],
        )


# Function codes of the samples in the logs of the task scheduler.
_SIO, _ACC_PMU, _INTER_SOC = 25, 26, 28
_FUNCTION_BITS = 0x3F
_SIO_COUNTERS = ("Req", "Rsp", "Snp", "Dat")


def decode_stars_samples(device: DeviceDirectory, sink: Sink) -> None:
    """Write ACC_PMU, SOC_BANDWIDTH_LEVEL and SIO (stars_soc.data, stars_soc_profile.data)."""
    # Databases of the exporter have reads and writes exchanged, except those of platform 5.
    read, write = ("read", "write") if device.platform == 5 else ("write", "read")
    for records, times_ns in _scheduler_samples(device, _ACC_PMU, "stars_acc_pmu"):
        sampling.write_samples(
            sink,
            device,
            "ACC_PMU",
            times_ns,
            accId=records["acc_id"],
            readBwLevel=records[f"{read}_bandwidth"],
            writeBwLevel=records[f"{write}_bandwidth"],
            readOstLevel=records[f"{read}_ost"],
            writeOstLevel=records[f"{write}_ost"],
        )
    for records, times_ns in _scheduler_samples(device, _INTER_SOC, "stars_inter_soc"):
        # The record has the mata level in bits 2..0; the exporter exchanges the two levels.
        level = records["bw_level"]
        sampling.write_samples(
            sink,
            device,
            "SOC_BANDWIDTH_LEVEL",
            times_ns,
            l2BufferBwLevel=level & 0x7,
            mataBwLevel=level >> 3 & 0xFF,
        )
    _write_sio(device, sink)


def _write_sio(device: DeviceDirectory, sink: Sink) -> None:
    """Write SIO: counters per second since the previous sample of the die."""
    v6 = device.platform in V6_PLATFORMS
    samples = sampling.PreviousSamples()
    layout = "stars_sio_v6" if v6 else "stars_sio"
    for records, times_ns in _scheduler_samples(device, _SIO, layout):
        die = (records["w0"] >> 10 if v6 else records["acc_id"]).astype(np.int64)
        exact_ns = sampling.rounded_device_ns(device, records["timestamp"])
        known, (before_ns,) = samples.previous(die, exact_ns)
        later, seconds = records[known], (exact_ns - before_ns)[known] / 1e9
        prefix = "D-DIE" if v6 else "die "
        dies, row = np.unique(die[known], return_inverse=True)
        names = np.asarray(sink.strings.intern_all(f"{prefix}{die}" for die in dies.tolist()))
        columns: dict[str, Any] = {"name": names[row] if len(names) else names}
        for direction in ("rx", "tx"):
            for counter in _SIO_COUNTERS:
                counted = later[f"{counter.lower()}_{direction}"].astype(np.float64)
                columns[direction + counter] = sampling.ratio(counted, seconds)
        sampling.write_samples(sink, device, "SIO", times_ns[known], **columns)


def _scheduler_samples(
    device: DeviceDirectory, function: int, layout: str
) -> Iterator[tuple[Records, NDArray[np.int64]]]:
    """Yield the records with one function code in both scheduler logs, and their times."""
    files = ["stars_soc_profile"]
    # Task logs of platforms 15 and 16 have no samples; of those of platform 5 the exporter
    # evaluates ACC_PMU alone.
    if device.platform not in V6_PLATFORMS and (function == _ACC_PMU or device.platform != 5):
        files.insert(0, "stars_soc")
    clock = None
    for file_name in files:
        for piece in sampling.pieces(device, file_name, layout):
            wanted = (piece["w0"] & _FUNCTION_BITS == function) & (piece["magic"] == STARS_MAGIC)
            if wanted.any():
                clock = clock or sampling.device_clock(device, f"{file_name}.data")
                records = piece[wanted]
                yield records, clock.to_ns(records["timestamp"])
