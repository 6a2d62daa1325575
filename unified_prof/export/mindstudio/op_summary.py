"""op_summary: one row for each kernel and each collective operator, in order of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.export.mindstudio import numbers
from unified_prof.export.mindstudio.core_metrics import CoreMetrics
from unified_prof.export.mindstudio.delivery import Delivery, lines
from unified_prof.export.mindstudio.recording import (
    Ints,
    Recording,
    blocks,
    in_order_of_text,
    ranks_of_texts,
)
from unified_prof.export.mindstudio.registry import deliverable
from unified_prof.store.ownership import temporary_folder
from unified_prof.vocabulary import NO_CONTEXT, NOT_AVAILABLE

_PLACE = ("Device_id", "Model ID", "Task ID", "Stream ID")
_OPERATOR = ("Op Name", "OP Type", "OP State", "Task Type")
_TIMES = ("Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)")
_BLOCKS = ("Block Num", "Mix Block Num", "HF32 Eligible")
_TENSORS = (
    *("Input Shapes", "Input Data Types", "Input Formats"),
    *("Output Shapes", "Output Data Types", "Output Formats"),
)
_TENSOR_COLUMNS = (
    *("inputShapes", "inputDataTypes", "inputFormats"),
    *("outputShapes", "outputDataTypes", "outputFormats"),
)
_CONTEXT = "Context ID"

_COLLECTIVE = "COMMUNICATION"
_NO_KERNELS = ("WRITE_BACK", "INVALID", "HCCL_AI_CPU")
"""Types of tasks that are no kernels of their own: what they do belongs to other rows."""
_COLLECTIVE_KERNEL = "AivKernel"
"""End of the name of a kernel that is a collective operator as a whole."""


@deliverable("op_summary", tables=("COMPUTE_TASK_INFO", "COMMUNICATION_OP"))
def write(recording: Recording, delivery: Delivery) -> None:
    """Write the table; a collective has N/A where a kernel has tensors and counters."""
    with temporary_folder() as scratch:
        _Summary(recording, scratch).write(delivery)


class _Summary:
    def __init__(self, recording: Recording, scratch: Path) -> None:
        self._recording = recording
        self._collectives = recording.collectives
        tasks, kernels = recording.tasks, recording.kernels
        self._has_kernels = len(kernels) > 0 and len(tasks) > 0
        info = kernels.of(tasks.id)
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
        # The vendor's sort leaves rows of one moment in no order; here collectives come first.
        is_kernel = np.arange(len(start)) < len(self._task)
        order = np.lexsort((is_kernel, in_order_of_text(start), ranks_of_texts(device)))
        waits = _waits(start[order], duration[order])
        delivery.table("op_summary", self._header(), len(order), self._blocks(order, waits))
        if "cube_utilization(%)" in self._metrics.header and not self._recording.knows_cores:
            self._recording.leave_out(
                "op_summary",
                "cube_utilization(%)",
                "how many cores a device has, and their rated frequency, is not in the database",
            )
        if len(order) and not self._metrics.is_empty:
            return
        if len(self._task) and not self._recording.has_contexts:
            self._recording.leave_out(
                "op_summary", "counters of AI cores", "databases of this chip have none"
            )

    def _header(self) -> list[str]:
        head = [*_PLACE, *_OPERATOR, *_TIMES]
        if not self._has_kernels:
            return [*head, _CONTEXT] if self._recording.has_contexts else head
        head += [*_BLOCKS, *_TENSORS, _CONTEXT]
        if not self._recording.has_contexts:
            head = [name for name in head if name not in ("Mix Block Num", _CONTEXT)]
        return head + self._metrics.header

    def _blocks(self, order: Ints, waits: NDArray[np.float64]) -> Iterator[Sequence[str]]:
        for part in blocks(len(order)):
            wait = [f"{one:.6f}" for one in waits[part].tolist()]
            if part.start == 0:
                wait[0] = "0"
            places = order[part]
            is_kernel = places < len(self._task)
            block = np.empty(len(places), object)
            cells = np.array(wait, object)
            block[is_kernel] = self._kernels(places[is_kernel], cells[is_kernel].tolist())
            others = places[~is_kernel] - len(self._task)
            block[~is_kernel] = self._operators(others, cells[~is_kernel].tolist())
            yield block.tolist()

    def _kernels(self, rows: Ints, wait: list[str]) -> list[str]:
        recording, tasks = self._recording, self._recording.tasks
        task, info = self._task[rows], self._info[rows]
        columns = recording.kernels.columns
        integers = numbers.integers
        start, end = tasks.start_ns[task], tasks.end_ns[task]

        def texts(name: str) -> list[str]:
            return recording.cells(columns[name][info])

        context = tasks.context[task]
        cells = [
            integers(tasks.device[task]),
            integers(tasks.model[task]),
            integers(tasks.number[task]),
            integers(tasks.stream[task]),
            *(texts(name) for name in ("name", "opType", "opState", "taskType")),
            numbers.tabbed(numbers.microseconds(start)),
            numbers.microseconds(end - start),
            wait,
            integers(columns["blockNum"][info]),
        ]
        if recording.has_contexts:
            cells.append(integers(columns["mixBlockNum"][info]))
        cells.append(texts("hf32Eligible"))
        cells += [texts(name) for name in _TENSOR_COLUMNS]
        if recording.has_contexts:
            known = context != NO_CONTEXT
            cells.append(
                [
                    text if has else NOT_AVAILABLE
                    for text, has in zip(integers(context), known.tolist(), strict=True)
                ]
            )
        cells += self._metrics.cells(self._record[rows], tasks.device[task], end - start)
        return lines(*cells)

    def _operators(self, rows: Ints, wait: list[str]) -> list[str]:
        others, columns = self._collectives, self._collectives.columns
        start, end = others.start_ns[rows], others.end_ns[rows]
        nothing = [NOT_AVAILABLE] * len(rows)
        cells = [
            numbers.integers(others.device[rows]),
            numbers.integers(others.model[rows]),
            nothing,
            nothing,
            self._recording.cells(columns["opName"][rows]),
            self._recording.cells(columns["opType"][rows]),
            nothing,
            [_COLLECTIVE] * len(rows),
            numbers.tabbed(numbers.microseconds(start)),
            numbers.microseconds(end - start),
            wait,
        ]
        width = len(self._header())
        if len(cells) < width:
            # The block number; without kernels it stands in the only column that is left.
            cells.append(["0"] * len(rows))
        return lines(*cells, *[nothing] * (width - len(cells)))


def _is_shown(recording: Recording, info: Ints) -> NDArray[np.bool_]:
    """Return which kernels have a row: tasks that only carry a collective out have none."""
    columns = recording.kernels.columns
    types = columns["taskType"][info]
    shown = ~np.isin(types, recording.ids(_NO_KERNELS))
    collective = np.isin(types, recording.ids([_COLLECTIVE]))
    names = columns["name"][info][collective]
    distinct, places = np.unique(names, return_inverse=True)
    whole = [recording.text(name).endswith(_COLLECTIVE_KERNEL) for name in distinct.tolist()]
    shown[collective] = np.array(whole, np.bool_)[places.reshape(-1)]
    return shown


def _waits(start: Ints, duration: Ints) -> NDArray[np.float64]:
    """Return for how many microseconds nothing of the row before ran when each began.

    In float64 and in this order, as the vendor computes it: at today's times a microsecond has
    two binary places left, so waits are off by up to half a microsecond, and these are compared.
    """
    start_us, duration_us = numbers.as_doubles(start), numbers.as_doubles(duration)
    waits = np.zeros(len(start))
    waits[1:] = np.maximum(0.0, start_us[1:] - start_us[:-1] - duration_us[:-1])
    return waits
