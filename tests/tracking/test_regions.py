"""Regions of a program: their operations, how often they open, their peaks."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.profiler import record_function

from tests.tracking.workloads import Workload, names
from unified_prof.base.run_spec import RegionRecord, TrackedRun
from unified_prof.tracking.device import HostClock, MemoryUse
from unified_prof.tracking.peak import AllocatorPeak
from unified_prof.tracking.raw_calls import Iteration
from unified_prof.tracking.regions import RegionWatch
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Anomalies

NET = """
from torch.profiler import record_function

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with record_function("encoder"):
            x = self.first(x)
            with record_function("activation"):
                x = torch.tanh(x)
        return self.second(x)
"""

LOOP = """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    {body}
    optimizer.step()
    optimizer.zero_grad()
"""


def region_path(tracked: TrackedRun, number: int | None) -> str:
    """Return a region with its enclosing regions, outermost first."""
    if number is None:
        return ""
    region = tracked.regions[number]
    return f"{region_path(tracked, region.around)}/{region.name}"


def operations_with_regions(tracked: TrackedRun) -> list[tuple[str, str]]:
    return [(record.name, region_path(tracked, record.region)) for record in tracked.operations]


def region(tracked: TrackedRun, name: str) -> RegionRecord:
    (found,) = (record for record in tracked.regions if record.name == name)
    return found


def loop(body: str) -> str:
    return NET + LOOP.format(body=body)


def test_operation_is_in_the_innermost_region_of_its_forward_call(workload: Workload) -> None:
    tracked = workload.track(loop("net(torch.ones(4, 8)).sum().backward()"))
    assert operations_with_regions(tracked) == [
        ("linear", "/encoder"),
        ("tanh", "/encoder/activation"),
        ("linear", ""),
    ]
    assert all(record.backward_ms is not None for record in tracked.operations)
    assert [(record.name, record.counts) for record in tracked.regions] == [
        ("encoder", (1, 1)),
        ("activation", (1, 1)),
    ], "without those that torch opens around the optimizer's step"
    assert [
        (record.operation_name, region_path(tracked, record.region))
        for record in tracked.activations
    ] == [("linear", "/encoder"), ("tanh", "/encoder/activation"), ("linear", "")]
    assert tracked.anomalies == {}


def test_program_without_regions_has_none(workload: Workload) -> None:
    source = NET.replace('with record_function("encoder")', "if True").replace(
        'with record_function("activation")', "if True"
    )
    tracked = workload.track(source + LOOP.format(body="net(torch.ones(4, 8)).sum().backward()"))
    assert len(tracked.operations) == 3
    assert tracked.regions == ()


def test_region_open_across_iterations_contains_their_operations(workload: Workload) -> None:
    source = loop("net(torch.ones(4, 8)).sum().backward()")
    around = "with record_function('epoch'):\n"
    before, begin, after = source.partition("for step")
    indented = (begin + after).replace("\n", "\n    ")
    tracked = workload.track(f"{before}{around}    {indented}\n")
    assert [region_path(tracked, record.region) for record in tracked.operations] == [
        "/epoch/encoder",
        "/epoch/encoder/activation",
        "/epoch",
    ]
    assert region(tracked, "epoch").counts == (0, 0)


def test_region_closed_in_the_next_iteration_ends_there(workload: Workload) -> None:
    tracked = workload.track(
        NET
        + """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
open_region = None
for step in range(12):
    if open_region is not None:
        open_region.__exit__(None, None, None)
    loss = net(torch.ones(4, 8)).sum()
    open_region = record_function("tail")
    open_region.__enter__()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert region_path(tracked, tracked.operations[-1].region) == ""
    assert region(tracked, "tail").counts == (1, 1)


def test_recursive_regions_are_nested(workload: Workload) -> None:
    tracked = workload.track(
        """
from torch.profiler import record_function

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, depth=2):
        with record_function("level"):
            x = self.linear(x)
            return self.forward(x, depth - 1) if depth else torch.relu(x)
"""
        + LOOP.format(body="net(torch.ones(4, 8)).sum().backward()")
    )
    assert operations_with_regions(tracked) == [
        ("linear", "/level"),
        ("linear", "/level/level"),
        ("linear", "/level/level/level"),
        ("relu", "/level/level/level"),
    ]


def test_regions_of_other_threads_are_ignored(workload: Workload) -> None:
    tracked = workload.track(
        "import threading\nfrom torch.profiler import record_function\n"
        + NET
        + """
entered, done = threading.Event(), threading.Event()
def beside():
    with record_function("beside"):
        entered.set()
        done.wait(20)
other = threading.Thread(target=beside)
other.start()
assert entered.wait(20)
"""
        + LOOP.format(body="net(torch.ones(4, 8)).sum().backward()")
        + "done.set()\nother.join()\n"
    )
    assert operations_with_regions(tracked)[0] == ("linear", "/encoder")
    assert [record.name for record in tracked.regions] == ["encoder", "activation"]


def test_regions_without_an_operation_are_counted(workload: Workload) -> None:
    body = 'with record_function("data"): batch = torch.ones(4, 8)\n'
    body += '    with record_function("data"): pass\n'
    body += "    net(batch).sum().backward()"
    tracked = workload.track(loop(body))
    assert region(tracked, "data").counts == (2, 2)
    assert names(tracked) == ["linear", "tanh", "linear"]


def test_regions_of_torch_are_listed_if_they_contain_an_operation(workload: Workload) -> None:
    tracked = workload.track(
        NET
        + """
net = Net()
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.01, max_iter=1)
def closure():
    optimizer.zero_grad()
    loss = net(torch.ones(4, 8)).sum()
    loss.backward()
    return loss
for step in range(12):
    optimizer.step(closure)
"""
    )
    assert operations_with_regions(tracked)[0] == ("linear", "/Optimizer.step#LBFGS.step/encoder")


def test_region_ends_with_an_error_in_its_body(workload: Workload) -> None:
    body = 'try:\n        with record_function("fails"):\n            raise ValueError\n'
    body += "    except ValueError:\n        pass\n    net(torch.ones(4, 8)).sum().backward()"
    tracked = workload.track(loop(body))
    assert operations_with_regions(tracked)[0] == ("linear", "/encoder")
    assert region(tracked, "fails").counts == (1, 1)


def test_peak_of_a_region_is_the_maximum_while_it_is_open(workload: Workload) -> None:
    body = """with record_function("small"):
        kept = torch.ones(1 << 16)
    with record_function("large"), record_function("within"):
        torch.ones(1 << 20)
    with record_function("after"):
        pass
    net(torch.ones(4, 8)).sum().backward()"""
    tracked = workload.track(loop(body))
    peaks = {record.name: record.peak_usage_bytes for record in tracked.regions}
    small, large, after = (peaks[name] for name in ("small", "large", "after"))
    assert small is not None
    assert large is not None
    assert after is not None
    assert large == peaks["within"] == tracked.peak_usage_bytes
    assert large - after == 4 << 20
    assert after <= small, "the kept tensor is in both"
    assert small >= 4 << 16


def test_scripted_functions_with_regions_compile_during_tracking(workload: Workload) -> None:
    workload.write(
        "main.py",
        NET
        + """
@torch.jit.script
def scripted(x):
    with torch.autograd.profiler.record_function("in script"):
        return x * 2
assert "record_function" in str(scripted.graph)
"""
        + LOOP.format(body="net(scripted(torch.ones(4, 8))).sum().backward()"),
    )
    assert operations_with_regions(workload.tracked())[0] == ("linear", "/encoder")


@pytest.mark.slow
def test_compiled_graphs_are_kept(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    source = (
        NET
        + """
import torch._dynamo
from torch._dynamo.utils import counters
torch._dynamo.reset()
counters.clear()
net = Net()
model = torch.compile(net, backend="aot_eager", fullgraph=True)

@torch.compile(backend="aot_eager")
def loss(x):
    with record_function("loss"):
        y = model(x)
        torch._dynamo.graph_break()
        with record_function("sum"):
            return (y * 2).sum()

optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    with record_function("whole"):
        model(torch.ones(4, 8)).sum().backward()
    loss(torch.ones(4, 8)).backward()
    optimizer.step()
    optimizer.zero_grad()
print(counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
"""
    )
    plain = workload.write("alone.py", source)
    exec(compile(plain.read_text(), str(plain), "exec"), {"__name__": "alone"})
    alone = capsys.readouterr().out
    tracked = workload.track(source)
    assert capsys.readouterr().out == alone
    assert ("torch.compile(Net)", "/whole") in operations_with_regions(tracked)


@pytest.fixture
def watch() -> Iterator[RegionWatch]:
    watch = RegionWatch(TorchInternals(Anomalies()))
    watch.install()
    yield watch
    watch.remove()


def innermost(watch: RegionWatch) -> str:
    number = watch.innermost
    found = []
    while number >= 0:
        found.append(watch.regions.names[number])
        number = watch.regions.around[number]
    return "/".join(found[::-1])


def test_patched_methods_are_restored(watch: RegionWatch) -> None:
    assert record_function.__enter__.__name__ == "__enter__"
    assert record_function.__enter__.__globals__ is vars(torch.autograd.profiler)
    watch.remove()
    assert not hasattr(record_function.__enter__, "__wrapped__")


def test_regions_can_close_in_any_order(watch: RegionWatch) -> None:
    watch.follow(Iteration(HostClock()))
    first, second = record_function("first"), record_function("second")
    first.__enter__()
    second.__enter__()
    assert innermost(watch) == "first/second"
    first.__exit__(None, None, None)
    assert innermost(watch) == "second"
    second.__exit__(None, None, None)
    assert innermost(watch) == ""


def test_region_can_be_closed_by_another_thread(watch: RegionWatch) -> None:
    watch.follow(Iteration(HostClock()))
    record = record_function("handed over")
    record.__enter__()
    thread = threading.Thread(target=record.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert innermost(watch) == ""


def test_deleted_region_is_closed(watch: RegionWatch) -> None:
    watch.follow(Iteration(HostClock()))
    record = record_function("dropped")
    record.__enter__()
    assert innermost(watch) == "dropped"
    del record
    assert innermost(watch) == ""


def test_decorated_function_can_call_itself(watch: RegionWatch) -> None:
    watch.follow(Iteration(HostClock()))
    seen = []

    def twice(depth: int) -> None:
        seen.append(innermost(watch))
        if depth:
            decorated(depth - 1)

    decorated = record_function("calls itself")(twice)
    decorated(1)
    assert seen == ["calls itself", "calls itself/calls itself"]
    assert innermost(watch) == ""


def test_nvtx_ranges_are_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.cuda.nvtx as nvtx

    calls: list[object] = []

    def record_call(what: object = "pop") -> int:
        calls.append(what)
        return 7

    names = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd")
    fake = SimpleNamespace(**dict.fromkeys(names, record_call))
    before = dict(vars(fake))
    monkeypatch.setattr(nvtx, "_nvtx", fake)
    watch = RegionWatch(TorchInternals(Anomalies()))
    watch.install()
    watch.follow(Iteration(HostClock()))
    with nvtx.range("outer {}", 1):
        nvtx.range_push("inner")
        assert innermost(watch) == "outer 1/inner"
        handle = nvtx.range_start("beside")
        assert innermost(watch) == "outer 1/inner/beside"
        nvtx.range_pop()
        assert innermost(watch) == "outer 1/beside"
        nvtx.range_end(handle)
        assert innermost(watch) == "outer 1"
    assert innermost(watch) == ""
    assert all(watch.regions.of_program)
    assert calls == ["outer 1", "inner", "beside", "pop", 7, "pop"]
    watch.remove()
    assert vars(fake) == before


def test_ranges_that_begin_during_a_recording_are_noted(watch: RegionWatch) -> None:
    with record_function("before"):
        entered = watch.note_entered()
        assert entered is not None
        with record_function("during") as during:
            assert list(entered) == [during]
        with record_function("deleted"):
            pass
        assert list(entered) == [during]


def test_profiler_steps_are_no_regions(watch: RegionWatch) -> None:
    watch.follow(Iteration(HostClock()))
    with record_function("ProfilerStep#3"), record_function("own"):
        assert innermost(watch) == "own"


def test_number_of_regions_is_limited(watch: RegionWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unified_prof.tracking.regions._MAX_REGIONS", 2)
    iteration = Iteration(HostClock())
    watch.follow(iteration)
    with record_function("a"), record_function("b"), record_function("c"):
        assert innermost(watch) == "a/b"
    assert innermost(watch) == ""
    assert watch.regions.dropped == 1
    assert len(iteration.regions) == 3 * 6


def test_dropped_regions_are_an_anomaly(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unified_prof.tracking.regions._MAX_REGIONS", 1)
    tracked = workload.track(loop("net(torch.ones(4, 8)).sum().backward()"))
    assert region_path(tracked, tracked.operations[1].region) == "/encoder"
    assert "regions_not_recorded" in tracked.anomalies


class FakeMemory:
    """A device with a chosen amount in use, and the peak since the last reset."""

    kind = "fake"

    def __init__(self) -> None:
        self.now = self.highest = 100

    def use(self, amount: int) -> None:
        self.now = amount
        self.highest = max(self.highest, amount)

    def memory_use(self) -> tuple[MemoryUse, ...]:
        return (MemoryUse(0, self.highest, 2 * self.highest, 0, 0),)

    def reset_peaks(self) -> tuple[MemoryUse, ...]:
        before = self.memory_use()
        self.highest = self.now
        return before


@pytest.mark.parametrize("limit", [5, 4])  # of changes of the open regions: five
def test_device_peak_of_a_region_is_the_maximum_while_it_is_open(
    watch: RegionWatch, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unified_prof.tracking.peak._MAX_CHANGES", limit)
    memory = FakeMemory()
    peak = AllocatorPeak(memory, watch)  # type: ignore[arg-type]
    memory.use(9000)
    memory.use(100)
    peak.start()
    with record_function("open before"):
        peak.begin_iteration(0)
        memory.use(500)
        with record_function("first"):
            memory.use(800)
            with record_function("within"):
                memory.use(300)
            memory.use(200)
        memory.use(900)
        memory.use(700)
    memory.use(600)
    memory.use(100)
    peak.end_iteration(0)
    with record_function("afterwards"):
        memory.use(5000)
    assert peak.peak_bytes == 900
    assert peak.facts["peak_reserved_bytes fake:0"] == "1800"
    found = {watch.regions.names[number]: size for number, size in peak.region_peaks.items()}
    assert found == ({"open before": 900, "first": 800, "within": 800} if limit == 5 else {})


def test_region_peak_starts_with_the_memory_in_use(watch: RegionWatch) -> None:
    memory = FakeMemory()
    peak = AllocatorPeak(memory, watch)  # type: ignore[arg-type]
    peak.begin_iteration(0)
    memory.use(800)
    memory.use(400)
    with record_function("low"):
        memory.use(450)
    peak.end_iteration(0)
    assert peak.peak_bytes == 800
    assert [*peak.region_peaks.values()] == [450]
