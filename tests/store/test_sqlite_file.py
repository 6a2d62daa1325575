from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from unified_prof.errors import StoreError
from unified_prof.store.detect import detect
from unified_prof.store.sqlite_file import reading


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "report.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (a)")
        db.executemany("INSERT INTO t VALUES (?)", ((f"row {i}" * 20,) for i in range(400)))
        db.commit()
    return path


def rows(path: Path) -> int:
    with reading(path) as db:
        return int(db.execute("SELECT count(*) FROM t").fetchone()[0])


def test_reading_leaves_the_file_and_its_folder_as_they_were(database: Path) -> None:
    before = (database.read_bytes(), database.stat().st_mtime_ns, [*database.parent.iterdir()])
    assert rows(database) == 400
    after = (database.read_bytes(), database.stat().st_mtime_ns, [*database.parent.iterdir()])
    assert after == before


def test_nothing_can_be_written_through_it(database: Path) -> None:
    with pytest.raises(StoreError, match="readonly"), reading(database) as db:
        db.execute("INSERT INTO t VALUES (1)")


def test_any_file_name_can_be_opened(database: Path) -> None:
    odd = database.with_name("a b%20?mode=rw#ü.db")
    database.rename(odd)
    assert rows(odd) == 400


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"SQLite", "is cut off"),
        (b"hello, world", "is not an SQLite database: it begins with"),
        (b'{"traceEvents": []}', r"is not an SQLite database: text \(JSON\?\)"),
        (b"\x1f\x8b\x08 and more", "a gzip archive"),
    ],
)
def test_what_is_no_database_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "report.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"report\.db .*{message}"):
        rows(path)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"gone\.db: no such file"):
        rows(tmp_path / "gone.db")
    with pytest.raises(StoreError, match="is a directory"):
        rows(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(database: Path) -> None:
    database.chmod(0)
    with pytest.raises(StoreError, match=r"report\.db: Permission denied"):
        rows(database)


def test_a_file_cut_off_anywhere_is_refused(database: Path) -> None:
    whole = database.read_bytes()
    for size in {*range(1, 200, 7), *range(200, len(whole), 997), len(whole) - 1}:
        database.write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"report\.db"):
            detect(database)


def test_damage_inside_is_reported_not_raised_as_sqlite_error(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[4096 * 2 : 4096 * 6] = b"\xff" * (4096 * 4)
    database.write_bytes(content)
    with pytest.raises(StoreError, match="malformed"), reading(database) as db:
        db.execute("SELECT sum(length(a)) FROM t").fetchall()


def crashed_with_log(database: Path, mode: str) -> Path:
    """Leave what a writer killed after its first transaction leaves: the file and its log."""
    left = database.with_name("left.db")
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        db.execute("PRAGMA cache_size = 1")
        if mode == "WAL":
            db.execute("INSERT INTO t VALUES ('committed, only in the log')")
        else:
            db.execute("BEGIN")
            db.executemany("INSERT INTO t VALUES (?)", (("never committed" * 99,),) * 200)
        shutil.copy(database, left)
        suffix = "-wal" if mode == "WAL" else "-journal"
        shutil.copy(f"{database}{suffix}", f"{left}{suffix}")
    return left


def test_a_write_ahead_log_left_by_a_crash_is_read(database: Path) -> None:
    left = crashed_with_log(database, "WAL")
    before = left.read_bytes()
    assert rows(left) == 401
    assert left.read_bytes() == before


def test_a_journal_left_by_a_crash_is_rolled_back_in_a_copy_only(database: Path) -> None:
    left = crashed_with_log(database, "DELETE")
    before = left.read_bytes()
    assert rows(left) == 400
    assert left.read_bytes() == before


def test_a_cleanly_closed_file_in_log_mode_gets_no_log_beside_it(database: Path) -> None:
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    assert rows(database) == 400
    assert [*database.parent.iterdir()] == [database]


def test_a_locked_file_is_named(database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"report\.db.*locked") as caught:
            rows(database)
    assert "another process" in str(caught.value.hint)
