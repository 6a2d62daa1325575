"""A run of a backend: reports, provenance, failures."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import processes
from tests.records import tracked_run
from tests.sql import run_facts
from unified_prof import __version__
from unified_prof.base.run_spec import Capture, RunSpec
from unified_prof.errors import CaptureError, OutputError, StoreError, UsageError
from unified_prof.pipeline import reports
from unified_prof.pipeline.live import run


class FakeBackend:
    """A backend that returns a given capture and counts its runs."""

    name = "fake"
    reports: tuple[str, ...] = ("run-time", "memory")

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.runs = 0

    def unavailable_reason(self) -> str | None:
        return None

    def run(self, spec: RunSpec) -> Capture:
        assert spec.output_dir.is_dir()
        self.runs += 1
        return self.capture


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return RunSpec(
        target="train.py", is_module=False, arguments=("--epochs", "1"),
        reports=("run-time", "memory"), output_dir=tmp_path / "out", project_root=tmp_path,
        warmup=1, iterations=3,
    )  # fmt: skip


def test_each_requested_report_is_one_file(spec: RunSpec) -> None:
    result = run(FakeBackend(Capture(0, tracked_run())), spec)
    assert result.exit_code == 0
    assert result.files == {
        "run-time": (spec.output_dir / "run_time.sqlite",),
        "memory": (spec.output_dir / "memory.sqlite",),
    }
    names = ["memory.sqlite", "run_time.sqlite"]
    assert sorted(path.name for path in spec.output_dir.iterdir()) == names


def test_other_reports_are_not_written(spec: RunSpec) -> None:
    run(FakeBackend(Capture(0, tracked_run())), replace(spec, reports=("memory",)))
    assert [p.name for p in spec.output_dir.iterdir()] == ["memory.sqlite"]


def test_provenance_describes_the_run(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = run(FakeBackend(Capture(0, tracked_run())), spec)
    found = run_facts(result.files["memory"][0])
    assert result.files["memory"][0].name == "memory_rank1.sqlite"
    assert found["uprof"] == __version__
    assert found["backend"] == "fake"
    assert found["device"] == "cpu: a processor"
    assert found["torch"] == "2.13.0"
    assert found["project_root"] == str(spec.project_root)
    assert json.loads(found["command"]) == sys.argv
    assert json.loads(found["options"])["iterations"] == 3
    assert (found["rank"], found["world_size"]) == ("1", "2")
    assert found["started"] < found["finished"]
    assert found["complete"] == "true"
    assert "failure" not in found


def test_git_commit_is_recorded(spec: RunSpec) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
        result = processes.run(*command, cwd=spec.project_root, check=True)
        return result.stdout.strip()

    (spec.project_root / "model.py").write_text("x = 1\n")
    git("init", "-q")
    git("add", "model.py")
    git("commit", "-qm", "first")
    backend = FakeBackend(Capture(0, tracked_run()))
    found = run_facts(run(backend, spec).files["memory"][0])
    assert found["git_commit"] == git("rev-parse", "HEAD")
    assert found["git_modified"] == "false"
    (spec.project_root / "model.py").write_text("x = 2\n")
    found = run_facts(run(backend, spec, force=True).files["memory"][0])
    assert found["git_modified"] == "true"


def test_missing_git_records_no_commit(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = run_facts(run(FakeBackend(Capture(0, tracked_run())), spec).files["memory"][0])
    assert "git_commit" not in found


def test_existing_report_stops_the_run_before_it_starts(spec: RunSpec) -> None:
    spec.output_dir.mkdir()
    (spec.output_dir / "memory.sqlite").write_text("existing")
    backend = FakeBackend(Capture(0, tracked_run()))
    with pytest.raises(OutputError, match=r"memory\.sqlite already exists"):
        run(backend, spec)
    assert backend.runs == 0
    run(backend, spec, force=True)
    assert run_facts(spec.output_dir / "memory.sqlite")["backend"] == "fake"


def test_report_that_the_backend_cannot_write_is_a_usage_error(spec: RunSpec) -> None:
    backend = FakeBackend(Capture(0, tracked_run()))
    with pytest.raises(UsageError, match="cannot produce the report timeline"):
        run(backend, replace(spec, reports=("timeline",)))
    assert backend.runs == 0


def test_failure_after_some_iterations_leaves_incomplete_reports(spec: RunSpec) -> None:
    capture = Capture(3, tracked_run(complete=False), failure="the script ended with 3")
    result = run(FakeBackend(capture), spec)
    assert result.exit_code == 3
    assert result.failure == "the script ended with 3"
    found = run_facts(result.files["run-time"][0])
    assert (found["complete"], found["exit_code"]) == ("false", "3")
    assert found["failure"] == "the script ended with 3"


def test_failure_before_any_iteration_leaves_no_report(spec: RunSpec, tmp_path: Path) -> None:
    result = run(FakeBackend(Capture(3, None, failure="the script ended with 3")), spec)
    assert (result.exit_code, result.files) == (3, {})
    assert list(tmp_path.iterdir()) == []


def test_success_without_a_measurement_is_an_error(spec: RunSpec, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no iteration ran"):
        run(FakeBackend(Capture(0, None, failure="no iteration ran")), spec)
    assert list(tmp_path.iterdir()) == []


def test_internal_error_does_not_hide_the_exit_code_of_the_workload(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreError("disk error")

    monkeypatch.setitem(reports._WRITERS, "run-time", fail)
    with pytest.raises(StoreError):
        run(FakeBackend(Capture(0, tracked_run())), spec)
    result = run(FakeBackend(Capture(9, tracked_run())), spec)
    assert result.exit_code == 9
    assert "disk error" in str(result.failure)
    assert list(tmp_path.iterdir()) == []
