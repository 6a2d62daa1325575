"""Decodes one recording of rocprofv3 into a sink, session by session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unified_prof.columns import Sink, Tables
from unified_prof.decoders.gpu import description
from unified_prof.decoders.gpu import tables as gpu_tables
from unified_prof.decoders.gpu.found import Found
from unified_prof.decoders.gpu.parts import Parts
from unified_prof.decoders.gpu.task_tables import HasColumn
from unified_prof.decoders.rocm.allocations import read_allocations
from unified_prof.decoders.rocm.counters import SessionCounters
from unified_prof.decoders.rocm.regions import Regions
from unified_prof.decoders.rocm.session import Session
from unified_prof.decoders.rocm.tables import SessionTables, sessions_of, tell_unread
from unified_prof.decoders.rocm.tasks import Tasks
from unified_prof.errors import RawFormatError

NAME = "rocm"


def decode(
    path: object,
    tables: Tables,
    sink: Sink,
    *,
    has_column: HasColumn = lambda table, column: True,
    data_types: Mapping[str, int] | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> Found:
    """Decode the tables of a recording.

    Args:
        path: What messages call it.
        tables: Its tables, of as many sessions as there are.
        sink: Takes the rows of the msprof tables and of those of torch_npu and uprof.
        has_column: Whether the revision being written has (table, column).
        data_types: ENUM_HCCL_DATA_TYPE of that revision, name -> id.
        progress: Told in a few words what is going on.

    Raises:
        RawFormatError: it holds nothing that can be shown.
        UprofError: the file is damaged.
    """
    sessions = sessions_of(tables)
    if not sessions:
        raise RawFormatError(
            f"{path}: holds no table rocpd_metadata, as every rocpd database does",
            slug="not-a-recording",
        )
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
            raise RawFormatError(
                f"{path}: holds no event, its tables are empty", slug="empty-recording"
            )
        joined = gpu_tables.write(
            parts, 0, has_column=has_column, data_types=data_types, progress=progress
        )
        sink.anomaly("relative_times", 1, "rocprofv3 does not record when its clock began")
        tell_unread(tables, sessions, sink)
        first, last = parts.span
        names = {number: properties.get("name") for number, properties in devices.items()}
        description.write(
            sink,
            start_ns=first,
            end_ns=last,
            host_name=None,
            device_names={device: names.get(device) for device in parts.devices},
            rank=None,
        )
        description.write_device_properties(sink, devices)
        return Found(
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
