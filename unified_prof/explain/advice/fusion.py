"""An optimizer that updates one parameter after the other.

Sequences that come again and again in a row of things: of kernels, what could be one.

Sequences of short kernels that come again and again: each could be one kernel.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.types import Ints
from unified_prof.explain.advice.device_context import Case, Flags
from unified_prof.explain.advice.idle_rows import LEAST_SHARE, ROWS, WARMING_UP, WARN_SHARE, percent
from unified_prof.explain.advice.kernel_rules import computing, highest_ratio, on_ai_cpu
from unified_prof.explain.basic_breakdowns import in_words
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.framework import NOT_ATTRIBUTED, OTHER_PASS
from unified_prof.recording.idle import HOST, LAUNCHED, NOT_KNOWN
from unified_prof.recording.model import Evidence, Finding

UNFUSED_OPTIMIZER = "unfused_optimizer"

OPTIMIZER_SHARE = 0.05
"""Of the time: its kernels and what the device waits for between them."""
MANY = 100
"""Kernels (or operations) of one step: foreach and fused optimizers need a few dozen."""
TOGETHER = 0.5
"""Share of kernels that update many parameters at once, from which it is fused enough."""

_TOGETHER = re.compile(r"multi_tensor|fused|foreach|apply_?(?:adam|momentum)", re.IGNORECASE)
_STEP = re.compile(r"^Optimizer\.step")


def unfused_optimizer(case: Case) -> Iterator[Finding]:
    """Many small kernels below an optimizer's step, and a device that waits for each."""
    if case.device is None:
        yield from _on_host(case)
        return
    pieces, work = case.pieces, case.recording.work
    mine = (work.launches[1][pieces.row] == OTHER_PASS) & (pieces.kind == KERNEL)
    count = int(mine.sum())
    if count < MANY * case.step_count:
        return
    together = mine & (case.named(case.kernel, _TOGETHER) | case.named(case.operator, _TOGETHER))
    if together.sum() >= TOGETHER * count:
        return
    own = np.zeros(len(work), bool)
    own[pieces.row[mine]] = True
    cost = case.starved_ns(own)
    busy = case.within(pieces.start_ns[mine], pieces.end_ns[mine]).total_ns
    share = case.share(busy + cost)
    if share < OPTIMIZER_SHARE or case.share(cost) < WARN_SHARE:
        return
    yield case.finding(
        UNFUSED_OPTIMIZER,
        cost,
        f"the optimizer takes {percent(share)} of the time in {count // case.step_count:,} kernels "
        f"a step, and the device waits for the host between them",
        advice="fused=True or foreach=True of the optimizer (torch_npu: NpuFusedAdamW and others)",
        sure="certain",
        figures={"kernels": count, "busy_ns": busy, "idle_ns": cost, "share": round(share, 4)},
        evidence=case.rows(np.flatnonzero(mine)),
    )


def _on_host(case: Case) -> Iterator[Finding]:
    framework = case.recording.framework
    assert framework is not None
    steps = framework.matching(lambda name: bool(_STEP.match(name)))
    steps = steps[case.inside(framework.start_ns[steps])]
    if not len(steps):
        return
    whole = case.within(framework.start_ns[steps], framework.end_ns[steps])
    calls = framework.calls
    last = np.searchsorted(whole.start_ns, framework.start_ns[calls], side="right") - 1
    calls = calls[(last >= 0) & (framework.start_ns[calls] < np.append(whole.end_ns, 0)[last])]
    texts, number = framework.names(calls)
    together = np.array([bool(_TOGETHER.search(text)) for text in [*texts, ""]])[number]
    if len(calls) < MANY * case.step_count or together.sum() >= TOGETHER * len(calls):
        return
    working = intervals.merge(framework.start_ns[calls], framework.end_ns[calls])
    cost = intervals.subtract(whole, working).total_ns
    share = case.share(whole.total_ns)
    if share < OPTIMIZER_SHARE or case.share(cost) < WARN_SHARE:
        return
    yield case.finding(
        UNFUSED_OPTIMIZER,
        cost,
        f"the optimizer takes {percent(share)} of the time in {len(calls) // case.step_count:,} "
        "operations a step; between them only Python runs",
        advice="fused=True or foreach=True of the optimizer",
        sure="certain",
        figures={"operations": len(calls), "between_ns": cost, "share": round(share, 4)},
    )


def repeated(
    token: Ints, segment: Ints, *, shortest: int, longest: int, more_than: int
) -> Iterator[tuple[int, Ints, Ints]]:
    """Find the sequences of some lengths that occur more often than a number of times.

    Args:
        token: what each thing of the row is.
        segment: the part of the row that each is in, in rising order; no sequence leaves its part.
        shortest: things in a sequence, at least.
        longest: at most.
        more_than: how often a sequence occurs at least, and once more.

    Yields:
        The length, and where sequences of that length begin, and which of them each is. They may
        overlap.
    """
    if not len(token):
        return
    code = np.unique(token, return_inverse=True)[1].astype(np.int64)
    until = np.searchsorted(segment, segment, side="right")
    many = int(code.max()) + 1
    place, number = np.arange(len(token)), code
    for length in range(1, longest + 1):
        if length > 1:
            inside = place + length <= until[place]
            place, number = place[inside], number[inside]
            longer = number * many + code[place + length - 1]
            number = np.unique(longer, return_inverse=True)[1].astype(np.int64)
        if not len(place):
            return
        # A sequence that is rare makes no longer one that is not.
        often = np.bincount(number)[number] > more_than
        place, number = place[often], number[often]
        if length >= shortest and len(place):
            yield length, place, number


def period(sequence: Sequence[int]) -> int:
    """Return after how many things a sequence begins anew; its length if it does not."""
    size = len(sequence)
    return next((one for one in range(1, size) if sequence[one:] == sequence[: size - one]), size)


def first_rotation(sequence: Sequence[int]) -> tuple[int, ...]:
    """Return the rotation of a sequence that all its rotations have in common."""
    turned = [(*sequence[at:], *sequence[:at]) for at in range(len(sequence))]
    return min(turned)


def apart(begins: Ints, length: int) -> Ints:
    """Return which of some sequences (numbers in rising `begins`) overlap none chosen before."""
    if not len(begins) or int(np.diff(begins).min(initial=length)) >= length:
        return np.arange(len(begins))
    chosen, free = [], 0
    for at, begin in enumerate(begins.tolist()):
        if begin >= free:
            chosen.append(at)
            free = begin + length
    return np.array(chosen, np.int64)


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
