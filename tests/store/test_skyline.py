"""Run-time and memory reports in the tables of Skyline."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.records import tracked_run
from tests.sql import execute
from unified_prof.base.run_spec import TrackedRun
from unified_prof.errors import OutputError
from unified_prof.schema.catalogue import SKYLINE_MEMORY, SKYLINE_RUN_TIME, load
from unified_prof.sqlite import skyline_writer
from unified_prof.sqlite.statements import open_unfinished

FACTS = {"uprof": "0.1.0", "command": '["uprof"]'}
WRITERS = [skyline_writer.write_run_time, skyline_writer.write_memory]
each_report = pytest.mark.parametrize("write", WRITERS)
Writer = Callable[..., None]


@pytest.mark.parametrize(
    ("write", "family"),
    [
        (skyline_writer.write_run_time, SKYLINE_RUN_TIME),
        (skyline_writer.write_memory, SKYLINE_MEMORY),
    ],
)
def test_tables_have_documented_declarations(write: Writer, family: str, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    write(path, tracked_run(), FACTS)
    declared = load(family, "1")
    found = dict(execute(path, "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'UPROF%'"))
    for table in declared.tables.values():
        assert found[table.name] == table.create_sql
        for name, sql in table.indexes:
            assert found[name] == sql
    assert execute(path, "PRAGMA user_version") == [(1,)]


def test_unknown_peak_is_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    skyline_writer.write_memory(path, tracked_run(peak_usage_bytes=None), FACTS)
    assert execute(path, "SELECT * FROM misc_sizes") == []


@each_report
def test_uprof_tables_exist_only_with_rows(write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    no_records = dict.fromkeys(("operations", "weights", "activations", "iterations"), ())
    write(path, tracked_run(**no_records, anomalies={}), {})
    assert execute(path, "SELECT name FROM sqlite_master WHERE name LIKE 'UPROF%'") == []


@each_report
def test_equal_runs_give_equal_bytes(write: Writer, tmp_path: Path) -> None:
    first, second = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    write(first, tracked_run(), FACTS)
    write(second, tracked_run(), dict(reversed(FACTS.items())))
    assert first.read_bytes() == second.read_bytes()


@each_report
def test_existing_file_is_kept_without_overwrite(write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_text("existing")
    with pytest.raises(OutputError, match="already exists"):
        write(path, tracked_run(), FACTS)
    assert path.read_text() == "existing"
    write(path, tracked_run(), FACTS, overwrite=True)
    assert execute(path, "SELECT count(*) FROM UPROF_RUN") == [(2,)]


@each_report
def test_failed_write_leaves_no_file(write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_text("existing")
    broken = {"fact": object()}  # SQLite cannot bind it.
    with pytest.raises(OutputError, match=r"report\.sqlite"):
        write(path, tracked_run(), broken, overwrite=True)
    assert path.read_text() == "existing"
    assert [p.name for p in tmp_path.iterdir()] == ["report.sqlite"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write to every directory")
@each_report
def test_read_only_directory_is_named(write: Writer, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(OutputError, match="read-only"):
            write(tmp_path / "report.sqlite", tracked_run(), FACTS)
    finally:
        tmp_path.chmod(0o755)


def many_operations(count: int) -> TrackedRun:
    run = tracked_run()
    return tracked_run(operations=run.operations * count)


@each_report
def test_full_disk_is_an_error_and_leaves_no_file(
    write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tiny(path: Path) -> sqlite3.Connection:
        db = open_unfinished(path)
        db.execute("PRAGMA max_page_count = 12")
        return db

    monkeypatch.setattr(skyline_writer, "open_unfinished", tiny)
    facts = {f"fact {i}": "x" * 1000 for i in range(100)}
    with pytest.raises(OutputError, match="no space left"):
        write(tmp_path / "report.sqlite", many_operations(100), facts)
    assert list(tmp_path.iterdir()) == []


@each_report
def test_report_without_regions_has_no_region_tables(write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    write(path, tracked_run(), FACTS)
    assert execute(path, "SELECT name FROM sqlite_master WHERE name LIKE 'UPROF_REGION%'") == []
