"""Defines the metric sets of the AI core counters (PMU): names, events and formulas.

A metric is a weighted sum of event counters, divided by the cycles, the time or another counter.
Metrics refer to events by number, so one definition applies to task-based and sample-based
counters, any order of events, and chips without some of the events. Numbers, bytes per event and
names are those of the vendor's public exporter, verified with generated recordings of platforms 1,
5, 7 and 15; those by task of platforms 1 and 4 are in its Python part (analysis/common_func).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Floats

Kind = Literal["ratio", "time", "rate", "count", "bandwidth"]
Family = Literal["two kinds", "one kind", "310P", "v6"]
TOTAL_TIME = "total_time"
TOTAL_CYCLES = "total_cycles"
CUSTOM_PREFIX = "Custom"
_HZ_PER_MHZ = 1e6
BYTES_PER_GB = float(1 << 30)
_BYTES_PER_KB = 1024.0


@dataclass(frozen=True, slots=True)
class Metric:
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


def _ratio(name: str, *events: int) -> Metric:
    return Metric(f"{name}_ratio", "ratio", tuple((event, 1.0) for event in events))


def _pipe(name: str, *events: int) -> tuple[Metric, Metric]:
    terms = tuple((event, 1.0) for event in events)
    return Metric(f"{name}_time", "time", terms), Metric(f"{name}_ratio", "ratio", terms)


def _miss_rate(misses: int, accesses: int) -> Metric:
    return Metric("icache_miss_rate", "rate", ((misses, 1.0), (accesses, 1.0)))


def _bandwidth(name: str, event: int, bytes_each: int) -> Metric:
    return Metric(name, "bandwidth", ((event, float(bytes_each)),))


def _kilobytes(name: str, **bytes_each: int) -> Metric:
    terms = tuple((int(event[1:], 16), size / _BYTES_PER_KB) for event, size in bytes_each.items())
    return Metric(name, "count", terms)


_SETS: dict[str, tuple[Metric, ...]] = {
    "ArithmeticUtilization": (
        _ratio("mac_fp16", 0x49),
        _ratio("mac_int8", 0x4A),
        _ratio("vec_fp32", 0x4B),
        _ratio("vec_fp16", 0x4C, 0x4D),
        _ratio("vec_int32", 0x4E),
        _ratio("vec_misc", 0x4F),
        # Multiply-add counts of one cycle of the cube unit and of the vector unit.
        Metric("cube_fops", "count", ((0x49, 8192.0), (0x4A, 16384.0))),
        Metric(
            "vector_fops",
            "count",
            ((0x4B, 64.0), (0x4C, 128.0), (0x4D, 64.0), (0x4E, 64.0), (0x4F, 32.0)),
        ),
    ),
    "PipeUtilization": (
        *_pipe("vec", 0x08),
        *_pipe("mac", 0x0A),
        *_pipe("scalar", 0x09),
        *_pipe("mte1", 0x0B),
        *_pipe("mte2", 0x0C),
        *_pipe("mte3", 0x0D),
        _miss_rate(0x55, 0x54),
    ),
    "PipeUtilizationExct": (
        *_pipe("mac", 0x416, 0x417),
        *_pipe("scalar", 0x09),
        *_pipe("mte1", 0x302),
        *_pipe("mte2", 0x0C),
        *_pipe("fixpipe", 0x303),
        _miss_rate(0x55, 0x54),
    ),
    "PipelineExecuteUtilization": (
        *_pipe("vec_exe", 0x08),
        *_pipe("mac_exe", 0x0A),
        *_pipe("scalar_exe", 0x09),
        *_pipe("mte1_exe", 0x0B),
        *_pipe("mte2_exe", 0x0C),
        *_pipe("mte3_exe", 0x0D),
        _miss_rate(0x55, 0x54),
    ),
    "Memory": (
        _bandwidth("ub_read_bw", 0x15, 128),
        _bandwidth("ub_write_bw", 0x16, 128),
        _bandwidth("l1_read_bw", 0x31, 512),
        _bandwidth("l1_write_bw", 0x32, 128),
        _bandwidth("l2_read_bw", 0x0F, 256),
        _bandwidth("l2_write_bw", 0x10, 256),
        _bandwidth("main_mem_read_bw", 0x12, 8),
        _bandwidth("main_mem_write_bw", 0x13, 8),
    ),
    "MemoryL0": (
        _bandwidth("l0a_read_bw", 0x1B, 512),
        _bandwidth("l0a_write_bw", 0x1C, 512),
        _bandwidth("l0b_read_bw", 0x21, 512),
        _bandwidth("l0b_write_bw", 0x22, 256),
        _bandwidth("l0c_read_bw", 0x27, 256),
        _bandwidth("l0c_read_bw_cube", 0x28, 1024),
        _bandwidth("l0c_write_bw", 0x29, 256),
        _bandwidth("l0c_write_bw_cube", 0x2A, 1024),
    ),
    "MemoryUB": (
        _bandwidth("ub_read_bw_vector", 0x43, 32),
        _bandwidth("ub_write_bw_vector", 0x44, 32),
        _bandwidth("ub_read_bw_scalar", 0x37, 16),
        _bandwidth("ub_write_bw_scalar", 0x38, 16),
    ),
    "ResourceConflictRatio": (
        _ratio("vec_bankgroup_cflt", 0x64),
        _ratio("vec_bank_cflt", 0x65),
        _ratio("vec_resc_cflt", 0x66),
    ),
    "L2Cache": tuple(
        Metric(name, "count", ((event, 1.0),))
        for name, event in (
            ("write_cache_hit", 0x500),
            ("write_cache_miss_allocate", 0x502),
            ("r0_read_cache_hit", 0x504),
            ("r0_read_cache_miss_allocate", 0x506),
            ("r1_read_cache_hit", 0x508),
            ("r1_read_cache_miss_allocate", 0x50A),
        )
    ),
    "MemoryAccess": (
        _kilobytes("read_main_memory_datas", x50d=128, x50e=128),
        _kilobytes("write_main_memory_datas", x50c=128),
        _kilobytes("GM_to_L1_datas", x32=256, x206=-256),
        _kilobytes("L0C_to_L1_datas", x206=128),
        _kilobytes("L0C_to_GM_datas", x20c=128, x206=-128),
        _kilobytes("GM_to_UB_datas", x3e=128),
        _kilobytes("UB_to_GM_datas", x3d=128),
    ),
}

# Sampling also counts the transfers of the memory engine, and a vector write moves fewer bytes.
_SETS_SAMPLED: dict[str, tuple[Metric, ...]] = {
    **_SETS,
    "MemoryUB": (
        _bandwidth("ub_read_bw_vector", 0x43, 32),
        _bandwidth("ub_write_bw_vector", 0x44, 16),
        _bandwidth("ub_read_bw_scalar", 0x37, 16),
        _bandwidth("ub_write_bw_scalar", 0x38, 16),
        _bandwidth("ub_read_bw_mte", 0x3D, 16),
        _bandwidth("ub_write_bw_mte", 0x3E, 16),
    ),
}

# Chips whose cube and vector units share their cores. Newer collectors count other events of the
# unified buffer than older ones: of metrics with the same name, the counted one is used.
_EXECUTED = (
    *_pipe("vec_exe", 0x12C),
    *_pipe("mac_exe", 0x49, 0x4A),
    *_pipe("scalar_exe", 0x09),
    *_pipe("mte1_exe", 0x302),
    *_pipe("mte2_exe", 0x0C),
    *_pipe("mte3_exe", 0x0D),
    *_pipe("fixpipe_exe", 0x303),
)
_VECTOR_READ = Metric("ub_read_bw_vector", "bandwidth", ((0x17F, 32.0), (0x180, 32.0)))
_SETS_ONE_KIND: dict[str, tuple[Metric, ...]] = {
    **_SETS,
    "PipelineExecuteUtilization": _EXECUTED,
    "Memory": (
        _bandwidth("ub_read_bw", 0x15, 128),
        _bandwidth("ub_write_bw", 0x16, 128),
        _bandwidth("l1_read_bw", 0x31, 512),
        _bandwidth("l1_write_bw", 0x32, 256),
        _bandwidth("main_mem_read_bw", 0x12, 8),
        _bandwidth("main_mem_write_bw", 0x13, 8),
    ),
    "MemoryL0": (
        _bandwidth("l0a_read_bw", 0x1B, 512),
        _bandwidth("l0a_write_bw", 0x1C, 512),
        _bandwidth("l0b_read_bw", 0x21, 256),
        _bandwidth("l0b_write_bw", 0x22, 256),
        _bandwidth("l0c_read_bw", 0x27, 256),
        _bandwidth("l0c_read_bw_cube", 0x28, 256),
        _bandwidth("l0c_write_bw", 0x29, 256),
        _bandwidth("l0c_write_bw_cube", 0x2A, 256),
    ),
    "MemoryUB": (_VECTOR_READ, _bandwidth("ub_write_bw_vector", 0x191, 32), *_SETS["MemoryUB"]),
}
# Its vector unit does fewer operations per count of integers and of others.
_SETS_310P: dict[str, tuple[Metric, ...]] = {
    **_SETS_ONE_KIND,
    "ArithmeticUtilization": (
        *_SETS["ArithmeticUtilization"][:-1],
        Metric(
            "vector_fops",
            "count",
            ((0x4B, 64.0), (0x4C, 128.0), (0x4D, 64.0), (0x4E, 16.0), (0x4F, 16.0)),
        ),
    ),
}
_SETS_ONE_KIND_SAMPLED: dict[str, tuple[Metric, ...]] = {
    **_SETS,
    "PipelineExecuteUtilization": _EXECUTED,
    "MemoryUB": (
        _VECTOR_READ,
        _bandwidth("ub_write_bw_vector", 0x191, 16),
        _bandwidth("ub_read_bw_mte", 0x1A5, 16),
        _bandwidth("ub_write_bw_mte", 0x1A6, 16),
        *_SETS_SAMPLED["MemoryUB"],
    ),
}

# Platforms 15 and 16 number their events differently. Their Memory set has no known metric.
_SETS_V6: dict[str, tuple[Metric, ...]] = {
    "PipeUtilization": (
        *_pipe("vec", 0x501),
        *_pipe("mac", 0x301),
        *_pipe("scalar", 0x1),
        *_pipe("mte1", 0x701),
        *_pipe("mte2", 0x202),
        *_pipe("mte3", 0x203),
        *_pipe("fixpipe", 0x714),
        _miss_rate(0x35, 0x34),
    ),
    "ArithmeticUtilization": (
        _ratio("mac_fp16", 0x323),
        _ratio("mac_int8", 0x324),
        Metric("cube_fops", "count", ((0x323, 8192.0), (0x324, 16384.0))),
    ),
    "MemoryL0": (
        _bandwidth("l0a_read_bw", 0x304, 512),
        _bandwidth("l0a_write_bw", 0x703, 512),
        _bandwidth("l0b_read_bw", 0x306, 256),
        _bandwidth("l0b_write_bw", 0x705, 256),
        _bandwidth("l0c_read_bw", 0x712, 256),
        _bandwidth("l0c_read_bw_cube", 0x30A, 256),
        _bandwidth("l0c_write_bw_cube", 0x308, 256),
    ),
    "MemoryUB": (
        _bandwidth("ub_read_bw_scalar", 0x3, 16),
        _bandwidth("ub_write_bw_scalar", 0x5, 16),
        _bandwidth("ub_read_bw_vector", 0x571, 32),
        _bandwidth("ub_write_bw_vector", 0x572, 32),
        _bandwidth("fixp2ub_write_bw", 0x70C, 256),
    ),
    "L2Cache": tuple(
        Metric(f"{access}_local_l2_{outcome}", "count", ((first + index, 1.0),))
        for access, first in (("read", 0x424), ("write", 0x42A))
        for index, outcome in enumerate(("hit", "miss", "victim"))
    ),
    "ResourceConflictRatio": (
        _ratio("vec_bank_cflt", 0x540, 0x556),
        Metric("vec_resc_cflt_ratio", "rate", ((0x528, 1.0), (0x502, 1.0))),
    ),
}
# Sets that a chip can count and of which the exporter writes no rows.
NOT_EVALUATED: Mapping[Family, frozenset[str]] = {"v6": frozenset({"Memory"})}


def parse_events(text: str, limit: int) -> tuple[int, ...]:
    """Parse a list of event numbers such as `0x8,0xa` or `8,10`.

    `text` is ai_core_profiling_events or aiv_profiling_events of sample.json; events beyond
    `limit`, the number of counters in a record, were not counted.

    Raises:
        ValueError: an entry is not a number.
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
