"""Operations are shown in the requested scope, or in the next wider one that has any."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tracking.workloads import Workload, names, places
from unified_prof.base.run_spec import TrackedRun

TRAIN = """
inputs = torch.ones(4, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(12):
    model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

LIBRARY = """
import torch.nn as nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return self.lin(x).relu()
"""


def train(workload: Workload, model: str, **options: Any) -> TrackedRun:
    workload.write("main.py", model + TRAIN)
    return workload.tracked(**options)


def install_library(folder: Path, package: str) -> str:
    """Install a package with a model and return the lines that import it."""
    place = folder / "env" / "site-packages"
    path = place.joinpath(*package.split("."))
    path.mkdir(parents=True)
    for parent in [path, *path.parents][: package.count(".") + 1]:
        (parent / "__init__.py").touch()
    (path / "net.py").write_text(LIBRARY, encoding="utf-8")
    return f"import sys\nsys.path.insert(0, {str(place)!r})\nfrom {package}.net import Block\n"


@pytest.fixture(autouse=True)
def _unload_libraries() -> Iterator[None]:
    yield
    for name in list(sys.modules):
        if name.partition(".")[0] in ("timm", "transformers", "vendor"):
            del sys.modules[name]


def line_with(workload: Workload, text: str) -> str:
    """Return file and line of a text in the script."""
    lines = (workload.folder / "main.py").read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"main.py:{number}"


def widened(tracked: TrackedRun) -> str | None:
    found = tracked.anomalies.get("scope_widened")
    return None if found is None else found[1]


def test_sequential_is_shown_by_the_lines_of_the_script(workload: Workload) -> None:
    tracked = train(workload, "model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())\n")
    assert names(tracked) == ["linear", "relu", "sum"]
    assert [record.module_path for record in tracked.operations] == ["0", "1", None]
    assert places(tracked.operations[0]) == [line_with(workload, "model(inputs)")]
    assert tracked.facts["scope"] == "project"
    assert widened(tracked) is None
    assert [w.module_path for w in tracked.weights] == ["0", "0"]


def test_requested_scope_is_kept_if_it_has_operations(workload: Workload) -> None:
    tracked = train(
        workload,
        "class Net(nn.Sequential):\n    def forward(self, x):\n        return super().forward(x)\n"
        "model = Net(nn.Linear(8, 8))\n",
    )
    assert (names(tracked), widened(tracked)) == (["linear"], None)
    assert tracked.facts["scope"] == "module"


@pytest.mark.parametrize("scope", ["module", "project"])
def test_scope_is_widened_to_all_without_project_code(workload: Workload, scope: str) -> None:
    elsewhere = workload.folder / "elsewhere"
    elsewhere.mkdir()
    tracked = train(
        workload, "model = nn.Sequential(nn.Linear(8, 8))\n", project_root=elsewhere, scope=scope
    )
    assert [(record.name, record.frames) for record in tracked.operations] == [
        ("linear", ()),
        ("sum", ()),
    ]
    assert tracked.facts["scope"] == "everything"
    assert f"no operation was called from a file in {elsewhere}" in (widened(tracked) or "")


@pytest.mark.parametrize(
    "methods",
    [
        "    def forward(s, x):\n        return s.lin(x)\n",
        "    def forward(*args):\n        return args[0].lin(args[1])\n",
        "    def apply_it(this, x):\n        return this.lin(x)\n    forward = apply_it\n",
        "    @torch.no_grad()\n    def no(me, x):\n        return me.lin(x)\n"
        "    def forward(me, x):\n        return me.no(x) + me.lin(x)\n",
    ],
)
def test_method_is_recognized_by_its_object_only(workload: Workload, methods: str) -> None:
    tracked = train(
        workload,
        "class Net(nn.Module):\n    def __init__(this):\n        super().__init__()\n"
        f"        this.lin = nn.Linear(8, 8)\n{methods}model = Net()\n",
    )
    assert "linear" in names(tracked)
    assert widened(tracked) is None
    assert tracked.facts["scope"] == "module"


def test_function_bound_to_a_module_is_a_method(workload: Workload) -> None:
    tracked = train(
        workload,
        "import types\ndef forward(net, x):\n    return net.lin(x)\n"
        "class Net(nn.Module):\n    pass\nmodel = Net()\nmodel.lin = nn.Linear(8, 8)\n"
        "model.forward = types.MethodType(forward, model)\n",
    )
    assert (names(tracked), widened(tracked)) == (["linear"], None)


def test_function_with_a_module_argument_is_no_method(workload: Workload) -> None:
    tracked = workload.track("""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
    def forward(self, x):
        return self.halved(self.lin(x))
    @staticmethod
    def halved(x):
        return x / 2

def train(model, x):
    model(x).sum().backward()

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(12):
    train(net, torch.ones(4, 8))
    optimizer.step()
""")  # fmt: skip
    assert names(tracked) == ["linear", "truediv"]
    assert [len(record.frames) for record in tracked.operations] == [1, 1]


@pytest.mark.parametrize("package", ["timm.models", "timm.models.deep", "transformers.models.x"])
def test_models_of_known_libraries_keep_their_lines(workload: Workload, package: str) -> None:
    tracked = train(workload, install_library(workload.folder, package) + "model = Block()\n")
    path = package.replace(".", "/") + "/net.py"
    assert names(tracked) == ["linear", "relu"]
    # Lines of the library, then those of the project that lead there.
    assert places(tracked.operations[0]) == [f"{path}:10", line_with(workload, "model(inputs)")]
    assert [f.file_path for f in tracked.weights[0].frames] == [path, "main.py"]
    assert widened(tracked) is None


def test_other_libraries_keep_their_lines_if_included(workload: Workload) -> None:
    model = install_library(workload.folder, "vendor.nets") + "model = Block()\n"
    assert places(train(workload, model).operations[0]) == [line_with(workload, "model(inputs)")]
    tracked = train(workload, model, include=("vendor",))
    assert places(tracked.operations[0]) == [
        "vendor/nets/net.py:10",
        line_with(workload, "model(inputs)"),
    ]
    tracked = train(workload, model, include=("vend", "vendor.net"))
    assert places(tracked.operations[0]) == [line_with(workload, "model(inputs)")]


def test_only_modules_are_shown_below_a_module_of_the_project(workload: Workload) -> None:
    tracked = train(
        workload,
        install_library(workload.folder, "timm.models") + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Block()
    def forward(self, x):
        return self.body(x) * 2
def call(x):
    return net(x)
net = Net()
model = nn.Sequential(net)
""",
    )  # fmt: skip
    line = line_with(workload, "self.body(x) * 2")
    assert [(record.name, places(record)) for record in tracked.operations] == [
        ("linear", ["timm/models/net.py:10", line]),
        ("relu", ["timm/models/net.py:10", line]),
        ("mul", [line_with(workload, "self.body(x) * 2")]),
    ]


@pytest.mark.slow
def test_compiled_model_is_an_operation_of_the_calling_line(workload: Workload) -> None:
    tracked = train(
        workload,
        "model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), backend='aot_eager')\n",
    )
    assert names(tracked) == ["torch.compile(Sequential)"]
    assert places(tracked.operations[0]) == [line_with(workload, "model(inputs)")]
    assert [w.size_bytes for w in tracked.weights] == [256, 32]
