"""Streams of device tasks in recordings of torch.profiler."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unified_prof.tracking.timeline import TimelineInstrument, check_device_records

torch_autograd = pytest.importorskip("torch.autograd")


@pytest.mark.parametrize("written", [False, True])
def test_remarks_count_the_iterations_that_the_program_profiled(
    written: bool, tmp_path: Path
) -> None:
    timeline = TimelineInstrument(tmp_path / "timeline.json", "cpu")
    assert timeline.remarks is None
    timeline.written = written
    for index in range(timeline.lead_in, timeline.lead_in + 3):
        timeline.begin_to_record = lambda: None  # type: ignore[method-assign]
        timeline.begin_iteration(index)
        timeline.end_iteration(index)
    left = "the timeline lacks" if written else "there is no timeline:"
    assert str(timeline.remarks).startswith(f"{left} 3 iterations in which the program itself")


@dataclass
class Event:
    """A Kineto event, of a device unless `call` is set."""

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


def test_waits_and_annotations_are_no_tasks_beside_the_main_stream() -> None:
    """An H100 records a wait for all streams on stream -1 and a step on every stream."""
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


def test_launches_without_device_tasks_are_reported() -> None:
    events = [
        Event("cudaLaunchKernel", call=True, correlation=1),
        Event("Context Sync", stream=-1, correlation=5),
    ]
    facts, note = check_device_records(events)
    assert facts["timeline_launches_without_record"] == "1"
    assert note is not None
    assert "no device work" in note


def test_timeline_without_device_tasks_has_a_remark(tmp_path: Path) -> None:
    launch = Event("cudaLaunchKernel", call=True, correlation=1)
    profiler = SimpleNamespace(
        profiler=SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: [launch])),
        export_chrome_trace=lambda path: Path(path).write_text("{}"),
    )
    timeline = TimelineInstrument(tmp_path / "timeline.json", "cuda")
    timeline._export(profiler)
    assert timeline.written
    assert "no device work" in (timeline.remarks or "")
