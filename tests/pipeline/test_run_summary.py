"""Summaries of run-time and memory reports."""

from pathlib import Path

import pytest

from tests.records import tracked_run
from unified_prof.base.run_spec import IterationRecord, OperationRecord, TrackedRun
from unified_prof.pipeline.run_summary import RunSummary
from unified_prof.pipeline.run_summary import summarize as summary_of_files
from unified_prof.sqlite import skyline_writer

pytestmark = pytest.mark.usefixtures("place")


def summarize(run: TrackedRun, top: int = 10) -> RunSummary:
    files = (Path("run_time.sqlite"), Path("memory.sqlite"))
    facts = {"device": run.device, "complete": "true"}
    for write, file in zip(
        (skyline_writer.write_run_time, skyline_writer.write_memory), files, strict=True
    ):
        write(file, run, facts, overwrite=True)
    summary = summary_of_files(files, top)
    assert summary is not None
    return summary


def test_figures_are_medians_of_the_matched_iterations() -> None:
    summary = summarize(tracked_run())
    assert (summary.iterations, summary.matched_iterations) == (3, 2)
    assert summary.iteration_ms == 22.0
    assert summary.forward_ms == 9.0
    assert summary.backward_ms == 5.0
    assert (summary.other_ms, summary.wall_ms) == (8.0, 22.0)
    # Operations account for 2.0 + 0.6 + 5.0 of forward and 3.0 + 1.0 of backward.
    assert summary.unattributed_forward_ms == pytest.approx(9.0 - 7.6)
    assert summary.unattributed_backward_ms == 1.0
    assert summary.peak_usage_bytes == 3000
    assert (summary.weights_bytes, summary.gradients_bytes) == (440, 400)
    assert summary.activations_bytes == 128


def test_calls_of_one_line_are_summed_and_the_most_expensive_come_first() -> None:
    linear, relu = summarize(tracked_run()).most_expensive
    assert (linear.name, linear.location, linear.calls) == ("linear", "net.py:11", 2)
    assert (linear.forward_ms, linear.backward_ms, linear.total_ms) == (7.0, 4.0, 11.0)
    assert (relu.name, relu.backward_ms) == ("relu", None)
    assert relu.total_ms == pytest.approx(0.6)
    assert [o.name for o in summarize(tracked_run(), top=1).most_expensive] == ["linear"]


def test_unmeasured_figures_are_none() -> None:
    summary = summarize(tracked_run(iterations=(), operations=(), peak_usage_bytes=None))
    assert summary.iteration_ms is None
    assert summary.other_ms is None
    assert summary.unattributed_forward_ms is None
    assert summary.peak_usage_bytes is None


def test_unattributed_time_is_never_negative_and_the_parts_add_up() -> None:
    """The sum of medians exceeds the total if each operation is slow in another iteration."""
    one = OperationRecord("a", (), None, None, (1.0, 9.0, 2.0), None)
    other = OperationRecord("b", (), None, None, (9.0, 1.0, 8.5), None)
    iterations = tuple(
        IterationRecord(total, 10.6, None, None, matched=True) for total in (11.0, 12.0, 13.0)
    )
    summary = summarize(tracked_run(operations=(one, other), iterations=iterations))
    assert summary.forward_ms == 10.6
    assert summary.unattributed_forward_ms == pytest.approx(10.6 - 10.0)
    assert summary.other_ms == pytest.approx(12.0 - 10.6)


def test_times_exclude_waiting_for_a_processor() -> None:
    waiting = (IterationRecord(30.0, 12.0, 9.0, None, True, 11.0, 4.0, 5.0),)
    summary = summarize(tracked_run(iterations=waiting, operations=()))
    assert (summary.wall_ms, summary.iteration_ms) == (30.0, 19.0)
    assert (summary.forward_ms, summary.backward_ms, summary.other_ms) == (8.0, 4.0, 7.0)


def test_other_files_have_no_summary(tmp_path: Path) -> None:
    (tmp_path / "memory.sqlite").write_bytes(b"")
    assert summary_of_files([tmp_path / "memory.sqlite"]) is None
