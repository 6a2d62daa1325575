"""Accessibility of the pages: axe-core, keyboard and contrast."""

import re
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

import pytest

from tests.analysis.builders import Device, memory_report, run_time_report, training_step
from tests.analysis.compare.device.recordings import npu_recording, recording
from tests.cluster.summaries import Contents, write_summary
from tests.report import axe, browser
from tests.report.browser import Browser
from unified_prof.cluster.overview import Overview
from unified_prof.cluster.stored_run import open_run
from unified_prof.compare.device_diff import diff_recordings
from unified_prof.explain.api import open_reports
from unified_prof.report import cluster_document
from unified_prof.report import html_page as html
from unified_prof.report.device_documents import device_page
from unified_prof.report.formats import ClusterRequest, DeviceRequest, ReportRequest

in_a_browser = [pytest.mark.slow, browser.needed]
WIDTHS = (390, 1280, 1920)


def page_of(path: Path, to: Path) -> Path:
    with open_reports(path) as opened:
        to.write_text(html.produce_page(opened, ReportRequest()), encoding="utf-8")
    return to


def skyline(folder: Path) -> Path:
    """Operations and memory, with a warning and an unmeasured figure."""
    run_time_report(
        folder / "run_time.sqlite",
        modules=[("encoder", "Encoder"), None, None],
        anomalies=[("unmatched_iterations", 2, "number 3")],
    )
    memory_report(folder / "memory.sqlite")
    return page_of(folder, folder / "page.html")


def device(folder: Path) -> Path:
    """Steps, streams, threads with launches, counters, memory, and idle time by reason."""
    with Device(folder / "msprof_1.db") as recorded:
        for step in range(3):
            begin = 100_000 * step
            recorded.call(begin, begin + 90_000, f"ProfilerStep#{step}")
            recorded.call(
                begin + 100, begin + 60_000, "aten::mm", inputs=("64,64;64,64", "float;float")
            )
            for task in range(4):
                at = begin + 10_000 * task
                recorded.runtime(at + 200, at + 400, "aclrtLaunchKernel", 10 * step + task)
                identity = recorded.task(
                    at + 3000, at + 7000, connection=10 * step + task, kernel=("mm", "MatMul")
                )
                name = recorded.text("aic_mac_ratio")
                recorded.row("TASK_PMU_INFO", globalTaskId=identity, value=0.5, name=name)
            recorded.task(begin + 50_000, begin + 51_000, "MEMCPY_ASYNC", copy=4096)
            recorded.task(begin + 52_000, begin + 55_000, "EVENT_WAIT", stream=3)
            recorded.collective(begin + 60_000, begin + 70_000, f"hcom_{step}", "hcom_allReduce_")
            recorded.memory(begin + 500, "PTA", 1000 * (step + 1))
    return page_of(folder / "msprof_1.db", folder / "page.html")


def missing_report(folder: Path) -> Path:
    """A directory with an unreadable report, which is listed first."""
    training_step(folder / "msprof_1.db")
    (folder / "msprof_2.db").write_bytes(b"SQLite format 3\0 and nothing")
    return page_of(folder, folder / "page.html")


def cluster(folder: Path) -> Path:
    """Ranks of a run with a slow rank, a slow link and a failed rank."""
    contents = Contents(tp=4, dp=4, pp=4, slow={37: 1.1}, slow_links=[(12, 28)], failed=[5])
    run = write_summary(folder / "run", contents)
    page = folder / "page.html"
    with open_run(run) as opened:
        page.write_text(
            cluster_document.produce_cluster_page(Overview(opened), ClusterRequest()),
            encoding="utf-8",
        )
    return page


def perfetto(folder: Path) -> Path:
    """The page that opens a trace in Perfetto, without the trace."""
    page = folder / "page.html"
    page.write_text(
        html.perfetto_opener_page("run.db", "run.perfetto-trace", 12_345), encoding="utf-8"
    )
    return page


def difference(folder: Path) -> Path:
    """A comparison of the devices of two vendors."""
    base, new = recording(folder / "gpu.db"), npu_recording(folder / "npu.db")
    found = diff_recordings([base], [new])
    assert found is not None
    page = folder / "page.html"
    page.write_text(device_page(found, DeviceRequest()), encoding="utf-8")
    return page


PAGES = [skyline, device, missing_report, cluster, perfetto, difference]


class TestAxe:
    pytestmark: ClassVar = [
        *in_a_browser,
        pytest.mark.skipif(axe.missing() is not None, reason=axe.missing() or ""),
    ]

    @pytest.mark.parametrize("make_page", PAGES, ids=[one.__name__ for one in PAGES])
    def test_page_has_no_serious_violation(
        self, window: Browser, tmp_path: Path, make_page: Callable[[Path], Path]
    ) -> None:
        page = make_page(tmp_path)
        serious = []
        for width in WIDTHS:
            for dark in (False, True):
                window.open(page, width=width, dark=dark)
                open_all(window)
                assert window.run("return document.documentElement.scrollWidth") <= width
                serious += [
                    f"{width} {'dark' if dark else 'light'}: {one}"
                    for one in axe.violations(window)
                    if one.startswith(axe.SERIOUS)
                ]
        assert serious == []

    def test_axe_reports_violations(self, window: Browser, tmp_path: Path) -> None:
        page = perfetto(tmp_path)
        window.open(page)
        window.run("document.querySelector('#open').textContent = ''; document.title = ''")
        found = " ".join(axe.violations(window))
        assert "critical: button-name" in found
        assert "serious: document-title" in found


def open_all(window: Browser) -> None:
    """Open folded parts, select a task and sum the selection."""
    window.run(
        "document.querySelectorAll('details').forEach((one) => { one.open = true; });"
        "document.querySelector('[aria-label=\"Sum up what is shown\"]')?.click();"
        "const canvas = document.querySelector('#timeline canvas');"
        "for (const key of ['n', 'l']) canvas?.dispatchEvent(new KeyboardEvent('keydown', {key}));"
    )
    time.sleep(0.3)


@pytest.mark.parametrize(
    "make_page", [skyline, device, cluster], ids=["skyline", "device", "cluster"]
)
class TestKeys:
    pytestmark: ClassVar = in_a_browser

    def test_every_control_is_reached_by_tab_and_outlined(
        self, window: Browser, tmp_path: Path, make_page: Callable[[Path], Path]
    ) -> None:
        window.open(make_page(tmp_path))
        # Controls moved by arrow keys are one tab stop: the others of their kind have tabindex -1.
        wanted = set(
            window.run(
                "const all = [...document.querySelectorAll('a[href], button, input, select,"
                ' summary, [tabindex="0"]\')].filter((one) => one.tabIndex >= 0 &&'
                " !one.disabled && one.checkVisibility());"
                "all.forEach((one, number) => { one.dataset.stop = String(number); });"
                "return all.map((one) => one.dataset.stop);"
            )
        )
        assert len(wanted) > 10
        seen, unmarked = set(), []
        for _ in range(len(wanted) + 5):
            window.press("\ue004")
            stop, outlined, html_text = window.run(
                "const one = document.activeElement; const style = getComputedStyle(one);"
                "return [one.dataset.stop ?? null, style.outlineStyle !== 'none' &&"
                " parseFloat(style.outlineWidth) > 0, one.outerHTML.slice(0, 80)]"
            )
            if stop is not None:
                seen.add(stop)
                if not outlined:
                    unmarked.append(html_text)
        assert wanted - seen == set()
        assert unmarked == []


def variables(dark: bool) -> dict[str, str]:
    """Return the colors of the page by name."""
    text = files("unified_prof.report").joinpath("page", "page.css").read_text(encoding="utf-8")
    light, _, rest = text.partition(":root[data-theme")
    pattern = r"--([\w-]+): (#[0-9a-f]{6})"
    found = dict(re.findall(pattern, light))
    return found | dict(re.findall(pattern, rest.partition("* {")[0])) if dark else found


def luminance(color: str, opacity: float = 1, ground: str = "#000000") -> float:
    def parts(text: str) -> list[float]:
        return [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]

    mixed = [
        one * opacity + below * (1 - opacity)
        for one, below in zip(parts(color), parts(ground), strict=True)
    ]
    red, green, blue = (
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in mixed
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: float, other: float) -> float:
    low, high = sorted((one, other))
    return (high + 0.05) / (low + 0.05)


DRAWN = [
    "operation", "compute", "communication", "copy", "other", "wait",
    "host-operation", "host-annotation", "host-call",
]  # fmt: skip


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_drawn_colors_contrast_with_the_background(dark: bool) -> None:
    colors = variables(dark)
    card = luminance(colors["card"])
    for name in DRAWN:
        if name != "communication" or dark:
            assert contrast(luminance(colors[name]), card) >= 3, name
    assert contrast(luminance(colors["communication"]), card) >= 2.4
    for name in ("ink", "soft", "accent"):
        assert contrast(luminance(colors[name]), card) >= 4.5, name
        assert contrast(luminance(colors[name]), luminance(colors["ground"])) >= 4.5, name


@pytest.mark.slow
@browser.needed
def test_labels_contrast_with_faint_blocks(window: Browser, tmp_path: Path) -> None:
    window.open(perfetto(tmp_path))
    script = files("unified_prof.report").joinpath("page", "base.js").read_text(encoding="utf-8")
    for dark in (False, True):
        colors = variables(dark)
        for name in DRAWN:
            for opacity in (0.45, 0.6, 0.75, 0.9, 1):
                ink = window.run(
                    f"{script}\nreturn inkOn(...arguments);", colors[name], opacity, colors["card"]
                )
                block = luminance(colors[name], opacity, colors["card"])
                assert contrast(luminance(ink), block) >= 4.5, (name, opacity, dark)
