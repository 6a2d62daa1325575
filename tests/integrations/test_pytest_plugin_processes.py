"""The pytest plugin in processes: repeated runs, workers of pytest-xdist, regressions."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.conftest import ROOT
from tests.integrations.test_pytest_plugin import PLUGIN, baselines
from tests.processes import python
from unified_prof.integrations.pytest_uprof import verdicts

pytest_plugins = ["pytester"]  # Also if these tests run alone.
pytestmark = pytest.mark.forks_of_commands

SLEEPS = """
import os, time, torch

def test_step(uprof):
    torch.set_num_threads(1)
    layer = torch.nn.Linear(8, 8)
    def step():
        time.sleep(float(os.environ["SECONDS"]))
        layer(torch.ones(4, 8)).sum().backward()
    assert uprof.run(step, warmup=1, iterations=5).iterations == 5
"""

Real = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_pytest(
    pytester: pytest.Pytester, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a pytest session, whose step sleeps, in a separate process."""

    def run(*arguments: str, seconds: float = 0.02) -> subprocess.CompletedProcess[str]:
        environment = {"SECONDS": str(seconds), "XDG_STATE_HOME": str(tmp_path)}
        return python("-m", "pytest", *PLUGIN, *arguments, cwd=pytester.path, env=environment)

    return run


@pytest.mark.slow
def test_regression_in_a_process_is_found(pytester: pytest.Pytester, run_pytest: Real) -> None:
    pytester.makepyfile(SLEEPS)
    pytester.makeini("[pytest]\naddopts = --strict-markers")
    saved = run_pytest(
        "--uprof-save=main", "--basetemp=kept", "--junitxml=found.xml", "-p", "no:xdist"
    )
    assert saved.returncode == 0, saved.stdout
    assert "saved 1 of 1 as main" in saved.stdout
    unchanged = run_pytest("--uprof-compare=main", "-n", "0")
    assert unchanged.returncode == 0, unchanged.stdout
    # A step five times as long: the few short runs of this test cannot show less on a busy machine.
    slower = run_pytest("--uprof-compare=main", seconds=0.1)
    assert slower.returncode == 1, slower.stdout
    assert "uprof: regression" in slower.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("gpu", "cpu", "-m", "gpu", "--of-cpu"),
        ("gpu/test_it.py::test_step", "--of-cpu", "cpu", "-k", "step"),
        ("@words",),
    ],
    ids=["marker named like a directory", "test id", "file of arguments"],
)
def test_repeated_runs_use_all_arguments_and_measure_one_test(
    arguments: tuple[str, ...], pytester: pytest.Pytester, run_pytest: Real
) -> None:
    pytester.makeini("[pytest]\nmarkers = gpu")
    (pytester.path / "words").write_text("gpu\ncpu\n--of-cpu\n-k\nstep\n")
    for name in ("gpu", "cpu"):
        pytester.mkdir(name)
    (pytester.path / "gpu" / "test_it.py").write_text(
        "import pytest\npytestmark = pytest.mark.gpu\n" + SLEEPS
    )
    # Options that another conftest declares are known in the repeated runs.
    (pytester.path / "cpu" / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--of-cpu', action='store_true')\n"
    )
    (pytester.path / "cpu" / "test_else.py").write_text(
        "def test_else_step():\n    open('seen', 'a').write('x')\n"
    )
    saved = run_pytest(*arguments, "--uprof-save=main", "--uprof-runs=2")
    assert saved.returncode == 0, saved.stdout
    assert baselines(pytester.path) == ["main:gpu/test_it.py::test_step@1"]
    seen = pytester.path / "seen"
    assert not seen.exists() or seen.read_text() == "x", "other tests ran in this session only"


@pytest.mark.slow
def test_xdist_group_is_not_in_the_stored_name(pytester: pytest.Pytester, run_pytest: Real) -> None:
    pytester.makepyfile("import pytest\npytestmark = pytest.mark.xdist_group('gpu')\n" + SLEEPS)
    saved = run_pytest("--uprof-save=main", "--uprof-runs=2", "-n", "2", "--dist", "loadgroup")
    assert saved.returncode == 0, saved.stdout
    (name,) = baselines(pytester.path)
    assert name.endswith("::test_step@1")


@pytest.mark.slow
def test_xdist_suffix_is_removed_from_test_ids(pytester: pytest.Pytester) -> None:
    item = pytester.getitem(
        "import pytest\n@pytest.mark.parametrize('x', ['a@b'])\ndef test_step(x):\n    pass\n",
        "test_step[a@b]",
    )
    plain = item.nodeid
    assert verdicts.plain_id(item) == plain
    # xdist's way to set it depends on the versions of both; it is always the end of the id.
    grouped: Any = SimpleNamespace(parent=item.parent, name=item.name, nodeid=f"{plain}@gpu_all")
    assert verdicts.plain_id(grouped) == plain


@pytest.mark.slow
def test_xdist_workers_measure_and_one_saves(pytester: pytest.Pytester, run_pytest: Real) -> None:
    pytester.makepyfile(test_a=SLEEPS, test_b=SLEEPS.replace("test_step", "test_other"))
    saved = run_pytest(
        "--uprof-save", "main", "--uprof-runs", "2", "-n", "2", "--junitxml=found.xml"
    )
    assert saved.returncode == 0, saved.stdout
    assert "saved 2 of 2 as main" in saved.stdout
    assert sorted(baselines(pytester.path)) == [
        "main:test_a.py::test_step@1",
        "main:test_b.py::test_other@1",
    ]
    root = ElementTree.parse(pytester.path / "found.xml").getroot()
    assert [one.get("value") for one in root.iter("property")].count("measured") == 2
    # Two runs show only a change that is far above the noise of two workers on a busy machine.
    compared = run_pytest("--uprof-compare", "--uprof-runs", "2", "-n", "2", seconds=0.4)
    assert compared.returncode == 1
    assert compared.stdout.count("uprof: regression") == 4, "in the failures and in their summary"


@pytest.mark.slow
def test_two_sessions_may_write_one_store(pytester: pytest.Pytester, run_pytest: Real) -> None:
    pytester.makepyfile(SLEEPS)
    command = [sys.executable, "-m", "pytest", *PLUGIN, "--uprof-save=main", "--uprof-runs=1"]
    environment = {**os.environ, "SECONDS": "0.001"}
    both = [
        subprocess.Popen(command, cwd=pytester.path, env=environment, stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [one.wait(timeout=300) for one in both] == [0, 0]
    assert len(baselines(pytester.path)) == 2


@pytest.mark.slow
def test_example_of_the_documentation_runs(pytester: pytest.Pytester, run_pytest: Real) -> None:
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    example = text.partition("## In your tests, with pytest")[2].split("```python\n")[1]
    pytester.makepyfile(example.partition("```")[0])
    result = run_pytest("--strict-markers")
    assert result.returncode == 0, result.stdout
    assert "test_step" in result.stdout.partition("= uprof =")[2]
