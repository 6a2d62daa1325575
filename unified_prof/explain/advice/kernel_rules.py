"""Advice rules about kernels: attention, casts and copies, roofline, precision, occupancy.

Roofline figures are for the whole recording; the analyzed steps get their share, as far as kernels
run alone and the host waits for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Lookup
from unified_prof.arrays.types import Ints
from unified_prof.explain import kernel_classes
from unified_prof.explain.advice.device_context import Case, Flags
from unified_prof.explain.advice.idle_rows import LEAST_SHARE, ROWS, percent
from unified_prof.explain.roofline import breakdown
from unified_prof.explain.roofline.breakdown import MATRIX_TARGET, MEMORY_TARGET, Placed
from unified_prof.explain.roofline.peaks import Device, known_devices
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.framework import OTHER_PASS
from unified_prof.recording.model import Evidence, Finding
from unified_prof.recording.recording import Recording
from unified_prof.sqlite.integer_columns import MISSING

UNFUSED_ATTENTION = "unfused_attention"

# Minimum share of the time, matrix kernels included.
PATTERN_SHARE = 0.05
# Maximum kernels (scale, mask, cast, dropout) between a matrix kernel and the softmax.
NEAR = 5

_PRODUCT = re.compile(r"bmm|matmul|batch_?mat|gemm|cijk_|nvjet", re.IGNORECASE)
_SOFTMAX = re.compile("softmax", re.IGNORECASE)
# A fused loss kernel lists all its parts in its name, as does the online softmax of attention; the
# fifth template argument of torch's kernel for short rows marks log_softmax.
_OF_LOSS = re.compile(
    r"log_?softmax|nll_?loss|cross_?entropy|softmax_warp_\w+<[^<>]*,\s*\d+,\s*(?:true|\(bool\)1)",
    re.IGNORECASE,
)
# Kernels on probabilities of classes, experts or tokens, which do not occur in attention.
_NO_WEIGHTS = re.compile(
    rf"{_OF_LOSS.pattern}|top_?k|sort|gating|routing|multinomial|arg_?max|categorical",
    re.IGNORECASE,
)
_FUSED = re.compile(r"flash|fmha|efficient_attention|FlashAttention", re.IGNORECASE)


def unfused_attention(case: Case) -> Iterator[Finding]:
    """Find matmul, softmax, matmul on one stream, with the kernels between them."""
    kernels = np.flatnonzero(case.pieces.kind == KERNEL)
    kernels = kernels[np.argsort(case.pieces.stream[kernels], kind="stable")]
    stream = case.pieces.stream[kernels]

    def called(pattern: re.Pattern[str]) -> Flags:
        found: Flags = case.named(case.operator, pattern)[kernels]
        return found | case.named(case.kernel, pattern)[kernels]

    fused = called(_FUSED)
    no_weights = called(_NO_WEIGHTS)
    softmax = called(_SOFTMAX) & ~fused & ~no_weights
    product = called(_PRODUCT) & ~fused & ~softmax
    between = np.zeros(len(case.pieces), bool)
    whole = np.zeros(len(case.pieces), bool)
    patterns = 0
    for at in np.flatnonzero(softmax).tolist():
        before = _nearest(product, stream, at, range(at - 1, at - 1 - NEAR, -1))
        after = _nearest(product, stream, at, range(at + 1, at + 1 + NEAR))
        if before is None or after is None or no_weights[before + 1 : after].any():
            continue
        patterns += 1
        between[kernels[before + 1 : after]] = True
        whole[kernels[before : after + 1]] = True
    cost = case.gain(between) if patterns else 0
    share = case.share(case.within(case.pieces.start_ns[whole], case.pieces.end_ns[whole]).total_ns)
    if share < PATTERN_SHARE or case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        UNFUSED_ATTENTION,
        cost,
        f"unfused attention: {patterns:,} times ({percent(share)} of the time), scores go "
        "through memory between two matmuls",
        advice="use torch.nn.functional.scaled_dot_product_attention or flash attention "
        "(torch_npu.npu_fusion_attention) if the attention weights are not needed",
        sure="likely",
        figures={"patterns": patterns, "share": round(share, 4)},
        evidence=case.rows(np.flatnonzero(between)),
    )


def _nearest(product: Flags, stream: Ints, at: int, where: range) -> int | None:
    for place in where:
        if not 0 <= place < len(product) or stream[place] != stream[at]:
            return None
        if product[place]:
            return place
    return None


CASTS_AND_COPIES = "casts_and_copies"
FORMAT_CONVERSIONS = "format_conversions"

# Minimum share of kernel time (MindStudio advisor's threshold).
COMPUTE_SHARE = 0.05

_OPERATIONS = re.compile(r"^aten::(?:to|_to_copy|copy_|contiguous|clone)$")
# Operations of a fused Triton kernel that only move data; one other operation makes it compute.
_LAYOUT_OPERATIONS = (
    "unsafe_view|view|reshape|permute|transpose|t|unsqueeze|squeeze|expand|as_strided|slice|select"
    "|split_with_sizes|split|unbind|clone|to_copy|copy|cat|stack|empty_like|constant_pad_nd|pad|flip"
)
_KERNELS = re.compile(
    rf"^triton_\w+?_fused(?:_+(?:{_LAYOUT_OPERATIONS}))+(?:_\d+)?$"
    r"|^(?!triton_).*(?:direct_copy_kernel|transpose_|nchwto|nhwcto|tonhwc|tonchw|convert_tensor)",
    re.IGNORECASE,
)
_FORMATS = re.compile(r"^(?:TransData|Cast|Transpose|TransposeD|StridedSlice\w*)$")


def _share(case: Case, chosen: Flags) -> float:
    compute = case.compute_ns
    own = case.within(case.pieces.start_ns[chosen], case.pieces.end_ns[chosen]).total_ns
    return own / compute if compute else 0.0


def casts_and_copies(case: Case) -> Iterator[Finding]:
    """Find copy, cast and transpose kernels outside the optimizer."""
    chosen = (case.pieces.kind == KERNEL) & ~case.named(case.operator, _FORMATS)
    chosen &= case.named(case.operator, _OPERATIONS) | case.named(case.kernel, _KERNELS)
    if case.recording.framework is not None:
        chosen &= case.recording.work.launches.passes[case.pieces.row] != OTHER_PASS
    share = _share(case, chosen)
    cost = case.gain(chosen)
    if share < COMPUTE_SHARE or case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        CASTS_AND_COPIES,
        cost,
        f"copies and casts: {int(chosen.sum()):,} kernels, {percent(share)} of kernel time",
        advice="use one layout (channels_last) and one dtype; avoid .contiguous() and .to() "
        "inside the step",
        sure="likely",
        figures={"kernels": int(chosen.sum()), "share_of_compute": round(share, 4)},
        evidence=case.rows(np.flatnonzero(chosen)),
    )


def format_conversions(case: Case) -> Iterator[Finding]:
    """Find TransData, Cast and similar kernels on an NPU."""
    chosen = (case.pieces.kind == KERNEL) & case.named(case.operator, _FORMATS)
    share = _share(case, chosen)
    cost = case.gain(chosen)
    if share < COMPUTE_SHARE or case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        FORMAT_CONVERSIONS,
        cost,
        f"format conversions: {int(chosen.sum()):,} kernels, {percent(share)} of kernel time",
        advice="keep one format and dtype between operators: "
        "torch.npu.config.allow_internal_format = False, convert weights once, cast "
        "before the loop",
        sure="likely",
        figures={"kernels": int(chosen.sum()), "share_of_compute": round(share, 4)},
        evidence=case.rows(np.flatnonzero(chosen)),
    )


INEFFICIENT_OPERATION = "inefficient_operation"
FULL_PRECISION = "full_precision"

# Minimum share of kernel time of an operation.
OPERATION_SHARE = 0.05
# Maximum roofline efficiency; a plain matmul of a thousand rows reaches more.
EFFICIENCY = 0.4
# Shorter operations are dominated by launch and tail effects.
LEAST_NS = 20_000
# Minimum share of kernel time of fp32 matmuls, convolutions and attention.
FULL_SHARE = 0.10
# Alignment of inner dimensions for tensor cores, in elements.
ALIGNED = {"fp16": 8, "bf16": 8, "fp8": 16, "int8": 16}

_SHAPE = re.compile(r"\[([\d,]+)\]")


def _part(case: Case) -> float:
    """Return the share of kernel time that could be saved in the analyzed steps."""
    work = case.recording.work
    mine = work.kind == KERNEL
    if case.number is not None:
        mine &= work.device == case.number
    whole = int(work.duration_ns[mine].sum())
    kernels = np.flatnonzero(case.pieces.kind == KERNEL)
    return case.gains(kernels, case.pieces.length_ns[kernels]) / whole if whole else 0.0


def _rows(case: Case) -> tuple[list[Placed], int]:
    """Return the operations of this device and their total time."""
    found = breakdown.of(case.recording).rows
    rows = [one for one in found if one.kind in ("operation", "kernel")]
    if case.number is not None:
        rows = [one for one in rows if one.device == case.device]
    return rows, sum(one.total_ns for one in rows)


def inefficient_operation(case: Case) -> Iterator[Finding]:
    """Find expensive operations that run far below the roofline."""
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
        f"{len(slow)} operations run far below the roofline: {worst.name} {worst.shapes} "
        f"reaches {percent(worst.efficiency or 0.0)} of {limit}",
        advice="pad inner dimensions to a multiple of 8 (16 for 8-bit types)"
        if odd
        else "check shapes, layout (channels_last) and dtype: larger batch, fusion, another "
        "kernel (torch.backends.cudnn.benchmark, max-autotune)",
        sure="likely",
        figures={"operations": len(slow), "misaligned": len(odd), "part": round(part, 4)},
        evidence=_evidence(slow),
    )


def misaligned(one: Placed) -> bool:
    """Return True if a low-precision matmul has an inner dimension that tensor cores cannot use."""
    if one.cost is None or one.cost.unit != "matrix" or one.cost.dtype not in ALIGNED:
        return False
    sizes = [
        [int(size) for size in shape.split(",") if size] for shape in _SHAPE.findall(one.shapes)
    ]
    matrices = [shape for shape in sizes if len(shape) > 1]
    return any(size % ALIGNED[one.cost.dtype] for shape in matrices for size in shape[-2:])


def full_precision(case: Case) -> Iterator[Finding]:
    """Find fp32 matrix kernels on a device with low-precision matrix units."""
    device = breakdown.of(case.recording).devices.get(case.device or "")
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
        f"fp32 matrix kernels take {percent(total / whole)} of kernel time; the matrix "
        f"units reach {short.rate / 1e12:,.0f} TFLOP/s in {short.name}",
        advice=_shorter(device),
        sure="likely",
        figures={"full_precision_ns": total, "operations": len(full), "type": short.name},
        evidence=_evidence(full),
    )


def _shorter(device: Device) -> str:
    """Return what to try on a device, by the dtypes of its matrix units."""
    if device.cores is not None:
        return "use autocast with bfloat16 or float16, or HF32 (torch.npu.matmul.allow_hf32)"
    if device.matrix("bf16") is None:
        return "use torch.autocast with float16 and a GradScaler"
    tf32 = ", or TF32: torch.set_float32_matmul_precision('high')" if device.matrix("tf32") else ""
    return f"use torch.autocast with bfloat16{tf32}"


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
    """Return a reason if the peaks of the device are unknown."""
    if known_devices(case.recording).get(case.device or "") is None:
        return f"peaks of {case.device} unknown, see [tool.uprof.devices]"
    return None


LOW_OCCUPANCY = "low_occupancy"

# Minimum share of the time of kernels with fewer blocks than multiprocessors.
KERNELS_SHARE = 0.05
_PARTS = 1_000_000

# These kernels have few blocks by design: matmul, attention, collectives, persistent kernels.
_ON_PURPOSE = re.compile(
    r"gemm|cutlass|nvjet|cijk_|tensorop|splitk|matmul|conv|wgrad|dgrad|fprop|flash|fmha|attention"
    r"|nccl|rccl|persistent|cooperative",
    re.IGNORECASE,
)


def low_occupancy(case: Case) -> Iterator[Finding]:
    """Find kernels with fewer blocks than multiprocessors."""
    recording, pieces = case.recording, case.pieces
    found = recording.source.integers(
        "UPROF_GPU_TASKS",
        {"id": "globalTaskId", "blocks": f"CAST(blocksPerSm * {_PARTS} AS INTEGER)"},
    )
    task = recording.work.task[pieces.row]
    row = Lookup(found["id"]).rows(np.append(recording.tasks.identity, MISSING)[task])
    blocks = np.append(found["blocks"], MISSING)[row] / _PARTS
    tiny = (row >= 0) & (blocks > 0) & (blocks < 1) & (pieces.kind == KERNEL)
    tiny &= ~case.named(case.kernel, _ON_PURPOSE) & ~case.named(case.operator, _ON_PURPOSE)
    rows = np.flatnonzero(tiny)
    total = case.within(pieces.start_ns[rows], pieces.end_ns[rows]).total_ns
    lost = pieces.length_ns[rows] * (1 - blocks[rows])
    cost = case.gains(rows, lost)
    if case.share(total) < KERNELS_SHARE or case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        LOW_OCCUPANCY,
        cost,
        f"low occupancy: {len(rows):,} kernels have fewer blocks than multiprocessors and "
        f"take {percent(case.share(total))} of the time",
        advice="increase parallelism: larger batch, fusion, torch.compile, or independent "
        "kernels on several streams",
        sure="possible",
        figures={"kernels": len(rows), "kernel_ns": total},
        evidence=case.rows(rows, lost.astype(np.int64)),
    )


_AI_CPU = re.compile(r"ai_?cpu", re.IGNORECASE)


def on_ai_cpu(case: Case) -> Flags:
    """Return a mask of the kernels that ran on an AI CPU."""
    tasks, pieces = case.recording.tasks, case.pieces
    slow = np.array([bool(_AI_CPU.search(text or "")) for text in [*tasks.type_texts, ""]])
    task = case.recording.work.task[pieces.row]
    found: Flags = (pieces.kind == KERNEL) & (task >= 0) & slow[np.append(tasks.type, -1)[task]]
    return found


def computing(case: Case) -> Flags:
    """Return a mask of matmul, convolution and attention kernels."""
    texts = case.recording.work.labels.texts
    bound = (kernel_classes.MATMUL, kernel_classes.CONVOLUTION, kernel_classes.ATTENTION)
    pairs, number = np.unique(np.stack([case.kernel, case.operator]), axis=1, return_inverse=True)
    told = [
        kernel_classes.class_of(KERNEL, texts[kernel], texts[operator]) in bound
        for kernel, operator in pairs.T.tolist()
    ]
    found: Flags = np.array(told, bool)[number.reshape(-1)]
    found &= case.pieces.kind == KERNEL
    return found


_kept: WeakKeyDictionary[Recording, dict[str, NDArray[np.int64]]] = WeakKeyDictionary()
# Maximum number of rows to cache for the next rule; more are read again.
_MOST_KEPT = 500_000


def _counters(recording: Recording) -> dict[str, NDArray[np.int64]]:
    if (kept := _kept.get(recording)) is not None:
        return kept
    found: dict[str, NDArray[np.int64]] = recording.source.integers(
        "TASK_PMU_INFO",
        {"id": "globalTaskId", "name": "name", "value": f"CAST(value * {_PARTS} AS INTEGER)"},
    )
    if len(found["id"]) <= _MOST_KEPT:
        _kept[recording] = found
    return found


def highest_ratio(case: Case, counters: re.Pattern[str]) -> NDArray[np.float64]:
    """Return the maximum of given pipe ratios for each task; NaN if not recorded."""
    found = _counters(case.recording)
    ids = np.unique(found["name"])
    texts = case.recording.strings.texts(ids.tolist())
    ratios = ids[[bool(counters.match(text or "")) for text in texts]]
    chosen = np.isin(found["name"], ratios) & (found["value"] != MISSING)
    identity, value = found["id"][chosen], found["value"][chosen]
    pieces, tasks = case.pieces, case.recording.tasks
    if not len(identity):
        return np.full(len(pieces), np.nan)
    keys, number = np.unique(identity, return_inverse=True)
    top = np.zeros(len(keys), np.int64)
    np.maximum.at(top, number, value)
    task = case.recording.work.task[pieces.row]
    place = np.where(task >= 0, Lookup(keys).rows(np.append(tasks.identity, -1)[task]), -1)
    ratio: NDArray[np.float64] = np.where(place >= 0, top[place] / _PARTS, np.nan)
    return ratio
