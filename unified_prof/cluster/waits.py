"""Breakdown of communication time into waits, transfers and setup.

All members of a collective leave it together, and the last one to arrive has the shortest duration.
That is the duration of the collective itself; the rest of a longer duration is wait time. No common
clock is needed. On NPUs, the parts of a collective show when data moved; the rest of the shortest
duration is setup.

For runs that do not fit in memory, sums over the whole run are computed for one key of events
(group and kind) at a time. Its operations are a matrix of members and events, whose columns are
compared without sorting or joining. Only the operations of its members are needed, so keys can be
given to different workers; results are added in the order of the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import NO_VALUE, Bools, Floats, Ints, Runs, distinct
from unified_prof.arrays.packed import Column, Narrow
from unified_prof.cluster.matching import MatchedCollectives, SequenceMatch
from unified_prof.cluster.rank_partial import Partial
from unified_prof.cluster.sequences import Sequences

_BLOCK = 1 << 18  # Approximate number of rows that are widened at the same time.
_CELLS = 1 << 20  # Maximum number of cells of a matrix.


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Waits by row and parts by event of `MatchedCollectives`, ns; NO_VALUE if unknown."""

    wait: Column  # By row: wait for the last member; known for events with at least two members.
    least: Ints  # By event: the shortest duration, which is setup plus transfer.
    transfer: Ints
    setup: Ints
    last: Ints  # By event: the row of the member that arrived last.


def compute_waits(matched: MatchedCollectives) -> Waits:
    """Return waits, transfers and setup of all communication."""
    rows, events = matched.rows, matched.events
    count = int(events.members.sum())
    waits = np.full(len(rows), NO_VALUE, rows.length.stored)
    all_least, all_last = ([np.empty(0, np.int64)] for _ in range(2))
    edges = np.append(events.first, count)
    heads = np.unique(np.searchsorted(edges, [*range(0, count, _BLOCK), count]))
    for low, high in zip(heads[:-1].tolist(), heads[1:].tolist(), strict=True):
        begin, members = int(edges[low]), events.members[low:high]
        duration = rows.length[begin : int(edges[high])]
        first = events.first[low:high] - begin
        least = np.minimum.reduceat(duration, first)
        wait = duration - np.repeat(least, members)
        # The first of the rows with the shortest duration.
        at_least = np.flatnonzero(wait == 0)
        owner = np.searchsorted(first, at_least, side="right")
        all_last.append(at_least[np.diff(owner, prepend=0) > 0] + begin)
        all_least.append(least)
        known = np.repeat(members > 1, members)
        np.copyto(waits[begin : begin + len(wait)], wait, where=known, casting="unsafe")
    least, last = np.concatenate(all_least), np.concatenate(all_last)
    moved = np.minimum(rows.move[last], least)
    return Waits(
        wait=Narrow(waits),
        least=least,
        transfer=np.where(moved >= 0, moved, least),
        setup=np.where(moved >= 0, least - moved, NO_VALUE),
        last=last,
    )


def mostly_recorded(matched: MatchedCollectives) -> Bools:
    """Return a mask of the events of which most members are recorded; others have no known setup.

    If most are missing, those that are recorded probably wait for a missing one.
    """
    sizes = np.array([*(group.size for group in matched.groups), NO_VALUE], np.int64)
    return np.asarray(2 * matched.events.members > sizes[matched.events.group])


def exposed_waits(matched: MatchedCollectives, waits: Waits) -> Ints:
    """Return the part of each wait that no kernel covers; waits begin with their operations."""
    rows = matched.rows
    exposed = waits.wait[:]
    wait = waits.wait[:]
    partly = np.flatnonzero((wait > 0) & (rows.covered > 0))
    rank = rows.rank[partly]
    partly = partly[np.argsort(rank, kind="stable")]
    edges = np.searchsorted(np.sort(rank), np.arange(len(matched.ranks) + 1))
    for index, one in enumerate(matched.partials):
        selected = partly[edges[index] : edges[index + 1]]
        if len(selected):
            covered = Covered(one)
            begin = rows.start[selected]
            hidden = covered.until(begin + wait[selected]) - covered.until(begin)
            exposed[selected] = wait[selected] - np.clip(
                np.rint(hidden).astype(np.int64), 0, wait[selected]
            )
    return exposed


class Covered:
    """Time covered by kernels at the marks of a rank, interpolated between marks."""

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

    def until(self, at: Ints) -> Floats:
        """Return the time covered by kernels before each point in time, ns."""
        if not len(self._at):
            return np.zeros(len(at))
        return np.interp((at - self._origin).astype(np.float64), self._at, self._sum)


SumRow = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class WholeSums:
    """Sums over the whole run; ranks, groups and kinds are indices."""

    # (step, rank) -> wait, exposed wait, setup, bubble, ns.
    waits: Mapping[tuple[int, int], tuple[int, ...]]
    # Rows: group, kind, step, bytes, n, complete, transfer, wait, setup, transfer median, p99.
    collectives: list[SumRow]
    caused: Ints  # By rank: wait of other ranks that it caused, ns, and number of such waits.


class KeyMembers(NamedTuple):
    """The sequences of one key of events; see `MatchedSequences`."""

    first: int
    second: int
    size: int  # Number of members of a complete event.
    members: tuple[tuple[int, int, int], ...]  # Rank, place among its sequences, and shift.


@dataclass(frozen=True, slots=True, eq=False)
class KeySums:
    """Sums of the events of one key."""

    ranks: Ints
    steps: Ints
    # Wait, exposed wait, setup, bubble, and number of operations: figures x ranks x steps.
    waits: Floats
    collectives: list[SumRow]
    caused: Ints  # By rank: wait of other ranks, and number of such waits.


def keys_of(matched: SequenceMatch) -> list[KeyMembers]:
    """Return the keys of all events of a run, in ascending order."""
    table = matched.table
    keys = Runs(table.first, table.second)
    cells = list(zip(*(c.tolist() for c in (table.rank, table.place, table.shift)), strict=True))
    result = []
    for at, count in zip(keys.starts.tolist(), keys.sizes.tolist(), strict=True):
        first = int(table.first[at])
        size = 2 if first < 0 else matched.groups[first].size
        members = tuple(cells[at : at + count])
        result.append(KeyMembers(first, int(table.second[at]), size, members))
    return result


def key_sums(matched: SequenceMatch) -> Iterator[KeySums]:
    """Yield the sums of all keys from the operations in memory."""
    whole = [one.sequences().whole for one in matched.partials]
    for key in keys_of(matched):
        yield sum_key(key, lambda rank: whole[rank])


def sum_key(key: KeyMembers, sequences: Callable[[int], Sequences]) -> KeySums:
    """Return the sums of one key; `sequences` returns all operations of a rank, given by index."""
    parts = [_Part.of_sequence(sequences(rank), place, shift) for rank, place, shift in key.members]
    low, high = min(part.low for part in parts), max(part.high for part in parts)
    totals: dict[int, Floats] = {}
    blocks = []
    size = max(_CELLS // len(parts), 1)
    for at in range(low, high, size):
        block = _Block(parts, at, min(at + size, high))
        block.add_waits(totals, is_transfer=key.first < 0)
        blocks.append(block.events())
    events = _Events(*map(np.concatenate, zip(*blocks, strict=True)))
    events = _Events(*(column[events.members > 0] for column in events))
    caused = np.zeros((2, len(parts)), np.int64)
    complete = np.flatnonzero((events.members == key.size) & (events.members > 1))
    wait = events.spent[complete] - key.size * events.least[complete]
    np.add.at(caused[0], events.last[complete], wait)
    np.add.at(caused[1], events.last[complete], 1)
    steps = sorted(totals)
    return KeySums(
        np.array([rank for rank, _, _ in key.members], np.int64),
        np.array(steps, np.int64),
        np.stack([totals[step] for step in steps], 2) if steps else np.empty((5, len(parts), 0)),
        list(events.collectives(key)) if key.first >= 0 else [],
        caused,
    )


def add_up(matched: SequenceMatch, sums: Iterable[KeySums]) -> WholeSums:
    """Return the sums over all keys, which are given in ascending order."""
    found = list(sums)
    ranks = len(matched.ranks)
    steps = np.unique(np.concatenate([np.empty(0, np.int64), *(one.steps for one in found)]))
    waits = np.zeros((5, ranks, len(steps)))
    caused = np.zeros((2, ranks), np.int64)
    for one in found:
        place = np.searchsorted(steps, one.steps)
        figures: Any = slice(None)  # a rank may send to itself, and then occurs twice
        np.add.at(waits, (figures, one.ranks[:, None], place), one.waits)
        np.add.at(caused, (figures, one.ranks), one.caused)
    rank, at = np.nonzero(waits[4])
    figures = np.rint(waits[:4, rank, at]).astype(np.int64).T.tolist()
    cells = zip(steps[at].tolist(), rank.tolist(), strict=True)
    return WholeSums(
        dict(zip(cells, map(tuple, figures), strict=True)),
        [row for one in found for row in one.collectives],
        caused,
    )


def sums_in_memory(matched: MatchedCollectives, waits: Waits) -> WholeSums:
    """Return the sums over the operations in memory, with exact exposed waits."""
    events = matched.events
    wait = np.zeros(len(events), np.int64)
    known = np.flatnonzero((matched.rows.event >= 0) & (waits.wait > 0))
    np.add.at(wait, matched.rows.event[known], waits.wait[known])
    caused = np.zeros((2, len(matched.ranks)), np.int64)
    complete = np.flatnonzero(events.complete & (events.members > 1))
    last = matched.rows.rank[waits.last[complete]]
    np.add.at(caused[0], last, wait[complete])
    np.add.at(caused[1], last, 1)
    keys = (events.group, events.kind, events.step, events.bytes)
    figures = (waits.transfer, wait, np.maximum(waits.setup, 0))
    chosen = np.flatnonzero(~matched.transfers)
    columns = (column[chosen] for column in (*keys, events.members, events.complete, *figures))
    return WholeSums(_waits_by_step(matched, waits), list(_collectives(*columns)), caused)


def _waits_by_step(
    matched: MatchedCollectives, waits: Waits
) -> Mapping[tuple[int, int], tuple[int, int, int, int]]:
    """Return {(step, rank index): (wait, exposed wait, setup, bubble)}, in ns.

    Exposed waits and bubbles are unions of the operations that start in the step, because a
    rank may wait in several of them at the same time.
    """
    rows, events = matched.rows, matched.events
    chosen = np.flatnonzero((rows.event >= 0) & (waits.wait >= 0) & (rows.step >= 0))
    if not len(chosen):
        return {}
    chosen = chosen[np.argsort(rows.rank[chosen], kind="stable")]
    event, rank, step, wait = (
        column[chosen] for column in (rows.event, rows.rank, rows.step, waits.wait)
    )
    setup, is_transfer = np.maximum(waits.setup[event], 0), events.src[event] >= 0
    start = rows.start[chosen]
    result: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    edges = np.searchsorted(rank, np.arange(len(matched.ranks) + 1)).tolist()
    for index, (low, high) in enumerate(pairwise(edges)):
        inside, partial = slice(low, high), matched.partials[index]
        if not high - low:
            continue
        steps, place = distinct(step[inside])
        begin, end, covered = start[inside], start[inside] + wait[inside], Covered(partial)
        # Shifted by step, so that only waits in the same step are merged.
        first = int(begin.min())
        span = int(end.max()) - first + 1
        shift = place * span - first
        columns = [steps]
        for values in (wait[inside], setup[inside]):
            columns.append(np.zeros(len(steps), np.int64))
            np.add.at(columns[-1], place, values)
        for of in (slice(None), np.flatnonzero(is_transfer[inside])):
            merged = intervals.merge(begin[of] + shift[of], end[of] + shift[of])
            owner = merged.start_ns // span
            back = first - owner * span
            hidden = covered.until(merged.end_ns + back) - covered.until(merged.start_ns + back)
            exposed_ns = np.maximum(merged.end_ns - merged.start_ns - hidden, 0)
            total = np.bincount(owner, exposed_ns, len(steps))
            columns.append(np.rint(total).astype(np.int64))
        for number, *sums, exposed, bubble in zip(*(c.tolist() for c in columns), strict=True):
            result[number, index] = (sums[0], exposed, sums[1], bubble)
    return result


class _Part(NamedTuple):
    """The sequence of one rank."""

    low: int  # Lowest number, and behind the highest one.
    high: int
    numbers: Ints | None  # The numbers if they are not consecutive.
    begin: int  # Row of its first operation in `columns`.
    columns: Mapping[str, NDArray[Any]]

    @staticmethod
    def of_sequence(one: Sequences, place: int, shift: int) -> _Part:
        """Return a sequence with shifted numbers."""
        begin = int(one.edges[place])
        if (span := one.span(place, shift)) is not None:
            return _Part(span.start, span.stop, None, begin, one.columns)
        numbers = one.numbers(place) + shift
        return _Part(int(numbers[0]), int(numbers[-1]) + 1, numbers, begin, one.columns)

    def rows(self, low: int, high: int) -> tuple[slice, slice | Ints]:
        """Return the rows of the numbers from `low` to `high`, and their places in that range."""
        if self.numbers is not None:
            first, last = np.searchsorted(self.numbers, [low, high]).tolist()
            return slice(self.begin + first, self.begin + last), self.numbers[first:last] - low
        first, last = max(low, self.low), max(min(high, self.high), low, self.low)
        first = min(first, last)
        at = self.begin - self.low
        return slice(first + at, last + at), slice(first - low, last - low)


class _Events(NamedTuple):
    """The events of one key, by number."""

    least: Ints  # The shortest duration.
    spent: Ints  # Sum of durations.
    members: Ints
    last: Ints  # The first member with the shortest duration, and how long its data moved.
    moved: Ints
    step: Ints
    size: Ints

    def collectives(self, key: KeyMembers) -> Iterator[SumRow]:
        """Yield the rows of `WholeSums.collectives`."""
        keys = np.full((2, len(self.least)), [[key.first], [key.second]])
        has_moved = self.moved >= 0
        moved = np.minimum(self.moved, self.least)
        transfer = np.where(has_moved, moved, self.least)
        setup = np.where(has_moved, self.least - moved, 0)
        wait = self.spent - self.members * self.least
        complete = self.members == key.size
        yield from _collectives(
            *keys, self.step, self.size, self.members, complete, transfer, wait, setup
        )


class _Block:
    """Consecutive events of a key as matrices: members x events."""

    def __init__(self, parts: Sequence[_Part], low: int, high: int) -> None:
        self._rows = [(part.columns, *part.rows(low, high)) for part in parts]
        self._shape = (len(parts), high - low)
        self._is_full = all(rows.stop - rows.start == high - low for _, rows, _ in self._rows)
        none = np.iinfo(np.int64).max
        length = self._matrix("length", none)
        self._least, self._last = length.min(axis=0), length.argmin(axis=0)
        self._wait = length - self._least
        self._present: Bools | np.bool_ = np.bool_(True)
        if not self._is_full:
            self._present = length != none
            length *= self._present
            self._wait *= self._present
        self._length = length
        self._members = np.broadcast_to(self._present, self._shape).sum(axis=0)
        moved = self._values("move")
        self._moved = moved if moved.ndim == 1 else moved[self._last, np.arange(high - low)]

    def events(self) -> _Events:
        """Return the events."""
        sizes = [self._values(name) for name in ("step", "bytes")]
        sizes = [size if size.ndim == 1 else size.max(axis=0) for size in sizes]
        spent = self._length.sum(axis=0, dtype=np.int64)
        columns = (self._least, spent, self._members, self._last, self._moved, *sizes)
        return _Events(*(column.astype(np.int64) for column in columns))

    def add_waits(self, totals: dict[int, Floats], *, is_transfer: bool) -> None:
        """Add the figures of `KeySums.waits` to `totals`, by step."""
        steps, covered = self._values("step"), self._values("covered")
        inside = np.broadcast_to((self._members > 1) & (steps >= 0) & self._present, self._shape)
        wait = exposed = self._wait
        if covered.any():  # assume that kernels cover an operation evenly
            exposed = wait * (1 - covered / np.maximum(self._length, 1).astype(np.float64))
        least, moved = self._least.astype(np.int64), self._moved.astype(np.int64)
        setup = np.where(moved >= 0, np.maximum(least - moved, 0), 0)
        keys, place = distinct(np.ravel(steps).astype(np.int64))
        cells = np.arange(len(inside))[:, None] * len(keys) + place.reshape(steps.shape)
        chosen = cells[inside] if not inside.all() else np.ravel(cells)
        sums = np.zeros((5, len(inside) * len(keys)))
        bubble = exposed if is_transfer else np.zeros(1, np.int8)
        for at, values in enumerate((wait, exposed, setup, bubble, inside)):
            if at == 1 and values is wait:
                sums[at] = sums[0]
            elif values.any():
                weights = np.broadcast_to(values, self._shape)
                weights = weights[inside] if not inside.all() else np.ravel(weights)
                sums[at] = np.bincount(chosen, weights, sums.shape[1])
        by_rank = sums.reshape(5, len(inside), -1)
        for at in np.flatnonzero(by_rank[4].any(axis=0)).tolist():
            step = int(keys[at])
            totals[step] = totals.get(step, 0) + by_rank[:, :, at]

    def _values(self, name: str) -> NDArray[Any]:
        """Return a column by event if it is the same for all members, otherwise as a matrix."""
        pieces = [columns[name][rows] for columns, rows, _ in self._rows]
        if self._is_full and all(np.array_equal(one, pieces[0]) for one in pieces[1:]):
            return pieces[0]
        return self._matrix(name, NO_VALUE)

    def _matrix(self, name: str, missing: int) -> NDArray[Any]:
        pieces = [columns[name][rows] for columns, rows, _ in self._rows]
        if self._is_full:
            return np.stack(pieces)
        result = np.full(self._shape, missing, np.int64)
        for row, piece, (_, _, places) in zip(result, pieces, self._rows, strict=True):
            row[places] = piece
        return result


def _collectives(*columns: NDArray[Any]) -> Iterator[SumRow]:
    """Yield the rows of `WholeSums.collectives`.

    The columns are group, kind, step, bytes, members, complete, transfer, wait, setup of events.
    """
    order = np.lexsort((columns[6], *columns[3::-1]))
    *keys, members, complete, transfer, wait, setup = (column[order] for column in columns)
    runs = Runs(*keys)
    for head, count in zip(runs.starts.tolist(), runs.sizes.tolist(), strict=True):
        inside = slice(head, head + count)
        usable = head + np.flatnonzero(members[inside] > 1)
        sums = (int(values[usable].sum()) for values in (transfer, wait, setup))
        key = (int(column[head]) for column in keys)
        quantiles = _quantiles(transfer[usable])
        yield (*key, count, int(complete[inside].sum()), *sums, *quantiles)


def _quantiles(ascending: Ints) -> tuple[int | None, int | None]:
    """Return the median and 99th percentile of ascending times; None if there are none."""
    count = len(ascending)
    if not count:
        return None, None
    return int(ascending[-(-count // 2) - 1]), int(ascending[-(-count * 99 // 100) - 1])
