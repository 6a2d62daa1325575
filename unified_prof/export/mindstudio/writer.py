"""Write all text deliverables of msprof that a report has data for.

The timelines are msprof_*.json (all layers) and msprof_tx_*.json (marks only). The layers Overlap
Analysis (computing, communication, free time) and marks of the program and of devices are defined
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from unified_prof.base.columns import NOT_AVAILABLE
from unified_prof.errors import UsageError
from unified_prof.export.files import OutputFiles, Written
from unified_prof.export.mindstudio import (
    memory,
    op_summary,
    statistics,
    timeline_device,
    timeline_events,
)
from unified_prof.export.mindstudio.registry import Delivery, LeftOut, Recording, as_json, blocks
from unified_prof.export.mindstudio.statistics import event_names, marks
from unified_prof.export.mindstudio.timeline_events import Blocks, Layer, Processes
from unified_prof.recording.model import Anomaly
from unified_prof.recording.source import Source

_TABLE = "OVERLAP_ANALYSIS"
_NAMES = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")


def layer(recording: Recording, processes: Processes) -> Blocks:
    """Yield the ranges of Overlap Analysis; every kind has a thread, even without ranges."""
    found = recording.timed(_TABLE, ["startNs", "endNs", "deviceId", "type"])
    keep = (found["type"] >= 0) & (found["type"] < len(_NAMES))
    found = {name: values[keep] for name, values in found.items()}
    if not len(found["type"]):
        if len(recording.tasks) and _TABLE not in recording.source.tables:
            recording.leave_out(
                "msprof", "Overlap Analysis", "databases of this revision do not have it"
            )
        return
    devices = found["deviceId"]
    yield processes.of_all_devices(timeline_events.OVERLAP, devices)
    yield [
        event
        for device in np.unique(devices).tolist()
        for number, name in enumerate(_NAMES)
        for event in timeline_events.thread(
            processes.number(timeline_events.OVERLAP[0], device), number, name
        )
    ]
    names = list(map(as_json, _NAMES))
    for part in blocks(len(devices)):
        kind = found["type"][part].tolist()
        start = found["startNs"][part]
        yield timeline_events.complete(
            [names[one] for one in kind],
            processes.of_devices(timeline_events.OVERLAP[0], devices[part]),
            kind,
            start,
            found["endNs"][part] - start,
            ["{}"] * len(kind),
        )


def layer_program(recording: Recording, processes: Processes) -> Blocks:
    """Yield the marks of the program on the host."""
    found = marks(recording)
    if not len(found):
        return
    process = processes.number(timeline_events.PROGRAM)
    recording.leave_out("msprof", "name of the profiled program", "not in the database")
    thread = found.global_tid & 0xFFFFFFFF
    yield processes.name_events((timeline_events.PROGRAM, ""))[1:]
    yield timeline_events.threads(process, thread)
    for part in blocks(len(found)):
        numbered = found.is_numbered[part]
        kinds = list(map(as_json, event_names(recording, found.event[part])))
        start = found.start_ns[part]
        yield timeline_events.complete(
            timeline_events.quoted(recording, found.message[part]),
            [process] * len(kinds),
            thread[part].tolist(),
            start,
            found.end_ns[part] - start,
            [
                f'{{"event_type":{kind},"domain":{domain}}}'
                if new
                else f'{{"Category":"{category}","event_type":{kind}}}'
                for kind, domain, new, category in zip(
                    kinds,
                    timeline_events.quoted(recording, found.domain[part]),
                    numbered.tolist(),
                    found.category[part].tolist(),
                    strict=True,
                )
            ],
        )
        rows = np.flatnonzero(numbered) + part.start
        yield timeline_events.flows(
            timeline_events.MARK_TO_DEVICE,
            list(map(str, found.connection[rows].tolist())),
            [process] * len(rows),
            thread[rows].tolist(),
            found.start_ns[rows],
            ends=False,
        )


def device_layer(recording: Recording, processes: Processes) -> Blocks:
    """Yield the times at which devices reached marks, on the streams of the marks."""
    tasks = recording.mark_tasks
    if not len(tasks):
        return
    found = marks(recording)
    messages = {
        connection: message
        for connection, message, new in zip(
            found.connection.tolist(),
            timeline_events.quoted(recording, found.message),
            found.is_numbered.tolist(),
            strict=True,
        )
        if new
    }
    yield from timeline_device.name_events(processes, tasks.device, tasks.stream)
    unknown = as_json(NOT_AVAILABLE)
    for part in blocks(len(tasks)):
        process = processes.of_devices(timeline_events.HARDWARE[0], tasks.device[part])
        stream, start = tasks.stream[part].tolist(), tasks.start_ns[part]
        connection = tasks.connection[part].tolist()
        yield timeline_events.complete(
            [messages.get(one, unknown) for one in connection],
            process,
            stream,
            start,
            tasks.end_ns[part] - start,
            [
                f'{{"Physic Stream Id":{one},"Task Id":{number}}}'
                for one, number in zip(stream, tasks.number[part].tolist(), strict=True)
            ],
        )
        yield timeline_events.flows(
            timeline_events.MARK_TO_DEVICE,
            list(map(str, connection)),
            process,
            stream,
            start,
            ends=True,
        )


_MARKS: tuple[Layer, ...] = (layer_program, device_layer)
_LAYERS: tuple[Layer, ...] = (
    *(
        timeline_device.layer,
        timeline_device.layer_hardware,
        timeline_device.layer_communication,
        layer,
    ),
    *(*_MARKS, *timeline_events.layers()),
)


def write_timeline(recording: Recording, delivery: Delivery) -> None:
    """Write the whole timeline."""
    delivery.timeline("msprof", _events(recording, _LAYERS))


def write_marks(recording: Recording, delivery: Delivery) -> None:
    """Write the marks to a separate timeline."""
    delivery.timeline("msprof_tx", _events(recording, _MARKS))


def _events(recording: Recording, layers: tuple[Layer, ...]) -> Blocks:
    processes = Processes(recording)
    for layer in layers:
        yield from layer(recording, processes)


_FAMILY = "msprof"


@dataclass(frozen=True, slots=True)
class Deliverable:
    """One kind of file of msprof's text export."""

    name: str  # Name of its files before the time.
    tables: tuple[str, ...]  # At least one of these tables must exist; empty: always written.
    # None if the database lacks the data of this file.
    write: Callable[[Recording, Delivery], None] | None
    why_missing: str = ""  # Reason shown if `write` is None.


DELIVERABLES = (
    Deliverable(
        "op_summary", ("COMPUTE_TASK_INFO", "COMMUNICATION_OP"), op_summary.write_op_summary
    ),
    Deliverable("op_statistic", ("COMPUTE_TASK_INFO",), statistics.write_op_statistic),
    Deliverable("task_time", ("TASK",), statistics.write_task_time),
    Deliverable("api_statistic", ("CANN_API",), statistics.write_api_statistic),
    Deliverable(
        "communication_statistic", ("COMMUNICATION_OP",), statistics.write_communication_statistic
    ),
    # PyTorch steps (STEP_TIME) are timed on the host and do not count.
    Deliverable("step_trace", ("TASK",), None, "iteration boundaries are not in the database"),
    Deliverable("memory_record", (memory.TABLE,), memory.write_memory_record),
    Deliverable("operator_memory", (memory.TABLE,), memory.write_operator_memory),
    Deliverable(
        "npu_mem",
        ("NPU_MEM",),
        None,
        "NPU_MEM has DDR and HBM, not their sum; see the timeline msprof",
    ),
    Deliverable("npu_module_mem", ("NPU_MODULE_MEM",), memory.write_npu_module_mem),
    *(Deliverable(one.name, (one.table,), one.write) for one in statistics.SAMPLED),
    Deliverable("msprof_tx", (statistics.TABLE,), statistics.write_msprof_tx),
    Deliverable("msprof", (), write_timeline),
    Deliverable("msprof_tx timeline", (statistics.TABLE,), write_marks),
)

# Files of msprof that uprof does not write, by the table that has their rows.
NOT_WRITTEN = {
    "CPU_USAGE": "host_cpu_usage",
    "HCCS": "hccs",
    "HOST_DISK_USAGE": "host_disk_usage",
    "HOST_MEM_USAGE": "host_mem_usage",
    "HOST_NETWORK_USAGE": "host_network_usage",
    "OSRT_API": "os_runtime_statistic",
    "SAMPLE_PMU_SUMMARY": "ai_core_utilization",
}


@dataclass(frozen=True, slots=True)
class Exported:
    """Files of an export, and what was left out."""

    files: tuple[Written, ...]
    left_out: tuple[LeftOut, ...]
    anomalies: tuple[Anomaly, ...]  # Anomalies found while reading.

    def fields(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "files": list(map(asdict, self.files)),
            "left_out": list(map(asdict, self.left_out)),
            "anomalies": {
                one.name: {"count": one.count, "detail": one.detail} for one in self.anomalies
            },
        }

    def lines(self) -> Iterator[str]:
        """Yield the result as lines of text."""
        for file in self.files:
            what = "row" if file.name.endswith(".csv") else "event"
            yield f"  {file.name}  {file.entries:,} {what}{'s' * (file.entries != 1)}"
        for one in self.left_out:
            yield f"  left out of {one.deliverable}: {one.what} ({one.why})"
        for anomaly in self.anomalies:
            detail = f" ({anomaly.detail})" if anomaly.detail else ""
            yield f"  anomaly {anomaly.name}: {anomaly.count:,}{detail}"


def refuse_others(source: Source) -> None:
    """Raise UsageError for a report that is not an msprof database."""
    if source.family != _FAMILY:
        raise UsageError(
            f"{source.path} is a report of the {source.family} family, which has no timeline; "
            "the files of msprof need an msprof database",
            hint="record one with `uprof run --report timeline`, or name a PROF_* directory",
            slug="wrong-kind-of-report",
        )


def write(
    source: Source,
    directory: Path,
    *,
    force: bool = False,
    raw: bool = False,
    moment: datetime | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write the files of an open msprof database into an existing directory, or none at all.

    If `raw`, names are written as by msprof, without protection from formulas and control
    characters. `moment` is the local time in the names of the files, by default now; `progress` is
    called with the name of each file.

    Raises:
        UsageError: Not an msprof database, or it has no data for any file.
        StoreError: The database is damaged.
        OutputError: A file exists or cannot be written.
    """
    refuse_others(source)
    recording = Recording(source, raw=raw)
    with OutputFiles(directory, force=force) as files:
        delivery = Delivery(files, moment or datetime.now())
        for deliverable in DELIVERABLES:
            if deliverable.tables and not set(source.tables).intersection(deliverable.tables):
                continue
            if deliverable.write is None:
                recording.leave_out(deliverable.name, "the file", deliverable.why_missing)
            else:
                progress(deliverable.name)
                deliverable.write(recording, delivery)
        for table, name in NOT_WRITTEN.items():
            if table in source.tables and source.rows(f"SELECT 1 FROM {table} LIMIT 1"):
                recording.leave_out(
                    name, "the file", f"uprof does not write it; its rows are in table {table}"
                )
        if not files.written:
            raise UsageError(
                f"{source.path} has no tasks, host calls, marks or operator memory, "
                "so there is nothing to write",
                slug="empty-recording",
            )
    return Exported(
        tuple(files.written), tuple(recording.left_out), tuple(recording.findings.anomalies())
    )
