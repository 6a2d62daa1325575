"""Breakdown of communication time into waits, transfers and setup.

All members of a collective leave it together, and the last one to arrive has the shortest duration.
That is the duration of the collective itself; the rest of a longer duration is wait time. No common
clock is needed. On NPUs, the parts of a collective show when data moved; the rest of the shortest
duration is setup.

For runs that do not fit in memory, sums are computed by reading one rank at a time, once. Sequences
are numbered without gaps, so the number of an operation is its index: no sorting or joining is
needed, and memory holds one row per event, and a few bytes per operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints, Runs, distinct, stable_order
from unified_prof.arrays.packed import narrowest
from unified_prof.cluster.matching import MatchedCollectives
from unified_prof.cluster.rank_partial import NO_VALUE, Columns, Partial
from unified_prof.recording.collectives import POINT_TO_POINT


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Waits by row and parts by event of `MatchedCollectives`, ns; NO_VALUE if unknown."""

    wait: Ints  # By row: wait for the last member; known for events with at least two members.
    exposed: Ints  # By row: the part of `wait` that no kernel covers.
    least: Ints  # By event: the shortest duration, which is setup plus transfer.
    transfer: Ints
    setup: Ints
    last: Ints  # By event: the row of the member that arrived last.


def compute_waits(matched: MatchedCollectives) -> Waits:
    """Return waits, transfers and setup of all communication."""
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
    # The first of the rows with the shortest duration.
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
    """Return the part of each wait that no kernel covers; waits begin with their operations."""
    rows = matched.rows
    exposed = wait.copy()
    partly = np.flatnonzero((wait > 0) & (rows.covered > 0))
    partly = partly[np.argsort(rows.rank[partly], kind="stable")]
    edges = np.searchsorted(rows.rank[partly], np.arange(len(matched.ranks) + 1))
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

    def until(self, at: Ints) -> NDArray[np.float64]:
        """Return the time covered by kernels before each point in time, ns."""
        if not len(self._at):
            return np.zeros(len(at))
        return np.interp((at - self._origin).astype(np.float64), self._at, self._sum)


SumRow = tuple[Any, ...]
# Key of events: (group, kind); for transfers (-1 - source, target). All values are indices.
SumKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StreamedSums:
    """Sums over the whole run; ranks, groups and kinds are indices."""

    # (step, rank) -> wait, exposed wait, setup, bubble, ns.
    waits: dict[tuple[int, int], tuple[int, int, int, int]]
    # Rows: group, kind, step, bytes, n, complete, transfer, wait, setup, transfer median, p99.
    collectives: list[SumRow]
    # Rank -> wait of other ranks that it caused (ns), and number of such waits.
    caused: dict[int, tuple[int, int]]


class _StreamedEvents:
    """The events of one key, by number; columns are arrays of equal length."""

    # Initial values: the shortest duration, the sum of durations, members, the rank with the
    # shortest duration, its time of moving data, step, bytes.
    _INITIAL = np.array([np.iinfo(np.int64).max, 0, 0, 0, NO_VALUE, NO_VALUE, NO_VALUE])

    def __init__(self) -> None:
        self._count = 0
        self._held = np.empty((len(self._INITIAL), 0), np.int64)

    def grow(self, count: int) -> None:
        """Extend the columns to `count` events."""
        if count > self._held.shape[1]:
            room = max(count, self._held.shape[1] * 3 // 2)
            more = np.repeat(self._INITIAL[:, None], room - self._held.shape[1], axis=1)
            self._held = np.concatenate([self._held, more], axis=1)
        self._count = max(self._count, count)

    def columns(self) -> tuple[Ints, ...]:
        """Return the columns least, spent, members, last, moved, step and bytes of all events."""
        return tuple(self._held[:, : self._count])

    def add(self, at: slice | Ints, rank: int, duration: Ints, table: Columns, rows: Ints) -> None:
        """Add a sequence of operations of a rank.

        Args:
            at: Numbers of the events; a slice if they are consecutive.
            rank: Index of the rank.
            duration: Duration of each operation, ns.
            table: Communication of the rank.
            rows: Rows of the sequence in it.
        """
        # Parts are views if `at` is a slice; otherwise they are copies that must be written back.
        parts = [column[at] for column in self.columns()]
        least, spent, members, last, moved, step, size = parts
        shortest = duration < least
        np.copyto(least, duration, where=shortest)
        np.copyto(last, rank, where=shortest)
        np.copyto(moved, table["move"][rows], where=shortest)
        spent += duration
        members += 1
        np.maximum(step, table["step"][rows], out=step)
        np.maximum(size, table["bytes"][rows], out=size)
        if not isinstance(at, slice):
            for column, part in zip(self.columns(), parts, strict=True):
                column[at] = part


def stream_sums(matched: MatchedCollectives, read: Callable[[int], Columns]) -> StreamedSums:
    """Return sums over the whole run.

    Args:
        matched: The first steps, for groups, kinds and shifts of sequences.
        read: Returns all communication of a rank, given by index; called once per rank.
    """
    events: dict[SumKey, _StreamedEvents] = {}
    sequences: list[list[_Sequence]] = []
    for rank in range(len(matched.ranks)):
        table = read(rank)
        duration = table["end"] - table["start"]
        own: list[_Sequence] = []
        sequences.append(own)
        for key, rows, number in _sequences(matched, rank, table):
            parts = (duration, table["covered"], table["step"])
            own.append(_Sequence(key, number, *(narrowest(part[rows]) for part in parts)))
            held = events.setdefault(key, _StreamedEvents())
            held.grow(number.stop if isinstance(number, slice) else int(number.max()) + 1)
            held.add(number, rank, duration[rows], table, rows)
    waits: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    for rank, own in enumerate(sequences):
        waits.update(_streamed_waits(rank, own, events))
    return StreamedSums(waits, list(_collectives(matched, events)), _caused(matched, events))


class _Sequence(NamedTuple):
    """The operations of a rank with one key, in narrow columns."""

    key: SumKey
    number: slice | Ints  # Numbers of the events.
    duration: NDArray[np.integer[Any]]  # ns
    covered: NDArray[np.integer[Any]]  # Time covered by kernels, ns.
    step: NDArray[np.integer[Any]]


def _sequences(
    matched: MatchedCollectives,
    rank: int,
    table: Columns,
) -> Iterator[tuple[SumKey, Ints, slice | Ints]]:
    """Yield (key, rows, event numbers) for each sequence of operations of a rank.

    The numbers are a slice if they are consecutive, which is usual in complete recordings.
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
            shift = matched.shifts.get((rank, NO_VALUE, own, other), 0)
        else:
            key = (int(group[at]), own)
            shift = matched.shifts.get((rank, *key, NO_VALUE), 0)
        yield key, rows, _as_slice(table["seq"][rows] + shift)


def _as_slice(numbers: Ints) -> slice | Ints:
    """Convert consecutive numbers to a slice, which saves an index per row."""
    first, last = int(numbers[0]), int(numbers[-1])
    if first >= 0 and last - first == len(numbers) - 1 and (np.diff(numbers) == 1).all():
        return slice(first, last + 1)
    return numbers


def _streamed_waits(
    rank: int, sequences: Sequence[_Sequence], events: dict[SumKey, _StreamedEvents]
) -> dict[tuple[int, int], tuple[int, int, int, int]]:
    """Return {(step, rank): (wait, exposed wait, setup, bubble)} for one rank, in ns."""
    totals: dict[int, NDArray[np.float64]] = {}
    for one in sequences:
        least, _, members, _, moved, _, _ = (
            column[one.number] for column in events[one.key].columns()
        )
        inside = (members > 1) & (one.step >= 0)
        if not inside.any():
            continue
        wait = one.duration - least
        # Assume that kernels cover an operation evenly.
        exposed = wait
        if one.covered.any():
            exposed = wait * (1 - one.covered / np.maximum(one.duration, 1).astype(np.float64))
        setup = np.where(moved >= 0, np.maximum(least - moved, 0), 0)
        steps, place = distinct(one.step[inside].astype(np.int64))
        bubble = exposed if one.key[0] < 0 else np.zeros(len(wait))
        sums = [np.bincount(place, part[inside]) for part in (wait, exposed, setup, bubble)]
        for step, values in zip(steps, np.transpose(sums), strict=True):
            totals[step] = totals.get(step, 0) + values
    return {
        (step, rank): tuple(np.rint(values).astype(np.int64).tolist())
        for step, values in totals.items()
    }


def _collectives(
    matched: MatchedCollectives, events: dict[SumKey, _StreamedEvents]
) -> Iterator[SumRow]:
    for (group, kind), held in sorted(events.items()):
        if group < 0:
            continue
        least, spent, members, _, moved, step, size = held.columns()
        has_moved = moved >= 0
        moved = np.minimum(moved, least)
        transfer, setup = np.where(has_moved, moved, least), np.where(has_moved, least - moved, 0)
        wait = spent - members * least
        present = np.flatnonzero(members > 0)
        order = present[np.lexsort((transfer[present], size[present], step[present]))]
        runs = Runs(step[order], size[order])
        for start, count in zip(runs.starts.tolist(), runs.sizes.tolist(), strict=True):
            inside = order[start : start + count]
            usable = inside[members[inside] > 1]
            sums = (int(values[usable].sum()) for values in (transfer, wait, setup))
            complete = int((members[inside] == matched.groups[group].size).sum())
            keys = (group, kind, int(step[inside[0]]), int(size[inside[0]]))
            yield (*keys, count, complete, *sums, *transfer_quantiles(transfer[usable]))


def transfer_quantiles(ascending: Ints) -> tuple[int | None, int | None]:
    """Return the median and 99th percentile of ascending times; None if there are none."""
    count = len(ascending)
    if not count:
        return None, None
    return int(ascending[-(-count // 2) - 1]), int(ascending[-(-count * 99 // 100) - 1])


def _caused(
    matched: MatchedCollectives, events: dict[SumKey, _StreamedEvents]
) -> dict[int, tuple[int, int]]:
    """Return {rank: (wait of others, count)} over complete events in which the rank was last."""
    caused, times = np.zeros((2, len(matched.ranks)), np.int64)
    for (group, _), held in events.items():
        least, spent, members, last, *_ = held.columns()
        size = 2 if group < 0 else matched.groups[group].size
        complete = np.flatnonzero((members == size) & (members > 1))
        np.add.at(caused, last[complete], spent[complete] - size * least[complete])
        np.add.at(times, last[complete], 1)
    pairs = enumerate(zip(caused.tolist(), times.tolist(), strict=True))
    return {rank: (wait, count) for rank, (wait, count) in pairs if count}
