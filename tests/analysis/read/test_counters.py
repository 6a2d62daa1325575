"""Peak memory by component, and the names of allocators on GPUs and NPUs."""

from __future__ import annotations

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
        ([("PTA", 800, 0), ("GE", 100, 0), ("PTA+GE", 900, 0), ("PTA", 500, 0)], 800),
        # Both tell the same: the graph engine's blocks came out of torch's.
        ([("PTA", 800, 0), ("GE", 800, 0), ("PTA+GE", 1600, 0)], 800),
        # The host's memory is another's, however much it is.
        ([("PTA", 800, 0), ("CPU", 5000, -1)], 800),
        ([("CPU", 5000, -1)], 5000),
        ([("GE", 70, 0), ("CPU", 5000, -1)], 70),
        ([("CUDA", 60, 0)], 60),
        ([("PTA", 10, 0), ("PTA", 30, 1)], 30),
    ],
)
def test_the_peak_is_that_of_torchs_own_allocator(
    tmp_path: Path, records: Records, peak: int
) -> None:
    path = _report(tmp_path / "a.db", records)
    assert summary_of(path).totals.peak_bytes == peak


def test_real_recordings_say_what_torch_says(shared: Path) -> None:
    """Two ranks of one model: torch's peak is the same to the byte, sums with GE are not."""
    level1 = shared / "samples" / "ascend" / "level1"
    peaks = []
    for rank in (0, 1):
        name = f"rank{rank}_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_{rank}.db"
        peaks.append(summary_of(level1 / name).totals.peak_bytes)
    assert peaks == [1245688832, 1245688832]


@pytest.mark.parametrize("decoder", ["kineto", "nsys", "memory_snapshot"])
def test_of_gpus_nothing_is_called_as_on_ascend(tmp_path: Path, decoder: str) -> None:
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


def test_on_ascend_allocators_keep_the_vendors_names(tmp_path: Path) -> None:
    records = [("PTA", 800, 0), ("GE", 100, 0), ("PTA+GE", 900, 0)]
    for facts in (None, {"decoder": "ascend_pt"}):
        path = _report(tmp_path / f"{len(facts or {})}.db", records, facts)
        with open_analyses(path) as (analysis,):
            found = {one.name for one in analysis.memory_series()}
        assert {"allocated PTA", "allocated GE", "allocated PTA+GE"} <= found


def test_a_rank_without_a_device_is_no_rank_of_device_minus_one(tmp_path: Path) -> None:
    with Device(tmp_path / "a.db") as device:
        device.writer.write("RANK_DEVICE_MAP", {"rankId": [3], "deviceId": -1})
    facts = dict(summary_of(tmp_path / "a.db").facts)
    assert facts["rank"] == "3"
    assert not any("-1" in name for name in facts)
