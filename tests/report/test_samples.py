"""Recordings made by others give a report in every format, with the figures of SQL queries."""

from pathlib import Path

import pytest

from tests.report.test_invalid_values import produce_everything
from tests.sql import execute
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.pipeline.convert import convert
from unified_prof.report import names, report_formats
from unified_prof.report.formats import ReportRequest

TRACES = [
    "amd_trace__mi250_minitoy_train_ROCm6_2_kineto",
    "critical_path__alexnet__benchmark_result_2869224_1695835535_trace",
    "critical_path__event_sync_multi_stream",
    "critical_path__simple_add",
    "cupti_profiler__benchmark_result_924719_1679055439_trace",
    "nccl_parser_config__nccl_data",
    "rank_non_gpu__rank_non_gpu",
    "timeline_analysis__sampled_rank-0",
    "triton_example__triton_example",
]
DATABASES = [
    "910A_2024-09_level1.db",
    "report_0_prehistory.db",
    "msprof_0_edited_by_viewer.db",
    "level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db",
    "level1/rank1_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_1.db",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", DATABASES)
def test_recorded_databases_give_every_format(shared: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "report.db"
    path.write_bytes((shared / "samples" / "ascend" / name).read_bytes())
    produce_everything(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACES)
def test_converted_traces_give_every_format(shared: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "report.db"
    convert(shared / "samples" / "kineto" / f"{name}.json.gz", path)
    produce_everything(path)
    with open_analyses(path) as (analysis,):
        summary = analysis.summary
        kernels = analysis.breakdown("kernel").rows if "kernel" in summary.available else ()
    if summary.clock == "host":
        assert execute(path, "SELECT count(*) FROM sqlite_master WHERE name = 'TASK'") == [(0,)]
        assert (summary.totals.total_ns or 0) > 0
        return
    expected = execute(
        path,
        """
        SELECT s.value, count(*), sum(t.endNs - t.startNs)
        FROM TASK t JOIN COMPUTE_TASK_INFO c ON c.globalTaskId = t.globalTaskId
        JOIN STRING_IDS s ON s.id = c.name
        GROUP BY s.value ORDER BY s.value
        """,
    )
    found = [(row.name, row.count, row.total_ns) for row in kernels if row.kind == "kernel"]
    assert sorted(found) == expected


@pytest.mark.slow
def test_forward_and_backward_times_are_separated(shared: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.db"
    convert(shared / "samples" / "kineto" / "nccl_parser_config__nccl_data.json.gz", path)
    with open_analyses(path) as (analysis,):
        totals = analysis.summary.totals
        rows = {row.name: row for row in analysis.breakdown("operation").rows}
    # 53 convolutions in three steps have both passes and no weight update.
    conv = rows["aten::conv2d"]
    assert conv.count == 159
    assert None not in (conv.forward_ns, conv.backward_ns)
    assert (conv.forward_ns or 0) < (conv.backward_ns or 0)
    assert (conv.forward_ns or 0) + (conv.backward_ns or 0) == conv.total_ns
    assert rows["aten::_foreach_add_"].forward_ns is None
    assert totals.other_ns is not None
    parts = (totals.forward_ns, totals.backward_ns, totals.other_ns)
    assert sum(part or 0 for part in parts) == totals.total_ns


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("name", ["h100_bert-small", "b200_eager", "mi300_vit"])
def test_kernel_names_of_devices_stay_distinct(shared: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "report.db"
    convert(shared / "samples" / "kineto" / f"{name}.json.gz", path)
    with open_reports(path) as opened:
        shown = report_formats.produce_text(opened, ReportRequest(by="kernel", top=1000))
        whole = [row.name for row in opened.analyses[0].breakdown("kernel").rows]
    assert max(map(len, shown.splitlines())) <= 200
    assert len(set(names.readable_names(whole))) == len(set(whole))
    assert max(map(len, whole)) > 250, "full names would not fit"
