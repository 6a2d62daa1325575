"""What is known of CUDA devices beyond torch: driver, clocks, throttling, what makes runs differ.

Clocks and the like are asked of the driver's library through `pynvml` (the package nvidia-ml-py),
where it is installed and answers; it does not touch the runtime, so the workload may still fork.
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
"""Reasons why clocks are lower than they could be, by NVML's bits; idleness (1) is none."""


def of_torch() -> dict[str, str]:
    """Return what torch says of its libraries, the devices and the switches that change times."""
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
        with suppress(Exception):  # torch has it elsewhere, or was built without it
            if (answer := ask()) is not None:
                facts[name] = str(answer)
    return facts


def _capability(device: int) -> str:
    import torch

    return ".".join(map(str, torch.cuda.get_device_capability(device)))


def of_library(when: str) -> dict[str, str]:
    """Return what the driver's library says now; facts that may change are named after `when`."""
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
            facts |= _of_device(nvml, handle, device, when)
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()
    return facts


def _of_device(nvml: Any, handle: Any, device: int, when: str) -> dict[str, str]:
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
        with suppress(Exception):  # not of this card, or not for this user
            facts[name] = ask()
    return facts


def throttled(reasons: int) -> str:
    """Return why clocks are held down, `no` where they are not."""
    names = [name for bit, name in _THROTTLED.items() if reasons & bit]
    return ", ".join(names) or "no"


def _handles(nvml: Any) -> Iterator[tuple[int, Any]]:
    """Yield the devices that this process may see, by their numbers in torch."""
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
