"""Skyline run time and memory reports as calls and totals.

A report by any maker will do; the tables that uprof adds (iterations, modules, provenance) are
used where they exist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.calls import OPERATION, UNKNOWN, WEIGHT, Calls, Labels, concatenate
from unified_prof.analysis.model import (
    Breakdown,
    By,
    Gaps,
    NotMeasured,
    Row,
    Samples,
    Step,
    Summary,
    Totals,
)
from unified_prof.analysis.read import skyline_samples
from unified_prof.analysis.read.source import Findings, Source, recorded_anomalies, recorded_facts
from unified_prof.analysis.views import breakdowns
from unified_prof.errors import UsageError
from unified_prof.units import NS_PER_MS, ms_to_ns

RUN_TIME = "skyline-run-time"
MEMORY = "skyline-memory"

# Nothing a training iteration does takes a month, no tensor has an exbibyte.
_MAX_MS = 30 * 24 * 3600 * 1e3
_MAX_BYTES = 1 << 53

_RUN_TIME_FRAMES = (
    "SELECT entry_id, file_path, line_number FROM stack_frames ORDER BY entry_id, ordering"
)
_MEMORY_FRAMES = """
    SELECT c.entry_id, f.file_path, f.line_number
    FROM stack_correlation c JOIN stack_frames f ON f.correlation_id = c.correlation_id
    WHERE c.entry_type = ? ORDER BY c.entry_id, f.ordering
"""
_WEIGHT_TYPE, _ACTIVATION_TYPE = 1, 2


class SkylineAnalysis(Analysis):
    """One run's Skyline reports: run times, memory, or both side by side."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._findings = Findings()
        self._run_time = next((one for one in sources if one.family == RUN_TIME), None)
        self._memory = next((one for one in sources if one.family == MEMORY), None)
        self._sources = tuple(one for one in (self._run_time, self._memory) if one is not None)

    @property
    def path(self) -> str:
        """The file, or both."""
        return ", ".join(str(source.path) for source in self._sources)

    @property
    def family(self) -> str:
        """Families of their schemas."""
        return " + ".join(source.family for source in self._sources)

    @cached_property
    def calls(self) -> Calls:
        """One row per operation call, weight and activation."""
        parts = []
        if self._run_time is not None:
            parts.append(_run_time_calls(self._run_time, self._findings))
        if self._memory is not None:
            parts.append(_weights(self._memory, self._findings))
            parts.append(_activations(self._memory, self._findings))
        return concatenate(parts)

    @cached_property
    def summary(self) -> Summary:
        """Headline figures of the run."""
        totals = self._totals()
        # Both files of a run hold what was odd about the run: it is told once.
        anomalies = dict.fromkeys(
            one for source in self._sources for one in recorded_anomalies(source)
        )
        facts = dict(fact for source in self._sources for fact in recorded_facts(source))
        steps = bool(self.steps())
        return Summary(
            path=self.path,
            family=self.family,
            revision=", ".join(dict.fromkeys(source.revision or "?" for source in self._sources)),
            clock="none" if self._run_time is None else "operation",
            facts=tuple(facts.items()),
            totals=totals,
            devices=(),
            anomalies=(*anomalies, *self._findings.anomalies()),
            not_measured=tuple(self._not_measured(totals)),
            available=breakdowns.available(self.calls, steps=steps),
        )

    def breakdown(self, by: By) -> Breakdown:
        """Divide the run by `by`."""
        if by == "step" and self.steps():
            return breakdowns.finish("step", map(_step_row, self.steps()))
        if by not in self.summary.available:
            raise UsageError(
                f"{self.summary.path} has no breakdown by {by}: {_WHY_NOT[by]}",
                hint=f"it has: {', '.join(self.summary.available) or 'none'}",
            )
        return breakdowns.by_label(self.calls, by)

    def samples(self) -> Samples | None:
        """Return each operation's time in each iteration, where the report has them."""
        return None if self._run_time is None else skyline_samples.of_operations(self._run_time)

    def gaps(self) -> Gaps | None:
        """Return the time between operations in each iteration, where the report has it."""
        return (
            None if self._run_time is None else skyline_samples.between_operations(self._run_time)
        )

    def steps(self) -> tuple[Step, ...]:
        """Return the measured iterations."""
        return self._steps

    @cached_property
    def _steps(self) -> tuple[Step, ...]:
        """The measured iterations: the two reports of one run have the same; times come first."""
        for source in self._sources:
            if "UPROF_ITERATIONS" in source.tables:
                rows = source.rows(
                    "SELECT iteration, matched, peak_usage_bytes, total_ms, forward_ms,"
                    " backward_ms, waited_ms, forward_waited_ms, backward_waited_ms"
                    " FROM UPROF_ITERATIONS ORDER BY iteration"
                )
                return _iterations(rows, self._findings)
        return ()

    def _totals(self) -> Totals:
        sums = self.calls.sums()
        whole = _iteration([step for step in self._steps if step.matched])
        timed = self.calls.kind == OPERATION
        if self.calls.total_ns is not None:
            timed = self.calls.total_ns != UNKNOWN
        return Totals(
            total_ns=sums["total_ns"],
            forward_ns=sums["forward_ns"],
            backward_ns=sums["backward_ns"],
            count=int(timed.sum()),
            weight_bytes=sums["weight_bytes"],
            gradient_bytes=sums["gradient_bytes"],
            activation_bytes=sums["activation_bytes"],
            peak_bytes=None if self._memory is None else _peak(self._memory, self._findings),
            iterations=len(self._steps) or None,
            **whole,
        )

    def _not_measured(self, totals: Totals) -> list[NotMeasured]:
        missing = []
        if self._run_time is None:
            missing.append(
                NotMeasured(
                    "times",
                    "the run time report is missing; `uprof run` writes both",
                )
            )
        elif totals.total_ns is None:
            missing.append(NotMeasured("times", "the report lists no operation"))
        elif totals.backward_ns is None:
            missing.append(
                NotMeasured("backward times", "no operation took part in a backward pass")
            )
        if self._memory is None:
            missing.append(
                NotMeasured(
                    "memory",
                    "the memory report is missing; `uprof run` writes both",
                )
            )
        elif totals.peak_bytes is None:
            missing.append(NotMeasured("peak memory", "the report does not contain it"))
        for by in ("module", "line", "kernel", "step"):
            if by == "step" and self._steps:
                continue
            if by not in breakdowns.available(self.calls, steps=False):
                missing.append(NotMeasured(f"time by {by}", _WHY_NOT[by]))
        return missing


_WHY_NOT: dict[str, str] = {
    "operation": "it lists no operation",
    "module": "the report does not name the modules of operations (table UPROF_MODULES)",
    "line": "the report has no stack frames",
    "kernel": "Skyline reports time operations, not the kernels under them",
    "stream": "Skyline reports time operations, not the streams they ran on",
    "step": "the report does not list single iterations (table UPROF_ITERATIONS)",
}


def _run_time_calls(source: Source, findings: Findings) -> Calls:
    rows = source.rows(
        "SELECT id, operation_name, forward_ms, backward_ms FROM run_time_entries ORDER BY id"
    )
    labels = Labels()
    ids = [row[0] for row in rows]
    forward = _nanoseconds([row[2] for row in rows], "forward_ms", findings, required=True)
    backward = _nanoseconds([row[3] for row in rows], "backward_ms", findings, required=False)
    stack, line = _stacks(source.rows(_RUN_TIME_FRAMES), ids, labels)
    module, classes = _modules(source, "operation", ids, labels)
    total = np.maximum(forward, 0) + np.maximum(backward, 0)
    total[(forward == UNKNOWN) & (backward == UNKNOWN)] = UNKNOWN
    return Calls(
        labels=labels,
        name=labels.numbers(_text(row[1]) for row in rows),
        kind=np.full(len(rows), OPERATION, np.int8),
        total_ns=total,
        forward_ns=forward,
        backward_ns=backward,
        module=module,
        line=line,
        stack=stack,
        module_class=classes,
    )


def _weights(source: Source, findings: Findings) -> Calls:
    rows = source.rows(
        "SELECT id, name, size_bytes, grad_size_bytes FROM weight_entries ORDER BY id"
    )
    labels = Labels()
    ids = [row[0] for row in rows]
    stack, line = _stacks(source.rows(_MEMORY_FRAMES, (_WEIGHT_TYPE,)), ids, labels)
    module, classes = _modules(source, "weight", ids, labels)
    return Calls(
        labels=labels,
        name=labels.numbers(_text(row[1]) for row in rows),
        kind=np.full(len(rows), WEIGHT, np.int8),
        weight_bytes=_bytes([row[2] for row in rows], "size_bytes", findings),
        gradient_bytes=_bytes([row[3] for row in rows], "grad_size_bytes", findings),
        module=module,
        line=line,
        stack=stack,
        module_class=classes,
    )


def _activations(source: Source, findings: Findings) -> Calls:
    rows = source.rows("SELECT id, operation_name, size_bytes FROM activation_entries ORDER BY id")
    labels = Labels()
    ids = [row[0] for row in rows]
    stack, line = _stacks(source.rows(_MEMORY_FRAMES, (_ACTIVATION_TYPE,)), ids, labels)
    module, classes = _modules(source, "activation", ids, labels)
    return Calls(
        labels=labels,
        name=labels.numbers(_text(row[1]) for row in rows),
        kind=np.full(len(rows), OPERATION, np.int8),
        activation_bytes=_bytes([row[2] for row in rows], "size_bytes", findings),
        module=module,
        line=line,
        stack=stack,
        module_class=classes,
    )


def _peak(source: Source, findings: Findings) -> int | None:
    rows = source.rows("SELECT size_bytes FROM misc_sizes WHERE key = 'peak_usage_bytes'")
    if not rows:
        return None
    size = int(_bytes([rows[0][0]], "peak_usage_bytes", findings)[0])
    return None if size == UNKNOWN else size


_ITERATION_TIMES = (
    "total_ms",
    "forward_ms",
    "backward_ms",
    "waited_ms",
    "forward_waited_ms",
    "backward_waited_ms",
)


def _iterations(rows: list[tuple[Any, ...]], findings: Findings) -> tuple[Step, ...]:
    columns = list(zip(*rows, strict=True)) or [()] * (3 + len(_ITERATION_TIMES))
    times = [
        _nanoseconds(list(values), name, findings, required=name == "total_ms").tolist()
        for name, values in zip(_ITERATION_TIMES, columns[3:], strict=True)
    ]
    return tuple(
        Step(
            str(iteration),
            total_ns=_known(times_ns[0]),
            forward_ns=_known(times_ns[1]),
            backward_ns=_known(times_ns[2]),
            matched=bool(matched),
            peak_bytes=peak if isinstance(peak, int) and peak >= 0 else None,
            waited_ns=_known(times_ns[3]),
            forward_waited_ns=_known(times_ns[4]),
            backward_waited_ns=_known(times_ns[5]),
        )
        for iteration, matched, peak, *times_ns in zip(*columns[:3], *times, strict=True)
    )


def _step_row(step: Step) -> Row:
    return Row(
        name=step.name,
        kind="step",
        count=1,
        total_ns=step.total_ns,
        forward_ns=step.forward_ns,
        backward_ns=step.backward_ns,
        detail=None if step.matched else "another sequence of operations: not averaged",
        extra={"peak_bytes": step.peak_bytes, "waited_ns": step.waited_ns},
    )


def _iteration(steps: list[Step]) -> dict[str, int | None]:
    """Return the median iteration and its parts, by the names that `Totals` has for them.

    The parts are those of the one or two iterations in the middle, not medians of their own:
    medians of parts do not add up to the median of the whole.
    """
    known = sorted(
        (step for step in steps if step.total_ns is not None), key=lambda step: step.total_ns or 0
    )
    middle = known[(len(known) - 1) // 2 : len(known) // 2 + 1]

    def mean(values: list[int | None]) -> int | None:
        measured = [value for value in values if value is not None]
        return (
            round(sum(measured) / len(measured))
            if measured and len(measured) == len(values)
            else None
        )

    return {
        "iteration_ns": mean([step.total_ns for step in middle]),
        "iteration_forward_ns": mean([step.forward_ns for step in middle]),
        "iteration_backward_ns": mean([step.backward_ns for step in middle]),
        "iteration_waited_ns": mean([step.waited_ns for step in middle]),
    }


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value


def _text(value: object) -> str:
    """Return a name; what is no text (a foreign file may hold anything) is shown as it is."""
    return value if isinstance(value, str) else f"{value!r}"


def _nanoseconds(values: list[Any], column: str, findings: Findings, *, required: bool) -> Any:
    if {*map(type, values)} <= {float, int, type(None)}:
        times_ms = np.array(values, np.float64)  # None is NaN
        possible = (times_ms >= 0) & (times_ms <= _MAX_MS)
        if possible.all():
            return np.rint(times_ms * NS_PER_MS).astype(np.int64)
    result = np.full(len(values), UNKNOWN, np.int64)
    for index, value in enumerate(values):
        if isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= _MAX_MS:
            result[index] = ms_to_ns(value)
        elif value is not None or required:
            findings.add("impossible_time", f"{column} of entry number {index + 1} is {value!r}")
    return result


def _bytes(values: list[Any], column: str, findings: Findings) -> Any:
    result = np.full(len(values), UNKNOWN, np.int64)
    for index, value in enumerate(values):
        if isinstance(value, int) and 0 <= value <= _MAX_BYTES:
            result[index] = value
        else:
            findings.add("impossible_size", f"{column} of entry number {index + 1} is {value!r}")
    return result


def _stacks(rows: list[tuple[Any, ...]], ids: list[int], labels: Labels) -> tuple[Any, Any]:
    """Return the stack and the innermost line of each entry; rows are innermost first."""
    frames: dict[int, list[str]] = {}
    for entry, file_path, line_number in rows:
        frames.setdefault(entry, []).append(f"{file_path}:{line_number}")
    innermost = {entry: found[0] for entry, found in frames.items()}
    whole = {entry: "\n".join(reversed(found)) for entry, found in frames.items()}
    if not frames:
        return None, None
    return labels.numbers(map(whole.get, ids)), labels.numbers(map(innermost.get, ids))


def _modules(
    source: Source, kind: str, ids: list[int], labels: Labels
) -> tuple[Any, dict[str, str]]:
    """Return the module of each entry, and the classes of the modules."""
    if "UPROF_MODULES" not in source.tables:
        return None, {}
    rows = source.rows(
        "SELECT entry_id, module_path, module_class FROM UPROF_MODULES WHERE kind = ?", (kind,)
    )
    if not rows:
        return None, {}
    path = {entry: str(module_path) for entry, module_path, _ in rows}
    classes = {str(module_path): str(name) for _, module_path, name in rows if name is not None}
    return labels.numbers(map(path.get, ids)), classes
