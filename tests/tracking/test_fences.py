"""An internal failure adds an anomaly and stops neither the program nor the report."""

from typing import Any

import pytest

from tests.tracking.workloads import NET, Workload, names
from unified_prof.tracking import activations, assemble, backward, peak, results
from unified_prof.tracking.activations import SizedWeight, Weights
from unified_prof.tracking.operations import ActivationTracker
from unified_prof.tracking.raw_calls import ModuleNames
from unified_prof.tracking.training_loop import StepWatcher

TRAIN = """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(12):
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        loss = net(torch.ones(4, 8)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("the end", float(net.lin.weight.detach().sum()))
"""

PER_SAMPLE = """
from torch.func import functional_call, grad, vmap
net = Net()
def loss(parameters, x, y):
    return ((functional_call(net, parameters, (x[None],)) - y) ** 2).sum()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(4, 8), torch.randn(4)
for _ in range(12):
    parameters = {name: value.detach() for name, value in net.named_parameters()}
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    for name, parameter in net.named_parameters():
        parameter.grad = gradients[name].mean(0)
    optimizer.step()
"""

WITHOUT_FAILURE: list[Any] = []
"""What the program prints, once the first test has run it."""


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("broken")


def test_per_sample_gradients_are_measured(workload: Workload) -> None:
    tracked = workload.track(NET + PER_SAMPLE)
    assert names(tracked) == ["linear", "relu"]
    assert tracked.operations[0].backward_ms is not None
    assert tracked.anomalies == {}


def test_loss_without_a_value_is_an_anomaly(workload: Workload) -> None:
    tracked = workload.track(
        NET
        + TRAIN.replace(
            "    loss.backward()",
            """
    loss.backward()
    nn.Linear(1, 1, device="meta")(torch.ones(1, 1, device="meta")).sum().backward()""",
        )
    )
    assert "linear" in names(tracked)
    count, detail = tracked.anomalies["loss_not_read"]
    assert count >= 2
    assert detail.startswith("check for infinite losses: ")


@pytest.mark.quick(cases=4)
@pytest.mark.parametrize(
    ("owner", "attribute", "anomaly"),
    [
        (backward, "_keep_loss", "loss_not_read"),
        (backward, "_nodes_below", "backward_not_followed"),
        (backward._HostTimers, "finish", "backward_not_followed"),
        (activations.SavedTensors, "_note", "saved_tensor_not_counted"),
        (activations.SavedTensors, "saved_numbers", "saved_numbers_not_counted"),
        (activations.SavedTensors, "start", "activations_not_measured"),
        (activations.SavedTensors, "_insert", "activations_not_measured"),
        (ActivationTracker, "_on_call", "arguments_not_looked_at"),
        (ActivationTracker, "_in_use", "weights_of_all_modules"),
        (peak, "live_tensor_bytes", "measuring_failed"),
        (Weights, "records", "weights_not_listed"),
        (Weights, "_keep", "weights_not_listed"),
        (SizedWeight, "shown_in", "weights_not_listed"),
        (results, "build_activations", "activations_not_listed"),
        (results, "count_irregularities", "oddities_not_looked_for"),
        (assemble, "gap_site", "gaps_not_placed"),
        (StepWatcher, "_opened", "steps_not_followed"),
        (ModuleNames, "settle", "modules_not_named"),
        (ModuleNames, "name", "operation_not_recorded"),
    ],
)  # fmt: skip
def test_internal_failure_is_an_anomaly(
    workload: Workload,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    owner: Any,
    attribute: str,
    anomaly: str,
) -> None:
    workload.write("main.py", "torch.manual_seed(0)\n" + NET + TRAIN)
    if not WITHOUT_FAILURE:
        workload.tracked()
        WITHOUT_FAILURE.append(capsys.readouterr())
    monkeypatch.setattr(owner, attribute, broken)
    outcome = workload.run()
    assert outcome.exit_code == 0
    assert outcome.tracked is not None
    assert outcome.tracked.iterations
    assert "broken" in outcome.tracked.anomalies[anomaly][1]
    assert [capsys.readouterr()] == WITHOUT_FAILURE
