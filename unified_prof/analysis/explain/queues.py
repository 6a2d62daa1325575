"""How much launched work stood in the queue of each stream: none means that a device waits.

Work is queued from the start of the call that launches it to its own start, as
HolisticTraceAnalysis counts it. A stream takes about a thousand launches; the host waits in its
next call until there is room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.explain.launches import offered
from unified_prof.analysis.model import Breakdown, Row, Series
from unified_prof.analysis.read.collectives import device_name
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views.groups import by_key
from unified_prof.analysis.views.launched import Launched
from unified_prof.analysis.views.over_time import stacked, thinned
from unified_prof.analysis.ways import Way

Ints = NDArray[np.int64]

FULL = 1024
"""Launches that a stream of CUDA takes before the host has to wait."""
TOO_MANY = 2_000_000
"""Of recordings with more tasks the queues have no series: they would not fit into memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """The length of one stream's queue: `length[i]` from `time_ns[i]` to the next time."""

    device: int
    stream: int
    launches: int
    time_ns: Ints
    length: Ints


def queues(found: Launched) -> Iterator[Queue]:
    """Yield the queue of each stream, by device and stream."""
    places = found.device << 32 | (found.stream & 0xFFFFFFFF)
    for _, own in by_key(places):
        called = found.called_ns[own]
        # Clocks of host and device differ by a little: nothing starts before it is launched.
        started = np.maximum(found.started_ns[own], called)
        time_ns, length = stacked(called, started, np.ones(len(own)))
        yield Queue(
            device=int(found.device[own[0]]),
            stream=int(found.stream[own[0]]),
            launches=len(own),
            time_ns=time_ns,
            length=length.astype(np.int64),
        )


def series(recording: Recording) -> tuple[Series, ...]:
    """Return the length of each stream's queue over time."""
    if not offered(recording) or len(recording.tasks) > TOO_MANY:
        return ()
    return tuple(
        Series(
            f"queue of stream {queue.stream}",
            "launches",
            device_name(queue.device),
            *thinned(queue.time_ns, queue.length.astype(np.float64)),
        )
        for queue in queues(recording.launches)
    )


def _breakdown(recording: Recording) -> Breakdown:
    found = list(queues(recording.launches))
    several = len({queue.device for queue in found}) > 1
    rows = [_row(queue, several) for queue in found]
    rows.sort(key=lambda row: (-row.count, row.name))
    return Breakdown("queue", tuple(rows), None, None)


def _row(queue: Queue, several: bool) -> Row:
    lasted = np.diff(queue.time_ns)
    length = queue.length[:-1]
    window = int(lasted.sum())
    name = f"stream {queue.stream}"
    return Row(
        name=f"{device_name(queue.device)} {name}" if several else name,
        kind="queue",
        count=queue.launches,
        total_ns=int(lasted[length > 0].sum()),
        extra={
            "window_ns": window,
            "empty_ns": int(lasted[length == 0].sum()),
            "full_ns": int(lasted[length >= FULL].sum()),
            "longest": int(queue.length.max()),
            "mean_length": float((lasted * length).sum() / window) if window else None,
        },
    )


WAYS = {"queue": Way(offered, _breakdown)}
