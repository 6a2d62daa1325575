"""MSTX_EVENTS, the user's marks and ranges, and their halves on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.prof.identity.task_keys import IdCounter
from unified_prof.decoders.prof.raw.directory import DeviceDirectory, HostDirectory
from unified_prof.decoders.prof.raw.host_records import host_records, join
from unified_prof.decoders.prof.raw.slices import Records
from unified_prof.vocabulary import (
    FIRST_MARK_CONNECTION,
    HOST_ONLY_CONNECTION,
    NO_CATEGORY,
    NO_CONTEXT,
    NO_MODEL,
)

_EXTENDED = 1
_STREAM_MASK = 0x7FF


def write_marks(host: HostDirectory, sink: Sink) -> None:
    """Write every mark; segments of one extended mark make one message."""
    pieces = list(host_records(host, "additional", "msproftx", sink))
    if not pieces:
        return
    records = join(pieces)
    extended = records["info_type"] == _EXTENDED
    parts = np.flatnonzero(extended)
    parts = parts[np.lexsort((records["segment"][parts], records["mark_id"][parts]))]
    whole = Runs(records["mark_id"][parts])
    rows = np.concatenate([parts[whole.starts], np.flatnonzero(~extended)])
    count = len(whole)
    messages = _messages(records["message"][parts], whole.sizes)
    messages += _messages(records["message"][rows[count:]], np.ones(len(rows) - count, np.int64))
    order = np.argsort(records["start"][rows], kind="stable")
    rows = rows[order]
    marks = records[rows]
    is_extended = marks["info_type"] == _EXTENDED
    end_ns = host.clocks.host.to_ns(marks["end"])
    thread = (host.info.integer("pid") or 0) << 32 | marks["tx_thread_id"].astype(np.int64)
    columns: dict[str, Any] = {
        "startNs": host.clocks.host.to_ns(marks["start"]),
        "endNs": end_ns,
        "eventType": marks["event_type"].astype(np.int64),
        "rangeId": np.full(len(marks), NO_CATEGORY),
        "category": np.where(is_extended, NO_CATEGORY, marks["category"]).astype(np.int64),
        "message": sink.strings.intern_all(messages)[order],
        "globalTid": thread,
        "endGlobalTid": thread,
        "domainId": _domains(host, marks, is_extended, sink),
        "connectionId": np.where(
            is_extended,
            marks["mark_id"].astype(np.int64) + FIRST_MARK_CONNECTION,
            HOST_ONLY_CONNECTION,
        ),
    }
    keep = end_ns >= host.session.start_ns
    sink.write("MSTX_EVENTS", {name: values[keep] for name, values in columns.items()})


def device_marks(
    device: DeviceDirectory, marks: Records, process_id: int, ids: IdCounter, sink: Sink
) -> None:
    """Write the device halves of marks as TASK rows, from the first to the last note of each."""
    order = np.lexsort((marks["timestamp"], marks["index_id"]))
    marks = marks[order]
    notes = Runs(marks["index_id"])
    if not len(notes) or device.clocks.device is None:
        return
    start_ns = device.clocks.device.to_ns(marks["timestamp"][notes.starts])
    end_ns = device.clocks.device.to_ns(marks["timestamp"][notes.last])
    rows = marks[notes.starts]
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


def _messages(parts: NDArray[np.bytes_], segments: NDArray[np.int64]) -> list[str]:
    """Join the segments of every message and decode it; each ends at its first NUL."""
    texts = [part.partition(b"\0")[0] for part in parts.tolist()]
    messages, at = [], 0
    for count in segments.tolist():
        messages.append(b"".join(texts[at : at + count]).decode("utf-8", "backslashreplace"))
        at += count
    return messages


def _domains(
    host: HostDirectory, marks: Records, is_extended: NDArray[np.bool_], sink: Sink
) -> NDArray[np.int64]:
    distinct, inverse = np.unique(marks["domain"], return_inverse=True)
    known = host.dictionaries
    ids = sink.strings.intern_all(
        known.text(value) if known.knows(value) else "invalid" for value in distinct.tolist()
    )
    return np.where(is_extended, ids[inverse], sink.strings.intern(""))
