"""Compiled regions are one operation, and the compiler never meets the tracker."""

from __future__ import annotations

import pytest

from tests.tracking.workloads import PROVIDERS, Workload, in_backward, names

NET = """
import torch._dynamo

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.first(x).relu())
"""

COUNTED = """
from torch._dynamo.testing import CompileCounterWithBackend
counter = CompileCounterWithBackend("aot_eager")
"""


@pytest.mark.slow
def test_a_compiled_module_is_one_operation(workload: Workload) -> None:
    workload.write(
        "main.py",
        f"""{NET}{COUNTED}
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.compile(Net(), backend=counter)
    def forward(self, x):
        return self.inner(x).sum()
model = Outer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.randn(4, 8)).backward()
    optimizer.step()
    optimizer.zero_grad()
print("compiled", counter.frame_count)
assert counter.frame_count <= 2, counter.frame_count
""",
    )
    tracked = workload.tracked(iterations=3)
    assert names(tracked) == ["torch.compile(Net)", "sum"]
    assert in_backward(tracked) == ["torch.compile(Net)", "sum"]
    assert tracked.complete
    assert tracked.anomalies == {}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["decorator", "call", "in place"])
def test_compiled_functions_are_one_operation(workload: Workload, how: str) -> None:
    make = {
        "decorator": "@torch.compile(backend=counter)\ndef f(x):\n    return x.relu() * 2\n",
        "call": "def f(x):\n    return x.relu() * 2\nf = torch.compile(f, backend=counter)\n",
        "in place": "f = nn.Sequential(nn.ReLU(), nn.Tanh())\nf.compile(backend=counter)\n",
    }[how]
    tracked = workload.model(
        f"""{COUNTED}
{make}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return f(self.lin(x))
"""
    )
    label = "torch.compile(Sequential)" if how == "in place" else "torch.compile(f)"
    assert names(tracked) == ["linear", label]
    assert in_backward(tracked) == ["linear", label]


@pytest.mark.slow
def test_functions_compiled_before_tracking_run_as_they_are_written(workload: Workload) -> None:
    import torch

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.relu() * 2

    compiled = torch.compile(f, backend="aot_eager")
    compiled(torch.ones(2, requires_grad=True))
    workload.write(
        "main.py",
        f"""
import sys
f = sys.modules["{__name__}"].COMPILED_EARLIER
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
    def forward(self, x):
        return f(self.lin(x))
{PROVIDERS}""",
    )
    globals()["COMPILED_EARLIER"] = compiled
    tracked = workload.tracked()
    assert names(tracked) == ["linear", "relu", "mul"]
    assert "compiled_functions_ran_eagerly" in tracked.anomalies
