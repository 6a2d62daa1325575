"""Which PMU metrics a recording has, for each kind of AI core, and what they come to.

Chips with separate cube and vector cores have two kinds, AIC and AIV, each with its own events,
number of cores and frequency; on others all cores are of one kind and names have no prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof import pmu_metrics, samples
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.pmu_metrics import CUSTOM_PREFIX, TOTAL_CYCLES, TOTAL_TIME, Metric

AIC, AIV = 0, 1

V6_PLATFORMS = (15, 16)
# Chips whose cube and vector units share their cores.
_ONE_KIND_PLATFORMS = (7, 8, 11)

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
        return samples.rounded(time_ns / _NS_PER_US, 2) * _NS_PER_US if self.rounded else time_ns

    def values(self, counters: NDArray[np.uint64], cycles: Float64, time_ns: Float64) -> Float64:
        """Return a column for every name, a row for every task."""
        derived = pmu_metrics.evaluate(
            self.metrics, self.events, counters, cycles, time_ns, self.frequency_mhz
        )
        return np.column_stack([time_ns, cycles, derived])


def core_kinds(device: DeviceDirectory, sink: Sink) -> tuple[CoreKind, ...]:
    """Return the kinds of cores of a device, by `AIC` and `AIV`; empty when nothing is known.

    What sample.json asks for that has no known formula is counted as an anomaly.
    """
    one_kind = device.platform in _ONE_KIND_PLATFORMS
    kinds = [_kind(device, "ai_core_metrics", "ai_core", "aic", "" if one_kind else "aic_")]
    if not one_kind:
        kinds.append(_kind(device, "aiv_metrics", "aiv", "aiv", "aiv_"))
    found = tuple(kind for kind in kinds if kind is not None and kind.metrics)
    if len(found) < len(kinds):
        sink.anomaly(
            "unknown_pmu_metrics",
            1,
            f"{device.sample.path}: no formulas for metrics"
            f" {device.sample.text('ai_core_metrics')!r} and"
            f" {device.sample.text('aiv_metrics')!r} with the events given"
            f" on platform {device.platform}",
        )
        return ()
    return found


def _kind(
    device: DeviceDirectory, metrics_key: str, events_key: str, info_key: str, prefix: str
) -> CoreKind | None:
    v6 = device.platform in V6_PLATFORMS
    set_name = device.sample.text(metrics_key)
    try:
        events = pmu_metrics.parse_events(
            device.sample.text(f"{events_key}_profiling_events"),
            _COUNTERS_V6 if v6 else _COUNTERS,
        )
    except ValueError:
        return None
    one_kind = device.platform in _ONE_KIND_PLATFORMS
    info = device.device_info
    frequency = info.decimal(f"{info_key}_frequency")
    return CoreKind(
        prefix=prefix,
        events=events,
        metrics=pmu_metrics.metrics_of(
            set_name, events, "v6" if v6 else "one kind" if one_kind else "two kinds"
        ),
        cores=max(info.integer("ai_core_num" if info_key == "aic" else "aiv_num") or 0, 0),
        frequency_mhz=float(frequency or 0),
        rounded=one_kind or set_name.startswith(CUSTOM_PREFIX),
    )
