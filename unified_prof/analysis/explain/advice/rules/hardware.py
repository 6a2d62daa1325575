"""Operations that are far from what the device can do, or calculate in a type that is slow there.

What operations take, and could take, is of `roofline`, over the whole recording; the judged steps
have their part of it, as far as kernels run alone and somebody waits for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from unified_prof.analysis.calls import KERNEL
from unified_prof.analysis.explain.advice.case import Case
from unified_prof.analysis.explain.advice.limits import LEAST_SHARE, ROWS, percent
from unified_prof.analysis.explain.roofline import of_recording
from unified_prof.analysis.explain.roofline.known import known_devices
from unified_prof.analysis.explain.roofline.peaks import Device
from unified_prof.analysis.explain.roofline.placed import (
    MATRIX_TARGET,
    MEMORY_TARGET,
    Placed,
)
from unified_prof.analysis.finding import Evidence, Finding

INEFFICIENT_OPERATION = "inefficient_operation"
FULL_PRECISION = "full_precision"

OPERATION_SHARE = 0.05
"""Of the time of kernels: an operation that has less is not worth its own look."""
EFFICIENCY = 0.4
"""Of the bound: a plain product of a thousand rows reaches more."""
LEAST_NS = 20_000
"""An operation that is shorter is its launch and its tail, not its arithmetic."""
FULL_SHARE = 0.10
"""Of the time of kernels: products, convolutions and attention in single precision."""
ALIGNED = {"fp16": 8, "bf16": 8, "fp8": 16, "int8": 16}
"""Elements of an inner axis that tensor cores take at once."""

_SHAPE = re.compile(r"\[([\d,]+)\]")


def _part(case: Case) -> float:
    """Return how much of the time of all kernels could be gained in the judged steps."""
    work = case.recording.work
    mine = work.kind == KERNEL
    if case.number is not None:
        mine &= work.device == case.number
    whole = int(work.duration_ns[mine].sum())
    kernels = np.flatnonzero(case.pieces.kind == KERNEL)
    return case.gains(kernels, case.pieces.length_ns[kernels]) / whole if whole else 0.0


def _rows(case: Case) -> tuple[list[Placed], int]:
    """Return the operations of this device, and what they take in all."""
    found = of_recording.of(case.recording).rows
    rows = [one for one in found if one.kind in ("operation", "kernel")]
    if case.number is not None:
        rows = [one for one in rows if one.device == case.device]
    return rows, sum(one.total_ns for one in rows)


def inefficient_operation(case: Case) -> Iterator[Finding]:
    """Heavy operations that take more than twice as long as the device needs for them."""
    rows, whole = _rows(case)
    slow = [
        one
        for one in rows
        if one.total_ns >= OPERATION_SHARE * whole
        and one.total_ns >= LEAST_NS * one.count
        and one.efficiency is not None
        and one.efficiency < EFFICIENCY
        and one.doubt is None
        and not one.uncertain
    ]
    if not slow:
        return
    part = _part(case)
    cost = sum(one.above_target_ns or 0.0 for one in slow) * part
    if case.share(cost) < LEAST_SHARE:
        return
    worst = max(slow, key=lambda one: one.above_target_ns or 0.0)
    odd = [one for one in slow if misaligned(one)]
    limit = "memory" if worst.bound == "memory" else f"{worst.peak.name if worst.peak else ''} peak"
    yield case.finding(
        INEFFICIENT_OPERATION,
        cost,
        f"{len(slow)} heavy operations are far from what the device can do: {worst.name} "
        f"{worst.shapes} reaches {percent(worst.efficiency or 0.0)} of its {limit}",
        advice="pad inner sizes to a multiple of 8 (16 in 8 bits): some are not"
        if odd
        else "look at shapes, layout (channels_last) and type of these: larger batches, fused "
        "neighbours, another kernel (torch.backends.cudnn.benchmark, max-autotune)",
        sure="likely",
        figures={"operations": len(slow), "misaligned": len(odd), "part": round(part, 4)},
        evidence=_evidence(slow),
    )


def misaligned(one: Placed) -> bool:
    """Tell whether a product in a short type has an inner axis that tensor cores do not fit."""
    if one.cost is None or one.cost.unit != "matrix" or one.cost.dtype not in ALIGNED:
        return False
    sizes = [
        [int(size) for size in shape.split(",") if size] for shape in _SHAPE.findall(one.shapes)
    ]
    matrices = [shape for shape in sizes if len(shape) > 1]
    return any(size % ALIGNED[one.cost.dtype] for shape in matrices for size in shape[-2:])


def full_precision(case: Case) -> Iterator[Finding]:
    """Matrix work in single precision on a device whose matrix units calculate in shorter types."""
    device = of_recording.of(case.recording).devices.get(case.device or "")
    if device is None:
        return
    short = device.matrix("bf16") or device.matrix("fp16")
    memory = device.of_memory()
    rows, whole = _rows(case)
    full = [
        one
        for one in rows
        if one.cost is not None
        and one.cost.unit == "matrix"
        and one.cost.dtype == "fp32"
        and one.peak is not None
        and one.peak.name.startswith("fp32")
    ]
    total = sum(one.total_ns for one in full)
    if short is None or short.uncertain or memory is None or total < FULL_SHARE * whole or not full:
        return
    saved = 0.0
    for one in full:
        assert one.cost is not None
        computing = one.cost.flops / (MATRIX_TARGET * short.rate) * 1e9
        moving = one.cost.moved_bytes / 2 / (MEMORY_TARGET * memory.rate) * 1e9
        saved += max(0.0, one.total_ns - max(computing, moving))
    cost = saved * _part(case)
    if case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        FULL_PRECISION,
        cost,
        f"matrix work in single precision takes {percent(total / whole)} of the time of kernels, "
        f"while the matrix units calculate {short.name} at {short.rate / 1e12:,.0f} TFLOP/s",
        advice=_shorter(device),
        sure="likely",
        figures={"full_precision_ns": total, "operations": len(full), "type": short.name},
        evidence=_evidence(full),
    )


def _shorter(device: Device) -> str:
    """Return what to try on a device, by the types that its matrix units take."""
    if device.cores is not None:
        return "autocast with bfloat16 or float16, or HF32 (torch.npu.matmul.allow_hf32)"
    if device.matrix("bf16") is None:
        return "torch.autocast with float16 and a GradScaler"
    tf32 = ", or TF32: torch.set_float32_matmul_precision('high')" if device.matrix("tf32") else ""
    return f"torch.autocast with bfloat16{tf32}"


def _evidence(rows: list[Placed]) -> list[Evidence]:
    heaviest = sorted(rows, key=lambda one: -one.total_ns)[:ROWS]
    return [
        {
            "name": f"{one.name} {one.shapes}".strip(),
            "count": one.count,
            "total_ns": one.total_ns,
            "of_peak_percent": None if one.efficiency is None else round(100 * one.efficiency, 2),
            "peak": None if one.peak is None else f"{one.peak.name} {one.peak.rate / 1e12:,.4g}",
        }
        for one in heaviest
    ]


def lacks_peaks(case: Case) -> str | None:
    """Say that nobody knows what the device can do."""
    if known_devices(case.recording).get(case.device or "") is None:
        return f"{case.device}: its peaks are not known ([tool.uprof.devices] takes them)"
    return None
