"""Host threads in the timeline: every range of short recordings, a bounded part of long ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.builders import Device, training_step
from unified_prof.explain.api import open_analyses
from unified_prof.recording import host_lanes
from unified_prof.recording.host_lanes import HostThreads
from unified_prof.recording.timeline import Timeline


def threads(path: Path, limit: int = 30_000) -> tuple[HostThreads, Timeline | None]:
    with open_analyses(path) as analyses:
        (analysis,) = analyses
        work = analysis.timeline()
        found = analysis.host_threads(work, limit)
    assert found is not None
    return found, work


def labels_by_row(found: HostThreads) -> dict[tuple[str, int], list[str]]:
    """Return the range names by thread and depth."""
    return {
        (thread.name, depth): [found.labels[one] for one in row.label.tolist()]
        for thread in found.threads
        for depth, row in enumerate(thread.rows)
    }


@pytest.fixture
def launches(tmp_path: Path) -> Path:
    """Two launches and a synchronization on one thread, one launch on another."""
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 1000, "ProfilerStep#1")
        device.call(100, 500, "aten::mm")
        device.runtime(150, 200, "cudaLaunchKernel", 7)
        device.runtime(250, 300, "cudaLaunchKernel", 8)
        device.runtime(400, 450, "cudaStreamSynchronize", -1)
        device.call(600, 800, "aten::add", thread=2)
        device.runtime(650, 700, "cudaLaunchKernel", 9, thread=2)
        device.task(300, 350, connection=7, kernel=("first", "mm"))
        device.task(360, 420, connection=8, kernel=("second", "mm"))
        device.task(800, 900, connection=9, stream=5, kernel=("third", "add"))
        device.task(950, 960, connection=12, stream=5, kernel=("unknown", "add"))
    return tmp_path / "msprof_1.db"


def test_ranges_nest_and_tasks_refer_to_their_launch(launches: Path) -> None:
    found, work = threads(launches)
    assert labels_by_row(found) == {
        ("thread 1", 0): ["ProfilerStep#1"],
        ("thread 1", 1): ["aten::mm"],
        ("thread 1", 2): ["cudaLaunchKernel", "cudaLaunchKernel", "cudaStreamSynchronize"],
        ("thread 2", 0): ["aten::add"],
        ("thread 2", 1): ["cudaLaunchKernel"],
    }
    kinds = [row.kind.tolist() for thread in found.threads for row in thread.rows]
    assert kinds == [
        [host_lanes.ANNOTATION], [host_lanes.OPERATION], [host_lanes.CALL] * 3,
        [host_lanes.OPERATION], [host_lanes.CALL],
    ]  # fmt: skip
    assert work is not None
    assert [one.tolist() for one in found.launched_by] == [[2, 3], [6, -1]]
    assert (found.ranges, found.drawn, found.outside, found.whole_ns) == (7, 7, 0, None)
    assert (found.start_ns, found.end_ns) == (Device.T0, Device.T0 + 1000)


def test_every_range_of_a_step_is_drawn(tmp_path: Path) -> None:
    found, _ = threads(training_step(tmp_path / "msprof_1.db"))
    assert found.ranges == found.drawn == 14
    assert found.python_frames == 0
    rows = labels_by_row(found)
    assert rows["thread 1", 1] == ["nn.Module: Net_0", "Optimizer.step#SGD.step"]
    assert rows["thread 2", 2] == ["aten::threshold_backward", "aten::mm"]


def test_functions_of_users_are_drawn_others_are_counted(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 900, "/w/job/train.py(3): run", kind=50003)
        device.call(2, 890, "/w/job/nets/mlp.py(9): forward", kind=50003)
        device.call(4, 880, "/usr/lib/python3/site-packages/torch/nn/linear.py(7): f", kind=50003)
        device.call(6, 870, "<built-in function linear>", kind=50003)
        device.call(8, 860, "nn.Module: Linear_0", kind=50003)
        device.call(10, 800, "aten::mm", launches=1)
        device.task(300, 350, connection=1, kernel=("first", "mm"))
    found, _ = threads(tmp_path / "msprof_1.db")
    assert labels_by_row(found) == {
        ("thread 1 Python", 0): ["train.py(3): run"],
        ("thread 1 Python", 1): ["nets/mlp.py(9): forward"],
        ("thread 1", 0): ["nn.Module: Linear_0"],
        ("thread 1", 1): ["aten::mm"],
    }
    kinds = [row.kind.tolist() for thread in found.threads for row in thread.rows]
    python, module = host_lanes.PYTHON, host_lanes.ANNOTATION
    assert kinds == [[python], [python], [module], [host_lanes.OPERATION]]
    assert found.python_frames == 2


def test_functions_of_at_least_half_a_millisecond_have_rows_of_their_own(tmp_path: Path) -> None:
    # As converted from a trace of torch.profiler with stacks.
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(100, 900_000, "aten::mm", launches=1)
        device.task(300_000, 950_000, connection=1, kernel=("first", "mm"))
        for start, end, text in (
            (0, 2_000_000, "/w/train.py(1): <module>"),  # Around everything.
            (50, 920_000, "/w/nets/mlp.py(9): forward"),
            (60, 910_000, "nn.Module: Linear_0"),
            (70, 905_000, "torch/nn/linear.py(7): forward"),
        ):
            device.row(
                "UPROF_PYTHON_FRAMES", startNs=start, endNs=end, globalTid=1, name=device.text(text)
            )
    found, _ = threads(tmp_path / "msprof_1.db")
    assert labels_by_row(found) == {
        ("thread 1 Python", 0): ["nets/mlp.py(9): forward"],
        ("thread 1 Python", 1): ["nn.Module: Linear_0"],
        ("thread 1", 0): ["aten::mm"],
    }
    assert found.python_frames == 2


def test_host_calls_long_before_the_first_task_are_left_out(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.runtime(0, 10, "aclInit", 2)
        device.runtime(1_000_000, 1_000_010, "aclrtLaunchKernel", 3)
        device.runtime(1_000_900, 9_000_000, "waits", 4)
        device.task(1_000_100, 1_001_000, connection=3, kernel=("first", "mm"))
    found, _ = threads(tmp_path / "msprof_1.db")
    assert labels_by_row(found) == {("thread 1", 0): ["aclrtLaunchKernel"]}
    assert (found.ranges, found.outside) == (1, 2)


def test_host_only_recording_has_the_time_of_its_ranges(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 10, "aten::mm")
        device.call(90_000, 90_010, "aten::add")
    found, work = threads(tmp_path / "msprof_1.db")
    assert work is None
    assert labels_by_row(found) == {("thread 1", 0): ["aten::mm", "aten::add"]}
    assert found.launched_by == ()


def test_device_only_recording_has_no_host_threads(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 100, kernel=("first", "mm"))
    with open_analyses(tmp_path / "msprof_1.db") as analyses:
        assert analyses[0].host_threads(analyses[0].timeline(), 100) is None


def test_launch_is_drawn_on_the_last_row_if_ranges_nest_too_deeply(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        for depth in range(30):
            device.call(depth, 1000 - depth, f"aten::level_{depth}")
        device.runtime(500, 510, "cudaLaunchKernel", 1)
        device.task(600, 700, connection=1, kernel=("first", "mm"))
    found, _ = threads(tmp_path / "msprof_1.db")
    (thread,) = found.threads
    assert len(thread.rows) == 16
    labels = [found.labels[one] for one in thread.rows[-1].label]
    assert labels == ["aten::level_15", "cudaLaunchKernel"]
    assert (found.ranges, found.drawn) == (31, 17)
    assert found.launched_by[0].tolist() == [16]


def write_many_ranges(path: Path, count: int) -> Path:
    """Write `count` operations with a launch and a kernel each; every hundredth is long."""
    with Device(path) as device:
        ids = np.arange(count)
        start = device.T0 + 2000 * ids
        row: dict[str, Any] = {"startNs": start + 100, "globalTid": 1, "type": 5000}
        row |= {"endNs": start + 300, "connectionId": ids, "name": device.text("cudaLaunchKernel")}
        device.writer.write("CANN_API", row)
        long = np.where(ids % 100, 500, 1900)
        device.writer.write(
            "PYTORCH_API",
            {
                "startNs": np.array([str(one) for one in start]),
                "endNs": np.array([str(one) for one in start + long]),
                "globalTid": 1, "connectionId": -1, "sequenceNumber": -1, "fwdThreadId": 0,
                "name": device.text("aten::mm"), "callchainId": -1, "type": 50001,
            },
        )  # fmt: skip
        row = {"startNs": start + 900, "endNs": start + 1200, "globalTaskId": ids, "deviceId": 0}
        row |= {"taskType": device.text("KERNEL_AICORE"), "streamId": 2, "connectionId": ids}
        device.writer.write("TASK", row)
    return path


@pytest.mark.slow
def test_middle_part_is_complete_and_the_longest_ranges_are_kept_if_ranges_exceed_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_many_ranges(tmp_path / "msprof_1.db", 5000)
    found, _ = threads(path, limit=1000)
    assert found.ranges == 10_000
    assert 500 <= found.drawn <= 1000
    assert found.whole_ns is not None
    begin, end = found.whole_ns
    operations, calls = (row.start_ns for row in found.threads[0].rows)
    assert int(((operations >= begin) & (operations < end)).sum()) == 250
    assert int(((calls >= begin) & (calls < end)).sum()) == 250
    assert begin == Device.T0 + 2000 * 2500 + 100, "the launch in the middle"
    outside = (operations < begin) | (operations >= end)
    duration_ns = found.threads[0].rows[0].duration_ns[outside]
    assert duration_ns.tolist() == [1900] * (50 - 2), "long ranges outside the complete part"
    assert found.longer_than_ns == 500
    (launched_by,) = found.launched_by
    assert int((launched_by >= 0).sum()) == 250

    def starts(found: HostThreads) -> list[list[int]]:
        rows = [row for thread in found.threads for row in thread.rows]
        return [row.start_ns.tolist() for row in rows]

    for window in (7, 100, 4999):
        monkeypatch.setattr(host_lanes, "_WINDOW", window)
        again, _ = threads(path, limit=1000)
        assert starts(again) == starts(found)
        assert (again.drawn, again.whole_ns, again.longer_than_ns) == (
            found.drawn, found.whole_ns, found.longer_than_ns,
        )  # fmt: skip


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_number_of_ranges_never_exceeds_the_limit(tmp_path: Path, limit: int) -> None:
    found, _ = threads(write_many_ranges(tmp_path / "msprof_1.db", 300), limit=limit)
    assert found.drawn <= limit


def test_threads_with_launches_come_first_and_omitted_threads_are_counted(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        for number in range(2, 80):
            for at in range(3):
                device.call(100 * at, 100 * at + 50, "aten::mm", thread=number)
        device.runtime(500, 510, "cudaLaunchKernel", 1, thread=99)
        device.task(600, 700, connection=1, kernel=("first", "mm"))
    found, _ = threads(tmp_path / "msprof_1.db")
    assert found.threads[0].name == "thread 99"
    assert len(found.threads) == 64
    assert found.threads_left_out == 79 - 64
    assert found.drawn == 1 + 3 * 63


RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=20)


@given(RANGES, RANGES, st.integers(0, 25), st.integers(0, 40), st.none() | st.integers(1, 3))
@settings(max_examples=200)
def test_part_and_longest_ranges_equal_those_of_sorted_lists(
    first: list[tuple[int, int]],
    second: list[tuple[int, int]],
    count: int,
    begin: int,
    unusable: int | None,
) -> None:
    def table(ranges: list[tuple[int, int]]) -> host_lanes._Table:
        start, length = np.array(ranges, np.int64).T
        usable = np.arange(len(start)) != unusable
        no_thread = np.zeros(len(start), np.int64)
        return host_lanes._Table(
            no_thread, start, start + length, usable.__getitem__, lambda _: ([], no_thread), abs
        )

    each = [
        [(start, start + length, row) for row, (start, length) in enumerate(ranges)]
        for ranges in (first, second)
    ]
    every = [one for ranges in each for one in ranges if one[2] != unusable]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_lanes, "_WINDOW", 3)
        rows = host_lanes._Rows([table(first), table(second)], None)
        assert (rows.count, rows.outside) == (len(every), 0)
        assert rows.part(begin, count) == (begin, end_of_part(every, begin, count))
        whole = begin, begin + 10
        lengths = sorted(end - start for start, end, _ in every if not begin <= start < whole[1])
        longer_than = lengths[-count - 1] if len(lengths) > count else 0
        assert rows.longer_than(whole, count) == longer_than
        assert [kept.tolist() for kept in rows.kept(whole, longer_than)] == [
            [
                row
                for start, end, row in ranges
                if row != unusable and (begin <= start < whole[1] or end - start > longer_than)
            ]
            for ranges in each
        ]
        if every:
            assert rows.span() == (min(every)[0], max(end for _, end, _ in every))


def end_of_part(every: list[tuple[int, int, int]], begin: int, count: int) -> int:
    starts = sorted(start for start, _, _ in every if start >= begin)
    return starts[count] if len(starts) > count else max([begin, *starts]) + 1
