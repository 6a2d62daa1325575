"""Step trace as torch_npu defines it, beside uprof's own step figures."""

import json
from pathlib import Path

import pytest

from tests.analysis.builders import Device, training_step
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.report import report_formats
from unified_prof.report.formats import ReportRequest

_NODE = 10000


def _pipeline_step(path: Path, *, steps: bool = True) -> Path:
    """Write a step of a pipeline stage: receive, compute, copy, reduce."""
    with Device(path) as device:
        if steps:
            device.step(7, 0, 1000)
        else:
            device.call(50, 900, "aten::mm")
        device.task(0, 20, "PROFILING_ENABLE", stream=0)
        for number, (start, end, kernel) in enumerate(
            [(100, 300, None), (300, 500, ("mm", "MatMul")), (700, 900, ("mm", "MatMul"))], 1
        ):
            kind = "SDMA" if kernel is None else "AI_CORE"
            device.task(start, end, kind, connection=number, kernel=kernel)
            times = {"startNs": number, "endNs": number + 1}
            device.row("CANN_API", **times, type=_NODE, connectionId=number)
        device.task(520, 650, "MEMCPY_ASYNC", copy=8)
        receive = {
            "opName": device.text("hcom_receive__1_0_1"),
            "opType": device.text("hcom_receive_"),
        }
        times = {"startNs": 100, "endNs": 300}
        device.row("COMMUNICATION_OP", **receive, **times, connectionId=1, opId=1, deviceId=0)
        device.task(5000, 5000, "PROFILING_DISABLE", stream=0)
    return path


def test_step_trace_has_free_stage_preparing_and_bubble_time(tmp_path: Path) -> None:
    with open_analyses(_pipeline_step(tmp_path / "a.db")) as (analysis,):
        (found,) = analysis.step_traces()
        (row,) = analysis.breakdown("step").rows
    assert (found.device_id, found.step) == (0, "7")
    assert (found.computing_ns, found.communication_ns, found.overlapped_ns) == (400, 200, 0)
    # From 100 to 900 without 500 to 700; torch_npu does not count the copy as busy.
    assert (found.free_ns, found.bubble_ns, found.stage_ns) == (200, 200, 600)
    assert (found.preparing_ns, found.communication_not_overlapped_ns) == (100, 200)
    assert found.communication_not_overlapped_and_exclude_receive_ns == 0
    assert row.extra["idle_ns"] == 1000 - 730
    assert (row.extra["vendor_free_ns"], row.extra["vendor_stage_ns"]) == (200, 600)
    assert (row.extra["vendor_preparing_ns"], row.extra["vendor_bubble_ns"]) == (100, 200)


def test_recording_without_steps_has_one_step_trace(tmp_path: Path) -> None:
    with open_analyses(_pipeline_step(tmp_path / "a.db", steps=False)) as (analysis,):
        (found,) = analysis.step_traces()
    assert (found.step, found.free_ns, found.stage_ns) == (None, 200, 600)
    assert found.preparing_ns == 50, "counted from the first operator"


def test_every_format_shows_the_step_trace(tmp_path: Path) -> None:
    path = _pipeline_step(tmp_path / "a.db")
    with open_reports(path) as opened:
        request = ReportRequest(by="step")
        shown = report_formats.produce_text(opened, request)
        (report,) = json.loads(report_formats.produce_json(opened, request))["reports"]
        table = report_formats.produce_csv(opened, request)
    assert "device 0, step 7: free 200 ns, stage 600 ns, preparing 100 ns, bubble 200 ns" in shown
    (trace,) = report["step_trace"]
    expected = {"free_ns": 200, "stage_ns": 600, "preparing_ns": 100, "bubble_ns": 200}
    assert trace.items() >= expected.items()
    assert report["breakdowns"]["step"]["rows"][0]["vendor_free_ns"] == 200
    assert "vendor_free_ns" in table.splitlines()[0]


@pytest.mark.parametrize("steps", [True, False])
def test_recording_without_ascend_device_has_no_step_trace(tmp_path: Path, steps: bool) -> None:
    if steps:
        path = training_step(tmp_path / "a.db")
    else:
        path = tmp_path / "a.db"
        with Device(path) as device:
            device.call(0, 10, "aten::mm")
    with open_reports(path) as opened:
        (analysis,) = opened.analyses
        assert analysis.step_traces() == ()
        assert "torch_npu" not in report_formats.produce_text(opened, ReportRequest())
