"""Exposed and pageable copies between host and device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
        for begin in run.steps(5, 10 * MS):
            run.kernel(begin + computing[0], begin + computing[1])
            run.copy(begin + at, begin + at + takes, size, f"Memcpy HtoD ({memory} -> Device)")
    return path


def test_copy_before_the_computation_costs_its_time(tmp_path: Path) -> None:
    finding = findings_by_kind(steps(tmp_path / "run.db", at=0, takes=4 * MS))["exposed_copies"]
    assert saving_ns(finding) == pytest.approx(4 * MS, rel=0.001)
    assert finding.figures["moved_bytes"] == 4 * 40 * MB


@pytest.mark.parametrize(("layers", "named"), [(8, True), (7, False)])
def test_repeated_copies_of_several_sizes_are_offloaded_weights(
    tmp_path: Path, layers: int, named: bool
) -> None:
    with RunWithCopies(tmp_path / "run.db") as run:
        for begin in run.steps(5, 10 * MS):
            for at in range(3 * layers):
                start = begin + at * 160 * US
                size = (40, 20, 10)[at % 3] * MB
                run.copy(start, start + 160 * US, size, "Memcpy HtoD (Pinned -> Device)")
            run.kernel(begin + 3 * layers * 160 * US, begin + 10 * MS)
    finding = findings_by_kind(tmp_path / "run.db")["exposed_copies"]
    assert ("96 copies of 38.1 MiB, 19.1 MiB and 9.54 MiB" in finding.text) == named


def test_overlapped_copy_is_no_finding(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", at=MS, takes=4 * MS, computing=(0, 10 * MS))
    assert advice(path).findings == ()


def test_copy_without_steps_is_no_finding(tmp_path: Path) -> None:
    with RunWithCopies(tmp_path / "run.db") as run:
        run.copy(0, 10 * MS, 400 * MB, "Memcpy HtoD (Pinned -> Device)")
        for at in range(10):
            run.kernel(10 * MS + at * 10 * MS, 20 * MS + at * 10 * MS)
    assert advice(tmp_path / "run.db").findings == ()


def test_exposed_pageable_copy_is_named(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", at=0, takes=4 * MS, memory="Pageable")
    (finding,) = advice(path).findings
    # Asynchronous copies would be hidden: the whole time counts, not only the difference.
    assert finding.kind == "exposed_copies"
    assert "most of it is from or to pageable memory" in finding.text
    assert saving_ns(finding) == pytest.approx(4 * MS, rel=0.001)


def test_exposed_pinned_copy_is_not_called_pageable(tmp_path: Path) -> None:
    (finding,) = advice(steps(tmp_path / "run.db", at=0, takes=4 * MS)).findings
    assert "pageable" not in finding.text
    assert "pin_memory" not in finding.advice  # It is pinned already.
    (finding,) = advice(steps(tmp_path / "2.db", at=0, takes=4 * MS, memory="Pageable")).findings
    assert "pin_memory=True" in finding.advice


@pytest.mark.parametrize(("copies_ms", "hidden"), [(4, True), (9, False)])
def test_copies_that_take_most_of_the_time_cannot_be_overlapped(
    tmp_path: Path, copies_ms: int, hidden: bool
) -> None:
    takes = copies_ms * MS
    path = steps(tmp_path / "run.db", at=0, takes=takes, computing=(takes, 10 * MS))
    (finding,) = advice(path).findings
    assert ("overlap the copies" in finding.advice) == hidden
    assert ("little to overlap them with" in finding.text) != hidden


@pytest.mark.parametrize(("copies_ms", "kind"), [(2, "host_bound"), (5, "exposed_copies")])
def test_copy_and_the_host_work_after_it_are_one(tmp_path: Path, copies_ms: int, kind: str) -> None:
    """Each 20 ms step copies an output to the host, which then counts something for 4 ms."""
    product: dict[str, Any] = {"name": "gemm_kernel", "op_type": "MatMul"}
    copied = 10 * MS + copies_ms * MS
    with RunWithCopies(tmp_path / "run.db") as run:
        for begin in run.steps(6, 20 * MS):
            run.kernel(begin + 10 * US, begin + 10 * MS, launched=begin, **product)
            copy = run.api(begin + MS, begin + MS + 10 * US, "cudaMemcpyAsync")
            name = "Memcpy DtoH (Device -> Pageable)"
            run.copy(begin + 10 * MS, begin + copied, MB, name, connection=copy)
            run.call(begin + MS - US, begin + copied + 4 * US, "aten::copy_")
            run.api(begin + MS + 11 * US, begin + copied + 3 * US, "cudaStreamSynchronize")
            at = begin + copied + 4 * MS
            run.kernel(at + 10 * US, begin + 20 * MS, launched=at, **product)
    (finding,) = advice(tmp_path / "run.db").findings
    assert finding.kind == kind
    assert saving_ns(finding) == pytest.approx((copies_ms + 4) * MS, rel=0.03)
