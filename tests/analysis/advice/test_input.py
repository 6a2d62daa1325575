"""Waits for input batches."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind, saving_ns

FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def write_fetches(path: Path, *, ahead: bool, frames: Sequence[tuple[str, int, int]] = ()) -> Path:
    """Write five 10 ms steps: 3 ms of fetching, then a kernel, or both at once if `ahead`.

    `frames` are Python functions, with their times relative to each step.
    """
    with FaultyRun(path) as run:
        for begin in run.steps(5, 10 * MS):
            run.call(begin, begin + 3 * MS, FETCH)
            run.call(begin + US, begin + 2 * MS, f"inner {FETCH}")
            run.call(begin + 5 * MS, begin + 5 * MS, FETCH)
            start = begin if ahead else begin + 3 * MS
            run.kernel(start + 2 * US, begin + 10 * MS, launched=begin + (0 if ahead else 3 * MS))
            for name, first, last in frames:
                row = {"startNs": begin + first, "endNs": begin + last, "name": run.text(name)}
                run.row("UPROF_PYTHON_FRAMES", globalTid=1, **row)
    return path


def test_idle_time_during_a_fetch_is_the_cost_of_the_input_wait(tmp_path: Path) -> None:
    finding = findings_by_kind(write_fetches(tmp_path / "run.db", ahead=False))["input_wait"]
    assert saving_ns(finding) == 3 * MS
    assert finding.figures["wait_ns"] == 4 * 3 * MS  # the first step warms up
    # Without those inside others.
    (only,) = finding.evidence
    assert (only["name"], only["count"], only["total_ns"]) == (FETCH, 2 * 4, 4 * 3 * MS)
    assert finding.steps == (1, 2, 3, 4)


def test_input_wait_names_the_function_of_the_user_that_takes_most_of_it(tmp_path: Path) -> None:
    """Loading in the process runs the user's code; a function that takes less is not named."""
    frames = (
        ("torch/utils/data/_utils/fetch.py(53): fetch", 1, 3 * MS),
        ("data.py(40): __getitem__", 2, MS),
        ("data.py(88): collate", MS, 3 * MS - US),
        ("<built-in method tensor of type object>", MS, 3 * MS - US),
    )
    path = write_fetches(tmp_path / "run.db", ahead=False, frames=frames)
    assert ", mostly in collate at data.py:88" in findings_by_kind(path)["input_wait"].text


@pytest.mark.parametrize(
    ("on_device", "step_ms", "fetch_ms", "expected"),
    [
        (True, 20, 1.4, True),
        (False, 20, 1.4, False),
        (True, 40, 1.4, False),
        (True, 1, 0.07, False),
    ],
)
def test_long_waits_of_a_device_for_input_count_from_a_smaller_share_on(
    tmp_path: Path, on_device: bool, step_ms: int, fetch_ms: float, expected: bool
) -> None:
    """Short ones are the overhead of a loader, which more workers do not change."""
    with FaultyRun(tmp_path / "run.db") as run:
        for step in range(5):
            begin, end = step * step_ms * MS, (step + 1) * step_ms * MS
            ready = begin + int(fetch_ms * MS)
            run.call(begin, end, f"ProfilerStep#{step}")
            run.call(begin, ready, FETCH)
            run.call(ready, end, "aten::linear")
            if on_device:
                run.kernel(ready + 2 * US, end, launched=ready)
    assert ("input_wait" in findings_by_kind(tmp_path / "run.db")) == expected


def test_fetch_overlapped_with_device_work_is_no_finding(tmp_path: Path) -> None:
    assert advice(write_fetches(tmp_path / "run.db", ahead=True)).findings == ()


def test_end_of_an_epoch_is_no_input_wait(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        run.step(0, 0, 20 * MS)
        run.kernel(2 * US, 10 * MS, launched=0)
        run.call(10 * MS, 20 * MS, FETCH)
    assert "input_wait" not in findings_by_kind(tmp_path / "run.db")


def test_host_only_recording_waits_for_input(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for step in range(5):
            begin = step * 10 * MS
            run.call(begin, begin + 10 * MS, f"ProfilerStep#{step}")
            run.call(begin + US, begin + US + 2 * MS, FETCH)
            run.call(begin + 3 * MS, begin + 9 * MS, "aten::linear")
    finding = findings_by_kind(tmp_path / "run.db")["input_wait"]
    assert saving_ns(finding) == 2 * MS
    assert "the program waits" in finding.text
    assert finding.sure == "certain"
    assert finding.advice.startswith("load batches in worker processes")
    with closing(sqlite3.connect(tmp_path / "run.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS UPROF_RUN (name, value)")
        db.execute("INSERT INTO UPROF_RUN VALUES ('trace_metadata', '{\"with_stack\": 1}')")
    finding = findings_by_kind(tmp_path / "run.db")["input_wait"]
    assert finding.sure == "likely"
    assert "the profiler itself slows the host (with_stack)" in finding.text
