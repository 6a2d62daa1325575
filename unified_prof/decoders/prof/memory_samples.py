"""Decodes samples of memory and caches: DDR, HBM, LLC, NPU_MEM, NPU_MODULE_MEM and QOS."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.columns import Sink
from unified_prof.decoders.prof import sampling
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.layouts import record_type

_READ = 0
_WHOLE_CHANNEL = 0xFFFFFFFF

_DDR_BYTES_PER_COUNT = {7: 16}
_DDR_BYTES_PER_COUNT_ELSEWHERE = 32


def decode_ddr(device: DeviceDirectory, sink: Sink) -> None:
    """Write DDR (ddr.data): one row per sample time; the first interval begins at the start."""
    size = _DDR_BYTES_PER_COUNT.get(device.platform, _DDR_BYTES_PER_COUNT_ELSEWHERE)
    clock = sampling.start_clock(device)
    before_us = 0
    for records in sampling.pieces_by_moment(device, "ddr", "ddr", "timestamp_us"):
        total = records["master"] == _WHOLE_CHANNEL
        if not total.all():
            sink.anomaly(
                "ddr_single_master",
                int((~total).sum()),
                f"{device.data.path}: samples of individual masters have no column in DDR",
            )
        chosen = records[total]
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
    absolute = device.layout_version == "2.0"
    layout = "hbm_v2" if absolute else "hbm_v1"
    file = device.data.get("hbm")
    found = 0 if file is None else file.count(record_type(layout))
    events = len(device.sample.text("hbm_profiling_events").split(","))
    if found < _HBM_RECORDS_PER_EVENT * events:
        sink.anomaly(
            "too_few_samples", found, f"{device.data.path}/hbm.data: less than one complete sample"
        )
        return
    modes = np.array([sink.strings.intern("read"), sink.strings.intern("write")])
    samples = sampling.PreviousSamples()
    for records in sampling.pieces(device, "hbm", layout):
        exact = (
            records["timestamp_ns"].astype(np.float64)
            if absolute
            else sampling.rounded_start_ns(device, records["timestamp_us"])
        )
        order = np.argsort(exact, kind="stable")
        records, times = records[order], exact[order]
        is_write = (records["event_type"] != _READ).astype(np.int64)
        memory = records["hbm_id"].astype(np.int64)
        known, (before,) = samples.previous(memory * 2 + is_write, times)
        sampling.write_samples(
            sink,
            device,
            "HBM",
            sampling.truncated_ns(times),
            bandwidth=sampling.bandwidth(
                records["count"], np.where(known, times - before, 0), _HBM_BYTES_PER_COUNT
            ),
            hbmId=memory,
            type=modes[is_write],
        )


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
        sink.anomaly(
            "unknown_llc_mode",
            1,
            f"{device.sample.path} has llc_profiling {mode!r}, expected read or write",
        )
        return
    events = np.array(_LLC_EVENTS[mode])
    caches = _CACHES.get(device.platform, _CACHES_ELSEWHERE)
    samples = sampling.PreviousSamples()
    mode_id = sink.strings.intern(mode)
    absolute = device.layout_version == "2.0"
    layout, field = ("llc_v2", "timestamp_ns") if absolute else ("llc_v1", "timestamp_us")
    for records in sampling.pieces_by_moment(device, "llc", layout, field):
        times = (
            records[field].astype(np.float64)
            if absolute
            else sampling.rounded_start_ns(device, records[field])
        )
        column = np.minimum(np.searchsorted(events, records["event_id"]), len(events) - 1)
        useful = (events[column] == records["event_id"]) & (records["l3t_id"] < caches)
        cache = records["l3t_id"][useful].astype(np.int64)
        moment, row = np.unique(
            np.stack([times[useful], cache.astype(np.float64)]), axis=1, return_inverse=True
        )
        counts = np.full((moment.shape[1], len(events)), -1, np.int64)
        counts[row.ravel(), column[useful]] = records["count"][useful].astype(np.int64)
        complete = (counts >= 0).all(axis=1)
        if not complete.all():
            sink.anomaly(
                "incomplete_llc_sample",
                int((~complete).sum()),
                f"{device.data.path}: samples without all {len(events)} events",
            )
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


def _hit_rate(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the hit rate in percent, rounded to 0.1."""
    hits, accesses = (
        counts[:, columns].sum(axis=1).astype(np.float64) for columns in (_HITS, _ACCESSES)
    )
    return sampling.rounded(sampling.ratio(hits, accesses), 3) * 100


def _throughput(counts: NDArray[np.int64], duration_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return bytes per second, rounded to 0.001 MB/s; 0 for the first sample."""
    transfers = counts[:, _TRANSFERS].sum(axis=1)
    megabytes = sampling.megabytes_per_second(transfers, duration_ns, _BYTES_PER_TRANSFER)
    rounded = np.round(megabytes, 3)
    thousandths = megabytes * 1000
    close = np.flatnonzero(np.abs(thousandths - np.trunc(thousandths) - 0.5) < 1e-4)
    rounded[close] = [
        _exact_megabytes(count, duration)
        for count, duration in zip(
            transfers[close].tolist(), duration_ns[close].tolist(), strict=True
        )
    ]
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
        for records in sampling.pieces(device, file_name, layout):
            known = records["event"] < len(_NPU_MEM_LEVELS)
            if not known.all():
                sink.anomaly(
                    "unknown_npu_mem_level",
                    int((~known).sum()),
                    f"{device.data.path}: levels other than 0 and 1",
                )
            chosen = records[known]
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
    for records in sampling.pieces(device, "npu_module_mem", "npu_module_mem"):
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
    for records in sampling.pieces(device, "qos", "qos"):
        if not names:
            sink.anomaly(
                "qos_without_event_names",
                len(records),
                f"{device.sample.path} has no qosEvents: the measured events are not known",
            )
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
