from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.contract import BackendContract
from tests.backends.test_cpu import TRAINING
from unified_prof.backends.cuda import CudaBackend


class TestCudaBackend(BackendContract):
    @pytest.fixture
    def backend(self) -> CudaBackend:
        backend = CudaBackend()
        if reason := backend.unavailable_reason():
            pytest.skip(reason)
        return backend

    @pytest.fixture
    def script(self, tmp_path: Path) -> Path:
        path = tmp_path / "train.py"
        path.write_text(TRAINING.format(device="cuda"))
        return path


def test_a_build_without_cuda_is_told_from_a_machine_without_a_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert "built without CUDA" in str(CudaBackend().unavailable_reason())
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def no_driver() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.\nMore text.")

    monkeypatch.setattr(torch.cuda, "init", no_driver)
    assert CudaBackend().unavailable_reason() == (
        "no CUDA device answers (Found no NVIDIA driver on your system.)"
    )


def test_the_device_is_asked_and_not_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert CudaBackend().unavailable_reason() is None
