"""A run of a backend: reports, provenance, failures."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests import processes
from tests.records import tracked_run
from tests.sql import run_facts
from unified_prof import __version__
from unified_prof.base.run_spec import Capture, RunSpec
from unified_prof.errors import (
    CaptureError,
    MeasuringError,
    OutputError,
    StoreError,
    UprofError,
    UsageError,
)
from unified_prof.pipeline import reports
from unified_prof.pipeline.live import run
from unified_prof.sqlite import run_folder


class FakeBackend:
    """A backend that returns a given capture, after what happens meanwhile, and counts its runs."""

    name = "fake"
    reports: tuple[str, ...] = ("run-time", "memory")

    def __init__(self, capture: Capture, meanwhile: Callable[[RunSpec], object] = id) -> None:
        self.capture, self.meanwhile = capture, meanwhile
        self.runs = 0

    def unavailable_reason(self) -> str | None:
        return None

    def run(self, spec: RunSpec) -> Capture:
        assert spec.output_dir.is_dir()
        self.runs += 1
        self.meanwhile(spec)
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


MEASURED = Capture(0, tracked_run())
Files = Mapping[str, tuple[Path, ...]]


def test_reports_of_a_running_workload_get_its_exit_status_at_the_end(spec: RunSpec) -> None:
    written: list[Files] = []

    def workload(inner: RunSpec) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            assert inner.on_partial is not None
            inner.on_partial(tracked_run())
            inner.on_measured(MEASURED)
        assert not list(spec.output_dir.iterdir()), "a forked child wrote"
        inner.on_partial(tracked_run())
        assert [path.suffix for path in spec.output_dir.iterdir()] == [".spool"]
        inner.on_measured(MEASURED)
        found = run_facts(spec.output_dir / "memory.sqlite")
        assert (found["exit_code"], found["finished"]) == (None, None)

    result = run(FakeBackend(MEASURED, workload), spec, on_written=written.append)
    assert written == [result.files]
    for name in ("memory", "run_time"):
        found = run_facts(spec.output_dir / f"{name}.sqlite")
        assert (found["exit_code"], found["finished"] is None) == ("0", False)
    assert len(list(spec.output_dir.iterdir())) == 2


def damage(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0")


@pytest.mark.parametrize(
    ("meanwhile", "note"), [(damage, "lacks the exit status"), (Path.unlink, None)]
)
def test_reports_that_a_workload_changes_are_mentioned_or_written_again(
    meanwhile: Callable[[Path], None], note: str | None, spec: RunSpec
) -> None:
    def workload(inner: RunSpec) -> None:
        inner.on_measured(MEASURED)
        meanwhile(spec.output_dir / "memory.sqlite")

    result = run(FakeBackend(MEASURED, workload), spec)
    assert run_facts(spec.output_dir / "run_time.sqlite")["exit_code"] == "0"
    if note is None:
        assert run_facts(spec.output_dir / "memory.sqlite")["exit_code"] == "0"
        assert result.failure is None
    else:
        assert note in str(result.failure)


@pytest.mark.parametrize("force", [False, True])
def test_report_of_another_process_is_kept(force: bool, spec: RunSpec) -> None:
    def workload(inner: RunSpec) -> None:
        (spec.output_dir / "memory.sqlite").write_text("of another process")

    result = run(FakeBackend(MEASURED, workload), spec, force=force)
    assert (spec.output_dir / "memory.sqlite").read_text() == "of another process"
    (path,) = result.files["run-time"]
    assert path.name.startswith("run_time_")
    assert path.name.endswith(f"_{os.getpid()}.sqlite")
    assert "another process wrote run_time.sqlite, memory.sqlite meanwhile" in str(result.failure)


def test_report_that_cannot_be_written_can_be_recovered(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OutputError("no space left", hint="delete some files")

    def workload(inner: RunSpec) -> None:
        assert inner.on_partial is not None
        inner.on_partial(tracked_run())
        inner.on_measured(MEASURED)

    monkeypatch.setitem(reports._WRITERS, "memory", fail)
    with pytest.raises(OutputError) as caught:
        run(FakeBackend(MEASURED, workload), spec)
    assert caught.value.hint == (
        "delete some files; then recover the saved measurements with "
        f"`uprof db recover {spec.output_dir}`"
    )


@pytest.mark.parametrize("error", [MeasuringError("no iteration"), None])
def test_rank_that_measured_nothing_writes_reports_with_its_failure(
    error: UprofError | None, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def workload(inner: RunSpec) -> None:
        if error is not None:
            raise error

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    backend = FakeBackend(Capture(0, None, failure="no iteration"), workload)
    with pytest.raises(CaptureError, match="no iteration"):
        run(backend, spec, strict=True)
    known = run_folder.read(spec.output_dir)
    assert known is not None
    assert (known.ranks[1].failure, known.ranks[1].files) == ("no iteration", {})
    result = run(backend, spec)
    assert (result.exit_code, result.failure) == (0, "no iteration")
    found = run_facts(spec.output_dir / "memory_rank1.sqlite")
    assert (found["complete"], found["exit_code"], found["failure"]) == (
        *("false", "0", "no iteration"),
    )
    known = run_folder.read(spec.output_dir)
    assert known is not None
    rank = known.ranks[1]
    assert (rank.state, rank.exit_code, rank.expected_ranks) == (run_folder.ENDED, 0, (0, 1))
    names = {"run-time": "run_time_rank1.sqlite", "memory": "memory_rank1.sqlite"}
    assert rank.files == {report: (name,) for report, name in names.items()}
    assert result.files == {report: (spec.output_dir / name,) for report, name in names.items()}


@pytest.mark.parametrize("exit_code", [0, 3, None])
def test_ranks_without_reports_have_the_exit_code_of_their_workload(
    exit_code: int | None, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def workload(inner: RunSpec) -> None:
        if exit_code is None:
            raise CaptureError("lost", slug="nothing-measured")

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    backend = FakeBackend(Capture(exit_code or 0, None, error=CaptureError("lost")), workload)
    if exit_code:
        assert run(backend, spec, strict=True).exit_code == exit_code
    else:
        with pytest.raises(CaptureError, match="lost"):
            run(backend, spec, strict=True)
    known = run_folder.read(spec.output_dir)
    assert known is not None
    assert (known.ranks[1].exit_code, known.ranks[1].failure) == (exit_code, "lost")
