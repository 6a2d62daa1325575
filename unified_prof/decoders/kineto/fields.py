"""Converts events of one kind to columns: times, numbers, names, threads, shapes.

Numbers are converted exactly, one column at a time. Times are decimal microseconds with any number
of digits and are never converted to float: float64 Unix times in microseconds have an error of up
to 256 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Floats, Ints
from unified_prof.base.columns import MISSING, ints
from unified_prof.base.text import NS_PER_US, us_text_to_ns
from unified_prof.decoders.gpu.rows import Parts
from unified_prof.decoders.kineto import events as ev
from unified_prof.decoders.kineto.merged import Labels
from unified_prof.decoders.spool import Rows

_COMMA, _DOT = ord(","), ord(".")
_PLAIN = np.zeros(256, dtype=bool)
_PLAIN[np.frombuffer(b"0123456789.,-", dtype=np.uint8)] = True
_POWERS = 10 ** np.arange(19, dtype=np.int64)
_MAX_DIGITS = 18  # every such number fits into int64
_ZERO = np.uint8(ord("0"))
_LOW_DIGITS = 9
_FLOAT_POWERS = 10.0 ** np.arange(_LOW_DIGITS - 1, -1, -1)
_MAX_US = (2**63 - 1) // NS_PER_US
_NS_DIGITS = 3  # decimals of a microsecond that are whole nanoseconds


def us_to_ns(raw: Sequence[msgspec.Raw]) -> tuple[Ints, Bools]:
    """Convert JSON numbers (quoted or not) in microseconds to integer ns; truncate further digits.

    Also return a mask of the valid numbers: missing, null and unreadable numbers, and those beyond
    64 bits of nanoseconds, are invalid.
    """
    count = len(raw)
    if not count:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
    converted = _convert_plain(b",".join(raw), count)
    if converted is not None:
        return converted, np.ones(count, dtype=bool)
    times, valid = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    for index, token in enumerate(raw):
        with suppress(ValueError):
            time = us_text_to_ns(bytes(token).strip(b'" \t').decode("ascii"))
            if -(2**63) <= time < 2**63:
                times[index], valid[index] = time, True
    return times, valid


def _convert_plain(text: bytes, count: int) -> Ints | None:
    """Convert comma-separated decimals; return None if one is not in plain notation."""
    chars = np.frombuffer(text, dtype=np.uint8)
    same_length = _convert_same_length(chars, count)
    if same_length is not None:
        return same_length
    if not _PLAIN[chars].all():
        return None
    ends = np.append(np.flatnonzero(chars == _COMMA), len(chars))
    starts = np.append(0, ends[:-1] + 1)
    lengths = ends - starts
    if len(ends) != count or lengths.min() == 0 or lengths.max() > _MAX_DIGITS + 1:
        return None
    dots = np.flatnonzero(chars == _DOT)
    decimals = np.zeros(count, dtype=np.int64)
    if len(dots):
        owners = np.searchsorted(ends, dots)
        if len(dots) > 1 and (owners[1:] == owners[:-1]).any():
            return None
        decimals[owners] = ends[owners] - dots - 1
        text = text.replace(b".", b"")
    digits = np.fromstring(text, dtype=np.int64, sep=",")
    if len(digits) != count:
        return None
    if (decimals == _NS_DIGITS).all():
        return digits
    if (np.abs(digits) > _MAX_US)[decimals < _NS_DIGITS].any():
        return None
    scaled = digits * _POWERS[np.clip(_NS_DIGITS - decimals, 0, None)]
    divisors = _POWERS[np.clip(decimals - _NS_DIGITS, 0, None)]
    return np.where(decimals > _NS_DIGITS, np.sign(digits) * (np.abs(digits) // divisors), scaled)


def _convert_same_length(chars: NDArray[np.uint8], count: int) -> Ints | None:
    """Convert positive numbers of equal length with three decimals, which is the usual format."""
    width, rest = divmod(len(chars) + 1, count)
    if rest or not _NS_DIGITS + 3 <= width <= _MAX_DIGITS + 2:
        return None
    table = np.append(chars, np.uint8(_COMMA)).reshape(count, width)
    dot = width - _NS_DIGITS - 2
    if (table[:, -1] != _COMMA).any() or (table[:, dot] != _DOT).any():
        return None
    digits = np.delete(table, (dot, width - 1), axis=1) - _ZERO
    if digits.max() > 9:  # unsigned, so that any other character is above 9
        return None
    # Two float products, exact because they are below 2**53, are faster than one of int64.
    low = digits[:, -_LOW_DIGITS:].astype(np.float64) @ _FLOAT_POWERS[-digits.shape[1] :]
    if digits.shape[1] <= _LOW_DIGITS:
        return low.astype(np.int64)
    high_digits = digits[:, :-_LOW_DIGITS].astype(np.float64)
    high = high_digits @ _FLOAT_POWERS[-high_digits.shape[1] :]
    return np.asarray(high.astype(np.int64) * 10**_LOW_DIGITS + low.astype(np.int64))


def to_int64(values: Sequence[Any], missing: int = MISSING) -> tuple[Ints, int]:
    """Convert ids and counts to int64; numbers may be quoted or hexadecimal.

    Null and unreadable values become `missing`; the number of unreadable ones is also returned.
    Unsigned 64-bit values wrap to negative values, so that they stay distinct.
    """
    try:
        return ints(values), 0
    except (OverflowError, TypeError):
        pass  # at least one is not a plain number
    column, bad = np.full(len(values), missing), 0
    for index, value in enumerate(values):
        number = to_int(value)
        if number is not None and -(2**63) <= number < 2**64:
            column[index] = number - 2**64 if number >= 2**63 else number
        else:
            bad += value is not None
    return column, bad


def to_int(value: Any) -> int | None:
    """Convert a JSON number or string to an integer; return None for other values."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        try:
            return int(value, 0) if value.lower().startswith(("0x", "-0x")) else int(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def to_float64(values: Sequence[Any]) -> Floats:
    """Convert measurements to float64; missing and unreadable values become NaN."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        column = np.full(len(values), np.nan)
        for index, value in enumerate(values):
            with suppress(TypeError, ValueError, OverflowError):
                column[index] = float(value)
        return column


Args = TypeVar("Args", bound=msgspec.Struct)

_MAX_NS = 2**62  # Times beyond this are damaged.


class Fields(Parts):
    """Converts events of one trace to columns, and adds them to its rows."""

    labels: Labels
    dropped = 0  # damaged events

    def timed(
        self, events: list[ev.Event], dtype: np.dtype[Any], *, instant: bool = False
    ) -> tuple[Rows, Bools]:
        """Return new rows with start and end, and a mask of the valid ones."""
        rows = np.empty(len(events), dtype=dtype)
        start, valid = us_to_ns([event.ts for event in events])
        valid &= np.abs(start) < _MAX_NS
        self.count_invalid("event_without_time", ~valid, events)
        if instant:
            end = start
        else:
            duration, has_duration = us_to_ns([event.dur for event in events])
            has_duration &= np.abs(duration) < _MAX_NS
            self.count_invalid("event_without_duration", valid & ~has_duration, events)
            negative = has_duration & (duration < 0)
            self.count_invalid("negative_duration", valid & negative, events)
            valid &= has_duration & ~negative
            end = start + np.where(valid, duration, 0)
            rows["end"] = end
        rows["start"] = start
        if valid.any():
            self.extend_span(int(start[valid].min()), int(end[valid].max()))
        return rows, valid

    def count_invalid(
        self, name: str, invalid: Bools, events: list[ev.Event], action: str = "skipped"
    ) -> None:
        """Count invalid events as an anomaly, with the first event and the action as detail."""
        if invalid.any():
            event = events[int(np.argmax(invalid))]
            detail = f"{event.cat} {event.name!r}, {action}"
            self.sink.anomaly(name, int(np.count_nonzero(invalid)), detail)
            if action == "skipped":
                self.dropped += int(np.count_nonzero(invalid))

    def arguments(self, events: list[ev.Event], kind: type[Args]) -> list[Args]:
        """Return the arguments of all events; unreadable arguments are counted and left empty."""
        known: Any = [event.args for event in events]
        if known and isinstance(known[0], kind):  # all events of a slice and kind, or none
            return known  # type: ignore[no-any-return]
        text = b"[" + b",".join(known) + b"]"
        try:
            args = msgspec.json.decode(text, type=list[kind])  # type: ignore[valid-type]
            if len(args) == len(events):
                return args
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        decoder = msgspec.json.Decoder(kind)
        result = []
        for text in map(bytes, known):
            decoded = kind()
            try:
                if text and text != b"null":
                    decoded = decoder.decode(text)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self.sink.anomaly("malformed_args", 1, ev.sample(text))
            result.append(decoded)
        return result

    def ids(self, values: list[Any], missing: int = MISSING) -> Ints:
        """Convert ids or counts; unreadable values are counted as an anomaly."""
        column, bad = to_int64(values, missing)
        self.sink.anomaly("unreadable_number", bad, "an id or count of an event's arguments")
        return column

    def external_ids(self, args: Sequence[Any]) -> Ints:
        """Return the external ids, which refer to operations."""
        column = self.ids([a.external_id for a in args])
        if (column == MISSING).any():  # in lower case before torch 1.11
            old = self.ids([a.old_external_id for a in args])
            column = np.where(column == MISSING, old, column)
        return column

    def name_ids(self, events: list[ev.Event]) -> Ints:
        """Return the string ids of the names."""
        names = self.names
        return ints([names[event.name] for event in events])

    def thread_numbers(self, events: list[ev.Event]) -> Ints:
        """Return the numbers of the threads, and count the events of each."""
        threads = self.threads
        numbers = ints([threads[event.pid, event.tid] for event in events])
        self.activity.update(dict(enumerate(np.bincount(numbers).tolist())))
        return numbers

    def place(self, events: list[ev.Event], args: Sequence[Any]) -> tuple[Ints, Ints]:
        """Return device and stream from the arguments; if missing, pid and tid."""
        device, stream = [], []
        for event, a in zip(events, args, strict=True):
            device.append(event.pid if a.device is None else a.device)
            stream.append(event.tid if a.stream is None else a.stream)
        return self.relabeled(events, self.ids(device)), self.ids(stream)

    def relabeled(self, events: list[ev.Event], devices: Ints) -> Ints:
        """Return device numbers, made unique if merged ranks use the same numbers."""
        pids = {event.pid for event in events}
        if not any(isinstance(pid, str) and not pid.isdecimal() for pid in pids):
            return devices
        number = self.labels.device
        pairs = zip(events, devices.tolist(), strict=True)
        return ints([number(event.pid, device) for event, device in pairs])

    def signature_numbers(self, args: list[ev.OperationArgs]) -> Ints:
        """Return the signature numbers of operations."""
        signatures, absent = self.signatures, ev.ABSENT
        numbers = [
            MISSING
            if a.input_dims is absent and a.input_types is absent and a.old_input_dims is absent
            else signatures[
                bytes(a.input_types),
                bytes(a.input_dims) or bytes(a.old_input_dims),
                bytes(a.input_strides),
            ]
            for a in args
        ]
        return ints(numbers)

    def geometry_numbers(self, args: Sequence[Any]) -> Ints:
        """Return the geometry numbers of launches."""
        geometries, absent = self.geometries, ev.ABSENT
        numbers = [
            MISSING if a.grid is absent else geometries[bytes(a.grid), bytes(a.block)] for a in args
        ]
        return ints(numbers)

    def raw_texts(self, raw: list[msgspec.Raw]) -> Ints:
        """Return the string ids of JSON values, `MISSING` for missing values."""
        intern, absent = self.sink.strings.intern, ev.ABSENT
        ids = [
            MISSING if text is absent else intern(bytes(text).decode("utf-8", "replace"))
            for text in raw
        ]
        return ints(ids)
