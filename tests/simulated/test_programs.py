"""`uprof advise` names planted faults with their true gain, and no fault in healthy programs.

Each fault is in one of the models that have it, in turn; `python -m tests.simulated` judges all.
"""

from pathlib import Path

import pytest

import unified_prof
from tests.simulated.programs import FAULTS, HEALTHY, HOLDING, Fault, judge, run
from unified_prof.pipeline.convert import convert

PLANTED = [
    bases[at % len(bases)]
    for at, fault in enumerate(FAULTS)
    if (bases := [one for one in HOLDING if one[0] == fault])
]
WITHOUT = [one for one in HOLDING if one[0] in HEALTHY]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "base"), [*PLANTED, *WITHOUT])
def test_findings_name_the_fault_and_its_gain(name: str, base: str) -> None:
    result = judge(name, base)
    assert not result.problems(), result


@pytest.mark.slow
def test_exposed_communication_is_named_even_if_the_host_limits_the_step(tmp_path: Path) -> None:
    both = {"tokens": 512, "python_us": 2000.0}
    machine, _ = run("ddp", Fault("ddp", both=both, model={"reduction": "at end"}))
    machine.write(tmp_path / "trace.json")
    database = convert(tmp_path / "trace.json", tmp_path / "report.db").database
    assert database is not None
    (advice,) = unified_prof.advise(database)
    (finding,) = [one for one in advice.findings if one.kind == "exposed_communication"]
    assert finding.cost_ms_per_step == 0
    assert "the step is as long without it" in finding.text
