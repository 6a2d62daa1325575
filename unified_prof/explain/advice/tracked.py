"""Advice rules for tracked workloads (Skyline reports): the parts of an iteration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from unified_prof.base.text import parsed_fact, part_lines
from unified_prof.explain.advice.idle_segments import (
    DENSE_SHARE,
    EVIDENCE_ROWS,
    KEEP_KEYS,
    MIN_SHARE,
    SPARSE_GRADIENTS,
    describe_run,
    duration,
    percent,
)
from unified_prof.recording.calls import Calls, known_sum
from unified_prof.recording.model import (
    PERIODIC_PARTS,
    Evidence,
    Finding,
    Gaps,
    Step,
    Sureness,
    timed_steps,
    typical_steps,
)

WAITED_SHARE = 0.10  # Minimum share of an iteration; an otherwise idle machine stays far below.
PART_SHARE = 0.10  # Minimum share of an iteration that a part takes, as for host-bound devices.
BATCH_SHARE = 0.30  # Minimum share of an iteration outside of operations on single samples.
PASS_SHARE = 0.05  # Minimum share of an iteration that repeated backward passes take.
# Time that a fused implementation saves per parameter on a CPU: the calls of a Python loop, not the
# traffic of large tensors. It is at most half of the time of the loop.
LOOP_NS = {"SGD": 3_000, "Adagrad": 6_000, "Adam": 13_000, "AdamW": 15_000}
FUSED_GAIN = 0.5
# An iteration is slow above this many medians, with at least this many iterations.
SLOW_MEDIANS, MIN_ITERATIONS = 1.5, 5


class Tracked(Struct, frozen=True):
    """Inputs shared by the advice rules for the Skyline reports of one run."""

    steps: tuple[Step, ...]
    calls: Calls
    gaps: Gaps | None
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
        """Return a finding of this run; its kind is by default the name of its rule."""
        timed = tuple(int(one.name) for one in self.timed if one.name.isdecimal())
        return Finding(
            kind=kind,
            **describe_run(self.facts),
            steps=timed if steps is None else steps,
            cost_ms_per_step=round(cost_ns / 1e6, 6),
            text=text,
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


KEEP_WORKERS = "keep the workers between epochs: DataLoader(..., persistent_workers=True)"


def data_loading(run: Tracked) -> Iterator[Finding]:
    """Find iterations that wait for the DataLoader."""
    workers = run.facts.get("data_loader_workers", "")
    where = f", with {workers} workers" * bool(workers)
    advice = "use more workers or a larger prefetch_factor, or make the transforms cheaper"
    if workers == "0":
        where = ", in the main process"
        advice = (
            "make loading of a sample cheaper: open files once, store decoded and resized data; or "
            "load in worker processes: DataLoader(..., num_workers=N, persistent_workers=True)"
        )
    elif batches := run.facts.get("batches_per_worker_start"):
        where += f" that start again every {batches} batches"
        advice = KEEP_WORKERS
    yield from _part(run, "data_loading", f"data loading{where}", advice)


def synchronizing_reads(run: Tracked) -> Iterator[Finding]:
    """Find time in reads of tensors on the host, which wait for the device."""
    text = "synchronizing reads (item, tolist, cpu, numpy)"
    advice = "read tensors on the host only every N iterations, for example for logging"
    yield from _part(run, "synchronizing_reads", text, advice)


def unfused_optimizer(run: Tracked) -> Iterator[Finding]:
    """Find optimizers that update parameters one by one although a fused version exists."""
    optimizers = parsed_fact(run.facts, "optimizers", list)
    unfused = [
        one
        for one in optimizers
        if isinstance(one, dict)
        and str(one.get("class")) in LOOP_NS
        and not (one.get("fused") or one.get("foreach") or one.get("sparse"))
        and isinstance(one.get("parameters", 0), int)
    ]
    gain_ns = sum(LOOP_NS[one["class"]] * one.get("parameters", math.inf) for one in unfused)
    gain_ns = min(gain_ns, run.parts_ns.get("optimizer", 0) * FUSED_GAIN)
    if unfused and run.share(gain_ns) >= MIN_SHARE:
        names = ", ".join(dict.fromkeys(one["class"] for one in unfused))
        text = f"optimizer: {names} updates its parameters in a loop"
        if len(unfused) < len(optimizers):
            text += "; all optimizers together"
        advice = "pass fused=True to the optimizer"
        yield from _part(run, "optimizer", text, advice, gain_ns=gain_ns)


def _part(
    run: Tracked,
    part: str,
    text: str,
    advice: str,
    *,
    gain_ns: float | None = None,
    sure: Sureness = "likely",
) -> Iterator[Finding]:
    """Yield a finding about a part of the iteration if the part takes PART_SHARE of it."""
    part_ns = run.parts_ns.get(part, 0)
    share = run.share(part_ns)
    if share >= PART_SHARE:
        yield run.finding(
            part_ns if gain_ns is None else gain_ns,
            f"{text}: {run.of_iteration(share)}{run.line_of(part)}",
            advice=advice,
            sure=sure,
            figures={f"{part}_ns": part_ns, "share": round(share, 4)},
        )


PERIODIC_ADVICE = {
    "forward_without_gradients": "if this is evaluation, run it less often or on fewer batches; "
    "run rollouts, teachers and target networks on large batches",
    "compilation": "compile for all shapes with torch.compile(dynamic=True), or pad inputs to few "
    "shapes; TORCH_LOGS=recompiles shows why code was compiled again",
    "saving": "save less often, or in the background (torch.distributed.checkpoint.async_save)",
}


def periodic_work(run: Tracked) -> Iterator[Finding]:
    """Find evaluation, compilation and checkpoints in each measured iteration."""
    for part in PERIODIC_PARTS:
        # Forward passes without gradients may be what the program needs, such as rollouts.
        sure: Sureness = "possible" if part == "forward_without_gradients" else "likely"
        yield from _part(run, part, part.replace("_", " "), PERIODIC_ADVICE[part], sure=sure)


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
    # Without a free processor, more threads are slower.
    alone &= run.parts_ns.get("waiting_for_cpu", 0) <= WAITED_SHARE * run.median_ns
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


# Facts about modes that make operations slow: kind and text of the finding, and what to do.
MODES = {
    "detect_anomaly": (
        "anomaly_detection",
        "anomaly detection is on (torch.autograd.set_detect_anomaly): operations record their "
        "stacks, backward passes check gradients for NaN",
        "turn it off, except to find the cause of NaN",
    ),
    "slow_autocast": (
        "slow_autocast",
        "autocast to {}, in which this processor does not compute: operations convert to float32 "
        "and back, or use slow code",
        "use float32, or bfloat16 where the processor supports it",
    ),
}


def slow_modes(run: Tracked) -> Iterator[Finding]:
    """Find debug modes and data types that make operations slow; their cost is unknown."""
    for fact, (kind, text, advice) in MODES.items():
        if fact in run.facts:
            text = text.format(run.facts[fact])
            yield run.finding(0, text, kind=kind, advice=advice, sure="certain", figures={})


def unused_activations(run: Tracked) -> Iterator[Finding]:
    """Find inference that saves activations for a backward pass that never runs; cost unknown."""
    saved = known_sum(run.calls.activation_bytes) or 0
    if saved and not {"backward", "optimizer"} & {part for part, ns in run.parts_ns.items() if ns}:
        yield run.finding(
            0,
            f"no backward pass uses the activations that forward passes save ({saved / 2**20:.1f} "
            "MiB)",
            advice="run inference under torch.inference_mode()",
            sure="likely",
            figures={"activation_bytes": saved},
        )


def repeated_backward(run: Tracked) -> Iterator[Finding]:
    """Find backward passes that go through the same graph again."""
    repeated_ns = parsed_fact(run.facts, "repeated_backward_ns", int)
    # Tracking makes the timed passes longer than those of the iteration.
    passes_ns = known_sum(run.calls.backward_ns) or 0
    if passes_ns and (backward_ns := run.parts_ns.get("backward", 0)):
        repeated_ns = round(repeated_ns * min(backward_ns / passes_ns, 1.0))
    share = run.share(repeated_ns)
    if share >= PASS_SHARE:
        yield run.finding(
            repeated_ns,
            "repeated backward: passes with retain_graph=True go through the same part of the "
            f"graph more than once, {run.of_iteration(share)}{run.line_of('backward')}",
            advice="add the losses and call backward once; detach state that is kept from one pass "
            "to the next (state.detach()), and results in which other losses need no gradient, as "
            "in loss(discriminator(fake.detach()))",
            sure="likely",
            figures={"repeated_backward_ns": repeated_ns, "share": round(share, 4)},
        )


def padding(run: Tracked) -> Iterator[Finding]:
    """Find batches that are longer than their longest sequence."""
    counts = parsed_fact(run.facts, "padding", list)
    if len(counts) != 2 or not all(isinstance(one, int) and one > 0 for one in counts):
        return
    padded = min(counts[0] / counts[1], 1.0)
    cost = padded * (run.parts_ns.get("forward", 0) + run.parts_ns.get("backward", 0))
    if run.share(cost) >= PART_SHARE:
        yield run.finding(
            cost,
            f"padding: {counts[0]:,} of {counts[1]:,} positions are padding in all sequences of a "
            "batch",
            advice="pad to the longest sequence of each batch, and put sequences of similar length "
            "into one batch",
            sure="likely",
            figures={"padded": counts[0], "positions": counts[1]},
        )


MIN_KEPT_BYTES, KEPT_SHARE = 2**20, 0.10  # Minimum of kept results, and share of activations.


def kept_graph(run: Tracked) -> Iterator[Finding]:
    """Find results of an iteration that later iterations keep; their cost is unknown."""
    kept = parsed_fact(run.facts, "kept_activation_bytes", int)
    saved = parsed_fact(run.facts, "most_saved_bytes_at_once", int)
    if kept >= max(MIN_KEPT_BYTES, KEPT_SHARE * saved):
        yield run.finding(
            0,
            f"kept graph: {kept / 2**20:.1f} MiB of activations of one iteration remain in memory "
            "in later iterations, so memory grows",
            advice="detach what is kept between iterations: total += loss.item(), "
            "state = state.detach()",
            sure="likely",
            figures={"kept_bytes": kept},
        )


def untrained_gradients(run: Tracked) -> Iterator[Finding]:
    """Find the backward pass of a network whose parameters no optimizer updates."""
    match parsed_fact(run.facts, "untrained_backward", list):
        case [int(cost), str(line)] if (share := run.share(cost)) >= PART_SHARE:
            yield run.finding(
                cost,
                "unused gradients: the backward pass of a network whose parameters are in no "
                f"optimizer takes {run.of_iteration(share)}, mostly of operations at {line}",
                advice="call this network under torch.no_grad()",
                sure="likely",
                figures={"backward_ns": cost, "share": round(share, 4)},
            )


def dense_embedding(run: Tracked) -> Iterator[Finding]:
    """Find tables of embeddings whose gradients are mostly zeros."""
    tables = [
        one
        for one in parsed_fact(run.facts, "dense_embeddings", list)
        if isinstance(one, list)
        and len(one) == 3
        and all(isinstance(number, int) and number > 0 for number in one)
    ]
    size = sum(one[2] for one in tables)
    types = parsed_fact(run.facts, "weight_types", dict)
    weights = sum(one for one in types.values() if isinstance(one, int))
    if not tables or run.calls.backward_ns is None or size > weights:
        return
    texts = run.calls.labels.texts
    is_lookup = np.array([texts[name] == "embedding" for name in run.calls.name.tolist()], bool)
    cost = float(np.maximum(run.calls.backward_ns[is_lookup], 0).sum())
    # Parts that read or write all gradients.
    parts = ("optimizer", "zero_grad", "gradient_clipping")
    cost += sum(run.parts_ns.get(part, 0) for part in parts) * size / weights
    cost *= sum(one[2] * (1 - one[1] / one[0]) for one in tables) / size
    if (share := run.share(cost)) >= DENSE_SHARE:
        rows, used = sum(one[0] for one in tables), sum(one[1] for one in tables)
        yield run.finding(
            cost,
            f"dense embedding gradients: {run.of_iteration(share)}; gradients of {rows:,} rows are "
            f"filled with zeros and updated, but an iteration looks up at most {used:,}",
            advice=SPARSE_GRADIENTS,
            sure="likely",
            figures={"rows": rows, "used": used, "share": round(share, 4)},
        )


def no_kv_cache(run: Tracked) -> Iterator[Finding]:
    """Find generation that computes earlier positions again."""
    match parsed_fact(run.facts, "growing_sequence", list):
        case [int(cost), int(length)] if (share := run.share(cost)) >= PART_SHARE:
            yield run.finding(
                cost,
                f"no KV cache: {run.of_iteration(share)} is for positions that were computed "
                f"before; the sequence grows with each call of the model (median {length})",
                advice=KEEP_KEYS,
                sure="likely",
                figures={"length": length, "share": round(share, 4)},
            )


def python_in_autograd(run: Tracked) -> Iterator[Finding]:
    """Find autograd functions whose passes run NumPy or read single elements."""
    texts = run.calls.labels.texts
    for name, passes in parsed_fact(run.facts, "python_functions", dict).items():
        columns = {"forward": run.calls.forward_ns, "backward": run.calls.backward_ns}
        noted = [one for one in columns if isinstance(passes, list) and one in passes]
        rows = np.array([texts[one] == name for one in run.calls.name.tolist()], bool)
        times = [ns for one in noted if (ns := columns[one]) is not None]
        cost = sum(int(np.maximum(ns[rows], 0).sum()) for ns in times)
        if (share := run.share(cost)) >= PART_SHARE:
            yield run.finding(
                cost,
                f"Python in autograd function: NumPy, or reads of single elements, in the "
                f"{' and '.join(noted)} of {name}, {run.of_iteration(share)}",
                advice="use torch operations on whole tensors, or a C++ extension",
                sure="possible",
                figures={"function": name, "share": round(share, 4)},
            )


CALL_NS = 5_000  # Time of Python and torch around each operation, which is not waste.


def batch_of_one(run: Tracked) -> Iterator[Finding]:
    """Find data loaders that return single samples, if the time is not that of operations."""
    if parsed_fact(run.facts, "largest_batch", int) != 1 or run.calls.total_ns is None:
        return
    short_ns = np.minimum(run.calls.total_ns, CALL_NS)
    waited_ns = run.parts_ns.get("waiting_for_cpu", 0)
    operations_ns = float(np.maximum(run.calls.total_ns - short_ns, 0).sum())
    cost = run.median_ns - waited_ns - operations_ns
    if (share := run.share(cost)) >= BATCH_SHARE:
        yield run.finding(
            cost,
            f"batch of one: {run.of_iteration(share)} is outside of operations, which a larger "
            "batch has once for all samples",
            advice="use a larger batch_size",
            sure="possible",
            figures={"share": round(share, 4)},
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
    advice = PERIODIC_ADVICE.get(part)
    if part == "data_loading" and (batches := run.facts.get("batches_per_worker_start")):
        named, advice = f"data loading, whose workers start every {batches} batches,", KEEP_WORKERS
    is_cause = bool(run.parts_ns) and 2 * parts[part] > worst.run_ns - usual_ns
    cause = f", {duration(parts[part])} of it in {named}{run.line_of(part)}" if is_cause else ""
    waits = (
        " without waits for a CPU" if (worst.total_ns or 0) > (1 + MIN_SHARE) * worst.run_ns else ""
    )
    yield run.finding(
        cost,
        f"iteration {worst.name} takes {duration(worst.run_ns)}{waits}, median {duration(usual_ns)}"
        f"{cause} ({len(slow)} of {len(timed)} iterations)",
        advice=(cause and advice)
        or "check what else this iteration did: logging, checkpoint, evaluation, other shapes",
        # Threads of other programs delay single passes, too.
        sure="certain" if cause and advice else "possible",
        figures={"slow": len(slow), "iterations": len(timed), "median_ns": round(median)},
        evidence=[
            {"name": f"iteration {one.name}", "count": 1, "total_ns": one.total_ns} for one in slow
        ][:EVIDENCE_ROWS],
        steps=tuple(int(one.name) for one in slow if one.name.isdecimal()),
    )
