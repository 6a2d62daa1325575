"""What each piece of work waited for: what ran before on its stream, an event, its launch."""

from __future__ import annotations

import re

import numpy as np

from unified_prof.analysis.explain.schedule import kinds
from unified_prof.analysis.explain.schedule.device_pieces import Pieces
from unified_prof.analysis.explain.schedule.graph import Edges, Ints
from unified_prof.analysis.explain.schedule.launch_order import TRIES, Launched
from unified_prof.analysis.read import waits
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views.groups import by_key
from unified_prof.arrays.lookup import NOWHERE

_CLOSE_NS = 10_000
"""A piece that begins so soon after another one's end may have waited for it."""
_LOOKS_NS = 100_000
"""So late a stream that waits may find that an event was recorded (17 to 59 µs on a 910A)."""
_SOON_NS = 5_000
"""The same, where nothing but the times says so."""
_LONGEST_LAUNCH_NS = 50_000
"""No launch takes longer by itself: what it takes beyond that has another reason."""
_LATE = 3
"""So many times the usual time from its launch on, a piece waited for something else as well."""


def edges(recording: Recording, pieces: Pieces, launches: Ints, first: int) -> list[Edges]:
    """Return what pieces wait for.

    Args:
        recording: the recording.
        pieces: its pieces.
        launches: the moment of each piece's launch, NOWHERE where it is not known.
        first: the moment of the first piece; those of the others follow in their order.
    """
    before, touching = _before(pieces)
    moment = pieces.moment_ns
    after = np.flatnonzero(before != NOWHERE)
    gap = moment[after] - pieces.end_ns[before[after]]
    # What a gap and a launch take by themselves is told by those that nothing else held up.
    queued = (pieces.asked_ns[after] < pieces.end_ns[before[after]]) & (gap < _CLOSE_NS)
    usual_gap = _usual(gap[queued], 1_000)
    awaited = _awaited(recording, pieces, before, usual_gap)
    known = np.flatnonzero(launches != NOWHERE)
    delay = moment[known] - pieces.asked_ns[known]
    until = np.append(pieces.end_ns, 0)[before]
    np.maximum.at(until, awaited.target, pieces.end_ns[awaited.source])
    idle = (until[known] <= pieces.asked_ns[known]) & (delay >= 0)
    usual_delay = min(_usual(delay[idle], 5_000), _LONGEST_LAUNCH_NS)
    lag = np.minimum(gap, usual_gap)
    between = [
        Edges.of(before[after], after, lag, behind=True, kind=kinds.STREAM),
        Edges.of(touching[0], touching[1], 0, behind=False, kind=kinds.STREAM),
        awaited,
        _seen(pieces, before, awaited, usual_gap, usual_delay),
    ]
    lag = np.clip(delay, 0, usual_delay)
    launched = Edges.of(launches[known], known + first, lag, behind=False, kind=kinds.LAUNCH)
    return [launched, *(one.moved(first) for one in between)]


def _usual(values: Ints, otherwise: int) -> int:
    """Return a short one of many times: the long ones may have reasons that nobody recorded."""
    return int(np.percentile(values, 25, method="lower")) if len(values) else otherwise


def _before(pieces: Pieces) -> tuple[Ints, tuple[Ints, Ints]]:
    """Return what was done last before each piece on its stream, and pairs that overlap there."""
    moment, end = pieces.moment_ns, pieces.end_ns
    result = np.full(len(pieces), NOWHERE, np.int64)
    sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for _, rows in by_key(pieces.stream):
        rows = rows[np.lexsort((end[rows], moment[rows]))]
        by_end = np.argsort(end[rows], kind="stable")
        last = np.searchsorted(end[rows][by_end], moment[rows], side="right") - 1
        # Of what ends at the moment itself only what stands before it can be what it follows.
        place = np.append(by_end, NOWHERE)[last]
        own = np.arange(len(rows))
        while (later := (last >= 0) & (place >= own)).any():
            last[later] -= 1
            place = np.where(last >= 0, by_end[last], NOWHERE)
        result[rows] = np.where(last >= 0, rows[place], NOWHERE)
        overlapping = np.flatnonzero((own > 0) & (place != own - 1))
        sources.append(rows[overlapping - 1])
        targets.append(rows[overlapping])
    return result, (np.concatenate(sources), np.concatenate(targets))


def _awaited(recording: Recording, pieces: Pieces, before: Ints, usual_gap: int) -> Edges:
    """Return what waited for events: by calls, as GPUs record them, or by tasks, as NPUs do."""
    moment = pieces.moment_ns
    source, target = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    events = waits.of_streams(recording.source, recording.strings, recording.host_calls)
    if len(events):
        latest = Launched(pieces)
        awaited = latest.before(events.awaited_stream, events.recorded_ns)
        waiting = latest.after(events.stream, events.at_ns)
        both = (awaited != NOWHERE) & (waiting != NOWHERE)
        source.append(awaited[both])
        target.append(waiting[both])
    elif not pieces.waits.any():
        awaited, waiting = _asked(recording, pieces)
        source.append(awaited)
        target.append(waiting)
    for _, rows in by_key(pieces.device):
        records, waiting = rows[pieces.records[rows]], rows[pieces.waits[rows]]
        if not len(records):
            continue
        records = records[np.argsort(moment[records], kind="stable")]
        last = np.searchsorted(moment[records], moment[waiting], side="right") - 1
        for _ in range(4):  # the event of the stream itself is not what it waits for
            own = (last >= 0) & (pieces.stream[records[last]] == pieces.stream[waiting])
            last[own] -= 1
        record = np.where(last >= 0, records[last], 0)
        since = moment[waiting] - moment[record]
        # Where the stream had been ready before, it was waiting: a device may look now and then.
        ready = np.append(pieces.end_ns, 0)[before[waiting]]
        waited = (moment[record] > ready) & (since <= _LOOKS_NS)
        close = (last >= 0) & ((since <= _CLOSE_NS) | waited)
        close &= pieces.stream[record] != pieces.stream[waiting]
        source.append(record[close])
        target.append(waiting[close])
    one, other = np.concatenate(source), np.concatenate(target)
    lag = np.clip(moment[other] - pieces.end_ns[one], 0, usual_gap)
    return Edges.of(one, other, lag, behind=True, kind=kinds.EVENT)


def _asked(recording: Recording, pieces: Pieces) -> tuple[Ints, Ints]:
    """Return what waited for what by the order of calls, where nobody recorded events.

    What a thread launches next after it made a stream wait is what waits; for the last work that
    was launched before on another stream and that was done by then.
    """
    calls, moment = recording.host_calls, pieces.moment_ns
    nothing = np.zeros(0, np.int64)
    known = np.flatnonzero(pieces.call[: pieces.work] >= 0)
    if len(np.unique(pieces.stream[known])) < 2:
        return nothing, nothing
    ids, number = calls.names
    flags = [bool(_STREAM_WAITS.search(text or "")) for text in recording.strings.texts(ids)]
    asked = np.flatnonzero(np.array([*flags, False])[number.whole()])
    known = known[np.argsort(pieces.launched_ns[known], kind="stable")]
    launched = pieces.launched_ns[known]
    thread = calls.thread[pieces.call[known]]
    source, target = [nothing], [nothing]
    for one, rows in by_key(calls.thread[asked]):
        own = np.flatnonzero(thread == one)
        at = calls.start_ns[asked[rows]]
        following = np.searchsorted(launched[own], at, side="left")
        inside = following < len(own)
        waiting = known[own[following[inside]]]
        last = np.searchsorted(launched, at[inside], side="left") - 1
        looking = np.flatnonzero(last >= 0)
        for _ in range(TRIES):
            done = known[last[looking]]
            fits = pieces.stream[done] != pieces.stream[waiting[looking]]
            fits &= pieces.device[done] == pieces.device[waiting[looking]]
            fits &= pieces.end_ns[done] <= moment[waiting[looking]]
            source.append(done[fits])
            target.append(waiting[looking[fits]])
            last[looking[~fits]] -= 1
            looking = looking[~fits]
            looking = looking[last[looking] >= 0]
            if not len(looking):
                break
    return np.concatenate(source), np.concatenate(target)


_STREAM_WAITS = re.compile(r"StreamWaitEvent", re.IGNORECASE)


def _seen(pieces: Pieces, before: Ints, awaited: Edges, usual_gap: int, usual_delay: int) -> Edges:
    """Return what pieces waited for that no record says, only the times.

    A piece that begins long after its launch and its stream's last work, and just after work of
    another stream ended, was waiting for that.
    """
    moment = pieces.moment_ns
    ready = np.zeros(len(pieces), np.int64)
    on_stream = before != NOWHERE
    ready[on_stream] = pieces.end_ns[before[on_stream]]
    since_launch = np.where(pieces.call >= 0, pieces.asked_ns, 0)
    # Only where what is known leaves more than noise unexplained.
    much = max(_LATE * usual_delay, _CLOSE_NS)
    ready = np.where(since_launch > ready, since_launch + much - _SOON_NS, ready)
    np.maximum.at(ready, awaited.target, pieces.end_ns[awaited.source])
    late = np.flatnonzero(moment - ready > _SOON_NS)
    late = late[late < pieces.work]
    sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for device, rows in by_key(pieces.device[late]):
        here = np.flatnonzero(pieces.device == device)
        here = here[here < pieces.work]
        here = here[np.argsort(pieces.end_ns[here], kind="stable")]
        waiting = late[rows]
        last = np.searchsorted(pieces.end_ns[here], moment[waiting], side="right") - 1
        done = here[np.maximum(last, 0)]
        # What nobody is known to have launched follows whatever the device did last.
        unlaunched = pieces.call[waiting] < 0
        close = moment[waiting] - pieces.end_ns[done] <= _SOON_NS
        good = (last >= 0) & (pieces.stream[done] != pieces.stream[waiting])
        good &= (close & (pieces.end_ns[done] > ready[waiting])) | (
            unlaunched & (before[waiting] == NOWHERE)
        )
        sources.append(done[good])
        targets.append(waiting[good])
    source, target = np.concatenate(sources), np.concatenate(targets)
    lag = np.clip(moment[target] - pieces.end_ns[source], 0, usual_gap)
    return Edges.of(source, target, lag, behind=True, kind=kinds.SEEN)
