"""Decodes a text export: the trace in one pass, then the tables, including memory and counters.

Memory is read from operator_memory.csv, memory_record.csv and npu_module_mem.csv, counters from
samples in the trace.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import TypeGuard

from msgspec import Struct

from unified_prof.base.columns import NO_TEXT, Coverage, Sink, Stage
from unified_prof.decoders.ascend_pt.folder import AscendFolder
from unified_prof.decoders.ascend_text import events as files
from unified_prof.decoders.ascend_text import host as lanes
from unified_prof.decoders.ascend_text.device import Device
from unified_prof.decoders.ascend_text.events import (
    BadEventError,
    Event,
    device_of,
    find_export,
    read_events,
    read_rows,
    time_ns,
)
from unified_prof.decoders.ascend_text.host import Enums, Host, Layer, Layers, number, read_layers
from unified_prof.errors import RawFormatError

_KIB, _MIB = 1024, 1024 * 1024
_ROWS = 50_000
_CANN_NAME = "cann::"
# Component of the whole process, which is in the trace as well (NPU_MEM).
_APPLICATION = "APP"
_MAX_DIGITS = 15
Row = dict[str, object]


def write_allocations(path: Path, sink: Sink) -> None:
    """Write OP_MEMORY."""

    def row(cells: dict[str, str]) -> Row:
        def total(when: str, what: str) -> int | None:
            return _bytes(cells.get(f"{when} Total {what}(MB)", ""), _MIB)

        name = cells["Name"]
        allocated, released = time_ns(cells["Allocation Time(us)"]), cells.get("Release Time(us)")
        release: Row = {
            "releaseTime": _time(released or ""),
            "duration": _time(cells.get("Duration(us)", "")),
            "releaseTotalAllocated": total("Release", "Allocated"),
            "releaseTotalReserved": total("Release", "Reserved"),
        }
        if name.startswith(_CANN_NAME) and release["releaseTime"] == allocated:
            # Allocations of CANN that were not released: torch_npu shows them as released at once.
            release = dict.fromkeys(release)
        return {
            "name": sink.strings.intern(text)
            if (text := name.removeprefix(_CANN_NAME))
            else NO_TEXT,
            "size": _bytes(cells["Size(KB)"], _KIB),
            "allocationTime": allocated,
            **release,
            "activeReleaseTime": _time(cells.get("Active Release Time(us)", "")),
            "activeDuration": _time(cells.get("Active Duration(us)", "")),
            "allocationTotalAllocated": total("Allocation", "Allocated"),
            "allocationTotalReserved": total("Allocation", "Reserved"),
            "allocationTotalActive": total("Allocation", "Active"),
            "releaseTotalActive": total("Release", "Active"),
            "streamPtr": _optional(cells.get("Stream Ptr", "")),
            "deviceId": device_of(cells["Device Type"]),
        }

    needed = ("Name", "Size(KB)", "Allocation Time(us)", "Device Type")
    _write("OP_MEMORY", path, needed, row, sink)


def write_totals(path: Path, sink: Sink) -> None:
    """Write MEMORY_RECORD."""

    def row(cells: dict[str, str]) -> Row | None:
        if cells["Component"] == _APPLICATION:
            return None
        return {
            "component": sink.strings.intern(cells["Component"]),
            "timestamp": time_ns(cells["Timestamp(us)"]),
            "totalAllocated": _bytes(cells.get("Total Allocated(MB)", ""), _MIB),
            "totalReserved": _bytes(cells.get("Total Reserved(MB)", ""), _MIB),
            # torch_npu writes 0 for what CANN's own allocator does not say.
            "totalActive": _bytes(cells.get("Total Active(MB)", ""), _MIB) or 0,
            "streamPtr": _optional(cells.get("Stream Ptr", "")),
            "deviceId": device_of(cells["Device Type"]),
        }

    _write("MEMORY_RECORD", path, ("Component", "Timestamp(us)", "Device Type"), row, sink)


def write_modules(path: Path, sink: Sink, enums: Enums) -> None:
    """Write NPU_MODULE_MEM."""
    modules = enums("ENUM_MODULE")

    def row(cells: dict[str, str]) -> Row | None:
        reserved, unit = cells.get("Total Reserved(MB)"), _MIB
        if reserved is None:
            reserved, unit = cells.get("Total Reserved(KB)", ""), _KIB
        module = modules.get(cells["Component"])
        if module is None:
            sink.anomaly("unknown_module", 1, f"{path}: component {cells['Component']}")
            return None
        return {
            "moduleId": module,
            "timestampNs": time_ns(cells["Timestamp(us)"]),
            "totalReserved": _bytes(reserved, unit),
            "deviceId": device_of(cells["Device"]),
        }

    _write("NPU_MODULE_MEM", path, ("Component", "Timestamp(us)", "Device"), row, sink)


def _write(
    table: str,
    path: Path,
    needed: tuple[str, ...],
    make: Callable[[dict[str, str]], Row | None],
    sink: Sink,
) -> None:
    for rows in _batches(path, needed, make, sink):
        sink.write(table, {name: [row[name] for row in rows] for name in rows[0]})


def _batches(
    path: Path, needed: tuple[str, ...], make: Callable[[dict[str, str]], Row | None], sink: Sink
) -> Iterator[list[Row]]:
    rows: list[Row] = []
    for cells in read_rows(path, needed, sink):
        try:
            row = make(cells)
        except BadEventError as err:
            sink.anomaly("damaged_row", 1, f"{path}: {err}")
            continue
        if row is not None:
            rows.append(row)
        if len(rows) == _ROWS:
            yield rows
            rows = []
    if rows:
        yield rows


def _time(text: str) -> int | None:
    return time_ns(text) if text else None


def _optional(text: str) -> int | None:
    found = number(text, -1)
    return None if found == -1 else found


def _bytes(text: str, unit: int) -> int | None:
    """Convert a size to bytes without loss, since the export contains all digits."""
    if not text:
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise BadEventError(f"{text!r} is not a size") from None
    if not value.is_finite() or value.adjusted() > _MAX_DIGITS:
        raise BadEventError(f"{text!r} is not a size")
    return round(value * unit)


_KIB_COUNTERS, _MB = 1024, 1_000_000
# AICORE_FREQ.dieId of a device without dies.
_NO_DIE = -1
_MEMORY = re.compile(r"(APP|Device)/(DDR|HBM)")
_HBM = re.compile(r"HBM (\d{1,3})/(Read|Write)")
_LLC = re.compile(r"LLC (\d{1,3}) (Read|Write)/(Throughput|Hit Rate)")
_LEVELS = {"Mata Bw Level": "mataBwLevel", "L2 Buffer Bw Level": "l2BufferBwLevel"}
_ACCELERATOR = {
    "read_bandwidth": "readBwLevel",
    "write_band_width": "writeBwLevel",
    "read_ost": "readOstLevel",
    "write_ost": "writeOstLevel",
}
_QOS = "QoS "


class Counters:
    """Collects counter samples; repeated samples are kept once."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[tuple[object, ...], dict[str, object]]] = {}

    def take(self, event: Event, at_ns: int, layer: Layer) -> bool:
        """Add a sample; return False if its kind is unknown."""
        args = event.args or {}
        name, place = event.name, {"timestampNs": at_ns, "deviceId": layer.device}
        if name == "AI Core Freq":
            values = {"freq": number(args.get("MHz"), -1), "dieId": _NO_DIE}
            self._row("AICORE_FREQ", place, {}, values)
        elif found := _MEMORY.fullmatch(name):
            used = _scaled(args.get("KB"), _KIB_COUNTERS)
            self._row("NPU_MEM", place, {"type": found[1].lower()}, {found[2].lower(): used})
        elif found := _HBM.fullmatch(name):
            kind = found[2]
            speed = _scaled(args.get(f"{kind}(MB/s)"), _MB)
            keys = {"hbmId": int(found[1]), "type": kind.lower()}
            self._row("HBM", place, keys, {"bandwidth": speed})
        elif found := _LLC.fullmatch(name):
            keys = {"llcId": int(found[1]), "mode": found[2].lower()}
            if found[3] == "Throughput":
                speed = _scaled(args.get("Throughput(MB/s)"), _MB)
                self._row("LLC", place, keys, {"throughput": speed})
            else:
                self._row("LLC", place, keys, {"hitRate": args.get("Hit Rate(%)")})
        elif name in _LEVELS:
            self._row("SOC_BANDWIDTH_LEVEL", place, {}, {_LEVELS[name]: args.get(name)})
        elif name in _ACCELERATOR:
            keys = {"accId": number(args.get("acc_id"), -1)}
            self._row("ACC_PMU", place, keys, {_ACCELERATOR[name]: args.get("value")})
        elif name.startswith(_QOS):
            speed = _scaled(args.get("value"), _MB)
            self._row("QOS", place, {"eventName": name.removeprefix(_QOS)}, {"bandwidth": speed})
        else:
            return name.endswith("/Memory")  # the sum of both memories
        return True

    def _row(
        self,
        table: str,
        place: Mapping[str, object],
        keys: Mapping[str, object],
        values: Mapping[str, object],
    ) -> None:
        rows = self._tables.setdefault(table, {})
        key = (*place.values(), *keys.values())
        row = rows.setdefault(key, {**place, **keys})
        row.update({name: value for name, value in values.items() if _is_number(value)})

    def write(self, sink: Sink) -> None:
        """Write the tables of all counters."""
        for table, rows in self._tables.items():
            names = {name: None for row in rows.values() for name in row}
            columns: dict[str, list[object]] = {
                name: [row.get(name) for row in rows.values()] for name in names
            }
            for name in ("type", "eventName", "mode"):
                if name in columns:
                    columns[name] = [sink.strings.intern(str(text)) for text in columns[name]]
            sink.write(table, columns)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _scaled(value: object, unit: int) -> float | None:
    if not _is_number(value):
        return None
    scaled = value * unit
    return int(scaled) if float(scaled).is_integer() else scaled


_UNKNOWN_CHIP = "UNKNOWN"
_NONE = -1
# Phases of arrows, which are redundant: ids of calls and operators say the same.
_FLOWS = ("s", "t", "f")


class Decoded(Struct, frozen=True):
    """Rank of a decoded export, and counts of its data."""

    rank: int | None
    events: int  # Number of slices and samples.
    operators: int
    connections: int
    tasks: int


def decode(path: Path, sink: Sink, enums: Enums, stage: Stage) -> Decoded:
    """Write all tables that the export has data for.

    `path` is trace_view.json, its directory, or the `*_ascend_pt` directory that contains it.
    `enums` returns name -> number for an ENUM_* table. Raises RawFormatError if the trace is
    missing, unreadable or empty.
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
            (files.ALLOCATIONS, write_allocations),
            (files.TOTALS, write_totals),
            (files.MODULES, partial(write_modules, enums=enums)),
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
        for events in read_events(path, lambda *_: None):
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
