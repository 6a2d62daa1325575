"""Sums over all communication of a run that memory would not hold, one rank at a time.

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
from unified_prof.cluster.matching import Matched
from unified_prof.cluster.partial import NONE, Columns
from unified_prof.recording.collectives import POINT_TO_POINT

Ints = NDArray[np.int64]
Row = tuple[Any, ...]
Key = tuple[int, int]
"""Of events: (group, kind), of transfers (-1 - source, target); all by number in `Matched`."""

COLUMNS = ("group", "kind", "seq", "start", "end", "bytes", "peer", "move", "step", "covered")

_ENDLESS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Sums:
    """What is summed up over the whole run; ranks, groups and kinds by number in `Matched`."""

    waits: dict[tuple[int, int], tuple[int, int, int, int]]
    """(step, rank) -> wait, exposed wait, set-up, bubble."""
    collectives: list[Row]
    """group, kind, step, bytes, n, complete, transfer, wait, setup, median, p99 of transfer."""
    caused: dict[int, tuple[int, int]]
    """rank -> waiting caused, times."""


class _Events:
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
                more[4:, self.count :] = NONE
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


def sums(matched: Matched, read: Callable[[int], Columns]) -> Sums:
    """Sum up the whole run.

    Args:
        matched: What the first steps say: groups, kinds, and how sequences are shifted.
        read: Returns COLUMNS of all communication of a rank, by its number; called twice.
    """
    shifts = _shifts(matched)
    events: dict[Key, _Events] = {}
    for rank in range(len(matched.ranks)):
        table = read(rank)
        duration = table["end"] - table["start"]
        for key, rows, number in _keyed(matched, rank, table, shifts):
            held = events.setdefault(key, _Events())
            held.grow(number.stop if isinstance(number, slice) else int(number.max()) + 1)
            held.take(number, rank, duration[rows], table, rows)
    waits: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    for rank in range(len(matched.ranks)):
        table = read(rank)
        waits.update(_waits(matched, rank, table, events, shifts))
    return Sums(waits, list(_collectives(matched, events)), _caused(matched, events))


def _keyed(
    matched: Matched, rank: int, table: Columns, shifts: dict[tuple[int, int, int, int], int]
) -> Iterator[tuple[Key, Ints, slice | Ints]]:
    """Yield each sequence of a rank: its key, its rows, and the numbers of their events.

    These are a slice where they follow one another, as those of a whole recording do.
    """
    one = matched.partials[rank]
    codes = np.array([*(matched.kinds.index(kind) for kind in one.kinds), NONE], np.int64)
    kind = codes[table["kind"]]
    group = np.append(matched.numbers[rank], NONE)[table["group"]]
    ranks = np.array(matched.ranks, np.int64)
    transfer = kind < len(POINT_TO_POINT)
    peer = np.searchsorted(ranks, table["peer"])
    peer = np.where(np.append(ranks, NONE)[peer] == table["peer"], peer, NONE)
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
            shift = shifts.get((rank, NONE, own, other), 0)
        else:
            key = (int(group[at]), own)
            shift = shifts.get((rank, *key, NONE), 0)
        yield key, rows, _in_a_row(table["seq"][rows] + shift)


def _in_a_row(numbers: Ints) -> slice | Ints:
    """Return numbers that follow one another as a slice: of arrays that costs no index a row."""
    first, last = int(numbers[0]), int(numbers[-1])
    if first >= 0 and last - first == len(numbers) - 1 and (np.diff(numbers) == 1).all():
        return slice(first, last + 1)
    return numbers


def _shifts(matched: Matched) -> dict[tuple[int, int, int, int], int]:
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
        np.where(transfer, NONE, rows.group[shifted]),
        rows.kind[shifted],
        np.where(transfer, peer, NONE),
    )
    keys = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(keys, (rows.seq - own)[shifted].tolist(), strict=True))


def _waits(
    matched: Matched,
    rank: int,
    table: Columns,
    events: dict[Key, _Events],
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


def _took(held: _Events) -> tuple[Ints, Ints]:
    """Return transfer and set-up of each event."""
    moved = np.minimum(held.moved, held.least)
    told = held.moved >= 0
    return np.where(told, moved, held.least), np.where(told, held.least - moved, 0)


def _collectives(matched: Matched, events: dict[Key, _Events]) -> Iterator[Row]:
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


def _caused(matched: Matched, events: dict[Key, _Events]) -> dict[int, tuple[int, int]]:
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
