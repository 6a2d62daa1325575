"""AI core counters (PMU): metric sets, and samples of cores.

A metric is a weighted sum of event counters, divided by the cycles, the time or another counter.
Metrics refer to events by number, so one definition applies to task-based and sample-based
counters, any order of events, and chips without some of the events. Numbers, bytes per event and
names are those of the vendor's public exporter, verified with generated recordings of platforms 1,
5, 7 and 15; those by task of platforms 1 and 4 are in its Python part (analysis/common_func).

Chips with separate cube and vector cores have two kinds of cores, AIC and AIV, each with its own
events, number of cores and frequency. Other chips have one kind of core, and metric names have no
prefix.

Platforms with the stars scheduler write the samples of all cores to one file, in which vector cores
have numbers above `last_cube_core`. Platforms 1 and 4 write one file per kind of core.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Floats
from unified_prof.base.columns import Sink, count_marked
from unified_prof.decoders.prof import sampling
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.spool import Rows

Kind = Literal["ratio", "time", "rate", "count", "bandwidth"]
Family = Literal["two kinds", "one kind", "310P", "v6"]
TOTAL_TIME = "total_time"
TOTAL_CYCLES = "total_cycles"
CUSTOM_PREFIX = "Custom"
_HZ_PER_MHZ = 1e6
BYTES_PER_GB = float(1 << 30)
_BYTES_PER_KB = 1024.0


class Metric(Struct, frozen=True):
    """A metric computed from the counters of a task or a core."""

    name: str
    kind: Kind
    # (event, weight) of each term; for `rate`, of numerator and denominator.
    terms: tuple[tuple[int, float], ...]

    def events(self) -> frozenset[int]:
        """Return the events that the metric requires."""
        return frozenset(event for event, _weight in self.terms)


class MetricSelection(NamedTuple):
    """Metrics of a set that can be computed, and the names of the others."""

    metrics: tuple[Metric, ...]
    uncounted: tuple[str, ...]  # Names of metrics whose events were not counted.


def _sets(text: str) -> dict[str, tuple[Metric, ...]]:
    """Parse lines `set: kind metric terms, metric terms; kind ...`, which may continue.

    A term is a hexadecimal event with its weight, `15*128`, or without weight (1). `pipe` is a time
    and a ratio of the same events, `kilobytes` a count whose weights are bytes.
    """
    found: dict[str, tuple[Metric, ...]] = {}
    for name, body in re.findall(r"(\w+):([^:]*)(?=\n\s+\w+:|$)", text):
        metrics: list[Metric] = []
        for group in body.split(";"):
            kind, _, listed = group.strip().partition(" ")
            for metric in listed.split(","):
                title, *terms = metric.split()
                pairs = [term.partition("*")[::2] for term in terms]
                unit = _BYTES_PER_KB if kind == "kilobytes" else 1.0
                weighted = tuple((int(event, 16), float(by or 1) / unit) for event, by in pairs)
                metrics += (Metric(title + end, one, weighted) for end, one in _KINDS[kind])
        found[name] = tuple(metrics)
    return found


# By kind of `_sets`: ending of the name, and kind, of its metrics.
_KINDS: dict[str, tuple[tuple[str, Kind], ...]] = {
    "ratio": (("_ratio", "ratio"),),
    "pipe": (("_time", "time"), ("_ratio", "ratio")),
    "rate": (("", "rate"),),
    "count": (("", "count"),),
    "kilobytes": (("", "count"),),
    "bandwidth": (("", "bandwidth"),),
}

# Weights of fops: multiply-add counts of one cycle of the cube unit and of the vector unit.
_SETS = _sets(
    """
    ArithmeticUtilization: ratio mac_fp16 49, mac_int8 4a, vec_fp32 4b, vec_fp16 4c 4d,
        vec_int32 4e, vec_misc 4f; count cube_fops 49*8192 4a*16384,
        vector_fops 4b*64 4c*128 4d*64 4e*64 4f*32
    PipeUtilization: pipe vec 8, mac a, scalar 9, mte1 b, mte2 c, mte3 d;
        rate icache_miss_rate 55 54
    PipeUtilizationExct: pipe mac 416 417, scalar 9, mte1 302, mte2 c, fixpipe 303;
        rate icache_miss_rate 55 54
    PipelineExecuteUtilization: pipe vec_exe 8, mac_exe a, scalar_exe 9, mte1_exe b, mte2_exe c,
        mte3_exe d; rate icache_miss_rate 55 54
    Memory: bandwidth ub_read_bw 15*128, ub_write_bw 16*128, l1_read_bw 31*512, l1_write_bw 32*128,
        l2_read_bw f*256, l2_write_bw 10*256, main_mem_read_bw 12*8, main_mem_write_bw 13*8
    MemoryL0: bandwidth l0a_read_bw 1b*512, l0a_write_bw 1c*512, l0b_read_bw 21*512,
        l0b_write_bw 22*256, l0c_read_bw 27*256, l0c_read_bw_cube 28*1024, l0c_write_bw 29*256,
        l0c_write_bw_cube 2a*1024
    MemoryUB: bandwidth ub_read_bw_vector 43*32, ub_write_bw_vector 44*32, ub_read_bw_scalar 37*16,
        ub_write_bw_scalar 38*16
    ResourceConflictRatio: ratio vec_bankgroup_cflt 64, vec_bank_cflt 65, vec_resc_cflt 66
    L2Cache: count write_cache_hit 500, write_cache_miss_allocate 502, r0_read_cache_hit 504,
        r0_read_cache_miss_allocate 506, r1_read_cache_hit 508, r1_read_cache_miss_allocate 50a
    MemoryAccess: kilobytes read_main_memory_datas 50d*128 50e*128,
        write_main_memory_datas 50c*128, GM_to_L1_datas 32*256 206*-256, L0C_to_L1_datas 206*128,
        L0C_to_GM_datas 20c*128 206*-128, GM_to_UB_datas 3e*128, UB_to_GM_datas 3d*128
    """
)

# Sampling also counts the transfers of the memory engine, and a vector write moves fewer bytes.
_SETS_SAMPLED = _SETS | _sets(
    """
    MemoryUB: bandwidth ub_read_bw_vector 43*32, ub_write_bw_vector 44*16, ub_read_bw_scalar 37*16,
        ub_write_bw_scalar 38*16, ub_read_bw_mte 3d*16, ub_write_bw_mte 3e*16
    """
)

# Chips whose cube and vector units share their cores. Newer collectors count other events of the
# unified buffer than older ones: of metrics with the same name, the counted one is used.
_EXECUTED = _sets(
    """
    PipelineExecuteUtilization: pipe vec_exe 12c, mac_exe 49 4a, scalar_exe 9, mte1_exe 302,
        mte2_exe c, mte3_exe d, fixpipe_exe 303
    """
)
_NEW_BUFFER = _sets(
    """
    counted: bandwidth ub_read_bw_vector 17f*32 180*32, ub_write_bw_vector 191*32
    sampled: bandwidth ub_read_bw_vector 17f*32 180*32, ub_write_bw_vector 191*16,
        ub_read_bw_mte 1a5*16, ub_write_bw_mte 1a6*16
    """
)
_SETS_ONE_KIND = {
    **_SETS,
    **_EXECUTED,
    **_sets(
        """
        Memory: bandwidth ub_read_bw 15*128, ub_write_bw 16*128, l1_read_bw 31*512,
            l1_write_bw 32*256, main_mem_read_bw 12*8, main_mem_write_bw 13*8
        MemoryL0: bandwidth l0a_read_bw 1b*512, l0a_write_bw 1c*512, l0b_read_bw 21*256,
            l0b_write_bw 22*256, l0c_read_bw 27*256, l0c_read_bw_cube 28*256, l0c_write_bw 29*256,
            l0c_write_bw_cube 2a*256
        """
    ),
    "MemoryUB": (*_NEW_BUFFER["counted"], *_SETS["MemoryUB"]),
}
# Its vector unit does fewer operations per count of integers and of others.
_SETS_310P = {
    **_SETS_ONE_KIND,
    "ArithmeticUtilization": (
        *_SETS["ArithmeticUtilization"][:-1],
        *_sets("310P: count vector_fops 4b*64 4c*128 4d*64 4e*16 4f*16")["310P"],
    ),
}
_SETS_ONE_KIND_SAMPLED = {
    **_SETS,
    **_EXECUTED,
    "MemoryUB": (*_NEW_BUFFER["sampled"], *_SETS_SAMPLED["MemoryUB"]),
}

# Platforms 15 and 16 number their events differently. Their Memory set has no known metric.
_SETS_V6 = _sets(
    """
    PipeUtilization: pipe vec 501, mac 301, scalar 1, mte1 701, mte2 202, mte3 203, fixpipe 714;
        rate icache_miss_rate 35 34
    ArithmeticUtilization: ratio mac_fp16 323, mac_int8 324; count cube_fops 323*8192 324*16384
    MemoryL0: bandwidth l0a_read_bw 304*512, l0a_write_bw 703*512, l0b_read_bw 306*256,
        l0b_write_bw 705*256, l0c_read_bw 712*256, l0c_read_bw_cube 30a*256,
        l0c_write_bw_cube 308*256
    MemoryUB: bandwidth ub_read_bw_scalar 3*16, ub_write_bw_scalar 5*16, ub_read_bw_vector 571*32,
        ub_write_bw_vector 572*32, fixp2ub_write_bw 70c*256
    L2Cache: count read_local_l2_hit 424, read_local_l2_miss 425, read_local_l2_victim 426,
        write_local_l2_hit 42a, write_local_l2_miss 42b, write_local_l2_victim 42c
    ResourceConflictRatio: ratio vec_bank_cflt 540 556; rate vec_resc_cflt_ratio 528 502
    """
)
# Sets that a chip can count and of which the exporter writes no rows.
NOT_EVALUATED: Mapping[Family, frozenset[str]] = {"v6": frozenset({"Memory"})}


def parse_events(text: str, limit: int) -> tuple[int, ...]:
    """Parse a list of event numbers such as `0x8,0xa` or `8,10`.

    `text` is ai_core_profiling_events or aiv_profiling_events of sample.json; events beyond
    `limit`, the number of counters in a record, were not counted. Raises ValueError if an entry is
    not a number.
    """
    return tuple(int(part.strip(), 0) for part in text.split(",") if part.strip())[:limit]


_TASK_SETS: dict[Family, dict[str, tuple[Metric, ...]]] = {
    "two kinds": _SETS,
    "one kind": _SETS_ONE_KIND,
    "310P": _SETS_310P,
    "v6": _SETS_V6,
}
_SAMPLED_SETS: dict[Family, dict[str, tuple[Metric, ...]]] = {
    "two kinds": _SETS_SAMPLED,
    "one kind": _SETS_ONE_KIND_SAMPLED,
    "v6": _SETS_V6,
}


def select_metrics(
    set_name: str, events: Sequence[int], family: Family, *, sampled: bool = False
) -> MetricSelection:
    """Return the metrics of a set whose events were counted, and the names of the others.

    `set_name` is ai_core_metrics or aiv_metrics of sample.json, such as `Memory` or `Custom:0x8`;
    `events` are those of the counters of a record. `sampled` is True if cores were sampled, False
    if tasks were counted.
    """
    if set_name.startswith(CUSTOM_PREFIX):
        custom = (Metric(f"r{event:x}", "count", ((event, 1.0),)) for event in events)
        return MetricSelection(tuple(custom), ())
    counted = set(events)
    known = (_SAMPLED_SETS if sampled else _TASK_SETS)[family].get(set_name, ())
    chosen: dict[str, Metric | None] = {}
    for metric in known:
        if chosen.get(metric.name) is None:
            chosen[metric.name] = metric if metric.events() <= counted else None
    return MetricSelection(
        tuple(metric for metric in chosen.values() if metric is not None),
        tuple(name for name, metric in chosen.items() if metric is None),
    )


def evaluate(
    metrics: Sequence[Metric],
    events: Sequence[int],
    counters: NDArray[Any],
    cycles: Floats,
    total_time_ns: Floats,
    frequency_mhz: float,
) -> Floats:
    """Compute metrics: one row per row of `counters` (task or core), one column per metric.

    `events` are those of the columns of `counters`; `time` metrics are fractions of
    `total_time_ns`. `frequency_mhz` converts bytes per cycle to GB/s. Ratios with denominator 0
    are 0.
    """
    column = {event: index for index, event in enumerate(events)}
    count = {event: counters[:, index].astype(np.float64) for event, index in column.items()}
    result = np.empty((len(cycles), len(metrics)))
    for index, metric in enumerate(metrics):
        result[:, index] = _evaluate(metric, count, cycles, total_time_ns, frequency_mhz)
    return result


def _evaluate(
    metric: Metric,
    count: Mapping[int, Floats],
    cycles: Floats,
    total_time_ns: Floats,
    frequency_mhz: float,
) -> Floats:
    if metric.kind == "rate":
        (numerator, _), (denominator, _) = metric.terms
        return divide(count[numerator], count[denominator])
    (event, weight), *others = metric.terms
    total = count[event] * weight
    for event, weight in others:
        total = total + count[event] * weight
    if metric.kind == "count":
        return total
    per_cycle = divide(total, cycles)
    if metric.kind == "ratio":
        return per_cycle
    if metric.kind == "time":
        return per_cycle * total_time_ns
    return per_cycle * (frequency_mhz * _HZ_PER_MHZ / BYTES_PER_GB)


def divide(numerator: NDArray[Any], denominator: NDArray[Any]) -> Floats:
    """Return the quotients; 0 if the denominator is 0."""
    result = np.zeros(len(numerator))
    np.divide(numerator, denominator, out=result, where=denominator != 0)
    return result


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


class CoreKind(Struct, frozen=True):
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
        one_round = divide(divide(cycles, frequency_mhz), blocks)
        return self.rounded_ns(one_round * rounds * _NS_PER_US)

    def rounded_ns(self, time_ns: Floats) -> Floats:
        """Round times to 0.01 us if `rounded` is true."""
        return sampling.rounded(time_ns / _NS_PER_US, 2) * _NS_PER_US if self.rounded else time_ns

    def values(self, counters: NDArray[np.uint64], cycles: Floats, time_ns: Floats) -> Floats:
        """Return the values of all metrics: one row per task, one column per name."""
        derived = evaluate(self.metrics, self.events, counters, cycles, time_ns, self.frequency_mhz)
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
            events = parse_events(listed, limit)
        except ValueError:
            events = ()
        selection = select_metrics(set_name, events, family, sampled=sampled)
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


def _report_unknown(device: DeviceDirectory, family: Family, sink: Sink) -> None:
    sets = [device.sample.text(key) for key in ("ai_core_metrics", "aiv_metrics")]
    name, platform = "unknown_pmu_metrics", device.platform
    detail = (
        f"no formulas for metrics {sets[0]!r} and {sets[1]!r} with the events given on platform"
    )
    if {*sets} <= NOT_EVALUATED.get(family, frozenset()):
        name, detail = "task_pmu_not_evaluated", f"metric set {sets[0]!r} of platform"
    sink.anomaly(name, 1, f"{device.sample.path}: {detail} {platform}")


def _family(device: DeviceDirectory, *, sampled: bool) -> Family:
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


class _Sums(Struct):
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
        usage = divide(cycles * 1000, frequency_mhz * interval_ns) * 100
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
    for piece in device.data.get(file_name).pieces(layout):
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
    time_us = divide(cycles, np.array([total.frequency_mhz]))
    yield TOTAL_TIME, float(time_us[0]) * 1e6
    metrics = [metric for metric in kind.metrics if metric.kind != "time"]
    values = evaluate(
        metrics, kind.events, total.counters[None, :], cycles, time_us, total.frequency_mhz
    )
    for metric, value in zip(metrics, values[0].tolist(), strict=True):
        scale = BYTES_PER_GB if metric.kind == "bandwidth" else 1.0
        yield metric.name, value * scale
