"""A complete measurement is passed on while the program is still running."""

from pathlib import Path

import pytest

from tests.tracking.test_driver import Spy
from tests.tracking.workloads import LOOP, NET, PROVIDERS, Workload, names
from unified_prof.base.run_spec import Capture


def test_results_arrive_early(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    captures: list[Capture] = []
    printed: list[str] = []

    def on_measured(capture: Capture) -> None:
        captures.append(capture)
        printed.append(capsys.readouterr().out)

    tracked = workload.track(NET + LOOP, on_measured=on_measured)
    assert printed == [""]
    assert capsys.readouterr().out == "the end\n"
    assert len(captures) == 1
    assert captures[0].tracked is tracked
    assert names(tracked) == ["linear", "relu"]


def test_measurement_is_passed_on_once_despite_further_steps(workload: Workload) -> None:
    captures: list[Capture] = []
    loop = LOOP.replace("step()", "step(); unified_prof.step()").replace("main(20)", "main(30)")
    workload.write("main.py", NET + "import unified_prof\n" + loop)
    workload.tracked(on_measured=captures.append)
    assert len(captures) == 1


def test_torch_is_restored_before_the_measurement_is_passed_on(workload: Workload) -> None:
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


def test_measurement_of_a_script_with_providers_is_passed_on(workload: Workload) -> None:
    captures: list[Capture] = []
    tracked = workload.track(NET + PROVIDERS, on_measured=captures.append)
    assert [capture.tracked for capture in captures] == [tracked]


def test_failure_after_the_measurement_changes_nothing(workload: Workload) -> None:
    captures: list[Capture] = []
    workload.write("main.py", NET + LOOP.replace('print("the end")', "sys.exit(3)"))
    outcome = workload.run(on_measured=captures.append)
    assert outcome.exit_code == 3
    assert outcome.tracked is captures[0].tracked
    assert outcome.failure is None


def test_incomplete_measurement_is_not_passed_on(workload: Workload) -> None:
    captures: list[Capture] = []
    workload.write("main.py", NET + LOOP.replace("main(20)", "main(4)"))
    outcome = workload.run(on_measured=captures.append)
    assert captures == []
    assert outcome.tracked is not None


def test_failing_callback_is_safe(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    def full(_: Capture) -> None:
        raise OSError("disk full")

    workload.write("main.py", NET + LOOP)
    outcome = workload.run(on_measured=full)
    assert outcome.exit_code == 0
    assert str(outcome.error) == "disk full"
    assert outcome.tracked is not None
    assert capsys.readouterr().out == "the end\n"


def test_timeline_without_reports_is_without_records(workload: Workload, tmp_path: Path) -> None:
    captures: list[Capture] = []
    workload.write("main.py", NET + LOOP)
    workload.run(reports=(), instruments=[Spy([], "a")], on_measured=captures.append)
    assert captures == [Capture(0)]
