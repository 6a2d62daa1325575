"""Decodes the device side of a text export, including operators (kernel_details.csv)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path

import numpy as np

from unified_prof.arrays.grouping import Ints
from unified_prof.base.columns import NOT_AVAILABLE, Sink
from unified_prof.decoders.ascend_text.device import KERNELS, Collectives, Tasks
from unified_prof.decoders.ascend_text.events import BadEventError, Event, read_rows, time_ns
from unified_prof.decoders.ascend_text.host import Columns, Enums, Layer, Names, number

_COLLECTIVE_CORES = ("HCCL", "COMMUNICATION")
_TEXTS = {
    "attrInfo": None,
    "opState": "OP State",
    "hf32Eligible": "HF32 Eligible",
    "inputShapes": "Input Shapes",
    "inputDataTypes": "Input Data Types",
    "inputFormats": "Input Formats",
    "outputShapes": "Output Shapes",
    "outputDataTypes": "Output Data Types",
    "outputFormats": "Output Formats",
    "gridDim": None,
    "blockDim": None,
}
_BLOCKS = {
    "blockNum": ("Block Num", "Block Dim"),
    "mixBlockNum": ("Mix Block Num", "Mix Block Dim"),
}
_TOTAL_TIMES = {"aicore_time(us)": "aic_total_time", "aiv_time(us)": "aiv_total_time"}
_IN_US = "_time(us)"
_AFTER = "Context ID"
# Computed from other counters.
_NOT_ATTRIBUTED = ("cube_utilization(%)",)


def write_operators(
    kernels: Path | None, tasks: dict[str, Ints], names: list[str], sink: Sink
) -> None:
    """Write operators with the details in kernel_details.csv; without them, only with their names.

    `tasks` are the columns of `Tasks`, `names` the strings that they refer to.
    """
    waiting: dict[tuple[int, str], list[int]] = {}
    for row, start in enumerate(tasks["start"].tolist()):
        key = (start, names[tasks["name"][row]])
        waiting.setdefault(key, []).append(row)
    described: list[tuple[int, dict[str, str]]] = []
    lost = 0
    needed = ("Name", "Start Time(us)", "Accelerator Core")
    for cells in () if kernels is None else read_rows(kernels, needed, sink):
        if cells["Accelerator Core"] in _COLLECTIVE_CORES:
            continue
        try:
            places = waiting.get((time_ns(cells["Start Time(us)"]), cells["Name"]), [])
        except BadEventError:
            places = []
        place = _slice_in_stream(places, tasks, cells)
        if place is None:
            lost += 1
        else:
            places.remove(place)
            described.append((place, cells))
    if lost:
        detail = f"{kernels}: kernels without a slice in the trace"
        sink.anomaly("unmatched_kernel", lost, detail)
    rest = [row for rows in waiting.values() for row in rows if tasks["is_kernel"][row]]
    if rest and kernels is not None:
        detail = f"{kernels} does not contain all kernels of the trace; the others have only a name"
        sink.anomaly("kernel_without_details", len(rest), detail)
    nothing: dict[str, str] = {}
    described += [(row, nothing) for row in rest]
    described.sort(key=lambda item: item[0])
    _write_details(described, tasks, names, sink)


def _write_details(
    described: list[tuple[int, dict[str, str]]],
    tasks: dict[str, Ints],
    names: list[str],
    sink: Sink,
) -> None:
    if not described:
        return
    intern = sink.strings.intern_all
    cores = {kind: core for core, kind in KERNELS.items()}
    shown = [names[tasks["type"][row]] for row, _ in described]
    sink.write(
        "COMPUTE_TASK_INFO",
        {
            "globalTaskId": [row for row, _ in described],
            "name": intern(names[tasks["name"][row]] for row, _ in described),
            "taskType": intern(
                cells.get("Accelerator Core", cores.get(kind, kind))
                for kind, (_, cells) in zip(shown, described, strict=True)
            ),
            "opType": intern(cells.get("Type", NOT_AVAILABLE) for _, cells in described),
            **{
                column: intern(cells.get(name or "", NOT_AVAILABLE) for _, cells in described)
                for column, name in _TEXTS.items()
            },
            **{
                column: [_block(cells, both) for _, cells in described]
                for column, both in _BLOCKS.items()
            },
        },
    )
    counters = _Counters()
    for row, cells in described:
        counters.add(row, cells)
    counters.write(sink)


class _Counters:
    """AI core counters, which are the last columns of kernel_details.csv."""

    def __init__(self) -> None:
        self._names = Names()
        self._task: list[int] = []
        self._name: list[int] = []
        self._value: list[float] = []

    def add(self, task: int, cells: Mapping[str, str]) -> None:
        """Add the counters of one kernel; cells that are not numbers are skipped."""
        is_counter = False
        for title, cell in cells.items():
            if not is_counter or title in _NOT_ATTRIBUTED:
                is_counter = is_counter or title == _AFTER
                continue
            try:
                value = float(cell)
            except ValueError:
                continue
            name = _TOTAL_TIMES.get(title, title)
            if title.endswith(_IN_US):
                value, name = value * 1000, name.removesuffix("(us)")
            self._task.append(task)
            self._name.append(self._names[name])
            self._value.append(value)

    def write(self, sink: Sink) -> None:
        """Write TASK_PMU_INFO."""
        if self._task:
            names = sink.strings.intern_all(self._names.all)[self._name]
            sink.write(
                "TASK_PMU_INFO",
                {"globalTaskId": self._task, "name": names, "value": self._value},
            )


def _slice_in_stream(
    places: list[int], tasks: dict[str, Ints], row: Mapping[str, str]
) -> int | None:
    """Return the slice of a kernel; if several have the same start, the one on its stream."""
    stream = number(row.get("Stream ID"), -1)
    in_stream = (place for place in places if int(tasks["stream"][place]) == stream)
    return next(in_stream, places[0] if places else None)


def _block(cells: Mapping[str, str], names: tuple[str, str]) -> int | None:
    found = next((cells[name] for name in names if name in cells), "")
    return number(found, 0) if found.isdecimal() else None


_OVERLAP = {"Computing": 0, "Communication": 1, "Communication(Not Overlapped)": 2, "Free": 3}


class Device:
    """Collects the events of devices, and writes their tables."""

    def __init__(self, enums: Enums) -> None:
        self._texts = Names()
        self.tasks = Tasks(self._texts, enums)
        self.collectives = Collectives(self._texts, enums)
        self._overlap = Columns("device start end type")

    @property
    def devices(self) -> list[int]:
        """Device numbers with tasks or overlap intervals."""
        found = [self.tasks.arrays()["device"], self._overlap.arrays()["device"]]
        return [int(device) for device in np.unique(np.concatenate(found))]

    def take_overlap(self, event: Event, start: int, end: int, layer: Layer) -> bool:
        """Add an interval of the overlap analysis; return False if its kind is unknown."""
        kind = _OVERLAP.get(event.name)
        if kind is None:
            return False
        self._overlap.add(layer.device, start, end, kind)
        return True

    def write(self, kernels: Path | None, sink: Sink) -> int:
        """Write all tables of devices; return the number of tasks."""
        tasks = self.tasks.arrays()
        extra = count(len(tasks["start"]))
        texts = np.array(sink.strings.intern_all(self._texts.all), np.int64)
        self.tasks.write(texts, sink)
        write_operators(kernels, tasks, self._texts.all, sink)
        self.collectives.write(tasks, texts, extra, sink)
        self._write_overlap(sink)
        return next(extra)

    def _write_overlap(self, sink: Sink) -> None:
        overlap = self._overlap.arrays()
        if len(overlap["start"]):
            sink.write(
                "OVERLAP_ANALYSIS",
                {
                    "id": np.arange(len(overlap["start"])),
                    "deviceId": overlap["device"],
                    "startNs": overlap["start"],
                    "endNs": overlap["end"],
                    "type": overlap["type"],
                },
            )
