"""Waiting, moving data, set-up: what the time in communication was.

All members of a collective leave it together, and whoever came last waited least. So the least
duration is what the collective itself took, and the rest of every other one is waiting. No
common clock is needed. On NPUs the parts of a collective say when data moved; what is left of the
least duration is set-up.

Sums over all communication of a run that memory would not hold, one rank at a time.

What needs single operations of all ranks at once (clocks, links, what-if) is worked out over the
first steps, which are in memory; what is summed up over the whole run comes from here. Sequences
are numbered without gaps, so that an operation's place in its event is an index: nothing is
sorted or joined, and what is held is a row an event, not a row an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Runs, distinct, stable_order
from unified_prof.arrays.types import Ints
from unified_prof.cluster.matching import MatchedCollectives
from unified_prof.cluster.rank_partial import NO_VALUE, Columns, Partial
from unified_prof.recording.collectives import POINT_TO_POINT


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Of rows and events of a `Matched`; where nothing is known, NONE."""

    wait: Ints
    """Of each row: waiting for the last comer; known where two members or more are."""
    exposed: Ints
    """Of each row: the part of `wait` that no kernel covers."""
    least: Ints
    """Of each event: the least duration, set-up and transfer."""
    transfer: Ints
    setup: Ints
    last: Ints
    """Of each event: the row that came last."""


def compute_waits(matched: MatchedCollectives) -> Waits:
    """Divide up the time of all communication."""
    rows, events = matched.rows, matched.events
    duration = rows.end - rows.start
    wait = np.full(len(rows), NO_VALUE, np.int64)
    if not len(events):
        return Waits(wait, wait.copy(), *(np.empty(0, np.int64) for _ in range(4)))
    count = int(events.members.sum())
    least = np.minimum.reduceat(duration[:count], events.first)
    spread = np.repeat(least, events.members)
    known = np.repeat(events.members > 1, events.members)
    wait[:count] = np.where(known, duration[:count] - spread, NO_VALUE)
    # The first of the rows that have the least duration.
    at_least = np.flatnonzero(duration[:count] == spread)
    owner = rows.event[at_least]
    last = at_least[np.r_[True, owner[1:] != owner[:-1]]]
    moved = np.minimum(rows.move[last], least)
    setup = np.where(moved >= 0, least - moved, NO_VALUE)
    return Waits(
        wait=wait,
        exposed=_exposed(matched, wait),
        least=least,
        transfer=np.where(moved >= 0, moved, least),
        setup=setup,
        last=last,
    )


def _exposed(matched: MatchedCollectives, wait: Ints) -> Ints:
    """Take off each wait what kernels of the same rank cover; a wait is an operation's begin."""
    rows = matched.rows
    exposed = wait.copy()
    partly = np.flatnonzero((wait > 0) & (rows.covered > 0))
    partly = partly[np.argsort(rows.rank[partly], kind="stable")]
    edges = np.searchsorted(rows.rank[partly], np.arange(len(matched.ranks) + 1))
    for index, one in enumerate(matched.partials):
        mine = partly[edges[index] : edges[index + 1]]
        if len(mine):
            covered = Covered(one)
            begin = rows.start[mine]
            hidden = covered.until(begin + wait[mine]) - covered.until(begin)
            exposed[mine] = wait[mine] - np.clip(np.rint(hidden).astype(np.int64), 0, wait[mine])
    return exposed


class Covered:
    """How much kernels cover of a rank's time, from its marks: exact at these, near in between."""

    def __init__(self, one: Partial) -> None:
        marks = one.marks
        self._origin = int(marks["time"][0]) if len(marks["time"]) else 0
        time = marks["time"] - self._origin
        until = np.r_[time[1:], time[-1:] + marks["lead"][-1:] + marks["busy"][-1:]]
        begin = time + marks["lead"]
        end = np.maximum(until - marks["tail"], begin)
        before = np.cumsum(marks["busy"]) - marks["busy"]
        order = np.arange(2 * len(time)) // 2
        self._at = np.where(np.arange(len(order)) % 2, end[order], begin[order])
        self._sum = np.where(
            np.arange(len(order)) % 2, (before + marks["busy"])[order], before[order]
        )

    def until(self, at: Ints) -> NDArray[np.float64]:
        """Return how much of the time before each point kernels cover."""
        if not len(self._at):
            return np.zeros(len(at))
        return np.interp((at - self._origin).astype(np.float64), self._at, self._sum)


SumRow = tuple[Any, ...]
SumKey = tuple[int, int]
"""Of events: (group, kind), of transfers (-1 - source, target); all by number in `Matched`."""

STREAMED_COLUMNS = (
    "group",
    "kind",
    "seq",
    "start",
    "end",
    "bytes",
    "peer",
    "move",
    "step",
    "covered",
)

_ENDLESS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class StreamedSums:
    """What is summed up over the whole run; ranks, groups and kinds by number in `Matched`."""

    waits: dict[tuple[int, int], tuple[int, int, int, int]]
    """(step, rank) -> wait, exposed wait, set-up, bubble."""
    collectives: list[SumRow]
    """group, kind, step, bytes, n, complete, transfer, wait, setup, median, p99 of transfer."""
    caused: dict[int, tuple[int, int]]
    """rank -> waiting caused, times."""


class _StreamedEvents:
    """The events of one key, by their number."""

    def __init__(self) -> None:
        self.count = 0
        self._held = np.empty((7, 0), np.int64)

    def grow(self, count: int) -> None:
        """Make room for so many."""
        if count > self.count:
            room = self._held.shape[1]
            if count > room:
                more = np.zeros((7, max(count, room * 3 // 2)), np.int64)
                more[:, : self.count] = self._held[:, : self.count]
                more[0, self.count :] = _ENDLESS
                more[4:, self.count :] = NO_VALUE
                self._held = more
            self.count = count

    def __getattr__(self, name: str) -> Ints:
        """Return a column: least, spent, members, last, moved, step, bytes."""
        at = ("least", "spent", "members", "last", "moved", "step", "bytes").index(name)
        return self._held[at, : self.count]

    def take(self, at: slice | Ints, rank: int, own: Ints, table: Columns, rows: Ints) -> None:
        """Take in a sequence of a rank.

        Args:
            at: The numbers of its events; a slice where they follow one another.
            rank: The rank.
            own: How long each took there.
            table: The rank's communication.
            rows: The rows of the sequence.
        """
        columns = [self._held[place, : self.count] for place in range(7)]
        # Of a slice these are the columns themselves, of numbers copies to be put back.
        parts = [column[at] for column in columns]
        least, spent, members, last, moved, step, size = parts
        first = own < least
        np.copyto(least, own, where=first)
        np.copyto(last, rank, where=first)
        np.copyto(moved, table["move"][rows], where=first)
        spent += own
        members += 1
        np.maximum(step, table["step"][rows], out=step)
        np.maximum(size, table["bytes"][rows], out=size)
        if not isinstance(at, slice):
            for column, part in zip(columns, parts, strict=True):
                column[at] = part


def stream_sums(matched: MatchedCollectives, read: Callable[[int], Columns]) -> StreamedSums:
    """Sum up the whole run.

    Args:
        matched: What the first steps say: groups, kinds, and how sequences are shifted.
        read: Returns COLUMNS of all communication of a rank, by its number; called twice.
    """
    shifts = _shifts(matched)
    events: dict[SumKey, _StreamedEvents] = {}
    for rank in range(len(matched.ranks)):
        table = read(rank)
        duration = table["end"] - table["start"]
        for key, rows, number in _keyed(matched, rank, table, shifts):
            held = events.setdefault(key, _StreamedEvents())
            held.grow(number.stop if isinstance(number, slice) else int(number.max()) + 1)
            held.take(number, rank, duration[rows], table, rows)
    waits: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    for rank in range(len(matched.ranks)):
        table = read(rank)
        waits.update(_streamed_waits(matched, rank, table, events, shifts))
    return StreamedSums(waits, list(_collectives(matched, events)), _caused(matched, events))


def _keyed(
    matched: MatchedCollectives,
    rank: int,
    table: Columns,
    shifts: dict[tuple[int, int, int, int], int],
) -> Iterator[tuple[SumKey, Ints, slice | Ints]]:
    """Yield each sequence of a rank: its key, its rows, and the numbers of their events.

    These are a slice where they follow one another, as those of a whole recording do.
    """
    one = matched.partials[rank]
    codes = np.array([*(matched.kinds.index(kind) for kind in one.kinds), NO_VALUE], np.int64)
    kind = codes[table["kind"]]
    group = np.append(matched.numbers[rank], NO_VALUE)[table["group"]]
    ranks = np.array(matched.ranks, np.int64)
    transfer = kind < len(POINT_TO_POINT)
    peer = np.searchsorted(ranks, table["peer"])
    peer = np.where(np.append(ranks, NO_VALUE)[peer] == table["peer"], peer, NO_VALUE)
    sequence = np.where(transfer, -2 - peer, group) * len(matched.kinds) + kind
    order = stable_order(sequence)
    runs = Runs(sequence[order])
    for start, size in zip(runs.starts.tolist(), runs.sizes.tolist(), strict=True):
        rows = order[start : start + size]
        at = int(rows[0])
        own, other = int(kind[at]), int(peer[at])
        if transfer[at]:
            if other < 0:
                continue
            ends = (rank, other) if own == 0 else (other, rank)
            key = (-1 - ends[0], ends[1])
            shift = shifts.get((rank, NO_VALUE, own, other), 0)
        else:
            key = (int(group[at]), own)
            shift = shifts.get((rank, *key, NO_VALUE), 0)
        yield key, rows, _in_a_row(table["seq"][rows] + shift)


def _in_a_row(numbers: Ints) -> slice | Ints:
    """Return numbers that follow one another as a slice: of arrays that costs no index a row."""
    first, last = int(numbers[0]), int(numbers[-1])
    if first >= 0 and last - first == len(numbers) - 1 and (np.diff(numbers) == 1).all():
        return slice(first, last + 1)
    return numbers


def _shifts(matched: MatchedCollectives) -> dict[tuple[int, int, int, int], int]:
    """Return by how much sequences are shifted that do not begin at 0 together.

    They are told by rank, group (of collectives), kind, and peer (of transfers).
    """
    rows = matched.rows
    counts = [len(one.communication["seq"]) for one in matched.partials]
    before = np.cumsum([0, *counts])[:-1]
    numbers = np.concatenate([one.communication["seq"] for one in matched.partials])
    own = numbers[before[rows.rank] + rows.op]
    shifted = np.flatnonzero((rows.event >= 0) & (rows.seq != own))
    transfer = rows.kind[shifted] < len(POINT_TO_POINT)
    peer = np.searchsorted(np.array(matched.ranks, np.int64), rows.peer[shifted])
    columns = (
        rows.rank[shifted],
        np.where(transfer, NO_VALUE, rows.group[shifted]),
        rows.kind[shifted],
        np.where(transfer, peer, NO_VALUE),
    )
    keys = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(keys, (rows.seq - own)[shifted].tolist(), strict=True))


def _streamed_waits(
    matched: MatchedCollectives,
    rank: int,
    table: Columns,
    events: dict[SumKey, _StreamedEvents],
    shifts: dict[tuple[int, int, int, int], int],
) -> dict[tuple[int, int], tuple[int, int, int, int]]:
    duration = table["end"] - table["start"]
    sums = np.zeros((4, len(duration)))
    known = np.zeros(len(duration), bool)
    for key, rows, number in _keyed(matched, rank, table, shifts):
        held = events[key]
        least, moved = held.least[number], held.moved[number]
        shared = held.members[number] > 1
        wait = np.where(shared, duration[rows] - least, 0)
        # What kernels cover of an operation is taken to be spread over it evenly.
        shown = wait * (1 - table["covered"][rows] / np.maximum(duration[rows], 1))
        known[rows] = shared
        sums[0, rows], sums[1, rows] = wait, shown
        sums[2, rows] = np.where(shared & (moved >= 0), np.maximum(least - moved, 0), 0)
        sums[3, rows] = shown if key[0] < 0 else 0
    inside = np.flatnonzero(known & (table["step"] >= 0))
    if not len(inside):
        return {}
    steps, place = distinct(table["step"][inside])
    totals = [np.rint(np.bincount(place, one[inside])).astype(np.int64).tolist() for one in sums]
    return {
        (step, rank): (wait, shown, setup, bubble)
        for step, wait, shown, setup, bubble in zip(steps.tolist(), *totals, strict=True)
    }


def _took(held: _StreamedEvents) -> tuple[Ints, Ints]:
    """Return transfer and set-up of each event."""
    moved = np.minimum(held.moved, held.least)
    told = held.moved >= 0
    return np.where(told, moved, held.least), np.where(told, held.least - moved, 0)


def _collectives(
    matched: MatchedCollectives, events: dict[SumKey, _StreamedEvents]
) -> Iterator[SumRow]:
    for (group, kind), held in sorted(events.items()):
        if group < 0:
            continue
        there = np.flatnonzero(held.members > 0)
        took, setup = _took(held)
        order = there[np.lexsort((took[there], held.bytes[there], held.step[there]))]
        runs = Runs(held.step[order], held.bytes[order])
        for start, size in zip(runs.starts.tolist(), runs.sizes.tolist(), strict=True):
            mine = order[start : start + size]
            usable = mine[held.members[mine] > 1]
            count = len(usable)
            wait = held.spent[usable] - held.members[usable] * held.least[usable]
            yield (
                group,
                kind,
                int(held.step[mine[0]]),
                int(held.bytes[mine[0]]),
                size,
                int((held.members[mine] == matched.groups[group].size).sum()),
                int(took[usable].sum()),
                int(wait.sum()),
                int(setup[usable].sum()),
                int(took[usable[-(-count // 2) - 1]]) if count else None,
                int(took[usable[-(-count * 99 // 100) - 1]]) if count else None,
            )


def _caused(
    matched: MatchedCollectives, events: dict[SumKey, _StreamedEvents]
) -> dict[int, tuple[int, int]]:
    caused = np.zeros(len(matched.ranks), np.int64)
    times = np.zeros(len(matched.ranks), np.int64)
    for (group, _), held in events.items():
        members = 2 if group < 0 else matched.groups[group].size
        whole = np.flatnonzero((held.members == members) & (held.members > 1))
        np.add.at(caused, held.last[whole], held.spent[whole] - members * held.least[whole])
        np.add.at(times, held.last[whole], 1)
    return {
        rank: (wait, count)
        for rank, (wait, count) in enumerate(zip(caused.tolist(), times.tolist(), strict=True))
        if count
    }
