"""`uprof diff` names the planted fault between a healthy program and the same one with a fault."""

from pathlib import Path
from typing import NamedTuple

import pytest

import unified_prof
from tests.simulated.programs import CLOSE, FAULTS, Fault, run
from unified_prof.base.text import NS_PER_MS
from unified_prof.compare.device_tables import DeviceDifference
from unified_prof.pipeline.convert import convert
from unified_prof.report import device_sentences
from unified_prof.report.device_sentences import finding_facts

# Faults of each kind, and the programs that have them.
PLANTED = [
    ("logging", "mlp"),
    ("cpu() in the middle", "transformer"),
    ("optimizer loop", "mlp"),
    ("activation as a chain", "transformer"),
    ("main process loads", "cnn"),
    ("all-reduce at the end", "ddp"),
]


class Compared(NamedTuple):
    """The differences between a healthy program and one with a fault, and the longer step."""

    there: DeviceDifference  # From the healthy program to the fault.
    back: DeviceDifference
    change_ns: float


def compared(folder: Path, name: str, base: str) -> Compared:
    """Compare the recordings of a program with and without a fault."""
    paths, steps_ms = [], []
    for label, fault in (("healthy", Fault(base, both=FAULTS[name].both)), ("fault", FAULTS[name])):
        machine, step_ms = run(base, fault)
        machine.write(folder / f"{label}.json")
        paths.append(convert(folder / f"{label}.json", folder / f"{label}.db").database)
        steps_ms.append(step_ms)
    there, back = (unified_prof.diff(*pair) for pair in (paths, paths[::-1]))
    assert isinstance(there, DeviceDifference)
    assert isinstance(back, DeviceDifference)
    return Compared(there, back, (steps_ms[1] - steps_ms[0]) * NS_PER_MS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "base"), PLANTED)
def test_the_fault_is_the_finding_that_changed_most(name: str, base: str, tmp_path: Path) -> None:
    there, back, change_ns = compared(tmp_path, name, base)
    largest = there.findings[0]
    assert largest.finding.kind in FAULTS[name].kinds.replace("+", "|").split("|")
    assert largest.change_ns == pytest.approx(change_ns, rel=CLOSE)
    assert [one.change_ns for one in back.findings] == [-one.change_ns for one in there.findings]
    for found in (there, back):  # The text describes the new side.
        new = {kind: finding for kind, (_, finding) in found.new.findings.items()}
        assert all(one.finding is new.get(one.finding.kind, one.finding) for one in found.findings)


def test_the_headline_says_whether_a_finding_is_new(tmp_path: Path) -> None:
    there, back, _ = compared(tmp_path, "garbage collection", "mlp")
    labels = [[label for label, _ in finding_facts(one)] for one in (there, back)]
    assert labels == [["finding", "no longer found"], ["finding", "new finding"]]
    # The trace of the healthy program has no events of the collector: the rule lacks its data.
    assert there.findings[0].base_ns is None
    assert dict(finding_facts(there))["finding"].startswith("unknown -> 6.0")
    sentence = device_sentences.device_verdict(there).split(". ", 1)[1]
    assert sentence.startswith("The finding that changed most costs 6.0")
    assert "ms/step instead of an unknown time: in new, " in sentence
    new, gone = (device_sentences._main_finding(one, one.findings[1]) for one in (back, there))
    assert new.startswith("A new finding costs ")
    assert gone.startswith("A finding that cost ")
    assert "s/step is gone: " in gone


@pytest.mark.slow
def test_findings_without_a_cost_of_their_own_are_no_change(tmp_path: Path) -> None:
    both = {"tokens": 512, "python_us": 2000.0}
    limited, paths = Fault("ddp", both=both, model={"reduction": "at end"}), []
    for base, fault in (("ddp", limited), ("mlp", Fault("mlp"))):
        machine, _ = run(base, fault)
        machine.write(tmp_path / f"{base}.json")
        paths.append(convert(tmp_path / f"{base}.json", tmp_path / f"{base}.db").database)
    found = unified_prof.diff(*paths)
    assert isinstance(found, DeviceDifference)
    assert "exposed_communication" in found.base.findings
    assert "exposed_communication" not in [one.finding.kind for one in found.findings]
