"""Decodes host records other than calls: MSTX_EVENTS, MEMCPY_INFO, NPU_OP_MEM, AI CPU streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Ints, Runs
from unified_prof.base.columns import (
    COPY_OTHER,
    FIRST_MARK_CONNECTION,
    HOST_ONLY_CONNECTION,
    NO_CATEGORY,
    NO_CONTEXT,
    NO_MODEL,
    Sink,
)
from unified_prof.decoders.prof.directory import DeviceDirectory, HostDirectory
from unified_prof.decoders.prof.host_records import concatenate, host_records
from unified_prof.decoders.prof.launches import HostTasks, TaskTypes
from unified_prof.decoders.prof.layouts import record_type
from unified_prof.decoders.prof.task_identity import IdCounter, pack_keys
from unified_prof.decoders.spool import Rows, row_type

_EXTENDED = 1
_STREAM_MASK = 0x7FF
# Message types of marks are below this.
_MESSAGE_TYPES = 16
_DEFAULT_DOMAIN = "default"


def write_marks(host: HostDirectory, sink: Sink) -> None:
    """Write MSTX_EVENTS: marks and ranges; segments of an extended mark form one message."""
    pieces = list(host_records(host, "additional", "msproftx", sink))
    if not pieces:
        return
    records, has_domains = _current_marks(concatenate(pieces), host)
    extended = records["info_type"] == _EXTENDED
    parts = np.flatnonzero(extended)
    parts = parts[np.lexsort((records["segment"][parts], records["mark_id"][parts]))]
    messages_of = Runs(records["mark_id"][parts])
    rows = np.concatenate([parts[messages_of.starts], np.flatnonzero(~extended)])
    count = len(messages_of)
    messages = _messages(records["message"][parts], messages_of.sizes)
    messages += _messages(records["message"][rows[count:]], np.ones(len(rows) - count, np.int64))
    order = np.argsort(records["start"][rows], kind="stable")
    rows = rows[order]
    marks = records[rows]
    is_extended = marks["info_type"] == _EXTENDED
    end_ns = host.clocks.host.to_ns(marks["end"])
    thread = host.process_id << 32 | marks["tx_thread_id"].astype(np.int64)
    columns: dict[str, Any] = {
        "startNs": host.clocks.host.to_ns(marks["start"]),
        "endNs": end_ns,
        "eventType": marks["event_type"].astype(np.int64),
        "rangeId": np.full(len(marks), NO_CATEGORY),
        "category": np.where(is_extended, NO_CATEGORY, marks["category"]).astype(np.int64),
        "message": sink.strings.intern_all(messages)[order],
        "globalTid": thread,
        "endGlobalTid": thread,
        "domainId": _domains(host, marks, is_extended, sink)
        if has_domains
        else np.where(is_extended, *sink.strings.intern_all([_DEFAULT_DOMAIN, ""])),
        "connectionId": np.where(
            is_extended,
            marks["mark_id"].astype(np.int64) + FIRST_MARK_CONNECTION,
            HOST_ONLY_CONNECTION,
        ),
    }
    keep = end_ns >= host.session.start_ns
    sink.write("MSTX_EVENTS", {name: values[keep] for name, values in columns.items()})


def device_marks(
    device: DeviceDirectory, marks: Rows, process_id: int, ids: IdCounter, sink: Sink
) -> None:
    """Write TASK rows for marks on the device, from the first to the last record of each mark."""
    order = np.lexsort((marks["timestamp"], marks["index_id"]))
    marks = marks[order]
    of_mark = Runs(marks["index_id"])
    if not len(of_mark) or device.clocks.device is None:
        return
    start_ns = device.clocks.device.to_ns(marks["timestamp"][of_mark.starts])
    end_ns = device.clocks.device.to_ns(marks["timestamp"][of_mark.last])
    rows = marks[of_mark.starts]
    count = len(rows)
    columns: dict[str, Any] = {
        "startNs": start_ns,
        "endNs": end_ns,
        "deviceId": np.full(count, device.device_id),
        "connectionId": rows["index_id"].astype(np.int64) + FIRST_MARK_CONNECTION,
        "globalTaskId": ids.take(count),
        "globalPid": np.full(count, process_id),
        "taskType": np.full(count, sink.strings.intern("MsTx")),
        "contextId": np.full(count, NO_CONTEXT),
        "streamId": (rows["stream_id"] & _STREAM_MASK).astype(np.int64),
        "taskId": rows["task_id"].astype(np.int64),
        "modelId": np.full(count, NO_MODEL),
    }
    keep = end_ns >= device.session.start_ns
    if keep.any():
        sink.write("TASK", {name: values[keep] for name, values in columns.items()})


def _current_marks(records: Rows, host: HostDirectory) -> tuple[Rows, bool]:
    """Return msproftx records in the current layout, and whether they have domains.

    If they have none, the type of the message, a small number, is where the lower half of the
    domain's hash would be, and the message begins in the upper half.
    """
    old = records.view(record_type("msproftx_v1"))
    looks_old = (old["message_type"] < _MESSAGE_TYPES) & (records["domain"] >> np.uint64(32) != 0)
    domains = np.unique(records["domain"]).tolist()
    if not looks_old.any() or any(map(host.dictionaries.knows, domains)):
        return records, True
    current = records.copy()
    current["message"] = old["message"]
    return current, False


def _messages(parts: NDArray[np.bytes_], segments: Ints) -> list[str]:
    """Join and decode the segments of every message; a segment ends at its first NUL."""
    texts = [part.partition(b"\0")[0] for part in parts.tolist()]
    messages, at = [], 0
    for count in segments.tolist():
        messages.append(b"".join(texts[at : at + count]).decode("utf-8", "backslashreplace"))
        at += count
    return messages


def _domains(host: HostDirectory, marks: Rows, is_extended: Bools, sink: Sink) -> Ints:
    distinct, inverse = np.unique(marks["domain"], return_inverse=True)
    known = host.dictionaries
    ids = sink.strings.intern_all(
        known.text(value) if known.knows(value) else "invalid" for value in distinct.tolist()
    )
    return np.where(is_extended, ids[inverse], sink.strings.intern(""))


_LAST_DIRECTION = 7

# A memcpy_info record with its key.
SIZES = row_type("key u8, record memcpy_info", memcpy_info=record_type("memcpy_info"))

# A copy: key and id of its task, and its row of MEMCPY_INFO.
COPY = row_type("key u8, task_id u4, size i8, operation u2")


def copies_of(
    tasks: HostTasks, device_id: int, types: TaskTypes, sizes: Rows, *, wide_task_ids: bool
) -> Rows:
    """Return the asynchronous copies of one device (`COPY` rows).

    A size record applies to the copies that its thread launched at its time, ordered by batch and
    task id; each copy transfers at most `max_size` bytes. Copies without a record have size 0 and
    operation `other`. `sizes` are `SIZES` rows of the same window, sorted by key.
    """
    is_copy = types.is_one_of("MEMCPY_ASYNC")[tasks.type_index] & (tasks.device_id == device_id)
    task = np.flatnonzero(is_copy)
    task = task[
        np.lexsort(
            (tasks.stream_id[task], tasks.task_id[task], tasks.batch_id[task], tasks.key[task])
        )
    ]
    copies = np.zeros(len(task), COPY)
    key = tasks.key[task]
    copies["key"] = pack_keys(
        tasks.stream_id[task],
        tasks.task_id[task],
        tasks.batch_id[task],
        np.full(len(task), NO_CONTEXT, np.uint32),
        wide_task_ids=wide_task_ids,
    )
    copies["task_id"] = tasks.task_id[task]
    row = np.searchsorted(sizes["key"], key, side="right") - 1
    has_size = row >= 0
    has_size[has_size] = sizes["key"][row[has_size]] == key[has_size]
    found = sizes["record"][row[has_size]]
    size, direction = _chunks(found, Runs(key).rank()[has_size].astype(np.uint64))
    copies["size"][has_size] = size.astype(np.int64)
    copies["operation"] = COPY_OTHER
    copies["operation"][has_size] = np.where(size > 0, direction, COPY_OTHER)
    return copies


def _chunks(found: Rows, nth: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], Ints]:
    """Return size and direction of copies; each copy is the nth chunk of its record."""
    limit, total = found["max_size"], found["data_size"]
    divisor = np.maximum(limit, np.uint64(1))
    chunks = total // divisor + (total % divisor > 0)
    remaining = np.where(nth < chunks, total - nth * limit, np.uint64(0))
    direction = np.where(found["direction"] > _LAST_DIRECTION, COPY_OTHER, found["direction"])
    return np.minimum(remaining, limit), direction.astype(np.int64)


def write_copies(copies: Rows, global_task_id: Ints, sink: Sink) -> None:
    """Write MEMCPY_INFO rows."""
    if len(copies):
        sink.write(
            "MEMCPY_INFO",
            {
                "globalTaskId": global_task_id,
                "size": copies["size"].copy(),
                "memcpyOperation": copies["operation"].astype(np.int64),
            },
        )


def decode_operator_memory(host: HostDirectory, sink: Sink) -> None:
    """Write NPU_OP_MEM (task_memory_info); a negative size is a release."""
    process = host.process_id << 32
    types = sink.strings.intern_all(("allocate", "release"))
    for records in host_records(host, "additional", "task_memory_info", sink):
        time_ns = host.clocks.host.to_ns(records["timestamp"])
        keep = time_ns >= host.session.start_ns
        rows, time_ns = records[keep], time_ns[keep]
        if not len(rows):
            continue
        size = rows["size_bytes"].astype(np.int64)
        sink.write(
            "NPU_OP_MEM",
            {
                "operatorName": host.dictionaries.string_ids(sink.strings, rows["node_id"]),
                "addr": rows["addr"].astype(np.int64),
                "type": types[(size < 0).astype(np.int64)],
                "size": np.abs(size),
                "timestampNs": time_ns,
                "globalTid": process | rows["thread_id"].astype(np.int64),
                "totalAllocate": rows["total_allocate"].astype(np.int64),
                "totalReserve": rows["total_reserve"].astype(np.int64),
                "component": sink.strings.intern("GE"),
                "deviceId": rows["device_id"].astype(np.int64),
            },
        )


@dataclass(frozen=True, slots=True)
class CollectiveStreams:
    """Streams of collectives on AI CPUs, by communication group (hash of its name)."""

    of_kernels: dict[int, int] = field(default_factory=dict)
    """Stream -> group whose AI CPU kernels run on it."""
    of_tasks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Stream -> groups whose kernels launch tasks on it."""

    def kernel_streams(self) -> Ints:
        """Return the streams of AI CPU kernels, ascending."""
        return np.array(sorted(self.of_kernels), np.int64)


def read_collective_streams(host: HostDirectory, sink: Sink) -> CollectiveStreams:
    """Read mc2_comm_info, on platforms whose AI CPUs run collectives."""
    streams = CollectiveStreams()
    if not host.runs_collectives_on_cpus:
        return streams
    of_tasks: dict[int, dict[int, None]] = {}
    for records in host_records(host, "additional", "mc2_comm_info", sink):
        for record in records:
            group = int(record["group_name"])
            streams.of_kernels[int(record["stream_id"])] = group
            for stream in record["comm_stream_ids"][: int(record["stream_num"])].tolist():
                of_tasks.setdefault(stream, {})[group] = None
    streams.of_tasks.update((stream, tuple(groups)) for stream, groups in of_tasks.items())
    return streams
