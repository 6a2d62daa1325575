"""Tracking keeps no object of the program alive; only weights of running modules are listed."""

import pytest

from tests.tracking.test_memory import weights
from tests.tracking.workloads import Workload
from unified_prof.base.run_spec import TrackedRun
from unified_prof.tracking.raw_calls import ModuleNames

NET = """
import copy, gc, weakref

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 1, bias=False)
    def forward(self, x):
        return self.lin(x)
"""

TRAIN = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for number in range(12):
    loss = {loss}
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def train(workload: Workload, before: str, loss: str, after: str = "") -> TrackedRun:
    workload.write("main.py", NET + before + TRAIN.format(loss=loss) + after)
    return workload.tracked()


def paths(tracked: TrackedRun) -> list[str]:
    return [f"{w.module_class}:{w.module_path}.{w.name}" for w in tracked.weights]


def test_deleted_teacher_model_is_freed(workload: Workload) -> None:
    tracked = train(
        workload,
        """
class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 8))
    def forward(self, x):
        return self.body(x)

teacher = Teacher()
target = teacher(torch.ones(4, 8)).mean().detach()
gone = [weakref.ref(item) for item in (teacher, *teacher.modules(), *teacher.parameters())]
del teacher
gc.collect()
assert [item() for item in gone if item() is not None] == []
net = Net()
""",
        "(net(torch.ones(4, 8)) - target).pow(2).sum()",
    )
    assert weights(tracked) == [("lin", "weight", 32, 32)]


def test_object_freed_in_its_iteration_keeps_its_name(workload: Workload) -> None:
    tracked = workload.track(NET + """
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Net()
    def forward(self, x):
        return nn.Softplus()(self.inner(x)).sum()

def once():
    outer = Outer()
    outer(torch.ones(4, 8)).backward()
    return weakref.ref(outer)

kept = once()
gc.collect()
assert kept() is None
""", scope="module")  # fmt: skip
    assert [(o.name, o.module_class, o.module_path) for o in tracked.operations] == [
        ("linear", "Linear", "inner.lin"),
        ("softplus", "Softplus", ""),
        ("sum", "Outer", ""),
    ]


def test_model_called_by_its_part_is_named_by_its_root(workload: Workload) -> None:
    tracked = train(
        workload,
        "class Outer(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.inner = Net()\n"
        "net = Outer()\n",
        "net.inner(torch.ones(4, 8)).sum()",
    )
    assert [(o.name, o.module_path) for o in tracked.operations] == [("linear", "inner.lin")]
    assert paths(tracked) == ["Linear:inner.lin.weight"]


def test_set_up_is_dropped_when_later_iterations_are_complete(workload: Workload) -> None:
    train(
        workload,
        "net = Net()\nfor _ in range(50): net(torch.ones(4, 8))\n",
        "net(torch.ones(4, 8)).sum()",
        """
    if number == 8:
        gc.collect()
        calls = [item for item in gc.get_objects() if type(item).__name__ == "Call"]
        assert len(calls) < 50, len(calls)
""",
    )


@pytest.mark.quick(cases=3)
@pytest.mark.parametrize(
    ("before", "loss", "expected"),
    [
        # Another model that is kept but unused is no part of the iteration.
        ("net = Net()\nother = Net()\n", "net({x}).sum()", ["Linear:lin.weight"]),
        ("net = Net()\nema = copy.deepcopy(net)\n", "net({x}).sum()", ["Linear:lin.weight"]),
        # An average that every iteration updates is part of it.
        (
            "net = Net()\nema = torch.optim.swa_utils.AveragedModel(net)\n"
            "def averaged(loss):\n    ema.update_parameters(net)\n    return loss\n",
            "averaged(net({x}).sum())",
            ["Linear:lin.weight", "Linear:module.lin.weight"],
        ),
        # An unused part of the model belongs to the model.
        (
            "net = Net()\nnet.unused = nn.Linear(2, 2, bias=False)\n",
            "net({x}).sum()",
            ["Linear:lin.weight", "Linear:unused.weight"],
        ),
        # Parameters of a module that is not called itself.
        (
            "net = Net()\nholder = nn.Linear(1, 8, bias=False)\n",
            "(net({x}) + F.linear({x}, holder.weight.T)).sum()",
            ["Linear:lin.weight", "Linear:.weight"],
        ),
        (
            "net = Net()\nmore = nn.ParameterList([torch.ones(8, 1), torch.ones(8, 2)])\n",
            "(net({x}) + {x} @ more[0]).sum()",
            ["Linear:lin.weight", "ParameterList:.0"],
        ),
        (
            "net = Net()\nmore = [nn.Bilinear(2, 2, 2), nn.Linear(8, 1, bias=False)]\n",
            "torch.stack([net({x}).sum(), torch.cat([more[1].weight]).sum()]).sum()",
            ["Linear:lin.weight", "Linear:.weight"],
        ),
        # Tied between two models: listed once, under the first name.
        (
            "net = Net()\nother = Net()\nother.lin.weight = net.lin.weight\n",
            "other({x}).sum()",
            ["Linear:lin.weight"],
        ),
        # Called with replaced parameters.
        (
            "net = Net()\nnew = nn.Parameter(torch.zeros(1, 8))\n",
            "torch.func.functional_call(net, {{'lin.weight': new}}, ({x},)).sum()",
            ["Linear:lin.weight"],
        ),
    ],
)
def test_weights_are_those_that_the_iteration_used(
    workload: Workload, before: str, loss: str, expected: list[str]
) -> None:
    assert paths(train(workload, before, loss.format(x="torch.ones(4, 8)"))) == expected


def test_name_is_not_reused_for_an_object_with_the_same_id() -> None:
    import torch

    names = ModuleNames()
    first = torch.nn.Linear(1, 1)
    key = id(first)
    names.add_root(torch.nn.Sequential(first))
    named = names.known[key]
    del first
    second = torch.nn.ReLU()
    names.known[id(second)] = named  # As if the address had been reused.
    assert names.find(second) is None
    assert names.name(second, ()).class_name == "ReLU"
