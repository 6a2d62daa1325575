"""Allocations of device memory in a session."""

from __future__ import annotations

import numpy as np

from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.numbers import MISSING
from unified_prof.decoders.rocm.session import INTERVAL, NO_TIME, Session

_COMPONENT = "ROCm"


def read_allocations(session: Session) -> None:
    """Read allocations of device memory; a release does not say its size."""
    live: dict[tuple[int, int], int] = {}
    wanted = {
        "start": NO_TIME,
        "end": NO_TIME,
        "pid": MISSING,
        "tid": MISSING,
        "agent_id": MISSING,
        "address": MISSING,
        "size": 0,
    }
    unsized = 0
    for cells in session.tables.slices("memory_allocate", wanted, ["type", "level"]):
        times, valid = session.timed(cells, INTERVAL, "allocation")
        rows = np.empty(len(times), r.ALLOCATION)
        rows["start"] = times["start"]
        rows["thread"] = session.thread_numbers(cells)
        rows["device"] = session.agents.numbers_of_devices(cells["agent_id"])
        rows["address"] = cells["address"]
        rows["owner"] = session.number
        rows["total_allocated"] = rows["total_reserved"] = MISSING
        sizes = []
        for kind, level, device, address, size in zip(
            cells["type"],
            cells["level"],
            rows["device"].tolist(),
            cells["address"].tolist(),
            cells["size"].tolist(),
            strict=True,
        ):
            signed = 0
            if level in (None, "REAL") and kind == "ALLOC" and 0 < size < 2**53:
                live[device, address] = signed = size
            elif kind == "FREE":
                # The release of a block may not say whose memory it was.
                signed = -live.pop((device, address), 0)
                unsized += not signed
            sizes.append(signed)
        rows["size"] = sizes
        on_device = rows["device"] != MISSING
        session.parts.memory_component, session.parts.adds_up_allocations = _COMPONENT, True
        session.parts.allocations.append(rows[valid & (rows["size"] != 0) & on_device])
    if unsized:
        session.parts.sink.anomaly(
            "release_without_allocation", unsized, "allocated before the recording"
        )
