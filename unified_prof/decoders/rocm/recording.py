"""Decodes one rocprofv3 recording, session by session, including its kernels and copies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import Bools, Ints, distinct_rows
from unified_prof.base.columns import MISSING, NOT_AVAILABLE, Cells, Sink, Tables
from unified_prof.base.coverage import CountedTables, Coverage
from unified_prof.decoders.gpu import host_tables
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu import task_tables as gpu_tables
from unified_prof.decoders.gpu.rows import NO_TIME, GpuRecording, Parts
from unified_prof.decoders.gpu.task_tables import HasColumn
from unified_prof.decoders.rocm.json_tables import PREFIX, SessionTables, sessions_of
from unified_prof.decoders.rocm.session import (
    Regions,
    Session,
    SessionCounters,
    read_allocations,
)
from unified_prof.decoders.spool import Rows
from unified_prof.errors import RawFormatError

# Tables of names, which no event table would hold.
_DESCRIPTIVE = (
    "string metadata track arg info_node info_process info_thread info_agent info_queue "
    "info_stream info_kernel_symbol info_code_object info_pmc"
).split()
_INT32 = range(-(2**31), 2**31)
_GEOMETRY = (
    *("grid_size_x", "grid_size_y", "grid_size_z"),
    *("workgroup_size_x", "workgroup_size_y", "workgroup_size_z"),
)
_PLACE = {
    "start": NO_TIME,
    "end": NO_TIME,
    **dict.fromkeys(("pid", "tid", "queue_id", "stream_id", "event_id"), MISSING),
}


class Tasks:
    """Reads the device tasks of a session."""

    def __init__(self, session: Session) -> None:
        self._session, self._parts = session, session.parts
        self._geometries: dict[tuple[int, ...], int] = {}
        self._events: list[Ints] = [np.empty(0, np.int64)]

    @property
    def events(self) -> Ints:
        """Event ids of all dispatches."""
        return np.concatenate(self._events)

    def read(self) -> None:
        """Read all tasks into `Parts.gpu`."""
        self._kernels()
        self._copies()

    def _kernels(self) -> None:
        symbols = dict.fromkeys(("id", "sgpr_count", "arch_vgpr_count"), MISSING)
        symbols["accum_vgpr_count"] = 0
        texts = ["display_name", "kernel_name"]
        names: dict[int, str] = {}
        registers: dict[int, int] = {}
        for cells in self._session.tables.slices("info_kernel_symbol", symbols, texts):
            for at, row in enumerate(cells["id"].tolist()):
                names[row] = cells["display_name"][at] or cells["kernel_name"][at] or NOT_AVAILABLE
                count = int(cells["arch_vgpr_count"][at])
                more = max(0, int(cells["accum_vgpr_count"][at]))
                registers[row] = count + more if 0 <= count <= count + more < 2**31 else MISSING
        wanted = {
            **_PLACE,
            "agent_id": MISSING,
            "kernel_id": MISSING,
            "group_segment_size": MISSING,
            **dict.fromkeys(_GEOMETRY, MISSING),
        }
        for cells in self._session.tables.slices("kernel_dispatch", wanted):
            rows, valid = self._task(cells, "kernel")
            rows["device"] = self._session.agents.numbers_of_devices(cells["agent_id"])
            kernels = cells["kernel_id"]
            rows["name"] = self._session.names(kernels, names)
            rows["kind"] = r.KERNEL
            rows["kind"][self._parts.are_communication(rows["name"])] = r.COMMUNICATION
            distinct, inverse = np.unique(kernels, return_inverse=True)
            counts = [registers.get(number, MISSING) for number in distinct.tolist()]
            rows["registers"] = np.array(counts, np.int64)[inverse]
            rows["shared_memory"] = cells["group_segment_size"]
            rows["geometry"] = self._geometry_numbers(cells)
            rows["counted"] = self._session.events.key(cells["event_id"])
            self._events.append(cells["event_id"][valid])
            self._parts.add_gpu_tasks(rows[valid])

    def _geometry_numbers(self, cells: Cells) -> Ints:
        """Return the numbers of launch sizes, converted from work items to blocks."""
        first, inverse = distinct_rows(*(cells[name] for name in _GEOMETRY))
        numbers = []
        for at in first.tolist():
            sizes = tuple(int(cells[name][at]) for name in _GEOMETRY)
            number = self._geometries.get(sizes)
            if number is None:
                number = MISSING
                if min(sizes) > 0:
                    items, group = sizes[:3], sizes[3:]
                    pairs = zip(items, group, strict=True)
                    blocks = tuple(-(-size // width) for size, width in pairs)
                    texts = tuple(json.dumps(part).encode() for part in (blocks, group))
                    number = self._parts.geometries[texts[0], texts[1]]
                self._geometries[sizes] = number
            numbers.append(number)
        return np.array(numbers, np.int64)[inverse]

    def _copies(self) -> None:
        wanted = {
            **_PLACE,
            **dict.fromkeys(("src_agent_id", "dst_agent_id", "size", "name_id"), MISSING),
        }
        for cells in self._session.tables.slices("memory_copy", wanted):
            rows, valid = self._task(cells, "copy")
            first, inverse = distinct_rows(cells["src_agent_id"], cells["dst_agent_id"])
            names, devices = [], []
            for at in first.tolist():
                name, device = self._session.agents.direction(
                    int(cells["src_agent_id"][at]), int(cells["dst_agent_id"][at])
                )
                names.append(self._parts.names[name])
                devices.append(device)
            rows["name"] = np.array(names, np.int64)[inverse]
            rows["device"] = np.array(devices, np.int64)[inverse]
            rows["kind"] = r.COPY
            rows["size"] = cells["size"]
            self._parts.add_gpu_tasks(rows[valid])

    def _task(self, cells: Cells, what: str) -> tuple[Rows, Bools]:
        rows, valid = self._session.timed(cells, r.GPU_TASK, what)
        stream = cells["stream_id"]
        rows["stream"] = np.where(stream == MISSING, cells["queue_id"], stream)
        rows["correlation"] = self._session.events.correlations(cells["event_id"])
        distinct, inverse = np.unique(cells["pid"], return_inverse=True)
        pids = [self._session.pids.get(row, row) for row in distinct.tolist()]
        pids = [pid if pid in _INT32 else MISSING for pid in pids]
        rows["process"] = np.array(pids, np.int64)[inverse]
        return rows, valid


NAME = "rocm"


def decode(
    path: object,
    tables: Tables,
    sink: Sink,
    *,
    has_column: HasColumn = lambda table, column: True,
    data_types: Mapping[str, int] | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> GpuRecording:
    """Decode the tables of a recording with one or more sessions.

    `path` is used in messages; `has_column` and `data_types` are explained in `task_tables`.
    `progress` is called with the current step.

    Raises:
        RawFormatError: the recording contains no events.
        UprofError: the file is damaged.
    """
    sessions = sessions_of(tables)
    if not sessions:
        message = f"{path}: has no table rocpd_metadata and is not a rocpd database"
        raise RawFormatError(message, slug="not-a-recording")
    tables = CountedTables(tables)
    progress("reading events")
    with Parts(sink) as parts:
        devices: dict[int, dict[str, Any]] = {}
        schema: str | None = None
        operations = 0
        for number, name in enumerate(sessions):
            session = Session(parts, SessionTables(tables, name), number)
            regions = Regions(session)
            regions.read()
            tasks = Tasks(session)
            tasks.read()
            SessionCounters(session).read(tasks.events)
            read_allocations(session)
            operations += regions.operations
            for device, properties in session.agents.devices.items():
                devices.setdefault(device, properties)
            schema = schema if session.schema is None else session.schema
        if parts.span is None:
            message = f"{path}: has no events, its tables are empty"
            raise RawFormatError(message, slug="empty-recording")
        joined = gpu_tables.write(
            parts, 0, has_column=has_column, data_types=data_types, progress=progress
        )
        sink.anomaly("relative_times", 1, "rocprofv3 does not record the start of its clock")
        coverage = Coverage()
        coverage.add_events(parts.counts, parts.skipped)
        tables.write_coverage(coverage, sink, [f"{PREFIX}{name}" for name in _DESCRIPTIVE])
        coverage.write(sink)
        first, last = parts.span
        names = {number: properties.get("name") for number, properties in devices.items()}
        host_tables.write_metadata(
            sink,
            start_ns=first,
            end_ns=last,
            host_name=None,
            device_names={device: names.get(device) for device in parts.devices},
            rank=None,
        )
        host_tables.write_device_properties(sink, devices)
        return GpuRecording(
            events=sum(parts.counts.values()),
            counts=dict(parts.counts),
            tasks=parts.gpu.rows,
            tasks_joined=joined,
            operations=operations,
            facts={
                "decoder": NAME,
                "device_kind": "gpu" if parts.devices else "cpu",
                "device_vendor": "AMD",
                "base_time_ns": 0,
                "rocpd_schema": schema,
                "rocpd_sessions": len(sessions),
                "events": dict(sorted(parts.counts.items())),
            },
        )
