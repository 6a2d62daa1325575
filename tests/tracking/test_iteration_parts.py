"""An iteration is divided into parts that add up to it, each with the line where it begins."""

import gc
import json
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tracking.workloads import Workload, names
from unified_prof.base.text import source_hash
from unified_prof.tracking.device import HostClock, WaitingTime
from unified_prof.tracking.passes import DATA_LOADING, FORWARD, OPTIMIZER, READS, ZERO_GRAD, Passes

TRAINING = """
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 512), nn.Linear(512, 4)
    def forward(self, x):
        return self.last(checkpoint(lambda y: self.first(y).relu().exp(), x, use_reentrant=False))

net = Net()
optimizer = torch.optim.AdamW(net.parameters())
for x, in DataLoader(TensorDataset(torch.randn(512, 64)), batch_size=32):
    loss = net(x).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    loss.item()
"""
LINES = {
    "data_loading": 17,
    "forward": 18,
    "zero_grad": 19,
    "backward": 20,
    "recomputation": 20,
    "gradient_clipping": 21,
    "optimizer": 22,
    "synchronizing_reads": 23,
}


def test_every_part_of_a_training_loop_is_timed_at_its_line(workload: Workload) -> None:
    script = workload.write("main.py", TRAINING)
    tracked = workload.tracked("main.py", scope="project")
    for iteration in tracked.iterations:
        assert iteration.parts_ms.keys() == LINES.keys() - {"forward", "backward"}
        assert all(ms > 0 for ms in iteration.parts_ms.values())
        passes_ms = (iteration.forward_ms or 0) + (iteration.backward_ms or 0)
        assert passes_ms + sum(iteration.parts_ms.values()) <= iteration.total_ms + 1e-6
    assert json.loads(tracked.facts["part_lines"]) == {
        part: f"main.py:{line}" for part, line in LINES.items()
    }
    hashes = json.loads(tracked.facts["source_hashes"])
    assert hashes == {"main.py": source_hash(script.read_bytes().replace(b"\n", b"\r\n"))}
    assert tracked.facts["data_loader_workers"] == "0"
    assert tracked.facts["samples_per_iteration"] == "32"
    assert json.loads(tracked.facts["optimizers"]) == [
        {"class": "AdamW", "foreach": False, "fused": False, "parameters": 4, "sparse": False}
    ]


SOMETIMES = """
net = nn.Linear(64, 64)
{before}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(24):
    net(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 3 == 0:
        {work}
"""


@pytest.mark.parametrize(
    ("part", "before", "work"),
    [
        ("forward_without_gradients", "", "with torch.no_grad(): net(torch.randn(99, 64))"),
        ("saving", "", "torch.save(net.state_dict(), 'net.pt')"),
        (
            "compilation",
            "import torch._dynamo",
            "torch._dynamo.reset(); torch.compile(torch.relu, backend='eager')(torch.ones(2))",
        ),
    ],
)
def test_some_iterations_have_parts(workload: Workload, part: str, before: str, work: str) -> None:
    workload.write("main.py", SOMETIMES.format(before=before, work=work))
    tracked = workload.tracked("main.py", iterations=6)
    having = [record for record in tracked.iterations if part in record.parts_ms]
    assert 0 < len(having) < 6
    lines = json.loads(tracked.facts["part_lines"])
    assert lines[part].startswith("main.py:")
    assert lines[part] != lines["forward"]
    assert all((record.forward_ms or 0) > 0 for record in tracked.iterations)


@pytest.mark.parametrize("every", [2, 4])
def test_periodic_work_has_its_share_of_the_samples(workload: Workload, every: int) -> None:
    work = "torch.save(net.state_dict(), 'net.pt')"
    source = SOMETIMES.format(before="", work=work).replace("% 3", f"% {every}")
    workload.write("main.py", source)
    records = workload.tracked("main.py", iterations=8).iterations
    assert sum("saving" in record.parts_ms for record in records) == 8 / every


def test_forward_pass_of_an_inference_loop_is_no_evaluation(workload: Workload) -> None:
    loop = "for _ in range(12):\n    with torch.no_grad(): net(torch.randn(4, 8))"
    workload.write("main.py", f"net = nn.Linear(8, 8)\n{loop}")
    for record in workload.tracked("main.py").iterations:
        assert record.forward_ms
        assert "forward_without_gradients" not in record.parts_ms


@pytest.mark.parametrize("is_on", [True, False])
def test_anomaly_detection_is_noted(workload: Workload, is_on: bool) -> None:
    workload.write("main.py", f"torch.autograd.set_detect_anomaly({is_on})\n{TRAINING}")
    try:
        assert ("detect_anomaly" in workload.tracked("main.py").facts) == is_on
    finally:
        torch.autograd.set_detect_anomaly(False)


def test_types_of_weights_are_noted_with_their_bytes(workload: Workload) -> None:
    loop = """
net = nn.Sequential(nn.Linear(8, 4).double(), nn.Linear(4, 2))
for _ in range(12):
    net[1](net[0](torch.randn(4, 8).double()).float()).sum().backward()
"""
    workload.write("main.py", loop)
    types = json.loads(workload.tracked("main.py").facts["weight_types"])
    assert types == {"float64": 8 * (8 * 4 + 4), "float32": 4 * (4 * 2 + 2)}


def test_sparse_gradients_are_noted(workload: Workload) -> None:
    workload.write(
        "main.py",
        """
        table = nn.Embedding(8, 4, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for _ in range(8):
            optimizer.zero_grad()
            table(torch.arange(4)).sum().backward()
            optimizer.step()
        """,
    )
    (found,) = json.loads(workload.tracked("main.py").facts["optimizers"])
    assert found["sparse"]
    assert found["parameters"] == 1


def test_marks_of_many_reads_start_no_garbage_collection() -> None:
    """A full collection takes 150 ms in a process with torch, which the part would be charged."""
    waiting = WaitingTime()
    passes = Passes(HostClock(), waiting)
    passes.begin()
    run_block(passes, READS)
    before = gc.get_stats()[0]["collections"]
    for _ in range(20_000):
        with passes.part(READS):
            pass
    assert gc.get_stats()[0]["collections"] - before <= 1
    passes.end()
    waiting.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "read", ["int(loss)", "bool(loss > 0)", "[0][loss.long() * 0]", "loss.cpu()"]
)
def test_every_read_on_the_host_is_a_synchronizing_read(workload: Workload, read: str) -> None:
    workload.write("main.py", TRAINING.replace("loss.item()", read))
    tracked = workload.tracked("main.py", scope="project")
    assert json.loads(tracked.facts["part_lines"])["synchronizing_reads"] == "main.py:23"
    assert all(record.parts_ms["synchronizing_reads"] > 0 for record in tracked.iterations)


def test_clipping_and_reads_are_traced_without_a_graph_break(workload: Workload) -> None:
    workload.write(
        "main.py",
        """
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        def scaled(x):
            return x * x.sum().item()
        torch._dynamo.config.capture_scalar_outputs = True
        compiled = torch.compile(scaled, backend="eager", fullgraph=True)
        for _ in range(6):
            net(compiled(torch.ones(2, 4))).sum().backward()
            optimizer.step()
        """,
    )
    assert "torch.compile(scaled)" in names(workload.tracked("main.py", scope="project"))


def test_a_torchscript_module_is_one_operation_with_its_backward_time(workload: Workload) -> None:
    workload.write(
        "main.py",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
            def forward(self, x):
                return self.last(torch.relu(self.first(x)))
        net = torch.jit.script(Net())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(8):
            net(torch.randn(4, 8)).sum().backward()
            optimizer.step()
        """,
    )
    (operation,) = workload.tracked("main.py").operations
    assert operation.name == "torch.jit(Net)"
    assert operation.backward_ms is not None
    # Waiting for a processor is not counted; it may take all of a short sample.
    assert max(operation.backward_ms) > 0


def test_training_in_another_thread_is_said_to_be_untracked(workload: Workload) -> None:
    workload.write(
        "main.py",
        """
        import threading
        net = nn.Linear(8, 8)
        def train():
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(8):
                net(torch.randn(4, 8)).sum().backward()
                optimizer.step()
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        """,
    )
    tracked = workload.run("main.py").tracked
    assert tracked is not None
    assert "another thread" in tracked.facts["not_tracked"]


def run_block(passes: Passes, part: str) -> None:
    with passes.part(part):
        sum(range(200))


def step(passes: Passes, block: Callable[[], object] = lambda: None) -> None:
    passes.optimizer_steps()
    block()
    passes.optimizer_ended()


def backward(passes: Passes, block: Callable[[], object] = lambda: None) -> None:
    passes.run_backward(lambda _: block(), None, (), {})


ACTIONS: dict[str, Callable[[Passes], None]] = {
    "forward": Passes.forward_begins,
    "backward": backward,
    "optimizer": step,
    "optimizer in backward": lambda passes: backward(passes, lambda: step(passes)),
    "optimizer that raises": Passes.optimizer_steps,
    "read in optimizer": lambda passes: step(passes, lambda: run_block(passes, READS)),
    "load": lambda passes: run_block(passes, DATA_LOADING),
    "read": lambda passes: run_block(passes, READS),
    "zero_grad": lambda passes: run_block(passes, ZERO_GRAD),
}


@given(st.lists(st.sampled_from(sorted(ACTIONS)), max_size=12))
def test_parts_never_take_longer_than_the_iteration(actions: list[str]) -> None:
    passes = Passes(HostClock(), None)
    passes.begin()
    for action in actions:
        ACTIONS[action](passes)
    passes.end()
    run_block(passes, READS)  # after the end: not part of the iteration
    times = passes.times()
    assert times is not None
    parts = [times.forward_ms or 0.0, times.backward_ms or 0.0, *times.parts_ms.values()]
    assert sum(parts) == pytest.approx(min(sum(parts), times.total_ms))
    assert times.forward_ms is None or FORWARD in actions
    assert (OPTIMIZER in times.parts_ms) == any("optimizer" in action for action in actions)


class Machine(WaitingTime):
    """Clock, CPU time and waiting time of a thread, which the test moves on."""

    def __init__(self) -> None:
        self.now_ns = 10**9
        self.cpu_ns = self.waited_ns = self.readings = 0

    def read_ns(self) -> int:
        self.readings += 1
        return self.waited_ns

    def runs(self, us: int, waits_us: int = 0) -> None:
        self.now_ns += (us + waits_us) * 1000
        self.cpu_ns += us * 1000
        self.waited_ns += waits_us * 1000


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    result = Machine()
    for module in ("passes", "device"):
        name = f"unified_prof.tracking.{module}.perf_counter_ns"
        monkeypatch.setattr(name, lambda: result.now_ns)
    monkeypatch.setattr("unified_prof.tracking.passes.process_time_ns", lambda: result.cpu_ns)
    return result


def test_wait_that_is_counted_late_is_no_longer_than_the_part(machine: Machine) -> None:
    passes = Passes(HostClock(), machine)
    passes.begin()
    passes.forward_begins()
    machine.runs(us=300)  # A short part, without a reading at its end.
    machine.waited_ns += 3_000_000
    backward(passes, lambda: machine.runs(us=1000))
    passes.end()
    times = passes.times()
    assert times is not None
    assert (times.backward_ms, times.backward_waited_ms) == (1, 1)


def test_waiting_and_cpu_time_belong_to_the_long_part(machine: Machine) -> None:
    passes = Passes(HostClock(), machine)
    passes.begin()
    passes.forward_begins()
    machine.runs(us=100)
    backward(passes, lambda: machine.runs(us=1000, waits_us=3000))
    step(passes, lambda: machine.runs(us=200))
    passes.end()
    assert machine.readings == 3  # at both ends, and after the backward pass
    times = passes.times()
    assert times is not None
    assert (times.total_ms, times.waited_ms, times.cpu_ms) == (4.3, 3, 1.3)
    assert (times.forward_ms, times.forward_waited_ms, times.forward_cpu_ms) == (0.1, 0, 0.1)
    assert (times.backward_ms, times.backward_waited_ms, times.backward_cpu_ms) == (4, 3, 1)
    assert times.parts_ms == {OPTIMIZER: 0.2}


ACCUMULATING = """
import torch
from torch import nn
from torch.utils.data import DataLoader

net = nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = [{"x": torch.ones(8), "id": number} for number in range(200)]
for step, batch in enumerate(DataLoader(data, batch_size=4)):
    net(batch["x"]).sum().backward()
    if step % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_samples_of_all_batches_between_optimizer_steps_are_counted(workload: Workload) -> None:
    workload.write("main.py", ACCUMULATING)
    assert workload.tracked("main.py").facts["samples_per_iteration"] == "12"


def test_program_without_a_data_loader_has_no_samples(workload: Workload) -> None:
    workload.write("main.py", ACCUMULATING.replace("DataLoader(data, batch_size=4)", "data"))
    assert "samples_per_iteration" not in workload.tracked("main.py").facts
