"""Indexes are made at the cheaper moment; whichever that is, they are there and right."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unified_prof.store.writer import ReportWriter

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


@pytest.mark.parametrize("case", BATCHES)
def test_task_is_indexed_by_time_in_whatever_order_it_came(tmp_path: Path, case: str) -> None:
    path = tmp_path / "msprof.db"
    with ReportWriter(path) as report:
        count = sum(report.write("TASK", batch) for batch in BATCHES[case])
    with closing(sqlite3.connect(path)) as db:
        plan = db.execute("EXPLAIN QUERY PLAN SELECT * FROM TASK WHERE startNs > 4").fetchall()
        assert "TaskIndex (startNs>?)" in str(plan)
        assert db.execute("SELECT count(*) FROM TASK INDEXED BY TaskIndex").fetchone() == (count,)
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_communication_tasks_are_indexed_by_task(tmp_path: Path) -> None:
    path = tmp_path / "msprof.db"
    with ReportWriter(path) as report:
        report.write("COMMUNICATION_TASK_INFO", {"globalTaskId": [3, 1, 2]})
    with closing(sqlite3.connect(path)) as db:
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'index'").fetchall()
    assert names == [("CommunicationTaskIndex",)]
