"""Device idle time although a task was launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind, saving_ns
from unified_prof.explain.api import open_analyses
from unified_prof.report.columns import device_columns, step_parts

STEP = 10 * MS


def write_late_launches(path: Path, *, late_ns: int, steps: int, slow: range) -> Path:
    """Write steps with one launch each, some of which reach the device late."""
    with FaultyRun(path) as run:
        for step, begin in enumerate(run.steps(steps, STEP)):
            lost = late_ns if step in slow else 0
            run.kernel(begin + lost + 5 * US, begin + STEP, launched=begin)
    return path


def test_late_kernels_in_most_steps_cost_their_delay(tmp_path: Path) -> None:
    findings = findings_by_kind(
        write_late_launches(tmp_path / "run.db", late_ns=2 * MS, steps=5, slow=range(5))
    )["late_work"]
    # The first step is not analyzed; each gap starts at the end of the previous kernel.
    assert saving_ns(findings) == 2 * MS + 5 * US
    assert findings.figures["gaps"] == 4
    assert findings.sure == "possible"
    assert findings.evidence[0]["name"] == "before Add (cudaLaunchKernel)"
    assert "no recorded event explains it" in findings.text


def test_late_kernel_in_a_single_step_has_no_cost(tmp_path: Path) -> None:
    path = write_late_launches(tmp_path / "run.db", late_ns=8 * MS, steps=4, slow=range(2, 3))
    finding = findings_by_kind(path)["late_work"]
    assert saving_ns(finding) == 0
    assert finding.figures["idle_ns"] == 8 * MS + 5 * US
    assert "it occurs in only one of 3 steps" in finding.text


@pytest.mark.parametrize(("takes", "name"), [(8 * MS, "b"), (8 * MS, "add_kernel"), (2 * US, "b")])
def test_launch_that_loads_a_kernel_is_named_first(tmp_path: Path, takes: int, name: str) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for step, begin in enumerate(run.steps(3, 20 * MS)):
            run.kernel(begin + 5 * US, begin + 9 * MS, launched=begin)
            late = (name, takes) if step == 1 else ("add_kernel", 2 * US)
            start = begin + 10 * MS + 8 * MS * (step == 1)
            run.kernel(
                start, begin + 20 * MS, launched=begin + 10 * MS, name=late[0], takes=late[1]
            )
    finding = next(one for one in advice(tmp_path / "run.db").findings if one.kind == "late_work")
    assert saving_ns(finding) == 0
    loads = takes == 8 * MS and name == "b"
    assert finding.text.startswith("first launches: the device is idle" if loads else "late")


@pytest.mark.parametrize(("late_ns", "slow"), [(900 * US, range(5)), (2 * MS, range(1, 2))])
def test_short_or_rare_delays_are_no_finding(tmp_path: Path, late_ns: int, slow: range) -> None:
    assert "late_work" not in findings_by_kind(
        write_late_launches(tmp_path / "run.db", late_ns=late_ns, steps=5, slow=slow)
    )


def test_long_gap_without_steps_names_the_host_call_that_runs_in_it(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        run.kernel(0, 100 * US, launched=-5 * US)
        launch = 90 * US
        run.api(110 * US, 300 * MS, "hipMemcpyWithStream", connection=77)
        run.call(100 * US, 400 * MS, "aten::copy_", thread=1)
        run.kernel(400 * MS, 401 * MS, launched=launch)
    result = advice(tmp_path / "run.db")
    (finding,) = result.findings
    assert finding.kind == "late_work"
    assert saving_ns(finding) == 0
    assert finding.figures["idle_ns"] == 400 * MS - 100 * US
    assert "while the host is in hipMemcpyWithStream of aten::copy_" in finding.text
    assert "no steps recorded, so it may be a single event" in finding.text
    assert (result.pauses, result.paused_ms) == (0, 0)


@pytest.mark.parametrize("graph", [False, True])
def test_single_wait_before_any_graph_is_for_earlier_work(tmp_path: Path, graph: bool) -> None:
    """The recording begins while the device runs tasks that were launched before."""
    with FaultyRun(tmp_path / "run.db") as run:
        run.kernel(0, 100 * US, launched=-5 * US)
        if graph:
            run.api(20 * US, 40 * US, "cudaGraphLaunch")
        run.api(110 * US, 300 * MS + 10 * US, "cudaStreamSynchronize")
        run.kernel(300 * MS, 301 * MS, launched=50 * US)
    text = findings_by_kind(tmp_path / "run.db")["unrecorded_work"].text
    assert ("launched before the recording began" in text) != graph
    assert ("kernels of a device graph" in text) == graph


@pytest.mark.parametrize("returns_late", [True, False])
def test_synchronization_until_a_gap_ends_is_unrecorded(tmp_path: Path, returns_late: bool) -> None:
    """Only the first kernels of a CUDA graph were recorded; the host waits for all of them."""
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(5, STEP):
            run.kernel(begin + 20 * US, begin + MS, launched=begin + 10 * US)
            run.kernel(begin + 9 * MS, begin + STEP, launched=begin + 30 * US)
            ends = begin + (9 * MS + 50 * US if returns_late else 6 * MS)
            run.api(begin + 50 * US, ends, "cudaDeviceSynchronize")
    findings = findings_by_kind(tmp_path / "run.db")
    with open_analyses(tmp_path / "run.db") as (analysis,):
        idle = next(one for one in analysis.why_idle() if one.step is None)
        devices = analysis.summary.devices
        parts = dict(step_parts(devices[0], analysis.why_idle()))
        columns = {one.heading: one.cells for one in device_columns(devices, analysis.why_idle())}
    late = idle.unrecorded_ns if returns_late else idle.launched_ns
    assert (late >= 5 * 8 * MS, idle.unrecorded_ns > 0) == (True, returns_late)
    assert parts.get("unrecorded work", 0) == idle.unrecorded_ns
    assert sum(parts.values()) == devices[0].share_basis.window_ns
    assert ("unrecorded work" in columns) == returns_late
    share = f"({100 * parts['idle'] / sum(parts.values()):.1f} %)"
    assert columns["idle"][0].endswith(share)  # the same in the table as in the bar
    if returns_late:
        finding = findings["unrecorded_work"]
        assert "the host waits in cudaDeviceSynchronize" in finding.text
        assert (saving_ns(finding), finding.figures["idle_ns"]) == (0, 4 * 8 * MS)
        assert "late_work" not in findings
    else:
        assert "unrecorded_work" not in findings


def test_kernel_that_waits_for_a_busy_device_is_not_late(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(5, STEP):
            # Launched early, but the device is busy until the kernel starts.
            run.kernel(begin + 5 * US, begin + 4 * MS, launched=begin)
            run.kernel(begin + 4 * MS, begin + STEP, launched=begin + 10 * US)
    assert advice(tmp_path / "run.db").findings == ()


def test_gaps_that_were_not_analyzed_are_counted(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(80):
            begin = at * 100 * US + (at // 40) * 50 * MS
            run.kernel(begin + US, begin + 99 * US, launched=begin)
    result = advice(tmp_path / "run.db")
    assert result.findings == ()
    assert result.pauses == 1
    # From the end of the 40th kernel to the next launch.
    assert result.paused_ms == 50 + 0.001
