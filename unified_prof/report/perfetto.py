"""A recording as a Perfetto trace, for ui.perfetto.dev, through the perfetto package's builder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unified_prof.errors import UsageError
from unified_prof.explain.report_questions import OverTime
from unified_prof.recording.model import Series
from unified_prof.recording.tracks import Track
from unified_prof.report import chrome_trace
from unified_prof.report.chrome_trace import Lose, TraceWriter, Written

_SEQUENCE = 1
# TrackEvent.Type and TracePacket.SequenceFlags.
_SLICE_BEGIN, _SLICE_END, _COUNTER = 1, 2, 4
_STATE_CLEARED, _NEEDS_STATE = 1, 2


def write(
    path: Path, analyses: Iterable[tuple[str, OverTime]], lose: Lose | None = None
) -> Written:
    """Write analyses, each under a prefix for the names of its groups, as one trace.

    Args:
        path: the file.
        analyses: prefix and report.
        lose: told of a report that turns out to be damaged, of which whole tracks are then
            missing; None: that is an error.

    Raises:
        StoreError: a report is damaged and `lose` is None.
        UsageError: the perfetto package is not installed.
    """
    try:
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ImportError as err:
        raise UsageError(
            "a Perfetto trace needs the perfetto package",
            hint="pip install 'unified-prof[trace]', or write a .json",
            slug="missing-package",
        ) from err
    with path.open("wb") as file:
        return _Writer(StreamingTraceProtoBuilder(file)).write(analyses, lose)


class _Writer(TraceWriter):
    """Writes packets one by one; names are interned, so that each is in the file once."""

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
        for time_ns, index, begins in chrome_trace.events(track):
            packet = self._packet(time_ns)
            event = packet.track_event
            event.track_uuid = uuid
            if not begins:
                event.type = _SLICE_END
                self._builder.write_packet(packet)
                continue
            event.type = _SLICE_BEGIN
            interned = packet.interned_data
            name, kind = track.labels[label[index]], chrome_trace.category_slices(track, index)
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
        """Write the descriptor of a track (and of its group, the first time) and return its id."""
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
    """Return the id of a text; the first time it is added to the packet's new ones."""
    number = known.get(text)
    if number is None:
        number = known[text] = len(known) + 1
        entry = new.add()
        entry.iid = number
        entry.name = text
    return number
