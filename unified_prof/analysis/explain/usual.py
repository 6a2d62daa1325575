"""The breakdowns that follow from the tables themselves."""

from __future__ import annotations

from unified_prof.analysis.model import Breakdown, Row
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views import annotated, breakdowns, regions
from unified_prof.analysis.views.device import step_rows, stream_rows, with_vendor
from unified_prof.analysis.ways import Way


def _has_calls(recording: Recording) -> bool:
    return _is_of_device(recording) or len(recording.held_calls) > 0


def _has_places(recording: Recording) -> bool:
    return recording.has_operations and _has_calls(recording)


def _operations(recording: Recording) -> Breakdown:
    if _is_of_device(recording) and not recording.has_operations:
        return breakdowns.finish("operation", recording.work.operation_rows())
    return breakdowns.by_label(recording.held_calls, "operation")


def _is_of_device(recording: Recording) -> bool:
    return recording.clock == "device"


def _has_annotations(recording: Recording) -> bool:
    if _is_of_device(recording):
        return len(recording.annotations) > 0
    return len(recording.regions) > 0


def _groups(recording: Recording) -> Breakdown:
    compute = {
        only: recording.devices[name].compute for name, only in recording.device_numbers.items()
    }
    return breakdowns.finish("group", recording.collective_names.group_rows(compute))


def _annotations(recording: Recording) -> Breakdown:
    if not _is_of_device(recording):
        return regions.breakdown(recording.regions, recording.strings)
    devices = {only: recording.devices[name] for name, only in recording.device_numbers.items()}
    return annotated.breakdown(
        recording.annotations,
        devices,
        recording.tasks,
        recording.launched_ns,
        recording.strings,
    )


def _steps(recording: Recording) -> list[Row]:
    rows = step_rows(
        recording.steps,
        recording.devices,
        recording.step_windows,
        recording.device_numbers,
        recording.tasks,
        recording.comms,
        recording.of_steps,
    )
    return with_vendor(rows, recording.step_traces)


WAYS = {
    "operation": Way(_has_calls, _operations),
    "module": Way(
        lambda one: _has_places(one) and one.held_calls.has("module"),
        lambda one: breakdowns.by_label(one.held_calls, "module"),
    ),
    "line": Way(
        lambda one: _has_places(one) and one.held_calls.has("line"),
        lambda one: breakdowns.by_label(one.held_calls, "line"),
    ),
    "kernel": Way(_is_of_device, lambda one: breakdowns.finish("kernel", one.work.kernel_rows())),
    "group": Way(lambda one: one.collective_names.in_groups, _groups),
    "stream": Way(
        lambda one: len(one.tasks) > 0,
        lambda one: breakdowns.finish("stream", stream_rows(one.tasks)),
    ),
    "annotation": Way(_has_annotations, _annotations),
    "idle": Way(_is_of_device, lambda one: breakdowns.finish("idle", one.idle_time.rows())),
    "step": Way(lambda one: bool(one.steps), lambda one: breakdowns.finish("step", _steps(one))),
}
