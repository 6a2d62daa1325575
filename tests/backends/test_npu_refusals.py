"""Unknown chips and other releases of msprof: help is read, rejected options are dropped."""

from __future__ import annotations

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

COUNTING = INIT + "open('runs', 'a').write('x')\n"


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "log"


def options_of(start: list[str]) -> set[str]:
    return {word[2:].partition("=")[0] for word in start if word.startswith("--")}


@pytest.mark.parametrize(
    ("platform", "name", "refused"),
    [
        pytest.param("0", "310", "sys-interconnection-profiling", marks=pytest.mark.slow),
        pytest.param("4", "310P", "sys-io-profiling"),
        pytest.param("7", "310B", "sys-interconnection-profiling", marks=pytest.mark.slow),
    ],
)
def test_full_on_a_chip_that_msprof_tells_of_starts_it_once(
    platform: str,
    name: str,
    refused: str,
    tmp_path: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAND_IN_PLATFORM", platform)
    said: list[str] = []
    capture = run(tmp_path, COUNTING, options={"preset": "full"}, relay=said.append)
    assert (capture.exit_code, capture.failure) == (0, None)
    assert len(stand_in_msprof.starts(log)) == 1
    assert (tmp_path / "runs").read_text() == "x"
    words = f"uprof: --preset full without --{refused}: not supported by msprof here"
    assert said[0] == words
    assert capture.facts["msprof_left_out"] == f"--{refused}"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["no_help", "hangs_on_help"])
def test_where_msprof_cannot_be_asked_it_is_tried_and_nothing_runs_twice(
    how: str, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unified_prof.backends.cann._TIMEOUT_S", 1)
    monkeypatch.setenv("STAND_IN_PLATFORM", "0")
    monkeypatch.setenv("STAND_IN_MSPROF", how)
    said: list[str] = []
    began = time.monotonic()
    capture = run(tmp_path, COUNTING, options={"preset": "full"}, relay=said.append)
    assert time.monotonic() - began < 30
    assert (capture.exit_code, capture.failure) == (0, None)
    first, second = stand_in_msprof.starts(log)
    assert options_of(first) - options_of(second) == {"sys-interconnection-profiling"}
    assert (tmp_path / "runs").read_text() == "x"
    assert len(capture.recordings) == 1
    assert said[0].startswith("uprof: --preset full without --sys-interconnection-profiling")
    assert not any("unrecognized" in line or "Usage" in line for line in said)


def test_an_option_that_only_msprof_knows_to_be_wrong_is_told_with_its_words(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_PLATFORM", "4")
    monkeypatch.setenv("STAND_IN_MSPROF", "no_help")
    said: list[str] = []
    options = {"sys_io_profiling": "on"}
    capture = run(tmp_path, COUNTING, options=options, relay=said.append)
    assert "unrecognized option '--sys-io-profiling=on'" in str(capture.failure)
    assert len(stand_in_msprof.starts(log)) == 1
    assert "PlatformType:4" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_workload_that_prints_the_same_words_is_not_run_again(tmp_path: Path, log: Path) -> None:
    source = COUNTING + "print(\"msprof: unrecognized option '--msproftx=on'\", flush=True)\n"
    with_closed = source + "raise SystemExit(3)\n"
    capture = run(tmp_path, with_closed)
    assert capture.exit_code == 3
    assert len(stand_in_msprof.starts(log)) == 1
    assert (tmp_path / "runs").read_text() == "x"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["old", "on_device", "old no_help", "on_device no_help"])
def test_an_msprof_that_has_not_our_own_options_is_done_without_them(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", how)
    monkeypatch.setenv("STAND_IN_PLATFORM", "7")
    capture = run(tmp_path, COUNTING, options={"preset": "full"})
    assert (capture.exit_code, capture.failure) == (0, None)
    assert (tmp_path / "runs").read_text() == "x"
    assert capture.recordings[0].native is not None  # it exported by itself


def test_the_chip_that_the_user_names_is_not_asked_for(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody_is_asked() -> str | None:
        raise AssertionError

    monkeypatch.setattr(cann, "msprof_help", nobody_is_asked)
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


def test_npu_smi_tells_of_the_chip_where_msprof_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cann, "chip", lambda: "Ascend 310P3")
    monkeypatch.setattr(cann, "msprof_help", lambda: None)
    spec = spec_of(tmp_path, "", options={"preset": "full"})
    assert "--sys-io-profiling" not in NpuBackend().describe(spec)[0]
