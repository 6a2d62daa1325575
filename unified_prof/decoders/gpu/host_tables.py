"""Writes the tables of the host side, allocator events, recording metadata, and uprof's own events.

Host tables contain operations, annotations and steps; metadata are the time span, host, devices and
rank. MEMORY_RECORD contains the state after each event, OP_MEMORY the allocations paired with their
frees. Events that the msprof schema does not support, such as synchronizations, have own tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Ints
from unified_prof.arrays.intervals import NONE
from unified_prof.base.columns import (
    API_NAMES,
    API_OPERATION,
    MISSING,
    NO_CATEGORY,
    NO_MARK_CONNECTION,
    NOT_AVAILABLE,
    Column,
    Sink,
    null_if_missing,
    null_where,
)
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.pools import plain_id
from unified_prof.decoders.gpu.rows import Parts
from unified_prof.decoders.spool import Rows, row_type, windows

# ENUM_MSTX_EVENT_TYPE `start/end`, the type for which msprof-analyze computes statistics.
RANGE_EVENT = 2
_PENDING = row_type("row HOST, number i8, chain i8, called i1", HOST=r.HOST)


def _mark_called(pending: NDArray[Any], called: Ints) -> None:
    """Set `called` for the operations with these numbers."""
    called = called[called != NONE]
    operations = np.flatnonzero(pending["number"] != NONE)
    if len(called) and len(operations):
        # Numbers ascend.
        at = np.searchsorted(pending["number"][operations], called)
        pending["called"][operations[at]] = 1


class HostTables:
    """Writes operations and annotations when no later event can start inside them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._sink = parts.sink
        self._no_text = parts.sink.strings.intern(NOT_AVAILABLE)
        self._pending = np.empty(0, dtype=_PENDING)
        self._used_chains: list[Ints] = []
        self._wrote_operations = False

    def add(self, rows: Rows, numbers: Ints, chains: Ints, called: Ints, bound: int) -> None:
        """Add the operations and annotations of one window (rows of `HOST`).

        `numbers` are those of the operations, `chains` the call chains of the rows, or `NONE`;
        `called` the numbers of operations with runtime calls in this window. No event of a later
        window starts before `bound` (ns).
        """
        new = np.empty(len(rows), dtype=_PENDING)
        new["row"], new["number"], new["chain"], new["called"] = rows, numbers, chains, 0
        pending = np.concatenate((self._pending, new)) if len(self._pending) else new
        _mark_called(pending, called)
        closed = pending["row"]["end"] <= bound
        self._write(pending, closed)
        self._pending = pending[~closed]

    def finish(self) -> None:
        """Write the remaining rows, and the call chains of all operations."""
        self._write(self._pending, np.ones(len(self._pending), dtype=bool))
        self._pending = self._pending[:0]
        if self._used_chains:
            self._parts.chains.write(self._sink, np.unique(np.concatenate(self._used_chains)))
        if self._wrote_operations:
            names = [API_NAMES[API_OPERATION]]
            self._sink.write("ENUM_API_TYPE", {"id": [API_OPERATION], "name": names})

    def _write(self, pending: Rows, chosen: Bools) -> None:
        is_operation = pending["number"] != NONE
        operations, annotations = chosen & is_operation, chosen & ~is_operation
        if operations.any():
            self._write_operations(pending[operations])
        if annotations.any():
            rows = pending["row"][annotations]
            write_annotations(self._parts, rows, rows["name"], rows["thread"])

    def _write_operations(self, pending: NDArray[Any]) -> None:
        rows = pending["row"]
        self._wrote_operations = True
        global_tids = np.array(self._parts.threads.global_tids)[rows["thread"]]
        chains = pending["chain"]
        self._sink.write(
            "PYTORCH_API",
            {
                "startNs": rows["start"] + self._parts.base_ns,
                "endNs": rows["end"] + self._parts.base_ns,
                "globalTid": global_tids,
                "connectionId": null_where(pending["called"] == 0, pending["number"]),
                "name": rows["name"],
                "sequenceNumber": rows["sequence"],
                "fwdThreadId": self._forward_threads(rows),
                "inputDtypes": signature_texts(self._parts.signatures.types, rows, self._no_text),
                "inputShapes": signature_texts(self._parts.signatures.shapes, rows, self._no_text),
                "callchainId": null_where(chains == NONE, chains),
                "type": API_OPERATION,
            },
        )
        used = np.unique(chains[chains != NONE])
        if len(used):
            self._used_chains = [np.unique(np.concatenate((*self._used_chains, used)))]
        self._write_inputs(rows, global_tids)

    def _forward_threads(self, rows: Rows) -> Ints:
        """Return the forward thread of each backward operation, or the recorded id if unknown."""
        result: Ints = np.maximum(rows["forward_thread"], 0)
        threads = self._parts.threads
        processes = np.array(threads.process_ids)[rows["thread"]]
        for (process, number), thread in self._parts.forward_threads.items():
            chosen = (rows["forward_thread"] == number) & (processes == process)
            result[chosen] = threads.global_tids[thread]
        return result

    def _write_inputs(self, rows: Rows, global_tids: Ints) -> None:
        """Write details of inputs that have no column in PYTORCH_API."""
        detailed = (rows["inputs"] != MISSING) | (rows["module"] != MISSING)
        if not detailed.any():
            return
        rows, global_tids = rows[detailed], global_tids[detailed]
        self._sink.write(
            "UPROF_OPERATION_INPUTS",
            {
                "startNs": rows["start"] + self._parts.base_ns,
                "globalTid": global_tids,
                "name": rows["name"],
                "externalId": null_if_missing(rows["external"]),
                "inputStrides": signature_texts(
                    self._parts.signatures.strides, rows, self._no_text
                ),
                "concreteInputs": self._or_no_text(rows["inputs"]),
                "moduleHierarchy": self._or_no_text(rows["module"]),
            },
        )

    def _or_no_text(self, ids: Ints) -> Ints:
        return np.where(ids != MISSING, ids, self._no_text)


def signature_texts(texts: list[int], rows: Rows, no_text: int) -> Ints:
    """Return the text of each row's signature, given the texts of all; `no_text` if it has none."""
    with_missing = np.array([*texts, no_text])  # MISSING is the last
    return np.asarray(with_missing[rows["signature"]])


def write_annotations(
    parts: Parts,
    rows: Rows,
    messages: Ints,
    threads: Ints,
    *,
    kinds: Ints | int = RANGE_EVENT,
    domains: Ints | None = None,
    end_threads: Ints | None = None,
    ranges: Ints | int = NO_CATEGORY,
    categories: Ints | int = NO_CATEGORY,
) -> None:
    """Write MSTX_EVENTS, and STEP_TIME for ranges that are steps of torch.profiler.

    If they have the field `finished`, unfinished steps
    are not written. `messages` and `domains` are string ids, `threads` and `end_threads` (where
    ranges end, by default the same) numbers of threads, `kinds` ids of ENUM_MSTX_EVENT_TYPE.
    """
    start, end = rows["start"] + parts.base_ns, rows["end"] + parts.base_ns
    steps = parts.names.steps
    is_step = np.isin(messages, list(steps)) & (np.asarray(kinds) == RANGE_EVENT)
    if "finished" in (rows.dtype.names or ()):
        is_step &= rows["finished"] != 0
    if is_step.any():
        numbers = [steps[name] for name in messages[is_step].tolist()]
        columns = {"id": numbers, "startNs": start[is_step], "endNs": end[is_step]}
        parts.sink.write("STEP_TIME", columns)
    global_tids = np.array([*parts.threads.global_tids, 0], np.int64)
    parts.sink.write(
        "MSTX_EVENTS",
        {
            "startNs": start,
            "endNs": end,
            "eventType": kinds,
            "rangeId": ranges,
            "category": categories,
            "message": messages,
            "globalTid": global_tids[threads],
            "endGlobalTid": global_tids[threads if end_threads is None else end_threads],
            "domainId": parts.names["default"] if domains is None else domains,
            "connectionId": NO_MARK_CONNECTION,
        },
    )


UNKNOWN_NAME = "UNKNOWN"
NO_DEVICE = -1
NO_RANK = -1
_NO_HOST_UID = "0"


def write_metadata(
    sink: Sink,
    *,
    start_ns: int,
    end_ns: int,
    host_name: str | None,
    device_names: Mapping[int, str | None],
    rank: int | None,
) -> None:
    """Write SESSION_TIME_INFO, HOST_INFO, NPU_INFO and RANK_DEVICE_MAP.

    Times are Unix times of the first and last event, or of the session. `device_names` contains
    the devices with events. A host name, device name or rank is None if it is unknown.
    """
    devices = sorted(device_names) or [NO_DEVICE]
    sink.write("SESSION_TIME_INFO", {"startTimeNs": start_ns, "endTimeNs": end_ns})
    sink.write("HOST_INFO", {"hostUid": _NO_HOST_UID, "hostName": host_name or UNKNOWN_NAME})
    names = [device_names.get(device) or UNKNOWN_NAME for device in devices]
    sink.write("NPU_INFO", {"id": devices, "name": names})
    ranks = [NO_RANK if rank is None else rank] * len(devices)
    sink.write("RANK_DEVICE_MAP", {"rankId": ranks, "deviceId": devices})


def write_device_properties(sink: Sink, properties: Mapping[int, Mapping[str, Any]]) -> None:
    """Write UPROF_GPU_DEVICES: the properties of each device, by name."""
    rows = [
        (device, name, value if isinstance(value, str) else json.dumps(value))
        for device, values in sorted(properties.items())
        for name, value in values.items()
    ]
    if rows:
        columns = zip(("deviceId", "name", "value"), zip(*rows, strict=True), strict=True)
        sink.write("UPROF_GPU_DEVICES", dict(columns))


# Tables whose rows need no joining: the spool, the columns that are copied, and those in which
# MISSING becomes NULL.
_COPIED = {
    "UPROF_GPU_ANNOTATIONS": (
        "gpu_annotations",
        {"deviceId": "device", "streamId": "stream", "name": "name"},
        {"externalId": "external"},
    ),
    "UPROF_GPU_SYNCS": (
        "syncs",
        {"deviceId": "device", "kind": "kind"},
        {
            "streamId": "stream",
            "contextId": "context",
            "correlationId": "correlation",
            "waitStream": "wait_stream",
            "waitEvent": "wait_event",
            "waitRecord": "wait_record",
        },
    ),
    "GC_RECORD": ("collections", {}, {}),
}


def write_extra_tables(parts: Parts) -> None:
    """Write the tables whose rows are not joined."""
    for table, (spool, copied, optional) in _COPIED.items():
        for (rows,) in windows(getattr(parts, spool)):
            columns: dict[str, Column] = {column: rows[field] for column, field in copied.items()}
            columns |= {
                "startNs": rows["start"] + parts.base_ns,
                "endNs": rows["end"] + parts.base_ns,
            }
            columns |= {column: null_if_missing(rows[field]) for column, field in optional.items()}
            if table == "GC_RECORD":
                columns["globalTid"] = np.array(parts.threads.global_tids)[rows["thread"]]
            parts.sink.write(table, columns)
    _write_python_frames(parts)
    _write_other_events(parts)
    _write_threads(parts)


# Shorter calls of Python functions are not written: they explain no idle time worth naming.
MIN_FRAME_NS = 200_000


def _write_python_frames(parts: Parts) -> None:
    frames, tids = parts.chains.frames, np.array(parts.threads.global_tids)
    for (rows,) in windows(parts.frames):
        kept = rows["end"] - rows["start"] >= MIN_FRAME_NS
        kept &= ~np.isin(rows["frame"], list(frames.outside))
        rows = rows[kept]
        if len(rows):
            parts.sink.write(
                "UPROF_PYTHON_FRAMES",
                {
                    "startNs": rows["start"] + parts.base_ns,
                    "endNs": rows["end"] + parts.base_ns,
                    "globalTid": tids[rows["thread"]],
                    "name": [
                        parts.sink.strings.intern(frames.texts[frame])
                        for frame in rows["frame"].tolist()
                    ],
                },
            )


def _write_other_events(parts: Parts) -> None:
    places = [(str(process), str(thread)) for process, thread in parts.places]
    for (rows,) in windows(parts.other):
        instant = rows["end"] == r.NO_END
        ends = np.where(instant, 0, rows["end"]) + parts.base_ns
        parts.sink.write(
            "UPROF_TRACE_EVENTS",
            {
                "startNs": rows["start"] + parts.base_ns,
                "endNs": null_where(instant, ends),
                "category": rows["category"],
                "name": rows["name"],
                "process": [places[place][0] for place in rows["place"].tolist()],
                "thread": [places[place][1] for place in rows["place"].tolist()],
                "args": [
                    parts.texts.text(at, size)
                    for at, size in zip(
                        rows["args_at"].tolist(), rows["args_size"].tolist(), strict=True
                    )
                ],
            },
        )


def _write_threads(parts: Parts) -> None:
    threads = parts.threads
    if threads:
        # Labels can spell a thread differently from its events.
        processes = {plain_id(pid): name for pid, name in threads.process_names.items()}
        names = {
            (plain_id(pid), plain_id(tid)): name
            for (pid, tid), name in threads.thread_names.items()
        }
        plain = [(plain_id(keys[0][0]), plain_id(keys[0][1])) for keys in threads.spellings]
        parts.sink.write(
            "UPROF_THREADS",
            {
                "globalTid": threads.global_tids,
                "process": [str(keys[0][0]) for keys in threads.spellings],
                "thread": [str(keys[0][1]) for keys in threads.spellings],
                "processName": [processes.get(process) for process, _ in plain],
                "threadName": [names.get(key) for key in plain],
            },
        )


HOST_COMPONENT = "CPU"
HOST_DEVICE = MISSING

_OPERATION_COLUMNS = (
    *("name", "size", "allocationTime", "releaseTime", "duration", "allocationTotalAllocated"),
    *("allocationTotalReserved", "releaseTotalAllocated", "releaseTotalReserved", "deviceId"),
)
_Row = tuple[int | None, ...]


class Allocations:
    """Writes MEMORY_RECORD and OP_MEMORY from allocator events in time order."""

    def __init__(self, parts: Parts) -> None:
        self._sink, self._component = parts.sink, parts.memory_component
        # Memory in use by device, if it is computed because events do not contain it.
        self._in_use: dict[int, int] | None = {} if parts.adds_up_allocations else None
        self._base_ns = parts.base_ns
        self._no_name = parts.sink.strings.intern(NOT_AVAILABLE)  # outside operations
        self._live: dict[tuple[int, int, int], _Row] = {}
        self._complete: list[_Row] = []

    def add(self, rows: Rows, operation_names: Ints) -> None:
        """Add allocator events with the names of the operations that enclose them."""
        if not len(rows):
            return
        if self._in_use is not None:
            rows = self._with_totals(rows, self._in_use)
        times = rows["start"] + self._base_ns
        on_host = rows["device"] == HOST_DEVICE
        names = np.where(operation_names != MISSING, operation_names, self._no_name)
        intern = self._sink.strings.intern
        component = np.full(len(rows), MISSING)
        for where, text in ((on_host, HOST_COMPONENT), (~on_host, self._component)):
            if where.any():
                component[where] = intern(text)
        self._sink.write(
            "MEMORY_RECORD",
            {
                "component": component,
                "timestamp": times,
                "totalAllocated": null_if_missing(rows["total_allocated"]),
                "totalReserved": null_if_missing(rows["total_reserved"]),
                "deviceId": rows["device"],
            },
        )
        addressed = rows["address"] != MISSING
        if not addressed.all():
            lost = int(np.count_nonzero(~addressed))
            self._sink.anomaly("allocation_without_address", lost, "their frees are unknown")
        self._pair(rows[addressed], times[addressed], names[addressed])
        self._write_complete()

    def finish(self) -> None:
        """Write the allocations that were never freed."""
        self._complete += self._live.values()
        self._live = {}
        self._write_complete()

    @staticmethod
    def _with_totals(rows: Rows, in_use: dict[int, int]) -> Rows:
        """Return rows with the memory in use on each device after each event."""
        rows = rows.copy()
        for device in np.unique(rows["device"]).tolist():
            on_device = rows["device"] == device
            totals = in_use.get(device, 0) + np.cumsum(rows["size"][on_device])
            rows["total_allocated"][on_device] = np.maximum(totals, 0)
            in_use[device] = int(totals[-1])
        return rows

    def _pair(self, rows: Rows, times: Ints, names: Ints) -> None:
        live = self._live
        lost = unknown = 0
        for device, owner, address, size, time, name, allocated, reserved in zip(
            rows["device"].tolist(),
            rows["owner"].tolist(),
            rows["address"].tolist(),
            rows["size"].tolist(),
            times.tolist(),
            names.tolist(),
            rows["total_allocated"].tolist(),
            rows["total_reserved"].tolist(),
            strict=True,
        ):
            key = (device, owner, address)
            totals = (_or_none(allocated), _or_none(reserved))
            if size > 0:
                if key in live:
                    lost += 1
                    self._complete.append(live[key])
                live[key] = (name, size, time, None, None, *totals, None, None, device)
            elif allocation := live.pop(key, None):
                name, allocated_bytes, begin, _, _, *begin_totals = allocation[:7]
                assert begin is not None
                self._complete.append(
                    (
                        *(name, allocated_bytes, begin, time, time - begin),
                        *(*begin_totals, *totals, device),
                    )
                )
            else:
                unknown += 1
        self._sink.anomaly("allocation_without_release", lost, "allocated again without a free")
        self._sink.anomaly("release_without_allocation", unknown, "allocated before the trace")

    def _write_complete(self) -> None:
        if self._complete:
            columns = zip(*self._complete, strict=True)
            self._sink.write("OP_MEMORY", dict(zip(_OPERATION_COLUMNS, columns, strict=True)))
            self._complete = []


def _or_none(value: int) -> int | None:
    return None if value == MISSING else value
