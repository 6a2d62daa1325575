"""What one host thread hands to another through a queue (torch_npu's task queue).

Who waited for which event on a GPU (UPROF_GPU_SYNCS).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unified_prof.arrays.grouping import Lookup
from unified_prof.arrays.packed import codes
from unified_prof.arrays.types import Ints
from unified_prof.base.vocabulary import API_QUEUE, NO_NUMBER
from unified_prof.recording.host_calls import HostCalls
from unified_prof.recording.source import Source, Strings, possible
from unified_prof.sqlite.integer_columns import MISSING


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """What went through a queue, both ends known."""

    put_thread: Ints
    put_ns: Ints
    """When the one thread began to put it in."""
    taken_thread: Ints
    begin_ns: Ints
    """When the other one began to do it."""
    end_ns: Ints

    def __len__(self) -> int:
        return len(self.put_ns)


def load(source: Source, strings: Strings) -> Queued:
    """Read the entries of queues: those put in and taken out have one connection."""
    nothing = np.zeros(0, np.int64)
    if "PYTORCH_API" not in source.tables:
        return Queued(nothing, nothing, nothing, nothing, nothing)
    mine = source.integers("PYTORCH_API", {"type": "coalesce(type, -1)"})["type"] == API_QUEUE
    if not mine.any():
        return Queued(nothing, nothing, nothing, nothing, nothing)
    found = source.integers(
        "PYTORCH_API",
        {
            "start": "CAST(startNs AS INTEGER)",
            "end": "CAST(endNs AS INTEGER)",
            "thread": "coalesce(globalTid, -1)",
            "id": f"coalesce(connectionId, {MISSING + 1} - 1)",
            "name": "coalesce(name, -1)",
        },
    )
    with np.errstate(over="ignore"):
        mine &= possible(found["start"], found["end"] - found["start"])
    found = {name: values[mine] for name, values in found.items()}
    ids, number = codes(found["name"])
    is_put = np.array([(text or "").startswith("Enqueue") for text in strings.texts(ids)])[number]
    pairs = source.integers("CONNECTION_IDS", {"id": "id", "connection": "connectionId"})
    # An entry stands for several connections where it launched several things; the first is its.
    row = Lookup(pairs["id"]).rows(found["id"])
    known = row >= 0
    put, taken = np.flatnonzero(is_put & known), np.flatnonzero(~is_put & known)
    its = Lookup(pairs["connection"][row[put]]).rows(pairs["connection"][row[taken]])
    taken, put = taken[its >= 0], put[its[its >= 0]]
    in_order = found["start"][put] <= found["start"][taken]
    taken, put = taken[in_order], put[in_order]
    return Queued(
        put_thread=found["thread"][put],
        put_ns=found["start"][put],
        taken_thread=found["thread"][taken],
        begin_ns=found["start"][taken],
        end_ns=found["end"][taken],
    )


_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class OfStreams:
    """Streams that were made to wait for an event of another one; both as device << 32 | stream."""

    at_ns: Ints
    """When the host asked for it: what it launches there from then on waits."""
    stream: Ints
    awaited_stream: Ints
    recorded_ns: Ints
    """When the host asked for the event to be recorded: what was launched before is waited for."""

    def __len__(self) -> int:
        return len(self.at_ns)


@dataclass(frozen=True, slots=True, eq=False)
class OfCalls:
    """What synchronising calls waited for: an event of a stream, or a stream as a whole."""

    call: Ints
    """Which of the calls that were asked about."""
    awaited_stream: Ints
    recorded_ns: Ints
    on_stream_call: Ints
    """Which of them waited for a whole stream."""
    on_stream: Ints

    def __len__(self) -> int:
        return len(self.call)


def of_streams(source: Source, strings: Strings, calls: HostCalls) -> OfStreams:
    """Return the waits of streams; empty where none was recorded."""
    found = _read(source)
    if found is None:
        return OfStreams(_NOTHING, _NOTHING, _NOTHING, _NOTHING)
    kinds = [
        number
        for number in np.unique(found["kind"]).tolist()
        if (strings.get(number) or "").lower().startswith("stream wait")
    ]
    chosen = np.isin(found["kind"], kinds) & (found["stream"] >= 0) & (found["awaited"] >= 0)
    found = {name: values[chosen] for name, values in found.items()}
    recorded = _asked(calls)(found["record"])
    return OfStreams(
        at_ns=found["start"],
        stream=_key(found["device"], found["stream"]),
        awaited_stream=_key(found["device"], found["awaited"]),
        recorded_ns=np.where(recorded >= 0, recorded, found["start"]),
    )


def of_calls(source: Source, calls: HostCalls, chosen: Ints) -> OfCalls:
    """Return what some calls waited for, as far as it was recorded."""
    found = _read(source)
    if found is None or not len(chosen):
        return OfCalls(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING)
    row = Lookup(found["correlation"]).rows(calls.connection[chosen]).astype(np.int64)
    row[calls.connection[chosen] < 0] = -1
    events = np.flatnonzero((row >= 0) & (np.append(found["awaited"], MISSING)[row] >= 0))
    at = row[events]
    recorded = _asked(calls)(found["record"][at])
    events, at, recorded = (values[recorded >= 0] for values in (events, at, recorded))
    streams = np.flatnonzero((row >= 0) & (np.append(found["stream"], MISSING)[row] >= 0))
    streams = np.setdiff1d(streams, events)
    return OfCalls(
        call=events,
        awaited_stream=_key(found["device"][at], found["awaited"][at]),
        recorded_ns=recorded,
        on_stream_call=streams,
        on_stream=_key(found["device"][row[streams]], found["stream"][row[streams]]),
    )


def _asked(calls: HostCalls) -> Callable[[Ints], Ints]:
    """Return a function that tells when calls of some correlations began, -1: not known."""

    def start_of(correlation: Ints) -> Ints:
        row = calls.of_connection(correlation)
        known = (row >= 0) & (correlation >= 0)
        return np.where(known, np.append(calls.start_ns, -1)[row], -1)

    return start_of


def _key(device: Ints, stream: Ints) -> Ints:
    return device << 32 | (stream & 0xFFFFFFFF)


def _read(source: Source) -> dict[str, Ints] | None:
    if "UPROF_GPU_SYNCS" not in source.tables:
        return None
    found = source.integers(
        "UPROF_GPU_SYNCS",
        {
            "start": "startNs",
            "device": "deviceId",
            "stream": "streamId",
            "kind": "kind",
            "correlation": "correlationId",
            "awaited": "waitStream",
            "record": "waitRecord",
        },
    )
    for name in ("stream", "awaited", "record"):
        # CUPTI says so of none: who waits for a device waits for no stream of it.
        found[name] = np.where(found[name] == NO_NUMBER, MISSING, found[name])
    return found
