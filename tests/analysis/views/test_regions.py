"""Regions of record_function in host-only recordings."""

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device
from unified_prof.explain.api import open_analyses
from unified_prof.recording.model import Row


def mark(
    device: Device, start: int, end: int, name: str, thread: int = 1, domain: str = "default"
) -> None:
    texts = {"message": device.text(name), "domainId": device.text(domain)}
    device.row("MSTX_EVENTS", startNs=start, endNs=end, **texts, globalTid=thread, eventType=2)


def rows(path: Path) -> dict[str, Row]:
    with open_analyses(path) as (analysis,):
        assert "annotation" in analysis.summary.available
        return {row.name: row for row in analysis.breakdown("annotation").rows}


def test_nested_regions_have_total_and_self_time(tmp_path: Path) -> None:
    path = tmp_path / "host.db"
    with Device(path) as device:
        device.call(5, 50, "aten::mm")
        mark(device, 0, 1000, "epoch")
        for at in (100, 300, 500):
            mark(device, at, at + 100, "batch")
        mark(device, 120, 150, "batch")  # nested in itself
        mark(device, 700, 760, "batch", thread=2)
        mark(device, 0, 2000, "ProfilerStep#3")
        mark(device, 0, 2000, "nn.Linear", domain="Module")
        mark(device, 800, 800, "a point")
        for name in ("save", "write"):  # one within the other
            mark(device, 1200, 1300, name)
    found = rows(path)
    assert set(found) == {"epoch", "batch", "save", "write"}
    assert (found["epoch"].total_ns, found["epoch"].count) == (1000, 1)
    assert found["epoch"].extra["self_ns"] == 700
    assert {found[one].extra["self_ns"] for one in ("save", "write")} == {0, 100}
    assert found["epoch"].detail is None
    assert (found["batch"].total_ns, found["batch"].count) == (360, 5)
    assert found["batch"].detail == "in epoch"
    assert sum(row.extra["self_ns"] or 0 for row in found.values()) == 1160
    with open_analyses(path) as (analysis,):
        assert analysis.breakdown("annotation").total_ns == 1160


def test_annotation_breakdown_is_unavailable_without_regions(tmp_path: Path) -> None:
    path = tmp_path / "host.db"
    with Device(path) as device:
        device.call(5, 50, "aten::mm")
    with open_analyses(path) as (analysis,):
        assert "annotation" not in analysis.summary.available


def test_record_function_regions_of_torch_are_converted(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    from unified_prof.pipeline.convert import convert

    region = torch.profiler.record_function
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu) as recorded, region("outer"):
        for _ in range(3):
            with torch.autograd.profiler.record_function("inner"):
                torch.ones(8, 8) @ torch.ones(8, 8)
    recorded.export_chrome_trace(str(tmp_path / "host.json"))
    convert(tmp_path / "host.json", tmp_path / "host.db")
    found = rows(tmp_path / "host.db")
    assert {name: row.count for name, row in found.items()} == {"outer": 1, "inner": 3}
    assert found["inner"].detail == "in outer"
    assert (found["outer"].total_ns or 0) >= (found["inner"].total_ns or 0) > 0
