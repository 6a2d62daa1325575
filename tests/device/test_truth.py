"""`scripts/bench_tracking.py --device bench`: operation times match the known kernel times."""

import json
from pathlib import Path

import pytest

from tests.device import build
from tests.processes import python

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_tracking.py"


@pytest.mark.slow
def test_operation_times_add_up_to_the_kernel_times() -> None:
    if reason := build.why_not():
        pytest.skip(reason)
    build.library()
    done = python(SCRIPT, "--device", "bench", "--rounds", "3", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert {*figures} == {"kernels of 3 us", "kernels of 3 ms"}
    for one in figures.values():
        assert one["operations_ms"] == pytest.approx(one["kernels_ms"], rel=0.02)
