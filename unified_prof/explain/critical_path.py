"""The critical path of the steps: a kernel, call or wait for each nanosecond, without overlap.

The path is followed from the end of a step backwards, always to the dependency that arrived last,
until the start of the step. The slack of other tasks is the time by which they could take longer
without delaying the step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Frame, Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.base.text import TIMES, scaled
from unified_prof.errors import UsageError
from unified_prof.explain import what_if
from unified_prof.explain.advice.idle_segments import analyzed_steps
from unified_prof.explain.report_questions import Candidate, Change, WhatIfResult
from unified_prof.explain.schedule import graph
from unified_prof.explain.schedule.builder import Scheduled, schedule_of
from unified_prof.explain.schedule.graph import Segments
from unified_prof.explain.schedule.selection import Selection, in_ranges_ns
from unified_prof.explain.self_time import HostTimeline
from unified_prof.recording.calls import KINDS, UNKNOWN
from unified_prof.recording.model import Breakdown, BreakdownSpec, Row
from unified_prof.recording.recording import Recording
from unified_prof.recording.source import recorded_anomalies
from unified_prof.recording.timeline import Track


def limits(recording: Recording, scheduled: Scheduled) -> list[tuple[str, str]]:
    """Return the limitations of the path of a recording as slugs and sentences."""
    tasks, edges = scheduled.tasks, scheduled.schedule.edges
    no_host = not len(scheduled.host) and tasks.work
    streams = len(np.unique(tasks.stream[: tasks.work]))
    has_events = "UPROF_GPU_SYNCS" in recording.source.tables or bool(tasks.waits.any())
    unlaunched = int((tasks.call[: tasks.work] < 0).sum())
    by_calls = " and the order of calls" if (edges.kind == graph.EVENT).any() else ""
    known = [
        (
            no_host,
            "path_without_host",
            "no host calls recorded: the path has only device tasks, and idle reasons are unknown",
        ),
        (
            not tasks.work,
            "path_without_device",
            "no device tasks recorded: the path has only host work",
        ),
        (
            not recording.steps,
            "path_without_steps",
            "no steps recorded, so the path covers the whole recording"
            + _device_part(recording, scheduled),
        ),
        (
            scheduled.steps_left_out,
            "path_of_first_steps",
            f"long recording: only the first {len(scheduled.step_names):,} steps are analyzed, "
            f"{scheduled.steps_left_out:,} are left out",
        ),
        (
            len(scheduled.host.fetches),
            "path_loader_workers",
            "the speed of DataLoader workers is fixed: batches arrive no earlier than recorded, "
            "even if other work is faster",
        ),
        (
            streams > 1 and not has_events,
            "path_without_events",
            "no event waits recorded: waits between streams are inferred from times" + by_calls,
        ),
        (
            unlaunched and len(scheduled.host),
            "path_without_launches",
            f"launches of {unlaunched:,} of {tasks.work:,} device tasks not recorded: their "
            "dependencies are inferred from their streams",
        ),
        (
            tasks.skew_ns,
            "path_clocks",
            f"tasks began up to {tasks.skew_ns / 1000:.1f} µs before their launch: host times are "
            "shifted by this amount",
        ),
    ]
    queue_full = [
        (
            "path_queue_full",
            f"{anomaly.detail}: these launches keep their recorded times, so faster device tasks "
            "may save far more than estimated",
        )
        for anomaly in recorded_anomalies(recording.source)
        if anomaly.name == "launch_queue_full"
    ]
    return [(slug, sentence) for holds, slug, sentence in known if holds] + queue_full


# Minimum share of the recording outside the time of the devices for it to be mentioned.
_OUTSIDE_SHARE = 0.01


def _device_part(recording: Recording, scheduled: Scheduled) -> str:
    """Return a clause about the time between the first and the last device task, if shorter."""
    tasks, total_ns = scheduled.tasks, int(scheduled.steps_ns().sum())
    if not tasks.work or not len(scheduled.host):
        return ""
    device_ns = int(tasks.end_ns[: tasks.work].max() - tasks.start_ns[: tasks.work].min())
    if total_ns - device_ns <= _OUTSIDE_SHARE * total_ns:
        return ""
    return f", with host work; its device tasks span {scaled(device_ns, TIMES)}"


def _left_out(recording: Recording, scheduled: Scheduled, analyzed: Sequence[int]) -> list[str]:
    """Return a sentence about the recording and the steps that an estimate leaves out."""
    result = []
    if recording.sample:
        result.append(f"{recording.sample_note}; nor are these estimates")
    first = ["the first step"] * (0 not in analyzed)
    many = len(scheduled.step_names) - len(analyzed) - len(first)
    long = [f"{many} step{'s' * (many > 1)} of more than three medians"] * (many > 0)
    return [*result, *([f"not analyzed: {', '.join(first + long)}"] if first or long else [])]


# Kinds of segments of the path, and their display names.
DISPLAY_NAMES = {
    "kernel": "kernel",
    "communication": "collective",
    "copy": "copy",
    "host": "host work",
    "input": "input",
    "synchronising": "synchronizing call",
    "launch": "launch latency",
    "event": "stream or event wait",
    "gap": "reason unknown",
}
CLASSES = tuple(DISPLAY_NAMES)
KERNEL, COMMUNICATION, COPY, HOST, INPUT, SYNCHRONIZING, LAUNCH, EVENT, GAP = range(len(CLASSES))

_MAX_TASK_GAP_NS = 10_000  # Maximum time between two tasks of a stream that is not a wait.


@dataclass(frozen=True, slots=True, eq=False)
class PathSegments(Frame):
    """The critical path of all steps, in order of time."""

    start_ns: Ints
    end_ns: Ints
    step: Ints
    kind: NDArray[np.int8]  # Index in CLASSES.
    name: NDArray[np.int32]  # Index in the labels of `Recording.work`.
    detail: NDArray[np.int32]  # Source line or operation, likewise; UNKNOWN if there is none.
    task: Ints  # Row of `Recording.work` of a device task, -1 of others.
    # Thread of host time, -1 of others.
    thread: Ints

    @property
    def length_ns(self) -> Ints:
        """Length of each segment."""
        return self.end_ns - self.start_ns


def task_names(recording: Recording) -> NDArray[np.int32]:
    """Return the name of each device task: its kernel, or the operator of a collective."""
    work = recording.work
    collective = work.kind == KINDS.index("communication")
    return np.where(collective, work.operator, work.kernel)


def path_segments(recording: Recording, scheduled: Scheduled) -> PathSegments:
    """Return the path as named segments, whose lengths add up to the length of the step."""
    paths = [scheduled.path(step) for step in range(len(scheduled.step_names))]
    step = np.repeat(np.arange(len(paths)), [len(path) for path in paths])
    path = Segments.concatenate(paths)
    on_host = np.isin(path.kind, (graph.HOST, graph.SYNCHRONIZING))
    host = _host_segments(recording, scheduled, path, step, np.flatnonzero(on_host))
    other = _other_segments(recording, scheduled, path, step, np.flatnonzero(~on_host))
    both = PathSegments.concatenate([host, other])
    return both.take(np.argsort(both.start_ns, kind="stable"))


def _other_segments(
    recording: Recording, scheduled: Scheduled, path: Segments, step: Ints, rows: Ints
) -> PathSegments:
    """Return the segments of device tasks and of waits."""
    labels, work, tasks = recording.work.labels, recording.work, scheduled.tasks
    edge, moment = path.kind[rows], path.moment[rows]
    length = path.end_ns[rows] - path.start_ns[rows]
    task = np.where(edge == graph.WORK, scheduled.task_of_moment[moment], -1)
    is_task = np.flatnonzero((task >= 0) & (task < tasks.work))
    row = np.append(tasks.row, -1)[np.where(task < tasks.work, task, -1)]
    kind = np.full(len(rows), GAP, np.int8)
    name = np.full(len(rows), labels.number("gap of unknown reason"), np.int32)
    kind_of_task = np.array([KERNEL] * len(KINDS), np.int8)
    kind_of_task[KINDS.index("communication")] = COMMUNICATION
    kind_of_task[KINDS.index("copy")] = COPY
    kind[is_task] = kind_of_task[work.kind[row[is_task]]]
    name[is_task] = task_names(recording)[row[is_task]]
    task_gap = (edge == graph.STREAM) & (length <= _MAX_TASK_GAP_NS)
    for selected, path_class, text in (
        (edge == graph.LAUNCH, LAUNCH, "launch latency"),
        (task_gap, EVENT, "from one task of a stream to the next"),
        (np.isin(edge, (graph.EVENT, graph.SEEN)), EVENT, "behind another stream"),
        (edge == graph.FETCHED, INPUT, "worker processes of the DataLoader"),
        (edge == graph.QUEUE, HOST, "from one thread's queue to another thread"),
        (edge == graph.HANDED, HOST, "from one thread to another"),
    ):
        kind[selected] = path_class
        name[selected] = labels.number(text)
    return PathSegments(
        path.start_ns[rows],
        path.end_ns[rows],
        step[rows],
        kind,
        name,
        np.full(len(rows), UNKNOWN, np.int32),
        np.where(kind <= COPY, row, -1),
        np.full(len(rows), -1, np.int64),
    )


def _host_segments(
    recording: Recording, scheduled: Scheduled, path: Segments, step: Ints, rows: Ints
) -> PathSegments:
    """Return the segments of host threads, divided by the innermost range or call."""
    host, moments = scheduled.host, HostTimeline(recording, recording.work.labels)
    # A synchronizing call on the path returns after a task; the thread is that of the call.
    point = scheduled.point_of_moment[path.moment[rows]]
    waiting = np.flatnonzero(point < 0)
    point[waiting] = _returning_calls(scheduled, path.end_ns[rows[waiting]])
    thread = np.where(point >= 0, np.append(host.thread, -1)[point], -1)
    start, end = path.start_ns[rows] + host.skew_ns, path.end_ns[rows] + host.skew_ns
    begins, ends, segment = moments.split(thread, start, end)
    name, detail, is_input = moments.innermost(thread[segment], begins + (ends - begins) // 2)
    kind = np.where(is_input, INPUT, HOST).astype(np.int8)
    kind[path.kind[rows[segment]] == graph.SYNCHRONIZING] = SYNCHRONIZING
    return PathSegments(
        begins - host.skew_ns,
        ends - host.skew_ns,
        step[rows[segment]],
        kind,
        name,
        detail,
        np.full(len(segment), -1, np.int64),
        thread[segment],
    )


def _returning_calls(scheduled: Scheduled, end_ns: Ints) -> Ints:
    """Return the synchronizing calls that end at given times."""
    ends = scheduled.host.waits.end
    if not len(ends):
        return np.full(len(end_ns), -1, np.int64)
    time = scheduled.host.time_ns[ends]
    order = np.argsort(time, kind="stable")
    place = np.searchsorted(time[order], end_ns)
    return ends[order[np.minimum(place, len(order) - 1)]]


_MAX_OFF_PATH = 10  # Maximum number of rows for tasks that are not on the path.
# Up to this many steps have columns of their own; for more there are minimum and maximum.
_MAX_STEP_COLUMNS = 5


class CriticalPath:
    """The critical path of a recording's steps."""

    def __init__(
        self, recording: Recording, scheduled: Scheduled, analyzed: Sequence[int] | None = None
    ) -> None:
        """Store the schedule and the steps whose path is needed, by default all."""
        self._recording, self._scheduled, self._analyzed = recording, scheduled, analyzed
        self._labels = recording.work.labels

    @cached_property
    def segments(self) -> PathSegments:
        """The path as named segments, whose lengths add up to the length of the step."""
        segments = path_segments(self._recording, self._scheduled)
        if self._analyzed is None:
            return segments
        return segments.take(np.isin(segments.step, self._analyzed))

    def rows(self) -> list[Row]:
        """Return a row per kind and name on the path, then the longest tasks that are not on it."""
        path = self.segments
        length = path.length_ns
        keys, number = np.unique(path.kind.astype(np.int64) << 32 | path.name, return_inverse=True)
        total = np.bincount(number, length, len(keys)).astype(np.int64)
        count = np.bincount(number, minlength=len(keys))
        by_step = np.zeros((len(self._scheduled.step_names), len(keys)), np.int64)
        np.add.at(by_step, (path.step, number), length)
        task_ns, slack = self._task_times()
        details = self._details(path, number, len(keys))
        rows = []
        for key, time, many, detail, step_ns in zip(
            keys.tolist(), total.tolist(), count.tolist(), details, by_step.T, strict=True
        ):
            kind, name = CLASSES[key >> 32], key & 0xFFFFFFFF
            extra = self._step_columns(step_ns, time)
            if key >> 32 <= COPY:
                extra["off_path_ns"] = max(task_ns.get(name, 0) - time, 0)
                extra["slack_ns"] = slack.get(name)
            rows.append(
                Row(
                    name=self._labels.texts[name],
                    kind=kind,
                    count=many,
                    total_ns=time,
                    detail=DISPLAY_NAMES[kind] + (f", {detail}" if detail else ""),
                    extra=extra,
                )
            )
        on_path = {key & 0xFFFFFFFF for key in keys.tolist() if key >> 32 <= COPY}
        rows.sort(key=lambda row: (-(row.total_ns or 0), row.name))
        off_path = sorted(
            (name for name in task_ns if name not in on_path and task_ns[name]),
            key=lambda name: -task_ns[name],
        )
        for name in off_path[:_MAX_OFF_PATH]:
            tasks = self._step_rows[task_names(self._recording)[self._step_rows] == name]
            kind = KINDS[int(self._recording.work.kind[tasks[0]])]
            rows.append(
                Row(
                    name=self._labels.texts[name],
                    kind=kind,
                    count=len(tasks),
                    total_ns=0,
                    detail=f"{DISPLAY_NAMES[kind]}, not on the path",
                    extra={"off_path_ns": task_ns[name], "slack_ns": slack.get(name)},
                )
            )
        return rows

    def host_ns(self, selection: Selection) -> int:
        """Return the host time on the path within ranges and calls, nested ones included.

        The time in which a synchronizing call returns after its tasks does not count.
        """
        path, skew = self.segments, self._scheduled.host.skew_ns
        rows = np.flatnonzero((path.thread >= 0) & (path.kind != SYNCHRONIZING))
        start, end = path.start_ns[rows] + skew, path.end_ns[rows] + skew
        return int(in_ranges_ns(self._recording, selection, path.thread[rows], start, end).sum())

    def _step_columns(self, step_ns: Ints, time: int) -> dict[str, float | None]:
        names = self._scheduled.step_names
        if len(names) == 1:
            return {}
        extra: dict[str, float | None] = {"per_step_ns": time / len(names)}
        if len(names) > _MAX_STEP_COLUMNS:
            return extra | {"least_ns": int(step_ns.min()), "most_ns": int(step_ns.max())}
        for name, length in zip(names, step_ns.tolist(), strict=True):
            extra[f"step_{re.sub('[^0-9A-Za-z]', '_', name)}_ns"] = length
        return extra

    @cached_property
    def _in_steps(self) -> Ints:
        """Device tasks that ran within the steps."""
        tasks, scheduled = self._scheduled.tasks, self._scheduled
        start = tasks.start_ns[: tasks.work]
        steps = IntervalSet(scheduled.step_begin_ns, scheduled.step_end_ns)
        return np.flatnonzero(intervals.holding(steps, start) >= 0)

    @property
    def _step_rows(self) -> Ints:
        """Rows of the tasks within the steps in `Recording.work`."""
        return self._scheduled.tasks.row[self._in_steps]

    def _task_times(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the time of tasks in the steps by name, and their minimum slack."""
        scheduled, rows = self._scheduled, self._step_rows
        if not len(rows):
            return {}, {}
        names, number = np.unique(
            task_names(self._recording)[rows].astype(np.int64), return_inverse=True
        )
        duration = self._recording.work.duration_ns[rows]
        total = np.bincount(number, duration, len(names)).astype(np.int64)
        slack = scheduled.schedule.slack_ns(scheduled.step_ends)[
            scheduled.task_moments[self._in_steps]
        ]
        on_path = np.isin(rows, self.segments.task)
        minimum = np.full(len(names), np.iinfo(np.int64).max)
        np.minimum.at(minimum, number[~on_path], slack[~on_path])
        known = minimum < np.iinfo(np.int64).max
        return (
            dict(zip(names.tolist(), total.tolist(), strict=True)),
            dict(zip(names[known].tolist(), minimum[known].tolist(), strict=True)),
        )

    def _details(self, path: PathSegments, number: Ints, count: int) -> list[str | None]:
        """Return operation and line of the longest segment of each row."""
        order = np.lexsort((path.length_ns, number))
        longest = np.zeros(count, np.int64)
        longest[number[order]] = order
        details = []
        for at in longest.tolist():
            task, text = int(path.task[at]), self._labels.text(int(path.detail[at]))
            if task >= 0:
                name = self._labels.texts[path.name[at]]
                place = self._recording.work.place(task)
                text = ", ".join(part for part in place if part and part != name)
            elif path.kind[at] in (LAUNCH, EVENT, GAP) and at + 1 < len(path):
                text = f"most before {self._labels.texts[int(path.name[at + 1])]}"
            details.append(text or None)
        return details


def find_path(recording: Recording) -> CriticalPath | None:
    """Return the critical path of a recording, or None if nothing has known times."""
    scheduled = schedule_of(recording)
    return None if scheduled is None else CriticalPath(recording, scheduled)


def track(recording: Recording) -> Track | None:
    """Return the critical path as one track, or None if nothing has known times."""
    path = find_path(recording)
    if path is None:
        return None
    segments = path.segments
    no_flows = np.zeros(len(segments), np.int64)
    return Track(
        group="critical path",
        name="critical path",
        labels=recording.work.labels.texts,
        start_ns=segments.start_ns,
        end_ns=segments.end_ns,
        label=segments.name,
        category=[CLASSES[kind] for kind in segments.kind.tolist()],
        flow_in=no_flows,
        flow_first=no_flows,
        flow_count=no_flows,
    )


def _breakdown(recording: Recording) -> Breakdown:
    scheduled = schedule_of(recording)
    assert scheduled is not None, "this breakdown requires known times"
    for name, sentence in limits(recording, scheduled):
        recording.findings.add(name, sentence, 1)
    rows = CriticalPath(recording, scheduled).rows()
    return Breakdown("path", tuple(rows), int(scheduled.steps_ns().sum()), None)


BREAKDOWNS = {
    "path": BreakdownSpec(
        lambda one: len(one.tasks) > 0 or len(one.comms) > 0 or one.framework is not None,
        _breakdown,
    )
}


def estimate(
    recording: Recording, changes: Sequence[Change], *, top: int, device: str | None = None
) -> WhatIfResult:
    """Estimate the gain of all changes at once; without changes, of the `top` best candidates.

    Raises:
        UsageError: No recorded item has one of the names, or nothing was recorded.
    """
    scheduled = schedule_of(recording)
    if scheduled is None:
        raise UsageError(
            f"{recording.source.path} has neither device tasks nor host ranges: no time can "
            "be estimated",
            slug="no-device-work",
        )
    # The same steps as those of `uprof advise`, unless a long recording has none of them.
    known = range(len(scheduled.step_names))
    analyzed = [step for step in analyzed_steps(recording) if step in known] or list(known)
    selections = [
        (
            (what_if.without if change.factor == what_if.WITHOUT else what_if.select)(
                recording, change.name
            ),
            change.factor,
        )
        for change in changes
    ]
    moved = None
    if device is not None:
        moved, kernels = what_if.estimate(recording, device, selections, analyzed)
        selections.append((kernels, what_if.WITHOUT))
    lengths = scheduled.steps_ns()[analyzed]
    return WhatIfResult(
        before_ns=int(lengths.sum()),
        steps=len(lengths),
        stepped=any(scheduled.step_names),
        gain=what_if.gain(recording, selections, analyzed) if selections else None,
        candidates=() if selections else tuple(_candidates(recording, scheduled, analyzed, top)),
        limits=(
            *_left_out(recording, scheduled, analyzed),
            *(sentence for _, sentence in limits(recording, scheduled)),
        ),
        device=moved,
    )


def _candidates(
    recording: Recording, scheduled: Scheduled, analyzed: Sequence[int], top: int
) -> list[Candidate]:
    """Return the gain of each class of time, and of the most expensive items on the path."""
    path = CriticalPath(recording, scheduled, analyzed)
    rows = [row for row in path.rows() if row.total_ns]
    class_ns: dict[str, int] = {}
    for row in rows:
        class_ns[row.kind] = class_ns.get(row.kind, 0) + (row.total_ns or 0)
    classes = {what_if.class_name(kind): (kind, total) for kind, total in class_ns.items()}
    parts = [(name, *classes[name]) for name in classes if name in what_if.CLASSES]
    named = [row for row in rows if row.kind not in ("input", "launch", "event", "gap")][:top]
    for row in named:
        on_host = row.kind in ("host", "synchronising")
        parts.append((f"host:{row.name}" if on_host else row.name, row.kind, row.total_ns or 0))
    result = []
    for name, kind, total in parts:
        try:
            selection = what_if.select(recording, name)
        except UsageError:  # time between operations has no name to select
            continue
        if kind == "host" and name not in what_if.CLASSES:
            # A row of the path is the innermost range; a faster range includes all within it.
            total = path.host_ns(selection)
        if (
            kind == "synchronising"
            and name not in what_if.CLASSES
            and path.host_ns(selection) > total
        ):
            continue  # a range that does more than wait: its row as host work has its gain
        factor = what_if.WITHOUT if kind == "synchronising" else 2.0
        gained = what_if.gain(recording, [(selection, factor)], analyzed)
        assert gained is not None
        # A step before the analyzed ones that is shorter may move waits into them.
        result.append(Candidate(name, kind, total, max(gained.gain_ns, 0)))
    return sorted(result, key=lambda one: (-one.gain_ns, one.name))
