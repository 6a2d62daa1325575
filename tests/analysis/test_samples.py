"""Figures of databases from real devices equal those computed by SQL."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.test_skyline import breakdown_of, by_name, summary_of
from unified_prof.explain.api import open_analyses

RANKS = [
    f"level1/rank{rank}_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_{rank}.db"
    for rank in (0, 1)
]
FILES = [*RANKS, "910A_2024-09_level1.db"]


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        return db.execute(sql).fetchall()


@pytest.fixture(params=FILES)
def sample(request: pytest.FixtureRequest, shared: Path) -> Path:
    return shared / "samples" / "ascend" / str(request.param)


def test_kernel_times_equal_a_sql_join(sample: Path) -> None:
    expected = query(
        sample,
        """
        SELECT s.value, count(*), sum(t.endNs - t.startNs)
        FROM TASK t
        JOIN COMPUTE_TASK_INFO c ON c.globalTaskId = t.globalTaskId
        JOIN STRING_IDS s ON s.id = c.name
        GROUP BY s.value ORDER BY s.value
        """,
    )
    rows = breakdown_of(sample, "kernel").rows
    found = [(row.name, row.count, row.total_ns) for row in rows if row.kind == "kernel"]
    assert sorted(found) == expected


def test_collective_times_equal_the_communication_table(sample: Path) -> None:
    expected = query(
        sample,
        """
        SELECT s.value, count(*), sum(o.endNs - o.startNs)
        FROM COMMUNICATION_OP o JOIN STRING_IDS s ON s.id = o.opType GROUP BY s.value
        """,
    )
    rows = breakdown_of(sample, "operation").rows
    found = [(row.name, row.count, row.total_ns) for row in rows if row.kind == "communication"]
    assert found == expected


@pytest.mark.slow
def test_every_breakdown_contains_all_device_time(sample: Path) -> None:
    ((compute,),) = query(
        sample,
        "SELECT sum(endNs - startNs) FROM TASK WHERE globalTaskId IN"
        " (SELECT globalTaskId FROM COMPUTE_TASK_INFO)",
    )
    ((communication,),) = query(sample, "SELECT sum(endNs - startNs) FROM COMMUNICATION_OP")
    ((copies,),) = query(
        sample,
        """
        SELECT coalesce(sum(t.endNs - t.startNs), 0)
        FROM TASK t JOIN STRING_IDS s ON s.id = t.taskType
        WHERE s.value = 'MEMCPY_ASYNC'
        AND t.globalTaskId NOT IN (SELECT globalTaskId FROM COMPUTE_TASK_INFO)
        AND t.globalTaskId NOT IN (SELECT globalTaskId FROM COMMUNICATION_TASK_INFO)
        """,
    )
    totals = summary_of(sample).totals
    assert totals.total_ns == compute + communication + copies
    for by in ("operation", "module", "line", "kernel"):
        assert breakdown_of(sample, by).total_ns == totals.total_ns, by
    parts = (totals.forward_ns, totals.backward_ns, totals.other_ns)
    assert sum(part or 0 for part in parts) <= (totals.total_ns or 0)


def test_overlap_equals_the_vendors_analysis(shared: Path) -> None:
    path = shared / "samples" / "ascend" / RANKS[1]
    ((compute, communication, overlapped),) = query(
        path.with_name("analysis.db"),
        "SELECT computing, communication, overlapped FROM StepTraceTime",
    )
    (device,) = summary_of(path).devices
    assert device.communication_ns is not None
    assert device.overlap_ns is not None
    assert device.compute_ns / 1000 == pytest.approx(compute, abs=0.001)
    assert device.communication_ns / 1000 == pytest.approx(communication, abs=0.001)
    assert device.overlap_ns / 1000 == pytest.approx(overlapped, abs=0.001)


@pytest.mark.parametrize("rank", [0, 1])
def test_vendor_step_trace_is_reproduced(shared: Path, rank: int) -> None:
    path = shared / "samples" / "ascend" / RANKS[rank]
    ((step, *expected),) = query(
        path.with_name("analysis.db"),
        "SELECT step, computing, communication, communication_not_overlapped, overlapped, free,"
        " stage, bubble, preparing FROM StepTraceTime",
    )
    with open_analyses(path) as (analysis,):
        (found,) = analysis.step_traces()
        (device,) = analysis.summary.devices
    assert found.step == step
    figures = (
        *(found.computing_ns, found.communication_ns, found.communication_not_overlapped_ns),
        *(found.overlapped_ns, found.free_ns, found.stage_ns, found.bubble_ns, found.preparing_ns),
    )
    assert [ns / 1000 for ns in figures] == pytest.approx(expected, abs=0.001)
    # Our idle time counts copies as busy and starts at the first task.
    assert found.free_ns < device.idle_ns < 1.25 * found.free_ns


def test_convolution_has_its_backward_kernels(shared: Path) -> None:
    path = shared / "samples" / "ascend" / RANKS[1]
    conv = by_name(breakdown_of(path, "operation"))["aten::conv2d"]
    # Five convolutions; the first one computes no input gradient.
    assert conv.count == 5
    ((forward,),) = query(
        path,
        """
        SELECT sum(t.endNs - t.startNs)
        FROM TASK t JOIN COMPUTE_TASK_INFO k USING (globalTaskId)
        WHERE t.connectionId IN (
            SELECT c.connectionId FROM PYTORCH_API p JOIN STRING_IDS s ON s.id = p.name
            JOIN CONNECTION_IDS c ON c.id = p.connectionId WHERE s.value = 'Conv2D')
        """,
    )
    assert conv.forward_ns == forward
    assert (conv.backward_ns or 0) > forward


@pytest.mark.parametrize("name", ["report_0_prehistory.db", "msprof_0_edited_by_viewer.db"])
def test_incomplete_databases_have_the_recorded_compute_time(shared: Path, name: str) -> None:
    path = shared / "samples" / "ascend" / name
    ((expected,),) = query(
        path,
        "SELECT sum(endNs - startNs) FROM TASK WHERE globalTaskId IN"
        " (SELECT globalTaskId FROM COMPUTE_TASK_INFO)",
    )
    (device,) = summary_of(path).devices
    assert device.compute_ns == expected


def test_directory_of_ranks_is_opened_as_one_analysis_per_rank(shared: Path) -> None:
    with open_analyses(shared / "samples" / "ascend" / "level1") as analyses:
        assert [Path(one.summary.path).name for one in analyses] == [
            "ascend_pytorch_profiler_0.db",
            "ascend_pytorch_profiler_1.db",
        ]
