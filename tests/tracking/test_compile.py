"""Compiled regions are one operation, and the compiler never sees the tracker."""

from typing import Any

import pytest

from tests.tracking.workloads import PROVIDERS, Workload, in_backward, names
from unified_prof.tracking import torch_names
from unified_prof.tracking.timeline import TimelineInstrument

NET = """
import torch._dynamo

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.first(x).relu())
"""


def test_modules_are_excluded_with_one_update_of_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    rules: dict[str, Any] = {"skipped": [], "updates": []}
    exec(
        "def _recompile_re(): updates.append(len(skipped))\n"
        "def add(name): skipped.append(name); _recompile_re()",
        rules,
    )
    update = rules["_recompile_re"]
    monkeypatch.setattr(torch_names, "_told", set())
    torch_names.exclude_from_compilation(rules["add"])
    assert rules["updates"] == [len(rules["skipped"])]
    assert rules["_recompile_re"] is update
    assert "unified_prof.tracking.operations" in rules["skipped"]
    assert "unified_prof.tracking.interception" not in rules["skipped"]


COUNTED = """
from torch._dynamo.testing import CompileCounterWithBackend
counter = CompileCounterWithBackend("aot_eager")
"""


@pytest.mark.slow
def test_compiled_module_is_one_operation(workload: Workload) -> None:
    tracked = workload.track(
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
        iterations=3,
    )
    assert names(tracked) == ["torch.compile(Net)", "sum"]
    assert in_backward(tracked) == ["torch.compile(Net)", "sum"]
    assert tracked.complete
    assert tracked.anomalies == {}


FULL_GRAPH = """
import torch._dynamo
from torch._dynamo.utils import counters
torch._dynamo.reset()
counters.clear()
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
model = torch.compile(net, backend="eager", fullgraph=True)
optimizer = torch.optim.Adam(net.parameters(), 0.1)

@torch.compile(backend="eager", fullgraph=True)
def loss(x):
    return (net(x) * 2).sum()

@torch.compile(backend="eager")
def step():
    optimizer.step()
"""
GRAPHS = "print(counters['stats']['unique_graphs'], len(counters['graph_break']))\n"


@pytest.mark.slow
@pytest.mark.parametrize("reports", [("run-time", "memory"), ()])
def test_compiler_creates_the_same_graphs_with_and_without_tracking(
    workload: Workload, capsys: pytest.CaptureFixture[str], reports: tuple[str, ...]
) -> None:
    """Dynamo would otherwise compile the tracker's `Module.__call__` and optimizer hooks."""
    steps = """
for _ in range(12):
    model(torch.randn(4, 8)).sum().backward()
    loss(torch.randn(4, 8)).backward()
    step()
    optimizer.zero_grad()
"""
    workload.write("main.py", FULL_GRAPH + steps + GRAPHS)
    plain = "import torch\nfrom torch import nn\n" + (workload.folder / "main.py").read_text()
    exec(compile(plain, "plain.py", "exec"), {})
    without = capsys.readouterr().out.split()
    timelines = () if reports else (TimelineInstrument(workload.folder / "t.json", "cpu"),)
    outcome = workload.run(reports=reports, iterations=3, instruments=timelines)
    assert (outcome.exit_code, outcome.failure) == (0, None)
    graphs, breaks = capsys.readouterr().out.split()
    assert graphs == without[0] == "3"
    assert int(breaks) <= int(without[1])


@pytest.mark.slow
def test_compiled_model_has_steps(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    calls = "for _ in range(12):\n    with torch.no_grad():\n        model(torch.randn(4, 8))\n"
    program = FULL_GRAPH.replace("optimizer = torch.optim.Adam(net.parameters(), 0.1)\n", "")
    tracked = workload.track(program + calls + GRAPHS, iterations=3, reports=("run-time",))
    assert capsys.readouterr().out.split() == ["1", "0"]
    assert names(tracked) == ["torch.compile(Sequential)"]
    assert len(tracked.iterations) == 3


@pytest.mark.slow
def test_compiled_module_runs_under_a_timeline(workload: Workload) -> None:
    """The timeline of the first iteration is called for each operation."""
    workload.write(
        "main.py",
        f"""{NET}{COUNTED}
model = torch.compile(Net(), backend=counter)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )
    timeline = TimelineInstrument(workload.folder / "trace.json", "cpu")
    outcome = workload.run(reports=(), iterations=3, instruments=[timeline])
    assert (outcome.exit_code, outcome.failure) == (0, None)
    assert timeline.written


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
def test_functions_compiled_before_tracking_run_eagerly(workload: Workload) -> None:
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
