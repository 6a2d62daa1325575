"""Unknown chips and other releases of msprof: help is read, rejected options are dropped."""

import os
import time
from pathlib import Path

import pytest

from tests.backends import stand_in_msprof
from tests.backends.test_npu import INIT, msprof, run, spec_of
from unified_prof.backends import cann
from unified_prof.backends.npu import NpuBackend
from unified_prof.errors import UsageError

__all__ = ["msprof"]

COUNT_RUNS = INIT + "open('runs', 'a').write('x')\n"


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "log"


def options_of(start: list[str]) -> set[str]:
    return {word[2:].partition("=")[0] for word in start if word.startswith("--")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "name", "refused"),
    [
        pytest.param("0", "310", "sys-interconnection-profiling", marks=pytest.mark.slow),
        pytest.param("4", "310P", "sys-io-profiling"),
        pytest.param("7", "310B", "sys-interconnection-profiling", marks=pytest.mark.slow),
    ],
)
def test_full_preset_starts_msprof_once_without_unsupported_options(
    platform: str,
    name: str,
    refused: str,
    tmp_path: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAND_IN_PLATFORM", platform)
    messages: list[str] = []
    capture = run(tmp_path, COUNT_RUNS, options={"preset": "full"}, relay=messages.append)
    assert (capture.exit_code, capture.failure) == (0, None)
    assert len(stand_in_msprof.starts(log)) == 1
    assert (tmp_path / "runs").read_text() == "x"
    assert messages[0] == f"uprof: --preset full without --{refused}: not supported by msprof here"
    assert capture.facts["msprof_left_out"] == f"--{refused}"


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["no_help", "hangs_on_help"])
def test_refused_options_are_dropped_without_help_and_the_workload_runs_once(
    failure: str, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unified_prof.backends.cann._TIMEOUT_S", 1)
    monkeypatch.setenv("STAND_IN_PLATFORM", "0")
    monkeypatch.setenv("STAND_IN_MSPROF", failure)
    messages: list[str] = []
    began = time.monotonic()
    capture = run(tmp_path, COUNT_RUNS, options={"preset": "full"}, relay=messages.append)
    assert time.monotonic() - began < 50
    assert (capture.exit_code, capture.failure) == (0, None)
    first, second = stand_in_msprof.starts(log)
    assert options_of(first) - options_of(second) == {"sys-interconnection-profiling"}
    assert (tmp_path / "runs").read_text() == "x"
    assert len(capture.recordings) == 1
    assert messages[0].startswith("uprof: --preset full without --sys-interconnection-profiling")
    assert not any("unrecognized" in line or "Usage" in line for line in messages)


def test_explicit_option_that_msprof_refuses_is_reported_with_its_message(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_PLATFORM", "4")
    monkeypatch.setenv("STAND_IN_MSPROF", "no_help")
    messages: list[str] = []
    options = {"sys_io_profiling": "on"}
    capture = run(tmp_path, COUNT_RUNS, options=options, relay=messages.append)
    assert "unrecognized option '--sys-io-profiling=on'" in str(capture.failure)
    assert len(stand_in_msprof.starts(log)) == 1
    assert "PlatformType:4" in messages
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_workload_that_prints_the_refusal_is_not_run_again(tmp_path: Path, log: Path) -> None:
    source = COUNT_RUNS + "print(\"msprof: unrecognized option '--msproftx=on'\", flush=True)\n"
    failing = source + "raise SystemExit(3)\n"
    capture = run(tmp_path, failing)
    assert capture.exit_code == 3
    assert len(stand_in_msprof.starts(log)) == 1
    assert (tmp_path / "runs").read_text() == "x"


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["old", "on_device", "old no_help", "on_device no_help"])
def test_options_of_uprof_are_dropped_for_an_older_msprof(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", failure)
    monkeypatch.setenv("STAND_IN_PLATFORM", "7")
    capture = run(tmp_path, COUNT_RUNS, options={"preset": "full"})
    assert (capture.exit_code, capture.failure) == (0, None)
    assert (tmp_path / "runs").read_text() == "x"
    assert capture.recordings[0].native is not None, "exported by msprof itself"


def test_explicit_chip_is_used_without_reading_help(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str | None:
        raise AssertionError

    monkeypatch.setattr(cann, "msprof_help", fail)
    spec = spec_of(tmp_path, "", options={"preset": "full", "npu_chip": "310P"})
    command, left_out, _ = NpuBackend().describe(spec)
    assert "--sys-io-profiling" not in command
    assert left_out == (
        "# --preset full without --sys-io-profiling: not supported by msprof on a 310P"
    )
    with pytest.raises(UsageError, match=r"(?m)--l2: not supported by msprof on a 310$"):
        run(tmp_path, "", options={"l2": "on", "npu_chip": "310"})
    with pytest.raises(UsageError, match="expected one of ArithmeticUtilization"):
        run(tmp_path, "", options={"aic_metrics": "L2Cache", "npu_chip": "310P"})
    with pytest.raises(UsageError, match="cannot attach to a process on a 310"):
        run(tmp_path, "", target="", options={"pid": str(os.getpid()), "npu_chip": "310"})
    assert not log.exists()


def test_npu_smi_identifies_the_chip_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cann, "chip", lambda: "Ascend 310P3")
    monkeypatch.setattr(cann, "msprof_help", lambda: None)
    spec = spec_of(tmp_path, "", options={"preset": "full"})
    assert "--sys-io-profiling" not in NpuBackend().describe(spec)[0]
