"""Run each file of `on_bench` in a process of its own, as torch can have one such device."""

import sys
from pathlib import Path

import pytest

from tests.device import bench, build
from tests.processes import python

pytestmark = pytest.mark.fresh_interpreter

FOLDER = Path(__file__).with_name("on_bench")
_NO_TESTS = {"__init__", "conftest", "models", "workloads"}
FILES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in _NO_TESTS)


@pytest.fixture
def bench_is_built() -> None:
    """Build the test device, or skip with the reason why not."""
    if reason := build.why_not():
        pytest.skip(reason)
    build.library()


def test_other_tests_do_not_use_the_device() -> None:
    # It would be the accelerator of their torch, whose backward passes then forbid to fork.
    assert f"{FOLDER.parent.name}.{FOLDER.name}.conftest" not in " ".join(sys.modules)


@pytest.mark.slow
@pytest.mark.usefixtures("bench_is_built")
@pytest.mark.parametrize("name", FILES)
def test_files_on_the_test_device_pass(name: str) -> None:
    options = ("-n", "0", "-m", "", FOLDER / f"{name}.py")
    done = python("-m", "pytest", *options, cwd=FOLDER.parents[2])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]


@pytest.mark.slow
@pytest.mark.usefixtures("bench_is_built")
def test_process_with_the_device_ends_normally() -> None:
    program = (
        "import torch\n"
        "model = torch.nn.Linear(8, 8).to('bench')\n"
        "model(torch.ones(2, 8, device='bench')).sum().backward()\n"
        "print(model.weight.grad.device)\n"
    )
    for _ in range(3):  # without waiting for the device
        done = python("-c", program, env=bench.environment())
        assert (done.returncode, done.stdout) == (0, "bench:0\n"), done.stderr


def test_missing_compiler_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    reason = build.why_not()
    assert reason is not None
    assert reason.startswith("the test device ")
