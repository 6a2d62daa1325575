"""A profile between two callbacks: it begins once, ends once, and never ends the training."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from unified_prof.errors import CaptureError
from unified_prof.integrations import measurement
from unified_prof.integrations.measurement import Measurement
from unified_prof.pipeline.live import Profile


class Recorder:
    """Stands for `unified_prof.profile`, and fails where it is told."""

    def __init__(self, begin: Exception | None = None, end: Exception | None = None) -> None:
        self.begin, self.end = begin, end
        self.seen: list[object] = []

    @contextmanager
    def __call__(self, output: Path | None, **options: Any) -> Iterator[Profile]:
        if self.begin is not None:
            raise self.begin
        self.seen.append((output, options))
        try:
            yield Profile(Path("out"))
        except RuntimeError as err:
            self.seen.append(str(err))
            raise
        self.seen.append("ended")
        if self.end is not None:
            raise self.end


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(measurement, "profile", made)
    return made


def test_it_begins_once_and_ends_once(recorder: Recorder) -> None:
    measured = Measurement("out", iterations=3)
    for _ in range(2):
        measured.begin()
    under_way = measured.is_under_way
    for _ in range(2):
        measured.end()
    measured.begin()
    assert (under_way, measured.is_under_way) == (True, False), "a second fit is not measured"
    assert recorder.seen == [("out", {"iterations": 3}), "ended"]


def test_the_error_of_the_loop_is_told_to_the_profile_and_not_raised_twice(
    recorder: Recorder,
) -> None:
    measured = Measurement()
    measured.begin()
    measured.end(RuntimeError("out of memory"))
    assert recorder.seen[-1] == "out of memory"


def test_a_process_that_the_loop_forks_ends_nothing(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measurement()
    measured.begin()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        measured.end()
    assert recorder.seen[-1] != "ended"
    measured.end()
    assert recorder.seen[-1] == "ended"


def test_what_a_loop_that_failed_left_under_way_is_ended_by_the_next(recorder: Recorder) -> None:
    loops = object(), object()
    first, beside, second = Measurement("1"), Measurement("2"), Measurement("3")
    first.begin(loops[0])
    beside.begin(loops[0])
    assert first.is_under_way, "two of one loop: the second is refused by the profile itself"
    beside.end()
    second.begin(loops[1])
    assert second.is_under_way
    second.end()


def test_one_loop_after_another(recorder: Recorder) -> None:
    loops = object(), object()
    first, second = Measurement("1"), Measurement("2")
    first.begin(loops[0])
    second.begin(loops[1])
    assert (first.is_under_way, second.is_under_way) == (False, True)
    assert "another one started" in str(recorder.seen[1])
    second.end()


def _begin_and_end(measured: Measurement) -> None:
    measured.begin()
    measured.end()


@pytest.mark.parametrize("when", ["begin", "end"])
def test_what_goes_wrong_with_the_measurement_is_a_warning(when: str, recorder: Recorder) -> None:
    setattr(recorder, when, CaptureError("nothing to measure", hint="train longer"))
    measured = Measurement()
    with pytest.warns(RuntimeWarning, match="nothing to measure.*train longer"):
        _begin_and_end(measured)
    assert measured.failure == "nothing to measure"
    assert "not measured: nothing to measure" in measured.summary()


def test_wrong_options_do_not_end_a_training_either() -> None:
    measured = Measurement(reports=("speed",))
    with pytest.warns(RuntimeWarning, match="unknown report 'speed'"):
        measured.begin()
    assert not measured.is_under_way
    assert measured.failure == "unknown report 'speed'"


def test_hints_are_those_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "run_time.sqlite").touch()
    with pytest.warns(RuntimeWarning, match=r"already exists.*overwrite it with force=True"):
        Measurement(tmp_path).begin()


def test_before_it_has_ended_there_is_nothing_to_tell(recorder: Recorder) -> None:
    measured = Measurement()
    assert "yet" in measured.summary()
    measured.begin()
    assert "yet" in measured.summary()
    measured.end()
    assert "yet" not in measured.summary()


@pytest.mark.skipif(
    any(importlib.util.find_spec(one) for one in ("lightning", "pytorch_lightning")),
    reason="it is installed",
)
def test_without_lightning_its_callbacks_say_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'unified-prof\[lightning\]'"):
        importlib.import_module("unified_prof.integrations.lightning")


@pytest.mark.skipif(bool(importlib.util.find_spec("transformers")), reason="it is installed")
def test_without_transformers_its_callback_says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'unified-prof\[transformers\]'"):
        importlib.import_module("unified_prof.integrations.transformers")


def test_another_package_of_lightning_s_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `lightning` was before it held the trainer, or a folder of the user's own."""
    (tmp_path / "lightning").mkdir()
    (tmp_path / "lightning" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in [one for one in sys.modules if one.partition(".")[0] == "lightning"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
    monkeypatch.delitem(sys.modules, "unified_prof.integrations.lightning", raising=False)
    with pytest.raises(
        ModuleNotFoundError, match=r"lightning.pytorch not found: the installed lightning"
    ):
        importlib.import_module("unified_prof.integrations.lightning")
