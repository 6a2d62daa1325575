"""The programs, with planted faults or healthy, and what `uprof advise` finds in their traces."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import unified_prof
from tests.simulated.machine import TABLES, Machine, Settings
from tests.simulated.models import Model, run_step
from unified_prof.pipeline.convert import convert

WARM, STEPS = 4, 13  # Steps before the recording, and recorded ones.
SMALL = 0.04  # A gain below this share of a step needs no finding.
CLOSE = 0.15  # Greatest relative error of a cost.
LAUNCHING = {"host_bound", "small_kernels"}  # Kinds whose cost includes all launch overhead.


class Fault(NamedTuple):
    """A planted fault: changed settings of model and run, and calls at places of a step."""

    bases: str
    kinds: str = ""  # Findings that name it: `+` between two faults, `|` between alternatives.
    model: Mapping[str, Any] = {}
    run: Mapping[str, Any] = {}
    added: Mapping[str, str] = {}
    both: Mapping[str, Any] = {}  # Settings of the model also without the fault.
    every: int = 1
    at: int = 0  # The fault is in steps whose number is `at` modulo `every`.


FAULTS = {name: Fault(**row) for name, row in TABLES["faults"].items()}
HEALTHY = {name: Fault(**row) for name, row in TABLES["healthy"].items()}
PROGRAMS = [
    (name, base) for name, one in {**FAULTS, **HEALTHY}.items() for base in one.bases.split()
]
# Programs whose findings are wrong or overlap are listed as open in the table.
HOLDING = [program for program in PROGRAMS if " / ".join(program) not in TABLES["open"]]


class Result(NamedTuple):
    """The true gain of a repair, and the findings: kinds with costs."""

    kinds: str
    known: str
    step_ms: float
    gain_ms: float
    everything_ms: float  # Also without the launch overhead of the healthy program.
    together_ms: float  # The gain of all findings together, as `uprof advise` states it.
    findings: list[tuple[str, float]]

    def right(self) -> list[tuple[str, float]]:
        """Return the findings that name a fault, the most expensive of each."""
        groups = [group.split("|") for group in self.kinds.split("+") if group]
        found = [[one for one in self.findings if one[0] in group] for group in groups]
        return [one[0] for one in found if one]

    def other(self) -> list[tuple[str, float]]:
        """Return the findings that neither the faults nor the healthy program explain."""
        known = {*self.kinds.replace("+", "|").split("|"), *self.known.split()}
        return [one for one in self.findings if one[0] not in known]

    def problems(self) -> list[str]:
        """Return what is wrong with the findings."""
        right, slack = self.right(), 0.02 * self.step_ms
        cost, total = (sum(cost for _, cost in rows) for rows in (right, self.findings))
        most = self.everything_ms if {kind for kind, _ in right} & LAUNCHING else self.gain_ms
        own = [one for one in self.findings if one in right or one[0] not in self.known.split()]
        found = []
        if self.kinds and (self.gain_ms > SMALL * self.step_ms or self.kinds == "memory_pressure"):
            found += ["missing"] if len(right) < 1 + self.kinds.count("+") else []
            found += ["not first"] if not own or own[0] not in right else []
            low, high = (1 - CLOSE) * self.gain_ms, (1 + CLOSE) * max(most, self.gain_ms)
            found += [] if low - slack <= cost <= high + slack else ["cost"]
        found += ["joint"] if total > self.together_ms + 1e-3 else []
        found += ["sum"] if total > (1 + CLOSE) * self.everything_ms + slack else []
        return found + (["other"] if self.other() else [])


def run(base: str, fault: Fault, record: bool = True, **changed: Any) -> tuple[Machine, float]:
    """Return the machine after a run, and the time of a step in milliseconds."""
    row, ends = TABLES["bases"][base], []
    machine = Machine(Settings(**{**row.get("run", {}), **fault.run, **changed}))
    model = Model(**{**row.get("model", {}), **fault.both})
    for number in range(WARM + STEPS):
        if number == WARM:
            machine.begin_recording()
            machine.recording = record
        with machine.step(number):
            if number % fault.every == fault.at:
                run_step(machine, replace(model, **fault.model), fault.added)
            else:
                run_step(machine, model, {})
        ends.append(machine.step_end)
    return machine, (ends[-1] - ends[WARM]) / (STEPS - 1) / 1e3


@cache
def healthy_ms(base: str, both: tuple[tuple[str, Any], ...]) -> tuple[float, float]:
    """Return the time of a step without the fault, and also without overhead of the host."""
    ideal = Fault(base, both={**dict(both), "python_us": 0.0})
    ideal_ms = run(base, ideal, record=False, host_scale=0.02, batch_us=1.0)[1]
    return run(base, Fault(base, both=dict(both)), record=False)[1], ideal_ms


def judge(name: str, base: str) -> Result:
    """Simulate a program and compare the findings with the true gain."""
    fault = {**FAULTS, **HEALTHY}[name]
    machine, step_ms = run(base, fault)
    without_ms, ideal_ms = healthy_ms(base, tuple(fault.both.items()))
    with TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        machine.write(trace)
        (advice,) = unified_prof.advise(convert(trace, trace.with_suffix(".db")).database)
    findings = [(one.kind, one.cost_ms_per_step or 0.0) for one in advice.findings]
    known, gains = (
        TABLES["bases"][base].get("known", ""),
        (step_ms - without_ms, step_ms - ideal_ms),
    )
    return Result(fault.kinds, known, step_ms, *gains, advice.together_ms or 0.0, findings)
