"""Collectives are named and grouped by their communication group."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device
from tests.analysis.test_skyline import breakdown_of, by_name
from tests.decoders.kineto import builders as kineto
from unified_prof.base.columns import group_hash
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.pipeline.convert import convert
from unified_prof.recording.calls import COMMUNICATION
from unified_prof.report import html_page as html
from unified_prof.report import report_formats
from unified_prof.report.formats import ReportRequest

TP = {"group_name": "tp", "group_rank": 0, "global_ranks": [0, 1]}
DP = {"group_name": "dp", "group_rank": 0, "global_ranks": [0, 2]}


@pytest.fixture(scope="module")
def two_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("groups") / "msprof_1.db"
    with Device(path) as device:
        device.groups(**{"1.2.3.4%eth0_1": TP, "1.2.3.4%eth0_2": DP})
        device.task(0, 150, kernel=("mm", "MatMul"))
        reduce = "hcom_allReduce_"
        device.collective(100, 200, "hcom_allReduce__1_0_1", reduce, group="1.2.3.4%eth0_1")
        device.collective(180, 300, "hcom_allReduce__1_1_1", reduce, group="1.2.3.4%eth0_1")
        number = str(group_hash("1.2.3.4%eth0_2"))
        device.collective(400, 450, "hcom_allReduce__2_0_1", reduce, group=number)
        device.collective(500, 510, "hcom_send__3_0_1", "hcom_send_", group="elsewhere")
        device.collective(600, 601, "hcom_send__4_0_1", "hcom_send_")
    return path


def test_operation_name_of_a_collective_contains_its_group(two_groups: Path) -> None:
    rows = by_name(breakdown_of(two_groups, "operation"))
    found = {name: (row.count, row.total_ns) for name, row in rows.items()}
    assert found == {
        "MatMul": (1, 150),
        "hcom_allReduce_ (tp)": (2, 220),
        "hcom_allReduce_ (dp)": (1, 50),
        "hcom_send_": (2, 11),
    }
    kernels = by_name(breakdown_of(two_groups, "kernel"))
    assert kernels["hcom_allReduce__1_0_1 (tp)"].detail == "hcom_allReduce_ (tp)"


def test_group_breakdown_has_total_busy_and_exposed_time(two_groups: Path) -> None:
    rows = by_name(breakdown_of(two_groups, "group"))
    assert list(rows) == ["tp", "dp", "group elsewhere", "(no group recorded)"]
    tp, dp = rows["tp"], rows["dp"]
    assert (tp.count, tp.total_ns, tp.detail) == (2, 220, "hcom_allReduce_ x2")
    # Both run between 100 and 300; until 150 a kernel overlaps them.
    assert tp.extra == {"busy_ns": 200, "exposed_ns": 150, "ranks": 2}
    assert dp.extra == {"busy_ns": 50, "exposed_ns": 50, "ranks": 2}
    assert "ranks" not in rows["group elsewhere"].extra
    assert sum(row.total_ns or 0 for row in rows.values()) == 281


def test_group_of_a_collective_appears_in_every_report_format(two_groups: Path) -> None:
    with open_reports(two_groups) as opened:
        (report,) = json.loads(report_formats.produce_json(opened, ReportRequest()))["reports"]
        by_operation = [
            report_formats.produce_text(opened, ReportRequest()),
            report_formats.produce_markdown(opened, ReportRequest()),
            report_formats.produce_csv(opened, ReportRequest()),
        ]
        by_group = report_formats.produce_text(opened, ReportRequest(by="group"))
        page = html.produce_page(opened, ReportRequest())
        (analysis,) = opened.analyses
        timeline = analysis.timeline()
        traced = {label for track in analysis.tracks() for label in track.labels}
    for shown in by_operation:
        assert "hcom_allReduce_ (tp)" in shown.replace("\\", "")
    assert report["groups"] == [
        {"label": "tp", "kind": "tp", "title": "tp", "name": "1.2.3.4%eth0_1", "ranks": [0, 1]},
        {"label": "dp", "kind": "dp", "title": "dp", "name": "1.2.3.4%eth0_2", "ranks": [0, 2]},
    ]
    (tp, *_) = report["breakdowns"]["group"]["rows"]
    assert (tp["name"], tp["total_ns"], tp["exposed_ns"], tp["ranks"]) == ("tp", 220, 150, 2)
    assert "tp" in by_group
    assert "150 ns" in by_group
    assert "hcom_allReduce_ (tp)" in page
    assert timeline is not None
    assert "hcom_allReduce__1_0_1 (tp)" in timeline.labels
    assert "hcom_allReduce__1_0_1 (tp)" in traced


def test_groups_of_the_same_kind_keep_the_framework_names(tmp_path: Path) -> None:
    path = tmp_path / "msprof_1.db"
    groups: dict[str, Any] = {
        "a": {**DP, "group_name": "dp"},
        "b": {**DP, "group_name": "dp_cp"},
        "c": {"group_name": "undefined", "global_ranks": [0]},
        "d": {"group_name": "default_pg", "global_ranks": [0, 1, 2]},
        "e": {"group_name": "default_pg", "global_ranks": [0, 1, 2]},
    }
    with Device(path) as device:
        device.groups(**groups)
        for number, name in enumerate(groups):
            device.collective(10 * number, 10 * number + 5 + number, "all", "allreduce", group=name)
    rows = by_name(breakdown_of(path, "group"))
    assert set(rows) == {"dp", "dp_cp", "group c", "default_pg d", "default_pg e"}
    operations = set(by_name(breakdown_of(path, "operation")))
    assert operations == {
        *("allreduce (dp)", "allreduce (dp_cp)", "allreduce"),
        *("allreduce (default_pg d)", "allreduce (default_pg e)"),
    }


def test_operation_name_is_unchanged_if_groups_were_not_described(tmp_path: Path) -> None:
    path = tmp_path / "msprof_1.db"
    with Device(path) as device:
        device.collective(0, 10, "hcom_send__1", "hcom_send_", group="1.2.3.4%eth0_1")
    assert set(by_name(breakdown_of(path, "operation"))) == {"hcom_send_"}
    with open_analyses(path) as (analysis,):
        assert analysis.groups() == {}
        assert "group" in analysis.summary.available


def test_group_breakdown_is_refused_if_no_collective_has_a_group(tmp_path: Path) -> None:
    path = tmp_path / "msprof_1.db"
    with Device(path) as device:
        device.task(0, 150, kernel=("mm", "MatMul"))
        device.collective(0, 10, "hcom_send__1", "hcom_send_")
    with pytest.raises(UsageError, match="no collective with a known group"):
        breakdown_of(path, "group")


def test_collective_without_a_type_is_named_after_its_kernel(tmp_path: Path) -> None:
    generic = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    events = [kineto.call(1, 1, 3), kineto.kernel(5, 10, 3, name=generic)]
    trace = kineto.write(tmp_path / "run.json", events)
    convert(trace, tmp_path / "run.db")
    assert by_name(breakdown_of(tmp_path / "run.db", "operation"))[generic].total_ns == 10_000


def test_kernels_of_collectives_have_their_names_on_stream_lanes(tmp_path: Path) -> None:
    """The type of these tasks is KERNEL, and COMPUTE_TASK_INFO does not have them."""
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
    path = tmp_path / "trace.json"
    kineto.write(path, [kineto.call(0, 5, 1), kineto.kernel(10, 20, 1, name=name)])
    convert(path, tmp_path / "run.db")
    with open_analyses(tmp_path / "run.db") as (analysis,):
        timeline = analysis.timeline()
    assert timeline is not None
    lanes = {lane.name: lane for lane in timeline.lanes}
    stream = lanes["stream 7"]
    assert [timeline.labels[label] for label in stream.label.tolist()] == [name]
    assert stream.kind.tolist() == [COMMUNICATION]
