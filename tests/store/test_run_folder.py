"""`run.json` lists the ranks of a run and the missing ones."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from unified_prof.errors import StoreError
from unified_prof.recording import run_directory
from unified_prof.sqlite import run_folder
from unified_prof.sqlite.run_folder import ENDED, STARTED, RankEntry


def rank_entry(rank: int, world_size: int = 3, **fields: object) -> RankEntry:
    files = {"run-time": (f"run_time_rank{rank}.sqlite",)}
    rank_entry = RankEntry(
        rank=rank, world_size=world_size, expected_ranks=tuple(range(world_size)),
        host=f"node{rank % 2}", state=ENDED, exit_code=0, files=files,
    )  # fmt: skip
    return replace(rank_entry, **fields)  # type: ignore[arg-type]


def test_ranks_without_reports_have_a_reason(tmp_path: Path) -> None:
    run_folder.note(tmp_path, rank_entry(0))
    run_folder.note(tmp_path, rank_entry(1, state=STARTED, exit_code=None, files={}))
    found = run_folder.read(tmp_path)
    assert found is not None
    assert (found.world_size, found.hosts) == (3, ("node0", "node1"))
    assert found.without_reports == {
        1: "it started on node1 but did not finish",
        2: "it did not start, or wrote to another directory",
    }
    run_folder.note(tmp_path, rank_entry(1, files={}, failure="no operation ran"))
    found = run_folder.read(tmp_path)
    assert found is not None
    assert found.without_reports[1] == "no operation ran"


def test_json_document_contains_all_ranks(tmp_path: Path) -> None:
    for rank in range(3):
        run_folder.note(tmp_path, rank_entry(rank))
    document = json.loads((tmp_path / "run.json").read_text())
    assert (document["format"], document["version"]) == ("uprof-run", 1)
    assert document["world_size"] == 3
    assert document["expected_ranks"] == [0, 1, 2]
    assert document["hosts"] == ["node0", "node1"]
    assert document["ranks"]["2"]["files"] == {"run-time": ["run_time_rank2.sqlite"]}


@pytest.mark.slow
def test_concurrent_ranks_lose_no_entry(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda rank: run_folder.note(tmp_path, rank_entry(rank, 16)), range(16)))
    document = json.loads((tmp_path / "run.json").read_text())
    assert sorted(map(int, document["ranks"])) == [*range(16)]
    assert not list(tmp_path.glob("*.partial"))


def test_many_ranks_are_listed_although_only_some_write(tmp_path: Path) -> None:
    for rank in (0, 1, 190, 199):
        run_folder.note(tmp_path, rank_entry(rank, 200))
    found = run_folder.read(tmp_path)
    assert found is not None
    assert sorted(found.ranks) == [0, 1, 190, 199]
    assert len(found.without_reports) == 196


def test_directory_of_a_single_process_has_no_run_json(tmp_path: Path) -> None:
    assert run_folder.read(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "other"}', '{"format": "uprof-run"}', "[" * 100_000]
)
def test_invalid_run_json_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(StoreError, match=r"run\.json"):
        run_folder.read(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "terabyte"])
def test_run_json_that_would_block_or_fill_memory_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    with pytest.raises(StoreError, match="too large for a run document"):
        run_folder.content(path)
    assert run_directory.missing(tmp_path, run_directory.Found(documents=[path]), [], []) == []
