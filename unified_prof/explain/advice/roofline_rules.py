"""Advice rules by the roofline: inefficient operations and full precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from msgspec import structs

from unified_prof.explain.advice.device_context import (
    Cause,
    DeviceContext,
    blocks_per_processor,
    matrix_kernels,
    processors,
)
from unified_prof.explain.advice.idle_segments import EVIDENCE_ROWS, Flags, percent, plural
from unified_prof.explain.roofline import breakdown, peaks
from unified_prof.explain.roofline.breakdown import MATRIX_TARGET, MEMORY_TARGET, RooflineRow
from unified_prof.explain.roofline.peaks import Device, known_devices
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.model import Evidence

OPERATION_SHARE = 0.05  # Minimum share of kernel time of an operation.
HALF = 0.5  # Share of the device that few blocks use, and of the time of an operation with them.
EFFICIENCY = 0.4  # Maximum roofline efficiency; a plain matmul of a thousand rows reaches more.
MIN_OPERATION_NS = 20_000  # Shorter operations are dominated by launch and tail effects.
FULL_SHARE = 0.10  # Minimum share of kernel time of fp32 matmuls, convolutions and attention.
MIN_TIME_SHARE = 0.01  # Minimum share of the time of such kernels if their saving is unknown.
# Alignment of inner dimensions for tensor cores, in elements.
ALIGNED = {"fp16": 8, "bf16": 8, "fp8": 16, "int8": 16}

_HALVES = ("bf16", "fp16")


def _rows(context: DeviceContext) -> tuple[list[RooflineRow], int]:
    """Return the roofline rows of the device and their total time."""
    device = None if context.device_id is None else context.device
    rows = breakdown.rows_of_device(context.recording, device)
    return rows, sum(row.total_ns for row in rows)


def inefficient_operation(context: DeviceContext) -> Iterator[Cause]:
    """Find expensive operations that run far below the roofline."""
    rows, total_ns = _rows(context)
    slow = [
        row
        for row in rows
        if row.total_ns >= max(OPERATION_SHARE * total_ns, MIN_OPERATION_NS * row.count)
        and row.efficiency is not None
        and row.efficiency < EFFICIENCY
        and row.doubt is None
        and not row.uncertain
    ]
    if not slow:
        return
    saved_ns = breakdown.lost_ns(
        context.recording, context.tasks.row, lambda row: row in slow and row.above_target_ns
    )
    saves = np.flatnonzero(saved_ns)
    worst = max(slow, key=lambda row: row.above_target_ns or 0.0)
    unaligned = [row for row in slow if _is_misaligned(row, 1 + context.is_npu)]
    limit = f"peak {worst.peak.name} TFLOP/s" if worst.peak else "the peak"
    if worst.bound == "memory":
        limit = "peak memory bandwidth"
    verb = "operation runs" if len(slow) == 1 else "operations run"
    of_worst = breakdown.lost_ns(context.recording, context.tasks.row, lambda row: row is worst) > 0
    yield context.tasks_finding(
        f"{len(slow)} {verb} far below the roofline: {worst.name} {worst.shapes} "
        f"reaches {percent(worst.efficiency or 0.0)} of {limit}{_few_blocks(context, of_worst)}",
        saves,
        saved_ns[saves],
        names_place=False,
        advice=_better_shapes(context.is_npu, slow, unaligned),
        sure="likely",
        figures={"operations": len(slow), "misaligned": len(unaligned)},
        evidence=_roofline_evidence(slow),
    )


def _few_blocks(context: DeviceContext, selected: Flags) -> str:
    """Return a clause with the blocks of kernels that leave half of the device without work."""
    units = context.device_property("numSms")
    if units is None or "UPROF_GPU_TASKS" not in context.recording.source.tables:
        return ""
    blocks, length = blocks_per_processor(context), context.tasks.length_ns * selected
    few = length * ((blocks > 0) & (blocks < HALF))
    if few.sum() < HALF * length.sum():
        return ""
    count = round(blocks[few.argmax()] * units)
    return f"; its kernels have {plural(count, 'block')} for {units} {processors(context)}"


_PAD = "pad inner dimensions (channels of a convolution) to a multiple of 8 (16 for 8-bit types)"
_PAD_NPU = "pad inner dimensions to a multiple of 256 elements, at least of 16 (a cube block)"
_TRANSFORM = "pad lengths of transforms to products of 2, 3, 5 and 7"
_TUNE = {  # Advice by the class or the unit of an operation.
    names.CONVOLUTION: "use layout channels_last, torch.backends.cudnn.benchmark, a larger batch",
    names.ATTENTION: "compare the attention backends (torch.nn.attention.sdpa_kernel for SDPA)",
    "matrix": "use a larger batch, fusion or another kernel (max-autotune)",
    **dict.fromkeys(
        ("vector", "copy"),
        "check the layout (contiguous, channels_last), fuse it with others (torch.compile)",
    ),
}
_TUNE_NPU = "check shapes, format and dtype: larger batch, fusion, another tiling"


def _better_shapes(is_npu: bool, slow: list[RooflineRow], unaligned: list[RooflineRow]) -> str:
    """Return the advice for operations below the roofline, each with those that it is for."""
    hints: dict[str, list[str]] = {}
    for row in slow:
        assert row.cost is not None
        named = names.class_of_operation(row.name)
        kind = named if named in _TUNE else row.cost.unit
        lengths = {one: _fast_length(one) for one in row.cost.inner if kind == "vector"}
        bad = [f"{one:,} to {fast:,}" for one, fast in lengths.items() if fast != one]
        if row in unaligned:
            hint = _PAD_NPU if is_npu else _PAD
        elif bad:
            hint = f"{_TRANSFORM} ({' and '.join(bad)})"
        else:
            hint = _TUNE_NPU if is_npu else _TUNE[kind]
            head = max(row.cost.inner, default=0)
            if kind == names.ATTENTION and head & (head - 1) and not is_npu:
                hint += f"; some pad a head size of {head} to {1 << head.bit_length()}"
        hints.setdefault(hint, []).append(f"{row.name} {row.shapes}")
    if len(hints) == 1:
        return next(iter(hints))
    return "; ".join(f"{', '.join(rows[:2])}: {hint}" for hint, rows in hints.items())


MAX_LENGTH = 1 << 22  # Longer transforms need several passes anyway.


def _fast_length(size: int) -> int:
    """Return the next length of a Fourier transform without prime factors above 7."""
    length, rest = size - 1, 0
    while rest != 1 and 0 < size <= MAX_LENGTH:
        length += 1
        rest = length
        for factor in (2, 3, 5, 7):
            while rest % factor == 0:
                rest //= factor
    return max(length, size)


def _is_misaligned(row: RooflineRow, factor: int) -> bool:
    """Return True if a low-precision operation has an inner dimension that matrix units pad.

    Those of NPUs need a multiple of `factor` times as many elements as tensor cores.
    """
    if row.cost is None or row.cost.unit != "matrix" or row.cost.dtype not in ALIGNED:
        return False
    multiple = factor * ALIGNED[row.cost.dtype]
    return any(size > multiple and size % multiple for size in row.cost.inner)


def full_precision(context: DeviceContext) -> Iterator[Cause]:
    """Find fp64 kernels, and fp32 matrix kernels on a device with low-precision matrix units.

    Without shapes or peaks, the dtype is derived from kernel names, and the saving is unknown.
    """
    if lacks_roofline(context) is not None:
        yield from _full_precision_by_name(context)
        return
    device = breakdown.roofline_of(context.recording).devices.get(context.device or "")
    assert device is not None
    rows, total_ns = _rows(context)
    yield from _double_precision(context, device, rows, total_ns)
    low = device.matrix("bf16") or device.matrix("fp16")
    memory = device.memory_peak()
    # The rate of an Ascend's cube in fp32 is not published.
    full_without_peak = device.cores is not None

    def is_full(row: RooflineRow) -> bool:
        if row.cost is None or row.cost.unit != "matrix" or row.cost.dtype != "fp32":
            return False
        if row.cost.depthwise:
            return False
        if row.peak is None:
            return full_without_peak
        return row.peak.name.startswith("fp32")

    full = [row for row in rows if is_full(row)]
    # A program without 16-bit products needs fp32 tensors: HF32 calculates with them.
    mixed = any(
        one.cost and one.cost.unit == "matrix" and one.cost.dtype in _HALVES for one in rows
    )
    low = (None if mixed else device.hf32()) or low
    tasks, hf32 = (context.recording, context.tasks.row), _in_hf32(context)
    length_ns = breakdown.lost_ns(*tasks, lambda row: is_full(row) and row.total_ns)
    hf32_share = length_ns[hf32].sum() / max(length_ns.sum(), 1)
    full_ns = round(sum(row.total_ns for row in full) * (1 - hf32_share))
    if low is None or memory is None or not full or full_ns < FULL_SHARE * total_ns:
        return
    if low.uncertain and not device.cores:
        return
    matrix_rate, memory_rate = MATRIX_TARGET * low.rate, MEMORY_TARGET * memory.rate
    memory_rate *= 2 if low.name in _HALVES else 1

    def above_ns(row: RooflineRow) -> float:
        if row.cost is None or not is_full(row):
            return 0.0
        target_s = max(row.cost.flops / matrix_rate, row.cost.moved_bytes / memory_rate)
        return max(0.0, row.total_ns - target_s * 1e9)

    saved_ns = breakdown.lost_ns(*tasks, above_ns) * ~hf32 * (not low.uncertain)
    known_ns = sum(row.total_ns for row in rows if row.cost and row.cost.unit == "matrix")
    unknown_ns = context.busy_ns(matrix_kernels(context)) - known_ns
    least = "at least " * (unknown_ns > OPERATION_SHARE * total_ns)
    share = percent(full_ns / total_ns)
    text = f"full precision: fp32 matrix kernels take {least}{share} of kernel time; "
    if low.uncertain:
        text += f"the saving is unknown: {device.name}"
    else:
        text += f"the matrix units reach {low.rate / 1e12:,.0f} TFLOP/s in {low.name}"
    saves = np.flatnonzero(saved_ns)
    yield context.finding(
        float(saved_ns.sum()),
        text,
        advice=_lower_precision(device),
        sure="likely",
        change=context.saving(saves, saved_ns[saves]) if len(saves) else None,
        figures={"full_precision_ns": full_ns, "operations": len(full), "type": low.name},
        evidence=_roofline_evidence(full),
    )


_TF32 = "TF32: torch.set_float32_matmul_precision('high')"


def _double_precision(
    context: DeviceContext, device: Device, rows: list[RooflineRow], total_ns: int
) -> Iterator[Cause]:
    """Find fp64 kernels of a GPU; fp32 would move half of the bytes, and multiply in TF32."""
    double = [
        row for row in rows if row.cost and row.cost.unit != "copy" and row.cost.dtype == "fp64"
    ]
    double_ns = sum(row.total_ns for row in double)
    if context.is_npu or double_ns < FULL_SHARE * total_ns or not double:
        return

    def saved_ns(row: RooflineRow) -> float:
        if row.cost is None or row not in double:
            return 0.0
        cost = replace(row.cost, dtype="tf32", moved_bytes=row.cost.moved_bytes // 2)
        single_ns = breakdown.bound_on(structs.replace(row, cost=cost, peak=None), device)
        # It would reach the same share of the peaks.
        share = row.efficiency or MATRIX_TARGET
        return 0.0 if single_ns is None else max(0.0, row.total_ns - single_ns / share)

    lost_ns = breakdown.lost_ns(context.recording, context.tasks.row, saved_ns)
    saves = np.flatnonzero(lost_ns)
    yield context.tasks_finding(
        f"double precision: fp64 kernels take {percent(double_ns / total_ns)} of kernel time",
        saves,
        lost_ns[saves],
        kind="double_precision",
        advice="use float32 (.float(), dtype=torch.float32): NumPy's arrays and numbers make "
        "float64 tensors" + f"; multiply in {_TF32}" * (device.matrix("tf32") is not None),
        sure="likely",
        figures={"double_precision_ns": double_ns, "operations": len(double)},
        evidence=_roofline_evidence(double),
    )


def _in_hf32(context: DeviceContext) -> Flags:
    """Return a mask of the operators that may calculate in HF32."""
    texts = context.recording.source.rows("SELECT id FROM STRING_IDS WHERE value = 'YES'")
    eligible = context.task_column("COMPUTE_TASK_INFO", "hf32Eligible")
    return np.isin(eligible, [number for (number,) in texts])


def _full_precision_by_name(context: DeviceContext) -> Iterator[Cause]:
    selected = matrix_kernels(context)
    selected &= context.matches(context.kernel, names.FULL_PRECISION)
    share = context.kernel_share(selected)
    of_time = context.share(context.busy_ns(np.flatnonzero(selected)))
    device = known_devices(context.recording).get(context.device or "")
    if share < FULL_SHARE or (device and not (device.matrix("bf16") or device.matrix("fp16"))):
        return
    if of_time < MIN_TIME_SHARE:
        return
    yield context.finding(
        0,
        f"full precision: fp32 matrix kernels (identified by name) take {percent(share)} of kernel "
        f"time and {percent(of_time)} of the time; without shapes and peaks, only this upper bound "
        "of the saving is known",
        advice="use torch.autocast with float16 or bfloat16"
        if device is None
        else _lower_precision(device),
        sure="possible",
        figures={"kernels": int(selected.sum()), "share_of_compute": round(share, 4)},
        evidence=context.evidence(np.flatnonzero(selected)),
    )


def _lower_precision(device: Device) -> str:
    """Return what to try on a device, by the dtypes of its matrix units."""
    if device.cores is not None:
        if device.hf32() is None:
            return "use autocast with float16 and a GradScaler"
        return "use HF32 (torch.npu.matmul.allow_hf32 = True), or autocast with bfloat16 or float16"
    if device.matrix("bf16") is None:
        return "use torch.autocast with float16 and a GradScaler"
    tf32 = f", or {_TF32}" if device.matrix("tf32") else ""
    return f"use torch.autocast with bfloat16{tf32}"


def _roofline_evidence(rows: list[RooflineRow]) -> list[Evidence]:
    return [
        {
            "name": f"{row.name} {row.shapes}".strip(),
            "count": row.count,
            "total_ns": row.total_ns,
            "of_peak_percent": None if row.efficiency is None else round(100 * row.efficiency, 2),
            "peak": None if row.peak is None else f"{row.peak.name} {row.peak.rate / 1e12:,.4g}",
        }
        for row in sorted(rows, key=lambda row: -row.total_ns)[:EVIDENCE_ROWS]
    ]


NO_SHAPES = "operation shapes not recorded (torch.profiler: record_shapes=True)"


def lacks_roofline(context: DeviceContext) -> str | None:
    """Return a reason if operation shapes or the peaks of the device are unknown."""
    if not peaks.is_available(context.recording):
        return NO_SHAPES
    if known_devices(context.recording).get(context.device or "") is None:
        return f"peaks of {context.device} unknown, see [tool.uprof.devices]"
    return None


def lacks_precision(context: DeviceContext) -> str | None:
    """Return a reason if neither roofline nor names of kernels determine their dtypes."""
    missing = lacks_roofline(context)
    if missing is None or not (context.tasks.kind == KERNEL).any():
        return missing
    named = context.matches(context.kernel, names.NAMES_PRECISION)
    if not named.any():
        return missing  # Classifying all kernels takes longer.
    return None if (named & matrix_kernels(context)).any() else missing
