"""Reads `trace_view.json`: a list of Chrome events, some megabytes at a time.

Times are decimal microseconds as text, or numbers; they become whole nanoseconds. What cannot be
read as an event is counted, and a file that ends within one keeps those before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from unified_prof.columns import Sink
from unified_prof.errors import RawFormatError
from unified_prof.units import us_text_to_ns

_PIECE_BYTES = 4 << 20
_LARGEST_EVENT = 64 << 20
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_MOST_TRIES = 200
_BOM = b"\xef\xbb\xbf"
_LATEST_NS = 1 << 62


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event, as far as it is used."""

    ph: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: str | float | int = 0
    dur: str | float | int = 0
    cat: str | None = None
    args: dict[str, Any] | None = None


class BadEventError(ValueError):
    """An event has no time, or something of another type."""


_EVENTS = msgspec.json.Decoder(list[Event])
_ANYTHING = msgspec.json.Decoder(list[Any])


def read_events(path: Path, sink: Sink) -> Iterator[list[Event]]:
    """Yield the events of a file in their order.

    Raises:
        RawFormatError: it cannot be read, or is no list.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_PIECE_BYTES).removeprefix(_BOM).lstrip()
            if data[:1] != b"[":
                raise RawFormatError(
                    f"{path} is no list of events, as torch_npu writes it", slug="not-a-recording"
                )
            data = data[1:]
            while more := file.read(_PIECE_BYTES):
                found = _before_last(data)
                if found is None:
                    if len(data) > _LARGEST_EVENT:
                        raise RawFormatError(
                            f"{path} has an event of more than {len(data):,} bytes",
                            slug="damaged-recording",
                        )
                    data += more
                    continue
                events, used = found
                yield _typed(events, path, sink)
                data = data[used:] + more
            yield from _last(data, path, sink)
    except OSError as err:
        raise RawFormatError(
            f"{path}: cannot be read: {err.strerror or err}", slug="cannot-read"
        ) from err


def time_ns(value: str | float) -> int:
    """Return a time or duration in microseconds as nanoseconds.

    Raises:
        BadEventError: it is none.
    """
    if isinstance(value, str):
        try:
            if value[-4:-3] == "." and value.replace(".", "", 1).isdecimal():
                found = int(value[:-4] + value[-3:])
            else:
                found = us_text_to_ns(value.strip())
        except ValueError:
            raise BadEventError(f"{value!r} is no time") from None
    elif not math.isfinite(value * 1000):
        raise BadEventError("a time that is no number")
    else:
        found = round(value * 1000)
    if abs(found) > _LATEST_NS:
        raise BadEventError("a time beyond all clocks")
    return found


def _before_last(data: bytes) -> tuple[bytes, int] | None:
    """Return the whole events at the beginning, and where those after them begin."""
    places = [found.span() for found in _BETWEEN.finditer(data)]
    # Such text may stand within a string or an inner list; what is whole can be read as JSON.
    for start, end in reversed(places[-_MOST_TRIES:]):
        text = b"[" + data[: start + 1] + b"]"
        try:
            _ANYTHING.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
        return text, end - 1
    return None


def _last(data: bytes, path: Path, sink: Sink) -> Iterator[list[Event]]:
    text = data.rstrip()
    whole = text.endswith(b"]")
    text = text.removesuffix(b"]").rstrip().removesuffix(b",")
    if not text:
        if not whole:
            sink.anomaly("cut_off", 1, f"{path}: the list has no end")
        return
    try:
        _ANYTHING.decode(b"[" + text + b"]")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        sink.anomaly("cut_off", 1, f"{path}: the last event is not whole")
        if (found := _before_last(text)) is not None:
            yield _typed(found[0], path, sink)
        return
    if not whole:
        sink.anomaly("cut_off", 1, f"{path}: the list has no end")
    yield _typed(b"[" + text + b"]", path, sink)


def _typed(text: bytes, path: Path, sink: Sink) -> list[Event]:
    try:
        return _EVENTS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    events = []
    for one in _ANYTHING.decode(text):
        try:
            events.append(msgspec.convert(one, Event))
        except msgspec.ValidationError as err:
            sink.anomaly("damaged_event", 1, f"{path}: {err}")
    return events
