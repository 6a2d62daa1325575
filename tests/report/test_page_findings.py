"""Findings on the page in a browser."""

from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import US
from tests.analysis.advice.test_kernels import mixed
from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import click, write_page
from tests.report.test_findings_block import recording

pytestmark = [pytest.mark.slow, browser.needed]


def test_finding_has_saving_advice_and_evidence_linked_to_the_timeline(
    window: Browser, tmp_path: Path
) -> None:
    window.open(write_page(recording(tmp_path / "run.db", every=50 * US)))
    row = window.run("return document.querySelector('.findings li').innerText")
    cost, share, title, text = row.split("\n")[:4]
    assert cost == "3.96 ms"
    assert share == "79.8 % of the recorded time, certain"
    assert title == "host-bound"
    assert text.startswith("the device is idle 80 % of the time")
    assert "saves" not in text
    assert "Try: " in row
    click(window, ".findings summary")
    click(window, ".findings button.plain")
    assert window.run("return document.getElementById('find').value")
    assert window.console() == []


def test_kernels_of_evidence_are_short_and_found_by_their_full_names(
    window: Browser, tmp_path: Path
) -> None:
    symbol = "void at::native::elementwise_kernel<4, at::native::direct_copy_kernel_cuda>(int)"
    window.open(write_page(mixed(tmp_path / "run.db", name=symbol, op_type="aten::copy_")))
    button = "const b = document.querySelector('.findings button.plain'); "
    short = "elementwise_kernel<...direct_copy_kernel_cuda>"
    assert window.run(f"{button} return b.textContent") == short
    assert window.run(f"{button} b.click(); return document.getElementById('find').value") == symbol


def test_page_without_findings_says_so(window: Browser, tmp_path: Path) -> None:
    window.open(write_page(recording(tmp_path / "run.db", every=11 * US)))
    text = window.run("return document.querySelector('#advice p').textContent")
    assert text.startswith("No findings: none of ")
