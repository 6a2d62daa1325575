"""Fixtures for tests that track workloads."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracking.workloads import Workload

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: with small tensors on a busy machine, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def freeze_earlier_objects(one_thread: None) -> None:
    """Hide earlier objects from the tracker, which searches all objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workload:
    """Return an empty project directory, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    # torch.distributed replaces this hook and does not restore it.
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    return Workload(tmp_path)
