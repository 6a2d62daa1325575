"""Reads a trace in slices of complete events, in bounded memory.

A trace is one JSON object, and nearly all of it is the array `traceEvents`. The array is split
where one event seems to end and the next to begin. A split is verified by decoding the data before
it as a list of events, which fails if the position is inside a string or a nested value.

If a slice cannot be decoded, known defects are repaired and counted: raw control characters and
invalid escapes in strings, NaN and Infinity, invalid UTF-8. Events that are still unreadable are
skipped and counted. If the file is truncated, for example because its writer was killed, all
complete events are read.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from unified_prof.decoders.compression import Content
from unified_prof.decoders.kineto.events import Event, KnownSlices, sample
from unified_prof.errors import RawFormatError

SLICE_BYTES = 2 << 20
# Maximum size of what precedes or follows the events, and of one event.
MAX_OUTSIDE_BYTES = 64 << 20
_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb"\}\s*(?=,\s*\{)")
_EVENT_KEYS = rb'"(?:ph|cat|name|pid|tid|ts|id|s)"\s*:'
_COMMA_AND_EVENT = rb"\s*,\s*(?=\{\s*" + _EVENT_KEYS + rb")"
_BETWEEN_EVENTS = re.compile(rb"(?<=\})" + _COMMA_AND_EVENT)
# The same from the brace on: a first character is searched ten times faster than a condition.
_EVENT_END = re.compile(rb"\}" + _COMMA_AND_EVENT)
_STRING_OR_NOT_A_NUMBER = re.compile(
    rb'"(?:[^"\\]|\\.)*"|[-+]?\b(?:nan|inf|infinity)\b(?:\([^)]*\))?', re.IGNORECASE | re.DOTALL
)
_NOT_A_NUMBER = re.compile(rb"\b(?:nan|inf|infinity)\b", re.IGNORECASE)
_BAD_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)', re.DOTALL)
_KEY_AFTER_ARRAY = re.compile(rb',\s*(?:"|$)')
_CONTROL_TO_SPACE = bytes(32 if c < 32 else c for c in range(256))
# Bytes after a position in which an event ends, or the trace is not divided there.
_DIVISION_BYTES = 1 << 20
# Maximum cuts that are tried in a slice, and pieces that are joined to decode an event.
_MAX_CUTS = 4
_MAX_JOINED_PIECES = 8
# Length of the end of a slice that is searched for cuts first; further ones are 8 times longer.
_CUT_BYTES = 8 << 10
_OPEN, _CLOSE, _COMMA = b"[],"

# Receives (name, count, first case) of each kind of defect.
Count = Callable[[str, int, str], None]
_decode_events = msgspec.json.Decoder(list[Event]).decode
_FAILED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class TraceReader:
    """Reads the events of one trace file in slices, and its other keys."""

    def __init__(self, path: Path, count: Count, slice_bytes: int = SLICE_BYTES) -> None:
        # Top-level keys other than `traceEvents`; complete after the last slice.
        self.metadata: dict[str, Any] = {}
        self.events_read = 0
        self.cut_off = False  # True if the file is incomplete; set after the last slice.
        self.is_finished = False  # True if the last events were read.
        # Unreadable events, and what follows the last complete event of a truncated file.
        self.skipped_bytes = 0
        self._path, self._count, self._slice_bytes = path, count, slice_bytes
        self.known = KnownSlices()
        self._file = Content(path)
        self._blocks = self._file.blocks()
        self._buffer = bytearray()  # within the events it begins with the `[` or `,` before one
        self._exhausted = False
        self._is_object: bool | None = None  # None before the events
        self._added_bytes = 0
        self.position = 0  # Position of the buffer in the decompressed file.

    @property
    def size_bytes(self) -> int:
        """Decompressed size that was read."""
        return max(self.position + len(self._buffer), self._added_bytes)

    def skip_to(self, position: int) -> int | None:
        """Skip to the first end of an event at or after `position`; return where it is, or None."""
        self._fill(self._slice_bytes)
        self._is_object = not self._buffer.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
        while self.position < position - 1 and self._buffer:
            self._drop(min(len(self._buffer), position - 1 - self.position))
            self._fill(min(self._slice_bytes, position - 1 - self.position) or 1)
        division = self._division(position)
        if division is not None:
            self._drop(division)
        return None if division is None else self.position

    def _division(self, position: int) -> int | None:
        """Return where in the buffer the first event at or after a position ends, or None."""
        at = position - self.position
        self._fill(at + _DIVISION_BYTES)
        match = _BETWEEN_EVENTS.search(self._buffer, at, at + _DIVISION_BYTES)
        return None if match is None else self._buffer.index(b",", match.start())

    def result(self) -> dict[str, Any]:
        """Return what was read besides the events, for `add`."""
        return {
            "metadata": self.metadata,
            "events_read": self.events_read,
            "cut_off": self.cut_off,
            "skipped_bytes": self.skipped_bytes,
            "size_bytes": self.size_bytes,
        }

    def add(self, rest: Mapping[str, Any]) -> None:
        """Add the result of another reader, which read from this position on."""
        self.metadata.update(rest["metadata"])
        self.events_read += rest["events_read"]
        self.skipped_bytes += rest["skipped_bytes"]
        self._added_bytes = rest["size_bytes"]
        self.cut_off = rest["cut_off"]
        if self.cut_off:
            self._count("cut_off", 1, f"the file ends after {self.events_read} events")

    def slices(self, before: int | None = None) -> Iterator[list[Event]]:
        """Yield all events in file order, a few thousand at a time.

        If the file is truncated, all complete events are yielded and the anomaly `cut_off` is
        counted. The events end at the first end of an event at or after the position `before`, if
        they can be divided there; the next call goes on, and `is_finished` is False.

        Raises:
            RawFormatError: not a trace.
        """
        is_object = self._is_object
        if is_object is None:
            is_object = self._is_object = self._enter_array()
        wanted = self._slice_bytes
        while True:
            self._fill(wanted)
            if before is not None and before < self.position + len(self._buffer):
                events, cut = self._take_rest(before)
                if cut:
                    self._drop(cut)
                    self.events_read += len(events)
                    yield events
                    return
                before = None
            events, cut = self._take_slice()
            if cut:
                self._drop(cut)
                self.events_read += len(events)
                yield events
                wanted = self._slice_bytes
            elif self._exhausted:
                break
            elif len(self._buffer) > MAX_OUTSIDE_BYTES:
                raise self._error("one event exceeds the maximum length")
            else:
                wanted = 2 * len(self._buffer)
        events = self._leave_array(is_object)
        self.is_finished = True
        self.events_read += len(events)
        self.cut_off = self.cut_off or self._file.cut_off
        if self.cut_off:
            self._count("cut_off", 1, f"the file ends after {self.events_read} events")
        yield events

    def _enter_array(self) -> bool:
        """Move to the first event; return True if the trace is an object, False for a list."""
        self._fill(self._slice_bytes)
        if self._buffer.startswith(b"\xef\xbb\xbf"):
            self._drop(3)
        begin = bytes(self._buffer[:4096].lstrip()[:20])
        if begin.startswith(b"["):
            self._drop(self._buffer.index(b"["))
            return False
        if not begin.startswith(b"{"):
            if not begin and self._file.cut_off:
                raise self._not_a_trace()
            found = repr(begin) if begin else "an empty file"
            raise self._error(f"expected a torch.profiler trace (JSON), found {found}")
        searched = 0
        while True:
            for match in _ARRAY_START.finditer(self._buffer, searched):
                header = bytes(self._buffer[: match.start()]) + b'"traceEvents":[]}'
                found_metadata = _decode_object(header)
                if found_metadata is not None:
                    found_metadata.pop("traceEvents")
                    self.metadata.update(found_metadata)
                    self._drop(match.end() - 1)
                    return True
            searched = max(0, len(self._buffer) - 64)
            if self._exhausted or len(self._buffer) > MAX_OUTSIDE_BYTES:
                raise self._not_a_trace()
            self._fill(2 * len(self._buffer))

    def _not_a_trace(self) -> RawFormatError:
        document = _decode_object(bytes(self._buffer))
        if document is not None:
            keys = ", ".join(sorted(map(str, document))[:5]) or "none"
            return self._error(f"is JSON but not a trace: it has no list traceEvents; keys: {keys}")
        return self._error(
            "starts like JSON but has no readable traceEvents: it is damaged, cut off or"
            " not a trace"
        )

    def _leave_array(self, is_object: bool) -> list[Event]:
        """Decode the last events and the keys after them from the rest of the file."""
        if len(self._buffer) > MAX_OUTSIDE_BYTES + self._slice_bytes:
            raise self._error("the part after the events exceeds the maximum length")
        text = bytes(self._buffer[1:])
        unpadded = text.rstrip(b"\0")  # left by a system crash during writing
        if len(unpadded) < len(text):
            self.skipped_bytes += len(text) - len(unpadded)
            self.cut_off, text = True, unpadded
        for rest in (text, _repair(text)):
            for close in _closing_brackets(rest):
                try:
                    events = _decode_list(rest[:close])
                except _FAILED:
                    continue
                after = _keys_after_array(rest[close + 1 :], is_object)
                if after is not None:
                    self.metadata.update(after)
                    if rest is not text:
                        self._count("repaired_slice", 1, f"from byte {self.position} on")
                    return events
        return self._leave_damaged_array(_repair(text), is_object)

    def _leave_damaged_array(self, rest: bytes, is_object: bool) -> list[Event]:
        """Find the end of the array if not all of its last events can be decoded."""
        if _ends_within_event(rest):
            return self._leave_cut_array(rest, is_object)
        for close in _closing_brackets(rest):
            after = _keys_after_array(rest[close + 1 :], is_object)
            if after is not None:
                self.metadata.update(after)
                return self._decode_pieces(rest[:close])
        return self._leave_cut_array(rest, is_object)

    def _leave_cut_array(self, rest: bytes, is_object: bool) -> list[Event]:
        """Decode the complete events and keys at the end of a truncated file."""
        if is_object:
            for close in _closing_brackets(rest):
                tail = rest[close + 1 :].strip()
                if tail and not _KEY_AFTER_ARRAY.match(tail):
                    continue
                try:
                    events = _decode_list(rest[:close])
                except _FAILED:
                    continue
                self.cut_off = True
                self.metadata.update(_complete_keys(tail))
                return events
        text = rest.strip()
        try:
            events = _decode_list(text.removesuffix(b",")) if text else []
        except _FAILED:
            self.cut_off = True
            last = _last_event_end(text) or 0
            self.skipped_bytes += len(text) - last
            return self._decode_pieces(text[:last]) if last else []
        # A list of events needs no closing bracket: programs append to it until they are killed.
        self.cut_off = self.cut_off or is_object
        return events

    def _take_rest(self, before: int) -> tuple[list[Event], int]:
        """Decode the events up to the division of the trace; return them and its position."""
        division = self._division(before)
        if division is None or not division:
            return [], 0
        try:
            return _decode_list(bytes(self._buffer[1:division])), division
        except _FAILED:
            return [], 0

    def _take_slice(self) -> tuple[list[Event], int]:
        """Decode complete events at the start of the buffer; return them and the next position.

        To avoid a copy, the comma after them is replaced by a closing bracket in place.
        """
        buffer = self._buffer
        buffer[0] = _OPEN
        cuts = _cuts(buffer)
        for cut in cuts:
            buffer[cut] = _CLOSE
            text = memoryview(buffer)[: cut + 1]
            try:
                return self.known.decode(text) or _decode_events(text), cut
            except _FAILED:
                buffer[cut] = _COMMA
        for cut in cuts:
            repaired = _repair(bytes(buffer[1:cut]))
            try:
                events = _decode_list(repaired)
            except _FAILED:
                continue
            self._count("repaired_slice", 1, f"bytes {self.position} to {self.position + cut}")
            return events, cut
        # The keys after the last event are decoded by `_leave_array`.
        last = _last_event_end(buffer)
        if last is None or len(buffer) < self._slice_bytes:
            return [], 0
        return self._decode_pieces(bytes(buffer[1:last])), buffer.index(b",", last)

    def _decode_pieces(self, text: bytes) -> list[Event]:
        """Decode events one by one; events that cannot be repaired are skipped and counted."""
        events: list[Event] = []
        pieces = _BETWEEN_EVENTS.split(text)
        index = 0
        while index < len(pieces):
            for joined in range(1, _MAX_JOINED_PIECES + 1):
                piece = b",".join(pieces[index : index + joined])
                decoded = _decode_piece(piece)
                if decoded is not None:
                    if decoded[1]:
                        self._count("repaired_event", 1, sample(piece))
                    events += decoded[0]
                    index += joined
                    break
            else:
                if pieces[index].strip():
                    self._count("malformed_event", 1, sample(pieces[index]))
                    self.skipped_bytes += len(pieces[index])
                index += 1
        return events

    def _fill(self, wanted: int) -> None:
        """Read until the buffer holds `wanted` bytes or the file is exhausted."""
        parts: list[bytes | bytearray] = [self._buffer]
        size = len(self._buffer)
        while size < wanted:
            block = next(self._blocks, b"")
            if not block:
                self._exhausted = True
                break
            parts.append(block)
            size += len(block)
        if len(parts) > 1:
            self._buffer = bytearray().join(parts)

    def _drop(self, size: int) -> None:
        self.position += size
        self._buffer = self._buffer[size:]

    def _error(self, what: str) -> RawFormatError:
        return RawFormatError(f"{self._path}: {what}", slug="not-a-recording")


def _decode_list(text: bytes) -> list[Event]:
    return _decode_events(b"[" + text + b"]")


def _cuts(buffer: bytearray) -> list[int]:
    """Return the offsets of the last commas that seem to separate two events, last one first."""
    searched = _CUT_BYTES
    while True:
        cuts = deque(_CUT.finditer(buffer, max(0, len(buffer) - searched)), _MAX_CUTS)
        if len(cuts) == _MAX_CUTS or searched >= len(buffer):
            break
        searched *= 8
    return [match.end() for match in reversed(cuts)]


def _closing_brackets(text: bytes) -> Iterator[int]:
    """Yield the offsets of each `]` that may end the array: after `}` or at the start."""
    if text.lstrip()[:1] == b"]":
        yield text.index(b"]")
    for match in re.finditer(rb"\}\s*\]", text):
        yield match.end() - 1


def _ends_within_event(text: bytes) -> bool:
    """Return True if the text after the last complete event is an incomplete event."""
    last = _last_event_end(text)
    begun = text if last is None else text[last:].lstrip(b", \t\r\n")
    try:
        msgspec.json.decode(begun)
    except msgspec.DecodeError as err:
        return "truncated" in str(err)
    except (UnicodeDecodeError, RecursionError):
        pass
    return False


def _keys_after_array(tail: bytes, is_object: bool) -> dict[str, Any] | None:
    """Decode the text after the array (`, "key": ... }`); return None if it is invalid."""
    text = tail.strip()
    if not is_object:
        return None if text else {}
    if text.startswith(b","):
        return _decode_object(b"{" + text[1:])
    return {} if text == b"}" else None


def _complete_keys(tail: bytes) -> dict[str, Any]:
    """Decode the complete keys of `, "key": value, "key": val`."""
    end = len(tail)
    while end > 0:
        found = _decode_object(b"{" + tail[1:end] + b"}")
        if found is not None:
            return found
        end = tail.rfind(b",", 0, end)
    return {}


def _decode_object(text: bytes) -> dict[str, Any] | None:
    for candidate in (text, _repair(text)):
        try:
            document = msgspec.json.decode(candidate)
        except _FAILED:
            try:
                document = json.loads(candidate, strict=False)  # accepts numbers of any size
            except (ValueError, RecursionError):
                continue
        return document if isinstance(document, dict) else None
    return None


def _decode_piece(piece: bytes) -> tuple[list[Event], bool] | None:
    """Decode the text of an event; return the events and True if it was repaired."""
    for text, repaired in ((piece, False), (_repair(piece), True)):
        try:
            return _decode_list(text), repaired
        except _FAILED:
            continue
    return None


def _repair(text: bytes) -> bytes:
    """Repair the known defects; in other text only whitespace changes."""
    text = text.translate(_CONTROL_TO_SPACE)
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        text = text.decode("utf-8", "replace").encode("utf-8")
    if b"\\" in text:
        text = _BAD_ESCAPE.sub(lambda m: m[0] if m[1] else rb"\\", text)
    lower = text.lower()  # Replacing each string by itself is slow, and so is the pattern.
    if not ((b"nan" in lower or b"inf" in lower) and _NOT_A_NUMBER.search(text)):
        return text
    return _STRING_OR_NOT_A_NUMBER.sub(lambda m: m[0] if m[0].startswith(b'"') else b"null", text)


def _last_event_end(text: bytes | bytearray) -> int | None:
    """Return the offset after the last event that another one follows."""
    last = None
    for match in _EVENT_END.finditer(text):
        last = match.start() + 1
    return last
