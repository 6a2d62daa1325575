"""One device of a recording as rules see it: the steps that count, its work and its idle time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.explain.advice.limits import (
    PAUSE_SHARE,
    ROWS,
    STEPS_TO_LEAVE_ONE,
    WARMING_UP,
    duration,
)
from unified_prof.analysis.finding import Evidence, Finding, Sureness
from unified_prof.analysis.read.source import recorded_facts
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views.idle import (
    HOST,
    INPUT,
    LAUNCHED,
    NOT_KNOWN,
    SYNCHRONISING,
    meet,
)
from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import IntervalSet

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_MS = 1e6

LATENCY_NS = 10_000
"""What a launch takes to reach an idle device, where the recording has no such launch..."""
LONGEST_LATENCY_NS = 100_000
"""...and the most that counts as that; of both, launches that take up to so many still do."""
LATENCIES = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """Idle time of the device within the judged steps, by reason; as of `views.idle.Segments`."""

    start_ns: Ints
    end_ns: Ints
    reason: NDArray[np.int8]
    piece: NDArray[np.int32]
    """The piece of all work that ended the gap, -1 where none came."""
    sync: NDArray[np.int32]

    @property
    def length_ns(self) -> Ints:
        """Length of each stretch."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The device's work that began in the judged steps, in order of its starts."""

    row: Ints
    """Which of all work (`Recording.work`) each piece is."""
    start_ns: Ints
    end_ns: Ints
    kind: NDArray[np.int8]
    stream: Ints

    def __len__(self) -> int:
        return len(self.row)

    @property
    def length_ns(self) -> Ints:
        """Length of each piece."""
        return self.end_ns - self.start_ns


class Case:
    """All there is to judge of one device; None: the host alone, of whose work no device knows."""

    def __init__(self, recording: Recording, device: str | None) -> None:
        self.recording = recording
        self.device = device
        self.number = None if device is None else recording.device_numbers[device]
        self._chosen = chosen_steps(recording.steps)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The judged steps by their numbers; empty: there are none, all time is one."""
        names = [self.recording.steps[at][0] for at in self._chosen]
        return tuple(
            int(name) if name.isdecimal() else at
            for at, name in zip(self._chosen, names, strict=True)
        )

    @cached_property
    def windows(self) -> IntervalSet:
        """The time of each judged step (they may touch), or the whole window."""
        recording = self.recording
        if self._chosen:
            if self.device is not None:
                of_device = recording.step_windows[self.device]
                begin, end = of_device.start_ns[self._chosen], of_device.end_ns[self._chosen]
            else:
                times = [recording.steps[at][1:] for at in self._chosen]
                begin, end = np.array(times, np.int64).T
            return IntervalSet(begin, end)
        if self.device is not None:
            return intervals.subtract(recording.devices[self.device].window, self.pauses)
        framework = recording.framework
        if framework is None or not len(framework):
            return intervals.EMPTY
        return intervals.hull(intervals.merge(framework.start_ns.whole(), framework.end_ns.whole()))

    @cached_property
    def pauses(self) -> IntervalSet:
        """Long stretches in which nobody meant the device to work, where no step is known.

        Loading, compiling and what lies between phases look like a host that is far too slow.
        Waits for input are no pauses, nor is work that begins late.
        """
        if self._chosen or self.device is None:
            return intervals.EMPTY
        window = self.recording.devices[self.device].window
        begins, ends = [], []
        for segments in self.recording.idle_time.long_parts(self.device, PAUSE_SHARE):
            length = segments.end_ns - segments.start_ns
            pause = np.isin(segments.reason, (HOST, SYNCHRONISING, NOT_KNOWN))
            pause &= length > PAUSE_SHARE * window.total_ns
            begins.append(segments.start_ns[pause])
            ends.append(segments.end_ns[pause])
        nothing = np.zeros(0, np.int64)
        begin, end = np.concatenate([nothing, *begins]), np.concatenate([nothing, *ends])
        return intervals.intersect(window, intervals.merge(begin, end))

    @cached_property
    def window(self) -> IntervalSet:
        """The judged time, united."""
        return intervals.merge(self.windows.start_ns, self.windows.end_ns)

    @cached_property
    def whole_ns(self) -> int:
        """Length of the judged time."""
        return self.window.total_ns

    @property
    def step_count(self) -> int:
        """Steps that costs are divided by."""
        return max(len(self._chosen), 1)

    def share(self, time_ns: float) -> float:
        """Return what part of the judged time a time is."""
        return time_ns / self.whole_ns if self.whole_ns else 0.0

    def within(self, start_ns: Ints, end_ns: Ints) -> IntervalSet:
        """Return the union of intervals within the judged time."""
        return intervals.intersect(intervals.merge(start_ns, end_ns), self.window)

    def inside(self, at_ns: Ints) -> Flags:
        """Tell which moments lie in the judged time."""
        last = np.searchsorted(self.window.start_ns, at_ns, side="right") - 1
        ends = np.append(self.window.end_ns, 0)
        found: Flags = (last >= 0) & (at_ns < ends[last])
        return found

    @cached_property
    def busy(self) -> IntervalSet:
        """When the device worked in the judged time."""
        assert self.device is not None
        return intervals.intersect(self.recording.devices[self.device].busy, self.window)

    @cached_property
    def compute(self) -> IntervalSet:
        """When kernels ran in the judged time."""
        assert self.device is not None
        return intervals.intersect(self.recording.devices[self.device].compute, self.window)

    @cached_property
    def idle_time(self) -> IntervalSet:
        """When the device was idle in the judged time; without a device, all of it."""
        if self.device is None:
            return self.window
        return intervals.subtract(self.window, self.busy)

    @cached_property
    def idle(self) -> Idle:
        """Idle time by reason."""
        assert self.device is not None
        found = []
        for segments in self.recording.idle_time.parts(self.device):
            own = IntervalSet(segments.start_ns, segments.end_ns)
            start, end, at, _ = meet(own, self.window)
            piece, sync = segments.next_piece[at], segments.sync[at]
            found.append((start, end, segments.reason[at], piece, sync))
        return Idle(*(np.concatenate(columns) for columns in zip(*found, strict=True)))

    def at_most(self, reason: int) -> int:
        """Return a bound of the idle time for a reason, at less cost than `idle`."""
        assert self.device is not None
        bound = 0
        for segments in self.recording.idle_time.parts(self.device):
            mine = segments.reason == reason
            bound += int((segments.end_ns - segments.start_ns)[mine].sum())
        return bound

    @cached_property
    def starved(self) -> Flags:
        """Which idle time a host that launched earlier would fill.

        That is until the launch of what comes next, and then what the launch takes to reach a
        device that has nothing else to do: a host that is ahead by one launch hides both.
        """
        idle, recording = self.idle, self.recording
        before: Flags = (idle.reason == HOST) & (idle.piece >= 0)
        at = np.flatnonzero((idle.reason == LAUNCHED) & (idle.piece >= 0))
        # What somebody waited for besides is not the launch's.
        waited = np.isin(idle.reason, (SYNCHRONISING, INPUT))
        at = at[~np.isin(idle.piece[at], idle.piece[waited])]
        if not len(at) or not len(recording.host_calls):
            return before
        piece = idle.piece[at]
        call = recording.host_calls.launching(recording.work.connection[piece])
        start = recording.work.start_ns[piece]
        launched = np.append(recording.host_calls.start_ns.whole(), start.min(initial=0) - 1)[call]
        took = start - launched
        dry = np.isin(piece, idle.piece[before]) & (call >= 0)
        usual = min(float(np.median(took[dry])), LONGEST_LATENCY_NS) if dry.any() else LATENCY_NS
        # The work before was running, or over, when this was launched: nothing else was queued.
        last = np.searchsorted(self.pieces.start_ns, start, side="left") - 1
        alone = (last >= 0) & (self.pieces.start_ns[last] <= launched)
        result: Flags = before.copy()
        result[at[(call >= 0) & alone & (took <= LATENCIES * usual)]] = True
        return result

    @cached_property
    def pieces(self) -> Pieces:
        """The device's work."""
        work = self.recording.work
        start = work.start_ns.whole()
        mine = self.inside(start)
        if self.number is not None:
            mine &= work.device == self.number
        row = np.flatnonzero(mine)
        row = row[np.argsort(start[row], kind="stable")]
        start = start[row]
        end = start + work.duration_ns[row]
        return Pieces(row, start, end, work.kind[row].astype(np.int8), work.stream[row])

    @cached_property
    def awaited(self) -> IntervalSet:
        """When somebody waited for the device: shorter work then means a shorter step.

        What runs before a gap in which the device waits for the host or for input does not count:
        the host, which knows nothing of it, comes no earlier. Before a synchronising call it does.
        """
        idle = self.idle
        if not len(idle.start_ns):
            return self.window
        first = np.append(True, idle.start_ns[1:] != idle.end_ns[:-1])
        gap = np.cumsum(first) - 1
        count = int(gap[-1]) + 1
        of_host = np.zeros(count, bool)
        of_host[gap[np.isin(idle.reason, (HOST, INPUT)) | self.starved]] = True
        synced = np.zeros(count, bool)
        synced[gap[idle.reason == SYNCHRONISING]] = True
        begin = idle.start_ns[first]
        end = idle.end_ns[np.append(np.flatnonzero(first)[1:], len(gap)) - 1]
        border = of_host | synced
        begin, end, slack = begin[border], end[border], ~synced[border]
        since = np.concatenate((self.window.start_ns[:1], end[:-1])) if len(begin) else begin
        unawaited = intervals.merge(since[slack], begin[slack])
        return intervals.subtract(self.window, unawaited)

    def gain(self, chosen: Flags) -> int:
        """Return what the judged time would lose without some pieces: nothing that others hide."""
        pieces = self.pieces
        own = intervals.merge(pieces.start_ns[chosen], pieces.end_ns[chosen])
        others = intervals.merge(pieces.start_ns[~chosen], pieces.end_ns[~chosen])
        alone = intervals.subtract(own, others)
        return intervals.intersect(alone, self.awaited).total_ns

    def gains(self, chosen: Ints, saved_ns: NDArray[Any]) -> int:
        """Return what the judged time would lose if pieces took so much less time each."""
        counted = np.minimum(saved_ns, self._bare_ns[chosen])
        return int(np.maximum(counted, 0).sum())

    @cached_property
    def _bare_ns(self) -> Ints:
        """Time of each piece in which nothing else ran and somebody waited for the device."""
        pieces = self.pieces
        edges = np.concatenate((pieces.start_ns, pieces.end_ns))
        change = np.repeat([1, -1], len(pieces))
        order = np.argsort(edges, kind="stable")
        edges, level = edges[order], np.cumsum(change[order])
        one = np.flatnonzero((level[:-1] == 1) & (edges[1:] > edges[:-1]))
        alone = intervals.merge(edges[one], edges[one + 1])
        bare = intervals.intersect(alone, self.awaited)
        if not len(bare):
            return np.zeros(len(pieces), np.int64)
        until = self.covered(bare, pieces.end_ns)
        return until - self.covered(bare, pieces.start_ns)

    @staticmethod
    def covered(of: IntervalSet, at_ns: Ints) -> Ints:
        """Return how much of a set (not an empty one) lies before each moment."""
        before = np.append(0, np.cumsum(of.end_ns - of.start_ns))
        which = np.searchsorted(of.start_ns, at_ns, side="right")
        last = np.maximum(which - 1, 0)
        begun = np.minimum(at_ns, of.end_ns[last]) - of.start_ns[last]
        covered: Ints = np.where(which > 0, before[last] + begun, 0)
        return covered

    @cached_property
    def kernel(self) -> NDArray[np.int32]:
        """Name of each piece's kernel, as number in `Recording.work.labels`."""
        return self.recording.work.kernel[self.pieces.row]

    @cached_property
    def operator(self) -> NDArray[np.int32]:
        """Operator type of each piece, as number in `Recording.work.labels`."""
        return self.recording.work.operator[self.pieces.row]

    def named(self, column: NDArray[np.integer], names: Any) -> Flags:
        """Tell which pieces have a name that a pattern finds."""
        texts = self.recording.work.labels.texts
        wanted = np.zeros(len(texts), bool)
        used = np.unique(column)
        wanted[used] = [bool(names.search(texts[number])) for number in used.tolist()]
        found: Flags = wanted[column]
        return found

    @cached_property
    def operations(self) -> tuple[list[str], Ints]:
        """The innermost operation that launched each piece: distinct names, and which is whose.

        Its last name is empty: no operation is known.
        """
        framework = self.recording.framework
        if framework is None:
            return [""], np.zeros(len(self.pieces), np.int64)
        connection = self.recording.work.connection[self.pieces.row]
        found = framework.innermost(connection)
        names, number = framework.names(found)
        return [*names, ""], np.where(found >= 0, number, len(names))

    def rows(self, chosen: Ints, time_ns: Ints | None = None) -> tuple[Evidence, ...]:
        """Return the heaviest kernels among pieces as evidence, each with who launched it."""
        if not len(chosen):
            return ()
        time = self.pieces.length_ns[chosen] if time_ns is None else time_ns
        kernels, number = np.unique(self.kernel[chosen], return_inverse=True)
        total = np.bincount(number, weights=time)
        count = np.bincount(number)
        found = []
        for at in np.argsort(-total, kind="stable")[:ROWS].tolist():
            own = np.flatnonzero(number == at)
            longest = int(chosen[own[int(time[own].argmax())]])
            name = self.recording.work.labels.texts[int(kernels[at])]
            operation, line = self.recording.work.place(int(self.pieces.row[longest]))
            row: dict[str, Any] = {
                "name": name,
                "count": int(count[at]),
                "total_ns": int(total[at]),
                "start_ns": int(self.pieces.start_ns[longest]),
            }
            if operation != name:
                row["operation"] = operation
            if line is not None:
                row["line"] = line
            found.append(row)
        return tuple(found)

    @cached_property
    def _facts(self) -> dict[str, str]:
        return dict(recorded_facts(self.recording.source))

    def finding(
        self,
        kind: str,
        cost_ns: float,
        text: str,
        *,
        advice: str,
        sure: Sureness,
        figures: Mapping[str, Any] | None = None,
        evidence: Iterable[Evidence] = (),
        steps: Sequence[int] | None = None,
    ) -> Finding:
        """Return a finding of this device; the text gets its cost."""
        rank = self._facts.get("rank", "")
        per_step = cost_ns / self.step_count
        return Finding(
            kind=kind,
            ranks=(int(rank),) if rank.isdecimal() else (),
            hosts=(self._facts["host"],) if self._facts.get("host") else (),
            links=(),
            steps=self.steps if steps is None else tuple(steps),
            cost_ms_per_step=round(per_step / _MS, 6),
            text=f"{text}; {self._costs(per_step)}" if cost_ns else text,
            figures=dict(figures or {}),
            advice=advice,
            sure=sure,
            evidence=tuple(evidence),
        )

    def _costs(self, cost_ns: float) -> str:
        what = "every step" if self._chosen else "the recorded time"
        return f"up to {duration(cost_ns)} of {what}"


def chosen_steps(steps: Sequence[tuple[str, int, int]]) -> list[int]:
    """Return which steps are judged: not the first of several, nor one that is far too long."""
    length = np.array([end - start for _, start, end in steps], np.int64)
    kept = np.ones(len(steps), bool)
    if len(steps) >= STEPS_TO_LEAVE_ONE:
        kept[0] = False
        kept &= length <= WARMING_UP * float(np.median(length[1:]))
    found: list[int] = np.flatnonzero(kept & (length > 0)).tolist()
    return found
