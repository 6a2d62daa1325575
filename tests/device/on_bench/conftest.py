"""Fixtures of tests on the test device."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.device import bench
from tests.tracking.workloads import Workload

NAME = "bench"
torch.set_num_threads(1)
bench.install(NAME)


@pytest.fixture(autouse=True)
def fresh_device() -> Iterator[None]:
    """Reset the devices before and after each test; kernels take 10 us."""
    bench.recover()
    torch.accelerator.set_device_index(0)
    yield
    bench.recover()


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workload:
    """Return a workload in an empty project folder, the working directory."""
    monkeypatch.chdir(tmp_path)
    return Workload(tmp_path)
