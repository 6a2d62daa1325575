"""StepTraceTime: what the devices did in each training step, as torch_npu counts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unified_prof.analysis.views import step_trace
from unified_prof.analysis.views.step_trace import (
    FOREVER,
    Range,
    Work,
    is_of_ascend,
    ranges,
    read_tasks,
    read_work,
)
from unified_prof.store.reader import Report
from unified_prof.units import NS_PER_US

__all__ = ["FOREVER", "Range", "Work", "is_of_ascend", "ranges", "read_tasks", "read_work", "rows"]


def rows(
    report: Report, work: tuple[Work, Work], all_ranges: Sequence[Range]
) -> Iterator[tuple[object, ...]]:
    """Yield a row for every step and device that worked anywhere; times are microseconds.

    Args:
        report: Whose operators say when a recording without steps began.
        work: What computed, and what communicated.
        all_ranges: Of the steps.
    """
    for one in step_trace.traces(report, work, all_ranges):
        times = (
            one.computing_ns,
            one.communication_not_overlapped_ns,
            one.overlapped_ns,
            one.communication_ns,
            one.free_ns,
            one.stage_ns,
            one.bubble_ns,
            one.communication_not_overlapped_and_exclude_receive_ns,
            one.preparing_ns,
        )
        yield (one.device_id, one.step, *(ns / NS_PER_US for ns in times))
