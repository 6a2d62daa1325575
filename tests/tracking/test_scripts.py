"""Script mode: iterations of unmodified training scripts."""

import gc
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.tracking.workloads import LOOP, NET, Workload, in_backward, names, places


def test_script_runs_to_its_end(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    tracked = workload.track(NET + LOOP, iterations=4)
    assert names(tracked) == ["linear", "relu"]
    assert places(tracked.operations[0]) == ["main.py:10"]
    assert len(tracked.iterations) == 4
    assert all(record.matched for record in tracked.iterations)
    assert len(tracked.operations[0].forward_ms) == 4
    assert tracked.complete
    assert tracked.anomalies == {}
    assert capsys.readouterr().out == "the end\n"


def test_arguments_name_and_path_are_those_of_a_script(
    workload: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    workload.write("sub/helper.py", "VALUE = 3\n")
    workload.write(
        "sub/main.py",
        f"""
        import os, sys, helper
        print(__name__, sys.argv, os.path.basename(__file__), helper.VALUE)
        print(sys.modules["__main__"].helper is helper, os.path.basename(sys.path[0]))
        {textwrap.indent(NET, " " * 8).strip()}
        Net()(torch.ones(1, 8))
        """,
    )
    before = (sys.argv, list(sys.path), sys.modules["__main__"])
    workload.tracked("sub/main.py", "-x", "--output", "y")
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    out = capsys.readouterr().out.splitlines()
    assert out == ["__main__ ['sub/main.py', '-x', '--output', 'y'] main.py 3", "True sub"]


def test_module_is_run_by_name(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    workload.write("package/__init__.py", "")
    workload.write("package/part.py", NET)
    workload.write(
        "package/__main__.py",
        "from .part import Net\nprint(__name__, __package__)\nNet()(torch.ones(1, 8))\n",
    )
    tracked = workload.tracked("package", is_module=True)
    assert capsys.readouterr().out == "__main__ package\n"
    assert places(tracked.operations[0]) == ["package/part.py:10"]


def test_gradient_accumulation_is_one_iteration(workload: Workload) -> None:
    tracked = workload.track(NET + LOOP.replace(
        "        net(torch.randn(4, 8)).sum().backward()",
        "        for _ in range(3): net(torch.randn(4, 8)).sum().backward()",
    ))  # fmt: skip
    assert names(tracked) == ["linear", "relu"] * 3
    assert in_backward(tracked) == names(tracked)


@pytest.mark.parametrize(
    ("critic_steps", "expected"), [(1, ["linear", "tanh"]), (3, ["linear"] * 3 + ["tanh"])]
)
def test_iteration_with_two_optimizers_has_a_step_of_each(
    workload: Workload, critic_steps: int, expected: list[str]
) -> None:
    tracked = workload.track(
        f"""
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 1)
    def forward(self, x):
        return self.lin(x)
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))
    def forward(self):
        return self.w.tanh()
critic, generator = Critic(), Generator()
first = torch.optim.SGD(critic.parameters(), lr=0.1)
second = torch.optim.SGD(generator.parameters(), lr=0.1)
for _ in range(12):
    for _ in range({critic_steps}):
        first.zero_grad()
        critic(torch.randn(4, 8)).sum().backward()
        first.step()
    second.zero_grad()
    generator().sum().backward()
    second.step()
""",
        iterations=3,
    )
    assert names(tracked) == expected
    assert all(record.matched for record in tracked.iterations)
    assert tracked.complete


def test_optimizer_of_each_iteration_does_not_end_iterations(workload: Workload) -> None:
    tracked = workload.track(NET + """
net = Net()
outer = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []
for _ in range(20):
    weight = torch.ones(8, 8, requires_grad=True)
    kept.append(torch.optim.SGD([weight], lr=0.1))
    for _ in range(2):
        (torch.ones(4, 8) @ weight).sum().backward()
        kept[-1].step()
    net(torch.ones(4, 8)).sum().backward()
    outer.step()
""", iterations=3, scope="project")  # fmt: skip
    assert tracked.complete
    assert [record.matched for record in tracked.iterations] == [True] * 3
    assert [name for name in names(tracked) if name != "ones"] == [
        *["matmul", "sum"] * 2,
        *["linear", "relu", "sum"],
    ]


def test_step_skipped_by_the_gradient_scaler_ends_the_iteration(workload: Workload) -> None:
    tracked = workload.track(
        NET
        + """
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.0)  # Otherwise all relus become zero.
scaler = torch.amp.GradScaler("cpu")
for number in range(8):
    optimizer.zero_grad()
    loss = net(torch.ones(4, 8)).sum()
    scaler.scale(loss * (float("inf") if number == 2 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    )
    assert names(tracked) == ["linear", "relu"]
    assert all(record.matched for record in tracked.iterations)
    assert tracked.anomalies["optimizer_steps_skipped"][0] == 1


def test_script_without_steps_is_one_iteration_without_its_set_up(workload: Workload) -> None:
    tracked = workload.track(NET + "net = Net()\nnet(torch.ones(4, 8))\nnet(torch.ones(4, 8))\n")
    assert names(tracked) == ["linear", "relu"] * 2
    assert in_backward(tracked) == []
    assert len(tracked.iterations) == 1
    assert "whole_program" in tracked.facts


def test_step_marks_end_iterations(workload: Workload) -> None:
    tracked = workload.track(
        NET
        + """
import unified_prof.tracking.live as live
net = Net().eval()
with torch.no_grad():
    for _ in range(12):
        net(torch.ones(4, 8))
        live.step()
""",
        iterations=4,
    )
    assert names(tracked) == ["linear", "relu"]
    assert len(tracked.iterations) == 4
    assert tracked.complete


def test_optimizer_steps_end_no_iteration_in_a_script_with_marks(workload: Workload) -> None:
    workload.write(
        "main.py",
        NET
        + """
import unified_prof.tracking.live as live
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(10):
    for _ in range(2):
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    live.step()
""",
    )
    assert names(workload.tracked()) == ["linear", "relu"] * 2


def test_script_stops_on_request(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    tracked = workload.track(NET + LOOP.replace("main(20)", "main(10**6)"), stop_after=True)
    assert tracked.complete
    assert "the end" not in capsys.readouterr().out


def test_short_script_reports_its_iterations(workload: Workload) -> None:
    workload.write("main.py", NET + LOOP.replace("main(20)", "main(2)"))
    outcome = workload.run(iterations=5)
    assert outcome.tracked is not None
    assert not outcome.tracked.complete
    assert outcome.failure == "the workload ended after 1 of 5 measured iterations"
    assert names(outcome.tracked) == ["linear", "relu"]
    assert outcome.tracked.peak_usage_bytes is None
    assert "peak_usage_not_measured" in outcome.tracked.anomalies


def test_script_one_step_short_is_no_failure(workload: Workload) -> None:
    # Warm-up, run times, activations, peak with its lead-in, one iteration that is not measured.
    needed = 2 + 2 * 10 + 1 + 2 + 1
    workload.write("main.py", NET + LOOP.replace("main(20)", f"main({needed - 1})"))
    outcome = workload.run(warmup=2, iterations=10)
    assert outcome.failure is None
    assert outcome.tracked is not None
    assert not outcome.tracked.complete
    assert len(outcome.tracked.iterations) == 9
    assert outcome.tracked.anomalies == {}
    workload.write("main.py", NET + LOOP.replace("main(20)", f"main({needed})"))
    assert workload.tracked(warmup=2, iterations=10).complete


def test_iteration_adds_samples_to_the_operations_that_it_shares(workload: Workload) -> None:
    tracked = workload.track(NET.replace("self.lin(x).relu()", "self.act(self.lin(x))") + """
    count = 0
    def act(self, x):
        Net.count += 1
        return x.tanh() if Net.count == 9 else x.relu()
""" + LOOP, iterations=5)  # fmt: skip
    assert names(tracked) == ["linear", "relu"]
    linear, relu = tracked.operations
    assert (linear.iterations, len(linear.forward_ms)) == (None, 5)
    assert (relu.iterations, len(relu.forward_ms)) == ((0, 1, 3, 4), 4)
    assert relu.backward_ms is not None
    assert len(relu.backward_ms) == 4
    assert all(record.matched for record in tracked.iterations)
    count, detail = tracked.anomalies["iterations_with_some_other_operations"]
    assert count == 1
    assert "operation 1 is tanh at main.py:15 with backward, in most iterations relu" in detail


def test_iterations_with_other_operations_are_separated(workload: Workload) -> None:
    tracked = workload.track(NET.replace("self.lin(x).relu()", "self.act(x)") + """
    count = 0
    def act(self, x):
        Net.count += 1
        if Net.count == 9:
            return (x @ self.lin.weight).sin().cos().tanh()
        return self.lin(x).relu()
""" + LOOP, iterations=5)  # fmt: skip
    assert names(tracked) == ["linear", "relu"]
    assert [record.matched for record in tracked.iterations] == [True, True, False, True, True]
    assert [len(record.forward_ms) for record in tracked.operations] == [4, 4]
    assert [record.iterations for record in tracked.operations] == [None, None]
    assert tracked.anomalies["iterations_with_other_operations"][0] == 1


def test_episodes_of_different_length_are_paired_in_order(workload: Workload) -> None:
    tracked = workload.track(NET + """
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for length in (3, *(n for n in (3, 3, 3, 3, 4, 6, 2, 5, 3, 3) for _ in range(2))):
    x = torch.ones(4, 8)
    for _ in range(length):
        x = net(x)
    x.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""", iterations=5, reports=("run-time",))  # fmt: skip
    assert [record.matched for record in tracked.iterations] == [True] * 5
    assert names(tracked) == ["linear", "relu"] * 3
    tracked = workload.tracked(iterations=7, reports=("run-time",))
    lengths = [3, 3, 3, 3, 4, 6, 2]  # Every second one from the program's second.
    reported = len(tracked.operations) // 2
    assert reported in lengths
    for number, linear in enumerate(tracked.operations[::2]):
        having = [at for at, length in enumerate(lengths) if length > number]
        shown = range(7) if linear.iterations is None else linear.iterations
        assert set(shown) == {at for at in having if tracked.iterations[at].matched}
        assert len(linear.forward_ms) == len(shown)


def test_everything_in_torch_is_restored(workload: Workload) -> None:
    import torch
    from torch.optim import optimizer

    def patched_places() -> list[object]:
        return [
            torch.compile,
            torch.autograd._engine_run_backward,
            torch.autograd.graph._engine_run_backward,
            vars(torch.autograd.Function)["apply"],
            torch.nn.Module.register_parameter,
            torch.nn.Module.__setstate__,
            torch.overrides.has_torch_function,
            torch.autograd.graph.saved_tensors_hooks.__enter__,
            torch.autograd.graph.disable_saved_tensors_hooks,
            torch.amp.GradScaler.step,
            torch.autograd.profiler.profile._prepare_trace,
            len(optimizer._global_optimizer_pre_hooks),
            len(optimizer._global_optimizer_post_hooks),
            torch._C._len_torch_function_stack(),
        ]

    before = patched_places()
    workload.write("main.py", NET + LOOP)
    workload.tracked()
    assert patched_places() == before
    workload.write("fails.py", NET + LOOP.replace("optimizer.zero_grad", "optimizer.nonsense"))
    workload.run("fails.py")
    assert patched_places() == before


def test_hooks_are_removed_early(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    workload.write("main.py", NET + LOOP.replace('print("the end")', """
    from torch.optim import optimizer as o
    print(len(o._global_optimizer_post_hooks), torch._C._len_torch_function_stack())
"""))  # fmt: skip
    workload.tracked()
    assert capsys.readouterr().out.split() == ["0", "0"]


def test_forward_in_another_thread_is_an_anomaly(workload: Workload) -> None:
    tracked = workload.track(NET + LOOP.replace(
        "        net(torch.randn(4, 8)).sum().backward()",
        """
        import threading
        box = []
        thread = threading.Thread(target=lambda: box.append(net(torch.randn(4, 8)).sum()))
        thread.start(); thread.join()
        (box[0] + net(torch.randn(4, 8)).sum()).backward()
""".strip("\n"),
    ))  # fmt: skip
    assert names(tracked) == ["linear", "relu"]
    assert tracked.anomalies["backward_nodes_not_of_this_iteration"][0] > 0


IN_BACKWARD = """
torch.manual_seed(0)
net = Net()
ONE = [torch.optim.SGD(net.parameters(), lr=0.1)]
MANY = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
last = next(net.parameters())
def step_one(p):
    if p is last:
        ONE[0].step()
        ONE[0].zero_grad()
def step_many(p):
    MANY[p].step()
    MANY[p].zero_grad()
for p in net.parameters():
    p.register_post_accumulate_grad_hook(HOOK)
for _ in range(16):
    net(torch.randn(4, 8)).sum().backward()
"""


@pytest.mark.parametrize("hook", ["step_one", "step_many"])
def test_optimizer_can_step_within_the_backward_pass(workload: Workload, hook: str) -> None:
    tracked = workload.track(NET + IN_BACKWARD.replace("HOOK", hook), iterations=3)
    assert tracked.complete
    assert names(tracked) == in_backward(tracked) == ["linear", "relu"]
    for it in tracked.iterations:
        assert sum(it.parts_ms.values(), it.forward_ms or 0) + (it.backward_ms or 0) < it.total_ms
    assert len(tracked.iterations) == 3
    assert tracked.peak_usage_bytes
    assert sum(record.size_bytes for record in tracked.weights) == 4 * (64 + 8)
    assert tracked.anomalies == {}


def test_failing_instrument_loses_only_its_figure(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload.write("main.py", NET + LOOP)
    region = "torch.autograd.profiler.record_function"
    monkeypatch.setattr(f"{region}.__enter__", lambda entered: entered)
    monkeypatch.setattr(f"{region}.__exit__", lambda *_: None)
    tracked = workload.tracked(iterations=3)
    assert names(tracked) == ["linear", "relu"]
    assert tracked.weights
    assert tracked.peak_usage_bytes is None
    assert "peak_usage_not_measured" in tracked.anomalies


def test_operations_of_a_closure_are_recorded_but_no_optimizer(workload: Workload) -> None:
    tracked = workload.track(NET + """
net = Net()
x = torch.randn(4, 8)
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
def closure():
    optimizer.zero_grad()
    loss = net(x).pow(2).mean()
    loss.backward()
    return loss
for number in range(16):
    optimizer.step(closure) if number % 2 else optimizer.step(closure=closure)
""", iterations=3, scope="project")  # fmt: skip
    assert tracked.complete
    assert set(names(tracked)) == {"linear", "relu", "pow", "mean"}
    assert in_backward(tracked) == names(tracked)


def test_iterations_exclude_tracking(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracking is slowed down; the durations of iterations do not change."""
    from unified_prof.tracking.stack_walker import StackWalker

    real = StackWalker.locate

    def slow_path(*arguments: Any) -> Any:
        time.sleep(0.02)
        return real(*arguments)

    monkeypatch.setattr(StackWalker, "locate", slow_path)
    tracked = workload.track(
        NET.replace("self.lin(x)", "self.lin(x).sin().cos()") + LOOP,
        iterations=3,
        reports=("run-time",),
    )
    assert len(tracked.operations) == 4
    assert min(record.total_ms for record in tracked.iterations) < 20
    assert min(record.forward_ms or 0 for record in tracked.iterations) < 20


def test_iteration_has_times_of_optimizer_zero_grad_and_data_loading(workload: Workload) -> None:
    tracked = workload.track(NET + """
import time
from torch.utils.data import DataLoader
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.ones(8)
class Slow(torch.optim.Adam):
    def step(self, closure=None):
        time.sleep(0.003)
        return super().step(closure)
net = Net()
optimizer = Slow(net.parameters())
for batch in DataLoader(Data()):
    loss = net(batch).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""", iterations=4)  # fmt: skip
    for record in tracked.iterations:
        parts = record.parts_ms
        assert parts["data_loading"] >= 4
        assert parts["optimizer"] >= 3
        assert 0 < parts["zero_grad"] < 3
        assert record.forward_ms is not None
        assert record.backward_ms is not None
        passes_ms = record.forward_ms + record.backward_ms
        assert sum(parts.values()) + passes_ms <= record.total_ms + 1e-6  # rounding of floats
    assert int(tracked.facts["optimizer_state_bytes"]) >= 2 * 4 * (64 + 8)
    assert tracked.facts["data_loader_workers"] == "0"
    assert '"class": "Slow"' in tracked.facts["optimizers"]


def test_few_functions_are_called_to_time_an_operation(
    workload: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    """The overhead of tracking is proportional to them, also on a busy machine."""
    operations = 50
    workload.write("main.py", NET + f"""
import collections, sys
calls, steps = collections.Counter(), 0
def count(frame, event, _):
    if event == "call" and "unified_prof" in frame.f_code.co_filename:
        calls[steps] += 1
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for steps in range(20):
    sys.setprofile(count)
    x = net(torch.ones(4, 8))
    for _ in range({operations}):
        x = x.sigmoid()
    x.sum().backward()
    sys.setprofile(None)
    optimizer.step()
    optimizer.zero_grad()
print(*(calls[step] for step in range(8, 20)))
""")  # fmt: skip
    workload.tracked(iterations=20)
    calls = [int(text) for text in capsys.readouterr().out.split()]
    parts, timed = sorted([min(calls[::2]), min(calls[1::2])])
    assert 0 < parts <= 25
    assert timed <= 8 * operations


@pytest.mark.parametrize("backward_passes", [1, 3])
def test_set_up_searches_all_objects_few_times(
    workload: Workload, monkeypatch: pytest.MonkeyPatch, backward_passes: int
) -> None:
    """A search takes 0.1 s in a program with a million objects, and a collection 0.3 s."""
    searches: list[str] = []
    search, collect = gc.get_objects, gc.collect

    def counted(call: Callable[..., Any], name: str) -> Any:
        searches.append(name)
        return call()

    workload.write("main.py", NET + f"""
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(12):
    for _ in range({backward_passes}):
        net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
""")  # fmt: skip
    monkeypatch.setattr(gc, "get_objects", lambda: counted(search, "search"))
    monkeypatch.setattr(gc, "collect", lambda: counted(collect, "collection"))
    assert workload.tracked().complete
    assert "collection" not in searches
    # Modules, profilers, tensors, and optimizers of earlier programs in this process; optimizers of
    # this one only if several backward passes precede its first step.
    assert 3 <= len(searches) <= 4 + (backward_passes > 1)
