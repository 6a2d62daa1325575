"""Idle intervals of the timeline add up to the idle reasons."""

from pathlib import Path

import pytest

from tests.analysis.builders import Device, training_step
from tests.analysis.views.test_host_lanes import write_many_ranges
from unified_prof.explain.api import open_analyses
from unified_prof.recording.idle import REASONS


def test_idle_intervals_add_up_to_the_idle_reasons(tmp_path: Path) -> None:
    with open_analyses(training_step(tmp_path / "msprof_1.db")) as (analysis,):
        (lane,) = analysis.idle_lanes(1000)
        (whole,) = (one for one in analysis.why_idle() if one.step is None)
        work = analysis.timeline()
    assert (lane.device, lane.left_out, lane.longer_than_ns) == (whole.device, 0, 0)
    assert int(lane.duration_ns.sum()) == whole.idle_ns
    for number, reason in enumerate(REASONS):
        time = int(lane.duration_ns[lane.reason == number].sum())
        assert time == getattr(whole, f"{reason}_ns"), reason
    ends = lane.start_ns + lane.duration_ns
    assert (lane.start_ns[1:] >= ends[:-1]).all()
    assert work is not None
    for stream in work.lanes:
        if stream.name == "stream 2":
            begin = work.start_ns + stream.start_ns
            for start, end in zip(begin, begin + stream.duration_ns, strict=True):
                assert not ((lane.start_ns < end) & (ends > start)).any(), "idle only"


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_longest_idle_intervals_are_kept_and_the_others_counted(tmp_path: Path, limit: int) -> None:
    with open_analyses(write_many_ranges(tmp_path / "msprof_1.db", 300)) as (analysis,):
        (every,) = analysis.idle_lanes(10_000)
        (some,) = analysis.idle_lanes(limit)
    assert len(some) <= limit
    assert len(some) + some.left_out == len(every)
    assert int(some.duration_ns.sum()) + some.left_out_ns == int(every.duration_ns.sum())
    assert (some.duration_ns > some.longer_than_ns).all()


def test_idle_intervals_are_not_drawn_if_no_host_call_was_recorded(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 100, kernel=("one", "one"))
        device.task(300, 400, kernel=("two", "two"))
    with open_analyses(tmp_path / "msprof_1.db") as (analysis,):
        assert analysis.idle_lanes(1000) == ()
