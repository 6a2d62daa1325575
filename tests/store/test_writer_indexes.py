"""Indexes are created at the cheaper moment, and are complete and valid."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sql import execute
from unified_prof.sqlite.inserts import Index
from unified_prof.sqlite.writer import ReportWriter

SORTED = np.arange(1000)
BATCHES: dict[str, list[dict[str, Any]]] = {
    "in order": [{"startNs": SORTED}, {"startNs": SORTED + 999}],
    "out of order": [{"startNs": SORTED[::-1]}],
    "in order, then not": [{"startNs": SORTED}, {"startNs": SORTED - 1}, {"startNs": SORTED}],
    "ties in order": [{"startNs": 5, "globalTaskId": SORTED}],
    "ties out of order": [{"startNs": np.full(1000, 5), "globalTaskId": SORTED[::-1]}],
    "with NULL": [{"startNs": [3, None, 1], "globalTaskId": [1, 2, 3]}, {"startNs": [0]}],
    "floats": [{"startNs": np.array([2.5, 1.5])}],
    "one row each": [{"startNs": [i]} for i in (1, 5, 3)],
}
MANY = np.arange(70_000)
SCALES = (1, 1 << 20, 1 << 40)
STARTS: dict[str, list[dict[str, Any]]] = {
    "in order": [{"startNs": MANY}, {"startNs": MANY + 70_000}],
    "in order, different widths": [{"startNs": MANY * scale + scale} for scale in SCALES],
    "ties out of order": [{"startNs": MANY // 8, "globalTaskId": -MANY}],
    "two devices": [{"startNs": MANY, "deviceId": device} for device in (0, 1)],
    "in order, then few": [{"startNs": MANY}, {"startNs": [70_001, 3]}],
    "in order, then NULL": [{"startNs": MANY}, {"startNs": [None, 3]}],
    "NULL among them": [{"startNs": np.ma.MaskedArray(MANY, MANY == 69_000)}],
    "no key": [{"startNs": MANY, "globalTaskId": None}],
    "floats": [{"startNs": MANY}, {"startNs": MANY + 70_000.5}],
}
BATCHES_OF_PAGES: dict[str, list[dict[str, Any]]] = {
    name: [{"globalTaskId": MANY[: np.size(batch["startNs"])], **batch} for batch in batches]
    for name, batches in STARTS.items()
}
WRITTEN_AS_PAGES = ("in order", "in order, different widths", "ties out of order")


@pytest.mark.quick(cases=6)
@pytest.mark.parametrize("case", BATCHES_OF_PAGES)
def test_task_index_is_complete_if_rows_become_pages(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "msprof.db"
    rows_when_created = []
    create = Index.create

    def record(index: Index, db: sqlite3.Connection) -> None:
        if index.name == "TaskIndex":
            rows_when_created.append(db.execute("SELECT count(*) FROM TASK").fetchone()[0])
        create(index, db)

    monkeypatch.setattr(Index, "create", record)
    with ReportWriter(path) as report:
        count = sum(report.write("TASK", batch) for batch in BATCHES_OF_PAGES[case])
    with closing(sqlite3.connect(path)) as db:
        plan = db.execute("EXPLAIN QUERY PLAN SELECT * FROM TASK WHERE startNs > 4").fetchall()
        assert "TaskIndex (startNs>?)" in str(plan)
        assert db.execute("SELECT count(*) FROM TASK INDEXED BY TaskIndex").fetchone() == (count,)
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert rows_when_created == ([0] if case in WRITTEN_AS_PAGES else [0, count])
        db.execute("INSERT INTO TASK (startNs) VALUES (17)")
        db.execute("DELETE FROM TASK WHERE startNs % 3 = 1")
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("case", BATCHES)
def test_task_index_is_complete_in_any_order_of_rows(tmp_path: Path, case: str) -> None:
    path = tmp_path / "msprof.db"
    with ReportWriter(path) as report:
        count = sum(report.write("TASK", batch) for batch in BATCHES[case])
    plan = execute(path, "EXPLAIN QUERY PLAN SELECT * FROM TASK WHERE startNs > 4")
    assert "TaskIndex (startNs>?)" in str(plan)
    assert execute(path, "SELECT count(*) FROM TASK INDEXED BY TaskIndex")[0] == (count,)
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]


def test_communication_tasks_are_indexed_by_task(tmp_path: Path) -> None:
    path = tmp_path / "msprof.db"
    with ReportWriter(path) as report:
        report.write("COMMUNICATION_TASK_INFO", {"globalTaskId": [3, 1, 2]})
    names = execute(path, "SELECT name FROM sqlite_master WHERE type = 'index'")
    assert names == [("CommunicationTaskIndex",)]
