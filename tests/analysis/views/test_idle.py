"""Why a device was idle, of recordings that are written out by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.builders import Device, training_step
from tests.analysis.test_skyline import breakdown_of, by_name
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.recording.idle import REASONS, IdleReasons, is_input, is_synchronising
from unified_prof.recording.model import Row
from unified_prof.report import html_page as html
from unified_prof.report import report_formats
from unified_prof.report.formats import ReportRequest


def _launch(
    device: Device, at: int, connection: int, name: str = "cudaLaunchKernel", *, until: int = 1
) -> None:
    row: dict[str, Any] = {
        "startNs": [device.T0 + at],
        "endNs": device.T0 + at + until,
        "connectionId": connection,
        "globalTid": 1,
        "name": device.text(name),
    }
    device.writer.write("CANN_API", row)


_CONNECTIONS = count(1_000_000)


def _kernel(
    made: Device, launched: int | None, start: int, end: int, *, device: int = 0, stream: int = 2
) -> None:
    """Add a kernel and the call that launched it; None: the call is not known."""
    connection = -1
    if launched is not None:
        connection = next(_CONNECTIONS)
        _launch(made, launched, connection)
    made.task(
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


def test_until_the_launch_the_device_waits_for_the_host(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200)
        _kernel(device, 50, 210, 300)  # launched long before: the device took its time
        _kernel(device, 400, 420, 500)  # launched too late
        _kernel(device, 450, 500, 600)
    assert _reasons(_totals(path)) == {"host": 100, "launched": 10 + 20}
    rows = _rows(path)
    assert (rows["host-bound"].count, rows["host-bound"].total_ns) == (1, 100)
    assert rows["host-bound"].detail == "most before MatMul"
    assert rows["launch latency"].count == 2
    assert rows["launch latency"].extra == {"longest_ns": 20}


def test_what_nobody_is_known_to_have_launched_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, None, 100, 200)
        _kernel(device, None, 260, 300)
    assert _reasons(_totals(path)) == {"unknown": 60}


def test_input_takes_its_part_of_the_hosts_time(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        device.call(220, 300, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
        _kernel(device, 0, 100, 200)
        _kernel(device, 400, 410, 500)
    assert _reasons(_totals(path)) == {"input": 80, "host": 20 + 100, "launched": 10}


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "aclrtSynchronizeStream", "hipMemcpy"])
def test_a_call_that_let_the_device_run_dry_is_named_with_its_line(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        device.chain(3, "/w/train.py(12): step")
        device.call(110, 220, "aten::item", chain=3)
        device.call(115, 215, "aten::_local_scalar_dense", chain=3)
        _launch(device, 120, 99, name, until=85)  # returns at 205, after the kernel
        device.call(230, 260, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
        _kernel(device, 0, 100, 200)
        _kernel(device, 300, 310, 400)
    assert _reasons(_totals(path)) == {"synchronising": 30 + 40, "input": 30, "launched": 10}
    rows = _rows(path)
    row = rows[f"synchronization: aten::item ({name})"]
    assert (row.total_ns, row.count, row.detail) == (70, 2, "train.py:12")


def test_a_call_on_a_device_that_is_dry_already_costs_its_own_time(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _launch(device, 250, 99, "cudaDeviceSynchronize", until=20)
        _kernel(device, 0, 100, 200)
        _kernel(device, 300, 310, 400)
    assert _reasons(_totals(path)) == {"host": 50 + 30, "synchronising": 20, "launched": 10}
    assert _rows(path)["synchronization: cudaDeviceSynchronize"].detail is None


def test_a_background_threads_waiting_is_nobodys_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200)
        _kernel(device, 300, 300, 400)
        row: dict[str, Any] = {"startNs": [device.T0], "endNs": device.T0 + 900, "connectionId": 99}
        row |= {"globalTid": 77, "name": device.text("cudaEventSynchronize")}
        device.writer.write("CANN_API", row)
    assert _reasons(_totals(path)) == {"host": 100}


def test_launched_work_waits_for_other_streams_and_collectives(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200)
        device.task(180, 240, "EVENT_WAIT", stream=2)
        _kernel(device, 50, 250, 300)
        _launch(device, 60, 4294967295)
        device.collective(320, 400, "hcom_allReduce__1", "hcom_allReduce_")
    assert _reasons(_totals(path)) == {"stream": 40, "launched": 10, "unknown": 20}


def test_a_collective_that_was_launched_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200)
        _launch(device, 210, 4294, "hcom_allReduce")
        row: dict[str, Any] = {
            "opName": [device.text("all")],
            "opType": device.text("allreduce"),
            "startNs": device.T0 + 260,
            "endNs": device.T0 + 300,
            "connectionId": 4294,
            "opId": 1,
            "deviceId": 0,
        }
        device.writer.write("COMMUNICATION_OP", row)
    assert _reasons(_totals(path)) == {"host": 10, "communication": 50}


def test_on_gpus_an_event_is_waited_for_where_a_call_said_so(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        _kernel(device, 0, 100, 200, stream=7)
        _kernel(device, 10, 220, 300, stream=20)  # behind a wait
        _kernel(device, 20, 330, 400, stream=20)  # behind its own stream only
        kind = device.text("Stream Wait Event")
        row: dict[str, Any] = {"startNs": [device.T0 + 5], "endNs": device.T0 + 6, "kind": kind}
        row |= {"deviceId": 0, "streamId": 20, "waitStream": 7}
        device.writer.write("UPROF_GPU_SYNCS", row)
    assert _reasons(_totals(path)) == {"stream": 20, "launched": 30}


def _two_steps(path: Path) -> Path:
    with Device(path) as device:
        for number, start in ((1, 0), (2, 1000)):
            at = device.T0 + start
            device.writer.write("STEP_TIME", {"id": [number], "startNs": at, "endNs": at + 1000})
        _kernel(device, 100, 200, 300)
        _kernel(device, 350, 700, 800)
        _kernel(device, 1400, 1500, 1600)
    return path


def test_each_step_has_its_own_reasons(tmp_path: Path) -> None:
    path = _two_steps(tmp_path / "a.db")
    with open_analyses(path) as (analysis,):
        whole, first, second = analysis.why_idle()
        idle = [row.extra["idle_ns"] for row in analysis.breakdown("step").rows]
    assert (whole.step, first.step, second.step) == (None, "1", "2")
    assert [first.idle_ns, second.idle_ns] == idle == [800, 900]
    # Before 100, from 300 to 350 and after the last work the host; in step 2 until 1400.
    assert _reasons(first) == {"host": 100 + 50 + 200, "launched": 100 + 350}
    assert _reasons(second) == {"host": 400 + 400, "launched": 100}
    assert {reason: whole.reason_ns(reason) for reason in ("host", "launched")} == {
        "host": 1150,
        "launched": 550,
    }


def test_formats_say_the_same(tmp_path: Path) -> None:
    with open_reports(_two_steps(tmp_path / "a.db")) as opened:
        shown = report_formats.produce_text(opened, ReportRequest())
        by_idle = report_formats.produce_text(opened, ReportRequest(by="idle"))
        table = report_formats.produce_csv(opened, ReportRequest(by="idle"))
        marked = report_formats.produce_markdown(opened, ReportRequest(by="idle"))
        (report,) = json.loads(report_formats.produce_json(opened, ReportRequest()))["reports"]
        page = html.produce_page(opened, ReportRequest())
    told = "host-bound 1.15 µs (67.6 %); launch latency 550 ns (32.4 %)"
    assert told in shown
    assert "launch latency" in shown
    for one in (by_idle, table, marked, page):
        assert re.search(r"host\\?-bound", one)
    assert [(one["step"], one["host_ns"]) for one in report["why_idle"]] == [
        (None, 1150),
        ("1", 350),
        ("2", 800),
    ]
    rows = {row["name"]: row for row in report["breakdowns"]["idle"]["rows"]}
    assert rows["host-bound"]["total_ns"] == 1150
    assert report["devices"][0]["steps"]["idle_ns"] == report["why_idle"][0]["idle_ns"]


def test_devices_are_explained_each_by_itself(tmp_path: Path) -> None:
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


def test_any_recording_adds_up(tmp_path: Path) -> None:
    """Random work, launches, waits and calls: reasons are a division of the idle time."""
    generator = np.random.default_rng(7)

    def moments(many: int, until: int = 9000) -> Sequence[int]:
        found: list[int] = generator.integers(0, until, many).tolist()
        return found

    for number in range(6):
        path = tmp_path / f"{number}.db"
        with Device(path) as device:
            for begin in (500, 2500, 6000)[: number % 4]:
                at = device.T0 + begin
                device.writer.write("STEP_TIME", {"id": [begin], "startNs": at, "endNs": at + 2000})
            for start, length, stream in zip(
                moments(60), moments(60, 90), moments(60, 3), strict=True
            ):
                launched = None if length % 7 == 0 else max(0, start - length * 3)
                _kernel(device, launched, start, start + length, stream=stream)
            for start, length in zip(moments(20), moments(20, 200), strict=True):
                device.task(start, start + length, "EVENT_WAIT", stream=1)
                _launch(device, start, next(_CONNECTIONS), "cudaStreamSynchronize", until=length)
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


def test_without_device_work_there_is_nothing_to_explain(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        device.call(0, 10, "aten::mm")
    with open_analyses(path) as (analysis,):
        assert analysis.why_idle() == ()
    with pytest.raises(UsageError, match="no device work"):
        breakdown_of(path, "idle")


def test_a_step_without_idle_time_or_calls(tmp_path: Path) -> None:
    with open_analyses(training_step(tmp_path / "a.db")) as (analysis,):
        whole, step = analysis.why_idle()
    assert whole.idle_ns == step.idle_ns == 5000 - 580
    # No launching call was recorded: all that is known is that after the last work none came.
    assert _reasons(whole) == {"unknown": 4420 - (5000 - 4040), "host": 5000 - 4040}


@pytest.mark.parametrize(
    ("name", "synchronises"),
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
def test_calls_that_synchronise(name: str | None, synchronises: bool) -> None:
    assert is_synchronising(name) is synchronises


def test_ranges_that_fetch_input() -> None:
    assert is_input("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    assert is_input("torch/utils/data/dataloader.py(625): __next__")
    assert not is_input("dataloader.py(3): main")
    assert is_input("[pl][profile][_TrainingEpochLoop].train_dataloader_next")
    assert is_input("## data_loading ##")
    assert is_input("get_batch 12")
    assert not is_input("get_batch_norm")
    assert not is_input("data_parallel")
    assert not is_input("aten::copy_")
    assert not is_input(None)
