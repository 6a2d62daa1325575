"""Events written as a beginning and an end: put together to complete ones.

`B` and `E` nest on a thread, and an end closes the last beginning there. `b` and `e` (older: `S`
and `F`) are asynchronous: they belong together by category and id, wherever they happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from unified_prof.decoders.gpu.pools import parse_json
from unified_prof.decoders.kineto.events import ABSENT, Event
from unified_prof.units import NS_PER_US, us_text_to_ns

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
