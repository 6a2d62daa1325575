"""The GitHub action: what it is told reaches its script, which runs anywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

GATE = ROOT / "action" / "gate.sh"
SCRIPT = """
import time, torch
torch.set_num_threads(1)
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(14):
    optimizer.zero_grad()
    time.sleep({seconds})
    layer(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def test_every_variable_that_the_script_reads_is_given_by_the_action() -> None:
    given = (ROOT / "action.yml").read_text(encoding="utf-8")
    for script in (ROOT / "action").glob("*.sh"):
        read = set(re.findall(r"\$\{?(UPROF_\w+)", script.read_text(encoding="utf-8")))
        assert read, script
        assert {name for name in read if f"{name}:" not in given} == set(), script


def test_inputs_reach_the_script_as_variables_and_never_as_text_of_a_command() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    for command in re.findall(r"^ +run: (.*)$", text, re.MULTILINE):
        assert "inputs." not in command


@pytest.mark.parametrize("script", ["gate.sh", "comment.sh"])
def test_scripts_are_executable_and_sound(script: str) -> None:
    path = ROOT / "action" / script
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_base_and_change_are_measured_and_the_comment_is_written(tmp_path: Path) -> None:
    repository, work = tmp_path / "repository", tmp_path / "work"
    repository.mkdir()
    git(repository, "init", "-q")
    (repository / "train.py").write_text(SCRIPT.format(seconds=0.02), encoding="utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "base")
    base = git(repository, "rev-parse", "HEAD")
    # Nothing that a machine does by itself makes 20 ms of sleep 200.
    (repository / "train.py").write_text(SCRIPT.format(seconds=0.2), encoding="utf-8")
    git(repository, "commit", "-qam", "slow")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    uprof = bin_folder / "uprof"
    uprof.write_text(f'#!/bin/sh\nexec {sys.executable} -m unified_prof "$@"\n', encoding="utf-8")
    uprof.chmod(0o755)
    done = subprocess.run(
        [str(GATE)],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "UPROF_COMMAND": "--backend cpu --report run-time --iterations 6 train.py",
            "UPROF_BASE_REF": base,
            "UPROF_ROUNDS": "4",
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
    assert git(repository, "worktree", "list").count("\n") == 0, "the base is gone again"
