"""Peak memory by allocator, and allocator names on GPUs and NPUs."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.analysis.builders import UPROF_TABLES, Device
from tests.analysis.test_skyline import summary_of
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.report import html_page, report_formats, viewer_traces
from unified_prof.report.formats import ReportRequest

Records = list[tuple[str, int, int]]
"""Component, bytes, device."""


def _report(path: Path, records: Records, facts: Mapping[str, str] | None = None) -> Path:
    with Device(path) as device:
        device.task(0, 10, kernel=("a", "A"))
        for at, (component, allocated, where) in enumerate(records):
            device.memory(at, component, allocated, device=where)
    if facts:
        with closing(sqlite3.connect(path)) as db, db:
            db.executescript(UPROF_TABLES)
            db.executemany("INSERT INTO UPROF_RUN VALUES (?, ?)", list(facts.items()))
    return path


@pytest.mark.parametrize(
    ("records", "peak"),
    [
        # torch_npu adds what either allocator said last: 900 never were in use at once for torch.
        # torch_npu adds the last values of both allocators; torch itself never used 900.
        # Both tell the same: the graph engine's blocks came out of torch's.
        # Both report the same blocks: the graph engine allocates from torch.
        # Host memory does not count.
        ([("PTA", 800, 0), ("CPU", 5000, -1)], 800),
        ([("CPU", 5000, -1)], 5000),
        ([("GE", 70, 0), ("CPU", 5000, -1)], 70),
        ([("CUDA", 60, 0)], 60),
        ([("PTA", 10, 0), ("PTA", 30, 1)], 30),
    ],
)
def test_peak_memory_is_that_of_the_allocator(tmp_path: Path, records: Records, peak: int) -> None:
    path = _report(tmp_path / "a.db", records)
    assert summary_of(path).totals.peak_bytes == peak


@pytest.mark.slow
def test_peak_memory_of_real_recordings_equals_torchs_peak(shared: Path) -> None:
    """Two ranks with the same model have the same peak; sums with GE would differ."""
    level1 = shared / "samples" / "ascend" / "level1"
    peaks = []
    for rank in (0, 1):
        name = f"rank{rank}_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_{rank}.db"
        peaks.append(summary_of(level1 / name).totals.peak_bytes)
    assert peaks == [1245688832, 1245688832]


@pytest.mark.parametrize("decoder", ["kineto", "nsys", "memory_snapshot"])
def test_allocators_of_gpu_recordings_have_no_ascend_names(tmp_path: Path, decoder: str) -> None:
    records = [("PTA", 800, 0), ("CPU", 5000, -1)]
    path = _report(tmp_path / "a.db", records, {"decoder": decoder})
    with open_analyses(path) as (analysis,):
        found = {(one.name, one.device) for one in analysis.memory_series()}
    assert found == {
        ("allocated (torch's allocator)", "device 0"),
        ("reserved (torch's allocator)", "device 0"),
        ("allocated (torch's allocator)", "host"),
        ("reserved (torch's allocator)", "host"),
    }
    with open_reports(path) as opened:
        shown = report_formats.produce_json(opened, ReportRequest()) + html_page.produce_page(
            opened, ReportRequest()
        )
        viewer_traces.write_chrome_trace(
            tmp_path / "trace.json", [("", one) for one in opened.analyses]
        )
    trace = (tmp_path / "trace.json").read_text()
    for text in (shown, trace):
        assert "torch's allocator" in text
        assert "PTA" not in text
        assert "device -1" not in text


def test_allocators_of_ascend_recordings_keep_the_vendors_names(tmp_path: Path) -> None:
    records = [("PTA", 800, 0), ("GE", 100, 0), ("PTA+GE", 900, 0)]
    for facts in (None, {"decoder": "ascend_pt"}):
        path = _report(tmp_path / f"{len(facts or {})}.db", records, facts)
        with open_analyses(path) as (analysis,):
            found = {one.name for one in analysis.memory_series()}
        assert {"allocated PTA", "allocated GE", "allocated PTA+GE"} <= found


def test_rank_without_device_is_not_assigned_to_device_minus_one(tmp_path: Path) -> None:
    with Device(tmp_path / "a.db") as device:
        device.row("RANK_DEVICE_MAP", rankId=3, deviceId=-1)
    facts = dict(summary_of(tmp_path / "a.db").facts)
    assert facts["rank"] == "3"
    assert not any("-1" in name for name in facts)
