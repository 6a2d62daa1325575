"""Sequences of short kernels that come again and again: each could be one kernel."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import KERNEL
from unified_prof.analysis.explain.advice.case import Case, Flags, Ints
from unified_prof.analysis.explain.advice.limits import LEAST_SHARE, ROWS, WARMING_UP, percent
from unified_prof.analysis.explain.advice.pieces import computing, highest_ratio, on_ai_cpu
from unified_prof.analysis.explain.repeated import apart, first_rotation, period, repeated
from unified_prof.analysis.explain.sequences import in_words
from unified_prof.analysis.finding import Evidence, Finding
from unified_prof.analysis.read.framework import NOT_ATTRIBUTED, OTHER_PASS
from unified_prof.analysis.views.idle import HOST, LAUNCHED, NOT_KNOWN
from unified_prof.arrays import intervals

FUSIBLE_SEQUENCES = "fusible_sequences"

SHORTEST, LONGEST = 3, 10
"""Kernels of a sequence; MindStudio's advisor looks for as many."""
OFTEN = 5
"""A sequence comes more often than so; the advisor's."""
BUSY_SHARE = 0.4
"""A sequence that runs for less of its time waits for its launches; the advisor's."""
MOVING = 0.8
"""Part of its time that a sequence moves data, from which it is bound by that; the advisor's."""
MOST = 0.5
"""Of the places of a sequence: if so many overlap the next one, they are turns of a loop."""
PAUSE = 10.0
"""A gap of so many usual ones, and kernels, is no launch: no sequence goes beyond it."""
_TRIED = 200
"""Sequences that are looked at, the most promising first."""

_MOVES = re.compile(r"^(?:ai[cv]_)?mte[23]_ratio\w*$")


def fusible_sequences(case: Case) -> Iterator[Finding]:
    """Kernels that follow one another in the same order more than five times."""
    row = _Row(case)
    found = list(_chosen(row))
    cost = sum(one.lost_ns for one in found)
    if not found or case.share(cost) < LEAST_SHARE:
        return
    sizes = sorted({one.length for one in found})
    kernels = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    count = sum(len(one.begins) for one in found)
    elapsed = sum(one.elapsed_ns for one in found)
    share = percent(sum(one.busy_ns for one in found) / elapsed if elapsed else 1.0)
    many = "a sequence" if len(found) == 1 else f"{len(found)} sequences"
    come = "comes" if len(found) == 1 else "come"
    where = "" if row.has_modules else "; which module launched them was not recorded"
    moving = sum(one.moves for one in found)
    said = f"; {moving} of them bound by moving data" if moving else ""
    yield case.finding(
        FUSIBLE_SEQUENCES,
        cost,
        f"{many} of {kernels} kernels {come} again and again, {count:,} times in all, and "
        f"{'runs' if len(found) == 1 else 'run'} for {share} of the time from first to last: each "
        f"could be one kernel{said}{where}",
        advice="torch.compile of the module that they are in, or a fused operation in place of "
        "them (torch_npu: npu_rms_norm, npu_swiglu, npu_rotary_mul and their like)",
        sure="possible",
        figures={
            "sequences": [one.figures(row) for one in found],
            "elapsed_ns": elapsed,
            "busy_ns": sum(one.busy_ns for one in found),
        },
        evidence=[one.evidence(row) for one in found],
    )


class _Row:
    """The kernels of a device, stream by stream in order of their starts."""

    def __init__(self, case: Case) -> None:
        self.case = case
        pieces = case.pieces
        self._module, self.has_modules = _modules(case)
        ordered = np.lexsort((pieces.start_ns, pieces.stream))
        usable = (pieces.kind == KERNEL) & ~on_ai_cpu(case) & (self._module >= 0)
        if case.recording.framework is not None:
            # Those of an optimizer have a rule of their own.
            usable &= case.recording.work.launches[1][pieces.row] != OTHER_PASS
        cut = ~usable[ordered]
        cut[1:] |= np.diff(pieces.stream[ordered]) != 0
        cut[1:] |= (np.diff(self._module[ordered]) != 0) | cut[:-1]
        cut |= _pauses(pieces.start_ns[ordered], pieces.end_ns[ordered])
        part = np.cumsum(cut)
        kept = usable[ordered]
        self.at: Ints = ordered[kept].astype(np.int64)
        """Which of the device's pieces each kernel is."""
        self.part: Ints = part[kept].astype(np.int64)
        self.token: Ints = case.operator[self.at].astype(np.int64)
        self.start_ns, self.end_ns = pieces.start_ns[self.at], pieces.end_ns[self.at]
        self.length_ns = pieces.length_ns[self.at]

    @cached_property
    def heavy(self) -> Flags:
        """Products and their like: two of them make no kernel."""
        return computing(self.case)[self.at]

    @cached_property
    def moving(self) -> NDArray[np.float64]:
        """Part of its time that each kernel moves data; NaN where no counter tells."""
        if "TASK_PMU_INFO" not in self.case.recording.source.tables:
            return np.full(len(self.at), np.nan)
        return highest_ratio(self.case, _MOVES)[self.at]

    @cached_property
    def _own(self) -> dict[int, intervals.IntervalSet]:
        """Return when nothing but a stream's own kernels and launches took time, by stream."""
        pieces, idle = self.case.pieces, self.case.idle
        other_reason = ~np.isin(idle.reason, (HOST, LAUNCHED, NOT_KNOWN))
        waits = intervals.merge(idle.start_ns[other_reason], idle.end_ns[other_reason])
        time = intervals.subtract(self.case.window, waits)
        found = {}
        for stream in np.unique(pieces.stream[self.at]).tolist():
            others = pieces.stream != stream
            beside = intervals.merge(pieces.start_ns[others], pieces.end_ns[others])
            found[stream] = intervals.subtract(time, beside)
        return found

    def of(self, begins: Ints, length: int) -> _Sums:
        """Return the times of sequences of one length."""
        longest = np.max([self.length_ns[begins + one] for one in range(length)], axis=0)
        busy = np.sum([self.length_ns[begins + one] for one in range(length)], axis=0)
        elapsed = np.zeros(len(begins), np.int64)
        stream = self.case.pieces.stream[self.at[begins]]
        for number, own in self._own.items():
            mine = np.flatnonzero(stream == number)
            if len(mine) and len(own):
                last = begins[mine] + length - 1
                until = self.case.covered(own, self.end_ns[last])
                elapsed[mine] = until - self.case.covered(own, self.start_ns[begins[mine]])
        return _Sums(elapsed, busy, longest)


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    elapsed_ns: Ints
    """From the first kernel to the end of the last, without what else took time meanwhile."""
    busy_ns: Ints
    longest_ns: Ints

    @property
    def lost_ns(self) -> Ints:
        """What one kernel as long as the longest would save, each time.

        Where it takes far longer than usual, something else does.
        """
        lost = np.maximum(self.elapsed_ns - self.longest_ns, 0)
        usual: Ints = np.minimum(lost, int(WARMING_UP * np.median(lost)))
        return usual


@dataclass(frozen=True, slots=True, eq=False)
class _Sequence:
    """A sequence and where it comes."""

    length: int
    begins: Ints
    lost_ns: int
    elapsed_ns: int
    busy_ns: int
    longest_ns: int
    moves: bool

    def _place(self, row: _Row) -> tuple[str, str | None]:
        return row.case.recording.work.place(int(row.case.pieces.row[row.at[self.begins[0]]]))

    def _kernels(self, row: _Row) -> str:
        texts = row.case.recording.work.labels.texts
        first = int(self.begins[0])
        return in_words(texts[one] for one in row.token[first : first + self.length].tolist())

    def figures(self, row: _Row) -> dict[str, Any]:
        """Return what is told of it to programs."""
        return {
            "sequence": self._kernels(row),
            "kernels": self.length,
            "count": len(self.begins),
            "elapsed_ns": self.elapsed_ns,
            "busy_ns": self.busy_ns,
            "longest_ns": self.longest_ns,
            "bound_by": "moving data" if self.moves else "launches",
        }

    def evidence(self, row: _Row) -> Evidence:
        """Return its line of evidence."""
        _, line = self._place(row)
        told = {
            "name": self._kernels(row),
            "count": len(self.begins),
            "total_ns": self.lost_ns,
            "start_ns": int(row.start_ns[self.begins[0]]),
        }
        return told if line is None else {**told, "line": line}


def _modules(case: Case) -> tuple[Ints, bool]:
    """Return a number for the module of each piece (-1: not known), and whether any is known."""
    framework, pieces = case.recording.framework, case.pieces
    nowhere = np.zeros(len(pieces), np.int64)
    if framework is None:
        return nowhere, False
    paths, number = framework.modules(case.recording.work.launches[0][pieces.row])
    if not {*paths} - {None, NOT_ATTRIBUTED}:
        return nowhere, False
    known = np.array([path != NOT_ATTRIBUTED for path in paths])[number]
    return np.where(known, number, -1).astype(np.int64), True


def _pauses(start_ns: Ints, end_ns: Ints) -> Flags:
    """Tell before which pieces of work there is so much time that launching explains none of it."""
    if not len(start_ns):
        return np.zeros(0, np.bool_)
    gap = np.append(0, np.maximum(start_ns[1:] - end_ns[:-1], 0))
    usual = max(float(np.median(gap)), float(np.median(end_ns - start_ns)))
    found: Flags = gap > PAUSE * usual
    return found


def _chosen(row: _Row) -> Iterator[_Sequence]:
    """Yield the sequences that cost most, none of which has a kernel of another one."""
    claimed = np.zeros(len(row.at), bool)
    waiting = [(-one.lost_ns, one.length, int(one.begins[0]), one) for one in _candidates(row)]
    heapq.heapify(waiting)
    found = tried = 0
    while waiting and found < ROWS and tried < _TRIED:
        tried += 1
        _, length, first, candidate = heapq.heappop(waiting)
        taken = np.append(0, np.cumsum(claimed))
        begins = candidate.begins
        begins = begins[taken[begins + length] == taken[begins]]
        begins = begins[apart(begins, length)]
        if len(begins) < len(candidate.begins):
            if (again := _judged(row, length, begins)) is None:
                continue
            if waiting and again.lost_ns < -waiting[0][0]:
                heapq.heappush(waiting, (-again.lost_ns, length, first, again))
                continue
            candidate = again
        for one in range(length):
            claimed[begins + one] = True
        found += 1
        yield candidate


def _candidates(row: _Row) -> Iterator[_Sequence]:
    """Yield sequences that could be one kernel; of rotations of one loop only the tightest."""
    tightest: dict[tuple[int, ...], tuple[float, int, Ints]] = {}
    for length, place, number in repeated(
        row.token, row.part, shortest=SHORTEST, longest=LONGEST, more_than=OFTEN
    ):
        heavy = np.sum([row.heavy[place + one] for one in range(length)], axis=0) <= 1
        order = np.lexsort((place, number))
        order = order[heavy[order]]
        borders = np.flatnonzero(np.diff(number[order])) + 1
        for begins in np.split(place[order], borders):
            if len(begins) <= OFTEN:
                continue
            tokens = row.token[begins[0] : begins[0] + length].tolist()
            again = period(tokens)
            if again < length and float(np.mean(np.diff(begins) == again)) > MOST:
                continue  # turns of a loop: what comes again within it is the sequence
            whole = begins[apart(begins, length)]
            turned = first_rotation(tokens)
            each = float(np.mean(row.end_ns[whole + length - 1] - row.start_ns[whole]))
            if turned not in tightest or each < tightest[turned][0]:
                tightest[turned] = each, length, whole
    for _, length, begins in tightest.values():
        if (judged := _judged(row, length, begins)) is not None:
            yield judged


def _judged(row: _Row, length: int, begins: Ints) -> _Sequence | None:
    """Return a sequence if it comes often enough, and something is to be had."""
    if len(begins) <= OFTEN:
        return None
    sums = row.of(begins, length)
    elapsed, busy = int(sums.elapsed_ns.sum()), int(sums.busy_ns.sum())
    lost = int(sums.lost_ns.sum())
    ratio = np.mean([row.moving[begins + one] for one in range(length)])
    moves = bool(ratio > MOVING)  # not where one of them has no counter
    if not lost or not (moves or busy < BUSY_SHARE * elapsed):
        return None
    if not moves and row.case.share(lost) < LEAST_SHARE:
        return None
    longest = int(sums.longest_ns.sum())
    return _Sequence(length, begins, lost, elapsed, busy, longest, moves)
