"""Breakdowns and stacks of random recordings, whose times are equal or touch, by definition."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.analysis.builders import Device
from unified_prof.explain.api import open_analyses
from unified_prof.explain.self_time import HostTimeline
from unified_prof.recording.calls import Labels
from unified_prof.recording.model import THEN, Row
from unified_prof.recording.recording import Recording
from unified_prof.sqlite.reader import open_report

UNIT = 25_000  # ns: launches that are slow, and kernels that are late, are multiples of it.
LAUNCH = "cudaLaunchKernel"


@dataclass
class Task:
    """A launch and its kernel; times are units."""

    called: int
    returned: int
    start: int
    end: int
    kernel: str
    stream: int
    thread: int

    @property
    def takes(self) -> int:
        return self.end - self.start


@dataclass
class Op:
    """An operation on a host thread, and those within it."""

    name: str
    thread: int
    start: int
    end: int
    parent: Op | None
    children: list[Op] = field(default_factory=list)
    own: list[Task] = field(default_factory=list)
    calls_ns: int = 0

    @property
    def chain(self) -> list[Op]:
        """It and the operations around it, outermost first."""
        return [*(self.parent.chain if self.parent else []), self]

    @property
    def inside(self) -> list[Task]:
        return [*self.own, *(task for child in self.children for task in child.inside)]


class Dense:
    """A random recording of two threads and two streams."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random, self.path = Random(seed), path
        self.ops: list[Op] = []
        self.tasks: list[Task] = []
        self.free = {3: 0, 7: 0}
        for thread in (1, 2):
            self.fill(None, thread, 0, 90)
        for task in self.tasks:
            # The innermost operation at its begin; operations contain their begins and ends.
            around = [op for op in self.ops if op.thread == task.thread]
            around = [op for op in around if op.start <= task.called <= op.end]
            max(around, key=lambda op: (op.start, len(op.chain))).own.append(task)
        with Device(path) as device:
            device.row("NPU_INFO", id=0, name="NVIDIA H100")
            for op in sorted(self.ops, key=lambda op: (op.start, -op.end)):
                device.call(op.start * UNIT, op.end * UNIT, op.name, thread=op.thread)
            for number, task in enumerate(self.tasks):
                called, returned = task.called * UNIT, task.returned * UNIT
                device.runtime(called, returned, LAUNCH, number, thread=task.thread)
            for number, task in sorted(enumerate(self.tasks), key=lambda one: one[1].start):
                kernel = task.kernel, task.kernel.upper()
                times = task.start * UNIT, task.end * UNIT
                device.task(*times, stream=task.stream, connection=number, kernel=kernel)

    def fill(self, parent: Op | None, thread: int, at: int, end: int) -> None:
        """Fill the time of an operation or a thread with operations, launches and gaps."""
        choice, deep = self.random.choice, len(parent.chain) if parent else 0
        while at < end:
            until = min(end, at + choice((1, 2, 3, 5, 9)))
            kind = choice("oool.") if deep < 3 else "l"
            if kind == "o" and not (parent and (at, until) == (parent.start, parent.end)):
                op = Op(f"aten::{choice('abc')}", thread, at, until, parent)
                self.ops.append(op)
                if parent:
                    parent.children.append(op)
                self.fill(op, thread, at, until)
            elif kind == "l" and parent:
                stream, takes = choice((3, 3, 7)), choice((0, 1, 1, 2, 4))
                start = max(self.free[stream], at + choice((0, 1, 3, 9)))
                self.free[stream] = start + takes
                task = Task(at, until, start, start + takes, choice("pqr"), stream, thread)
                self.tasks.append(task)
                parent.calls_ns += UNIT * (until - at)
            at = until


@pytest.fixture(params=range(3))
def dense(request: pytest.FixtureRequest, tmp_path: Path) -> Dense:
    return Dense(tmp_path / "a.db", request.param)


def stacks(dense: Dense, measure: str) -> dict[str, list[int]]:
    with open_analyses(dense.path) as (analysis,):
        samples = analysis.stacks(measure).samples
    return {
        ";".join(one.name for one in each.frames): [each.weight, each.count] for each in samples
    }


def rows(dense: Dense, by: str) -> list[Row]:
    with open_analyses(dense.path) as (analysis,):
        return list(analysis.breakdown(by).rows)


def takes_ns(tasks: Iterable[Task]) -> int:
    return UNIT * sum(task.takes for task in tasks)


def test_self_breakdown(dense: Dense) -> None:
    names = sorted({op.name for op in dense.ops})
    found = {row.name: row for row in rows(dense, "self")}
    assert sorted(found) == names
    for name in names:
        ops = [op for op in dense.ops if op.name == name]
        outer = [op for op in ops if name not in [one.name for one in op.chain[:-1]]]
        lengths = sum(op.end - op.start for op in ops)
        nested = sum(child.end - child.start for op in ops for child in op.children)
        repeating = [op for op in ops if op.parent and len(op.parent.children) == 1]
        row = found[name]
        assert row.count == len(ops) - sum(op.parent.name == name for op in repeating if op.parent)
        assert row.total_ns == takes_ns(task for op in ops for task in op.own)
        assert row.extra == {
            "with_callees_ns": takes_ns(task for op in outer for task in op.inside),
            "launches": sum(len(op.own) for op in ops),
            "self_host_ns": UNIT * (lengths - nested),
            "host_ns": UNIT * sum(op.end - op.start for op in outer),
        }


def test_launch_breakdown(dense: Dense) -> None:
    (row,) = rows(dense, "launch")
    tasks = dense.tasks
    delays = sorted(UNIT * (task.start - task.called) for task in tasks)
    waits = sorted(UNIT * max(task.start - task.returned, 0) for task in tasks)
    called = [(UNIT * (task.returned - task.called), UNIT * task.takes) for task in tasks]
    last = len(tasks) - 1
    assert (row.name, row.count, row.total_ns) == (LAUNCH, len(tasks), sum(c for c, _ in called))
    assert row.extra == {
        "work_ns": takes_ns(tasks),
        "delay_median_ns": delays[last // 2],
        "delay_p99_ns": delays[last * 99 // 100],
        "delay_max_ns": delays[-1],
        "waited_median_ns": waits[last // 2],
        "waited_p99_ns": waits[last * 99 // 100],
        "short_kernels": sum(work < length <= 50_000 for length, work in called),
        "slow_calls": sum(length > 50_000 for length, _ in called),
        "late_kernels": sum(wait > 100_000 for wait in waits),
    }


def test_queue_breakdown(dense: Dense) -> None:
    found = {row.name: row for row in rows(dense, "queue")}
    for stream in (3, 7):
        tasks = [task for task in dense.tasks if task.stream == stream]
        spans = [(task.called, max(task.start, task.called)) for task in tasks]
        window = range(min(a for a, _ in spans), max(b for _, b in spans))
        lengths = [sum(a <= at < b for a, b in spans) for at in window]
        row = found[f"stream {stream}"]
        assert (row.count, row.total_ns) == (len(tasks), UNIT * sum(map(bool, lengths)))
        assert row.extra == {
            "window_ns": UNIT * len(window),
            "empty_ns": UNIT * lengths.count(0),
            "full_ns": 0,
            "longest": max(lengths),
            "mean_length": pytest.approx(sum(lengths) / len(window)),
        }


def test_sequence_breakdown(dense: Dense) -> None:
    expected = defaultdict[tuple[str, str], list[int]](lambda: [0] * 5)
    for op in dense.ops:
        tasks = sorted(op.inside, key=lambda task: (task.start, dense.tasks.index(task)))
        if op.parent is None and len(tasks) >= 3:
            runs = [(name, len(list(same))) for name, same in groupby(t.kernel for t in tasks)]
            text = THEN.join(name if n == 1 else f"{name} x{n}" for name, n in runs)
            elapsed = max(task.end for task in tasks) - tasks[0].start
            figures = 1, takes_ns(tasks), UNIT * elapsed, UNIT * (op.end - op.start)
            sums = expected[op.name, text]
            sums[:4] = [a + b for a, b in zip(sums, figures, strict=False)]
            sums[4] = len(tasks)
    found = {}
    for row in rows(dense, "sequence"):
        extra = (row.extra[name] for name in ("elapsed_ns", "host_ns", "kernels"))
        found[row.name, row.detail] = [row.count, row.total_ns, *extra]
    assert found == expected


def test_device_stacks(dense: Dense) -> None:
    expected = defaultdict[str, list[int]](lambda: [0, 0])
    for op in dense.ops:
        for task in op.own:
            stack = expected[";".join([*(one.name for one in op.chain), task.kernel])]
            stack[0] += UNIT * task.takes
            stack[1] += 1
    assert stacks(dense, "device") == {stack: sums for stack, sums in expected.items() if sums[0]}


def test_host_stacks(dense: Dense) -> None:
    expected = Counter[str]()
    for op in dense.ops:
        stack = ";".join([f"thread {op.thread}", *(one.name for one in op.chain)])
        nested = UNIT * sum(child.end - child.start for child in op.children)
        if own := UNIT * (op.end - op.start) - nested - op.calls_ns:
            expected[stack] += own
        if op.calls_ns:
            expected[f"{stack};{LAUNCH}"] += op.calls_ns
    assert {stack: weight for stack, (weight, _) in stacks(dense, "host").items()} == expected


def test_host_timeline(dense: Dense) -> None:
    """Intervals are divided at begins and ends, and have the name of the outermost operation."""
    edges = {(op.thread, at) for op in dense.ops for at in (op.start, op.end)}
    edges |= {(task.thread, at) for task in dense.tasks for at in (task.called, task.returned)}
    draw = dense.random.randrange
    spans = [(1 + draw(3), start, start + draw(12)) for start in range(0, 95, 3)]
    expected = []
    for number, (thread, start, end) in enumerate(spans):
        cuts = [at for at in range(start + 1, end) if (thread, at) in edges]
        for begin, until in pairwise([start, *cuts, end]):
            expected.append((begin * UNIT, until * UNIT, number))
    thread, start, end = np.array(spans, np.int64).T
    with open_report(dense.path) as report:
        recording = Recording(report)
        labels = Labels()
        timeline = HostTimeline(recording, labels)
        found = timeline.split(thread, Device.T0 + start * UNIT, Device.T0 + end * UNIT)
        begins, ends, of = (one.tolist() for one in found)
        relative = [(a - Device.T0, b - Device.T0) for a, b in zip(begins, ends, strict=True)]
        parts = [(*times, number) for times, number in zip(relative, of, strict=True)]
        assert sorted(parts) == sorted(expected)
        at = Device.T0 + start * UNIT + UNIT // 2
        names, lines, fetching = timeline.innermost(thread, at)
    for name, (own, begin, _) in zip(names.tolist(), spans, strict=True):
        ops = [op for op in dense.ops if op.thread == own and op.start <= begin < op.end]
        outermost = [op.name for op in ops if op.parent is None] or ["(outside any operation)"]
        assert [labels.texts[name]] == outermost
    assert lines.max() == -1
    assert not fetching.any()
