"""Decodes a `*_ascend_pt` directory: joins the operators of FRAMEWORK/ with PROF_*, adds memory.

Memory allocated by PyTorch and CANN on devices is written to MEMORY_RECORD and OP_MEMORY.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct

from unified_prof.arrays.grouping import Ints, Runs, last_not_after
from unified_prof.base.columns import (
    COVERAGE_TABLE,
    FIRST_MARK_CONNECTION,
    Column,
    Sink,
    Stage,
    Strings,
)
from unified_prof.decoders.ascend_pt import folder as files
from unified_prof.decoders.ascend_pt import queue as links
from unified_prof.decoders.ascend_pt.folder import (
    DAMAGED,
    AscendFolder,
    Layout,
    epoch_ns,
    read_flat,
    read_records,
)
from unified_prof.decoders.ascend_pt.operators import (
    NO_NAME,
    NONE,
    Clock,
    Operators,
    read_frames,
    string_ids,
)
from unified_prof.decoders.ascend_pt.queue import Queue, dequeue_begun, enqueue_of
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.recording import decode_recording, report_coverage, write_coverage
from unified_prof.decoders.spool import Rows, row_type
from unified_prof.errors import RawFormatError

_TOTALS = [
    *((name, "<i8") for name in "ptr time size allocated reserved active stream".split()),
    ("device_type", "i1"),
]
_THREAD = [("tid", "<u8"), ("pid", "<u8")]
# Files since June 2025 have a component, files before May 2024 no allocator.
_LAYOUTS = tuple(
    Layout(np.dtype([*_TOTALS, *extra, *_THREAD]), by_length=True)
    for extra in (
        [("device", "i1"), ("component", "u1"), ("kind", "u1"), ("allocator", "u1")],
        [("device", "i1"), ("kind", "u1"), ("allocator", "u1")],
        [("device", "i1"), ("kind", "u1")],
    )
)
_KIND = 3
_NPU = 20
_WORKSPACE = 1
_MALLOC, _FREE, _BLOCK_FREE = 0, 1, 2
_INNER = 0
_RELEASE = "release"
_NOT_CANDIDATES = ("empty_tensor", "malloc_workspace")
_REAL = ("aten", "npu")


_RECORD = row_type(
    "ptr i8, time i8, size i8, allocated i8, reserved i8, active i8, stream i8, device i8,"
    " component i8, kind i8, allocator i8, tid i8, pid i8"
)


def read_memory(path: Path | None, clock: Clock, sink: Sink, *, device: int | None) -> Rows:
    """Read the records of PyTorch's device allocators, sorted by time; none without a file.

    If only one device was recorded, `device` replaces PyTorch's number.
    """
    parts = [np.zeros(0, _RECORD)]
    for batch in () if path is None else read_records(path, _KIND, _LAYOUTS, (), sink):
        on_npu = batch.fixed[batch.fixed["device_type"] == _NPU]
        rows = np.zeros(len(on_npu), _RECORD)
        for name in {*(_RECORD.names or ())} & {*(on_npu.dtype.names or ())}:
            rows[name] = on_npu[name]
        parts.append(rows)
    records = np.concatenate(parts)
    records["time"] = clock(records["time"])
    if device is not None:
        records["device"] = device
    return records[np.argsort(records["time"], kind="stable")]


def write_totals(records: Rows, allocations: dict[str, Ints], sink: Sink) -> None:
    """Write MEMORY_RECORD: the totals of each allocator and of both together, after each change."""
    pytorch = records[records["component"] != _WORKSPACE]
    workspace = records[records["component"] == _WORKSPACE]
    by_time = np.argsort(allocations["timestampNs"], kind="stable")
    cann = {name: values[by_time] for name, values in allocations.items()}
    time, device = cann["timestampNs"], cann["deviceId"]
    # At equal times, PyTorch's record is first.
    before = _last_before(time, device, pytorch["time"], pytorch["device"], "left")
    beside = _last_before(pytorch["time"], pytorch["device"], time, device, "right")
    allocated, reserved, active, stream = (
        pytorch[name] for name in ("allocated", "reserved", "active", "stream")
    )
    place = pytorch["time"], pytorch["device"]
    _write_totals(sink, "PTA", *place, allocated, reserved, active, stream)
    _write_totals(
        sink,
        "PTA+GE",
        *place,
        _with(allocated, cann["totalAllocate"], before),
        _with(reserved, cann["totalReserve"], before),
        active,
        # NULL if it is 0 and CANN has a record.
        np.ma.MaskedArray(stream, (stream == 0) & (before != NONE)),
    )
    names = ("time", "device", "allocated", "reserved", "active", "stream")
    _write_totals(sink, "WORKSPACE", *(workspace[name] for name in names))
    cann_totals = cann["totalAllocate"], cann["totalReserve"]
    _write_totals(sink, "GE", time, device, *cann_totals, 0, None)
    _write_totals(
        sink,
        "PTA+GE",
        time,
        device,
        _with(cann["totalAllocate"], allocated, beside),
        _with(cann["totalReserve"], reserved, beside),
        _with(np.zeros(len(time), np.int64), active, beside),
        np.ma.MaskedArray(np.append(stream, 0)[beside], beside == NONE),
    )


_TOTALS_COLUMNS = ("totalAllocated", "totalReserved", "totalActive", "streamPtr")


def _write_totals(sink: Sink, component: str, time: Ints, device: Ints, *totals: Column) -> None:
    if len(time):
        columns: dict[str, Column] = dict(zip(_TOTALS_COLUMNS, totals, strict=True))
        columns |= {"component": sink.strings.intern(component), "timestamp": time}
        sink.write("MEMORY_RECORD", {**columns, "deviceId": device})


def _with(values: Ints, others: Ints, place: Ints) -> Ints:
    return np.asarray(values + np.append(others, 0)[place])


def _last_before(
    time: Ints, device: Ints, at_ns: Ints, at_device: Ints, side: Literal["left", "right"]
) -> Ints:
    """Return for each of `at_ns` the index of the last earlier `time` on the same device, or NONE.

    `time` is ascending. Equal times count as earlier if `side` is `right`, not if it is `left`.
    """
    order = np.argsort(device, kind="stable")
    last = last_not_after(device[order], time[order], at_device, at_ns, side)
    return np.asarray(np.append(order, NONE)[last])


def write_allocations(
    records: Rows, operators: Operators, names: Ints, queue: Queue, sink: Sink
) -> None:
    """Write the rows of OP_MEMORY for PyTorch: allocations paired with their releases.

    `names` are the string ids of the names of the operators. With the task queue, the operators for
    launching threads are found.
    """
    records = records[records["allocator"] == _INNER]
    odd = records["kind"] > _BLOCK_FREE
    if odd.any():
        sink.anomaly(DAMAGED, int(odd.sum()), "a memory record that is neither malloc nor free")
        records = records[~odd]
    if not len(operators) or not len(records):
        if len(records):
            detail = "operators not recorded: allocations are missing in OP_MEMORY"
            sink.anomaly("memory_without_operators", len(records), detail)
        return
    records = records[np.lexsort((records["time"], records["ptr"], records["pid"]))]
    first, free, block_free, unused = _groups(records)
    detail = "a free without an allocation, or a repeated free"
    sink.anomaly("unmatched_free", unused, detail)
    order = np.argsort(records["time"][first], kind="stable")
    first, free, block_free = first[order], free[order], block_free[order]
    by = _allocating(records[first], operators, queue)
    released = np.where(free != NONE, free, block_free)
    time = records["time"]

    def at(values: Ints, place: Ints) -> Column:
        return np.ma.MaskedArray(values[place], place == NONE)

    sink.write(
        "OP_MEMORY",
        {
            "name": np.append(names, NO_NAME)[by],
            "size": records["size"][first],
            "allocationTime": time[first],
            "releaseTime": at(time, free),
            "activeReleaseTime": at(time, block_free),
            "duration": np.ma.MaskedArray(time[free] - time[first], free == NONE),
            "activeDuration": np.ma.MaskedArray(time[block_free] - time[first], block_free == NONE),
            "allocationTotalAllocated": records["allocated"][first],
            "allocationTotalReserved": records["reserved"][first],
            "allocationTotalActive": records["active"][first],
            "releaseTotalAllocated": at(records["allocated"], released),
            "releaseTotalReserved": at(records["reserved"], released),
            "releaseTotalActive": at(records["active"], released),
            "streamPtr": records["stream"][first],
            "deviceId": records["device"][first],
        },
    )


def _groups(records: Rows) -> tuple[Ints, Ints, Ints, int]:
    """Return for each malloc its free and block free (or NONE), and the number of unmatched frees.

    The records are sorted by process, address and time. A free or block free belongs to the
    preceding malloc. If that malloc already has one, the free and all following frees are
    unmatched.
    """
    kind = records["kind"]
    is_malloc = kind == _MALLOC
    group = np.cumsum(is_malloc) - 1
    places = Runs(records["pid"], records["ptr"])
    start = np.flatnonzero(is_malloc)
    # Frees before the first malloc of their address follow a malloc of another address.
    of_address = places.number()
    matched = group >= 0
    matched[matched] = of_address[start[group[matched]]] == of_address[matched]
    rank = np.arange(len(kind)) - np.append(start, 0)[group]
    nothing = np.full(len(start), NONE, np.int64)
    free, block_free = nothing.copy(), nothing
    second = np.flatnonzero(matched & (rank == 1) & ~is_malloc)
    third = np.flatnonzero(matched & (rank == 2) & ~is_malloc)
    third = third[kind[third] != kind[third - 1]]
    for rows in (second, third):
        for wanted, side in ((_FREE, free), (_BLOCK_FREE, block_free)):
            chosen = rows[kind[rows] == wanted]
            side[group[chosen]] = chosen
    unused = len(kind) - len(start) - len(second) - len(third)
    return start, free, block_free, unused


def _allocating(mallocs: Rows, operators: Operators, queue: Queue) -> Ints:
    """Return the operator that made each allocation, or NONE."""
    time, tid = mallocs["time"], mallocs["tid"]
    candidates = operators.match(lambda name: name not in _NOT_CANDIDATES)
    result = operators.not_ended(operators.begun(tid, time, candidates), time)
    held = dequeue_begun(queue.dequeues, tid, time)
    inside = np.flatnonzero(held != NONE)
    inside = inside[time[inside] < queue.dequeues.end_ns[held[inside]]]
    enqueue = enqueue_of(queue, held[inside])
    inside, enqueue = inside[enqueue != NONE], enqueue[enqueue != NONE]
    side = queue.enqueues
    operator = operators.begun(side.tid[enqueue], side.end_ns[enqueue], candidates)
    real = operators.match(lambda name: name.startswith(_REAL))
    result[inside] = operators.nearest(operator, real)
    return result


def write_cann_allocations(allocations: dict[str, Ints], sink: Sink) -> None:
    """Write the rows of OP_MEMORY for CANN operators: allocations paired with their releases."""
    is_release = allocations["type"] == sink.strings.intern(_RELEASE)
    size = allocations["size"]
    usable = size != 0
    rows = np.flatnonzero(usable)
    keys = [allocations[name][rows] for name in ("operatorName", "addr", "deviceId")]
    order = rows[np.lexsort((rows, *keys))]
    if not len(order):
        return
    runs = Runs(*(allocations[name][order] for name in ("operatorName", "addr", "deviceId")))
    release = is_release[order]
    first = np.zeros(len(order), bool)
    first[runs.starts] = True
    # A release ends the allocation directly before it; an allocation before another is lost.
    ends = release & ~first & ~np.append(True, release[:-1])
    allocated = np.flatnonzero(~release)
    following = np.append(ends, False)[allocated + 1]
    last = np.zeros(len(order), bool)
    last[runs.last] = True
    kept = following | last[allocated]
    detail = "an allocation whose address was reused, or a release without an allocation"
    sink.anomaly(
        "unmatched_allocation",
        int((~kept).sum()) + int((release & ~ends).sum()),
        f"NPU_OP_MEM: {detail}",
    )
    begin, has_end = order[allocated[kept]], following[kept]
    end = np.append(order, 0)[np.where(has_end, allocated[kept] + 1, len(order))]

    def at_end(name: str) -> Column:
        return np.ma.MaskedArray(allocations[name][end], ~has_end)

    time = allocations["timestampNs"]
    sink.write(
        "OP_MEMORY",
        {
            "name": allocations["operatorName"][begin],
            "size": size[begin],
            "allocationTime": time[begin],
            "releaseTime": at_end("timestampNs"),
            "duration": np.ma.MaskedArray(time[end] - time[begin], ~has_end),
            "allocationTotalAllocated": allocations["totalAllocate"][begin],
            "allocationTotalReserved": allocations["totalReserve"][begin],
            "releaseTotalAllocated": at_end("totalAllocate"),
            "releaseTotalReserved": at_end("totalReserve"),
            "deviceId": allocations["deviceId"][begin],
        },
    )


_NO_ROWS = np.zeros(0, np.int64)


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
        elif table == COVERAGE_TABLE:
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


class Decoded(Struct, frozen=True):
    """Rank, devices and counts of a decoded directory."""

    rank: int | None
    operators: int
    connections: int
    devices: tuple[int, ...]


def decode(path: Path, sink: Sink, stage: Stage = lambda _: nullcontext()) -> Decoded:
    """Write all tables that the directory has data for.

    If a part cannot be decoded, only its own tables are missing, and an anomaly is counted. Raises
    RawFormatError if the directory contains neither FRAMEWORK/ nor PROF_*, or none can be read.
    """
    folder = AscendFolder(path)
    recorder = RecordingSink(sink, folder.rank)
    prof = _decode_prof(folder, recorder, stage)
    if prof is None:
        recorder.write("RANK_DEVICE_MAP", {"deviceId": [-1]})
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


Part = TypeVar("Part")


class _Framework:
    """Decodes FRAMEWORK/."""

    def __init__(
        self, folder: AscendFolder, prof: ProfDirectory | None, sink: RecordingSink, stage: Stage
    ) -> None:
        self._folder, self._sink, self._stage = folder, sink, stage
        self._device = prof.devices[0].device_id if prof and len(prof.devices) == 1 else None
        self.operators = 0
        self.connections = 0
        self._clock = folder.clock(prof)

    def decode(self) -> None:
        """Write the tables of torch_npu; if a file cannot be read, only its tables are missing."""
        sink, stage = self._sink, self._stage
        with stage("operators of PyTorch"):
            operators = self._part(files.OPERATORS, Operators.read)
            self.operators = len(operators)
            names = string_ids(sink.strings, operators.names, operators.name)
            queue = self._part(files.MARKS, Queue.read)
        # As in torch_npu, all rows have the process id of the first operator.
        pids = (part.pid for part in (operators, queue.enqueues, queue.dequeues))
        pid = next((number for number in pids if number is not None), 0)
        links.write_types(sink)
        with stage("connections"):
            connections = links.operator_connections(
                operators, queue, sink.launches(), sink.marks()
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

    def _part(self, name: str, read: Callable[[Path | None, Clock, Sink], Part]) -> Part:
        """Read a file of FRAMEWORK/; without it, or if it cannot be read, as if it were missing."""
        path = self._folder.file(name)
        try:
            return read(path, self._times, self._sink)
        except RawFormatError as err:
            self._sink.anomaly("undecoded_part", 1, f"{files.FRAMEWORK}: {err}")
            return read(None, self._times, self._sink)

    def _times(self, raw: Ints) -> Ints:
        return epoch_ns(raw, self._clock)

    def _write_memory(self, operators: Operators, names: Ints, queue: Queue) -> None:
        sink = self._sink
        records = self._part(files.MEMORY, partial(read_memory, device=self._device))
        allocations = sink.allocations()
        write_totals(records, allocations, sink)
        write_allocations(records, operators, names, queue, sink)
        write_cann_allocations(allocations, sink)

    def _write_frames(self, path: Path | None, clock: Clock, sink: Sink) -> None:
        names = None if path is None else self._folder.file(files.CALL_NAMES)
        links.write_frames(read_frames(path, names, clock, sink), sink)

    def _write_collections(self, path: Path | None, clock: Clock, sink: Sink) -> None:
        if path is None:
            return
        records = read_flat(path, _COLLECTION, sink)
        start_ns, end_ns = clock(records["start"]), clock(records["end"])
        links.write_collections(start_ns, end_ns, records["pid"].astype(np.int64), sink)
