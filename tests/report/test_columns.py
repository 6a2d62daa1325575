"""Columns of the tables of reports, and what is left of them on a narrow terminal."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from unified_prof.recording.model import Breakdown, By, DeviceTime, Row
from unified_prof.report.columns import breakdown_columns, device_columns, step_parts
from unified_prof.report.document import Column, Document
from unified_prof.report.figures import Selection
from unified_prof.report.terminal import render_text

MS = 1_000_000
# 100 ms: 30 ms compute, of which 10 ms overlap with communication, 20 ms exposed communication,
# 15 ms exposed copies of 25 ms, 35 ms idle.
TIME = DeviceTime("device 0 (Ascend910A)", 100 * MS, 30 * MS, 30 * MS, 10 * MS, 25 * MS, 65 * MS, 9)
WIDE = DeviceTime("device 1 (Ascend910A)", 120 * MS, 50 * MS, None, None, 20 * MS, 70 * MS, 9, TIME)


def shown(columns: list[Column], width: int) -> list[str]:
    document = Document()
    document.table(columns)
    return render_text(document, width=width).splitlines()


def headings(by: By, rows: list[Row], width: int) -> list[str]:
    breakdown = Breakdown(by, tuple(rows), sum(row.total_ns or 0 for row in rows), None)
    lines = shown(breakdown_columns(Selection(breakdown, tuple(rows))), width)
    return " ".join(lines[: len(lines) - len(rows)]).split()


@pytest.mark.parametrize("devices", [(TIME,), (TIME, WIDE)])
@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_shown_parts_of_a_device_add_up(devices: tuple[DeviceTime, ...], width: int) -> None:
    lines = shown(device_columns(devices, ()), width)
    for line in lines[-len(devices) :]:
        shares = [float(one) for one in re.findall(r"\((\S+) %\)", line)]
        assert sum(shares[:4]) == pytest.approx(100)
        assert line.startswith(("device 0 ", "device 1 "))
    assert ("(Ascend910A)" in lines[-1]) == (width == 200)


def test_copies_that_overlap_are_told_from_exposed_copies() -> None:
    cells = {one.heading: one.cells[0] for one in device_columns((TIME,), ())}
    assert cells["exposed copies"] == "15.0 ms (15.0 %)"
    assert cells["copies"] == "25.0 ms (25.0 %)"
    assert dict(step_parts(TIME, ())) == {
        "compute": 30 * MS,
        "exposed communication": 20 * MS,
        "exposed copies": 15 * MS,
        "idle": 35 * MS,
    }


def row(
    name: str, detail: str, extra: Mapping[str, float | None] | None = None, **more: Any
) -> Row:
    values: dict[str, Any] = {"count": 40, "total_ns": 19 * MS, **more}
    return Row(name, "kernel", detail=detail, extra=extra or {}, **values)


def test_roofline_keeps_both_of_its_axes_and_the_limit() -> None:
    extra = {
        "work_flops": 6.78e9,
        "moved_bytes": 11.5 * 2**30,
        "compute_tflop_per_s": 0.421,
        "memory_gb_per_s": 765.0,
        "intensity_flops_per_byte": 0.55,
        "of_peak_percent": 85.0,
        "above_target_ns": 917_000,
    }
    rows = [row("aten::cudnn_batch_norm [32,256,56,56] fp32", "memory, 900 GB/s", extra)]
    narrow = headings("roofline", rows, 80)
    assert {"time", "intensity,", "FLOP/B", "of", "peak", "limit"} <= set(narrow)
    assert "average" not in narrow
    middle = headings("roofline", rows, 120)
    assert {"intensity,", "of", "peak", "limit"} <= set(middle)
    assert "average" not in middle
    assert "average" in headings("roofline", rows, 200)
    unknown = "the values of its arguments were not recorded"
    rows += [row(f"aten::cudnn_convolution [32,256,14,{at}] fp32", unknown) for at in range(3)]
    assert {"of", "peak", "limit"} <= set(headings("roofline", rows, 80)[:9])


def test_reason_for_an_unknown_limit_is_wrapped_and_not_cut() -> None:
    reason = "the values of its arguments were not recorded"
    rows = (row("aten::cudnn_convolution [32,256,14,14] [1024,256,1,1]", reason),)
    breakdown = Breakdown("roofline", rows, 19 * MS, None)
    lines = shown(breakdown_columns(Selection(breakdown, rows)), 70)
    at = lines[0].index("limit")
    assert " ".join(line[at:].strip() for line in lines[1:]) == reason


def test_rows_of_one_name_keep_what_tells_them_apart() -> None:
    extra = {"per_step_ns": MS, "min_ns": MS, "max_ns": MS, "off_path_ns": MS, "slack_ns": MS}
    more: dict[str, Any] = {"forward_ns": MS, "backward_ns": MS, "allocated_bytes": 1024}
    rows = [
        row("aten::to", "host work, main.py:377", extra, **more),
        row("aten::to", "synchronizing call, main.py:377", extra, **more),
    ]
    breakdown = Breakdown("path", tuple(rows), None, None)
    for width in (80, 120):
        lines = shown(breakdown_columns(Selection(breakdown, tuple(rows))), width)
        assert ["host work" in lines[-2], "synchronizing call" in lines[-1]] == [True, True]
    assert lines[-1].endswith("main.py:377")
    assert headings("operation", rows, 80)[-1] == "line"


def test_allocated_memory_is_left_out_before_average_and_line() -> None:
    more: dict[str, Any] = {"forward_ns": MS, "backward_ns": MS, "allocated_bytes": 1024}
    rows = [row("aten::adaptive_avg_pool2d", "models/alexnet.py:47", **more)]
    assert headings("operation", rows, 80)[3:] == ["share", "average", "forward", "backward"]
    assert headings("operation", rows, 96)[-1] == "line"
    assert headings("operation", rows, 200)[-2:] == ["allocated", "line"]


def test_shapes_keep_their_inputs() -> None:
    extra = {"with_callees_ns": MS, "launches": 7, "self_host_ns": MS}
    rows = [row("aten::convolution_backward", "float[32,64,55,55]", extra, forward_ns=MS)]
    assert headings("shape", rows, 80)[-1] == "inputs"
