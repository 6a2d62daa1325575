"""The GitHub action passes its inputs to its script, which runs anywhere."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import ROOT
from tests.forkserver import interpreter
from tests.processes import run

GATE = ROOT / "action" / "gate.sh"
SCRIPT = """
import time, torch
torch.set_num_threads(1)
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(24):
    optimizer.zero_grad()
    time.sleep({seconds})
    layer(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


SCRIPTS = sorted(path for path in (ROOT / "action").iterdir() if path.suffix in (".sh", ".py"))
NAMES = [path.name for path in SCRIPTS]
CONFIGURED = [path for path in SCRIPTS if path.name != "environment.py"]
TEMPLATE = ROOT / "templates" / "gate.yml"


def variables(script: Path) -> set[str]:
    return set(re.findall(r"\b(UPROF_\w+)", script.read_text(encoding="utf-8")))


@pytest.mark.parametrize("script", CONFIGURED, ids=[path.name for path in CONFIGURED])
def test_action_and_component_set_every_variable_read_by_a_script(script: Path) -> None:
    assert variables(script)
    lacking = {
        name: variables(script) - set(re.findall(r"(UPROF_\w+)[:=]", text.read_text("utf-8")))
        for name, text in (("action", ROOT / "action.yml"), ("component", TEMPLATE))
    }
    # GitLab users provide the token as a project variable; the others are GitHub's.
    assert lacking["action"] - {"UPROF_GITLAB_TOKEN"} == set()
    assert (
        lacking["component"] - {"UPROF_GITLAB_TOKEN", "UPROF_PULL_REQUEST", "UPROF_COMMENT_AUTHOR"}
        == set()
    )


def test_inputs_reach_scripts_as_variables_never_as_command_text() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    for command in re.findall(r"^ +run: (.*)$", text, re.MULTILINE):
        assert "inputs." not in command
    job = TEMPLATE.read_text(encoding="utf-8").partition("  script:")[2]
    assert "inputs." not in job


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_scripts_are_executable_and_valid(script: Path) -> None:
    assert os.access(script, os.X_OK)
    if script.suffix == ".sh":
        subprocess.run(["bash", "-n", str(script)], check=True)


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = run("git", *identity, *arguments, cwd=folder, check=True)
    return done.stdout.strip()


def make_repository(folder: Path, base: str, new: str) -> str:
    """Create a repository with two commits of train.py; return the first one's hash."""
    folder.mkdir()
    git(folder, "init", "-q")
    for name, text in (("base", base), ("new", new)):
        (folder / "train.py").write_text(text, encoding="utf-8")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", name)
    return git(folder, "rev-parse", "HEAD~1")


def programs(folder: Path, python: str = sys.executable) -> str:
    """Create the commands of a job from this environment; return a PATH with them."""
    folder.mkdir()
    for name, text in (
        ("uprof", f'exec {python} -m unified_prof "$@"'),
        ("python", f'[ "$1 $2" != "-m pip" ] || exit 0\nexec {sys.executable} "$@"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.slow
def test_editable_installs_of_two_checkouts_are_isolated(tmp_path: Path) -> None:
    """With `pip install -e .` in both, each imports its own package and all others."""
    pythons = {}
    for side in ("base", "new"):
        (tmp_path / side / "src").mkdir(parents=True)
        (tmp_path / side / "src" / "ours.py").write_text(f"SIDE = {side!r}\n")
        command = [sys.executable, str(GATE.parent / "environment.py"), f"{tmp_path}/of {side}"]
        done = run(*command, check=True)
        pythons[side] = done.stdout.strip()
        # The file that an editable installation leaves.
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        place = run(pythons[side], "-c", ask, check=True).stdout.strip()
        Path(place, "__editable__.ours.pth").write_text(f"{tmp_path / side / 'src'}\n")
    for side, python in pythons.items():
        code = "import ours, numpy, pip; print(ours.SIDE)"
        done = run(python, "-c", code, cwd=tmp_path)
        assert done.stdout == f"{side}\n", done.stderr
    done = run(f"{tmp_path}/of base/bin/pip", "--version", check=True)
    assert "pip" in done.stdout


@pytest.mark.quick(cases=4)
@pytest.mark.parametrize(
    "ref",
    [
        "--upload-pack=touch PWN;git-upload-pack",
        "-c",
        "--exec=touch PWN",
        "no such ref",
        "$(touch PWN)",
        "`touch PWN`",
        "x; touch PWN",
        "x\ntouch PWN",
        "ext::sh -c touch% PWN",
    ],
)
def test_base_revision_is_never_parsed_as_a_git_option(ref: str, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    make_repository(repository, "", "changed = True")
    git(repository, "remote", "add", "origin", str(repository))
    done = run(
        str(GATE), cwd=repository, env={"UPROF_BASE_REF": ref, "UPROF_WORK": str(tmp_path / "work")}
    )
    assert done.returncode not in (0, 1, 3)
    assert ("starts with a dash" in done.stderr) is ref.startswith("-")
    assert not list(repository.rglob("PWN"))


@pytest.mark.slow
@pytest.mark.forks_of_commands
def test_baseline_and_candidate_are_measured_and_the_comment_is_written(tmp_path: Path) -> None:
    repository, work = tmp_path / "repository", tmp_path / "work"
    # No other load on the machine turns 10 ms of sleep into 100.
    base = make_repository(repository, SCRIPT.format(seconds=0.01), SCRIPT.format(seconds=0.1))
    with interpreter(tmp_path) as python:
        done = run(
            str(GATE),
            cwd=repository,
            env={
                "PATH": programs(tmp_path / "bin", python),
                "UPROF_COMMAND": "--backend cpu --report run-time --iterations 6 train.py",
                "UPROF_BASE_REF": base,
                "UPROF_ROUNDS": "3",
                "UPROF_WORK": str(work),
                "UPROF_SETUP": "test -f train.py",
                "GITHUB_OUTPUT": str(tmp_path / "output"),
                "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            },
        )
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "output").read_text() == "outcome=regression\n"
    comment = (work / "comment.md").read_text(encoding="utf-8")
    assert comment.startswith("<!-- uprof gate -->")
    assert "regression" in comment
    assert "What changed" in comment
    assert ": slower" in comment.partition("What changed")[2]
    assert "regression" in (tmp_path / "summary").read_text(encoding="utf-8")
    (suite,) = ElementTree.parse(work / "verdict.xml").getroot()
    assert suite.get("failures") == "1"
    assert git(repository, "worktree", "list").count("\n") == 0, "the base checkout is removed"
