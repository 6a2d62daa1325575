"""Advice rules about kernels: attention, casts and copies, roofline, precision, occupancy.

Roofline figures are for the whole recording; the analyzed steps get their share, as far as kernels
run alone and the host waits for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Ints
from unified_prof.explain.advice.device_context import Cause, DeviceContext
from unified_prof.explain.advice.idle_segments import (
    EVIDENCE_ROWS,
    Flags,
    percent,
    plural,
    times,
)
from unified_prof.explain.roofline import breakdown, peaks
from unified_prof.explain.roofline.breakdown import MATRIX_TARGET, MEMORY_TARGET, RooflineRow
from unified_prof.explain.roofline.peaks import Device, known_devices
from unified_prof.explain.what_if import Selection
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.model import Evidence

PATTERN_SHARE = 0.05  # Minimum share of the time, matrix kernels included.
NEAR = 5  # Maximum kernels (scale, mask, cast, dropout) between a matrix kernel and the softmax.


def unfused_attention(context: DeviceContext) -> Iterator[Cause]:
    """Find matmul, softmax, matmul on one stream, with the kernels between them."""
    tasks = context.tasks
    kernels = np.flatnonzero(tasks.kind == KERNEL)
    kernels = kernels[np.argsort(tasks.stream[kernels], kind="stable")]
    stream = tasks.stream[kernels]

    def has_name(wanted: Callable[[str], bool]) -> Flags:
        result: Flags = context.matches(context.operator, wanted)[kernels]
        return result | context.matches(context.kernel, wanted)[kernels]

    fused = has_name(names.FUSED_ATTENTION)
    no_weights = has_name(names.is_log_softmax) | has_name(names.CHOOSES)
    softmax = has_name(names.SOFTMAX) & ~fused & ~no_weights
    product = has_name(names.is_product) & ~fused & ~softmax
    between, pattern = np.zeros(len(tasks), bool), np.zeros(len(tasks), bool)
    patterns = 0
    for at in np.flatnonzero(softmax).tolist():
        before = _nearest(product, stream, at, range(at - 1, at - 1 - NEAR, -1))
        after = _nearest(product, stream, at, range(at + 1, at + 1 + NEAR))
        if before is None or after is None or no_weights[before + 1 : after].any():
            continue
        patterns += 1
        between[kernels[before + 1 : after]] = True
        pattern[kernels[before : after + 1]] = True
    share = context.share(context.busy_ns(pattern))
    if share < PATTERN_SHARE:
        return
    context.explained[between] = True
    saved_ns = np.where(between, tasks.length_ns, 0.0)
    products = np.flatnonzero(pattern & ~between)
    saved_ns[products] = _score_traffic_ns(context, products)
    yield context.tasks_finding(
        f"unfused attention: {times(patterns)} ({percent(share)} of the time), scores "
        "are written to memory between two matmuls",
        np.flatnonzero(saved_ns),
        saved_ns[saved_ns != 0],
        advice="use torch.nn.functional.scaled_dot_product_attention or flash attention "
        "(torch_npu.npu_fusion_attention) if the attention weights are not needed",
        sure="likely",
        figures={"patterns": patterns, "share": round(share, 4)},
        evidence=context.evidence(np.flatnonzero(between)),
    )


def _score_traffic_ns(context: DeviceContext, products: Ints) -> NDArray[np.float64]:
    """Return the time of each matmul beyond its computation if memory limits it, else 0.

    A fused kernel does not write the scores to memory and read them again.
    """
    times_ns: dict[str, tuple[float, float]] = {}
    for row in _roofline_rows(context)[0]:
        if row.cost and row.peak and row.bound == "memory" and row.cost.unit == "matrix":
            total_ns, compute_ns = times_ns.get(row.name, (0.0, 0.0))
            compute_ns += row.cost.flops / (MATRIX_TARGET * row.peak.rate) * 1e9
            times_ns[row.name] = total_ns + row.total_ns, compute_ns
    texts = context.recording.work.labels.texts
    share = np.zeros(len(texts))
    for label in np.unique(context.operator[products]).tolist():
        total_ns, compute_ns = times_ns.get(texts[label], (0.0, 0.0))
        share[label] = max(0.0, 1 - compute_ns / total_ns) if total_ns else 0.0
    return share[context.operator[products]] * context.tasks.length_ns[products]


def _nearest(product: Flags, stream: Ints, at: int, where: range) -> int | None:
    for place in where:
        if not 0 <= place < len(product) or stream[place] != stream[at]:
            return None
        if product[place]:
            return place
    return None


COMPUTE_SHARE = 0.05  # Minimum share of kernel time (MindStudio advisor's threshold).


def casts_and_copies(context: DeviceContext) -> Iterator[Cause]:
    """Find copy, cast and transpose kernels outside the optimizer."""
    yield from _avoidable_kernels(
        context,
        "copies and casts",
        layout_kernels(context),
        advice="use one layout (channels_last) and one dtype; avoid .contiguous() and .to() "
        "inside the step",
    )


def fills(context: DeviceContext) -> Iterator[Cause]:
    """Find kernels that set memory to a constant."""
    yield from _avoidable_kernels(
        context,
        "fills with zeros or another constant",
        context.matches(context.operator, names.FILL_OPERATION),
        advice="use zero_grad(set_to_none=True), torch.empty instead of torch.zeros where all of "
        "it is written, and keep constant tensors",
    )


def layout_kernels(context: DeviceContext) -> Flags:
    """Return a mask of copy, cast and transpose kernels outside the optimizer."""
    layout: Flags = context.matches(context.operator, names.LAYOUT_OPERATION)
    layout |= context.matches(context.kernel, names.moves_only)
    layout &= ~context.matches(context.operator, names.NPU_FORMAT_OPERATOR)
    layout &= ~context.in_optimizer
    return layout


def format_conversions(context: DeviceContext) -> Iterator[Cause]:
    """Find TransData, Cast and similar kernels on an NPU."""
    yield from _avoidable_kernels(
        context,
        "format conversions",
        context.matches(context.operator, names.NPU_FORMAT_OPERATOR),
        advice="keep one format and dtype between operators: "
        "torch.npu.config.allow_internal_format = False, convert weights once, cast "
        "before the loop",
    )


def _avoidable_kernels(
    context: DeviceContext, title: str, selected: Flags, *, advice: str
) -> Iterator[Cause]:
    """Find kernels that could be avoided altogether."""
    selected = selected & (context.tasks.kind == KERNEL)
    share = _kernel_share(context, selected)
    if share < COMPUTE_SHARE:
        return
    rows = np.flatnonzero(selected)
    yield context.tasks_finding(
        f"{title}: {plural(len(rows), 'kernel')}, {percent(share)} of kernel time",
        rows,
        advice=advice,
        sure="likely",
        figures={"kernels": len(rows), "share_of_compute": round(share, 4)},
    )


# Minimum slowdown, minimum number of steps on each side of it, and the share of kernel time in
# kernels that every step runs equally often.
SLOWDOWN, MIN_SIDE, STEADY_SHARE = 0.05, 3, 0.5


def kernels_slow_down(context: DeviceContext) -> Iterator[Cause]:
    """Find a step from which on the same kernels take longer, as on a device that throttles."""
    rows, steps = np.flatnonzero(context.tasks.kind == KERNEL), context.windows
    if len(context.steps) < 2 * MIN_SIDE or not len(rows):
        return
    step = np.searchsorted(steps.start_ns, context.tasks.start_ns[rows], side="right") - 1
    name, number = np.unique(context.kernel[rows], return_inverse=True)
    shape = (len(name), len(steps.start_ns))
    cell, length = number * shape[1] + step, context.tasks.length_ns[rows]
    count = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    total = np.bincount(cell, length, minlength=shape[0] * shape[1]).reshape(shape)
    steady = (count == count[:, :1]).all(axis=1)
    by_step = total[steady].sum(axis=0)
    if by_step.sum() < STEADY_SHARE * total.sum():
        return
    # The first step of the slow part: all steps from it on are longer than all before it.
    highest, lowest = np.maximum.accumulate(by_step), np.minimum.accumulate(by_step[::-1])[::-1]
    rise = lowest[MIN_SIDE : len(by_step) - MIN_SIDE + 1] - highest[MIN_SIDE - 1 : -MIN_SIDE]
    first = MIN_SIDE + int(rise.argmax())
    before, after = (np.median(part, axis=1) for part in np.split(total, [first], axis=1))
    fast, slow = np.split(by_step, [first])
    # Steps of varying size differ as much from each other as from those of the other side.
    if 2 * max(np.ptp(fast), np.ptp(slow)) > np.median(slow) - np.median(fast):
        return
    longer = np.where(steady & (before > 0), after / np.maximum(before, 1), 1.0)
    slower = longer > 1 + SLOWDOWN
    if before[slower].sum() < STEADY_SHARE * before[steady].sum():
        return
    late = slower[number] & (step >= first)
    rows, lost = rows[late], length[late] * (1 - 1 / longer[number[late]])
    factor = after[slower].sum() / before[slower].sum()
    yield context.tasks_finding(
        f"slower kernels: from step {context.steps[first]} on, the same kernels take "
        f"{factor:.2f} times as long",
        rows,
        lost,
        advice="check clocks, temperature and power limit (nvidia-smi -q -d PERFORMANCE, npu-smi "
        "info), other programs on the device, and whether inputs become larger",
        sure="likely",
        figures={"factor": round(factor, 4), "first_slow_step": context.steps[first]},
    )


def _kernel_share(context: DeviceContext, selected: Flags) -> float:
    """Return the share of kernel time of some tasks."""
    return context.busy_ns(selected) / context.compute_ns if context.compute_ns else 0.0


OPERATION_SHARE = 0.05  # Minimum share of kernel time of an operation.
EFFICIENCY = 0.4  # Maximum roofline efficiency; a plain matmul of a thousand rows reaches more.
MIN_OPERATION_NS = 20_000  # Shorter operations are dominated by launch and tail effects.
FULL_SHARE = 0.10  # Minimum share of kernel time of fp32 matmuls, convolutions and attention.
# Alignment of inner dimensions for tensor cores, in elements.
ALIGNED = {"fp16": 8, "bf16": 8, "fp8": 16, "int8": 16}

_SHAPE = re.compile(r"\[([\d,]+)\]")


def _saving_of_all(context: DeviceContext, saved_ns: float) -> Selection:
    """Return the change by which all kernels together take less time.

    Roofline rows cover the whole recording, so each kernel saves the same share.
    """
    work = context.recording.work
    kernels = work.kind == KERNEL
    if context.device_id is not None:
        kernels &= work.device == context.device_id
    total_ns = int(work.duration_ns[kernels].sum())
    rows = np.flatnonzero(context.tasks.kind == KERNEL)
    length = context.tasks.length_ns[rows]
    return context.saving(rows, length * (saved_ns / total_ns if total_ns else 0.0))


def _roofline_rows(context: DeviceContext) -> tuple[list[RooflineRow], int]:
    """Return the roofline rows of the device and their total time."""
    rows = [
        row
        for row in breakdown.roofline_of(context.recording).rows
        if row.kind in ("operation", "kernel")
        and (context.device_id is None or row.device == context.device)
    ]
    return rows, sum(row.total_ns for row in rows)


def inefficient_operation(context: DeviceContext) -> Iterator[Cause]:
    """Find expensive operations that run far below the roofline."""
    rows, total_ns = _roofline_rows(context)
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
    saved_ns = sum(row.above_target_ns or 0.0 for row in slow)
    worst = max(slow, key=lambda row: row.above_target_ns or 0.0)
    unaligned = [row for row in slow if is_misaligned(row)]
    limit = f"peak {worst.peak.name} TFLOP/s" if worst.peak else "the peak"
    if worst.bound == "memory":
        limit = "peak memory bandwidth"
    verb = "operation runs" if len(slow) == 1 else "operations run"
    yield context.finding(
        saved_ns,
        f"{len(slow)} {verb} far below the roofline: {worst.name} {worst.shapes} "
        f"reaches {percent(worst.efficiency or 0.0)} of {limit}",
        advice="pad inner dimensions to a multiple of 8 (16 for 8-bit types)"
        if unaligned
        else "check shapes, layout (channels_last) and dtype: larger batch, fusion, another "
        "kernel (torch.backends.cudnn.benchmark, max-autotune)",
        sure="likely",
        change=_saving_of_all(context, saved_ns),
        figures={"operations": len(slow), "misaligned": len(unaligned)},
        evidence=_roofline_evidence(slow),
    )


def is_misaligned(row: RooflineRow) -> bool:
    """Return True if a low-precision matmul has an inner dimension that tensor cores cannot use."""
    if row.cost is None or row.cost.unit != "matrix" or row.cost.dtype not in ALIGNED:
        return False
    sizes = [
        [int(size) for size in shape.split(",") if size] for shape in _SHAPE.findall(row.shapes)
    ]
    matrices = [shape for shape in sizes if len(shape) > 1]
    return any(size % ALIGNED[row.cost.dtype] for shape in matrices for size in shape[-2:])


def full_precision(context: DeviceContext) -> Iterator[Cause]:
    """Find fp32 matrix kernels on a device with low-precision matrix units.

    Without shapes or peaks, the dtype is derived from kernel names, and the saving is unknown.
    """
    if lacks_roofline(context) is not None:
        yield from _full_precision_by_name(context)
        return
    device = breakdown.roofline_of(context.recording).devices.get(context.device or "")
    assert device is not None
    low = device.matrix("bf16") or device.matrix("fp16")
    memory = device.memory_peak()
    rows, total_ns = _roofline_rows(context)
    full = [
        row
        for row in rows
        if row.cost is not None
        and row.cost.unit == "matrix"
        and row.cost.dtype == "fp32"
        and row.peak is not None
        and row.peak.name.startswith("fp32")
    ]
    full_ns = sum(row.total_ns for row in full)
    if low is None or low.uncertain or memory is None or not full:
        return
    if full_ns < FULL_SHARE * total_ns:
        return
    saved = 0.0
    for row in full:
        assert row.cost is not None
        compute_ns = row.cost.flops / (MATRIX_TARGET * low.rate) * 1e9
        memory_ns = row.cost.moved_bytes / 2 / (MEMORY_TARGET * memory.rate) * 1e9
        saved += max(0.0, row.total_ns - max(compute_ns, memory_ns))
    yield context.finding(
        saved,
        f"full precision: fp32 matrix kernels take {percent(full_ns / total_ns)} of kernel time; "
        f"the matrix units reach {low.rate / 1e12:,.0f} TFLOP/s in {low.name}",
        advice=_lower_precision(device),
        sure="likely",
        change=_saving_of_all(context, saved),
        figures={"full_precision_ns": full_ns, "operations": len(full), "type": low.name},
        evidence=_roofline_evidence(full),
    )


def _full_precision_by_name(context: DeviceContext) -> Iterator[Cause]:
    selected = matrix_kernels(context)
    selected &= context.matches(context.kernel, names.FULL_PRECISION)
    share = _kernel_share(context, selected)
    device = known_devices(context.recording).get(context.device or "")
    if share < FULL_SHARE or (device and not (device.matrix("bf16") or device.matrix("fp16"))):
        return
    yield context.finding(
        0,
        f"full precision: fp32 matrix kernels (identified by name) take {percent(share)} of kernel "
        "time; the saving is unknown without shapes and peaks",
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
        return "use autocast with bfloat16 or float16, or HF32 (torch.npu.matmul.allow_hf32)"
    if device.matrix("bf16") is None:
        return "use torch.autocast with float16 and a GradScaler"
    tf32 = ", or TF32: torch.set_float32_matmul_precision('high')" if device.matrix("tf32") else ""
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


def lacks_roofline(context: DeviceContext) -> str | None:
    """Return a reason if operation shapes or the peaks of the device are unknown."""
    if not peaks.is_available(context.recording):
        return "operation shapes not recorded (torch.profiler: record_shapes=True)"
    if known_devices(context.recording).get(context.device or "") is None:
        return f"peaks of {context.device} unknown, see [tool.uprof.devices]"
    return None


def lacks_precision(context: DeviceContext) -> str | None:
    """Return a reason if neither roofline nor names of kernels determine their dtypes."""
    missing = lacks_roofline(context)
    if missing is None or not (context.tasks.kind == KERNEL).any():
        return missing
    named = context.matches(context.kernel, names.NAMES_PRECISION)
    return None if (named & matrix_kernels(context)).any() else missing


_PARTS = 1_000_000  # Fractions are read from the database as integers in this unit.
# Minimum share of the time of kernels with fewer blocks than multiprocessors.
LOW_OCCUPANCY_SHARE = 0.05


def low_occupancy(context: DeviceContext) -> Iterator[Cause]:
    """Find kernels with fewer blocks than multiprocessors."""
    tasks = context.tasks
    share_of_units = f"CAST(blocksPerSm * {_PARTS} AS INTEGER)"
    blocks = context.task_column("UPROF_GPU_TASKS", share_of_units) / _PARTS
    few = (blocks > 0) & (blocks < 1) & (tasks.kind == KERNEL)
    few &= ~context.matches(context.kernel, names.has_few_blocks)
    few &= ~context.matches(context.operator, names.has_few_blocks)
    rows = np.flatnonzero(few)
    kernel_ns = context.busy_ns(rows)
    lost = tasks.length_ns[rows] * (1 - blocks[rows])
    if context.share(kernel_ns) < LOW_OCCUPANCY_SHARE:
        return
    yield context.tasks_finding(
        f"low occupancy: {plural(len(rows), 'kernel')} with fewer blocks than multiprocessors, "
        f"{percent(context.share(kernel_ns))} of the time",
        rows,
        lost,
        advice="increase parallelism: larger batch, fusion, torch.compile, or independent "
        "kernels on several streams",
        sure="possible",
        figures={"kernels": len(rows), "kernel_ns": kernel_ns},
    )


def on_ai_cpu(context: DeviceContext) -> Flags:
    """Return a mask of the kernels that ran on an AI CPU."""
    tasks, row = context.recording.tasks, context.task_row
    slow = np.array([names.ON_AI_CPU(text) for text in [*tasks.type_texts, ""]])
    result: Flags = (context.tasks.kind == KERNEL) & (row >= 0)
    result &= slow[np.append(tasks.type, -1)[row]]
    return result


def matrix_kernels(context: DeviceContext) -> Flags:
    """Return a mask of matmul, convolution and attention kernels."""
    result: Flags = context.in_class(*names.MATRIX) & (context.tasks.kind == KERNEL)
    return result


def highest_ratio(context: DeviceContext, counters: re.Pattern[str]) -> NDArray[np.float64]:
    """Return the maximum of given pipe ratios for each task; NaN if not recorded."""
    table = context.recording.source.integers(
        context.recording.task_counters,
        {"id": "globalTaskId", "name": "name", "value": f"CAST(value * {_PARTS} AS INTEGER)"},
    )
    ids = np.unique(table["name"])
    texts = context.recording.strings.texts(ids.tolist())
    ratios = ids[[bool(counters.match(text or "")) for text in texts]]
    selected = np.isin(table["name"], ratios) & (table["value"] != MISSING)
    if not selected.any():
        return np.full(len(context.tasks), np.nan)
    keys, number = np.unique(table["id"][selected], return_inverse=True)
    highest = np.zeros(len(keys), np.int64)
    np.maximum.at(highest, number, table["value"][selected])
    row = context.table_row(keys)
    return np.where(row >= 0, highest[row] / _PARTS, np.nan)
