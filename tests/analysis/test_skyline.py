"""Skyline reports become breakdowns; missing values stay unknown."""

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.analysis.builders import memory_report, run_time_report
from tests.records import tracked_run
from unified_prof.errors import UsageError
from unified_prof.explain import skyline
from unified_prof.explain.api import open_analyses
from unified_prof.recording.model import Breakdown, Row, Summary
from unified_prof.sqlite import skyline_writer

MS = 1_000_000


def summary_of(path: Path) -> Summary:
    with open_analyses(path) as (analysis,):
        return analysis.summary


def breakdown_of(path: Path, by: str) -> Breakdown:
    with open_analyses(path) as (analysis,):
        return analysis.breakdown(by)


def by_name(breakdown: Breakdown) -> dict[str, Row]:
    return {row.name: row for row in breakdown.rows}


def with_reversed_frames(path: Path) -> Path:
    """Store the frames from the outermost to the innermost."""
    with closing(sqlite3.connect(path)) as db, db:
        rows = db.execute("SELECT * FROM stack_frames ORDER BY ordering DESC").fetchall()
        db.execute("DELETE FROM stack_frames")
        marks = ", ".join("?" * len(rows[0]))
        db.executemany(f"INSERT INTO stack_frames VALUES ({marks})", rows)
    return path


def test_frames_are_ordered_by_number_not_by_row(tmp_path: Path) -> None:
    for make in (run_time_report, memory_report):
        path = with_reversed_frames(make(tmp_path / f"{make.__name__}.sqlite"))
        assert "model.py:30" not in by_name(breakdown_of(path, "line"))


@pytest.mark.parametrize("seed", range(4))
def test_trees_sum_the_operations_below_each_node(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    frames = [(f"{name}.py", line) for name in "ab" for line in (1, 2)]
    operations, modules = [], []
    for _ in range(30):
        stack = random.choices(frames, k=random.randrange(3))
        forward, backward = random.randrange(1, 5), random.choice((None, 1, 2))
        operations.append((random.choice("xyz"), forward, backward, stack))
        modules.append(random.choice((None, ("", "N"), ("m", "M"), ("m.n", "M"), ("k", "K"))))
    path = run_time_report(tmp_path / "r.sqlite", operations, modules=modules)
    expected = defaultdict[tuple[str, ...], list[int]](lambda: [0] * 4)
    for (name, forward, backward, stack), module in zip(operations, modules, strict=True):
        inside = [f"{file}:{line}" for file, line in stack[::-1]] or ["(no source line)"]
        parts = ["(outside any module)"]
        if module is not None:
            parts = module[0].split(".") if module[0] else ["(root)"]
        for kind, place in (("line", inside), ("module", parts), ("operation", [])):
            for depth in range(len(place) + 2):
                sums = expected[(kind, *[*place, name][:depth])]
                values = (forward + (backward or 0)) * MS, forward * MS, (backward or 0) * MS, 1
                sums[:] = [one + more for one, more in zip(sums, values, strict=True)]
    with open_analyses(path) as (analysis,):
        trees = skyline.trees(analysis)
    found: dict[tuple[str, ...], list[int]] = {}
    for tree in trees:
        paths: list[tuple[str, ...]] = []
        for node in tree.nodes:
            paths.append((*paths[node.parent], node.name) if node.parent >= 0 else (tree.kind,))
            found[paths[-1]] = [*node.values[:3], node.count]
    kinds = {tree.kind for tree in trees}
    assert kinds >= {"line", "module"}
    assert found == {path: sums for path, sums in expected.items() if path[0] in kinds}


def test_iterations_are_steps(tmp_path: Path) -> None:
    path = run_time_report(
        tmp_path / "r.sqlite",
        iterations=[
            (0, 5.0, 2.0, 3.0, 700, 1),
            (1, 9.0, None, None, None, 0),
            (2, 7.0, 3, 4, 9, 1),
        ],
    )
    steps = breakdown_of(path, "step").rows
    assert [(step.name, step.total_ns, step.forward_ns) for step in steps] == [
        ("0", 5_000_000, 2_000_000),
        ("1", 9_000_000, None),
        ("2", 7_000_000, 3_000_000),
    ]
    assert steps[1].detail is not None
    totals = summary_of(path).totals
    # The iteration with another sequence of operations does not count.
    assert (totals.iteration_ns, totals.iterations) == (6_000_000, 2)


def test_reports_of_two_ranks_are_separate_analyses(tmp_path: Path) -> None:
    for rank in (0, 1):
        run_time_report(tmp_path / f"run_time_rank{rank}.sqlite")
        memory_report(tmp_path / f"memory_rank{rank}.sqlite")
    with open_analyses(tmp_path) as analyses:
        files = [analysis.summary.path.replace(f"{tmp_path}/", "") for analysis in analyses]
    assert files == [
        "run_time_rank0.sqlite, memory_rank0.sqlite",
        "run_time_rank1.sqlite, memory_rank1.sqlite",
    ]


@pytest.mark.parametrize("by", ["module", "kernel", "stream", "step"])
def test_missing_breakdown_raises_a_usage_error_with_the_reason(tmp_path: Path, by: str) -> None:
    path = run_time_report(tmp_path / "r.sqlite")
    with pytest.raises(UsageError, match=f"has no breakdown by {by}: "):
        breakdown_of(path, by)


def test_empty_report_has_no_breakdown(tmp_path: Path) -> None:
    found = summary_of(run_time_report(tmp_path / "r.sqlite", []))
    assert found.totals.total_ns is None
    assert found.available == ()
    assert "the report has no operations" in [missing.why for missing in found.not_measured]


def test_impossible_times_are_counted_as_anomalies(tmp_path: Path) -> None:
    path = run_time_report(
        tmp_path / "r.sqlite",
        [("a", 1.0, float("inf"), []), ("a", -3.0, None, []), ("b", "soon", 2.0, [])],
    )
    with open_analyses(path) as (analysis,):
        rows = by_name(analysis.breakdown("operation"))
        (anomaly,) = analysis.summary.anomalies
    assert (rows["a"].total_ns, rows["b"].total_ns) == (1_000_000, 2_000_000)
    assert rows["b"].forward_ns is None
    assert (anomaly.name, anomaly.count, anomaly.source) == ("impossible_time", 3, "found")


def test_recorded_facts_and_anomalies_are_passed_on(tmp_path: Path) -> None:
    path = run_time_report(
        tmp_path / "r.sqlite",
        facts={"device": "cpu: X", "torch": "2.13"},
        anomalies=[("unmatched_iterations", 2, "number 3")],
    )
    found = summary_of(path)
    assert found.facts == (("device", "cpu: X"), ("torch", "2.13"))
    assert [(one.name, one.count, one.source) for one in found.anomalies] == [
        ("unmatched_iterations", 2, "recorded")
    ]


def test_anomaly_in_both_reports_of_a_run_is_listed_once(tmp_path: Path) -> None:
    run = tracked_run(anomalies={"scope_widened": (1, "nothing was there"), "odd": (2, "")})
    skyline_writer.write_run_time(tmp_path / "run_time.sqlite", run, {})
    skyline_writer.write_memory(tmp_path / "memory.sqlite", run, {})
    with open_analyses(tmp_path) as (analysis,):
        found = [(one.name, one.count) for one in analysis.summary.anomalies]
    assert sorted(found) == [("odd", 2), ("scope_widened", 1)]


def test_memory_report_counts_operations_and_has_unknown_times(tmp_path: Path) -> None:
    path = memory_report(tmp_path / "memory.sqlite")
    with open_analyses(path) as (analysis,):
        totals, summary = analysis.summary.totals, analysis.summary
    assert totals.count == 1
    assert (totals.total_ns, totals.forward_ns, totals.backward_ns) == (None, None, None)
    assert (totals.weight_bytes, totals.gradient_bytes) == (4040, 4000)
    assert (totals.activation_bytes, totals.peak_bytes) == (800, 100_000)
    assert summary.clock == "none"
    assert ("times", "the run time report is missing; `uprof run` writes both") in [
        (one.what, one.why) for one in summary.not_measured
    ]


@pytest.mark.parametrize(
    ("peak", "expected"), [((1 << 53) + 1, None), (1 << 53, 1 << 53), (-1, None), (0, 0)]
)
def test_impossible_peak_memory_is_unknown(tmp_path: Path, peak: int, expected: int | None) -> None:
    path = memory_report(tmp_path / "memory.sqlite", peak=peak)
    with open_analyses(path) as (analysis,):
        assert analysis.summary.totals.peak_bytes == expected
        found = [one.name for one in analysis.summary.anomalies]
    assert ("impossible_size" in found) == (expected is None)
