"""Time that a thread waits for a processor is separate from the program's time."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.tracking.workloads import NET, Workload
from unified_prof.tracking import device
from unified_prof.tracking.device import WaitingTime, waited_within

needs_schedstat = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="needs /proc/thread-self/schedstat"
)


@needs_schedstat
def test_waiting_time_grows_by_less_than_the_elapsed_time() -> None:
    reader = WaitingTime()
    begun_ns, before = time.perf_counter_ns(), reader.read_ns()
    time.sleep(0.01)  # Sleeping is not waiting for a processor.
    after, passed_ns = reader.read_ns(), time.perf_counter_ns() - begun_ns
    reader.close()
    assert before is not None
    assert after is not None
    assert 0 <= after - before < passed_ns


def test_waiting_time_is_unknown_without_schedstat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_SCHEDSTAT", Path("/nonexistent"))
    reader = WaitingTime()
    assert reader.read_ns() is None
    reader.close()


@needs_schedstat
def test_every_iteration_has_its_waiting_time(workload: Workload) -> None:
    run = workload.model(NET)
    for iteration in run.iterations:
        assert iteration.waited_ms is not None
        assert 0 <= iteration.waited_ms <= iteration.total_ms


def test_waiting_time_is_assigned_to_intervals() -> None:
    waits = [(100, 7), (200, 7), (300, 57), (400, 57)]
    assert waited_within(waits, [(100, 400)]) == 50
    assert waited_within(waits, [(100, 200), (300, 400)]) == 0
    assert waited_within(waits, [(200, 250)]) == 25, "evenly between two readings"
    assert waited_within(waits, []) == 0
    assert waited_within(waits[:1], [(100, 400)]) is None


@needs_schedstat
def test_each_pass_has_its_waiting(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reported waiting time grows by the duration of every backward pass."""
    from unified_prof.tracking.passes import Passes

    waited_ns = 0

    def read_ns(_: WaitingTime) -> int:
        return waited_ns

    real = Passes.run_backward

    def run_backward(passes: Passes, engine: Any, *rest: Any) -> Any:
        def waiting_engine(*args: Any, **kwargs: Any) -> Any:
            nonlocal waited_ns
            begun_ns = time.perf_counter_ns()
            time.sleep(0.001)  # Waiting is read after long parts only.
            result = engine(*args, **kwargs)
            waited_ns += time.perf_counter_ns() - begun_ns
            return result

        return real(passes, waiting_engine, *rest)

    monkeypatch.setattr(WaitingTime, "read_ns", read_ns)
    monkeypatch.setattr(Passes, "run_backward", run_backward)
    run = workload.model(NET)
    shares = []
    for iteration in run.iterations:
        if iteration.forward_ms is None:
            continue
        assert iteration.waited_ms is not None
        assert iteration.forward_waited_ms is not None
        assert iteration.backward_waited_ms is not None
        passes_ms = iteration.forward_waited_ms + iteration.backward_waited_ms
        assert 0 <= passes_ms <= iteration.waited_ms * 1.001
        shares.append(iteration.backward_waited_ms / iteration.waited_ms)
    # Other programs may interrupt some passes, but not those of every iteration.
    assert max(shares) > 0.9


class Waits:
    """Waiting times of a thread that grow only when the program calls `wait`."""

    def __init__(self) -> None:
        self.waited_ns = 0

    def wait(self, seconds: float = 0.02) -> None:
        begun_ns = time.perf_counter_ns()
        time.sleep(seconds)
        self.waited_ns += time.perf_counter_ns() - begun_ns


SLOW = """
class slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        torch._test_slow()
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        torch._test_slow()
        return gradient
"""


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    import torch

    waits = Waits()
    monkeypatch.setattr(WaitingTime, "read_ns", lambda _: waits.waited_ns)
    monkeypatch.setattr(torch, "_test_wait", waits.wait, raising=False)
    monkeypatch.setattr(torch, "_test_slow", lambda: time.sleep(0.02), raising=False)
    return waits


@needs_schedstat
def test_times_of_operations_exclude_waiting(workload: Workload, waits: Waits) -> None:
    net = NET.replace("self.lin(x)", "slow.apply(self.lin(x)).relu()")
    run = workload.model(SLOW.replace("_slow", "_wait") + net, reports=("run-time",))
    by_name = {record.name: record for record in run.operations}
    assert min(by_name["slow"].forward_ms) < 10
    assert min(by_name["slow"].backward_ms or [99]) < 10
    for record in run.iterations:
        assert record.waited_ms is not None
        assert record.waited_ms >= 40


@needs_schedstat
def test_waiting_before_a_long_operation_is_no_part(workload: Workload, waits: Waits) -> None:
    net = NET.replace(
        "return self.lin(x)", "x = self.lin(x); torch._test_wait(); return slow.apply(x)"
    )
    run = workload.model(SLOW + net, reports=("run-time",))
    (slow,) = (record for record in run.operations if record.name == "slow")
    assert min(slow.forward_ms) >= 20
