"""Who waited for which event on a GPU (UPROF_GPU_SYNCS)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read.host_calls import HostCalls
from unified_prof.analysis.read.source import Source
from unified_prof.analysis.read.strings import Strings
from unified_prof.arrays.lookup import Lookup
from unified_prof.store.integers import MISSING
from unified_prof.vocabulary import NO_NUMBER

Ints = NDArray[np.int64]

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
