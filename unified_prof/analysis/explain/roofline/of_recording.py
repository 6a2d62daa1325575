"""How close the operations of a recording came to what their device can do.

On a GPU, the innermost operation of the framework that launched kernels is charged with them all;
on an Ascend each operator is, for its own shapes and formats were recorded. Classes are operations
of one name, shapes and types. Kernels of replayed graphs count for the operations of the capture,
where its recording is at hand. `of(recording)` is the answer for whoever judges; `offered` tells
whether there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from unified_prof.analysis.explain.roofline.charged import Charged
from unified_prof.analysis.explain.roofline.known import known_devices
from unified_prof.analysis.explain.roofline.peaks import Device
from unified_prof.analysis.explain.roofline.placed import Placed, merged, place
from unified_prof.analysis.explain.roofline.transfers import collectives, copies
from unified_prof.analysis.explain.roofline.use import model_use
from unified_prof.analysis.model import ModelUse
from unified_prof.analysis.recording import Recording


@dataclass(frozen=True, slots=True)
class Roofline:
    """The operations of a recording under the limits of its devices."""

    rows: tuple[Placed, ...]
    """The longest first."""
    devices: dict[str, Device | None]
    """What each device can do; None: nobody says."""
    use: tuple[ModelUse, ...]


_found: WeakKeyDictionary[Recording, Roofline] = WeakKeyDictionary()


def of(recording: Recording) -> Roofline:
    """Return the operations of a recording under the limits of its devices."""
    if recording not in _found:
        _found[recording] = _of(recording)
    return _found[recording]


def _of(recording: Recording) -> Roofline:
    devices = known_devices(recording)
    by_number = {number: (name, devices[name]) for name, number in recording.device_numbers.items()}
    charged = Charged(recording)
    rows: list[Placed] = []
    calculated = np.zeros(len(charged), np.float64)
    ideal_ns = np.zeros(len(charged), np.float64)
    told = np.zeros(len(charged), bool)
    classes = charged.classes()
    placed = []
    for one in classes:
        name, device = by_number.get(one.device, by_number.get(None, ("", None)))
        placed.append(place(one, name, device))
    for one, found in zip(classes, placed, strict=True):
        if found.cost is None:
            continue
        told[one.members] = True
        if found.cost.unit == "matrix" and one.count:
            calculated[one.members] = found.cost.flops / one.count
            peak = found.peak
            if peak is not None:
                ideal_ns[one.members] = found.cost.flops / one.count / peak.rate * 1e9
    rows = merged(placed)
    rows += copies(recording, by_number) + collectives(recording, by_number)
    use = model_use(recording, devices, charged, calculated, ideal_ns, told, placed)
    rows.sort(key=lambda one: (-one.total_ns, one.name, one.shapes))
    return Roofline(tuple(rows), devices, use)
