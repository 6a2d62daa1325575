"""Recognising what a crash, a bad copy or a slip of the hand has left."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from unified_prof.errors import StoreError
from unified_prof.schema import catalogue
from unified_prof.sqlite.detect import detect


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "report.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(catalogue.frozen_text("msprof", "1.1.0_20241218"))
    return path


def test_recognising_leaves_the_file_and_its_folder_as_they_were(database: Path) -> None:
    before = (database.read_bytes(), database.stat().st_mtime_ns, [*database.parent.iterdir()])
    assert detect(database).revision == "1.1.0_20241218"
    after = (database.read_bytes(), database.stat().st_mtime_ns, [*database.parent.iterdir()])
    assert after == before


def test_any_file_name_is_taken_as_it_is(database: Path) -> None:
    odd = database.with_name("a b%20?mode=rw#ü.db")
    database.rename(odd)
    assert detect(odd).revision == "1.1.0_20241218"


@pytest.mark.parametrize("content", [b"", b"SQLite", b"hello, world", b'{"traceEvents": []}'])
def test_what_is_no_database_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "report.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"report\.db"):
        detect(path)


def test_missing_files_and_folders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"gone\.db"):
        detect(tmp_path / "gone.db")
    with pytest.raises(StoreError, match="directory"):
        detect(tmp_path)


def test_a_file_cut_off_anywhere_is_refused(database: Path) -> None:
    whole = database.read_bytes()
    for size in {*range(1, 200, 7), *range(200, len(whole), 997), len(whole) - 1}:
        database.write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"report\.db"):
            detect(database)


def test_a_damaged_schema_is_an_error_of_ours(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[100:4000] = b"\xff" * 3900
    database.write_bytes(content)
    with pytest.raises(StoreError, match=r"report\.db"):
        detect(database)


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_what_a_killed_writer_left_is_recognised_without_touching_it(
    database: Path, mode: str
) -> None:
    left = database.with_name("left.db")
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN")
        db.executemany("INSERT INTO STRING_IDS (value) VALUES (?)", (("text" * 99,),) * 500)
        if mode == "WAL":
            db.execute("UPDATE META_DATA SET value = '1.1.1' WHERE name = 'SCHEMA_VERSION'")
            db.execute("ALTER TABLE COMMUNICATION_TASK_INFO ADD COLUMN isMaster INTEGER")
            db.execute("COMMIT")
        suffix = "-wal" if mode == "WAL" else "-journal"
        shutil.copy(database, left)
        shutil.copy(f"{database}{suffix}", f"{left}{suffix}")
    before = left.read_bytes()
    expected = "1.1.1_20250123" if mode == "WAL" else "1.1.0_20241218"
    assert detect(left).revision == expected
    assert left.read_bytes() == before
