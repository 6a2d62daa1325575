"""The critical path of the steps in stretches: a kernel, a call, a wait; none of them overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import KINDS, UNKNOWN, Labels
from unified_prof.analysis.explain.host_moments import HostMoments
from unified_prof.analysis.explain.schedule import graph, kinds
from unified_prof.analysis.explain.schedule.built import Scheduled
from unified_prof.analysis.explain.schedule.graph import Segments
from unified_prof.analysis.recording import Recording

Ints = NDArray[np.int64]

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
    "launch": "launched, not yet begun",
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
