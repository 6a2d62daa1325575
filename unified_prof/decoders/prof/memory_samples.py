"""DDR: read and write bandwidth of the device memory of inference chips, ddr.data.

HBM: counters of the high-bandwidth memory, hbm.data.

LLC: hit rate and throughput of the last-level cache, llc.data.

NPU_MEM: memory in use on the device, by the application and in all; npu_mem.data.

NPU_MODULE_MEM: memory that the modules of the software stack hold; npu_module_mem.data.

QOS: bandwidth of up to ten masters of the memory system, qos.data of platform 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.columns import Sink
from unified_prof.decoders.prof import sampling
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.slices import Records

_READ = 0
_WHOLE_CHANNEL = 0xFFFFFFFF

# Bytes of one count, by platform; chips with HBM instead of DDR are not evaluated.
_BYTES_PER_COUNT = {7: 16}
_BYTES_PER_COUNT_ELSEWHERE = 32
_WITH_HBM = (5, 9, 15, 16)


def decode_ddr(device: DeviceDirectory, sink: Sink) -> None:
    """Write DDR: one row a moment; the first is measured from the start of the recording."""
    if device.platform in _WITH_HBM:
        return
    size = _BYTES_PER_COUNT.get(device.platform, _BYTES_PER_COUNT_ELSEWHERE)
    clock = sampling.start_clock(device)
    before_us = 0
    for records in sampling.whole_moments(device, "ddr", "ddr", "timestamp_us"):
        whole = records["master"] == _WHOLE_CHANNEL
        if not whole.all():
            sink.anomaly(
                "ddr_single_master",
                int((~whole).sum()),
                f"{device.data.path}: samples of single masters have no column in DDR",
            )
        chosen = records[whole]
        times, row = np.unique(chosen["timestamp_us"].astype(np.int64), return_inverse=True)
        count = np.zeros((2, len(times)))
        np.add.at(count, (np.where(chosen["rw"] == _READ, 0, 1), row), chosen["count"])
        duration_ns = np.diff(np.r_[before_us, times]).astype(np.float64) * 1e3
        before_us = int(times[-1]) if len(times) else before_us
        times_ns = clock.to_ns(times)
        sampling.write_samples(
            sink,
            "DDR",
            device,
            {
                "deviceId": device.device_id,
                "timestampNs": times_ns,
                "read": sampling.bandwidth(count[0], duration_ns, size),
                "write": sampling.bandwidth(count[1], duration_ns, size),
            },
        )


_BYTES_PER_COUNT_HBM = 32


def decode_hbm(device: DeviceDirectory, sink: Sink) -> None:
    """Write HBM: bandwidth of each memory and direction since its previous sample.

    The first sample of each has none and is 0, as in the exporter's databases.
    """
    absolute = device.layout_version == "2.0"
    modes = np.array([sink.strings.intern("read"), sink.strings.intern("write")])
    neighbours = sampling.Neighbours()
    for records in sampling.pieces(device, "hbm", "hbm_v2" if absolute else "hbm_v1"):
        exact = (
            records["timestamp_ns"].astype(np.float64)
            if absolute
            else sampling.rounded_start_ns(device, records["timestamp_us"])
        )
        order = np.argsort(exact, kind="stable")
        records, times = records[order], exact[order]
        is_write = (records["event_type"] != _READ).astype(np.int64)
        memory = records["hbm_id"].astype(np.int64)
        known, (before,) = neighbours.previous(memory * 2 + is_write, times)
        sampling.write_samples(
            sink,
            "HBM",
            device,
            {
                "deviceId": device.device_id,
                "timestampNs": sampling.whole_ns(times),
                "bandwidth": sampling.bandwidth(
                    records["count"], np.where(known, times - before, 0), _BYTES_PER_COUNT_HBM
                ),
                "hbmId": memory,
                "type": modes[is_write],
            },
        )


# By llc_profiling of sample.json: the eight events of a sample, and which of them are hits and
# which are all accesses. The first two events count transfers in both modes.
_EVENTS = {
    "read": (0x00, 0x01, 0x02, 0x13, 0x20, 0x22, 0x34, 0x36),
    "write": (0x00, 0x01, 0x03, 0x14, 0x21, 0x23, 0x35, 0x37),
}
_HITS = (2, 3, 5, 7)
_ACCESSES = (4, 6)
_TRANSFERS = (0, 1)
_BYTES_PER_TRANSFER = 4096

# A transfer is 64 bytes, of which a 64th of a second counts: 4096 in all. The exporter divides by
# both factors one after the other.
_SHARES = 64.0
_MEGABYTES = Decimal("0.015625")
_DECIMAL = Context(prec=28, rounding=ROUND_HALF_EVEN)

# How many caches the exporter evaluates, by platform.
_CACHES = {5: 2, 7: 1}
_CACHES_ELSEWHERE = 4


def decode_llc(device: DeviceDirectory, sink: Sink) -> None:
    """Write LLC: one row a cache and moment, made of the eight events counted then."""
    mode = device.sample.text("llc_profiling")
    if mode not in _EVENTS:
        sink.anomaly(
            "unknown_llc_mode",
            1,
            f"{device.sample.path} has llc_profiling {mode!r}, known are read and write",
        )
        return
    events = np.array(_EVENTS[mode])
    caches = _CACHES.get(device.platform, _CACHES_ELSEWHERE)
    neighbours = sampling.Neighbours()
    mode_id = sink.strings.intern(mode)
    absolute = device.layout_version == "2.0"
    layout, field = ("llc_v2", "timestamp_ns") if absolute else ("llc_v1", "timestamp_us")
    for records in sampling.whole_moments(device, "llc", layout, field):
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
                f"{device.data.path}: samples without all of {len(events)} events",
            )
        time, cache = moment[0][complete], moment[1][complete].astype(np.int64)
        counts = counts[complete]
        known, (before,) = neighbours.previous(cache, time)
        sampling.write_samples(
            sink,
            "LLC",
            device,
            {
                "deviceId": device.device_id,
                "llcId": cache,
                "timestampNs": sampling.whole_ns(time),
                "hitRate": _hit_rate(counts),
                "throughput": _throughput(counts, np.where(known, time - before, 0.0)),
                "mode": mode_id,
            },
        )


def _hit_rate(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return percent, rounded to a tenth."""
    hits = counts[:, _HITS].sum(axis=1).astype(np.float64)
    accesses = counts[:, _ACCESSES].sum(axis=1).astype(np.float64)
    rate = np.divide(hits, accesses, out=np.zeros(len(hits)), where=accesses > 0)
    return sampling.rounded(rate, 3) * 100


def _throughput(counts: NDArray[np.int64], duration_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return bytes per second, rounded to a thousandth MB/s; 0 for the first sample."""
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
    """Return MB/s rounded as the exporter does, which decides halves in decimal arithmetic."""
    with localcontext(_DECIMAL):
        seconds = Decimal(repr(duration_ns / _SHARES / 1e9))
        exact = Decimal(transfers) / _MEGABYTES / 1024 / 1024 / seconds
        return float(exact.quantize(Decimal("0.001")))


_LEVELS = ("app", "device")
_FILES = ("npu_mem", "npu_mem.app")


def decode_npu_mem(device: DeviceDirectory, sink: Sink) -> None:
    """Write NPU_MEM: one row a sample; sizes are in bytes."""
    layout = "npu_mem_v2" if device.layout_version == "2.0" else "npu_mem_v1"
    level_ids = sink.strings.intern_all(_LEVELS)
    for file_name in _FILES:
        for records in sampling.pieces(device, file_name, layout):
            known = records["event"] < len(_LEVELS)
            if not known.all():
                sink.anomaly(
                    "unknown_npu_mem_level",
                    int((~known).sum()),
                    f"{device.data.path}: levels other than 0 and 1",
                )
            chosen = records[known]
            times_ns = sampling.whole_ns(sampling.rounded_start_ns(device, chosen["timestamp_us"]))
            sampling.write_samples(
                sink,
                "NPU_MEM",
                device,
                {
                    "type": np.asarray(level_ids)[chosen["event"]],
                    "ddr": chosen["ddr"],
                    "hbm": chosen["hbm"],
                    "timestampNs": times_ns,
                    "deviceId": device.device_id,
                },
            )


def decode_npu_module_mem(device: DeviceDirectory, sink: Sink) -> None:
    """Write NPU_MODULE_MEM: one row a sample. The times are values of the host's counter."""
    for records in sampling.pieces(device, "npu_module_mem", "npu_module_mem"):
        times_ns = device.clocks.host.to_ns(records["host_ticks"])
        sampling.write_samples(
            sink,
            "NPU_MODULE_MEM",
            device,
            {
                "moduleId": records["module_id"],
                "timestampNs": times_ns,
                "totalReserved": records["total_size"],
                "deviceId": device.device_id,
            },
        )


_FILE = "qos"
_PLATFORMS = (5,)
_EVENTS_QOS = 10
_BYTES_PER_MB = 1 << 20
_NO_DIE = -1


def decode_qos(device: DeviceDirectory, sink: Sink) -> None:
    """Write QOS: one row an event and sample, in bytes per second.

    The exporter multiplies in 32 bits, so that it shows 4096 MB/s as 0; that is not reproduced.
    What other platforms leave in such a file is not evaluated, as it is not there.
    """
    if device.platform not in _PLATFORMS:
        sink.anomaly(
            "qos_not_evaluated", 1, f"{device.data.path}: qos.data of platform {device.platform}"
        )
        return
    names = [name for name in device.sample.text("qosEvents").split(",") if name.strip()][
        :_EVENTS_QOS
    ]
    for records, times_ns in _records(device):
        if not names:
            sink.anomaly(
                "qos_without_event_names",
                len(records),
                f"{device.sample.path} has no qosEvents, so nothing says what was measured",
            )
            continue
        name_ids = np.asarray(sink.strings.intern_all(f"QoS {name}" for name in names))
        values = records["bandwidth"][:, : len(names)].astype(np.int64) * _BYTES_PER_MB
        sampling.write_samples(
            sink,
            "QOS",
            device,
            {
                "deviceId": device.device_id,
                "eventName": np.tile(name_ids, len(records)),
                "bandwidth": values.ravel(),
                "timestampNs": np.repeat(times_ns, len(names)),
                "dieId": _NO_DIE,
            },
        )


def _records(device: DeviceDirectory) -> Iterator[tuple[Records, NDArray[np.int64]]]:
    """Yield samples and their times."""
    clock = sampling.device_clock(device, "qos.data")
    for records in sampling.pieces(device, _FILE, "qos"):
        yield records, clock.to_ns(records["timestamp"])
