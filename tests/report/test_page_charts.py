"""Charts of the page in a browser: steps, roofline and icicle."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import (
    VIEWS,
    click,
    queued_launches,
    recording_of_steps,
    recording_of_tasks,
    write_page,
)
from unified_prof.explain.api import open_analyses
from unified_prof.recording.idle import IN_WORDS
from unified_prof.report import names
from unified_prof.report.figures import collect_figures, figures_document

pytestmark = [pytest.mark.slow, browser.needed]


def test_charts_and_timeline_share_origin_and_zoom(window: Browser, tmp_path: Path) -> None:
    window.open(write_page(recording_of_tasks(tmp_path / "msprof_1.db", 100)))
    whole = 50_000 + 99_400  # memory is recorded from 50 µs before the first task
    assert window.run(VIEWS) == [[50_000, whole], [50_000, whole]]
    window.run("document.querySelector('#timeline canvas').focus()")
    window.press("0")
    assert window.run(VIEWS) == [[0, whole], [0, whole]]
    window.press("\ue015")
    assert "from 75.0 µs" in window.run("return document.querySelector('#chosen').textContent")
    window.press("+")
    assert window.run(VIEWS) == [[whole / 4, whole * 3 / 4]] * 2
    peak = window.run(
        """
        const picture = document.querySelector('svg.chart');
        const path = picture.querySelector('path').getAttribute('d');
        const points = path.match(/[-\\d.]+[ V][-\\d.]+/g)
            .map((one) => one.split(/[ V]/).map(Number));
        const highest = points.reduce((a, b) => (b[1] < a[1] ? b : a));
        const [from, to] = [Number(picture.dataset.from), Number(picture.dataset.to)];
        return from + (to - from) * (highest[0] - picture.dataset.left)
            / (picture.clientWidth - picture.dataset.left - 12);
        """
    )
    assert peak == pytest.approx(90_000, rel=0.01), "on the time axis of the timeline"


def test_axis_labels_fit_and_counts_have_integer_ticks(window: Browser, tmp_path: Path) -> None:
    window.open(queued_launches(tmp_path / "msprof_1.db"))
    texts = window.run(
        "return [...document.querySelectorAll('#counter-launches svg text[text-anchor=end]')]"
        ".map((one) => [one.textContent, one.getBBox().x])"
    )
    assert [text for text, _ in texts] == [str(value) for value in range(len(texts))]
    assert len(texts) > 1
    assert all(x >= 0 for _, x in texts)
    left = window.run(
        "return [...document.querySelectorAll('svg.chart:not(.roofline) text[text-anchor=end]')]"
        ".map((one) => one.getBBox().x)"
    )
    assert min(left) >= 0


def test_icicle_is_divided_and_zoomed_by_keyboard(window: Browser, page: Path) -> None:
    window.open(page)

    def labels() -> list[str]:
        return [
            str(one)
            for one in window.run(
                "return [...document.querySelectorAll('.node')].map((one) => one.ariaLabel)"
            )
        ]

    assert labels()[0].startswith("everything: ")
    selected_text = (
        "return document.querySelector('#icicle button[aria-pressed=true]').dataset.value"
    )
    assert window.run(selected_text) == "line", "because most operations are outside any module"
    click(window, "#icicle button[data-value=module]")
    encoder = next(one for one in labels() if one.startswith("encoder: "))
    assert encoder.startswith("encoder: 6.75 ms, ")
    window.run("document.querySelector('.node').focus()")
    window.press("\ue015")  # down: the largest part
    focused = window.run("return document.activeElement.ariaLabel")
    assert "(outside any module)" in focused
    window.press("\ue007")  # enter
    width = window.run("return document.activeElement.style.width")
    assert width == "100%"
    window.press("\ue00c")  # escape
    assert window.run("return document.activeElement.ariaLabel").startswith("everything")
    click(window, "#icicle button[data-value=size_bytes]")
    assert labels()[0] == "everything: 8.63 KiB, 100.0 %"
    click(window, "#icicle button[data-value=line]")
    assert any(one.startswith("model.py:30: ") for one in labels())


def test_steps_are_marked_and_charted_with_reasons(window: Browser, tmp_path: Path) -> None:
    path = recording_of_steps(tmp_path / "msprof_1.db")
    with open_analyses(path) as analyses:
        (analysis,) = analyses
        (expected,) = json.loads(json.dumps(figures_document([collect_figures(analysis)])))[
            "reports"
        ]
    window.open(write_page(path))
    bars = window.run(
        "return [...document.querySelectorAll('#steps .step')].map((one) => one.ariaLabel)"
    )
    rows = expected["breakdowns"]["step"]["rows"]
    assert len(bars) == len(rows) == 3
    for bar, row in zip(bars, rows, strict=True):
        assert bar.startswith(
            f"step {row['name']}: {names.format_duration(row['total_ns'])}; compute "
        )
        assert "idle: " in bar
    below = window.run(
        "return [...document.querySelectorAll('#steps .name')].map((one) => one.textContent)"
    )
    assert below == [f"{row['name']}: {names.format_duration(row['total_ns'])}" for row in rows]
    (whole,) = (one for one in expected["why_idle"] if one["step"] is None)
    legend = window.run("return document.querySelector('#split .legend').textContent")
    for reason, text in IN_WORDS.items():
        entry = f"idle: {text} {names.format_duration(whole[f'{reason}_ns'])}"
        assert (entry in legend) == (whole[f"{reason}_ns"] > 0)
    window.run("document.querySelector('#steps .step').focus()")
    window.press("\ue014")
    assert window.run("return document.querySelector('#step-chosen').textContent") == bars[1]
    window.press("\ue007")
    begin, end = window.run(VIEWS)[0]
    assert end - begin == rows[1]["total_ns"]
    assert window.console() == []


def roofline_page(recording: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a page whose roofline has the given rows."""
    path = write_page(recording_of_steps(recording))
    found = re.search(r'id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    breakdown = {"total_ns": 2600, "size_bytes": None, "rows_left_out": 0, "rows": rows}
    data["reports"][0]["figures"]["breakdowns"]["roofline"] = breakdown
    page = path.read_text("utf-8").replace(found[1], json.dumps(data).replace("<", "\\u003c"))
    path.write_text(page, "utf-8")
    return path


@pytest.mark.parametrize("width", [390, 1280])
def test_labels_of_the_roofline_cover_no_dot_and_no_label(
    window: Browser, tmp_path: Path, width: int
) -> None:
    # Element-wise operations share an intensity and have similar rates.
    rows: list[dict[str, Any]] = [
        {"name": name, "total_ns": time, "count": 1, "intensity_flops_per_byte": intensity}
        | {"compute_tflop_per_s": rate}
        for name, time, intensity, rate in (
            *(("MatMul", 900, 50.0, 90.0), ("Mul", 800, 0.08, 0.045), ("Add", 700, 0.083, 0.04)),
            *(("AxpyV2", 650, 0.11, 0.042), ("Cast", 300, 0.1, 0.05), ("Sub", 200, 0.15, 0.045)),
        )
    ]
    window.open(roofline_page(tmp_path / "msprof_1.db", rows), width=width)
    boxes = (
        "return [...document.querySelectorAll(arguments[0])].map((one) => {"
        " const box = one.getBBox(); return [box.x, box.y, box.width, box.height]; })"
    )
    labels = window.run(boxes, "#roofline [data-label]")
    dots = window.run(boxes, "#roofline .dot")
    assert len(labels) >= 3
    for number, (left, top, wide, high) in enumerate(labels):
        for x, y, w, h in dots:
            radius, at_x, at_y = w / 2, x + w / 2, y + h / 2
            near_x = min(max(at_x, left), left + wide)
            near_y = min(max(at_y, top + 2), top + high - 3)  # Without room for accents and tails.
            assert math.hypot(at_x - near_x, at_y - near_y) >= radius - 1
        for x, y, w, h in labels[:number]:
            assert left >= x + w or x >= left + wide or top + 3 >= y + h or y + 3 >= top + high


def test_roofline_has_dots_and_a_line_per_peak(window: Browser, tmp_path: Path) -> None:
    operation = "aten::convolution_backward [32,1024,14,14] [1024,256,1,1]"
    rows: list[dict[str, Any]] = [
        {"name": operation, "total_ns": 2000, "count": 2, "detail": "bf16, 989 TFLOP/s"}
        | {"compute_tflop_per_s": 200.0, "intensity_flops_per_byte": 400.0, "of_peak_percent": 20},
        {"name": "add [64]", "total_ns": 500, "count": 1, "detail": "memory, 3,350 GB/s"}
        | {"compute_tflop_per_s": 0.1, "intensity_flops_per_byte": 0.08, "of_peak_percent": 4},
        {"name": "copy", "total_ns": 100, "count": 1, "detail": "memory, 3,350 GB/s"},
    ]
    path = roofline_page(tmp_path / "msprof_1.db", rows)
    for dark in (False, True):
        window.open(path, width=390, dark=dark)
        assert window.run("return document.documentElement.scrollWidth") <= 390
    sections = "return [...document.querySelectorAll('section.card')].map((one) => one.id)"
    shown = window.run(sections)
    assert {"roofline", "timeline", "table", "memory", "provenance"} <= set(shown)
    assert len(shown) == len(set(shown))
    dots = "return [...document.querySelectorAll('#roofline .dot')].map((one) => one.dataset.name)"
    assert window.run(dots) == [operation, "add [64]"]
    assert operation.partition(" ")[0] in window.run(
        "return [...document.querySelectorAll('#roofline text')].map((one) => one.textContent)"
    ), "labels are names of operations, not cut within a shape"
    limits = "return [...document.querySelectorAll('.limit')].map((one) => one.dataset.limit)"
    assert window.run(limits) == ["bf16, 989 TFLOP/s", "memory, 3,350 GB/s"]
    window.run("document.querySelector('.roofline').focus()")
    window.press("\ue014", "\ue014")
    selected_text = window.run("return document.querySelector('#roofline-chosen').textContent")
    assert selected_text.startswith(
        "add [64]: 100 GFLOP/s, 0.08 FLOP/byte, 500 ns in 1 call, 4.0 %"
    )
    # The dot of a memory-bound operation is below the slope: 0.08 x 3,350 GB/s is more.
    below = window.run(
        "const dot = document.querySelectorAll('#roofline .dot')[1];"
        "const path = document.querySelector('[data-limit^=memory]');"
        "const length = path.getTotalLength(), x = Number(dot.getAttribute('cx'));"
        "for (let at = 0; at <= length; at += 0.25) {"
        "  const point = path.getPointAtLength(at);"
        "  if (point.x >= x) return Number(dot.getAttribute('cy')) - point.y; } return null"
    )
    assert below > 0
    cells = "return [...document.querySelectorAll('#roofline td:first-child')].length"
    assert window.run(cells) == 2
    assert window.console() == []
