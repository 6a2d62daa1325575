"""Activation checkpointing: recomputation is charged to the recomputed operations."""

from statistics import median

import pytest

from tests.tracking.workloads import Workload, names

SLOW_MS = 5
# `slow` takes SLOW_MS in the forward pass and no time in the backward pass.
BLOCK = f"""
import time
from torch.utils.checkpoint import checkpoint
class slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep({SLOW_MS} / 1000)
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        return gradient
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.lin, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.5)
    def block(self, x):
        return self.drop(slow.apply(self.lin(x)))
    def forward(self, x):
        x = self.first(x)
        return CALL
"""

CHECKPOINTED = BLOCK.replace("CALL", "checkpoint(self.block, x, use_reentrant=False)")


def test_recomputation_is_not_part_of_the_backward_of_another_operation(workload: Workload) -> None:
    tracked = workload.model(CHECKPOINTED, reports=("run-time",), iterations=3)
    assert names(tracked) == ["linear", "linear", "slow", "dropout"]
    first, linear, slow, dropout = tracked.operations
    assert slow.recomputed_ms is not None
    # All waiting since the last reading is charged to one interval.
    assert median(slow.recomputed_ms) >= SLOW_MS
    assert dropout.backward_ms is not None
    assert min(dropout.backward_ms) < SLOW_MS
    assert (first.recomputed_ms is None, linear.recomputed_ms is None) == (True, False)
    assert slow.backward_ms is not None
    assert min(slow.backward_ms) < SLOW_MS
    assert median(one.parts_ms["recomputation"] for one in tracked.iterations) >= SLOW_MS
    assert median(one.backward_ms or SLOW_MS for one in tracked.iterations) < SLOW_MS


def test_no_recomputation_without_checkpoints(workload: Workload) -> None:
    tracked = workload.model(BLOCK.replace("CALL", "self.block(x)"), reports=("run-time",))
    assert [record.recomputed_ms for record in tracked.operations] == [None] * 4


@pytest.mark.parametrize("blocks", [1, 2])
def test_nested_checkpoints_are_charged_to_each_call(workload: Workload, blocks: int) -> None:
    call = "checkpoint(lambda y: checkpoint(self.block, y, use_reentrant=False).relu(), x, "
    call += "use_reentrant=False)"
    if blocks == 2:
        call = "checkpoint(self.block, checkpoint(self.block, x, use_reentrant=False), "
        call += "use_reentrant=False)"
    tracked = workload.model(BLOCK.replace("CALL", call), reports=("run-time",))
    slow = [record for record in tracked.operations if record.name == "slow"]
    assert len(slow) == blocks
    for record in slow:
        assert record.recomputed_ms is not None
        # A nested block runs again once for the outer block and once for itself.
        runs = 2 if blocks == 1 else 1
        # All waiting since the last reading is charged to one interval, so one may be too short.
        assert max(record.recomputed_ms) >= SLOW_MS * runs
        assert min(record.recomputed_ms) < SLOW_MS * (runs + 1)


def test_backward_through_the_previous_iteration_has_no_recomputation(workload: Workload) -> None:
    tracked = workload.track(CHECKPOINTED + """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
before = net(torch.randn(4, 8))
for _ in range(12):
    after = net(torch.randn(4, 8))
    before.sum().backward()
    before = after
    optimizer.step()
""", reports=("run-time",))  # fmt: skip
    assert names(tracked) == ["linear", "linear", "slow", "dropout"]
    assert [record.recomputed_ms for record in tracked.operations] == [None] * 4


def test_last_recomputed_operation_is_charged(workload: Workload) -> None:
    """Checkpointing stops with an exception within the last operation whose result is saved."""
    source = CHECKPOINTED.replace("slow.apply(self.lin(x))", "self.lin(x).relu().tanh()")
    tracked = workload.model(source.replace("self.drop(", "("), reports=("run-time",))
    assert names(tracked) == ["linear", "linear", "relu", "tanh"]
    assert all(record.recomputed_ms is not None for record in tracked.operations[1:])


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_no_forward_pass(workload: Workload, reentrant: bool) -> None:
    net = BLOCK.replace("CALL", f"checkpoint(self.block, x, use_reentrant={reentrant})")
    step = "m(torch.ones(2, 8)).sum().backward(o.zero_grad()); o.step()"
    start = "m = Net(); o = torch.optim.SGD(m.parameters(), 0.1)"
    workload.write("main.py", f"{net}\n{start}\nfor _ in range(20): {step}\n")
    for record in workload.tracked(iterations=3).iterations:
        assert (record.forward_ms or 0) + (record.backward_ms or record.total_ms) <= record.total_ms
