"""Analyzed and idle time of a device, host-bound time, limits and formats shared by the rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Frame, Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.packed import narrow
from unified_prof.base.text import TIMES, scaled
from unified_prof.recording.device import TimeSlice
from unified_prof.recording.idle import (
    HOST,
    INPUT,
    LATE_NS,
    LAUNCHED,
    NOT_KNOWN,
    REASONS,
    SYNCHRONIZING,
)
from unified_prof.recording.names import LAUNCHES
from unified_prof.recording.tasks import FOREVER

if TYPE_CHECKING:
    from unified_prof.recording.recording import Recording

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
# A launch takes 5 to 10 µs on the host: much longer ones wait for a free place in the queue.
FULL_QUEUE_NS = 20_000
LESS_COLLECTION = (
    "call gc.freeze() after the first steps and raise gc.set_threshold(), or gc.disable() and "
    "gc.collect() every n steps on all ranks"
)
DENSE_SHARE = 0.10  # Minimum share of the time of dense gradients of embeddings.
SPARSE_GRADIENTS = (
    "pass sparse=True to these embeddings, with SGD or SparseAdam, or use tables that are updated "
    "in the backward pass (torchrec, FBGEMM)"
)
KEEP_KEYS = "keep keys and values of earlier positions (use_cache=True)"
LESS_RECOMPUTATION = (
    "if memory allows, checkpoint fewer blocks, or use a selective policy "
    "(torch.utils.checkpoint.create_selective_checkpoint_contexts) that keeps matmul results"
)
WARN_SHARE = 0.03  # Default minimum share of a step that a finding must cost.
# Minimum saving as a share of the time, for rules with another limit on the cause or an uncertain
# gain.
MIN_SHARE = 0.01
# Start and end of a kernel in which the device is mostly idle.
TAIL_NS = 2_000
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
    "indexing_backward": (
        "adding at sorted indices, as in the backward pass of x[index],",
        "use torch.index_select, gather or an embedding instead of x[index], index_add_ instead of "
        "index_put_; deterministic algorithms sort in these, too",
    ),
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
    number: Ints,
    time_ns: Ints,
    start_ns: Ints,
    name_of: Callable[[int], str],
    *,
    least_ns: float = 0.0,
) -> list[dict[str, Any]]:
    """Return the groups of rows with the longest total time as evidence.

    Args:
        number: Number of the group of each row.
        time_ns: Time of each row.
        start_ns: Start of each row; the evidence has that of the first row.
        name_of: Returns the name of a group.
        least_ns: Groups of less time, except the longest, are counted in one last row.
    """
    groups, first, number = np.unique(number, return_index=True, return_inverse=True)
    total, count = np.bincount(number, weights=time_ns), np.bincount(number)
    longest = np.argsort(-total, kind="stable")
    rows = [
        evidence_row(
            name_of(int(groups[at])), int(count[at]), int(total[at]), int(start_ns[first[at]])
        )
        for at in longest[:EVIDENCE_ROWS].tolist()
    ]
    kept = max(int((total[longest[:EVIDENCE_ROWS]] >= least_ns).sum()), 1)
    if kept < len(rows):
        others = longest[kept:]
        name = f"({plural(len(others), 'shorter one')})"
        rows[kept:] = [evidence_row(name, int(count[others].sum()), int(total[others].sum()))]
    return rows


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
    recording: Recording, idle_windows: Iterable[IdleSegments], starts: Iterator[Ints]
) -> list[Flags]:
    """Return masks of the time that earlier launches would fill, for each window of idle time.

    Args:
        recording: Source of calls and tasks.
        idle_windows: Yields the idle time by reason; a gap is in one window.
        starts: Ascending starts of the tasks within the analyzed steps.
    """
    masks: list[Flags] = []
    alone: list[tuple[NDArray[np.integer], NDArray[np.integer]]] = []
    drained: list[NDArray[np.integer]] = [np.zeros(0, np.int32)]
    previous = _PreviousStarts(starts)
    for idle in idle_windows:
        mask = _before_launches(idle)
        rows, start_ns, launched_ns = _after_launches(recording, idle)
        latency_ns = start_ns - launched_ns
        drained.append(narrow(latency_ns[np.isin(idle.task[rows], idle.task[mask])]))
        if len(rows):
            # The previous task was running or finished when this one was launched: nothing else
            # was queued.
            chosen = previous.before(start_ns) <= launched_ns
            chosen &= latency_ns <= MAX_LATENCY_MEDIANS * MAX_LATENCY_NS
            rows, latency_ns = rows[chosen], latency_ns[chosen]
        masks.append(mask)
        alone.append((narrow(rows), narrow(latency_ns)))
    # The latency of a launch to an idle device is known after the last window.
    latencies = np.concatenate(drained)
    median_ns = min(float(np.median(latencies)), MAX_LATENCY_NS) if len(latencies) else LATENCY_NS
    for mask, (single, length_ns) in zip(masks, alone, strict=True):
        mask[single[length_ns <= MAX_LATENCY_MEDIANS * median_ns]] = True
    return masks


def _before_launches(idle: IdleSegments) -> Flags:
    """Return a mask of the segments before a launch."""
    result: Flags = (idle.reason == HOST) & (idle.task >= 0)
    return result


def _after_launches(recording: Recording, idle: IdleSegments) -> tuple[Ints, Ints, Ints]:
    """Return the segments after a known launch, and the starts of their tasks and launches."""
    rows = np.flatnonzero((idle.reason == LAUNCHED) & (idle.task >= 0))
    # Time with another wait is not launch latency.
    waited = np.isin(idle.reason, (SYNCHRONIZING, INPUT))
    rows = rows[~np.isin(idle.task[rows], idle.task[waited])]
    if not len(rows) or not len(recording.host_calls):
        return _NO_TIMES, _NO_TIMES, _NO_TIMES
    task = idle.task[rows]
    call = recording.host_calls.launching(recording.work.connection[task])
    known = call >= 0
    start_ns = recording.work.start_ns[task[known]]
    return rows[known], start_ns, recording.host_calls.start_ns[call[known]]


# Functions in which a thread waits for others: `queue.py(171): get`, `<built-in method poll ...>`.
_WAITS = re.compile(
    r"\b(?:queues?|threading|selectors|socket|connection)\.py\(\d+\): "
    r"(?:get|wait|select|poll|accept|recv\w*)$"
    r"|^<built-in (?:method|function) (?:acquire|select|poll|sleep|recv\w*)\b"
)
# A function or call is named with a gap if it covers at least this share of it.
COVERED_SHARE = 0.5


class AnalyzedTime:
    """Analyzed steps of a device (device=None: of the host), and idle time in them.

    Attributes:
        analyzed: Indices of the analyzed steps.
        device_id: Number of the device in the tables; None if the recording has only one.
        quick: True if only cheap rules run, because the recording is large.
        claimed: Idle time that the findings so far explain; later rules leave it out.
    """

    def __init__(self, recording: Recording, device: str | None, *, quick: bool = False) -> None:
        self.recording = recording
        self.quick = quick
        self.device = device
        self.device_id = None if device is None else recording.device_numbers[device]
        self.claimed = intervals.EMPTY
        self.analyzed = analyzed_steps(recording)

    def claim(self, explained: IntervalSet) -> None:
        """Record that a finding explains the idle time within some intervals."""
        self.claimed = intervals.union(self.claimed, explained)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the analyzed steps; empty if no steps were recorded."""
        names = [self.recording.steps[at][0] for at in self.analyzed]
        return tuple(
            int(name) if name.isdecimal() else at
            for at, name in zip(self.analyzed, names, strict=True)
        )

    @cached_property
    def windows(self) -> IntervalSet:
        """Interval of each analyzed step, or the whole window. Intervals may touch."""
        recording = self.recording
        if self.analyzed:
            if self.device is not None:
                steps = recording.step_windows[self.device]
                begin, end = steps.start_ns[self.analyzed], steps.end_ns[self.analyzed]
            else:
                times = [recording.steps[at][1:] for at in self.analyzed]
                begin, end = np.array(times, np.int64).T
            return IntervalSet(begin, end)
        if self.device is not None:
            return intervals.subtract(recording.devices[self.device].window, self.pauses)
        framework = recording.framework
        if framework is None or not len(framework):
            return intervals.EMPTY
        ends = framework.start_ns.to_array(), framework.end_ns.to_array()
        return intervals.hull(intervals.merge(*np.minimum(ends, recording.cut_ns)))

    @cached_property
    def pauses(self) -> IntervalSet:
        """Very long steps, or without steps long gaps in which the device had nothing to do.

        Loading, compiling and pauses between phases look like a very slow host. Shorter gaps are
        pauses if the program waits in a queue or for a socket, as servers do for requests. Input
        waits and late kernels are not pauses.
        """
        if self.analyzed:
            long = set(range(1, len(self.recording.steps))) - set(self.analyzed)
            times = [self.recording.steps[at][1:] for at in sorted(long)]
            return intervals.merge(*np.array(times, np.int64).reshape(-1, 2).T)
        if self.device is None:
            return intervals.EMPTY
        window, waits = self.recording.devices[self.device].window, self._waits_for_work
        begins, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        share = 0.0 if len(waits) else PAUSE_SHARE
        for segments in self.recording.idle_time.long_segments(self.device, share):
            length = segments.end_ns - segments.start_ns
            waiting = intervals.covered(waits, segments.start_ns, segments.end_ns)
            pause = (waiting >= COVERED_SHARE * length) & (length >= LATE_NS)
            pause |= length > PAUSE_SHARE * window.total_ns
            pause &= np.isin(segments.reason, (HOST, SYNCHRONIZING, NOT_KNOWN))
            begins.append(segments.start_ns[pause])
            ends.append(segments.end_ns[pause])
        gaps = intervals.merge(np.concatenate(begins), np.concatenate(ends))
        return intervals.intersect(window, gaps)

    @cached_property
    def _waits_for_work(self) -> IntervalSet:
        """Time in which a thread that launches tasks waits in functions of the standard library."""
        recording = self.recording
        if self.quick:
            return intervals.EMPTY
        frames, calls = recording.python_calls, recording.host_calls
        launching = calls.launching(recording.work.connection.to_array())
        threads = np.unique(calls.thread[launching[launching >= 0]])
        waits = np.array([bool(_WAITS.search(text)) for text in frames.texts] or [False])
        rows = np.flatnonzero(waits[frames.name] & np.isin(frames.thread, threads))
        return intervals.merge(frames.start_ns[rows], frames.end_ns[rows])

    @cached_property
    def window(self) -> IntervalSet:
        """Union of the analyzed intervals."""
        return intervals.merge(self.windows.start_ns, self.windows.end_ns)

    @cached_property
    def analyzed_ns(self) -> int:
        """Length of the analyzed time."""
        return self.window.total_ns

    @property
    def step_count(self) -> int:
        """Number of steps by which costs are divided."""
        return max(len(self.analyzed), 1)

    @cached_property
    def host_window(self) -> IntervalSet:
        """Union of the analyzed steps on the host, which may be ahead of the device."""
        times = [self.recording.steps[at][1:] for at in self.analyzed]
        return intervals.merge(*np.array(times, np.int64).T) if times else self.window

    def share(self, time_ns: float) -> float:
        """Return a time as a share of the analyzed time."""
        return time_ns / self.analyzed_ns if self.analyzed_ns else 0.0

    def clip(self, start_ns: Ints, end_ns: Ints) -> IntervalSet:
        """Return the union of intervals within the analyzed time."""
        return intervals.intersect(intervals.merge(start_ns, end_ns), self.window)

    def is_analyzed(self, at_ns: Ints) -> Flags:
        """Return a mask of the timestamps within the analyzed time."""
        return intervals.holding(self.window, at_ns) >= 0

    @cached_property
    def compute(self) -> IntervalSet:
        """Intervals in which kernels ran, within the analyzed time."""
        assert self.device is not None
        return intervals.intersect(self.recording.devices[self.device].compute, self.window)

    @cached_property
    def compute_ns(self) -> int:
        """Time in which kernels ran, within the analyzed time."""
        return self._time_in(self.window, lambda time_slice: time_slice.compute)

    @cached_property
    def idle_ns(self) -> int:
        """Idle time of the device within the analyzed time; without a device, all of it."""
        return self.idle_in(self.window)

    def idle_in(self, selected: IntervalSet) -> int:
        """Return the idle time of the device in a part of the analyzed time."""
        if self.device is None:
            return selected.total_ns
        return selected.total_ns - self._time_in(selected, lambda time_slice: time_slice.busy)

    def _time_in(self, selected: IntervalSet, part_of: Callable[[TimeSlice], IntervalSet]) -> int:
        """Return the length of a part of the device's time in some intervals, slice by slice."""
        assert self.device is not None
        return sum(
            intervals.intersect(
                part_of(one), intervals.part(selected, one.begin_ns, one.until_ns)
            ).total_ns
            for one in self.recording.devices[self.device].time_slices()
        )

    def idle_windows(self) -> Iterator[IdleSegments]:
        """Yield the idle time by reason in windows, at least one.

        All segments of one gap are in the same window.
        """
        assert self.device is not None
        pending = NO_IDLE
        for segments in self.recording.idle_time.parts(self.device):
            start, end, row, _ = intervals.overlaps(
                IntervalSet(segments.start_ns, segments.end_ns), self.window
            )
            task, sync = segments.next_task[row], segments.sync[row]
            parts = [pending, IdleSegments(start, end, segments.reason[row], task, sync)]
            idle = IdleSegments.concatenate(parts)
            cut = len(idle.task)
            if cut and idle.task[-1] >= 0:
                others = np.flatnonzero(idle.task != idle.task[-1])
                cut = int(others[-1]) + 1 if len(others) else 0
            yield idle.take(slice(0, cut))
            pending = idle.take(slice(cut, None))
        yield pending

    @cached_property
    def sync_idle(self) -> IdleSegments:
        """Idle time caused by synchronizations."""
        return self.idle_where(lambda idle: idle.reason == SYNCHRONIZING)

    def host_bound_windows(self) -> Iterator[tuple[IdleSegments, Flags]]:
        """Yield `idle_windows`, each with a mask of its host-bound time.

        That is the time until the launch of the next task, plus the latency of a launch to an idle
        device: a host that is one launch ahead hides both.
        """
        yield from zip(self.idle_windows(), self._host_bound, strict=True)

    @cached_property
    def _host_bound(self) -> list[Flags]:
        windows = self.recording.work.in_time(self.device_id)
        starts = (rows.start_ns[self.is_analyzed(rows.start_ns)] for rows in windows)
        return host_bound_masks(self.recording, self.idle_windows(), starts)

    def idle_where(self, condition: Callable[[IdleSegments], Flags]) -> IdleSegments:
        """Return the idle segments for which a condition on windows holds."""
        parts = [idle.take(condition(idle)) for idle in self.idle_windows()]
        return IdleSegments.concatenate(parts)

    @cached_property
    def idle(self) -> IdleSegments:
        """All idle segments at once; large for long recordings, unlike `idle_windows`."""
        return self.idle_where(lambda idle: np.ones(len(idle.reason), bool))

    def max_idle_ns(self, *reasons: int) -> int:
        """Return an upper bound of the idle time for some reasons, cheaper than `idle`."""
        return int(self._idle_by_reason[list(reasons)].sum())

    @cached_property
    def _idle_by_reason(self) -> Ints:
        """Idle time by reason, analyzed or not."""
        assert self.device is not None
        sums = np.zeros(len(REASONS), np.int64)
        for segments in self.recording.idle_time.parts(self.device):
            np.add.at(sums, segments.reason, segments.end_ns - segments.start_ns)
        return sums


def analyzed_steps(recording: Recording) -> list[int]:
    """Return the steps to analyze: not the first of several, and no extremely long ones.

    A step may be long on the host because it waits for several batches, for the device, or for a
    free place in the queue of launches, which a host that runs ahead fills in its first steps.
    """
    _, begin, end = zip(*recording.steps, strict=True) if recording.steps else ((), (), ())
    begin_ns, end_ns = np.array(begin, np.int64), np.array(end, np.int64)
    length = end_ns - begin_ns
    kept, several = length > 0, len(length) >= MIN_STEPS_WITH_WARM_UP
    if several and not (usual := _usual_steps(length)).all():
        host, calls = recording.idle_time.host, recording.host_calls
        launches = calls.matching(recording.strings, LAUNCHES)
        launches &= calls.end_ns - calls.start_ns > FULL_QUEUE_NS
        full = intervals.merge(calls.start_ns[launches], calls.end_ns[launches])
        waits = intervals.union(intervals.union(host.input, host.blocked), full)
        on_device = np.array(recording.step_lengths_ns, np.int64)
        work = length - intervals.covered(waits, begin_ns, end_ns)
        kept &= usual | (_usual_steps(work) & _usual_steps(on_device))
    analyzed: list[int] = np.flatnonzero(kept).tolist()
    return analyzed[1:] if several and kept[0] else analyzed


def _usual_steps(length: Ints) -> Flags:
    """Return a mask of the steps of at most three medians."""
    return np.asarray(length <= MAX_STEP_MEDIANS * float(np.median(length[1:])))
