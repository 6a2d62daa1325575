"""The CUDA backend."""

from pathlib import Path

import pytest

from tests.backends.contract import BackendContract
from tests.backends.test_cpu import TRAINING
from unified_prof.backends.torch_device import CudaBackend
from unified_prof.errors import DeviceUnavailableError
from unified_prof.tracking.device import Device


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


def test_build_without_cuda_is_not_a_missing_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)  # Other tests initialize it.
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert "built without CUDA" in str(CudaBackend().unavailable_reason())
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: -1)

    def no_driver() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.\nMore text.")

    monkeypatch.setattr(torch.cuda, "init", no_driver)
    assert CudaBackend().unavailable_reason() == (
        "no CUDA device responds (Found no NVIDIA driver on your system.)"
    )


@pytest.mark.parametrize(("in_library", "reason"), [(1, None), (-1, None), (0, "reports no CUDA")])
def test_counting_devices_does_not_initialize_the_runtime(
    monkeypatch: pytest.MonkeyPatch, in_library: int, reason: str | None
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    runtime_calls: list[str] = []

    def count_in_runtime() -> int:
        runtime_calls.append("runtime")
        return max(0, abs(in_library))

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: in_library)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", count_in_runtime, raising=False)
    monkeypatch.setattr(torch.cuda, "init", count_in_runtime)
    found = CudaBackend().unavailable_reason()
    assert (found is None) if reason is None else (reason in str(found))
    if in_library:
        Device("cuda")
    else:
        with pytest.raises(DeviceUnavailableError):
            Device("cuda")
    assert not runtime_calls, "this process can still fork"
