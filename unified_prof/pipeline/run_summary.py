"""Headline figures of a run's Skyline reports, and `uprof run --batch-sizes`.

Their names are the keys in `uprof run --json` and `Profile.summary`. Analysis costs 0.2 s to
import, so `run` does not need this module before the workload. With --batch-sizes, one run per
batch size yields a model of throughput and memory.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from unified_prof.base import streams
from unified_prof.base.records import asdict
from unified_prof.base.text import NS_PER_MS, printable
from unified_prof.compare.gate import parse_absolute_limits
from unified_prof.errors import UprofError, UsageError
from unified_prof.explain.api import Measured, fit, open_files
from unified_prof.explain.skyline import SkylineAnalysis
from unified_prof.recording.calls import UNKNOWN, Calls
from unified_prof.recording.model import Row

if TYPE_CHECKING:
    from unified_prof.base.run_spec import RunSpec
    from unified_prof.explain.api import Fit


@dataclass(frozen=True, slots=True)
class OperationTotal:
    """Total of all calls of one operation from one source line in one iteration."""

    name: str
    location: str | None  # `file:line` of the innermost project frame, None if there is none.
    calls: int
    forward_ms: float
    backward_ms: float | None  # Backward time in ms; None if no call has a backward pass.

    @property
    def total_ms(self) -> float:
        """Sum of forward and backward time."""
        return self.forward_ms + (self.backward_ms or 0.0)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Headline figures of the median iteration; None for figures that were not measured.

    Times exclude waiting for a processor if it is known; `wall_ms` includes it.
    """

    device: str
    complete: bool
    iterations: int
    matched_iterations: int
    operations: int
    iteration_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    other_ms: float | None  # Time outside forward and backward, including the optimizer.
    wall_ms: float | None
    # Forward time that no operation of the report accounts for.
    unattributed_forward_ms: float | None
    unattributed_backward_ms: float | None
    peak_usage_bytes: int | None
    weights_bytes: int
    gradients_bytes: int
    activations_bytes: int
    most_expensive: tuple[OperationTotal, ...]
    anomalies: Mapping[str, tuple[int, str]]


def summarize(files: Iterable[Path], top: int = 10) -> RunSummary | None:
    """Return the headline figures of a run's Skyline reports, as in `uprof report`.

    At most `top` operations are included, the most expensive first.

    Returns:
        None if there is no readable Skyline report.
    """
    with suppress(UprofError), open_files(files) as analyses:
        for analysis in analyses:
            if isinstance(analysis, SkylineAnalysis):
                return _summary(analysis, top)
    return None


def _summary(analysis: SkylineAnalysis, top: int) -> RunSummary:
    summary, facts = analysis.summary, dict(analysis.summary.facts)
    totals = summary.totals
    steps = analysis.breakdown("step").rows if "step" in summary.available else ()
    forward, backward = _attributed_ms(analysis, [step for step in steps if not step.detail])
    wall_ms, waited_ms = _ms(totals.iteration_ns), _ms(totals.iteration_waited_ns)
    iteration_ms = None if wall_ms is None else wall_ms - (waited_ms or 0.0)
    forward_ms, backward_ms = map(_ms, map(totals.iteration_parts_ns.get, ("forward", "backward")))
    return RunSummary(
        device=facts.get("device", ""),
        complete=facts.get("complete") == "true",
        iterations=len(steps),
        matched_iterations=sum(not step.detail for step in steps),
        operations=totals.count if totals.total_ns is not None and totals.count else 0,
        iteration_ms=iteration_ms,
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        other_ms=(
            None
            if iteration_ms is None or forward_ms is None
            else max(0.0, iteration_ms - forward_ms - (backward_ms or 0.0))
        ),
        wall_ms=wall_ms,
        unattributed_forward_ms=_rest(forward_ms, forward),
        unattributed_backward_ms=_rest(backward_ms, backward),
        peak_usage_bytes=totals.peak_bytes,
        weights_bytes=totals.weight_bytes or 0,
        gradients_bytes=totals.gradient_bytes or 0,
        activations_bytes=totals.activation_bytes or 0,
        most_expensive=tuple(_operations(analysis.calls)[:top]),
        anomalies={
            anomaly.name: (anomaly.count, anomaly.detail or "")
            for anomaly in summary.anomalies
            if anomaly.source == "recorded"
        },
    )


def _attributed_ms(
    analysis: SkylineAnalysis, iterations: list[Row]
) -> tuple[float | None, float | None]:
    """Return forward and backward time of the operations in the median iteration."""
    samples = analysis.samples()
    if samples is None or samples.forward_ns.shape[1] != len(iterations) or not iterations:
        return None, None
    order = sorted(range(len(iterations)), key=lambda index: iterations[index].total_ns or 0)
    median = order[(len(order) - 1) // 2 : len(order) // 2 + 1]
    forward, backward = (
        float(np.nansum(times[:, median])) / len(median) / NS_PER_MS
        for times in (samples.forward_ns, samples.backward_ns)
    )
    return forward, backward


def _rest(total_ms: float | None, part_ms: float | None) -> float | None:
    if total_ms is None or part_ms is None:
        return None
    return max(0.0, total_ms - part_ms)


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / NS_PER_MS


def _operations(calls: Calls) -> list[OperationTotal]:
    """Sum calls by operation and source line; return the totals, most expensive first."""
    if calls.total_ns is None or calls.forward_ns is None:
        return []
    groups: dict[tuple[int, int], list[int]] = {}
    for index in np.flatnonzero(calls.total_ns != UNKNOWN).tolist():
        line = UNKNOWN if calls.line is None else int(calls.line[index])
        groups.setdefault((int(calls.name[index]), line), []).append(index)
    forward_ns, backward_ns = calls.forward_ns, calls.backward_ns

    def total(name: int, line: int, indexes: list[int]) -> OperationTotal:
        forward = forward_ns[indexes]
        backward = None if backward_ns is None else backward_ns[indexes]
        known = None if backward is None else backward[backward != UNKNOWN]
        return OperationTotal(
            name=calls.labels.text(name) or "",
            location=calls.labels.text(line),
            calls=len(indexes),
            forward_ms=int(forward[forward != UNKNOWN].sum()) / NS_PER_MS,
            backward_ms=int(known.sum()) / NS_PER_MS if known is not None and len(known) else None,
        )

    totals = (total(*key, indexes) for key, indexes in groups.items())
    return sorted(totals, key=lambda operation: -operation.total_ms)


class BatchSizes(Struct, frozen=True):
    """Batch sizes to run, in ascending order, and the memory limit."""

    specs: tuple[RunSpec, ...]
    memory_bytes: int | None

    @classmethod
    def parse(cls, sizes: str | None, memory: str | None, spec: RunSpec) -> BatchSizes:
        """Parse `8,16,32` and `24GiB`.

        Raises UsageError if a value is not valid, or a memory limit is given without sizes.
        """
        if sizes is None:
            raise UsageError(
                "--memory requires --batch-sizes",
                hint="add --batch-sizes, for example 8,16,32",
                slug="option-without-effect",
            )
        if spec.batch_size is not None:
            raise UsageError(
                "--batch-size and --batch-sizes cannot be combined", slug="contradicting-options"
            )
        if re.fullmatch(r"\s*[1-9]\d*\s*(?:,\s*[1-9]\d*\s*)*", sizes) is None:
            raise UsageError(
                f"--batch-sizes {sizes!r}: expected sizes above 0",
                hint="for example 8,16,32",
                slug="wrong-option-value",
            )
        numbers = sorted({int(one) for one in sizes.split(",")})
        fits: float | None = None
        if memory is not None:
            with suppress(UsageError):
                _, fits = parse_absolute_limits([memory])
            if fits is None:
                raise UsageError(
                    f"--memory {memory!r}: expected a size such as 24GiB", slug="wrong-option-value"
                )
        return cls(
            tuple(
                replace(spec, batch_size=one, output_dir=spec.output_dir / f"batch-{one}")
                for one in numbers
            ),
            None if fits is None else int(fits),
        )


def run_sizes(wanted: BatchSizes, run_one: Callable[[RunSpec], int], *, as_json: bool) -> int:
    """Run each size, print the result, and return the first exit code other than 0.

    If a size fails, for example for lack of memory, larger sizes are not tried.
    """
    measured, exit_code = _series(wanted, run_one)
    line = fit(measured, wanted.memory_bytes)
    if as_json:
        streams.hand_over(json.dumps(document(measured, line)))
    else:
        for text in table(measured, line):
            streams.tell(text)
    return exit_code


def _series(wanted: BatchSizes, run_one: Callable[[RunSpec], int]) -> tuple[list[Measured], int]:
    """Return the measurement of each size, and the exit code of the last run."""
    measured: list[Measured] = []
    for spec in wanted.specs:
        assert spec.batch_size is not None
        try:
            exit_code = run_one(spec)
        except UprofError as err:
            if not measured:
                raise
            measured.append(Measured(spec.batch_size, None, None, printable(str(err))))
            return measured, err.exit_code
        if exit_code:
            why = f"the workload exited with code {exit_code}"
            measured.append(Measured(spec.batch_size, None, None, why))
            return measured, exit_code
        files = [path for path in sorted(Path(spec.output_dir).glob("*.sqlite")) if path.is_file()]
        if (found := summarize(files)) is not None:
            measured.append(Measured(spec.batch_size, found.iteration_ms, found.peak_usage_bytes))
        else:
            why = "neither a run time nor a memory report was requested"
            measured.append(Measured(spec.batch_size, None, None, why))
        gc.collect()  # free the model of one size before the next size runs
    return measured, 0


def document(measured: list[Measured], line: Fit | None) -> dict[str, Any]:
    """Return the result as plain data."""
    return {
        "format": "uprof-batch-sizes",
        "version": 1,
        "batch_sizes": [asdict(one) | {"samples_per_s": one.samples_per_s} for one in measured],
        "prediction": None if line is None else asdict(line),
    }


def table(measured: list[Measured], line: Fit | None) -> list[str]:
    """Return the result as lines of text."""
    from unified_prof.report import names

    rows = [("batch", "iteration", "samples/s", "peak memory")]
    for one in measured:
        time = names.format_duration(None if one.iteration_ms is None else one.iteration_ms * 1e6)
        rate = "-" if one.samples_per_s is None else f"{one.samples_per_s:,.1f}"
        rows.append((str(one.batch_size), time, rate, names.format_size(one.peak_bytes)))
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    lines = ["  ".join(f"{cell:>{widths[at]}}" for at, cell in enumerate(row)) for row in rows]
    lines += [f"batch {one.batch_size}: {one.failure}" for one in measured if one.failure]
    if line is None:
        return lines
    error = "" if line.error_bytes is None else f" ± {names.format_size(line.error_bytes)}"
    fixed = names.format_size(max(line.fixed_bytes, 0.0))
    lines.append(f"peak: {fixed} + {names.format_size(line.bytes_per_sample)} per sample{error}")
    if line.memory_bytes is not None:
        fits = "none" if line.largest_batch is None else f"{line.largest_batch:,}"
        lines.append(f"largest batch in {names.format_size(line.memory_bytes)}: {fits} (predicted)")
    return lines
