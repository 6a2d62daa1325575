"""A device that idles though work was launched for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.advice.plants import MS, US, Plant, advice, cost_ns, found

STEP = 10 * MS


def late(path: Path, *, late_ns: int, steps: int, slow: range) -> Path:
    """Write steps of one launch each, some of which reach the device late."""
    with Plant(path) as plant:
        for step in range(steps):
            begin = step * STEP
            plant.step(step, begin, begin + STEP)
            lost = late_ns if step in slow else 0
            plant.kernel(begin + lost + 5 * US, begin + STEP, launched=begin)
    return path


def test_work_that_begins_late_in_several_steps_costs_its_delay(tmp_path: Path) -> None:
    said = found(late(tmp_path / "run.db", late_ns=2 * MS, steps=5, slow=range(5)))["late_work"]
    # The first step is not judged; a launch begins its gap, which the one before it ends.
    assert cost_ns(said) == 2 * MS + 5 * US
    assert said.figures["gaps"] == 4
    assert said.sure == "possible"
    assert said.evidence[0]["name"] == "before Add (cudaLaunchKernel)"
    assert "no recorded event explains it" in said.text


def test_in_one_step_only_it_is_told_without_a_cost(tmp_path: Path) -> None:
    path = late(tmp_path / "run.db", late_ns=8 * MS, steps=4, slow=range(2, 3))
    said = found(path)["late_work"]
    assert cost_ns(said) == 0
    assert said.figures["idle_ns"] == 8 * MS + 5 * US
    assert "it occurs in one of 3 steps only" in said.text


@pytest.mark.parametrize(("late_ns", "slow"), [(900 * US, range(5)), (2 * MS, range(1, 2))])
def test_what_is_short_or_rare_is_no_finding(tmp_path: Path, late_ns: int, slow: range) -> None:
    assert "late_work" not in found(late(tmp_path / "run.db", late_ns=late_ns, steps=5, slow=slow))


def test_without_steps_one_long_gap_is_told_with_what_the_host_does_meanwhile(
    tmp_path: Path,
) -> None:
    with Plant(tmp_path / "run.db") as plant:
        plant.kernel(0, 100 * US, launched=-5 * US)
        launch = 90 * US
        plant.api(110 * US, 300 * MS, "hipMemcpyWithStream", connection=77)
        plant.call(100 * US, 400 * MS, "aten::copy_", thread=1)
        plant.kernel(400 * MS, 401 * MS, launched=launch)
    said = advice(tmp_path / "run.db")
    (finding,) = said.findings
    assert finding.kind == "late_work"
    assert cost_ns(finding) == 0
    assert finding.figures["idle_ns"] == 400 * MS - 100 * US
    assert "while the host is in hipMemcpyWithStream of aten::copy_" in finding.text
    assert "no steps recorded, so it may be a single event" in finding.text
    assert (said.pauses, said.paused_ms) == (0, 0)


@pytest.mark.parametrize("returns_late", [True, False])
def test_a_wait_to_the_end_of_a_gap_is_unrecorded_work(tmp_path: Path, returns_late: bool) -> None:
    """Of a CUDA graph only the first kernels were recorded; the host waits for all of them."""
    with Plant(tmp_path / "run.db") as plant:
        for step in range(5):
            begin = step * STEP
            plant.step(step, begin, begin + STEP)
            plant.kernel(begin + 20 * US, begin + MS, launched=begin + 10 * US)
            plant.kernel(begin + 9 * MS, begin + STEP, launched=begin + 30 * US)
            ends = begin + (9 * MS + 50 * US if returns_late else 6 * MS)
            plant.api(begin + 50 * US, ends, "cudaDeviceSynchronize")
    findings = found(tmp_path / "run.db")
    if returns_late:
        finding = findings["unrecorded_work"]
        assert "the host waits in cudaDeviceSynchronize" in finding.text
        assert (cost_ns(finding), finding.figures["idle_ns"]) == (0, 4 * 8 * MS)
        assert "late_work" not in findings
    else:
        assert "unrecorded_work" not in findings


def test_work_behind_another_streams_event_is_not_late(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for step in range(5):
            begin = step * STEP
            plant.step(step, begin, begin + STEP)
            # Launched as early, but the device is busy until it begins.
            plant.kernel(begin + 5 * US, begin + 4 * MS, launched=begin)
            plant.kernel(begin + 4 * MS, begin + STEP, launched=begin + 10 * US)
    assert advice(tmp_path / "run.db").findings == ()


def test_gaps_that_were_not_judged_are_told(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for at in range(80):
            begin = at * 100 * US + (at // 40) * 50 * MS
            plant.kernel(begin + US, begin + 99 * US, launched=begin)
    said = advice(tmp_path / "run.db")
    assert said.findings == ()
    assert said.pauses == 1
    # From the end of the 40th kernel to the launch of the next one.
    assert said.paused_ms == 50 + 0.001
