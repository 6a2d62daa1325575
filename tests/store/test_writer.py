from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from unified_prof.errors import OutputError, StoreError
from unified_prof.store.writer import ReportWriter


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def test_a_block_that_ends_well_leaves_the_report(tmp_path: Path) -> None:
    path = tmp_path / "msprof.db"
    with ReportWriter(path) as report:
        name = report.strings.intern("MatMul")
        report.write("COMPUTE_TASK_INFO", {"name": name, "globalTaskId": np.arange(3)})
        assert not path.exists()
    assert rows(
        path, "SELECT value, globalTaskId FROM COMPUTE_TASK_INFO JOIN STRING_IDS ON id = name"
    ) == [
        ("MatMul", 0),
        ("MatMul", 1),
        ("MatMul", 2),
    ]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_a_block_that_raises_leaves_nothing_and_its_own_error(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def work() -> None:
        with ReportWriter(tmp_path / "msprof.db") as report:
            report.write("TASK", {"startNs": np.arange(1000)})
            raise error

    with pytest.raises(error):
        work()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_unless_overwriting_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "msprof.db"
    path.write_text("precious")
    with pytest.raises(OutputError, match="already exists"), ReportWriter(path):
        pass
    assert path.read_text() == "precious"
    with ReportWriter(path, overwrite=True):
        pass
    assert rows(path, "SELECT count(*) FROM STRING_IDS") == [(0,)]


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreError, match=r"msprof\.db.*COMPUTE_TASK_INFO\.globalTaskId"),
        ReportWriter(tmp_path / "msprof.db") as report,
    ):
        report.write("COMPUTE_TASK_INFO", {"globalTaskId": [1, 1]})
    assert list(tmp_path.iterdir()) == []
