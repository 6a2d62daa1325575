"""Roofline of the operations of a recording, MFU of its devices, and the breakdown `roofline`.

On a GPU, kernels are attributed to the innermost framework operation that launched them; on an
Ascend, every operator counts with its own shapes and formats. Each row is a group of operations
with the same name, shapes and dtypes. Kernels of replayed graphs are attributed to the operations
of the capture, if its recording is available. `peaks` registers the breakdown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from unified_prof.arrays.grouping import by_key
from unified_prof.explain.roofline.arguments import UnknownCostError, dtype_of, item_size
from unified_prof.explain.roofline.costs import Cost, collective, times
from unified_prof.explain.roofline.kernel_attribution import AttributedKernels, OperationGroup
from unified_prof.explain.roofline.peaks import Device, Peak, known_devices
from unified_prof.recording import breakdowns, names, operators
from unified_prof.recording.calls import COMMUNICATION, COPY, Labels
from unified_prof.recording.collectives import PARTED, canonical
from unified_prof.recording.framework import NONE
from unified_prof.recording.model import Breakdown, ModelUse, Row
from unified_prof.recording.operators import numbered
from unified_prof.recording.recording import Recording

# Shares of a peak that large operations reach: savings refer to them, not to the peak.
MATRIX_TARGET, MEMORY_TARGET = 0.7, 0.8

_TF32_ASSUMED = "faster than fp32 allows, TF32 is assumed"
_FASTER_THAN_COMPUTE = "faster than the peak allows: shapes or peak are wrong"
_SAVES_WORK = ", or the algorithm needs fewer operations (Winograd)"
FASTER_THAN_MEMORY = "faster than memory allows: data were in a cache, or shapes are wrong"


class RooflineRow(Struct, frozen=True):
    """Operations with the same cost on one device, and the limits of the device."""

    name: str
    shapes: str  # Formatted shapes and dtypes of the inputs.
    # operation, kernel, copy or communication.
    kind: str
    device: str
    count: int
    total_ns: int
    cost: Cost | None  # Cost of all of them together; None if unknown, and `doubt` has the reason.
    # Compute peak; None if unknown, or without floating-point operations.
    peak: Peak | None = None
    memory: Peak | None = None
    # Time at the peaks, and at what large operations reach of them; None if unknown.
    bound_ns: float | None = None
    target_ns: float | None = None
    doubt: str | None = None

    @property
    def bound(self) -> str | None:
        """Limit: `compute` or `memory`; None if unknown."""
        if self.bound_ns is None or self.cost is None or self.memory is None:
            return None
        memory_ns = self.cost.moved_bytes / self.memory.rate * 1e9
        # A sum of such times may differ from the time of the sum in its last digits.
        return "memory" if memory_ns >= 0.999 * self.bound_ns else "compute"

    @property
    def efficiency(self) -> float | None:
        """Roofline efficiency; None if unknown or above 1."""
        if self.bound_ns is None or not self.total_ns or self.bound_ns > self.total_ns:
            return None
        return self.bound_ns / self.total_ns

    @property
    def uncertain(self) -> bool:
        """True if the limiting peak is uncertain."""
        limit = self.memory if self.bound == "memory" else self.peak
        return limit is not None and limit.uncertain

    @property
    def above_target_ns(self) -> float | None:
        """Time above `target_ns`; None if unknown."""
        return None if self.target_ns is None else max(0.0, self.total_ns - self.target_ns)

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte."""
        if self.cost is None or not self.cost.moved_bytes:
            return None
        return self.cost.flops / self.cost.moved_bytes


def roofline_row(one: OperationGroup, name: str, device: Device | None) -> RooflineRow:
    """Return the roofline row of a group of operations on a device."""
    cost = one.cost
    row = RooflineRow(
        one.name,
        one.shapes,
        one.kind,
        name,
        one.count,
        one.total_ns,
        cost,
        doubt=one.why if cost is None else cost.doubt,
    )
    if cost is None or device is None or not one.on_device:
        return row
    memory = device.memory_peak()
    doubts = [cost.doubt] if cost.doubt else []
    peak = _peak(cost, device, one.kernel)
    bound_ns = _bound(cost, peak, memory, device)
    if cost.unit == "matrix" and cost.dtype == "fp32" and not names.NOT_TF32(one.kernel):
        faster = device.matrix("tf32")
        too_fast = peak is not None and cost.flops / peak.rate * 1e9 > one.total_ns
        if too_fast and faster is not None and not names.TF32(one.kernel):
            peak, bound_ns = faster, _bound(cost, faster, memory, device)
            doubts.append(_TF32_ASSUMED)
    target_ns = _bound(cost, peak, memory, device, MATRIX_TARGET, MEMORY_TARGET)
    if bound_ns is not None and bound_ns > one.total_ns:
        moving = memory is not None and cost.moved_bytes / memory.rate * 1e9 >= bound_ns
        saves = _SAVES_WORK if "conv" in one.name.lower() and not moving else ""
        doubts.append((FASTER_THAN_MEMORY if moving else _FASTER_THAN_COMPUTE) + saves)
    return structs.replace(
        row,
        peak=peak,
        memory=memory,
        bound_ns=bound_ns,
        target_ns=target_ns,
        doubt="; ".join(doubts) or None,
    )


def _peak(cost: Cost, device: Device, kernel: str) -> Peak | None:
    """Return the compute peak for a cost."""
    if cost.unit == "matrix":
        if cost.dtype == "fp32" and names.TF32(kernel):
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
    """Return the minimum time in ns that the peaks allow, None if one is unknown."""
    if memory is None or (cost.unit == "matrix" and peak is None):
        return None
    bound = cost.moved_bytes / (memory.rate * of_memory)
    if peak is not None:
        bound = max(bound, cost.flops / (peak.rate * of_peak))
    if cost.vector_flops and (vector := device.vector(cost.dtype)) is not None:
        bound = max(bound, cost.vector_flops / (vector.rate * of_peak))
    return bound * 1e9


def bound_on(row: RooflineRow, device: Device) -> float | None:
    """Return the minimum time in ns of a row on another device, None if a peak is unknown.

    Formats that the device lacks (fp8, TF32) are calculated in the next one that it has.
    """
    cost, peak = row.cost, None
    if cost is None:
        return None
    if cost.unit == "matrix":
        name = row.peak.name.removesuffix("_matrix") if row.peak else cost.dtype
        others = {"tf32": ("fp32",), "fp8": ("fp16", "bf16"), "bf16": ("fp16", "fp32")}
        wanted = (name, *others.get(name, ()))
        peak = next((found for one in wanted if (found := device.matrix(one))), None)
    elif cost.unit == "vector":
        peak = device.vector(cost.dtype)
    return _bound(cost, peak, device.memory_peak(), device)


def _key(one: RooflineRow) -> tuple[str, ...]:
    """Return the key of rows that look the same."""
    return one.name, one.shapes, one.kind, one.device, str(one.cost is None)


def merge_rows(found: list[RooflineRow]) -> list[RooflineRow]:
    """Merge rows that look the same."""
    by_key: dict[tuple[str, ...], list[RooflineRow]] = {}
    for one in found:
        by_key.setdefault(_key(one), []).append(one)
    return [_merge(group) for group in by_key.values()]


def _merge(group: list[RooflineRow]) -> RooflineRow:
    if len(group) == 1:
        return group[0]
    longest = max(group, key=lambda one: one.total_ns)
    costs = [one.cost for one in group if one.cost is not None]
    return structs.replace(
        longest,
        count=sum(one.count for one in group),
        total_ns=sum(one.total_ns for one in group),
        cost=None
        if longest.cost is None
        else replace(
            longest.cost,
            flops=sum(cost.flops for cost in costs),
            moved_bytes=sum(cost.moved_bytes for cost in costs),
            vector_flops=sum(cost.vector_flops for cost in costs),
            doubt=None,
        ),
        bound_ns=_sum_known([one.bound_ns for one in group]),
        target_ns=_sum_known([one.target_ns for one in group]),
    )


def _sum_known(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


# Minimum share of kernel time with a known cost, and of FLOPs with a known peak, for MFU.
_MIN_KNOWN, _MIN_PEAKS = 0.5, 0.95


def model_use(
    recording: Recording,
    attributed: AttributedKernels,
    calculated: NDArray[np.float64],
    ideal_ns: NDArray[np.float64],
    known: NDArray[np.bool_],
    placed: list[RooflineRow],
) -> tuple[ModelUse, ...]:
    """Return FLOPs and MFU of each device in the steps, or in the window without steps."""
    result = []
    for name, number in recording.device_numbers.items():
        here = np.ones(len(attributed), bool) if number is None else attributed.device == number
        windows = recording.step_windows.get(name)
        steps = None
        time_ns = recording.devices[name].window.total_ns
        counted = here
        if windows is not None and recording.steps:
            steps, time_ns = len(recording.steps), windows.all.total_ns
            counted = here & (attributed.step != NONE)
        total = int(calculated[counted].sum())
        if not total or not time_ns:
            continue
        kernels = int(attributed.total_ns[here].sum())
        known_share = int(attributed.total_ns[here & known].sum()) / kernels if kernels else 0.0
        unknown = calculated[counted & (ideal_ns == 0)].sum() / total
        can_tell = known_share >= _MIN_KNOWN and unknown <= 1 - _MIN_PEAKS
        of_steps: list[tuple[str, int, float | None]] = []
        if steps is not None and windows is not None:
            for index, (step, _, _) in enumerate(recording.steps):
                selected = here & (attributed.step == index)
                length = int(windows.end_ns[index] - windows.start_ns[index])
                share = float(ideal_ns[selected].sum()) / length if length and can_tell else None
                of_steps.append((step, int(calculated[selected].sum()), _possible(share)))
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
                known_share=known_share,
                peak=", ".join(f"{key} {one.rate / 1e12:,.4g}" for key, one in used.items()),
                uncertain=any(one.uncertain for one in used.values()),
                by_step=tuple(of_steps),
            )
        )
    return tuple(result)


def _possible(share: float | None) -> float | None:
    return share if share is not None and share <= 1 else None


_NO_SIZE = "its size was not recorded"
_ON_THE_WIRE = "minimum bytes sent per rank; the time includes waiting for other ranks"


def copies(recording: Recording) -> Iterator[OperationGroup]:
    """Yield copies by direction, and tasks of collectives without a collective record."""
    work = recording.work
    parts = (work.kind == COMMUNICATION) & (work.task != NONE)
    piece = np.flatnonzero((work.kind == COPY) | parts)
    if not len(piece):
        return
    label, device, kind = work.operator[piece], work.device[piece], work.kind[piece]
    duration, task = work.duration_ns[piece], work.task[piece]
    known, size = operators.sizes_of_copies(recording.source)
    of_task = dict(zip(known.tolist(), size.tolist(), strict=True))
    identity = recording.tasks.identity
    for _, members in by_key(numbered(label, device, kind)):
        first = members[0]
        name = work.labels.texts[int(label[first])]
        sizes = [of_task.get(int(one), -1) for one in identity[task[members]].tolist()]
        within = names.COPIES_WITHIN(name)
        moved = sum(sizes) * (2 if within else 1)
        yield OperationGroup(
            name,
            kind="copy" if kind[first] == COPY else "communication",
            device=int(device[first]),
            count=len(members),
            total_ns=int(duration[members].sum()),
            cost=None if min(sizes) < 0 else Cost("copy", "uint8", 0, moved),
            why=_NO_SIZE,
            on_device=within,
        )


def collectives(recording: Recording) -> Iterator[OperationGroup]:
    """Yield collectives by name, size and ranks, with the minimum bytes sent per rank."""
    comms, labels = recording.comms, Labels()
    if not len(comms):
        return
    label = recording.collective_names.types(labels)
    payloads = operators.payloads(recording.source, recording.strings)
    payload_of = [payloads.get(int(one)) for one in comms.identity.tolist()]
    distinct = {one: place for place, one in enumerate(dict.fromkeys(payload_of))}
    place = np.array([distinct[one] for one in payload_of], np.int64)
    for _, members in by_key(numbered(label, place, comms.device)):
        name = labels.texts[int(label[members[0]])]
        shapes, cost, why = _payload(name, payload_of[members[0]])
        yield OperationGroup(
            name,
            shapes,
            kind="communication",
            device=int(comms.device[members[0]]),
            count=len(members),
            total_ns=int(comms.duration_ns[members].sum()),
            cost=None if cost is None else times(cost, len(members)),
            why=why,
            on_device=False,
        )


def _payload(name: str, found: operators.Payload | None) -> tuple[str, Cost | None, str | None]:
    """Return formatted size and ranks of a collective, its cost, and why it is unknown."""
    if found is None or found.elements is None:
        return "", None, _NO_SIZE
    # The name ends with the group in brackets.
    kind = canonical(name.partition(" (")[0])
    dtype = dtype_of(found.dtype)
    shapes = f"{found.elements:,} {dtype}"
    if found.ranks is None:
        return shapes, None, "the number of ranks was not recorded"
    shapes += f" x {found.ranks} ranks"
    elements = found.elements
    if kind == "all_gather":
        elements = found.results or elements * found.ranks
    elif kind in PARTED and found.results is None:
        elements *= found.ranks
    try:
        cost = collective(kind, elements * item_size(dtype), found.ranks, dtype)
    except UnknownCostError as err:
        return shapes, None, str(err)
    return shapes, replace(cost, doubt=_ON_THE_WIRE), None


class Roofline(Struct, frozen=True):
    """Roofline rows of a recording, the longest first; peaks and MFU of its devices."""

    rows: tuple[RooflineRow, ...]
    row: NDArray[np.int32]  # Row of each task in `Recording.work`, -1 of copies and collectives.
    devices: dict[str, Device | None]
    use: tuple[ModelUse, ...]


_cache: WeakKeyDictionary[Recording, Roofline] = WeakKeyDictionary()


def roofline_of(recording: Recording) -> Roofline:
    """Return the roofline of a recording, cached."""
    if recording not in _cache:
        _cache[recording] = _compute(recording)
    return _cache[recording]


def lost_ns(
    recording: Recording, tasks: NDArray[np.int32], lost: Callable[[RooflineRow], float | None]
) -> NDArray[np.float64]:
    """Return the time that some tasks lose: of equal operations, each loses the same share."""
    roofline = roofline_of(recording)
    share = [(lost(row) or 0.0) / max(row.total_ns, 1) for row in roofline.rows]
    share_of_task = np.array([*share, 0.0])[roofline.row[tasks]]
    result: NDArray[np.float64] = share_of_task * recording.work.duration_ns[tasks]
    return result


def rows_of_device(recording: Recording, device: str | None) -> list[RooflineRow]:
    """Return the rows of operations and kernels of a device, or of all devices if it is None."""
    return [
        row
        for row in roofline_of(recording).rows
        if row.kind in ("operation", "kernel") and device in (None, row.device)
    ]


def _compute(recording: Recording) -> Roofline:
    devices = known_devices(recording)
    by_number = {number: (name, devices[name]) for name, number in recording.device_numbers.items()}

    def row_of(one: OperationGroup) -> RooflineRow:
        return roofline_row(one, *by_number.get(one.device, by_number.get(None, ("", None))))

    attributed = AttributedKernels(recording)
    calculated, ideal_ns = np.zeros((2, len(attributed)), np.float64)
    known = np.zeros(len(attributed), bool)
    placed: list[RooflineRow] = []
    group = np.zeros(len(attributed), np.int32)
    for one in attributed.groups():
        found = row_of(one)
        group[one.members] = len(placed)
        placed.append(found)
        known[one.members] = found.cost is not None
        if found.cost is not None and found.cost.unit == "matrix":
            calculated[one.members] = found.cost.flops / one.count
            if found.peak is not None:
                ideal_ns[one.members] = found.cost.flops / one.count / found.peak.rate * 1e9
    rows = merge_rows(placed)
    rows += [row_of(one) for one in (*copies(recording), *collectives(recording))]
    use = model_use(recording, attributed, calculated, ideal_ns, known, placed)
    rows.sort(key=lambda row: (-row.total_ns, row.name, row.shapes))
    place = {_key(one): at for at, one in enumerate(rows)}
    row = np.full(len(recording.work), NONE, np.int32)
    at = np.array([place[_key(one)] for one in placed], np.int32)
    row[attributed.work] = at[group][attributed.number]
    return Roofline(tuple(rows), row, devices, use)


def rows(recording: Recording) -> Breakdown:
    """Return the breakdown `roofline`."""
    result = roofline_of(recording)
    several = len(result.devices) > 1
    return breakdowns.finish("roofline", (_row(row, several) for row in result.rows))


def _row(one: RooflineRow, several_devices: bool) -> Row:
    cost, seconds = one.cost, one.total_ns / 1e9
    name = " ".join(part for part in (one.name, one.shapes) if part)
    if several_devices:
        name += f" ({one.device})"
    calculates = cost is not None and cost.unit != "copy"
    rates: dict[str, float | None] = {"compute_tflop_per_s": None, "memory_gb_per_s": None}
    if cost is not None and seconds:
        rates["compute_tflop_per_s"] = cost.flops / seconds / 1e12 if calculates else None
        rates["memory_gb_per_s"] = cost.moved_bytes / seconds / 1e9
    return Row(
        name=name,
        kind=one.kind,
        count=one.count,
        total_ns=one.total_ns,
        detail=limits(one),
        extra={
            "work_flops": cost.flops if cost is not None and calculates else None,
            "moved_bytes": None if cost is None else cost.moved_bytes,
            **rates,
            "intensity_flops_per_byte": one.intensity if calculates else None,
            "of_peak_percent": None if one.efficiency is None else 100 * one.efficiency,
            "above_target_ns": one.above_target_ns,
        },
    )


def limits(one: RooflineRow) -> str | None:
    """Return the limiting peak and any caveats as text."""
    text = ""
    if one.bound == "memory" and one.memory is not None:
        text = f"memory, {one.memory.rate / 1e9:,g} GB/s"
    elif one.bound == "compute" and one.peak is not None:
        text = f"{one.peak.name}, {one.peak.rate / 1e12:,.4g} TFLOP/s"
    text += " (uncertain)" if one.uncertain and text else ""
    return "; ".join(filter(None, (text, one.doubt))) or None
