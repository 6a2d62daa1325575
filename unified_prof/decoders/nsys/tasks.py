"""What ran on devices: kernels, copies, memory sets, replays of graphs traced as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from unified_prof.arrays.distinct import distinct_rows
from unified_prof.columns import Cells
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.numbers import MISSING, Bools, Int64s
from unified_prof.decoders.nsys.fields import NO_ID, NO_TIME, Fields
from unified_prof.decoders.rows import Rows

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

_PLACE = {
    "start": NO_TIME,
    "end": NO_TIME,
    "deviceId": MISSING,
    "streamId": MISSING,
    "contextId": MISSING,
    "correlationId": MISSING,
    "globalPid": NO_ID,
    "graphNodeId": MISSING,
}
_GEOMETRY = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_NAMES = ("demangledName", "shortName", "mangledName")

# Directions as Kineto writes them, so that the copies of both have the same names.
_DIRECTIONS = {
    0: "Unknown",
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "HtoD",
    12: "DtoH",
    13: "DtoD",
}
_UNIFIED = frozenset({11, 12, 13})
_MEMORIES = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}


class Tasks:
    """Puts the device's tasks into `Parts.gpu`."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._parts = fields.parts
        self._copy_names: dict[tuple[int, int, int], int] = {}
        self._geometries: dict[tuple[int, ...], int] = {}

    def read(self) -> None:
        """Read all tables of tasks; calls have to be read before."""
        self._kernels()
        self._copies()
        self._sets()
        self._graphs()

    def _kernels(self) -> None:
        there = self._fields.tables.columns(KERNELS)
        name = next((name for name in _NAMES if name in there), _NAMES[0])
        more = {
            name: MISSING,
            "registersPerThread": MISSING,
            "staticSharedMemory": 0,
            "dynamicSharedMemory": MISSING if "dynamicSharedMemory" not in there else 0,
            "graphId": MISSING,
            **dict.fromkeys(_GEOMETRY, MISSING),
        }
        for cells in self._slices(KERNELS, more):
            rows, valid = self._task(cells, "kernel")
            rows["name"] = self._fields.names(cells[name])
            rows["kind"] = r.KERNEL
            rows["kind"][self._parts.are_communication(rows["name"])] = r.COMMUNICATION
            rows["registers"] = cells["registersPerThread"]
            static, dynamic = cells["staticSharedMemory"], cells["dynamicSharedMemory"]
            rows["shared_memory"] = np.where(dynamic == MISSING, MISSING, static + dynamic)
            rows["graph"] = cells["graphId"]
            rows["geometry"] = self._geometry_numbers(cells)
            self._put(rows, valid)

    def _geometry_numbers(self, cells: Cells) -> Int64s:
        first, inverse = distinct_rows(*(cells[name] for name in _GEOMETRY))
        numbers = np.empty(len(first), np.int64)
        for at, row in enumerate(first.tolist()):
            sizes = tuple(int(cells[name][row]) for name in _GEOMETRY)
            number = self._geometries.get(sizes)
            if number is None:
                number = MISSING
                if MISSING not in sizes:
                    grid, block = (b"[%d,%d,%d]" % part for part in (sizes[:3], sizes[3:]))
                    number = self._parts.geometries[grid, block]
                self._geometries[sizes] = number
            numbers[at] = number
        return numbers[inverse]

    def _copies(self) -> None:
        more = {"bytes": MISSING, "copyKind": 0, "srcKind": MISSING, "dstKind": MISSING}
        for cells in self._slices(COPIES, more):
            rows, valid = self._task(cells, "copy")
            kinds = (cells["copyKind"], cells["srcKind"], cells["dstKind"])
            first, inverse = distinct_rows(*kinds)
            names = [self._copy_name(*(int(kind[at]) for kind in kinds)) for at in first.tolist()]
            rows["name"] = np.array(names, np.int64)[inverse]
            rows["kind"] = r.COPY
            rows["size"] = cells["bytes"]
            self._put(rows, valid)

    def _copy_name(self, kind: int, source: int, target: int) -> int:
        key = (kind, source, target)
        if key not in self._copy_names:
            text = f"Memcpy {_DIRECTIONS.get(kind, 'Unknown')}"
            if kind in _UNIFIED:
                text += " (Unified)"
            elif source in _MEMORIES and target in _MEMORIES:
                text += f" ({_MEMORIES[source]} -> {_MEMORIES[target]})"
            self._copy_names[key] = self._parts.names[text]
        return self._copy_names[key]

    def _sets(self) -> None:
        for cells in self._slices(SETS, {"bytes": MISSING, "memKind": MISSING}):
            rows, valid = self._task(cells, "memory_set")
            kinds = cells["memKind"]
            for kind in np.unique(kinds).tolist():
                text = f"Memset ({_MEMORIES[kind]})" if kind in _MEMORIES else "Memset"
                rows["name"][kinds == kind] = self._parts.names[text]
            rows["kind"] = r.SET
            rows["size"] = cells["bytes"]
            self._put(rows, valid)

    def _graphs(self) -> None:
        """Read replays of graphs of which only the whole was traced."""
        replays = 0
        for cells in self._slices(GRAPHS, {"graphId": MISSING, "graphExecId": MISSING}):
            rows, valid = self._task(cells, "graph_replay")
            graphs = np.where(cells["graphId"] != MISSING, cells["graphId"], cells["graphExecId"])
            rows["kind"] = r.GRAPH
            rows["graph"] = graphs
            for graph in np.unique(graphs).tolist():
                text = "CUDA graph" if graph == MISSING else f"CUDA graph {graph}"
                rows["name"][graphs == graph] = self._parts.names[text]
            self._put(rows, valid)
            replays += int(np.count_nonzero(valid))
        if replays:
            self._parts.sink.anomaly(
                "graph_without_kernels",
                replays,
                "replays that were traced as a whole: the kernels inside are not in the "
                "recording; record with --cuda-graph-trace=node to have them",
            )

    # ---- what all have in common

    def _slices(self, table: str, more: dict[str, int]) -> Any:
        return self._fields.tables.slices(table, _PLACE | more)

    def _task(self, cells: Cells, what: str) -> tuple[Rows, Bools]:
        fields = self._fields
        rows, valid = fields.timed(cells, r.GPU_TASK, what)
        packed = cells["globalPid"]
        rows["device"] = fields.devices(packed, cells["deviceId"])
        rows["stream"] = cells["streamId"]
        rows["context"] = cells["contextId"]
        rows["correlation"] = fields.correlations(fields.processes(packed), cells["correlationId"])
        rows["process"] = fields.process_ids(packed)
        rows["graph_node"] = cells["graphNodeId"]
        return rows, valid

    def _put(self, rows: Rows, valid: Bools) -> None:
        if not valid.all():
            rows = rows[valid]
        self._parts.see_correlations(rows)
        self._parts.devices.update(np.unique(rows["device"]).tolist())
        self._parts.gpu.append(rows)
