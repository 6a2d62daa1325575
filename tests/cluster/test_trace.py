"""Selected ranks of a run as one trace, on a common clock and cut to a step."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import training_step
from tests.cli.test_report import refused, uprof
from tests.cluster import ranks
from tests.cluster.summaries import Contents, write_summary
from tests.sql import execute


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks with equal recordings, where the clock of the second one is 1 ms behind."""
    folder = write_summary(tmp_path / "run", Contents(tp=2, dp=1, pp=1, steps=1))
    files = [training_step(tmp_path / f"rank{rank}.db") for rank in (0, 1)]
    begin, end = execute(files[0], "SELECT MIN(startNs), MAX(endNs) FROM TASK")[0]
    with closing(sqlite3.connect(folder / "cluster.sqlite")) as db:
        for rank, file in enumerate(files):
            db.execute("UPDATE RANK SET file = ? WHERE rank = ?", [str(file), rank])
        db.execute("UPDATE RANK SET clock_offset_ns = 1000000 * rank")
        middle = (int(begin) + int(end)) // 2
        db.execute("UPDATE STEP_RANK SET start_ns = ?, end_ns = ?", [int(begin), middle])
        db.commit()
    return folder


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def starts_of(found: list[dict[str, Any]], rank: int) -> list[int]:
    groups = {
        one["pid"]
        for one in found
        if one["name"] == "process_name"
        and one["args"]["name"].startswith((f"rank {rank}:", f"rank {rank} ("))
    }
    return [round(1000 * one["ts"]) for one in found if one["ph"] == "X" and one["pid"] in groups]


def test_ranks_are_moved_to_the_clock_of_the_first(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "both.json"
    done = uprof("trace", run, "--ranks", "0-1", "-o", out)
    assert done.returncode == 0, done.stderr
    first, second = (starts_of(events(out), rank) for rank in (0, 1))
    assert len(first) == len(second) > 0
    shifts = [after - before for before, after in zip(first, second, strict=True)]
    assert shifts == [1_000_000] * len(first)


def test_step_option_cuts_the_trace_to_the_step(run: Path, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    uprof("trace", run, "--ranks", "1", "-o", whole)
    uprof("trace", run, "--ranks", "1", "--step", "0", "-o", part)
    assert 0 < len(starts_of(events(part), 1)) < len(starts_of(events(whole), 1))


def test_trace_of_a_step_has_the_host_calls_that_launched_it(run: Path, tmp_path: Path) -> None:
    """A host that runs ahead has finished a step before the device starts with it."""
    part = tmp_path / "part.json"
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db:
        db.execute("UPDATE STEP_RANK SET step = 4, start_ns = end_ns - 1")
        db.commit()
    assert uprof("trace", run, "--ranks", "1", "--step", "4", "-o", part).returncode == 0
    assert "aten::_foreach_add_" in {one["name"] for one in events(part)}


def test_ranks_can_be_selected_as_in_a_run(run: Path, tmp_path: Path) -> None:
    for words, expected in (("all", [0, 1]), ("every:2", [0]), ("1,0", [1, 0])):
        done = uprof("trace", run, "--ranks", words, "-o", tmp_path / "o.json", "--json", "--force")
        assert json.loads(done.stdout)["ranks"] == expected


def test_ranks_without_a_common_clock_are_warned_about(run: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db:
        db.execute("UPDATE RANK SET clock_island = rank")
        db.commit()
    done = uprof("trace", run, "--ranks", "0,1", "-o", tmp_path / "o.json", "--json")
    assert "no common event" in done.stderr
    assert json.loads(done.stdout)["clock_islands"] == [[0], [1]]


def test_missing_recording_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "rank1.db").unlink()
    out = tmp_path / "o.json"
    refused(uprof("trace", run, "--ranks", "0,1", "-o", out), 7, "rank 1", "is missing")
    assert not out.exists()


def test_directory_of_ranks_needs_no_build(tmp_path: Path) -> None:
    folder = ranks.databases(tmp_path / "run", world=2)
    out = tmp_path / "o.json"
    done = uprof("trace", folder, "--ranks", "1", "--step", "1", "-o", out)
    assert done.returncode == 0, done.stderr
    assert len(starts_of(events(out), 1)) > 0
    assert not starts_of(events(out), 0)


def test_clock_drift_shifts_later_events_more(run: Path, tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    assert uprof("trace", run, "--ranks", "0-1", "-o", before).returncode == 0
    old = {rank: starts_of(events(before), rank) for rank in (0, 1)}
    ((at,),) = execute(run.parent / "rank0.db", "SELECT MIN(startNs) FROM TASK")
    drift = {"at_ns": int(at), "ppb": {"1": 1e8}}  # 10 %, to be visible in a short recording
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db:
        db.execute("INSERT INTO META_DATA VALUES ('clock_drift', ?)", [json.dumps(drift)])
        db.commit()
    assert uprof("trace", run, "--ranks", "0-1", "-o", after).returncode == 0
    new = {rank: starts_of(events(after), rank) for rank in (0, 1)}
    assert new[0] == old[0]
    shifts = [time - before for before, time in zip(old[1], new[1], strict=True)]
    first = old[1][0]
    for time, shift in zip(old[1], shifts, strict=True):
        assert shift - shifts[0] == pytest.approx((time - first) / 10, abs=2)
