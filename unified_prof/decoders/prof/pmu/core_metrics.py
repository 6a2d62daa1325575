"""Which PMU metrics a recording has, for each kind of AI core, and what they come to.

Chips with separate cube and vector cores have two kinds, AIC and AIV, each with its own events,
number of cores and frequency; on others all cores are of one kind and names have no prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.pmu import pmu_metrics
from unified_prof.decoders.prof.pmu.pmu_metrics import (
    CUSTOM_PREFIX,
    TOTAL_CYCLES,
    TOTAL_TIME,
    Metric,
)
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory
from unified_prof.decoders.prof.raw.platforms import ONE_CORE_KIND_PLATFORMS, V6_PLATFORMS

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
