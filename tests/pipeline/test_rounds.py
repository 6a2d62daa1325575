"""Rounds of workloads in two checkouts, and the measured noise of a workload."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_import import uprof
from unified_prof.base.run_spec import IterationRecord, OperationRecord, TrackedRun
from unified_prof.baselines import noise
from unified_prof.compare import runs
from unified_prof.compare.comparable import Run
from unified_prof.compare.confidence import Noise
from unified_prof.compare.gate import Limits
from unified_prof.errors import CaptureError, StoreError, UsageError
from unified_prof.pipeline import rounds
from unified_prof.pipeline.rounds import Workload, seen, several, until_sure
from unified_prof.sqlite import skyline_writer

SCRIPT = """
import sys, time, torch
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(14):
    optimizer.zero_grad()
    time.sleep(float(sys.argv[1]))
    layer(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def write(folder: Path, milliseconds: float) -> None:
    """Write the report of a run with iterations of this duration."""
    folder.mkdir(parents=True)
    times = tuple((milliseconds * np.linspace(1, 1.01, 10)).tolist())
    run = TrackedRun(
        device="cpu",
        operations=(OperationRecord("linear", (), "net", "Net", times, times),),
        weights=(),
        activations=(),
        iterations=tuple(IterationRecord(ms, ms / 3, ms / 2, None, True) for ms in times),
        peak_usage_bytes=None,
        complete=True,
    )
    facts = {"device": "cpu: a model", "host": "here", "workload": "train.py"}
    skyline_writer.write_run_time(folder / "run_time.sqlite", run, facts, overwrite=False)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that sets the run durations by directory and returns the list of runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(relative: float, **milliseconds: float) -> list[str]:
        generator = np.random.default_rng(1)
        measured: list[str] = []

        def measure(command: Sequence[str], folder: Path, target: Path, *, python: str) -> None:
            measured.append(folder.name)
            speed = math.exp(generator.normal(0, relative))
            write(target, milliseconds[folder.name] * speed)

        monkeypatch.setattr(rounds, "measure", measure)
        for name in milliseconds:
            (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path)
        return measured

    return make


WORKLOAD = Workload(("train.py",))


def outcome_of_rounds(tmp_path: Path, most: int = 10) -> str:
    sides = tmp_path / "old", tmp_path / "new"
    verdict, _, _ = until_sure(*sides, WORKLOAD, ["total"], Limits(), most=most)
    return verdict.outcome


def test_quiet_machine_is_conclusive_after_the_minimum_of_rounds(
    machine: Callable[..., list[str]], tmp_path: Path
) -> None:
    measured = machine(0.005, old=10.0, new=12.0)
    assert outcome_of_rounds(tmp_path) == "regression"
    assert measured == ["old", "new", "new", "old", "old", "new"], "alternating order"


def test_noisy_machine_takes_more_rounds_up_to_the_limit(
    machine: Callable[..., list[str]], tmp_path: Path
) -> None:
    measured = machine(0.25, old=10.0, new=11.0)
    assert outcome_of_rounds(tmp_path, most=5) == "inconclusive"
    assert len(measured) == 10


def test_unknown_metric_ends_after_the_first_round(
    machine: Callable[..., list[str]], tmp_path: Path
) -> None:
    measured = machine(0.005, old=10.0, new=10.0)
    sides = tmp_path / "old", tmp_path / "new"
    with pytest.raises(UsageError, match="matches nothing") as caught:
        until_sure(*sides, WORKLOAD, ["operation:lineer"], Limits())
    assert "operation:linear" in str(caught.value.hint)
    assert len(measured) == 2


def test_unchanged_workload_passes(machine: Callable[..., list[str]], tmp_path: Path) -> None:
    machine(0.01, old=10.0, new=10.0)
    assert outcome_of_rounds(tmp_path) == "pass"


def test_reports_are_kept_in_an_empty_directory(
    machine: Callable[..., list[str]], tmp_path: Path
) -> None:
    machine(0.005, old=10.0, new=10.0)
    kept = Workload(("train.py",), tmp_path / "kept")
    until_sure(tmp_path / "old", tmp_path / "new", kept, ["total"], Limits())
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == ["base-1", "base-2", "base-3", "new-1", "new-2", "new-3"]
    with pytest.raises(UsageError, match="not empty"):
        several(kept, 3)


def test_gate_uses_the_measured_noise_of_the_machine(
    machine: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = machine(0.01, work=10.0)
    write(tmp_path / "a", 10.0)
    write(tmp_path / "b", 13.0)
    assert uprof("gate", "a", "b") == 3, "one run per side and no measured noise"
    monkeypatch.chdir("work")
    assert uprof("gate", "--self-test", "train.py --epochs 1", "--rounds", "8", "--json") == 0
    monkeypatch.chdir(tmp_path)
    assert len(measured) == 8
    out = capsys.readouterr().out
    document = json.loads(out[out.index("{") :])
    assert document["runs"] == 8
    assert 0.003 < document["relative_noise"] < 0.03
    smallest = document["smallest_regression_seen"]
    assert smallest["1"] > smallest["3"] > smallest["10"] > 0.05
    assert uprof("gate", "a", "b") == 1
    assert uprof("gate", "a", "a") == 0
    capsys.readouterr()
    assert uprof("diff", "a", "b") == 0
    assert ": slower" in capsys.readouterr().out
    assert uprof("gate", "a", "b", "--noise", "30%") == 3, "the option overrides measured noise"


def test_unknown_workload_uses_the_largest_measured_noise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write(tmp_path / "a", 10.0)
    run = runs.load([tmp_path / "a"])

    def with_facts(**facts: str) -> Run:
        return replace(run, facts={**run.facts, **facts})

    for name, relative in (("quiet.py", 0.01), ("noisy.py", 0.2), ("quiet.py", 0.02)):
        noise.save(with_facts(workload=name), Noise(relative, 5))
    found = noise.load(run)
    assert found is not None
    assert (found.relative, found.degrees) == (0.2, 5)
    own = noise.load(with_facts(workload="quiet.py"))
    assert own is not None
    assert own.relative == 0.02, "the later measurement replaces the earlier one"
    assert noise.load(with_facts(host="elsewhere")) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"version": 9, "entries": []}'])
def test_noise_file_of_another_format_is_refused_and_kept(
    content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write(tmp_path / "a", 10.0)
    noise.path().parent.mkdir(parents=True)
    noise.path().write_bytes(content)
    monkeypatch.chdir(tmp_path)
    assert uprof("gate", "a", "a") == StoreError.exit_code
    assert noise.path().read_bytes() == content


def test_smallest_regression_grows_with_noise_and_shrinks_with_runs() -> None:
    quiet, busy = Noise(0.01, 5), Noise(0.1, 5)
    assert seen(quiet, Limits(), 3) < seen(busy, Limits(), 3)
    assert seen(busy, Limits(), 10) < seen(busy, Limits(), 3)
    assert seen(Noise(1e-9, 5), Limits(), 3) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--self-test", "a.py", "--until-sure", "a.py"], "cannot be combined"),
        (["--self-test", "a.py", "report"], "not reports"),
        (["--until-sure", "a.py", "one"], "two checkouts"),
        (["--until-sure", "a.py", "none", "here"], "is not a directory"),
        (["--until-sure", "'a.py", ".", "."], "cannot parse"),
        (["--self-test", " "], "empty"),
        (["--self-test", "a.py", "--rounds", "2"], "at least 3 needed"),
        (["--self-test", "a.py", "--keep", "a/run_time.sqlite"], "expected a new directory"),
        (["a", "b", "--rounds", "2"], "require"),
        (["--baseline", "main"], "needs a report of the candidate"),
        (["a", "b", "--noise", "much"], "--noise takes a percentage"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write(tmp_path / name, 10.0)
    assert uprof("gate", *arguments) == UsageError.exit_code
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_background_processes_of_a_workload_are_not_awaited(tmp_path: Path) -> None:
    background = "import subprocess\nsubprocess.Popen(['sleep', '60'])\n"
    (tmp_path / "train.py").write_text(background + SCRIPT, encoding="utf-8")
    began = time.monotonic()
    command = ["--backend", "cpu", "--report", "run-time", "train.py", "0.001"]
    rounds.measure(command, tmp_path, tmp_path / "out")
    assert time.monotonic() - began < 50


def test_each_side_uses_its_interpreter(
    machine: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = rounds.measure
    machine(0.005, old=10.0, new=10.0)
    fake, used = rounds.measure, set()

    def measure(command: Sequence[str], folder: Path, target: Path, *, python: str) -> None:
        used.add((folder.name, python))
        fake(command, folder, target, python=python)

    monkeypatch.setattr(rounds, "measure", measure)
    interpreters = ("--base-python", "a/python", "--new-python", "/b/python")
    assert uprof("gate", "old", "new", "--until-sure", "train.py", *interpreters) == 0
    assert used == {("old", str(tmp_path / "a" / "python")), ("new", "/b/python")}
    assert uprof("gate", "old", "new", *interpreters) == UsageError.exit_code
    with pytest.raises(CaptureError, match=r"cannot start the interpreter .*a/python"):
        real(["train.py"], tmp_path, tmp_path / "out", python=str(tmp_path / "a/python"))


@pytest.mark.slow
def test_workload_runs_in_its_checkout_and_its_failure_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    command = ["--backend", "cpu", "--report", "run-time", "train.py"]
    rounds.measure([*command, "0.002"], tmp_path, tmp_path / "out")
    assert (tmp_path / "out" / "run_time.sqlite").exists()
    with pytest.raises(CaptureError, match="could not convert string to float"):
        rounds.measure([*command, "x"], tmp_path, tmp_path / "bad")


def test_interpreter_without_uprof_is_reported(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\nexit 0\n")
    interpreter.chmod(0o755)
    with pytest.raises(CaptureError, match=r"wrote no report: does .*/python have uprof installed"):
        rounds.measure(["train.py"], tmp_path, tmp_path / "new-1", python=str(interpreter))
