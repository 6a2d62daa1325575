"""Gaps of the devices of a recording, the calls that `idle.explain` needs, and sums by reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.packed import BLOCK, Packed, Packing
from unified_prof.recording import names
from unified_prof.recording.calls import COPY, Labels
from unified_prof.recording.device import DeviceWork, StepWindows, TimeSlice
from unified_prof.recording.device_tasks import Work
from unified_prof.recording.framework import Framework
from unified_prof.recording.host_calls import HostCalls
from unified_prof.recording.idle import (
    BLOCKED_SHARE,
    HOST,
    IN_WORDS,
    LATE_NS,
    LAUNCHED,
    REASONS,
    UNRECORDED,
    DeviceTasks,
    HostSide,
    IdleReasons,
    Segments,
    explain,
    totals,
    unexplained,
)
from unified_prof.recording.model import Row
from unified_prof.recording.source import Source, Strings, possible
from unified_prof.recording.steps import Steps
from unified_prof.recording.task_order import GapEnds, tasks_after_waits
from unified_prof.recording.tasks import WAIT, Tasks

WINDOW = BLOCK  # Gaps, or tasks, per window.
LONG = 0.01  # Gaps longer than this share of the analyzed time are stored.
_STREAM_WAIT = "stream wait"
_NOWHERE = -1


class _AnalyzedDevice(Struct, frozen=True):
    """One device and its analyzed time."""

    number: int | None
    device: DeviceWork
    windows: StepWindows | None

    @property
    def window(self) -> intervals.IntervalSet:
        """The analyzed time: the steps, else the window."""
        return self.device.window if self.windows is None else self.windows.all


class IdleTime:
    """Idle time by reason of each device, in its steps, else in its window."""

    def __init__(
        self,
        source: Source,
        strings: Strings,
        tasks: Tasks,
        work: Work,
        framework: Framework | None,
        calls: HostCalls,
    ) -> None:
        self._calls = calls
        self._source, self._strings, self._tasks = source, strings, tasks
        self._work, self._framework = work, framework
        # Synchronizing calls; the calling source line follows after a newline.
        self._labels = Labels()
        self._devices: dict[str, _AnalyzedDevice] = {}
        self._parts: dict[str, _Reasons] = {}
        self._long: dict[str, list[IntervalSet]] = {}

    def add(
        self, name: str, number: int | None, device: DeviceWork, windows: StepWindows | None
    ) -> None:
        """Add a device; `number` None is the only device."""
        self._devices[name] = _AnalyzedDevice(number, device, windows)

    def segments(self, name: str) -> Segments:
        """Return the idle intervals of a device; `next_task` has indexes into all work."""
        return Segments.concatenate(list(self.parts(name)))

    def called(self, sync: int) -> tuple[str, str | None]:
        """Return the name and the calling source line of a synchronizing call of `host`."""
        called, _, line = self._labels.texts[int(self.host.sync_label[sync])].partition("\n")
        return called, line or None

    def totals(self, steps: Steps, windows: Mapping[str, StepWindows]) -> list[IdleReasons]:
        """Return the idle time of each device by reason, first in total, then for each step."""
        result: list[IdleReasons] = []
        for name in self._devices:
            own = windows.get(name)
            of_device = None
            if own is not None:
                times = zip(steps, own.start_ns.tolist(), own.end_ns.tolist(), strict=True)
                of_device = [(step, begin, end) for (step, _, _), begin, end in times]
            result += totals(name, self.parts(name), of_device)
        return result

    def rows(self) -> list[Row]:
        """Return one row for each reason, and for each synchronizing call with its source line."""
        found: dict[tuple[int, int], list[int]] = {}
        labels = self.host.sync_label if self.has_reasons else np.zeros(0, np.int64)
        many = len(labels) + 1
        for segments in (part for device in self._devices for part in self.parts(device)):
            length = segments.end_ns - segments.start_ns
            label = np.append(labels, _NOWHERE)[segments.sync].astype(np.int64)
            keys, number = np.unique(
                segments.reason.astype(np.int64) * many + label + 1, return_inverse=True
            )
            longest = np.zeros(len(keys), np.int64)
            np.maximum.at(longest, number, length)
            count = np.bincount(number, minlength=len(keys)).tolist()
            total = np.bincount(number, weights=length, minlength=len(keys)).tolist()
            for key, *own in zip(keys.tolist(), count, total, longest.tolist(), strict=True):
                sums = found.setdefault((key // many, key % many - 1), [0, 0, 0])
                sums[0] += own[0]
                sums[1] += int(own[1])
                sums[2] = max(sums[2], own[2])
        rows = []
        for (reason, sync_label), (gaps, time, most) in found.items():
            called, _, line = (
                self._labels.texts[sync_label].partition("\n") if sync_label >= 0 else ("", "", "")
            )
            name = IN_WORDS[REASONS[reason]]
            detail = self._top_operation() if reason == HOST else line or None
            rows.append(
                Row(
                    name=f"{name}: {called}" if called else name,
                    kind="idle",
                    count=gaps,
                    total_ns=time,
                    detail=detail,
                    extra={"longest_ns": most},
                )
            )
        return sorted(rows, key=lambda row: (-(row.total_ns or 0), row.name))

    @property
    def has_reasons(self) -> bool:
        """True if host data was recorded, so that reasons are known."""
        return len(self._calls.start_ns) > 0 or self._framework is not None

    def parts(self, name: str) -> Iterator[Segments]:
        """Yield the intervals of `segments` in batches of gaps."""
        if not self.has_reasons:
            long: list[IntervalSet] = [intervals.EMPTY]
            least_ns = LONG * self._devices[name].window.total_ns
            for idle in self._gaps(name):
                chosen = idle.end_ns - idle.start_ns > least_ns
                long.append(IntervalSet(idle.start_ns[chosen], idle.end_ns[chosen]))
                yield unexplained(idle)
            yield unexplained(intervals.EMPTY)
            self._long[name] = long
            return
        if name not in self._parts:
            # A `GapEnds` that finds the tasks after the gaps of a device.
            device = self._devices[name].number
            stream, at_ns = self._stream_waits(device)
            awaits = np.zeros(0, np.int32)
            if len(stream):
                awaits = tasks_after_waits(
                    self._work.in_time(device), self._launched, stream, at_ns
                )
            reasons = _Reasons()
            following = GapEnds(
                self._work.in_time(device), self._launched, self._waits(device), awaits
            )
            for idle in self._gaps(name):
                for low in range(0, len(idle), WINDOW):
                    gaps = IntervalSet(
                        idle.start_ns[low : low + WINDOW], idle.end_ns[low : low + WINDOW]
                    )
                    tasks, which = following.at(gaps)
                    found = explain(gaps, tasks, self.host)
                    self._correct_copies(found, tasks, which)
                    reasons.add(found, which)
            self._parts[name] = reasons.done()
        yield from self._parts[name].windows()

    def _correct_copies(
        self, segments: Segments, tasks: DeviceTasks, which: NDArray[np.int32]
    ) -> None:
        """Make gaps before copies to the device and fills launch latency, not unrecorded work.

        Their calls are blocked because they prepare them, for example copy from pageable memory.
        """
        gaps = np.flatnonzero(segments.reason == UNRECORDED)
        gaps = gaps[tasks.kind[segments.next_task[gaps]] == COPY]
        if not len(gaps):
            return
        texts = self._work.labels.texts
        kinds = self._work.operator[which[segments.next_task[gaps]]].tolist()
        to_host = [
            names.COPIES_HOST(texts[kind]) and not names.COPIES_TO_DEVICE(texts[kind])
            for kind in kinds
        ]
        segments.reason[gaps[~np.array(to_host)]] = LAUNCHED

    def long_segments(self, name: str, share: float) -> Iterator[Segments]:
        """Yield idle intervals, including all that are longer than a share of the analyzed time.

        If `share` is at least LONG, the intervals kept by an earlier call of `parts` are used.
        """
        if self.has_reasons or share < LONG or name not in self._long:
            yield from self.parts(name)
            return
        for idle in self._long[name]:
            yield unexplained(idle)

    def _gaps(self, name: str) -> Iterator[intervals.IntervalSet]:
        analyzed = self._devices[name]
        return idle_gaps(analyzed.device.time_slices(), analyzed.window)

    def _top_operation(self) -> str | None:
        """Return the operation whose launches devices waited for longest."""
        operator, time = self._work.operator, np.zeros(0)
        for _, tasks, host in self._waited_for_host():
            if len(tasks):
                more = np.bincount(operator[tasks], host, minlength=len(time))
                more[: len(time)] = more[: len(time)] + time
                time = more.astype(np.float64)
        if not time.any():
            return None
        most = int(time.argmax())
        found: dict[str, list[tuple[Ints, Ints]]] = {}
        for device, tasks, host in self._waited_for_host():
            selected = operator[tasks] == most
            found.setdefault(device, []).append((tasks[selected], host[selected]))
        longest = []
        for parts in found.values():
            # A task has two gaps if a step ends within its idle time.
            tasks, times = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            distinct, number = np.unique(tasks, return_inverse=True)
            sums = np.bincount(number, weights=times, minlength=len(distinct)).astype(np.int64)
            if len(sums):
                longest.append((int(sums.max()), int(distinct[sums.argmax()])))
        _, task = max(longest, key=lambda one: one[0])
        name, line = self._work.place(task)
        return f"most before {name}" + (f", {line}" if line else "")

    def _waited_for_host(self) -> Iterator[tuple[str, Ints, Ints]]:
        """Yield (device, tasks, host-bound idle time before each task)."""
        for device, part in ((name, part) for name in self._devices for part in self.parts(name)):
            selected = (part.reason == HOST) & (part.next_task >= 0)
            yield device, part.next_task[selected], (part.end_ns - part.start_ns)[selected]

    def _waits(self, device: int | None) -> intervals.IntervalSet:
        """Return the intervals in which streams of a device waited for other streams."""
        begins, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for rows in self._tasks.windows():
            waiting = (rows.kind == WAIT) & self._tasks.program_types.take(rows.type)
            if device is not None:
                waiting &= rows.device == device
            begins.append(rows.start_ns[waiting])
            ends.append(rows.end_ns[waiting])
        return intervals.merge(np.concatenate(begins), np.concatenate(ends))

    def _launched(self, connection: Ints) -> Ints:
        """Return the launch time of tasks, or -1."""
        row = self._calls.launching(connection)
        start = np.full(len(row), _NOWHERE, np.int64)
        start[row >= 0] = self._calls.start_ns[row[row >= 0]]
        return np.where(possible(start, np.zeros(1, np.int64)), start, _NOWHERE)

    @cached_property
    def host(self) -> HostSide:
        """Host ranges that devices may have waited for."""
        inputs = intervals.EMPTY
        if self._framework is not None:
            fetching = self._framework.matching(names.FETCHES_INPUT)
            inputs = intervals.merge(
                self._framework.start_ns[fetching], self._framework.end_ns[fetching]
            )
        chosen, start, end = self._calls_that(names.SYNCHRONIZES)
        united = intervals.merge(start, end)
        first = np.searchsorted(start, united.start_ns, side="left")
        _, *blocking = self._calls_that(
            lambda name: names.SYNCHRONIZES(name) or names.COPIES_MEMORY(name),
            int(BLOCKED_SHARE * LATE_NS),
        )
        blocked = intervals.merge(*blocking)
        return HostSide(inputs, united, self._sync_labels(chosen[first]), blocked)

    def _calls_that(
        self, matches: Callable[[str | None], bool], least_ns: int = 0
    ) -> tuple[Ints, Ints, Ints]:
        """Return row, start and end of matching calls of threads that use a device.

        Calls shorter than `least_ns` are left out. Nested calls follow the one that the program
        made.
        """
        calls = self._calls
        chosen = np.flatnonzero(calls.matching(self._strings, matches))
        with np.errstate(over="ignore"):
            lasted = calls.end_ns[chosen] - calls.start_ns[chosen]
        chosen = chosen[possible(calls.start_ns[chosen], lasted) & (lasted >= least_ns)]
        chosen = chosen[np.isin(calls.thread[chosen], self._threads)]
        start, end = calls.start_ns[chosen], calls.end_ns[chosen]
        order = np.lexsort((-end, start))
        return chosen[order], start[order], end[order]

    @cached_property
    def _threads(self) -> Ints:
        """Threads that launch tasks or run operations."""
        calls = self._calls
        threads = np.zeros(0, np.int64)
        for window in self._work.windows():
            row = self._calls.launching(window.connection)
            threads = np.union1d(threads, calls.thread[row[row >= 0]])
        if self._framework is not None:
            threads = np.union1d(threads, self._framework.threads)
        return threads

    def _sync_labels(self, calls: Ints) -> NDArray[np.int32]:
        names = [
            text or "(unnamed call)"
            for text in self._strings.texts(self._calls.name[calls].tolist())
        ]
        if self._framework is None:
            return self._labels.numbers(names)
        place = self._framework.places_at(self._calls.thread[calls], self._calls.start_ns[calls])
        texts, number = self._framework.names(place)
        stacks, stack = self._framework.stacks(place)
        operation = self._framework.is_operation(place).tolist()
        labels = []
        for name, of_name, of_stack, is_operation in zip(
            names, number.tolist(), stack.tolist(), operation, strict=True
        ):
            called = f"{texts[of_name]} ({name})" if is_operation else name
            frames = stacks[of_stack]
            line = "" if frames is None else frames.rpartition("\n")[2]
            labels.append(f"{called}\n{line}")
        return self._labels.numbers(labels)

    def _stream_waits(self, device: int | None) -> tuple[Ints, Ints]:
        """Return the waits of streams: stream and time."""
        nothing = np.zeros(0, np.int64)
        if "UPROF_GPU_SYNCS" not in self._source.tables:
            return nothing, nothing
        columns = {"start": "startNs", "device": "deviceId", "stream": "streamId", "kind": "kind"}
        result = self._source.integers("UPROF_GPU_SYNCS", columns)
        stream_waits = [
            kind
            for kind in np.unique(result["kind"]).tolist()
            if (self._strings.get(kind) or "").lower().startswith(_STREAM_WAIT)
        ]
        chosen = np.isin(result["kind"], stream_waits)
        if device is not None:
            chosen &= result["device"] == device
        return result["stream"][chosen], result["start"][chosen]


class _Reasons:
    """Idle intervals with their reasons, as packed columns."""

    def __init__(self) -> None:
        self._packing = {
            "start": Packing(),
            "length": Packing(),
            "reason": Packing(np.int8),
            "task": Packing(np.int32, hole=_NOWHERE),
            "sync": Packing(np.int32, hole=_NOWHERE),
        }
        self._columns: dict[str, Packed] = {}

    def add(self, segments: Segments, which: NDArray[np.int32]) -> None:
        """Add intervals; `which` maps `next_task` to indexes into all work."""
        task = np.append(which, np.int32(_NOWHERE))[segments.next_task]
        columns: tuple[NDArray[np.integer], ...] = (
            segments.start_ns,
            segments.end_ns - segments.start_ns,
            segments.reason,
            task,
            segments.sync,
        )
        for packing, values in zip(self._packing.values(), columns, strict=True):
            packing.add(values)

    def done(self) -> _Reasons:
        """Finish packing and return the intervals."""
        self._columns = {name: packing.done() for name, packing in self._packing.items()}
        return self

    def windows(self) -> Iterator[Segments]:
        """Yield all intervals in windows; at least one window."""
        for low in range(0, max(len(self._columns["start"]), 1), WINDOW):
            columns = {name: column[low : low + WINDOW] for name, column in self._columns.items()}
            yield Segments(
                columns["start"],
                columns["start"] + columns["length"],
                columns["reason"].astype(np.int8),
                columns["task"].astype(np.int32),
                columns["sync"].astype(np.int32),
            )


def idle_gaps(time_slices: Iterable[TimeSlice], analyzed: IntervalSet) -> Iterator[IntervalSet]:
    """Yield the idle gaps of a device in batches, without splitting a gap."""
    open_ns: int | None = None  # start of a gap that is open at the end of a segment
    for time_slice in time_slices:
        idle = intervals.intersect(
            IntervalSet(
                np.concatenate(([time_slice.begin_ns], time_slice.busy.end_ns)),
                np.concatenate((time_slice.busy.start_ns, [time_slice.until_ns])),
            ),
            intervals.part(analyzed, time_slice.begin_ns, time_slice.until_ns),
        )
        start, end = idle.start_ns, idle.end_ns
        if open_ns is not None:
            if len(start) and start[0] == time_slice.begin_ns:
                start[0] = open_ns
            else:
                start = np.concatenate(([open_ns], start))
                end = np.concatenate(([time_slice.begin_ns], end))
            open_ns = None
        if len(end) and end[-1] == time_slice.until_ns:
            open_ns = int(start[-1])
            start, end = start[:-1], end[:-1]
        if len(start):
            yield IntervalSet(start, end)
    assert open_ns is None, "the time slices must cover the end of the analyzed time"
