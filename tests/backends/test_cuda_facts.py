"""Facts about CUDA devices, with stand-ins for NVML and torch."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from unified_prof.backends import torch_device


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a stand-in for `pynvml` with two devices, the second one throttled."""

    def not_supported(handle: str) -> Any:
        raise RuntimeError("Not Supported")

    stand_in = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"570.86.15",
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: f"card {index}",
        nvmlDeviceGetHandleByUUID=lambda uuid: f"card {uuid}",
        nvmlDeviceGetMigMode=not_supported,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetClockInfo=lambda handle, which: 1980 if which == 1 else 2619,
        nvmlDeviceGetTemperature=lambda handle, sensor: 41,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x44 if handle[-1] == "1" else 1,
    )
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    return stand_in


def test_driver_clocks_are_recorded(nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "_parse_visible_devices", lambda: [1, 0])
    facts = torch_device.driver_facts("before")
    assert facts["device_driver"] == "570.86.15"
    assert facts["sm_clock_mhz before 0"] == "1980"
    assert facts["memory_clock_mhz before 1"] == "2619"
    assert facts["throttled before 0"] == "power cap, hardware thermal slowdown", "torch's order"
    assert facts["throttled before 1"] == "no", "an idle device is not throttled"
    assert facts["power_limit_w 0"] == "700.0"
    assert "mig 0" not in facts, "not supported by this device"


def test_no_facts_without_a_driver(nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("NVML Shared Library Not Found")

    nvml.nvmlInit = fail
    assert torch_device.driver_facts("after") == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert torch_device.driver_facts("after") == {}


def test_settings_that_affect_times_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    facts = torch_device.torch_facts()
    assert facts["environment CUDA_VISIBLE_DEVICES"] == "3,1"
    assert facts["cudnn_benchmark"] == "True"
    assert facts["tf32_matmul"] == "False"
    assert facts["deterministic_algorithms"] == "False"
