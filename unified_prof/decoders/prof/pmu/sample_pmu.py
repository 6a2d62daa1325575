"""SAMPLE_PMU_TIMELINE and SAMPLE_PMU_SUMMARY: AI core counters read at fixed intervals.

Platforms with the stars scheduler write one file and tell AIV cores by their number, platforms 1
and 4 write one file for each kind of cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.pmu import pmu_metrics
from unified_prof.decoders.prof.pmu.core_metrics import (
    AIC,
    AIV,
    CoreKind,
    core_kinds,
    last_cube_core,
)
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory
from unified_prof.decoders.prof.raw.platforms import HWTS_PLATFORMS, V6_PLATFORMS
from unified_prof.decoders.prof.raw.slices import Records

_SAMPLE_BASED = "sample-based"
_CORE_TYPES = ("AIC", "AIV")

_STARS_FILES = (("ffts_profile", None),)
_HWTS_FILES = (("aicore", AIC), ("aiVectorCore", AIV))

# What a mode byte of 0 means: nothing after it was recorded.
_END_OF_FILE = 0

# What the exporter takes for the interval before the first sample of a core.
_FIRST_INTERVAL_NS = 1


@dataclass(slots=True)
class _Sums:
    """Everything a core counted."""

    kind: CoreKind
    frequency_mhz: float
    counters: NDArray[np.float64]
    cycles: float = 0.0


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write every sample's cycles and usage, and the metrics of each core over all samples."""
    if device.sample.text("ai_core_profiling_mode") != _SAMPLE_BASED:
        return
    files = _HWTS_FILES if device.platform in HWTS_PLATFORMS else _STARS_FILES
    if not any(device.data.get(name) for name, _ in files):
        return
    kinds = core_kinds(device, sink, sampled=True)
    if not kinds:
        return
    sums: dict[tuple[int, int], _Sums] = {}
    for name, core_type in files:
        _decode_file(device, sink, kinds, name, core_type, sums)
    _write_summary(device, sink, sums)


def _decode_file(
    device: DeviceDirectory,
    sink: Sink,
    kinds: tuple[CoreKind, ...],
    file_name: str,
    core_type: int | None,
    sums: dict[tuple[int, int], _Sums],
) -> None:
    """Write the samples of one file and add them to `sums`, by core type and core."""
    clock = sampling.device_monotonic_clock(device, f"{file_name}.data")
    type_ids = np.asarray(sink.strings.intern_all(_CORE_TYPES))
    frequency_mhz = kinds[AIC].frequency_mhz
    # Also where cores of both types are counted alike, each type has a frequency of its own.
    rated_mhz = [
        float(device.device_info.decimal(f"{name.lower()}_frequency") or 0) for name in _CORE_TYPES
    ]
    last_cube = last_cube_core(device.platform)
    neighbours = sampling.Neighbours()
    for records in _samples(device, file_name):
        core = records["core_id"].astype(np.int64)
        types = (
            (core > last_cube).astype(np.int64)
            if core_type is None
            else np.full(len(core), core_type)
        )
        _add(sums, kinds, rated_mhz, types, core, records)
        exact = records["timestamp"].astype(np.int64)
        known, (before,) = neighbours.previous(core, exact)
        interval_ns = np.where(known, exact - before, _FIRST_INTERVAL_NS).astype(np.float64)
        cycles = records["task_cycle"].astype(np.float64)
        usage = pmu_metrics.divide(cycles * 1000, frequency_mhz * interval_ns) * 100
        sampling.write_samples(
            sink,
            "SAMPLE_PMU_TIMELINE",
            device,
            {
                "deviceId": device.device_id,
                "timestampNs": clock.to_ns(records["timestamp"]),
                "totalCycle": records["task_cycle"],
                "usage": usage,
                "freq": frequency_mhz,
                "coreId": core,
                "coreType": type_ids[types],
            },
        )


def _samples(device: DeviceDirectory, file_name: str) -> Iterator[Records]:
    """Yield the records of a file up to the one that ends it."""
    layout = "aicore_sample_v6" if device.platform in V6_PLATFORMS else "aicore_sample"
    for piece in sampling.pieces(device, file_name, layout):
        ends = np.flatnonzero(piece["mode"] == _END_OF_FILE)
        if len(ends):
            yield piece[: ends[0]]
            return
        yield piece


def _add(
    sums: dict[tuple[int, int], _Sums],
    kinds: tuple[CoreKind, ...],
    rated_mhz: list[float],
    types: NDArray[np.int64],
    core: NDArray[np.int64],
    records: Records,
) -> None:
    for core_type, core_id in np.unique(np.stack([types, core]), axis=1).T.tolist():
        rows = (core == core_id) & (types == core_type)
        counters = records["event_count"][rows].astype(np.float64).sum(axis=0)
        kind = kinds[min(core_type, len(kinds) - 1)]
        empty = _Sums(kind, rated_mhz[core_type], np.zeros(len(counters)))
        total = sums.setdefault((core_type, core_id), empty)
        total.counters += counters
        total.cycles += float(records["task_cycle"][rows].astype(np.float64).sum())


def _write_summary(device: DeviceDirectory, sink: Sink, sums: dict[tuple[int, int], _Sums]) -> None:
    """Write SAMPLE_PMU_SUMMARY: one row a metric and core."""
    names: list[str] = []
    values: list[float] = []
    cores: list[int] = []
    types: list[str] = []
    for (core_type, core_id), total in sorted(sums.items(), key=lambda item: item[0]):
        for name, value in _summary(total):
            names.append(name)
            values.append(value)
            cores.append(core_id)
            types.append(_CORE_TYPES[core_type])
    if not names:
        return
    sink.write(
        "SAMPLE_PMU_SUMMARY",
        {
            "deviceId": device.device_id,
            "metric": sink.strings.intern_all(names),
            "value": np.array(values),
            "coreId": np.array(cores, np.int64),
            "coreType": sink.strings.intern_all(types),
        },
    )


def _summary(total: _Sums) -> Iterator[tuple[str, float]]:
    """Yield names and values of a core's metrics.

    Bandwidths are in bytes per second here. total_time is the exporter's number: microseconds
    times a million.
    """
    kind = total.kind
    cycles = np.array([total.cycles])
    time_us = pmu_metrics.divide(cycles, np.array([total.frequency_mhz]))
    yield pmu_metrics.TOTAL_TIME, float(time_us[0]) * 1e6
    metrics = [metric for metric in kind.metrics if metric.kind != "time"]
    values = pmu_metrics.evaluate(
        metrics, kind.events, total.counters[None, :], cycles, time_us, total.frequency_mhz
    )
    for metric, value in zip(metrics, values[0].tolist(), strict=True):
        scale = pmu_metrics.BYTES_PER_GB if metric.kind == "bandwidth" else 1.0
        yield metric.name, value * scale
