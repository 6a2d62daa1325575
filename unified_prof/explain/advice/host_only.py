"""Advice rules for recordings without device tasks: those for tracked workloads, on the steps."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import AnyInts, Ints
from unified_prof.explain.advice.device_context import (
    FRAME,
    MIN_NAMED_GAP_NS,
    Cause,
    DeviceContext,
    code_place,
    is_optimizer_step,
)
from unified_prof.explain.advice.idle_segments import DENSE_SHARE, SPARSE_GRADIENTS, percent
from unified_prof.explain.advice.tracked import Tracked
from unified_prof.explain.advice.tracked_operations import (
    DOUBLE_GAIN,
    DOUBLE_SHARE,
    LESS_PRECISION,
)
from unified_prof.recording import names
from unified_prof.recording.calls import Calls
from unified_prof.recording.framework import FORWARD
from unified_prof.recording.model import Finding, Gaps, Step
from unified_prof.recording.python_frames import ENGINE_PREFIX, user_frame
from unified_prof.recording.steps import step_of

# A rule for tracked workloads.
TrackedRule = Callable[[Tracked], Iterator[Finding]]
# `ShrinkBackward`, the pass of an autograd function in Python, unlike `MulBackward0` and code that
# torch.compile generates.
_PYTHON_FUNCTION = re.compile(rf"(?:{ENGINE_PREFIX})?(?!CompiledFunction)(\w+)Backward$")
_SUMS = frozenset({"count", "total_ns"})  # Figures of evidence that are sums.


def evaluate(
    context: DeviceContext, anywhere: Sequence[TrackedRule], in_steps: Sequence[TrackedRule]
) -> Iterator[Cause]:
    """Evaluate rules for tracked workloads, some of them only if steps and lines were recorded."""
    if context.device is not None or context.recording.calls.total_ns is None:
        return
    run, has_lines = _as_iteration(context), context.recording.calls.line is not None
    for rule in (*anywhere, *(in_steps if context.steps and has_lines else ())):
        for one in rule(run):
            cost_ns = run.share(1e6 * one.cost_ms_per_step) * context.analyzed_ns
            yield context.finding(
                cost_ns,
                one.text,
                kind=one.kind or rule.__name__,
                advice=one.advice + "; with_stack=True records lines" * (not has_lines),
                sure=one.sure,
                figures=one.figures,
                # Evidence is about all analyzed steps.
                evidence=[
                    {**row, **{key: row[key] * context.step_count for key in _SUMS & row.keys()}}
                    for row in one.evidence
                ],
            )


# Tensors of float64 by the text of the inputs; a lookup in a table: rows, columns, indices.
_DOUBLE = re.compile(r"\bdouble\[\d")
_LOOKUP = re.compile(r"[\w ]+\[(\d+,\d+)\], (?:long )?int\[([\d,]+)\]")
_MATRIX = re.compile(r"\[(\d+),(\d+)\]")
FEW = 4  # Minimum rows of a table for each row that a step uses.


def by_inputs(context: DeviceContext) -> Iterator[Cause]:
    """Find float64 operations, and embeddings with dense gradients, by the recorded inputs."""
    framework = context.recording.framework
    if context.device is not None or framework is None:
        return
    call, passes, time_ns = framework.host_time()
    rows = np.flatnonzero(intervals.holding(context.window, framework.start_ns[call]) >= 0)
    inputs, given = framework.inputs(call[rows])
    input_ns = np.bincount(given, time_ns[rows], len(inputs))
    double = np.array([_DOUBLE.search(text) is not None for text in inputs], bool)
    cost = float(input_ns[double].sum())
    if (share := context.share(cost)) >= DOUBLE_SHARE:
        yield context.finding(
            DOUBLE_GAIN * cost,
            f"double precision: operations on float64 tensors take {percent(share)} of the time",
            kind="double_precision",
            advice=LESS_PRECISION,
            sure="likely",
            figures={"share": round(share, 4)},
        )
    if not len(framework.matching(lambda name: name.endswith("embedding_dense_backward"))):
        return
    calls = framework.calls
    calls = calls[intervals.holding(context.window, framework.start_ns[calls]) >= 0]
    texts, name = framework.names(calls)
    of_call = framework.inputs(calls)
    used, dense = Counter[str](), set[str]()
    for number, at in zip(name.tolist(), of_call[1].tolist(), strict=True):
        text = of_call[0][at]
        match = _LOOKUP.match(text) if texts[number].startswith("aten::embedding") else None
        if match:
            used[match[1]] += prod(map(int, match[2].split(",")))
        elif names.PRODUCT(texts[number]):
            # As the weight of a product, a table has a dense gradient.
            dense.update(*((f"{a},{b}", f"{b},{a}") for a, b in _MATRIX.findall(text)))
    lost_ns, later_ns = 0.0, time_ns[rows] * (passes[rows] != FORWARD)
    input_ns = np.bincount(given, later_ns, len(inputs))  # of gradients and the optimizer
    for table, indices in used.items():
        unused = 1 - indices / context.step_count / int(table.split(",")[0])
        if table not in dense and unused >= 1 - 1 / FEW:
            own = [text.partition("[")[2].startswith(f"{table}]") for text in inputs]
            lost_ns += unused * float(input_ns[own].sum())
    if (share := context.share(lost_ns)) >= DENSE_SHARE:
        yield context.finding(
            lost_ns,
            f"dense embedding gradients: {percent(share)} of the time, gradients are filled with "
            "zeros and all rows are updated",
            kind="dense_embedding",
            advice=SPARSE_GRADIENTS,
            sure="likely",
            figures={"share": round(share, 4)},
        )


def _as_iteration(context: DeviceContext) -> Tracked:
    """Return the operations of a step without those of the optimizer, with median times.

    If the steps run different operations, it is the step of median length; without steps, the whole
    recording.
    """
    recording, calls = context.recording, context.recording.calls
    framework, lengths_ns = recording.framework, [context.analyzed_ns]
    assert framework is not None
    assert calls.start_ns is not None
    start_ns = calls.start_ns.astype(np.int64)
    optimizer = context.ranges(is_optimizer_step)
    spans = intervals.merge(framework.start_ns[optimizer], framework.end_ns[optimizer])
    rows = [np.flatnonzero(intervals.holding(spans, start_ns) < 0)]
    if context.steps:
        step = step_of(start_ns[rows[0]], recording.steps)
        rows = [rows[0][step == at] for at in context.analyzed]
        lengths_ns = [recording.step_lengths_ns[at] for at in context.analyzed]
    chosen = rows[int(np.argsort(lengths_ns)[len(rows) // 2])]
    if not all(np.array_equal(calls.name[one], calls.name[chosen]) for one in rows):
        rows = [chosen]

    def median(values: AnyInts | None) -> Ints | None:
        if values is None:
            return None
        return np.asarray(np.median(values[np.stack(rows)], axis=0), np.int64)

    labels = calls.labels
    plain = labels.numbers([text.removeprefix("aten::") for text in labels.texts])
    line = np.full(len(calls), labels.number("an unrecorded line"))
    return Tracked(
        steps=tuple(Step(str(at), length_ns) for at, length_ns in enumerate(lengths_ns)),
        calls=Calls(
            labels,
            plain[calls.name[chosen]],
            calls.kind[chosen],
            total_ns=median(calls.total_ns),
            forward_ns=median(calls.forward_ns),
            backward_ns=median(calls.backward_ns),
            module=None if calls.module is None else calls.module[chosen],
            line=(line if calls.line is None else calls.line)[chosen],
        ),
        gaps=_gaps(context),
        facts=context.facts,
    )


def _gaps(context: DeviceContext) -> Gaps:
    """Return long gaps of each step, by the Python function that covers them, else by place.

    Other programs on the same processors make gaps longer, and others at other places: the shortest
    gap at a place counts.
    """
    framework = context.recording.framework
    assert framework is not None
    if not context.steps:
        return Gaps(np.zeros(0, np.int64), (), np.zeros((0, 1)))
    working = framework.recorded.copy()
    for has_rule in (names.FETCHES_INPUT, is_optimizer_step):
        working[framework.matching(has_rule)] = True
    matches = map(_PYTHON_FUNCTION.match, framework.names(np.zeros(0, np.int64))[0])
    functions = {part for match in matches if match for part in (match[0], match[1])}
    # Work outside torch within them is between operations.
    inside = framework.matching(functions.__contains__)
    working[inside] = False
    ranges = np.flatnonzero(working)
    starts, ends = framework.start_ns[ranges], framework.end_ns[ranges]
    inside_ns = framework.start_ns[inside], framework.end_ns[inside]
    explained = intervals.union(intervals.merge(starts, ends), context.claimed)
    gaps = intervals.subtract(context.window, explained)
    order = np.argsort(starts, kind="stable")
    after = np.minimum(np.searchsorted(starts[order], gaps.end_ns), len(order) - 1)
    texts, number = framework.names(ranges[order[after]])
    step = np.searchsorted(context.windows.start_ns, gaps.start_ns, side="right") - 1
    spent_ns = defaultdict[str, Ints](lambda: np.zeros(context.step_count, np.int64))
    for at in np.flatnonzero(gaps.end_ns - gaps.start_ns >= MIN_NAMED_GAP_NS).tolist():
        begin, end = int(gaps.start_ns[at]), int(gaps.end_ns[at])
        threads = context.step_threads
        found = [text for one in threads for text in context.host_code.covering(begin, end, one)]
        around = inside[(inside_ns[0] <= begin) & (inside_ns[1] >= end)][-1:]
        found += [texts[one] for one in framework.names(around)[1].tolist()]
        code = next(filter(user_frame, found), found[0] if found else "")
        place = f"{code_place(code)} " if FRAME.match(code) else ""
        if place and "<built-in function collect>" in found:
            place = f"gc.collect() in {place}"
        operation = texts[number[at]].removeprefix("autograd::engine::evaluate_function: ")
        annotation = f" in {code}" if code and not place else ""
        spent_ns[f"{place}before {operation}{annotation}"][step[at]] += end - begin
    # The last step may end before the operation after the gap.
    usual_ns = {place: np.sort(one)[min(1, len(one) - 1)] for place, one in spent_ns.items()}
    places = tuple(place for place, ns in usual_ns.items() if ns)
    times_ns = np.array([[usual_ns[place]] for place in places], np.float64).reshape(-1, 1)
    return Gaps(np.zeros(len(places), np.int64), places, times_ns)
