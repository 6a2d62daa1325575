"""Decodes TASK_PMU_INFO: AI core counter metrics of each task (ffts_profile.data, aicore.data).

A record contains the counters of a task, or of one context of an FFTS+ task, on one kind of core. A
MIX task runs on both kinds: its record contains the main cores, and additional records (one per
core) the other cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Floats, Frame, Ints, Runs
from unified_prof.base.columns import NO_CONTEXT, NO_STREAM, Sink
from unified_prof.decoders.prof import sampling
from unified_prof.decoders.prof.device_samples import read_changes
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.layouts import V6_PLATFORMS
from unified_prof.decoders.prof.pmu_tables import (
    AIC,
    AIV,
    HWTS_FILES,
    SAMPLE_BASED,
    CoreKind,
    core_kinds,
)
from unified_prof.decoders.prof.slices import RawFile
from unified_prof.decoders.prof.task_join import DeviceTasks
from unified_prof.decoders.prof.task_log import decode_words, kernel_runs
from unified_prof.decoders.spool import Rows

# A record becomes up to 34 rows, so pieces are smaller than elsewhere.
_PIECE_BYTES = 1 << 20
_FUNCTION_BITS = 0x3F
_CONTEXT, _BLOCK, _V6 = 40, 41, 42

# FFTS types of records: 0 and 1 are tasks, the others contexts of tasks.
_FFTS_TYPE_SHIFT, _FFTS_TYPE_SHIFT_OF_BYTE = 13, 5
_TASK_ON_AIC, _TASK_ON_AIV, _FIRST_CONTEXT_TYPE, _LAST_CONTEXT_TYPE = 0, 1, 2, 4

# By subtask type of contexts: main cores, True for MIX.
_SUBTASK_BITS, _OVERFLOW = 0xFF, 1 << 10
_CONTEXT_CORE = {0: (AIC, False), 1: (AIV, False), 6: (AIC, True), 7: (AIV, True)}
_V6_MASTER, _V6_MIX, _V6_OVERFLOW = 1, 2, 4


@dataclass(frozen=True, slots=True)
class TaskCounters(Frame):
    """Counters of tasks or contexts; columns of equal length."""

    task_row: Ints  # Row of `DeviceTasks`.
    block_key: NDArray[np.uint64]  # Identity shared with the block records of the task.
    core: Ints  # `AIC` or `AIV`; the main cores of MIX tasks.
    is_mix: Bools
    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    cycles: Floats
    counters: NDArray[np.uint64]  # One column per event.


class BlockCounters(Struct, frozen=True):
    """Counters of individual cores; columns of equal length."""

    block_key: NDArray[np.uint64]
    core: Ints
    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    cycles: NDArray[np.uint64]
    counters: NDArray[np.uint64]


class PmuReader:
    """Reads the PMU records of one device."""

    def __init__(
        self, device: DeviceDirectory, file: RawFile, tasks: DeviceTasks, sink: Sink
    ) -> None:
        self._file, self._tasks, self._sink = file, tasks, sink
        self._v6 = device.has_wide_task_ids
        self._with_contexts = not device.has_one_core_kind
        self._where = f"{device.data.path}/{file.name}.data"

    def tasks(self) -> Iterator[TaskCounters]:
        """Yield the counters of tasks and contexts; other kinds of records are counted."""
        layout = "v6_pmu" if self._v6 else "ffts_context_pmu"
        known = (_V6,) if self._v6 else (_CONTEXT, _BLOCK)
        for piece in self._file.pieces(layout, _PIECE_BYTES):
            function = piece["w0"] & _FUNCTION_BITS
            self._count("pmu_unknown_record", ~np.isin(function, known))
            if self._v6:
                master = (function == _V6) & (piece["flags"] & _V6_MASTER != 0)
                counted = self._v6_tasks(piece[master])
            else:
                counted = self._tasks_and_contexts(piece[function == _CONTEXT])
            if len(counted):
                yield counted

    def blocks(self) -> Iterator[BlockCounters]:
        """Yield the counters of the individual cores of MIX tasks."""
        if self._v6:
            for piece in self._file.pieces("v6_pmu", _PIECE_BYTES):
                slave = piece["w0"] & _FUNCTION_BITS == _V6
                slave &= piece["flags"] & (_V6_MASTER | _V6_MIX) == _V6_MIX
                records = piece[slave]
                key = _v6_task_id(records).astype(np.uint64)
                yield _block_counters(records, key, records["core_type"])
            return
        for piece in self._file.pieces("ffts_block_pmu", _PIECE_BYTES):
            block = piece["w0"] & _FUNCTION_BITS == _BLOCK
            ffts_type = piece["ffts_type_byte"] >> _FFTS_TYPE_SHIFT_OF_BYTE
            records = piece[block & (ffts_type >= _FIRST_CONTEXT_TYPE)]
            stream, task = self._ids(records)
            key = _block_key(stream, task, records["subtask_id"])
            yield _block_counters(records, key, records["core"])

    def _tasks_and_contexts(self, records: Rows) -> TaskCounters:
        ffts_type = records["ffts_type_word"] >> _FFTS_TYPE_SHIFT
        subtask = records["subtask_word"] & _SUBTASK_BITS
        is_context = (ffts_type >= _FIRST_CONTEXT_TYPE) & (ffts_type <= _LAST_CONTEXT_TYPE)
        usable = (ffts_type == _TASK_ON_AIC) | (ffts_type == _TASK_ON_AIV)
        core = (ffts_type == _TASK_ON_AIV).astype(np.int64)
        is_mix = np.zeros(len(records), np.bool_)
        for subtask_type, (main_core, mix) in _CONTEXT_CORE.items():
            rows = is_context & (subtask == subtask_type)
            core[rows], is_mix[rows] = main_core, mix
            usable |= rows
        self._count("pmu_unknown_task_kind", ~usable)
        self._count("pmu_counter_overflow", records["subtask_word"] & _OVERFLOW != 0)
        if not usable.all():
            records, is_context = records[usable], is_context[usable]
            core, is_mix = core[usable], is_mix[usable]
        stream, task = self._ids(records)
        batch = self._tasks.flips.batch_of(stream, task, records["end"], at_flip=True)
        if self._with_contexts:
            context = np.where(is_context, records["subtask_id"], np.uint32(NO_CONTEXT))
        else:
            context = np.full(len(records), NO_CONTEXT, np.uint32)
        return self._with_task_rows(
            self._tasks.pack(stream, task, batch, context),
            _block_key(stream, task, records["subtask_id"]),
            core,
            is_mix,
            records,
        )

    def _v6_tasks(self, records: Rows) -> TaskCounters:
        self._count("pmu_counter_overflow", records["flags"] & _V6_OVERFLOW != 0)
        task = _v6_task_id(records)
        stream = self._tasks.streams.find(task)
        stream = np.where(stream < 0, NO_STREAM, stream)
        none = np.zeros(len(records), np.uint32)
        return self._with_task_rows(
            self._tasks.pack(stream, task, none, none + np.uint32(NO_CONTEXT)),
            task.astype(np.uint64),
            (records["core_type"] & 1).astype(np.int64),
            records["flags"] & _V6_MIX != 0,
            records,
        )

    def _with_task_rows(
        self,
        task_key: NDArray[np.uint64],
        block_key: NDArray[np.uint64],
        core: Ints,
        is_mix: Bools,
        records: Rows,
    ) -> TaskCounters:
        """Return the counters of logged tasks; other records are dropped and counted."""
        task_row = self._tasks.find(task_key)
        self._count("pmu_without_task", task_row < 0)
        return TaskCounters(
            task_row=task_row,
            block_key=block_key,
            core=core,
            is_mix=is_mix,
            start=records["start"],
            end=records["end"],
            cycles=records["total_cycle"].astype(np.float64),
            counters=records["pmu"],
        ).take(task_row >= 0)

    def _ids(self, records: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
        return decode_words(
            records["stream_id"], records["task_id"], expanded=self._tasks.expanded_streams
        )

    def _count(self, name: str, mask: Bools) -> None:
        if count := int(mask.sum()):
            self._sink.anomaly(name, count, self._where)


def _block_counters(records: Rows, key: NDArray[np.uint64], core: NDArray[Any]) -> BlockCounters:
    return BlockCounters(
        block_key=key,
        core=(core & 1).astype(np.int64),
        start=records["start"],
        end=records["end"],
        cycles=records["total_cycle"],
        counters=records["pmu"],
    )


class MixBlocks:
    """Sums the counters of MIX tasks on the cores of the other kind.

    A block record belongs to the running task with the same ids. If there are more records than
    blocks of the task on the other cores (`limit`), only the first ones are used.
    """

    def __init__(self, tasks: TaskCounters, limit: NDArray[Any]) -> None:
        self._distinct = np.unique(tasks.block_key)
        self._starts = np.sort(tasks.start)
        place = self._place(tasks.block_key, tasks.start)
        self._order = np.argsort(place, kind="stable")
        self._places = place[self._order]
        self._tasks = tasks
        self._left = np.asarray(limit, np.int64).copy()
        self.cycles = np.zeros(len(tasks))  # Cycles of all blocks of each task.
        # Counters of all blocks of each task.
        self.counters: Floats = np.zeros(tasks.counters.shape)

    def add(self, blocks: BlockCounters) -> None:
        """Add block records to their tasks; records without a task are ignored."""
        row = self._task_of(blocks)
        chosen = np.flatnonzero(row >= 0)
        if not len(chosen):
            return
        chosen = chosen[np.argsort(row[chosen], kind="stable")]
        row = row[chosen]
        same = Runs(row)
        within = same.rank() < self._left[row]
        self._left[row[same.starts]] -= same.sizes
        row, chosen = row[within], chosen[within]
        tasks = len(self.cycles)
        self.cycles += np.bincount(row, blocks.cycles[chosen].astype(np.float64), tasks)
        for event in range(self.counters.shape[1]):
            counts = blocks.counters[chosen, event].astype(np.float64)
            self.counters[:, event] += np.bincount(row, counts, tasks)

    def _task_of(self, blocks: BlockCounters) -> Ints:
        """Return the row of the task for each block, or -1."""
        last = np.searchsorted(
            self._places, self._place(blocks.block_key, blocks.start), side="right"
        )
        row = self._order[np.maximum(last - 1, 0)]
        tasks = self._tasks
        belongs = (
            (last > 0)
            & (tasks.block_key[row] == blocks.block_key)
            & (tasks.core[row] != blocks.core)
            & (tasks.start[row] <= blocks.start)
            & (blocks.end <= tasks.end[row])
        )
        return np.where(belongs, row, -1)

    def _place(self, key: NDArray[np.uint64], start: NDArray[np.uint64]) -> Ints:
        """Return values that sort by key, then time; times between two starts are equal."""
        by_key = np.searchsorted(self._distinct, key).astype(np.int64)
        by_time = np.searchsorted(self._starts, start, side="right").astype(np.int64)
        return np.asarray(by_key << np.int64(32) | by_time, np.int64)


def _block_key(
    stream: NDArray[Any], task: NDArray[Any], context: NDArray[Any]
) -> NDArray[np.uint64]:
    key = stream.astype(np.uint64) << np.uint64(32)
    key |= task.astype(np.uint64) << np.uint64(16)
    key |= context.astype(np.uint64)
    return np.asarray(key, np.uint64)


def _v6_task_id(records: Rows) -> NDArray[np.uint32]:
    high = records["task_id_high"].astype(np.uint32) << np.uint32(16)
    return np.asarray(high | records["task_id_low"], np.uint32)


_FILE = "ffts_profile"

# Platforms whose counters by task the exporter evaluates.
_PLATFORMS = (5, 7, 8, 9, 11, *V6_PLATFORMS)


def decode_task_pmu(device: DeviceDirectory, tasks: DeviceTasks, sink: Sink) -> None:
    """Write TASK_PMU_INFO: all metrics of all tasks on AIC and AIV cores; 0 for unused cores.

    The first pass over the file writes tasks on one kind of core and collects MIX tasks; the second
    pass sums their other cores. Memory use grows by a few hundred bytes per MIX task.
    """
    if device.sample.text("ai_core_profiling_mode") == SAMPLE_BASED:
        return
    if device.has_hwts_log:
        _decode_hwts(device, tasks, sink)
        return
    file = device.data.get(_FILE)
    if not file or device.platform not in _PLATFORMS:
        detail = f"{device.data.path}: AI core counters by task of platform {device.platform}"
        sink.anomaly("task_pmu_not_evaluated", 1, f"{detail} have no table in the database")
        return
    kinds = core_kinds(device, sink)
    if not kinds:
        return
    reader = PmuReader(device, file, tasks, sink)
    writer = _Writer(device, tasks, kinds, sink)
    mixed: list[TaskCounters] = []
    for counted in reader.tasks():
        on_both = counted.is_mix & (len(kinds) > 1)
        writer.write(counted.take(~on_both))
        if on_both.any():
            mixed.append(counted.take(on_both))
    if not mixed:
        return
    mix_tasks = TaskCounters.concatenate(mixed)
    blocks = MixBlocks(mix_tasks, tasks.mix_block_num[mix_tasks.task_row])
    for records in reader.blocks():
        blocks.add(records)
    writer.write(mix_tasks, blocks)


def _decode_hwts(device: DeviceDirectory, tasks: DeviceTasks, sink: Sink) -> None:
    """Write UPROF_TASK_PMU_INFO: counters by task of platforms 1 and 4, which msprof only exports.

    Records have no time: the n-th of a stream and task id belongs to the n-th kernel with these
    ids. The stream is at byte 96, which msprof's Python export (`AicPmuBean`) and MindSpore's
    `FlopsParser` agree on.
    """
    kinds = core_kinds(device, sink)
    starts, batch = kernel_runs(device, tasks.flips)
    runs = starts["identity"]
    none = np.full(len(runs), NO_CONTEXT, np.uint32)
    key = tasks.pack(runs >> np.uint64(16), runs & np.uint64(0xFFFF), batch, none)
    order = np.argsort(runs, kind="stable")
    task_row, runs = tasks.find(key)[order], runs[order]
    for kind, (name, _) in zip(kinds, HWTS_FILES, strict=False):
        names = sink.strings.intern_all(kind.names)
        seen = np.zeros(len(runs) + 1, np.int64)  # by first row of the ids in `runs`
        for records in device.data.get(name).pieces("aicore_task", _PIECE_BYTES):
            ids = (records["stream_word"] % 2048).astype(np.uint64) << np.uint64(16)
            ids |= records["task_id"]
            order = np.argsort(ids, kind="stable")
            ids = ids[order]
            same, first = Runs(ids), np.searchsorted(runs, ids)
            first[np.searchsorted(runs, ids, side="right") == first] = len(runs)  # no such kernel
            place = first + seen[first] + same.rank()
            np.add.at(seen, first[same.starts], same.sizes)
            ran = place < np.searchsorted(runs, ids, side="right")
            row = task_row[place[ran]]
            sink.anomaly(
                "pmu_without_task",
                len(records) - int((row >= 0).sum()),
                f"{device.data.path}/{name}.data",
            )
            counted, row = records[order[ran]][row >= 0], row[row >= 0]
            cycles = counted["total_cycle"].astype(np.float64)
            mhz = np.full(len(row), kind.frequency_mhz)
            time_ns = kind.time_on_cores_ns(cycles, mhz, tasks.block_num[row])
            values = kind.values(counted["pmu"], cycles, time_ns)
            _write(sink, "UPROF_TASK_PMU_INFO", tasks.ids_of(row), names, values)


def _write(sink: Sink, table: str, task_ids: Ints, names: NDArray[Any], values: Floats) -> None:
    """Write the values of tasks: one row per task and name."""
    columns = {"name": np.tile(names, len(task_ids)), "value": values.ravel()}
    sink.write(table, {"globalTaskId": np.repeat(task_ids, len(names)), **columns})


class _Writer:
    """Computes and writes the metrics of tasks."""

    def __init__(
        self, device: DeviceDirectory, tasks: DeviceTasks, kinds: Sequence[CoreKind], sink: Sink
    ) -> None:
        self._tasks, self._kinds, self._sink = tasks, kinds, sink
        self._ticks, self._mhz = read_changes(device)
        if (self._mhz == 0).any():  # As in the exporter, the rated frequency is used.
            self._ticks, self._mhz = self._ticks[:0], self._mhz[:0]
        # On platforms 15 and 16, the time of a task is that of its record, not of its cycles.
        self._tick_ns = None
        if device.has_wide_task_ids:
            self._tick_ns = float(sampling.device_clock(device, f"{_FILE}.data").rate)
        names = [name for kind in kinds for name in kind.names]
        self._name_ids = np.asarray(sink.strings.intern_all(names), np.int64)
        self._first_column = np.cumsum([0, *(len(kind.names) for kind in kinds)])

    def write(self, counted: TaskCounters, others: MixBlocks | None = None) -> None:
        """Write tasks; `others` has the counters of MIX tasks on the other kind of cores."""
        if not len(counted):
            return
        values = np.zeros((len(counted), len(self._name_ids)))
        blocks = self._tasks.block_num[counted.task_row]
        other_blocks = self._tasks.mix_block_num[counted.task_row]
        core = counted.core if len(self._kinds) > 1 else np.zeros_like(counted.core)
        for index in range(len(self._kinds)):
            main = core == index
            self._fill(values, main, index, counted, blocks, counted.counters, counted.cycles)
            if others is not None:
                self._fill(
                    values, ~main, index, counted, other_blocks, others.counters, others.cycles
                )
        task_ids = self._tasks.ids_of(counted.task_row)
        _write(self._sink, "TASK_PMU_INFO", task_ids, self._name_ids, values)

    def _fill(
        self,
        values: Floats,
        chosen: Bools,
        index: int,
        counted: TaskCounters,
        blocks: NDArray[np.uint32],
        counters: NDArray[Any],
        cycles: Floats,
    ) -> None:
        """Compute the metrics of the chosen tasks on one kind of core."""
        if not chosen.any():
            return
        kind = self._kinds[index]
        if self._tick_ns is None:
            # The frequency of the cores at the end of each task.
            mhz = np.append(kind.frequency_mhz, self._mhz.astype(np.float64))
            frequency = mhz[np.searchsorted(self._ticks, counted.end[chosen], "right")]
            time_ns = kind.time_on_cores_ns(cycles[chosen], frequency, blocks[chosen])
        else:
            ticks = (counted.end[chosen] - counted.start[chosen]).astype(np.int64)
            time_ns = kind.rounded_ns(np.maximum(ticks, 0) * self._tick_ns)
        first, end = self._first_column[index : index + 2]
        values[chosen, first:end] = kind.values(counters[chosen], cycles[chosen], time_ns)
