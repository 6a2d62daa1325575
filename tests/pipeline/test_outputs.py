"""Names and directories of reports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import datetime, tzinfo
from pathlib import Path

import pytest

from unified_prof.errors import OutputError
from unified_prof.pipeline import outputs
from unified_prof.pipeline.outputs import Workload, exec_unprofiled, rank_of

SINGLE = rank_of({})


@pytest.mark.parametrize(
    ("target", "is_module", "command"),
    [
        ("train.py", False, [sys.executable, "train.py"]),
        ("train.pyw", False, [sys.executable, "train.pyw"]),
        ("train", False, ["train"]),  # has a #! line
        ("plain", False, [sys.executable, "plain"]),
        ("none", False, [sys.executable, "none"]),
        ("train", True, [sys.executable, "-m", "train"]),
    ],
)
def test_unprofiled_rank_becomes_its_workload(
    target: str, is_module: bool, command: list[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in {
        "train.py": 0o755,
        "train.pyw": 0o755,
        "train": 0o755,
        "plain": 0o644,
    }.items():
        (place / name).touch(mode)

    def start(*of: object) -> None:
        raise RuntimeError(*of)

    monkeypatch.setattr(os, "execv", start)
    monkeypatch.setattr(subprocess, "_args_from_interpreter_flags", list)
    with pytest.raises(RuntimeError) as caught:
        exec_unprofiled(Workload(target, is_module, ("--epochs", "1")))
    if command == ["train"]:
        command = [str(place / "train")]
    assert caught.value.args == (command[0], [*command, "--epochs", "1"])


def test_file_names_contain_the_rank() -> None:
    rank = rank_of({"RANK": "12", "LOCAL_RANK": "4", "WORLD_SIZE": "16"})
    assert (rank.rank, rank.local_rank, rank.world_size) == (12, 4, 16)
    files = outputs.skyline_files(Path("out"), ("run-time", "memory", "timeline"), rank)
    assert files == {
        "run-time": Path("out/run_time_rank12.sqlite"),
        "memory": Path("out/memory_rank12.sqlite"),
    }


@pytest.mark.parametrize("environment", [{}, {"RANK": ""}, {"RANK": "first"}])
def test_single_process_has_no_rank_in_file_names(environment: dict[str, str]) -> None:
    files = outputs.skyline_files(Path("out"), ("memory",), rank_of(environment))
    assert files == {"memory": Path("out/memory.sqlite")}


def test_default_directory_is_named_after_the_script() -> None:
    named = outputs.default_directory("some/where/train.py", is_module=False, rank=SINGLE)
    assert re.fullmatch(r"uprof_train_\d{8}_\d{6}", str(named))
    named = outputs.default_directory("pkg.train", is_module=True, rank=SINGLE)
    assert re.fullmatch(r"uprof_train_\d{8}_\d{6}", str(named))


def test_runs_that_start_in_one_second_have_a_directory_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Stopped:
            return cls(2026, 3, 1, 12, 30, 5)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(outputs, "datetime", Stopped)
    made = []
    for _ in range(3):
        made.append(outputs.default_directory("train.py", is_module=False, rank=SINGLE))
        made[-1].mkdir()
    first = "uprof_train_20260301_123005"
    assert [*map(str, made)] == [first, f"{first}_2", f"{first}_3"]


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")
def test_ranks_of_a_launch_share_one_directory() -> None:
    ranks = [rank_of({"RANK": str(i)}) for i in range(2)]
    # Both ranks are children of one launcher: this process' parent, which started long ago.
    folders = {outputs.default_directory("train.py", is_module=False, rank=r) for r in ranks}
    assert len(folders) == 1
    assert folders != {outputs.default_directory("train.py", is_module=False, rank=SINGLE)}


def test_unused_new_directory_is_removed_with_its_parents(tmp_path: Path) -> None:
    with outputs.output_directory(tmp_path / "a" / "b") as folder:
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_existing_or_used_directory_is_kept(tmp_path: Path) -> None:
    with outputs.output_directory(tmp_path / "used") as folder:
        (folder / "report").touch()
    (tmp_path / "old").mkdir()
    with outputs.output_directory(tmp_path / "old"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old", "used"]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_file_in_place_of_a_directory_is_an_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(OutputError, match="is not a directory"),
        outputs.output_directory(tmp_path / place),
    ):
        pass


def test_unwritable_directory_is_reported_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, data: bytes) -> int:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(OutputError, match="read-only"), outputs.output_directory(tmp_path / "new"):
        pass
    assert list(tmp_path.iterdir()) == []
