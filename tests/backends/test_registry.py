from __future__ import annotations

import re

import pytest

from tests.backends import toy
from unified_prof.backends import registry
from unified_prof.backends.registry import Backend
from unified_prof.errors import DeviceUnavailableError, UsageError


def test_another_package_adds_a_backend_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    toy.install(monkeypatch, toy="tests.backends.toy:ToyBackend")
    assert registry.names() == ("npu", "cuda", "cpu", "toy")
    assert isinstance(registry.load("toy"), toy.ToyBackend)


def test_a_built_in_name_cannot_be_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    toy.install(monkeypatch, cpu="tests.backends.toy:ToyBackend")
    assert registry.names() == ("npu", "cuda", "cpu")
    assert not isinstance(registry.load("cpu"), toy.ToyBackend)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("tpu", "unknown backend 'tpu'", "known: auto, npu, cuda, cpu, broken, lonely, shy"),
        ("lonely", "backend 'lonely' requires a_package_nobody_has", "installation"),
        ("shy", "backend 'shy' is not available: it would rather not", "uprof doctor"),
        ("broken", "backend 'broken' is broken: .*NoSuchClass", None),
    ],
)
def test_each_way_of_not_being_there_has_its_own_message(
    name: str, message: str, hint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.install(
        monkeypatch,
        shy="tests.backends.toy:ShyBackend",
        lonely="a_package_nobody_has:Backend",
        broken="tests.backends.toy:NoSuchClass",
    )
    with pytest.raises((DeviceUnavailableError, UsageError), match=message) as caught:
        registry.load(name)
    assert caught.value.exit_code == (2 if name == "tpu" else 4)
    assert (hint or "") in (caught.value.hint or "")


class _Asked:
    """Stands for a built-in backend whose device gives the answers of a test."""

    reports: tuple[str, ...] = ("run-time",)

    def __init__(self, name: str, reason: str | None, doubt: str | None = None) -> None:
        self.name = name
        self._reason = reason
        self._doubt = doubt

    def unavailable_reason(self) -> str | None:
        return self._reason

    def doubt(self) -> str | None:
        return self._doubt


def answers(monkeypatch: pytest.MonkeyPatch, **backends: _Asked) -> None:
    def make(name: str) -> Backend:
        backend: Backend = backends[name]  # type: ignore[assignment]
        return backend

    monkeypatch.setattr(registry, "make", make)


@pytest.mark.parametrize(
    ("npu", "cuda", "cpu", "chosen"),
    [
        (None, None, None, "npu"),
        ("no chip", None, None, "cuda"),
        ("no chip", "no card", None, "cpu"),
    ],
)
def test_auto_takes_the_first_whose_device_answers(
    npu: str | None, cuda: str | None, cpu: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, npu=_Asked("npu", npu), cuda=_Asked("cuda", cuda), cpu=_Asked("cpu", cpu))
    assert registry.choose().name == chosen


def test_auto_passes_over_a_doubtful_backend_that_a_user_may_insist_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers(
        monkeypatch,
        npu=_Asked("npu", None, doubt="no device file"),
        cuda=_Asked("cuda", "no card"),
        cpu=_Asked("cpu", None),
    )
    assert registry.choose().name == "cpu"
    assert registry.load("npu").name == "npu"


def test_where_none_can_run_the_message_says_why_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(
        monkeypatch,
        npu=_Asked("npu", "no chip"),
        cuda=_Asked("cuda", "no card"),
        cpu=_Asked("cpu", "no torch"),
    )
    whole = re.escape("npu: no chip; cuda: no card; cpu: no torch")
    with pytest.raises(DeviceUnavailableError, match=whole):
        registry.choose()


def test_a_broken_backend_does_not_stop_the_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    toy.install(
        monkeypatch, broken="a_package_nobody_has:Backend", shy="tests.backends.toy:ShyBackend"
    )
    answered = {answer.name: answer.reason for answer in registry.survey()}
    assert answered["broken"] == "backend 'broken' requires a_package_nobody_has"
    assert answered["shy"] == "it would rather not"
    assert answered["cpu"] is None
