"""What-if estimates, compared with a simulated machine that runs the changed program."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.analysis.advice.faulty_runs import FaultyRun
from tests.analysis.explain import machine
from tests.analysis.explain.machine import (
    Action,
    EndStep,
    FetchBatch,
    HostWork,
    Launch,
    RecordEvent,
    Synchronize,
    WaitEvent,
)
from tests.sql import execute
from unified_prof.errors import UsageError
from unified_prof.explain import what_if
from unified_prof.explain.api import open_analyses
from unified_prof.explain.schedule.builder import schedule_of
from unified_prof.explain.what_if import Gain, gain, select, without
from unified_prof.recording.recording import Recording
from unified_prof.sqlite.reader import open_report

KERNELS = ("mm_1", "relu_1", "nccl_1")
US = 1_000


def estimate(
    program: Sequence[Action], name: str, factor: float, *, noise: int = 0, syncs: bool = True
) -> Gain:
    with TemporaryDirectory() as folder:
        path = machine.write(machine.run(program, noise=noise), Path(folder) / "a.db", syncs=syncs)
        with open_report(path) as report:
            recording = Recording(report)
            selection = select if factor != what_if.WITHOUT else without
            found = gain(recording, [(selection(recording, name), factor)])
            assert found is not None
            return found


def actual_gain_ns(before: Sequence[Action], after: Sequence[Action], *, noise: int = 0) -> int:
    return sum(machine.run(before, noise=noise).step_ns) - sum(
        machine.run(after, noise=noise).step_ns
    )


def test_faster_kernel_gains_its_full_time_if_the_device_is_the_bottleneck() -> None:
    program: list[Action] = [*[Launch("mm_1", 100 * US)] * 20, Synchronize(), EndStep()]
    found = estimate(program, "mm_1", 2)
    assert found.gain_ns == pytest.approx(20 * 50 * US, rel=0.01)
    assert found.changed_ns == 20 * 50 * US
    assert found.gain_ns == actual_gain_ns(program, machine.with_faster_kernel(program, "mm_1", 2))


def test_faster_kernel_gains_nothing_if_the_host_is_the_bottleneck() -> None:
    turn: list[Action] = [Launch("mm_1", 5 * US), HostWork(100 * US)]
    program: list[Action] = [*turn * 20, Synchronize(), EndStep()]
    found = estimate(program, "mm_1", 2)
    assert found.gain_ns == 0
    assert found.changed_ns == 20 * 2500
    faster_host = estimate(program, "host", 2)
    assert faster_host.gain_ns > 0.45 * faster_host.before_ns


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
def test_faster_kernel_frees_a_full_launch_queue(tmp_path: Path, factor: float) -> None:
    """Launches wait for queue space: no synchronizing call shows that the host waits."""
    turn: list[Action] = [Launch("mm_1", 600 * US), Launch("relu_1", 200 * US)]
    program: list[Action] = [*turn * 40, EndStep(), *turn * 40, EndStep()]
    before, after = (
        machine.run(changed, queue=16)
        for changed in (program, machine.with_faster_kernel(program, "mm_1", factor))
    )
    with open_report(machine.write(before, tmp_path / "a.db")) as report:
        recording = Recording(report)
        found = gain(recording, [(select(recording, "mm_1"), factor)])
    assert found is not None
    true_ns = sum(before.step_ns) - sum(after.step_ns)
    assert found.gain_ns == pytest.approx(true_ns, rel=0.01)


def test_synchronization_waits_for_tasks_from_before_the_run(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(5):
            run.kernel(at * 1000 * US, (at * 1000 + 990) * US)
        run.api(10 * US, 4995 * US, "cudaStreamSynchronize")
        run.kernel(5020 * US, 5100 * US, launched=5010 * US, name="last")
    with open_report(tmp_path / "run.db") as report:
        recording = Recording(report)
        found = gain(recording, [(select(recording, "add_kernel"), 2.0)])
    assert found is not None
    assert found.gain_ns == pytest.approx(5 * 495 * US, rel=0.02)


@pytest.mark.parametrize("early_ns", [0, 1, 900])
def test_blocking_copy_waits_if_the_next_call_is_early(tmp_path: Path, early_ns: int) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(0, 5000 * US, 1000 * US):
            run.kernel(at + 10 * US, at + 900 * US, launched=at)
            copied = run.api(at + 20 * US, at + 950 * US, "cudaMemcpyAsync")
            run.task(at + 902 * US, at + 947 * US, connection=copied, copy=1 << 20, stream=7)
            run.api(at + 950 * US - early_ns, at + 952 * US, "cudaStreamSynchronize")
    with open_report(tmp_path / "run.db") as report:
        recording = Recording(report)
        found = gain(recording, [(select(recording, "add_kernel"), 2.0)])
    assert found is not None
    assert found.gain_ns == pytest.approx(5 * 445 * US, rel=0.02)


def test_faster_collective_gains_only_its_exposed_time() -> None:
    program: list[Action] = [
        Launch("mm_1", 50 * US),
        RecordEvent(1, 7),
        WaitEvent(1, 20),
        Launch("nccl_1", 300 * US, stream=20),
        RecordEvent(2, 20),
        Launch("relu_1", 260 * US),
        WaitEvent(2, 7),
        Launch("mm_1", 50 * US),
        Synchronize(),
        EndStep(),
    ]
    # 40 us of the collective are exposed; below that the overlapped kernel is the limit.
    found = estimate(program, "nccl_1", 3)
    assert found.gain_ns == actual_gain_ns(
        program, machine.with_faster_kernel(program, "nccl_1", 3)
    )
    assert 30 * US < found.gain_ns < 45 * US
    assert estimate(program, "relu_1", 3).gain_ns == 0


def test_event_waits_are_inferred_from_times_if_none_were_recorded() -> None:
    program: list[Action] = [
        Launch("mm_1", 200 * US),
        RecordEvent(1, 7),
        WaitEvent(1, 20),
        Launch("nccl_1", 300 * US, stream=20),
        RecordEvent(2, 20),
        WaitEvent(2, 7),
        Launch("mm_1", 200 * US),
        Synchronize(),
        EndStep(),
    ]
    found = estimate(program, "nccl_1", 3, syncs=False)
    assert found.gain_ns == actual_gain_ns(
        program, machine.with_faster_kernel(program, "nccl_1", 3)
    )


def test_host_runs_ahead_without_a_synchronizing_call() -> None:
    middle: list[Action] = [*[Launch("mm_1", 100 * US)] * 5]
    slow: list[Action] = [*[Launch("relu_1", 1 * US, before_ns=40 * US)] * 5]
    program: list[Action] = [*middle, Synchronize(7), *slow, *middle, EndStep()]
    found = estimate(program, "cudaStreamSynchronize", what_if.WITHOUT)
    real = actual_gain_ns(program, [*middle, *slow, *middle, EndStep()])
    assert found.gain_ns == pytest.approx(real, rel=0.02)
    assert real > 300 * US
    # The class of all synchronizing calls, also by its former name.
    for name in ("synchronizing", "synchronising"):
        assert estimate(program, name, what_if.WITHOUT) == found


@pytest.mark.parametrize(("factors", "left"), [((2,), 2), ((2, 4), 4)])
def test_device_only_gains_stream_time(tmp_path: Path, factors: Sequence[float], left: int) -> None:
    """Of two changes of the same kernels, the larger one counts."""
    execution = machine.run([*[Launch("mm_1", 100 * US)] * 5, Synchronize(), EndStep()])
    execution.steps.clear()
    path = machine.write(execution, tmp_path / "a.db", host=False)
    with open_report(path) as report:
        recording = Recording(report)
        whole = select(recording, "kernel")
        found = gain(recording, [(whole, factor) for factor in factors])
        assert found is not None
        assert found.gain_ns == 5 * 100 * US * (1 - 1 / left)


def selected_tasks(recording: Recording, name: str) -> NDArray[np.bool_]:
    found = select(recording, name).work
    assert found is not None
    return found


def test_names_match_wildcards_and_unknown_names_are_refused(tmp_path: Path) -> None:
    path = machine.write(
        machine.run([Launch("mm_1", 100), Launch("mm_2", 100), EndStep()]), tmp_path / "a"
    )
    with open_report(path) as report:
        recording = Recording(report)
        assert np.count_nonzero(selected_tasks(recording, "mm_*")) == 2
        assert np.count_nonzero(selected_tasks(recording, "aten::op")) == 2
        host_selection = select(recording, "host:aten::op")
        assert host_selection.work is None
        assert len(host_selection.ranges) == 2
        with pytest.raises(UsageError, match="nothing in the recording is named mm_3"):
            select(recording, "mm_3")


def test_factor_of_zero_is_refused(tmp_path: Path) -> None:
    path = machine.write(machine.run([Launch("mm_1", 100), EndStep()]), tmp_path / "a")
    with open_report(path) as report:
        recording = Recording(report)
        with pytest.raises(UsageError, match="greater than 0"):
            gain(recording, [(select(recording, "mm_1"), 0)])


@st.composite
def programs(draw: st.DrawFn) -> list[Action]:
    """Generate steps with launches on two streams, event waits and synchronizing calls."""
    program: list[Action] = []
    events = 0
    steps = draw(st.integers(1, 3))
    for step in range(steps):
        begun = len(program)
        for _ in range(draw(st.integers(1, 12))):
            kind = draw(st.sampled_from(("launch", "launch", "launch", "overlap", "work", "sync")))
            length = draw(st.integers(1, 400)) * US
            if kind == "launch":
                kernel = draw(st.sampled_from(KERNELS[:2]))
                host = draw(st.sampled_from((2 * US, 60 * US)))
                program.append(Launch(kernel, length, operation=f"aten::{kernel}", before_ns=host))
            elif kind == "overlap":
                program += [RecordEvent(events, 7), WaitEvent(events, 20)]
                program += [Launch("nccl_1", length, stream=20), RecordEvent(events + 1, 20)]
                if draw(st.booleans()):
                    program.append(Launch("mm_1", draw(st.integers(1, 400)) * US))
                program += [WaitEvent(events + 1, 7), Launch("relu_1", 10 * US)]
                events += 2
            elif kind == "work":
                program.append(HostWork(length))
            else:
                program.append(Synchronize(draw(st.sampled_from((None, 7)))))
        launches = any(isinstance(one, Launch) for one in program[begun:])
        if step == steps - 1 and not launches:
            program.append(Launch("mm_1", 10 * US))  # A last step without calls is no step.
        program += [Synchronize(), EndStep()] if draw(st.booleans()) else [EndStep()]
    return program


CHANGES = st.tuples(st.sampled_from(KERNELS), st.sampled_from((1.25, 2.0, 10.0)))


def check_estimate(
    program: list[Action], change: tuple[str, float], noise: int, *, syncs: bool = True
) -> None:
    kernel, factor = change
    if not any(isinstance(one, Launch) and one.kernel == kernel for one in program):
        return
    found = estimate(program, kernel, factor, noise=noise, syncs=syncs)
    assert found.before_ns == sum(machine.run(program, noise=noise).step_ns)
    real = actual_gain_ns(program, machine.with_faster_kernel(program, kernel, factor), noise=noise)
    # Tolerance of 1 % and one launch, because the duration of calls alone is estimated.
    assert abs(found.gain_ns - real) <= 0.01 * found.before_ns + machine.LATENCY_NS + 3 * noise


@settings(max_examples=15, deadline=None)
@given(programs(), CHANGES)
def test_faster_kernel_is_as_simulated(program: list[Action], change: tuple[str, float]) -> None:
    check_estimate(program, change, 0)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(programs(), CHANGES, st.sampled_from((0, 2_000)))
def test_estimate_for_a_faster_kernel_equals_the_simulation_with_noise(
    program: list[Action], change: tuple[str, float], noise: int
) -> None:
    check_estimate(program, change, noise)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(programs(), st.sampled_from((1.5, 4.0)))
def test_estimate_for_a_faster_host_is_simulated(program: list[Action], factor: float) -> None:
    if not any(isinstance(one, Launch) and one.operation == "aten::mm_1" for one in program):
        return
    found = estimate(program, "host:aten::mm_1", factor)
    # The host time before and after the launch changes, the launching call does not.
    real = actual_gain_ns(program, machine.with_faster_host(program, "aten::mm_1", factor))
    launches = sum(isinstance(one, Launch) and one.operation == "aten::mm_1" for one in program)
    assert abs(found.gain_ns - real) <= 0.01 * found.before_ns + launches * machine.CALL_NS


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(programs())
def test_unchanged_schedule_reproduces_the_recorded_times(program: list[Action]) -> None:
    with TemporaryDirectory() as folder:
        path = machine.write(machine.run(program, noise=2_000), Path(folder) / "a.db")
        with open_report(path) as report:
            scheduled = schedule_of(Recording(report))
            assert scheduled is not None
            schedule = scheduled.schedule
            # Replay from the first moment on, with unchanged durations.
            lag = schedule.edges.lag_ns.copy()
            assert (schedule.replay(None, lag) == schedule.time_ns).all()
            later = schedule.replay(schedule.takes_ns + 1)
            assert (later >= schedule.time_ns).all()
            assert (schedule.own_ns >= 0).all()
            assert not len(schedule.dropped)


def test_device_synchronization_waits_for_all_streams() -> None:
    """The compute stream finishes last; once it is faster, the other stream does."""
    program: list[Action] = [
        Launch("nccl_1", 250 * US, stream=20),
        Launch("mm_1", 300 * US),
        Synchronize(),
        Launch("mm_2", 100 * US, before_ns=50 * US),
        EndStep(),
    ]
    real = actual_gain_ns(program, machine.with_faster_kernel(program, "mm_1", 3))
    assert 40 * US < real < 70 * US
    for syncs in (True, False):
        assert estimate(program, "mm_1", 3, syncs=syncs).gain_ns == pytest.approx(real, rel=0.02)


def test_order_of_calls_decides_the_wait_if_no_events_were_recorded() -> None:
    """The collective ends 40 us before its wait; with a faster kernel it becomes the limit."""
    program: list[Action] = [
        Launch("mm_1", 50 * US),
        RecordEvent(1, 7),
        WaitEvent(1, 20),
        Launch("nccl_1", 260 * US, stream=20),
        RecordEvent(2, 20),
        Launch("relu_1", 300 * US),
        WaitEvent(2, 7),
        Launch("mm_1", 50 * US),
        Synchronize(),
        EndStep(),
    ]
    real = actual_gain_ns(program, machine.with_faster_kernel(program, "relu_1", 10))
    assert real < 45 * US
    found = estimate(program, "relu_1", 10, syncs=False)
    assert found.gain_ns == pytest.approx(real, abs=2 * machine.GAP_NS)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(programs(), CHANGES)
def test_estimate_without_recorded_events_equals_the_simulation(
    program: list[Action], change: tuple[str, float]
) -> None:
    check_estimate(program, change, 0, syncs=False)


def test_gain_of_a_host_range_is_at_most_its_time_on_the_path(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "a.db") as run:
        run.call(0, 100 * US, "forward")
        for at in (0, 50 * US):
            run.call(at, at + 40 * US, "aten::mm")
            run.kernel(at + 12 * US, at + 15 * US, launched=at + 10 * US)
    with open_analyses(tmp_path / "a.db") as (analysis,):
        found = {one.name: one for one in analysis.what_if([], top=10).candidates}
    # From the first launch to the last; 10 us of it are in no nested operation.
    assert found["host:forward"].on_path_ns == 50 * US
    assert found["host:forward"].gain_ns == 25 * US
    assert all(2 * one.gain_ns <= one.on_path_ns + 2 for one in found.values()), found


def test_host_time_that_two_changes_remove_is_saved_once(tmp_path: Path) -> None:
    """`inner` is 30 us of the 40 us of `outer`, between two launches 100 us apart."""
    with FaultyRun(tmp_path / "a.db") as run:
        run.call(20 * US, 60 * US, "outer")
        run.call(30 * US, 60 * US, "inner")
        for launched in (0, 100 * US):
            run.kernel(launched + 6 * US, launched + 10 * US, launched=launched)
    with open_report(tmp_path / "a.db") as report:
        recording = Recording(report)

        def gain_ns(*changes: tuple[str, float]) -> int:
            found = gain(recording, [(select(recording, name), by) for name, by in changes])
            assert found is not None
            return found.gain_ns

        assert gain_ns(("outer", what_if.WITHOUT)) == 40 * US
        assert gain_ns(("outer", what_if.WITHOUT), ("inner", what_if.WITHOUT)) == 40 * US
        # The larger factor counts where both apply.
        assert gain_ns(("outer", 2), ("inner", what_if.WITHOUT)) == 35 * US


def test_waits_for_a_full_launch_queue_are_listed_as_a_limit(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "a.db") as run:
        run.kernel(12 * US, 15 * US, launched=10 * US)
    execute(tmp_path / "a.db", "CREATE TABLE IF NOT EXISTS UPROF_ANOMALIES (name, count, detail)")
    row = ("launch_queue_full", 198, "calls waited 912 ms in all because the queue was full")
    execute(tmp_path / "a.db", "INSERT INTO UPROF_ANOMALIES VALUES (?, ?, ?)", *row)
    with open_analyses(tmp_path / "a.db") as (analysis,):
        limits = analysis.what_if([], top=1).limits
        assert any("calls waited 912 ms" in one and "save far more" in one for one in limits), (
            limits
        )


def test_removed_operation_removes_its_waits() -> None:
    """`.item()` launches a copy and waits for it; without it the host runs ahead."""
    before: list[Action] = [*[Launch("mm_1", 100 * US)] * 5]
    item: list[Action] = [
        Launch("copy_1", 2 * US, operation="aten::item"),
        Synchronize(7, "aten::item"),
    ]
    slow: list[Action] = [*[Launch("relu_1", 1 * US, before_ns=40 * US)] * 5]
    program: list[Action] = [*before, *item, *slow, *before, Synchronize(), EndStep()]
    found = estimate(program, "aten::item", what_if.WITHOUT)
    real = actual_gain_ns(program, [*before, *slow, *before, Synchronize(), EndStep()])
    assert real > 300 * US
    assert found.gain_ns == pytest.approx(real, rel=0.02)


def test_faster_kernel_gains_nothing_if_the_data_loader_is_the_bottleneck() -> None:
    """Nor does removing the synchronization: workers deliver batches at the same times."""
    turn: list[Action] = [
        FetchBatch(2_000 * US),
        Launch("mm_1", 900 * US),
        Synchronize(7),
        EndStep(),
    ]
    program: list[Action] = turn * 6
    for name, factor, changed in (
        ("mm_1", 2.0, machine.with_faster_kernel(program, "mm_1", 2)),
        ("cudaStreamSynchronize", what_if.WITHOUT, [*turn[:2], EndStep()] * 6),
    ):
        found = estimate(program, name, factor)
        real = actual_gain_ns(program, changed)
        assert found.gain_ns == pytest.approx(real, abs=0.01 * found.before_ns)
        assert found.gain_ns < 0.05 * found.before_ns
    # Faster input is still a gain.
    assert estimate(program, "input", 2).gain_ns > 0.2 * estimate(program, "input", 2).before_ns


def test_batches_that_were_ready_do_not_limit_a_faster_host() -> None:
    """Taking a ready batch from the queue takes time as well, such as 1.3 ms of a 126 ms step."""

    def turn(host_ns: int) -> list[Action]:
        return [
            FetchBatch(100 * US, ready_ns=300 * US),
            HostWork(host_ns),
            Launch("mm_1", 900 * US),
            EndStep(),
        ]

    program = turn(20_000 * US) * 6
    real = actual_gain_ns(program, turn(10_000 * US) * 6)
    assert estimate(program, "host", 2).gain_ns == pytest.approx(real, rel=0.05)


def test_faster_host_does_not_fetch_input_faster() -> None:
    turn: list[Action] = [
        FetchBatch(2_000 * US),
        Launch("mm_1", 900 * US),
        Synchronize(7),
        EndStep(),
    ]
    found = estimate(turn * 6, "host", 2)
    assert found.gain_ns < 0.05 * found.before_ns
