"""Work that is not needed is noted: known values, repeated backward passes, padding, slow types."""

import json
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.tracking.workloads import Workload
from unified_prof.tracking import results
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


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("self.table(torch.tensor([1, 2]))", True),
        ("self.table(torch.arange(20))", False),  # a third of the rows
        ("(self.table(torch.tensor([1, 2])), x @ self.table.weight.t())", False),
        ("self.sparse(torch.tensor([1, 2]))", False),
    ],
)
def test_tables_with_dense_gradients_are_noted(
    workload: Workload, body: str, is_found: bool
) -> None:
    tables = "self.table, self.sparse = nn.Embedding(60, 8), nn.Embedding(60, 8, sparse=True)"
    source = LOOP.format(body=body, before="pass").replace(
        "self.shared =", f"{tables}; self.shared ="
    )
    workload.write("main.py", f"import numpy as np\n{source}")
    found = dict(workload.tracked("main.py").facts).get("dense_embeddings")
    assert found == ("[[60, 2, 1920]]" if is_found else None)


@pytest.mark.parametrize(
    ("line", "passes"),
    [
        ("torch.from_numpy(grad.numpy() * 2)", ["backward"]),
        ("torch.tensor([[one.item() for one in row] for row in grad])", ["backward"]),
        ("grad * grad.sum().item()", None),
        ("grad.numpy() if False else grad", None),
    ],
)
def test_autograd_functions_that_leave_torch_are_noted(
    workload: Workload, line: str, passes: list[str] | None
) -> None:
    source = f"""
def weighed(grad):
    return {line}
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return weighed(grad)
"""
    source += LOOP.format(body="x = Twice.apply(self.layer(x))", before="pass")
    workload.write("main.py", f"import numpy as np\n{source}")
    found = json.loads(workload.tracked("main.py").facts.get("python_functions", "{}"))
    assert found == ({"Twice": passes} if passes else {})


@pytest.mark.parametrize(
    ("before", "is_found"),
    [
        ("loss = net(x) + teacher(x).mean()", True),
        ("\n    with torch.no_grad(): y = teacher(x)\n    loss = loss + y.mean()", False),
        ("loss = loss + teacher(net.layer(x)).mean()", False),  # its gradients train `net`
        ("other = torch.optim.SGD(teacher.parameters()); loss = loss + teacher(x).mean()", False),
    ],
)
def test_gradients_that_no_optimizer_uses_are_timed(
    workload: Workload, before: str, is_found: bool
) -> None:
    source = LOOP.format(body="pass", before=before)
    source = source.replace("net = Net()", "net, teacher = Net(), nn.Linear(8, 8)")
    workload.write("main.py", f"import numpy as np\n{source}")
    found = workload.tracked("main.py").facts.get("untrained_backward")
    assert (found is not None) == is_found
    if found is not None:
        time_ns, line = json.loads(found)
        assert time_ns > 0
        assert line == "main.py:20"


@pytest.mark.parametrize(("kept", "is_found"), [("y", True), ("y.detach() * 1", False)])
def test_results_that_later_iterations_keep_are_counted(
    workload: Workload, kept: str, is_found: bool
) -> None:
    before = f"y = net.layer(x).exp(); kept.append({kept})"
    source = LOOP.format(body="pass", before=before)
    workload.write("main.py", f"import numpy as np\nkept = []\n{source}")
    found = workload.tracked("main.py").facts.get("kept_activation_bytes")
    assert found == ("128" if is_found else None)


GENERATION = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
    def forward(self, x, mask=None):
        return self.layer(x).tanh()
model = Model()
with torch.no_grad():
    x = mask = torch.randn(2, 16, 64)
    for step in range(40):
        new = model({arguments})[:, -1:]
        x, mask = torch.cat([x, new], 1), torch.cat([mask, new], 1)
        {after}
"""


@pytest.mark.parametrize(
    ("arguments", "after", "grows"),
    [
        ("x", "pass", True),
        ("x, mask=mask", "pass", True),
        ("x[:, -1:], mask", "pass", False),  # with a KV cache
        ("x[:, -16:]", "pass", False),
        ("x", "x = x[:, : 16 + (7 * step) % 13]", False),  # batches of several lengths
    ],
)
def test_sequences_that_grow_are_found(
    workload: Workload, arguments: str, after: str, grows: bool
) -> None:
    workload.write("main.py", GENERATION.format(arguments=arguments, after=after))
    found = json.loads(workload.tracked("main.py").facts.get("growing_sequence", "[]"))
    assert bool(found) == grows
    if found:
        time_ns, length = found
        assert time_ns >= 0
        assert 16 < length < 56


@pytest.mark.parametrize(
    ("lengths", "constant", "found"),
    [
        (range(16, 24), (), [34_000_000, 18]),  # 17 of 18 positions were known
        (range(16, 32, 2), (), [32_000_000, 18]),
        (range(16, 23), (), []),  # too few calls
        ([*range(16, 23), 22, 21], (), [34_000_000, 18]),  # 6 of 8 are one longer
        ([*range(16, 22), 21, 20, 20], (), []),
        (range(24, 16, -1), (), []),
        ([16] * 9, (), []),
        (range(16, 24), (2,), [34_000_000, 18]),
        (range(16, 24), (1,), []),  # an argument with the new position only
    ],
)
def test_time_of_known_positions_is_that_of_the_slope(
    lengths: Iterable[int], constant: tuple[int, ...], found: list[int]
) -> None:
    samples = {0: (16, *constant), 1: (18, *constant), 2: (21, *constant), 3: (9, 9, 9)}
    times: Any = [
        SimpleNamespace(number=number, forward_ms=[7, 2 * sizes[0], np.nan])
        for number, sizes in [*samples.items(), (4, (99,))]
    ]
    grown = results._growing_sequence([(one, *constant) for one in lengths], samples, times)
    assert grown == found


def test_single_samples_of_a_loader_are_noted(workload: Workload) -> None:
    source = """
    from torch.utils.data import DataLoader
    net = nn.Linear(8, 8)
    for x in DataLoader(torch.randn(40, 8), batch_size={}):
        net(x)
    """
    for size in (1, 2):
        workload.write("main.py", source.format(size))
        assert workload.tracked("main.py").facts["largest_batch"] == str(size)


def test_operations_outside_of_the_scope_are_noted(workload: Workload) -> None:
    rows = json.loads(facts(workload, before="torch.sort(loss.detach())")["operations_outside"])
    assert [tuple(row[:3]) for row in rows if row[0] == "sort"] == [("sort", "main.py:20", 1)]
    assert all(row[3] > 0 for row in rows)
    assert not {"linear", "sum"} & {row[0] for row in rows}  # of the module
