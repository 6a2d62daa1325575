"""The figures that are shown at the end of a run, from the records still in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from unified_prof.tracking.records import IterationRecord, OperationRecord, TrackedRun


@dataclass(frozen=True, slots=True)
class OperationTotal:
    """All calls of one operation from one place in the source, in one iteration."""

    name: str
    location: str | None
    """`file:line` of the most specific frame; None: no frame in the project."""
    calls: int
    forward_ms: float
    backward_ms: float | None
    """None: none of the calls took part in the backward pass."""

    @property
    def total_ms(self) -> float:
        """Forward and backward together."""
        return self.forward_ms + (self.backward_ms or 0.0)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Medians over the measured iterations; None where it could not be measured."""

    device: str
    complete: bool
    iterations: int
    matched_iterations: int
    operations: int
    iteration_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    other_ms: float | None
    """The optimizer and everything else that is neither forward nor backward."""
    unattributed_forward_ms: float | None
    """Forward time outside the operations of the report."""
    unattributed_backward_ms: float | None
    peak_usage_bytes: int | None
    weights_bytes: int
    gradients_bytes: int
    activations_bytes: int
    most_expensive: tuple[OperationTotal, ...]
    anomalies: Mapping[str, tuple[int, str]]


def summarize(run: TrackedRun, top: int = 10) -> RunSummary:
    """Return the headline figures of `run` and its `top` most expensive operations."""
    matched = [iteration for iteration in run.iterations if iteration.matched]
    totals = operation_totals(run.operations)
    iteration_ms = _median(matched, lambda iteration: iteration.total_ms)
    forward_ms = _median(matched, lambda iteration: iteration.forward_ms)
    backward_ms = _median(matched, lambda iteration: iteration.backward_ms)
    other_ms = _median(matched, _other_ms)
    attributed_forward_ms = sum(total.forward_ms for total in totals)
    attributed_backward_ms = sum(total.backward_ms or 0.0 for total in totals)
    return RunSummary(
        device=run.device,
        complete=run.complete,
        iterations=len(run.iterations),
        matched_iterations=len(matched),
        operations=len(run.operations),
        iteration_ms=iteration_ms,
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        other_ms=other_ms,
        unattributed_forward_ms=None if forward_ms is None else forward_ms - attributed_forward_ms,
        unattributed_backward_ms=(
            None if backward_ms is None else backward_ms - attributed_backward_ms
        ),
        peak_usage_bytes=run.peak_usage_bytes,
        weights_bytes=sum(weight.size_bytes for weight in run.weights),
        gradients_bytes=sum(weight.grad_size_bytes for weight in run.weights),
        activations_bytes=sum(activation.size_bytes for activation in run.activations),
        most_expensive=tuple(totals[:top]),
        anomalies=dict(run.anomalies),
    )


def operation_totals(operations: Iterable[OperationRecord]) -> list[OperationTotal]:
    """Sum the calls of each operation at each place, the most expensive first."""
    groups: dict[tuple[str, str | None], list[OperationRecord]] = defaultdict(list)
    for operation in operations:
        frame = operation.frames[0] if operation.frames else None
        location = f"{frame.file_path}:{frame.line_number}" if frame else None
        groups[operation.name, location].append(operation)
    totals = [
        OperationTotal(
            name=name,
            location=location,
            calls=len(calls),
            forward_ms=sum(median(call.forward_ms) for call in calls),
            backward_ms=_sum_known(call.backward_ms for call in calls),
        )
        for (name, location), calls in groups.items()
    ]
    return sorted(totals, key=lambda total: -total.total_ms)


def _median(
    iterations: list[IterationRecord], value: Callable[[IterationRecord], float | None]
) -> float | None:
    known = [x for iteration in iterations if (x := value(iteration)) is not None]
    return median(known) if known else None


def _other_ms(iteration: IterationRecord) -> float | None:
    """Return what is neither pass; of one iteration, for medians do not add up."""
    if iteration.forward_ms is None:
        return None
    return max(0.0, iteration.total_ms - iteration.forward_ms - (iteration.backward_ms or 0.0))


def _sum_known(samples: Iterable[tuple[float, ...] | None]) -> float | None:
    known = [median(values) for values in samples if values is not None]
    return sum(known) if known else None
