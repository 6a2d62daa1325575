"""Estimated step time if parts of a recording took less time: the recorded schedule is replayed.

Dependencies stay as recorded: the order on streams and threads, launches before tasks, waits on
events, synchronizing calls. Time that these do not explain (a slow launch, a gap of unknown reason)
keeps its length. Worker processes of a DataLoader keep their pace as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.errors import UsageError
from unified_prof.explain.kernel_classes import CLASSES as KERNEL_CLASSES
from unified_prof.explain.kernel_classes import class_of, classes_of_work
from unified_prof.explain.roofline import breakdown, peaks
from unified_prof.explain.roofline.peaks import Device
from unified_prof.explain.schedule import graph
from unified_prof.explain.schedule.builder import Scheduled, schedule_of, without_ranges
from unified_prof.explain.schedule.selection import NO_ROWS, Selection, in_ranges_ns
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL, KINDS
from unified_prof.recording.recording import Recording

WITHOUT = math.inf  # Factor of parts that are removed.

_TASK_CLASSES = ("kernel", "communication", "copy")
# Names that select everything of a kind: device tasks, host time, and synchronizing calls.
CLASSES = (*_TASK_CLASSES, "host", "input", "synchronizing")


_ALWAYS = IntervalSet(np.array([-(1 << 62)]), np.array([1 << 62]))


@dataclass(frozen=True, slots=True)
class Gain:
    """Time saved, in all steps together."""

    # Length of the steps as recorded, and as estimated.
    before_ns: int
    after_ns: int
    steps: int  # Number of steps; 1 if none were recorded: the whole recording.
    # Name, recorded and estimated length of each step.
    by_step_ns: tuple[tuple[str, int, int], ...]
    changed_ns: int  # Time by which the changed parts are shorter, on the critical path or not.

    @property
    def gain_ns(self) -> int:
        """Time saved in all steps together."""
        return self.before_ns - self.after_ns

    @property
    def per_step_ns(self) -> float:
        """Mean time saved per step."""
        return self.gain_ns / self.steps


class Replay:
    """The schedule of a recording with changes, which accumulate."""

    def __init__(self, recording: Recording, scheduled: Scheduled) -> None:
        self._recording, self._scheduled = recording, scheduled
        schedule = scheduled.schedule
        self._saved_ns = np.zeros(len(schedule.takes_ns))
        self._lag = schedule.edges.lag_ns.astype(np.float64)
        # The host time that changes so far selected, as parts and of each edge.
        self._on_host, self._host_ns = Selection(), np.zeros(len(self._lag))

    def with_change(self, selection: Selection) -> Replay:
        """Return a replay with the same changes and without some parts of the recording."""
        other = copy(self)
        other._saved_ns, other._lag = self._saved_ns.copy(), self._lag.copy()
        other.change(selection)
        return other

    def change(self, selection: Selection, factor: float = WITHOUT) -> None:
        """Make parts of the recording faster by a factor.

        Raises:
            UsageError: The factor is not above 0.
        """
        if not factor > 0:
            raise UsageError(
                f"invalid factor {factor:g}: it must be greater than 0", slug="wrong-option-value"
            )
        scheduled, saved = self._scheduled, 1 - 1 / factor
        edges, moments = scheduled.schedule.edges, scheduled.task_moments[: scheduled.tasks.work]
        if selection.work is not None:
            share = selection.work[scheduled.tasks.row].astype(np.float64)
            # The first step begins after the tasks that were enqueued before the recording.
            queued = scheduled.tasks.queued_before(self._recording.queued_ns)
            share[queued[: scheduled.tasks.work]] = 0
            saved_ns = scheduled.schedule.takes_ns[moments] * share * saved
            before = self._saved_ns[moments]
            # Two changes of one task do not save more than its time: the larger one counts.
            both = (before != 0) & (saved_ns != 0)
            self._saved_ns[moments] = np.where(
                both, np.maximum(before, saved_ns), before + saved_ns
            )
        # Two changes of the same host time save it once: the first one counts.
        self._on_host |= replace(selection, work=None)
        host_ns = _host_ns(self._recording, scheduled, self._on_host)
        self._lag -= (host_ns - self._host_ns) * saved
        self._host_ns = host_ns
        if selection.gaps:
            begin = scheduled.schedule.time_ns[edges.source]
            gaps = (edges.kind == graph.STREAM) & (intervals.holding(selection.host, begin) >= 0)
            self._lag[gaps] -= edges.lag_ns[gaps] * saved
        if factor == WITHOUT and len(selection.calls):
            self._lag[_wait_edges(scheduled, selection.calls)] = -np.inf
        if len(np.intersect1d(selection.ranges, scheduled.host.fetches)):
            # Faster input: workers no longer keep their recorded pace.
            self._lag[edges.kind == graph.FETCHED] = -np.inf

    def gain(self, analyzed: Sequence[int] | None = None) -> Gain:
        """Return the time saved by all changes so far, in all steps or in the analyzed ones."""
        scheduled, schedule = self._scheduled, self._scheduled.schedule
        edges = schedule.edges
        task_ns: Ints = schedule.takes_ns - np.rint(self._saved_ns).astype(np.int64)
        removed, least = np.isneginf(self._lag), np.minimum(edges.lag_ns, 0)
        lag: Ints = np.rint(np.where(removed, 0, np.maximum(self._lag, least))).astype(np.int64)
        # A removed dependency never decides, however late its source is.
        span = int(schedule.time_ns[-1] - schedule.time_ns[0]) + int(task_ns.max(initial=0)) + 1
        lag[removed] = -span
        after = scheduled.steps_ns(schedule.replay(task_ns, lag))
        before = scheduled.steps_ns()
        saved_ns = schedule.takes_ns - task_ns
        np.add.at(saved_ns, edges.source, np.where(edges.kind == graph.HOST, edges.lag_ns - lag, 0))
        if analyzed is not None and len(analyzed) < len(before):
            steps = IntervalSet(scheduled.step_begin_ns, scheduled.step_end_ns)
            saved_ns = saved_ns[np.isin(intervals.holding(steps, schedule.time_ns), analyzed)]
        chosen = range(len(before)) if analyzed is None else analyzed
        by_step_ns = tuple(
            (scheduled.step_names[step], int(before[step]), int(after[step])) for step in chosen
        )
        return Gain(
            before_ns=sum(step[1] for step in by_step_ns),
            after_ns=sum(step[2] for step in by_step_ns),
            steps=len(by_step_ns),
            by_step_ns=by_step_ns,
            changed_ns=int(saved_ns.sum()),
        )


def gain(
    recording: Recording,
    changes: Sequence[tuple[Selection, float]],
    analyzed: Sequence[int] | None = None,
) -> Gain | None:
    """Return the time saved if parts are faster by factors; None if nothing has known times.

    `analyzed` are the steps that count, by default all.

    Raises:
        UsageError: A factor is not above 0.
    """
    scheduled = schedule_of(recording)
    if scheduled is None:
        return None
    replay = Replay(recording, scheduled)
    for selection, factor in sorted(changes, key=lambda one: -one[1]):
        replay.change(selection, factor)
    return replay.gain(analyzed)


def _host_ns(
    recording: Recording, scheduled: Scheduled, selection: Selection
) -> NDArray[np.float64]:
    """Return the time of each edge that its thread spent in the selected calls."""
    edges, point = scheduled.schedule.edges, scheduled.point_of_moment
    result = np.zeros(len(edges))
    rows = np.flatnonzero(edges.kind == graph.HOST)
    skew = scheduled.host.skew_ns
    thread = scheduled.host.thread[point[edges.source[rows]]]
    start = scheduled.schedule.time_ns[edges.source[rows]] + skew
    end = scheduled.schedule.time_ns[edges.target[rows]] + skew
    length = in_ranges_ns(recording, selection, thread, start, end)
    if len(selection.host):
        fetching = in_ranges_ns(recording, select(recording, "input"), thread, start, end)
        within = np.minimum(intervals.covered(selection.host, start, end), edges.lag_ns[rows])
        length = np.maximum(length, within - fetching)
    result[rows] = np.minimum(length, edges.lag_ns[rows])
    return result


def _wait_edges(scheduled: Scheduled, calls: Ints) -> Ints:
    """Return the edges by which some synchronizing calls wait for tasks."""
    edges, waits = scheduled.schedule.edges, scheduled.host.waits
    ends = scheduled.point_moments[waits.end[np.isin(waits.call, calls)]]
    waiting = (edges.kind == graph.SYNCHRONIZING) & edges.behind & np.isin(edges.target, ends)
    return np.flatnonzero(waiting)


def class_name(name: str) -> str:
    """Return the name of a class for that of a kind of the critical path, also a former name."""
    return "synchronizing" if name == "synchronising" else name


def select(recording: Recording, name: str) -> Selection:
    """Return the parts of a recording that a name selects.

    The name is one of CLASSES; or that of kernels, collectives or kinds of copies; or of
    operations: their device tasks if they have any, else their host time; or of runtime calls.
    `host:NAME` is host time alone. Names may contain `*` as in file names.

    Raises:
        UsageError: No recorded item has that name.
    """
    name = class_name(name)
    if name in CLASSES:
        if name in _TASK_CLASSES:
            return Selection(work=recording.work.kind == KINDS.index(name))
        if name == "host":
            return Selection(host=_ALWAYS)
        if name == "input":
            framework = recording.framework
            return Selection(
                ranges=NO_ROWS if framework is None else framework.matching(names.FETCHES_INPUT)
            )
        scheduled = schedule_of(recording)
        waits = None if scheduled is None else scheduled.host.waits
        return Selection(calls=NO_ROWS if waits is None else waits.call[~waits.full])
    on_host = name.startswith("host:")
    wanted = name.removeprefix("host:")
    work = np.zeros(len(recording.work), bool) if on_host else _matching_work(recording, wanted)
    if work.any():
        return Selection(work=work)
    selection = _matching_host(recording, wanted)
    if len(selection.ranges) or len(selection.calls):
        return selection
    near = get_close_matches(wanted, sorted(_names(recording)), n=3)
    raise UsageError(
        f"nothing in the recording is named {name}",
        hint=f"similar names: {', '.join(near)}" if near else f"classes are {', '.join(CLASSES)}",
        slug="nothing-of-that-name",
    )


def without(recording: Recording, name: str) -> Selection:
    """Return the selection to remove for a name: device tasks, host time, waits in its ranges."""
    selection = select(recording, name)
    if class_name(name) in CLASSES:
        return selection
    if selection.work is not None:
        selection |= _matching_host(recording, name)
    if not len(selection.ranges):
        return selection
    return selection | without_ranges(recording, selection.ranges)


def _matching_work(recording: Recording, pattern: str) -> NDArray[np.bool_]:
    work, framework = recording.work, recording.framework
    result = np.zeros(len(work), bool)
    if not len(work):
        return result
    for column in (work.kernel, work.operator):
        result |= np.array([*(_matches(text, pattern) for text in work.labels.texts), False])[
            column
        ]
    if framework is not None:
        call, _ = work.launches
        texts, number = framework.names(np.arange(len(framework)))
        matching = np.array([_matches(text, pattern) for text in texts])[number]
        if matching.any():
            # The operation that a task is attributed to, or one within it that launched the task.
            within = (
                intervals.nearest_marked(framework.parent.to_array(), matching) != intervals.NONE
            )
            inner = framework.innermost(work.connection.to_array())
            result |= np.append(matching, False)[call] | np.append(within, False)[inner]
    return result


def _matching_host(recording: Recording, pattern: str) -> Selection:
    """Return the ranges and calls with matching names."""
    framework, wanted = recording.framework, partial(_matches, pattern=pattern)
    ranges = NO_ROWS if framework is None else framework.matching(wanted)
    calls = recording.host_calls.matching(recording.strings, wanted)
    return Selection(ranges=ranges, calls=np.flatnonzero(calls))


def _matches(text: str | None, pattern: str) -> bool:
    return text is not None and (text == pattern or ("*" in pattern and fnmatchcase(text, pattern)))


def _names(recording: Recording) -> set[str]:
    work, framework = recording.work, recording.framework
    _ = work.kernel, work.operator  # adds their names to the labels
    names = set(work.labels.texts)
    if framework is not None:
        names.update(framework.names(NO_ROWS)[0])
    ids = np.unique(recording.host_calls.name).tolist()
    names.update(text for text in recording.strings.texts(ids) if text)
    return {*names, *CLASSES}


# Kernel time differs from the estimate by up to this factor (docs/validation.md).
SPREAD = 1.6


@dataclass(frozen=True, slots=True)
class ClassOnDevice:
    """Kernels of one class: time as recorded, and its factor on another device."""

    name: str
    total_ns: int
    factor: float
    # Roofline efficiency on the recorded device; None if shapes or peaks are unknown.
    efficiency: float | None


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """Estimate of the steps on another device, all steps together."""

    source: str
    target: str
    # Length of the steps if all kernels are `spread` times faster or slower than estimated.
    least_ns: int
    most_ns: int
    spread: float
    classes: tuple[ClassOnDevice, ...]  # The longest first.


def device_named(name: str) -> Device:
    """Return a device of the table or of the user.

    Raises:
        UsageError: It is unknown, or its memory bandwidth is.
    """
    device = peaks.find(name)
    if device is not None and device.memory_peak() is not None:
        return device
    known = [one.name for one in peaks.all_devices() if one.memory_peak() is not None]
    near = [one for one in known if name.casefold() in one.casefold()]
    raise UsageError(
        f"--device {name}: no peaks known",
        hint=f"similar names: {', '.join(near)}" if near else f"known: {', '.join(known)}",
        slug="wrong-option-value",
    )


def _unknown_source(recording: Recording) -> UsageError:
    """Return the error for a recording whose devices have no known peaks."""
    names = list(recording.device_numbers)
    # A device whose model was recorded has it in brackets.
    named = [name for name in names if "(" in name]
    which = " and ".join(named or names) or "the recorded device"
    if named or not names:
        why = f"the peaks of {which} are unknown"
        hint = 'add them to pyproject.toml: [tool.uprof.devices."NAME"]'
    else:
        why = f"the model of {which} was not recorded, so its peaks are unknown"
        hint = "only a recording with the name of the device (table NPU_INFO) has an estimate"
    return UsageError(why, hint=hint, slug="unknown-peaks")


def classes_on(
    recording: Recording, target: Device, kernels: NDArray[np.bool_]
) -> tuple[str, tuple[ClassOnDevice, ...]]:
    """Return the recorded device, and the time of some kernels of each class on another one.

    Raises:
        UsageError: The peaks of the recorded device are unknown, or it has no kernels.
    """
    found = breakdown.roofline_of(recording)
    known = [device for device in found.devices.values() if device and device.memory_peak()]
    memory, own = target.memory_peak(), known[0].memory_peak() if known else None
    if memory is None or own is None:
        raise _unknown_source(recording)
    of_class = classes_of_work(recording)
    time_ns = np.bincount(
        of_class[kernels], recording.work.duration_ns[kernels], minlength=len(KERNEL_CLASSES)
    )
    covered, bound_ns, scaled = (np.zeros(len(KERNEL_CLASSES)) for _ in range(3))
    for row in found.rows:
        after = breakdown.bound_on(row, target)
        if row.kind not in ("operation", "kernel") or after is None or not row.bound_ns:
            continue
        kernel = row.name if row.kind == "kernel" else None
        place = KERNEL_CLASSES.index(class_of(KERNEL, kernel, row.name, row.name))
        covered[place] += row.total_ns
        bound_ns[place] += min(row.bound_ns, row.total_ns)
        scaled[place] += min(row.bound_ns, row.total_ns) * after / row.bound_ns
    usual = bound_ns.sum() / max(covered.sum(), 1.0)
    result = []
    for place in np.argsort(-time_ns, kind="stable").tolist():
        if not time_ns[place]:
            continue
        if covered[place]:
            efficiency = bound_ns[place] / covered[place]
            factor = 1 - efficiency + scaled[place] / covered[place]
        else:
            efficiency, factor = None, 1 - usual + usual * own.rate / memory.rate
        result.append(ClassOnDevice(KERNEL_CLASSES[place], int(time_ns[place]), factor, efficiency))
    return known[0].name, tuple(result)


def estimate(
    recording: Recording,
    name: str,
    changes: Sequence[tuple[Selection, float]],
    analyzed: Sequence[int],
) -> tuple[DeviceEstimate, Selection]:
    """Return the estimate for another device, and the change to kernels for `what_if.gain`.

    Args:
        recording: A recording with a schedule.
        name: Name of the other device.
        changes: Further changes.
        analyzed: Steps that count.

    Raises:
        UsageError: The peaks of one of the devices are unknown, or nothing was recorded.
    """
    target = device_named(name)
    scheduled = schedule_of(recording)
    assert scheduled is not None
    steps = IntervalSet(scheduled.step_begin_ns, scheduled.step_end_ns)
    step = intervals.holding(steps, recording.work.start_ns.to_array())
    kernels = recording.work.kind == KERNEL
    source, classes = classes_on(recording, target, kernels & np.isin(step, analyzed))
    factor = np.ones(len(KERNEL_CLASSES))
    for one in classes:
        factor[KERNEL_CLASSES.index(one.name)] = one.factor
    factor = np.where(recording.work.kind == KERNEL, factor[classes_of_work(recording)], np.nan)
    times_ns = []
    for spread in (1 / SPREAD, SPREAD):
        found = gain(recording, [*changes, (_longer(factor * spread), WITHOUT)], analyzed)
        assert found is not None
        times_ns.append(found.after_ns)
    least_ns, most_ns = times_ns
    estimated = DeviceEstimate(source, target.name, least_ns, most_ns, SPREAD, classes)
    return estimated, _longer(factor)


def _longer(factor: NDArray[np.float64]) -> Selection:
    """Return the change by which tasks take so many times as long; NaN: as recorded."""
    return Selection(work=1 - np.nan_to_num(factor, nan=1.0))
