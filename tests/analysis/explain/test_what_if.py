"""What a step would gain, against a machine that really runs the faster program."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.analysis.advice.plants import Plant
from tests.analysis.explain import made
from tests.analysis.explain.made import (
    Action,
    Await,
    Fetch,
    Launch,
    Record,
    Step,
    Synchronise,
    Work,
)
from unified_prof.errors import UsageError
from unified_prof.explain import what_if
from unified_prof.explain.api import open_analyses
from unified_prof.explain.what_if import Gain, gain, schedule_of, select, without
from unified_prof.recording.recording import Recording
from unified_prof.sqlite.reader import open_report

KERNELS = ("mm_1", "relu_1", "nccl_1")
US = 1_000


def gained(
    program: Sequence[Action], name: str, factor: float, *, noise: int = 0, syncs: bool = True
) -> Gain:
    with TemporaryDirectory() as folder:
        path = made.write(made.run(program, noise=noise), Path(folder) / "a.db", syncs=syncs)
        with open_report(path) as report:
            recording = Recording(report)
            selection = select if factor != what_if.WITHOUT else without
            found = gain(recording, [(selection(recording, name), factor)])
            assert found is not None
            return found


def really_gained(before: Sequence[Action], after: Sequence[Action], *, noise: int = 0) -> int:
    return sum(made.run(before, noise=noise).step_ns) - sum(made.run(after, noise=noise).step_ns)


def test_of_a_device_that_is_behind_all_that_a_kernel_loses_is_gained() -> None:
    program: list[Action] = [*[Launch("mm_1", 100 * US)] * 20, Synchronise(), Step()]
    found = gained(program, "mm_1", 2)
    assert found.gain_ns == pytest.approx(20 * 50 * US, rel=0.01)
    assert found.changed_ns == 20 * 50 * US
    assert found.gain_ns == really_gained(program, made.faster(program, "mm_1", 2))


def test_where_the_host_is_slow_a_faster_kernel_gains_nothing() -> None:
    turn: list[Action] = [Launch("mm_1", 5 * US), Work(100 * US)]
    program: list[Action] = [*turn * 20, Synchronise(), Step()]
    found = gained(program, "mm_1", 2)
    assert found.gain_ns == 0
    assert found.changed_ns == 20 * 2500
    quicker = gained(program, "host", 2)
    assert quicker.gain_ns > 0.45 * quicker.before_ns


def test_beside_a_collective_only_what_sticks_out_is_gained() -> None:
    program: list[Action] = [
        Launch("mm_1", 50 * US),
        Record(1, 7),
        Await(1, 20),
        Launch("nccl_1", 300 * US, stream=20),
        Record(2, 20),
        Launch("relu_1", 260 * US),
        Await(2, 7),
        Launch("mm_1", 50 * US),
        Synchronise(),
        Step(),
    ]
    # The collective sticks out by some 40 µs; from then on the kernel beside it decides.
    found = gained(program, "nccl_1", 3)
    assert found.gain_ns == really_gained(program, made.faster(program, "nccl_1", 3))
    assert 30 * US < found.gain_ns < 45 * US
    assert gained(program, "relu_1", 3).gain_ns == 0


def test_without_a_record_of_events_the_times_say_who_waited() -> None:
    program: list[Action] = [
        Launch("mm_1", 200 * US),
        Record(1, 7),
        Await(1, 20),
        Launch("nccl_1", 300 * US, stream=20),
        Record(2, 20),
        Await(2, 7),
        Launch("mm_1", 200 * US),
        Synchronise(),
        Step(),
    ]
    found = gained(program, "nccl_1", 3, syncs=False)
    assert found.gain_ns == really_gained(program, made.faster(program, "nccl_1", 3))


def test_without_a_synchronising_call_the_host_runs_ahead() -> None:
    middle: list[Action] = [*[Launch("mm_1", 100 * US)] * 5]
    slow: list[Action] = [*[Launch("relu_1", 1 * US, before_ns=40 * US)] * 5]
    program: list[Action] = [*middle, Synchronise(7), *slow, *middle, Step()]
    found = gained(program, "cudaStreamSynchronize", what_if.WITHOUT)
    real = really_gained(program, [*middle, *slow, *middle, Step()])
    assert found.gain_ns == pytest.approx(real, rel=0.02)
    assert real > 300 * US


def test_a_device_of_which_no_host_is_known_gains_what_its_streams_do(tmp_path: Path) -> None:
    ran = made.run([*[Launch("mm_1", 100 * US)] * 5, Synchronise(), Step()])
    ran.steps.clear()
    path = made.write(ran, tmp_path / "a.db", host=False)
    with open_report(path) as report:
        recording = Recording(report)
        whole = select(recording, "kernel")
        found = gain(recording, [(whole, 2)])
        assert found is not None
        assert found.gain_ns == 5 * 50 * US


def work_of(recording: Recording, name: str) -> NDArray[np.bool_]:
    found = select(recording, name).work
    assert found is not None
    return found


def test_names_may_have_stars_and_those_that_nothing_has_are_refused(tmp_path: Path) -> None:
    path = made.write(made.run([Launch("mm_1", 100), Launch("mm_2", 100), Step()]), tmp_path / "a")
    with open_report(path) as report:
        recording = Recording(report)
        assert np.count_nonzero(work_of(recording, "mm_*")) == 2
        assert np.count_nonzero(work_of(recording, "aten::op")) == 2
        of_host = select(recording, "host:aten::op")
        assert of_host.work is None
        assert len(of_host.ranges) == 2
        with pytest.raises(UsageError, match="nothing in the recording is named mm_3"):
            select(recording, "mm_3")


def test_a_factor_that_makes_nothing_faster_is_refused(tmp_path: Path) -> None:
    path = made.write(made.run([Launch("mm_1", 100), Step()]), tmp_path / "a")
    with open_report(path) as report:
        recording = Recording(report)
        with pytest.raises(UsageError, match="greater than 0"):
            gain(recording, [(select(recording, "mm_1"), 0)])


@st.composite
def programs(draw: st.DrawFn) -> list[Action]:
    """Steps of launches on two streams that wait for one another, with synchronising calls."""
    program: list[Action] = []
    events = 0
    for _ in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 12))):
            what = draw(st.sampled_from(("launch", "launch", "launch", "beside", "work", "sync")))
            length = draw(st.integers(1, 400)) * US
            if what == "launch":
                kernel = draw(st.sampled_from(KERNELS[:2]))
                host = draw(st.sampled_from((2 * US, 60 * US)))
                program.append(Launch(kernel, length, operation=f"aten::{kernel}", before_ns=host))
            elif what == "beside":
                program += [Record(events, 7), Await(events, 20)]
                program += [Launch("nccl_1", length, stream=20), Record(events + 1, 20)]
                if draw(st.booleans()):
                    program.append(Launch("mm_1", draw(st.integers(1, 400)) * US))
                program += [Await(events + 1, 7), Launch("relu_1", 10 * US)]
                events += 2
            elif what == "work":
                program.append(Work(length))
            else:
                program.append(Synchronise(draw(st.sampled_from((None, 7)))))
        program += [Synchronise(), Step()] if draw(st.booleans()) else [Step()]
    return program


CHANGES = st.tuples(st.sampled_from(KERNELS), st.sampled_from((1.25, 2.0, 10.0)))


def as_the_machine_does(
    program: list[Action], change: tuple[str, float], noise: int, *, syncs: bool = True
) -> None:
    kernel, factor = change
    if not any(isinstance(one, Launch) and one.kernel == kernel for one in program):
        return
    found = gained(program, kernel, factor, noise=noise, syncs=syncs)
    assert found.before_ns == sum(made.run(program, noise=noise).step_ns)
    real = really_gained(program, made.faster(program, kernel, factor), noise=noise)
    # A hundredth of the steps, and a launch: what calls take by themselves is a guess.
    assert abs(found.gain_ns - real) <= 0.01 * found.before_ns + made.LATENCY_NS + 3 * noise


@settings(max_examples=15, deadline=None)
@given(programs(), CHANGES)
def test_faster_kernels_gain_what_the_machine_gains(
    program: list[Action], change: tuple[str, float]
) -> None:
    as_the_machine_does(program, change, 0)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(programs(), CHANGES, st.sampled_from((0, 2_000)))
def test_faster_kernels_gain_what_a_noisy_machine_gains(
    program: list[Action], change: tuple[str, float], noise: int
) -> None:
    as_the_machine_does(program, change, noise)


@settings(max_examples=15, deadline=None)
@given(programs(), st.sampled_from((1.5, 4.0)))
def test_a_faster_host_gains_what_the_machine_gains(program: list[Action], factor: float) -> None:
    if not any(isinstance(one, Launch) and one.operation == "aten::mm_1" for one in program):
        return
    found = gained(program, "host:aten::mm_1", factor)
    # Of the operation the host's part before and after the launch; the launching call stays.
    quicker = made.quicker_host(program, "aten::mm_1", factor)
    real = really_gained(program, quicker)
    share = sum(isinstance(one, Launch) and one.operation == "aten::mm_1" for one in program)
    assert abs(found.gain_ns - real) <= 0.01 * found.before_ns + share * made.CALL_NS


@settings(max_examples=10, deadline=None)
@given(programs())
def test_with_nothing_changed_all_comes_when_it_was_recorded(program: list[Action]) -> None:
    with TemporaryDirectory() as folder:
        path = made.write(made.run(program, noise=2_000), Path(folder) / "a.db")
        with open_report(path) as report:
            scheduled = schedule_of(Recording(report))
            assert scheduled is not None
            schedule = scheduled.schedule
            # Run from the first moment on, by a change that is none in the end.
            lag = schedule.edges.lag_ns.copy()
            assert (schedule.replay(None, lag) == schedule.time_ns).all()
            later = schedule.replay(schedule.takes_ns + 1)
            assert (later >= schedule.time_ns).all()
            assert (schedule.own_ns >= 0).all()
            assert not len(schedule.dropped)


def test_of_a_wait_for_the_device_all_streams_count() -> None:
    """The compute stream is done last; once it is faster, the other one is."""
    program: list[Action] = [
        Launch("nccl_1", 250 * US, stream=20),
        Launch("mm_1", 300 * US),
        Synchronise(),
        Launch("mm_2", 100 * US, before_ns=50 * US),
        Step(),
    ]
    real = really_gained(program, made.faster(program, "mm_1", 3))
    assert 40 * US < real < 70 * US
    for syncs in (True, False):
        assert gained(program, "mm_1", 3, syncs=syncs).gain_ns == pytest.approx(real, rel=0.02)


def test_without_a_record_of_events_the_order_of_calls_says_what_did_not_decide() -> None:
    """The collective is done 40 µs before what waits for it: with a faster kernel it decides."""
    program: list[Action] = [
        Launch("mm_1", 50 * US),
        Record(1, 7),
        Await(1, 20),
        Launch("nccl_1", 260 * US, stream=20),
        Record(2, 20),
        Launch("relu_1", 300 * US),
        Await(2, 7),
        Launch("mm_1", 50 * US),
        Synchronise(),
        Step(),
    ]
    real = really_gained(program, made.faster(program, "relu_1", 10))
    assert real < 45 * US
    found = gained(program, "relu_1", 10, syncs=False)
    assert found.gain_ns == pytest.approx(real, abs=2 * made.GAP_NS)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(programs(), CHANGES)
def test_nearly_as_much_without_a_record_of_events(
    program: list[Action], change: tuple[str, float]
) -> None:
    as_the_machine_does(program, change, 0, syncs=False)


def test_a_range_on_the_host_never_gains_more_than_its_time_on_the_path(tmp_path: Path) -> None:
    with Plant(tmp_path / "a.db") as plant:
        plant.call(0, 100 * US, "forward")
        for at in (0, 50 * US):
            plant.call(at, at + 40 * US, "aten::mm")
            plant.kernel(at + 12 * US, at + 15 * US, launched=at + 10 * US)
    with open_analyses(tmp_path / "a.db") as (analysis,):
        found = {one.name: one for one in analysis.what_if([], top=10).candidates}
    # From the first launch to the last: 10 us of it are in no operation within.
    assert found["host:forward"].on_path_ns == 50 * US
    assert found["host:forward"].gain_ns == 25 * US
    assert all(2 * one.gain_ns <= one.on_path_ns + 2 for one in found.values()), found


def test_waits_for_a_full_queue_are_told_as_a_limit(tmp_path: Path) -> None:
    with Plant(tmp_path / "a.db") as plant:
        plant.kernel(12 * US, 15 * US, launched=10 * US)
    with closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS UPROF_ANOMALIES (name, count, detail)")
        row = ("launch_queue_full", 198, "calls waited 912 ms in all because the queue was full")
        db.execute("INSERT INTO UPROF_ANOMALIES VALUES (?, ?, ?)", row)
    with open_analyses(tmp_path / "a.db") as (analysis,):
        said = analysis.what_if([], top=1).limits
    assert any("calls waited 912 ms" in one and "save far more" in one for one in said), said


def test_without_an_operation_its_waits_are_gone_too() -> None:
    """`.item()` launches a copy and waits for it; without it the host runs ahead."""
    before: list[Action] = [*[Launch("mm_1", 100 * US)] * 5]
    item: list[Action] = [
        Launch("copy_1", 2 * US, operation="aten::item"),
        Synchronise(7, "aten::item"),
    ]
    slow: list[Action] = [*[Launch("relu_1", 1 * US, before_ns=40 * US)] * 5]
    program: list[Action] = [*before, *item, *slow, *before, Synchronise(), Step()]
    found = gained(program, "aten::item", what_if.WITHOUT)
    real = really_gained(program, [*before, *slow, *before, Synchronise(), Step()])
    assert real > 300 * US
    assert found.gain_ns == pytest.approx(real, rel=0.02)


def test_batches_of_worker_processes_arrive_no_earlier() -> None:
    """The loader is the bottleneck: a faster kernel or no synchronization gains next to nothing."""
    turn: list[Action] = [Fetch(2_000 * US), Launch("mm_1", 900 * US), Synchronise(7), Step()]
    program: list[Action] = turn * 6
    for name, factor, changed in (
        ("mm_1", 2.0, made.faster(program, "mm_1", 2)),
        ("cudaStreamSynchronize", what_if.WITHOUT, [*turn[:2], Step()] * 6),
    ):
        found = gained(program, name, factor)
        real = really_gained(program, changed)
        assert found.gain_ns == pytest.approx(real, abs=0.01 * found.before_ns)
        assert found.gain_ns < 0.05 * found.before_ns
    # Faster input is still a gain.
    assert gained(program, "input", 2).gain_ns > 0.2 * gained(program, "input", 2).before_ns


def test_a_faster_host_does_not_fetch_input_faster() -> None:
    turn: list[Action] = [Fetch(2_000 * US), Launch("mm_1", 900 * US), Synchronise(7), Step()]
    found = gained(turn * 6, "host", 2)
    assert found.gain_ns < 0.05 * found.before_ns
