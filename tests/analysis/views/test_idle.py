"""Reasons for idle time, in hand-written recordings."""

import json
import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.builders import Device, training_step
from tests.analysis.test_skyline import breakdown_of, by_name
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.recording.idle import REASONS, IdleReasons
from unified_prof.recording.model import Row
from unified_prof.recording.names import FETCHES_INPUT, SYNCHRONIZES
from unified_prof.report import html_page as html
from unified_prof.report import report_formats
from unified_prof.report.formats import ReportRequest

_CONNECTIONS = count(1_000_000)


def _kernel(
    recording: Device,
    launched: int | None,
    start: int,
    end: int,
    *,
    device: int = 0,
    stream: int = 2,
) -> None:
    """Add a kernel and its launch at `launched`; None: without a launch."""
    connection = -1
    if launched is not None:
        connection = next(_CONNECTIONS)
        recording.runtime(launched, launched + 1, "cudaLaunchKernel", connection)
    recording.task(
        *(start, end), connection=connection, kernel=("k", "MatMul"), device=device, stream=stream
    )


def _reasons(found: IdleReasons) -> dict[str, int]:
    return {reason: found.reason_ns(reason) for reason in REASONS if found.reason_ns(reason)}


def _totals(path: Path) -> IdleReasons:
    with open_analyses(path) as (analysis,):
        whole = [one for one in analysis.why_idle() if one.step is None]
        (device,) = analysis.summary.devices
    (found,) = whole
    assert found.idle_ns == device.share_basis.idle_ns
    assert sum(_reasons(found).values()) == found.idle_ns
    return found


def _rows(path: Path) -> dict[str, Row]:
    return by_name(breakdown_of(path, "idle"))


def test_device_is_host_bound_until_the_launch_then_waits(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200)
        _kernel(device, 50, 210, 300)  # launched early: launch latency
        _kernel(device, 400, 420, 500)  # launched late: host-bound
        _kernel(device, 450, 500, 600)
    assert _reasons(_totals(path)) == {"host": 100, "launched": 10 + 20}
    rows = _rows(path)
    assert (rows["host-bound"].count, rows["host-bound"].total_ns) == (1, 100)
    assert rows["host-bound"].detail == "most before MatMul"
    assert rows["launch latency"].count == 2
    assert rows["launch latency"].extra == {"longest_ns": 20}


def test_idle_time_before_a_kernel_without_launch_has_unknown_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, None, 100, 200)
        _kernel(device, None, 260, 300)
    assert _reasons(_totals(path)) == {"unknown": 60}


def test_data_loading_is_separated_from_host_bound_time(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        device.call(220, 300, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
        _kernel(device, 0, 100, 200)
        _kernel(device, 400, 410, 500)
    assert _reasons(_totals(path)) == {"input": 80, "host": 20 + 100, "launched": 10}


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "aclrtSynchronizeStream", "hipMemcpy"])
def test_synchronizing_call_is_named_with_its_operation_and_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        device.chain(3, "/w/train.py(12): step")
        device.call(110, 220, "aten::item", chain=3)
        device.call(115, 215, "aten::_local_scalar_dense", chain=3)
        device.runtime(120, 205, name, 99)  # returns after the kernel
        device.call(230, 260, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
        _kernel(device, 0, 100, 200)
        _kernel(device, 300, 310, 400)
    assert _reasons(_totals(path)) == {"synchronising": 30 + 40, "input": 30, "launched": 10}
    rows = _rows(path)
    row = rows[f"synchronization: aten::item ({name})"]
    assert (row.total_ns, row.count, row.detail) == (70, 2, "train.py:12")


def test_synchronizing_call_on_an_idle_device_costs_its_own_duration(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        device.runtime(250, 270, "cudaDeviceSynchronize", 99)
        _kernel(device, 0, 100, 200)
        _kernel(device, 300, 310, 400)
    assert _reasons(_totals(path)) == {"host": 50 + 30, "synchronising": 20, "launched": 10}
    assert _rows(path)["synchronization: cudaDeviceSynchronize"].detail is None


@pytest.mark.parametrize(
    ("call", "begins", "returns", "gap", "reason"),
    [
        ("cudaDeviceSynchronize", 0, 5_000_000, 4_000_000, "unrecorded"),
        ("cudaMemcpyAsync", 0, 4_000_000, 4_000_000, "unrecorded"),
        ("cudaMemcpyAsync", 400_000, 3_900_000, 4_000_000, "unrecorded"),
        ("cudaMemcpyAsync", 400_002, 4_000_000, 4_000_000, "launched"),  # covers too little
        ("cudaMemcpyAsync", 0, 3_899_990, 4_000_000, "launched"),  # returns too early
        ("cudaDeviceSynchronize", 0, 1_000_000, 1_000_000, "unrecorded"),
        ("cudaDeviceSynchronize", 0, 999_999, 999_999, "launched"),  # an ordinary latency
        ("cudaLaunchKernel", 0, 4_000_000, 4_000_000, "launched"),  # does not wait for the device
    ],
)
def test_time_in_which_a_call_waits_for_the_device_is_unrecorded_work(
    tmp_path: Path, call: str, begins: int, returns: int, gap: int, reason: str
) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200)
        _kernel(device, 50, 200 + gap, 300 + gap)
        device.runtime(200 + begins, 200 + returns, call, 99)
        device.runtime(200, 200 + gap, "cudaDeviceSynchronize", 98, thread=7)  # not of the program
    assert _reasons(_totals(path)) == {reason: gap}


@pytest.mark.parametrize(
    ("direction", "reason"), [(1, "launched"), (2, "unrecorded"), (8, "launched")]
)
def test_copy_to_the_device_has_its_own_call(tmp_path: Path, direction: int, reason: str) -> None:
    """From pageable memory; a copy to the host waits for the work before it."""
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200)
        device.runtime(200, 5_000_500, "cudaMemcpyAsync", 77)
        device.task(5_000_200, 5_000_500, connection=77, copy=64, direction=direction)
    assert _reasons(_totals(path)) == {reason: 5_000_000}


def test_wait_of_a_background_thread_is_no_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200)
        _kernel(device, 300, 300, 400)
        device.runtime(0, 900, "cudaEventSynchronize", 99, thread=77)
    assert _reasons(_totals(path)) == {"host": 100}


def test_launched_kernel_waits_for_other_streams_and_collectives(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200)
        device.task(180, 240, "EVENT_WAIT", stream=2)
        _kernel(device, 50, 250, 300)
        device.runtime(60, 61, "cudaLaunchKernel", 4294967295)
        device.collective(320, 400, "hcom_allReduce__1", "hcom_allReduce_")
    assert _reasons(_totals(path)) == {"stream": 40, "launched": 10, "unknown": 20}


def test_launched_collective_makes_idle_time_communication(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200)
        device.runtime(210, 211, "hcom_allReduce", 4294)
        names = {"opName": device.text("all"), "opType": device.text("allreduce")}
        times = {"startNs": 260, "endNs": 300}
        device.row("COMMUNICATION_OP", **names, **times, connectionId=4294, opId=1, deviceId=0)
    assert _reasons(_totals(path)) == {"host": 10, "communication": 50}


def test_gpu_stream_wait_is_a_reason_only_after_a_wait_event(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200, stream=7)
        _kernel(device, 10, 220, 300, stream=20)  # after a wait event
        _kernel(device, 20, 330, 400, stream=20)  # after its own stream only
        kind = device.text("Stream Wait Event")
        place = {"deviceId": 0, "streamId": 20, "waitStream": 7}
        device.row("UPROF_GPU_SYNCS", startNs=5, endNs=6, kind=kind, **place)
    assert _reasons(_totals(path)) == {"stream": 20, "launched": 30}


def _two_steps(path: Path) -> Path:
    with Device(path) as device:
        device.step(1, 0, 1000)
        device.step(2, 1000, 2000)
        _kernel(device, 100, 200, 300)
        _kernel(device, 350, 700, 800)
        _kernel(device, 1400, 1500, 1600)
    return path


def test_idle_reasons_of_each_step_add_up_to_its_idle_time(tmp_path: Path) -> None:
    path = _two_steps(tmp_path / "a.db")
    with open_analyses(path) as (analysis,):
        whole, first, second = analysis.why_idle()
        idle = [row.extra["idle_ns"] for row in analysis.breakdown("step").rows]
    assert (whole.step, first.step, second.step) == (None, "1", "2")
    assert [first.idle_ns, second.idle_ns] == idle == [800, 900]
    # Host-bound: to 100, 300 to 350, after the last task; in step 2 until 1400.
    assert _reasons(first) == {"host": 100 + 50 + 200, "launched": 100 + 350}
    assert _reasons(second) == {"host": 400 + 400, "launched": 100}
    assert (whole.reason_ns("host"), whole.reason_ns("launched")) == (1150, 550)


def test_step_has_the_parts_of_its_slowest_device(tmp_path: Path) -> None:
    """Step 1 takes longest on device 1; in step 2, both take 1,000 ns, and device 0 works more."""
    with Device(tmp_path / "a.db") as device:
        device.step(1, 0, 1000)
        device.step(2, 1300, 2300)
        for where, tasks in ((0, [(200, 900), (1400, 2200)]), (1, [(300, 1300), (1400, 2000)])):
            for start, end in tasks:
                _kernel(device, start - 50, start, end, device=where)
        device.task(100, 140, "MEMCPY_ASYNC", copy=8, device=1, stream=3)
    with open_analyses(tmp_path / "a.db") as (analysis,):
        rows = analysis.breakdown("step").rows
    parts = ("compute_ns", "exposed_communication_ns", "exposed_copies_ns", "idle_ns")
    assert [(row.total_ns, row.extra["device"]) for row in rows] == [(1300, 1), (1000, 0)]
    assert [[row.extra[part] for part in parts] for row in rows] == [
        [1000, None, 40, 260],
        [800, None, 0, 200],
    ]


def test_every_format_shows_the_idle_reasons(tmp_path: Path) -> None:
    with open_reports(_two_steps(tmp_path / "a.db")) as opened:
        shown = report_formats.produce_text(opened, ReportRequest())
        by_idle = report_formats.produce_text(opened, ReportRequest(by="idle"))
        table = report_formats.produce_csv(opened, ReportRequest(by="idle"))
        marked = report_formats.produce_markdown(opened, ReportRequest(by="idle"))
        (report,) = json.loads(report_formats.produce_json(opened, ReportRequest()))["reports"]
        page = html.produce_page(opened, ReportRequest())
    assert "host-bound 1.15 µs (67.6 %); launch latency 550 ns (32.4 %)" in shown
    assert "launch to start" in shown
    for one in (by_idle, table, marked, page):
        assert re.search(r"host\\?-bound", one)
    steps = [(one["step"], one["host_ns"]) for one in report["why_idle"]]
    assert steps == [(None, 1150), ("1", 350), ("2", 800)]
    rows = {row["name"]: row for row in report["breakdowns"]["idle"]["rows"]}
    assert rows["host-bound"]["total_ns"] == 1150
    assert report["devices"][0]["steps"]["idle_ns"] == report["why_idle"][0]["idle_ns"]


def test_idle_reasons_are_computed_per_device(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        for where, late in ((0, 0), (1, 100)):
            _kernel(device, 0, 100 + where, 200, device=where)
            _kernel(device, 200 + late, 300 + where, 400, device=where)
    with open_analyses(path) as (analysis,):
        found = {one.device: _reasons(one) for one in analysis.why_idle()}
        devices = {one.device: one.idle_ns for one in analysis.summary.devices}
        total = sum(row.total_ns or 0 for row in analysis.breakdown("idle").rows)
    assert found == {"device 0": {"launched": 100}, "device 1": {"host": 100, "launched": 1}}
    assert total == sum(devices.values())


@pytest.mark.slow
def test_idle_reasons_add_up_for_random_recordings(tmp_path: Path) -> None:
    generator = np.random.default_rng(7)

    def moments(number: int, until: int = 9000) -> Sequence[int]:
        found: list[int] = generator.integers(0, until, number).tolist()
        return found

    for number in range(6):
        path = tmp_path / f"{number}.db"
        with Device(path) as device:
            for begin in (500, 2500, 6000)[: number % 4]:
                device.step(begin, begin, begin + 2000)
            for start, length, stream in zip(
                moments(60), moments(60, 90), moments(60, 3), strict=True
            ):
                launched = None if length % 7 == 0 else max(0, start - length * 3)
                _kernel(device, launched, start, start + length, stream=stream)
            for start, length in zip(moments(20), moments(20, 200), strict=True):
                device.task(start, start + length, "EVENT_WAIT", stream=1)
                device.runtime(start, start + length, "cudaStreamSynchronize", next(_CONNECTIONS))
                device.call(start, start + length, "enumerate(DataLoader)#_Iter.__next__")
            device.collective(4000, 4400, "all", "allreduce")
        whole = _totals(path)
        with open_analyses(path) as (analysis,):
            steps = [one for one in analysis.why_idle() if one.step is not None]
            by_step = (
                [row.extra["idle_ns"] for row in analysis.breakdown("step").rows] if steps else []
            )
            rows = analysis.breakdown("idle").rows
        assert [one.idle_ns for one in steps] == by_step
        assert sum(row.total_ns or 0 for row in rows) == whole.idle_ns
        assert all(one.reason_ns(reason) >= 0 for one in (whole, *steps) for reason in REASONS)


def test_idle_breakdown_is_refused_if_there_are_no_device_tasks(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        device.call(0, 10, "aten::mm")
    with open_analyses(path) as (analysis,):
        assert analysis.why_idle() == ()
    with pytest.raises(UsageError, match="no device work"):
        breakdown_of(path, "idle")


def test_idle_reason_is_unknown_if_no_launch_was_recorded(tmp_path: Path) -> None:
    with open_analyses(training_step(tmp_path / "a.db")) as (analysis,):
        whole, step = analysis.why_idle()
    assert whole.idle_ns == step.idle_ns == 5000 - 580
    # Only after the last task is the reason known: no launch followed.
    assert _reasons(whole) == {"unknown": 4420 - (5000 - 4040), "host": 5000 - 4040}


@pytest.mark.parametrize(
    ("name", "synchronizes"),
    [
        ("cudaDeviceSynchronize", True),
        ("cudaEventSynchronize", True),
        ("cudaMemcpy", True),
        ("hipMemcpyWithStream", True),
        ("cuMemcpyDtoH_v2", True),
        ("aclrtSynchronizeStreamWithTimeout", True),
        ("aclrtMemcpy", True),
        ("StreamSyncTaskFinish", True),
        ("cudaMemcpyAsync", False),
        ("aclrtMemcpyAsync", False),
        ("cudaLaunchKernel", False),
        ("cudaStreamWaitEvent", False),
        (None, False),
    ],
)
def test_synchronizing_calls_are_recognized_by_name(name: str | None, synchronizes: bool) -> None:
    assert SYNCHRONIZES(name) is synchronizes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", True),
        ("torch/utils/data/dataloader.py(625): __next__", True),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", True),
        ("## data_loading ##", True),
        ("get_batch 12", True),
        ("dataloader.py(3): main", False),
        ("get_batch_norm", False),
        ("data_parallel", False),
        ("aten::copy_", False),
        (None, False),
    ],
)
def test_data_loading_ranges_are_recognized_by_name(name: str | None, expected: bool) -> None:
    assert FETCHES_INPUT(name) is expected
