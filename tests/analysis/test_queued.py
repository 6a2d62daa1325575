"""Tasks that were enqueued before the recording began belong to none of its steps."""

from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun
from unified_prof.explain.api import open_analyses


@pytest.mark.parametrize(
    ("queued_us", "graph", "launched_us", "first_ms"),
    [
        (0, False, 10, 10),
        (30_000, False, 10, 10),
        (30_000, True, 10, 40),  # the graph may have launched the kernels without a launch
        (600, False, 700, 10.6),  # the device ends them before the step launches anything
    ],
)
def test_first_step_begins_after_earlier_work(
    tmp_path: Path, queued_us: int, graph: bool, launched_us: int, first_ms: float
) -> None:
    """The host launches three steps of 10 ms in 3 ms, behind kernels without a launch."""
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in range(0, queued_us, 100):
            run.kernel(begin * US, (begin + 100) * US)
        if graph:
            run.api(1 * US, 2 * US, "cudaGraphLaunch")
        at = queued_us * US
        for begin in run.steps(3, MS):
            start = max(at, begin + launched_us * US)
            at += 10 * MS
            run.kernel(start, at, launched=begin + launched_us * US)
    with open_analyses(tmp_path / "run.db") as (analysis,):
        lengths = [(one.total_ns or 0) / MS for one in analysis.breakdown("step").rows]
    assert lengths == pytest.approx([first_ms, 10, 10], abs=0.02)
