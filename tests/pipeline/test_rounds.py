"""Rounds in which two checkouts step in turn, and the measured noise of a workload."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.cli.test_import import uprof
from unified_prof.base.run_spec import TURNS_VARIABLE, IterationRecord, OperationRecord, TrackedRun
from unified_prof.baselines import noise
from unified_prof.compare import runs
from unified_prof.compare.comparable import Run
from unified_prof.compare.confidence import Noise
from unified_prof.compare.gate import Limits
from unified_prof.errors import CaptureError, StoreError, UsageError
from unified_prof.pipeline import rounds
from unified_prof.pipeline.rounds import Workload, smallest_change, until_sure
from unified_prof.sqlite import skyline_writer


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

    def make(relative: float, drift: float = 0.3, **milliseconds: float) -> list[str]:
        generator = np.random.default_rng(1)
        measured: list[str] = []

        def measure(
            workload: Workload,
            checkouts: tuple[Path, Path],
            targets: tuple[Path, Path],
            *_: object,
            **__: object,
        ) -> bool:
            shared = math.exp(generator.normal(0, drift))
            for folder, target in zip(checkouts, targets, strict=True):
                measured.append(folder.name)
                speed = shared * math.exp(generator.normal(0, relative))
                write(target, milliseconds[folder.name] * speed)
            return True

        monkeypatch.setattr(rounds, "measure", measure)
        for name in milliseconds:
            (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path)
        return measured

    return make


WORKLOAD = Workload(("train.py",))


def outcome_of_rounds(tmp_path: Path, most: int = 12, **options: Workload) -> str:
    sides = tmp_path / "old", tmp_path / "new"
    workloads = options or {"train": WORKLOAD}
    verdicts, _ = until_sure(*sides, workloads, ["total"], Limits(), most=most)
    return verdicts.outcome


@pytest.mark.parametrize(
    ("relative", "drift", "candidate_ms", "outcome", "runs"),
    [
        # Drift between rounds does not delay a verdict.
        (0.005, 0.3, 12.0, "regression", range(2, 9)),
        # Times are not decided in two rounds.
        (0.0, 0.0, 10.0, "pass", [6]),
        (0.0, 0.0, 14.0, "regression", [6]),
        (0.01, 0.3, 10.0, "pass", range(6, 25)),
        # Processes that differ take more rounds, up to the limit.
        (0.25, 0.3, 11.0, "inconclusive", [10]),
    ],
)
def test_rounds_end_with_a_certain_verdict(
    machine: Callable[..., list[str]], tmp_path: Path, relative: float, drift: float,
    candidate_ms: float, outcome: str, runs: Sequence[int],
) -> None:  # fmt: skip
    measured = machine(relative, drift, old=10.0, new=candidate_ms)
    most = 5 if outcome == "inconclusive" else 12
    assert outcome_of_rounds(tmp_path, most=most) == outcome
    assert len(measured) in runs


def test_inconclusive_verdict_estimates(machine: Callable[..., list[str]], tmp_path: Path) -> None:
    machine(0.4, old=10.0, new=10.0)
    sides = tmp_path / "old", tmp_path / "new"
    verdicts, _ = until_sure(*sides, {"a": WORKLOAD}, ["total"], Limits(), most=3)
    reason = verdicts.each["a"].checks[0].reason
    found = re.search(r"about (\d+) more rounds? needed", reason)
    assert found is not None, reason
    assert 1 <= int(found[1]) < 60


def test_unknown_metric_ends_at_once(machine: Callable[..., list[str]], tmp_path: Path) -> None:
    measured = machine(0.005, old=10.0, new=10.0)
    sides = tmp_path / "old", tmp_path / "new"
    with pytest.raises(UsageError, match="matches nothing") as caught:
        until_sure(*sides, {"train": WORKLOAD}, ["operation:lineer"], Limits())
    assert "operation:linear" in str(caught.value.hint)
    assert len(measured) == 2


def test_reports_are_kept_if_asked(machine: Callable[..., list[str]], tmp_path: Path) -> None:
    machine(0.005, old=10.0, new=20.0)
    kept = Workload(("train.py",), tmp_path / "kept")
    outcome_of_rounds(tmp_path, train=kept)
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert {"base-1", "new-1", "base-2", "new-2"} <= names
    with pytest.raises(UsageError, match="not empty"):
        outcome_of_rounds(tmp_path, train=kept)


def test_gate_uses_the_measured_noise_of_the_machine(
    machine: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = machine(0.01, drift=0.0, work=10.0)
    write(tmp_path / "a", 10.0)
    write(tmp_path / "b", 13.0)
    assert uprof("gate", "a", "b") == 3, "one run per side and no measured noise"
    monkeypatch.chdir("work")
    assert uprof("gate", "--self-test", "train.py --epochs 1", "--rounds", "8", "--json") == 0
    monkeypatch.chdir(tmp_path)
    assert len(measured) == 16
    out = capsys.readouterr().out
    document = json.loads(out[out.index("{") :])
    assert document["runs"] == 8
    assert 0.003 < document["relative_noise"] < 0.03
    smallest = document["smallest_change"]
    assert smallest["5"] > smallest["10"] > 0.05
    assert uprof("gate", "a", "b") == 1
    assert uprof("gate", "a", "a") == 0
    capsys.readouterr()
    assert uprof("diff", "a", "b") == 0
    assert ": slower" in capsys.readouterr().out
    assert uprof("gate", "a", "b", "--noise", "30%") == 3, "the option overrides measured noise"


def test_unknown_workload_has_most_noise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_smallest_change_follows_noise(machine: Callable[..., list[str]], tmp_path: Path) -> None:
    found = {}
    for relative in (0.01, 0.05):
        machine(relative, **{f"old{relative}": 10.0, "new": 10.0})
        sides = tmp_path / f"old{relative}", tmp_path / "new"
        limits = Limits(max_regress=1e-9)  # never certain
        _, pairs = until_sure(*sides, {"": WORKLOAD}, ["total"], limits, most=8)
        found[relative] = [smallest_change(pairs[""], Limits(), one) for one in (5, 10)]
    assert found[0.01][0] < found[0.05][0]
    assert found[0.05][1] < found[0.05][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--self-test", "a.py", "--until-sure", "a.py"], "cannot be combined"),
        (["--self-test", "a.py", "report"], "not reports"),
        (["--until-sure", "a.py", "one"], "two checkouts"),
        (["--until-sure", "a.py", "none", "here"], "is not a directory"),
        (["--until-sure", "'a.py", ".", "."], "cannot parse"),
        (["--self-test", " "], "empty"),
        (["--self-test", "a.py", "--rounds", "2"], "at least 3 rounds"),
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


def test_each_side_uses_its_interpreter(
    machine: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(0.005, old=10.0, new=10.0)
    fake, used = rounds.measure, set()

    def measure(workload: Workload, *arguments: Any, **options: Any) -> bool:
        used.add(workload.pythons)
        return fake(workload, *arguments, **options)

    monkeypatch.setattr(rounds, "measure", measure)
    interpreters = ("--base-python", "a/python", "--new-python", "/b/python")
    assert uprof("gate", "old", "new", "--until-sure", "train.py", *interpreters) == 0
    assert used == {(str(tmp_path / "a" / "python"), "/b/python")}
    assert uprof("gate", "old", "new", *interpreters) == UsageError.exit_code


def stand_in(tmp_path: Path, script: str) -> str:
    """Return an interpreter that runs bash code in place of a workload, with its pipes in r and w.

    `turns` answers each turn of n iterations with n ms.
    """
    interpreter = tmp_path / "python"
    interpreter.write_text(
        f"""#!/bin/bash
[[ ${TURNS_VARIABLE} =~ ([0-9]+).*\\ ([0-9]+),.*\\ ([0-9]+), ]]
r=${{BASH_REMATCH[1]}} w=${{BASH_REMATCH[2]}}
turns() {{
  echo ready >&$w
  while read -ru $r n && [ $n != 0 ]; do echo "$((n * 1000000))" >&$w; done
  echo . >> turns
}}
{script}
"""
    )
    interpreter.chmod(0o755)
    return str(interpreter)


def measured(tmp_path: Path, python: str, *, timeout_s: float = 60, **options: Any) -> bool:
    workload = Workload(("train.py",), pythons=(python, python), timeout_s=timeout_s)
    targets = tmp_path / "base-1", tmp_path / "new-1"
    return rounds.measure(workload, (tmp_path, tmp_path), targets, **options)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 0", "wrote no report: does .*/python have uprof installed"),
        ("seq 5; exit 3", "exited with code 3: 3 / 4 / 5\n"),
        ("turns; exit 4", "exited with code 4\n"),
        ("kill -9 $$", "was killed by signal 9\n"),
        ("exec sleep 9", "made no progress for 0.2 s"),
        ('eval "exec $w>&-"; sleep 9 >/dev/null', "made no progress for 0.2 s"),
        (None, "cannot start the interpreter .*/python"),
    ],
)
def test_workload_that_fails_is_reported(tmp_path: Path, script: str | None, message: str) -> None:
    python = str(tmp_path / "python") if script is None else stand_in(tmp_path, script)
    with pytest.raises(CaptureError, match=message):
        measured(tmp_path, python, timeout_s=0.2 if "no progress" in message else 60)


def test_runs_step_in_turn_and_are_relayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_MIN_S", 0.1)
    python = stand_in(tmp_path, "echo hello; turns; mkdir $6")
    said: list[str] = []
    assert measured(tmp_path, python, first=rounds.Messages(relay=said.append))
    assert said == ["hello\n", "hello\n"]
    assert (tmp_path / "turns").read_text() == ".\n.\n"
    for name in ("base-1", "new-1"):
        (tmp_path / name).rmdir()
    alone = stand_in(tmp_path, "mkdir $6")
    assert not measured(tmp_path, alone, swapped=True, together=True), "without iterations"


@pytest.mark.parametrize(
    ("times_s", "unit", "size", "turns"),
    [
        ((0.001,), 1, 30, 35),  # of 30 ms, for 1 s of equal times
        ((0.001,), 40, 40, 26),
        ((1.0,), 2, 2, 6),
        ((0.001, 0.0015, 0.002), 1, 15, 267),  # for 4 s of unequal times
        ((None,), 1, 1, 1),  # until a run ends
    ],
)
def test_turns_are_short_and_alternate_until_enough_was_measured(
    times_s: tuple[float | None, ...], unit: int, size: int, turns: int
) -> None:
    found: list[tuple[str, int]] = []

    def side(name: str, times_s: tuple[float | None, ...]) -> Any:
        times = itertools.cycle(times_s)

        def take_turn(length: int) -> float | None:
            found.append((name, length))
            one_s = next(times)
            return None if one_s is None else one_s * length

        return SimpleNamespace(take_turn=take_turn)

    rounds._step_in_turn((side("base", times_s), side("new", times_s[:1])), unit)
    order = "".join(name[0] for name, _ in found)
    assert order == ("bnnb" * len(order))[: len(order)]
    assert found[0] == ("base", unit)
    assert {length for _, length in found[12:]} <= {size}
    assert len(found) / 2 == pytest.approx(turns, abs=2)


@pytest.mark.parametrize("change", [0.0, 0.2])
def test_error_is_the_standard_error_of_the_median_change(change: float) -> None:
    """For normal noise, it is sqrt(pi / 2) times that of the mean."""
    rng = np.random.default_rng(3)
    base = np.exp(rng.normal(0, 0.03, 20_000))
    new = base * np.exp(change + rng.normal(0, 0.05, 20_000))
    expected = math.sqrt(math.pi / 2) * 0.05 / math.sqrt(20_000)
    assert rounds._error(base.tolist(), new.tolist()) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.012, "1.2%"), (0.999, "99.9%"), (1, "2 x"), (98.9, "99.9 x"), (99, "> 100 x")],
)
def test_changes_of_a_self_test_are_shares_or_factors(share: float, expected: str) -> None:
    assert noise._change(share) == expected
