"""Clocks and devices without an accelerator; tests/device has one."""

import re
from pathlib import Path

import pytest

from unified_prof.errors import DeviceUnavailableError
from unified_prof.tracking import device as device_module
from unified_prof.tracking.device import Device, HostClock

TRACKING = Path(device_module.__file__).parent


def test_tracker_has_no_code_for_a_named_device() -> None:
    for path in TRACKING.glob("*.py"):
        code = re.sub(r'""".*?"""|#.*', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "cuda" not in code.replace("__cuda_array_interface__", ""), path.name


def test_host_clock_counts_nanoseconds() -> None:
    assert HostClock().elapsed_ms(1_000_000, 3_500_000) == 2.5


def test_unknown_device_is_an_error() -> None:
    with pytest.raises(DeviceUnavailableError, match="torch finds no nonsense device here"):
        Device("nonsense")


def test_cpu_has_a_name_and_no_allocator_peak() -> None:
    device = Device("cpu")
    assert device.describe().startswith("cpu")
    assert device.memory_use() == ()
