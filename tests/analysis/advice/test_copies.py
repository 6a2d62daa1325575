"""Exposed and pageable copies between host and device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind, saving_ns

MB = 1_000_000


class RunWithCopies(FaultyRun):
    """Writes a GPU recording with copies."""

    def copy(self, start: int, end: int, size: int, name: str, *, connection: int = -1) -> None:
        """Add a copy; `connection` is the id that `api` returned for its call."""
        task = self.task(start, end, "MEMCPY_ASYNC", copy=size, stream=8, connection=connection)
        texts = {"name": self.text(name), "operation": self.text("aten::copy_")}
        self.row("UPROF_GPU_TASKS", globalTaskId=task, **texts, gridDim=0, blockDim=0)


def steps(
    path: Path,
    *,
    at: int,
    takes: int,
    size: int = 40 * MB,
    memory: str = "Pinned",
    computing: tuple[int, int] = (4 * MS, 10 * MS),
) -> Path:
    """Write five 10 ms steps, each with a kernel and a copy."""
    with RunWithCopies(path) as run:
        for step in range(5):
            begin = step * 10 * MS
            run.step(step, begin, begin + 10 * MS)
            run.kernel(begin + computing[0], begin + computing[1])
            run.copy(begin + at, begin + at + takes, size, f"Memcpy HtoD ({memory} -> Device)")
    return path


def test_copy_before_the_computation_costs_its_time(tmp_path: Path) -> None:
    finding = findings_by_kind(steps(tmp_path / "run.db", at=0, takes=4 * MS))["exposed_copies"]
    assert saving_ns(finding) == pytest.approx(4 * MS, rel=0.001)
    assert finding.figures["moved_bytes"] == 4 * 40 * MB


def test_overlapped_copy_is_no_finding(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", at=MS, takes=4 * MS, computing=(0, 10 * MS))
    assert advice(path).findings == ()


def test_copy_without_steps_is_no_finding(tmp_path: Path) -> None:
    with RunWithCopies(tmp_path / "run.db") as run:
        run.copy(0, 10 * MS, 400 * MB, "Memcpy HtoD (Pinned -> Device)")
        for at in range(10):
            run.kernel(10 * MS + at * 10 * MS, 20 * MS + at * 10 * MS)
    assert advice(tmp_path / "run.db").findings == ()


def test_pageable_copy_costs_the_difference_to_a_pinned_copy(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", at=0, takes=4 * MS, memory="Pageable")
    finding = findings_by_kind(path)["pageable_copies"]
    # 40 MB in 4 ms are 10 GB/s; at 20 GB/s they would take 2 ms.
    assert saving_ns(finding) == 2 * MS
    assert finding.sure == "possible"
    assert finding.figures["gb_per_s"] == 10.0


@pytest.mark.parametrize(("call", "expected"), [(4 * MS, True), (5 * US, False)])
def test_pageable_copy_is_a_finding_only_if_its_call_blocks_the_host(
    tmp_path: Path, call: int, expected: bool
) -> None:
    """An asynchronous copy from pageable memory blocks the host until it is done."""
    with RunWithCopies(tmp_path / "run.db") as run:
        for step in range(5):
            begin = step * 10 * MS
            run.step(step, begin, begin + 10 * MS)
            connection = run.api(begin, begin + call, "cudaMemcpyAsync")
            name = "Memcpy HtoD (Pageable -> Device)"
            run.copy(begin, begin + 4 * MS, 40 * MB, name, connection=connection)
            run.kernel(begin + 4_050 * US, begin + 10 * MS, launched=begin + 4_040 * US)
    assert ("pageable_copies" in findings_by_kind(tmp_path / "run.db")) == expected


def test_recorded_pinned_copies_give_the_reference_bandwidth(tmp_path: Path) -> None:
    with RunWithCopies(tmp_path / "run.db") as run:
        for step in range(5):
            begin = step * 10 * MS
            run.step(step, begin, begin + 10 * MS)
            run.copy(begin, begin + 4 * MS, 40 * MB, "Memcpy HtoD (Pageable -> Device)")
            run.copy(begin + 4 * MS, begin + 5 * MS, 40 * MB, "Memcpy HtoD (Pinned -> Device)")
            run.kernel(begin + 5 * MS, begin + 10 * MS)
    finding = findings_by_kind(tmp_path / "run.db")["pageable_copies"]
    assert saving_ns(finding) == 3 * MS
    assert finding.sure == "likely"


def test_small_pageable_copies_are_no_finding(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", at=0, takes=400 * US, size=MB, memory="Pageable")
    assert "pageable_copies" not in findings_by_kind(path)
