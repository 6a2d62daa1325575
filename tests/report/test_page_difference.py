"""The page of a device comparison judges times only if both sides ran on one device model."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.compare.device.recordings import GPU, npu_recording, recording
from tests.report import browser
from tests.report.browser import Browser
from unified_prof.compare.device_diff import diff_recordings
from unified_prof.report.device_documents import device_page
from unified_prof.report.formats import DeviceRequest

pytestmark = [pytest.mark.slow, browser.needed]

SLOWER = [replace(GPU[0], kernels=[(*GPU[0].kernels[0][:2], 180)]), *GPU[1:]]


def write_page(base: Path, new: Path) -> Path:
    found = diff_recordings([base], [new])
    assert found is not None
    page = base.with_suffix(".html")
    page.write_text(device_page(found, DeviceRequest()), encoding="utf-8")
    return page


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return recording(tmp_path / "base.db")


@pytest.mark.parametrize("is_same", [True, False])
def test_colors_are_a_verdict(window: Browser, base: Path, is_same: bool) -> None:
    other = base.with_name("new.db")
    window.open(write_page(base, recording(other, SLOWER) if is_same else npu_recording(other)))
    tones = "return document.querySelectorAll('td.worse, td.better').length"
    assert (window.run(tones) > 0) == is_same
    notes = window.run("return document.querySelector('#remarks').innerText")
    assert ("without a verdict" in notes) != is_same


def test_parts_of_a_step_add_up_to_its_total(window: Browser, base: Path) -> None:
    window.open(write_page(base, recording(base.with_name("new.db"), SLOWER)))
    rows = window.run(
        "return [...document.querySelectorAll('#step tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.title || cell.innerText))"
    )
    heads = ["part", "base", "base share", "new", "new share", "change", "ratio"]
    assert rows[0] == heads
    *parts, total = rows[1:]
    assert total[0] == "total"
    for column in (1, 3, 5):
        figures = [float(row[column].removesuffix(" ns")) for row in parts]
        assert sum(figures) == float(total[column].removesuffix(" ns"))
    for column in (2, 4):
        assert sum(float(row[column]) for row in parts) == pytest.approx(100)
        assert total[column] == "100"


def test_numbers_keep_their_units_on_the_line(window: Browser, base: Path) -> None:
    window.open(write_page(base, recording(base.with_name("new.db"), SLOWER)))
    verdict = window.run("return document.querySelector('.intro p').textContent")
    assert verdict.startswith("The step takes 9.90\u00a0µs instead of 9.90\u00a0µs (1.00\u00a0x)")
