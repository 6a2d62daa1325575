"""Decodes a text export: the trace in one pass, then the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unified_prof.base.columns import Sink, Stage
from unified_prof.base.coverage import Coverage
from unified_prof.decoders.ascend_pt.folder import AscendFolder
from unified_prof.decoders.ascend_text import events as files
from unified_prof.decoders.ascend_text import host as lanes
from unified_prof.decoders.ascend_text import memory
from unified_prof.decoders.ascend_text.device import Device
from unified_prof.decoders.ascend_text.events import (
    BadEventError,
    Event,
    find_export,
    read_events,
    time_ns,
)
from unified_prof.decoders.ascend_text.host import Enums, Host, Layer, Layers, read_layers
from unified_prof.decoders.ascend_text.memory import Counters
from unified_prof.errors import RawFormatError

_UNKNOWN_CHIP = "UNKNOWN"
_NONE = -1
# Phases of arrows, which are redundant: ids of calls and operators say the same.
_FLOWS = ("s", "t", "f")


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rank of a decoded export, and counts of its data."""

    rank: int | None
    events: int  # Number of slices and samples.
    operators: int
    connections: int
    tasks: int


def decode(path: Path, sink: Sink, enums: Enums, stage: Stage) -> Decoded:
    """Write all tables that the export has data for.

    `path` is trace_view.json, its directory, or the `*_ascend_pt` directory that contains it.
    `enums` returns name -> number for an ENUM_* table.

    Raises:
        RawFormatError: the trace is missing, unreadable or empty.
    """
    export = find_export(path)
    if export is None:
        raise RawFormatError(f"{path} has no {files.TRACE}", slug="incomplete-recording")
    around = AscendFolder(export.around)
    with stage("names"):
        layers = read_layers(export.trace, sink)
    trace = _Trace(layers, enums)
    with stage("events"):
        trace.read(export.trace, sink)
    tables = (files.ALLOCATIONS, files.TOTALS, files.MODULES)
    if not trace.shown and not any(map(export.file, tables)):
        raise RawFormatError(
            f"{export.trace}: contains no complete event, and its directory has no tables",
            slug="empty-recording",
        )
    process = layers.process() or 0
    with stage("host"):
        operators, connections = trace.host.write(process, sink)
    with stage("device"):
        tasks = trace.device.write(export.file(files.KERNELS), sink)
        trace.counters.write(sink)
    with stage("memory"):
        for name, write in (
            (files.ALLOCATIONS, memory.write_allocations),
            (files.TOTALS, memory.write_totals),
            (files.MODULES, partial(memory.write_modules, enums=enums)),
        ):
            _part(sink, export.file(name), write)
    _write_session(trace, around, sink)
    coverage, taken = Coverage(), {export.trace, *map(export.file, (*tables, files.KERNELS))}
    for path in sorted(export.folder.iterdir()) if export.has_tables else [export.trace]:
        if path.is_file() and path.suffix != ".db":
            size = path.stat().st_size
            coverage.add(path.name, "bytes", size, without_table=0 if path in taken else size)
    lost = trace.events - trace.shown - trace.damaged
    coverage.add("trace", "events", trace.events, skipped=trace.damaged, without_table=lost)
    coverage.write(sink)
    for name in export.others():
        sink.anomaly("undecoded_data", 1, f"{export.folder / name}")
    if around.prof is not None or around.has_framework:
        detail = f"{around.path} contains more complete raw data: import that directory instead"
        sink.anomaly("raw_data_beside", 1, detail)
    for name, detail in around.problems:
        sink.anomaly(name, 1, detail)
    return Decoded(around.rank, trace.events, operators, connections, tasks)


class _Trace:
    """Passes the events of the trace to the writers of the tables."""

    def __init__(self, layers: Layers, enums: Enums) -> None:
        self._layers = layers
        self.host = Host()
        self.device = Device(enums)
        self.counters = Counters()
        self.events = 0
        self.shown = self.damaged = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None

    def read(self, path: Path, sink: Sink) -> None:
        unknown: Counter[str] = Counter()
        # The first pass has counted the damage of the file already.
        for events in read_events(path, _NullSink(sink)):
            for event in events:
                if event.ph == "M" or event.ph in _FLOWS:
                    continue
                self.events += 1
                try:
                    known = self._take(event)
                except ValueError as err:
                    self.damaged += 1
                    sink.anomaly("damaged_event", 1, f"{path}: {event.name!r}: {err}")
                    continue
                if known:
                    self.shown += 1
                else:
                    unknown[self._where(event)] += 1
        for where, count in unknown.items():
            sink.anomaly("undecoded_event", count, f"{path}: {where}")

    def _take(self, event: Event) -> bool:
        layer = self._layers.by_pid.get(event.pid)
        if layer is None or event.ph not in ("X", "C"):
            return False
        start = time_ns(event.ts)
        if event.ph == "C":
            return self.counters.take(event, start, layer)
        end = start + time_ns(event.dur)
        if start <= 0 or end < start:
            raise BadEventError(f"from {start} to {end} ns")
        known = self._take_slice(event, start, end, layer)
        if known:
            self.first_ns = min(start, self.first_ns or start)
            self.last_ns = max(end, self.last_ns or end)
        return known

    def _take_slice(self, event: Event, start: int, end: int, layer: Layer) -> bool:
        if layer.name == lanes.PYTHON:
            return self.host.take_python(event, start, end, layer.process)
        if layer.name == lanes.CANN:
            return self.host.take_call(event, start, end)
        if layer.name == lanes.HARDWARE:
            self.device.tasks.take(event, start, end, layer)
        elif layer.name in lanes.COMMUNICATION:
            lane = self._layers.threads.get((event.pid, event.tid), "")
            return self.device.collectives.take(event, start, end, layer, lane)
        elif layer.name == lanes.OVERLAP:
            return self.device.take_overlap(event, start, end, layer)
        elif layer.name == lanes.COLLECTIONS:
            self.host.take_collection(event, start, end)
        else:
            return False
        return True

    def _where(self, event: Event) -> str:
        layer = self._layers.by_pid.get(event.pid)
        shown = f"process {event.pid}" if layer is None else layer.name
        return f"{shown}: {event.name!r}, phase {event.ph!r}, category {event.cat!r}"


class _NullSink(Sink):
    """Discards rows and anomalies, for a second pass over the same file."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @property
    def strings(self) -> Any:
        """String pool of the target sink."""
        return self._sink.strings

    def write(self, table: str, columns: Any) -> int:
        """Discard the rows."""
        return 0

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        """Ignore the anomaly."""


def _part(sink: Sink, path: Path | None, write: Callable[[Path, Sink], None]) -> None:
    """Decode a file if it exists; if it cannot be read, only its table is missing."""
    if path is None:
        return
    try:
        write(path, sink)
    except RawFormatError as err:
        sink.anomaly("undecoded_part", 1, str(err))


def _write_session(trace: _Trace, around: AscendFolder, sink: Sink) -> None:
    devices = trace.device.devices or [_NONE]
    rank = _NONE if around.rank is None else around.rank
    sink.write("NPU_INFO", {"id": devices, "name": [_UNKNOWN_CHIP] * len(devices)})
    sink.write("RANK_DEVICE_MAP", {"rankId": [rank] * len(devices), "deviceId": devices})
    if trace.first_ns is not None:
        sink.write(
            "SESSION_TIME_INFO", {"startTimeNs": [trace.first_ns], "endTimeNs": [trace.last_ns]}
        )
    around.write_metadata(sink)
