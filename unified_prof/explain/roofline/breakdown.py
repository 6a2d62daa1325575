"""Classes of work under the limits of their device.

What the matrix units of a device did for a model: MFU of steps and of a run.

Copies and collectives: what they move, and how close copies come to the memory.

How close the operations of a recording came to what their device can do.

On a GPU, the innermost operation of the framework that launched kernels is charged with them all;
on an Ascend each operator is, for its own shapes and formats were recorded. Classes are operations
of one name, shapes and types. Kernels of replayed graphs count for the operations of the capture,
where its recording is at hand. `of(recording)` is the answer for whoever judges; `offered` tells
whether there is one.

The breakdown `roofline`: operations by name and shape, what they did and could have done.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unified_prof.explain.roofline.arguments import UntoldError, dtype_of, item_size
from unified_prof.explain.roofline.costs import Cost, collective
from unified_prof.explain.roofline.kernel_attribution import NOT_TF32, TF32, Charged, Class, groups
from unified_prof.explain.roofline.peaks import Device, Peak, known_devices
from unified_prof.recording import breakdowns, operators
from unified_prof.recording.calls import COMMUNICATION, COPY, Labels
from unified_prof.recording.collectives import PARTED, canonical
from unified_prof.recording.framework import NONE
from unified_prof.recording.model import Breakdown, ModelUse, Row
from unified_prof.recording.operators import numbered
from unified_prof.recording.recording import Recording

MATRIX_TARGET, MEMORY_TARGET = 0.7, 0.8
"""Shares of a peak that large operations reach: what savings are told against, not the peak."""

_TF32_ASSUMED = "faster than fp32 allows, so TF32 was assumed; its kernels do not say"
_FASTER_THAN_COMPUTE = "faster than the peak allows: its shapes or the peak are in doubt"
_SAVES_WORK = ", or its algorithm multiplies less (Winograd)"
FASTER_THAN_MEMORY = "faster than memory allows: its data were in a cache, or shapes are in doubt"


@dataclass(frozen=True, slots=True)
class Placed:
    """The operations of one class on one device, and how close they came to the device's limits."""

    name: str
    shapes: str
    """Shapes and types of their inputs, in words."""
    kind: str
    """`operation`, `kernel`, `copy` or `communication`."""
    device: str
    count: int
    total_ns: int
    cost: Cost | None
    """Of all of them together; None: it cannot be told, and `doubt` says why."""
    peak: Peak | None = None
    """Of calculating; None: not known, or nothing is calculated."""
    memory: Peak | None = None
    bound_ns: float | None = None
    """Time that they would take at the peaks; None: not known."""
    target_ns: float | None = None
    """Time that they would take at what large operations reach of the peaks."""
    doubt: str | None = None

    @property
    def bound(self) -> str | None:
        """What limits them: `compute` or `memory`; None: not known."""
        if self.bound_ns is None or self.cost is None or self.memory is None:
            return None
        moving_ns = self.cost.moved_bytes / self.memory.rate * 1e9
        # A sum of such times may differ from the time of the sum in its last digits.
        return "memory" if moving_ns >= 0.999 * self.bound_ns else "compute"

    @property
    def efficiency(self) -> float | None:
        """How much of their time they would take at the peaks; None: not known, or above 1."""
        if self.bound_ns is None or not self.total_ns or self.bound_ns > self.total_ns:
            return None
        return self.bound_ns / self.total_ns

    @property
    def uncertain(self) -> bool:
        """Whether the figure of the device that limits them is."""
        limit = self.memory if self.bound == "memory" else self.peak
        return limit is not None and limit.uncertain

    @property
    def above_target_ns(self) -> float | None:
        """Time that they take beyond what large operations would; None: not known."""
        return None if self.target_ns is None else max(0.0, self.total_ns - self.target_ns)

    @property
    def intensity(self) -> float | None:
        """FLOPs for each byte."""
        if self.cost is None or not self.cost.moved_bytes:
            return None
        return self.cost.flops / self.cost.moved_bytes


def place(one: Class, name: str, device: Device | None) -> Placed:
    """Place a class under the limits of its device."""
    total: dict[str, Any] = {
        "name": one.name,
        "shapes": one.shapes,
        "kind": one.kind,
        "device": name,
        "count": one.count,
        "total_ns": one.total_ns,
    }
    if one.cost is None:
        return Placed(**total, cost=None, doubt=one.why)
    cost = times(one.cost, one.count)
    if device is None:
        return Placed(**total, cost=cost, doubt=cost.doubt)
    memory = device.of_memory()
    doubts = [cost.doubt] if cost.doubt else []
    peak = _peak(cost, device, one.kernel)
    bound_ns = _bound(cost, peak, memory, device)
    if cost.unit == "matrix" and cost.dtype == "fp32" and not NOT_TF32.search(one.kernel):
        faster = device.matrix("tf32")
        too_fast = peak is not None and cost.flops / peak.rate * 1e9 > one.total_ns
        if too_fast and faster is not None and not TF32.search(one.kernel):
            peak, bound_ns = faster, _bound(cost, faster, memory, device)
            doubts.append(_TF32_ASSUMED)
    target_ns = _bound(cost, peak, memory, device, MATRIX_TARGET, MEMORY_TARGET)
    if bound_ns is not None and bound_ns > one.total_ns:
        moving = memory is not None and cost.moved_bytes / memory.rate * 1e9 >= bound_ns
        saves = _SAVES_WORK if "conv" in one.name.lower() and not moving else ""
        doubts.append((FASTER_THAN_MEMORY if moving else _FASTER_THAN_COMPUTE) + saves)
    return Placed(
        **total,
        cost=cost,
        peak=peak,
        memory=memory,
        bound_ns=bound_ns,
        target_ns=target_ns,
        doubt="; ".join(doubts) or None,
    )


def times(cost: Cost, count: int) -> Cost:
    """Return the cost of so many of the same."""
    return Cost(
        cost.unit,
        cost.dtype,
        cost.flops * count,
        cost.moved_bytes * count,
        cost.beside * count,
        cost.doubt,
    )


def _peak(cost: Cost, device: Device, kernel: str) -> Peak | None:
    """Return the limit of calculating for a cost."""
    if cost.unit == "matrix":
        if cost.dtype == "fp32" and TF32.search(kernel):
            return device.matrix("tf32") or device.matrix("fp32")
        return device.matrix(cost.dtype)
    return device.vector(cost.dtype) if cost.unit == "vector" else None


def _bound(
    cost: Cost,
    peak: Peak | None,
    memory: Peak | None,
    device: Device,
    of_peak: float = 1.0,
    of_memory: float = 1.0,
) -> float | None:
    """Return the shortest time in ns that the limits allow, None where one is not known."""
    if memory is None or (cost.unit == "matrix" and peak is None):
        return None
    bound = cost.moved_bytes / (memory.rate * of_memory)
    if peak is not None:
        bound = max(bound, cost.flops / (peak.rate * of_peak))
    if cost.beside and (vector := device.vector(cost.dtype)) is not None:
        bound = max(bound, cost.beside / (vector.rate * of_peak))
    return bound * 1e9


def merged(found: list[Placed]) -> list[Placed]:
    """Put classes together that read alike; what told them apart is not shown."""
    by_key: dict[tuple[str, ...], list[Placed]] = {}
    for one in found:
        told = "" if one.cost is not None else "not told"
        key = (one.name, one.shapes, one.kind, one.device, told)
        by_key.setdefault(key, []).append(one)
    return [_together(group) for group in by_key.values()]


def _together(group: list[Placed]) -> Placed:
    if len(group) == 1:
        return group[0]
    longest = max(group, key=lambda one: one.total_ns)
    costs = [one.cost for one in group if one.cost is not None]
    cost = None
    if costs and longest.cost is not None:
        cost = Cost(
            longest.cost.unit,
            longest.cost.dtype,
            sum(one.flops for one in costs),
            sum(one.moved_bytes for one in costs),
            sum(one.beside for one in costs),
        )
    bounds = [one.bound_ns for one in group]
    targets = [one.target_ns for one in group]
    return Placed(
        name=longest.name,
        shapes=longest.shapes,
        kind=longest.kind,
        device=longest.device,
        count=sum(one.count for one in group),
        total_ns=sum(one.total_ns for one in group),
        cost=cost,
        peak=longest.peak,
        memory=longest.memory,
        bound_ns=None if None in bounds else sum(one for one in bounds if one is not None),
        target_ns=None if None in targets else sum(one for one in targets if one is not None),
        doubt=longest.doubt,
    )


_ENOUGH_TOLD, _ENOUGH_PEAKS = 0.5, 0.95


def model_use(
    recording: Recording,
    devices: dict[str, Device | None],
    charged: Charged,
    calculated: NDArray[np.float64],
    ideal_ns: NDArray[np.float64],
    told: NDArray[np.bool_],
    placed: list[Placed],
) -> tuple[ModelUse, ...]:
    """Return what each device's matrix units did in the steps, else in the window."""
    result = []
    for name, number in recording.device_numbers.items():
        here = np.ones(len(charged), bool) if number is None else charged.device == number
        windows = recording.step_windows.get(name)
        steps = None
        time_ns = recording.devices[name].window.total_ns
        counted = here
        if windows is not None and recording.steps:
            steps, time_ns = len(recording.steps), windows.all.total_ns
            counted = here & (charged.step != NONE)
        total = int(calculated[counted].sum())
        if not total or not time_ns:
            continue
        kernels = int(charged.total_ns[here].sum())
        told_share = int(charged.total_ns[here & told].sum()) / kernels if kernels else 0.0
        unknown = calculated[counted & (ideal_ns == 0)].sum() / total
        can_tell = told_share >= _ENOUGH_TOLD and unknown <= 1 - _ENOUGH_PEAKS
        of_steps: list[tuple[str, int, float | None]] = []
        if steps is not None and windows is not None:
            for index, (step, _, _) in enumerate(recording.steps):
                mine = here & (charged.step == index)
                length = int(windows.end_ns[index] - windows.start_ns[index])
                share = float(ideal_ns[mine].sum()) / length if length and can_tell else None
                of_steps.append((step, int(calculated[mine].sum()), _possible(share)))
        used = {
            one.peak.name: one.peak
            for one in placed
            if one.device == name and one.peak and one.cost and one.cost.unit == "matrix"
        }
        result.append(
            ModelUse(
                device=name,
                flops=total,
                time_ns=time_ns,
                steps=steps,
                share=_possible(float(ideal_ns[counted].sum()) / time_ns if can_tell else None),
                told_share=told_share,
                peak=", ".join(f"{key} {one.rate / 1e12:,g}" for key, one in used.items()),
                uncertain=any(one.uncertain for one in used.values()),
                by_step=tuple(of_steps),
            )
        )
    return tuple(result)


def _possible(share: float | None) -> float | None:
    return share if share is not None and share <= 1 else None


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


def rows(recording: Recording) -> Breakdown:
    """Return one row for each class of operations, kernels, copies and collectives."""
    found = of(recording)
    several = len(found.devices) > 1
    return breakdowns.finish("roofline", (_row(one, several) for one in found.rows))


def _row(one: Placed, several_devices: bool) -> Row:
    cost, seconds = one.cost, one.total_ns / 1e9
    name = " ".join(part for part in (one.name, one.shapes) if part)
    if several_devices:
        name += f" ({one.device})"
    calculates = cost is not None and cost.unit != "copy"
    per_second = None
    moved_per_second = None
    if cost is not None and seconds:
        per_second = cost.flops / seconds / 1e12 if calculates else None
        moved_per_second = cost.moved_bytes / seconds / 1e9
    return Row(
        name=name,
        kind=one.kind,
        count=one.count,
        total_ns=one.total_ns,
        detail=limits(one),
        extra={
            "work_flops": cost.flops if cost is not None and calculates else None,
            "moved_bytes": None if cost is None else cost.moved_bytes,
            "compute_tflop_per_s": per_second,
            "memory_gb_per_s": moved_per_second,
            "intensity_flops_per_byte": one.intensity if calculates else None,
            "of_peak_percent": None if one.efficiency is None else 100 * one.efficiency,
            "above_target_ns": one.above_target_ns,
        },
    )


def limits(one: Placed) -> str | None:
    """Return what limits operations, of which peak their share is, and what is in doubt."""
    parts = []
    if one.bound == "memory" and one.memory is not None:
        parts.append(f"memory, {one.memory.rate / 1e9:,g} GB/s" + _mark(one.memory.uncertain))
    elif one.bound == "compute" and one.peak is not None:
        parts.append(
            f"{one.peak.name}, {one.peak.rate / 1e12:,.4g} TFLOP/s" + _mark(one.peak.uncertain)
        )
    if one.doubt:
        parts.append(one.doubt)
    return "; ".join(parts) or None


def _mark(uncertain: bool) -> str:
    return " (uncertain)" if uncertain else ""
