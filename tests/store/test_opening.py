"""Opening changes no file, in any state, and names what is wrong with invalid ones."""

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.sql import execute
from unified_prof import open_report
from unified_prof.errors import OutputError, StoreError
from unified_prof.sqlite import opening
from unified_prof.sqlite.writer import ReportWriter

ROWS = 2000


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "msprof.db"
    path.parent.mkdir()
    with ReportWriter(path) as writer:
        writer.write("TASK", {"startNs": np.arange(ROWS)})
    return path


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Check that the block changes neither a file nor its directory."""
    before = directory_state(path.parent)
    yield
    assert directory_state(path.parent) == before


def directory_state(folder: Path) -> dict[str, tuple[str, int, int]]:
    return {
        file.name: (
            hashlib.sha256(file.read_bytes()).hexdigest(),
            file.stat().st_mtime_ns,
            file.stat().st_mode,
        )
        for file in folder.iterdir()
    }


def count_tasks(path: Path) -> int:
    with open_report(path) as found:
        return int(found.rows("SELECT count(*) FROM TASK")[0][0])


def copy_of_killed_writer(report: Path, *, wal: bool) -> Path:
    """Return a copy of `report` as a writer leaves it that is killed within a transaction.

    With a write-ahead log, its last commit is in the log only; with a rollback journal, half a
    transaction is in the file itself.
    """
    copy = report.parent.parent / "abandoned" / "msprof.db"
    copy.parent.mkdir()
    with closing(sqlite3.connect(report, isolation_level=None)) as db:
        if wal:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA wal_autocheckpoint = 0")
            db.execute("DELETE FROM TASK WHERE startNs >= 10")
        else:
            db.execute("PRAGMA cache_size = 1")
            db.execute("BEGIN")
            db.execute("UPDATE TASK SET startNs = -1")
        for file in report.parent.glob("msprof.db*"):
            if not file.name.endswith("-shm"):
                shutil.copy2(file, copy.parent)
    return copy


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_reading_changes_neither_file_nor_directory(mode: str, report: Path) -> None:
    execute(report, f"PRAGMA journal_mode = {mode}")
    with unchanged(report):
        assert count_tasks(report) == ROWS


def test_read_only_file_in_a_read_only_directory_is_read(report: Path) -> None:
    report.chmod(0o444)
    report.parent.chmod(0o555)
    try:
        with unchanged(report):
            assert count_tasks(report) == ROWS
    finally:
        report.parent.chmod(0o755)


def test_commits_of_a_killed_writer_in_the_log_are_read(report: Path) -> None:
    copy = copy_of_killed_writer(report, wal=True)
    assert (copy.parent / "msprof.db-wal").stat().st_size > 0
    with unchanged(copy):
        assert count_tasks(copy) == 10


def test_uncommitted_changes_of_a_killed_writer_are_not_read(report: Path) -> None:
    copy = copy_of_killed_writer(report, wal=False)
    assert (copy.parent / "msprof.db-journal").stat().st_size > 0
    with unchanged(copy), open_report(copy) as found:
        assert found.rows("SELECT min(startNs), max(startNs) FROM TASK") == [(0, ROWS - 1)]


def test_failure_to_copy_is_an_error(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = copy_of_killed_writer(report, wal=True)

    def full(*_: object) -> tuple[int, int, int]:
        return shutil._ntuple_diskusage(10, 10, 0)

    monkeypatch.setattr(shutil, "disk_usage", full)
    with pytest.raises(OutputError, match=r"cannot copy .*whose writer left msprof\.db-wal behind"):
        open_report(copy)


def test_temporary_copy_is_removed(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of_killed_writer(report, wal=True)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with open_report(copy):
        assert list(temporary.iterdir())
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_report_is_read_while_another_process_writes(report: Path, mode: str) -> None:
    with closing(sqlite3.connect(report, isolation_level=None)) as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO TASK (startNs) VALUES (1)")
        with unchanged(report):
            assert count_tasks(report) == ROWS
        other.execute("COMMIT")
        with unchanged(report):
            assert count_tasks(report) == ROWS + 1


def test_locked_report_is_an_error(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_BUSY_TIMEOUT_S", 0.01)
    with closing(sqlite3.connect(report, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="is being written by another process"):
            open_report(report)


def test_log_that_keeps_changing_is_an_error(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = copy_of_killed_writer(report, wal=True)
    real = opening._copy_sparse

    def meanwhile(source: Path, target: Path) -> None:
        real(source, target)
        os.utime(source, ns=(0, source.stat().st_mtime_ns + 1))

    monkeypatch.setattr(opening, "_copy_sparse", meanwhile)
    with pytest.raises(StoreError, match="is being written by another process"):
        open_report(copy)


@pytest.mark.parametrize("name", ["a b?c#d%41&mode=rwc\N{SNOWMAN}'\".db", "msprof.db"])
def test_any_relative_or_absolute_file_name_is_read(
    name: str, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = report.rename(report.with_name(name))
    assert count_tasks(path) == ROWS
    monkeypatch.chdir(path.parent)
    assert count_tasks(Path(name)) == ROWS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty, expected an SQLite database"),
        (b"S", "is not a report (an SQLite database) but text"),
        (b"{}" * 5000, "is not a report (an SQLite database) but JSON"),
        (b"SQLite format 3\0", "is cut off: 16 bytes, expected 100"),
        (b"SQLite format 3\0" + b"\0" * 5000, "bad.db"),
        (b"SQLite format 3\0" + b"\xff" * 5000, "bad.db"),
    ],
)
def test_other_files_are_refused_with_reason(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.db"
    path.write_bytes(content)
    with unchanged(path), pytest.raises(StoreError) as raised:
        open_report(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


def test_file_truncated_anywhere_is_refused(report: Path) -> None:
    intact = report.read_bytes()
    for size in [*range(16, 100, 7), *range(100, len(intact), 5003), len(intact) - 1]:
        report.write_bytes(intact[:size])
        with pytest.raises(StoreError, match=r"msprof\.db is cut off: [\d,]+ bytes, expected"):
            open_report(report)


def test_damaged_page_is_reported(report: Path) -> None:
    content = bytearray(report.read_bytes())
    content[16384:] = b"\x55" * (len(content) - 16384)
    report.write_bytes(content)
    with pytest.raises(StoreError, match=r"msprof\.db is damaged: .*malformed"):
        count_tasks(report)


def test_damaged_schema_text_is_reported(report: Path) -> None:
    content = report.read_bytes()
    report.write_bytes(content.replace(b"CREATE TABLE TASK (", b"CREATE TABLE TASK \xf0"))
    with pytest.raises(StoreError, match=r"msprof\.db is damaged: malformed"):
        open_report(report)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a directory, expected a report file"),
        (lambda path: os.mkfifo(path), "is not a regular file"),
        (lambda path: path.symlink_to("nowhere"), "does not exist"),
        (lambda path: path.symlink_to(path.name), "cannot read .*symbolic links"),
    ],
)
def test_missing_and_special_files_are_refused(tmp_path: Path, make: object, message: str) -> None:
    path = tmp_path / "thing.db"
    assert callable(make)
    make(path)
    with pytest.raises(StoreError, match=f"thing.db.*{message}|{message}"):
        open_report(path)


def test_invalid_file_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*null"):
        open_report(tmp_path / "a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_unreadable_file_is_an_error(report: Path) -> None:
    report.chmod(0)
    with pytest.raises(StoreError, match=r"cannot read .*msprof\.db: Permission denied"):
        open_report(report)
