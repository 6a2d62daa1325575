"""Copies between host and device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.advice.plants import MS, US, Plant, advice, cost_ns, found

MB = 1_000_000


class Copying(Plant):
    """A recording of a GPU with copies."""

    def copy(self, start: int, end: int, size: int, name: str, *, connection: int = -1) -> None:
        """Add a copy from the host; `connection` is what `api` returned for its call."""
        task = self.task(start, end, "MEMCPY_ASYNC", copy=size, stream=8, connection=connection)
        row: dict[str, Any] = {"globalTaskId": [task], "name": self.text(name)}
        row |= {"operation": self.text("aten::copy_"), "gridDim": 0, "blockDim": 0}
        self.writer.write("UPROF_GPU_TASKS", row)

    def __enter__(self) -> Copying:
        super().__enter__()
        return self


def steps(
    path: Path,
    *,
    at: int,
    takes: int,
    size: int = 40 * MB,
    memory: str = "Pinned",
    computing: tuple[int, int] = (4 * MS, 10 * MS),
) -> Path:
    """Write five steps of 10 ms, each with a kernel and a copy."""
    with Copying(path) as plant:
        for step in range(5):
            begin = step * 10 * MS
            plant.step(step, begin, begin + 10 * MS)
            plant.kernel(begin + computing[0], begin + computing[1])
            plant.copy(begin + at, begin + at + takes, size, f"Memcpy HtoD ({memory} -> Device)")
    return path


def test_a_copy_before_the_computation_costs_its_time(tmp_path: Path) -> None:
    said = found(steps(tmp_path / "run.db", at=0, takes=4 * MS))["exposed_copies"]
    assert cost_ns(said) == 4 * MS
    assert said.figures["moved_bytes"] == 4 * 40 * MB


def test_a_copy_beside_computation_costs_nothing(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", at=MS, takes=4 * MS, computing=(0, 10 * MS))
    assert advice(path).findings == ()


def test_loading_the_model_is_no_loop(tmp_path: Path) -> None:
    with Copying(tmp_path / "run.db") as plant:
        plant.copy(0, 10 * MS, 400 * MB, "Memcpy HtoD (Pinned -> Device)")
        for at in range(10):
            plant.kernel(10 * MS + at * 10 * MS, 20 * MS + at * 10 * MS)
    assert advice(tmp_path / "run.db").findings == ()


def test_pageable_copies_are_slower_than_pinned_ones(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", at=0, takes=4 * MS, memory="Pageable")
    said = found(path)["pageable_copies"]
    # 40 MB in 4 ms are 10 GB/s; at 20 GB/s they take 2 ms.
    assert cost_ns(said) == 2 * MS
    assert said.sure == "possible"
    assert said.figures["gb_per_s"] == 10.0


@pytest.mark.parametrize(("call", "told"), [(4 * MS, True), (5 * US, False)])
def test_a_host_that_stands_in_the_copys_call_gains_by_a_shorter_copy(
    tmp_path: Path, call: int, told: bool
) -> None:
    """Of memory that is not pinned also a copy that nobody waits for holds the host."""
    with Copying(tmp_path / "run.db") as plant:
        for step in range(5):
            begin = step * 10 * MS
            plant.step(step, begin, begin + 10 * MS)
            connection = plant.api(begin, begin + call, "cudaMemcpyAsync")
            name = "Memcpy HtoD (Pageable -> Device)"
            plant.copy(begin, begin + 4 * MS, 40 * MB, name, connection=connection)
            plant.kernel(begin + 4_050 * US, begin + 10 * MS, launched=begin + 4_040 * US)
    assert ("pageable_copies" in found(tmp_path / "run.db")) == told


def test_pinned_copies_of_the_run_itself_are_the_measure(tmp_path: Path) -> None:
    with Copying(tmp_path / "run.db") as plant:
        for step in range(5):
            begin = step * 10 * MS
            plant.step(step, begin, begin + 10 * MS)
            plant.copy(begin, begin + 4 * MS, 40 * MB, "Memcpy HtoD (Pageable -> Device)")
            plant.copy(begin + 4 * MS, begin + 5 * MS, 40 * MB, "Memcpy HtoD (Pinned -> Device)")
            plant.kernel(begin + 5 * MS, begin + 10 * MS)
    said = found(tmp_path / "run.db")["pageable_copies"]
    assert cost_ns(said) == 3 * MS
    assert said.sure == "likely"


def test_small_pageable_copies_are_no_finding(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", at=0, takes=400 * US, size=MB, memory="Pageable")
    assert "pageable_copies" not in found(path)
