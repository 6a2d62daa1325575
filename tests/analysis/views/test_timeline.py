"""Device timeline: every task of short recordings, merged blocks of long ones."""

from pathlib import Path

from tests.analysis.builders import Device, training_step
from unified_prof.explain.api import open_analyses


def test_timeline_of_a_small_recording_has_every_task(tmp_path: Path) -> None:
    with open_analyses(training_step(tmp_path / "msprof_1.db")) as (analysis,):
        timeline = analysis.timeline(limit=100)
    assert timeline is not None
    assert timeline.merged_below_ns == 0
    lanes = {lane.name: lane for lane in timeline.lanes}
    assert list(lanes) == ["collectives", "stream 2", "stream 3"]
    first = lanes["stream 2"]
    assert first.start_ns.tolist()[:2] == [0, 200]
    assert first.duration_ns.tolist()[:2] == [100, 50]
    assert [timeline.labels[number] for number in first.label[:2]] == ["mm_kernel", "relu_kernel"]


def test_merged_block_has_task_count_busy_time_and_longest_name(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        for index in range(400):
            name = "long" if index % 5 == 3 else "short"
            start = index * 10
            device.task(start, start + (6 if name == "long" else 2), kernel=(name, name))
        device.task(4000, 9000, kernel=("huge", "huge"))
    with open_analyses(tmp_path / "msprof_1.db") as (analysis,):
        timeline = analysis.timeline(limit=50)
    assert timeline is not None
    (lane,) = timeline.lanes
    assert len(lane) <= 50
    assert timeline.merged_below_ns > 0
    assert (int(lane.count.sum()), timeline.tasks) == (401, 401)
    assert int(lane.busy_ns.sum()) == 320 * 2 + 80 * 6 + 5000
    labels = [timeline.labels[number] for number in lane.label]
    assert timeline.whole_ns is not None
    begin, end = timeline.whole_ns
    merged = (lane.start_ns < begin) | (lane.start_ns >= end)
    assert {label for label, one in zip(labels[:-1], merged[:-1], strict=True) if one} == {"long"}
    assert (labels[-1], int(lane.count[-1])) == ("huge", 1)


def test_busiest_part_is_drawn_task_by_task(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        for index in range(400):
            # Ten times as dense between 1000 and 1200.
            start = index * 10 if index < 200 else 1000 + (index - 200) * 1
            device.task(start, start + 1, stream=index % 2, kernel=(f"k{index}", "k"))
    with open_analyses(tmp_path / "msprof_1.db") as (analysis,):
        timeline = analysis.timeline(limit=100)
    assert timeline is not None
    assert timeline.whole_ns is not None
    begin, end = timeline.whole_ns
    assert 1000 <= begin < end <= 1200
    assert sum(len(lane) for lane in timeline.lanes) <= 100
    inside = 0
    for lane in timeline.lanes:
        chosen = (lane.start_ns >= begin) & (lane.start_ns < end)
        assert set(lane.count[chosen].tolist()) == {1}
        inside += int(chosen.sum())
    assert 20 <= inside <= 40


def test_no_part_is_drawn_task_by_task_if_all_tasks_start_at_once(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        for index in range(400):
            device.task(0, 10 + index, stream=index % 2)
    with open_analyses(tmp_path / "msprof_1.db") as (analysis,):
        timeline = analysis.timeline(limit=100)
    assert timeline is not None
    assert timeline.whole_ns is None
