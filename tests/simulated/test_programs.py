"""`uprof advise` names planted faults with their true gain, and no fault in healthy programs."""

import pytest

from tests.simulated.machine import TABLES
from tests.simulated.programs import PROGRAMS, judge

# Programs whose findings are wrong or overlap are listed as open in the table.
HOLDING = [program for program in PROGRAMS if " / ".join(program) not in TABLES["open"]]


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize(("name", "base"), HOLDING)
def test_findings_name_the_fault_and_its_gain(name: str, base: str) -> None:
    result = judge(name, base)
    assert not result.problems(), result
