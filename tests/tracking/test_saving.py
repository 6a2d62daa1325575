"""Partial measurements are saved while the program runs, at little cost."""

import time
from typing import Any

import pytest

from tests.tracking.workloads import NET, Workload
from unified_prof.base.run_spec import TrackedRun
from unified_prof.tracking import driver, operations
from unified_prof.tracking.driver import Saving

LOOP = """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def partial_runs() -> list[TrackedRun]:
    return []


@pytest.fixture
def save_every_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SHARE", 1e9)


def run(
    workload: Workload, steps: int, partial_runs: list[TrackedRun], **options: Any
) -> TrackedRun:
    workload.write("main.py", NET + LOOP.replace("STEPS", str(steps)))
    return workload.tracked(**{"on_partial": partial_runs.append, "iterations": 4, **options})


@pytest.mark.usefixtures("save_every_iteration")
def test_complete_iterations_are_saved(workload: Workload, partial_runs: list[TrackedRun]) -> None:
    final = run(workload, 30, partial_runs)
    assert final.complete
    assert [len(record.iterations) for record in partial_runs][-2:] == [2, 3], "not the last"
    assert not any(record.complete for record in partial_runs)
    assert "first_iteration_reported" in partial_runs[0].anomalies
    assert "first_iteration_reported" not in partial_runs[-1].anomalies
    assert partial_runs[-1].weights == final.weights
    assert partial_runs[-1].activations == final.activations
    latest = {record.name: record.forward_ms for record in partial_runs[-1].operations}
    assert latest == {record.name: record.forward_ms[:3] for record in final.operations}


def test_first_iteration_is_saved_at_once_and_others_within_the_share(
    workload: Workload, partial_runs: list[TrackedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SHARE", 0.0)
    run(workload, 30, partial_runs)
    assert len(partial_runs) == 1


@pytest.mark.usefixtures("save_every_iteration")
def test_failure_to_save_is_an_anomaly(workload: Workload) -> None:
    def fail(_: TrackedRun) -> None:
        raise OSError(28, "No space left on device")

    tracked = workload.track(NET + LOOP.replace("STEPS", "30"), on_partial=fail, iterations=4)
    assert tracked.complete
    count, detail = tracked.anomalies["not_saved_meanwhile"]
    assert count > 1
    assert "No space left on device" in detail


def test_saving_takes_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fake clock, 1,000 iterations of 0.1 s; saving takes 0.25 s each time."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    pace, cost, spent = Saving(), 0.25, 0.0
    for number in range(1000):
        now += 0.1
        with pace.when_due(number) as is_due:
            if is_due:
                now += cost
                spent += cost
    assert 0.5 * driver.SHARE < spent / now <= driver.SHARE * 1.01


def test_saved_state_is_not_saved_again() -> None:
    pace = Saving()
    answers = []
    for _ in range(2):
        with pace.when_due((1, 0)) as is_due:
            answers.append(is_due)
    assert answers == [True, False]


DISTURBED = """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(100):
    with torch.no_grad():
        model.lin.bias.fill_(float("nan") if step >= 19 else 1.0)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def test_long_runs_keep_one_of_several(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "_MAX_RAW", 0)
    monkeypatch.setattr(operations, "_MAX_SIZE", 8 * 410)
    tracked = workload.track(NET + DISTURBED, iterations=37)
    assert tracked.complete
    assert len(tracked.iterations) == 5  # samples 0, 8, 16, 24, 32
    assert {len(one.forward_ms) for one in tracked.operations} == {5}
    count, detail = tracked.anomalies["iterations_left_out"]
    assert count == 32
    assert detail == "to limit memory, one in 8 of 37 measured iterations is reported"
    assert tracked.anomalies["loss_not_finite"][0] > 25, "also in those left out"


def test_ordinary_runs_keep_all_samples(workload: Workload) -> None:
    tracked = workload.track(NET + LOOP.replace("STEPS", "50"), iterations=20)
    assert len(tracked.iterations) == 20
    assert "iterations_left_out" not in tracked.anomalies
