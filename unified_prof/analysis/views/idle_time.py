"""The idle time of a report's devices by reason, put together from all that was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import Labels
from unified_prof.analysis.model import Row
from unified_prof.analysis.read.framework import Framework
from unified_prof.analysis.read.host_calls import HostCalls
from unified_prof.analysis.read.source import Source
from unified_prof.analysis.read.tasks import WAIT, Strings, Tasks, possible
from unified_prof.analysis.views.device import DeviceWork, StepWindows
from unified_prof.analysis.views.idle import (
    HOST,
    IN_WORDS,
    REASONS,
    HostSide,
    Pieces,
    Segments,
    WhyIdle,
    explain,
    idle_gaps,
    is_input,
    is_synchronising,
    totals,
    unexplained,
)
from unified_prof.analysis.views.work import Steps, Work
from unified_prof.arrays import intervals

Ints = NDArray[np.int64]

_STREAM_WAIT = "stream wait"
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class _Asked:
    """One device."""

    number: int | None
    device: DeviceWork
    windows: StepWindows | None

    @property
    def of(self) -> intervals.IntervalSet:
        """The time in which it may have been idle."""
        return self.device.window if self.windows is None else self.windows.all


class IdleTime:
    """Why each device was idle: in its steps where they are known, else in its window."""

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
        self._labels = Labels()
        """Synchronising calls, each with the line that called it after a newline."""
        self._devices: dict[str, _Asked] = {}
        self._parts: dict[str, tuple[Segments, Ints]] = {}

    def add(
        self, name: str, number: int | None, device: DeviceWork, windows: StepWindows | None
    ) -> None:
        """Take a device; `number` None stands for the only one."""
        self._devices[name] = _Asked(number, device, windows)

    def of(self, name: str) -> tuple[Segments, Ints]:
        """Return the idle time of a device, and the piece of all work that each number stands for.

        The numbers are those of `Segments.next_piece`.
        """
        if name not in self._parts:
            asked = self._devices[name]
            idle = intervals.subtract(asked.of, asked.device.busy)
            if self._is_told:
                pieces, which = self._pieces(asked.number)
                self._parts[name] = explain(idle, pieces, self._host), which
            else:
                self._parts[name] = unexplained(idle), np.zeros(0, np.int64)
        return self._parts[name]

    @property
    def host(self) -> HostSide:
        """What the host did that devices may have waited for."""
        return self._host

    def called(self, sync: int) -> tuple[str, str | None]:
        """Return what a synchronising call of `host` was, and the line that called it."""
        called, _, line = self._labels.texts[int(self._host.sync_label[sync])].partition("\n")
        return called, line or None

    def totals(self, steps: Steps, windows: Mapping[str, StepWindows]) -> list[WhyIdle]:
        """Return the idle time by reason: of each device in all, then of each of its steps."""
        found: list[WhyIdle] = []
        for name in self._devices:
            own = windows.get(name)
            of_device = None
            if own is not None:
                times = zip(steps, own.start_ns.tolist(), own.end_ns.tolist(), strict=True)
                of_device = [(step, begin, end) for (step, _, _), begin, end in times]
            segments = (part for part, _ in self.parts(name))
            found += totals(name, segments, of_device)
        return found

    def rows(self) -> list[Row]:
        """Return one row for each reason, and one for each synchronising call and its line."""
        found: dict[tuple[int, int], list[int]] = {}
        host: dict[int, int] = {}
        labels = self._host.sync_label if self._is_told else np.zeros(0, np.int64)
        many = len(labels) + 1
        for segments, which in (part for name in self._devices for part in self.parts(name)):
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
            self._add_waiting(host, segments, which, length)
        rows = []
        for (reason, said), (gaps, time, most) in found.items():
            called, _, line = (
                self._labels.texts[said].partition("\n") if said >= 0 else ("", "", "")
            )
            name = IN_WORDS[REASONS[reason]]
            detail = self._most(host) if reason == HOST else line or None
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
    def _is_told(self) -> bool:
        """Whether anything of the host was recorded: else no reason can be told."""
        return len(self._calls.start_ns) > 0 or self._framework is not None

    def parts(self, name: str) -> Iterator[tuple[Segments, Ints]]:
        """Yield what `of` gives, some gaps at a time where no reasons are told."""
        if self._is_told or name in self._parts:
            yield self.of(name)
            return
        asked = self._devices[name]
        for idle in idle_gaps(asked.device.stretches(), asked.of):
            yield unexplained(idle), np.zeros(0, np.int64)

    def _add_waiting(
        self, host: dict[int, int], segments: Segments, which: Ints, length: Ints
    ) -> None:
        """Add how long devices waited for the host before each piece of work."""
        mine = (segments.reason == HOST) & (segments.next_piece >= 0)
        pieces, number = np.unique(which[segments.next_piece[mine]], return_inverse=True)
        time = np.bincount(number, weights=length[mine], minlength=len(pieces))
        for piece, own in zip(pieces.tolist(), time.tolist(), strict=True):
            host[piece] = host.get(piece, 0) + int(own)

    def _most(self, host: Mapping[int, int]) -> str | None:
        """Name the operation that devices waited longest for the host to launch."""
        if not host:
            return None
        pieces = np.array(list(host), np.int64)
        operator = self._work.operator[pieces]
        time = np.bincount(operator, weights=list(host.values()))
        heaviest = pieces[operator == int(time.argmax())]
        name, line = self._work.place(max(heaviest.tolist(), key=lambda piece: host[piece]))
        return f"most before {name}" + (f", {line}" if line else "")

    def _pieces(self, device: int | None) -> tuple[Pieces, Ints]:
        """Return the work of a device in order of its starts, and which of all work that is."""
        work = self._work
        here = np.arange(len(work)) if device is None else np.flatnonzero(work.device == device)
        start = work.start_ns
        order = here[np.argsort(start[here], kind="stable")]
        launched, stream = self._launched[order], work.stream[order]
        waiting = (self._tasks.kind == WAIT) & self._tasks.of_the_program
        if device is not None:
            waiting &= self._tasks.device == device
        rows = np.flatnonzero(waiting)
        waits = intervals.merge(self._tasks.start_ns[rows], self._tasks.end_ns[rows])
        awaits = self._behind_waits(device, stream, launched)
        return Pieces(start[order], launched, work.kind[order], waits, awaits), order

    @cached_property
    def _launching(self) -> NDArray[np.int32]:
        """The call that launched each piece of work, -1 where it is not known."""
        return self._calls.launching(self._work.connection.whole())

    @cached_property
    def _launched(self) -> Ints:
        start = np.append(self._calls.start_ns, _NOWHERE)[self._launching]
        return np.where(possible(start, np.zeros(1, np.int64)), start, _NOWHERE)

    @cached_property
    def _host(self) -> HostSide:
        fetching = np.zeros(0, np.int64)
        if self._framework is not None:
            fetching = self._framework.matching(is_input)
        inputs = intervals.EMPTY
        if self._framework is not None:
            inputs = intervals.merge(
                self._framework.start_ns[fetching], self._framework.end_ns[fetching]
            )
        return HostSide(inputs, *self._synchronising())

    def _synchronising(self) -> tuple[intervals.IntervalSet, NDArray[np.integer]]:
        """Return the synchronising calls of threads that matter, united, and their labels."""
        calls = self._calls
        ids, number = calls.names
        wanted = [is_synchronising(text) for text in self._strings.texts(ids)]
        chosen = np.flatnonzero(
            np.array([*wanted, False])[number.whole()] if ids else np.zeros(0, bool)
        )
        with np.errstate(over="ignore"):
            lasted = calls.end_ns[chosen] - calls.start_ns[chosen]
        chosen = chosen[possible(calls.start_ns[chosen], lasted)]
        threads = _distinct(calls.thread[self._launching[self._launching >= 0]])
        if self._framework is not None:
            threads = np.union1d(threads, self._framework.threads)
        chosen = chosen[np.isin(calls.thread[chosen], threads)]
        start, end = calls.start_ns[chosen], calls.end_ns[chosen]
        # Of calls within one another the outermost is what the program called.
        order = np.lexsort((-end, start))
        chosen, start, end = chosen[order], start[order], end[order]
        united = intervals.merge(start, end)
        first = np.searchsorted(start, united.start_ns, side="left")
        return united, self._sync_labels(chosen[first])

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

    def _behind_waits(self, device: int | None, stream: Ints, launched: Ints) -> NDArray[np.bool_]:
        """Tell before which pieces their stream was made to wait for another stream's event.

        That is: between the launches of the piece before on that stream and of this one.
        """
        result = np.zeros(len(stream), bool)
        if "UPROF_GPU_SYNCS" not in self._source.tables:
            return result
        columns = {"start": "startNs", "device": "deviceId", "stream": "streamId", "kind": "kind"}
        found = self._source.integers("UPROF_GPU_SYNCS", columns)
        kinds = np.unique(found["kind"])
        stream_waits = [
            kind
            for kind in kinds.tolist()
            if (self._strings.get(kind) or "").lower().startswith(_STREAM_WAIT)
        ]
        chosen = np.isin(found["kind"], stream_waits)
        if device is not None:
            chosen &= found["device"] == device
        at, waiting = found["start"][chosen], found["stream"][chosen]
        for one in np.unique(waiting).tolist():
            own = np.flatnonzero((stream == one) & (launched >= 0))
            own = own[np.argsort(launched[own], kind="stable")]
            moments = np.sort(at[waiting == one])
            until = np.searchsorted(moments, launched[own], side="right")
            result[own] = np.diff(until, prepend=0) > 0
        return result


def _distinct(values: Ints) -> Ints:
    """Return the distinct values of a column that has few of them in long runs."""
    changes = np.append(True, values[1:] != values[:-1])
    return np.unique(values[changes[: len(values)]])
