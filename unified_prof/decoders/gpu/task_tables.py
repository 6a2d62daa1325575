"""Joins the rows of a GPU recording, writes the tables of host and devices, counts rows read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
from msgspec import Struct, field

from unified_prof.arrays.grouping import Ints
from unified_prof.base.columns import (
    COPY_OTHER,
    KERNEL_CORE,
    MISSING,
    NO_CONTEXT,
    NO_MODEL,
    NO_RANK,
    NO_TASK,
    NOT_AVAILABLE,
    TYPE_INVALID,
    TYPE_NOT_AVAILABLE,
    Column,
    Coverage,
    Tables,
    null_if_missing,
)
from unified_prof.base.text import NS_PER_S
from unified_prof.decoders.gpu import host_tables
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.host_tables import Allocations, HostTables, signature_texts
from unified_prof.decoders.gpu.joins import Correlator, Overlap, TaskChecks, write_host
from unified_prof.decoders.gpu.pools import (
    Collective,
    algorithm,
    call_prefix,
    collective_of_kernel,
    data_type,
)
from unified_prof.decoders.gpu.rows import Parts
from unified_prof.decoders.spool import Rows, Spool, selected, windows
from unified_prof.errors import UprofError

# TASK.taskType by kind of GPU task; readers of the format find copies by this name.
TASK_TYPES = {
    r.KERNEL: "KERNEL",
    r.COMMUNICATION: "KERNEL",
    r.COPY: "MEMCPY_ASYNC",
    r.SET: "MEMSET",
    r.GRAPH: "CUDA_GRAPH",
}

# Direction in the name of a copy -> id in ENUM_MEMCPY_OPERATION.
COPY_DIRECTIONS = {
    name: number
    for number, names in enumerate(("HtoH", "HtoD HtoA", "DtoH AtoH", "DtoD PtoP AtoA AtoD DtoA"))
    for name in names.split()
}

_NO_NOTIFY = -1


class Options(Struct, frozen=True):
    """Options of the decoders of GPU recordings."""

    # Returns True if the revision being written has (table, column).
    has_column: Callable[[str, str], bool] = lambda table, column: True
    # Name -> id in ENUM_HCCL_DATA_TYPE of the revision.
    data_types: Mapping[str, int] = field(default_factory=dict)
    progress: Callable[[str], None] = lambda message: None  # Called with the current step.


NO_OPTIONS = Options()


class TaskTables:
    """Writes the tables of device tasks, sorted by start."""

    def __init__(self, parts: Parts, options: Options, checks: TaskChecks) -> None:
        self._parts, self._checks = parts, checks
        self._sink = parts.sink
        self._base_ns, self._main_process = parts.base_ns, parts.main_process
        self._has_column, self._data_types = options.has_column, options.data_types
        intern = parts.sink.strings.intern
        self._no_text = intern(NOT_AVAILABLE)
        self._task_types = np.array([intern(TASK_TYPES[kind]) for kind in range(r.GRAPH)])
        self._names: dict[int, str] = {}
        self._directions: dict[int, int] = {}
        self._task_id = 0
        self._op_id = 0
        self._calls_of_group: Counter[tuple[int, str]] = Counter()

    def _types_of(self, kinds: Ints) -> Ints:
        """Return the string ids of task types, including graphs only if there are any."""
        if len(self._task_types) == r.GRAPH and np.any(kinds == r.GRAPH):
            graph = self._sink.strings.intern(TASK_TYPES[r.GRAPH])
            self._task_types = np.append(self._task_types, graph)
        return self._task_types[kinds]

    def write(self, tasks: Spool) -> None:
        """Write all tasks, sorted by start."""
        self._names = {number: str(name) for name, number in self._parts.names.items()}
        with ExitStack() as stack:
            overlap = None
            if self._has_column("OVERLAP_ANALYSIS", "id"):
                overlap = stack.enter_context(Overlap(self._parts))
            for (rows,) in windows(tasks):
                self._write(rows)
                self._checks.add_streams(rows)
                if overlap is not None:
                    overlap.add(rows)
            if overlap is not None:
                overlap.finish()

    def _write(self, rows: Rows) -> None:
        ids = np.arange(self._task_id, self._task_id + len(rows))
        self._task_id += len(rows)
        process = np.where(rows["process"] != MISSING, rows["process"], self._main_process)
        processes = np.array([*self._parts.threads.process_ids, MISSING])[rows["thread"]]
        self._sink.write(
            "TASK",
            {
                "startNs": rows["start"] + self._base_ns,
                "endNs": rows["end"] + self._base_ns,
                "deviceId": rows["device"],
                "connectionId": rows["connection"],
                "globalTaskId": ids,
                "globalPid": np.where(rows["thread"] != MISSING, processes, process),
                "taskType": self._types_of(rows["kind"]),
                "contextId": NO_CONTEXT,
                "streamId": rows["stream"],
                "taskId": NO_TASK,
                "modelId": NO_MODEL,
            },
        )
        for kinds, write in (
            ((r.KERNEL, r.GRAPH), self._write_kernels),
            ((r.COPY,), self._write_copies),
            ((r.COMMUNICATION,), self._write_collectives),
        ):
            chosen = np.isin(rows["kind"], kinds)
            if chosen.all():
                write(rows, ids)
            elif chosen.any():
                write(selected(rows, chosen), ids[chosen])
        self._write_details(rows, ids)
        tasks, names, values = self._parts.counters.lookup(rows["counted"], ids)
        if len(tasks):
            columns = {"globalTaskId": tasks, "name": names, "value": values}
            self._sink.write("TASK_PMU_INFO", columns)

    def _write_kernels(self, rows: Rows, ids: Ints) -> None:
        signatures, geometries = self._parts.signatures, self._parts.geometries
        operations = rows["operation_name"]
        columns: dict[str, Column] = {
            "name": rows["name"],
            "globalTaskId": ids,
            "blockNum": null_if_missing(
                np.array([*geometries.block_counts, MISSING])[rows["geometry"]]
            ),
            "mixBlockNum": 0,
            "taskType": self._sink.strings.intern(KERNEL_CORE),
            "opType": np.where(operations != MISSING, operations, self._no_text),
            "inputFormats": signature_texts(signatures.kernel_formats, rows, self._no_text),
            "inputDataTypes": signature_texts(signatures.kernel_types, rows, self._no_text),
            "inputShapes": signature_texts(signatures.kernel_shapes, rows, self._no_text),
        }
        for absent in (
            *("outputFormats", "outputDataTypes", "outputShapes"),
            *("attrInfo", "opState", "hf32Eligible"),
        ):
            if self._has_column("COMPUTE_TASK_INFO", absent):
                columns[absent] = self._no_text
        if self._has_column("COMPUTE_TASK_INFO", "gridDim"):
            columns["gridDim"] = self._geometry_texts(geometries.grids, rows)
            columns["blockDim"] = self._geometry_texts(geometries.blocks, rows)
        self._sink.write("COMPUTE_TASK_INFO", columns)

    def _write_copies(self, rows: Rows, ids: Ints) -> None:
        directions = self._directions
        for number in np.unique(rows["name"]).tolist():
            if number not in directions:
                directions[number] = copy_direction(self._names[number])
        self._sink.write(
            "MEMCPY_INFO",
            {
                "globalTaskId": ids,
                "size": null_if_missing(rows["size"]),
                "memcpyOperation": [directions[number] for number in rows["name"].tolist()],
            },
        )

    def _write_collectives(self, rows: Rows, ids: Ints) -> None:
        op_ids = np.arange(self._op_id, self._op_id + len(rows))
        self._op_id += len(rows)
        collectives = [self._collective(row) for row in rows]
        names = [
            self._op_name(device, collective)
            for device, collective in zip(rows["device"].tolist(), collectives, strict=True)
        ]
        shared: dict[str, Column] = {
            "groupName": [self._sink.strings.intern(call.group) for call in collectives],
            "opId": op_ids,
            "dataType": [self._data_type(call.dtype) for call in collectives],
        }
        kernels = [self._names[number] for number in rows["name"].tolist()]
        sizes = [collective.size_bytes for collective in collectives]
        durations = (rows["end"] - rows["start"]).tolist()
        intern, intern_all = self._sink.strings.intern, self._sink.strings.intern_all
        operators: dict[str, Column] = {
            **shared,
            "opName": names,
            "startNs": rows["start"] + self._base_ns,
            "endNs": rows["end"] + self._base_ns,
            "connectionId": rows["connection"],
            "relay": 0,
            "retry": 0,
            "algType": [intern(algorithm(kernel)) for kernel in kernels],
            "count": _list_or_null([call.in_elements for call in collectives]),
            "opType": [intern(call.name) for call in collectives],
            "deviceId": rows["device"],
            "rankSize": _list_or_null([call.group_size for call in collectives]),
        }
        tasks: dict[str, Column] = {
            **shared,
            "globalTaskId": ids,
            "name": rows["name"],
            "taskType": int(self._task_types[r.COMMUNICATION]),
            "planeId": 0,
            "notifyId": _NO_NOTIFY,
            "rdmaType": TYPE_NOT_AVAILABLE,
            "srcRank": [_rank(call.source_rank) for call in collectives],
            "dstRank": [_rank(call.target_rank) for call in collectives],
            "transportType": TYPE_NOT_AVAILABLE,
            "size": _list_or_null(sizes),
            "linkType": TYPE_NOT_AVAILABLE,
            "isMaster": 1,
            "bandwidth": [
                None if size < 0 or time <= 0 else size * NS_PER_S / time
                for size, time in zip(sizes, durations, strict=True)
            ],
        }
        # Older revisions of the schema do not have these columns.
        for table, columns, newer in (
            ("COMMUNICATION_OP", operators, ("deviceId", "rankSize")),
            ("COMMUNICATION_TASK_INFO", tasks, ("isMaster", "bandwidth")),
        ):
            for name in newer:
                if not self._has_column(table, name):
                    del columns[name]
            self._sink.write(table, columns)
        self._sink.write(
            "UPROF_COLLECTIVES",
            {
                "opId": op_ids,
                "groupDescription": intern_all(call.group_description for call in collectives),
                "groupSize": _list_or_null([call.group_size for call in collectives]),
                "groupRanks": intern_all(call.group_ranks for call in collectives),
                "dataType": intern_all(call.dtype for call in collectives),
                "inElements": _list_or_null([call.in_elements for call in collectives]),
                "outElements": _list_or_null([call.out_elements for call in collectives]),
                "inSplit": intern_all(call.in_split for call in collectives),
                "outSplit": intern_all(call.out_split for call in collectives),
                "sequence": _list_or_null([call.sequence for call in collectives]),
            },
        )

    def _write_details(self, rows: Rows, ids: Ints) -> None:
        geometries = self._parts.geometries
        operations = rows["operation_name"]
        is_kernel = (rows["kind"] == r.KERNEL) | (rows["kind"] == r.COMMUNICATION)
        self._sink.write(
            "UPROF_GPU_TASKS",
            {
                "globalTaskId": ids,
                "name": rows["name"],
                "operation": np.where(operations != MISSING, operations, self._no_text),
                "externalId": null_if_missing(rows["external"]),
                "contextId": null_if_missing(rows["context"]),
                "sizeBytes": null_if_missing(np.where(is_kernel, MISSING, rows["size"])),
                "bandwidthGBps": rows["bandwidth"],
                "gridDim": self._geometry_texts(geometries.grids, rows),
                "blockDim": self._geometry_texts(geometries.blocks, rows),
                "registersPerThread": null_if_missing(rows["registers"]),
                "sharedMemoryBytes": null_if_missing(rows["shared_memory"]),
                "blocksPerSm": rows["blocks_per_sm"],
                "warpsPerSm": rows["warps_per_sm"],
                "occupancyPercent": rows["occupancy"],
                "queuedNs": null_if_missing(rows["queued"]),
                "graphId": null_if_missing(rows["graph"]),
                "graphNodeId": null_if_missing(rows["graph_node"]),
            },
        )

    def _collective(self, row: Rows) -> Collective:
        number = int(row["collective"])
        if number != MISSING:
            return self._parts.collectives.all[number]
        return Collective(name=collective_of_kernel(self._names[int(row["name"])]))

    def _op_name(self, device: int, collective: Collective) -> int:
        """Return the name of a collective call, which is the same on all ranks of the group.

        A send and its receive are two calls. Readers recognize them by the words `send` and
        `receive`, and exclude them when comparing ranks.
        """
        key = (device, collective.group)
        number = collective.sequence
        if number == MISSING:
            number = self._calls_of_group[key]
        self._calls_of_group[key] += 1
        name = f"{call_prefix(collective.name)}__{collective.group}_{number}_1"
        return self._sink.strings.intern(name)

    def _data_type(self, name: str) -> int:
        if name == NOT_AVAILABLE:
            return TYPE_NOT_AVAILABLE if NOT_AVAILABLE in self._data_types else TYPE_INVALID
        return self._data_types.get(data_type(name)[0], TYPE_INVALID)

    def _geometry_texts(self, texts: list[str], rows: Rows) -> Ints:
        with_missing = self._sink.strings.intern_all([*texts, NOT_AVAILABLE])
        return np.asarray(with_missing[rows["geometry"]])


def copy_direction(name: str) -> int:
    """Return the ENUM_MEMCPY_OPERATION id of a copy such as `Memcpy HtoD (Pinned -> Device)`."""
    for word in name.replace("(", " ").split():
        if word in COPY_DIRECTIONS:
            return COPY_DIRECTIONS[word]
    older = {"CopyHostToDevice": 1, "CopyDeviceToHost": 2, "CopyDeviceToDevice": 3}
    return older.get(name, COPY_OTHER)


def _list_or_null(values: list[int]) -> list[int | None]:
    return [None if value == MISSING else value for value in values]


def _rank(rank: int) -> int:
    return NO_RANK if rank == MISSING else rank


def write(parts: Parts, options: Options) -> int:
    """Write all tables except recording metadata; return the number of joined tasks."""
    options.progress("joining host events")
    with write_host(parts, HostTables(parts), Allocations(parts)) as calls:
        options.progress("joining launches and kernels")
        checks = TaskChecks(parts)
        correlator = Correlator(parts, checks)
        with correlator.join(calls) as tasks:
            TaskTables(parts, options, checks).write(tasks)
        checks.finish()
    host_tables.write_extra_tables(parts)
    return correlator.joined


def write_coverage(parts: Parts, tables: Tables, descriptive: Sequence[str]) -> None:
    """Write how much was decoded, by kind of event and by table.

    Counts tables with rows that were not read, except those whose names begin like `descriptive`.
    """
    sink, coverage = parts.sink, Coverage()
    coverage.add_events(parts.counts, parts.skipped)
    unread = []
    for table in tables.names:
        try:
            total = tables.count(table)
        except UprofError as err:
            sink.anomaly("table_not_counted", 1, str(err))
            continue
        read = tables.read_rows.get(table, {})
        if table.startswith(tuple(descriptive)):
            coverage.add(table, "rows", total)
        elif not read:
            coverage.add(table, "rows", total, without_table=total)
            unread += [table] if total else []
        else:
            found = read[None] if None in read else sum(read.values())
            coverage.add(table, "rows", total, skipped=max(0, total - found))
    if unread:
        sink.anomaly("table_not_read", len(unread), ", ".join(sorted(unread))[:2000])
    for place, count in tables.unreadable.items():
        sink.anomaly("unreadable_number", count, place)
    coverage.write(sink)
