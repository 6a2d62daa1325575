"""Detection of reports after a crash, a truncated copy or a manual change."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from unified_prof.errors import StoreError
from unified_prof.schema import catalogue
from unified_prof.sqlite.opening import detect


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "report.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(catalogue.frozen_text("msprof", "1.1.0_20241218"))
    return path


def test_detection_changes_neither_file_nor_directory(database: Path) -> None:
    before = (database.read_bytes(), database.stat().st_mtime_ns, [*database.parent.iterdir()])
    assert detect(database).revision == "1.1.0_20241218"
    after = (database.read_bytes(), database.stat().st_mtime_ns, [*database.parent.iterdir()])
    assert after == before


def test_any_file_name_is_accepted(database: Path) -> None:
    odd = database.with_name("a b%20?mode=rw#ü.db")
    database.rename(odd)
    assert detect(odd).revision == "1.1.0_20241218"


@pytest.mark.parametrize("content", [b"", b"SQLite", b"hello, world", b'{"traceEvents": []}'])
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "report.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"report\.db"):
        detect(path)


def test_missing_files_and_directories_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"gone\.db"):
        detect(tmp_path / "gone.db")
    with pytest.raises(StoreError, match="directory"):
        detect(tmp_path)


def test_file_truncated_anywhere_is_refused(database: Path) -> None:
    intact = database.read_bytes()
    for size in {*range(1, 200, 7), *range(200, len(intact), 997), len(intact) - 1}:
        database.write_bytes(intact[:size])
        with pytest.raises(StoreError, match=r"report\.db"):
            detect(database)


def test_damaged_schema_is_a_store_error(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[100:4000] = b"\xff" * 3900
    database.write_bytes(content)
    with pytest.raises(StoreError, match=r"report\.db"):
        detect(database)


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_files_of_a_killed_writer_are_recognized_unchanged(database: Path, mode: str) -> None:
    abandoned = database.with_name("left.db")
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
        shutil.copy(database, abandoned)
        shutil.copy(f"{database}{suffix}", f"{abandoned}{suffix}")
    before = abandoned.read_bytes()
    expected = "1.1.1_20250123" if mode == "WAL" else "1.1.0_20241218"
    assert detect(abandoned).revision == expected
    assert abandoned.read_bytes() == before
