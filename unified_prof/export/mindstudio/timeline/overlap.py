"""Overlap Analysis: when a device computed, communicated, did both, or nothing."""

from __future__ import annotations

import numpy as np

from unified_prof.analysis.read import whole_tables
from unified_prof.export.mindstudio.delivery import as_json
from unified_prof.export.mindstudio.recording import Recording, blocks
from unified_prof.export.mindstudio.timeline import events
from unified_prof.export.mindstudio.timeline.events import Blocks, Processes

_TABLE = "OVERLAP_ANALYSIS"
_NAMES = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")


def layer(recording: Recording, processes: Processes) -> Blocks:
    """Yield the ranges; a thread for each kind, also those without one."""
    found = whole_tables.integers(
        recording.source, _TABLE, ["deviceId", "startNs", "endNs", "type"]
    )
    keep = recording.times(_TABLE, found["startNs"], found["endNs"])
    keep &= (found["type"] >= 0) & (found["type"] < len(_NAMES))
    found = {name: values[keep] for name, values in found.items()}
    if not len(found["type"]):
        if len(recording.tasks) and _TABLE not in recording.source.tables:
            recording.leave_out(
                "msprof", "Overlap Analysis", "databases of this revision do not have it"
            )
        return
    devices = found["deviceId"]
    yield processes.of_all_devices(events.OVERLAP, devices)
    yield [
        event
        for device in np.unique(devices).tolist()
        for number, name in enumerate(_NAMES)
        for event in events.thread(processes.number(events.OVERLAP[0], device), number, name)
    ]
    names = list(map(as_json, _NAMES))
    for part in blocks(len(devices)):
        kind = found["type"][part].tolist()
        start = found["startNs"][part]
        yield events.complete(
            [names[one] for one in kind],
            processes.of_devices(events.OVERLAP[0], devices[part]),
            kind,
            start,
            found["endNs"][part] - start,
            ["{}"] * len(kind),
        )
