"""Hooks on autograd nodes: the times that they record, and their removal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tracking.workloads import NET, Workload, make_spec
from unified_prof.tracking.raw_calls import Iteration
from unified_prof.tracking.session import Session


class RecordingSession:
    """Records the operations between `begin` and `end`."""

    def __init__(self, folder: Path) -> None:
        self.session = Session("cpu", make_spec(folder, scope="project"))
        self.session.install(())
        self.session.run_time.start()

    def begin(self) -> Iteration:
        self.session.run_time.begin_iteration(0)
        recorder = self.session.run_time._recorder
        assert recorder is not None
        return recorder.iteration

    def end(self) -> None:
        self.session.run_time.end_iteration(0)


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[RecordingSession]:
    session = RecordingSession(tmp_path)
    yield session
    session.session.run_time.stop(complete=False)
    session.session.remove()


def test_each_node_is_timed_once_and_belongs_to_its_call(recording: RecordingSession) -> None:
    x = torch.ones(3, requires_grad=True)
    iteration = recording.begin()
    (x * 2).tanh().sum().backward()
    recording.end()
    (backward,) = iteration.backwards
    numbers = np.array(backward.numbers)
    assert iteration.owners(numbers[numbers >= 0]).tolist() == [2, 1, 0]
    assert (numbers < 0).sum() == 1, "the accumulation of x"
    marks = [m for pair in zip(backward.starts, backward.ends, strict=True) for m in pair]
    assert marks == sorted(marks)
    assert backward.start <= marks[0]
    assert marks[-1] == backward.end


@pytest.mark.parametrize("positional", [True, False])
def test_nodes_of_backward_keep_their_call(recording: RecordingSession, positional: bool) -> None:
    x = torch.ones(3, requires_grad=True)
    iteration = recording.begin()
    y = x.sin()
    if positional:
        (slope,) = torch.autograd.grad(y.sum(), x, None, None, True)
    else:
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    claimed = list(iteration.claims)
    slope.sum().backward()
    recording.end()
    assert {call for _, _, call in claimed} == {0}
    second = np.array(iteration.backwards[1].numbers)
    assert 0 in iteration.owners(second[second >= 0])


@pytest.mark.parametrize("positional", [True, False])
def test_create_graph_is_found_in_any_form(recording: RecordingSession, positional: bool) -> None:
    from torch.autograd.graph import _engine_run_backward as engine

    x = torch.ones(3, requires_grad=True)
    iteration = recording.begin()
    y = x.sin()
    gradients: Any = (torch.ones(3),)
    if positional:
        engine((y,), gradients, True, True, (), allow_unreachable=True, accumulate_grad=True)
    else:
        engine(
            (y,), gradients, keep_graph=True, create_graph=True, inputs=(),
            allow_unreachable=True, accumulate_grad=True,
        )  # fmt: skip
    recording.end()
    assert {call for _, _, call in iteration.claims} == {0}


def test_backward_without_create_graph_creates_no_nodes(recording: RecordingSession) -> None:
    x = torch.ones(3, requires_grad=True)
    iteration = recording.begin()
    x.sin().sum().backward(retain_graph=True)
    recording.end()
    assert iteration.claims == []


def test_reused_nodes_call_only_the_hooks_of_the_program(recording: RecordingSession) -> None:
    x = torch.ones(3, requires_grad=True)
    iteration = recording.begin()
    first = x + 1
    second = first + 1
    for _ in range(3):
        second.sum().backward()  # Additions save nothing, so they can run again.
    recording.end()
    for backward in iteration.backwards:
        assert len(backward.numbers) == len(set(backward.numbers)) == 4
    called: list[str] = []
    assert first.grad_fn is not None
    first.grad_fn.register_prehook(lambda _: called.append("first"))
    second.sum().backward()
    assert called == ["first"]
    assert [len(backward.numbers) for backward in iteration.backwards] == [4, 4, 4]


def test_hooks_of_the_program_are_called(recording: RecordingSession) -> None:
    x = torch.ones(3, requires_grad=True)
    recording.begin()
    y = x.sin()
    z = y.cos()
    y.register_hook(lambda gradient: gradient * 10)
    assert z.grad_fn is not None
    z.grad_fn.register_prehook(lambda gradients: (gradients[0] * 100,))
    z.sum().backward()
    recording.end()
    untracked = torch.ones(3, requires_grad=True)
    (untracked.sin().cos() * 1000).sum().backward()
    assert torch.allclose(x.grad, untracked.grad)


def test_gradient_of_an_intermediate_runs_nodes_after_it(recording: RecordingSession) -> None:
    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    iteration = recording.begin()
    hidden = (x * w).tanh()
    (slope,) = torch.autograd.grad(hidden.exp().sum(), hidden)
    recording.end()
    assert torch.equal(slope, hidden.exp())
    numbers = np.array(iteration.backwards[0].numbers)
    owners = iteration.owners(numbers[numbers >= 0])
    assert owners.tolist() == [3, 2], "neither tanh nor the product"


def test_retained_graph_is_measured(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    tracked = workload.track(NET + """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(9):
    optimizer.zero_grad()
    loss = net(torch.ones(4, 8)).sum()
    for _ in range(3):
        loss.backward(retain_graph=True)
    optimizer.step()
print("the end")
""")  # fmt: skip
    assert tracked.anomalies == {}
    assert all(len(operation.backward_ms or ()) == 2 for operation in tracked.operations)
    assert capsys.readouterr().out == "the end\n"
