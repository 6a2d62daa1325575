"""Writes the tables of the host side, of recording metadata, and of uprof's own events.

Host tables contain operations, annotations and steps; metadata are the time span, host, devices and
rank. Events that the msprof schema does not support, such as synchronizations, have own tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.nesting import NONE
from unified_prof.base.columns import (
    API_NAMES,
    API_OPERATION,
    NO_CATEGORY,
    NO_MARK_CONNECTION,
    NOT_AVAILABLE,
    Column,
    Sink,
)
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.memory import MISSING, Int64s, null_if_missing, null_where
from unified_prof.decoders.gpu.pools import plain_id
from unified_prof.decoders.gpu.rows import Parts
from unified_prof.decoders.spool import Rows, windows

# ENUM_MSTX_EVENT_TYPE `start/end`, the type for which msprof-analyze computes statistics.
RANGE_EVENT = 2

_PENDING = np.dtype([("row", r.HOST), ("number", "i8"), ("chain", "i8"), ("called", "i1")])


def _mark_called(pending: NDArray[Any], called: Int64s) -> None:
    """Set `called` for the operations with these numbers."""
    called = called[called != NONE]
    operations = np.flatnonzero(pending["number"] != NONE)
    if len(called) and len(operations):
        # Numbers ascend.
        at = np.searchsorted(pending["number"][operations], called)
        pending["called"][operations[at]] = 1


class HostTables:
    """Writes operations and annotations when no later event can start inside them."""

    def __init__(self, parts: Parts, base_ns: int) -> None:
        self._parts = parts
        self._sink = parts.sink
        self._base_ns = base_ns
        self._no_text = parts.sink.strings.intern(NOT_AVAILABLE)
        self._pending = np.empty(0, dtype=_PENDING)
        self._used_chains: list[Int64s] = []
        self._wrote_operations = False

    def add(self, rows: Rows, numbers: Int64s, chains: Int64s, called: Int64s, bound: int) -> None:
        """Add the operations and annotations of one window.

        Args:
            rows: Of dtype HOST.
            numbers: Number of each operation, `NONE` for annotations.
            chains: Call chain of each row, or `NONE`.
            called: Numbers of operations with runtime calls in this window.
            bound: Time in ns before which no event of a later window starts.
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

    def _write(self, pending: NDArray[Any], chosen: NDArray[np.bool_]) -> None:
        is_operation = pending["number"] != NONE
        operations, annotations = chosen & is_operation, chosen & ~is_operation
        if operations.any():
            self._write_operations(pending[operations])
        if annotations.any():
            self._write_annotations(pending["row"][annotations])

    def _write_operations(self, pending: NDArray[Any]) -> None:
        rows = pending["row"]
        self._wrote_operations = True
        global_tids = np.array(self._parts.threads.global_tids)[rows["thread"]]
        chains = pending["chain"]
        self._sink.write(
            "PYTORCH_API",
            {
                "startNs": rows["start"] + self._base_ns,
                "endNs": rows["end"] + self._base_ns,
                "globalTid": global_tids,
                "connectionId": null_where(pending["called"] == 0, pending["number"]),
                "name": rows["name"],
                "sequenceNumber": rows["sequence"],
                "fwdThreadId": self._forward_threads(rows),
                "inputDtypes": self._of_signature(self._parts.signatures.types, rows),
                "inputShapes": self._of_signature(self._parts.signatures.shapes, rows),
                "callchainId": null_where(chains == NONE, chains),
                "type": API_OPERATION,
            },
        )
        used = np.unique(chains[chains != NONE])
        if len(used):
            self._used_chains = [np.unique(np.concatenate((*self._used_chains, used)))]
        self._write_inputs(rows, global_tids)

    def _forward_threads(self, rows: Rows) -> Int64s:
        """Return the forward thread of each backward operation, or the recorded id if unknown."""
        result: Int64s = np.maximum(rows["forward_thread"], 0)
        threads = self._parts.threads
        processes = np.array(threads.process_ids)[rows["thread"]]
        for (process, number), thread in self._parts.forward_threads.items():
            chosen = (rows["forward_thread"] == number) & (processes == process)
            result[chosen] = threads.global_tids[thread]
        return result

    def _write_inputs(self, rows: Rows, global_tids: Int64s) -> None:
        """Write details of inputs that have no column in PYTORCH_API."""
        detailed = (rows["inputs"] != MISSING) | (rows["module"] != MISSING)
        if not detailed.any():
            return
        rows, global_tids = rows[detailed], global_tids[detailed]
        self._sink.write(
            "UPROF_OPERATION_INPUTS",
            {
                "startNs": rows["start"] + self._base_ns,
                "globalTid": global_tids,
                "name": rows["name"],
                "externalId": null_if_missing(rows["external"]),
                "inputStrides": self._of_signature(self._parts.signatures.strides, rows),
                "concreteInputs": self._or_no_text(rows["inputs"]),
                "moduleHierarchy": self._or_no_text(rows["module"]),
            },
        )

    def _write_annotations(self, rows: Rows) -> None:
        write_annotations(self._parts, rows, rows["name"], rows["thread"], self._base_ns)

    def _of_signature(self, texts: list[int], rows: Rows) -> Int64s:
        ids: Int64s = np.array([*texts, self._no_text])[
            rows["signature"]
        ]  # the last one for MISSING
        return ids

    def _or_no_text(self, ids: Int64s) -> Int64s:
        return np.where(ids != MISSING, ids, self._no_text)


def write_annotations(
    parts: Parts,
    rows: Rows,
    messages: Int64s,
    threads: Int64s,
    base_ns: int,
    *,
    kinds: Int64s | int = RANGE_EVENT,
    domains: Int64s | None = None,
    end_threads: Int64s | None = None,
    ranges: Int64s | int = NO_CATEGORY,
    categories: Int64s | int = NO_CATEGORY,
) -> None:
    """Write MSTX_EVENTS, and STEP_TIME for ranges that are steps of torch.profiler.

    Args:
        parts: Pools of names and threads.
        rows: Rows with start and end in ns. If they have the field `finished`, unfinished steps are
            not written.
        messages: String ids.
        threads: Numbers of the threads.
        base_ns: Added to all times.
        kinds: Ids of ENUM_MSTX_EVENT_TYPE.
        domains: String ids of the domains; None: the default domain.
        end_threads: Numbers of the threads where ranges end; None: the same threads.
        ranges: Ids of the ranges.
        categories: Ids of the categories.
    """
    start, end = rows["start"] + base_ns, rows["end"] + base_ns
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


def write(
    sink: Sink,
    *,
    start_ns: int,
    end_ns: int,
    host_name: str | None,
    device_names: Mapping[int, str | None],
    rank: int | None,
) -> None:
    """Write SESSION_TIME_INFO, HOST_INFO, NPU_INFO and RANK_DEVICE_MAP.

    Args:
        sink: Receives the rows.
        start_ns: Unix time of the first event, or of the start of the session.
        end_ns: Unix time of the last event, or of the end of the session.
        host_name: None if it was not recorded.
        device_names: Names of the devices with events, None if unknown.
        rank: Rank of the process, None if unknown.
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
        columns = zip(*rows, strict=True)
        sink.write(
            "UPROF_GPU_DEVICES", dict(zip(("deviceId", "name", "value"), columns, strict=True))
        )


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


def write_extra_tables(parts: Parts, base_ns: int) -> None:
    """Write the tables whose rows are not joined."""
    for table, (spool, copied, optional) in _COPIED.items():
        for (rows,) in windows(getattr(parts, spool)):
            columns: dict[str, Column] = {column: rows[field] for column, field in copied.items()}
            columns |= {"startNs": rows["start"] + base_ns, "endNs": rows["end"] + base_ns}
            columns |= {column: null_if_missing(rows[field]) for column, field in optional.items()}
            if table == "GC_RECORD":
                columns["globalTid"] = np.array(parts.threads.global_tids)[rows["thread"]]
            parts.sink.write(table, columns)
    _write_python_frames(parts, base_ns)
    _write_other_events(parts, base_ns)
    _write_threads(parts)


# Shorter calls of Python functions are not written: they explain no idle time worth naming.
MIN_FRAME_NS = 500_000


def _write_python_frames(parts: Parts, base_ns: int) -> None:
    frames, tids = parts.chains.frames, np.array(parts.threads.global_tids)
    for (rows,) in windows(parts.frames):
        kept = rows["end"] - rows["start"] >= MIN_FRAME_NS
        kept &= ~np.isin(rows["frame"], list(frames.outside))
        rows = rows[kept]
        if len(rows):
            parts.sink.write(
                "UPROF_PYTHON_FRAMES",
                {
                    "startNs": rows["start"] + base_ns,
                    "endNs": rows["end"] + base_ns,
                    "globalTid": tids[rows["thread"]],
                    "name": [
                        parts.sink.strings.intern(frames.texts[frame])
                        for frame in rows["frame"].tolist()
                    ],
                },
            )


def _write_other_events(parts: Parts, base_ns: int) -> None:
    places = [(str(process), str(thread)) for process, thread in parts.places]
    for (rows,) in windows(parts.other):
        instant = rows["end"] == r.NO_END
        ends = np.where(instant, 0, rows["end"]) + base_ns
        parts.sink.write(
            "UPROF_TRACE_EVENTS",
            {
                "startNs": rows["start"] + base_ns,
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
