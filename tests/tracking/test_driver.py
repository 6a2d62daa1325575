"""Stages, instruments and iterations: who is told what, in which order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tracking.workloads import PROVIDERS, Workload
from unified_prof.errors import CaptureError
from unified_prof.tracking.driver import Driver, Stage


class Spy:
    """An instrument that writes down what it is told."""

    def __init__(self, log: list[str], name: str, failing: str = "") -> None:
        self.log, self.name, self.failing = log, name, failing

    def _note(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")
        if what == self.failing:
            raise RuntimeError(f"{self.name} broke")

    def start(self) -> None:
        self._note("start")

    def begin_iteration(self, index: int) -> None:
        self._note(f"begin {index}")

    def end_iteration(self, index: int) -> None:
        self._note(f"end {index}")

    def stop(self, complete: bool) -> None:
        self._note("stop" if complete else "stop early")


def driver(log: list[str], *stages: Stage) -> Driver:
    return Driver(stages, lambda text: log.append(f"- {text}"), lambda: log.append("finished"))


def test_stages_follow_each_other() -> None:
    log: list[str] = []
    a, b = Spy(log, "a"), Spy(log, "b")
    drive = driver(log, Stage("none", (a,), 0), Stage("one", (a, b), 1), Stage("two", (b,), 2))
    drive.begin()
    for _ in range(5):
        drive.boundary()
    assert log == [
        "- one (1)", "a start", "b start", "a begin 0", "b begin 0",
        "b end 0", "a end 0", "b stop", "a stop",
        "- two (2)", "b start", "b begin 0", "b end 0", "b begin 1", "b end 1", "b stop",
        "finished",
    ]  # fmt: skip
    assert drive.finished


def test_closing_in_an_iteration_stops_without_ending_it() -> None:
    log: list[str] = []
    drive = driver(log, Stage("one", (Spy(log, "a"),), 3))
    drive.begin()
    drive.boundary()
    drive.close()
    drive.boundary()
    assert log == ["- one (3)", "a start", "a begin 0", "a end 0", "a begin 1", "a stop early"]
    assert not drive.finished


def test_going_back_to_a_stage() -> None:
    log: list[str] = []
    drive = driver(log, Stage("one", (), 1), Stage("two", (Spy(log, "a"),), 2))
    drive.begin()
    drive.boundary()
    drive.boundary()
    drive.restart(stage=1)
    assert log[-3:] == ["- two (2)", "a start", "a begin 0"]


@pytest.mark.parametrize("failing", ["start", "begin 0", "end 0", "stop"])
def test_an_instrument_that_fails_ends_the_measuring_and_nothing_else(failing: str) -> None:
    log: list[str] = []
    a, b = Spy(log, "a"), Spy(log, "b", failing)
    drive = driver(log, Stage("one", (a, b), 1))
    drive.begin()
    drive.boundary()
    assert str(drive.error) == "b broke"
    assert drive.ended
    assert not drive.finished
    assert "a stop" in log[-2]
    assert log[-1] == "finished"


NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
    def forward(self, x):
        return self.lin(x)
"""


def test_further_instruments_get_iterations_of_their_own(workload: Workload) -> None:
    log: list[str] = []
    workload.write("main.py", NET + PROVIDERS)
    tracked = workload.tracked(instruments=[Spy(log, "a")], iterations=3)
    assert log == ["a start"] + [f"a {w} {i}" for i in range(3) for w in ("begin", "end")] + [
        "a stop"
    ]
    assert len(tracked.iterations) == 3


@pytest.mark.parametrize("script", [PROVIDERS, None])
def test_a_fault_of_the_tracker_is_told_as_such_and_the_program_runs_on(
    workload: Workload, capsys: pytest.CaptureFixture[str], script: Any
) -> None:
    loop = """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(12):
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print("the end")
"""
    workload.write("main.py", NET + (script or loop))
    with pytest.raises(CaptureError, match="tracking failed: RuntimeError: a broke"):
        workload.run(instruments=[Spy([], "a", "begin 0")])
    assert capsys.readouterr().out == ("" if script else "the end\n")
