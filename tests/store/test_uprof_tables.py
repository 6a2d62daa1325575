"""Facts that become known after a report was written."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.sql import execute
from unified_prof.errors import OutputError, StoreError
from unified_prof.sqlite import skyline_writer
from unified_prof.sqlite.skyline_writer import complete_run


def create_report(path: Path) -> Path:
    """Create a file whose exit code is unknown."""
    with closing(sqlite3.connect(path)) as db, db:
        skyline_writer.fill(db, "UPROF_RUN", [("device", "cpu"), ("exit_code", None)])
    return path


def test_unknown_facts_are_added_and_others_kept(tmp_path: Path) -> None:
    path = create_report(tmp_path / "report.sqlite")
    complete_run(path, {"device": "npu", "exit_code": "3"})
    rows = execute(path, "SELECT name, value FROM UPROF_RUN ORDER BY name")
    assert rows == [("device", "cpu"), ("exit_code", "3")]


def test_missing_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"gone\.sqlite"):
        complete_run(tmp_path / "gone.sqlite", {"exit_code": "0"})


def test_report_in_use_is_a_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = create_report(tmp_path / "report.sqlite")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path: connect(path, timeout=0))
    with closing(connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="is being written by another process"):
            complete_run(path, {"exit_code": "0"})
