"""Fixtures of tests on the test device."""

from __future__ import annotations

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
def recovered() -> Iterator[None]:
    """Begin with devices that are idle and well, and kernels of 10 us."""
    bench.recover()
    torch.accelerator.set_device_index(0)
    yield
    bench.recover()


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workload:
    """Return an empty project folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return Workload(tmp_path)
