"""The critical path: every nanosecond once, charged to what the machine really waited for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.builders import Device, training_step
from tests.analysis.explain import made
from tests.analysis.explain.made import Action, Await, Launch, Record, Step, Synchronise, Work
from tests.analysis.explain.test_what_if import programs
from tests.analysis.test_skyline import breakdown_of
from unified_prof.errors import UsageError
from unified_prof.explain import critical_path as paths
from unified_prof.explain.api import open_analyses
from unified_prof.explain.schedule import builder
from unified_prof.explain.schedule.graph import Edges, Schedule
from unified_prof.explain.self_time import HostMoments
from unified_prof.pipeline.convert import convert
from unified_prof.recording.model import Breakdown, Row
from unified_prof.recording.recording import Recording
from unified_prof.sqlite.reader import open_report

US = 1_000


def of_program(
    program: Sequence[Action], folder: Path, *, syncs: bool = True, host: bool = True
) -> Breakdown:
    return breakdown_of(
        made.write(made.run(program), folder / "a.db", syncs=syncs, host=host), "path"
    )


def by_kind(found: Breakdown) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in found.rows:
        sums[row.kind] = sums.get(row.kind, 0) + (row.total_ns or 0)
    return {kind: total for kind, total in sums.items() if total}


def named(found: Breakdown, name: str) -> Row:
    (row,) = [row for row in found.rows if row.name == name]
    return row


def test_a_device_that_is_behind_is_the_path(tmp_path: Path) -> None:
    program: list[Action] = [*[Launch("mm_1", 100 * US)] * 20, Synchronise(), Step()]
    found = of_program(program, tmp_path)
    assert found.total_ns == made.run(program).step_ns[0]
    assert sum(by_kind(found).values()) == found.total_ns
    assert by_kind(found)["kernel"] == 20 * 100 * US
    assert by_kind(found)["event"] == 19 * made.GAP_NS
    assert by_kind(found)["synchronising"] == made.RETURN_NS
    assert by_kind(found)["launch"] == made.LATENCY_NS
    assert by_kind(found)["host"] == 1_000 + 3_000  # from the step's begin to the first launch


def test_a_host_that_is_slow_is_the_path_and_kernels_have_slack(tmp_path: Path) -> None:
    turn: list[Action] = [Launch("mm_1", 5 * US), Work(100 * US)]
    found = of_program([*turn * 20, Synchronise(), Step()], tmp_path)
    assert set(by_kind(found)) == {"host", "synchronising"}
    row = named(found, "mm_1")
    assert (row.total_ns, row.extra["off_path_ns"]) == (0, 20 * 5 * US)
    # The last one may take until the call returns that asks whether it is done.
    until = made.CALL_NS + 3 * US + 100 * US + made.RETURN_NS
    assert row.extra["slack_ns"] == until - made.LATENCY_NS - 5 * US
    assert row.detail == "kernel, not on the path"
    assert named(found, "(outside any operation)").detail == "host work"
    assert (named(found, "aten::op").total_ns or 0) == 20 * 10 * US


def both_streams() -> list[Action]:
    return [
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


@pytest.mark.parametrize("syncs", [True, False])
def test_through_events_to_the_stream_that_came_last(tmp_path: Path, syncs: bool) -> None:
    found = of_program(both_streams(), tmp_path, syncs=syncs)
    assert named(found, "nccl_1").total_ns == 300 * US
    beside = named(found, "relu_1")
    assert beside.total_ns == 0
    assert beside.extra["slack_ns"] == pytest.approx(40 * US, abs=3 * US)
    assert named(found, "behind another stream").total_ns == 2 * made.GAP_NS


def test_several_steps_are_told_each_and_on_average(tmp_path: Path) -> None:
    program: list[Action] = []
    for long in (1, 2):
        program += [*[Launch("mm_1", long * 100 * US)] * 5, Synchronise(), Step()]
    row = named(of_program(program, tmp_path), "mm_1")
    assert row.total_ns == 1500 * US
    assert row.extra["per_step_ns"] == 750 * US
    assert (row.extra["step_0_ns"], row.extra["step_1_ns"]) == (500 * US, 1000 * US)


def test_of_many_steps_the_shortest_and_the_longest_are_told(tmp_path: Path) -> None:
    program: list[Action] = []
    for long in range(1, 8):
        program += [*[Launch("mm_1", long * 100 * US)] * 2, Synchronise(), Step()]
    row = named(of_program(program, tmp_path), "mm_1")
    assert (row.extra["least_ns"], row.extra["most_ns"]) == (200 * US, 1400 * US)
    assert "step_0_ns" not in row.extra


def test_a_device_alone_has_a_path_that_says_so(tmp_path: Path) -> None:
    ran = made.run(both_streams())
    ran.steps.clear()
    file = made.write(ran, tmp_path / "a.db", host=False)
    with open_analyses(file) as (analysis,):
        found = analysis.breakdown("path")
        said = {one.name: one.detail or "" for one in analysis.summary.anomalies}
    assert sum(by_kind(found).values()) == found.total_ns
    assert set(by_kind(found)) <= {"kernel", "event", "gap"}
    assert named(found, "nccl_1").total_ns == 300 * US
    assert said["path_without_host"].startswith("no host calls recorded")
    assert said["path_without_steps"].startswith("no steps recorded")
    assert said["path_without_events"].startswith("no event waits recorded")


def test_a_host_alone_has_a_path_that_says_so(tmp_path: Path) -> None:
    with Device(tmp_path / "a.db") as device:
        device.call(0, 100 * US, "ProfilerStep#1")
        device.call(10 * US, 40 * US, "aten::mm")
        device.call(50 * US, 90 * US, "enumerate(DataLoader)#_SingleProcess.__next__")
    with open_analyses(tmp_path / "a.db") as (analysis,):
        found = analysis.breakdown("path")
        said = {one.name for one in analysis.summary.anomalies}
    assert by_kind(found) == {"host": 60 * US, "input": 40 * US}
    assert named(found, "aten::mm").total_ns == 30 * US
    assert "path_without_device" in said


def test_what_was_recorded_of_nothing_has_no_path(tmp_path: Path) -> None:
    with Device(tmp_path / "a.db") as device:
        device.writer.write("NPU_INFO", {"id": [0], "name": "Ascend910B"})
    with open_analyses(tmp_path / "a.db") as (analysis,), pytest.raises(UsageError) as raised:
        analysis.breakdown("path")
    assert "neither device work nor framework operations were recorded" in str(raised.value)


def test_the_backward_thread_is_followed_to_the_one_that_called_it(tmp_path: Path) -> None:
    """Main launches, is idle while the engine's thread works, and goes on when that is done."""
    with Device(tmp_path / "a.db") as device:
        row: dict[str, Any] = {"id": [1], "startNs": device.T0, "endNs": device.T0 + 1000 * US}
        device.writer.write("STEP_TIME", row)
        device.call(0, 1000 * US, "ProfilerStep#1")
        device.call(10 * US, 200 * US, "aten::mm")
        device.call(220 * US, 700 * US, "AddmmBackward0", thread=2)
        device.call(720 * US, 950 * US, "aten::add_")
        for at, thread, connection in ((100, 1, 1), (500, 2, 2), (800, 1, 3)):
            call: dict[str, Any] = {
                "startNs": [device.T0 + at * US],
                "endNs": device.T0 + (at + 5) * US,
                "connectionId": connection,
                "globalTid": thread,
                "name": device.text("cudaLaunchKernel"),
            }
            device.writer.write("CANN_API", call)
            begin = (at + 6) * US
            device.task(begin, begin + 10 * US, connection=connection, kernel=("k", "K"))
    found = breakdown_of(tmp_path / "a.db", "path")
    assert sum(by_kind(found).values()) == found.total_ns == 1000 * US
    assert named(found, "AddmmBackward0").total_ns == 480 * US
    assert named(found, "from one thread to another").total_ns == 40 * US
    assert named(found, "aten::mm").total_ns == 190 * US


def test_a_step_of_an_npu_with_its_collective(tmp_path: Path) -> None:
    found = breakdown_of(training_step(tmp_path / "a.db"), "path")
    assert sum(by_kind(found).values()) == found.total_ns == 5000


@pytest.mark.parametrize("told", [True, False])
def test_an_npus_wait_leads_to_the_record_on_the_other_stream(tmp_path: Path, told: bool) -> None:
    """Told: how long it waited, as a 910B tells; else it is a moment, found 40 µs late (910A)."""
    with Device(tmp_path / "a.db") as device:
        device.task(0, 100 * US, stream=2, kernel=("mm", "MatMul"))
        device.task(0, 300 * US, stream=4, kernel=("other", "Other"))
        device.task(300 * US, 300 * US, "EVENT_RECORD", stream=4)
        over = 301 * US if told else 340 * US
        device.task(100 * US if told else over, over, "EVENT_WAIT", stream=2)
        device.task(over, over + 50 * US, stream=2, kernel=("add", "Add"))
    found = breakdown_of(tmp_path / "a.db", "path")
    assert named(found, "other").total_ns == 300 * US
    assert named(found, "add").total_ns == 50 * US
    assert named(found, "behind another stream").total_ns == over - 300 * US
    # Until the record: that it was seen late is no reason to be late as well.
    assert named(found, "mm").extra["slack_ns"] == 200 * US


def test_a_clock_of_the_host_that_is_ahead_is_taken_back(tmp_path: Path) -> None:
    turn: list[Action] = [Launch("mm_1", 10 * US), Work(50 * US)]
    ran = made.run([*turn * 5, Synchronise(), Step()])
    ahead = 20 * US
    ran.calls = [(start + ahead, end + ahead, name, it) for start, end, name, it in ran.calls]
    ran.operations = [(start + ahead, end + ahead, name) for start, end, name in ran.operations]
    with open_report(made.write(ran, tmp_path / "a.db")) as report:
        scheduled = builder.of_recording(Recording(report))
        assert scheduled is not None
        assert scheduled.pieces.skew_ns == ahead - made.LATENCY_NS
        assert not len(scheduled.schedule.dropped)


def test_intervals_of_a_thread_are_divided_at_begins_and_ends_of_calls(tmp_path: Path) -> None:
    ran = made.run([Launch("mm_1", 10 * US), Work(50 * US), Launch("mm_1", 10 * US), Step()])
    ranges = [(start, end) for start, end, *_ in ran.calls]
    ranges += [(start, end) for start, end, _ in ran.operations]
    moments = sorted({at for one in ranges for at in one})
    # From within the first operation to behind the last, and a moment in which nothing begins.
    intervals = [(moments[0] + 1, moments[-1] + 7), (moments[-1] + 9, moments[-1] + 11)]
    with open_report(made.write(ran, tmp_path / "a.db")) as report:
        recording = Recording(report)
        (thread,) = set(recording.host_calls.thread[:].tolist())
        start, end = np.array(intervals).T + Device.T0
        parts = HostMoments(recording, recording.work.labels).divided(
            np.full(2, thread), start, end
        )
    cuts = [moments[0] + 1, *moments[1:], moments[-1] + 7]
    expected = [(*part, 0) for part in pairwise(cuts)] + [(*intervals[1], 1)]
    begins, ends, of = parts
    assert expected == list(
        zip((begins - Device.T0).tolist(), (ends - Device.T0).tolist(), of.tolist(), strict=True)
    )


@settings(max_examples=15, deadline=None)
@given(programs(), st.booleans(), st.booleans())
def test_each_nanosecond_of_a_step_is_on_its_path_once(
    program: list[Action], syncs: bool, host: bool
) -> None:
    ran = made.run(program, noise=2_000)
    if not ran.kernels and not host:
        return
    with TemporaryDirectory() as folder:
        file = made.write(ran, Path(folder) / "a.db", syncs=syncs, host=host)
        with open_report(file) as report:
            recording = Recording(report)
            found = paths.of_recording(recording)
            scheduled = builder.of_recording(recording)
            assert found is not None
            assert scheduled is not None
            segments = found.segments
            steps = len(scheduled.step_names)
            lengths = np.bincount(segments.step, weights=segments.length_ns, minlength=steps)
            assert lengths.tolist() == scheduled.steps_ns().tolist()
            for step in range(len(scheduled.step_names)):
                mine = np.flatnonzero(segments.step == step)
                if not len(mine):  # the device was done with it before the one before it was over
                    continue
                assert segments.start_ns[mine[0]] == scheduled.step_begin_ns[step]
                assert (segments.start_ns[mine[1:]] == segments.end_ns[mine[:-1]]).all()
            assert sum(row.total_ns or 0 for row in found.rows()) == lengths.sum()


@given(st.data())
def test_slack_is_what_a_moment_may_be_late_and_no_more(data: st.DataObject) -> None:
    """Any graph: a moment that comes later by its slack delays no end, by one more it does."""
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
        # Late by its slack: all edges from it are longer by so much.
        longer = used.lag_ns + np.where(used.source == moment, slack[moment] + late, 0)
        moved = int(schedule.replay(None, longer)[-1] - schedule.time_ns[-1])
        assert moved == (late if reaches[moment] else 0)


SAMPLES = [
    "level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db",
    "level1/rank1_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_1.db",
    "910A_2024-09_level1.db",
]


@pytest.mark.parametrize("name", SAMPLES)
def test_of_real_devices_each_nanosecond_is_on_the_path_once(shared: Path, name: str) -> None:
    found = breakdown_of(shared / "samples" / "ascend" / name, "path")
    (step,) = breakdown_of(shared / "samples" / "ascend" / name, "step").rows
    assert sum(row.total_ns or 0 for row in found.rows) == found.total_ns == step.total_ns
    kinds = by_kind(found)
    assert kinds.get("gap", 0) < 0.02 * (found.total_ns or 0)


def test_a_rank_that_waits_in_a_collective_has_it_on_its_path(shared: Path) -> None:
    found = breakdown_of(shared / "samples" / "ascend" / SAMPLES[0], "path")
    longest = found.rows[0]
    assert (longest.name, longest.kind, longest.count) == ("hcom_allReduce_", "communication", 4)
    # The step ends 140 ms after it: the wait for the event behind it is what the device does.
    assert 0.6 < (longest.total_ns or 0) / (found.total_ns or 1) < 0.7


def test_of_a_long_recording_the_first_steps_are_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program: list[Action] = []
    for _ in range(4):
        program += [*[Launch("mm_1", 100 * US)] * 5, Synchronise(), Step()]
    whole = named(of_program(program, tmp_path), "mm_1")
    monkeypatch.setattr(builder, "MAX_TASKS", 12)
    with open_analyses(tmp_path / "a.db") as (analysis,):
        found = analysis.breakdown("path")
        said = {one.name: one.detail for one in analysis.summary.anomalies}
    assert found.total_ns == sum(made.run(program).step_ns[:2])
    assert named(found, "mm_1").total_ns == (whole.total_ns or 0) / 2
    assert said["path_of_first_steps"] == (
        "long recording: only the first 2 steps are analyzed, 2 are left out"
    )
    monkeypatch.setattr(builder, "MAX_TASKS", 3)
    assert breakdown_of(tmp_path / "a.db", "path").total_ns == made.run(program).step_ns[0]


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
def test_where_hta_has_a_path_it_is_ours_but_for_what_it_gives_no_weight(
    shared: Path, tmp_path: Path, trace: str, name: str, which: int, expected: dict[str, int]
) -> None:
    """HTA 0.5.0: compute 3712, kernel to kernel 50, launch 30; and 123, 30, host 408."""
    convert(shared / "samples" / "kineto" / f"{trace}.json.gz", tmp_path / "a.db")
    with open_report(tmp_path / "a.db") as report:
        recording = Recording(report)
        assert recording.framework is not None
        ranges = recording.framework.matching(lambda text: text == name)
        ranges = ranges[np.argsort(recording.framework.start_ns[ranges])]
        start = int(recording.framework.start_ns[ranges[which]])
        end = int(recording.framework.end_ns[ranges[which]])
        recording.steps = [("range", start, end)]
        found = paths.of_recording(recording)
        assert found is not None
        sums = dict.fromkeys(expected, 0)
        for row in found.rows():
            if row.kind in sums:
                sums[row.kind] += (row.total_ns or 0) // US
        assert sums == expected
