"""Iterations of scripts without optimizer steps, and messages if none are found."""

import pytest

from tests.tracking.test_driver import Spy
from tests.tracking.workloads import FORKS_TRAIN, NET, Workload, in_backward, names
from unified_prof.errors import CaptureError

BY_HAND = """
torch.manual_seed(0)
net = Net()
for _ in range(24):
    net.zero_grad()
    net(torch.ones(4, 8)).sum().backward()
    for p in net.parameters():
        p.data.add_(p.grad, alpha=-0.01)
"""


def test_training_without_an_optimizer_has_iterations_and_a_timeline(workload: Workload) -> None:
    workload.write("main.py", NET + BY_HAND)
    log: list[str] = []
    tracked = workload.tracked(iterations=3, instruments=[Spy(log, "a")])
    assert tracked.complete
    assert len(tracked.iterations) == 3
    assert names(tracked) == in_backward(tracked) == ["linear", "relu"]
    assert tracked.facts["iterations_end_with"] == "backward passes"
    assert "whole_program" not in tracked.facts
    assert log.count("a end 2") == 1
    assert tracked.anomalies == {}


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("grad", ["torch.no_grad()", "torch.enable_grad()"])
def test_each_call_of_the_model_is_an_iteration_of_inference(workload: Workload, grad: str) -> None:
    tracked = workload.track(NET + f"""
net = Net().eval()
with {grad}:
    for _ in range(20):
        net(torch.ones(4, 8))
""", iterations=4)  # fmt: skip
    assert tracked.complete
    assert names(tracked) == ["linear", "relu"]
    assert len(tracked.iterations) == 4
    assert tracked.facts["iterations_end_with"] == "calls of the outermost module"


def test_inference_is_divided_into_the_model_and_the_rest(workload: Workload) -> None:
    tracked = workload.track(NET + """
import time
class Slow(Net):
    def forward(self, x):
        time.sleep(0.004)
        return super().forward(x)
net = Slow().eval()
with torch.no_grad():
    for _ in range(20):
        result = net(torch.ones(4, 8))
        time.sleep(0.05)
        result.argmax(1)
""", iterations=4, scope="project")  # fmt: skip
    assert tracked.complete
    assert names(tracked) == ["linear", "relu", "argmax", "ones"]
    for record in tracked.iterations:
        assert record.forward_ms is not None
        assert record.forward_ms >= 4
        assert record.total_ms - record.forward_ms >= 50
    assert min(record.forward_ms or 0 for record in tracked.iterations) < 50


def test_each_token_of_a_generation_is_an_iteration(workload: Workload) -> None:
    tracked = workload.track("""
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
    def forward(self, x):
        return self.head(self.token(x).cumsum(1))
    @torch.no_grad()
    def generate(self, x, count):
        for _ in range(count):
            x = torch.cat([x, self(x)[:, -1:].argmax(-1)], 1)
        return x
Decoder().generate(torch.zeros(1, 1, dtype=torch.long), 20)
""", iterations=5)  # fmt: skip
    assert tracked.complete
    assert len(tracked.iterations) == 5
    assert all(record.matched for record in tracked.iterations)
    assert "linear" in names(tracked)


@pytest.mark.parametrize(
    ("loop", "repeated"),
    [
        ("""
encoder, decoder = Net(), Net()
with torch.no_grad():
    for _ in range(14):
        decoder(encoder(torch.ones(4, 8)))
""", 2),
        ("""
net = Net()
for _ in range(12):
    x = torch.ones(4, 8, requires_grad=True)
    loss = net(x).sum()
    torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward()
""", 1),
        ("""
import unified_prof
net = Net()
for _ in range(12):
    for _ in range(3):
        net(torch.ones(4, 8)).sum().backward()
    unified_prof.step()
""", 3),
    ],
    ids=["modules in turn", "backward passes in turn", "step marks take precedence"],
)  # fmt: skip
def test_iteration_contains_all_calls(workload: Workload, loop: str, repeated: int) -> None:
    tracked = workload.track(NET + loop, iterations=3)
    assert tracked.complete
    assert names(tracked) == ["linear", "relu"] * repeated
    assert all(record.matched for record in tracked.iterations)


def test_validation_does_not_end_iterations_of_training(workload: Workload) -> None:
    tracked = workload.track(NET + BY_HAND + """
    if _ % 4 == 3:
        with torch.no_grad():
            for _ in range(2):
                net(torch.ones(4, 8))
""", iterations=4)  # fmt: skip
    assert tracked.complete
    assert in_backward(tracked) == ["linear", "relu"]
    assert tracked.facts["iterations_end_with"] == "backward passes"


def test_validation_before_a_training_loop_gives_way_to_it(workload: Workload) -> None:
    tracked = workload.track(NET + BY_HAND.replace("for _ in range(24):", """
with torch.no_grad():
    for _ in range(4):
        net(torch.ones(4, 8))
for _ in range(24):"""), iterations=3)  # fmt: skip
    assert in_backward(tracked) == names(tracked) == ["linear", "relu"]
    assert tracked.facts["iterations_end_with"] == "backward passes"


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("created", ["before", "after"])
def test_optimizer_steps_take_precedence(workload: Workload, created: str) -> None:
    optimizer = "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    before, after = (optimizer, "") if created == "before" else ("", optimizer)
    tracked = workload.track(NET + "net = Net()\n" + before + """
for _ in range(3):
    net(torch.ones(4, 8))
""" + after + """
for _ in range(12):
    optimizer.zero_grad()
    for _ in range(4):
        net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
""", iterations=3)  # fmt: skip
    assert tracked.complete
    assert names(tracked) == ["linear", "relu"] * 4
    assert "iterations_end_with" not in tracked.facts


def test_optimizer_that_never_steps_is_not_awaited_forever(workload: Workload) -> None:
    unused = (
        "unused = torch.optim.SGD(net.parameters(), lr=0.1)\nunused.itself = unused\ndel unused\n"
    )
    loop = BY_HAND.replace("for _ in range(24)", f"{unused}for _ in range(90)")
    tracked = workload.track(NET + loop, iterations=3)
    assert tracked.complete
    assert tracked.facts["iterations_end_with"] == "backward passes"
    assert len(tracked.iterations) == 3


def test_own_hierarchy_is_kept(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    workload.write("main.py", NET + """
from torch.profiler import ProfilerActivity, profile
net = Net()
with profile(activities=[ProfilerActivity.CPU], with_stack=True, with_modules=True) as recorded:
    net(torch.ones(4, 8)).sum().backward()
recorded.export_chrome_trace("trace.json")
from pathlib import Path
text = Path("trace.json").read_text()
print("nn.Module: Net" in text, "nn.Module: Linear" in text)
""")  # fmt: skip
    assert workload.run(reports=("run-time",)).exit_code == 0
    assert capsys.readouterr().out == "True True\n"


@pytest.mark.slow
def test_timeline_with_stacks_works_without_an_optimizer(workload: Workload) -> None:
    from unified_prof.tracking.timeline import TimelineInstrument

    workload.write("main.py", NET + BY_HAND)
    timeline = TimelineInstrument(workload.folder / "trace.json", "cpu")
    outcome = workload.run(reports=("run-time",), iterations=3, instruments=[timeline])
    assert (outcome.exit_code, outcome.failure) == (0, None)
    assert (timeline.written, timeline.iterations) == (True, 3)


def test_single_call_is_one_iteration_and_no_timeline(workload: Workload) -> None:
    tracked = workload.track(NET + "Net()(torch.ones(4, 8))\n")
    assert "no iterations were found" in tracked.facts["whole_program"]
    with pytest.raises(CaptureError, match="no iterations were found") as refused:
        workload.run(reports=(), instruments=[Spy([], "a")])
    assert refused.value.hint == "call unified_prof.step() after each iteration"


def test_failed_pass_ends_nothing(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    tracked = workload.track(NET + """
net = Net()
for number in range(20):
    loss = net(torch.ones(4, 8)).sum()
    try:
        loss.backward(torch.ones(3) if number % 2 else None)
    except RuntimeError:
        pass
print(torch._C._len_torch_function_stack())
""", iterations=2)  # fmt: skip
    assert tracked.complete
    assert names(tracked) == ["linear", "relu"] * 2
    assert capsys.readouterr().out == "0\n"


def test_work_in_another_thread_is_the_reported_reason(workload: Workload) -> None:
    workload.write("main.py", NET + """
import threading
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def train():
    for _ in range(12):
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
thread = threading.Thread(target=train)
thread.start()
thread.join()
""")  # fmt: skip
    with pytest.raises(CaptureError, match="runs its model in another thread") as refused:
        workload.run()
    assert "main thread" in str(refused.value.hint)


def test_steps_in_another_thread_are_counted_and_end_no_iteration(workload: Workload) -> None:
    tracked = workload.track(NET + """
import threading
net, other = Net(), Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
second = torch.optim.SGD(other.parameters(), lr=0.1)
def step():
    other(torch.ones(4, 8)).sum().backward()
    second.step()
for _ in range(12):
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
""", iterations=3)  # fmt: skip
    assert names(tracked) == ["linear", "relu"]
    assert tracked.complete
    count, detail = tracked.anomalies["steps_in_another_thread"]
    assert count >= 6
    assert "a thread that is not tracked" in detail


@pytest.mark.slow
@FORKS_TRAIN
def test_work_in_child_processes_is_the_reported_reason(workload: Workload) -> None:
    workload.write("main.py", NET + """
import os, time
child = os.fork()
if child == 0:
    try:
        end = time.process_time() + 0.4
        while time.process_time() < end:
            Net()(torch.ones(4, 8)).sum().backward()
    finally:
        os._exit(0)
os.waitpid(child, 0)
""")  # fmt: skip
    with pytest.raises(CaptureError, match="runs in child processes") as refused:
        workload.run()
    assert "torchrun" in str(refused.value.hint)


def test_script_without_tensors_is_an_error(workload: Workload) -> None:
    workload.write("main.py", "print(1)\n")
    with pytest.raises(CaptureError, match="ran no tensor operation") as refused:
        workload.run()
    assert "thread" not in str(refused.value)


@pytest.mark.parametrize(
    "gradient",
    [
        "torch.autograd.grad(loss(w), w)[0]",
        "torch.func.grad(loss)(w)",
        "torch.func.vmap(torch.func.grad(loss))(w.expand(2, 8, 8))[0]",
        "torch.func.jacrev(loss)(w)",
    ],
)
def test_functional_gradients_end_iterations(workload: Workload, gradient: str) -> None:
    workload.write("main.py", f"""
x = torch.randn(4, 8)
w = torch.randn(8, 8, requires_grad=True)
def loss(w):
    return (x @ w).tanh().pow(2).mean()
for _ in range(30):
    g = {gradient}
    with torch.no_grad():
        w -= 0.1 * g
""")  # fmt: skip
    log: list[str] = []
    tracked = workload.tracked(iterations=4, progress=log.append)
    assert tracked.complete
    assert tracked.facts["iterations_end_with"] == "backward passes"
    assert {"matmul", "tanh", "pow", "mean"} <= set(names(tracked))
    assert len(tracked.iterations) == 4
    assert "arguments_not_looked_at" not in tracked.anomalies
