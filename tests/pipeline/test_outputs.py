from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from unified_prof.errors import OutputError
from unified_prof.pipeline import outputs
from unified_prof.pipeline.distributed import rank_of

ALONE = rank_of({})


def test_every_file_name_has_the_rank() -> None:
    rank = rank_of({"RANK": "12", "LOCAL_RANK": "4", "WORLD_SIZE": "16"})
    assert (rank.rank, rank.local_rank, rank.world_size) == (12, 4, 16)
    files = outputs.skyline_files(Path("out"), ("run-time", "memory", "timeline"), rank)
    assert files == {
        "run-time": Path("out/run_time_rank12.sqlite"),
        "memory": Path("out/memory_rank12.sqlite"),
    }


@pytest.mark.parametrize("environment", [{}, {"RANK": ""}, {"RANK": "first"}])
def test_alone_there_is_no_rank(environment: dict[str, str]) -> None:
    files = outputs.skyline_files(Path("out"), ("memory",), rank_of(environment))
    assert files == {"memory": Path("out/memory.sqlite")}


def test_the_default_folder_is_named_after_the_script() -> None:
    named = outputs.default_directory("some/where/train.py", is_module=False, rank=ALONE)
    assert re.fullmatch(r"uprof_train_\d{8}_\d{6}", str(named))
    named = outputs.default_directory("pkg.train", is_module=True, rank=ALONE)
    assert re.fullmatch(r"uprof_train_\d{8}_\d{6}", str(named))


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")
def test_all_ranks_of_a_launch_share_one_folder() -> None:
    ranks = [rank_of({"RANK": str(i)}) for i in range(2)]
    # Both are children of one launcher here, this process' parent, which started long ago.
    folders = {outputs.default_directory("train.py", is_module=False, rank=r) for r in ranks}
    assert len(folders) == 1
    assert folders != {outputs.default_directory("train.py", is_module=False, rank=ALONE)}


def test_a_folder_of_which_nothing_came_is_removed_with_the_parents_made_for_it(
    tmp_path: Path,
) -> None:
    with outputs.output_directory(tmp_path / "a" / "b") as folder:
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_or_was_used_stays(tmp_path: Path) -> None:
    with outputs.output_directory(tmp_path / "used") as folder:
        (folder / "report").touch()
    (tmp_path / "old").mkdir()
    with outputs.output_directory(tmp_path / "old"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old", "used"]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_in_place_of_a_directory_is_an_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(OutputError, match="is not a directory"),
        outputs.output_directory(tmp_path / place),
    ):
        pass


def test_a_place_that_cannot_be_written_is_found_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, data: bytes) -> int:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(OutputError, match="read-only"), outputs.output_directory(tmp_path / "new"):
        pass
    assert list(tmp_path.iterdir()) == []
