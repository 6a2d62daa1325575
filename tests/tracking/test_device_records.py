"""Streams of device work in recordings of torch.profiler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unified_prof.tracking.timeline import TimelineInstrument, check_device_records

torch_autograd = pytest.importorskip("torch.autograd")


@dataclass
class Event:
    """A record as kineto gives it, of a device unless it is a call."""

    text: str
    stream: int = 7
    ns: int = 1_000_000
    correlation: int = 0
    annotation: bool = False
    call: bool = False

    def name(self) -> str:
        return self.text

    def device_type(self) -> Any:
        kinds = torch_autograd.DeviceType
        return kinds.CPU if self.call else kinds.CUDA

    def device_index(self) -> int:
        return 0

    def device_resource_id(self) -> int:
        return self.stream

    def duration_ns(self) -> int:
        return self.ns

    def correlation_id(self) -> int:
        return self.correlation

    def is_user_annotation(self) -> bool:
        return self.annotation


def test_only_work_is_work_beside_the_main_stream() -> None:
    """On an H100 a wait for all streams is a record of stream -1, a step one of each stream."""
    events = [
        Event("cudaLaunchKernel", call=True, correlation=1),
        Event("kernel", correlation=1),
        Event("kernel", correlation=2),
        Event("copy", stream=9, ns=250_000, correlation=3),
        Event("ProfilerStep#0", stream=9, ns=71_000_000, annotation=True),
        Event("Context Sync", stream=-1, ns=28_000),
    ]
    facts, note = check_device_records(events)
    assert facts["timeline_work_beside_main_streams"] == "device 0 stream 9: 0.250 ms"
    assert note is None


def test_ranges_drawn_around_work_are_no_records_of_it() -> None:
    events = [
        Event("cudaLaunchKernel", call=True, correlation=1),
        Event("Context Sync", stream=-1, correlation=5),
    ]
    facts, note = check_device_records(events)
    assert facts["timeline_launches_without_record"] == "1"
    assert note is not None
    assert "no device work" in note


def test_a_report_repeats_what_the_records_of_its_timeline_lack(tmp_path: Path) -> None:
    launch = Event("cudaLaunchKernel", call=True, correlation=1)
    profiler = SimpleNamespace(
        profiler=SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: [launch])),
        export_chrome_trace=lambda path: Path(path).write_text("{}"),
    )
    timeline = TimelineInstrument(tmp_path / "timeline.json", "cuda")
    timeline._export(profiler)
    assert timeline.written
    assert "no device work" in (timeline.remarks or "")
