"""Rows of steps: lengths, parts and samples of a program whose parts take exact times."""

import gc
import os
from collections.abc import Callable, Iterator

import pytest

from unified_prof.sqlite.watch_file import StepRow
from unified_prof.tracking import watch

torch = pytest.importorskip("torch")
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = 3, 50, 700, 11_000, 130_001
LENGTH = DATA + FORWARD + BACKWARD + OPTIMIZER + OTHER


class Watched:
    """A watched training loop with 4 samples per step; its time passes where the program says."""

    def __init__(self) -> None:
        self.now_ns = 10**9
        self.rows: list[StepRow] = []
        self.on_step: Callable[[int, int], None] = lambda _step, _length_ns: None
        self.collector = watch.StepCollector(
            "cpu", self.rows.append, lambda *step: self.on_step(*step)
        )
        self.net = torch.nn.Linear(2, 2)
        self.net.register_forward_hook(lambda *_: self.use(FORWARD))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.optimizer.register_step_pre_hook(lambda *_: self.use(OPTIMIZER))
        loader = torch.utils.data.DataLoader(range(400), batch_size=4, collate_fn=self.load)
        self.batches = iter(loader)

    def use(self, ns: int) -> None:
        self.now_ns += ns

    def load(self, numbers: list[int]) -> object:
        self.use(DATA)
        return torch.ones(len(numbers), 2)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.net(next(self.batches)).sum()
            loss.register_hook(lambda _: self.use(BACKWARD))
            loss.backward()
            self.optimizer.step()
            self.use(OTHER)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched()
    monkeypatch.setattr(watch, "perf_counter_ns", lambda: watched.now_ns)
    monkeypatch.setattr(watch, "process_time_ns", lambda: watched.now_ns // 2)
    watched.collector.begin()
    yield watched
    watched.collector.abandon()


def test_rows_have_the_time_of_each_part(watched: Watched) -> None:
    watched.run(3)
    for phase in ("start", "stop"):  # of the garbage collector
        watched.collector._collected(phase, {})
        watched.use(40)
    watched.run(2)
    watched.collector.end()
    watched.run(2)  # after the end
    assert watched.collector._collected not in gc.callbacks
    assert watched.collector.steps == 4, "the first step began before its first end"
    assert [(row.step, row.length_ns, row.gc_ns) for row in watched.rows] == [
        *((0, LENGTH, 0), (1, LENGTH, 0), (2, LENGTH + 80, 40), (3, LENGTH, 0))
    ]
    for row in watched.rows:
        assert row.device_ns == row.length_ns // 2, "CPU time"
        assert (row.data_ns, row.forward_ns, row.backward_ns) == (DATA, FORWARD, BACKWARD)
        assert (row.optimizer_ns, row.wait_ns, row.samples) == (OPTIMIZER, 0, 4)
        assert row.allocated_bytes is not None
        assert row.allocated_bytes > 10 << 20
    starts = [row.start_ns for row in watched.rows]
    assert starts == sorted(starts)


def test_marks_replace_optimizer_steps_and_have_samples(watched: Watched) -> None:
    watched.run(2)
    for _ in range(3):
        watched.run(2)
        watched.collector.mark(samples=30)
    assert [(row.samples, row.length_ns, row.optimizer_ns) for row in watched.rows[-2:]] == [
        (30, 2 * LENGTH, 2 * OPTIMIZER)
    ] * 2


def test_time_that_is_left_out_and_that_of_captures_belongs_to_no_step(watched: Watched) -> None:
    watched.run(3)
    watched.use(10**9)
    watched.collector.leave_out()
    watched.run(1)
    assert {row.length_ns for row in watched.rows} == {LENGTH, LENGTH - OTHER}

    def capture(step: int, _length_ns: int) -> None:
        watched.use(10**9)
        watched.collector.event = 7 if step < 6 else None

    watched.on_step = capture
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
