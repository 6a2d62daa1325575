"""A run that steps in turn with another one, and the counts of its operators."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from tests.tracking.workloads import make_spec
from unified_prof.base.run_spec import MEMORY, RUN_TIME, TURNS_VARIABLE, Turns
from unified_prof.tracking import lockstep
from unified_prof.tracking.lockstep import TurnTaker


class Gate:
    """The gate's ends of the pipes of a run."""

    def __init__(self) -> None:
        self._reads, run_writes = os.pipe()
        run_reads, self._writes = os.pipe()
        lifeline, kept = os.pipe()
        # The run closes the end that it reads from.
        self.descriptors = (self._reads, run_writes, self._writes, lifeline, kept)
        self.turns = Turns(run_reads, run_writes, lifeline, is_first=True, per_sample=1)

    def answer(self, iterations: int) -> None:
        os.write(self._writes, f"{iterations}\n".encode())

    def hang_up(self) -> None:
        os.close(self._writes)

    def messages(self) -> list[str]:
        return os.read(self._reads, 999).decode().splitlines()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setattr(lockstep, "_end_with", lambda _: None)  # signals of pytest's processes
    made = Gate()
    yield made
    for one in made.descriptors:
        with suppress(OSError):
            os.close(one)


@pytest.mark.parametrize("waits", [False, True])
def test_run_steps_only_in_its_turns_and_reports_their_times(
    monkeypatch: pytest.MonkeyPatch, gate: Gate, waits: bool
) -> None:
    synchronized: list[int] = []
    wall, cpu = iter((100, 400, 1_000, 9_000)), iter((10, 30, 50, 90))
    monkeypatch.setattr(lockstep, "perf_counter_ns", lambda: next(wall))
    monkeypatch.setattr(lockstep, "process_time_ns", lambda: next(cpu))
    taker = TurnTaker(gate.turns, (lambda: synchronized.append(1)) if waits else None)
    gate.answer(2)
    taker.start()
    assert (gate.messages(), taker.is_over) == (["ready"], False)
    taker.begin_iteration(0)
    gate.answer(0)
    taker.end_iteration(0)
    assert not taker.is_over
    assert not synchronized
    taker.end_iteration(1)
    # Devices work beside the host: their turns are measured in wall time.
    assert gate.messages() == ["300 300" if waits else "20 300"]
    assert (taker.is_over, len(synchronized)) == (True, waits)
    taker._answers.close()


def test_run_ends_with_its_gate(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    killed: list[tuple[int, int]] = []

    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(os, "killpg", lambda *args: killed.append(args))
    taker = TurnTaker(gate.turns, None)
    gate.hang_up()
    for own_group in (False, True):
        group = os.getpid() + (not own_group)
        monkeypatch.setattr(os, "getpgid", lambda _, group=group: group)
        with pytest.raises(SystemExit, match="1"):
            taker.start()
        assert killed == [(os.getpid(), signal.SIGKILL)] * own_group
    taker._answers.close()


def test_operator_counts_are_those_every_iteration_has(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests of this process may have compiled code.
    monkeypatch.setattr(lockstep, "_compiled_frames", lambda: None)
    facts: dict[str, str] = {}
    counts = lockstep.OperatorCounts("cpu", facts)
    weight = torch.ones(4, 5)
    for iteration in range(2):
        counts.begin_iteration(iteration)
        y = torch.ones(3, 4) @ weight  # 2 * 3 * 4 * 5 FLOPs
        y.t()
        y[0, 0].item()
        for _ in range(iteration):
            torch.zeros(1)
        counts.end_iteration(iteration)
    torch.ones(7)
    assert facts == {
        "counted copies": "0",
        "counted flops": "120",
        "counted synchronizations": "1",
        "counts that vary": "aten-calls, bytes",
    }


@pytest.mark.parametrize("is_first", [True, False])
def test_gate_decides_what_a_run_measures(
    is_first: bool, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = asdict(gate.turns) | {"is_first": is_first}
    files = [values[name] for name in ("read", "write", "lifeline")]
    for one in files:
        os.set_inheritable(one, True)
    monkeypatch.setenv(TURNS_VARIABLE, json.dumps(values))
    turns = Turns.of_environment()
    assert turns is not None
    assert (asdict(turns), Turns.of_environment()) == (values, None)
    assert not any(map(os.get_inheritable, files))
    both = make_spec(tmp_path, reports=(RUN_TIME, MEMORY))
    applied = turns.applied_to(both)
    assert applied.reports == ((RUN_TIME, MEMORY) if is_first else (RUN_TIME,))
    assert (applied.stop_after, applied.turns) == (True, turns)
    without = replace(both, reports=(MEMORY,))
    assert turns.applied_to(without) is without
