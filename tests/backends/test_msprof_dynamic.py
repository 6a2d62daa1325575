"""Recordings of the running process with a stand-in for `msprof --dynamic`."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends import stand_in_msprof
from tests.backends.test_npu_measured import descendants
from unified_prof.backends import msprof_outcome
from unified_prof.backends.msprof_outcome import DynamicRecording


@pytest.fixture(autouse=True)
def msprof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = stand_in_msprof.install(tmp_path / "toolkit")
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    monkeypatch.setenv("PROFILING_MODE", "dynamic")
    (tmp_path / "out").mkdir()


def wait(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def record(folder: Path) -> DynamicRecording:
    """Return a finished recording; no call of it may take long."""
    began_s = time.process_time()
    recording = DynamicRecording(folder / "out")
    wait(lambda: recording.has_started)
    wait(recording.has_stopped)
    assert time.process_time() - began_s < 10
    return recording


def test_this_process_is_recorded(tmp_path: Path) -> None:
    assert record(tmp_path).failure is None
    (prof,) = msprof_outcome.find(tmp_path / "out")
    assert msprof_outcome.inspect(prof).has_device_data


@pytest.mark.quick(cases=3)
@pytest.mark.parametrize(
    ("behavior", "reason"),
    [
        ("attach_refused", "cannot connect to server"),
        ("hangs_at_start", "msprof did not respond"),
        ("exits_at_start", "msprof recorded no device"),
        ("hangs_at_stop", "msprof did not respond"),
        ("exits_at_stop", "msprof recorded no device"),
        ("records_nothing", "msprof recorded no device"),
        ("records_no_device", "msprof recorded no device"),
    ],
)
def test_failure_has_a_reason_and_ends_msprof(
    behavior: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", behavior)
    limit = {"hangs_at_start": "_START_S", "hangs_at_stop": "_STOP_S"}.get(behavior)
    if limit is not None:
        monkeypatch.setattr(msprof_outcome, limit, 1.0)
    assert reason in str(record(tmp_path).failure)


def test_nothing_is_started_without_msprof_or_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFILING_MODE", "false")
    assert "without PROFILING_MODE=dynamic" in str(record(tmp_path).failure)
    monkeypatch.setenv("PATH", "/nowhere")
    assert record(tmp_path).failure == "msprof was not found"
    assert not [*(tmp_path / "out").iterdir()]


def test_killed_recording_leaves_no_process(tmp_path: Path) -> None:
    others = set(descendants(os.getpid()))  # Of other tests, such as a database or a browser.
    recording = DynamicRecording(tmp_path / "out")
    wait(lambda: recording.has_started)
    own = set(descendants(os.getpid())) - others
    assert own
    recording.kill()
    assert not own & set(descendants(os.getpid()))
