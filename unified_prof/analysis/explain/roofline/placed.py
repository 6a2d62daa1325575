"""Classes of work under the limits of their device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unified_prof.analysis.explain.roofline.charged import NOT_TF32, TF32, Class
from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.peaks import Device, Peak

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
