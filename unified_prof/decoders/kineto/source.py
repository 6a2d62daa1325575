"""Reads a trace file, compressed or not, as blocks of bytes in bounded memory.

Events written as a beginning and an end: put together to complete ones.

`B` and `E` nest on a thread, and an end closes the last beginning there. `b` and `e` (older: `S`
and `F`) are asynchronous: they belong together by category and id, wherever they happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from unified_prof.base.text import NS_PER_US, us_text_to_ns
from unified_prof.decoders.compression import (
    CutOffError,
    DamagedError,
    UnreadableError,
    expand,
    format_of,
)
from unified_prof.decoders.gpu.pools import parse_json
from unified_prof.decoders.kineto.events import ABSENT, Event
from unified_prof.errors import RawFormatError

# A trace compresses 10 to 60 times, one of a loop that repeats itself some hundred times. Beyond
# these ratios, and once the output is no longer small, a file is taken for a bomb: nothing that
# it holds would take memory, but time and disk without end.
MAX_RATIO = {"gzip": 400}
MAX_OTHER_RATIO = 4000
_RATIO_CHECKED_FROM_BYTES = 64 << 20


class TraceFile:
    """One file; what it holds is read once."""

    def __init__(self, path: Path) -> None:
        self.cut_off = False
        """Whether its compressed data ends before their end mark; complete with the blocks."""
        self._path = path

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks of any size.

        Raises:
            RawFormatError: the file cannot be read, its compressed data is damaged, or it expands
                more than any trace does.
        """
        try:
            with self._path.open("rb") as source:
                yield from self._blocks(source)
        except OSError as err:
            why = err.strerror or err
            raise RawFormatError(
                f"{self._path}: cannot be read: {why}", slug="cannot-read"
            ) from err

    def _blocks(self, source: IO[bytes]) -> Iterator[bytes]:
        form = format_of(source.read(8))
        source.seek(0)
        counted = _Counted(source)
        most = MAX_RATIO.get(form.name, MAX_OTHER_RATIO) if form else 1
        expanded = 0
        try:
            for block in expand(counted):  # type: ignore[arg-type]
                expanded += len(block)
                if expanded > max(_RATIO_CHECKED_FROM_BYTES, most * counted.bytes_read) and form:
                    raise RawFormatError(
                        f"{self._path}: expands more than {most} times, which no trace does",
                        hint="if the file can be trusted, decompress it and import the result",
                        slug="compression",
                    )
                yield block
        except CutOffError:
            self.cut_off = True
        except DamagedError as err:
            name = form.name if form else ""
            raise RawFormatError(
                f"{self._path}: the {name} data is damaged: {err}", slug="damaged-recording"
            ) from err
        except UnreadableError as err:
            raise RawFormatError(f"{self._path}: {err}", hint=err.hint, slug="compression") from err


class _Counted:
    """A file of which it is known how much was read."""

    def __init__(self, source: IO[bytes]) -> None:
        self.bytes_read = 0
        self._source = source

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.bytes_read += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


MOST_OPEN = 1 << 17
"""Beginnings that may be open at a time; more are left out, as nothing would bound them."""

_NESTED_BEGIN, _NESTED_END = "B", "E"
_BEGINS = (_NESTED_BEGIN, "b", "S")
PHASES = frozenset((*_BEGINS, _NESTED_END, "e", "F"))
_ASYNCHRONOUS = "async"
_UNFINISHED = msgspec.Raw(b'{"finished": false}')


class Phases:
    """What has begun and not ended yet."""

    def __init__(self, anomaly: Callable[[str, int, str], None]) -> None:
        self._anomaly = anomaly
        self._begun: dict[tuple[Any, ...], list[Event]] = {}
        self._open = 0

    def complete(self, events: Sequence[Event]) -> tuple[list[Event], list[Event]]:
        """Take beginnings and ends in the order of the file.

        Returns:
            Complete events that nest on their threads, and asynchronous ones.
        """
        done: tuple[list[Event], list[Event]] = ([], [])
        for event in events:
            key = _key(event)
            if event.ph in _BEGINS:
                if self._open < MOST_OPEN:
                    self._open += 1
                    self._begun.setdefault(key, []).append(_kept(event))
                else:
                    self._anomaly("too_many_open_events", 1, f"{event.name!r}, left out")
            elif begun := self._begun.get(key):
                self._open -= 1
                done[event.ph != _NESTED_END].append(_whole(begun.pop(), event))
                if not begun:
                    del self._begun[key]
            else:
                self._anomaly("end_without_begin", 1, f"{event.name!r}, left out")
        return done

    def rest(self, last_ns: int) -> tuple[list[Event], list[Event]]:
        """Return what never ended, as unfinished until the recording's end."""
        end = Event(ts=msgspec.Raw(_us(last_ns)), args=_UNFINISHED)
        done: tuple[list[Event], list[Event]] = ([], [])
        for begun in self._begun.values():
            for event in begun:
                done[event.ph != _NESTED_BEGIN].append(_whole(event, end))
        self._begun, self._open = {}, 0
        if all_ := [*done[0], *done[1]]:
            detail = f"{all_[0].name!r}, lasts to the end"
            self._anomaly("begin_without_end", len(all_), detail)
        return done


def _key(event: Event) -> tuple[Any, ...]:
    """Return what a beginning and its end have in common."""
    if event.ph in (_NESTED_BEGIN, _NESTED_END):
        return event.pid, event.tid
    kind = event.ph in ("b", "e")
    return kind, event.cat, bytes(event.id), event.pid if event.id is ABSENT else None


def _kept(event: Event) -> Event:
    """Return an event that does not hold on to the slice it was decoded from."""
    return Event(
        ph=event.ph,
        cat=event.cat,
        name=event.name,
        pid=event.pid,
        tid=event.tid,
        ts=event.ts.copy(),
        args=event.args.copy(),
        id=event.id.copy(),
    )


def _whole(begin: Event, end: Event) -> Event:
    is_nested = begin.ph == _NESTED_BEGIN
    return Event(
        ph="X",
        cat=begin.cat if is_nested or begin.cat is not None else _ASYNCHRONOUS,
        name=begin.name,
        pid=begin.pid,
        tid=begin.tid,
        ts=begin.ts,
        dur=_between(begin.ts, end.ts),
        args=_both(begin.args, end.args),
    )


def _between(begin: msgspec.Raw, end: msgspec.Raw) -> msgspec.Raw:
    try:
        first, last = (us_text_to_ns(bytes(one).strip(b'" ').decode()) for one in (begin, end))
    except ValueError:
        return ABSENT
    return msgspec.Raw(_us(last - first))


def _us(ns: int) -> bytes:
    whole, part = divmod(abs(ns), NS_PER_US)
    return f"{'-' if ns < 0 else ''}{whole}.{part:03}".encode()


def _both(begin: msgspec.Raw, end: msgspec.Raw) -> msgspec.Raw:
    """Return the arguments of both; where both say one, the end's."""
    said = [parse_json(bytes(one)) for one in (begin, end)]
    known = [one for one in said if isinstance(one, dict)]
    if len(known) < 2:
        return end if said[0] is None and said[1] is not None else begin
    return msgspec.Raw(msgspec.json.encode(known[0] | known[1]))
