"""Which PMU metrics a recording has, for each kind of AI core, and what they come to.

Chips with separate cube and vector cores have two kinds, AIC and AIV, each with its own events,
number of cores and frequency; on others all cores are of one kind and names have no prefix.

SAMPLE_PMU_TIMELINE and SAMPLE_PMU_SUMMARY: AI core counters read at fixed intervals.

Platforms with the stars scheduler write one file and tell AIV cores by their number, platforms 1
and 4 write one file for each kind of cores.

AICORE_FREQ: the AI core frequency over time, from lpmFreqConv or lpmInfoConv.

Newer collectors write the second in place of the first: the same records, which tell in addition
what they are about. Voltages of cores and of the bus have no table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.columns import Sink
from unified_prof.decoders.prof import pmu_metrics, sampling
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.layouts import (
    HWTS_PLATFORMS,
    ONE_CORE_KIND_PLATFORMS,
    V6_PLATFORMS,
    record_type,
)
from unified_prof.decoders.prof.pmu_metrics import CUSTOM_PREFIX, TOTAL_CYCLES, TOTAL_TIME, Metric
from unified_prof.decoders.prof.slices import Records

AIC, AIV = 0, 1

# The last core of the cube kind in the records of sampled cores, by platform; the same on chips
# whose cores are all of one kind.
_LAST_AIC_CORE = {7: 0, 8: 0, 11: 0, 15: 35, 16: 35}
_LAST_AIC_CORE_ELSEWHERE = 24

_COUNTERS = 8
_COUNTERS_V6 = 10
_NS_PER_US = 1000.0

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CoreKind:
    """The cores of one kind and what was counted on them."""

    prefix: str
    """Of metric names: `aic_`, `aiv_`, or nothing on chips with one kind."""
    events: tuple[int, ...]
    metrics: tuple[Metric, ...]
    cores: int
    frequency_mhz: float
    """Rated, of the cube cores: the exporter relates the tasks of both kinds to it."""
    rounded: bool
    """Total times are rounded to a hundredth microsecond: the exporter computes the metrics of
    chips with one kind of cores, and custom events, by another program."""

    @property
    def names(self) -> list[str]:
        """Return the names of `values`' columns."""
        names = [TOTAL_TIME, TOTAL_CYCLES, *(metric.name for metric in self.metrics)]
        return [self.prefix + name for name in names]

    def time_on_cores_ns(
        self, cycles: Float64, frequency_mhz: Float64, blocks: NDArray[np.uint32]
    ) -> Float64:
        """Return how long tasks took, from the cycles of all their blocks.

        Args:
            cycles: cycles of all blocks of a task together.
            frequency_mhz: core frequency at the task's end.
            blocks: number of blocks, of which as many run at a time as there are cores; a task
                with none recorded has no time.
        """
        if not self.cores:
            return np.zeros(len(cycles))
        rounds = -(-blocks.astype(np.int64) // self.cores)
        one_round = pmu_metrics.divide(pmu_metrics.divide(cycles, frequency_mhz), blocks)
        return self.rounded_ns(one_round * rounds * _NS_PER_US)

    def rounded_ns(self, time_ns: Float64) -> Float64:
        """Round a time where the exporter does."""
        return sampling.rounded(time_ns / _NS_PER_US, 2) * _NS_PER_US if self.rounded else time_ns

    def values(self, counters: NDArray[np.uint64], cycles: Float64, time_ns: Float64) -> Float64:
        """Return a column for every name, a row for every task."""
        derived = pmu_metrics.evaluate(
            self.metrics, self.events, counters, cycles, time_ns, self.frequency_mhz
        )
        return np.column_stack([time_ns, cycles, derived])


def last_cube_core(platform: int) -> int:
    """Return the highest number of a cube core in sampled records; vector cores are above."""
    return _LAST_AIC_CORE.get(platform, _LAST_AIC_CORE_ELSEWHERE)


def core_kinds(
    device: DeviceDirectory, sink: Sink, *, sampled: bool = False
) -> tuple[CoreKind, ...]:
    """Return the kinds of cores of a device, by `AIC` and `AIV`; empty when nothing is known.

    What sample.json asks for that has no known formula is counted as an anomaly.

    Args:
        device: whose sample.json says what was counted.
        sink: takes the anomalies.
        sampled: whether cores were sampled instead of tasks counted.
    """
    one_kind = device.platform in ONE_CORE_KIND_PLATFORMS
    wanted = [("ai_core_metrics", "ai_core", "aic", "" if one_kind else "aic_")]
    if not one_kind:
        wanted.append(("aiv_metrics", "aiv", "aiv", "aiv_"))
    kinds = [_kind(device, *keys, sampled=sampled) for keys in wanted]
    found = tuple(kind for kind in kinds if kind is not None and kind.metrics)
    if len(found) < len(kinds):
        _report_unknown(device, sink)
        return ()
    return found


def _report_unknown(device: DeviceDirectory, sink: Sink) -> None:
    sets = [device.sample.text(key) for key in ("ai_core_metrics", "aiv_metrics")]
    if not {*sets} <= pmu_metrics.NOT_EVALUATED.get(_family(device.platform), frozenset()):
        sink.anomaly(
            "unknown_pmu_metrics",
            1,
            f"{device.sample.path}: no formulas for metrics {sets[0]!r} and {sets[1]!r} with the"
            f" events given on platform {device.platform}",
        )
        return
    sink.anomaly(
        "task_pmu_not_evaluated",
        1,
        f"{device.sample.path}: metric set {sets[0]!r} of platform {device.platform}",
    )


def _family(platform: int) -> pmu_metrics.Family:
    if platform in V6_PLATFORMS:
        return "v6"
    return "one kind" if platform in ONE_CORE_KIND_PLATFORMS else "two kinds"


def _kind(
    device: DeviceDirectory,
    metrics_key: str,
    events_key: str,
    info_key: str,
    prefix: str,
    *,
    sampled: bool,
) -> CoreKind | None:
    family = _family(device.platform)
    set_name = device.sample.text(metrics_key)
    try:
        events = pmu_metrics.parse_events(
            device.sample.text(f"{events_key}_profiling_events"),
            _COUNTERS_V6 if family == "v6" else _COUNTERS,
        )
    except ValueError:
        return None
    info = device.device_info
    return CoreKind(
        prefix=prefix,
        events=events,
        metrics=pmu_metrics.metrics_of(set_name, events, family, sampled=sampled),
        cores=max(info.integer("ai_core_num" if info_key == "aic" else "aiv_num") or 0, 0),
        frequency_mhz=float(info.decimal("aic_frequency") or 0),
        rounded=family == "one kind" or set_name.startswith(CUSTOM_PREFIX),
    )


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


def decode_sample_pmu(device: DeviceDirectory, sink: Sink) -> None:
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


_ENTRIES = 55
_FREQUENCY = 0
_UNKNOWN_DIE = -1
PLATFORMS = (5, 7)
"""Platforms whose recordings have this table."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of the AI core frequency, by time."""

    ticks: NDArray[np.uint64]
    mhz: NDArray[np.int64]


def read_changes(device: DeviceDirectory) -> Changes:
    """Read the frequency changes of a device; the last one before its start counts from there."""
    ticks: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    mhz: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    for name in ("lpmFreqConv", "lpmInfoConv"):
        file = device.data.get(name)
        for piece in file.pieces(record_type("lpm_freq")) if file is not None else ():
            if name == "lpmInfoConv":
                piece = piece[piece["kind"] == _FREQUENCY]
            words = piece["words"].reshape(len(piece), _ENTRIES, 2)
            used = np.arange(_ENTRIES) < piece["count"][:, None]
            ticks.append(words[used][:, 0])
            mhz.append(words[used][:, 1] & np.uint64(0xFFFFFFFF))
    time, value = np.concatenate(ticks), np.concatenate(mhz)
    order = np.argsort(time, kind="stable")
    time, value = time[order], value[order]
    start = np.uint64(device.clocks.device_origin_ticks)
    before = max(int(np.searchsorted(time, start)) - 1, 0)
    return Changes(np.maximum(time[before:], start), value[before:].astype(np.int64))


def usable_changes(device: DeviceDirectory) -> Changes:
    """Return the changes that task times may rest on: none at all where one of them is to 0 MHz.

    So does the exporter, which takes the rated frequency for the whole recording then.
    """
    changes = read_changes(device)
    if (changes.mhz == 0).any():
        return Changes(changes.ticks[:0], changes.mhz[:0])
    return changes


def decode_frequency(device: DeviceDirectory, sink: Sink) -> None:
    """Write the frequency at the start, at each change and at a recorded end."""
    if device.platform not in PLATFORMS or device.clocks.device is None:
        return
    changes = read_changes(device)
    session = device.session
    freq = np.r_[device.device_info.integer("aic_frequency") or 0, changes.mhz]
    time_ns = np.r_[session.start_ns, device.clocks.device.to_ns(changes.ticks)]
    if session.ended:
        freq, time_ns = np.r_[freq, freq[-1]], np.r_[time_ns, session.end_ns]
    sink.write(
        "AICORE_FREQ",
        {
            "deviceId": device.device_id,
            "timestampNs": time_ns,
            "freq": freq,
            "dieId": _UNKNOWN_DIE,
        },
    )
