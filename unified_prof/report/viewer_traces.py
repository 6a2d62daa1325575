"""Traces for viewers: Chrome's JSON format and Perfetto's protobuf format."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from unified_prof.errors import StoreError, missing_package
from unified_prof.explain.report_questions import Analysis, OverTime
from unified_prof.recording.model import Series
from unified_prof.recording.timeline import Track


def slice_events(track: Track) -> Iterator[tuple[int, int, bool]]:
    """Yield (time_ns, slice, is_begin) in time order; inner slices are nested in outer ones."""
    open_slices: list[int] = []
    start_ns, end_ns = track.start_ns.tolist(), track.end_ns.tolist()
    for index, start in enumerate(start_ns):
        while open_slices and end_ns[open_slices[-1]] <= start:
            ended = open_slices.pop()
            yield end_ns[ended], ended, False
        yield start, index, True
        open_slices.append(index)
    while open_slices:
        ended = open_slices.pop()
        yield end_ns[ended], ended, False


def slice_category(track: Track, index: int) -> str:
    """Return the category of a slice."""
    return track.category[index] if len(track.category) > 1 else track.category[0]


@dataclass(slots=True)
class TraceContents:
    """Counts of what a trace contains."""

    tracks: int = 0
    slices: int = 0
    flows: int = 0
    counters: int = 0


OnUnreadable = Callable[[OverTime, StoreError], None]


class WithCriticalPath:
    """Report with an additional track of its critical path."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis

    @property
    def path(self) -> str:
        """Path of the report."""
        return self.analysis.path

    @cached_property
    def _critical(self) -> Track | None:
        return self.analysis.path_track()

    def tracks(self) -> Iterator[Track]:
        """Yield the critical path, then streams and threads."""
        if self._critical is not None:
            yield self._critical
        yield from self.analysis.tracks()

    def memory_series(self) -> tuple[Series, ...]:
        """Return memory in use over time."""
        return self.analysis.memory_series()

    def counter_series(self) -> tuple[Series, ...]:
        """Return counters other than memory over time."""
        return self.analysis.counter_series()


class TraceWriter(ABC):
    """Base class of writers that put several reports into one trace."""

    def __init__(self) -> None:
        self.written = TraceContents()
        # Offset of the flow ids of the current report.
        self._flow_base = 0

    def write(
        self, analyses: Iterable[tuple[str, OverTime]], lose: OnUnreadable | None
    ) -> TraceContents:
        """Write (prefix, report) pairs, the prefix before group names; return the counts.

        If `lose` is given, it is called for each damaged report, and the others are still written.
        """
        for prefix, analysis in analyses:
            try:
                self._analysis(prefix, analysis)
            except StoreError as err:
                if lose is None:
                    raise
                lose(analysis, err)
        return self.written

    def _analysis(self, prefix: str, analysis: OverTime) -> None:
        """Write all tracks and counters of one report."""
        highest = 0
        for track in analysis.tracks():
            self._track(prefix, track)
            highest = max(highest, int(track.flow_in.max(initial=0)))
        for series in (*analysis.memory_series(), *analysis.counter_series()):
            self._counter(prefix, series)
        self._flow_base += highest

    @abstractmethod
    def _track(self, prefix: str, track: Track) -> None:
        """Write a track with its slices and flows."""

    @abstractmethod
    def _counter(self, prefix: str, series: Series) -> None:
        """Write a counter with its values."""


def write_chrome_trace(
    path: Path, analyses: Iterable[tuple[str, OverTime]], lose: OnUnreadable | None = None
) -> TraceContents:
    """Write (prefix, report) pairs as one Chrome trace, the prefix before group names.

    Times are µs since the first event; `baseTimeNanoseconds` has its Unix time. Unix times in µs
    would lose the nanoseconds.
    """
    analyses = list(analyses)
    times = [time_ns for _, analysis in analyses if (time_ns := _first_ns(analysis)) is not None]
    base_ns = min(times, default=0)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        head = {"displayTimeUnit": "ns", "baseTimeNanoseconds": base_ns}
        file.write(f'{json.dumps(head)[:-1]}, "traceEvents": [\n')
        written = _ChromeWriter(file, base_ns).write(analyses, lose)
        file.write("\n]}\n")
        return written


def _first_ns(analysis: OverTime) -> int | None:
    """Return the first readable timestamp of a report; None if there is none."""
    times: list[int] = []
    with suppress(StoreError):  # Reported when the report is written.
        times += [int(track.start_ns[0]) for track in analysis.tracks() if len(track)]
        times += [int(one.time_ns[0]) for one in analysis.memory_series()]
        times += [int(one.time_ns[0]) for one in analysis.counter_series()]
    return min(times, default=None)


class _ChromeWriter(TraceWriter):
    """Writes one event per line; processes and threads are numbered by first use."""

    def __init__(self, file: IO[str], base_ns: int) -> None:
        super().__init__()
        self._file = file
        self._base_ns = base_ns
        self._groups: dict[str, int] = {}
        self._tracks = 0
        self._separator = ""

    def _track(self, prefix: str, track: Track) -> None:
        group = self._group(prefix + track.group)
        self._tracks += 1
        thread = self._tracks
        place = f'"pid": {group}, "tid": {thread}'
        self._event(f'"ph": "M", {place}, "name": "thread_name", {_metadata_event(track.name)}')
        self._event(
            f'"ph": "M", {place}, "name": "thread_sort_index", "args": {{"sort_index": {thread}}}'
        )
        self.written.tracks += 1
        self.written.slices += len(track)
        names = {number: json.dumps(track.labels[number]) for number in set(track.label.tolist())}
        columns = zip(
            track.start_ns.tolist(),
            track.end_ns.tolist(),
            track.label.tolist(),
            track.flow_in.tolist(),
            track.flow_first.tolist(),
            track.flow_count.tolist(),
            strict=True,
        )
        for index, (start, end, label, flow_in, first, count) in enumerate(columns):
            category = json.dumps(slice_category(track, index))
            at = f'{place}, "ts": {self._us(start)}'
            duration = _microseconds(end - start)
            self._event(
                f'"ph": "X", {at}, "dur": {duration}, "name": {names[label]}, "cat": {category}'
            )
            flow = '"cat": "launch", "name": "launch"'
            for number in range(first, first + count):
                self._event(f'"ph": "s", {at}, "id": {self._flow_base + number}, {flow}')
            if flow_in:
                number = self._flow_base + flow_in
                self._event(f'"ph": "f", "bp": "e", {at}, "id": {number}, {flow}')
                self.written.flows += 1

    def _counter(self, prefix: str, series: Series) -> None:
        group = self._group(prefix + series.device)
        name = json.dumps(f"{series.name} ({series.unit})")
        self.written.counters += 1
        for time_ns, value in zip(series.time_ns.tolist(), series.value.tolist(), strict=True):
            number = json.dumps(value)
            self._event(
                f'"ph": "C", "pid": {group}, "ts": {self._us(time_ns)}, "name": {name},'
                f' "args": {{"value": {number}}}'
            )

    def _group(self, name: str) -> int:
        if name not in self._groups:
            number = self._groups[name] = len(self._groups) + 1
            self._event(
                f'"ph": "M", "pid": {number}, "name": "process_name", {_metadata_event(name)}'
            )
        return self._groups[name]

    def _us(self, time_ns: int) -> str:
        return _microseconds(time_ns - self._base_ns)

    def _event(self, members: str) -> None:
        self._file.write(f"{self._separator}{{{members}}}")
        self._separator = ",\n"


def _metadata_event(name: str) -> str:
    return f'"args": {{"name": {json.dumps(name)}}}'


def _microseconds(value: int) -> str:
    """Return integer nanoseconds as exact decimal microseconds."""
    sign = "-" if value < 0 else ""
    return f"{sign}{abs(value) // 1000}.{abs(value) % 1000:03d}"


_SEQUENCE = 1
# TrackEvent.Type and TracePacket.SequenceFlags.
_SLICE_BEGIN, _SLICE_END, _COUNTER = 1, 2, 4
_STATE_CLEARED, _NEEDS_STATE = 1, 2


def write_perfetto_trace(
    path: Path, analyses: Iterable[tuple[str, OverTime]], lose: OnUnreadable | None = None
) -> TraceContents:
    """Write reports as one Perfetto trace, each with a prefix before its group names.

    `lose` is called for a damaged report, whose tracks are then incomplete; None raises instead.
    Raises StoreError if a report is damaged and `lose` is None, and UsageError if the perfetto
    package is not installed.
    """
    hint = "run `pip install 'unified-prof[trace]'`, or write a .json"
    with missing_package("a Perfetto trace needs the perfetto package", hint=hint):
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    with path.open("wb") as file:
        return _PerfettoWriter(StreamingTraceProtoBuilder(file)).write(analyses, lose)


class _PerfettoWriter(TraceWriter):
    """Writes packet by packet; each name is interned once."""

    def __init__(self, builder: Any) -> None:
        super().__init__()
        self._builder = builder
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._groups: dict[str, int] = {}
        self._uuid = 0
        self._first = True

    def _track(self, prefix: str, track: Track) -> None:
        uuid = self._describe(prefix + track.group, track.name)
        self.written.tracks += 1
        self.written.slices += len(track)
        label, flow_in = track.label.tolist(), track.flow_in.tolist()
        first, count = track.flow_first.tolist(), track.flow_count.tolist()
        for time_ns, index, begins in slice_events(track):
            packet = self._packet(time_ns)
            event = packet.track_event
            event.track_uuid = uuid
            if not begins:
                event.type = _SLICE_END
                self._builder.write_packet(packet)
                continue
            event.type = _SLICE_BEGIN
            interned = packet.interned_data
            name, kind = track.labels[label[index]], slice_category(track, index)
            event.name_iid = _intern(self._names, name, interned.event_names)
            event.category_iids.append(_intern(self._categories, kind, interned.event_categories))
            if flow_in[index]:
                event.terminating_flow_ids.append(self._flow_base + flow_in[index])
                self.written.flows += 1
            if count[index]:
                begin = self._flow_base + first[index]
                event.flow_ids.extend(range(begin, begin + count[index]))
            self._builder.write_packet(packet)

    def _counter(self, prefix: str, series: Series) -> None:
        uuid = self._describe(prefix + series.device, series.name, unit=series.unit)
        self.written.counters += 1
        for time_ns, value in zip(series.time_ns.tolist(), series.value.tolist(), strict=True):
            packet = self._packet(time_ns)
            packet.track_event.type = _COUNTER
            packet.track_event.track_uuid = uuid
            packet.track_event.double_counter_value = value
            self._builder.write_packet(packet)

    def _describe(self, group: str, name: str, unit: str | None = None) -> int:
        """Write the descriptor of a track, and of its group if new; return the track id."""
        if group not in self._groups:
            self._groups[group] = self._next_uuid()
            packet = self._packet(None)
            packet.track_descriptor.uuid = self._groups[group]
            packet.track_descriptor.name = group
            self._builder.write_packet(packet)
        packet = self._packet(None)
        descriptor = packet.track_descriptor
        descriptor.uuid = self._next_uuid()
        descriptor.parent_uuid = self._groups[group]
        descriptor.name = name
        if unit is not None:
            descriptor.counter.unit_name = unit
        self._builder.write_packet(packet)
        return int(descriptor.uuid)

    def _next_uuid(self) -> int:
        self._uuid += 1
        return self._uuid

    def _packet(self, time_ns: int | None) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = _NEEDS_STATE | (_STATE_CLEARED if self._first else 0)
        self._first = False
        if time_ns is not None:
            packet.timestamp = time_ns
        return packet


def _intern(known: dict[str, int], text: str, new: Any) -> int:
    """Return the id of a text; a new text is added to the packet."""
    number = known.get(text)
    if number is None:
        number = known[text] = len(known) + 1
        entry = new.add()
        entry.iid = number
        entry.name = text
    return number
