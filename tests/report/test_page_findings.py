"""Findings on the page in a browser."""

import json
from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import US
from tests.analysis.advice.test_kernels import mixed
from tests.analysis.builders import Device
from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import click, embedded_data, write_page
from tests.report.test_findings_block import recording

pytestmark = [pytest.mark.slow, browser.needed]


def test_finding_has_saving_advice_and_linked_evidence(window: Browser, tmp_path: Path) -> None:
    window.open(write_page(recording(tmp_path / "run.db", every=50 * US)))
    row = window.run("return document.querySelector('.findings li').innerText")
    cost, share, title, text = row.split("\n")[:4]
    assert cost == "3.96 ms"
    assert share == "79.8 % of the recorded time, certain"
    assert title == "host-bound [host_bound]"
    assert text.startswith("the device is idle 80\u00a0% of the time")
    assert "saves" not in text
    assert "Try: " in row
    click(window, ".findings summary")
    click(window, ".findings button.plain")
    assert window.run("return document.getElementById('find').value")
    assert window.console() == []


def test_evidence_scrolls_on_a_narrow_screen(window: Browser, tmp_path: Path) -> None:
    symbol = f"void at::native::{'elementwise_' * 9}kernel<4, direct_copy_kernel_cuda>(int)"
    page = write_page(mixed(tmp_path / "run.db", name=symbol, op_type=f"aten::{'copy_' * 12}"))
    window.open(page, width=400)
    click(window, ".findings summary")
    width = "return [document.documentElement.scrollWidth, innerWidth]"
    page_width, screen_width = window.run(width)
    assert page_width == screen_width
    row = "const one = document.querySelector('.evidence'); "
    assert window.run(f"{row} return one.scrollWidth > one.clientWidth")


def test_kernels_of_evidence_are_found_by_full_names(window: Browser, tmp_path: Path) -> None:
    symbol = "void at::native::elementwise_kernel<4, at::native::direct_copy_kernel_cuda>(int)"
    window.open(write_page(mixed(tmp_path / "run.db", name=symbol, op_type="aten::copy_")))
    button = "const b = document.querySelector('.findings button.plain'); "
    short = "elementwise_kernel<...direct_copy_kernel_cuda>"
    assert window.run(f"{button} return b.textContent") == short
    assert window.run(f"{button} b.click(); return document.getElementById('find').value") == symbol


def test_sums_of_a_sampled_trace_have_a_caveat(window: Browser, tmp_path: Path) -> None:
    detail = "10 of more than 100 operations are in the file"
    with Device(tmp_path / "run.db") as device:
        device.step(1, 0, 1000)
        device.step(2, 1000, 2000)
        for start in (100, 1100):
            device.task(start, start + 500, kernel=("mm", "MatMul"))
        device.writer.anomaly("sampled_trace", 90, detail)
    window.open(write_page(tmp_path / "run.db"))
    shown = window.run(
        "return [...document.querySelectorAll('.sampled')]"
        ".map((one) => [one.parentElement.id, one.textContent])"
    )
    text = f"sampled trace{detail}: idle time and sums are not those of the program."
    places = ["content", "split", "steps", "icicle", "table"]
    assert shown == [[place, text] for place in places]


def test_page_without_findings_says_so(window: Browser, tmp_path: Path) -> None:
    window.open(write_page(recording(tmp_path / "run.db", every=11 * US)))
    text = window.run("return document.querySelector('#advice p').textContent")
    assert text.startswith("No findings: none of ")
    assert "the device is busy 9" in text, "what takes the time, as in the text of a report"


def test_rate_is_shown_only_if_most_shapes_are_known(window: Browser, tmp_path: Path) -> None:
    path = write_page(recording(tmp_path / "run.db", every=11 * US))
    page = path.read_text("utf-8")
    data, begin = embedded_data(page), page.index('id="data">') + len('id="data">')
    known = {"device": "device 0", "flops": 2e9, "time_ns": 1e6, "steps": None, "peak": ""}
    shown = "return document.querySelector('[data-figure=model_use]').closest('.figure').innerText"
    for share, text in ((0.6, "2.00 TFLOP/s"), (0.1, "10.0 % of kernel time")):
        data["reports"][0]["figures"]["model_use"] = [known | {"known_share": share, "share": None}]
        changed = json.dumps(data).replace("<", "\\u003c")
        path.write_text(page[:begin] + changed + page[page.index("</script>", begin) :], "utf-8")
        window.open(path)
        assert text in window.run(shown)


def test_long_symbol_takes_three_lines_and_a_title(window: Browser, tmp_path: Path) -> None:
    name = "Cijk_" + "MT16_" * 80
    with Device(tmp_path / "run.db") as device:
        for at, end in enumerate("ab"):
            device.task(at * 1000, at * 1000 + 900, kernel=(f"{name}{end}{name}", "mm"))
    window.open(write_page(tmp_path / "run.db"))
    click(window, "#table button[data-value=kernel]")
    cell = "const c = document.querySelector('#table tbody td'); return [c.offsetHeight, c.title]"
    height, title = window.run(cell)
    assert height < 5 * 24
    assert title == f"{name}a{name}"
