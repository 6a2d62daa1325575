"""Table op_summary: one row per kernel and per collective operator, in order of time.

`CoreMetrics` has its columns of AI core counters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Bools, Floats, Ints, Lookup, occurrence
from unified_prof.base.columns import NOT_AVAILABLE
from unified_prof.export.mindstudio import registry
from unified_prof.export.mindstudio.registry import (
    Cells,
    Delivery,
    Recording,
    blocks,
    cell_lines,
    in_order_of_text,
    ranks_of_texts,
)
from unified_prof.sqlite.atomic import temporary_folder

# Larger matrices are mapped from a temporary file.
_IN_MEMORY_BYTES = 64 << 20


def _both(*stems: str) -> set[str]:
    return {f"{stem}_{end}" for stem in stems for end in ("ratio", "time")}


# Counters that a kind of core does not have; msprof computes them but does not show them.
_NOT_OF_CUBE_CORES = {
    *_both("vec"),
    *("ub_read_bw", "ub_write_bw", "ub_read_bw_mte", "ub_write_bw_mte"),
    *("ub_read_bw_vector", "ub_write_bw_vector", "l0c_read_bw", "l0c_write_bw", "vector_fops"),
    *(f"vec_{what}_ratio" for what in ("fp32", "fp16", "int32", "misc")),
    *(f"vec_{what}_ratio" for what in ("fp16_128lane", "fp16_64lane")),
    *(f"vec_{what}_cflt_ratio" for what in ("bankgroup", "bank", "resc")),
}
_NOT_OF_VECTOR_CORES = {
    *_both("mac", "mte1", "fixpipe"),
    *("l1_read_bw", "l1_write_bw", "mac_fp16_ratio", "mac_int8_ratio", "cube_fops"),
    *(f"l0{which}_{way}_bw" for which in "ab" for way in ("read", "write")),
    *("l0c_read_bw_cube", "l0c_write_bw_cube"),
}
_HIDDEN = {f"aic_{name}" for name in _NOT_OF_CUBE_CORES} | {
    f"aiv_{name}" for name in _NOT_OF_VECTOR_CORES
}

# Metrics with a fixed order of columns; all others follow the order of the table.
_ORDER = (
    *("ub_read_bw", "ub_write_bw", "l1_read_bw", "l1_write_bw"),
    *("main_mem_read_bw", "main_mem_write_bw", "l2_read_bw", "l2_write_bw"),
    *("l0a_read_bw", "l0a_write_bw", "l0b_read_bw", "l0b_write_bw"),
    *("l0c_read_bw", "l0c_write_bw", "l0c_read_bw_cube", "l0c_write_bw_cube"),
    *("ub_read_bw_vector", "ub_write_bw_vector", "ub_read_bw_scalar", "ub_write_bw_scalar"),
    "fixp2ub_write_bw",
)
_TITLES = {
    "total_time": "aicore_time(us)",
    "aic_total_time": "aicore_time(us)",
    "aiv_total_time": "aiv_time(us)",
}
_ONLY_WITH_CONTEXTS = {"aiv_time(us)", "aiv_total_time(us)"}
_NS_PER_US = 1000.0


def _core(name: str) -> str:
    return name[:4] if name.startswith(("aic_", "aiv_")) else ""


def visible_metrics(names: Sequence[str]) -> list[str]:
    """Return the metrics that have a column, in the order of the columns.

    Metrics are grouped by kind of core. Within a group, the metrics of `_ORDER` are sorted by
    `_ORDER`; the others keep their positions.
    """
    result: list[str] = []
    for core in dict.fromkeys(map(_core, names)):
        block = [name for name in names if _core(name) == core and name not in _HIDDEN]
        ranked = sorted(
            (name for name in block if name.removeprefix(core) in _ORDER),
            key=lambda name: _ORDER.index(name.removeprefix(_core(name))),
        )
        following = iter(ranked)
        result += [next(following) if n.removeprefix(core) in _ORDER else n for n in block]
    return result


def title(name: str) -> str:
    """Return the column title of a metric: its name, with the unit if it has one."""
    if name in _TITLES:
        return _TITLES[name]
    for part, unit in (("time", "(us)"), ("bw", "(GB/s)"), ("datas", "(KB)")):
        if part in name:
            return name if name.endswith(unit) else f"{name}{unit}"
    return name


class CoreMetrics:
    """AI core metrics of tasks.

    A task that ran several times, for example in a captured graph, has one record per run.
    `scratch` is a directory for a matrix that does not fit into memory.
    """

    def __init__(self, recording: Recording, scratch: Path) -> None:
        self._recording, self._scratch = recording, scratch
        self._table = recording.task_counters
        first = next(self._windows(), None)
        self.is_empty = first is None or not len(first[0]["name"])
        if self.is_empty:
            return
        assert first is not None
        counted = recording.source.columns(
            f"SELECT globalTaskId AS key, count(*) AS rows FROM {self._table}"
            " WHERE name = ? AND typeof(globalTaskId) = 'integer' GROUP BY 1",
            [int(first[0]["name"][0])],
        )
        self._tasks = Lookup(counted["key"])
        self._count = counted["rows"].astype(np.int64)
        self._first = np.cumsum(self._count) - self._count

    @cached_property
    def _matrix(self) -> Floats:
        names = self._metric_ids
        shape = (int(self._count.sum()), len(names))
        matrix: Floats
        if 8 * shape[0] * shape[1] <= _IN_MEMORY_BYTES:
            matrix = np.empty(shape)
        else:
            matrix = np.memmap(self._scratch / "core_metrics", np.float64, "w+", shape=shape)
        matrix[:] = np.nan
        # Number of values so far, if tasks have several records.
        repeats = (self._count > 1).any()
        seen = np.zeros((len(self._count), len(names)), np.int32) if repeats else None
        lost = 0
        for ints, reals in self._windows():
            task = self._tasks.rows(ints["globalTaskId"]).astype(np.int64)
            name = np.array([names.get(one, -1) for one in ints["name"].tolist()], np.int64)
            known = (task >= 0) & (name >= 0)
            task, name, value = task[known], name[known], reals["value"][known]
            turn = _turns(seen, task, name)
            fits = turn < self._count[task]
            lost += len(known) - int(fits.sum())
            matrix[self._first[task[fits]] + turn[fits], name[fits]] = value[fits]
        if lost:
            self._recording.findings.add(
                "metric_without_record",
                f"{lost} rows of {self._table} have no matching record",
                lost,
            )
        return matrix

    def _windows(self) -> Iterator[tuple[dict[str, Ints], dict[str, Floats]]]:
        """Yield the ids and values of the table in windows of a few thousand rows."""
        columns = {"globalTaskId": "[globalTaskId]", "name": "[name]"}
        for ids, rows in self._recording.source.windows(self._table, columns):
            yield ids, self._recording.reals(self._table, ["value"], rows.sql, rows.values)

    @cached_property
    def _metric_ids(self) -> dict[int, int]:
        """Text id of each metric -> its column of the matrix, in the order of the table."""
        found: dict[int, int] = {}
        for ints, _ in self._windows():
            distinct, where = np.unique(ints["name"], return_index=True)
            for place in np.argsort(where).tolist():
                found.setdefault(int(distinct[place]), len(found))
        return found

    @cached_property
    def _columns(self) -> list[tuple[str, int]]:
        """(metric, column of the matrix), in the order in which they are shown."""
        by_name = {self._recording.text(number): at for number, at in self._metric_ids.items()}
        return [(name, by_name[name]) for name in visible_metrics(list(by_name))]

    @cached_property
    def _bound(self) -> list[str]:
        """Inputs of memory_bound; empty if they were not recorded."""
        names = {name for name, _ in self._columns}
        units = ("mac", "vec", "mte2")
        inputs = ([f"{unit}{part}_ratio" for unit in units] for part in ("", "_exe"))
        return next(filter(names.issuperset, inputs), [])

    @cached_property
    def has_cube(self) -> bool:
        """True if there are the inputs of the cube utilization, without the number of cores."""
        names = {name for name, _ in self._columns}
        return any(names >= {f"{core}mac_ratio", f"{core}total_cycles"} for core in ("aic_", ""))

    def records(self, task_ids: Ints) -> Ints:
        """Return the record of each task, or -1; the k-th row of a task has its k-th record."""
        if self.is_empty:
            return np.full(len(task_ids), -1, np.int64)
        task = self._tasks.rows(task_ids).astype(np.int64)
        known = task >= 0
        turn = np.zeros(len(task), np.int64)
        turn[known] = occurrence(task[known])
        has = known & (turn < np.where(known, self._count[task], 0))
        return np.where(has, self._first[task] + turn, -1)

    def cells(self, records: Ints) -> Cells:
        """Return the columns of rows."""
        if self.is_empty:
            return []
        values = self._matrix[np.maximum(records, 0)]
        values[records < 0] = np.nan
        by_name = {name: self._texts(name, values[:, at]) for name, at in self._columns}
        cells = [
            (title(name), texts)
            for name, texts in by_name.items()
            if self._recording.has_contexts or title(name) not in _ONLY_WITH_CONTEXTS
        ]
        if self._bound:
            inputs = zip(*(by_name[name] for name in self._bound), strict=True)
            cells.append(("memory_bound", [_memory_bound(*row) for row in inputs]))
        if self.has_cube:
            cells.append(("cube_utilization(%)", [NOT_AVAILABLE] * len(records)))
        return cells

    @staticmethod
    def _texts(name: str, values: Floats) -> list[str]:
        if "cycle" in name:
            return registry.cycles(values)
        return registry.rounded(values / _NS_PER_US if name.endswith("_time") else values)


def _memory_bound(mac: str, vector: str, transfer: str) -> str:
    """Return the transfer ratio over the larger of the two compute ratios.

    Without any computation it is not a number; msprof writes 0, as if nothing was transferred.
    """
    if NOT_AVAILABLE in (mac, vector, transfer) or not (busy := max(float(mac), float(vector))):
        return NOT_AVAILABLE
    return f"{float(transfer) / busy:.6f}"


def _turns(seen: NDArray[np.int32] | None, task: Ints, name: Ints) -> Ints:
    """Return the record of its task that each value belongs to, and count it in `seen`."""
    if seen is None:
        return np.zeros(len(task), np.int64)
    key = task * seen.shape[1] + name
    turn = occurrence(key) + seen[task, name]
    np.add.at(seen, (task, name), 1)
    return turn


# Title -> column of texts of COMPUTE_TASK_INFO.
_OPERATOR = {"Op Name": "name", "OP Type": "opType", "OP State": "opState", "Task Type": "taskType"}
_PROPERTIES = {
    "HF32 Eligible": "hf32Eligible",
    "Input Shapes": "inputShapes",
    "Input Data Types": "inputDataTypes",
    "Input Formats": "inputFormats",
    "Output Shapes": "outputShapes",
    "Output Data Types": "outputDataTypes",
    "Output Formats": "outputFormats",
}
_COLLECTIVE = "COMMUNICATION"
# Types of tasks that are parts of other rows.
_NO_KERNELS = ("WRITE_BACK", "INVALID", "HCCL_AI_CPU")
_COLLECTIVE_KERNEL = "AivKernel"  # Suffix of kernels that run a whole collective operator.


def write_op_summary(recording: Recording, delivery: Delivery) -> None:
    """Write op_summary; columns of tensors and counters are N/A for collectives."""
    with temporary_folder() as scratch:
        _Summary(recording, scratch).write(delivery)


class _Summary:
    def __init__(self, recording: Recording, scratch: Path) -> None:
        self._recording = recording
        self._collectives = recording.collectives
        tasks, kernels = recording.tasks, recording.kernels
        self._has_kernels = len(kernels) > 0 and len(tasks) > 0
        info = kernels.rows_of(tasks.id)
        self._task = np.flatnonzero(info >= 0)
        self._task = self._task[_is_shown(recording, info[self._task])]
        self._info = info[self._task]
        self._metrics = CoreMetrics(recording, scratch)
        self._record = self._metrics.records(tasks.id[self._task])

    def write(self, delivery: Delivery) -> None:
        tasks, others = self._recording.tasks, self._collectives
        device = np.concatenate([tasks.device[self._task], others.device]).astype(np.int64)
        start = np.concatenate([tasks.start_ns[self._task], others.start_ns])
        duration = np.concatenate([tasks.duration_ns[self._task], others.duration_ns])
        # msprof leaves the order of rows with equal times open; here collectives come first.
        is_kernel = np.arange(len(start)) < len(self._task)
        order = np.lexsort((is_kernel, in_order_of_text(start), ranks_of_texts(device)))
        waits = _waits(start[order], duration[order])
        header = [title for title, _ in self._kernels(np.empty(0, np.int64), [])]
        blocks = self._blocks(order, waits, len(header))
        delivery.table("op_summary", header, len(order), blocks)
        if self._metrics.has_cube:
            self._recording.leave_out(
                "op_summary",
                "cube_utilization(%)",
                "the database does not have the number of cores and their rated frequency",
            )
        if len(self._task) and self._metrics.is_empty and not self._recording.has_contexts:
            self._recording.leave_out(
                "op_summary", "AI core counters", "msprof's databases of this chip do not have them"
            )

    def _blocks(self, order: Ints, waits: Floats, width: int) -> Iterator[Sequence[str]]:
        for part in blocks(len(order)):
            wait = [f"{one:.6f}" for one in waits[part].tolist()]
            if part.start == 0:
                wait[0] = "0"
            places = order[part]
            is_kernel = places < len(self._task)
            block = np.empty(len(places), object)
            cells = np.array(wait, object)
            kernels = self._kernels(places[is_kernel], cells[is_kernel].tolist())
            block[is_kernel] = cell_lines(kernels)
            others = places[~is_kernel] - len(self._task)
            block[~is_kernel] = self._operators(others, cells[~is_kernel].tolist(), width)
            yield block.tolist()

    def _kernels(self, rows: Ints, wait: list[str]) -> Cells:
        recording, tasks = self._recording, self._recording.tasks
        task, info = self._task[rows], self._info[rows]
        columns = recording.kernels.columns
        start, end = tasks.start_ns[task], tasks.end_ns[task]

        def texts(names: Mapping[str, str]) -> Cells:
            return [(title, recording.cells(columns[name][info])) for title, name in names.items()]

        cells = [
            ("Device_id", registry.integers(tasks.device[task])),
            ("Model ID", registry.integers(tasks.model[task])),
            ("Task ID", registry.integers(tasks.number[task])),
            ("Stream ID", registry.integers(tasks.stream[task])),
            *texts(_OPERATOR),
            ("Task Start Time(us)", registry.tabbed_us(start)),
            ("Task Duration(us)", registry.microseconds(end - start)),
            ("Task Wait Time(us)", wait),
        ]
        counters = self._metrics.cells(self._record[rows])
        if self._has_kernels:
            cells.append(("Block Num", registry.integers(columns["blockNum"][info])))
            if recording.has_contexts:
                cells.append(("Mix Block Num", registry.integers(columns["mixBlockNum"][info])))
            cells += texts(_PROPERTIES)
        if recording.has_contexts:
            context = np.where(tasks.has_context[task], tasks.context[task], MISSING)
            cells.append(("Context ID", registry.integers(context)))
        return [*cells, *counters] if self._has_kernels else cells

    def _operators(self, rows: Ints, wait: list[str], width: int) -> list[str]:
        others, columns = self._collectives, self._collectives.columns
        start, end = others.start_ns[rows], others.end_ns[rows]
        nothing = [NOT_AVAILABLE] * len(rows)
        cells = [
            registry.integers(others.device[rows]),
            registry.integers(others.model[rows]),
            nothing,
            nothing,
            self._recording.cells(columns["opName"][rows]),
            self._recording.cells(columns["opType"][rows]),
            nothing,
            [_COLLECTIVE] * len(rows),
            registry.tabbed_us(start),
            registry.microseconds(end - start),
            wait,
            ["0"] * len(rows),  # The block number; without kernels it is in the last column.
            *[nothing] * width,
        ]
        return list(map(",".join, zip(*cells[:width], strict=True)))


def _is_shown(recording: Recording, info: Ints) -> Bools:
    """Return which kernels have a row: all but the tasks that are parts of a collective."""
    columns = recording.kernels.columns
    types = columns["taskType"][info]
    shown = ~np.isin(types, recording.ids(_NO_KERNELS))
    collective = np.isin(types, recording.ids([_COLLECTIVE]))
    names = columns["name"][info][collective]
    distinct, places = np.unique(names, return_inverse=True)
    whole = [recording.text(name).endswith(_COLLECTIVE_KERNEL) for name in distinct.tolist()]
    shown[collective] = np.array(whole, np.bool_)[places.reshape(-1)]
    return shown


def _waits(start: Ints, duration: Ints) -> Floats:
    """Return the time between the end of the previous row and the start of each, in microseconds.

    Computed in float64 and in this order, as msprof does, so that the results are equal: at today's
    timestamps the error is up to half a microsecond.
    """
    start_us, duration_us = registry.as_doubles(start), registry.as_doubles(duration)
    waits = np.zeros(len(start))
    waits[1:] = np.maximum(0.0, start_us[1:] - start_us[:-1] - duration_us[:-1])
    return waits
