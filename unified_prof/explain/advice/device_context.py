"""Inputs shared by the advice rules for one device: analyzed steps, device tasks, idle time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.packed import BLOCK, narrow
from unified_prof.arrays.types import Ints
from unified_prof.explain.advice.idle_rows import (
    NO_IDLE,
    PAUSE_SHARE,
    ROWS,
    STEPS_TO_LEAVE_ONE,
    WARMING_UP,
    Idle,
    duration,
    joined,
    starved,
)
from unified_prof.recording.calls import COPY
from unified_prof.recording.communication import Stretch
from unified_prof.recording.idle import HOST, INPUT, NOT_KNOWN, REASONS, SYNCHRONISING, meet
from unified_prof.recording.model import Evidence, Finding, Sureness
from unified_prof.recording.recording import Recording
from unified_prof.recording.source import recorded_facts
from unified_prof.recording.task_order import OfPieces
from unified_prof.recording.task_rows import FOREVER

Flags = NDArray[np.bool_]

_MS = 1e6

# Device tasks processed at a time.
WINDOW = 2 * BLOCK


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Device tasks that started in the analyzed steps, by start time."""

    # Row of each task in `Recording.work`.
    row: NDArray[np.int32]
    start_ns: Ints
    # Duration of each task, in the narrowest type.
    lasted_ns: NDArray[np.integer]
    kind: NDArray[np.int8]
    # Stream of each task, in the narrowest type.
    on_stream: NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.row)

    @property
    def length_ns(self) -> Ints:
        """Duration of each task."""
        return self.lasted_ns.astype(np.int64)

    @property
    def stream(self) -> Ints:
        """Stream of each task."""
        return self.on_stream.astype(np.int64)

    @property
    def end_ns(self) -> Ints:
        """End of each task."""
        return self.start_ns + self.lasted_ns


class Case:
    """Inputs of the advice rules for one device (device=None: host-only recording)."""

    def __init__(self, recording: Recording, device: str | None) -> None:
        self.recording = recording
        self.device = device
        self.number = None if device is None else recording.device_numbers[device]
        self._chosen = chosen_steps(recording.steps)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the analyzed steps; empty if no steps were recorded."""
        names = [self.recording.steps[at][0] for at in self._chosen]
        return tuple(
            int(name) if name.isdecimal() else at
            for at, name in zip(self._chosen, names, strict=True)
        )

    @cached_property
    def windows(self) -> IntervalSet:
        """Interval of each analyzed step (they may touch), or the whole window."""
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
        return intervals.hull(
            intervals.merge(framework.start_ns.to_array(), framework.end_ns.to_array())
        )

    @cached_property
    def pauses(self) -> IntervalSet:
        """Long gaps in a recording without steps in which the device was not meant to work.

        Loading, compiling and pauses between phases look like a very slow host. Input waits and
        late kernels are not pauses.
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
        """Union of the analyzed intervals."""
        return intervals.merge(self.windows.start_ns, self.windows.end_ns)

    @cached_property
    def whole_ns(self) -> int:
        """Length of the analyzed time."""
        return self.window.total_ns

    @property
    def step_count(self) -> int:
        """Number of steps by which costs are divided."""
        return max(len(self._chosen), 1)

    def share(self, time_ns: float) -> float:
        """Return a time as a share of the analyzed time."""
        return time_ns / self.whole_ns if self.whole_ns else 0.0

    def within(self, start_ns: Ints, end_ns: Ints) -> IntervalSet:
        """Return the union of intervals within the analyzed time."""
        return intervals.intersect(intervals.merge(start_ns, end_ns), self.window)

    def inside(self, at_ns: Ints) -> Flags:
        """Return a mask of the timestamps within the analyzed time."""
        last = np.searchsorted(self.window.start_ns, at_ns, side="right") - 1
        ends = np.append(self.window.end_ns, 0)
        found: Flags = (last >= 0) & (at_ns < ends[last])
        return found

    @cached_property
    def compute(self) -> IntervalSet:
        """Intervals in which kernels ran, within the analyzed time."""
        assert self.device is not None
        return intervals.intersect(self.recording.devices[self.device].compute, self.window)

    @cached_property
    def compute_ns(self) -> int:
        """Time in which kernels ran, within the analyzed time."""
        return sum(
            intervals.intersect(one.compute, self._judged_in(one)).total_ns
            for one in self._stretches()
        )

    @cached_property
    def idle_ns(self) -> int:
        """Idle time of the device within the analyzed time; without a device, all of it."""
        return self.idle_in(self.window)

    def idle_in(self, some: IntervalSet) -> int:
        """Return the idle time of the device in a part of the analyzed time."""
        if self.device is None:
            return some.total_ns
        return some.total_ns - sum(
            intervals.intersect(one.busy, intervals.part(some, one.begin_ns, one.until_ns)).total_ns
            for one in self._stretches()
        )

    def _stretches(self) -> Iterator[Stretch]:
        assert self.device is not None
        return self.recording.devices[self.device].stretches()

    def _judged_in(self, one: Stretch) -> IntervalSet:
        return intervals.part(self.window, one.begin_ns, one.until_ns)

    def idle_windows(self) -> Iterator[Idle]:
        """Yield the idle time by reason in windows, at least one.

        All segments of one gap are in the same window.
        """
        assert self.device is not None
        held = NO_IDLE
        for segments in self.recording.idle_time.parts(self.device):
            own = IntervalSet(segments.start_ns, segments.end_ns)
            start, end, at, _ = meet(own, self.window)
            piece, sync = segments.next_piece[at], segments.sync[at]
            some = joined([held, Idle(start, end, segments.reason[at], piece, sync)])
            cut = len(some.piece)
            if cut and some.piece[-1] >= 0:
                others = np.flatnonzero(some.piece != some.piece[-1])
                cut = int(others[-1]) + 1 if len(others) else 0
            yield some.at(slice(0, cut))
            held = some.at(slice(cut, None))
        yield held

    @cached_property
    def synchronised(self) -> Idle:
        """Idle time caused by synchronizations."""
        return self.idle_where(lambda one: one.reason == SYNCHRONISING)

    def starved_windows(self) -> Iterator[tuple[Idle, Flags]]:
        """Yield `idle_windows`, each with a mask of the time that earlier launches would fill.

        That is the time until the launch of the next task, plus the latency of a launch to an idle
        device: a host that is one launch ahead hides both.
        """
        yield from zip(self.idle_windows(), self._starved, strict=True)

    @cached_property
    def _starved(self) -> list[Flags]:
        """Return this mask for each of `idle_windows`."""
        return list(starved(self.recording, self.idle_windows, self._starts))

    def _starts(self) -> Iterator[Ints]:
        for one in self.recording.work.in_time(self.number):
            yield one.start_ns[self.inside(one.start_ns)]

    def starved_ns(self, before: Flags | None = None) -> int:
        """Return this time in total, or before given tasks."""
        found = 0
        for one, filled in self.starved_windows():
            chosen = filled if before is None else filled & before[one.piece]
            found += int(one.length_ns[chosen].sum())
        return found

    def idle_where(self, chosen: Callable[[Idle], Flags]) -> Idle:
        """Return the idle segments that a condition on windows selects."""
        return joined(one.at(chosen(one)) for one in self.idle_windows())

    @cached_property
    def idle(self) -> Idle:
        """Idle time by reason in one piece; large for long recordings, unlike `idle_windows`."""
        return self.idle_where(lambda one: np.ones(len(one.reason), bool))

    def at_most(self, reason: int) -> int:
        """Return an upper bound of the idle time for a reason, cheaper than `idle`."""
        return int(self._idle_ns[reason])

    @cached_property
    def _idle_ns(self) -> Ints:
        """Idle time by reason, analyzed or not."""
        assert self.device is not None
        sums = np.zeros(len(REASONS), np.int64)
        for segments in self.recording.idle_time.parts(self.device):
            np.add.at(sums, segments.reason, segments.end_ns - segments.start_ns)
        return sums

    @cached_property
    def pieces(self) -> Pieces:
        """Device tasks within the analyzed steps."""
        work = self.recording.work
        found: dict[str, list[NDArray[Any]]] = {
            "row": [np.zeros(0, np.int32)],
            "start_ns": [np.zeros(0, np.int64)],
            "lasted_ns": [np.zeros(0, np.int32)],
            "kind": [np.zeros(0, np.int8)],
            "on_stream": [np.zeros(0, np.int32)],
        }
        for one in work.windows():
            mine = self.inside(one.start_ns)
            if self.number is not None:
                mine &= one.device == self.number
            at = np.flatnonzero(mine)
            found["row"].append((at + one.first).astype(np.int32))
            found["start_ns"].append(one.start_ns[at])
            found["lasted_ns"].append(narrow(one.duration_ns[at]))
            found["kind"].append(one.kind[at].astype(np.int8))
            found["on_stream"].append(narrow(one.stream[at]))
        columns = {name: np.concatenate(found.pop(name)) for name in list(found)}
        start = columns["start_ns"]
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable").astype(np.int32)
            columns = {name: column[order] for name, column in columns.items()}
        return Pieces(**columns)

    @cached_property
    def awaited(self) -> IntervalSet:
        """Intervals in which the host waits for the device, so that shorter tasks shorten the step.

        Tasks before a gap caused by the host or by input do not count, because the host would not
        be earlier. Tasks before a synchronization do, as do tasks whose launch call blocks, such as
        copies from pageable memory.
        """
        borders = self._borders()
        if borders is None:
            return self.window
        begin, end, synced = borders
        since = np.concatenate((self.window.start_ns[:1], end[:-1])) if len(begin) else begin
        unawaited = intervals.merge(since[~synced], begin[~synced])
        return intervals.subtract(self.window, intervals.subtract(unawaited, self._blocking))

    @cached_property
    def _blocking(self) -> IntervalSet:
        """Intervals of copies whose launch call blocked for most of their time."""
        calls, pieces = self.recording.host_calls, self.pieces
        copies = np.flatnonzero(pieces.kind == COPY)
        if not len(calls) or not len(copies):
            return intervals.EMPTY
        call = calls.launching(self.recording.work.connection[pieces.row[copies]])
        copies, call = copies[call >= 0], call[call >= 0]
        start, end = pieces.start_ns[copies], pieces.end_ns[copies]
        inside = np.minimum(calls.end_ns[call], end) - np.maximum(calls.start_ns[call], start)
        blocks = 2 * inside >= end - start
        return intervals.merge(start[blocks], end[blocks])

    def _borders(self) -> tuple[Ints, Ints, Flags] | None:
        """Return the gaps in which the host or a synchronization was involved.

        Returns begins, ends and a mask of gaps caused by a synchronization; None if there is no
        gap.
        """
        # Adjacent segments are one gap.
        open_gap: tuple[int, int, bool, bool] | None = None
        found: list[tuple[Ints, Ints, Flags, Flags]] = []
        for idle, filled in self.starved_windows():
            if not len(idle.start_ns):
                continue
            first = np.append(True, idle.start_ns[1:] != idle.end_ns[:-1])
            gap = np.cumsum(first) - 1
            count = int(gap[-1]) + 1
            of_host, synced = np.zeros(count, bool), np.zeros(count, bool)
            of_host[gap[np.isin(idle.reason, (HOST, INPUT)) | filled]] = True
            synced[gap[idle.reason == SYNCHRONISING]] = True
            begin = idle.start_ns[first]
            end = idle.end_ns[np.append(np.flatnonzero(first)[1:], len(gap)) - 1]
            if open_gap is not None:
                begin, end = np.append(open_gap[0], begin), np.append(open_gap[1], end)
                of_host, synced = np.append(open_gap[2], of_host), np.append(open_gap[3], synced)
                if begin[1] == end[0]:
                    of_host[1] |= of_host[0]
                    synced[1] |= synced[0]
                    begin[1] = begin[0]
                    begin, end, of_host, synced = (one[1:] for one in (begin, end, of_host, synced))
            found.append((begin[:-1], end[:-1], of_host[:-1], synced[:-1]))
            open_gap = int(begin[-1]), int(end[-1]), bool(of_host[-1]), bool(synced[-1])
        if open_gap is None:
            return None
        last_begin, last_end, last_of_host, last_synced = (np.array([one]) for one in open_gap)
        found.append((last_begin, last_end, last_of_host, last_synced))
        kept = [of_host | synced for _, _, of_host, synced in found]
        return (
            np.concatenate([one[0][mine] for one, mine in zip(found, kept, strict=True)]),
            np.concatenate([one[1][mine] for one, mine in zip(found, kept, strict=True)]),
            np.concatenate([one[3][mine] for one, mine in zip(found, kept, strict=True)]),
        )

    def gain(self, chosen: Flags) -> int:
        """Return the time saved without given tasks, except time that other tasks hide."""
        pieces = self.pieces
        own = intervals.merge(pieces.start_ns[chosen], pieces.end_ns[chosen])
        others = intervals.merge(pieces.start_ns[~chosen], pieces.end_ns[~chosen])
        alone = intervals.subtract(own, others)
        return intervals.intersect(alone, self.awaited).total_ns

    def gains(self, chosen: Ints, saved_ns: NDArray[Any]) -> int:
        """Return the time saved if tasks took given times less."""
        counted = np.minimum(saved_ns, self._bare_ns[chosen])
        return int(np.maximum(counted, 0).sum())

    @cached_property
    def _bare_ns(self) -> Ints:
        """Time of each task in which nothing else ran and the host waited for the device."""
        pieces = self.pieces
        bare = intervals.intersect(self._alone, self.awaited)
        result = np.zeros(len(pieces), np.int64)
        if len(bare):
            for low in range(0, len(pieces), WINDOW):
                rows = slice(low, low + WINDOW)
                start = pieces.start_ns[rows]
                until = self.covered(bare, start + pieces.lasted_ns[rows])
                result[rows] = until - self.covered(bare, start)
        return result

    @property
    def _alone(self) -> IntervalSet:
        """Intervals in which exactly one task ran."""
        pieces = self.pieces
        begins, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        open_start, open_end = begins[0], ends[0]
        for low in range(0, len(pieces), WINDOW):
            high = low + WINDOW
            own = pieces.start_ns[low:high]
            start = np.concatenate((open_start, own))
            end = np.concatenate((open_end, own + pieces.lasted_ns[low:high]))
            # A task that is still running continues in the next window.
            until = int(pieces.start_ns[high]) if high < len(pieces) else FOREVER
            edges = np.concatenate((start, np.minimum(end, until)))
            order = np.argsort(edges, kind="stable")
            edges = edges[order]
            level = np.cumsum(np.where(order < len(start), 1, -1))
            one = np.flatnonzero((level[:-1] == 1) & (edges[1:] > edges[:-1]))
            begins.append(edges[one])
            ends.append(edges[one + 1])
            going_on = end > until
            open_end = end[going_on]
            open_start = np.full(len(open_end), until)
        return intervals.merge(np.concatenate(begins), np.concatenate(ends))

    @staticmethod
    def covered(of: IntervalSet, at_ns: Ints) -> Ints:
        """Return the time covered by a non-empty set before each timestamp."""
        before = np.append(0, np.cumsum(of.end_ns - of.start_ns))
        which = np.searchsorted(of.start_ns, at_ns, side="right")
        last = np.maximum(which - 1, 0)
        begun = np.minimum(at_ns, of.end_ns[last]) - of.start_ns[last]
        covered: Ints = np.where(which > 0, before[last] + begun, 0)
        return covered

    @cached_property
    def kernel(self) -> NDArray[np.int32]:
        """Kernel name of each task, as index into `Recording.work.labels`."""
        return self._of_pieces(self.recording.work.kernel)

    @cached_property
    def operator(self) -> NDArray[np.int32]:
        """Operator type of each task, as index into `Recording.work.labels`."""
        return self._of_pieces(self.recording.work.operator)

    def _of_pieces(self, column: OfPieces) -> NDArray[np.int32]:
        row = self.pieces.row
        result = np.empty(len(row), np.int32)
        for low in range(0, len(row), WINDOW):
            result[low : low + WINDOW] = column[row[low : low + WINDOW]]
        return result

    def named(self, column: NDArray[np.integer], names: Any) -> Flags:
        """Return a mask of the tasks whose name matches a pattern."""
        texts = self.recording.work.labels.texts
        wanted = np.zeros(len(texts), bool)
        used = np.unique(column)
        wanted[used] = [bool(names.search(texts[number])) for number in used.tolist()]
        found: Flags = wanted[column]
        return found

    @cached_property
    def operations(self) -> tuple[list[str], NDArray[np.int32]]:
        """Innermost operation that launched each task: distinct names, and the index per task.

        The last name is empty and means unknown.
        """
        framework = self.recording.framework
        if framework is None:
            return [""], np.zeros(len(self.pieces), np.int32)
        row, connection = self.pieces.row, self.recording.work.connection
        names, _ = framework.names(row[:0])
        result = np.empty(len(row), np.int32)
        for low in range(0, len(row), WINDOW):
            found = framework.innermost(connection[row[low : low + WINDOW]])
            number = framework.names(found)[1]
            result[low : low + WINDOW] = np.where(found >= 0, number, len(names))
        return [*names, ""], result

    def rows(self, chosen: Ints, time_ns: Ints | None = None) -> tuple[Evidence, ...]:
        """Return the longest kernels among tasks as evidence, with their launching operation."""
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
        """Return a finding of this device; its cost is appended to the text."""
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
        what = "per step" if self._chosen else "of the recorded time"
        return f"saves up to {duration(cost_ns)} {what}"


def chosen_steps(steps: Sequence[tuple[str, int, int]]) -> list[int]:
    """Return the analyzed steps: without the first of several, and without extremely long ones."""
    length = np.array([end - start for _, start, end in steps], np.int64)
    kept = np.ones(len(steps), bool)
    if len(steps) >= STEPS_TO_LEAVE_ONE:
        kept[0] = False
        kept &= length <= WARMING_UP * float(np.median(length[1:]))
    found: list[int] = np.flatnonzero(kept & (length > 0)).tolist()
    return found
