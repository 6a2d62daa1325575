"""Match the communication of all ranks: find the rows that are one collective or transfer.

The key of a collective is (global ranks, kind, sequence number), that of a transfer is (source,
target, sequence number). Names are not used: they repeat and differ between ranks. If a recording
starts later than others, its sequences are shifted to agree in step numbers or, failing that, in
message sizes; a group that agrees in neither is left out and noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Frame, Ints, Runs, are_in_order, stable_order
from unified_prof.base.columns import Ledger
from unified_prof.cluster.rank_partial import (
    COMMUNICATION_COLUMNS,
    NO_VALUE,
    Partial,
    RankFacts,
)
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
    """Communication of all ranks, one row per operation of a rank.

    Rows are sorted by event, then by rank; unmatched rows come last and have event NO_VALUE.
    """

    rank: Ints  # Index in `MatchedCollectives.ranks`.
    op: Ints  # Row in the communication part of the rank's partial.
    group: Ints
    kind: Ints
    seq: Ints
    start: Ints
    end: Ints
    bytes: Ints
    peer: Ints
    move: Ints
    step: Ints
    covered: Ints
    event: Ints


@dataclass(slots=True, eq=False)
class MatchedEvents(Frame):
    """Collectives and transfers, one entry each."""

    first: Ints  # Its first row in `MatchedRows`; its rows are adjacent.
    members: Ints  # Number of its rows.
    complete: NDArray[np.bool_]
    group: Ints
    kind: Ints
    step: Ints
    bytes: Ints
    src: Ints  # Index of the sender of a transfer; NO_VALUE for collectives.
    dst: Ints


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
    # Shifts of sequences that start later on some ranks, by rank, group or NO_VALUE, kind, and peer
    # or NO_VALUE.
    shifts: dict[tuple[int, ...], int] = field(default_factory=dict)

    def is_kind(self, codes: Ints, *kinds: str) -> NDArray[np.bool_]:
        """Return a mask of the rows of `codes` (indices in `kinds`) that are of these kinds."""
        wanted = [self.kinds.index(kind) for kind in kinds if kind in self.kinds]
        return np.isin(codes, wanted)

    @property
    def transfers(self) -> NDArray[np.bool_]:
        """Mask of the events that are transfers (a send and its receive)."""
        return np.asarray(self.events.src >= 0)


def run_size(matched: MatchedCollectives) -> tuple[int, bool]:
    """Return the number of ranks of the run, and True if it is only a lower bound.

    The recorded world size is exact; without it, the largest rank and group give a lower bound.
    """
    recorded = [fact.world_size for fact in matched.facts if fact.world_size]
    if recorded:
        return max(recorded), False
    in_groups = [max(group.ranks) for group in matched.groups if group.is_recorded]
    largest = max([group.size for group in matched.groups], default=0)
    return max(max([*matched.ranks, *in_groups]) + 1, largest), largest > len(matched.ranks)


def match_collectives(partials: Iterable[Partial]) -> MatchedCollectives:
    """Match the communication of ranks; each rank has one partial."""
    by_rank = tuple(sorted(partials, key=lambda partial: partial.facts.rank))
    ranks = tuple(partial.facts.rank for partial in by_rank)
    left_out = Ledger()
    kinds: list[str] = [SEND, RECEIVE]
    groups, numbers = _groups(by_rank)
    columns = _concatenate(by_rank, numbers, kinds)
    transfer = columns["kind"] < len(POINT_TO_POINT)
    # The key of a transfer is the pair of source and target instead of group and kind.
    first, second = columns["group"].copy(), np.where(transfer, 0, columns["kind"])
    usable = first >= 0
    moves = np.flatnonzero(transfer)
    src, dst, usable[moves] = _ends(ranks, *(columns[name][moves] for name in _ENDS))
    first[moves] = -1 - (src * (len(ranks) + 1) + dst)
    nowhere = int((~transfer & ~usable).sum())
    left_out.add("collective_without_group", f"{nowhere} collectives without a group", nowhere)
    lost = int((transfer & (columns["peer"] < 0)).sum())
    left_out.add("transfer_without_peer", f"{lost} sends or receives without a peer rank", lost)
    shift, bad = _shifts(columns, first, second, usable, groups, ranks, left_out)
    usable &= ~bad
    shifts = _by_sequence_key(columns, shift, np.flatnonzero((shift != 0) & usable), ranks)
    seq = columns.pop("seq") + shift
    # There may be millions of rows: free columns as soon as possible.
    del transfer, shift, bad
    # Rows are sorted by rank, so the rows of each event are, too.
    event_key = stable_order((~usable).astype(np.int64), first, second, seq)
    ordered = {name: columns.pop(name)[event_key] for name in list(columns)}
    keys = [one[event_key] for one in (first, second, seq)]
    del first, second, seq
    count = int(usable.sum())
    runs = Runs(*(key[:count] for key in keys))
    heads, members = runs.starts, runs.sizes
    number = np.full(len(event_key), NO_VALUE, np.int64)
    number[:count] = runs.number()
    rows = MatchedRows(**ordered, seq=keys[2], event=number)
    # The last value is for transfers, which have no group.
    sizes = np.array([*(group.size for group in groups), NO_VALUE], np.int64)
    is_transfer = ordered["kind"][heads] < len(POINT_TO_POINT)
    src, dst, _ = _ends(ranks, *(ordered[name][heads] for name in _ENDS))
    expected = np.where(is_transfer, 2, sizes[ordered["group"][heads]])
    events = MatchedEvents(
        first=heads,
        members=members,
        complete=members == expected,
        group=ordered["group"][heads],
        kind=ordered["kind"][heads],
        step=np.maximum.reduceat(ordered["step"][:count], heads) if count else heads,
        bytes=np.maximum.reduceat(ordered["bytes"][:count], heads) if count else heads,
        src=np.where(is_transfer, src, NO_VALUE),
        dst=np.where(is_transfer, dst, NO_VALUE),
    )
    return MatchedCollectives(
        ranks,
        tuple(partial.facts for partial in by_rank),
        by_rank,
        groups,
        kinds,
        rows,
        events,
        left_out,
        numbers,
        shifts,
    )


def _by_sequence_key(
    columns: dict[str, Ints], shift: Ints, rows: Ints, ranks: Sequence[int]
) -> dict[tuple[int, ...], int]:
    """Return the shifts of rows by sequence; see `MatchedCollectives.shifts`."""
    kind = columns["kind"][rows]
    transfer = kind < len(POINT_TO_POINT)
    peer = np.searchsorted(np.array(ranks, np.int64), columns["peer"][rows])
    keys = (
        columns["rank"][rows],
        np.where(transfer, NO_VALUE, columns["group"][rows]),
        kind,
        np.where(transfer, peer, NO_VALUE),
    )
    sequences = zip(*(key.tolist() for key in keys), strict=True)
    return dict(zip(sequences, shift[rows].tolist(), strict=True))


_ENDS = ("rank", "kind", "peer")  # The columns that tell source and target of a transfer.


def _ends(
    ranks: Sequence[int], rank: Ints, kind: Ints, peer: Ints
) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Return source and target of transfers as indices in `ranks`, and if the peer was read."""
    known = np.array([*ranks, NO_VALUE], np.int64)
    other = np.searchsorted(known[:-1], peer)
    sends = kind == 0
    ends = np.where(sends, rank, other), np.where(sends, other, rank)
    return *ends, (peer >= 0) & (known[other] == peer)


def _concatenate(
    found: Sequence[Partial], numbers: Sequence[Ints], kinds: list[str]
) -> dict[str, Ints]:
    """Concatenate the rows of all ranks, with kinds and groups numbered for the whole run."""
    code = {kind: index for index, kind in enumerate(kinds)}
    own_kinds = [
        np.array([*(code.setdefault(kind, len(code)) for kind in one.kinds), NO_VALUE], np.int64)
        for one in found
    ]
    kinds[:] = list(code)
    own_groups = [np.append(one, NO_VALUE) for one in numbers]
    translations = {"kind": own_kinds, "group": own_groups}
    counts = [len(one.communication["start"]) for one in found]
    result = {
        "rank": np.repeat(np.arange(len(found)), counts),
        "op": np.concatenate([np.arange(count) for count in counts]),
    }
    for name in COMMUNICATION_COLUMNS:
        columns = (one.communication[name] for one in found)
        if name in translations:
            columns = (to[one] for to, one in zip(translations[name], columns, strict=True))
        result[name] = np.concatenate([*columns, np.empty(0, np.int64)])
    return result


def _groups(found: Sequence[Partial]) -> tuple[list[ClusterGroup], list[Ints]]:
    """Return the groups of the run, and the index in them of each group of each rank.

    Groups are identified by their ranks if recorded. Several communicators of the same ranks are
    distinguished by name if all ranks use the same names, else by order of first use.
    """
    with_ranks: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
    by_name: dict[str, list[tuple[int, int]]] = {}
    for index, one in enumerate(found):
        own: dict[tuple[int, ...], list[int]] = {}
        for number in _by_first_use(one):
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


def _by_first_use(one: Partial) -> list[int]:
    count = len(one.communication["group"])
    first = np.full(len(one.groups) + 1, count)  # the last one: no group
    first[one.communication["group"][::-1]] = np.arange(count)[::-1]
    order = np.argsort(first[:-1], kind="stable")
    used: list[int] = order[first[order] < count].tolist()
    return [*used, *(number for number in range(len(one.groups)) if number not in used)]


def _shifts(
    columns: dict[str, Ints],
    first: Ints,
    second: Ints,
    usable: NDArray[np.bool_],
    groups: Sequence[ClusterGroup],
    ranks: Sequence[int],
    left_out: Ledger,
) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the shift of each row's sequence number, and a mask of rows that do not fit.

    A sequence is one rank's operations of one group and kind, or one side of a pair.
    """
    shift = np.zeros(len(first), np.int64)
    bad = np.zeros(len(first), bool)
    chosen = np.flatnonzero(usable)
    if not len(chosen):
        return shift, bad
    order = _by_sequence(columns, chosen, first, second)
    keys = (first[order], second[order])
    runs = Runs(*keys, columns["rank"][order], columns["kind"][order])
    starts, counts = runs.starts, runs.sizes
    number = Runs(*keys).number()[starts]  # group of each sequence
    steps = columns["step"][order]
    # Sequences fit if they have the same number of operations, first step and last step.
    head, tail = steps[starts], steps[starts + counts - 1]
    odd = np.zeros(int(number[-1]) + 1, bool)
    same = np.diff(number) == 0
    for values in (counts, head, tail):
        odd[number[1:][same & (np.diff(values) != 0)]] = True
    in_step = np.flatnonzero(columns["step"] >= 0) if odd.any() else chosen[:0]
    recorded = {  # first and last step of each rank
        int(columns["rank"][part[0]]): (columns["step"][part].min(), columns["step"][part].max())
        for part in np.split(in_step, Runs(columns["rank"][in_step]).starts[1:])
        if len(part)
    }
    for one in np.flatnonzero(odd).tolist():
        sequences = np.flatnonzero(number == one)
        rows = [order[starts[at] : starts[at] + counts[at]] for at in sequences.tolist()]
        sizes = [columns["bytes"][row] for row in rows]
        spans = {recorded.get(int(columns["rank"][row[0]])) for row in rows}
        # At the end of a step, a slow host launches in that step what others launch in the next.
        if len(spans) == 1 and all(np.array_equal(size, sizes[0]) for size in sizes):
            continue
        found = sequence_shift([columns["step"][row] for row in rows], sizes)
        if found is None:
            everything = np.concatenate(rows)
            bad[everything] = True
            left_out.add(
                "sequences_do_not_fit",
                _words(int(first[everything[0]]), groups, ranks),
                len(everything),
            )
            continue
        for row, value in zip(rows, found, strict=True):
            shift[row] = value
    return shift, bad


def _by_sequence(
    columns: dict[str, Ints], chosen: NDArray[np.intp], first: Ints, second: Ints
) -> NDArray[np.intp]:
    """Return the chosen rows sorted by group and kind (or pair), rank, kind and sequence number."""
    order = chosen[stable_order(first[chosen], second[chosen])]
    # Rows are usually in this order within a key already: check before sorting by all columns.
    keys = [first, second, columns["rank"], columns["kind"], columns["seq"]]
    if are_in_order([key[order] for key in keys]):
        return order
    return chosen[np.lexsort([key[chosen] for key in keys[::-1]])]


def _words(key: int, groups: Sequence[ClusterGroup], ranks: Sequence[int]) -> str:
    if key < 0:
        source, target = divmod(-1 - key, len(ranks) + 1)
        return f"transfers from rank {ranks[source]} to {ranks[target]}"
    group = groups[key]
    shown = ", ".join(map(str, group.ranks[:4])) + (", ..." if len(group.ranks) > 4 else "")
    return f"{group.kind} group of ranks {shown}"
