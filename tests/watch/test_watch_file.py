"""Watch files: rows survive, parts follow one another, damage is named."""

from __future__ import annotations

import os
import platform
import sqlite3
from pathlib import Path

import pytest

from unified_prof.errors import StoreError
from unified_prof.migrate.check import check
from unified_prof.sqlite.opening import detect
from unified_prof.sqlite.watch_file import (
    UNKNOWN,
    RankSteps,
    StepRow,
    WatchEvent,
    WatchFile,
    file_name,
    rank_and_part,
    read_folder,
)

FACTS = {"rank": "0", "world_size": "1", "began_ns": "1"}


def row(step: int, length_ns: int = 10_000_000, event: int | None = None) -> StepRow:
    """A step of 10 ms that began at its number times 10 ms."""
    start = 1_790_000_000_000_000_000 + step * 10_000_000
    return StepRow(step, start, length_ns, 1, 2, 3, None, 5, 6, None, 7, None, 8, event)


def test_appended_rows_are_read_back_and_new_rows_are_added(tmp_path: Path) -> None:
    file = WatchFile(tmp_path, 0, FACTS)
    event = WatchEvent(0, 5, 1, "slow_step", "é")
    file.append([row(0), row(1, event=0)], [event])
    ranks = read_folder(tmp_path)
    assert ranks[0].columns["length_ns"].tolist() == [10_000_000] * 2
    assert ranks[0].columns["optimizer_ns"].tolist() == [UNKNOWN] * 2
    assert ranks[0].values("length_ns", healthy=True).tolist() == [10_000_000.0]
    event.status, event.capture = "ready", "captures/1"
    file.append([row(2)], [event])
    again = read_folder(tmp_path, ranks)
    assert again[0].columns["step"].tolist() == [0, 1, 2]
    assert again[0].events == [event]
    file.close({"exit_code": "0"})
    assert read_folder(tmp_path)[0].facts["exit_code"] == "0"
    assert [path.name for path in tmp_path.iterdir()] == ["watch_rank0.db"]


def test_a_rotated_run_is_read_as_one(tmp_path: Path) -> None:
    file = WatchFile(tmp_path, 3, FACTS, rotate_bytes=30_000)
    for first in range(0, 4000, 100):
        file.append([row(first + number) for number in range(100)])
    assert (tmp_path / file_name(3, 2)).exists()
    found = read_folder(tmp_path)[3]
    assert found.columns["step"].tolist() == list(range(4000))
    file.append([row(4000)])
    assert len(read_folder(tmp_path, {3: found})[3]) == 4001


def test_the_latest_run_replaces_an_earlier_one(tmp_path: Path) -> None:
    WatchFile(tmp_path, 0, FACTS).append([row(0), row(1)])
    WatchFile(tmp_path, 0, {**FACTS, "began_ns": "2"}).append([row(0)])
    assert (tmp_path / file_name(0, 1)).exists()
    assert len(read_folder(tmp_path)[0]) == 1


def test_a_watch_file_is_recognized_and_checked(tmp_path: Path) -> None:
    file = WatchFile(tmp_path, 0, FACTS)
    file.append([row(0)], [WatchEvent(0, 5, 1, "slow_step", "x")])
    assert detect(file.path).require() == ("watch", "1")
    assert check(file.path).findings == ()
    file.append([row(1, length_ns=-1), row(2, event=9)])
    kinds = [found.kind for found in check(file.path).findings]
    assert kinds == ["interval", "interval", "dangling"]


def test_a_folder_without_watch_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no watch files"):
        read_folder(tmp_path)
    with sqlite3.connect(tmp_path / "watch_rank0.db") as db:
        db.execute("CREATE TABLE a (b)")
    with pytest.raises(StoreError, match="is not a watch file"):
        read_folder(tmp_path)


@pytest.mark.parametrize("name", ["watch_rank.db", "watch_rank1.db-journal", "x_watch_rank1.db"])
def test_other_names_are_not_watch_files(name: str) -> None:
    assert rank_and_part(name) is None


HERE = platform.node()


@pytest.mark.parametrize(
    ("facts", "kill", "is_running"),
    [
        ({"ended_ns": "1", "host": "elsewhere"}, None, False),
        ({"host": "elsewhere", "pid": "7"}, ProcessLookupError(), True),
        ({}, ProcessLookupError(), True),
        ({"host": HERE}, None, False),
        ({"host": HERE, "pid": "no number"}, None, False),
        ({"host": HERE, "pid": "7"}, ProcessLookupError(), False),
        ({"host": HERE, "pid": "7"}, PermissionError(), True),
        ({"host": HERE, "pid": "7"}, None, True),
    ],
)
def test_a_run_goes_on_until_its_end_or_that_of_its_process(
    facts: dict[str, str],
    kill: OSError | None,
    is_running: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def signal_process(pid: int, number: int) -> None:
        assert (pid, number) == (7, 0)
        if kill is not None:
            raise kill

    monkeypatch.setattr(os, "kill", signal_process)
    run = RankSteps(0)
    run.facts = facts
    assert run.is_running == is_running
