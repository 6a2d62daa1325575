"""Waiting for a batch."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.advice.plants import MS, US, Plant, advice, cost_ns, found

FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def fetching(path: Path, *, ahead: bool) -> Path:
    """Write five steps of 10 ms: 3 ms of fetching, then a kernel; `ahead` beside the one before."""
    with Plant(path) as plant:
        for step in range(5):
            begin = step * 10 * MS
            plant.step(step, begin, begin + 10 * MS)
            plant.call(begin, begin + 3 * MS, FETCH)
            start = begin if ahead else begin + 3 * MS
            plant.kernel(start + 2 * US, begin + 10 * MS, launched=begin + (0 if ahead else 3 * MS))
    return path


def test_the_device_idle_while_a_batch_is_fetched_is_the_cost(tmp_path: Path) -> None:
    said = found(fetching(tmp_path / "run.db", ahead=False))["input_wait"]
    assert cost_ns(said) == 3 * MS
    assert said.figures["wait_ns"] == 4 * 3 * MS  # the first step warms up
    assert said.evidence[0]["name"] == FETCH
    assert said.steps == (1, 2, 3, 4)


def test_a_wait_that_the_device_works_through_is_none(tmp_path: Path) -> None:
    assert advice(fetching(tmp_path / "run.db", ahead=True)).findings == ()


def test_the_end_of_an_epoch_is_no_wait(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        plant.step(0, 0, 20 * MS)
        plant.kernel(2 * US, 10 * MS, launched=0)
        plant.call(10 * MS, 20 * MS, FETCH)
    assert "input_wait" not in found(tmp_path / "run.db")


def test_without_a_device_the_program_itself_waits(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for step in range(5):
            begin = step * 10 * MS
            plant.call(begin, begin + 10 * MS, f"ProfilerStep#{step}")
            plant.call(begin + US, begin + US + 2 * MS, FETCH)
            plant.call(begin + 3 * MS, begin + 9 * MS, "aten::linear")
    said = found(tmp_path / "run.db")["input_wait"]
    assert cost_ns(said) == 2 * MS
    assert "the program waits" in said.text
