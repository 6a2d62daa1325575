"""Advice rules for tracked workloads (Skyline reports): operations, and the evaluation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.text import parsed_fact
from unified_prof.explain.advice import tracked
from unified_prof.explain.advice.idle_segments import (
    COSTLY,
    EVIDENCE_ROWS,
    LESS_RECOMPUTATION,
    costly_name,
    duration,
    percent,
)
from unified_prof.explain.advice.tracked import CALL_NS, PART_SHARE, Tracked
from unified_prof.recording.calls import UNKNOWN, Calls
from unified_prof.recording.model import Advice, Finding, NotJudged, timed_steps

# Minimum share of an iteration of the forward pass without its operations, which were timed in
# another iteration.
FORWARD_SHARE = 0.25
CHAIN_SHARE = 0.05  # Minimum share of an iteration that an unfused chain takes.


def _between(run: Tracked) -> tuple[dict[str, float], float, float]:
    """Return the median time between operations by line, of all lines, and without tracking."""
    loading = run.line_of("data_loading").removeprefix(" at ")
    sums: dict[str, NDArray[np.float64]] = {}
    if run.gaps is not None:
        for line, times in zip(run.gaps.lines, np.nan_to_num(run.gaps.gap_ns), strict=True):
            if line != loading:
                sums[line] = sums.get(line, np.zeros(len(times))) + times
    medians = {line: float(np.median(times)) for line, times in sums.items() if len(times)}
    if not medians:
        return {}, 0.0, 0.0
    between = float(np.median(np.sum(list(sums.values()), axis=0)))
    # Tracking makes gaps longer: without it, they take no more than the rest of the iteration.
    return medians, between, min(between, run.parts_ns.get("other", between))


def other_code(run: Tracked) -> Iterator[Finding]:
    """Find time before the first and after the last operation of an iteration."""
    other_ns = run.parts_ns.get("other", 0) - _between(run)[2]
    lines: Counter[str] = Counter()
    if run.calls.total_ns is not None and run.calls.line is not None:
        other_ns -= sum(ns for ns in _costly(run).values() if run.share(ns) >= PART_SHARE)
        # Time that has another finding.
        other_ns -= sum(one.ns for one in _repeated(run) if one.is_outside)
        for group in _outside(run):
            lines[group.line] += group.ns
    share = run.share(other_ns)
    if share < PART_SHARE:
        return
    where = ""
    if 2 * lines.total() > other_ns:
        where = f", mostly in operations at {lines.most_common(1)[0][0]}"
    yield run.finding(
        other_ns,
        f"other code: {run.of_iteration(share)} is neither forward, backward, optimizer nor data "
        f"loading{where}",
        advice="look for callbacks, logging, metrics and preparation of data: `uprof run --scope "
        "project` shows torch operations in them, cProfile everything else",
        sure="likely",
        figures={"other_ns": round(other_ns), "share": round(share, 4)},
        evidence=[
            {"name": line, "line": line, "total_ns": ns}
            for line, ns in lines.most_common(EVIDENCE_ROWS * bool(where))
        ],
    )


# The line in `step at train.py:12 before aten::linear`, the name of a gap in a recording.
_CODE_LINE = re.compile(r" at (.+:\d+)(?= before )")


def time_between_operations(run: Tracked) -> Iterator[Finding]:
    """Find time outside operations, passes and other parts, by the lines around it."""
    assert run.gaps is not None
    medians, between, other_ns = _between(run)
    forward_ns = _forward_between(run)
    whole = other_ns + forward_ns - CALL_NS * len(run.calls)
    share = run.share(whole)
    if share < PART_SHARE or any(tracked.batch_of_one(run)):
        return
    counts = {line: run.gaps.lines.count(line) for line in medians}
    heaviest = sorted(medians, key=lambda line: -medians[line])[:EVIDENCE_ROWS]
    where = f"around {heaviest[0]}".replace("around before ", "before ") if heaviest else ""
    if 2 * between < whole:  # before the first operation of a pass
        where, heaviest = f"in the forward pass{run.line_of('forward')}", []
    yield run.finding(
        whole,
        f"between operations: {run.of_iteration(share)}, mostly {where}",
        advice="check these lines for work outside torch: Python loops, logging, conversion to "
        "lists or NumPy, reading data",
        sure="likely",
        figures={"between_ns": round(whole), "share": round(share, 4), "lines": len(medians)},
        evidence=[
            {
                "name": _CODE_LINE.sub("", line),
                "count": counts[line],
                "total_ns": round(medians[line] * whole / between),
            }
            | ({} if line.startswith("before ") else {"line": code[1] if code else line})
            for line, code in ((line, _CODE_LINE.search(line)) for line in heaviest)
        ],
    )


def _forward_between(run: Tracked) -> float:
    """Return the time of forward passes that is in no operation."""
    if run.calls.forward_ns is None:
        return 0.0
    parts = ("forward", "forward_without_gradients")
    passes_ns = sum(run.parts_ns.get(part, 0) for part in parts)
    between_ns = passes_ns - float(run.calls.forward_ns[run.calls.forward_ns > 0].sum())
    return between_ns if run.share(between_ns) >= FORWARD_SHARE else 0.0


def recomputation(run: Tracked) -> Iterator[Finding]:
    """Find the cost of activation checkpointing, by operation."""
    calls = run.calls
    assert calls.recomputed_ns is not None
    known = np.flatnonzero(calls.recomputed_ns != UNKNOWN)
    names, number, count = np.unique(calls.name[known], return_inverse=True, return_counts=True)
    times = np.bincount(number, weights=calls.recomputed_ns[known])
    # With the Python code between the operations, if known.
    whole = max(float(times.sum()), run.parts_ns.get("recomputation", 0))
    share = run.share(whole)
    if share < PART_SHARE:
        return
    yield run.finding(
        whole,
        f"recomputation: activation checkpointing runs {len(known)} operations again, "
        f"{run.of_iteration(share)}",
        advice=LESS_RECOMPUTATION,
        sure="certain",
        figures={"recomputed_ns": round(whole), "share": round(share, 4)},
        evidence=[
            {
                "name": calls.labels.texts[int(names[at])],
                "count": int(count[at]),
                "total_ns": round(float(times[at])),
            }
            for at in np.argsort(-times, kind="stable")[:EVIDENCE_ROWS].tolist()
        ],
    )


class Chain(NamedTuple):
    """Operations written by hand that torch has as one function."""

    name: str
    # Operations that identify the chain, in order; others may come in between.
    operations: tuple[str, ...]
    # Operations that fusing removes; None: all but the most expensive one.
    removed: frozenset[str] | None
    replacement: str


CHAINS = (
    Chain(
        "softmax attention",
        ("matmul", "softmax", "matmul"),
        frozenset({"softmax", "div", "truediv", "mul", "masked_fill", "add", "dropout"}),
        "torch.nn.functional.scaled_dot_product_attention",
    ),
    Chain("tanh GELU", ("pow", "tanh", "mul"), None, "gelu(x, approximate='tanh')"),
    Chain(
        "LayerNorm",
        ("mean", "sub", "pow", "mean", "sqrt", "mul"),
        None,
        "torch.nn.functional.layer_norm",
    ),
    Chain("RMSNorm", ("pow", "mean", "sqrt", "mul"), None, "torch.nn.functional.rms_norm"),
    Chain(
        "embedding lookup",
        ("one_hot", "matmul"),
        frozenset({"one_hot", "float", "to", "type", "matmul"}),
        "torch.nn.functional.embedding",
    ),
)
# Operations that may be part of a chain, by other names of the same operation.
_SAME = {
    "__matmul__": "matmul",
    "bmm": "matmul",
    "square": "pow",
    "rmul": "mul",
    "radd": "add",
    "rsqrt": "sqrt",
    **dict.fromkeys(("select", "slice", "index"), "getitem"),  # in traces
}
_LINKS = frozenset(
    "one_hot matmul softmax div truediv mul masked_fill add sub dropout pow tanh mean rsqrt "
    "transpose sqrt float to contiguous "
    # A mask that is built between the product and softmax.
    "ones zeros full arange tril triu ones_like zeros_like full_like where masked_fill_ bool type "
    "lt le gt ge eq ne invert logical_not logical_and logical_or unsqueeze expand view reshape "
    "permute getitem repeat".split()
)


def unfused_chains(run: Tracked) -> Iterator[Finding]:
    """Find functions written as chains of operations for which torch has one function."""
    calls = run.calls
    assert calls.total_ns is not None
    assert calls.line is not None
    rows = np.flatnonzero(calls.total_ns != UNKNOWN).tolist()
    texts = calls.labels.texts
    names = [_SAME.get(texts[calls.name[row]], texts[calls.name[row]]) for row in rows]
    files = [texts[calls.line[row]].rpartition(":")[0] for row in rows]
    for chain in CHAINS:
        found = _chains(names, files, chain.operations)
        cost = 0.0
        for first, last in found:
            times = np.array([max(0, int(calls.total_ns[row])) for row in rows[first : last + 1]])
            if chain.removed is None:
                cost += float(times.sum() - times.max())
            else:
                removed = [name in chain.removed for name in names[first : last + 1]]
                cost += float(times[removed].sum())
            names[first : last + 1] = [""] * len(times)  # of no other chain
        share = run.share(cost)
        if share < CHAIN_SHARE:
            continue
        lines = Counter(texts[calls.line[rows[first]]] for first, _ in found)
        many = "once" if len(found) == 1 else f"{len(found)} times"
        yield run.finding(
            cost,
            f"{chain.name} written as single operations {many}, "
            f"{run.of_iteration(share)}, at {lines.most_common(1)[0][0]}",
            kind="unfused_chain",
            advice=f"use {chain.replacement}, or torch.compile",
            sure="likely",
            figures={"chains": len(found), "share": round(share, 4), "fused": chain.replacement},
            evidence=[
                {"name": chain.name, "line": line, "count": count}
                for line, count in lines.most_common(EVIDENCE_ROWS)
            ],
        )


def _chains(
    names: Sequence[str], files: Sequence[str], operations: tuple[str, ...]
) -> list[tuple[int, int]]:
    """Return first and last index of each run of `operations` within one file."""
    found, start = [], 0
    while start < len(names):
        if names[start] != operations[0]:
            start += 1
            continue
        at, done = start, 0
        while at < len(names) and names[at] in _LINKS and files[at] == files[start]:
            done += names[at] == operations[done]
            if done == len(operations):
                found.append((start, at))
                break
            at += 1
        start = at + 1 if done == len(operations) else start + 1
    return found


# Minimum share of an iteration of operations on double-precision weights. Processors compute
# float32 in half of the time, and it has half of the bytes.
DOUBLE_SHARE, DOUBLE_GAIN = 0.2, 0.5
LESS_PRECISION = (
    "use float32 (module.float(), torch.set_default_dtype) unless the result needs more than 7 "
    "digits; NumPy arrays and Python floats become float64"
)


def double_precision(run: Tracked) -> Iterator[Finding]:
    """Find models in double precision."""
    types = parsed_fact(run.facts, "weight_types", dict).items()
    sizes = {name: size for name, size in types if isinstance(size, int) and size >= 0}
    assert run.calls.total_ns is not None
    operations_ns = float(run.calls.total_ns[run.calls.total_ns > 0].sum())
    share = run.share(operations_ns)
    doubled = sizes.get("float64", 0)
    if 2 * doubled < sum(sizes.values()) or not doubled or share < DOUBLE_SHARE:
        return
    yield run.finding(
        DOUBLE_GAIN * operations_ns,
        f"double precision: {percent(doubled / sum(sizes.values()))} of the weights are float64; "
        f"operations are {run.of_iteration(share)}",
        advice=LESS_PRECISION,
        sure="likely",
        figures={"share": round(share, 4), "weight_bytes": sizes},
    )


# Minimum calls of one operation by one module at one line, and share of an iteration of all such
# operations there.
LOOP_CALLS, LOOP_SHARE = 32, 0.2
# Time that one fused operation saves of each call of a cell, measured with 16 to 256 hidden units
# and backward passes: nn.LSTM computes the same products.
CELL_NS = 300_000
CELLS = frozenset({"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"})


def _repeated(run: Tracked) -> list[_Group]:
    """Return the repeated operations of the most expensive loop; none if it takes little."""
    modules = run.calls.module
    runs, times_ns = Counter[tuple[str, str, int]](), Counter[tuple[str, str, int]]()
    for row, name, line, ns in _timed_calls(run.calls, are_outside=False):
        # Tables do not depend on each other, as other layers at one line may.
        module = UNKNOWN if modules is None or name == "embedding" else int(modules[row])
        key = line, name, module
        runs[key] += 1
        times_ns[key] += ns
    groups = [
        _Group(name, line, count, times_ns[line, name, module], is_outside=False)
        for (line, name, module), count in runs.items()
    ]
    places: dict[str, list[_Group]] = {}
    for one in (*groups, *_outside(run)):
        # A loop of several lines is one.
        if one.runs >= LOOP_CALLS:
            places.setdefault(one.line.rpartition(":")[0], []).append(one)
    own = max(places.values(), key=lambda some: sum(one.ns for one in some), default=[])
    own.sort(key=lambda one: -one.ns)
    return own if run.share(sum(one.ns for one in own)) >= LOOP_SHARE else []


def loops(run: Tracked) -> Iterator[Finding]:
    """Find lines that run the same operations many times in each iteration, as in a loop."""
    own = _repeated(run)
    if not own:
        return
    whole = sum(one.ns for one in own)
    cost = sum(min(one.ns, CELL_NS * one.runs) if one.name in CELLS else one.ns for one in own)
    share = run.share(whole)
    text = (
        f"loop at {own[0].line}: {own[0].name} runs {own[0].runs:,} times in each iteration; the "
        f"repeated operations are {run.of_iteration(share)}"
    )
    if cost < whole:
        text += f"; a fused operation saves up to {duration(CELL_NS)} per call"
    yield run.finding(
        cost,
        text,
        advice="replace the loop by operations on larger tensors: nn.LSTM for nn.LSTMCell, "
        "batched indexing, torch.vmap, one embedding table with an offset per column, foreach "
        "functions, a larger batch in place of many",
        sure="possible",
        figures={"calls": sum(one.runs for one in own), "share": round(share, 4)},
        evidence=[
            {"name": one.name, "line": one.line, "count": one.runs, "total_ns": one.ns}
            for one in own[:EVIDENCE_ROWS]
        ],
    )


class _Group(NamedTuple):
    """Calls of one operation at one line."""

    name: str
    line: str
    runs: int
    ns: int
    is_outside: bool = True
    """True if they are outside of modules."""


def _outside(run: Tracked) -> list[_Group]:
    """Return operations that the report does not show, and those outside of modules."""
    found = dict[tuple[str, str], _Group]()
    for row in parsed_fact(run.facts, "operations_outside", list):
        if isinstance(row, list) and [*map(type, row)] == [str, str, int, int]:
            found[row[0], row[1]] = _Group(*row)
    for _, name, line, ns in _timed_calls(run.calls, are_outside=True):
        known = found.get((name, line), _Group(name, line, 0, 0))
        found[name, line] = known._replace(runs=known.runs + 1, ns=known.ns + ns)
    return [*found.values()]


def _timed_calls(calls: Calls, *, are_outside: bool) -> Iterator[tuple[int, str, str, int]]:
    """Yield row, name, line and time of the calls within modules, or of those outside of them.

    Calls of a backward pass are not outside.
    """
    if calls.total_ns is None or calls.line is None:
        return
    outside = np.zeros(len(calls), bool)
    if calls.module is not None:
        outside = (calls.module == UNKNOWN) & _without_backward(calls)
    known = (calls.total_ns > 0) & (calls.line != UNKNOWN) & (outside == are_outside)
    texts = calls.labels.texts
    for row in np.flatnonzero(known).tolist():
        yield row, texts[calls.name[row]], texts[calls.line[row]], int(calls.total_ns[row])


def _without_backward(calls: Calls) -> NDArray[np.bool_]:
    """Return a mask of the calls that took no part in a backward pass."""
    if calls.backward_ns is None:
        return np.ones(len(calls), np.bool_)
    return calls.backward_ns <= 0


def _costly(run: Tracked) -> Counter[tuple[str, str]]:
    """Return the time of COSTLY operations by name and line."""
    found, is_alone = Counter[tuple[str, str]](), _without_backward(run.calls)
    inside = _timed_calls(run.calls, are_outside=False)
    parts = [(name, line, ns) for row, name, line, ns in inside if is_alone[row]]
    for operation, line, ns in (*parts, *((one.name, one.line, one.ns) for one in _outside(run))):
        if (name := costly_name(operation)) is not None:
            found[name, line] += ns
    return found


def costly_operations(run: Tracked) -> Iterator[Finding]:
    """Find operations with a cheaper alternative that take much of an iteration at one line."""
    known = {
        row.get("line")
        for row in parsed_fact(run.facts, "repeated_work", list)
        if isinstance(row, dict) and "new" not in row and costly_name(str(row.get("name")))
    }
    chained = {row["line"] for one in unfused_chains(run) for row in one.evidence}
    for (name, line), cost in _costly(run).items():
        what, advice = COSTLY[name]
        # `repeated_work` tells more about known values, and a chain more about one of its links.
        if (
            line not in known
            and not (name == "one_hot" and line in chained)
            and (share := run.share(cost)) >= PART_SHARE
        ):
            yield run.finding(
                cost,
                f"{name}: {what} at {line} takes {run.of_iteration(share)}",
                kind="costly_operation",
                advice=advice,
                sure="possible",
                figures={"operation": name, "share": round(share, 4)},
            )


# Which iteration computed the value of an operation first: the text of a finding, and what to do.
REPEATED = {
    "earlier": (
        "that an earlier iteration computed from the same tensors",
        "compute them once before the loop, and keep the results",
    ),
    "same": (
        "that the same iteration computed before from the same tensors",
        "keep the results: for example, compute loss and metrics from one forward pass",
    ),
}
INVARIANT_SHARE = 0.98  # With a larger share of repeated operations, all inputs are fixed.


def repeated_work(run: Tracked) -> Iterator[Finding]:
    """Find operations that compute known values."""
    calls, texts = run.calls, run.calls.labels.texts
    assert calls.line is not None
    times_ns = calls.total_ns if calls.forward_ns is None else calls.forward_ns
    assert times_ns is not None
    total_ns = Counter[tuple[str, str]]()
    for row in np.flatnonzero((times_ns > 0) & (calls.line != UNKNOWN)).tolist():
        total_ns[texts[calls.name[row]], texts[calls.line[row]]] += int(times_ns[row])
    for kind, (where, advice) in REPEATED.items():
        found = Counter[str]()
        for row in parsed_fact(run.facts, "repeated_work", list):
            if isinstance(row, dict) and all(isinstance(row.get(k), int) for k in (kind, "calls")):
                part = row[kind] / max(row["calls"], row[kind], 1)
                line = str(row.get("line"))
                found[line] += round(part * total_ns[str(row.get("name")), line])
        cost = found.total()
        share = run.share(cost)
        if share < PART_SHARE or cost > INVARIANT_SHARE * total_ns.total():
            continue
        lines = found.most_common(EVIDENCE_ROWS)
        yield run.finding(
            cost,
            f"repeated work: operations compute values {where}, {run.of_iteration(share)}, mostly "
            f"at {lines[0][0]}",
            advice=advice,
            sure="likely",
            figures={"share": round(share, 4), "lines": len(found)},
            evidence=[{"name": line, "line": line, "total_ns": ns} for line, ns in lines],
        )


_PASSES = frozenset({"forward", "backward", "other", "waiting_for_cpu"})
_HAS_PARTS = (
    lambda run: "part_lines" in run.facts or bool(set(run.parts_ns) - _PASSES),
    "parts of iterations not recorded (table UPROF_ITERATION_PARTS)",
)
_HAS_LINES = (
    lambda run: run.calls.total_ns is not None and run.calls.line is not None,
    "times by line not recorded (run time report)",
)
# By rule: whether a run has the data for it, and what is missing otherwise.
RULES: dict[Callable[[Tracked], Iterator[Finding]], tuple[Callable[[Tracked], bool], str]] = {
    tracked.waiting_for_processor: (
        lambda run: any(one.waited_ns is not None for one in run.timed),
        "processor wait not measured",
    ),
    time_between_operations: (
        lambda run: run.gaps is not None and run.median_ns > 0,
        "time between operations not recorded (table UPROF_GAPS)",
    ),
    tracked.data_loading: _HAS_PARTS,
    tracked.synchronizing_reads: _HAS_PARTS,
    tracked.unfused_optimizer: _HAS_PARTS,
    tracked.periodic_work: _HAS_PARTS,
    tracked.slow_modes: _HAS_PARTS,
    other_code: _HAS_PARTS,
    tracked.unused_activations: _HAS_PARTS,
    tracked.repeated_backward: _HAS_PARTS,
    tracked.padding: _HAS_PARTS,
    tracked.kept_graph: _HAS_PARTS,
    tracked.untrained_gradients: _HAS_PARTS,
    tracked.dense_embedding: _HAS_PARTS,
    tracked.no_kv_cache: _HAS_PARTS,
    tracked.python_in_autograd: _HAS_PARTS,
    tracked.batch_of_one: _HAS_PARTS,
    recomputation: (
        lambda run: run.calls.recomputed_ns is not None and run.median_ns > 0,
        "no activation checkpointing recorded",
    ),
    **dict.fromkeys((unfused_chains, loops, costly_operations, repeated_work), _HAS_LINES),
    double_precision: (
        lambda run: "weight_types" in run.facts and run.calls.total_ns is not None,
        "types of weights not recorded (memory report)",
    ),
    tracked.single_thread: (
        lambda run: run.facts.get("device", "").startswith("cpu") and "processors" in run.facts,
        "number of processors not recorded, or not a CPU run",
    ),
    tracked.slow_iterations: (
        lambda run: len(timed_steps(run.steps)) > tracked.MIN_ITERATIONS,
        f"fewer than {tracked.MIN_ITERATIONS + 1} iterations recorded",
    ),
}


def _within_iteration(findings: list[Finding], left_ms: float) -> Iterator[Finding]:
    """Yield findings with what they save: at most what those before leave of an iteration.

    Slow iterations are not the typical one that the others divide.
    """
    for one in findings:
        cost_ms = one.cost_ms_per_step
        if one.kind != "slow_iterations":
            cost_ms = min(cost_ms, left_ms)
            left_ms -= cost_ms
        saves = f"; saves up to {duration(cost_ms * 1e6)} per iteration" if cost_ms else ""
        yield replace(one, cost_ms_per_step=round(cost_ms, 6), text=one.text + saves)


def advise(run: Tracked) -> Advice:
    """Evaluate the rules and return the findings, most expensive first."""
    findings: list[Finding] = []
    not_judged, judged = [], []
    for rule, (has_data, why) in RULES.items():
        if not has_data(run):
            not_judged.append(NotJudged(rule.__name__, why))
            continue
        found = [replace(one, kind=one.kind or rule.__name__) for one in rule(run)]
        if not found:
            judged.append(rule.__name__)
        findings += found
    findings.sort(key=lambda finding: (-finding.cost_ms_per_step, finding.kind))
    return Advice(
        findings=tuple(_within_iteration(findings, run.median_ns / 1e6 or inf)),
        not_judged=tuple(not_judged),
        judged=tuple(judged),
        steps=len(run.timed),
        step_ms=round(run.median_ns / 1e6, 6) if run.median_ns else None,
        statistic="median",
    )
