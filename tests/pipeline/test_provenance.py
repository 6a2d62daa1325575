"""Facts about the run in its report, without secrets."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from unified_prof.base.run_spec import RunSpec
from unified_prof.pipeline import provenance
from unified_prof.pipeline.outputs import rank_of


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return RunSpec(
        target="train.py", is_module=False, arguments=(), reports=("run-time",),
        output_dir=tmp_path / "out", project_root=tmp_path, warmup=2, iterations=10,
    )  # fmt: skip


def facts(spec: RunSpec) -> dict[str, str | None]:
    return provenance.of_run(spec, "cpu", rank_of(), provenance.now())


def test_secrets_of_commands_are_masked(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["uprof", "run", "train.py", "--lr", "0.1", "--hub-token", "s3cret-1"]
    url = "postgresql://me:s3cret-2@db/runs?password=s3cret-3"
    monkeypatch.setattr(sys, "argv", [*words, url, "--api-key=s3cret 4"])
    options = {"msprof_arg": ["--token=s3cret-5", "--mode=all"], "preset": "full"}
    found = facts(replace(spec, options=options))
    assert "s3cret" not in str(found)
    assert json.loads(found["command"] or "") == [
        "uprof", "run", "train.py", "--lr", "0.1", "--hub-token", "***",
        "postgresql://me:***@db/runs?password=***", "--api-key=***",
    ]  # fmt: skip
    kept = json.loads(found["options"] or "")
    assert kept["msprof_arg"] == ["--token=***", "--mode=all"]
    assert kept["preset"] == "full"


def test_explicit_command_replaces_the_command_line(spec: RunSpec) -> None:
    found = facts(replace(spec, command=("a.ipynb", "In [3]", "--hub-token", "s3cret-1")))
    assert json.loads(found["command"] or "") == ["a.ipynb", "In [3]", "--hub-token", "***"]
    assert "command" not in json.loads(found["options"] or "")
    assert "command" not in json.loads(facts(spec)["options"] or "")


def test_non_utf8_names_are_escaped(spec: RunSpec, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    found = facts(replace(spec, target=f"{name}.py", project_root=tmp_path / name))
    assert found["target"] == r"caf\xe9.py"
    for value in found.values():
        assert value is None or value.encode("utf-8")
