"""Host threads and idle intervals for the timeline of a report.

If a recording has too many ranges to draw, one part of the time has all its ranges, and the rest
has only the longest; the ranges left out are counted. Of Python functions, those in the user's
files are drawn and the others counted. Idle lanes have all gaps, or only the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import NOWHERE, Bools, Frame, Ints, Lookup, by_key
from unified_prof.arrays.packed import Values
from unified_prof.recording.calls import Labels
from unified_prof.recording.framework import Framework
from unified_prof.recording.host_calls import HostCalls
from unified_prof.recording.idle_time import IdleTime
from unified_prof.recording.python_frames import (
    MODULE_PREFIX,
    PythonCalls,
    user_frame,
    without_common_folder,
)
from unified_prof.recording.source import Strings, possible
from unified_prof.recording.timeline import Timeline

KINDS = ("host operation", "annotation", "runtime call", "Python function")
OPERATION, ANNOTATION, CALL, PYTHON = range(len(KINDS))
_WINDOW = 131_072
_MAX_DEPTH = 15
_MAX_ROWS = 64  # Maximum number of rows of all threads.
_NEAR = 10  # Ranges further from the device tasks than this share of the tasks' time are left out.
_MIN_WORK_NS = 1_000_000  # Minimum time of the device tasks for this limit to apply.


@dataclass(frozen=True, slots=True, eq=False)
class HostRow(Frame):
    """Ranges of one thread at one depth, in order of time."""

    start_ns: Ints  # Unix time.
    duration_ns: Ints
    label: NDArray[np.integer]
    kind: NDArray[np.int8]
    call: Ints  # Row in CANN_API, NOWHERE for other ranges.


class HostThread(Struct, frozen=True, eq=False):
    """One thread: its rows, outermost ranges first."""

    name: str
    rows: tuple[HostRow, ...]


class HostThreads(Struct, frozen=True, eq=False):
    """Threads, sorted by number of launches, then by number of ranges."""

    start_ns: int  # Unix time of the first range.
    end_ns: int
    labels: tuple[str, ...]
    threads: tuple[HostThread, ...]
    ranges: int  # Number of ranges in this time, without Python functions of installed packages.
    drawn: int
    longer_than_ns: int  # Outside `whole_ns`, only longer ranges are included; 0: all are.
    # Unix times between which all ranges are included, if some are left out elsewhere.
    whole_ns: tuple[int, int] | None
    outside: int  # Number of ranges left out because they are far from the work.
    python_frames: int  # Number of calls of functions of installed packages, which are left out.
    threads_left_out: int
    # For each lane of the timeline: index of the launching call of each block among all ranges,
    # thread by thread and row by row; NOWHERE if it is not included, and for merged blocks.
    launched_by: tuple[Ints, ...]


def build(
    framework: Framework | None,
    calls: HostCalls,
    frames: PythonCalls,
    strings: Strings,
    work: Timeline | None,
    steps: list[tuple[str, int, int]],
    limit: int,
) -> HostThreads | None:
    """Return the threads of a recording, None if nothing was recorded on the host.

    The device timeline `work` sets the time window; None: the time of all ranges. Steps are (name,
    start, end), `limit` is the maximum number of ranges.
    """
    time = _time(calls, work, steps)
    tables = [_calls_table(calls, strings), _frames_table(frames, time)]
    if framework is not None:
        tables.append(_framework_table(framework))
    rows = _Rows(tables, time)
    if not rows.count:
        return None
    longer_than, whole = 0, None
    if rows.count > limit:
        in_part = (limit + 1) // 2
        whole = rows.part(_part_start(calls, work, rows), in_part)
        longer_than = rows.longer_than(whole, limit - in_part)
    kept = rows.kept(whole, longer_than)
    threads, left_out, labels = _threads(tables, kept, calls, work)
    shown = [row for thread in threads for row in thread.rows]
    if not shown:
        return None
    lanes = () if work is None else work.lanes
    place = Lookup(np.concatenate([row.call for row in shown]))

    def launched_by(connection: Ints) -> Ints:
        call = _launching(calls, connection)
        return np.where(call == NOWHERE, NOWHERE, place.rows(call).astype(np.int64))

    return HostThreads(
        start_ns=min(int(row.start_ns[0]) for row in shown),
        end_ns=max(int((row.start_ns + row.duration_ns).max()) for row in shown),
        labels=tuple(labels.texts),
        threads=tuple(threads),
        ranges=rows.count,
        drawn=sum(map(len, shown)),
        longer_than_ns=longer_than,
        whole_ns=whole,
        outside=rows.outside,
        python_frames=sum(table.left_out for table in tables),
        threads_left_out=left_out,
        launched_by=tuple(
            np.where(lane.count == 1, launched_by(lane.connection), NOWHERE) for lane in lanes
        ),
    )


def _launching(calls: HostCalls, connection: Ints) -> Ints:
    """Return the row in CANN_API that launched each device task, or NOWHERE."""
    row = calls.launching(connection).astype(np.int64)
    row[connection < 0] = NOWHERE
    return row


def _time(
    calls: HostCalls, work: Timeline | None, steps: list[tuple[str, int, int]]
) -> tuple[int, int] | None:
    """Return the time window of device tasks, launches and steps; None without tasks."""
    if work is None:
        return None
    begins, ends = [work.start_ns], [work.start_ns + work.duration_ns]
    row = _launching(calls, np.concatenate([lane.connection for lane in work.lanes]))
    row = row[row != NOWHERE]
    started, ended = calls.start_ns[row], calls.end_ns[row]
    usable = possible(started, ended - started) & (started > 0)
    begins += started[usable].tolist()
    ends += ended[usable].tolist()
    begins += [begin for _, begin, _ in steps]
    ends += [end for *_, end in steps]
    return min(begins), max(ends)


def _part_start(calls: HostCalls, work: Timeline | None, rows: _Rows) -> int:
    """Return where the part with all ranges begins: at the launches of the timeline's whole part.

    If all device tasks are drawn, the part starts with the middle launch.
    """
    if work is not None:
        start = np.concatenate([lane.start_ns for lane in work.lanes])
        row = _launching(calls, np.concatenate([lane.connection for lane in work.lanes]))
        begin, end = work.whole_ns or (0, work.duration_ns + 1)
        chosen = row[(row != NOWHERE) & (start >= begin) & (start < end)]
        if len(chosen):
            launched = np.sort(calls.start_ns[chosen])
            return int(launched[0 if work.whole_ns else len(launched) // 2])
    first, last = rows.span()
    return (first + last) // 2


class _Table(NamedTuple):
    """Host ranges of one kind of source."""

    thread: Values
    start_ns: Values  # Unix time.
    end_ns: Values
    usable: Callable[[slice], Bools]  # Mask of the ranges that can be drawn.
    # Distinct names, and the index for each row.
    names: Callable[[Ints], tuple[list[str], NDArray[np.integer]]]
    kinds: Callable[[Ints], Ints]  # Index in `KINDS` for each row.
    left_out: int = 0  # Number of Python functions that are not drawn.


def _calls_table(calls: HostCalls, strings: Strings) -> _Table:
    def names(rows: Ints) -> tuple[list[str], NDArray[np.integer]]:
        ids, number = calls.names
        return [text or "(unnamed)" for text in strings.texts(ids)], number[rows]

    kinds = np.full(len(calls), CALL, np.int8)
    return _Table(
        calls.thread,
        calls.start_ns,
        calls.end_ns,
        lambda rows: _valid(calls.start_ns[rows], calls.end_ns[rows]),
        names,
        kinds.__getitem__,
    )


def _valid(start: Ints, end: Ints) -> Bools:
    """Return a mask of the possible times; damaged recordings have others."""
    with np.errstate(over="ignore"):
        return possible(start, end - start) & (start > 0)


def _frames_table(frames: PythonCalls, time: tuple[int, int] | None) -> _Table:
    is_user = np.array([bool(user_frame(text)) for text in frames.texts] or [False])
    is_module = np.array([text.startswith(MODULE_PREFIX) for text in frames.texts] or [False])
    texts = _shortened(frames.texts, np.flatnonzero(is_user))
    drawn = (is_user | is_module)[frames.name]
    if time is not None:
        # The function that runs the whole job says nothing about any part of it.
        drawn &= (frames.start_ns > time[0]) | (frames.end_ns < time[1])
    return _Table(
        frames.thread,
        frames.start_ns,
        frames.end_ns,
        lambda rows: drawn[rows] & _valid(frames.start_ns[rows], frames.end_ns[rows]),
        lambda rows: (texts, frames.name[rows]),
        lambda rows: np.full(len(rows), PYTHON),
        int((~drawn).sum()),
    )


def _framework_table(framework: Framework) -> _Table:
    is_user, is_annotation = framework.is_user_frame, framework.is_annotation
    left_out = framework.is_python_frame & ~is_user

    def names(rows: Ints) -> tuple[list[str], NDArray[np.integer]]:
        texts, number = framework.names(rows)
        return _shortened(texts, np.unique(number[is_user[rows]])), number

    def kinds(rows: Ints) -> Ints:
        other = np.where(is_annotation[rows], ANNOTATION, OPERATION)
        return np.where(is_user[rows], PYTHON, other)

    return _Table(
        framework.thread,
        framework.start_ns,
        framework.end_ns,
        lambda rows: ~left_out[rows],
        names,
        kinds,
        int(left_out.sum()),
    )


def _shortened(texts: list[str], frames: Ints) -> list[str]:
    """Return the names, those of frames without the folder that contains all their files."""
    result = list(texts)
    used = frames.tolist()
    for at, text in zip(used, without_common_folder([texts[at] for at in used]), strict=True):
        result[at] = text
    return result


class _Rows:
    """All host ranges, read in windows."""

    def __init__(self, tables: list[_Table], time: tuple[int, int] | None) -> None:
        self._tables, self._time = tables, time
        self.count = self.outside = 0
        for _, inside, usable in self._windows():
            self.count += int(inside.sum())
            self.outside += int((usable & ~inside).sum())

    def span(self) -> tuple[int, int]:
        """Return the first start and the last end."""
        spans = [
            (int(start[inside].min()), int(end[inside].max()))
            for (start, end, _), inside, _ in self._windows()
            if inside.any()
        ]
        return min(begin for begin, _ in spans), max(end for _, end in spans)

    def part(self, begin: int, count: int) -> tuple[int, int]:
        """Return the time from `begin` in which at most `limit` ranges start."""
        first = np.zeros(0, np.int64)
        for (start, _, _), inside, _ in self._windows():
            first = np.concatenate((first, start[inside & (start >= begin)]))
            if len(first) > count + 1:
                first = np.partition(first, count)[: count + 1]
        return begin, int(first.max()) if len(first) > count else int(first.max(initial=begin)) + 1

    def longer_than(self, whole: tuple[int, int], count: int) -> int:
        """Return a duration that at most `limit` ranges outside the part exceed."""
        longest = np.zeros(0, np.int64)
        for (start, end, _), inside, _ in self._windows():
            chosen = inside & ~((start >= whole[0]) & (start < whole[1]))
            longest = np.concatenate((longest, (end - start)[chosen]))
            if len(longest) > count + 1:
                longest = np.partition(longest, len(longest) - count - 1)[-count - 1 :]
        return int(longest.min()) if len(longest) > count else 0

    def kept(self, whole: tuple[int, int] | None, longer_than: int) -> list[Ints]:
        """Return the rows of each table that start in `whole` or are longer than `longer_than`.

        All rows are returned if `whole` is None.
        """
        result: list[list[Ints]] = [[np.zeros(0, np.int64)] for _ in self._tables]
        for (start, end, (number, low)), inside, _ in self._windows():
            if whole is not None:
                in_part = (start >= whole[0]) & (start < whole[1])
                inside = inside & (in_part | (end - start > longer_than))
            result[number].append(np.flatnonzero(inside) + low)
        return [np.concatenate(parts) for parts in result]

    def _windows(self) -> Iterator[tuple[tuple[Ints, Ints, tuple[int, int]], Bools, Bools]]:
        """Yield (start, end, (table, first row)), and masks of what to draw and what is usable."""
        for number, table in enumerate(self._tables):
            for low in range(0, len(table.start_ns), _WINDOW):
                own = slice(low, low + _WINDOW)
                start, end = (
                    values[own].astype(np.int64, copy=False)
                    for values in (table.start_ns, table.end_ns)
                )
                usable = table.usable(own)
                yield (start, end, (number, low)), usable & self._within(start, end), usable

    def _within(self, start: Ints, end: Ints) -> Bools:
        if self._time is None:
            return np.ones(len(start), bool)
        first, last = self._time
        # Ranges that reach far outside would stretch the timeline; distant ranges are of little
        # use.
        far = max(last - first, _MIN_WORK_NS)
        near = far // _NEAR
        result: Bools = (start >= first - far) & (end <= last + far)
        result &= (end >= first - near) & (start <= last + near)
        return result


def _threads(
    tables: list[_Table], kept: list[Ints], calls: HostCalls, work: Timeline | None
) -> tuple[list[HostThread], int, Labels]:
    """Return the ranges by thread and depth, the number of threads left out, and the names."""
    labels = Labels()
    thread, start, end = (
        np.concatenate([values[rows] for values, rows in zip(columns, kept, strict=True)])
        for columns in zip(*(table[:3] for table in tables), strict=True)
    )
    own = list(zip(tables, kept, strict=True))
    label = []
    for table, rows in own:
        texts, which = table.names(rows)
        used = np.unique(which)
        numbers = np.zeros(len(texts), np.int64)
        numbers[used] = labels.numbers([texts[one] for one in used.tolist()])
        label.append(numbers[which])
    kind = [table.kinds(rows) for table, rows in own]
    call = np.full(len(start), NOWHERE, np.int64)
    call[: len(kept[0])] = kept[0]
    # Python functions have rows of their own: they are often nested more deeply than operations.
    ids, place = np.unique(thread, return_inverse=True)
    group = 2 * place + (np.concatenate(kind) != PYTHON)
    order = intervals.call_order(group, start, end, rank=(call != NOWHERE).astype(np.int64))
    group, start, end, call = group[order], start[order], end[order], call[order]
    names, kinds = np.concatenate(label)[order], np.concatenate(kind).astype(np.int8)[order]
    depth = intervals.depths(intervals.parents(group, start, end))
    # At the maximum depth, only calls that may have launched tasks are included.
    drawn = (depth <= _MAX_DEPTH) | (call != NOWHERE)
    depth = np.minimum(depth, _MAX_DEPTH)
    launched = np.zeros(0, np.int64)
    if work is not None:
        launched = _launching(calls, np.concatenate([lane.connection for lane in work.lanes]))
    launches = np.isin(call, launched) & (call != NOWHERE)
    weighed = []
    for number, rows in by_key(group // 2):
        of_thread = rows[drawn[rows]]
        weighed.append((-int(launches[of_thread].sum()), -len(of_thread), int(number), of_thread))
    weighed.sort(key=lambda one: one[:3])
    processes = {thread >> 32 for thread in ids.tolist() if thread > 0}
    shown: list[HostThread] = []
    room, left_out = _MAX_ROWS, 0
    for *_, number, of_thread in weighed:
        parts = [
            of_thread[at] for _, at in by_key(2 * _MAX_DEPTH * group[of_thread] + depth[of_thread])
        ]
        if shown and len(parts) > room:
            left_out += 1
            continue
        room -= len(parts)
        name = _name(int(ids[number]), several=len(processes) > 1)
        for title, is_python in ((f"{name} Python", True), (name, False)):
            own_rows = tuple(
                HostRow(start[at], end[at] - start[at], names[at], kinds[at], call[at])
                for at in parts
                if (kinds[at[0]] == PYTHON) == is_python
            )
            if own_rows:
                shown.append(HostThread(title, own_rows))
    return shown, left_out, labels


def _name(thread: int, *, several: bool) -> str:
    """Return the name of a thread, with its process if there are several processes."""
    if thread <= 0:
        return "host"
    process, own = thread >> 32, thread & 0xFFFFFFFF
    return f"process {process} thread {own}" if several and process else f"thread {own}"


class IdleLane(Struct, frozen=True, eq=False):
    """Idle intervals of one device, in order of time and without overlaps."""

    device: str
    start_ns: Ints  # Unix time.
    duration_ns: Ints
    reason: NDArray[np.int8]  # Index in `idle.REASONS`.
    longer_than_ns: int  # Gaps of at most this length are left out; 0: all are included.
    left_out: int
    left_out_ns: int

    def __len__(self) -> int:
        return len(self.start_ns)


def build_idle_lanes(
    idle_time: IdleTime, devices: Sequence[str], limit: int
) -> tuple[IdleLane, ...]:
    """Return a lane for each device; no lanes without host data.

    `limit` is the maximum number of gaps, divided equally among the devices.
    """
    if not idle_time.has_reasons:
        return ()
    each = max(1, limit // max(1, len(devices)))
    lanes = [_lane(idle_time, device, each) for device in devices]
    return tuple(lane for lane in lanes if len(lane) or lane.left_out)


def _lane(idle_time: IdleTime, device: str, limit: int) -> IdleLane:
    longest, count, total = np.zeros(0, np.int64), 0, 0
    for part in idle_time.parts(device):
        length = part.end_ns - part.start_ns
        count, total = count + len(length), total + int(length.sum())
        longest = np.concatenate((longest, length))
        if len(longest) > limit + 1:
            longest = np.partition(longest, len(longest) - limit - 1)[-limit - 1 :]
    longer_than = int(longest.min()) if count > limit else 0
    starts, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    reasons = [np.zeros(0, np.int8)]
    for part in idle_time.parts(device):
        length = part.end_ns - part.start_ns
        long = length > longer_than
        starts.append(part.start_ns[long])
        lengths.append(length[long])
        reasons.append(part.reason[long])
    start, duration = np.concatenate(starts), np.concatenate(lengths)
    return IdleLane(
        device=device,
        start_ns=start,
        duration_ns=duration,
        reason=np.concatenate(reasons),
        longer_than_ns=longer_than,
        left_out=count - len(start),
        left_out_ns=total - int(duration.sum()),
    )
