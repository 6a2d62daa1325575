"""Rows of steps: lengths, parts and samples of a program whose parts take exact times."""

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from unified_prof.sqlite.watch_file import StepRow
from unified_prof.tracking import watch
from unified_prof.tracking.passes import BACKWARD as BACKWARD_PASS
from unified_prof.tracking.passes import DATA_LOADING
from unified_prof.tracking.passes import FORWARD as FORWARD_PASS
from unified_prof.tracking.passes import OPTIMIZER as OPTIMIZER_PASS

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


class SlowDevice:
    """A device that completes a step two steps later; step 2 is not marked, step 3 fails."""

    def __init__(self) -> None:
        self.step = -1
        self.parts: list[str] = []

    def begin(self, step: int) -> None:
        self.step = step

    def switch(self, part: str) -> None:
        self.parts.append(part)

    def end(self) -> list[int]:
        return [] if self.step == 2 else [self.step]

    def read(self, marks: list[int]) -> dict[str, int] | None:
        (step,) = marks
        if step == 3:
            raise RuntimeError("the device failed")
        if self.step - step < 2:
            return None
        return {FORWARD_PASS: 10 + step, BACKWARD_PASS: 200, OPTIMIZER_PASS: 3000}


@pytest.mark.parametrize("most", [1_000, 1])
def test_rows_on_a_device_have_its_times_some_steps_later(
    watched: Watched, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MAX_OUTSTANDING", most)
    device: Any = SlowDevice()
    watched.collector._on_device = device
    counts = []
    for _ in range(8):
        watched.run(1)
        counts.append(len(watched.rows))
    assert {BACKWARD_PASS, DATA_LOADING, FORWARD_PASS, OPTIMIZER_PASS} < {*device.parts}
    if most == 1:  # rows do not wait for the device
        assert counts == [0, 1, 2, 3, 4, 5, 6, 7]
        assert {row.device_ns for row in watched.rows} == {None}
        return
    assert counts == [0, 0, 0, 1, 4, 4, 4, 5]
    watched.collector.end()
    assert [row.step for row in watched.rows] == [*range(7)]
    assert [(r.device_ns, r.backward_ns, r.optimizer_ns, r.forward_ns) for r in watched.rows] == [
        (None,) * 4 if step in (2, 3, 6) else (3210 + step, 200, 3000, 10 + step)
        for step in range(7)
    ]


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
