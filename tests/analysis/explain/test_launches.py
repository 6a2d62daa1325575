"""Launches by runtime call, and the launch queues of the streams."""

from pathlib import Path

import pytest

from tests.analysis.builders import Device, training_step
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.recording.model import Row
from unified_prof.report import report_formats
from unified_prof.report.formats import ReportRequest

US = 1000


def rows(path: Path, by: str) -> dict[str, Row]:
    with open_analyses(path) as (analysis,):
        return {row.name: row for row in analysis.breakdown(by).rows}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "msprof_20260101000000.db"


def test_launch_breakdown_has_a_row_per_call_and_one_for_other_kernels(path: Path) -> None:
    with Device(path) as device:
        device.runtime(0, 10 * US, "cudaLaunchKernel", 100)
        device.task(20 * US, 60 * US, connection=100, kernel=("k", "K"))
        device.runtime(200 * US, 210 * US, "cudaMemcpyAsync", 200)
        device.task(220 * US, 260 * US, "MEMCPY_ASYNC", connection=200, copy=4096)
        device.task(300 * US, 310 * US, connection=999, kernel=("k", "K"))
    found = rows(path, "launch")
    assert list(found) == ["cudaLaunchKernel", "cudaMemcpyAsync", "(launch not recorded)"]
    assert found["cudaMemcpyAsync"].extra["delay_median_ns"] == 20 * US
    missing = found["(launch not recorded)"]
    assert (missing.count, missing.total_ns, dict(missing.extra)) == (1, None, {})


def test_replayed_graph_is_one_launch_and_stream_waits_are_none(path: Path) -> None:
    with Device(path) as device:
        device.runtime(0, 1000, "cudaGraphLaunch", 7)
        for start in (500, 700, 900):
            device.task(start, start + 100, connection=7, stream=start // 500, kernel=("k", "K"))
        device.runtime(2000, 2100, "aclrtStreamWaitEvent", 8)
        device.task(5000, 6000, "EVENT_WAIT", connection=8, stream=1)
    with open_analyses(path) as (analysis,):
        latency = analysis.launch_latency()
    assert latency is not None
    assert (latency.count, latency.max_ns) == (1, 500)
    found = rows(path, "launch")
    assert list(found) == ["cudaGraphLaunch"]
    graph = found["cudaGraphLaunch"]
    assert (graph.count, graph.extra["work_ns"], graph.extra["delay_max_ns"]) == (1, 300, 500)
    assert {name: row.count for name, row in rows(path, "queue").items()} == {"stream 1": 1}


def test_queue_length_counts_launched_kernels_that_have_not_started(path: Path) -> None:
    with Device(path) as device:
        for number, (called, start) in enumerate([(0, 100), (10, 200), (20, 300), (400, 350)]):
            device.runtime(called, called + 5, "cudaLaunchKernel", number + 1)
            device.task(start, start + 50, connection=number + 1, kernel=("k", "K"))
        device.runtime(30, 35, "cudaLaunchKernel", 9)
        device.task(90, 95, connection=9, stream=3, kernel=("k", "K"))
    found = rows(path, "queue")
    assert list(found) == ["stream 2", "stream 3"]
    # 1 from 0, 2 from 10, 3 from 20 to 100, 2 to 200, 1 to 300, none to 400: with clock skew a
    # kernel can start before its launch.
    assert found["stream 2"].extra == {
        "window_ns": 400,
        "empty_ns": 100,
        "full_ns": 0,
        "longest": 3,
        "mean_length": (10 + 20 + 240 + 200 + 100) / 400,
    }
    assert found["stream 2"].total_ns == 300
    with open_analyses(path) as (analysis,):
        series = {one.name: one for one in analysis.counter_series()}
    line = series["queue of stream 2"]
    assert (line.unit, line.device) == ("launches", "device 0")
    assert (line.time_ns - Device.T0).tolist() == [0, 10, 20, 100, 200, 300, 400]
    assert line.value.tolist() == [1, 2, 3, 2, 1, 0, 0]


def test_time_with_a_full_queue_is_reported(path: Path) -> None:
    with Device(path) as device:
        for number in range(1030):
            device.runtime(number, number + 1, "cudaLaunchKernel", number + 1)
            device.task(10_000 + number, 10_001 + number, connection=number + 1, kernel=("k", "K"))
    row = rows(path, "queue")["stream 2"]
    assert (row.extra["longest"], row.extra["full_ns"]) == (1030, 10_006 - 1023)


def test_launch_and_queue_breakdowns_are_refused_if_no_launch_was_recorded(tmp_path: Path) -> None:
    training_step(path := tmp_path / "msprof_20260101000000.db")
    for by in ("launch", "queue"):
        with pytest.raises(UsageError, match="no launch call was recorded"):
            rows(path, by)
    with open_analyses(path) as (analysis,):
        assert "queue of stream 2" not in [one.name for one in analysis.counter_series()]


def test_copy_rates_of_overlapping_copies_add_up(path: Path) -> None:
    with Device(path) as device:
        device.task(0, 1000, "MEMCPY_ASYNC", copy=1000)
        device.task(500, 1500, "MEMCPY_ASYNC", stream=3, copy=3000)
        device.task(3000, 3000, "MEMCPY_ASYNC", copy=10)
        for number, size in enumerate((-8, 0, 1 << 53), start=4):  # not possible
            device.task(1000 * number, 1000 * number + 500, "MEMCPY_ASYNC", copy=size)
    with open_analyses(path) as (analysis,):
        (line,) = analysis.counter_series()
    assert (line.name, line.unit) == ("memcpy host to device", "B/s")
    assert (line.time_ns - Device.T0).tolist() == [0, 500, 1000, 1500]
    assert line.value.tolist() == [1e9, 4e9, 3e9, 0]


def test_recorded_bandwidth_has_priority_over_size_divided_by_time(path: Path) -> None:
    with Device(path) as device:
        task = device.task(0, 1000, "MEMCPY_ASYNC", copy=1000)
        copy = {"name": device.text("Memcpy"), "bandwidthGBps": 0.75, "sizeBytes": 1000}
        no_kernel = {"operation": 0, "gridDim": 0, "blockDim": 0}
        device.row("UPROF_GPU_TASKS", globalTaskId=task, **copy, **no_kernel)
        task = device.task(2000, 3000, "MEMCPY_ASYNC", copy=1000)
        copy["bandwidthGBps"] = 1 << 30  # Not possible: the size decides.
        device.row("UPROF_GPU_TASKS", globalTaskId=task, **copy, **no_kernel)
    with open_analyses(path) as (analysis,):
        (line,) = analysis.counter_series()
    assert line.value.tolist() == [0.75e9, 0, 1e9, 0]


@pytest.mark.parametrize(
    ("delays", "expected"),
    [
        ([5, 6, 300], "median 6.00 µs, p90 6.00 µs, max 300 µs (3 launches)"),
        ([5], "5.00 µs (1 launch)"),
    ],
)
def test_headline_has_the_launch_latency(path: Path, delays: list[int], expected: str) -> None:
    with Device(path) as device:
        for number, delay in enumerate(delays):
            called = 1000 * US * number
            device.runtime(called, called + US, "cudaLaunchKernel", number + 1)
            start = called + delay * US
            device.task(start, start + US, connection=number + 1, kernel=("k", "K"))
    with open_reports(path) as opened:
        assert f"launch to start  {expected}" in report_formats.produce_text(
            opened, ReportRequest()
        )
