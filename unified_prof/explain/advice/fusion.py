"""Advice rules about kernels that could be fused: optimizers and repeated sequences."""

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

# Minimum share of the time, kernels and idle time between them included.
OPTIMIZER_SHARE = 0.05
# Minimum kernels (or operations) per step; foreach and fused optimizers need a few dozen.
MANY = 100
# Share of multi-tensor kernels from which an optimizer counts as fused.
TOGETHER = 0.5

_TOGETHER = re.compile(r"multi_tensor|fused|foreach|apply_?(?:adam|momentum)", re.IGNORECASE)
_STEP = re.compile(r"^Optimizer\.step")


def unfused_optimizer(case: Case) -> Iterator[Finding]:
    """Find many small kernels of an optimizer with idle time between them."""
    if case.device is None:
        yield from _on_host(case)
        return
    pieces, work = case.pieces, case.recording.work
    mine = (work.launches.passes[pieces.row] == OTHER_PASS) & (pieces.kind == KERNEL)
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
        f"unfused optimizer: {percent(share)} of the time, {count // case.step_count:,} "
        "kernels per step with host-bound idle time between them",
        advice=(
            "use fused=True or foreach=True of the optimizer (torch_npu: NpuFusedAdamW and others)"
        ),
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
        f"unfused optimizer: {percent(share)} of the time, "
        f"{len(calls) // case.step_count:,} operations per step with only Python between "
        "them",
        advice="use fused=True or foreach=True of the optimizer",
        sure="certain",
        figures={"operations": len(calls), "between_ns": cost, "share": round(share, 4)},
    )


def repeated(
    token: Ints, segment: Ints, *, shortest: int, longest: int, more_than: int
) -> Iterator[tuple[int, Ints, Ints]]:
    """Find sequences of tokens that occur more often than a given number of times.

    Args:
        token: Token at each position.
        segment: Ascending segment number of each position; no sequence crosses segments.
        shortest: Minimum length of a sequence.
        longest: Maximum length.
        more_than: A sequence must occur more often than this.

    Yields:
        Length, start positions of sequences of that length, and the sequence number of each. They
        may overlap.
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
        # A rare sequence is no prefix of a frequent one.
        often = np.bincount(number)[number] > more_than
        place, number = place[often], number[often]
        if length >= shortest and len(place):
            yield length, place, number


def period(sequence: Sequence[int]) -> int:
    """Return the period of a sequence; its length if it has none."""
    size = len(sequence)
    return next((one for one in range(1, size) if sequence[one:] == sequence[: size - one]), size)


def first_rotation(sequence: Sequence[int]) -> tuple[int, ...]:
    """Return the canonical rotation of a sequence."""
    turned = [(*sequence[at:], *sequence[:at]) for at in range(len(sequence))]
    return min(turned)


def apart(begins: Ints, length: int) -> Ints:
    """Return a mask of sequences (ascending `begins`) that overlap no selected earlier one."""
    if not len(begins) or int(np.diff(begins).min(initial=length)) >= length:
        return np.arange(len(begins))
    chosen, free = [], 0
    for at, begin in enumerate(begins.tolist()):
        if begin >= free:
            chosen.append(at)
            free = begin + length
    return np.array(chosen, np.int64)


FUSIBLE_SEQUENCES = "fusible_sequences"

# Length of a sequence in kernels (MindStudio advisor's range).
SHORTEST, LONGEST = 3, 10
# A sequence must occur more often than this (MindStudio advisor's threshold).
OFTEN = 5
# Below this busy share, a sequence is launch-bound (MindStudio advisor's threshold).
BUSY_SHARE = 0.4
# Share of time spent moving data from which a sequence is memory-bound (MindStudio advisor's
# threshold).
MOVING = 0.8
# If more than this share of occurrences overlap the next, they are iterations of a loop.
MOST = 0.5
# A gap of this many median gaps and kernels is not a launch gap and splits sequences.
PAUSE = 10.0
# Maximum number of candidates to evaluate, most promising first.
_TRIED = 200

_MOVES = re.compile(r"^(?:ai[cv]_)?mte[23]_ratio\w*$")


def fusible_sequences(case: Case) -> Iterator[Finding]:
    """Find kernels that follow one another in the same order more than five times."""
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
    where = "" if row.has_modules else "; their module was not recorded"
    moving = sum(one.moves for one in found)
    said = f"; {moving} memory-bound" if moving else ""
    yield case.finding(
        FUSIBLE_SEQUENCES,
        cost,
        f"{many} of {kernels} kernels {come} repeatedly ({count:,} times in total) and "
        f"{'takes' if len(found) == 1 else 'take'} {share} of the time from first to last "
        f"kernel: candidates for fusion{said}{where}",
        advice="use torch.compile on the module, or a fused operation (torch_npu: npu_rms_norm, "
        "npu_swiglu, npu_rotary_mul and others)",
        sure="possible",
        figures={
            "sequences": [one.figures(row) for one in found],
            "elapsed_ns": elapsed,
            "busy_ns": sum(one.busy_ns for one in found),
        },
        evidence=[one.evidence(row) for one in found],
    )


class _Row:
    """Kernels of a device, by stream and start time."""

    def __init__(self, case: Case) -> None:
        self.case = case
        pieces = case.pieces
        self._module, self.has_modules = _modules(case)
        ordered = np.lexsort((pieces.start_ns, pieces.stream))
        usable = (pieces.kind == KERNEL) & ~on_ai_cpu(case) & (self._module >= 0)
        if case.recording.framework is not None:
            # Optimizer kernels have their own rule.
            usable &= case.recording.work.launches.passes[pieces.row] != OTHER_PASS
        cut = ~usable[ordered]
        cut[1:] |= np.diff(pieces.stream[ordered]) != 0
        cut[1:] |= (np.diff(self._module[ordered]) != 0) | cut[:-1]
        cut |= _pauses(pieces.start_ns[ordered], pieces.end_ns[ordered])
        part = np.cumsum(cut)
        kept = usable[ordered]
        # Index of each kernel among the device tasks.
        self.at: Ints = ordered[kept].astype(np.int64)
        self.part: Ints = part[kept].astype(np.int64)
        self.token: Ints = case.operator[self.at].astype(np.int64)
        self.start_ns, self.end_ns = pieces.start_ns[self.at], pieces.end_ns[self.at]
        self.length_ns = pieces.length_ns[self.at]

    @cached_property
    def heavy(self) -> Flags:
        """Mask of matrix kernels and similar, two of which cannot be fused."""
        return computing(self.case)[self.at]

    @cached_property
    def moving(self) -> NDArray[np.float64]:
        """Share of its time that each kernel moves data; NaN without counters."""
        if "TASK_PMU_INFO" not in self.case.recording.source.tables:
            return np.full(len(self.at), np.nan)
        return highest_ratio(self.case, _MOVES)[self.at]

    @cached_property
    def _own(self) -> dict[int, intervals.IntervalSet]:
        """Return the intervals in which only a stream's own kernels and launches took time."""
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
    # Time from the first kernel's start to the last one's end, without unrelated tasks.
    elapsed_ns: Ints
    busy_ns: Ints
    longest_ns: Ints

    @property
    def lost_ns(self) -> Ints:
        """Time saved per occurrence by one kernel as long as the longest.

        Occurrences that take much longer than usual have another cause and are limited.
        """
        lost = np.maximum(self.elapsed_ns - self.longest_ns, 0)
        usual: Ints = np.minimum(lost, int(WARMING_UP * np.median(lost)))
        return usual


@dataclass(frozen=True, slots=True, eq=False)
class _Sequence:
    """A repeated sequence and its occurrences."""

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
        """Return the figures of the sequence as plain data."""
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
        """Return the sequence as a row of evidence."""
        _, line = self._place(row)
        told = {
            "name": self._kernels(row),
            "count": len(self.begins),
            "total_ns": self.lost_ns,
            "start_ns": int(row.start_ns[self.begins[0]]),
        }
        return told if line is None else {**told, "line": line}


def _modules(case: Case) -> tuple[Ints, bool]:
    """Return the module index of each task (-1 if unknown), and whether any is known."""
    framework, pieces = case.recording.framework, case.pieces
    nowhere = np.zeros(len(pieces), np.int64)
    if framework is None:
        return nowhere, False
    paths, number = framework.modules(case.recording.work.launches.call[pieces.row])
    if not {*paths} - {None, NOT_ATTRIBUTED}:
        return nowhere, False
    known = np.array([path != NOT_ATTRIBUTED for path in paths])[number]
    return np.where(known, number, -1).astype(np.int64), True


def _pauses(start_ns: Ints, end_ns: Ints) -> Flags:
    """Return a mask of tasks after gaps that launching does not explain."""
    if not len(start_ns):
        return np.zeros(0, np.bool_)
    gap = np.append(0, np.maximum(start_ns[1:] - end_ns[:-1], 0))
    usual = max(float(np.median(gap)), float(np.median(end_ns - start_ns)))
    found: Flags = gap > PAUSE * usual
    return found


def _chosen(row: _Row) -> Iterator[_Sequence]:
    """Yield the most expensive sequences without common kernels."""
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
    """Yield candidate sequences; of rotations of one loop only the one with the smallest gaps."""
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
    """Return a sequence if it occurs often enough and fusing it saves time."""
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
