"""Advice rules for tracked workloads (Skyline reports): parts of a step, chains, memory by line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.text import parsed_fact, part_lines
from unified_prof.explain.advice.idle_segments import (
    EVIDENCE_ROWS,
    MIN_SHARE,
    describe_run,
    duration,
    percent,
)
from unified_prof.recording.calls import UNKNOWN, Calls
from unified_prof.recording.model import (
    PERIODIC_PARTS,
    Advice,
    Evidence,
    Finding,
    Gaps,
    NotJudged,
    Step,
    Sureness,
    timed_steps,
    typical_steps,
)

WAITED_SHARE = 0.10  # Minimum share of an iteration; an otherwise idle machine stays far below.
PART_SHARE = 0.10  # Minimum share of an iteration that a part takes, as for host-bound devices.
CHAIN_SHARE = 0.05  # Minimum share of an iteration that an unfused chain takes.
# Time that a fused implementation saves per parameter on a CPU: the calls of a Python loop, not the
# traffic of large tensors. It is at most half of the time of the loop.
LOOP_NS = {"SGD": 3_000, "Adagrad": 6_000, "Adam": 13_000, "AdamW": 15_000}
FUSED_GAIN = 0.5
# Three lines with half of the activations, if at least ten lines have some.
MAX_LINES, HEAVY_SHARE, MIN_LINES = 3, 0.5, 10
HEAVY_BYTES = 256 << 20  # Smaller amounts do not limit the batch size.
PEAK_SHARE = 0.3  # Minimum share of the peak that activations take.
# An iteration is slow above this many medians, with at least this many iterations.
SLOW_MEDIANS, MIN_ITERATIONS = 1.5, 5
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Tracked:
    """Inputs shared by the advice rules for the Skyline reports of one run."""

    steps: tuple[Step, ...]
    calls: Calls
    gaps: Gaps | None
    peak_bytes: int | None
    facts: Mapping[str, str] = field(default_factory=dict)
    parts_ns: Mapping[str, int] = field(default_factory=dict)
    """Parts of the median iteration; see `Totals.iteration_parts_ns`."""

    @property
    def timed(self) -> list[Step]:
        """Averaged iterations with their times."""
        return [step for step in typical_steps(self.steps) if step.total_ns]

    @property
    def median_ns(self) -> float:
        """Length of the median iteration; 0 if none was timed."""
        return float(np.median([one.total_ns or 0 for one in self.timed])) if self.timed else 0.0

    def share(self, ns: float) -> float:
        """Return the share of the median iteration without waiting for a CPU."""
        return ns / max(self.median_ns - self.parts_ns.get("waiting_for_cpu", 0), 1.0)

    def of_iteration(self, share: float) -> str:
        """Return the result of `share` in words; costs are shares of the whole iteration."""
        waited_ns = self.parts_ns.get("waiting_for_cpu", 0)
        base = " (CPU wait excluded)" if waited_ns > WAITED_SHARE * self.median_ns else ""
        return f"{percent(share)} of an iteration{base}"

    def line_of(self, part: str) -> str:
        """Return ` at file:line` of a part of the iteration; empty if unknown."""
        line = part_lines(self.facts).get(part)
        return f" at {line}" if line else ""

    def finding(
        self,
        cost_ns: float,
        text: str,
        *,
        kind: str = "",
        advice: str,
        sure: Sureness,
        figures: dict[str, Any],
        evidence: Sequence[Evidence] = (),
        steps: tuple[int, ...] | None = None,
    ) -> Finding:
        """Return a finding of this run; its cost is appended to the text.

        Its kind is by default the name of its rule.
        """
        timed = tuple(int(one.name) for one in self.timed if one.name.isdecimal())
        return Finding(
            kind=kind,
            **describe_run(self.facts),
            steps=timed if steps is None else steps,
            cost_ms_per_step=round(cost_ns / 1e6, 6),
            text=f"{text}; saves up to {duration(cost_ns)} per iteration" if cost_ns else text,
            figures=figures,
            advice=advice,
            sure=sure,
            evidence=tuple(evidence),
        )


def waiting_for_processor(run: Tracked) -> Iterator[Finding]:
    """Find time in which the program waited for a CPU."""
    waits_ns = [one.waited_ns for one in run.timed if one.waited_ns is not None]
    # The part of the median iteration, if known: the report shows it.
    waited = float(run.parts_ns.get("waiting_for_cpu", np.median(waits_ns)))
    share = waited / run.median_ns
    if share < WAITED_SHARE:
        return
    threads, cores = (parsed_fact(run.facts, name, int) for name in ("torch_threads", "processors"))
    own = f"torch runs {threads} threads on {cores} cores" if threads > cores > 0 else ""
    yield run.finding(
        waited,
        f"CPU wait: the process is ready but not running for {percent(share)} of an "
        f"iteration because {own or 'other processes use the cores'}",
        advice=f"use at most {cores} threads (OMP_NUM_THREADS, torch.set_num_threads)"
        if own
        else "free the cores (other processes, DataLoader workers), or use fewer threads per "
        "process (OMP_NUM_THREADS, torch.set_num_threads)",
        sure="certain",
        figures={"waited_ns": round(waited), "share": round(share, 4)}
        | ({"threads": threads} if own else {}),
    )


def _between(run: Tracked) -> tuple[dict[str, float], float, float]:
    """Return the median time between operations by line, of all lines, and without tracking."""
    if run.gaps is None:
        return {}, 0.0, 0.0
    loading = run.line_of("data_loading").removeprefix(" at ")
    sums: dict[str, NDArray[np.float64]] = {}
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
    share = run.share(other_ns)
    if share < PART_SHARE:
        return
    yield run.finding(
        other_ns,
        f"other code: {run.of_iteration(share)} is neither forward, backward, optimizer nor data "
        "loading",
        advice="look for callbacks, logging, metrics and preparation of data: `uprof run --scope "
        "project` shows torch operations in them, cProfile everything else",
        sure="likely",
        figures={"other_ns": round(other_ns), "share": round(share, 4)},
    )


def time_between_operations(run: Tracked) -> Iterator[Finding]:
    """Find time outside operations, passes and other parts, by the lines around it."""
    assert run.gaps is not None
    medians, between, whole = _between(run)
    share = run.share(whole)
    if share < PART_SHARE:
        return
    counts = {line: run.gaps.lines.count(line) for line in medians}
    heaviest = sorted(medians, key=lambda line: -medians[line])[:EVIDENCE_ROWS]
    yield run.finding(
        whole,
        f"between operations: {run.of_iteration(share)}, mostly around {heaviest[0]}",
        advice="check these lines for work outside torch: Python loops, logging, conversion to "
        "lists or NumPy, reading data",
        sure="likely",
        figures={"between_ns": round(whole), "share": round(share, 4), "lines": len(medians)},
        evidence=[
            {
                "name": line,
                "line": line,
                "count": counts[line],
                "total_ns": round(medians[line] * whole / between),
            }
            for line in heaviest
        ],
    )


def data_loading(run: Tracked) -> Iterator[Finding]:
    """Find iterations that wait for the DataLoader."""
    workers = run.facts.get("data_loader_workers", "")
    in_process = workers == "0"
    where = ", in the main process" if in_process else f", with {workers} workers" * bool(workers)
    yield from _part(
        run,
        "data_loading",
        f"data loading{where}",
        "load in worker processes: DataLoader(..., num_workers=N, persistent_workers=True)"
        if in_process
        else "use more workers or a larger prefetch_factor, or make the transforms cheaper",
    )


def synchronizing_reads(run: Tracked) -> Iterator[Finding]:
    """Find time in reads of tensors on the host, which wait for the device."""
    yield from _part(
        run,
        "synchronizing_reads",
        "synchronizing reads (item, tolist, cpu, numpy)",
        "read tensors on the host only every N iterations, for example for logging",
    )


def unfused_optimizer(run: Tracked) -> Iterator[Finding]:
    """Find optimizers that update parameters one by one although a fused version exists."""
    unfused = [
        one
        for one in parsed_fact(run.facts, "optimizers", list)
        if isinstance(one, dict)
        and str(one.get("class")) in LOOP_NS
        and not (one.get("fused") or one.get("foreach") or one.get("sparse"))
        and isinstance(one.get("parameters", 0), int)
    ]
    gain_ns = sum(LOOP_NS[one["class"]] * one.get("parameters", math.inf) for one in unfused)
    gain_ns = min(gain_ns, run.parts_ns.get("optimizer", 0) * FUSED_GAIN)
    if unfused and run.share(gain_ns) >= MIN_SHARE:
        names = ", ".join(dict.fromkeys(one["class"] for one in unfused))
        yield from _part(
            run,
            "optimizer",
            f"optimizer: {names} updates its parameters in a loop",
            "pass fused=True to the optimizer",
            gain_ns=gain_ns,
        )


def _part(
    run: Tracked, part: str, text: str, advice: str, *, gain_ns: float | None = None
) -> Iterator[Finding]:
    """Yield a finding about a part of the iteration if the part takes PART_SHARE of it."""
    part_ns = run.parts_ns.get(part, 0)
    share = run.share(part_ns)
    if share >= PART_SHARE:
        yield run.finding(
            part_ns if gain_ns is None else gain_ns,
            f"{text}: {run.of_iteration(share)}{run.line_of(part)}",
            advice=advice,
            sure="likely",
            figures={f"{part}_ns": part_ns, "share": round(share, 4)},
        )


def recomputation(run: Tracked) -> Iterator[Finding]:
    """Find the cost of activation checkpointing, by operation."""
    calls = run.calls
    assert calls.recomputed_ns is not None
    known = np.flatnonzero(calls.recomputed_ns != UNKNOWN)
    names, number, count = np.unique(calls.name[known], return_inverse=True, return_counts=True)
    times = np.bincount(number, weights=calls.recomputed_ns[known])
    whole = float(times.sum())
    share = run.share(whole)
    if share < PART_SHARE:
        return
    yield run.finding(
        whole,
        f"recomputation: activation checkpointing runs {len(known)} operations again, "
        f"{run.of_iteration(share)}",
        advice="if memory allows, checkpoint fewer blocks, or use a selective policy "
        "(torch.utils.checkpoint.create_selective_checkpoint_contexts) that keeps matmul results",
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
    Chain("RMSNorm", ("pow", "mean", "rsqrt", "mul"), None, "torch.nn.functional.rms_norm"),
)
# Operations that may be part of a chain, by other names of the same operation.
_SAME = {"__matmul__": "matmul", "bmm": "matmul", "square": "pow", "rmul": "mul", "radd": "add"}
_LINKS = frozenset(
    "matmul softmax div truediv mul masked_fill add sub dropout pow tanh mean rsqrt "
    "transpose float to contiguous "
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
        advice="use float32 (module.float(), torch.set_default_dtype) unless the result needs more "
        "than 7 digits; NumPy arrays and Python floats become float64",
        sure="likely",
        figures={"share": round(share, 4), "weight_bytes": sizes},
    )


# Minimum calls of one operation by one module at one line, and share of an iteration of all such
# operations there.
LOOP_CALLS, LOOP_SHARE = 32, 0.2


def loops(run: Tracked) -> Iterator[Finding]:
    """Find lines that run the same operations many times in each iteration, as in a loop."""
    calls = run.calls
    assert calls.total_ns is not None
    assert calls.line is not None
    rows = np.flatnonzero((calls.total_ns > 0) & (calls.line != UNKNOWN))
    module = np.full(len(calls), UNKNOWN) if calls.module is None else calls.module
    keys = np.stack([calls.line[rows], module[rows], calls.name[rows]])
    groups, of_row, count = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(count >= LOOP_CALLS)
    if not len(repeated):
        return
    group_ns = np.bincount(of_row, weights=calls.total_ns[rows], minlength=len(count))[repeated]
    places, place = np.unique(groups[:2, repeated], axis=1, return_inverse=True)
    place_ns = np.bincount(place, weights=group_ns)
    worst = int(place_ns.argmax())
    if run.share(float(place_ns[worst])) < LOOP_SHARE:
        return
    texts = calls.labels.texts
    own = np.flatnonzero(place == worst)
    own = own[np.argsort(-group_ns[own], kind="stable")]
    line, name = texts[int(places[0, worst])], texts[int(groups[2, repeated[own[0]]])]
    yield run.finding(
        float(place_ns[worst]),
        f"loop at {line}: {name} runs {int(count[repeated[own[0]]]):,} times in each iteration; "
        f"the repeated operations are {run.of_iteration(run.share(float(place_ns[worst])))}",
        advice="replace the loop by operations on larger tensors: nn.LSTM for nn.LSTMCell, "
        "batched indexing, torch.vmap, a larger batch in place of many",
        sure="possible",
        figures={
            "calls": int(count[repeated[own]].sum()),
            "share": round(run.share(float(place_ns[worst])), 4),
        },
        evidence=[
            {
                "name": texts[int(groups[2, repeated[at]])],
                "line": line,
                "count": int(count[repeated[at]]),
                "total_ns": round(float(group_ns[at])),
            }
            for at in own[:EVIDENCE_ROWS].tolist()
        ],
    )


# Minimum duration of an operation that several threads make faster; they start in about 10 us.
DIVISIBLE_NS = 100_000


def single_thread(run: Tracked) -> Iterator[Finding]:
    """Find single-threaded passes on a host with more processors."""
    processors = parsed_fact(run.facts, "processors", int)
    passes_ns = run.parts_ns.get("forward", 0) + run.parts_ns.get("backward", 0)
    times_ns = run.calls.total_ns
    if times_ns is not None:
        passes_ns = min(passes_ns, int(times_ns[times_ns >= DIVISIBLE_NS].sum()))
    share = run.share(passes_ns)
    alone = parsed_fact(run.facts, "torch_threads", int) == 1 and "rank" not in run.facts
    if not alone or processors < 2 or share < 0.5:
        return
    yield run.finding(
        passes_ns * (1 - 1 / processors),
        f"one thread: torch uses 1 of {processors} processors, long operations take "
        f"{run.of_iteration(share)}",
        advice="set OMP_NUM_THREADS or call torch.set_num_threads",
        sure="possible",
        figures={"processors": processors, "share": round(share, 4)},
    )


def activation_heavy_lines(run: Tracked) -> Iterator[Finding]:
    """Find lines that save most of the activations."""
    calls = run.calls
    assert calls.activation_bytes is not None
    assert calls.line is not None
    kept = np.flatnonzero((calls.activation_bytes > 0) & (calls.line != UNKNOWN))
    lines, number, count = np.unique(calls.line[kept], return_inverse=True, return_counts=True)
    size = np.bincount(number, weights=calls.activation_bytes[kept])
    order = np.argsort(-size, kind="stable")
    whole = int(calls.activation_bytes[calls.activation_bytes > 0].sum())
    most = float(size[order[:MAX_LINES]].sum()) / max(whole, 1)
    small = whole < HEAVY_BYTES or whole < PEAK_SHARE * (run.peak_bytes or 0)
    if len(lines) < MIN_LINES or most < HEAVY_SHARE or small:
        return
    texts = calls.labels.texts
    yield run.finding(
        0,
        f"{MAX_LINES} of {len(lines)} lines save {percent(most)} of the activations "
        f"({whole / _MIB:,.0f} "
        "MiB)",
        advice="use torch.utils.checkpoint around these lines, a fused operation or a smaller "
        "dtype, so that a larger batch fits",
        sure="certain",
        figures={"activation_bytes": whole, "share": round(most, 4), "lines": len(lines)},
        evidence=[
            {
                "name": texts[int(lines[at])],
                "line": texts[int(lines[at])],
                "count": int(count[at]),
                "total_bytes": int(size[at]),
            }
            for at in order[:EVIDENCE_ROWS].tolist()
        ],
    )


PERIODIC_ADVICE = {
    "forward_without_gradients": "if this is evaluation, run it less often or on fewer batches",
    "compilation": "compile for all shapes with torch.compile(dynamic=True), or pad inputs to few "
    "shapes; TORCH_LOGS=recompiles shows why code was compiled again",
    "saving": "save less often, or in the background (torch.distributed.checkpoint.async_save)",
}


def periodic_work(run: Tracked) -> Iterator[Finding]:
    """Find evaluation, compilation and checkpoints in each measured iteration."""
    for part in PERIODIC_PARTS:
        yield from _part(run, part, part.replace("_", " "), PERIODIC_ADVICE[part])


def anomaly_detection(run: Tracked) -> Iterator[Finding]:
    """Find a debug mode of the backward pass."""
    if "detect_anomaly" in run.facts:
        share = run.share(run.parts_ns.get("backward", 0))
        yield run.finding(
            0,
            "anomaly detection is on (torch.autograd.set_detect_anomaly): operations record their "
            f"stacks, backward passes ({run.of_iteration(share)}) check gradients for NaN",
            advice="turn it off, except to find the cause of NaN",
            sure="certain",
            figures={"backward_share": round(share, 4)},
        )


def _parts_of(step: Step) -> dict[str, int]:
    """Return the parts of a step without waiting for a CPU, and the rest as `other`."""
    parts = {
        **step.parts_ns,
        "forward": (step.forward_ns or 0) - (step.forward_waited_ns or 0),
        "backward": (step.backward_ns or 0) - (step.backward_waited_ns or 0),
    }
    return {"other": step.run_ns - sum(parts.values()), **parts}


def slow_iterations(run: Tracked) -> Iterator[Finding]:
    """Find individual slow iterations that did not wait for a CPU."""
    timed, median = timed_steps(run.steps)[1:], run.median_ns
    periodic = {one.name for one in timed if one.is_periodic} - {one.name for one in run.timed}
    slow = [one for one in timed if one.run_ns > SLOW_MEDIANS * median or one.name in periodic]
    usual_ns = median - run.parts_ns.get("waiting_for_cpu", 0)
    cost = sum(one.run_ns - usual_ns for one in slow) / max(len(timed), 1)
    if cost < MIN_SHARE * median or not slow:
        return
    worst = max(slow, key=lambda one: one.run_ns)
    parts = {part: ns - run.parts_ns.get(part, 0) for part, ns in _parts_of(worst).items()}
    part = max(parts, key=parts.__getitem__)
    named = "other code" if part == "other" else part.replace("_", " ")
    is_cause = bool(run.parts_ns) and 2 * parts[part] > worst.run_ns - usual_ns
    cause = f", {duration(parts[part])} of it in {named}{run.line_of(part)}" if is_cause else ""
    yield run.finding(
        cost,
        f"iteration {worst.name} takes {duration(worst.run_ns)}, median {duration(usual_ns)}"
        f"{cause} ({len(slow)} of {len(timed)} iterations)",
        advice=PERIODIC_ADVICE.get(part if cause else "")
        or "check what else this iteration did: logging, checkpoint, evaluation, other shapes",
        # Threads of other programs delay single passes, too.
        sure="certain" if cause and part in PERIODIC_ADVICE else "possible",
        figures={"slow": len(slow), "iterations": len(timed), "median_ns": round(median)},
        evidence=[
            {"name": f"iteration {one.name}", "count": 1, "total_ns": one.total_ns} for one in slow
        ][:EVIDENCE_ROWS],
        steps=tuple(int(one.name) for one in slow if one.name.isdecimal()),
    )


_PASSES = frozenset({"forward", "backward", "other", "waiting_for_cpu"})
_NO_PARTS = "parts of iterations not recorded (table UPROF_ITERATION_PARTS)"
# Rule, whether a run has the data for it, and what is missing otherwise.
RULES: tuple[tuple[Callable[[Tracked], Iterator[Finding]], Callable[[Tracked], bool], str], ...] = (
    (
        waiting_for_processor,
        lambda run: any(one.waited_ns is not None for one in run.timed),
        "processor wait not measured",
    ),
    (
        time_between_operations,
        lambda run: run.gaps is not None and run.median_ns > 0,
        "time between operations not recorded (table UPROF_GAPS)",
    ),
    *(
        (
            rule,
            lambda run: "part_lines" in run.facts or bool(set(run.parts_ns) - _PASSES),
            _NO_PARTS,
        )
        for rule in (
            data_loading,
            synchronizing_reads,
            unfused_optimizer,
            periodic_work,
            anomaly_detection,
            other_code,
        )
    ),
    (
        recomputation,
        lambda run: run.calls.recomputed_ns is not None and run.median_ns > 0,
        "no activation checkpointing recorded",
    ),
    *(
        (
            rule,
            lambda run: run.calls.total_ns is not None and run.calls.line is not None,
            "times by line not recorded (run time report)",
        )
        for rule in (unfused_chains, loops)
    ),
    (
        double_precision,
        lambda run: "weight_types" in run.facts and run.calls.total_ns is not None,
        "types of weights not recorded (memory report)",
    ),
    (
        single_thread,
        lambda run: run.facts.get("device", "").startswith("cpu") and "processors" in run.facts,
        "number of processors not recorded, or not a CPU run",
    ),
    (
        activation_heavy_lines,
        lambda run: run.calls.activation_bytes is not None and run.calls.line is not None,
        "activations by line not recorded (memory report)",
    ),
    (
        slow_iterations,
        lambda run: len(timed_steps(run.steps)) > MIN_ITERATIONS,
        f"fewer than {MIN_ITERATIONS + 1} iterations recorded",
    ),
)


def advise(run: Tracked) -> Advice:
    """Evaluate the rules and return the findings, most expensive first."""
    by_rule = {
        rule.__name__: [replace(one, kind=one.kind or rule.__name__) for one in rule(run)]
        if has_data(run)
        else None
        for rule, has_data, _ in RULES
    }
    findings = [finding for result in by_rule.values() for finding in result or ()]
    return Advice(
        findings=tuple(
            sorted(findings, key=lambda finding: (-finding.cost_ms_per_step, finding.kind))
        ),
        not_judged=tuple(
            NotJudged(rule.__name__, why)
            for rule, _, why in RULES
            if by_rule[rule.__name__] is None
        ),
        judged=tuple(kind for kind, result in by_rule.items() if result == []),
        steps=len(run.timed),
        step_ms=round(run.median_ns / 1e6, 6) if run.median_ns else None,
        statistic="median",
    )
