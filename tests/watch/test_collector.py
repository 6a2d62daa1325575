"""Rows of steps: lengths, parts and samples of a program whose parts take exact times."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

from unified_prof.sqlite.watch_file import StepRow
from unified_prof.tracking import watch

torch = pytest.importorskip("torch")
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = 3, 50, 700, 11_000, 130_000


class Clock:
    """Host time in ns that passes where the program says so; CPU time runs at half its speed."""

    now_ns = 10**9

    def use(self, ns: int) -> None:
        self.now_ns += ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch, "perf_counter_ns", lambda: clock.now_ns)
    monkeypatch.setattr(watch, "process_time_ns", lambda: clock.now_ns // 2)
    return clock


class Program:
    """A training loop with 4 samples per step."""

    def __init__(self, clock: Clock) -> None:
        class Samples(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
            def __len__(self) -> int:
                return 400

            def __getitem__(self, index: int) -> Any:
                clock.use(DATA)
                return torch.ones(2)

        class Slow(torch.autograd.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(_context: Any, value: Any) -> Any:
                clock.use(FORWARD)
                return value.clone()

            @staticmethod
            def backward(_context: Any, gradient: Any) -> Any:
                clock.use(BACKWARD)
                return gradient

        class Net(torch.nn.Linear):  # type: ignore[misc, name-defined]
            def forward(self, value: Any) -> Any:
                return Slow.apply(super().forward(value))

        class Optimizer(torch.optim.SGD):  # type: ignore[misc, name-defined]
            def step(self, closure: Any = None) -> None:
                clock.use(OPTIMIZER)
                super().step(closure)

        self.clock, self.net = clock, Net(2, 2)
        self.optimizer = Optimizer(self.net.parameters(), 0.1)
        self.batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=4))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            batch = next(self.batches)
            self.optimizer.zero_grad()
            self.net(batch).sum().backward()
            self.optimizer.step()
            self.clock.use(OTHER)


class Watched:
    """A watched program."""

    def __init__(self, clock: Clock) -> None:
        self.rows: list[StepRow] = []
        self.ended: list[tuple[int, int]] = []
        self.collector = watch.StepCollector(
            "cpu", self.rows.append, lambda *step: self.ended.append(step)
        )
        self.run = Program(clock).run


@pytest.fixture
def watched(clock: Clock) -> Iterator[Watched]:
    watched = Watched(clock)
    watched.collector.begin()
    yield watched
    watched.collector.abandon()


LENGTH = 4 * DATA + FORWARD + BACKWARD + OPTIMIZER + OTHER


def test_rows_have_the_time_of_each_part(watched: Watched) -> None:
    watched.run(6)
    watched.collector.end()
    assert watched.collector.steps == 5, "the first step began before its first end"
    assert watched.ended == [(step, LENGTH) for step in range(5)]
    assert [row.step for row in watched.rows] == [*range(5)]
    for row in watched.rows:
        assert row.length_ns == LENGTH
        assert row.device_ns == LENGTH // 2, "CPU time"
        assert (row.data_ns, row.forward_ns, row.backward_ns) == (4 * DATA, FORWARD, BACKWARD)
        assert (row.optimizer_ns, row.wait_ns, row.gc_ns) == (OPTIMIZER, 0, 0)
        assert (row.samples, row.event) == (4, None)
        assert row.allocated_bytes is not None
        assert row.allocated_bytes > 10 << 20
    starts = [row.start_ns for row in watched.rows]
    assert starts == sorted(starts)
    watched.run(2)
    assert len(watched.rows) == 5, "nothing is measured after the end"
    assert watched.collector._collected not in gc.callbacks


def test_collections_of_the_host_are_counted(watched: Watched, clock: Clock) -> None:
    watched.run(1)
    for phase in ("start", "stop"):
        watched.collector._collected(phase, {})
        clock.use(40)
    watched.run(2)
    assert [row.gc_ns for row in watched.rows] == [40, 0]
    assert watched.rows[0].length_ns == LENGTH + 80


def test_marks_replace_optimizer_steps_and_have_samples(watched: Watched) -> None:
    watched.run(2)
    for _ in range(3):
        watched.run(2)
        watched.collector.mark(samples=30)
    assert [row.samples for row in watched.rows][-2:] == [30, 30]
    assert [row.length_ns for row in watched.rows][-2:] == [2 * LENGTH, 2 * LENGTH]
    assert [row.optimizer_ns for row in watched.rows][-1] == 2 * OPTIMIZER


def test_time_that_is_left_out_and_that_of_captures_belongs_to_no_step(
    watched: Watched, clock: Clock
) -> None:
    watched.run(3)
    clock.use(10**9)
    watched.collector.leave_out()
    watched.run(1)
    assert {row.length_ns for row in watched.rows} == {LENGTH, LENGTH - OTHER}

    def capture(step: int, _length_ns: int) -> None:
        clock.use(10**9)
        watched.collector.event = 7 if step < 6 else None

    watched.collector._on_step = capture
    watched.run(5)
    assert max(row.length_ns for row in watched.rows) == LENGTH
    assert [row.event for row in watched.rows][3:] == [None, 7, 7, 7, None]


def test_forked_child_does_not_measure(watched: Watched) -> None:
    watched.run(2)
    if not (child := os.fork()):
        try:
            watched.run(2)
        finally:
            os._exit(len(watched.rows))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
