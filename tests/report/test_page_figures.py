"""The figures on the page equal those of JSON, for recordings of every kind of device."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import memory_report, run_time_report, training_step
from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import embedded_data
from unified_prof.explain.api import open_reports
from unified_prof.pipeline.convert import convert
from unified_prof.recording.idle import IN_WORDS
from unified_prof.report import html_page as page_module
from unified_prof.report import names as words
from unified_prof.report import report_formats
from unified_prof.report.formats import ReportRequest

pytestmark = pytest.mark.quick(cases=2)

NO_FIGURE = re.compile(
    r"(?<![\w.\\])(-?inf|-?Infinity|NaN|nan|None|undefined|null)(?![\w.\\])|\[object"
)
"""Texts that show a value that is no figure."""


def skyline(folder: Path, shared: Callable[[], Path]) -> Path:
    run_time_report(folder / "run_time.sqlite", iterations=[(1, 5.5, 2.0, 3.0, None, 1)])
    memory_report(folder / "memory.sqlite")
    return folder


def step(folder: Path, shared: Callable[[], Path]) -> Path:
    return training_step(folder / "msprof_1.db")


def imported(name: str) -> Callable[[Path, Callable[[], Path]], Path]:
    def make(folder: Path, shared: Callable[[], Path]) -> Path:
        convert(shared() / "samples" / "kineto" / f"{name}.json.gz", folder / f"{name}.db")
        return folder / f"{name}.db"

    return make


def recorded(name: str) -> Callable[[Path, Callable[[], Path]], Path]:
    def make(folder: Path, shared: Callable[[], Path]) -> Path:
        path = folder / "msprof_1.db"
        path.write_bytes((shared() / "samples" / "ascend" / name).read_bytes())
        return path

    return make


RECORDINGS = {
    "skyline": skyline,
    "step": step,
    "cuda": imported("h100_vit"),
    "cuda-graph": imported("sglang_decode_graph_replay"),
    "rocm": imported("mi300_vit"),
    "cpu": imported("rank_non_gpu__rank_non_gpu"),
    "npu": recorded("level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db"),
    "npu-910A": recorded("910A_2024-09_level1.db"),
}


@pytest.fixture(params=RECORDINGS)
def report(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    make = RECORDINGS[request.param]
    return make(tmp_path, lambda: request.getfixturevalue("shared"))


FOR_PEOPLE = (
    report_formats.produce_text,
    report_formats.produce_markdown,
    report_formats.produce_csv,
)


def produced(path: Path, produce: Any) -> str:
    with open_reports(path) as opened:
        return str(produce(opened, ReportRequest()))


def test_page_data_equals_json(report: Path) -> None:
    document = json.loads(produced(report, report_formats.produce_json))
    sent = embedded_data(produced(report, page_module.produce_page))
    assert len(sent["reports"]) == len(document["reports"]) > 0
    for one, expected in zip(sent["reports"], document["reports"], strict=True):
        figures = one["figures"]
        assert set(figures) == set(expected)
        for name, value in expected.items():
            if name not in ("breakdowns", "anomalies"):
                assert figures[name] == value, name
        for anomaly, same in zip(figures["anomalies"], expected["anomalies"], strict=True):
            assert {key: anomaly[key] for key in same} == same
        assert list(figures["breakdowns"]) == list(expected["breakdowns"])
        for by, breakdown in expected["breakdowns"].items():
            shown = figures["breakdowns"][by]
            rows = shown["rows"]
            assert len(rows) + shown["rows_left_out"] == len(breakdown["rows"])
            for row, same in zip(rows, breakdown["rows"], strict=False):
                known = {key: value for key, value in same.items() if value is not None}
                assert {key: value for key, value in row.items() if key != "short"} == known
                assert row.get("short") != row["name"]


@pytest.mark.slow
def test_other_formats_have_the_figures_of_json(report: Path) -> None:
    document = json.loads(produced(report, report_formats.produce_json))
    plain = produced(report, report_formats.produce_text)
    marked = produced(report, report_formats.produce_markdown)
    rows = list(csv.DictReader(io.StringIO(produced(report, report_formats.produce_csv))))
    for one in document["reports"]:
        totals = one["totals"]
        for key, show in (("total_ns", words.format_duration), ("peak_bytes", words.format_size)):
            if totals[key] is not None:
                assert show(totals[key]) in plain
                assert show(totals[key]) in marked
        operations = one["breakdowns"].get("operation")
        if operations is None:
            continue
        selection_sums = [row for row in rows if row["report"] == one["path"]]
        assert len(selection_sums) == len(operations["rows"])
        for row, same in zip(selection_sums, operations["rows"], strict=True):
            assert row["name"].removeprefix("'") == same["name"]
            for key in ("count", "total_ns", "forward_ns", "backward_ns"):
                if key in row:
                    assert row[key] == ("" if same[key] is None else str(same[key])), key


@pytest.mark.slow
def test_no_format_prints_an_invalid_figure(report: Path) -> None:
    document = json.loads(produced(report, report_formats.produce_json))
    names = {
        row["name"]
        for one in document["reports"]
        for breakdown in one["breakdowns"].values()
        for row in breakdown["rows"]
    }
    for produce in FOR_PEOPLE:
        printed = produced(report, produce)
        for name in sorted(names, key=len, reverse=True):
            printed = printed.replace(name, "")
        printed = "\n".join(line for line in printed.splitlines() if "trace_metadata" not in line)
        assert NO_FIGURE.search(printed) is None, produce.__name__


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cuda", "cuda-graph", "rocm", "cpu"])
def test_gpu_recordings_have_no_ascend_terms(tmp_path: Path, shared: Path, name: str) -> None:
    path = RECORDINGS[name](tmp_path, lambda: shared)
    for produce in (*FOR_PEOPLE, page_module.produce_page):
        text = produced(path, produce)
        assert re.search(r"\bPTA\b", text) is None, produce.__name__
        assert "device -1" not in text, produce.__name__


SHOWN = """
    const titles = (selector) => [...document.querySelectorAll(selector)].map((one) => one.title);
    const keys = (table) => [...table.querySelectorAll('th')].map((one) => one.dataset.key);
    const cells = (table) => [...table.querySelectorAll('tbody tr')].map((row) =>
        Object.fromEntries([...row.cells].map((cell, at) =>
            [keys(table)[at], cell.dataset.value ?? cell.title])));
    return {
        figures: Object.fromEntries([...document.querySelectorAll('[data-figure]')]
            .map((one) => [one.dataset.figure, one.title])),
        strips: [...document.querySelectorAll('#split .split')].map((one) => ({
            whole: one.querySelector('.label').textContent,
            parts: [...one.querySelectorAll('.legend li')].map((part) => part.textContent),
        })),
        counters: [...document.querySelectorAll('#counters table')].flatMap(cells),
        body: document.body.innerText,
        title: document.title,
    };
"""
TABLE = """
    document.querySelector(`#table button[data-value=${arguments[0]}]`).click();
    [...document.querySelectorAll('#table .tools button')]
        .find((one) => one.textContent.startsWith('Show all') && !one.hidden)?.click();
    const heads = [...document.querySelectorAll('#table th')];
    return {
        keys: heads.map((one) => one.dataset.key),
        labels: heads.map((one) => one.textContent),
        rows: [...document.querySelectorAll('#table tbody tr')].map((row) =>
            [...row.cells].map((cell) => cell.dataset.value ?? cell.title)),
    };
"""


@pytest.mark.slow
@browser.needed
@pytest.mark.parametrize("name", RECORDINGS)
def test_shown_figures_equal_those_of_json(
    window: Browser, tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    path = RECORDINGS[name](tmp_path, lambda: request.getfixturevalue("shared"))
    document = json.loads(produced(path, report_formats.produce_json))
    page = tmp_path / "page.html"
    page.write_text(produced(path, page_module.produce_page), encoding="utf-8")
    window.open(page)
    (expected,) = document["reports"]
    seen = window.run(SHOWN)
    totals = expected["totals"]
    for key, exact in seen["figures"].items():
        if key in totals:
            assert float(exact.split()[0]) == totals[key], key
    for key in ("total_ns", "forward_ns", "backward_ns", "iteration_ns", "peak_bytes"):
        assert (key in seen["figures"]) == (totals[key] is not None), key
    with_engine = any(one["name"] == "allocated PTA+GE" for one in expected["memory"])
    assert ("PyTorch's allocator only" in seen["body"]) == with_engine
    if expected["launch_delay"] is not None:
        assert seen["figures"]["launch_delay"] == f"{expected['launch_delay']['median_ns']} ns"
    for use in (expected["model_use"] or [])[:1]:
        assert seen["figures"]["model_use"] == f"{use['flops']} FLOP"
        for device in expected["devices"][:1]:
            idle = (device["steps"] or device)["idle_ns"] - sum(
                why["unrecorded_ns"]
                for why in expected["why_idle"]
                if (why["device"], why["step"]) == (device["device"], None)
            )
            assert seen["figures"]["idle_ns"] == f"{idle} ns"
    for device, strip in zip(expected["devices"], seen["strips"], strict=False):
        basis = device["steps"] or device
        assert strip["whole"].endswith(words.format_duration(basis["window_ns"]))
        parts = " ".join(strip["parts"])
        assert words.format_duration(basis["compute_ns"]) in parts
        whole = [one for one in expected["why_idle"] if one["step"] is None]
        for why in whole:
            if why["device"] == device["device"] and why["idle_ns"] == basis["idle_ns"]:
                for reason, text in IN_WORDS.items():
                    value = why[f"{reason}_ns"]
                    said = f"{text} {words.format_duration(value)}"
                    said = said if reason == "unrecorded" else f"idle: {said}"
                    assert (said in parts) == (value > 0)
    for by, breakdown in expected["breakdowns"].items():
        table = window.run(TABLE, by)
        assert len(table["rows"]) == min(1000, len(breakdown["rows"])), by
        for cells, row in zip(table["rows"], breakdown["rows"], strict=False):
            for key, cell in zip(table["keys"], cells, strict=True):
                value = row.get(key)
                if key in ("name", "detail"):
                    assert (cell or None) == (value or None), (by, key)
                elif value is None:
                    assert cell == "not measured", (by, key)
                else:
                    assert float(cell.split()[0]) == pytest.approx(value), (by, key)
        if any(row.get("allocated_bytes") is not None for row in breakdown["rows"]):
            assert "allocated" in " ".join(table["labels"])
            assert "memory" not in " ".join(table["labels"]).split()
    for row in seen["counters"]:
        for one in (one for one in expected["pmu"] if one["op_type"] == row["name"]):
            if one["counter"] in row and row[one["counter"]] != "not measured":
                assert float(row[one["counter"]]) == one["mean"]
    body = seen["body"]
    for name_of in sorted(set(expected["facts"].values()), key=len, reverse=True):
        body = body.replace(name_of, "")
    assert NO_FIGURE.search(body) is None
    if name in ("cuda", "cuda-graph", "rocm", "cpu"):
        assert "PTA" not in body.split()
        assert "device -1" not in body
    assert seen["title"].endswith(" - uprof")
    assert window.console() == []
