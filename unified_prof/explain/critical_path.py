"""What a recording cannot tell of its critical path.

The critical path of the steps in stretches: a kernel, a call, a wait; none of them overlap.

The critical path of the steps: what each of their nanoseconds was spent on, exactly once.

From the end of a step one goes back to whatever arrived last of what that had waited for, and so on
until the step's begin. What is not on the path could take longer without delaying the step: by its
slack.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Ints
from unified_prof.explain.schedule import graph
from unified_prof.explain.schedule import graph as kinds
from unified_prof.explain.schedule.builder import Scheduled
from unified_prof.explain.schedule.graph import Segments
from unified_prof.explain.self_time import HostMoments
from unified_prof.explain.what_if import Selection, in_ranges_ns, schedule_of
from unified_prof.recording.calls import KINDS, UNKNOWN, Labels
from unified_prof.recording.model import Breakdown, Row
from unified_prof.recording.recording import BreakdownSpec, Recording
from unified_prof.recording.source import recorded_anomalies
from unified_prof.recording.tracks import Track


def limits(recording: Recording, scheduled: Scheduled) -> list[tuple[str, str]]:
    """Return what a recording cannot tell of its path: a name of its own, and a sentence."""
    pieces, edges = scheduled.pieces, scheduled.schedule.edges
    found = []
    if not len(scheduled.host) and pieces.work:
        found.append(
            (
                "path_without_host",
                "no call of the host was recorded: the path is that of the devices alone, and why "
                "they were idle cannot be told",
            )
        )
    if not pieces.work:
        found.append(
            ("path_without_device", "no device work was recorded: the path is that of the host")
        )
    if not recording.steps:
        found.append(
            ("path_without_steps", "no step was recorded: the path is that of the whole recording")
        )
    if scheduled.steps_left_out:
        found.append(
            (
                "path_of_first_steps",
                f"the recording is long: its first {len(scheduled.step_names):,} steps are looked "
                f"at, {scheduled.steps_left_out:,} are not",
            )
        )
    streams = len(np.unique(pieces.stream[: pieces.work]))
    recorded = "UPROF_GPU_SYNCS" in recording.source.tables or bool(pieces.waits.any())
    if streams > 1 and not recorded:
        found.append(
            (
                "path_without_events",
                "no wait for an event was recorded: which stream waited for which is told by the "
                "times alone"
                + (" and by the order of calls" if (edges.kind == graph.EVENT).any() else ""),
            )
        )
    unlaunched = int((pieces.call[: pieces.work] < 0).sum())
    if unlaunched and len(scheduled.host):
        found.append(
            (
                "path_without_launches",
                f"the launch of {unlaunched:,} of {pieces.work:,} pieces of device work was not "
                "recorded: what they waited for is told by their streams alone",
            )
        )
    found += [
        (
            "path_queue_full",
            f"{one.detail}: their launches stay as late as they were, so that faster work of "
            "devices may gain far more than a schedule run again tells",
        )
        for one in recorded_anomalies(recording.source)
        if one.name == "launch_queue_full"
    ]
    if pieces.skew_ns:
        found.append(
            (
                "path_clocks",
                f"work began up to {pieces.skew_ns / 1000:.1f} µs before the call that launched "
                "it: the host's times are taken for so much earlier",
            )
        )
    return found


CLASSES = (
    "kernel",
    "communication",
    "copy",
    "host",
    "input",
    "synchronising",
    "launch",
    "event",
    "gap",
)
"""What a stretch of the path is; `IN_WORDS` says it to people."""
KERNEL, COMMUNICATION, COPY, HOST, INPUT, SYNCHRONISING, LAUNCH, EVENT, GAP = range(len(CLASSES))

IN_WORDS = {
    "kernel": "kernel",
    "communication": "collective",
    "copy": "copy",
    "host": "host work",
    "input": "input",
    "synchronising": "synchronising call",
    "launch": "launch latency",
    "event": "after what it waited for",
    "gap": "reason unknown",
}

_SHORT_NS = 10_000
"""So long a stream may take from one piece to the next by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """The critical path of all steps, piece by piece, in order."""

    start_ns: Ints
    end_ns: Ints
    step: Ints
    kind: NDArray[np.int8]
    """Number in CLASSES."""
    name: NDArray[np.int32]
    """Number in `labels`."""
    detail: NDArray[np.int32]
    """Source line or operation, likewise; UNKNOWN where there is none."""
    piece: Ints
    """Row of `Recording.work` of kernels, copies and collectives; -1 of others."""
    thread: Ints
    """Host thread that this is time of; -1 of others."""
    labels: Labels

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def length_ns(self) -> Ints:
        """Length of each stretch."""
        return self.end_ns - self.start_ns


def stretches_of(recording: Recording, scheduled: Scheduled) -> Stretches:
    """Return what the steps' time was spent on; the lengths of a step's stretches add up to it."""
    return _Stretching(recording, scheduled).all()


def names_of_work(recording: Recording) -> NDArray[np.int32]:
    """Return what each piece of work is called: its kernel, of a collective what it does."""
    work = recording.work
    collective = work.kind == KINDS.index("communication")
    names: NDArray[np.int32] = np.where(collective, work.operator, work.kernel)
    return names


class _Stretching:
    """Cuts the paths of all steps into stretches, and names them."""

    def __init__(self, recording: Recording, scheduled: Scheduled) -> None:
        self._recording, self._scheduled = recording, scheduled
        self._labels = recording.work.labels
        self._names = names_of_work(recording)
        self._moments = HostMoments(recording, self._labels)

    def all(self) -> Stretches:
        """Return the stretches of hosts and devices together, in order."""
        segments = [self._scheduled.path(step) for step in range(len(self._scheduled.step_names))]
        step = np.repeat(np.arange(len(segments)), [len(one) for one in segments])
        joined = Segments(
            np.concatenate([one.start_ns for one in segments]),
            np.concatenate([one.end_ns for one in segments]),
            np.concatenate([one.moment for one in segments]),
            np.concatenate([one.kind for one in segments]),
        )
        on_host = np.isin(joined.kind, (kinds.HOST, kinds.SYNCHRONISING))
        host = self._of_host(joined, step, np.flatnonzero(on_host))
        other = self._of_others(joined, step, np.flatnonzero(~on_host))
        order = np.argsort(np.concatenate((host.start_ns, other.start_ns)), kind="stable")

        def both(column: str) -> NDArray[Any]:
            return np.concatenate((getattr(host, column), getattr(other, column)))[order]

        return Stretches(
            start_ns=both("start_ns"),
            end_ns=both("end_ns"),
            step=both("step"),
            kind=both("kind"),
            name=both("name"),
            detail=both("detail"),
            piece=both("piece"),
            thread=both("thread"),
            labels=self._labels,
        )

    def _of_others(self, segments: Segments, step: Ints, chosen: Ints) -> Stretches:
        """Return the stretches of devices, and those of nobody."""
        kind, moment = segments.kind[chosen], segments.moment[chosen]
        length = segments.end_ns[chosen] - segments.start_ns[chosen]
        piece = np.where(kind == graph.WORK, self._scheduled.piece_of[moment], -1)
        work = self._recording.work
        pieces = self._scheduled.pieces
        is_work = np.flatnonzero((piece >= 0) & (piece < pieces.work))
        row = np.append(pieces.row, -1)[np.where(piece < pieces.work, piece, -1)]
        what = np.full(len(chosen), GAP, np.int8)
        name = np.full(len(chosen), self._labels.number("gap of unknown reason"), np.int32)
        of_kind = np.array([KERNEL] * len(KINDS), np.int8)
        of_kind[KINDS.index("communication")] = COMMUNICATION
        of_kind[KINDS.index("copy")] = COPY
        what[is_work] = of_kind[work.kind[row[is_work]]]
        name[is_work] = self._names[row[is_work]]
        short = (kind == kinds.STREAM) & (length <= _SHORT_NS)
        for which, own, text in (
            (kind == kinds.LAUNCH, LAUNCH, "launch delay"),
            (short, EVENT, "from one piece of a stream to the next"),
            ((kind == kinds.EVENT) | (kind == kinds.SEEN), EVENT, "behind another stream"),
            (kind == kinds.QUEUE, HOST, "from one thread's queue to another thread"),
            (kind == kinds.HANDED, HOST, "from one thread to another"),
        ):
            what[which] = own
            name[which] = self._labels.number(text)
        nothing = np.full(len(chosen), UNKNOWN, np.int32)
        return Stretches(
            segments.start_ns[chosen],
            segments.end_ns[chosen],
            step[chosen],
            what,
            name,
            nothing,
            np.where(what <= COPY, row, -1),
            np.full(len(chosen), -1, np.int64),
            self._labels,
        )

    def _of_host(self, segments: Segments, step: Ints, chosen: Ints) -> Stretches:
        """Return the stretches of host threads, each divided by what was called there."""
        scheduled, skew = self._scheduled, self._scheduled.host.skew_ns
        moment = segments.moment[chosen]
        # A synchronising call on the path returns after a piece of work; the thread is the call's.
        point = scheduled.point_of[moment]
        waiting = np.flatnonzero(point < 0)
        point[waiting] = self._returning(segments.end_ns[chosen[waiting]])
        thread = np.where(point >= 0, np.append(scheduled.host.thread, -1)[point], -1)
        start, end = segments.start_ns[chosen] + skew, segments.end_ns[chosen] + skew
        begins, until, of = self._moments.divided(thread, start, end)
        middle = begins + (until - begins) // 2
        name, detail, is_input_there = self._moments.called(thread[of], middle)
        what = np.where(is_input_there, INPUT, HOST).astype(np.int8)
        what[segments.kind[chosen[of]] == kinds.SYNCHRONISING] = SYNCHRONISING
        return Stretches(
            begins - skew,
            until - skew,
            step[chosen[of]],
            what,
            name,
            detail,
            np.full(len(of), -1, np.int64),
            thread[of],
            self._labels,
        )

    def _returning(self, end_ns: Ints) -> Ints:
        """Return the ends of synchronising calls that come at some times."""
        ends = self._scheduled.host.waits.end
        if not len(ends):
            return np.full(len(end_ns), -1, np.int64)
        time = self._scheduled.host.time_ns[ends]
        order = np.argsort(time, kind="stable")
        place = np.searchsorted(time[order], end_ns)
        found: Ints = ends[order[np.minimum(place, len(order) - 1)]]
        return found


_OFF_PATH = 10
"""Rows for what costs most and is not on the path."""
_STEPS_SHOWN = 5
"""Up to so many steps have figures of their own; of more, the shortest and the longest are told."""


class CriticalPath:
    """The critical path of a recording's steps."""

    def __init__(self, recording: Recording, scheduled: Scheduled) -> None:
        self._recording, self._scheduled = recording, scheduled
        self._labels = recording.work.labels

    @cached_property
    def stretches(self) -> Stretches:
        """What the steps' time was spent on; the lengths of a step's stretches add up to it."""
        return stretches_of(self._recording, self._scheduled)

    def rows(self) -> list[Row]:
        """Return one row for each thing on the path; then the costliest of what is not on it."""
        found = self.stretches
        length = found.length_ns
        steps = len(self._scheduled.step_names)
        # What costs most stands for the rest of its name: its line is told.
        keys, number = np.unique(
            found.kind.astype(np.int64) << 32 | found.name, return_inverse=True
        )
        total = _sums(number, length, len(keys))
        count = np.bincount(number, minlength=len(keys))
        by_step = np.zeros((steps, len(keys)), np.int64)
        np.add.at(by_step, (found.step, number), length)
        work, slack = self._of_names()
        detail = self._details(found, number, len(keys))
        rows = []
        for key, time, many, told, each in zip(
            keys.tolist(), total.tolist(), count.tolist(), detail, by_step.T, strict=True
        ):
            kind, name = CLASSES[key >> 32], key & 0xFFFFFFFF
            extra = self._of_steps(each, time)
            if key >> 32 <= COPY:
                extra |= {
                    "off_path_ns": max(work.get(name, 0) - time, 0),
                    "slack_ns": slack.get(name),
                }
            rows.append(
                Row(
                    name=self._labels.texts[name],
                    kind=kind,
                    count=many,
                    total_ns=time,
                    detail=IN_WORDS[kind] + (f", {told}" if told else ""),
                    extra=extra,
                )
            )
        on_path = {key & 0xFFFFFFFF for key in keys.tolist() if key >> 32 <= COPY}
        rows.sort(key=lambda row: (-(row.total_ns or 0), row.name))
        beside = sorted(
            (name for name in work if name not in on_path and work[name]),
            key=lambda name: -work[name],
        )
        return rows + [self._beside(name, work, slack) for name in beside[:_OFF_PATH]]

    def on_host_ns(self, selection: Selection) -> int:
        """Return how much of the path is a thread's time in ranges and calls, all within included.

        The time of a synchronising call after its work is none of it: it is not the thread's own.
        """
        found, skew = self.stretches, self._scheduled.host.skew_ns
        own = np.flatnonzero((found.thread >= 0) & (found.kind != SYNCHRONISING))
        start, end = found.start_ns[own] + skew, found.end_ns[own] + skew
        return int(in_ranges_ns(self._recording, selection, found.thread[own], start, end).sum())

    def _beside(self, name: int, work: dict[int, int], slack: dict[int, int]) -> Row:
        rows = self._scheduled.pieces.row[self._mine]
        pieces = rows[self._names[rows] == name]
        kind = KINDS[int(self._recording.work.kind[pieces[0]])]
        return Row(
            name=self._labels.texts[name],
            kind=kind,
            count=len(pieces),
            total_ns=0,
            detail=f"{IN_WORDS[kind]}, not on the path",
            extra={"off_path_ns": work[name], "slack_ns": slack.get(name)},
        )

    def _of_steps(self, each: Ints, time: int) -> dict[str, float | None]:
        names = self._scheduled.step_names
        if len(names) == 1:
            return {}
        extra: dict[str, float | None] = {"per_step_ns": time / len(names)}
        if len(names) <= _STEPS_SHOWN:
            for name, own in zip(names, each.tolist(), strict=True):
                extra[f"step_{re.sub('[^0-9A-Za-z]', '_', name)}_ns"] = own
        else:
            extra |= {"least_ns": int(each.min()), "most_ns": int(each.max())}
        return extra

    @cached_property
    def _names(self) -> NDArray[np.int32]:
        return names_of_work(self._recording)

    @cached_property
    def _mine(self) -> Ints:
        """The pieces of work that ran within the steps."""
        pieces, scheduled = self._scheduled.pieces, self._scheduled
        start = pieces.start_ns[: pieces.work]
        step = np.searchsorted(scheduled.step_begin_ns, start, side="right") - 1
        return np.flatnonzero((step >= 0) & (start < scheduled.step_end_ns[step]))

    def _of_names(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return for each kernel its time in the steps, and the least slack of it off the path."""
        scheduled, mine = self._scheduled, self._mine
        if not len(mine):
            return {}, {}
        rows = scheduled.pieces.row[mine]
        names, number = np.unique(self._names[rows].astype(np.int64), return_inverse=True)
        total = _sums(number, self._recording.work.duration_ns[rows], len(names))
        slack = scheduled.schedule.slack_ns(scheduled.step_ends)[scheduled.of_piece[mine]]
        on_path = np.isin(rows, self.stretches.piece)
        least = np.full(len(names), np.iinfo(np.int64).max)
        np.minimum.at(least, number[~on_path], slack[~on_path])
        known = least < np.iinfo(np.int64).max
        return (
            dict(zip(names.tolist(), total.tolist(), strict=True)),
            dict(zip(names[known].tolist(), least[known].tolist(), strict=True)),
        )

    def _details(self, found: Stretches, number: Ints, count: int) -> list[str | None]:
        """Return for each row what its longest stretch belongs to."""
        order = np.lexsort((found.length_ns, number))
        longest = np.zeros(count, np.int64)
        longest[number[order]] = order
        details = []
        for at in longest.tolist():
            piece, text = int(found.piece[at]), self._labels.text(int(found.detail[at]))
            if piece >= 0:
                operation, line = self._recording.work.place(piece)
                known = [one for one in (operation, line) if one]
                text = ", ".join(one for one in known if one != self._labels.texts[found.name[at]])
            elif found.kind[at] in (LAUNCH, EVENT, GAP) and at + 1 < len(found):
                follows = int(found.name[at + 1])
                text = f"most before {self._labels.texts[follows]}"
            details.append(text or None)
        return details


def _sums(number: Ints, values: Ints, count: int) -> Ints:
    total = np.zeros(count, np.int64)
    np.add.at(total, number, values)
    return total


def of_recording(recording: Recording) -> CriticalPath | None:
    """Return the critical path of a recording; None: nothing of it has known times."""
    scheduled = schedule_of(recording)
    return None if scheduled is None else CriticalPath(recording, scheduled)


def track(recording: Recording) -> Track | None:
    """Return the critical path as one track; None: nothing of the recording has known times."""
    found = of_recording(recording)
    if found is None:
        return None
    stretches = found.stretches
    none = np.zeros(len(stretches), np.int64)
    return Track(
        group="critical path",
        name="critical path",
        labels=stretches.labels.texts,
        start_ns=stretches.start_ns,
        end_ns=stretches.end_ns,
        label=stretches.name,
        category=[CLASSES[kind] for kind in stretches.kind.tolist()],
        flow_in=none,
        flow_first=none,
        flow_count=none,
    )


def _breakdown(recording: Recording) -> Breakdown:
    scheduled = schedule_of(recording)
    assert scheduled is not None, "asked for a path that is not offered"
    for name, sentence in limits(recording, scheduled):
        recording.findings.add(name, sentence, 1)
    rows = CriticalPath(recording, scheduled).rows()
    whole = int(scheduled.steps_ns().sum())
    return Breakdown("path", tuple(rows), whole, None)


BREAKDOWNS = {
    "path": BreakdownSpec(
        lambda one: len(one.tasks) > 0 or len(one.comms) > 0 or one.framework is not None,
        _breakdown,
    )
}
