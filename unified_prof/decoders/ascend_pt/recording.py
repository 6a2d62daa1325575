"""Decodes a `*_ascend_pt` directory: joins the operators of FRAMEWORK/ with PROF_*."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import Ints
from unified_prof.base import coverage
from unified_prof.base.columns import FIRST_MARK_CONNECTION, Column, Sink, Stage, Strings
from unified_prof.decoders.ascend_pt import folder as files
from unified_prof.decoders.ascend_pt import memory
from unified_prof.decoders.ascend_pt import queue as links
from unified_prof.decoders.ascend_pt.folder import AscendFolder, clock_of, epoch_ns, read_flat
from unified_prof.decoders.ascend_pt.operators import Operators, read_frames, string_ids
from unified_prof.decoders.ascend_pt.queue import Queue
from unified_prof.decoders.prof.coverage import report_coverage, write_coverage
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.recording import decode_recording
from unified_prof.errors import RawFormatError

# ENUM_API_TYPE `node`.
_NODE = 10_000
_LAUNCH = "launch"
_NO_RANK = -1
_CALLS = ("startNs", "endNs", "globalTid", "connectionId")
_ALLOCATIONS = tuple(
    "operatorName addr type size timestampNs totalAllocate totalReserve deviceId".split()
)


class RecordingSink(Sink):
    """Forwards all rows, sets the rank, and keeps the rows needed to join operators."""

    def __init__(self, sink: Sink, rank: int | None) -> None:
        self._sink = sink
        self._rank = _NO_RANK if rank is None else rank
        self._calls: list[dict[str, Ints]] = []
        self._marks: list[dict[str, Ints]] = []
        self._allocations: list[dict[str, Ints]] = []
        self.covered: set[str] = set()  # Files whose coverage was written.

    @property
    def strings(self) -> Strings:
        """String pool of the target sink."""
        return self._sink.strings

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        """Forward an anomaly."""
        self._sink.anomaly(name, count, detail)

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        """Forward rows and keep those needed for joins."""
        if table == "RANK_DEVICE_MAP":
            columns = {**columns, "rankId": self._rank}
        elif table == "CANN_API":
            rows = _rows(columns, (*_CALLS, "type", "name"))
            launch = self.strings.intern(_LAUNCH)
            chosen = (rows["type"] == _NODE) & (rows["name"] == launch)
            if chosen.any():
                self._calls.append({name: rows[name][chosen] for name in _CALLS})
        elif table == "MSTX_EVENTS":
            rows = _rows(columns, _CALLS)
            chosen = rows["connectionId"] >= FIRST_MARK_CONNECTION
            if chosen.any():
                self._marks.append({name: values[chosen] for name, values in rows.items()})
        elif table == "NPU_OP_MEM":
            self._allocations.append(_rows(columns, _ALLOCATIONS))
        elif table == coverage.TABLE:
            self.covered.update(columns["kind"])  # type: ignore[arg-type]
        return self._sink.write(table, columns)

    def launches(self) -> dict[str, Ints]:
        """Return the calls that launched tasks other than collectives."""
        return _concatenated(self._calls, _CALLS)

    def marks(self) -> dict[str, Ints]:
        """Return marks that are also recorded on the device, in the columns of `launches`."""
        return _concatenated(self._marks, _CALLS)

    def allocations(self) -> dict[str, Ints]:
        """Return the allocations and releases of CANN operators."""
        return _concatenated(self._allocations, _ALLOCATIONS)


def _rows(columns: Mapping[str, Column], names: tuple[str, ...]) -> dict[str, Ints]:
    """Return columns as arrays of equal length; missing columns are 0."""
    arrays = {name: np.asarray(columns.get(name, 0)) for name in names}
    length = max((len(values) for values in arrays.values() if values.ndim), default=1)
    return {
        name: np.broadcast_to(values, length).astype(np.int64, copy=True)
        for name, values in arrays.items()
    }


def _concatenated(parts: list[dict[str, Ints]], names: tuple[str, ...]) -> dict[str, Ints]:
    nothing = np.zeros(0, np.int64)
    return {name: np.concatenate([nothing, *(part[name] for part in parts)]) for name in names}


_COLLECTION = np.dtype([("pid", "<u8"), ("start", "<u8"), ("end", "<u8")])


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rank, devices and counts of a decoded directory."""

    rank: int | None
    operators: int
    connections: int
    devices: tuple[int, ...]


def decode(path: Path, sink: Sink, stage: Stage = lambda _: nullcontext()) -> Decoded:
    """Write all tables that the directory has data for.

    If a part cannot be decoded, only its own tables are missing, and an anomaly is counted.

    Raises:
        RawFormatError: the directory contains neither FRAMEWORK/ nor PROF_*, or none can be read.
    """
    folder = AscendFolder(path)
    recorder = RecordingSink(sink, folder.rank)
    prof = _decode_prof(folder, recorder, stage)
    if prof is None:
        recorder.write("RANK_DEVICE_MAP", {"rankId": [-1], "deviceId": [-1]})
    framework = _Framework(folder, prof, recorder, stage)
    framework.decode()
    folder.write_metadata(sink)
    for name in folder.other_files():
        folder.problems.append(("undecoded_data", f"{files.FRAMEWORK}/{name}"))
    for name, detail in folder.problems:
        sink.anomaly(name, 1, detail)
    folder.write_coverage(recorder.covered, sink)
    devices = () if prof is None else tuple(device.device_id for device in prof.devices)
    return Decoded(folder.rank, framework.operators, framework.connections, devices)


def _decode_prof(folder: AscendFolder, sink: Sink, stage: Stage) -> ProfDirectory | None:
    if folder.prof is None:
        if folder.has_framework:
            return None
        raise RawFormatError(
            f"{folder.path} has neither {files.FRAMEWORK}/ nor PROF_*",
            hint="to import the text export alone, pass ASCEND_PROFILER_OUTPUT",
            slug="incomplete-recording",
        )
    try:
        prof = ProfDirectory(folder.prof)
        report_coverage(prof, sink)
        decode_recording(prof, sink, stage)
        write_coverage(prof, sink)
    except RawFormatError as err:
        if not folder.has_framework:
            raise
        sink.anomaly("undecoded_part", 1, f"PROF_*: {err}")
        return None
    return prof


class _Framework:
    """Decodes FRAMEWORK/."""

    def __init__(
        self, folder: AscendFolder, prof: ProfDirectory | None, sink: RecordingSink, stage: Stage
    ) -> None:
        self._folder, self._sink, self._stage = folder, sink, stage
        self._device = prof.devices[0].device_id if prof and len(prof.devices) == 1 else None
        self.operators = 0
        self.connections = 0
        self._clock = folder.clock(None if prof is None else clock_of(prof))

    def decode(self) -> None:
        """Write the tables of torch_npu; if a file cannot be read, only its tables are missing."""
        sink, stage = self._sink, self._stage
        with stage("operators of PyTorch"):
            operators = self._part(files.OPERATORS, Operators.read)
            if operators is None:
                operators = Operators.read(None, self._times, sink)
            self.operators = len(operators)
            names = string_ids(sink.strings, operators.names, operators.name)
            queue = self._part(files.MARKS, Queue.read)
            if queue is None:
                queue = Queue.read(None, self._times, sink)
        # As in torch_npu, all rows have the process id of the first operator.
        pids = (part.pid for part in (operators, queue.enqueues, queue.dequeues))
        pid = next((number for number in pids if number is not None), 0)
        links.write_types(sink)
        with stage("connections"):
            connections = links.operator_connections(
                operators, queue, sink.launches(), operators.pid, sink.marks()
            )
            self.connections = len(connections[0])
        with stage("tables of PyTorch"):
            used = links.write_operators(operators, names, connections, pid, sink)
            links.write_queue(queue, pid, used, sink)
            links.write_steps(operators, sink)
        with stage("memory"):
            self._write_memory(operators, names, queue)
        del operators, queue, names
        with stage("Python calls"):
            self._part(files.CALLS, self._write_frames)
            self._part(files.COLLECTIONS, self._write_collections)

    def _part(self, name: str, read: Callable[[Path, Any, Sink], Any]) -> Any:
        path = self._folder.file(name)
        if path is None:
            return None
        try:
            return read(path, self._times, self._sink)
        except RawFormatError as err:
            self._sink.anomaly("undecoded_part", 1, f"{files.FRAMEWORK}: {err}")
            return None

    def _times(self, raw: Ints) -> Ints:
        return epoch_ns(raw, self._clock)

    def _write_memory(self, operators: Operators, names: Ints, queue: Queue) -> None:
        sink = self._sink

        def read(path: Path, clock: Any, to: Sink) -> memory.Records:
            return memory.read_memory(path, clock, self._device, to)

        records = self._part(files.MEMORY, read)
        if records is None:
            records = memory.read_memory(None, self._times, self._device, sink)
        allocations = sink.allocations()
        memory.write_totals(records, allocations, sink)
        memory.write_allocations(records, operators, names, queue, sink)
        memory.write_cann_allocations(allocations, sink)

    def _write_frames(self, path: Path, clock: Any, sink: Sink) -> bool:
        calls = read_frames(path, self._folder.file(files.CALL_NAMES), clock, sink)
        links.write_frames(calls, sink)
        return True

    def _write_collections(self, path: Path, clock: Any, sink: Sink) -> bool:
        records = read_flat(path, _COLLECTION, sink)
        start_ns, end_ns = clock(records["start"]), clock(records["end"])
        links.write_collections(start_ns, end_ns, records["pid"].astype(np.int64), sink)
        return True
