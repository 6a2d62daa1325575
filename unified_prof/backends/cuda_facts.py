"""Collects facts about CUDA devices that can explain differences between runs.

Clocks and throttling are read from the driver library through `pynvml` (package nvidia-ml-py) if it
is installed. It does not initialize the CUDA runtime, so the workload can still fork.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# Reasons for reduced clocks by NVML's bits; idleness (1) is not listed.
_THROTTLED = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}


def torch_facts() -> dict[str, str]:
    """Return torch's facts: libraries, devices, and settings that change times."""
    import torch

    facts = {f"environment {name}": os.environ[name] for name in _VISIBLE if name in os.environ}
    asked: dict[str, Callable[[], Any]] = {
        "device_runtime": lambda: torch.version.cuda or f"ROCm {torch.version.hip}",
        "cudnn": torch.backends.cudnn.version,
        "nccl": lambda: ".".join(map(str, torch.cuda.nccl.version())),
        "tf32_matmul": lambda: torch.backends.cuda.matmul.allow_tf32,
        "tf32_cudnn": lambda: torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    }
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            asked[f"compute_capability {device}"] = partial(_capability, device)
    for name, ask in asked.items():
        with suppress(Exception):  # not in this version or build of torch
            if (answer := ask()) is not None:
                facts[name] = str(answer)
    return facts


def _capability(device: int) -> str:
    import torch

    return ".".join(map(str, torch.cuda.get_device_capability(device)))


def driver_facts(when: str) -> dict[str, str]:
    """Return facts from the driver library; names of facts that can change contain `when`."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or no driver
        return {}
    facts: dict[str, str] = {}
    try:
        with suppress(Exception):
            facts["device_driver"] = _text(nvml.nvmlSystemGetDriverVersion())
        for device, handle in _handles(nvml):
            facts |= _device_facts(nvml, handle, device, when)
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()
    return facts


def _device_facts(nvml: Any, handle: Any, device: int, when: str) -> dict[str, str]:
    sm, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
    asked: dict[str, Callable[[], str]] = {
        f"mig {device}": lambda: "on" if nvml.nvmlDeviceGetMigMode(handle)[0] else "off",
        f"power_limit_w {device}": lambda: str(nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
        f"sm_clock_mhz {when} {device}": lambda: str(nvml.nvmlDeviceGetClockInfo(handle, sm)),
        f"memory_clock_mhz {when} {device}": lambda: str(
            nvml.nvmlDeviceGetClockInfo(handle, memory)
        ),
        f"temperature_c {when} {device}": lambda: str(nvml.nvmlDeviceGetTemperature(handle, 0)),
        f"throttled {when} {device}": lambda: throttled(
            int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        ),
    }
    facts = {}
    for name, ask in asked.items():
        with suppress(Exception):  # not supported by this card, or not permitted
            facts[name] = ask()
    return facts


def throttled(reasons: int) -> str:
    """Return the reasons for reduced clocks, `no` if there are none."""
    names = [name for bit, name in _THROTTLED.items() if reasons & bit]
    return ", ".join(names) or "no"


def _handles(nvml: Any) -> Iterator[tuple[int, Any]]:
    """Yield the devices visible to this process, with their numbers in torch."""
    visible: list[Any] = list(range(nvml.nvmlDeviceGetCount()))
    torch = sys.modules.get("torch")
    with suppress(Exception):
        assert torch is not None
        visible = torch.cuda._parse_visible_devices()
    for device, which in enumerate(visible):
        with suppress(Exception):
            if isinstance(which, str):
                yield device, nvml.nvmlDeviceGetHandleByUUID(which)
            elif which < nvml.nvmlDeviceGetCount():
                yield device, nvml.nvmlDeviceGetHandleByIndex(which)


def _text(answer: Any) -> str:
    return answer.decode() if isinstance(answer, bytes) else str(answer)
