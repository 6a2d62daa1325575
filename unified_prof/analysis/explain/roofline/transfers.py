"""Copies and collectives: what they move, and how close copies come to the memory."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from unified_prof.analysis.calls import COMMUNICATION, COPY, Labels
from unified_prof.analysis.collective_kinds import PARTED, canonical
from unified_prof.analysis.explain.roofline.charged import groups
from unified_prof.analysis.explain.roofline.costs.collectives import collective
from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.peaks import Device
from unified_prof.analysis.explain.roofline.placed import (
    FASTER_THAN_MEMORY,
    MEMORY_TARGET,
    Placed,
    times,
)
from unified_prof.analysis.explain.roofline.tensors import UntoldError, dtype_of, item_size
from unified_prof.analysis.read import operators
from unified_prof.analysis.read.framework import NONE
from unified_prof.analysis.read.operation_inputs import numbered
from unified_prof.analysis.recording import Recording

_NO_SIZE = "how much it moves was not recorded"
_ON_THE_WIRE = "what each rank sends at least; waiting for other ranks is in the time"
_WITHIN = re.compile(r"D(?:to|2)D|device to device", re.IGNORECASE)


def copies(
    recording: Recording, devices: dict[int | None, tuple[str, Device | None]]
) -> list[Placed]:
    """Return copies by direction, and parts of collectives of which no whole is known."""
    work = recording.work
    parts = (work.kind == COMMUNICATION) & (work.task != NONE)
    piece = np.flatnonzero((work.kind == COPY) | parts)
    if not len(piece):
        return []
    label, device, kind = work.operator[piece], work.device[piece], work.kind[piece]
    duration, task = work.duration_ns[piece], work.task[piece]
    known, size = operators.sizes_of_copies(recording.source)
    of_task = dict(zip(known.tolist(), size.tolist(), strict=True))
    identity = recording.tasks.identity
    texts = work.labels.texts
    result = []
    for members in groups(numbered(label, device, kind)):
        first = members[0]
        name, own = devices.get(int(device[first]), devices.get(None, ("", None)))
        what = texts[int(label[first])]
        total: dict[str, Any] = {
            "name": what,
            "shapes": "",
            "kind": "copy" if kind[first] == COPY else "communication",
            "device": name,
            "count": len(members),
            "total_ns": int(duration[members].sum()),
        }
        sizes = [of_task.get(int(one), -1) for one in identity[task[members]].tolist()]
        if min(sizes) < 0:
            result.append(Placed(**total, cost=None, doubt=_NO_SIZE))
            continue
        within = bool(_WITHIN.search(what))
        cost = Cost("copy", "uint8", 0, sum(sizes) * (2 if within else 1))
        memory = own.of_memory() if within and own is not None else None
        bound_ns = None if memory is None else cost.moved_bytes / memory.rate * 1e9
        result.append(
            Placed(
                **total,
                cost=cost,
                memory=memory,
                bound_ns=bound_ns,
                target_ns=None if bound_ns is None else bound_ns / MEMORY_TARGET,
                doubt=FASTER_THAN_MEMORY if (bound_ns or 0) > total["total_ns"] else None,
            )
        )
    return result


def collectives(
    recording: Recording, devices: dict[int | None, tuple[str, Device | None]]
) -> list[Placed]:
    """Return collectives by name, bytes and ranks: what each rank sends at least."""
    comms = recording.comms
    if not len(comms):
        return []
    labels = Labels()
    label = recording.collective_names.types(labels)
    payloads = operators.payloads(recording.source, recording.strings)
    told = [payloads.get(int(one)) for one in comms.identity.tolist()]
    distinct = {one: place for place, one in enumerate(dict.fromkeys(told))}
    place = np.array([distinct[one] for one in told], np.int64)
    result = []
    for members in groups(numbered(label, place, comms.device)):
        first = members[0]
        name, _ = devices.get(int(comms.device[first]), devices.get(None, ("", None)))
        what = labels.texts[int(label[first])]
        shapes, cost, why = _payload(what, told[first])
        result.append(
            Placed(
                name=what,
                shapes=shapes,
                kind="communication",
                device=name,
                count=len(members),
                total_ns=int(comms.duration_ns[members].sum()),
                cost=None if cost is None else times(cost, len(members)),
                doubt=why,
            )
        )
    return result


def _payload(name: str, found: operators.Payload | None) -> tuple[str, Cost | None, str | None]:
    """Return the data of a collective in words, what it costs, and why that cannot be told."""
    if found is None or found.elements is None:
        return "", None, _NO_SIZE
    # Their group stands behind them in brackets.
    kind = canonical(name.partition(" (")[0])
    dtype = dtype_of(found.dtype)
    shapes = f"{found.elements:,} {dtype}"
    if found.ranks is None:
        return shapes, None, "how many ranks took part was not recorded"
    shapes += f" x {found.ranks} ranks"
    elements = found.elements
    if kind == "all_gather":
        elements = found.results or elements * found.ranks
    elif kind in PARTED and found.results is None:
        elements *= found.ranks
    try:
        size = elements * item_size(dtype)
        return shapes, collective(kind, size, found.ranks, dtype), _ON_THE_WIRE
    except UntoldError as err:
        return shapes, None, str(err)
