"""Tensors saved for the backward pass, with and without access to torch's stack of hooks."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.tracking.workloads import Workload, names
from unified_prof.tracking.function_mode import is_placeholder
from unified_prof.tracking.torch_internals import (
    SavedTensorHooks,
    TorchInternals,
    UnknownHooksError,
)
from unified_prof.tracking.torch_names import PLACES, Anomalies, Patches

NET = """
from pathlib import Path
import torch

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))
    def forward(self, x):
        return (self.w + x).tanh()

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.ones(4, 8)
"""
LOOP = """
for _ in range(12):
    net(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TANH_BYTES = 4 * 8 * 4
HALVED = "torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float())"


@pytest.fixture
def older_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate torch before 2.8, which does not expose the stack."""
    place = PLACES["saved_hooks_top"]
    monkeypatch.setitem(
        PLACES, "saved_hooks_top", replace(place, path=f"{place.path}_later", since=(99, 0))
    )


@pytest.fixture
def hooks(older_torch: None) -> Iterator[SavedTensorHooks]:
    """Yield this thread's stack, watched since it was empty."""
    internals, patches = TorchInternals(Anomalies()), Patches()
    internals.watch_saved_tensor_hooks(patches)
    found = internals.saved_tensor_hooks()
    assert found is not None
    yield found
    patches.restore()


def activations(workload: Workload, script: str) -> dict[str, int]:
    tracked = workload.track(script, iterations=2)
    assert tracked.anomalies == {}
    return {
        record.operation_name: record.size_bytes
        for record in tracked.activations
        if record.size_bytes
    }


@pytest.mark.usefixtures("older_torch")
def test_older_torch_reports_activations(workload: Workload) -> None:
    assert activations(workload, NET + LOOP) == {"tanh": TANH_BYTES}


@pytest.mark.usefixtures("older_torch")
def test_hooks_of_the_program_around_all_iterations_are_counted(workload: Workload) -> None:
    around = f"with {HALVED}:\n" + "\n".join(f"    {line}" for line in LOOP.splitlines())
    assert activations(workload, NET + around) == {"tanh": TANH_BYTES // 2}


@pytest.mark.usefixtures("older_torch")
def test_hooks_of_the_program_within_an_iteration_are_counted(workload: Workload) -> None:
    inside = LOOP.replace("    net(x)", f"    with {HALVED}: y = net(x)\n    y")
    assert activations(workload, NET + inside) == {"tanh": TANH_BYTES // 2}


@pytest.mark.usefixtures("older_torch")
def test_transforms_that_disable_hooks_are_supported(workload: Workload) -> None:
    inside = LOOP.replace(
        "    net(x)", "    torch.func.grad(lambda t: t.sin().sum())(x)\n    net(x)"
    )
    assert activations(workload, NET + inside)["tanh"] == TANH_BYTES


@pytest.mark.parametrize("is_older", [True, False])
def test_backward_runs_without_hooks_of_the_tracker(
    is_older: bool, workload: Workload, request: pytest.FixtureRequest
) -> None:
    if is_older:
        request.getfixturevalue("older_torch")
    script = NET.replace(
        "return (self.w + x).tanh()",
        "y = (self.w + x).tanh()\n        y.register_hook(none_allowed)\n        return y",
    ).replace(
        "class Net",
        """
def none_allowed(_gradient):
    torch._C._autograd._saved_tensors_hooks_disable("there are some")
    torch._C._autograd._saved_tensors_hooks_enable()

class Net""",
    )
    assert activations(workload, script + LOOP) == {"tanh": TANH_BYTES}


def test_stack_is_popped_and_pushed_in_order(hooks: SavedTensorHooks) -> None:
    from torch.autograd.graph import saved_tensors_hooks

    assert hooks.pop_all() == []
    with saved_tensors_hooks(abs, str), saved_tensors_hooks(len, repr):
        found = hooks.pop_all()
        assert found == [(len, repr), (abs, str)]
        assert hooks.top() is None
        for pair in reversed(found):
            hooks.push(*pair)
        assert hooks.top() == (len, repr)
    assert hooks.top() is None


def test_other_threads_have_separate_stacks(hooks: SavedTensorHooks) -> None:
    from torch.autograd.graph import saved_tensors_hooks

    seen = []
    with saved_tensors_hooks(abs, str):
        thread = threading.Thread(target=lambda: seen.append(hooks.top()))
        thread.start()
        thread.join()
    assert seen == [None]


@pytest.mark.usefixtures("older_torch")
def test_hooks_from_before_tracking_are_kept() -> None:
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    packed = []
    internals, patches = TorchInternals(Anomalies()), Patches()
    with saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        internals.watch_saved_tensor_hooks(patches)
        hooks = internals.saved_tensor_hooks()
        assert hooks is not None
        with saved_tensors_hooks(abs, str):
            with pytest.raises(UnknownHooksError):
                hooks.pop_all()
            assert hooks.top() == (abs, str)
        torch.ones(1, requires_grad=True).exp()
    assert len(packed) == 1
    assert hooks.top() is None
    patches.restore()


@pytest.mark.usefixtures("older_torch")
def test_tracking_started_inside_hooks_measures_no_activations(workload: Workload) -> None:
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    workload.write("main.py", NET + LOOP)
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        tracked = workload.tracked(iterations=2)
    assert names(tracked) == ["add", "tanh"]
    assert "saved-tensor hooks were in place" in tracked.anomalies["activations_not_measured"][1]
    assert torch.ones(1, requires_grad=True).exp().grad_fn is not None


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("empty", "torch/utils/checkpoint.py", True),
        ("CheckpointFunction", "torch/utils/checkpoint.py", False),
        ("empty", "fairtorch/utils/checkpoint.py", False),
    ],
)
def test_placeholders_of_checkpoints_are_no_calls(name: str, path: str, expected: bool) -> None:
    code = compile("pass", str(Path("/lib") / path), "exec")
    assert is_placeholder(name, code) is expected
