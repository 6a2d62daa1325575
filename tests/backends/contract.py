"""Tests that every backend must pass: subclass `BackendContract` in the backend's test file."""

from dataclasses import replace
from pathlib import Path

import pytest

from unified_prof.backends import registry
from unified_prof.backends.registry import Backend
from unified_prof.base.run_spec import MEMORY, RUN_TIME, TIMELINE, Capture, RunSpec
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

        It is called with the path of a file, an exit code and further arguments; it writes all its
        arguments into the file, one per line, and exits with the code.
        """
        raise NotImplementedError

    @pytest.fixture
    def spec(self, backend: Backend, script: Path, tmp_path: Path) -> RunSpec:
        """Return the specification of a small successful run of `script`."""
        output = tmp_path / "out"
        output.mkdir()
        return RunSpec(
            target=str(script), is_module=False, arguments=(str(tmp_path / "arguments"), "0"),
            reports=registry.default_reports(backend), output_dir=output,
            project_root=script.parent, warmup=1, iterations=2,
        )  # fmt: skip

    def test_backend_is_registered_under_its_name(self, backend: Backend) -> None:
        assert backend.name in registry.names()
        assert registry.load(backend.name).name == backend.name

    def test_backend_lists_known_reports(self, backend: Backend) -> None:
        assert backend.reports
        assert {*backend.reports} <= {RUN_TIME, MEMORY, TIMELINE}
        assert {*registry.default_reports(backend)} <= {*backend.reports}

    def test_availability_is_stable(self, backend: Backend) -> None:
        assert backend.unavailable_reason() is None
        assert backend.unavailable_reason() is None

    def test_run_measures_passes_arguments_and_writes_only_into_the_output_directory(
        self, backend: Backend, spec: RunSpec, tmp_path: Path
    ) -> None:
        before = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
        special = ("--epochs", "two words", "", "ü", "$HOME", "--", "-m")
        capture = backend.run(replace(spec, arguments=(*spec.arguments, *special)))
        assert capture.exit_code == 0
        assert capture.failure is None
        assert_measured(capture, spec)
        assert (tmp_path / "arguments").read_text(encoding="utf-8").split("\n")[2:] == [*special]
        after = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
        new = {path for path in after - before if spec.output_dir not in path.parents}
        assert new == {tmp_path / "arguments"}

    def test_exit_code_is_that_of_the_workload(
        self, backend: Backend, spec: RunSpec, tmp_path: Path
    ) -> None:
        capture = backend.run(replace(spec, arguments=(str(tmp_path / "arguments"), "7")))
        assert capture.exit_code == 7

    def test_missing_script_is_a_usage_error(self, backend: Backend, spec: RunSpec) -> None:
        with pytest.raises(UsageError, match="nowhere"):
            backend.run(replace(spec, target=str(Path(spec.target).with_name("nowhere.py"))))

    def test_unknown_option_is_refused_before_the_run(
        self, backend: Backend, spec: RunSpec, tmp_path: Path
    ) -> None:
        with pytest.raises(UsageError, match=r"flux[_-]capacitor"):
            backend.run(replace(spec, options={"flux_capacitor": True}))
        assert not (tmp_path / "arguments").exists()


def assert_measured(capture: Capture, spec: RunSpec) -> None:
    """Check that `capture` has the data for each report of `spec`."""
    if {RUN_TIME, MEMORY} & {*spec.reports}:
        assert capture.tracked is not None
    if TIMELINE in spec.reports:
        assert capture.recordings
        assert all(recording.path.exists() for recording in capture.recordings)
