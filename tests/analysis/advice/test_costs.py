"""Costs of findings: gains of the replayed schedule, which never add up to more than the step."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind, saving_ns
from tests.analysis.explain import machine
from tests.analysis.explain.machine import Action, EndStep, HostWork, Launch, Synchronize
from unified_prof.explain.advice import registry
from unified_prof.recording.model import Advice

STEPS = 6


def advice_of(*step: Action) -> Advice:
    """Return the advice for a simulated program that repeats some actions as a step."""
    with TemporaryDirectory() as folder:
        execution = machine.run([*step, EndStep()] * STEPS)
        return advice(machine.write(execution, Path(folder) / "run.db"))


def saved_ns(before: list[Action], after: list[Action]) -> float:
    """Return the true gain per analyzed step of the simulated machine."""
    length = [machine.run([*step, EndStep()] * STEPS).step_ns for step in (before, after)]
    before_ns, after_ns = (sum(steps) for steps in length)
    return (before_ns - after_ns) / STEPS


ACTIONS = st.one_of(
    st.builds(
        Launch,
        st.sampled_from(["gemm_1", "direct_copy_kernel", "softmax_1", "nccl_1"]),
        st.integers(2 * US, 300 * US),
        operation=st.sampled_from(["aten::mm", "aten::to", "aten::add"]),
    ),
    st.builds(HostWork, st.integers(0, 2 * MS)),
    st.builds(Synchronize, st.none(), st.sampled_from(["aten::item", None])),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(ACTIONS, min_size=15, max_size=40))
def test_costs_never_add_up_to_more_than_the_joint_gain(step: list[Action]) -> None:
    result = advice_of(*step)
    costs = [finding.cost_ms_per_step for finding in result.findings]
    if costs:
        assert result.together_ms is not None
        assert result.step_ms is not None
        assert all(cost >= 0 for cost in costs)
        assert sum(costs) <= result.together_ms + 1e-3
        assert result.together_ms <= result.step_ms + 1e-3


def test_cost_of_a_synchronization_is_what_the_machine_gains_without_it() -> None:
    work: list[Action] = [Launch("gemm_1", 60 * US) for _ in range(20)]
    read = Synchronize(operation="aten::item")
    wait: list[Action] = [*work, read, HostWork(300 * US), *work, Synchronize()]
    without: list[Action] = [*work, HostWork(300 * US), *work, Synchronize()]
    (finding,) = (one for one in advice_of(*wait).findings if one.kind == "synchronising_calls")
    assert saving_ns(finding) == pytest.approx(saved_ns(wait, without), rel=0.05)


def test_host_bound_program_costs_what_a_host_without_python_gains() -> None:
    turn: list[Action] = [Launch("gemm_1", 20 * US), HostWork(200 * US)]
    slow = [*turn * 20, Synchronize()]
    at_once: list[Action] = [Launch("gemm_1", 20 * US, before_ns=0)]
    fast = [*at_once * 20, Synchronize()]
    (finding,) = advice_of(*slow).findings
    assert finding.kind == "host_bound"
    assert saving_ns(finding) == pytest.approx(saved_ns(slow, fast), rel=0.05)


def test_slow_host_explains_waits_at_the_end_of_its_steps() -> None:
    """Launches are late, and the device is behind at the read: without it, less time is saved."""
    read = Synchronize(operation="aten::item")
    late = [Launch("gemm_1", 5 * US, before_ns=50 * US)] * 40
    at_once = [Launch("gemm_1", 5 * US, before_ns=0)] * 40
    large = [Launch("gemm_1", 500 * US)] * 6
    slow: list[Action] = [*late, *large, read]
    (finding,) = advice_of(*slow).findings
    assert finding.kind == "host_bound"
    assert saving_ns(finding) == pytest.approx(saved_ns(slow, [*at_once, *large, read]), rel=0.02)


def test_gaps_of_a_device_that_only_waits_for_reads_are_not_host_bound() -> None:
    read = Synchronize(operation="aten::item")
    turn: list[Action] = [*[Launch("gemm_1", 3 * US)] * 4, Launch("gemm_1", 50 * US)]
    with_reads: list[Action] = [*turn, read] * 20
    (finding,) = advice_of(*with_reads).findings
    assert finding.kind == "synchronising_calls"
    assert saving_ns(finding) == pytest.approx(saved_ns(with_reads, [*turn * 20, read]), rel=0.03)


def test_casts_of_a_host_bound_program_save_time_only_together_with_the_host() -> None:
    cast = Launch("direct_copy_kernel", 30 * US, operation="aten::to")
    turn: list[Action] = [Launch("gemm_1", 20 * US), cast, HostWork(200 * US)]
    result = advice_of(*turn * 20, Synchronize())
    findings = {finding.kind: finding for finding in result.findings}
    casts = findings["casts_and_copies"]
    assert [*findings] == ["host_bound", "casts_and_copies"]
    assert casts.cost_ms_per_step == 0
    assert casts.figures["together_ms_per_step"] == pytest.approx(20 * 0.030, rel=0.1)
    assert "saves time only together with others, then up to" in casts.text
    assert result.together_ms == pytest.approx(
        findings["host_bound"].cost_ms_per_step + casts.figures["together_ms_per_step"], abs=1e-5
    )


def test_rare_cause_of_a_long_recording_costs_its_measured_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first steps are replayed, and garbage is collected in a later one."""
    monkeypatch.setattr(registry, "REPLAYED_TASKS", 20)
    with FaultyRun(tmp_path / "run.db") as run:
        for step, begin in enumerate(run.steps(STEPS, 8 * MS)):
            for at in range(10):
                launched = begin + at * 500 * US + (2 * MS if step == 5 and at > 4 else 0)
                run.kernel(launched + 6 * US, launched + 490 * US, launched=launched)
        run.row("GC_RECORD", startNs=42_500 * US, endNs=44_500 * US, globalTid=1)
    finding = findings_by_kind(tmp_path / "run.db")["garbage_collection"]
    assert saving_ns(finding) * (STEPS - 1) == pytest.approx(2 * MS, rel=0.02)


def test_garbage_collection_is_not_counted_as_host_bound_time_again(tmp_path: Path) -> None:
    """Of 60 µs between two kernels one collection of 2 ms takes a part."""
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(STEPS, 8 * MS):
            for at in range(80):
                launched = begin + at * 60 * US + (2 * MS if at > 40 else 0)
                run.kernel(launched + 6 * US, launched + 16 * US, launched=launched)
            start = begin + 41 * 60 * US
            run.row("GC_RECORD", startNs=start, endNs=start + 2 * MS, globalTid=1)
    findings = findings_by_kind(tmp_path / "run.db")
    assert saving_ns(findings["garbage_collection"]) == pytest.approx(2 * MS, rel=0.01)
    result = advice(tmp_path / "run.db")
    assert result.together_ms is not None
    rest_ms = result.together_ms - findings["garbage_collection"].cost_ms_per_step
    assert findings["host_bound"].cost_ms_per_step == pytest.approx(rest_ms, rel=0.01)
