"""Advice rules about kernels: attention, casts and copies, masks, occupancy, fusion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints
from unified_prof.arrays.intervals import NONE
from unified_prof.explain.advice.device_context import (
    Cause,
    DeviceContext,
    blocks_per_processor,
    matrix_kernels,
    processors,
)
from unified_prof.explain.advice.idle_segments import (
    COSTLY,
    LESS_RECOMPUTATION,
    TAIL_NS,
    Flags,
    costly_name,
    percent,
    plural,
    times,
)
from unified_prof.explain.advice.optimizer_rules import repeated
from unified_prof.explain.roofline.breakdown import MATRIX_TARGET, RooflineRow, lost_ns
from unified_prof.explain.self_time import recomputed
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.framework import BACKWARD, FORWARD
from unified_prof.recording.steps import FOREVER

PATTERN_SHARE = 0.05  # Minimum share of the time, matrix kernels included.
NEAR = 5  # Maximum kernels (scale, mask, cast, dropout) between a matrix kernel and the softmax.


def unfused_attention(context: DeviceContext) -> Iterator[Cause]:
    """Find matmul, softmax, matmul on one stream, with the kernels between them."""
    tasks = context.tasks
    kernels = np.flatnonzero(tasks.kind == KERNEL)
    kernels = kernels[np.argsort(tasks.stream[kernels], kind="stable")]
    stream = tasks.stream[kernels]

    fused = context.has_name(names.FUSED_ATTENTION)[kernels]
    no_weights = (context.has_name(names.is_log_softmax) | context.has_name(names.CHOOSES))[kernels]
    softmax = context.has_name(names.SOFTMAX)[kernels] & ~fused & ~no_weights
    if not softmax.any():
        return  # Finding products takes a tenth of the time of a report.
    products = np.flatnonzero(context.has_name(names.is_product)[kernels] & ~fused & ~softmax)
    # The nearest products on the same stream, -1 if there is none.
    at = np.flatnonzero(softmax)
    place, ends = np.searchsorted(products, at), np.append(products, -1)
    before, after = ends[place - 1], ends[place]
    near = (np.minimum(before, after) >= 0) & (np.maximum(at - before, after - at) <= NEAR)
    near &= (stream[before] == stream[at]) & (stream[after] == stream[at])
    layers = context.matches(context.operator, names.LAYER_PRODUCT)[kernels]
    near &= ~(layers[before] | layers[after])  # As around the softmax of a router of experts.
    between, pattern = np.zeros(len(tasks), bool), np.zeros(len(tasks), bool)
    patterns = 0
    for first, last in zip(before[near].tolist(), after[near].tolist(), strict=True):
        if no_weights[first + 1 : last].any():
            continue
        patterns += 1
        between[kernels[first + 1 : last]] = True
        pattern[kernels[first : last + 1]] = True
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
        advice="use torch.nn.functional.scaled_dot_product_attention or "
        f"{'torch_npu.npu_fusion_attention' if context.is_npu else 'flash attention'} if the "
        "attention weights are not needed",
        sure="likely",
        figures={"patterns": patterns, "share": round(share, 4)},
        evidence=context.evidence(np.flatnonzero(between)),
    )


def _score_traffic_ns(context: DeviceContext, products: Ints) -> NDArray[np.float64]:
    """Return the time of each matmul beyond its computation if memory limits it, else 0.

    A fused kernel does not write the scores to memory and read them again.
    """

    def traffic_ns(row: RooflineRow) -> float:
        if row.cost and row.peak and row.bound == "memory" and row.cost.unit == "matrix":
            compute_ns = row.cost.flops / (MATRIX_TARGET * row.peak.rate) * 1e9
            return max(0.0, row.total_ns - compute_ns)
        return 0.0

    return lost_ns(context.recording, context.tasks.row[products], traffic_ns)


COMPUTE_SHARE = 0.03  # Minimum share of kernel time.


def casts_and_copies(context: DeviceContext) -> Iterator[Cause]:
    """Find copy, cast and transpose kernels outside the optimizer.

    Without a cast to fp32, kernels next to it move half of the bytes.
    """
    (casts, full), left = _precisions(context), ~context.explained & ~context.in_optimizer
    halved = np.zeros(len(left), bool)
    if casts.any():
        rows, chain = _chains(context, (context.in_class(*_FUSIBLE) & full | casts) & left)
        halved[rows] = full[rows] & (np.bincount(chain, casts[rows], minlength=1)[chain] > 0)
    yield from _avoidable_kernels(
        context,
        "copies and casts",
        layout_kernels(context) & left,
        halved=halved,
        advice="use one layout (channels_last) and one dtype; avoid .contiguous() and .to() "
        "inside the step",
    )


MIN_MASK = 3  # Minimum kernels that build a mask without a triangle.


def masks(context: DeviceContext) -> Iterator[Cause]:
    """Find chains of kernels that build masks, without those that apply a mask to scores."""
    forward = context.recording.work.launches.passes[context.tasks.row] != BACKWARD
    builds = context.matches(context.operator, names.BUILDS_MASK) & forward & ~context.explained
    triangle = context.matches(context.operator, names.TRIANGLE)
    creates = context.matches(context.operator, names.CREATES_MASK) | triangle
    fills = context.matches(context.operator, names.FILLS_MASK) | triangle
    order = np.lexsort((context.tasks.start_ns, context.tasks.stream))
    softmax = context.has_name(names.SOFTMAX)[order]
    builds[order[:-1]] &= ~(fills[order[:-1]] & softmax[1:])
    rows, chain = _chains(context, builds & (context.tasks.kind == KERNEL))

    def has(flags: Flags, count: int = 1) -> Flags:
        return np.bincount(chain, flags[rows], minlength=1)[chain] >= count

    found = np.zeros(len(builds), bool)
    found[rows] = has(creates) & has(fills) & (has(triangle) | has(builds, MIN_MASK))
    yield from _avoidable_kernels(
        context,
        "masks that are built in the step",
        found,
        advice="pass is_causal=True, or build a mask once (register_buffer), not in each layer or "
        "step; pass lengths of sequences instead of a padding mask (varlen attention)",
    )


def fills(context: DeviceContext) -> Iterator[Cause]:
    """Find kernels that set memory to a constant."""
    fill = context.matches(context.operator, names.FILL_OPERATION)
    yield from _avoidable_kernels(
        context,
        "fills with zeros or another constant",
        fill & ~context.explained,
        advice="use zero_grad(set_to_none=True), torch.empty instead of torch.zeros where all of "
        "it is written, and keep constant tensors",
    )


MIN_WEIGHTS = 8  # Minimum weights per step; fewer 8-bit tensors may be inputs, such as images.
_FROM_8_BITS = re.compile(
    r"(?:BFloat16|Half|float)\[[\d,]*\], (?:Float8_\w+|(?:un)?signed char)\[\d+,\d+\]"
)


def dequantization(context: DeviceContext) -> Iterator[Cause]:
    """Find kernels that make 16-bit weights of quantized ones, each for the product after it."""
    texts, number = _inputs(context)
    casts = np.array([bool(_FROM_8_BITS.match(one)) for one in texts])[number]
    casts &= context.matches(context.operator, names.LAYOUT_OPERATION)
    casts |= context.has_name(names.DEQUANTIZES) & (context.tasks.kind == KERNEL)
    products = matrix_kernels(context)
    order = np.lexsort((context.tasks.start_ns, context.tasks.stream))
    at, ends = np.flatnonzero((casts & ~products)[order]), np.flatnonzero(products[order])
    until = np.append(ends, len(order) + NEAR)[np.searchsorted(ends, at)]
    found = np.zeros(len(order), bool)
    near = until - at <= NEAR  # Scales may be applied in between.
    for first, last in zip(at[near].tolist(), until[near].tolist(), strict=True):
        found[order[first:last]] = True
    if near.sum() >= MIN_WEIGHTS * context.step_count:
        yield from _avoidable_kernels(
            context,
            "dequantization of weights",
            found & ~context.explained,
            advice="use kernels that multiply quantized weights (torch._scaled_mm for fp8, Marlin, "
            "torchao), or keep 16-bit weights if they fit in memory",
        )


def layout_kernels(context: DeviceContext) -> Flags:
    """Return a mask of copy, cast and transpose kernels outside the optimizer."""
    layout: Flags = context.matches(context.operator, names.LAYOUT_OPERATION)
    layout |= context.matches(context.kernel, names.moves_only)
    layout &= ~context.matches(context.operator, names.NPU_FORMAT_OPERATOR)
    layout &= ~context.in_optimizer
    return layout


_CONVERSIONS = {
    "Cast": "one dtype (autocast, parameters in bf16)",
    "TransData": "one format (torch.npu.config.allow_internal_format = False, weights converted "
    "once)",
    "Transpose, StridedSlice, ViewCopy": "one layout (no transpose, slice or .contiguous() of "
    "activations)",
}


def format_conversions(context: DeviceContext) -> Iterator[Cause]:
    """Find TransData, Cast and similar kernels on an NPU."""
    selected = context.matches(context.operator, names.NPU_FORMAT_OPERATOR) & ~context.explained
    limit = NAMED_PART * context.busy_ns(selected)
    rest, named = selected, []
    for operators, part in _CONVERSIONS.items():
        rows = rest & context.matches(context.operator, operators.__contains__)
        named += [part] if context.busy_ns(rows) > limit else []
        rest = rest & ~rows
    yield from _avoidable_kernels(
        context,
        "dtype casts" if named == [_CONVERSIONS["Cast"]] else "format conversions",
        selected,
        advice=f"keep {', '.join(named)} between operators",
    )


def _avoidable_kernels(
    context: DeviceContext, title: str, selected: Flags, *, advice: str, halved: Flags | None = None
) -> Iterator[Cause]:
    """Find kernels that could be avoided, with those that would take half of the time."""
    selected = selected & (context.tasks.kind == KERNEL)
    share = context.kernel_share(selected)
    if share < COMPUTE_SHARE:
        return
    rows = np.flatnonzero(selected if halved is None else selected | halved)
    faster = int((~selected[rows]).sum())
    context.explained[rows] = True
    also = f"; {plural(faster, 'kernel')} next to them would move half of the bytes"
    yield context.tasks_finding(
        f"{title}: {plural(len(rows) - faster, 'kernel')}, {percent(share)} of kernel time"
        + also * bool(faster),
        rows,
        context.tasks.length_ns[rows] * np.where(selected[rows], 1.0, 0.5),
        advice=advice,
        sure="likely",
        figures={"kernels": len(rows) - faster, "share_of_compute": round(share, 4)},
    )


NAMED_PART = 0.2  # Share of conversions from which advice names a cause of them.


# Minimum share of the time of kernels with fewer blocks than multiprocessors.
LOW_OCCUPANCY_SHARE = 0.05


def low_occupancy(context: DeviceContext) -> Iterator[Cause]:
    """Find kernels with fewer blocks than multiprocessors."""
    tasks = context.tasks
    blocks = blocks_per_processor(context)
    few = (blocks > 0) & (blocks < 1) & (tasks.kind == KERNEL)
    few &= ~context.has_name(names.has_few_blocks)
    rows = np.flatnonzero(few)
    kernel_ns = context.busy_ns(rows)
    lost = np.maximum(tasks.length_ns[rows] - TAIL_NS, 0) * (1 - blocks[rows])
    if context.share(kernel_ns) < LOW_OCCUPANCY_SHARE:
        return
    yield context.tasks_finding(
        f"low occupancy: {plural(len(rows), 'kernel')} with fewer blocks than "
        f"{processors(context)}, "
        f"{percent(context.share(kernel_ns))} of the time",
        rows,
        lost,
        advice="increase parallelism: larger batch, fusion, torch.compile, or independent "
        "kernels on several streams",
        sure="possible",
        figures={"kernels": len(rows), "kernel_ns": kernel_ns},
    )


# Kernels with fewer blocks per multiprocessor can run side by side.
HALF = 0.5
MIN_TURNS = 20  # Minimum number of kernels that start when one on another stream ends.
TURN_NS = 5_000  # Maximum time between both.


def serialized_streams(context: DeviceContext) -> Iterator[Cause]:
    """Find small kernels on two streams that take turns, waiting for each other by events."""
    tasks, recording = context.tasks, context.recording
    blocks = blocks_per_processor(context)
    rows = np.flatnonzero((tasks.kind == KERNEL) & ~context.in_class(names.COLLECTIVES))
    one, other = rows[:-1], rows[1:]
    call = recording.host_calls.launching(recording.work.connection[tasks.row[other]])
    launched = np.append(recording.host_calls.end_ns.to_array(), FOREVER)[call]
    after_ns = tasks.start_ns[other] - tasks.end_ns[one]
    turns = (tasks.stream[one] != tasks.stream[other]) & (after_ns >= 0) & (after_ns <= TURN_NS)
    turns &= (launched < tasks.end_ns[one]) & (np.maximum(blocks[one], blocks[other]) < HALF)
    turns &= blocks[one] > 0
    one, other = one[turns], other[turns]
    waits = recording.host_calls.matching(recording.strings, names.WAITS_FOR_EVENT)
    if len(other) < MIN_TURNS or waits.sum() < len(other):
        return
    saved_ns = np.minimum(tasks.length_ns[one], tasks.length_ns[other])
    streams, number = np.unique(tasks.stream[other], return_inverse=True)
    if len(streams) < 2:
        return  # One stream waits for what the other one makes.
    shorter = number == np.bincount(number, saved_ns).argmin()
    yield context.tasks_finding(
        f"serialized streams: {plural(len(other), 'kernel')} that use less than half of the "
        f"device take turns on {len(streams)} streams: each starts when one of another stream ends",
        other[shorter],
        saved_ns[shorter],
        advice="if they do not need each other's results, remove the events between the streams "
        "(wait_stream, wait_event, record_event)",
        sure="possible",
        least=PATTERN_SHARE,
        figures={"turns": len(other), "streams": len(streams)},
    )


def recomputation(context: DeviceContext) -> Iterator[Cause]:
    """Find kernels that activation checkpointing runs again in the backward pass."""
    framework = context.recording.framework
    assert framework is not None
    ranges = np.flatnonzero(framework.recorded)
    again = np.zeros(len(framework) + 1, bool)
    again[ranges], recorded = recomputed(framework, ranges)
    sure = "certain" if recorded.any() else "likely"  # else inferred from the order of layers
    if context.device is None:
        rows, what = np.flatnonzero(again), "operations"
        cost = context.clip(framework.start_ns[rows], framework.end_ns[rows]).total_ns
        figures: dict[str, Any] = {"recomputed_ns": cost}
    else:
        call = framework.direct(context.recording.work.connection.to_array())[context.tasks.row]
        rows = np.flatnonzero(again[call] & (call >= 0) & (context.tasks.kind == KERNEL))
        cost, what = context.busy_ns(rows), plural(len(rows), "kernel")
        figures = {"kernels": len(rows)}
    share = context.share(cost)
    if share < PATTERN_SHARE:
        return
    text = (
        f"recomputation: activation checkpointing runs {what} again, {percent(share)} of the time"
    )
    figures |= {"share": round(share, 4)}
    details: dict[str, Any] = {"advice": LESS_RECOMPUTATION, "sure": sure, "figures": figures}
    if context.device is None:
        yield context.finding(cost, text, **details)
    else:
        context.explained[rows] = True
        # Name the repeated operation, not the one in whose backward pass it is repeated.
        outermost, all_again = np.zeros(len(framework), bool), np.flatnonzero(again)
        around = framework.around(all_again, again[:-1])
        outermost[all_again[around == NONE]] = True
        around = np.where(
            outermost[call[rows]], call[rows], framework.around(call[rows], outermost)
        )
        (texts, name), (stacks, stack) = framework.names(around), framework.stacks(around)
        lines = [(text or "").rpartition("\n")[2] or None for text in stacks]
        places = {row: (texts[name[at]], lines[stack[at]]) for at, row in enumerate(rows.tolist())}
        yield context.tasks_finding(text, rows, place=places.__getitem__, **details)


# Minimum share of kernel time of memory-bound kernels that torch.compile could fuse.
ELEMENTWISE_SHARE = 0.20
FUSION_SAVING = 0.05  # Minimum saving: of few chains, compilers fuse only a part.
# On an NPU, or if fewer kernels are fusible, only chains of so many kernels count, from this share
# of kernel time. Casts are part of such chains.
LONG_CHAIN, LONG_CHAINS_SHARE = 3, 0.05
# Minimum runs of a few operations, or of one, that are a loop over tensors, not a chain.
MIN_LOOP, MIN_REPEATS = 12, 8
_FUSIBLE = names.ELEMENT_WISE, names.CAST, names.REDUCTION, names.NORMALIZATION


def unfused_elementwise(context: DeviceContext) -> Iterator[Cause]:
    """Find chains of memory-bound kernels in a program without torch.compile.

    One kernel per chain would move the bytes of the longest kernel of the chain, or half of them if
    the chain casts to fp32 and back. Gradients of parameters are sums over another dimension, in
    kernels of their own.
    """
    if context.is_compiled:
        return
    tasks, (casts, _) = context.tasks, _precisions(context)
    selected = context.in_class(*_FUSIBLE) & (tasks.kind == KERNEL) & ~context.in_optimizer
    selected &= ~context.explained & ~context.matches(context.kernel, names.MULTI_TENSOR)
    others = selected & ~layout_kernels(context)
    # Avoiding a cast saves more than fusing it with one or two other kernels.
    rows, chain = _chains(context, others | casts & selected)
    others[rows] |= np.bincount(chain, others[rows], minlength=1)[chain] >= LONG_CHAIN
    rows, chain = _chains(context, others)
    count, kernel_ns = np.bincount(chain)[chain], int(tasks.length_ns[tasks.kind == KERNEL].sum())
    # Operators of CANN fuse more: pairs of them are rarely one operator.
    if context.is_npu or tasks.length_ns[rows].sum() < ELEMENTWISE_SHARE * kernel_ns:
        rows, chain = rows[count >= LONG_CHAIN], chain[count >= LONG_CHAIN]
    # The same operations again and again are a loop over tensors.
    several, operation = np.ones(len(rows), bool), context.operator[rows].astype(np.int64)
    key = operation + chain * (1 + operation.max(initial=0))
    for low, high, body in repeated(key, MIN_REPEATS):
        if body == 1 or high - low >= MIN_LOOP * body:
            several[low:high] = False
    rows, chain = rows[several], np.unique(chain[several], return_inverse=True)[1]
    length = tasks.length_ns[rows]
    share = int(length.sum()) / kernel_ns if kernel_ns else 0.0
    if share < LONG_CHAINS_SHARE:
        return
    # The longest kernel of each chain stays, or half of it.
    first = np.lexsort((np.arange(len(rows)), -length, chain))
    stays = first[np.append(True, np.diff(chain[first]) != 0)]
    saved_ns = length.astype(np.float64)
    saved_ns[stays] *= np.where(np.bincount(chain, casts[rows])[chain[stays]] > 0, 0.5, 0.0)
    saved_ns += np.where(saved_ns == length, context.launch_gaps(rows)[1], 0)
    lost = np.flatnonzero(saved_ns)
    context.explained[rows[lost]] = context.share(float(saved_ns.sum())) >= FUSION_SAVING
    yield context.tasks_finding(
        f"unfused element-wise kernels: {plural(len(rows), 'memory-bound kernel')} (element-wise, "
        f"casts, reductions, normalization), {percent(share)} of kernel time, in "
        f"{plural(len(stays), 'chain')}",
        rows[lost],
        saved_ns[lost],
        advice="use torch.compile, or fused operations (RMSNorm, rotary embedding, SwiGLU, dropout "
        f"and residual{': npu_rms_norm, npu_rotary_mul, npu_swiglu' * context.is_npu})",
        sure="possible",
        least=FUSION_SAVING,
        figures={"kernels": len(rows), "chains": len(stays), "share_of_compute": round(share, 4)},
    )


def _chains(context: DeviceContext, selected: Flags) -> tuple[Ints, Ints]:
    """Return the selected tasks, and the number of the chain of each: back to back on a stream."""
    tasks = context.tasks
    passes = context.recording.work.launches.passes[tasks.row]
    sums = context.has_name(names.SUMS_GRADIENTS)
    order = np.lexsort((tasks.start_ns, tasks.stream))
    order = order[~(sums & (passes == BACKWARD))[order]]
    stream, fusible = tasks.stream[order], selected[order]
    step = np.searchsorted(context.windows.start_ns, tasks.start_ns[order], side="right")
    apart = (stream[1:] != stream[:-1]) | (step[1:] != step[:-1])
    apart |= passes[order][1:] != passes[order][:-1]
    breaks = np.append(True, apart | ~(fusible[1:] & fusible[:-1]))
    chain = np.cumsum(breaks[: len(order)]) - 1
    return order[fusible], np.unique(chain[fusible], return_inverse=True)[1]


_FLOAT, _HALF = re.compile(r"\bfloat\["), re.compile(r"\b(?:BFloat16|Half)\[")


def _precisions(context: DeviceContext) -> tuple[Flags, Flags]:
    """Return masks of casts between fp32 and 16 bits, and of other kernels in fp32, by shapes."""
    texts, number = _inputs(context)
    full, low = (np.array([bool(kind.search(one)) for one in texts]) for kind in (_FLOAT, _HALF))
    casts = layout_kernels(context)
    return casts & (full & low)[number], ~casts & (full & ~low)[number]


def _inputs(context: DeviceContext) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct inputs of operations, the last empty, and the index of each task's."""
    framework, row = context.recording.framework, context.tasks.row
    if framework is None:
        return [""], np.full(len(row), -1, np.int32)
    texts, number = framework.inputs(
        framework.direct(context.recording.work.connection.to_array())[row]
    )
    return [*texts, ""], number


COSTLY_SHARE = 0.10  # Minimum share of the time, as for tracked workloads.


def costly_operations(context: DeviceContext) -> Iterator[Cause]:
    """Find operations with a cheaper alternative that take much of the time.

    Operations with a backward pass are part of a model: it concatenates features, for example.
    """
    calls, trained = context.recording.calls, set[str]()
    if calls.backward_ns is not None:
        rows = calls.name[calls.backward_ns > 0]
        trained = {calls.labels.texts[number] for number in np.unique(rows).tolist()}
    framework = context.recording.framework
    assert framework is not None
    # With the kernels that sort the indices.
    call = framework.direct(context.recording.work.connection[context.tasks.row])
    adds = context.has_name(names.ADDS_AT_INDICES)
    adds |= np.isin(call, call[adds & (call >= 0)])
    for name, (what, advice) in COSTLY.items():

        def is_costly(text: str, name: str = name) -> bool:
            return costly_name(text) == name and text not in trained

        costly = context.matches(context.operator, is_costly) & ~adds
        rows = np.flatnonzero(adds if name == "indexing_backward" else costly)
        cost = context.busy_ns(rows)
        if (share := context.share(cost)) >= COSTLY_SHARE:
            saved = 1.0
            if name == "indexing_backward":
                saved -= min(ADDED_PASSES * _gather_ns(context, rows) / cost, 1.0)
            yield context.finding(
                saved * cost,
                f"{name}: {what} takes {percent(share)} of the time",
                kind="costly_operation",
                advice=advice,
                sure="possible",
                change=context.saving(rows, saved * context.tasks.length_ns[rows]),
                figures={"operation": name, "share": round(share, 4)},
                evidence=context.evidence(rows),
            )


# Bytes that index_add_ moves, which reads the values and updates the rows, over those of x[index].
ADDED_PASSES = 1.5


def _gather_ns(context: DeviceContext, rows: Ints) -> int:
    """Return the time of the forward operations whose backward pass launched some tasks."""
    launches, row = context.recording.work.launches, context.tasks.row
    owner = launches.call[row]
    forward = np.isin(owner, owner[rows]) & (owner >= 0) & (launches.passes[row] == FORWARD)
    forward[rows] = False
    return context.busy_ns(np.flatnonzero(forward))
