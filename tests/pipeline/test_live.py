"""`unified_prof.profile` as a context manager."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import unified_prof
from tests.conftest import ROOT
from tests.processes import python
from tests.records import tracked_run
from tests.sql import run_facts
from unified_prof.base.run_spec import RunSpec, TrackedRun
from unified_prof.errors import CaptureError, DeviceUnavailableError, OutputError, UsageError
from unified_prof.tracking import live


class FakeTracking:
    """Replaces LiveTracking and ends as a test configures."""

    ends_with: tuple[TrackedRun | None, str | None] = (tracked_run(), None)
    device: str | None
    spec: RunSpec
    """Arguments of the last call."""

    def __init__(self, device: str | None, spec: RunSpec) -> None:
        self.tracked: TrackedRun | None = None
        self.failure: str | None = None
        FakeTracking.device, FakeTracking.spec = device, spec

    is_of_this_process = True

    def __enter__(self) -> FakeTracking:
        return self

    def __exit__(self, *_: object) -> None:
        self.tracked, self.failure = self.ends_with


@pytest.fixture(autouse=True)
def replace_tracking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live, "LiveTracking", FakeTracking)


def test_reports_exist_after_the_block(tmp_path: Path) -> None:
    with unified_prof.profile("out", device="cpu", iterations=3, project_root="..") as profile:
        assert not profile.files
    assert FakeTracking.device == "cpu"
    assert FakeTracking.spec.iterations == 3
    assert FakeTracking.spec.project_root == tmp_path.parent
    assert {*profile.files} == {"run-time", "memory"}
    assert profile.summary is not None
    assert profile.summary.forward_ms == 9.0
    facts = run_facts(profile.files["memory"])
    assert facts["complete"] == "true"
    assert facts["project_root"] == str(tmp_path.parent)


def test_exception_is_raised_and_measurements_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    partial = (tracked_run(complete=False), "the block failed")
    monkeypatch.setattr(FakeTracking, "ends_with", partial)
    with pytest.raises(ZeroDivisionError), unified_prof.profile("out") as profile:
        raise ZeroDivisionError
    assert profile.failure == "the block failed"
    assert profile.files["run-time"].is_file()


def test_no_iteration_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(FakeTracking, "ends_with", (None, "no iteration ran"))
    with pytest.raises(CaptureError, match="no iteration ran"), unified_prof.profile("out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_existing_reports_are_kept_without_force(tmp_path: Path) -> None:
    with unified_prof.profile("out"):
        pass
    with pytest.raises(OutputError, match="already exists"), unified_prof.profile("out"):
        pytest.fail("the block ran although its reports cannot be written")
    with unified_prof.profile("out", force=True):
        pass


def test_unknown_report_is_refused() -> None:
    with (
        pytest.raises(UsageError, match="unknown report 'timeline'"),
        unified_prof.profile(reports=["timeline"]),
    ):
        pytest.fail("the block ran")


@pytest.mark.slow
def test_block_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    import torch

    model = torch.nn.Linear(4, 2)
    with unified_prof.profile(
        "out", warmup=1, iterations=2, project_root=ROOT, scope="project"
    ) as profile:
        for _ in range(8):
            model(torch.ones(3, 4)).sum().backward()
            unified_prof.step()
    assert profile.tracked is not None
    assert profile.tracked.complete
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "memory.sqlite",
        "run_time.sqlite",
    ]


def test_step_outside_of_a_profile_does_nothing() -> None:
    assert unified_prof.step() is None  # type: ignore[func-returns-value]


def test_missing_torch_is_named_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torch", None)
    spec = RunSpec(
        target="train.py", reports=("run-time",), output_dir=Path("out"), project_root=Path()
    )
    with pytest.raises(DeviceUnavailableError, match="PyTorch is not installed") as caught:
        live.LiveTracking("cpu", spec)
    assert caught.value.hint == "run `pip install 'unified-prof[torch]'`"


FORKS = """
import os, sys, torch, unified_prof
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
with unified_prof.profile("out", device="cpu", warmup=1, iterations=3) as profile:
    for number in range(12):
        optimizer.zero_grad()
        layer(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        if number == 4:
            child = os.fork()
            if not child:
                break
            print(os.waitpid(child, 0)[1], sorted(os.listdir("out"))[1:])
if not child:
    os._exit(0 if profile.tracked is None and not profile.files else 5)
print(sorted(os.listdir("out")), profile.failure)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_process_that_leaves_the_block_writes_nothing(tmp_path: Path) -> None:
    result = python("-c", FORKS, cwd=tmp_path)
    assert result.stdout.splitlines() == ["0 []", "['memory.sqlite', 'run_time.sqlite'] None"]
