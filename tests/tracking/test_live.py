"""Tracking from inside a program: the context manager and `step()`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.tracking.workloads import make_spec, names, places
from unified_prof.errors import CaptureError, UsageError
from unified_prof.tracking.live import LiveTracking, step

HERE = Path(__file__).parent


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.lin(x).relu()


def train(steps: int) -> Net:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    return net


def live(**options: Any) -> LiveTracking:
    settings = {"reports": ("run-time", "memory"), "warmup": 1, "iterations": 3, **options}
    return LiveTracking("cpu", make_spec(HERE, **settings))


@pytest.mark.parametrize(("steps", "measured"), [(10, 3), (9, 2), (6, 1), (5, 1)])
def test_loop_in_the_block_is_measured(steps: int, measured: int) -> None:
    with live() as tracking:
        net = train(steps)
    tracked = tracking.tracked
    assert tracked is not None
    assert names(tracked) == ["linear", "relu"]
    assert places(tracked.operations[0])[0].startswith("test_live.py:")
    assert len(tracked.iterations) == measured
    assert tracked.complete == (steps == 10)
    # The last step of these measures the peak, the last kind of figure.
    too_few = None if steps > 5 else "the workload ended after 1 of 3 measured iterations"
    assert tracking.failure == too_few
    assert tracked.anomalies.get("run_not_complete") == (too_few and (1, too_few))
    assert [w.size_bytes for w in tracked.weights] == [256, 32]
    assert net is not None


def test_weights_created_before_the_block_have_no_frames() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with live() as tracking:
        for _ in range(8):
            net(torch.randn(4, 8)).sum().backward()
            optimizer.step()
    assert tracking.tracked is not None
    found = [(w.module_path, w.name, w.frames) for w in tracking.tracked.weights]
    assert found == [("lin", "weight", ()), ("lin", "bias", ())]
    assert {operation.module_path for operation in tracking.tracked.operations} == {"lin", ""}


def test_step_marks_end_iterations() -> None:
    net = Net()
    with live() as tracking, torch.no_grad():
        for _ in range(12):
            net(torch.randn(4, 8))
            step()
    assert tracking.tracked is not None
    assert len(tracking.tracked.iterations) == 3


def test_step_without_tracking_does_nothing() -> None:
    step()


def test_exception_in_the_block_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), live() as tracking:
        train(1 // (train(4) is None))
    assert tracking.tracked is not None
    assert not tracking.tracked.complete
    assert tracking.failure is not None
    assert "ZeroDivisionError" in tracking.failure


def test_block_without_operations_is_an_error() -> None:
    with pytest.raises(CaptureError, match="ran no tensor operation"), live():
        pass


def test_nested_tracking_is_refused() -> None:
    with pytest.raises(UsageError, match="already active"), live(), live():
        pass


def test_modes_that_cross_the_block_stay_balanced() -> None:
    """A `torch.device` mode is entered before tracking and left inside it."""
    tracking = live()
    device = torch.device("cpu")
    device.__enter__()
    tracking.__enter__()
    train(10)
    device.__exit__(None, None, None)
    train(1)
    tracking.__exit__(None, None, None)
    assert torch._C._len_torch_function_stack() == 0
    assert tracking.tracked is not None
    assert names(tracking.tracked) == ["linear", "relu"]
