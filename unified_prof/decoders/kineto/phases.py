"""Joins events that are written as a beginning and an end into complete events.

`B` and `E` nest on a thread: an end closes the last beginning on its thread. `b` and `e` (older:
`S` and `F`) are asynchronous: category and id join them, on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from unified_prof.base.text import NS_PER_US, us_text_to_ns
from unified_prof.decoders.gpu.pools import parse_json
from unified_prof.decoders.kineto.events import ABSENT, Event

# Maximum number of open beginnings, which bounds the memory they take; more are skipped.
MAX_OPEN = 1 << 17

_NESTED_BEGIN, _NESTED_END = "B", "E"
_BEGINS = (_NESTED_BEGIN, "b", "S")
PHASES = frozenset((*_BEGINS, _NESTED_END, "e", "F"))
_ASYNCHRONOUS = "async"
_UNFINISHED = msgspec.Raw(b'{"finished": false}')


class Phases:
    """Events that have begun and not ended yet."""

    def __init__(self, anomaly: Callable[[str, int, str], None]) -> None:
        self._anomaly = anomaly
        self._begun: dict[tuple[Any, ...], list[Event]] = {}
        self._open = 0

    def complete(self, events: Sequence[Event]) -> tuple[list[Event], list[Event]]:
        """Add beginnings and ends in the order of the file.

        Returns:
            Events that became complete: those that nest on their threads, and asynchronous ones.
        """
        done: tuple[list[Event], list[Event]] = ([], [])
        for event in events:
            key = _key(event)
            if event.ph in _BEGINS:
                if self._open < MAX_OPEN:
                    self._open += 1
                    self._begun.setdefault(key, []).append(_copy(event))
                else:
                    self._anomaly("too_many_open_events", 1, f"{event.name!r}, skipped")
            elif begun := self._begun.get(key):
                self._open -= 1
                done[event.ph != _NESTED_END].append(_complete_event(begun.pop(), event))
                if not begun:
                    del self._begun[key]
            else:
                self._anomaly("end_without_begin", 1, f"{event.name!r}, skipped")
        return done

    def rest(self, last_ns: int) -> tuple[list[Event], list[Event]]:
        """Return the events that never ended, as unfinished, until the end of the recording."""
        end = Event(ts=msgspec.Raw(_us(last_ns)), args=_UNFINISHED)
        done: tuple[list[Event], list[Event]] = ([], [])
        for begun in self._begun.values():
            for event in begun:
                done[event.ph != _NESTED_BEGIN].append(_complete_event(event, end))
        self._begun, self._open = {}, 0
        if unfinished := [*done[0], *done[1]]:
            detail = f"{unfinished[0].name!r}, extended to the end of the recording"
            self._anomaly("begin_without_end", len(unfinished), detail)
        return done


def _key(event: Event) -> tuple[Any, ...]:
    """Return the key that joins a beginning and its end."""
    if event.ph in (_NESTED_BEGIN, _NESTED_END):
        return event.pid, event.tid
    kind = event.ph in ("b", "e")
    return kind, event.cat, bytes(event.id), event.pid if event.id is ABSENT else None


def _copy(event: Event) -> Event:
    """Return a copy that does not keep the slice alive from which the event was decoded."""
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


def _complete_event(begin: Event, end: Event) -> Event:
    is_nested = begin.ph == _NESTED_BEGIN
    return Event(
        ph="X",
        cat=begin.cat if is_nested or begin.cat is not None else _ASYNCHRONOUS,
        name=begin.name,
        pid=begin.pid,
        tid=begin.tid,
        ts=begin.ts,
        dur=_duration(begin.ts, end.ts),
        args=_merged_arguments(begin.args, end.args),
    )


def _duration(begin: msgspec.Raw, end: msgspec.Raw) -> msgspec.Raw:
    try:
        first, last = (us_text_to_ns(bytes(time).strip(b'" ').decode()) for time in (begin, end))
    except ValueError:
        return ABSENT
    return msgspec.Raw(_us(last - first))


def _us(ns: int) -> bytes:
    microseconds, rest = divmod(abs(ns), NS_PER_US)
    return f"{'-' if ns < 0 else ''}{microseconds}.{rest:03}".encode()


def _merged_arguments(begin: msgspec.Raw, end: msgspec.Raw) -> msgspec.Raw:
    """Return the arguments of both; if both have a key, the value of the end."""
    values = [parse_json(bytes(text)) for text in (begin, end)]
    mappings = [value for value in values if isinstance(value, dict)]
    if len(mappings) < 2:
        return end if values[0] is None and values[1] is not None else begin
    return msgspec.Raw(msgspec.json.encode(mappings[0] | mappings[1]))
