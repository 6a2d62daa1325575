"""The registry of backends."""

import re

import pytest

from tests.backends import toy
from unified_prof.backends import registry
from unified_prof.backends.registry import Backend
from unified_prof.errors import DeviceUnavailableError, UsageError


def test_entry_point_of_another_package_adds_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    toy.install(monkeypatch, toy="tests.backends.toy:ToyBackend")
    assert registry.names() == ("npu", "cuda", "cpu", "toy")
    assert isinstance(registry.load("toy"), toy.ToyBackend)


def test_built_in_backend_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    toy.install(monkeypatch, cpu="tests.backends.toy:ToyBackend")
    assert registry.names() == ("npu", "cuda", "cpu")
    assert not isinstance(registry.load("cpu"), toy.ToyBackend)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("tpu", "unknown backend 'tpu'", "known: auto, npu, cuda, cpu, broken, missing, off"),
        ("missing", "backend 'missing' requires a_missing_package", "installation"),
        ("off", "backend 'off' is not available: switched off", "uprof doctor"),
        ("broken", "backend 'broken' is broken: .*NoSuchClass", None),
    ],
)
def test_each_reason_for_unavailability_has_its_message(
    name: str, message: str, hint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = {
        "off": "tests.backends.toy:UnavailableBackend",
        "missing": "a_missing_package:Backend",
    }
    toy.install(monkeypatch, **backends, broken="tests.backends.toy:NoSuchClass")
    with pytest.raises((DeviceUnavailableError, UsageError), match=message) as caught:
        registry.load(name)
    assert caught.value.exit_code == (2 if name == "tpu" else 4)
    assert (hint or "") in (caught.value.hint or "")


class FakeBackend:
    """Replaces a built-in backend, with a chosen availability."""

    reports: tuple[str, ...] = ("run-time",)

    def __init__(self, name: str, reason: str | None, doubt: str | None = None) -> None:
        self.name = name
        self._reason = reason
        self._doubt = doubt

    def unavailable_reason(self) -> str | None:
        return self._reason

    def doubt(self) -> str | None:
        return self._doubt


def replace_backends(monkeypatch: pytest.MonkeyPatch, **backends: FakeBackend) -> None:
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
def test_auto_selects_the_first_available_backend(
    npu: str | None, cuda: str | None, cpu: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_backends(
        monkeypatch,
        npu=FakeBackend("npu", npu),
        cuda=FakeBackend("cuda", cuda),
        cpu=FakeBackend("cpu", cpu),
    )
    assert registry.choose().name == chosen


def test_auto_skips_a_doubtful_backend_unless_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    npu = FakeBackend("npu", None, doubt="no device file")
    cuda, cpu = FakeBackend("cuda", "no card"), FakeBackend("cpu", None)
    replace_backends(monkeypatch, npu=npu, cuda=cuda, cpu=cpu)
    assert registry.choose().name == "cpu"
    assert registry.load("npu").name == "npu"


def test_error_lists_why_every_backend_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {"npu": "no chip", "cuda": "no card", "cpu": "no torch"}
    backends = {name: FakeBackend(name, reason) for name, reason in reasons.items()}
    replace_backends(monkeypatch, **backends)
    message = re.escape("npu: no chip; cuda: no card; cpu: no torch")
    with pytest.raises(DeviceUnavailableError, match=message):
        registry.choose()


def test_broken_backend_does_not_stop_the_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = {
        "broken": "a_missing_package:Backend",
        "off": "tests.backends.toy:UnavailableBackend",
    }
    toy.install(monkeypatch, **backends)
    answered = {answer.name: answer.reason for answer in registry.survey()}
    assert answered["broken"] == "backend 'broken' requires a_missing_package"
    assert answered["off"] == "switched off"
    assert answered["cpu"] is None
