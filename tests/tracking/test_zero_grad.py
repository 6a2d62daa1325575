"""Calls within zero_grad are not tracked, which would be slow; results are the same."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.tracking.workloads import Workload, names
from unified_prof.tracking.torch_names import version_of

TRAINING = """
import sys

class Noting(list):
    lengths = []
    def __iter__(self):
        self.lengths.append(torch._C._len_torch_function_stack())
        return super().__iter__()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
    def forward(self, x):
        return self.lin(x).sum()
    def parameters(self, recurse=True):
        return Noting(super().parameters(recurse))

net = Net()
optimizer = torch.optim.SGD(list(net.parameters()), lr=0.01)
optimizer.param_groups[0]["params"] = Noting(optimizer.param_groups[0]["params"])
zeroed = eval(sys.argv[1])
for _ in range(8):
    net(torch.ones(4, 8)).backward()
    Noting.lengths.clear()
    zeroed()
    if any(Noting.lengths) and sys.argv[2] == "unseen":
        sys.exit(f"the modes were {Noting.lengths}")
    assert all((p.grad is None) is (sys.argv[2] == "unseen") for p in net.parameters())
    optimizer.step()
"""


@pytest.mark.parametrize("owner", ["net", "optimizer"])
def test_gradients_are_set_to_none_without_function_modes(workload: Workload, owner: str) -> None:
    workload.write("main.py", TRAINING)
    tracked = workload.tracked("main.py", f"{owner}.zero_grad", "unseen")
    assert names(tracked) == ["linear", "sum"]


@pytest.mark.parametrize(
    "call", ["optimizer.zero_grad(False)", "optimizer.zero_grad(set_to_none=False)"]
)
def test_gradients_filled_with_zeros_are_operations(workload: Workload, call: str) -> None:
    workload.write("main.py", TRAINING)
    tracked = workload.tracked("main.py", f"lambda: {call}", "seen", scope="project")
    assert "zero_" in names(tracked)


def test_exception_in_zero_grad_is_raised_and_tracking_continues(workload: Workload) -> None:
    workload.write(
        "main.py",
        TRAINING.replace(
            "    zeroed()\n",
            "    try:\n        zeroed(wrong=1)\n    except TypeError:\n        zeroed()\n",
        ),
    )
    tracked = workload.tracked("main.py", "optimizer.zero_grad", "unseen")
    assert names(tracked) == ["linear", "sum"]


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_function_can_set_gradients_to_none(workload: Workload) -> None:
    if version_of(torch) < (2, 10):
        pytest.skip("the compiler of torch 2.9 and older refuses this list, without uprof too")
    workload.write(
        "main.py",
        TRAINING
        + """
@torch.compile(backend="eager", fullgraph=True)
def forget(x):
    net.zero_grad()
    return x * 2

for _ in range(8):
    net(torch.ones(4, 8)).backward()
    forget(torch.ones(2))
    optimizer.step()
""",
    )
    outcome: Any = workload.run("main.py", "optimizer.zero_grad", "unseen", iterations=4)
    assert outcome.exit_code == 0, outcome
