"""Tests that every backend must pass: subclass `BackendContract` in the backend's test file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unified_prof.backends import registry
from unified_prof.backends.registry import MEMORY, RUN_TIME, TIMELINE, Backend, Capture, RunSpec
from unified_prof.errors import UsageError


class BackendContract:
    """The tests. A subclass supplies the fixtures `backend` and `script`."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Return the backend under test."""
        raise NotImplementedError

    @pytest.fixture
    def script(self, tmp_path: Path) -> Path:
        """Return a workload that can be measured.

        It is called with the path of a file, an exit code and anything else; it writes all its
        arguments into the file, a line each, and exits with the code.
        """
        raise NotImplementedError

    @pytest.fixture
    def spec(self, backend: Backend, script: Path, tmp_path: Path) -> RunSpec:
        """Return the specification of a small run of `script` that succeeds."""
        output = tmp_path / "out"
        output.mkdir()
        return RunSpec(
            target=str(script),
            is_module=False,
            arguments=(str(tmp_path / "arguments"), "0"),
            reports=registry.default_reports(backend),
            output_dir=output,
            project_root=script.parent,
            warmup=1,
            iterations=2,
        )

    def test_it_is_registered_under_its_name(self, backend: Backend) -> None:
        assert backend.name in registry.names()
        assert registry.load(backend.name).name == backend.name

    def test_it_names_the_reports_it_can_produce(self, backend: Backend) -> None:
        assert backend.reports
        assert {*backend.reports} <= {RUN_TIME, MEMORY, TIMELINE}
        assert {*registry.default_reports(backend)} <= {*backend.reports}

    def test_asked_twice_it_answers_the_same(self, backend: Backend) -> None:
        assert backend.unavailable_reason() is None
        assert backend.unavailable_reason() is None

    def test_every_report_asked_for_has_something_to_come_from(
        self, backend: Backend, spec: RunSpec
    ) -> None:
        capture = backend.run(spec)
        assert capture.exit_code == 0
        assert capture.failure is None
        assert_measured(capture, spec)

    def test_arguments_reach_the_workload_as_they_are(
        self, backend: Backend, spec: RunSpec, tmp_path: Path
    ) -> None:
        odd = ("--epochs", "two words", "", "ü", "$HOME", "--", "-m")
        backend.run(replace(spec, arguments=(*spec.arguments, *odd)))
        assert (tmp_path / "arguments").read_text(encoding="utf-8").split("\n")[2:] == [*odd]

    def test_the_exit_code_is_the_workload_s(
        self, backend: Backend, spec: RunSpec, tmp_path: Path
    ) -> None:
        capture = backend.run(replace(spec, arguments=(str(tmp_path / "arguments"), "7")))
        assert capture.exit_code == 7

    def test_a_missing_script_is_wrong_use(self, backend: Backend, spec: RunSpec) -> None:
        with pytest.raises(UsageError, match="nowhere"):
            backend.run(replace(spec, target=str(Path(spec.target).with_name("nowhere.py"))))

    def test_an_option_it_does_not_know_is_refused_before_anything_starts(
        self, backend: Backend, spec: RunSpec, tmp_path: Path
    ) -> None:
        with pytest.raises(UsageError, match=r"flux[_-]capacitor"):
            backend.run(replace(spec, options={"flux_capacitor": True}))
        assert not (tmp_path / "arguments").exists()

    def test_it_leaves_nothing_outside_the_output_folder(
        self, backend: Backend, spec: RunSpec, tmp_path: Path
    ) -> None:
        before = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
        backend.run(spec)
        after = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
        new = {path for path in after - before if spec.output_dir not in path.parents}
        assert new == {tmp_path / "arguments"}


def assert_measured(capture: Capture, spec: RunSpec) -> None:
    """Check that `capture` has what each report of `spec` is made from."""
    if {RUN_TIME, MEMORY} & {*spec.reports}:
        assert capture.tracked is not None
    if TIMELINE in spec.reports:
        assert capture.recordings
        assert all(recording.path.exists() for recording in capture.recordings)
