"""A profile between two callbacks begins once, ends once and never ends the training."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from unified_prof.errors import CaptureError
from unified_prof.integrations import measurement
from unified_prof.integrations.measurement import Measurement
from unified_prof.pipeline.live import Profile


class Recorder:
    """Replaces `unified_prof.profile`; fails with the given errors."""

    def __init__(self, begin: Exception | None = None, end: Exception | None = None) -> None:
        self.begin, self.end = begin, end
        self.calls: list[object] = []

    @contextmanager
    def __call__(self, output: Path | None, **options: Any) -> Iterator[Profile]:
        if self.begin is not None:
            raise self.begin
        self.calls.append((output, options))
        try:
            yield Profile(Path("out"))
        except RuntimeError as err:
            self.calls.append(str(err))
            raise
        self.calls.append("ended")
        if self.end is not None:
            raise self.end


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(measurement, "profile", recorder)
    return recorder


def test_measurement_begins_once_and_ends_once(recorder: Recorder) -> None:
    measured = Measurement("out", iterations=3)
    for _ in range(2):
        measured.begin()
    under_way = measured.is_under_way
    for _ in range(2):
        measured.end()
    measured.begin()
    assert (under_way, measured.is_under_way) == (True, False), "a second fit is not measured"
    assert recorder.calls == [("out", {"iterations": 3}), "ended"]


def test_training_error_is_passed_to_the_profile_and_not_raised(recorder: Recorder) -> None:
    measured = Measurement()
    measured.begin()
    measured.end(RuntimeError("out of memory"))
    assert recorder.calls[-1] == "out of memory"


def test_forked_process_does_not_end_the_measurement(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measurement()
    measured.begin()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        measured.end()
    assert recorder.calls[-1] != "ended"
    measured.end()
    assert recorder.calls[-1] == "ended"


def test_new_loop_ends_the_measurement_of_the_previous_one(recorder: Recorder) -> None:
    loops = object(), object()
    first, same_loop, second = Measurement("1"), Measurement("2"), Measurement("3")
    first.begin(loops[0])
    same_loop.begin(loops[0])
    assert first.is_under_way, "the profile itself refuses a second one in the same loop"
    second.begin(loops[1])
    assert [one.is_under_way for one in (first, same_loop, second)] == [True, False, True]
    assert "another one started" in str(recorder.calls[2])
    second.end()
    first.end()


def _begin_and_end(measured: Measurement) -> None:
    measured.begin()
    measured.end()


@pytest.mark.parametrize("when", ["begin", "end"])
def test_measurement_error_is_a_warning(when: str, recorder: Recorder) -> None:
    setattr(recorder, when, CaptureError("nothing to measure", hint="train longer"))
    measured = Measurement()
    with pytest.warns(RuntimeWarning, match="nothing to measure.*train longer"):
        _begin_and_end(measured)
    assert measured.failure == "nothing to measure"
    assert "not measured: nothing to measure" in measured.summary()


def test_invalid_options_do_not_end_the_training() -> None:
    measured = Measurement(reports=("speed",))
    with pytest.warns(RuntimeWarning, match="unknown report 'speed'"):
        measured.begin()
    assert not measured.is_under_way
    assert measured.failure == "unknown report 'speed'"


def test_hints_are_for_programs(tmp_path: Path) -> None:
    (tmp_path / "run_time.sqlite").touch()
    with pytest.warns(RuntimeWarning, match=r"already exists.*overwrite it with force=True"):
        Measurement(tmp_path).begin()


def test_summary_before_the_end_says_not_yet(recorder: Recorder) -> None:
    measured = Measurement()
    assert "yet" in measured.summary()
    measured.begin()
    assert "yet" in measured.summary()
    measured.end()
    assert "yet" not in measured.summary()


def test_watched_measurement_marks_steps_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = MagicMock()
    monkeypatch.setattr(measurement, "watch", calls.watch)
    monkeypatch.setattr(measurement, "step", calls.step)
    measured = Measurement("out", watch=True, device="cpu")
    for action in (measured.begin, measured.end):
        measured.step()
        measured.leave_out()
        action()
    measured.begin()
    measured.leave_out()
    opened = call.watch()
    assert calls.mock_calls == [
        *(call.watch("out", device="cpu"), opened.__enter__(), call.step(), opened.leave_out()),
        opened.__exit__(None, None, None),
    ]


def with_stand_in(
    monkeypatch: pytest.MonkeyPatch, integration: str, names: dict[str, tuple[str, ...]]
) -> tuple[Any, Any]:
    """Return an integration imported with empty classes of its trainer, and its calls."""
    for name, classes in names.items():
        module: Any = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        for one in classes:
            setattr(module, one, type(one, (), {"__init__": lambda *_, **__: None}))
            getattr(module, one).teardown = lambda *_, **__: None
        monkeypatch.setitem(sys.modules, name, module)
    name = f"unified_prof.integrations.{integration}"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))  # is removed after the test
    del sys.modules[name]
    imported = importlib.import_module(name)
    calls = MagicMock()
    monkeypatch.setattr(imported, "Measurement", calls)
    calls.return_value.summary.return_value = "3 reports"
    return imported, calls


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_steps_with_its_optimizer(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [one for one in sys.modules if "lightning" in one]:
        monkeypatch.delitem(sys.modules, name)
    names = {package: ("Callback",), f"{package}.profilers": ("Profiler",)}
    imported, calls = with_stand_in(
        monkeypatch, "lightning", {package.partition(".")[0]: (), **names}
    )
    trainer = SimpleNamespace(global_step=7, is_global_zero=False)
    callback = imported.UprofCallback("out", iterations=2)
    callback.on_train_start(trainer, None)
    for trainer.global_step in (7, 8, 8, 9):
        callback.on_train_batch_end(trainer, None, "outputs", "batch", 0)
    callback.on_validation_end(trainer, None)
    callback.on_train_end(trainer, None)
    assert not capsys.readouterr().out, "only one rank prints"
    callback.on_train_end(SimpleNamespace(), None)
    assert capsys.readouterr().out == "3 reports\n"
    callback.on_exception(trainer, None, error := RuntimeError())
    made = call()
    assert calls.mock_calls == [
        *(call("out", iterations=2), made.begin(), made.step(), made.step(), made.leave_out()),
        *(made.end(), made.end(), made.summary(), made.end(error)),
    ]
    calls.reset_mock()
    profiler = imported.UprofProfiler("out")
    for action in ("sanity_check", "run_training_epoch"):
        profiler.start(action)
        profiler.stop(action)
    assert profiler.summary() == "3 reports"
    profiler.teardown("fit")
    assert calls.mock_calls == [call("out"), made.begin(), made.end(), made.summary(), made.end()]


def test_transformers_steps_and_evaluations_are_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported, calls = with_stand_in(
        monkeypatch, "transformers", {"transformers": ("TrainerCallback",)}
    )
    state = SimpleNamespace(is_local_process_zero=False)
    callback = imported.UprofCallback("out", iterations=2)
    for event in ("train_begin", "step_end", "evaluate", "save", "train_end"):
        getattr(callback, f"on_{event}")(None, state, None, model=None)
    assert not capsys.readouterr().out
    callback.on_train_end(None, SimpleNamespace(), None)
    assert capsys.readouterr().out == "3 reports\n"
    made = call()
    assert calls.mock_calls == [
        *(call("out", iterations=2), made.begin(state), made.step()),
        *(made.leave_out(), made.leave_out(), made.end(), made.end(), made.summary()),
    ]


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_missing_trainer_has_an_install_hint(name: str) -> None:
    if importlib.util.find_spec(name) or importlib.util.find_spec(f"pytorch_{name}"):
        pytest.skip(f"{name} is installed")
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'unified-prof\[{name}\]'"):
        importlib.import_module(f"unified_prof.integrations.{name}")


def test_other_lightning_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lightning` before it contained the trainer, or a directory of the user with this name."""
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
