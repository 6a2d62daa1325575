"""`run.json` says who takes part in a run and who is absent."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from unified_prof.errors import StoreError
from unified_prof.sqlite import run_folder
from unified_prof.sqlite.run_folder import ENDED, STARTED, RankEntry


def entry(rank: int, world_size: int = 3, **fields: object) -> RankEntry:
    made = RankEntry(
        rank=rank,
        world_size=world_size,
        expected_ranks=tuple(range(world_size)),
        host=f"node{rank % 2}",
        state=ENDED,
        exit_code=0,
        files={"run-time": (f"run_time_rank{rank}.sqlite",)},
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def test_a_reader_knows_who_is_absent_and_why(tmp_path: Path) -> None:
    run_folder.note(tmp_path, entry(0))
    run_folder.note(tmp_path, entry(1, state=STARTED, exit_code=None, files={}))
    found = run_folder.read(tmp_path)
    assert found is not None
    assert (found.world_size, found.hosts) == (3, ("node0", "node1"))
    assert found.without_reports == {
        1: "it started on node1 but did not finish",
        2: "it did not start, or wrote to another directory",
    }
    run_folder.note(tmp_path, entry(1, files={}, failure="no operation ran"))
    found = run_folder.read(tmp_path)
    assert found is not None
    assert found.without_reports[1] == "no operation ran"


def test_the_file_itself_holds_all_for_those_who_read_json(tmp_path: Path) -> None:
    for rank in range(3):
        run_folder.note(tmp_path, entry(rank))
    document = json.loads((tmp_path / "run.json").read_text())
    assert (document["format"], document["version"]) == ("uprof-run", 1)
    assert document["world_size"] == 3
    assert document["expected_ranks"] == [0, 1, 2]
    assert document["hosts"] == ["node0", "node1"]
    assert document["ranks"]["2"]["files"] == {"run-time": ["run_time_rank2.sqlite"]}


def test_ranks_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda rank: run_folder.note(tmp_path, entry(rank, 16)), range(16)))
    document = json.loads((tmp_path / "run.json").read_text())
    assert sorted(map(int, document["ranks"])) == [*range(16)]
    assert not list(tmp_path.glob("*.partial"))


def test_of_many_ranks_the_reader_sees_all_though_only_some_edit(tmp_path: Path) -> None:
    for rank in (0, 1, 190, 199):
        run_folder.note(tmp_path, entry(rank, 200))
    found = run_folder.read(tmp_path)
    assert found is not None
    assert sorted(found.ranks) == [0, 1, 190, 199]
    assert len(found.without_reports) == 196


def test_a_folder_of_one_process_has_none(tmp_path: Path) -> None:
    assert run_folder.read(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "other"}', '{"format": "uprof-run"}', "[" * 100_000]
)
def test_what_is_no_such_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(StoreError, match=r"run\.json"):
        run_folder.read(tmp_path)
