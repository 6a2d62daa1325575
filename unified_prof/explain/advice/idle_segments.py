"""Idle segments of a device, host-bound time, and limits and formats shared by the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Frame, Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.packed import narrow
from unified_prof.base.text import TIMES, scaled
from unified_prof.recording.idle import HOST, INPUT, LAUNCHED, SYNCHRONISING
from unified_prof.recording.recording import Recording
from unified_prof.recording.tasks import FOREVER

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class IdleSegments(Frame):
    """Idle segments of a device within the analyzed steps; columns as in `idle.Segments`."""

    start_ns: Ints
    end_ns: Ints
    reason: NDArray[np.int8]
    # Row in `Recording.work` of the task that ended the gap, -1 if there is none.
    task: NDArray[np.int32]
    sync: NDArray[np.int32]  # Synchronizing call that caused the segment, -1 if there is none.

    @property
    def length_ns(self) -> Ints:
        """Length of each segment."""
        return self.end_ns - self.start_ns

    def without(self, removed: IntervalSet) -> IdleSegments:
        """Return the segments without some intervals; a segment may become several."""
        if not len(removed) or not len(self.start_ns):
            return self
        rest = intervals.subtract(IntervalSet(self.start_ns, self.end_ns), removed)
        # Segments that touch were merged: cut them again at their borders.
        starts = np.union1d(rest.start_ns, self.start_ns)
        row = np.searchsorted(self.start_ns, starts, side="right") - 1
        last = np.searchsorted(rest.start_ns, starts, side="right") - 1
        end = np.minimum(np.append(rest.end_ns, 0)[last], self.end_ns[row])
        kept = (last >= 0) & (end > starts)
        rows = row[kept]
        return IdleSegments(
            starts[kept], end[kept], self.reason[rows], self.task[rows], self.sync[rows]
        )


_NO_TIMES, _NO_ROWS = np.zeros(0, np.int64), np.zeros(0, np.int32)
NO_IDLE = IdleSegments(_NO_TIMES, _NO_TIMES, np.zeros(0, np.int8), _NO_ROWS, _NO_ROWS)


MIN_STEPS_WITH_WARM_UP = 3  # Number of steps from which the first is excluded as warm-up.
# Steps longer than this many medians are excluded (warm-up, checkpoint, evaluation).
MAX_STEP_MEDIANS = 3.0
LESS_COLLECTION = (
    "call gc.freeze() after the first steps and raise gc.set_threshold(), or gc.disable() and "
    "gc.collect() every n steps on all ranks"
)
LESS_RECOMPUTATION = (
    "if memory allows, checkpoint fewer blocks, or use a selective policy "
    "(torch.utils.checkpoint.create_selective_checkpoint_contexts) that keeps matmul results"
)
WARN_SHARE = 0.03  # Default minimum share of a step that a finding must cost.
# Minimum saving as a share of the time, for rules with another limit on the cause or an uncertain
# gain.
MIN_SHARE = 0.01
# In a recording without steps, a gap above this share is a pause, not a slow host.
PAUSE_SHARE = 0.10
EVIDENCE_ROWS = 5  # Rows of evidence per finding.


# Operations outside of backward passes that often do more than is needed: what they do, and a
# cheaper way.
COSTLY = {
    "tensor": ("conversion of Python objects", "keep tensors or NumPy arrays, and index them"),
    "stack": ("stacking of many tensors", "keep the data in one tensor, and index it"),
    "sort": ("a full sort", "use torch.topk if only the largest or smallest values are used"),
    "unique": ("a sort for distinct values", "compute it once if its input stays the same"),
    "cat": (
        "copying of all inputs, for example to append to a KV cache,",
        "write into a tensor that is allocated once (static cache)",
    ),
    "one_hot": ("one-hot vectors", "index, or use an embedding: x[index] is one_hot(index) @ x"),
}
_COSTLY_NAMES = {
    "as_tensor": "tensor",
    "argsort": "sort",
    **dict.fromkeys(("unique_consecutive", "unique_dim", "_unique2"), "unique"),
}


def costly_name(operation: str) -> str | None:
    """Return the key of an operation in COSTLY; None if it has none."""
    name = operation.removeprefix("aten::")
    name = _COSTLY_NAMES.get(name, name)
    return name if name in COSTLY else None


def evidence_row(
    name: str,
    count: int,
    total_ns: int,
    start_ns: int | None = None,
    *,
    operation: str | None = None,
    line: str | None = None,
) -> dict[str, Any]:
    """Return one row of evidence, without the values that are None."""
    row = {"name": name, "count": count, "total_ns": total_ns, "start_ns": start_ns}
    row |= {"operation": operation, "line": line}
    return {key: value for key, value in row.items() if value is not None}


def group_evidence(
    number: Ints, time_ns: Ints, start_ns: Ints, name_of: Callable[[int], str]
) -> list[dict[str, Any]]:
    """Return the groups of rows with the longest total time as evidence.

    Args:
        number: Number of the group of each row.
        time_ns: Time of each row.
        start_ns: Start of each row; the evidence has that of the first row.
        name_of: Returns the name of a group.
    """
    groups, first, number = np.unique(number, return_index=True, return_inverse=True)
    total, count = np.bincount(number, weights=time_ns), np.bincount(number)
    return [
        evidence_row(
            name_of(int(groups[at])), int(count[at]), int(total[at]), int(start_ns[first[at]])
        )
        for at in np.argsort(-total, kind="stable")[:EVIDENCE_ROWS].tolist()
    ]


def describe_run(facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a finding that name the rank and host of a recording."""
    rank = facts.get("rank", "")
    return {
        "ranks": (int(rank),) if rank.isdecimal() else (),
        "hosts": (facts["host"],) if facts.get("host") else (),
        "links": (),
    }


def duration(time_ns: float) -> str:
    """Format a duration."""
    return scaled(time_ns, TIMES)


def times(count: int) -> str:
    """Format a number of occurrences."""
    return "once" if count == 1 else f"{count:,} times"


def plural(count: int, noun: str, plural_noun: str | None = None) -> str:
    """Format a number of things; without `plural_noun`, the plural takes an s."""
    return f"{count:,} {noun if count == 1 else plural_noun or f'{noun}s'}"


def percent(share: float) -> str:
    """Format a share."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


# Launch latency of an idle device if the recording has no such launch...
LATENCY_NS = 10_000
# ...and the maximum that counts as launch latency, in ns and in medians.
MAX_LATENCY_NS = 100_000
MAX_LATENCY_MEDIANS = 2.0


class _PreviousStarts:
    """Latest task start before given timestamps, which must be ascending."""

    def __init__(self, starts: Iterator[Ints]) -> None:
        self._coming = starts
        self._known = np.zeros(0, np.int64)

    def before(self, at_ns: Ints) -> Ints:
        """Return the latest start before each timestamp; FOREVER if there is none."""
        first, last = int(at_ns.min()), int(at_ns.max())
        while not len(self._known) or self._known[-1] < last:
            more = next(self._coming, None)
            if more is None:
                break
            known = np.concatenate((self._known, more))
            self._known = known[max(int(np.searchsorted(known, first)) - 1, 0) :]
        place = np.searchsorted(self._known, at_ns) - 1
        return np.where(place >= 0, np.append(self._known, FOREVER)[place], FOREVER)


def host_bound_masks(
    recording: Recording,
    idle_windows: Callable[[], Iterable[IdleSegments]],
    starts: Iterator[Ints],
) -> Iterator[Flags]:
    """Yield a mask of the time that earlier launches would fill, for each window of idle time.

    Args:
        recording: Source of calls and tasks.
        idle_windows: Yields the idle time by reason; a gap is in one window.
        starts: Ascending starts of the tasks within the analyzed steps.
    """
    latency_ns: float | None = None  # needs another pass over all windows, for few recordings
    previous = _PreviousStarts(starts)
    for idle in idle_windows():
        result = _before_launches(idle)
        rows, start_ns, launched_ns = _after_launches(recording, idle)
        if len(rows):
            if latency_ns is None:
                latency_ns = _median_latency_ns(recording, idle_windows())
            # The previous task was running or finished when this one was launched: nothing else
            # was queued.
            alone = previous.before(start_ns) <= launched_ns
            latency = start_ns - launched_ns
            result[rows[alone & (latency <= MAX_LATENCY_MEDIANS * latency_ns)]] = True
        yield result


def _median_latency_ns(recording: Recording, idle_windows: Iterable[IdleSegments]) -> float:
    """Return the median launch latency of an idle device."""
    parts: list[NDArray[np.integer]] = [np.zeros(0, np.int32)]
    for idle in idle_windows:
        rows, start_ns, launched_ns = _after_launches(recording, idle)
        drained = np.isin(idle.task[rows], idle.task[_before_launches(idle)])
        parts.append(narrow((start_ns - launched_ns)[drained]))
    latencies = np.concatenate(parts)
    return min(float(np.median(latencies)), MAX_LATENCY_NS) if len(latencies) else LATENCY_NS


def _before_launches(idle: IdleSegments) -> Flags:
    """Return a mask of the segments before a launch."""
    result: Flags = (idle.reason == HOST) & (idle.task >= 0)
    return result


def _after_launches(recording: Recording, idle: IdleSegments) -> tuple[Ints, Ints, Ints]:
    """Return the segments after a known launch, and the starts of their tasks and launches."""
    rows = np.flatnonzero((idle.reason == LAUNCHED) & (idle.task >= 0))
    # Time with another wait is not launch latency.
    waited = np.isin(idle.reason, (SYNCHRONISING, INPUT))
    rows = rows[~np.isin(idle.task[rows], idle.task[waited])]
    if not len(rows) or not len(recording.host_calls):
        return _NO_TIMES, _NO_TIMES, _NO_TIMES
    task = idle.task[rows]
    call = recording.host_calls.launching(recording.work.connection[task])
    known = call >= 0
    start_ns = recording.work.start_ns[task[known]]
    return rows[known], start_ns, recording.host_calls.start_ns[call[known]]
