"""Stages, instruments and iterations: order of the calls."""

from typing import Any

import pytest

from tests.tracking.workloads import NET, PROVIDERS, Workload
from unified_prof.errors import CaptureError
from unified_prof.tracking import operations
from unified_prof.tracking.driver import Driver, Instrument, Stage


class Spy(Instrument):
    """An instrument that records its calls."""

    def __init__(self, log: list[str], name: str, failing: str = "") -> None:
        self.log, self.name, self.failing = log, name, failing

    def _note(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")
        if what == self.failing:
            raise RuntimeError(f"{self.name} failed")

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


def test_stages_run_in_order() -> None:
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


def test_closing_within_an_iteration_stops_without_ending_it() -> None:
    log: list[str] = []
    drive = driver(log, Stage("one", (Spy(log, "a"),), 3))
    drive.begin()
    drive.boundary()
    drive.close()
    drive.boundary()
    assert log == ["- one (3)", "a start", "a begin 0", "a end 0", "a begin 1", "a stop early"]
    assert not drive.finished


def test_restart_repeats_a_stage() -> None:
    log: list[str] = []
    drive = driver(log, Stage("one", (), 1), Stage("two", (Spy(log, "a"),), 2))
    drive.begin()
    drive.boundary()
    drive.boundary()
    drive.restart(stage=1)
    assert log[-3:] == ["- two (2)", "a start", "a begin 0"]


@pytest.mark.parametrize("failing", ["start", "begin 0", "end 0", "stop"])
def test_failing_instrument_ends_only_its_stage(failing: str) -> None:
    log: list[str] = []
    failed: list[str] = []
    drive = Driver(
        [
            Stage("one", (Spy(log, "a"), Spy(log, "b", failing)), 1),
            Stage("two", (Spy(log, "c"),), 1),
        ],
        lambda text: log.append(f"- {text}"),
        lambda: log.append("finished"),
        lambda stage, error: failed.append(f"{stage.name}: {error}"),
    )
    drive.begin()
    for _ in range(3):
        drive.boundary()
    assert failed == ["one: b failed"]
    assert str(drive.error) == "b failed"
    assert drive.finished
    assert any(line.startswith("a stop") for line in log)
    assert log[-6:] == ["- two (1)", "c start", "c begin 0", "c end 0", "c stop", "finished"]


def test_error_while_closing_is_kept() -> None:
    log: list[str] = []
    drive = driver(log, Stage("one", (Spy(log, "a", "stop early"), Spy(log, "b")), 2))
    drive.begin()
    drive.close()
    assert str(drive.error) == "a failed"
    assert log[-2:] == ["b stop early", "a stop early"]


def test_additional_instruments_get_separate_iterations(workload: Workload) -> None:
    log: list[str] = []
    tracked = workload.track(NET + PROVIDERS, instruments=[Spy(log, "a")], iterations=3)
    assert log == ["a start"] + [f"a {w} {i}" for i in range(3) for w in ("begin", "end")] + [
        "a stop"
    ]
    assert len(tracked.iterations) == 3


LOOP = """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(12):
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print("the end")
"""


@pytest.mark.parametrize("script", [PROVIDERS, LOOP])
def test_instrument_failure_is_reported_and_keeps_program_and_report(
    workload: Workload, capsys: pytest.CaptureFixture[str], script: str
) -> None:
    workload.write("main.py", NET + script)
    outcome = workload.run(instruments=[Spy([], "a", "begin 0")])
    assert outcome.exit_code == 0
    assert outcome.tracked is not None
    assert len(outcome.tracked.operations) == 2
    assert not outcome.tracked.complete
    fault = "timeline could not be measured (RuntimeError: a failed)"
    assert outcome.failure == fault
    assert outcome.tracked.anomalies["measuring_failed"] == (1, fault)
    assert capsys.readouterr().out == ("the end\n" if script is LOOP else "")


def test_tracker_failure_without_measurement_is_an_error(
    workload: Workload, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(operations, "make_mode", broken)
    workload.write("main.py", NET + LOOP)
    with pytest.raises(CaptureError, match="tracking failed: first iteration could not be"):
        workload.run()
    assert capsys.readouterr().out == "the end\n"
