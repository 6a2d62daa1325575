"""Decodes sampled AI core counters and core frequencies; selects the metrics of a recording.

Chips with separate cube and vector cores have two kinds of cores, AIC and AIV, each with its own
events, number of cores and frequency. Other chips have one kind of core, and metric names have no
prefix.

Platforms with the stars scheduler write the samples of all cores to one file, in which vector cores
have numbers above `last_cube_core`. Platforms 1 and 4 write one file per kind of core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Floats, Ints
from unified_prof.base.columns import Sink, count_marked
from unified_prof.decoders.prof import pmu_metrics, sampling
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.pmu_metrics import CUSTOM_PREFIX, TOTAL_CYCLES, TOTAL_TIME, Metric
from unified_prof.decoders.spool import Rows

AIC, AIV = 0, 1
_310P = 4
SAMPLE_BASED = "sample-based"

# Highest number of a cube core in sampled records, by platform.
_LAST_AIC_CORE = {7: 0, 8: 0, 11: 0, 15: 35, 16: 35}
_LAST_AIC_CORE_ELSEWHERE = 24

# Counters in a record.
_COUNTERS = 8
_COUNTERS_V6 = 10
_NS_PER_US = 1000.0


@dataclass(frozen=True, slots=True)
class CoreKind:
    """One kind of core, with its events and metrics."""

    prefix: str  # Prefix of metric names: `aic_` or `aiv_`; empty on chips with one kind of core.
    events: tuple[int, ...]
    metrics: tuple[Metric, ...]
    cores: int
    frequency_mhz: float  # Rated frequency of the cube cores; the exporter uses it for both kinds.
    # True if total times are rounded to 0.01 us, as the exporter does for custom events and on
    # chips with one kind of core.
    rounded: bool

    @property
    def names(self) -> list[str]:
        """Names of the columns of `values`."""
        names = [TOTAL_TIME, TOTAL_CYCLES, *(metric.name for metric in self.metrics)]
        return [self.prefix + name for name in names]

    def time_on_cores_ns(
        self, cycles: Floats, frequency_mhz: Floats, blocks: NDArray[np.uint32]
    ) -> Floats:
        """Return the duration of tasks, computed from the sum of the cycles of their blocks.

        `frequency_mhz` is the core frequency at the end of the task. One block per core runs at a
        time; tasks without recorded blocks have duration 0.
        """
        if not self.cores:
            return np.zeros(len(cycles))
        rounds = -(-blocks.astype(np.int64) // self.cores)
        one_round = pmu_metrics.divide(pmu_metrics.divide(cycles, frequency_mhz), blocks)
        return self.rounded_ns(one_round * rounds * _NS_PER_US)

    def rounded_ns(self, time_ns: Floats) -> Floats:
        """Round times to 0.01 us if `rounded` is true."""
        return sampling.rounded(time_ns / _NS_PER_US, 2) * _NS_PER_US if self.rounded else time_ns

    def values(self, counters: NDArray[np.uint64], cycles: Floats, time_ns: Floats) -> Floats:
        """Return the values of all metrics: one row per task, one column per name."""
        derived = pmu_metrics.evaluate(
            self.metrics, self.events, counters, cycles, time_ns, self.frequency_mhz
        )
        return np.column_stack([time_ns, cycles, derived])


def core_kinds(
    device: DeviceDirectory, sink: Sink, *, sampled: bool = False
) -> tuple[CoreKind, ...]:
    """Return the kinds of cores of a device, indexed by `AIC` and `AIV`; empty if unknown.

    Counters by task of platforms 1 and 4 have the names of chips with one kind of core.

    Metric sets without a formula, and metrics whose events were not counted, are reported as
    anomalies. `sampled` is True if cores were sampled, False if tasks were counted.
    """
    family = _family(device, sampled=sampled)
    aic, aiv = ("aic_", "aiv_") if family in ("two kinds", "v6") else ("", "")
    wanted = [("ai_core_metrics", "ai_core", "ai_core_num", aic)]
    if aiv or (device.has_hwts_log and device.data.get("aiVectorCore")):
        wanted.append(("aiv_metrics", "aiv", "aiv_num", aiv))
    info, limit = device.device_info, _COUNTERS_V6 if family == "v6" else _COUNTERS
    kinds: list[CoreKind] = []
    uncounted: list[str] = []
    for metrics_key, events_key, cores_key, prefix in wanted:
        set_name = device.sample.text(metrics_key)
        listed = device.sample.text(f"{events_key}_profiling_events")
        try:
            events = pmu_metrics.parse_events(listed, limit)
        except ValueError:
            events = ()
        selection = pmu_metrics.select_metrics(set_name, events, family, sampled=sampled)
        if not selection.metrics:
            _report_unknown(device, family, sink)
            return ()
        uncounted += (prefix + name for name in selection.uncounted)
        kinds.append(
            CoreKind(
                prefix=prefix,
                events=events,
                metrics=selection.metrics,
                cores=max(info.integer(cores_key) or 0, 0),
                frequency_mhz=float(info.decimal("aic_frequency") or 0),
                rounded=not prefix or set_name.startswith(CUSTOM_PREFIX),
            )
        )
    if uncounted:
        missing = f"the events of {', '.join(uncounted)} were not counted"
        detail = f"{device.sample.path}: {missing}"
        sink.anomaly("pmu_metric_not_counted", len(uncounted), detail)
    return tuple(kinds)


def _report_unknown(device: DeviceDirectory, family: pmu_metrics.Family, sink: Sink) -> None:
    sets = [device.sample.text(key) for key in ("ai_core_metrics", "aiv_metrics")]
    name, platform = "unknown_pmu_metrics", device.platform
    detail = (
        f"no formulas for metrics {sets[0]!r} and {sets[1]!r} with the events given on platform"
    )
    if {*sets} <= pmu_metrics.NOT_EVALUATED.get(family, frozenset()):
        name, detail = "task_pmu_not_evaluated", f"metric set {sets[0]!r} of platform"
    sink.anomaly(name, 1, f"{device.sample.path}: {detail} {platform}")


def _family(device: DeviceDirectory, *, sampled: bool) -> pmu_metrics.Family:
    if device.has_wide_task_ids:
        return "v6"
    if device.has_hwts_log and not sampled:
        return "310P" if device.platform == _310P else "one kind"
    return "one kind" if device.has_one_core_kind else "two kinds"


_CORE_TYPES = ("AIC", "AIV")
_STARS_FILES = (("ffts_profile", None),)
HWTS_FILES = (("aicore", AIC), ("aiVectorCore", AIV))

_END_OF_FILE = 0  # Mode byte that ends a file: no records follow.

_FIRST_INTERVAL_NS = 1  # Interval that the exporter assumes before the first sample of a core.


@dataclass(slots=True)
class _Sums:
    """Sums of the counters of a core."""

    kind: CoreKind
    frequency_mhz: float
    counters: Floats
    cycles: float = 0.0


def decode_sample_pmu(device: DeviceDirectory, sink: Sink) -> None:
    """Write SAMPLE_PMU_TIMELINE (each sample) and SAMPLE_PMU_SUMMARY (metrics of each core)."""
    if device.sample.text("ai_core_profiling_mode") != SAMPLE_BASED:
        return
    files = HWTS_FILES if device.has_hwts_log else _STARS_FILES
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
    # Each type has its own frequency, even if the same events are counted on both.
    rated_mhz = [
        float(device.device_info.decimal(f"{name.lower()}_frequency") or 0) for name in _CORE_TYPES
    ]
    last_cube_core = _LAST_AIC_CORE.get(device.platform, _LAST_AIC_CORE_ELSEWHERE)
    samples = sampling.PreviousSamples()
    for records in _sample_records(device, file_name, len(kinds[AIC].events), sink):
        core = records["core_id"].astype(np.int64)
        types = np.full(len(core), core_type)
        if core_type is None:
            types = (core > last_cube_core).astype(np.int64)
        for core_type, core_id in np.unique(np.stack([types, core]), axis=1).T.tolist():
            chosen = records[(core == core_id) & (types == core_type)]
            counters = chosen["event_count"].astype(np.float64).sum(axis=0)
            kind = kinds[min(core_type, len(kinds) - 1)]
            empty = _Sums(kind, rated_mhz[core_type], np.zeros(len(counters)))
            total = sums.setdefault((core_type, core_id), empty)
            total.counters += counters
            total.cycles += float(chosen["task_cycle"].astype(np.float64).sum())
        exact = records["timestamp"].astype(np.int64)
        known, (before,) = samples.previous(core, exact)
        interval_ns = np.where(known, exact - before, _FIRST_INTERVAL_NS).astype(np.float64)
        cycles = records["task_cycle"].astype(np.float64)
        usage = pmu_metrics.divide(cycles * 1000, frequency_mhz * interval_ns) * 100
        sampling.write_samples(
            sink,
            device,
            "SAMPLE_PMU_TIMELINE",
            clock.to_ns(records["timestamp"]),
            totalCycle=records["task_cycle"],
            usage=usage,
            freq=frequency_mhz,
            coreId=core,
            coreType=type_ids[types],
        )


def _sample_records(
    device: DeviceDirectory, file_name: str, events: int, sink: Sink
) -> Iterator[Rows]:
    """Yield the records of a file up to its end record.

    Records whose number of counters differs from `events` are damaged or have another layout; they
    are skipped and counted.
    """
    layout = "aicore_sample_v6" if device.has_wide_task_ids else "aicore_sample"
    for piece in sampling.pieces(device, file_name, layout):
        ends = np.flatnonzero(piece["mode"] == _END_OF_FILE)
        records = piece[: ends[0]] if len(ends) else piece
        valid = records["count_num"] == events
        detail = f"{device.data.path}/{file_name}.data: records without {events} counters"
        count_marked(sink, "damaged_pmu_sample", ~valid, detail)
        if valid.any():
            yield records[valid]
        if len(ends):
            return


def _write_summary(device: DeviceDirectory, sink: Sink, sums: dict[tuple[int, int], _Sums]) -> None:
    """Write SAMPLE_PMU_SUMMARY: one row per metric and core."""
    rows = [
        (name, value, core_id, _CORE_TYPES[core_type])
        for (core_type, core_id), total in sorted(sums.items(), key=lambda item: item[0])
        for name, value in _summary(total)
    ]
    if not rows:
        return
    names, values, cores, types = zip(*rows, strict=True)
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
    """Yield the names and values of a core's metrics.

    Bandwidths are in bytes per second; total_time is in microseconds times a million, as in the
    exporter.
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


_ENTRIES = 55  # (ticks, frequency) pairs in a record.
# Kind of an lpmInfoConv record about the AI core frequency. Others are voltages, without a table.
_FREQUENCY = 0
_UNKNOWN_DIE = -1
_FREQUENCY_PLATFORMS = (5, 7)  # Platforms whose databases have AICORE_FREQ.


def read_changes(device: DeviceDirectory) -> tuple[NDArray[np.uint64], Ints]:
    """Return times and MHz of the AI core frequency's changes (lpmFreqConv, lpmInfoConv), by time.

    The last change before the start of the device is moved to the start; earlier changes are
    dropped.
    """
    pairs: list[NDArray[np.uint64]] = [np.zeros((0, 2), np.uint64)]
    for name in ("lpmFreqConv", "lpmInfoConv"):
        file = device.data.get(name)
        for piece in file.pieces("lpm_freq") if file is not None else ():
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
        {"deviceId": device.device_id, "timestampNs": time_ns, "freq": freq, "dieId": _UNKNOWN_DIE},
    )
