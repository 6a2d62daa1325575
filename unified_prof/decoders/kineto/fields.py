"""Turns events of one kind into columns: times, ids, names, threads, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from unified_prof.decoders.gpu.numbers import MISSING, Bools, Int64s, ints
from unified_prof.decoders.gpu.parts import Parts
from unified_prof.decoders.kineto import events as ev
from unified_prof.decoders.kineto.merged import Labels
from unified_prof.decoders.kineto.numbers import to_int64, us_to_ns
from unified_prof.decoders.rows import Rows

Args = TypeVar("Args", bound=msgspec.Struct)

_SANE_NS = 2**62


class Fields(Parts):
    """The parts of one trace, and what turns its events into columns of them."""

    labels: Labels

    def timed(
        self, events: list[ev.Event], dtype: np.dtype[Any], *, instant: bool = False
    ) -> tuple[Rows, Bools]:
        """Return new rows with their times, and which of them are valid."""
        rows = np.empty(len(events), dtype=dtype)
        start, valid = us_to_ns([event.ts for event in events])
        valid &= np.abs(start) < _SANE_NS
        self.count_odd("event_without_time", ~valid, events)
        if instant:
            end = start
        else:
            duration, has_duration = us_to_ns([event.dur for event in events])
            has_duration &= np.abs(duration) < _SANE_NS
            self.count_odd("event_without_duration", valid & ~has_duration, events)
            negative = has_duration & (duration < 0)
            self.count_odd("negative_duration", valid & negative, events)
            valid &= has_duration & ~negative
            end = start + np.where(valid, duration, 0)
            rows["end"] = end
        rows["start"] = start
        if valid.any():
            self.see(int(start[valid].min()), int(end[valid].max()))
        return rows, valid

    def count_odd(
        self, name: str, odd: Bools, events: list[ev.Event], fate: str = "left out"
    ) -> None:
        """Count odd events, with the first of them and their fate as detail."""
        if odd.any():
            event = events[int(np.argmax(odd))]
            detail = f"{event.cat} {event.name!r}, {fate}"
            self.sink.anomaly(name, int(np.count_nonzero(odd)), detail)

    def arguments(self, events: list[ev.Event], kind: type[Args]) -> list[Args]:
        """Return the arguments of all events; what cannot be read counts and is as if absent."""
        known: Any = [event.args for event in events]
        if known and isinstance(known[0], kind):  # of one slice and kind all are or none is
            return known  # type: ignore[no-any-return]
        text = b"[" + b",".join(known) + b"]"
        try:
            args = msgspec.json.decode(text, type=list[kind])  # type: ignore[valid-type]
            if len(args) == len(events):
                return args
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        decoder = msgspec.json.Decoder(kind)
        return [self._args_of(event, decoder, kind) for event in events]

    def _args_of(self, event: ev.Event, decoder: Any, kind: type[Args]) -> Args:
        text = bytes(event.args)
        if not text or text == b"null":
            return kind()
        try:
            return decoder.decode(text)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.sink.anomaly("malformed_args", 1, repr(text[:120]))
            return kind()

    def ids(self, values: list[Any], missing: int = MISSING) -> Int64s:
        """Return ids or counts; unreadable ones count as an anomaly."""
        column, bad = to_int64(values, missing)
        if bad:
            self.sink.anomaly("unreadable_number", bad, "an id or count of an event's arguments")
        return column

    def external_ids(self, args: Sequence[Any]) -> Int64s:
        """Return the ids by which events refer to operations."""
        column = self.ids([a.external_id for a in args])
        if (column == MISSING).any():  # before torch 1.11 the key began in lower case
            old = self.ids([a.old_external_id for a in args])
            column = np.where(column == MISSING, old, column)
        return column

    def name_ids(self, events: list[ev.Event]) -> Int64s:
        """Return the string ids of the names."""
        names = self.names
        return ints([names[event.name] for event in events])

    def thread_numbers(self, events: list[ev.Event]) -> Int64s:
        """Return the numbers of the threads, and count what each one does."""
        threads = self.threads
        numbers = ints([threads[event.pid, event.tid] for event in events])
        self.activity.update(dict(enumerate(np.bincount(numbers).tolist())))
        return numbers

    def place(self, events: list[ev.Event], args: Sequence[Any]) -> tuple[Int64s, Int64s]:
        """Return device and stream; where the arguments lack them they are the pid and tid."""
        device, stream = [], []
        for event, a in zip(events, args, strict=True):
            device.append(event.pid if a.device is None else a.device)
            stream.append(event.tid if a.stream is None else a.stream)
        return self.relabelled(events, self.ids(device)), self.ids(stream)

    def relabelled(self, events: list[ev.Event], devices: Int64s) -> Int64s:
        """Return the devices' numbers, other ones where merged ranks call theirs the same."""
        pids = {event.pid for event in events}
        if not any(isinstance(pid, str) and not pid.isdecimal() for pid in pids):
            return devices
        number = self.labels.device
        pairs = zip(events, devices.tolist(), strict=True)
        return ints([number(event.pid, device) for event, device in pairs])

    def device_labels(self, events: list[ev.Event]) -> Int64s:
        """Return what the devices' pids say of their processes, `MISSING` for most."""
        codes = {pid: self.labels.code(pid) for pid in {event.pid for event in events}}
        return ints([codes[event.pid] for event in events])

    def signature_numbers(self, args: list[ev.OperationArgs]) -> Int64s:
        """Return what is known of the inputs of operations."""
        signatures, absent = self.signatures, ev.ABSENT
        return ints(
            [
                MISSING
                if a.input_dims is absent and a.input_types is absent and a.old_input_dims is absent
                else signatures[
                    bytes(a.input_types),
                    bytes(a.input_dims) or bytes(a.old_input_dims),
                    bytes(a.input_strides),
                ]
                for a in args
            ]
        )

    def geometry_numbers(self, args: Sequence[Any]) -> Int64s:
        """Return the sizes of launches."""
        geometries, absent = self.geometries, ev.ABSENT
        return ints(
            [
                MISSING if a.grid is absent else geometries[bytes(a.grid), bytes(a.block)]
                for a in args
            ]
        )

    def raw_texts(self, raw: list[msgspec.Raw]) -> Int64s:
        """Return string ids of JSON texts, `MISSING` where there is none."""
        intern, absent = self.sink.strings.intern, ev.ABSENT
        return ints(
            [
                MISSING if text is absent else intern(bytes(text).decode("utf-8", "replace"))
                for text in raw
            ]
        )

    def optional_texts(self, texts: list[Any]) -> Int64s:
        """Return string ids of texts, `MISSING` where there is none."""
        names = self.names
        return ints([names[text] if text else MISSING for text in texts])
