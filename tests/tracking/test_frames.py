"""Files of the project, and the frames of an operation."""

import os
from pathlib import Path

import pytest

from tests.tracking.workloads import PROVIDERS, Workload, names, places
from unified_prof.tracking.code_entries import Project

MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return self.lin(x)
"""


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize(
    ("root", "path", "relative"),
    [
        pytest.param(".", "a/b.py", "a/b.py", id="forward slashes"),
        pytest.param("proj", "proj2/x.py", None, id="sibling with the same prefix"),
        pytest.param(".", "lib/site-packages/torch/linear.py", None, id="installed package"),
        pytest.param(".", "lib/dist-packages/torch/linear.py", None, id="package of the system"),
        pytest.param(
            "site-packages/timm",
            "site-packages/timm/layers/x.py",
            "layers/x.py",
            id="package as root",
        ),
    ],
)
def test_project_contains_files_below_its_root_except_installed_packages(
    root: str, path: str, relative: str | None, tmp_path: Path
) -> None:
    file = touch(tmp_path / path)
    assert Project(tmp_path / root).relative_path(str(file)) == relative


def test_virtual_environments_inside_the_root_are_not_in_the_project(tmp_path: Path) -> None:
    touch(tmp_path / "any name" / "pyvenv.cfg")
    path = touch(tmp_path / "any name" / "src" / "package" / "x.py")
    assert Project(tmp_path).relative_path(str(path)) is None


def test_root_that_is_an_environment_keeps_its_files(tmp_path: Path) -> None:
    touch(tmp_path / "pyvenv.cfg")
    path = touch(tmp_path / "train.py")
    assert Project(tmp_path).relative_path(str(path)) == "train.py"


def test_standard_library_is_never_in_the_project() -> None:
    assert Project(Path("/")).relative_path(str(Path(os.__file__))) is None


def test_symbolic_links_are_resolved_on_both_sides(tmp_path: Path) -> None:
    path = touch(tmp_path / "real" / "x.py")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    linked = tmp_path / "link" / "x.py"
    assert Project(tmp_path / "link").relative_path(str(path)) == "x.py"
    assert Project(tmp_path / "real").relative_path(str(linked)) == "x.py"
    outside = touch(tmp_path / "elsewhere" / "y.py")
    (tmp_path / "real" / "y.py").symlink_to(outside)
    assert Project(tmp_path / "real").relative_path(str(tmp_path / "real" / "y.py")) == "y.py"


def test_relative_file_names_are_resolved_from_the_working_directory(place: Path) -> None:
    touch(place / "a" / "b.py")
    assert Project(Path()).relative_path("a/../a/b.py") == "a/b.py"


@pytest.mark.parametrize(
    ("name", "in_project"),
    [
        *[(name, False) for name in ("<string>", "<frozen runpy>", "<eval_with_key>.0")],
        *[(name, True) for name in ("<ipython-input-3-abc>", "/tmp/ipykernel_12/34.py")],
    ],
)
def test_of_code_without_a_file_only_notebook_cells_are_in_the_project(
    name: str, in_project: bool, tmp_path: Path
) -> None:
    assert (Project(tmp_path).relative_path(name) is not None) == in_project


def test_frames_are_methods_of_modules_innermost_first(workload: Workload) -> None:
    workload.write(
        "model.py",
        """
        def helper(module, x):
            return torch.relu(module(x))

        class Inner(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 8)

            def forward(self, x):
                return helper(
                    self.lin,
                    x,
                )

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Inner()

            def forward(self, x):
                return self.inner(x)
        """,
    )
    tracked = workload.track("from model import Net\n" + PROVIDERS)
    assert names(tracked) == ["linear", "relu"]
    for operation in tracked.operations:
        assert places(operation) == ["model.py:14", "model.py:25"]
    assert [operation.module_path for operation in tracked.operations] == ["inner.lin", "inner"]
    assert [operation.module_class for operation in tracked.operations] == ["Linear", "Inner"]


def test_project_scope_keeps_every_operation_and_frame_of_the_project(workload: Workload) -> None:
    tracked = workload.track(MODEL + PROVIDERS, scope="project")
    assert names(tracked) == ["linear", "sum"]
    assert places(tracked.operations[0]) == ["main.py:11", "main.py:24"]
    assert places(tracked.operations[1]) == ["main.py:24"]
    assert tracked.operations[1].module_path is None


def test_environment_in_the_project_directory_is_excluded(workload: Workload) -> None:
    touch(workload.folder / "env" / "pyvenv.cfg")
    workload.write("env/lib/layers.py", MODEL.replace("Net", "Layer"))
    (operation,) = workload.track(
        """
        import sys
        sys.path.insert(0, "env/lib")
        from layers import Layer

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = Layer()

            def forward(self, x):
                return self.layer(x)
        """
        + PROVIDERS.replace("\n", "\n        ")
    ).operations
    assert places(operation) == ["main.py:15"]


def test_methods_of_other_classes_are_no_module_frames(workload: Workload) -> None:
    tracked = workload.track(
        MODEL
        + """
class Trainer:
    def __init__(self, model):
        self.model = model

    def step(self, x):
        self.model(x).sum().backward()
"""
        + PROVIDERS.replace("model(*inputs).sum().backward()", "Trainer(model).step(*inputs)")
    )
    assert names(tracked) == ["linear"]
    assert places(tracked.operations[0]) == ["main.py:11"]


def test_mixin_method_is_a_module_frame_if_its_object_is_a_module(workload: Workload) -> None:
    tracked = workload.track(
        """
class Scaled:
    def scaled(self, x):
        return x * 2

class Plain(Scaled):
    pass

class Net(Scaled, nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        Plain().scaled(x)
        return self.scaled(self.lin(x))
"""
        + PROVIDERS
    )
    assert [places(operation) for operation in tracked.operations] == [
        ["main.py:18"],
        ["main.py:19"],
        ["main.py:7", "main.py:19"],
    ]


def test_lines_are_those_of_a_traceback(workload: Workload) -> None:
    tracked = workload.track(
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        y = (
            self.lin(x)
            + 1
        )
        return sum(
            part
            for part in [
                y,
                y.tanh()
            ]
        )
"""
        + PROVIDERS
    )
    assert [(operation.name, places(operation)[0]) for operation in tracked.operations] == [
        ("linear", "main.py:12"),
        ("add", "main.py:12"),
        ("tanh", "main.py:19"),
        ("add", "main.py:15"),
        ("add", "main.py:15"),
    ]


def test_temporary_modules_match_across_iterations(workload: Workload) -> None:
    tracked = workload.track(
        MODEL.replace("return self.lin(x)", "return nn.Softmax(-1)(self.lin(x))") + PROVIDERS,
        iterations=4,
    )
    assert all(iteration.matched for iteration in tracked.iterations)
    assert [(o.module_path, o.module_class) for o in tracked.operations] == [
        ("lin", "Linear"),
        ("", "Softmax"),
    ]
