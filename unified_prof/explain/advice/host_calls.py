"""Names of the host calls and functions in which time without device work passes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import EMPTY, IntervalSet
from unified_prof.explain.advice.device_context import FRAME, MIN_NAMED_GAP_NS, DeviceContext
from unified_prof.explain.advice.idle_segments import (
    COVERED_SHARE,
    EVIDENCE_ROWS,
    Flags,
    IdleSegments,
    evidence_row,
)
from unified_prof.recording.idle import LAUNCHED, SYNCHRONIZING
from unified_prof.recording.model import Evidence
from unified_prof.recording.recording import Recording

MIN_BEFORE_NS = 1_000_000  # Minimum time before the first device task to be mentioned.
MOST = 0.5  # Minimum share of an interval that the calls of one name take, to name them.


def call_with_place(recording: Recording, row: int) -> str:
    """Return the name of a call in `Recording.host_calls`, and the operation and line it is in."""
    calls, framework = recording.host_calls, recording.framework
    at = np.array([row])
    text = recording.strings.get(int(calls.name[at][0])) or "(unnamed call)"
    if framework is None:
        return text
    around = framework.places_at(calls.thread[at], calls.start_ns[at])
    if around[0] < 0:
        return text
    names, number = framework.names(around)
    stacks, stack = framework.stacks(around)
    line = (stacks[int(stack[0])] or "").rpartition("\n")[2]
    return f"{text} of {names[int(number[0])]}" + (f" at {line}" if line else "")


def longest_call(recording: Recording, gaps: IntervalSet) -> str | None:
    """Return the calls of one name that take most of the longest of some gaps; None if none do.

    None, too, with steps: their gaps are long steps.
    """
    if not len(gaps) or recording.steps:
        return None
    longest = int((gaps.end_ns - gaps.start_ns).argmax())
    start_ns, end_ns = int(gaps.start_ns[longest]), int(gaps.end_ns[longest])
    calls = recording.host_calls
    length_ns = np.minimum(calls.end_ns.to_array(), end_ns)
    length_ns -= np.maximum(calls.start_ns.to_array(), start_ns)
    rows = np.flatnonzero(length_ns > 0)
    if not len(rows):
        return None
    length_ns = length_ns[rows]
    _, number = np.unique(calls.name[rows], return_inverse=True)
    by_name = np.bincount(number, weights=length_ns)
    if by_name.max() < MOST * (end_ns - start_ns):
        return None
    same = number == by_name.argmax()
    return call_with_place(recording, int(rows[np.where(same, length_ns, 0).argmax()]))


def before_tasks(recording: Recording, device: str | None, analyzed_ns: int) -> IntervalSet:
    """Return the time of the host before the first task of a device, without steps.

    Empty if it is shorter than the analyzed time, or than a millisecond.
    """
    calls, framework = recording.host_calls, recording.framework
    if recording.steps or device is None or not len(calls):
        return EMPTY
    begin_ns = int(calls.start_ns.to_array().min())
    if framework is not None and len(framework):
        begin_ns = min(begin_ns, int(framework.start_ns.to_array().min()))
    until_ns = int(recording.devices[device].window.start_ns[0])
    if until_ns - begin_ns <= max(analyzed_ns, MIN_BEFORE_NS):
        return EMPTY
    return IntervalSet(np.array([begin_ns]), np.array([until_ns]))


LONG_NS = 1_000_000  # Longer gaps are not caused by launching: the host does something else.
# Functions in C: `<built-in method to of Tensor object>`; functions of torch are of a type object.
_BUILT_IN = re.compile(
    r"<built-in (?:function|method) (?P<function>\S+?)(?: of (?:type|(?P<owner>\w+)) object.*)?>"
)


def host_bound_segments(context: DeviceContext) -> Iterator[IdleSegments]:
    """Yield the idle time that the host causes and no other finding explains."""
    for idle, host_bound in context.host_bound_windows():
        # A short gap after a synchronization is its cost; a long one is work of the host.
        is_work = (idle.reason == SYNCHRONIZING) & (idle.task >= 0)
        is_work &= idle.length_ns >= MIN_NAMED_GAP_NS
        segments = idle.take(host_bound | is_work).without(context.claimed)
        if len(segments.task):
            yield segments


def _first_of_gap(task: NDArray[np.int32]) -> Flags:
    """Return a mask of the first segment of each gap."""
    return np.append(True, task[1:] != task[:-1])[: len(task)]


def host_bound_spans(context: DeviceContext) -> IntervalSet:
    """Return the idle time that the host causes and no other finding explains."""
    idle = IdleSegments.concatenate(list(host_bound_segments(context)))
    return intervals.merge(idle.start_ns, idle.end_ns)


class HostBoundGaps:
    """Sums of host-bound idle segments, and the longest gap before each operator.

    Attributes:
        idle_ns: Sum of all segments.
        latency_ns: Sum of those after a launch.
        gaps: Number of gaps.
        long: Number of segments of LONG_NS or more.
        long_ns: Sum of those.
    """

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self.idle_ns = self.latency_ns = self.gaps = self.long = self.long_ns = 0
        work = context.recording.work
        _ = work.operator_numbers  # Adds the names of operators to the labels.
        size = len(work.labels.texts)
        self._total_ns, self._count = np.zeros(size), np.zeros(size, np.int64)
        self._longest_ns, self._task, self._begin_ns = (np.zeros(size, np.int64) for _ in range(3))

    @property
    def longest_ns(self) -> int:
        """Length of the longest segment."""
        return int(self._longest_ns.max(initial=0))

    def add(self, idle: IdleSegments) -> None:
        """Add the segments of some complete gaps."""
        length, is_first = idle.length_ns, _first_of_gap(idle.task)
        is_long = length >= LONG_NS
        self.idle_ns += int(length.sum())
        self.latency_ns += int(length[idle.reason == LAUNCHED].sum())
        # One task may end several segments.
        self.gaps += int(is_first.sum())
        self.long += int(is_long.sum())
        self.long_ns += int(length[is_long].sum())
        operator = self._context.recording.work.operator[idle.task]
        size = len(self._count)
        self._total_ns += np.bincount(operator, length, minlength=size)
        self._count += np.bincount(operator[is_first], minlength=size)
        most = self._longest_ns.copy()
        np.maximum.at(most, operator, length)
        # From last to first, so that the first of several is kept.
        better = np.flatnonzero((length == most[operator]) & (length > self._longest_ns[operator]))
        better = better[::-1]
        at = operator[better]
        self._longest_ns[at], self._task[at] = length[better], idle.task[better]
        self._begin_ns[at] = idle.start_ns[better]

    def longest(self) -> Sequence[Evidence]:
        """Return the operations with the longest idle time before them, with their lines.

        Gaps that a Python function or an annotation covers have a row with its name and line, and
        the operation as `next`.
        """
        context = self._context
        rows: dict[tuple[str, str | None], dict[str, Any]] = {}
        operators: dict[tuple[str, str | None], list[int]] = {}  # That with the longest gaps first.
        # The launching operation is looked up once per kind of task; kinds with the same one are
        # merged.
        order = np.argsort(-self._total_ns, kind="stable")
        for number in order[: int((self._count > 0).sum())].tolist():
            name, line = context.recording.work.place(int(self._task[number]))
            start_ns = int(self._begin_ns[number])
            new_row = evidence_row(f"before {name}", 0, 0, start_ns, line=line)
            row = rows.setdefault((name, line), new_row)
            operators.setdefault((name, line), []).append(number)
            row["count"] += int(self._count[number])
            row["total_ns"] += int(self._total_ns[number])
        result = sorted(rows.values(), key=_by_time)[:EVIDENCE_ROWS]
        for key, row in rows.items():
            first = operators[key][0]
            start_ns, length_ns = int(self._begin_ns[first]), int(self._longest_ns[first])
            if row not in result[:EVIDENCE_ROWS] or length_ns < MIN_NAMED_GAP_NS:
                continue
            found = _covering_code(context, start_ns, start_ns + length_ns, int(self._task[first]))
            if found is None:
                continue
            text, place = found
            count, total_ns = self._covered(operators[key], text)
            row["count"] -= count
            row["total_ns"] -= total_ns
            covered = evidence_row(place["name"], count, total_ns, start_ns, line=place.get("line"))
            result.append({**covered, "next": key[0]})
        return sorted((row for row in result if row["count"]), key=_by_time)[:EVIDENCE_ROWS]

    def _covered(self, operators: Sequence[int], text: str) -> tuple[int, int]:
        """Return number and time of the gaps before operators that a function covers."""
        code = self._context.host_code
        rows = np.flatnonzero(code.number == code.texts.index(text))
        running = intervals.merge(code.start_ns[rows], code.end_ns[rows])
        count = total_ns = 0
        for segments in host_bound_segments(self._context):
            operator = self._context.recording.work.operator[segments.task]
            idle = segments.take(np.isin(operator, operators))
            begin, end, _, row = intervals.overlaps(
                running, IntervalSet(idle.start_ns, idle.end_ns)
            )
            gap = np.cumsum(_first_of_gap(idle.task)) - 1
            size = int(gap.max(initial=-1)) + 1
            length_ns = np.bincount(gap, idle.length_ns, minlength=size)
            covered = np.bincount(gap[row], end - begin, minlength=size)
            chosen = covered >= COVERED_SHARE * length_ns
            count, total_ns = count + int(chosen.sum()), total_ns + int(length_ns[chosen].sum())
        return count, total_ns


def _by_time(row: Mapping[str, Any]) -> int:
    return -int(row["total_ns"])


def _covering_code(
    context: DeviceContext, begin: int, end: int, task: int
) -> tuple[str, dict[str, str]] | None:
    """Return the Python function or annotation that covers most of a gap; None if there is none.

    It is its recorded text, and its name and line.

    Only the thread that launched the task after the gap counts; if nothing ran there, as before
    the backward pass, the thread of the steps.
    """
    calls = context.recording.host_calls
    call = calls.launching(context.recording.work.connection[task : task + 1])
    thread = int(calls.thread[call][0]) if call[0] >= 0 else None
    code = context.host_code
    covers = (code.covering(begin, end, one) for one in (thread, *context.step_threads))
    found = next(filter(None, covers), None)
    if found is None:
        return None
    # Functions in C and annotations have no line: the one of the function around them helps.
    frame = next(filter(None, map(FRAME.match, found)), None)
    own = FRAME.match(found[0])
    line = {} if frame is None else {"line": f"{frame['file']}:{frame['line']}"}
    name = own["name"] if own else found[0]
    if built_in := _BUILT_IN.fullmatch(name):
        name = ".".join(filter(None, (built_in["owner"], built_in["function"])))
    return found[0], {"name": name, **line}
