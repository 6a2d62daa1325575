"""What programs called of CUDA's runtime and driver, and what the device waited for."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from unified_prof.arrays.distinct import distinct
from unified_prof.arrays.lookup import NOWHERE, find
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.numbers import MISSING, Int64s
from unified_prof.decoders.nsys.fields import NO_ID, NO_TIME, Fields
from unified_prof.decoders.nsys.nccl import NcclCalls

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"

_VERSION = re.compile(r"_v[0-9]+$")
_SUCCESS = 0
_NAMED_FAILURES = 5

# As Kineto names them.
_WAIT_NAMES = {
    1: "Event Synchronize",
    2: "Stream Wait Event",
    3: "Stream Synchronize",
    4: "Context Synchronize",
}
_RECORD = "Event Record"
_NONE_32 = 2**32 - 1
"""What CUPTI writes for an event or a stream that does not apply."""


def read_calls(fields: Fields, nccl: NcclCalls) -> None:
    """Put runtime and driver calls into `Parts.calls`, each with the collective around it."""
    parts = fields.parts
    wanted = {
        "start": NO_TIME,
        "end": NO_TIME,
        "globalTid": NO_ID,
        "correlationId": MISSING,
        "nameId": MISSING,
        "returnValue": _SUCCESS,
    }
    plain_names: dict[int, int] = {}
    failures: Counter[tuple[int, int]] = Counter()
    for cells in fields.tables.slices(CALLS, wanted):
        rows, valid = fields.timed(cells, r.CALL, "runtime_call")
        packed = cells["globalTid"]
        rows["thread"], valid = fields.on_threads(packed, valid, "runtime_call")
        rows["name"] = _without_versions(fields, fields.names(cells["nameId"]), plain_names)
        rows["correlation"] = fields.correlations(fields.processes(packed), cells["correlationId"])
        rows["collective"] = nccl.of(packed, rows["start"])
        failed = cells["returnValue"] != _SUCCESS
        if failed.any():
            failures.update(
                zip(
                    rows["name"][failed].tolist(),
                    cells["returnValue"][failed].tolist(),
                    strict=True,
                )
            )
        rows = rows[valid]
        parts.see_correlations(rows)
        parts.calls.append(rows)
    if failures:
        _tell_failures(fields, failures)


def _without_versions(fields: Fields, names: Int64s, plain: dict[int, int]) -> Int64s:
    """Cut what says since when a function is as it is: cudaLaunchKernel_v7000."""
    found, inverse = distinct(names)
    new = [number for number in found.tolist() if number not in plain]
    if new:
        texts = {number: str(text) for text, number in fields.parts.names.items()}
        for number in new:
            plain[number] = fields.parts.names[_VERSION.sub("", texts[number])]
    return np.array([plain[number] for number in found.tolist()], np.int64)[inverse]


def _tell_failures(fields: Fields, failures: Counter[tuple[int, int]]) -> None:
    texts = {number: str(text) for text, number in fields.parts.names.items()}
    most = [
        f"{texts[name]} returned {value} ({count} times)"
        for (name, value), count in failures.most_common(_NAMED_FAILURES)
    ]
    fields.parts.sink.anomaly("failed_call", failures.total(), ", ".join(most))


def read_waits(fields: Fields) -> None:
    """Put synchronisations and records of events into `Parts.syncs`."""
    parts = fields.parts
    records = _Records(fields)
    records.read()
    wanted = {
        "start": NO_TIME,
        "end": NO_TIME,
        "deviceId": MISSING,
        "contextId": MISSING,
        "streamId": MISSING,
        "correlationId": MISSING,
        "globalPid": NO_ID,
        "syncType": MISSING,
        "eventId": MISSING,
        "eventSyncId": MISSING,
    }
    for cells in fields.tables.slices(WAITS, wanted):
        rows, valid = fields.timed(cells, r.SYNC, "synchronization")
        packed = cells["globalPid"]
        processes = fields.processes(packed)
        kinds = cells["syncType"]
        for kind in np.unique(kinds).tolist():
            name = _WAIT_NAMES.get(kind, "Synchronize")
            rows["kind"][kinds == kind] = parts.names[name]
        rows["device"] = fields.devices(packed, cells["deviceId"])
        rows["stream"] = _applying(cells["streamId"])
        rows["context"] = cells["contextId"]
        rows["correlation"] = fields.correlations(processes, cells["correlationId"])
        rows["wait_event"] = _applying(cells["eventId"])
        stream, record = records.of(processes, _applying(cells["eventSyncId"]))
        rows["wait_stream"], rows["wait_record"] = stream, record
        parts.syncs.append(rows[valid])


class _Records:
    """CUDA_EVENT: where events were recorded, by the id that waits refer to."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._keys = self._streams = self._calls = np.empty(0, np.int64)

    def read(self) -> None:
        """Read all of them; those with a time are rows of their own."""
        fields = self._fields
        wanted = {
            "timestamp": NO_TIME,
            "deviceId": MISSING,
            "contextId": MISSING,
            "streamId": MISSING,
            "correlationId": MISSING,
            "globalPid": NO_ID,
            "eventId": MISSING,
            "eventSyncId": MISSING,
        }
        found: list[tuple[Int64s, Int64s, Int64s]] = []
        for cells in fields.tables.slices(EVENTS, wanted):
            packed = cells["globalPid"]
            processes = fields.processes(packed)
            correlations = fields.correlations(processes, cells["correlationId"])
            streams = _applying(cells["streamId"])
            found.append((_key(processes, cells["eventSyncId"]), streams, correlations))
            if "timestamp" not in fields.tables.columns(EVENTS):
                continue
            timed = {"start": cells["timestamp"], "end": cells["timestamp"]}
            rows, valid = fields.timed(timed, r.SYNC, "event_record")
            rows["kind"] = fields.parts.names[_RECORD]
            rows["device"] = fields.devices(packed, cells["deviceId"])
            rows["stream"] = streams
            rows["context"] = cells["contextId"]
            rows["correlation"] = correlations
            rows["wait_event"] = _applying(cells["eventId"])
            rows["wait_stream"] = rows["wait_record"] = MISSING
            fields.parts.syncs.append(rows[valid])
        if found:
            keys, streams, calls = (np.concatenate(part) for part in zip(*found, strict=True))
            order = np.argsort(keys, kind="stable")
            self._keys, self._streams, self._calls = keys[order], streams[order], calls[order]

    def of(self, processes: Int64s, syncs: Int64s) -> tuple[Int64s, Int64s]:
        """Return the stream that waits wait for, and the call that recorded the event."""
        place = find(self._keys, _key(processes, syncs))
        there = (place != NOWHERE) & (syncs != MISSING)
        if not there.any():
            return np.full(len(syncs), MISSING), np.full(len(syncs), MISSING)
        streams = np.where(there, self._streams[place], MISSING)
        return streams, np.where(there, self._calls[place], MISSING)


def _key(processes: Int64s, syncs: Int64s) -> Int64s:
    return processes << 32 | syncs & _NONE_32


def _applying(ids: Int64s) -> Int64s:
    return np.where(ids == _NONE_32, MISSING, ids)
