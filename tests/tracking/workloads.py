"""Small workloads that are tracked in this process."""

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from unified_prof.base.run_spec import Capture, OperationRecord, RunSpec, TrackedRun
from unified_prof.tracking.workload import run_workload

PROVIDERS = """
def uprof_model_provider():
    torch.manual_seed(0)
    return Net()

def uprof_input_provider(batch_size=4):
    return (torch.randn(batch_size, 8),)

def uprof_iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def iteration(*inputs):
        optimizer.zero_grad()
        model(*inputs).sum().backward()
        optimizer.step()
    return iteration
"""

HEADER = """
import torch
import torch.nn as nn
import torch.nn.functional as F
"""


NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
    def forward(self, x):
        return self.lin(x).relu()
"""

LOOP = """
import sys
def main(steps):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
if __name__ == "__main__":
    main(20)
    print("the end")
"""


class Workload:
    """A directory with scripts, run from inside it as a user would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, source: str) -> Path:
        """Write a file of the project, with imports of torch before it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEADER.lstrip() + textwrap.dedent(source), encoding="utf-8")
        return path

    def run(self, target: str = "main.py", *arguments: str, **options: Any) -> Capture:
        """Track a script written before."""
        device, instruments = options.pop("device", "cpu"), options.pop("instruments", ())
        measured = {"reports": ("run-time", "memory"), "warmup": 1, "iterations": 2, **options}
        spec = make_spec(self.folder, target=target, arguments=arguments, **measured)
        with fresh_imports():
            return run_workload(device, spec, instruments)

    def tracked(self, target: str = "main.py", *arguments: str, **options: Any) -> TrackedRun:
        """Track a script that must succeed and return the measurement."""
        outcome = self.run(target, *arguments, **options)
        assert outcome.exit_code == 0, outcome
        assert outcome.tracked is not None, outcome
        return outcome.tracked

    def track(self, source: str, **options: Any) -> TrackedRun:
        """Write and track a script that must succeed."""
        self.write("main.py", source)
        return self.tracked(**options)

    def model(self, source: str, *, providers: str = PROVIDERS, **options: Any) -> TrackedRun:
        """Track a script with providers for the module `Net` of `source`."""
        return self.track(textwrap.dedent(source) + providers, **options)


FORKS_TRAIN = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="with a GPU, a forked child cannot run a backward pass after its parent has",
)


def make_spec(folder: Path, **changes: Any) -> RunSpec:
    """Return a specification of one iteration in a project, with changes."""
    defaults = {"target": "main.py", "reports": ("run-time",), "warmup": 0, "iterations": 1}
    return RunSpec(**{**defaults, "output_dir": folder, "project_root": folder, **changes})


@contextmanager
def fresh_imports() -> Iterator[None]:
    """Unload modules that the block imports, because every workload has its own `model`."""
    before = set(sys.modules)
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if not name.startswith(("torch", "numpy", "unified_prof", "sympy", "mpmath")):
                module = sys.modules[name]
                if "site-packages" not in str(getattr(module, "__file__", "site-packages")):
                    del sys.modules[name]


def names(tracked: TrackedRun) -> list[str]:
    """Return the names of the operations, in order."""
    return [operation.name for operation in tracked.operations]


def in_backward(tracked: TrackedRun) -> list[str]:
    """Return the names of the operations that took part in the backward pass."""
    return [operation.name for operation in tracked.operations if operation.backward_ms is not None]


def places(operation: OperationRecord) -> list[str]:
    """Return the frames of an operation as file:line, innermost first."""
    return [f"{frame.file_path}:{frame.line_number}" for frame in operation.frames]


def saved(tracked: TrackedRun) -> dict[str, int]:
    """Return the bytes of activations by operation name, without zeros."""
    found: dict[str, int] = {}
    for activation in tracked.activations:
        if activation.size_bytes:
            found[activation.operation_name] = (
                found.get(activation.operation_name, 0) + activation.size_bytes
            )
    return found
