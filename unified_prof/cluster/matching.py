"""Match the communication of all ranks: find the rows that are one collective or transfer.

The key of a collective is (global ranks, kind, sequence number), that of a transfer is (source,
target, sequence number). Names are not used: they repeat and differ between ranks. If a recording
starts later than others, its sequences are shifted to agree in step numbers or, failing that, in
message sizes; a group that agrees in neither is left out and noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NO_VALUE, AnyInts, Bools, Frame, Ints, Runs, positions
from unified_prof.arrays.packed import Narrow, narrowest
from unified_prof.base.columns import Ledger
from unified_prof.cluster.rank_partial import Partial, RankFacts
from unified_prof.cluster.sequences import Sequences
from unified_prof.recording.collectives import POINT_TO_POINT, RECEIVE, SEND

_MIN_AGREEMENT = 0.9  # Minimum share of equal sizes for two sequences to match.
_MAX_SHIFT = 4096  # Maximum shift that is tried when comparing message sizes.


def sequence_shift(steps: Sequence[Ints], sizes: Sequence[Ints]) -> list[int] | None:
    """Return the shift that aligns each sequence with the others; None if unknown."""
    reference = max(range(len(steps)), key=lambda at: len(steps[at]))
    result = []
    for step, size in zip(steps, sizes, strict=True):
        found = _by_steps(step, steps[reference], size, sizes[reference])
        if found is None:
            found = _by_sizes(size, sizes[reference])
        if found is None:
            return None
        result.append(found)
    low = min(result)
    return [one - low for one in result]


def _by_steps(step: Ints, other: Ints, size: Ints, other_size: Ints) -> int | None:
    """Return the shift that makes common steps begin at the same sequence number."""
    steps, starts = np.unique(step, return_index=True)
    other_steps, other_starts = np.unique(other, return_index=True)
    both, left, right = np.intersect1d(steps, other_steps, return_indices=True)
    # The first step may be incomplete, and -1 means no step.
    differences = [
        int(other_starts[at] - starts[here])
        for number, here, at in zip(both.tolist(), left.tolist(), right.tolist(), strict=True)
        if number >= 0
        and (
            starts[here]
            or other_starts[at]
            or (int((step == number).sum()) == int((other == number).sum()))
        )
    ]
    if not differences:
        return None
    shift = max(set(differences), key=differences.count)
    return shift if _agreement(size, other_size, shift) >= _MIN_AGREEMENT else None


def _by_sizes(size: Ints, other: Ints) -> int | None:
    """Return the shift that makes message sizes agree; None if no single shift is best."""
    if len(size) == len(other) and _agreement(size, other, 0) >= _MIN_AGREEMENT:
        return 0
    farthest = min(max(len(size), len(other)) // 2, _MAX_SHIFT)
    scores = {at: _agreement(size, other, at) for at in range(-farthest, farthest + 1)}
    best = max(scores.values())
    winners = [at for at, score in scores.items() if score == best]
    return winners[0] if best >= _MIN_AGREEMENT and len(winners) == 1 else None


def _agreement(size: Ints, other: Ints, shift: int) -> float:
    """Return the share of equal sizes of `size[n]` and `other[n + shift]`."""
    low, high = max(0, shift), min(len(other), len(size) + shift)
    if high <= low:
        return 0.0
    return float((size[low - shift : high - shift] == other[low:high]).mean())


@dataclass(slots=True)
class ClusterGroup:
    """A communicator; its name may differ between ranks."""

    # Global ranks; if not recorded, the ranks whose recordings contain the group.
    ranks: tuple[int, ...]
    is_recorded: bool  # True if `ranks` were recorded.
    size: int  # Number of ranks; NO_VALUE if unknown.
    kind: str = "other"
    names: set[str] = field(default_factory=set)
    titles: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class MatchedRows(Frame):
    """Communication of all ranks, one row per operation of a rank, in narrow columns.

    Rows are sorted by event, then by rank; unmatched rows come last and have event NO_VALUE.
    """

    rank: Narrow  # Index in `MatchedCollectives.ranks`.
    op: Narrow  # Row in the communication part of the rank's partial.
    start: Narrow
    length: Narrow
    bytes: Narrow
    move: Narrow
    step: Narrow
    covered: Narrow
    event: Narrow

    def ends(self, rows: AnyInts) -> Ints:
        """Return the ends of rows, ns."""
        result: Ints = self.start[rows]
        result += self.length[rows]
        return result


@dataclass(slots=True, eq=False)
class MatchedEvents(Frame):
    """Collectives and transfers, one entry each."""

    first: Ints  # Its first row in `MatchedRows`; its rows are adjacent.
    members: Ints  # Number of its rows.
    complete: Bools
    group: Ints
    kind: Ints
    step: Ints
    bytes: Ints
    src: Ints  # Index of the sender of a transfer; NO_VALUE for collectives.
    dst: Ints


@dataclass(slots=True, eq=False)
class MatchedSequences(Frame):
    """Sequences of all ranks, sorted by the key of their events, then by rank."""

    rank: Ints  # Index in `MatchedCollectives.ranks`.
    place: Ints  # Index among the sequences of the rank.
    # Key: group and kind; of transfers, `-1 - (source * (ranks + 1) + target)` and 0.
    first: Ints
    second: Ints
    kind: Ints
    peer: Ints  # Global rank of the other end of a transfer; for others, no meaning.
    size: Ints  # Number of operations in memory.
    shift: Ints  # Added to the numbers of its operations.


@dataclass(slots=True, eq=False)
class SequenceMatch:
    """Groups and sequences of a run, before its operations are matched."""

    ranks: tuple[int, ...]  # Global ranks of the partials, ascending.
    partials: tuple[Partial, ...]
    groups: list[ClusterGroup]
    # For each rank, the index in `groups` of each group of its partial.
    numbers: list[Ints]
    kinds: list[str]
    held: list[Sequences]  # Operations in memory.
    table: MatchedSequences
    unmatched: MatchedSequences
    left_out: Ledger


@dataclass(slots=True, eq=False)
class MatchedCollectives:
    """Ranks, groups and events of a run."""

    ranks: tuple[int, ...]  # Global ranks of the partials, ascending.
    facts: tuple[RankFacts, ...]
    partials: tuple[Partial, ...]
    groups: list[ClusterGroup]
    kinds: list[str]
    rows: MatchedRows
    events: MatchedEvents
    left_out: Ledger
    # For each rank, the index in `groups` of each group of its partial.
    numbers: list[Ints] = field(default_factory=list)
    index: dict[int, int] = field(init=False)  # Global rank -> index in `ranks`.

    def __post_init__(self) -> None:
        self.index = {rank: index for index, rank in enumerate(self.ranks)}

    def present(self, ranks: Iterable[int]) -> list[int]:
        """Return the indices of those of some global ranks that have a partial."""
        return [self.index[rank] for rank in ranks if rank in self.index]

    def is_kind(self, codes: Ints, *kinds: str) -> Bools:
        """Return a mask of the rows of `codes` (indices in `kinds`) that are of these kinds."""
        wanted = [self.kinds.index(kind) for kind in kinds if kind in self.kinds]
        return np.isin(codes, wanted)

    @property
    def transfers(self) -> Bools:
        """Mask of the events that are transfers (a send and its receive)."""
        return np.asarray(self.events.src >= 0)


def run_size(matched: MatchedCollectives, damaged: Iterable[int] = ()) -> tuple[int, bool]:
    """Return the number of ranks of the run, and True if it is only a lower bound.

    The recorded world size is exact; without it, the largest rank, also of the `damaged` ones, and
    group give a lower bound.
    """
    recorded = [fact.world_size for fact in matched.facts if fact.world_size]
    if recorded:
        return max(recorded), False
    in_groups = [max(group.ranks) for group in matched.groups if group.is_recorded]
    largest = max([group.size for group in matched.groups], default=0)
    size = max(max([*matched.ranks, *in_groups, *damaged]) + 1, largest)
    return size, largest > len(matched.ranks)


def match_sequences(partials: Iterable[Partial]) -> SequenceMatch:
    """Match the groups and sequences of ranks; each rank has one partial."""
    by_rank = tuple(sorted(partials, key=lambda partial: partial.facts.rank))
    ranks = tuple(partial.facts.rank for partial in by_rank)
    left_out = Ledger()
    held = [one.sequences().first for one in by_rank]
    groups, numbers = _groups(by_rank, held)
    kinds, table, usable = _table(by_rank, held, numbers)
    transfer = table.kind < len(POINT_TO_POINT)
    nowhere = int(table.size[~transfer & ~usable].sum())
    left_out.add("collective_without_group", f"{nowhere} collectives without a group", nowhere)
    lost = int(table.size[transfer & (table.peer < 0)].sum())
    left_out.add("transfer_without_peer", f"{lost} sends or receives without a peer rank", lost)
    order = np.lexsort((table.kind, table.rank, table.second, table.first))
    bad = _shift(table, order[usable[order]], held, groups, ranks, left_out)
    usable[bad] = False
    unmatched = table.take(order[~usable[order]])
    table = table.take(order[usable[order]])
    return SequenceMatch(ranks, by_rank, groups, numbers, kinds, held, table, unmatched, left_out)


def match_collectives(found: SequenceMatch | Iterable[Partial]) -> MatchedCollectives:
    """Match the communication of ranks, given by their sequences or their partials."""
    found = found if isinstance(found, SequenceMatch) else match_sequences(found)
    ranks, groups, table = found.ranks, found.groups, found.table
    held = found.held
    places, key, members = _places(table, found.unmatched, held)
    columns = {
        name: Narrow(_placed(places, [one.columns[name] for one in held]))
        for name in ("op", "length", "bytes", "move", "step", "covered")
    }
    base = min((one.columns["start"].base for one in held), default=0)
    columns["start"] = Narrow(
        _placed(places, [narrowest(one.columns["start"][:] - base) for one in held]), base
    )
    indexes = narrowest(np.arange(len(held)))
    columns["rank"] = Narrow(_placed(places, [indexes[at : at + 1] for at in range(len(held))]))
    event = np.full(len(columns["rank"]), NO_VALUE, np.int32)
    count = int(members.sum())
    event[:count] = np.repeat(np.arange(len(members), dtype=np.int32), members)
    rows = MatchedRows(**columns, event=Narrow(event))
    first = np.cumsum(members) - members
    group, kind = table.first[key], table.second[key]
    src, dst = np.divmod(-1 - group, len(ranks) + 1)
    is_transfer = group < 0
    src[~is_transfer] = dst[~is_transfer] = NO_VALUE
    # The last value is for transfers, which have no group.
    sizes = np.array([*(group.size for group in groups), NO_VALUE], np.int64)
    expected = np.where(is_transfer, 2, sizes[np.maximum(group, NO_VALUE)])
    if is_transfer.any():
        own = [np.append(to, NO_VALUE) for to in found.numbers]
        group_of_rows = _placed(
            places, [to[one.columns["group"]] for to, one in zip(own, held, strict=True)]
        )
        group[is_transfer] = group_of_rows[first[is_transfer]]
        kind[is_transfer] = rows.rank[first[is_transfer]] != src[is_transfer]
    del places
    events = MatchedEvents(
        first=first,
        members=members,
        complete=members == expected,
        group=group,
        kind=kind,
        step=np.maximum.reduceat(rows.step[:count], first) if count else first,
        bytes=np.maximum.reduceat(rows.bytes[:count], first) if count else first,
        src=src,
        dst=dst,
    )
    facts = tuple(partial.facts for partial in found.partials)
    run = (ranks, facts, found.partials, groups, found.kinds)
    return MatchedCollectives(*run, rows, events, found.left_out, found.numbers)


def _table(
    found: Sequence[Partial], held: Sequence[Sequences], numbers: Sequence[Ints]
) -> tuple[list[str], MatchedSequences, Bools]:
    """Return the kinds of the run, the sequences of all ranks, and if their key is known."""
    code = {kind: index for index, kind in enumerate((SEND, RECEIVE))}
    own_kinds = [
        np.array([*(code.setdefault(kind, len(code)) for kind in one.kinds), NO_VALUE], np.int64)
        for one in found
    ]
    counts = [len(one.kind) for one in held]
    nothing = np.empty(0, np.int64)
    rank = np.repeat(np.arange(len(found)), counts)
    kind = np.concatenate(
        [nothing, *(to[one.kind] for to, one in zip(own_kinds, held, strict=True))]
    )
    other = np.concatenate([nothing, *(one.other for one in held)])
    # Groups of all ranks in one array; the first value of each rank is for unknown groups.
    begins = np.cumsum([0, *(len(number) + 1 for number in numbers)])
    all_numbers = np.concatenate([nothing, *(np.append(NO_VALUE, number) for number in numbers)])
    transfer = (kind >= 0) & (kind < len(POINT_TO_POINT))
    group = all_numbers[begins[rank] + np.where(transfer, 0, other + 1)]
    known = np.array([*(one.facts.rank for one in found), NO_VALUE], np.int64)
    peer = np.searchsorted(known[:-1], other)
    ends = np.where(kind == 0, rank, peer), np.where(kind == 0, peer, rank)
    table = MatchedSequences(
        rank=rank,
        place=positions(np.array(counts, np.int64)),
        first=np.where(transfer, -1 - (ends[0] * len(known) + ends[1]), group),
        second=np.where(transfer, 0, kind),
        kind=kind,
        peer=np.where(transfer, other, 0),
        size=np.concatenate([nothing, *(one.sizes for one in held)]),
        shift=np.zeros(len(rank), np.int64),
    )
    usable = np.where(transfer, (other >= 0) & (known[peer] == other), group >= 0)
    return list(code), table, usable


def _places(
    table: MatchedSequences, unmatched: MatchedSequences, held: Sequence[Sequences]
) -> tuple[list[NDArray[np.int32]], Ints, Ints]:
    """Return the place of each rank's operations among the matched rows, and the events.

    Returns:
        For each rank the places of its operations; for each event the index of the first sequence
        of its key, and the number of its members.
    """
    present = np.flatnonzero(table.size > 0)
    keys = Runs(table.first[present], table.second[present])
    cells = list(_cells(table.rank[present], table.place[present], table.shift[present]))
    places = [np.empty(int(one.edges[-1]), np.int32) for one in held]
    members = [np.empty(0, np.int64)]
    begin = 0
    for head, ranks in zip(keys.starts.tolist(), keys.sizes.tolist(), strict=True):
        of_key = cells[head : head + ranks]
        spans = {held[rank].span(place, shift) for rank, place, shift in of_key}
        if len(spans) == 1 and (span := next(iter(spans))) is not None:
            members.append(np.full(len(span), ranks))
            of_ranks = [np.arange(at, ranks * len(span), ranks) for at in range(ranks)]
        else:
            numbers = [held[rank].numbers(place) + shift for rank, place, shift in of_key]
            together = np.concatenate(numbers)
            order = np.argsort(together, kind="stable")
            members.append(Runs(together[order]).sizes)
            place_of = np.empty_like(order)
            place_of[order] = np.arange(len(order))
            of_ranks = np.split(place_of, np.cumsum([*map(len, numbers)])[:-1])
        for (rank, place, _), values in zip(of_key, of_ranks, strict=True):
            edges = held[rank].edges
            places[rank][edges[place] : edges[place + 1]] = begin + values
        begin += sum(map(len, of_ranks))
    for rank, place, size in _cells(unmatched.rank, unmatched.place, unmatched.size):
        edge = held[rank].edges[place]
        places[rank][edge : edge + size] = np.arange(begin, begin + size)
        begin += size
    key = np.repeat(present[keys.starts], [len(one) for one in members[1:]])
    return places, key, np.concatenate(members)


def _cells(*columns: Ints) -> Iterator[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _placed(places: Sequence[NDArray[np.int32]], parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return a column of the matched rows from that of each rank."""
    result = np.empty(sum(map(len, places)), np.result_type(np.int8, *{p.dtype for p in parts}))
    for place, part in zip(places, parts, strict=True):
        result[place] = part
    constant = len(result) and (result == result[0]).all()
    return np.broadcast_to(result[0], len(result)) if constant else result


def _groups(
    found: Sequence[Partial], held: Sequence[Sequences]
) -> tuple[list[ClusterGroup], list[Ints]]:
    """Return the groups of the run, and the index in them of each group of each rank.

    Groups are identified by their ranks if recorded. Several communicators of the same ranks are
    distinguished by name if all ranks use the same names, else by order of first use.
    """
    with_ranks: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
    by_name: dict[str, list[tuple[int, int]]] = {}
    for index, one in enumerate(found):
        own: dict[tuple[int, ...], list[int]] = {}
        for number in _by_first_use(one, held[index]):
            group = one.groups[number]
            if group.ranks:
                own.setdefault(tuple(sorted(group.ranks)), []).append(number)
            elif group.name:
                by_name.setdefault(group.name, []).append((index, number))
        for ranks, members_of_rank in own.items():
            with_ranks.setdefault(ranks, []).append((index, members_of_rank))
    result: list[ClusterGroup] = []
    numbers = [np.full(len(one.groups), NO_VALUE, np.int64) for one in found]

    def place(key: ClusterGroup, index: int, number: int) -> None:
        group = found[index].groups[number]
        key.names.add(group.name)
        key.titles |= {group.title} - {""}
        if key.kind == "other":
            key.kind = group.kind
        numbers[index][number] = len(result) - 1  # the group just added

    for _, users in sorted(with_ranks.items()):
        names = [
            {found[index].groups[number].name for number in members_of_rank}
            for index, members_of_rank in users
        ]
        alike = all(name == names[0] for name in names)
        apart: dict[object, list[tuple[int, int]]] = {}
        for index, members_of_rank in users:
            for order, number in enumerate(members_of_rank):
                key = found[index].groups[number].name if alike else order
                apart.setdefault(key, []).append((index, number))
        for members in apart.values():
            index, number = members[0]
            recorded = found[index].groups[number].ranks
            result.append(ClusterGroup(recorded, True, len(recorded)))
            for member in members:
                place(result[-1], *member)
    for _, members in sorted(by_name.items()):
        named = tuple(found[index].facts.rank for index, _ in members)
        sizes = {found[index].groups[number].size for index, number in members} - {NO_VALUE}
        result.append(ClusterGroup(named, False, max(sizes) if sizes else NO_VALUE))
        for member in members:
            place(result[-1], *member)
    return result, numbers


def _by_first_use(one: Partial, held: Sequences) -> list[int]:
    count = len(held.columns["op"])
    first = np.full(len(one.groups) + 1, count)  # the last one: no group
    np.minimum.at(first, held.columns["group"], held.columns["op"])
    order = np.argsort(first[:-1], kind="stable")
    used: list[int] = order[first[order] < count].tolist()
    return [*used, *(number for number in range(len(one.groups)) if number not in used)]


def _shift(
    table: MatchedSequences,
    chosen: NDArray[np.integer],
    held: Sequence[Sequences],
    groups: Sequence[ClusterGroup],
    ranks: Sequence[int],
    left_out: Ledger,
) -> list[int]:
    """Set the shift of each sequence, and return the sequences that do not fit.

    Sequences of a key fit if they have the same number of operations, first step and last step.
    """
    chosen = chosen[table.size[chosen] > 0]
    if not len(chosen):
        return []
    ends = [
        (steps[edges[place]], steps[edges[place + 1] - 1])
        for rank, place in _cells(table.rank[chosen], table.place[chosen])
        for edges, steps in [(held[rank].edges, held[rank].columns["step"])]
    ]
    keys = Runs(table.first[chosen], table.second[chosen])
    number = keys.number()
    same = np.diff(number) == 0
    odd = np.zeros(len(keys), bool)
    for values in (table.size[chosen], *np.array(ends, np.int64).T):
        odd[number[1:][same & (np.diff(values) != 0)]] = True
    spans: dict[int, tuple[int, int] | None] = {}

    def span(rank: int) -> tuple[int, int] | None:
        """Return the first and last step of a rank."""
        if rank not in spans:
            steps = held[rank].columns["step"]
            steps = steps[steps >= 0]
            spans[rank] = (int(steps.min()), int(steps.max())) if len(steps) else None
        return spans[rank]

    bad: list[int] = []
    for key in np.flatnonzero(odd).tolist():
        members = chosen[keys.starts[key] : keys.starts[key] + keys.sizes[key]]
        own = list(_cells(table.rank[members], table.place[members]))
        steps, sizes = (
            [held[rank].columns[name][slice(*held[rank].edges[at : at + 2])] for rank, at in own]
            for name in ("step", "bytes")
        )
        # At the end of a step, a slow host launches in that step what others launch in the next.
        if len({span(rank) for rank, _ in own}) == 1 and all(
            np.array_equal(size, sizes[0]) for size in sizes
        ):
            continue
        found = sequence_shift(steps, sizes)
        if found is None:
            text = _words(int(table.first[members[0]]), groups, ranks)
            left_out.add("sequences_do_not_fit", text, int(table.size[members].sum()))
            bad += members.tolist()
        else:
            table.shift[members] = found
    return bad


def _words(key: int, groups: Sequence[ClusterGroup], ranks: Sequence[int]) -> str:
    if key < 0:
        source, target = divmod(-1 - key, len(ranks) + 1)
        return f"transfers from rank {ranks[source]} to {ranks[target]}"
    group = groups[key]
    shown = ", ".join(map(str, group.ranks[:4])) + (", ..." if len(group.ranks) > 4 else "")
    return f"{group.kind} group of ranks {shown}"
