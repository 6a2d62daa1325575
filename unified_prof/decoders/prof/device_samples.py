"""Decodes samples of a device: memory, caches, links, and the task scheduler.

Tables: DDR, HBM, LLC, NPU_MEM, NPU_MODULE_MEM and QOS; HCCS, NIC, ROCE, NETDEV_STATS, PCIE, UB,
ACC_PMU, SOC_BANDWIDTH_LEVEL, SIO and AICORE_FREQ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Floats, Ints
from unified_prof.base.columns import Sink, count_marked, kept
from unified_prof.decoders.prof import sampling
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.layouts import STARS_MAGIC
from unified_prof.decoders.spool import Rows

_READ = 0
_WHOLE_CHANNEL = 0xFFFFFFFF
_DDR_BYTES_PER_COUNT = {7: 16}
_DDR_BYTES_PER_COUNT_ELSEWHERE = 32


def decode_ddr(device: DeviceDirectory, sink: Sink) -> None:
    """Write DDR (ddr.data): one row per sample time; the first interval begins at the start."""
    size = _DDR_BYTES_PER_COUNT.get(device.platform, _DDR_BYTES_PER_COUNT_ELSEWHERE)
    clock = device.clocks.since_start_us
    before_us = 0
    for records in sampling.pieces_by_moment(device, "ddr", "ddr", "timestamp_us"):
        total = records["master"] == _WHOLE_CHANNEL
        detail = f"{device.data.path}: samples of individual masters have no column in DDR"
        chosen = kept(records, total, sink, "ddr_single_master", detail)
        times, row = np.unique(chosen["timestamp_us"].astype(np.int64), return_inverse=True)
        count = np.zeros((2, len(times)))
        np.add.at(count, (np.where(chosen["rw"] == _READ, 0, 1), row), chosen["count"])
        duration_ns = np.diff(np.r_[before_us, times]).astype(np.float64) * 1e3
        before_us = int(times[-1]) if len(times) else before_us
        sampling.write_samples(
            sink,
            device,
            "DDR",
            clock.to_ns(times),
            read=sampling.bandwidth(count[0], duration_ns, size),
            write=sampling.bandwidth(count[1], duration_ns, size),
        )


_HBM_BYTES_PER_COUNT = 32
# Records of one moment and direction: the exporter takes its interval from that many records
# before, and writes nothing of a file with fewer.
_HBM_RECORDS_PER_EVENT = 4


def decode_hbm(device: DeviceDirectory, sink: Sink) -> None:
    """Write HBM (hbm.data): bandwidth by memory and direction since the previous sample.

    As in the exporter, the first sample of each memory and direction is 0, because it has no
    interval.
    """
    layout = "hbm_v2" if device.layout_version == "2.0" else "hbm_v1"
    found = device.data.get("hbm").count(layout)
    events = len(device.sample.text("hbm_profiling_events").split(","))
    if found < _HBM_RECORDS_PER_EVENT * events:
        detail = f"{device.data.path}/hbm.data: less than one complete sample"
        sink.anomaly("too_few_samples", found, detail)
        return
    modes = np.array([sink.strings.intern("read"), sink.strings.intern("write")])
    samples = sampling.PreviousSamples()
    for records in device.data.get("hbm").pieces(layout):
        exact = _sample_times(device, records)
        order = np.argsort(exact, kind="stable")
        records, times = records[order], exact[order]
        is_write = (records["event_type"] != _READ).astype(np.int64)
        memory = records["hbm_id"].astype(np.int64)
        known, (before,) = samples.previous(memory * 2 + is_write, times)
        interval_ns = np.where(known, times - before, 0)
        sampling.write_samples(
            sink,
            device,
            "HBM",
            sampling.truncated_ns(times),
            bandwidth=sampling.bandwidth(records["count"], interval_ns, _HBM_BYTES_PER_COUNT),
            hbmId=memory,
            type=modes[is_write],
        )


def _sample_times(device: DeviceDirectory, records: Rows) -> Floats:
    """Return the Unix times in ns of HBM or LLC records, whose layout 2.0 has them."""
    if device.layout_version == "2.0":
        return np.asarray(records["timestamp_ns"], np.float64)
    return sampling.rounded_start_ns(device, records["timestamp_us"])


# By llc_profiling of sample.json: the eight events of a sample.
_LLC_EVENTS = {
    "read": (0x00, 0x01, 0x02, 0x13, 0x20, 0x22, 0x34, 0x36),
    "write": (0x00, 0x01, 0x03, 0x14, 0x21, 0x23, 0x35, 0x37),
}
# Positions in a sample of the events that count hits, all accesses and transfers.
_HITS = (2, 3, 5, 7)
_ACCESSES = (4, 6)
_TRANSFERS = (0, 1)

# A transfer is 64 bytes and counts for a 64th of a second, 4096 in all. The exporter divides by
# the factors one after the other.
_BYTES_PER_TRANSFER = 4096
_SHARES = 64.0
_MEGABYTES = Decimal("0.015625")
_DECIMAL = Context(prec=28, rounding=ROUND_HALF_EVEN)

# Number of caches that the exporter evaluates, by platform.
_CACHES = {5: 2, 7: 1}
_CACHES_ELSEWHERE = 4


def decode_llc(device: DeviceDirectory, sink: Sink) -> None:
    """Write LLC (llc.data): hit rate and throughput of each cache at each sample time."""
    mode = device.sample.text("llc_profiling")
    if mode not in _LLC_EVENTS:
        detail = f"{device.sample.path} has llc_profiling {mode!r}, expected read or write"
        sink.anomaly("unknown_llc_mode", 1, detail)
        return
    events = np.array(_LLC_EVENTS[mode])
    caches = _CACHES.get(device.platform, _CACHES_ELSEWHERE)
    samples = sampling.PreviousSamples()
    mode_id = sink.strings.intern(mode)
    absolute = device.layout_version == "2.0"
    layout, field = ("llc_v2", "timestamp_ns") if absolute else ("llc_v1", "timestamp_us")
    for records in sampling.pieces_by_moment(device, "llc", layout, field):
        times = _sample_times(device, records)
        column = np.minimum(np.searchsorted(events, records["event_id"]), len(events) - 1)
        useful = (events[column] == records["event_id"]) & (records["l3t_id"] < caches)
        cache = records["l3t_id"][useful].astype(np.int64)
        moment, row = np.unique(
            np.stack([times[useful], cache.astype(np.float64)]), axis=1, return_inverse=True
        )
        counts = np.full((moment.shape[1], len(events)), -1, np.int64)
        counts[row.ravel(), column[useful]] = records["count"][useful].astype(np.int64)
        complete: Bools = np.all(counts >= 0, axis=1)
        detail = f"{device.data.path}: samples without all {len(events)} events"
        count_marked(sink, "incomplete_llc_sample", ~complete, detail)
        time, cache = moment[0][complete], moment[1][complete].astype(np.int64)
        counts = counts[complete]
        known, (before,) = samples.previous(cache, time)
        sampling.write_samples(
            sink,
            device,
            "LLC",
            sampling.truncated_ns(time),
            llcId=cache,
            hitRate=_hit_rate(counts),
            throughput=_throughput(counts, np.where(known, time - before, 0.0)),
            mode=mode_id,
        )


def _hit_rate(counts: Ints) -> Floats:
    """Return the hit rate in percent, rounded to 0.1."""
    hits, accesses = (
        counts[:, columns].sum(axis=1).astype(np.float64) for columns in (_HITS, _ACCESSES)
    )
    return sampling.rounded(sampling.ratio(hits, accesses), 3) * 100


def _throughput(counts: Ints, duration_ns: Floats) -> Floats:
    """Return bytes per second, rounded to 0.001 MB/s; 0 for the first sample."""
    transfers = counts[:, _TRANSFERS].sum(axis=1)
    megabytes = sampling.megabytes_per_second(transfers, duration_ns, _BYTES_PER_TRANSFER)
    rounded = np.round(megabytes, 3)
    thousandths = megabytes * 1000
    close = np.flatnonzero(np.abs(thousandths - np.trunc(thousandths) - 0.5) < 1e-4)
    close_counts = zip(transfers[close].tolist(), duration_ns[close].tolist(), strict=True)
    rounded[close] = [_exact_megabytes(count, duration) for count, duration in close_counts]
    return np.trunc(rounded * sampling.BYTES_PER_MB)


def _exact_megabytes(transfers: int, duration_ns: float) -> float:
    """Return MB/s, rounded like the exporter (halves are rounded in decimal arithmetic)."""
    with localcontext(_DECIMAL):
        seconds = Decimal(repr(duration_ns / _SHARES / 1e9))
        exact = Decimal(transfers) / _MEGABYTES / 1024 / 1024 / seconds
        return float(exact.quantize(Decimal("0.001")))


_NPU_MEM_LEVELS = ("app", "device")


def decode_npu_mem(device: DeviceDirectory, sink: Sink) -> None:
    """Write NPU_MEM (npu_mem.data, npu_mem.app): memory in use by the process and in total."""
    layout = "npu_mem_v2" if device.layout_version == "2.0" else "npu_mem_v1"
    level_ids = np.asarray(sink.strings.intern_all(_NPU_MEM_LEVELS))
    for file_name in ("npu_mem", "npu_mem.app"):
        for records in device.data.get(file_name).pieces(layout):
            known = records["event"] < len(_NPU_MEM_LEVELS)
            detail = f"{device.data.path}: levels other than 0 and 1"
            chosen = kept(records, known, sink, "unknown_npu_mem_level", detail)
            sampling.write_samples(
                sink,
                device,
                "NPU_MEM",
                sampling.truncated_ns(sampling.rounded_start_ns(device, chosen["timestamp_us"])),
                type=level_ids[chosen["event"]],
                ddr=chosen["ddr"],
                hbm=chosen["hbm"],
            )


def decode_npu_module_mem(device: DeviceDirectory, sink: Sink) -> None:
    """Write NPU_MODULE_MEM (npu_module_mem.data): memory reserved by software modules."""
    for records in device.data.get("npu_module_mem").pieces("npu_module_mem"):
        sampling.write_samples(
            sink,
            device,
            "NPU_MODULE_MEM",
            device.clocks.host.to_ns(records["host_ticks"]),
            moduleId=records["module_id"],
            totalReserved=records["total_size"],
        )


# Bandwidths in a record: one for each event.
_QOS_EVENTS = 10
_NO_DIE = -1


def decode_qos(device: DeviceDirectory, sink: Sink) -> None:
    """Write QOS (qos.data): bandwidth of each event at each sample time, in bytes per second.

    The exporter multiplies with 32 bits and shows 4096 MB/s as 0; this decoder uses 64 bits.
    """
    names = [name for name in device.sample.text("qosEvents").split(",") if name.strip()]
    names = names[:_QOS_EVENTS]
    clock = sampling.device_clock(device, "qos.data")
    for records in device.data.get("qos").pieces("qos"):
        if not names:
            detail = f"{device.sample.path} has no qosEvents: the measured events are not known"
            sink.anomaly("qos_without_event_names", len(records), detail)
            continue
        name_ids = np.asarray(sink.strings.intern_all(f"QoS {name}" for name in names))
        values = records["bandwidth"][:, : len(names)].astype(np.int64)
        sampling.write_samples(
            sink,
            device,
            "QOS",
            np.repeat(clock.to_ns(records["timestamp"]), len(names)),
            eventName=np.tile(name_ids, len(records)),
            bandwidth=values.ravel() * int(sampling.BYTES_PER_MB),
            dieId=_NO_DIE,
        )


_HCCS_FIELDS = 3  # A line of hccs.data: time, bytes sent, bytes received.


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
    forward: Bools = np.all(change[:, 1:] >= 0, axis=1)
    detail = f"{device.data.path}/hccs.data"
    count_marked(sink, "counter_went_backwards", ~forward[:-1], detail)
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
    "rxPacketRate rxByteRate rxPackets rxBytes rxErrors rxDropped txPacketRate txByteRate txPackets"
    " txBytes txErrors txDropped funcId"
).split()
_NIC_FIELDS = 2 + len(_NIC_COLUMNS)
_NIC_HEADER = "rxPacket/s"


def _decode_interface(device: DeviceDirectory, sink: Sink, kind: str) -> None:
    """Write NIC or ROCE (nic.data, roce.data; text), according to `kind`: one row per line."""
    clock = sampling.device_monotonic_clock(device, f"{kind}.data")
    for lines in device.data.get(kind).line_batches():
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


decode_nic = partial(_decode_interface, kind="nic")
decode_roce = partial(_decode_interface, kind="roce")


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
    "macTxPfcPkt macRxPfcPkt macTxByte macRxByte macTxBadByte macRxBadByte roceTxPkt roceRxPkt"
    " roceTxErrPkt roceRxErrPkt roceTxCnpPkt roceRxCnpPkt roceNewPktRty nicTxByte nicRxByte"
).split()
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
    for records in device.data.get("pcie").pieces("pcie"):
        clock = clock or sampling.device_monotonic_clock(device, "pcie.data")
        measured = records["values"][:, 1] >= records["values"][:, 0]
        detail = f"{device.data.path}: samples without a measurement"
        records = kept(records, measured, sink, "pcie_maximum_below_minimum", detail)
        values = records["values"].astype(np.int64)
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
    clock = device.clocks.since_start_us
    for records in device.data.get("ub").pieces("ub"):
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
    v6 = device.has_wide_task_ids
    samples = sampling.PreviousSamples()
    layout = "stars_sio_v6" if v6 else "stars_sio"
    for records, times_ns in _scheduler_samples(device, _SIO, layout):
        die = (records["w0"] >> 10 if v6 else records["acc_id"]).astype(np.int64)
        # Times as float64 numbers, as the exporter subtracts them.
        readings = device.clocks.readings
        passed = records["timestamp"].astype(np.int64) - (readings.device_counter or 0)
        exact_ns = passed / (float(readings.device_mhz or 0) * 1e6) * 1e9 + float(readings.start_ns)
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
) -> Iterator[tuple[Rows, Ints]]:
    """Yield the records with one function code in both scheduler logs, and their times."""
    files = ["stars_soc_profile"]
    # Task logs of platforms 15 and 16 have no samples; of those of platform 5 the exporter
    # evaluates ACC_PMU alone.
    if not device.has_wide_task_ids and (function == _ACC_PMU or device.platform != 5):
        files.insert(0, "stars_soc")
    clock = None
    for file_name in files:
        for piece in device.data.get(file_name).pieces(layout, magic=STARS_MAGIC):
            wanted = (piece["w0"] & _FUNCTION_BITS == function) & (piece["magic"] == STARS_MAGIC)
            if wanted.any():
                clock = clock or sampling.device_clock(device, f"{file_name}.data")
                records = piece[wanted]
                yield records, clock.to_ns(records["timestamp"])


_ENTRIES = 55  # (ticks, frequency) pairs in a record.
# Kind of an lpmInfoConv record about the AI core frequency. Others are voltages, without a table.
_FREQUENCY = 0
_FREQUENCY_PLATFORMS = (5, 7)  # Platforms whose databases have AICORE_FREQ.


def read_changes(device: DeviceDirectory) -> tuple[NDArray[np.uint64], Ints]:
    """Return times and MHz of the AI core frequency's changes (lpmFreqConv, lpmInfoConv), by time.

    The last change before the start of the device is moved to the start; earlier changes are
    dropped.
    """
    pairs: list[NDArray[np.uint64]] = [np.zeros((0, 2), np.uint64)]
    for name in ("lpmFreqConv", "lpmInfoConv"):
        for piece in device.data.get(name).pieces("lpm_freq"):
            if name == "lpmInfoConv":
                piece = piece[piece["kind"] == _FREQUENCY]
            words = piece["words"].reshape(len(piece), _ENTRIES, 2)
            pairs.append(words[np.arange(_ENTRIES) < piece["count"][:, None]])
    time, value = np.concatenate(pairs).T
    order = np.argsort(time, kind="stable")
    time, value = time[order], value[order] & np.uint64(0xFFFFFFFF)
    start = np.uint64(device.clocks.device_origin_ticks)
    before = max(int(np.searchsorted(time, start)) - 1, 0)
    return np.maximum(time[before:], start), value[before:].astype(np.int64)


def decode_frequency(device: DeviceDirectory, sink: Sink) -> None:
    """Write AICORE_FREQ: the frequency at the start, at each change, and at the end if recorded."""
    if device.platform not in _FREQUENCY_PLATFORMS or device.clocks.device is None:
        return
    ticks, mhz = read_changes(device)
    session = device.session
    freq = np.r_[device.device_info.integer("aic_frequency") or 0, mhz]
    time_ns = np.r_[session.start_ns, device.clocks.device.to_ns(ticks)]
    if session.ended:
        freq, time_ns = np.r_[freq, freq[-1]], np.r_[time_ns, session.end_ns]
    sink.write(
        "AICORE_FREQ",
        {"deviceId": device.device_id, "timestampNs": time_ns, "freq": freq, "dieId": _NO_DIE},
    )
