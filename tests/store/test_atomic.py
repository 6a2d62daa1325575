from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from unified_prof.errors import OutputError
from unified_prof.store.atomic import replacing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_appears_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "report"
    with replacing(target, overwrite=False) as partial:
        partial.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert names(tmp_path) == ["report"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError, SystemExit])
def test_whatever_interrupts_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, interruption: type[BaseException]
) -> None:
    target = tmp_path / "report"
    target.write_text("old")

    def write_half() -> None:
        with replacing(target, overwrite=True) as partial:
            partial.write_text("half")
            partial.with_name(partial.name + "-journal").write_text("half")
            raise interruption

    with pytest.raises(interruption):
        write_half()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["report"]


def test_a_file_made_meanwhile_by_another_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "report"

    def be_late() -> None:
        with replacing(target, overwrite=False) as partial:
            partial.write_text("mine")
            target.write_text("theirs")

    with pytest.raises(OutputError, match="exists already"):
        be_late()
    assert target.read_text() == "theirs"
    assert names(tmp_path) == ["report"]


def test_a_dangling_link_counts_as_existing(tmp_path: Path) -> None:
    target = tmp_path / "report"
    target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match="exists already"), replacing(target, overwrite=False):
        pass


def test_a_directory_is_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a directory"), replacing(tmp_path, overwrite=True):
        pass


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space left"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_what_the_system_says_becomes_words(tmp_path: Path, code: int, words: str) -> None:
    with (
        pytest.raises(OutputError, match=words) as caught,
        replacing(tmp_path / "report", overwrite=False),
    ):
        raise OSError(code, os.strerror(code))
    assert "report" in str(caught.value)
    assert names(tmp_path) == []


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="No such file"),
        replacing(tmp_path / "none" / "report", overwrite=False),
    ):
        pass
