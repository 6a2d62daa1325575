"""capture_stream_info: which model the tasks of a captured stream belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.lookup import NOWHERE, find
from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.prof.raw.host_records import collect
from unified_prof.decoders.prof.raw.timeline import Keys, Timeline
from unified_prof.vocabulary import NO_MODEL

_BEGUN = 0


@dataclass(frozen=True, slots=True)
class Captures:
    """Captured streams, sorted by device, stream and batch; columns of one length."""

    key: NDArray[np.uint64]
    """Device << 48 | stream << 32 | batch: each capture of a stream has the next batch."""
    start: NDArray[np.uint64]
    """Host counter."""
    model_id: NDArray[np.uint32]
    timeline: Timeline

    def models(
        self,
        device_id: int,
        stream_id: NDArray[Any],
        batch_id: NDArray[Any],
        launched: Keys,
    ) -> NDArray[np.uint32]:
        """Return the model of every task: of its capture if launched after that began."""
        if not len(self.key):
            return np.full(len(stream_id), NO_MODEL, np.uint32)
        key = _pack(np.uint64(device_id), stream_id, batch_id)
        row = find(self.key, key)
        captured = (row != NOWHERE) & (self.timeline.ticks(launched) >= self.start[row])
        return np.where(captured, self.model_id[row], np.uint32(NO_MODEL))


def read_captures(host: HostDirectory, timeline: Timeline, sink: Sink) -> Captures:
    """Read the captures of streams; their ends do not bound them in the exporter either."""
    records, _ = collect(host, "compact", "capture_stream_info", timeline, sink)
    records = records[records["status"] == _BEGUN]
    device, stream = records["device_id"], records["model_stream_id"]
    order = np.lexsort((records["timestamp"], stream, device))
    records, device, stream = records[order], device[order], stream[order]
    return Captures(
        _pack(device, stream, Runs(device, stream).rank()),
        records["timestamp"].copy(),
        records["model_id"].astype(np.uint32),
        timeline,
    )


def _pack(device: Any, stream: NDArray[Any], batch: NDArray[Any]) -> NDArray[np.uint64]:
    return np.asarray(
        np.asarray(device).astype(np.uint64) << np.uint64(48)
        | stream.astype(np.uint64) << np.uint64(32)
        | batch.astype(np.uint64)
    )
