"""A complete measurement is passed on while the program is still running."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tracking.test_driver import Spy
from tests.tracking.test_scripts import LOOP, NET
from tests.tracking.workloads import PROVIDERS, Workload, names
from unified_prof.base.run_spec import Capture


def test_the_records_are_told_while_the_script_runs_on(
    workload: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Capture] = []
    printed: list[str] = []

    def on_measured(capture: Capture) -> None:
        told.append(capture)
        printed.append(capsys.readouterr().out)

    workload.write("main.py", NET + LOOP)
    tracked = workload.tracked(on_measured=on_measured)
    assert printed == [""]
    assert capsys.readouterr().out == "the end\n"
    assert len(told) == 1
    assert told[0].tracked is tracked
    assert names(tracked) == ["linear", "relu"]


def test_torch_is_as_it_was_and_instruments_have_stopped_when_it_is_told(
    workload: Workload,
) -> None:
    import torch
    from torch.optim import optimizer

    def state() -> list[object]:
        return [
            torch.autograd.graph._engine_run_backward,
            len(optimizer._global_optimizer_post_hooks),
            torch._C._len_torch_function_stack(),
        ]

    before, log, then = state(), list[str](), list[object]()
    workload.write("main.py", NET + LOOP)
    spy = Spy(log, "a")
    workload.tracked(instruments=[spy], on_measured=lambda _: then.extend([*log[-1:], *state()]))
    assert then == ["a stop", *before]


def test_a_script_with_providers_tells_it_too(workload: Workload) -> None:
    told: list[Capture] = []
    workload.write("main.py", NET + PROVIDERS)
    tracked = workload.tracked(on_measured=told.append)
    assert [one.tracked for one in told] == [tracked]


def test_a_failure_after_the_end_of_measuring_changes_nothing(workload: Workload) -> None:
    told: list[Capture] = []
    workload.write("main.py", NET + LOOP.replace('print("the end")', "sys.exit(3)"))
    outcome = workload.run(on_measured=told.append)
    assert outcome.exit_code == 3
    assert outcome.tracked is told[0].tracked
    assert outcome.failure is None


def test_what_ended_early_is_not_told_as_complete(workload: Workload) -> None:
    told: list[Capture] = []
    workload.write("main.py", NET + LOOP.replace("main(20)", "main(4)"))
    outcome = workload.run(on_measured=told.append)
    assert told == []
    assert outcome.tracked is not None


def test_a_listener_that_fails_does_not_harm_the_script(
    workload: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: Capture) -> None:
        raise OSError("disk full")

    workload.write("main.py", NET + LOOP)
    outcome = workload.run(on_measured=full)
    assert outcome.exit_code == 0
    assert str(outcome.error) == "disk full"
    assert outcome.tracked is not None
    assert capsys.readouterr().out == "the end\n"


def test_a_timeline_alone_is_told_without_records(workload: Workload, tmp_path: Path) -> None:
    told: list[Capture] = []
    workload.write("main.py", NET + LOOP)
    workload.run(reports=(), instruments=[Spy([], "a")], on_measured=told.append)
    assert told == [Capture(0)]
