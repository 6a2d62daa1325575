"""Critical path: each nanosecond once, attributed to what the simulated machine waited for."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.builders import Device, training_step
from tests.analysis.explain import machine
from tests.analysis.explain.machine import (
    Action,
    EndStep,
    HostWork,
    Launch,
    RecordEvent,
    Synchronize,
    WaitEvent,
)
from tests.analysis.explain.test_what_if import programs
from tests.analysis.test_skyline import breakdown_of
from unified_prof.errors import UsageError
from unified_prof.explain import critical_path as paths
from unified_prof.explain.api import open_analyses
from unified_prof.explain.schedule import builder
from unified_prof.explain.schedule.graph import Edges, Schedule
from unified_prof.pipeline.convert import convert
from unified_prof.recording.model import Breakdown, Row
from unified_prof.recording.recording import Recording
from unified_prof.sqlite.reader import open_report

US = 1_000


def path_of_program(
    program: Sequence[Action], folder: Path, *, syncs: bool = True, host: bool = True
) -> Breakdown:
    execution = machine.run(program)
    file = machine.write(execution, folder / "a.db", syncs=syncs, host=host)
    return breakdown_of(file, "path")


def total_by_kind(found: Breakdown) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in found.rows:
        sums[row.kind] = sums.get(row.kind, 0) + (row.total_ns or 0)
    return {kind: total for kind, total in sums.items() if total}


def row_named(found: Breakdown, name: str) -> Row:
    (row,) = [row for row in found.rows if row.name == name]
    return row


def test_kernels_are_the_path_if_the_device_is_the_bottleneck(tmp_path: Path) -> None:
    program: list[Action] = [*[Launch("mm_1", 100 * US)] * 20, Synchronize(), EndStep()]
    found = path_of_program(program, tmp_path)
    assert found.total_ns == machine.run(program).step_ns[0]
    assert sum(total_by_kind(found).values()) == found.total_ns
    assert total_by_kind(found)["kernel"] == 20 * 100 * US
    assert total_by_kind(found)["event"] == 19 * machine.GAP_NS
    assert total_by_kind(found)["synchronising"] == machine.RETURN_NS
    assert total_by_kind(found)["launch"] == machine.LATENCY_NS
    assert (
        total_by_kind(found)["host"] == 1_000 + 3_000
    )  # from the start of the step to the first launch


def test_host_is_the_path_if_the_host_is_the_bottleneck(tmp_path: Path) -> None:
    turn: list[Action] = [Launch("mm_1", 5 * US), HostWork(100 * US)]
    found = path_of_program([*turn * 20, Synchronize(), EndStep()], tmp_path)
    assert set(total_by_kind(found)) == {"host", "synchronising"}
    row = row_named(found, "mm_1")
    assert (row.total_ns, row.extra["off_path_ns"]) == (0, 20 * 5 * US)
    # The last kernel may take until the synchronizing call returns.
    until = machine.CALL_NS + 3 * US + 100 * US + machine.RETURN_NS
    assert row.extra["slack_ns"] == until - machine.LATENCY_NS - 5 * US
    assert row.detail == "kernel, not on the path"
    assert row_named(found, "(outside any operation)").detail == "host work"
    assert (row_named(found, "aten::op").total_ns or 0) == 20 * 10 * US


def two_stream_program() -> list[Action]:
    return [
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


@pytest.mark.parametrize("syncs", [True, False])
def test_path_follows_events_to_the_stream_that_finished_last(tmp_path: Path, syncs: bool) -> None:
    found = path_of_program(two_stream_program(), tmp_path, syncs=syncs)
    assert row_named(found, "nccl_1").total_ns == 300 * US
    overlapped = row_named(found, "relu_1")
    assert overlapped.total_ns == 0
    assert overlapped.extra["slack_ns"] == pytest.approx(40 * US, abs=3 * US)
    assert row_named(found, "behind another stream").total_ns == 2 * machine.GAP_NS


def test_path_has_a_column_per_step_and_the_mean_of_all_steps(tmp_path: Path) -> None:
    program: list[Action] = []
    for long in (1, 2):
        program += [*[Launch("mm_1", long * 100 * US)] * 5, Synchronize(), EndStep()]
    row = row_named(path_of_program(program, tmp_path), "mm_1")
    assert row.total_ns == 1500 * US
    assert row.extra["per_step_ns"] == 750 * US
    assert (row.extra["step_0_ns"], row.extra["step_1_ns"]) == (500 * US, 1000 * US)


def test_path_of_many_steps_has_the_shortest_and_longest_step(tmp_path: Path) -> None:
    program: list[Action] = []
    for long in range(1, 8):
        program += [*[Launch("mm_1", long * 100 * US)] * 2, Synchronize(), EndStep()]
    row = row_named(path_of_program(program, tmp_path), "mm_1")
    assert (row.extra["least_ns"], row.extra["most_ns"]) == (200 * US, 1400 * US)
    assert "step_0_ns" not in row.extra


def test_device_only_recording_has_a_path_with_its_limits(tmp_path: Path) -> None:
    execution = machine.run(two_stream_program())
    execution.steps.clear()
    file = machine.write(execution, tmp_path / "a.db", host=False)
    with open_analyses(file) as (analysis,):
        found = analysis.breakdown("path")
        limits = {one.name: one.detail or "" for one in analysis.summary.anomalies}
    assert sum(total_by_kind(found).values()) == found.total_ns
    assert set(total_by_kind(found)) <= {"kernel", "event", "gap"}
    assert row_named(found, "nccl_1").total_ns == 300 * US
    assert limits["path_without_host"].startswith("no host calls recorded")
    assert limits["path_without_steps"].startswith("no steps recorded")
    assert limits["path_without_events"].startswith("no event waits recorded")


def test_host_only_recording_has_a_path_with_its_limits(tmp_path: Path) -> None:
    with Device(tmp_path / "a.db") as device:
        device.call(0, 100 * US, "ProfilerStep#1")
        device.call(10 * US, 40 * US, "aten::mm")
        device.call(50 * US, 90 * US, "enumerate(DataLoader)#_SingleProcess.__next__")
    with open_analyses(tmp_path / "a.db") as (analysis,):
        found = analysis.breakdown("path")
        limits = {one.name for one in analysis.summary.anomalies}
    assert total_by_kind(found) == {"host": 60 * US, "input": 40 * US}
    assert row_named(found, "aten::mm").total_ns == 30 * US
    assert "path_without_device" in limits


def test_recording_without_tasks_and_operations_has_no_path(tmp_path: Path) -> None:
    with Device(tmp_path / "a.db") as device:
        device.row("NPU_INFO", id=0, name="Ascend910B")
    with open_analyses(tmp_path / "a.db") as (analysis,), pytest.raises(UsageError) as raised:
        analysis.breakdown("path")
    assert "neither device work nor framework operations were recorded" in str(raised.value)


def test_path_follows_the_backward_thread_to_its_caller(tmp_path: Path) -> None:
    """The main thread launches, is idle during backward on the autograd thread, and continues."""
    with Device(tmp_path / "a.db") as device:
        device.step(1, 0, 1000 * US)
        device.call(0, 1000 * US, "ProfilerStep#1")
        device.call(10 * US, 200 * US, "aten::mm")
        device.call(220 * US, 700 * US, "AddmmBackward0", thread=2)
        device.call(720 * US, 950 * US, "aten::add_")
        for at, thread, connection in ((100, 1, 1), (500, 2, 2), (800, 1, 3)):
            device.runtime(at * US, (at + 5) * US, "cudaLaunchKernel", connection, thread=thread)
            begin = (at + 6) * US
            device.task(begin, begin + 10 * US, connection=connection, kernel=("k", "K"))
    found = breakdown_of(tmp_path / "a.db", "path")
    assert sum(total_by_kind(found).values()) == found.total_ns == 1000 * US
    assert row_named(found, "AddmmBackward0").total_ns == 480 * US
    assert row_named(found, "from one thread to another").total_ns == 40 * US
    assert row_named(found, "aten::mm").total_ns == 190 * US


def test_path_of_an_npu_step_covers_the_step(tmp_path: Path) -> None:
    found = breakdown_of(training_step(tmp_path / "a.db"), "path")
    assert sum(total_by_kind(found).values()) == found.total_ns == 5000


@pytest.mark.parametrize("duration_recorded", [True, False])
def test_npu_event_wait_leads_to_the_other_stream(tmp_path: Path, duration_recorded: bool) -> None:
    """A 910B records the duration of the wait; a 910A only a moment, 40 us after the event."""
    with Device(tmp_path / "a.db") as device:
        device.task(0, 100 * US, stream=2, kernel=("mm", "MatMul"))
        device.task(0, 300 * US, stream=4, kernel=("other", "Other"))
        device.task(300 * US, 300 * US, "EVENT_RECORD", stream=4)
        over = 301 * US if duration_recorded else 340 * US
        device.task(100 * US if duration_recorded else over, over, "EVENT_WAIT", stream=2)
        device.task(over, over + 50 * US, stream=2, kernel=("add", "Add"))
    found = breakdown_of(tmp_path / "a.db", "path")
    assert row_named(found, "other").total_ns == 300 * US
    assert row_named(found, "add").total_ns == 50 * US
    assert row_named(found, "behind another stream").total_ns == over - 300 * US
    # The slack lasts until the record, not until the wait noticed it.
    assert row_named(found, "mm").extra["slack_ns"] == 200 * US


def test_host_clock_that_is_ahead_is_corrected(tmp_path: Path) -> None:
    turn: list[Action] = [Launch("mm_1", 10 * US), HostWork(50 * US)]
    execution = machine.run([*turn * 5, Synchronize(), EndStep()])
    ahead = 20 * US
    execution.calls = [
        (start + ahead, end + ahead, name, it) for start, end, name, it in execution.calls
    ]
    execution.operations = [
        (start + ahead, end + ahead, name) for start, end, name in execution.operations
    ]
    with open_report(machine.write(execution, tmp_path / "a.db")) as report:
        scheduled = builder.build_schedule(Recording(report))
        assert scheduled is not None
        assert scheduled.tasks.skew_ns == ahead - machine.LATENCY_NS
        assert not len(scheduled.schedule.dropped)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(programs(), st.booleans(), st.booleans())
def test_path_covers_each_nanosecond_of_a_step_once(
    program: list[Action], syncs: bool, host: bool
) -> None:
    execution = machine.run(program, noise=2_000)
    if not execution.kernels and not host:
        return
    with TemporaryDirectory() as folder:
        file = machine.write(execution, Path(folder) / "a.db", syncs=syncs, host=host)
        with open_report(file) as report:
            recording = Recording(report)
            found = paths.find_path(recording)
            scheduled = builder.build_schedule(recording)
            assert found is not None
            assert scheduled is not None
            segments = found.segments
            steps = len(scheduled.step_names)
            lengths = np.bincount(segments.step, weights=segments.length_ns, minlength=steps)
            assert lengths.tolist() == scheduled.steps_ns().tolist()
            for step in range(len(scheduled.step_names)):
                of_step = np.flatnonzero(segments.step == step)
                if not len(of_step):  # the device finished this step before the previous one
                    continue
                assert segments.start_ns[of_step[0]] == scheduled.step_begin_ns[step]
                assert (segments.start_ns[of_step[1:]] == segments.end_ns[of_step[:-1]]).all()
            assert sum(row.total_ns or 0 for row in found.rows()) == lengths.sum()


@given(st.data())
def test_slack_is_the_largest_delay_that_does_not_delay_the_end(data: st.DataObject) -> None:
    """For any graph, a delay by the slack delays no end, and a delay by one more does."""
    count = data.draw(st.integers(2, 12))
    time = np.cumsum(data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)))
    takes = np.array(data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)))
    pairs = data.draw(
        st.lists(
            st.tuples(st.integers(0, count - 2), st.integers(1, count - 1), st.booleans()),
            max_size=20,
        )
    )
    pairs = [pair for pair in pairs if pair[0] < pair[1]]
    lag = data.draw(st.lists(st.integers(0, 4), min_size=len(pairs), max_size=len(pairs)))
    edges = Edges(
        np.array([pair[0] for pair in pairs], np.int64),
        np.array([pair[1] for pair in pairs], np.int64),
        np.array(lag, np.int64),
        np.array([pair[2] for pair in pairs], bool),
        np.zeros(len(pairs), np.int8),
    )
    schedule = Schedule(time.astype(np.int64), takes.astype(np.int64), edges)
    end = np.array([count - 1])
    slack = schedule.slack_ns(end)
    used = schedule.edges
    reaches = np.zeros(count, bool)
    reaches[-1] = True
    for edge in range(len(used))[::-1]:
        reaches[used.source[edge]] |= reaches[used.target[edge]]
    moment = data.draw(st.integers(0, count - 2))
    for late in (0, 1):
        # Delay the moment by its slack: all edges from it get longer.
        longer = used.lag_ns + np.where(used.source == moment, slack[moment] + late, 0)
        moved = int(schedule.replay(None, longer)[-1] - schedule.time_ns[-1])
        assert moved == (late if reaches[moment] else 0)


SAMPLES = [
    "level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db",
    "level1/rank1_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_1.db",
    "910A_2024-09_level1.db",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_path_of_real_recordings_covers_the_step(shared: Path, name: str) -> None:
    found = breakdown_of(shared / "samples" / "ascend" / name, "path")
    (step,) = breakdown_of(shared / "samples" / "ascend" / name, "step").rows
    assert sum(row.total_ns or 0 for row in found.rows) == found.total_ns == step.total_ns
    kinds = total_by_kind(found)
    assert kinds.get("gap", 0) < 0.02 * (found.total_ns or 0)


def test_collective_wait_of_a_real_rank_is_on_its_path(shared: Path) -> None:
    found = breakdown_of(shared / "samples" / "ascend" / SAMPLES[0], "path")
    longest = found.rows[0]
    assert (longest.name, longest.kind, longest.count) == ("hcom_allReduce_", "communication", 4)
    # The step ends 140 ms after it, because the device waits for the event that follows it.
    assert 0.6 < (longest.total_ns or 0) / (found.total_ns or 1) < 0.7


def test_long_paths_cover_the_first_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program: list[Action] = []
    for _ in range(4):
        program += [*[Launch("mm_1", 100 * US)] * 5, Synchronize(), EndStep()]
    whole = row_named(path_of_program(program, tmp_path), "mm_1")
    monkeypatch.setattr(builder, "MAX_TASKS", 12)
    with open_analyses(tmp_path / "a.db") as (analysis,):
        found = analysis.breakdown("path")
        limits = {one.name: one.detail for one in analysis.summary.anomalies}
    assert found.total_ns == sum(machine.run(program).step_ns[:2])
    assert row_named(found, "mm_1").total_ns == (whole.total_ns or 0) / 2
    assert limits["path_of_first_steps"] == (
        "long recording: only the first 2 steps are analyzed, 2 are left out"
    )
    monkeypatch.setattr(builder, "MAX_TASKS", 3)
    assert breakdown_of(tmp_path / "a.db", "path").total_ns == machine.run(program).step_ns[0]


@pytest.mark.parametrize(
    ("trace", "name", "which", "expected"),
    [
        (
            "critical_path__alexnet__benchmark_result_2869224_1695835535_trace",
            "[param|pytorch.model.alex_net|0|0|0|measure|forward]",
            1,
            {"kernel": 3710, "copy": 2, "event": 51, "launch": 30, "host": 32541},
        ),
        (
            "critical_path__event_sync_multi_stream",
            "aten::matmul",
            0,
            {"kernel": 123, "launch": 30, "host": 414},
        ),
    ],
)
def test_path_equals_that_of_hta(
    shared: Path, tmp_path: Path, trace: str, name: str, which: int, expected: dict[str, int]
) -> None:
    """HTA 0.5.0 has compute 3712, kernel to kernel 50, launch 30; and 123, 30, host 408.

    It gives no weight to copies and to some host time.
    """
    convert(shared / "samples" / "kineto" / f"{trace}.json.gz", tmp_path / "a.db")
    with open_report(tmp_path / "a.db") as report:
        recording = Recording(report)
        assert recording.framework is not None
        ranges = recording.framework.matching(lambda text: text == name)
        ranges = ranges[np.argsort(recording.framework.start_ns[ranges])]
        start = int(recording.framework.start_ns[ranges[which]])
        end = int(recording.framework.end_ns[ranges[which]])
        recording.steps = [("range", start, end)]
        found = paths.find_path(recording)
        assert found is not None
        sums = dict.fromkeys(expected, 0)
        for row in found.rows():
            if row.kind in sums:
                sums[row.kind] += (row.total_ns or 0) // US
        assert sums == expected


@st.composite
def dependencies(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Begins of moments without edges, and edges (source, target, lag) in random numbering."""
    count = draw(st.integers(1, 8))
    number = draw(st.permutations(range(count)))
    begins = draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), st.integers(0, 20))
    chosen = draw(st.lists(pairs.filter(lambda one: one[0] < one[1]), max_size=16))
    targets = {number[b] for _, b, _ in chosen}
    begins = [0 if moment in targets else begin for moment, begin in enumerate(begins)]
    return begins, [(number[a], number[b], lag) for a, b, lag in chosen]


def edges_of(chosen: Sequence[tuple[int, int, int]]) -> Edges:
    source, target, lag = np.array(chosen, np.int64).reshape(-1, 3).T
    return Edges.uniform(source, target, lag, behind=False, kind=0)


@given(dependencies(), st.data())
def test_earliest_moments_are_the_longest_paths_also_with_other_lags(
    given_graph: tuple[list[int], list[tuple[int, int, int]]], data: st.DataObject
) -> None:
    begins, chosen = given_graph
    edges = edges_of(chosen)
    never = np.zeros(len(begins), bool)
    schedule, place, kept = Schedule.earliest(
        np.array(begins), edges, np.zeros(len(edges), bool), never
    )

    def longest(lags: Sequence[int]) -> list[int]:
        times = list(begins)
        for _ in begins:
            for (source, target, _), lag in zip(chosen, lags, strict=True):
                times[target] = max(times[target], times[source] + lag)
        return times

    recorded = edges.lag_ns.tolist()
    assert schedule.time_ns[place].tolist() == longest(recorded)
    assert sorted(kept.tolist()) == list(range(len(chosen)))
    longer = [lag + data.draw(st.integers(0, 9)) for lag in recorded]
    replayed = schedule.replay(lag_ns=np.array(longer, np.int64)[kept])
    assert replayed[place].tolist() == longest(longer)


def test_moments_that_wait_for_each_other_ignore_their_optional_edges_earliest_first() -> None:
    # 2 and 3 wait for each other, 4 for 0, which never comes, 5 for 4.
    chosen = [(1, 2, 10), (3, 2, 5), (1, 3, 30), (2, 3, 5), (0, 4, 1), (1, 4, 7), (4, 5, 1)]
    optional = np.array([False, True, False, True, True, False, False])
    never = np.arange(6) == 0
    schedule, place, kept = Schedule.earliest(
        np.zeros(6, np.int64), edges_of(chosen), optional, never
    )
    assert place[0] == -1
    assert schedule.time_ns[place[1:]].tolist() == [0, 10, 30, 7, 8]
    assert sorted(kept.tolist()) == [0, 2, 3, 5, 6]


def test_replay_of_rounded_times_changes_only_what_is_changed() -> None:
    # The task at 0 ends 1.5 us after the moment that waited for it, by rounded times.
    edges = Edges.uniform(
        np.array([0, 1, 2]), np.array([1, 2, 3]), np.array([9, 9, 9]), behind=True, kind=0
    )
    time = np.array([0, 10_000, 18_500, 30_000])
    schedule = Schedule(time, np.array([9_000, 10_000, 10_000, 0]), edges)
    assert len(schedule.dropped) == 0
    lag = schedule.edges.lag_ns.copy()
    lag[0] += 40
    assert (schedule.replay(lag_ns=lag) - time).tolist() == [0, 40, 40, 40]
    path = schedule.path(3, 0)
    assert (path.end_ns - path.start_ns).sum() == 30_000
