"""Work that is not needed is noted: known values, repeated backward passes, padding, slow types."""

import json
from typing import Any

import pytest
import torch

from tests.tracking.workloads import Workload
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Anomalies
from unified_prof.tracking.wasted_work import WastedWork

LOOP = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.edges, self.array = nn.Linear(8, 8), torch.arange(9), np.ones(9)
        self.shared = torch.from_numpy(self.array)
    def forward(self, x):
        {body}
        return self.layer(x).sum()

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(16):
    x = torch.randn(4, 8)
    loss = net(x)
    {before}
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def facts(workload: Workload, body: str = "", before: str = "") -> dict[str, str]:
    """Return the facts of a training loop with a line in the model and one before the backward."""
    source = LOOP.format(body=body or "pass", before=before or "pass")
    workload.write("main.py", f"import numpy as np\n{source}")
    return dict(workload.tracked("main.py").facts)


def repeated(found: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the counts of repeated calls by operation."""
    rows = json.loads(found.get("repeated_work", "[]"))
    return {row["name"]: {k: row[k] for k in ("earlier", "same") if k in row} for row in rows}


def test_values_of_an_earlier_iteration_are_known(workload: Workload) -> None:
    found = repeated(facts(workload, "torch.unique(torch.cat([self.edges, torch.arange(3)])) * 2"))
    assert found == {name: {"earlier": 1} for name in ("cat", "unique", "mul")}


def test_second_forward_pass_on_the_same_batch_repeats_its_operations(workload: Workload) -> None:
    found = facts(workload, before="\n    with torch.no_grad(): net(x)")
    assert repeated(found) == {name: {"same": 1} for name in ("linear", "sum")}


@pytest.mark.parametrize(
    "body",
    [
        "self.edges * torch.rand(9)",
        "F.dropout(self.edges.float(), 0.5)",
        "self.edges.add_(1)",
        "self.array[0] += 1; self.shared + 1",
        "self.layer.weight * 2",
        "torch.zeros(4)",
    ],
)
def test_values_that_change_are_not_known(workload: Workload, body: str) -> None:
    assert not repeated(facts(workload, body)).keys() & {"mul", "add", "add_", "dropout", "zeros"}


def test_subclasses_whose_content_only_their_own_code_knows_are_unknown() -> None:
    class Own(torch.Tensor):  # type: ignore[misc]
        """A tensor whose operations are functions of the program."""

    wasted = WastedWork(TorchInternals(Anomalies()))
    assert wasted.key(torch.neg, (torch.ones(2),), {}) is not None
    assert wasted.key(torch.neg, (torch.ones(2).as_subclass(Own),), {}) is None


@pytest.mark.parametrize(
    ("before", "is_repeated"),
    [
        ("loss.backward(retain_graph=True)", True),
        ("net(x).backward()", False),  # a graph of its own
        # The gradient of a gradient needs the graph of the first pass.
        ("torch.autograd.grad(loss, net.parameters(), create_graph=True)", False),
    ],
)
def test_repeated_passes_are_timed(workload: Workload, before: str, is_repeated: bool) -> None:
    assert ("repeated_backward_ns" in facts(workload, before=before)) == is_repeated


def test_columns_of_padding_are_counted(workload: Workload) -> None:
    body = "F.embedding(torch.tensor([[3, 4, 0, 0], [5, 0, 0, 0]]), self.layer.weight, {})"
    assert facts(workload, body.format(0))["padding"] == "[2, 4]"
    assert "padding" not in facts(workload, body.format(None))


@pytest.mark.parametrize("is_native", [True, False])
def test_autocast_to_a_type_in_which_the_processor_does_not_compute(
    workload: Workload, monkeypatch: pytest.MonkeyPatch, is_native: bool
) -> None:
    monkeypatch.setattr(
        torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: is_native, raising=False
    )
    body = "with torch.autocast('cpu', dtype=torch.float16): self.layer(x)"
    assert facts(workload, f"\n        {body}").get("slow_autocast") == (
        None if is_native else "float16"
    )


def test_operations_outside_of_the_scope_are_noted(workload: Workload) -> None:
    rows = json.loads(facts(workload, before="torch.sort(loss.detach())")["operations_outside"])
    assert [tuple(row[:3]) for row in rows if row[0] == "sort"] == [("sort", "main.py:20", 1)]
    assert all(row[3] > 0 for row in rows)
    assert not {"linear", "sum"} & {row[0] for row in rows}  # of the module
