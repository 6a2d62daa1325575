"""TASK_PMU_INFO: what the performance counters of the AI cores counted for every task.

ffts_profile.data of platforms with the stars scheduler. One record has the counters of a task, or
of one context of an FFTS+ task, on the cores of one kind. A MIX task runs on both kinds: its
record counts the main cores, further records (one a core) the other ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.device.joined_tasks import DeviceTasks
from unified_prof.decoders.prof.pmu.core_metrics import AIC, AIV, CoreKind, core_kinds
from unified_prof.decoders.prof.pmu.frequency import usable_changes
from unified_prof.decoders.prof.pmu.pmu_records import Counted, MixBlocks, PmuReader
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory
from unified_prof.decoders.prof.raw.platforms import V6_PLATFORMS

_FILE = "ffts_profile"
_SAMPLE_BASED = "sample-based"

# Platforms whose task-based counters the exporter evaluates.
_PLATFORMS = (5, 7, 8, 9, 11, *V6_PLATFORMS)


def decode(device: DeviceDirectory, tasks: DeviceTasks, sink: Sink) -> None:
    """Write TASK_PMU_INFO: every metric of every task, AIC and AIV, 0 for cores not used.

    Two passes over the file: the first writes the tasks that ran on one kind of cores and finds
    the MIX tasks, the second adds up what their other cores counted. So memory grows with MIX
    tasks only, by a few hundred bytes each.
    """
    file = device.data.get(_FILE)
    if file is None or device.sample.text("ai_core_profiling_mode") == _SAMPLE_BASED:
        return
    if device.platform not in _PLATFORMS:
        sink.anomaly(
            "task_pmu_not_evaluated",
            1,
            f"{device.data.path}: task-based counters of platform {device.platform}",
        )
        return
    kinds = core_kinds(device, sink)
    if not kinds:
        return
    reader = PmuReader(device, file, tasks, sink)
    writer = _Writer(device, tasks, kinds, sink)
    mixed: list[Counted] = []
    for counted in reader.tasks():
        on_both = counted.is_mix & (len(kinds) > 1)
        writer.write(counted.where(~on_both))
        if on_both.any():
            mixed.append(counted.where(on_both))
    if not mixed:
        return
    mix_tasks = Counted.concatenate(mixed)
    blocks = MixBlocks(mix_tasks, writer.mix_block_num(mix_tasks))
    for records in reader.blocks():
        blocks.add(records)
    writer.write_mix(mix_tasks, blocks)


class _Writer:
    """Turns counters into rows."""

    def __init__(
        self, device: DeviceDirectory, tasks: DeviceTasks, kinds: Sequence[CoreKind], sink: Sink
    ) -> None:
        self._tasks, self._kinds, self._sink = tasks, kinds, sink
        self._changes = usable_changes(device)
        # Platforms 15 and 16: the time of a task is that of its record, not that of its cycles.
        self._tick_ns = (
            float(sampling.device_clock(device, f"{_FILE}.data").rate)
            if device.platform in V6_PLATFORMS
            else None
        )
        names = [name for kind in kinds for name in kind.names]
        self._name_ids = np.asarray(sink.strings.intern_all(names), np.int64)
        self._first_column = np.cumsum([0, *(len(kind.names) for kind in kinds)])

    def mix_block_num(self, counted: Counted) -> NDArray[np.uint32]:
        """Return on how many other cores' blocks each task ran."""
        return self._tasks.mix_block_num[counted.task_row]

    def write(self, counted: Counted) -> None:
        """Write tasks that ran on one kind of cores."""
        values = np.zeros((len(counted), len(self._name_ids)))
        blocks = self._tasks.block_num[counted.task_row]
        core = counted.core if len(self._kinds) > 1 else np.zeros_like(counted.core)
        for index in range(len(self._kinds)):
            chosen = core == index
            self._fill(values, chosen, index, counted, blocks, counted.counters, counted.cycles)
        self._append(counted, values)

    def write_mix(self, counted: Counted, blocks: MixBlocks) -> None:
        """Write tasks that ran on both kinds of cores."""
        values = np.zeros((len(counted), len(self._name_ids)))
        main = self._tasks.block_num[counted.task_row]
        other = self.mix_block_num(counted)
        for index in (AIC, AIV):
            chosen = counted.core == index
            self._fill(values, chosen, index, counted, main, counted.counters, counted.cycles)
            self._fill(values, ~chosen, index, counted, other, blocks.counters, blocks.cycles)
        self._append(counted, values)

    def _fill(
        self,
        values: NDArray[np.float64],
        chosen: NDArray[np.bool_],
        index: int,
        counted: Counted,
        blocks: NDArray[np.uint32],
        counters: NDArray[Any],
        cycles: NDArray[np.float64],
    ) -> None:
        """Compute the metrics of one kind of cores for the chosen tasks."""
        if not chosen.any():
            return
        kind = self._kinds[index]
        if self._tick_ns is None:
            frequency = self._frequency_at(counted.end[chosen], kind)
            time_ns = kind.time_on_cores_ns(cycles[chosen], frequency, blocks[chosen])
        else:
            ticks = (counted.end[chosen] - counted.start[chosen]).astype(np.int64)
            time_ns = kind.rounded_ns(np.maximum(ticks, 0) * self._tick_ns)
        first, end = self._first_column[index : index + 2]
        values[chosen, first:end] = kind.values(counters[chosen], cycles[chosen], time_ns)

    def _frequency_at(self, ticks: NDArray[np.uint64], kind: CoreKind) -> NDArray[np.float64]:
        """Return the cores' frequency at device times, MHz."""
        frequencies: NDArray[np.float64] = np.concatenate(
            [[kind.frequency_mhz], self._changes.mhz.astype(np.float64)]
        )
        last = np.searchsorted(self._changes.ticks, ticks, side="right")
        return np.asarray(frequencies[last], np.float64)

    def _append(self, counted: Counted, values: NDArray[np.float64]) -> None:
        if not len(counted):
            return
        task_ids = self._tasks.ids_of(counted.task_row)
        self._sink.write(
            "TASK_PMU_INFO",
            {
                "globalTaskId": np.repeat(task_ids, len(self._name_ids)),
                "name": np.tile(self._name_ids, len(counted)),
                "value": values.ravel(),
            },
        )
