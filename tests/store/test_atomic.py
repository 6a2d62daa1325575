"""Atomic files: complete under their name, or absent."""

import errno
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from unified_prof.errors import OutputError
from unified_prof.sqlite import atomic
from unified_prof.sqlite.atomic import replacing


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    with replacing(target) as partial:
        partial.write_text("new")
        assert partial.parent == tmp_path
        assert not target.exists()
    assert target.read_text() == "new"
    assert names(tmp_path) == ["out.txt"]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "out") as partial:
        partial.write_text("x")
    modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_block_that_raises_changes_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "out"
    target.write_text("old")

    def work() -> None:
        with replacing(target, overwrite=True) as partial:
            partial.write_text("half")
            partial.with_name(partial.name + "-journal").write_text("left by SQLite")
            raise error

    with pytest.raises(error):
        work()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_file_created_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def work() -> None:
        with replacing(target) as partial:
            partial.write_text("new")
            target.write_text("other")

    with pytest.raises(OutputError, match="out already exists"):
        work()
    assert target.read_text() == "other"
    assert names(tmp_path) == ["out"]


def test_file_is_renamed_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with replacing(tmp_path / "out") as partial:
        partial.write_text("new")
    assert names(tmp_path) == ["out"]


def test_symbolic_link_is_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "big disk", tmp_path / "out"
    real.mkdir()
    (real / "file").write_text("old")
    link.symlink_to(real / "file")
    with replacing(link, overwrite=True) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert (real / "file").read_text() == "new"


@pytest.mark.parametrize("target_exists", [True, False])
def test_symbolic_link_is_written_with_force_only(tmp_path: Path, *, target_exists: bool) -> None:
    target, link = tmp_path / "elsewhere", tmp_path / "out"
    if target_exists:
        target.write_text("old")
    link.symlink_to(target)
    with (
        pytest.raises(OutputError, match=r"already exists|is a symbolic link to") as raised,
        replacing(link),
    ):
        pass
    assert raised.value.slug == "already-exists"
    assert names(tmp_path) == (["elsewhere", "out"] if target_exists else ["out"])
    with replacing(link, overwrite=True) as partial:
        partial.write_text("new")
    assert (target.read_text(), link.is_symlink()) == ("new", True)


def test_files_left_by_another_database_are_not_adopted(tmp_path: Path) -> None:
    (tmp_path / "out.db-wal").write_text("of a database that is gone")
    with (
        pytest.raises(OutputError, match=r"out\.db-wal is left over"),
        replacing(tmp_path / "out.db"),
    ):
        pass
    with replacing(tmp_path / "out.db", overwrite=True) as partial:
        partial.write_text("new")
    assert names(tmp_path) == ["out.db"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "is a directory"),
        ("no/such/folder/out", "is not an existing directory"),
        ("file/out", "file is not an existing directory"),
        ("x" * 300, "File name too long"),
        ("fifo", "is not a regular file"),
        ("a\0b", "invalid file name"),
    ],
)
def test_invalid_target_is_refused_at_once(tmp_path: Path, target: str, message: str) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OutputError, match=message), replacing(tmp_path / target, overwrite=True):
        pytest.fail("the block was entered")
    assert names(tmp_path) == ["fifo", "file"]


def test_longest_file_name_is_accepted(tmp_path: Path) -> None:
    with replacing(tmp_path / ("\N{SNOWMAN}" * 85)) as partial:
        partial.write_text("x")
    assert names(tmp_path) == ["\N{SNOWMAN}" * 85]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "no space left in"),
        (errno.EFBIG, "the file size limit is exceeded"),
        (errno.EROFS, "is read-only, or this user may not write there"),
        (errno.EACCES, "is read-only, or this user may not write there"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_system_errors_name_the_path(tmp_path: Path, code: int, message: str) -> None:
    def work() -> None:
        with replacing(tmp_path / "out"):
            raise OSError(code, os.strerror(code))

    with pytest.raises(OutputError, match=f"cannot write .*out: .*{message}"):
        work()
    assert names(tmp_path) == []


def test_small_file_is_replaced_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "it"
    link = tmp_path / "link"
    link.symlink_to(target)
    atomic.write_small(target, b"first")
    atomic.write_small(link, b"second")
    assert (target.read_bytes(), link.is_symlink()) == (b"second", True)
    with pytest.raises(OutputError, match="not an existing directory"):
        atomic.write_small(tmp_path / "no" / "it", b"")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="no space left"):
        atomic.write_small(target, b"third")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it", "link"]
    assert target.read_bytes() == b"second"


COUNT = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {}) "


@pytest.mark.parametrize("steps", [None, 100_000_000])
def test_statements_run_within_their_step_limit(steps: int | None) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        atomic.watch(db, steps=steps)
        count = db.execute(COUNT.format(200_000) + "SELECT count(*) FROM n").fetchone()
    assert count == (200_000,)


def test_statement_over_its_step_limit_is_stopped() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        atomic.watch(db, steps=1_000_000)
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            db.execute(COUNT.format(10**12) + "SELECT count(*) FROM n").fetchone()
        atomic.watch(db, steps=1_000_000)
        assert db.execute("SELECT 1").fetchone() == (1,)
