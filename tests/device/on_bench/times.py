"""Measured operation times are those of kernels of exactly 3 us and 3 ms."""

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.device import bench
from tests.device.on_bench.workloads import LAYERS, PROVIDERS
from tests.processes import uprof
from tests.tracking.workloads import Workload, names
from unified_prof.base.run_spec import OperationRecord, TrackedRun
from unified_prof.errors import MeasuringError
from unified_prof.tracking import device_clock as lag_module
from unified_prof.tracking import operations as operations_module
from unified_prof.tracking.device_clock import EventClock, _places
from unified_prof.tracking.torch_names import Anomalies

US, MS = 1_000, 1_000_000


def forward_us(operation: OperationRecord) -> list[float]:
    return [round(1000 * one, 3) for one in operation.forward_ms]


def by_name(tracked: TrackedRun, name: str) -> list[OperationRecord]:
    return [one for one in tracked.operations if one.name == name]


@pytest.mark.parametrize("kernel_us", [3, 3000])
def test_operation_time_is_the_time_of_its_kernels(workload: Workload, kernel_us: int) -> None:
    bench.set_duration(kernel_us * US)
    tracked = workload.model(LAYERS, providers=PROVIDERS, device="bench", iterations=4)
    assert names(tracked) == ["linear", "relu"] * 5
    # mm for the weight and (except in the first layer) for the input, sum for the bias
    backward = {"relu": 1, "linear": 3}
    for number, one in enumerate(tracked.operations):
        assert forward_us(one) == [kernel_us] * len(one.forward_ms)
        assert one.backward_ms is not None
        kernels = backward[one.name] - (number == 0)
        assert [round(1000 * ms, 3) for ms in one.backward_ms] == [kernels * kernel_us] * len(
            one.forward_ms
        )
    reached, timed = tracked.facts["intervals_reached_by_device"].split(" of ")
    assert int(timed) >= 4 * 20
    assert int(reached) < int(timed) / 2  # only while other processes had the CPU


def test_times_are_read_while_running(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations_module, "_MAX_RAW_ON_DEVICE", 0)
    kept = []
    forget = EventClock.forget

    def noted(clock: EventClock) -> None:
        kept.append(len(clock._events))
        forget(clock)

    monkeypatch.setattr(EventClock, "forget", noted)
    bench.set_duration(3 * US)
    tracked = workload.model(LAYERS, providers=PROVIDERS, device="bench", iterations=6)
    assert len(tracked.iterations) == 6
    assert {us for one in tracked.operations for us in forward_us(one)} == {3}
    assert len(kept) >= 6
    assert max(kept) < 200, "of one sample"


def test_recomputed_time_is_the_time_of_recomputed_kernels(workload: Workload) -> None:
    bench.set_duration(3000 * US)
    block = """
        from torch.utils.checkpoint import checkpoint
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            def block(self, x):
                return self.b(self.a(x).relu()).relu()
            def forward(self, x):
                return checkpoint(self.block, self.first(x), use_reentrant=False)
    """
    tracked = workload.model(block, providers=PROVIDERS, device="bench", iterations=3)
    assert names(tracked) == ["linear", "linear", "relu", "linear", "relu"]
    first, *again = tracked.operations
    assert first.recomputed_ms is None
    for one in again:
        assert one.recomputed_ms is not None
        assert {round(1000 * ms, 3) for ms in one.recomputed_ms} == {3000}
    assert [{round(1000 * ms, 3) for ms in one.backward_ms or ()} for one in again[1::2]] == [
        {3000}
    ] * 2


def test_optimizer_steps_within_the_backward_pass_end_iterations(workload: Workload) -> None:
    bench.set_duration(3 * US)
    workload.write(
        "main.py",
        LAYERS
        + """
net = Net().to("bench")
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
def hook(p):
    optimizers[p].step()
    optimizers[p].zero_grad()
for p in net.parameters():
    p.register_post_accumulate_grad_hook(hook)
for _ in range(20):
    net(torch.ones(4, 8, device="bench")).sum().backward()
""",
    )
    tracked = workload.tracked(device="bench", iterations=3)
    assert tracked.complete
    assert len(tracked.iterations) == 3
    assert names(tracked)[:2] == ["linear", "relu"]


def test_event_overhead_is_excluded_from_operation_time(workload: Workload) -> None:
    """On an H100 each interval held 2.1 us of events: kernels of 1.2 us appeared as 4.1."""
    bench.set_duration(3 * US)
    bench.set_event_cost(2100)
    views = LAYERS.replace("        return x\n", "        return x.view(-1)\n")
    tracked = workload.model(views, providers=PROVIDERS, device="bench", iterations=3)
    assert names(tracked) == ["linear", "relu"] * 5 + ["view"]
    assert tracked.facts["event_cost_ns"] == "2100"
    assert {us for one in tracked.operations for us in forward_us(one)} == {3, 0}
    assert {*forward_us(tracked.operations[-1])} == {0}
    backward = [round(1000 * ms, 3) for one in tracked.operations for ms in one.backward_ms or ()]
    assert {*backward} == {0, 3, 6, 9}


def test_iteration_time_is_measured_without_timing_operations(workload: Workload) -> None:
    """The host takes 20 ms per step, the device 0.2 ms: the iteration takes 20 ms."""
    bench.set_duration(3 * US)
    slow = LAYERS.replace(
        "        return x\n", "        import time; time.sleep(0.02)\n        return x\n"
    )
    tracked = workload.model(slow, providers=PROVIDERS, device="bench", iterations=3)
    for one in tracked.iterations:
        assert one.forward_ms is not None
        assert one.backward_ms is not None
        assert one.forward_ms >= 20
        assert one.total_ms >= one.forward_ms + one.backward_ms


def test_busy_device_is_timed_exactly(workload: Workload) -> None:
    bench.set_duration(2 * MS, "addmm")
    bench.set_duration(5 * US, "relu")
    tracked = workload.model(LAYERS, providers=PROVIDERS, device="bench", iterations=2)
    assert {us for one in by_name(tracked, "linear") for us in forward_us(one)} == {2000}
    assert {us for one in by_name(tracked, "relu") for us in forward_us(one)} == {5}


def test_device_is_delayed_by_memory(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.set_duration(3 * US)
    bench.set_duration(500 * US, "zero_")  # few values, as the host computes them
    monkeypatch.setattr(lag_module, "_FILL_BYTES", 1024)
    monkeypatch.delattr(torch.bench, "_sleep")
    tracked = workload.model(LAYERS, providers=PROVIDERS, device="bench", iterations=3)
    assert names(tracked) == ["linear", "relu"] * 5
    exact = [forward_us(one) for one in tracked.operations if 3.0 in forward_us(one)]
    assert len(exact) >= 8


def test_operation_before_a_synchronization_is_timed_exactly(workload: Workload) -> None:
    waiting = LAYERS.replace("x = layer(x).relu()", "x = layer(x).relu(); self.n = x.nonzero()")
    bench.set_duration(3 * US)
    tracked = workload.model(waiting, providers=PROVIDERS, device="bench", iterations=3)
    assert {us for one in by_name(tracked, "linear") for us in forward_us(one)} == {3}


def test_times_that_include_host_time_are_reported_if_the_device_cannot_be_delayed(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(torch.bench, "_sleep", broken)
    bench.set_duration(3 * US)
    tracked = workload.model(LAYERS, providers=PROVIDERS, device="bench", iterations=3)
    assert "no kernel image" in tracked.anomalies["device_not_held_back"][1]
    count, detail = tracked.anomalies["operation_time_holds_host_time"]
    assert count >= 8
    assert "the device caught up with the host" in detail
    reached, timed = tracked.facts["intervals_reached_by_device"].split(" of ")
    assert int(reached) > int(timed) / 2


def test_failing_delay_does_no_harm(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("launch failed")

    monkeypatch.setattr(lag_module.Lag, "hold_back", broken)
    outcome = workload.model(LAYERS, providers=PROVIDERS, device="bench", iterations=2)
    assert names(outcome) == ["linear", "relu"] * 5
    assert "launch failed" in outcome.anomalies["device_not_held_back"][1]


def test_delay_is_recalibrated_when_the_device_runs_faster() -> None:
    lag = lag_module.make_lag("bench", torch.bench)
    lag.hold_back((0, 0), "first")
    torch.accelerator.synchronize()
    assert lag.lasted()
    rate = lag._units_per_ns
    lag._units_per_ns /= 10  # as calibrated on a device that ran slower
    bench.launch("ahead", 50 * MS)
    lag.hold_back((0, 0), "second")
    torch.accelerator.synchronize()
    assert not lag.lasted()
    assert lag._units_per_ns == pytest.approx(rate, rel=1e-5)


SPREAD = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8).to("bench:1")

    def to(self, device):
        self.first.to(device)
        return self

    def forward(self, x):
        return self.second(self.first(x).to("bench:1"))
"""


def test_model_on_two_devices_is_timed_on_both(workload: Workload) -> None:
    bench.set_duration(3 * MS, "addmm")
    tracked = workload.model(SPREAD, providers=PROVIDERS, device="bench", iterations=3)
    first, second = by_name(tracked, "linear")
    assert {*forward_us(first)} == {*forward_us(second)} == {3000}
    assert second.backward_ms is not None
    assert min(second.backward_ms) > 0
    assert {"peak_allocated_bytes bench:0", "peak_allocated_bytes bench:1"} <= {*tracked.facts}
    both = sum(int(tracked.facts[f"peak_allocated_bytes bench:{one}"]) for one in (0, 1))
    assert tracked.peak_usage_bytes == both


def test_work_on_another_than_the_current_device_is_timed(workload: Workload) -> None:
    bench.set_duration(3 * MS, "addmm")
    elsewhere = PROVIDERS.replace('"bench"', '"bench:1"')
    tracked = workload.model(LAYERS, providers=elsewhere, device="bench", iterations=2)
    assert {us for one in by_name(tracked, "linear") for us in forward_us(one)} == {3000}
    assert min(one.total_ms for one in tracked.iterations) >= 15


def test_work_on_a_stream_of_the_program_is_timed(workload: Workload) -> None:
    bench.set_duration(3 * US)
    beside = LAYERS.replace(
        "        for layer", "        s = torch.Stream(device='bench:0')\n        for layer"
    ).replace("            x = layer(x).relu()", "            with s: x = layer(x).relu()")
    tracked = workload.model(beside, providers=PROVIDERS, device="bench", iterations=3)
    assert {us for one in by_name(tracked, "linear") for us in forward_us(one)} == {3}


def test_unreadable_event_affects_one_operation_only(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = EventClock.elapsed_ms
    failed: Counter[str] = Counter()

    class Unreadable:
        def __init__(self, event: Any) -> None:
            self._event = event

        def elapsed_time(self, other: Any) -> float:
            failed["events"] += 1
            raise RuntimeError("bench error: invalid resource handle")

    def sometimes(clock: EventClock, start: int, end: int) -> float:
        if not failed and end == start + 1 and start > 4:
            event, device = clock._events[start]
            clock._events[start] = (Unreadable(event), device)
        return read(clock, start, end)

    monkeypatch.setattr(EventClock, "elapsed_ms", sometimes)
    tracked = workload.model(LAYERS, providers=PROVIDERS, device="bench", iterations=3)
    assert failed["events"] >= 1
    assert len(tracked.operations) == 10
    assert len(tracked.iterations) == 3
    assert "invalid resource handle" in tracked.anomalies["event_not_read"][1]


def test_captured_graph_has_no_nodes_of_uprof(workload: Workload) -> None:
    captured = """
    from tests.device import bench

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.after = nn.Linear(8, 8), nn.Linear(8, 8)
            self.static = torch.ones(4, 8, device="bench")

        def forward(self, x):
            graph = bench.Graph()
            with graph:
                with torch.enable_grad():
                    self.lin(self.static).sum().backward()
            with open("nodes", "a") as nodes:
                print(*graph.names, file=nodes)
            graph.replay()
            return self.after(x)
    """
    tracked = workload.model(captured, providers=PROVIDERS, device="bench", iterations=2)
    nodes = {*Path("nodes").read_text().splitlines()}
    assert len(nodes) <= 2  # the first backward pass creates gradients, later ones add to them
    assert not any("event" in one or "clone" in one or "spin" in one for one in nodes)
    assert tracked.anomalies["operations_in_graphs"][0] >= 2
    assert "timeline" in tracked.anomalies["operations_in_graphs"][1]
    assert tracked.anomalies["graphs_replayed"][0] >= 2
    assert [one.name for one in tracked.operations][-1] == "linear"


WHOLE_STEP = """
import unified_prof
from tests.device import bench

layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to("bench")
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, foreach=False)
static = torch.ones(4, 8, device="bench")

def step():
    optimizer.zero_grad(set_to_none=False)
    layers(static).sum().backward()
    optimizer.step()

for _ in range({before}):
    step()
graph = bench.Graph()
with graph:
    step()
print(*graph.names)
for _ in range(12):
    static.copy_(torch.ones(4, 8))
    graph.replay()
    unified_prof.step()
"""


@pytest.mark.parametrize("before", [0, 1, 3])
def test_no_iteration_ends_within_the_capture_of_a_whole_step(
    workload: Workload, before: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Waiting for the device during a capture ends the program, on CUDA and here."""
    if not before:
        bench.launch("first", 1)  # initializes the device before its first capture
    workload.write("main.py", WHOLE_STEP.format(before=before))
    tracked = workload.run(device="bench", iterations=2, warmup=1).tracked
    assert tracked is not None
    assert tracked.anomalies["graphs_replayed"][0] >= 2
    assert "event" not in capfd.readouterr().out
    assert len(tracked.iterations) == 2


FAILING = """
model = nn.Linear(8, 8).to("bench")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.ones(2, 8, device="bench")).sum().backward()
    if step == {fails}:
        torch.ops.bench.failing(torch.ones(1, device="bench"), 200_000_000, "index out of bounds")
    optimizer.step()
    optimizer.zero_grad()
    if step == {ends}:
        break
"""


def test_device_error_found_by_uprof_is_attributed_to_the_workload(workload: Workload) -> None:
    workload.write("main.py", FAILING.format(fails=0, ends=0))
    with pytest.raises(
        MeasuringError, match=r"failed on the device.*index out of bounds"
    ) as caught:
        workload.run(device="bench", iterations=2, warmup=0)
    assert "LAUNCH_BLOCKING" in str(caught.value.hint)
    assert "uprof" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(("ends", "exit_code"), [(6, 0), (39, 1)])
def test_late_device_error_keeps_the_results(workload: Workload, ends: int, exit_code: int) -> None:
    workload.write("main.py", FAILING.format(fails=6, ends=ends))
    outcome = workload.run(device="bench", iterations=10, warmup=1)
    assert outcome.exit_code == exit_code
    assert "index out of bounds" in str(outcome.failure)
    assert "bug in uprof" not in str(outcome.failure)
    assert outcome.error is None
    assert outcome.tracked is not None
    assert not outcome.tracked.complete
    assert names(outcome.tracked)[-1] == "sum"


def test_events_are_reused(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    created: Counter[str] = Counter()
    real = torch.Event

    def counted(*args: Any, **kwargs: Any) -> Any:
        created["events"] += 1
        return real(*args, **kwargs)

    clock = EventClock("bench", torch.bench, Anomalies(), set())
    torch.ones(1, device="bench")
    monkeypatch.setattr(torch, "Event", counted)
    for _ in range(3):
        marks = [clock.mark() for _ in range(10)]
        clock.synchronize()
        assert clock.all_elapsed_ms(marks[:-1], marks[1:]).min() >= 0
        clock.forget()
    assert created["events"] == 10


def test_current_device_is_found_under_its_older_and_newer_name() -> None:
    module = SimpleNamespace(current_device=lambda: 3, current_stream=lambda device: "its own")
    newer, older = SimpleNamespace(), SimpleNamespace()
    newer.accelerator = SimpleNamespace(
        current_device_index=lambda: 1, current_stream=lambda _: "s"
    )
    older.accelerator = SimpleNamespace(current_device_idx=lambda: 2, current_stream=lambda _: "s")
    found = [_places(torch, module) for torch in (newer, older, SimpleNamespace())]
    assert [current() for current, _ in found] == [1, 2, 3]
    assert [stream(0) for _, stream in found] == ["s", "s", "its own"]


def test_program_may_fork_before_it_uses_the_device(workload: Workload) -> None:
    """Runs in another process because this one has used the device."""
    workload.write(
        "main.py",
        """
        import os
        child = os.fork()
        if not child:
            print(torch.ones(2, device="bench").sum().item(), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        model = nn.Linear(8, 8).to("bench")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(12):
            model(torch.ones(2, 8, device="bench")).sum().backward()
            optimizer.step()
        """,
    )
    done = uprof("run", "--backend", "bench", "-o", "out", "main.py", env=bench.environment())
    assert done.returncode == 0, done.stderr
    assert "2.0" in done.stdout


def test_device_waits_between_samples(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    real = torch.bench.synchronize

    def counted(*args: Any) -> None:
        waits.append(time.perf_counter())
        real(*args)

    workload.model(LAYERS, providers=PROVIDERS, device="bench", iterations=1)
    monkeypatch.setattr(torch.bench, "synchronize", counted)
    workload.model(LAYERS, providers=PROVIDERS, device="bench", iterations=5)
    # Four times for calibration, then per sample and at the end of each of three stages.
    assert len(waits) == 4 + 5 + 3
