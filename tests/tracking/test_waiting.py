"""Time in which others had the processor is told from the program's own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.tracking.workloads import Workload
from unified_prof.tracking import waiting
from unified_prof.tracking.waiting import WaitingTime

needs_schedstat = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="this system does not count waiting"
)


@needs_schedstat
def test_waiting_only_grows_and_is_less_than_the_time_that_passed() -> None:
    reader = WaitingTime()
    begun_ns, before = time.perf_counter_ns(), reader.read_ns()
    time.sleep(0.01)  # sleeping is no waiting for the processor
    after, passed_ns = reader.read_ns(), time.perf_counter_ns() - begun_ns
    reader.close()
    assert before is not None
    assert after is not None
    assert 0 <= after - before < passed_ns


def test_where_the_system_does_not_count_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_SCHEDSTAT", Path("/nonexistent"))
    reader = WaitingTime()
    assert reader.read_ns() is None
    reader.close()


@needs_schedstat
def test_every_iteration_says_how_long_it_waited(workload: Workload) -> None:
    run = workload.model(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 8)

            def forward(self, x):
                return self.lin(x)
        """
    )
    for iteration in run.iterations:
        assert iteration.waited_ms is not None
        assert 0 <= iteration.waited_ms <= iteration.total_ms
