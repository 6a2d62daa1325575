"""Measurements are passed on while the program runs, at little cost."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.tracking.workloads import Workload
from unified_prof.base.run_spec import TrackedRun
from unified_prof.tracking import driver
from unified_prof.tracking.driver import Saving

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(x).relu()
"""
LOOP = """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def seen() -> list[TrackedRun]:
    return []


@pytest.fixture
def at_any_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SHARE", 1e9)


def run(workload: Workload, steps: int, seen: list[TrackedRun], **options: Any) -> TrackedRun:
    workload.write("main.py", NET + LOOP.replace("STEPS", str(steps)))
    return workload.tracked(**{"on_partial": seen.append, "iterations": 4, **options})


@pytest.mark.usefixtures("at_any_cost")
def test_each_complete_iteration_is_handed_over(workload: Workload, seen: list[TrackedRun]) -> None:
    whole = run(workload, 30, seen)
    assert whole.complete
    assert [len(one.iterations) for one in seen][-2:] == [2, 3], "the last one is in the reports"
    assert not any(one.complete for one in seen)
    assert "first_iteration_reported" in seen[0].anomalies
    assert "first_iteration_reported" not in seen[-1].anomalies
    assert seen[-1].weights == whole.weights
    assert seen[-1].activations == whole.activations
    latest = {one.name: one.forward_ms for one in seen[-1].operations}
    assert latest == {one.name: one.forward_ms[:3] for one in whole.operations}


def test_the_first_is_handed_over_at_once_and_others_when_they_can_be_afforded(
    workload: Workload, seen: list[TrackedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SHARE", 0.0)
    run(workload, 30, seen)
    assert len(seen) == 1


@pytest.mark.usefixtures("at_any_cost")
def test_what_fails_there_is_an_anomaly(workload: Workload) -> None:
    def fail(_: TrackedRun) -> None:
        raise OSError(28, "No space left on device")

    workload.write("main.py", NET + LOOP.replace("STEPS", "30"))
    tracked = workload.tracked(on_partial=fail, iterations=4)
    assert tracked.complete
    count, detail = tracked.anomalies["not_saved_meanwhile"]
    assert count > 1
    assert "No space left on device" in detail


def test_saving_takes_its_share_of_the_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of our own: 1,000 iterations of 0.1 s, saving takes 0.25 s each time."""
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


def test_what_was_saved_already_is_not_saved_again() -> None:
    pace = Saving()
    answers = []
    for _ in range(2):
        with pace.when_due((1, 0)) as is_due:
            answers.append(is_due)
    assert answers == [True, False]
