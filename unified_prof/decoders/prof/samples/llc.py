"""LLC: hit rate and throughput of the last-level cache, llc.data."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory

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


def decode(device: DeviceDirectory, sink: Sink) -> None:
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
