"""Files made to hang, to fill the disk or to mislead are refused quickly."""

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.migrate.databases import make
from tests.sql import execute
from unified_prof import open_report
from unified_prof.base.signals import ended_by_signals
from unified_prof.errors import OutputError, StoreError
from unified_prof.migrate.check import check
from unified_prof.migrate.upgrade import upgrade
from unified_prof.schema import catalogue
from unified_prof.sqlite import opening
from unified_prof.sqlite.opening import detect
from unified_prof.sqlite.writer import ReportWriter

LATEST = catalogue.resolve("msprof", "latest")
OLD = "1.2.0_20250922"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS {} FROM n"


def report_with_endless_view(path: Path, table: str, column: str, revision: str = LATEST) -> Path:
    """Create a report in which an endless view has the name of a table."""
    make(path, revision, {"STRING_IDS": [(0, "N/A")]})
    execute(path, f"DROP TABLE IF EXISTS {table}")
    execute(path, f"CREATE VIEW {table} AS {ENDLESS.format(column)}")
    return path


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("TASK", "startNs"),
        ("task", "startNs"),
        ("UPROF_RUN", "name, 1 AS value"),
        ("UPROF_ANOMALIES", "name, 1 AS count, 1 AS detail"),
        ("ENUM_MODULE", "id, 1 AS name"),
        ("PYTORCH_API", "startNs"),
        ("META_DATA", "name, 1 AS value"),
    ],
)
def test_view_in_place_of_a_table_is_not_read(tmp_path: Path, table: str, column: str) -> None:
    path = report_with_endless_view(tmp_path / "report.db", table, column)
    assert detect(path).not_tables == (table,)
    with open_report(path, any_revision=True) as report:
        assert table not in report.tables
        assert report.rows(f"SELECT count(*) FROM {table}") == [(0,)]
    found = check(path)
    assert not found.sound
    words = f"{table} is a view or a virtual table, expected a table"
    assert words in [finding.message for finding in found.findings]


def test_virtual_table_in_place_of_a_table_is_not_read(tmp_path: Path) -> None:
    path = make(tmp_path / "report.db", LATEST)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE VIRTUAL TABLE TASK USING fts4(startNs)")
        db.execute("INSERT INTO TASK VALUES ('1')")
        db.commit()
    with open_report(path) as report:
        assert "TASK" not in report.tables
        assert report.rows("SELECT * FROM TASK") == []


@pytest.mark.parametrize("revision", [OLD, LATEST])
def test_report_with_a_view_for_a_table_is_kept(tmp_path: Path, revision: str) -> None:
    path = report_with_endless_view(tmp_path / "report.db", "TASK", "startNs", revision)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="TASK is a view or a virtual table"):
        upgrade(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.db"]


@pytest.mark.parametrize("table", ["stack_frames", "stack_correlation", "activation_entries"])
def test_skyline_report_with_a_view_is_not_sound(tmp_path: Path, table: str) -> None:
    path = tmp_path / "memory.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(catalogue.frozen_text("skyline-memory", "latest"))
        db.execute(f"DROP TABLE {table}")
        db.execute(f"CREATE VIEW {table} AS {ENDLESS.format('entry_id, 1 AS id')}")
    assert not check(path).sound


def test_triggers_of_the_file_do_not_run_during_an_upgrade(tmp_path: Path) -> None:
    trigger = f"CREATE TRIGGER t BEFORE UPDATE ON META_DATA BEGIN {ENDLESS.format('x')}; END"
    path = make(tmp_path / "report.db", OLD, {}, trigger)
    upgrade(path)
    assert execute(path, "SELECT name FROM sqlite_master WHERE type = 'trigger'")


def test_pages_that_multiply_do_not_stall_detection(tmp_path: Path) -> None:
    """All entries of a B-tree page name the next page: 20 levels, and 300**20 rows."""
    path = make(tmp_path / "report.db", LATEST)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE META_DATA")
        db.execute("CREATE TABLE META_DATA (name TEXT, value TEXT)")
        (root,) = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'META_DATA'"
        ).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
        db.execute("CREATE TABLE filler (x)")
        db.executemany("INSERT INTO filler VALUES (?)", [("y" * 3000,)] * 12)
        db.commit()
        (pages,) = db.execute("PRAGMA page_count").fetchone()
    chain = [root, *range(pages - 7, pages + 1)]
    content = bytearray(path.read_bytes())
    for page, child in pairwise(chain):
        content[(page - 1) * size : page * size] = interior_page(size, child)
    leaf = bytearray(size)
    leaf[0:8] = bytes([13, 0, 0, 0, 0, (size >> 8) & 255, size & 255, 0])
    content[(chain[-1] - 1) * size : chain[-1] * size] = leaf
    path.write_bytes(content)
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"take too long to read|is damaged"):
        detect(path)
    assert time.monotonic() - began < 100


def interior_page(size: int, child: int) -> bytes:
    """Return an interior page of a table whose entries all lead to the same page."""
    cells = 300
    page = bytearray(size)
    start = size - 6 * cells
    page[0:12] = bytes(
        [5, 0, 0, *cells.to_bytes(2, "big"), *start.to_bytes(2, "big"), 0]
    ) + child.to_bytes(4, "big")
    for number in range(cells):
        at = start + 6 * number
        page[12 + 2 * number : 14 + 2 * number] = at.to_bytes(2, "big")
        page[at : at + 6] = child.to_bytes(4, "big") + bytes([0x81, number % 128])
    return bytes(page)


@pytest.mark.parametrize("ending", ["-wal", "-journal", "-shm"])
@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
@pytest.mark.parametrize("act", [detect, check, upgrade, open_report])
def test_named_pipe_beside_a_database_is_refused(
    tmp_path: Path, ending: str, mode: str, act: Callable[[Path], object]
) -> None:
    path = make(tmp_path / "report.db", OLD)
    execute(path, f"PRAGMA journal_mode = {mode}")
    os.mkfifo(tmp_path / f"report.db{ending}")
    with pytest.raises(StoreError, match=rf"\.db{ending} in its directory is not a regular file"):
        act(path)


def report_with_log(path: Path) -> Path:
    """Create a report whose last commit is in the write-ahead log only, as after a kill."""
    source = path.with_name("source.db")
    with ReportWriter(source) as writer:
        writer.write("TASK", {"startNs": np.arange(9)})
    with closing(sqlite3.connect(source, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("DELETE FROM TASK WHERE startNs >= 3")
        path.write_bytes(source.read_bytes())
        path.with_name(f"{path.name}-wal").write_bytes(
            source.with_name("source.db-wal").read_bytes()
        )
    return path


def count_tasks(path: Path) -> object:
    with open_report(path) as report:
        return report.rows("SELECT count(*) FROM TASK")


def test_sparse_log_is_copied_sparsely(tmp_path: Path) -> None:
    path = report_with_log(tmp_path / "report.db")
    os.truncate(tmp_path / "report.db-wal", 100 << 30)
    began = time.monotonic()
    assert count_tasks(path) == [(3,)]
    assert time.monotonic() - began < 60


def test_log_over_the_free_space_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = report_with_log(tmp_path / "report.db")
    monkeypatch.setattr(opening, "_copy_sparse", lambda *_: pytest.fail("it was copied"))
    usage = (1 << 30, 1 << 30, 1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": usage[2]})())
    with pytest.raises(OutputError, match="No space left on device"):
        count_tasks(path)


def test_log_beside_the_target_of_a_link_is_read(tmp_path: Path) -> None:
    path = report_with_log(tmp_path / "report.db")
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(path)
    assert count_tasks(link) == [(3,)]


@pytest.mark.slow
def test_computed_value_of_a_gigabyte_is_refused(tmp_path: Path) -> None:
    huge = "CREATE TABLE big (a, b AS (hex(zeroblob(70000000))))"
    path = make(tmp_path / "report.db", LATEST, {}, huge, "INSERT INTO big VALUES (1)")
    if not hasattr(sqlite3.Connection, "setlimit"):
        pytest.skip("Python 3.10 cannot limit it")
    with open_report(path) as report, pytest.raises(StoreError, match="too big"):
        report.rows("SELECT b FROM big")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_signal_ends_a_long_query_without_blaming_the_file(
    tmp_path: Path, number: signal.Signals, expected: type[BaseException]
) -> None:
    path = make(tmp_path / "report.db", LATEST)
    with open_report(path) as report, ended_by_signals():
        timer = threading.Timer(0.3, signal.raise_signal, [number])
        timer.start()
        began = time.monotonic()
        with pytest.raises(expected):
            report.rows(ENDLESS.format("i") + " WHERE i < 0")
        assert time.monotonic() - began < 40
        timer.join()
        assert report.rows("SELECT 1") == [(1,)]
