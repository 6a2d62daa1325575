"""The schedule of a recording: its host threads, its devices and its steps joined."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from unified_prof.arrays.grouping import NOWHERE, distinct, rising
from unified_prof.arrays.types import Ints
from unified_prof.explain.schedule import device, graph, host
from unified_prof.explain.schedule import device as device_pieces
from unified_prof.explain.schedule import device as synchronised
from unified_prof.explain.schedule.device import Pieces
from unified_prof.explain.schedule.graph import Edges, Schedule, Segments
from unified_prof.explain.schedule.host import Host
from unified_prof.recording.communication import by_key
from unified_prof.recording.recording import Recording
from unified_prof.recording.steps import step_of

MOST_PIECES = 4_000_000
"""So much work is walked, of a longer recording the first steps (one at the least)."""


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A recording as a schedule.

    Moments are numbered in the order of time; `of_piece` and `of_point` say which are whose.
    """

    schedule: Schedule
    pieces: Pieces
    host: Host
    of_piece: Ints
    of_point: Ints
    step_names: tuple[str, ...]
    """Names of the steps; one empty name where no step is known: the whole recording is one."""
    step_begin_ns: Ints
    step_end_ns: Ints
    step_ends: Ints
    """The moment at which each step is over, on the host and on all devices."""
    steps_left_out: int
    """So many steps come after those: of a long recording the first ones are walked."""
    step_begins: Ints
    """The moment at which each step begins on the host, NOWHERE where nothing says when."""

    @cached_property
    def piece_of(self) -> Ints:
        """The piece of each moment, NOWHERE of others."""
        return _inverse(self.of_piece, len(self.schedule))

    @cached_property
    def point_of(self) -> Ints:
        """The point of the host of each moment, NOWHERE of others."""
        return _inverse(self.of_point, len(self.schedule))

    def path(self, step: int) -> Segments:
        """Return the critical path of a step: what each of its nanoseconds was spent on."""
        begin = int(self.step_begin_ns[step])
        return self.schedule.path(int(self.step_ends[step]), begin)

    def steps_ns(self, time_ns: Ints | None = None) -> Ints:
        """Return the length of each step, as recorded or at other times of the moments."""
        if time_ns is None:
            return self.step_end_ns - self.step_begin_ns
        ends = np.maximum.accumulate(time_ns[self.step_ends])
        begins = np.where(self.step_begins >= 0, time_ns[self.step_begins], self.step_begin_ns)
        done = np.concatenate((begins[:1], ends[:-1]))
        lengths: Ints = np.maximum(ends - np.maximum(begins, done), 0)
        return lengths


def _inverse(moments: Ints, count: int) -> Ints:
    result = np.full(count, NOWHERE, np.int64)
    result[moments] = np.arange(len(moments))
    return result


def of_recording(recording: Recording) -> Scheduled | None:
    """Return the schedule of a recording; None: it has neither work nor a host that did any."""
    steps_walked, until_ns = _walked(recording)
    pieces = device_pieces.of_recording(recording, until_ns)
    launched = np.flatnonzero(pieces.call >= 0)
    calls = rising(pieces.call[launched])
    done = np.zeros(len(calls), np.int64)
    np.maximum.at(done, np.searchsorted(calls, pieces.call[launched]), pieces.end_ns[launched])
    threads = host.of_recording(recording, calls, done, steps_walked, pieces.skew_ns, until_ns)
    if not len(pieces) and not len(threads):
        return None
    names, begin, end = _steps(recording, steps_walked, pieces, threads)
    points, count, steps = len(threads), len(pieces), len(names)
    # Numbers before all are in order: points, then pieces, then ends of steps.
    time = np.concatenate((threads.time_ns, pieces.moment_ns, end))
    takes = np.concatenate((np.zeros(points, np.int64), pieces.takes_ns, np.zeros(steps, np.int64)))
    launches = np.append(threads.launched_by, NOWHERE)[pieces.call]
    edges = [*threads.edges, *device.edges(recording, pieces, launches, points)]
    which, awaited = synchronised.waited_for(
        recording, pieces, threads.waits.call, threads.waits.own
    )
    ends = threads.waits.end[which]
    returned = threads.time_ns[ends] - pieces.end_ns[awaited]
    # What a return takes is told by what each call waited for last, if it waited at all.
    order = np.lexsort((pieces.end_ns[awaited], ends))
    last = order[np.append(ends[order][1:] != ends[order][:-1], True)[: len(order)]]
    begins = threads.time_ns[threads.waits.begin[which[last]]]
    waited = last[pieces.end_ns[awaited[last]] > begins]
    usual = int(np.median(returned[waited])) if len(waited) else 0
    lag = np.clip(returned, 0, usual)
    edges.append(Edges.of(awaited + points, ends, lag, behind=True, kind=graph.SYNCHRONISING))
    edges += _ends(steps_walked, pieces, threads, end, points)
    # Of what begins together: records come before what waits for them, and that before work.
    of_pieces = np.where(pieces.records, 1, np.where(pieces.waits, 2, 3))
    rank = np.concatenate((np.zeros(points, np.int64), of_pieces, np.full(steps, 4)))
    order = np.lexsort((time + takes, rank, time))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    joined = Edges.joined(edges)
    edges.clear()  # the schedule makes columns of its own again
    np.take(place, joined.source, out=joined.source)
    np.take(place, joined.target, out=joined.target)
    schedule = Schedule(time[order], takes[order], joined)
    del joined
    begins = np.full(steps, NOWHERE, np.int64)
    begins[: len(threads.step_begins)] = place[threads.step_begins]
    return Scheduled(
        schedule=schedule,
        pieces=pieces,
        host=threads,
        of_piece=place[points : points + count],
        of_point=place[:points],
        step_names=names,
        step_begin_ns=begin,
        step_end_ns=end,
        step_ends=place[points + count :],
        steps_left_out=len(recording.steps) - len(steps_walked),
        step_begins=begins,
    )


def _walked(recording: Recording) -> tuple[list[tuple[str, int, int]], int | None]:
    """Return the steps to walk, and the time to walk until: the first steps of a long recording."""
    steps, work = recording.steps, recording.work
    if len(work) <= MOST_PIECES:
        return steps, None
    start = work.start_ns.to_array()
    if not steps:
        return steps, int(np.partition(start, MOST_PIECES)[MOST_PIECES])
    done = np.cumsum(np.bincount(np.maximum(step_of(start, steps), 0), minlength=len(steps)))
    many = max(int(np.searchsorted(done, MOST_PIECES, side="right")), 1)
    return steps[:many], None if many == len(steps) else steps[many][1]


def _steps(
    recording: Recording, steps: list[tuple[str, int, int]], pieces: Pieces, threads: Host
) -> tuple[tuple[str, ...], Ints, Ints]:
    """Return name, begin and end of each step, on the host and on all devices together.

    A step is over when the host is done with it and the last of its work is, on any device; the
    next one begins there.
    """
    if not steps:
        times = [pieces.moment_ns, pieces.end_ns, threads.time_ns]
        known = np.concatenate(times)
        return ("",), known.min(keepdims=True), known.max(keepdims=True)
    host_begin = np.array([step[1] for step in steps], np.int64)
    end = np.array([step[2] for step in steps], np.int64)
    for windows in recording.step_windows.values():
        end = np.maximum(end, windows.end_ns[: len(steps)])
    end = np.maximum.accumulate(end)
    begin = np.minimum(np.maximum(host_begin, np.append(host_begin[:1], end[:-1])), end)
    return tuple(step[0] for step in steps), begin, end


def _ends(
    steps: list[tuple[str, int, int]], pieces: Pieces, threads: Host, end: Ints, points: int
) -> list[Edges]:
    """Return what each end of a step waits for: the host's end of it, and its work's."""
    first = points + len(pieces)
    work = np.arange(pieces.work)
    if steps:
        step = step_of(pieces.launched_ns[work], steps)
        on_host = threads.step_ends
        hosts = np.arange(len(on_host))
    else:
        step = np.zeros(len(work), np.int64)
        last = np.append(threads.thread[1:] != threads.thread[:-1], True)[: len(threads)]
        on_host = np.flatnonzero(last)
        hosts = np.zeros(len(on_host), np.int64)
    found = [
        Edges.of(on_host, first + hosts, 0, behind=False, kind=graph.DONE),
    ]
    # Of the work of a step, what ends last on each stream.
    mine = work[step >= 0]
    key, number = distinct(pieces.stream[mine])
    places = step[mine] * max(len(key), 1) + number
    lasts = [rows[pieces.end_ns[mine[rows]].argmax()] for _, rows in by_key(places)]
    last_of = mine[np.array(lasts, np.int64)]
    found.append(Edges.of(last_of + points, first + step[last_of], 0, behind=True, kind=graph.DONE))
    # A step that nothing ends of its own ends where the one before it does.
    several = np.arange(len(end) - 1)
    found.append(Edges.of(first + several, first + several + 1, 0, behind=False, kind=graph.DONE))
    return found
