"""From raw iterations to records: the sequence most iterations share, and its samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from unified_prof.tracking.anomalies import Anomalies
from unified_prof.tracking.calls import MAX_CALLS, Iteration
from unified_prof.tracking.device import Clock, Mark
from unified_prof.tracking.frames import Stack
from unified_prof.tracking.gaps import gap_site
from unified_prof.tracking.records import (
    ActivationRecord,
    GapRecord,
    IterationRecord,
    OperationRecord,
)
from unified_prof.tracking.sites import Site, SiteTable
from unified_prof.tracking.waiting import waited_within
from unified_prof.units import NS_PER_MS

Span = tuple[Mark, Mark]
"""Start and end of a stretch of time."""

Sequenced = tuple[tuple[Site, bool], ...]
"""The kept operations of an iteration, in order: what was called where, and whether it took
part in the backward pass."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One iteration in numbers; the tuples run along `sequence`."""

    sequence: Sequenced
    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    gap_ms: tuple[float | None, ...]
    """From the call before (of any operation) in the same forward pass; None: it was the first."""
    stacks: tuple[tuple[Stack, Stack] | None, ...]
    """Where the call before a gap and the one after it stood; None where there is no gap."""
    record: IterationRecord


def measure(iteration: Iteration, sites: SiteTable, clock: Clock) -> Measured:
    """Turn the marks of one iteration into times; the clock must have been synchronised."""
    elapsed = clock.elapsed_ms
    node_ms: dict[int, float] = {}
    for owner, start, end in iteration.nodes:
        node_ms[owner] = node_ms.get(owner, 0.0) + elapsed(start, end)
    sequence, indexes, forward, backward = [], [], [], []
    gap_ms: list[float | None] = []
    stacks: list[tuple[Stack, Stack] | None] = []
    pass_starts = {0, *iteration.optimizer_steps, *(count for count, _, _ in iteration.backwards)}
    for index, call in enumerate(iteration.calls):
        site = sites.site(call, with_set_up=iteration.with_set_up)
        if site.kept:
            sequence.append((site, index in node_ms))
            indexes.append(index)
            forward.append(elapsed(call.start, call.end))
            backward.append(node_ms.get(index, 0.0))
            before = _before(iteration, index, pass_starts)
            gap_ms.append(None if before is None else elapsed(before[0], call.start))
            stacks.append(None if before is None else (before[1], call.stack))
    forward_spans = _forward_spans(iteration, indexes)
    backward_spans = [(start, end) for _, start, end in iteration.backwards]
    return Measured(
        sequence=tuple(sequence),
        forward_ms=tuple(forward),
        backward_ms=tuple(backward),
        gap_ms=tuple(gap_ms),
        stacks=tuple(stacks),
        record=IterationRecord(
            total_ms=elapsed(iteration.begin, iteration.end),
            forward_ms=_total_ms(forward_spans, clock) if indexes else None,
            backward_ms=_total_ms(backward_spans, clock) if iteration.backwards else None,
            peak_usage_bytes=None,
            matched=True,
            waited_ms=_waited_ms(iteration, [(iteration.begin, iteration.end)]),
            forward_waited_ms=_waited_ms(iteration, forward_spans) if indexes else None,
            backward_waited_ms=_waited_ms(iteration, backward_spans)
            if iteration.backwards
            else None,
        ),
    )


def _before(iteration: Iteration, index: int, pass_starts: set[int]) -> tuple[Mark, Stack] | None:
    """Return when and where the last operation before call `index` ended, within its pass."""
    if index == 0:
        return (iteration.begin, ()) if iteration.begins_with_forward else None
    if index in pass_starts:
        return None
    call = iteration.calls[index - 1]
    # What ran outside the model may have loaded data since.
    known = call.stack or iteration.begins_with_forward
    return (call.end, call.stack) if known else None


def _total_ms(spans: Sequence[Span], clock: Clock) -> float:
    return sum((clock.elapsed_ms(start, end) for start, end in spans), 0.0)


def _waited_ms(iteration: Iteration, spans: Sequence[Span]) -> float | None:
    waited_ns = waited_within(iteration.waits, spans)
    return None if waited_ns is None else waited_ns / NS_PER_MS


def _forward_spans(iteration: Iteration, kept: Sequence[int]) -> list[Span]:
    """Return the forward passes: from a first kept operation to the backward pass.

    A forward pass that no backward follows ends with its last kept operation.
    """
    calls = iteration.calls
    ends = [(count, start) for count, start, _ in iteration.backwards]
    ends += [(count, None) for count in iteration.optimizer_steps]
    ends.append((len(calls), None))
    ends.sort(key=lambda end: end[0])
    spans = []
    position = 0
    for count, backward_start in ends:
        first = position
        while position < len(kept) and kept[position] < count:
            position += 1
        if position > first:
            end = backward_start if backward_start is not None else calls[kept[position - 1]].end
            spans.append((calls[kept[first]].start, end))
    return spans


def operations_of(
    measured: Sequence[Measured], anomalies: Anomalies
) -> tuple[tuple[OperationRecord, ...], tuple[IterationRecord, ...], Measured]:
    """Return the operations of the commonest sequence with a sample of each iteration that has it.

    Iterations with another sequence are marked as unmatched and give no sample. Also returns
    the first iteration that has the sequence.
    """
    commonest = Counter(one.sequence for one in measured).most_common(1)[0][0]
    matched = [one for one in measured if one.sequence == commonest]
    for number, one in enumerate(measured):
        if one.sequence != commonest:
            detail = f"iteration {number}: {_difference(one.sequence, commonest)}"
            anomalies.add("iterations_with_other_operations", detail)
    operations = tuple(
        OperationRecord(
            name=site.name,
            frames=site.frames,
            module_path=site.module_path,
            module_class=site.module_class,
            forward_ms=tuple(one.forward_ms[position] for one in matched),
            backward_ms=tuple(one.backward_ms[position] for one in matched)
            if in_backward
            else None,
            gap=_gap(matched, position),
        )
        for position, (site, in_backward) in enumerate(commonest)
    )
    records = tuple(replace(one.record, matched=one.sequence == commonest) for one in measured)
    return operations, records, matched[0]


def _gap(matched: Sequence[Measured], position: int) -> GapRecord | None:
    """Return the time before an operation, where every iteration has it and it has a place."""
    samples = [value for one in matched if (value := one.gap_ms[position]) is not None]
    stacks = matched[0].stacks[position]
    site = None if stacks is None else gap_site(*stacks)
    if site is None or len(samples) < len(matched):
        return None
    # Events of a device may be recorded out of order on two streams; a gap is never negative.
    times = tuple(max(0.0, value) for value in samples)
    return GapRecord(site.file_path, site.first_line, site.last_line, times)


def activations_of(
    iteration: Iteration, saved_bytes: dict[int, int], sites: SiteTable
) -> tuple[tuple[ActivationRecord, ...], int]:
    """Return what each kept operation of the backward pass saved, and the bytes of all others.

    Where there was no backward pass, every operation with autograd nodes could be of one.
    """
    records = []
    anything = not iteration.backwards
    rest = dict(saved_bytes)
    for index, call in enumerate(iteration.calls):
        site = sites.site(call, with_set_up=iteration.with_set_up)
        in_graph = index in saved_bytes or (anything and call.last_node != call.first_node)
        if site.kept and in_graph:
            records.append(
                ActivationRecord(
                    operation_name=site.name,
                    module_path=site.module_path,
                    module_class=site.module_class,
                    size_bytes=rest.pop(index, 0),
                    frames=site.frames,
                )
            )
    return tuple(records), sum(rest.values())


def _difference(sequence: Sequenced, reference: Sequenced) -> str:
    """Say where two sequences part."""
    for position, (one, other) in enumerate(zip(sequence, reference, strict=False)):
        if one != other:
            return f"operation {position} is {_say(one)}, in most iterations {_say(other)}"
    return f"{len(sequence)} operations, in most iterations {len(reference)}"


def _say(entry: tuple[Site, bool]) -> str:
    site, in_backward = entry
    where = f" at {site.frames[0].file_path}:{site.frames[0].line_number}" if site.frames else ""
    return f"{site.name}{where} {'with' if in_backward else 'without'} backward"


def note_oddities(iterations: Sequence[Iteration], anomalies: Anomalies) -> None:
    """Count what the iterations themselves show to be strange."""
    for number, iteration in enumerate(iterations):
        for loss in iteration.losses:
            with anomalies.fenced("loss_not_read", "whether the loss is finite"):
                value = float(loss)
                if not math.isfinite(value):
                    anomalies.add("loss_not_finite", f"iteration {number}: the loss is {value}")
        anomalies.add(
            "backward_nodes_not_of_this_iteration",
            f"iteration {number}: the graph holds nodes made by another thread or before the "
            "iteration began; their backward belongs to no operation",
            iteration.foreign_nodes,
        )
        anomalies.add(
            "operations_not_recorded",
            f"iteration {number}: only its first {MAX_CALLS} operations were kept",
            iteration.dropped_calls,
        )
