"""Data of the page, and texts that it shares with other formats."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device, training_step
from tests.decoders.kineto import builders as kineto
from tests.decoders.memory_snapshot import builders as snapshot
from tests.report.on_page import embedded_data, write_page
from unified_prof.explain.api import open_reports
from unified_prof.explain.roofline import breakdown
from unified_prof.explain.roofline.breakdown import RooflineRow
from unified_prof.explain.roofline.costs import Cost
from unified_prof.explain.roofline.peaks import Peak
from unified_prof.pipeline.convert import convert
from unified_prof.recording.idle import REASONS
from unified_prof.report import html_page, names, report_formats
from unified_prof.report.figures import collect_figures, figures_document
from unified_prof.report.formats import ReportRequest

LINE = "site-packages/transformers/models/bert/modeling_bert.py:364"


def data_of(path: Path) -> Any:
    """Return the reports in the data of a page."""
    return embedded_data(write_page(path).read_text(encoding="utf-8"))["reports"]


def document_of(path: Path) -> Any:
    """Return the JSON of a report."""
    with open_reports(path) as opened:
        found = figures_document([collect_figures(analysis) for analysis in opened.analyses])
    return json.loads(json.dumps(found))["reports"][0]


def test_source_paths_are_truncated_at_the_start() -> None:
    assert names.truncate_middle(LINE, 30) == "...s/bert/modeling_bert.py:364"
    assert names.truncate_middle(f"{LINE} (+5)", 30).endswith("modeling_bert.py:364 (+5)")
    assert names.truncate_middle(f"most before aten::linear, {LINE}", 40).endswith(
        "modeling_bert.py:364"
    )
    assert names.truncate_middle("a_kernel_of_a_long_name_64x64", 20) == "a_kernel_of..._64x64"


def test_idle_time_names_its_basis(tmp_path: Path) -> None:
    stepped = training_step(tmp_path / "msprof_1.db")
    with Device(tmp_path / "msprof_2.db") as device:
        device.task(0, 100, kernel=("one", "one"))
        device.task(300, 400, kernel=("two", "two"))
    for path, step, window in (
        (stepped, " in steps: ", " in window: "),
        (tmp_path / "msprof_2.db", " in window: ", " in steps: "),
    ):
        with open_reports(path) as opened:
            shown = report_formats.produce_text(opened, ReportRequest())
        (idle,) = (line for line in shown.splitlines() if line.startswith("idle "))
        assert step in idle
        assert window not in idle


def test_page_title_has_workload_device_and_date() -> None:
    facts = {"command": '["uprof", "run", "src/train.py"]', "started": "2026-03-04T05:06:07"}
    assert html_page.page_title({"path": "a/msprof_1.db", "facts": facts}, None) == (
        "train.py, 2026-03-04 - uprof"
    )
    facts = {"command": "import", "trace": "bert.json.gz", "device 0": "NVIDIA H100"}
    assert html_page.page_title({"path": "a/bert.db", "facts": facts}, "2025-07-01") == (
        "bert.json.gz, NVIDIA H100, 2025-07-01 - uprof"
    )
    assert html_page.page_title({"path": "a/bert.db", "facts": {}}, None) == "bert.db - uprof"
    facts = {"trace": "decode.json.gz", "device_vendor": "AMD", "device_kind": "gpu"}
    assert html_page.page_title({"path": "d.db", "facts": facts}, None) == (
        "decode.json.gz, AMD GPU - uprof"
    )


def test_long_kernel_names_are_truncated_and_stay_different(tmp_path: Path) -> None:
    traits = "_".join(f"TRAIT{number}" for number in range(60))
    long, alike, other = (f"Cijk_{one}_{traits}_WG64_4_{last}" for one, last in ("A1", "A2", "B1"))
    twin = alike.replace("TRAIT30", "TRAIT99")
    with Device(tmp_path / "msprof_1.db") as device:
        for number, name in enumerate((long, alike, twin, other)):
            device.task(1000 * number, 1000 * number + 900 - number, kernel=(name, name))
    (report,) = data_of(tmp_path / "msprof_1.db")
    rows = report["figures"]["breakdowns"]["kernel"]["rows"]
    assert [row["name"] for row in rows] == [long, alike, twin, other]
    for row in (rows[0], rows[3]):
        assert len(row["short"]) <= 120
        assert row["short"].startswith(row["name"][:40])
        assert row["short"].endswith("_WG64_4_1")
    for row, trait in ((rows[1], "TRAIT30"), (rows[2], "TRAIT99")):
        assert len(row["short"]) <= 120
        assert f"...{trait}_TRAIT31_" in row["short"], "they would be equal"


def test_counter_units_are_added_where_names_have_none() -> None:
    found = html_page.counter_units(
        ["aic_mac_ratio", "aic_total_cycles", "aicore_time(us)", "SMs Active [Throughput %]", "x"]
    )
    assert found == {"aic_mac_ratio": "share of 1", "aic_total_cycles": "cycles"}


@pytest.mark.parametrize(("devices", "end"), [(1, 800), (2, 350)])
def test_steps_of_the_timeline_are_those_of_the_table(
    tmp_path: Path, devices: int, end: int
) -> None:
    """The only device ends the step 450 ns after the host; with two, the host is shown."""
    with Device(tmp_path / "msprof_1.db") as device:
        device.step(7, 50, 450)
        for number in range(devices):
            device.task(100, 200, kernel=("mm", "MatMul"), device=number)
            device.task(400, 900, kernel=("mm", "MatMul"), device=number)
    (report,) = data_of(tmp_path / "msprof_1.db")
    assert report["steps"] == [{"name": "7", "start_ns": -50, "end_ns": end}]
    (row,) = report["figures"]["breakdowns"]["step"]["rows"]
    assert row["total_ns"] == 850


def test_steps_are_relative_to_the_start_of_the_timeline(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(100, 200, kernel=("mm", "MatMul"))
        device.task(400, 900, kernel=("mm", "MatMul"))
        device.step(7, 50, 950)
    (report,) = data_of(tmp_path / "msprof_1.db")
    assert report["steps"] == [{"name": "7", "start_ns": -50, "end_ns": 850}]
    figures = document_of(tmp_path / "msprof_1.db")
    assert report["figures"]["why_idle"] == figures["why_idle"]
    assert set(report["idle_words"]) == {
        key.removesuffix("_ns") for key in figures["why_idle"][0] if key not in _NO_REASON
    }


_NO_REASON = ("device", "step", "idle_ns")


@pytest.mark.parametrize(
    ("bound_ns", "limit"), [(8.0, "bf16, 989 TFLOP/s (uncertain)"), (4.0, "memory, 3,350 GB/s")]
)
def test_page_parses_the_peaks_of_the_roofline(bound_ns: float, limit: str) -> None:
    cost = Cost(unit="matrix", dtype="bf16", flops=10, moved_bytes=4 * 3350)
    placed = RooflineRow(
        "mm", "[1]", "operation", "device 0", 1, 10, cost, Peak("bf16", 989e12, True),
        Peak("memory", 3350e9), bound_ns,
    )  # fmt: skip
    text = breakdown.limits(placed)
    assert text == limit
    script = files("unified_prof.report").joinpath("page", "roofline.js").read_text("utf-8")
    pattern = re.search(r"const match = /(.*)/\.exec", script)
    assert pattern is not None
    found = re.match(pattern[1].replace("\\/", "/"), text)
    assert found is not None
    assert found[3] == ("TFLOP" if "TFLOP" in limit else "GB")


def test_idle_reasons_of_the_page_are_those_of_the_analysis() -> None:
    script = files("unified_prof.report").joinpath("page", "steps.js").read_text("utf-8")
    found = re.search(r"const REASONS = (\[.*\]);", script)
    assert found is not None
    assert tuple(json.loads(found[1])) == REASONS


@pytest.mark.parametrize("launch", ["cudaLaunchKernel", "cudaGraphLaunch"])
def test_trace_of_captured_graphs_is_named_after_replays(tmp_path: Path, launch: str) -> None:
    (tmp_path / "graph_capture.json").touch()
    events = [
        kineto.operation("aten::relu", 0, 30),
        kineto.complete("cuda_runtime", launch, 20, 5, args={"correlation": 7}),
        kineto.kernel(40, 50, 7),
    ]
    database = convert(kineto.write(tmp_path / "run.json", events), tmp_path / "run.db").database
    (report,) = data_of(database)
    assert ("capture_trace" in report["figures"]["facts"]) == (launch == "cudaGraphLaunch")


def test_counts_have_the_heading_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    database = convert(snapshot.write(path, snapshot.small()), tmp_path / "memory.db").database
    (report,) = data_of(database)
    assert {by: report["words"][by]["count"] for by in ("line", "kernel", "segment")} == {
        "line": "blocks",
        "kernel": "runs",
        "segment": "blocks",
    }


def test_every_breakdown_figure_has_the_whole_device_time(tmp_path: Path) -> None:
    path = tmp_path / "msprof_1.db"
    with Device(path) as device:
        device.call(0, 1000, "ProfilerStep#1")
        device.call(10, 900, "nn.Module: Net_0", kind=50003)
        device.call(20, 100, "aten::mm", launches=100)
        device.task(50, 150, connection=100, kernel=("mm_kernel", "MatMul"))
        device.task(1100, 1400, kernel=("reduce_kernel", "Reduce"))  # after the step
    (report,) = data_of(path)
    assert report["figures"]["totals"]["total_ns"] == 400
    wholes = {tree["kind"]: tree["values"]["total_ns"][0] for tree in report["trees"]}
    assert wholes == {"module": 400, "operation": 400}
