"""Marked frames shorten the next stack walk: same results, and no mark is left."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from tests.tracking.workloads import Workload, make_spec
from unified_prof.tracking.code_entries import KnownFrame, Project
from unified_prof.tracking.raw_calls import NamedModule
from unified_prof.tracking.session import Session
from unified_prof.tracking.stack_walker import StackWalker

HERE = Path(__file__).parent


@pytest.fixture
def walker() -> StackWalker:
    walker = StackWalker(Project(HERE))
    walker.set_bottom(call_through.__code__)
    return walker


def call_through(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def marked_walk(walker: StackWalker, frame: FrameType) -> Any:
    """Walk as for a call of torch made in `frame`, and mark the frame."""
    found = walker.walk(frame)
    walker.locate(frame, lambda module: NAMES.setdefault(id(module), NamedModule(module)))
    return found


NAMES: dict[int, NamedModule] = {}


class Layer(nn.Module):  # type: ignore[misc]
    def forward(self, walker: StackWalker) -> list[Any]:
        frame = sys._getframe()
        found = []
        for _ in range(2):
            found += [marked_walk(walker, frame)]
        return [*found, helper(walker)]

    def rebound(self, walker: StackWalker, other: nn.Module) -> Any:
        marked_walk(walker, sys._getframe())
        self = other  # noqa: F841 (the walker reads it from the frame)
        return marked_walk(walker, sys._getframe())


def helper(walker: StackWalker) -> Any:
    return marked_walk(walker, sys._getframe())


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, walker: StackWalker) -> list[Any]:
        marked_walk(walker, sys._getframe())
        found = []
        for layer in self.layers:
            found += [layer(walker)]
        return found


def test_known_frame_gives_the_result_of_a_complete_walk(walker: StackWalker) -> None:
    frame = sys._getframe()
    for _ in range(2):
        caller, at, stack, in_module, module = marked_walk(walker, frame)
        complete = StackWalker(Project(HERE)).walk(frame)
        paths = [(entry.path, entry.code) for entry in stack[::2]]
        assert paths == [(entry.path, entry.code) for entry in complete[2][::2]]
        assert stack[3::2] == complete[2][3::2]
        assert (caller.code, in_module, module) == (complete[0].code, complete[3], complete[4])
        assert at == stack[1]
    assert type(frame.f_trace) is KnownFrame
    StackWalker.forget_frames(frame)


def test_each_call_of_a_method_has_its_module(walker: StackWalker) -> None:
    """One line calls three layers in turn; their frames can have the same address."""
    net = Net()
    for layer, found in zip(net.layers, call_through(net, walker), strict=True):
        first, again, helped = found
        assert first[4] is again[4] is helped[4] is layer
        assert (first[3], again[3], helped[3]) == (True, True, True)
        assert [entry.code.co_name for entry in first[2][::2]][:2] == ["forward"] * 2
        assert first[2] == again[2]
        assert [entry.code.co_name for entry in helped[2][::2]][:3] == ["helper", *["forward"] * 2]
        assert helped[2][4:] == first[2][2:]


def test_generator_resumed_by_another_function_is_walked_again(walker: StackWalker) -> None:
    def generator() -> Iterator[Any]:
        while True:
            yield marked_walk(walker, sys._getframe())

    def first_of(items: Iterator[Any]) -> Any:
        return next(items)

    def another(items: Iterator[Any]) -> Any:
        return next(items)

    items = generator()
    callers = [
        call_through(take, items)[2][2].code.co_name for take in (first_of, another, first_of)
    ]
    assert callers == ["first_of", "another", "first_of"]


def test_method_that_rebinds_self_is_walked_again(walker: StackWalker) -> None:
    layer, other = Layer(), Layer()
    assert call_through(layer.rebound, walker, other)[4] is other


def test_trace_functions_of_a_debugger_are_kept(walker: StackWalker) -> None:
    frame = sys._getframe()

    def debugger_trace(*_: Any) -> None:
        return None

    frame.f_trace = debugger_trace
    try:
        marked_walk(walker, frame)
        assert frame.f_trace is debugger_trace
        StackWalker.forget_frames(frame)
        assert frame.f_trace is debugger_trace
    finally:
        frame.f_trace = None


def test_debugger_can_stop_in_a_known_frame(walker: StackWalker) -> None:
    seen: list[str] = []

    def watch(frame: FrameType, event: str, _argument: Any) -> None:
        seen.append(f"{event} {frame.f_code.co_name}")

    def function() -> int:
        marked_walk(walker, sys._getframe())
        before = sys.gettrace()
        sys.settrace(watch)
        try:
            value = abs(-1)
            called()
        finally:
            sys.settrace(before)
        return value

    def called() -> None:
        pass

    assert function() == 1
    assert "call called" in seen


def test_marks_of_another_walker_are_ignored(walker: StackWalker, tmp_path: Path) -> None:
    frame = sys._getframe()
    marked_walk(walker, frame)
    assert StackWalker(Project(tmp_path)).walk(frame)[2] == ()
    StackWalker.forget_frames(frame)


class Doubler(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.seen: list[Any] = []

    def forward(self) -> torch.Tensor:
        for _ in range(3):
            y = self.w * 2
            self.seen.append(sys._getframe().f_trace)
        return y


DEEP_NET = """
def scaled(x, factor):
    return F.softmax(x * factor, -1)

class Mixed:
    def mixed(self, x):
        return [self.norm(part) for part in x.split(4, -1)]

class Layer(Mixed, nn.Module):
    def __init__(self, again=None):
        super().__init__()
        self.norm, self.again = nn.LayerNorm(4), again
        self.path = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8)))
    def forward(self, x):
        x = self.path(self.path(x))
        x = torch.cat(tuple(self.norm(part) + scaled(part, 2) for part in x.split(4, -1)), -1)
        if self.again is not None:
            x = self.again(x)
        return torch.cat(self.mixed(x), -1)

def parts(net, x):
    while True:
        x = net.head(x).tanh()
        yield F.layer_norm(x, (8,))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer(Layer()), Layer()])
        self.head = nn.Linear(8, 8)
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        made = parts(self, x)
        first = next(made)
        return first + self.more(made)
    def more(self, made):
        self = (lambda x: nn.Softmax(-1)(x)) and self  # Its frames are never known.
        return self.head(next(made)) * next(made)
"""


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger uses the frames")
def test_known_paths_equal_a_walk(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    known = workload.model(DEEP_NET, iterations=4, scope="project")
    monkeypatch.setattr(StackWalker, "locate", lambda *_: None)
    walked = workload.model(DEEP_NET, iterations=4, scope="project")
    assert len(known.operations) > 80
    for one, other in zip(known.operations, walked.operations, strict=True):
        assert (one.name, one.frames) == (other.name, other.frames)
        assert (one.module_path, one.module_class) == (other.module_path, other.module_class)


LAYERS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        make = lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8))
        self.layers = nn.ModuleList([make() for _ in range(6)])
    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return sum(part.tanh() for part in x.split(8, -1))
"""


@pytest.mark.slow
def test_most_calls_need_no_walk(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[str] = []
    walk = StackWalker.walk

    def count_walk(walker: StackWalker, frame: FrameType | None) -> Any:
        assert frame is not None
        walks.append(frame.f_code.co_name)
        return walk(walker, frame)

    monkeypatch.setattr(StackWalker, "walk", count_walk)
    tracked = workload.model(LAYERS, iterations=40, reports=("run-time",))
    assert len(tracked.operations) == 27
    assert len(walks) < 4 * 27


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger uses the frames")
def test_frames_of_the_program_are_restored() -> None:
    session = Session("cpu", make_spec(HERE))
    session.install(())
    model = Doubler()
    frame = sys._getframe()
    try:
        session.run_time.start()
        session.run_time.begin_iteration(0)
        model().sum().backward()
        within = frame.f_trace
        session.run_time.end_iteration(0)
        after = frame.f_trace
        session.run_time.stop(complete=True)
    finally:
        session.remove()
    assert type(within) is KnownFrame
    assert all(type(mark) is KnownFrame for mark in model.seen)
    assert after is None
    sites = session.run_time.iterations[0].sites.tolist()
    assert sites[0] == sites[1] == sites[2] != sites[3]
