"""What `uprof run` shows at its end: text for people, JSON for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from unified_prof.cli.text import human_bytes, human_ms, table
from unified_prof.pipeline.run import RunResult
from unified_prof.pipeline.run_summary import OperationTotal, RunSummary, summarize


def as_json(result: RunResult) -> dict[str, Any]:
    """Return the result of a run as plain data; times in ms, sizes in bytes, unknown is None."""
    return {
        "backend": result.backend,
        "exit_code": result.exit_code,
        "directory": str(result.directory),
        "files": {report: [str(path) for path in paths] for report, paths in result.files.items()},
        "failure": result.failure,
        "summary": asdict(summarize(result.tracked)) if result.tracked else None,
    }


def as_lines(result: RunResult, *, verbose: bool) -> list[str]:
    """Return the summary of a run, line by line."""
    lines: list[str] = []
    if result.tracked is not None:
        lines += _summary(summarize(result.tracked, top=50 if verbose else 10))
    lines += [
        f"{report + ' report':17} {path}"
        for report, paths in result.files.items()
        for path in paths
    ]
    return lines


def _summary(summary: RunSummary) -> list[str]:
    lines = [f"device            {summary.device}", f"iterations        {_iterations(summary)}"]
    if summary.iteration_ms is not None:
        lines.append(
            f"one iteration     {human_ms(summary.iteration_ms)}: "
            f"forward {human_ms(summary.forward_ms)}, "
            f"backward {human_ms(summary.backward_ms)}, "
            f"other {human_ms(summary.other_ms)}"
        )
    lines.append(
        f"memory            peak {_peak(summary)}; "
        f"weights {human_bytes(summary.weights_bytes)}, "
        f"gradients {human_bytes(summary.gradients_bytes)}, "
        f"activations {human_bytes(summary.activations_bytes)}"
    )
    if summary.most_expensive:
        lines += ["", *_operations(summary)]
    if summary.operations:
        lines += ["", f"not attributed    {_unattributed(summary)}"]
    lines += [
        f"note              {name} ({count}x){': ' if detail else ''}{detail}"
        for name, (count, detail) in summary.anomalies.items()
    ]
    return lines


def _iterations(summary: RunSummary) -> str:
    text = f"{summary.iterations} measured"
    if different := summary.iterations - summary.matched_iterations:
        text += f", {different} with other operations and left out of the medians"
    return text if summary.complete else f"{text}; the run ended before all were"


def _peak(summary: RunSummary) -> str:
    known = summary.peak_usage_bytes is not None
    return human_bytes(summary.peak_usage_bytes) if known else "not measured"


def _operations(summary: RunSummary) -> list[str]:
    heading = ("operation", "calls", "forward", "backward", "share", "where")
    rows = [heading, *(_row(total, summary.iteration_ms) for total in summary.most_expensive)]
    return table(rows, right=frozenset({1, 2, 3, 4}))


def _row(total: OperationTotal, iteration_ms: float | None) -> tuple[str, ...]:
    share = f"{total.total_ms / iteration_ms:.1%}" if iteration_ms else "-"
    return (
        total.name,
        str(total.calls),
        human_ms(total.forward_ms),
        human_ms(total.backward_ms),
        share,
        total.location or "-",
    )


def _unattributed(summary: RunSummary) -> str:
    return (
        f"forward {human_ms(summary.unattributed_forward_ms)}, "
        f"backward {human_ms(summary.unattributed_backward_ms)}"
    )
