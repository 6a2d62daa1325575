"""Summary of a run: combine the partials of all ranks to the rows of its summary file.

Recordings of other runs are detected and excluded. Two runs of one program have the same world
size, groups and collectives. However, all members of a collective leave it together: within one
run, the ends of the collectives of two ranks differ by a constant clock offset, which is 0 on one
host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

import numpy as np

from unified_prof.arrays.grouping import Ints, Runs
from unified_prof.base.columns import Ledger
from unified_prof.cluster import summary_rows as rows
from unified_prof.cluster.clocks import align_clocks, member_pairs, sample_events
from unified_prof.cluster.findings import find_all
from unified_prof.cluster.matching import (
    MatchedCollectives,
    SequenceMatch,
    match_collectives,
    match_sequences,
    run_size,
)
from unified_prof.cluster.rank_partial import Partial, PartialSource, UnreadableRecording
from unified_prof.cluster.rank_signals import collect_signals, infer_roles
from unified_prof.cluster.replay import Replay
from unified_prof.cluster.rule_context import RuleContext
from unified_prof.cluster.summary_rows import Row
from unified_prof.cluster.waits import (
    KeySums,
    WholeSums,
    add_up,
    compute_waits,
    key_sums,
    sums_in_memory,
)
from unified_prof.errors import StoreError, UsageError
from unified_prof.recording.collectives import POINT_TO_POINT
from unified_prof.recording.model import Finding

# Operations that a member may leave before the others have arrived.
_ONE_SIDED = frozenset(
    (*POINT_TO_POINT, *"send_receive coalesced broadcast scatter gather reduce".split())
)
# Events per group and kind that are compared to find recordings of other runs.
_SAMPLED_EVENTS = 32
_MIN_EVENTS = 3  # Minimum number of events to decide whether two ranks belong to the same run.
_MAX_HOST_CLOCK_NS = 100_000_000  # Maximum difference of the clocks of ranks on one host, ns.
# Clocks of hosts rarely differ by more, ns; beyond that, a smaller spread shows different runs.
_MAX_CLOCK_NS = 60_000_000_000
_MAX_DRIFT = 2e-4  # Maximum relative drift of two clocks: four times the tolerance of crystals.
# Maximum spread of the offsets without drift, ns; the second for clocks beyond _MAX_CLOCK_NS.
_MAX_SPREAD_NS = 1_000_000
_MAX_FAR_SPREAD_NS = 20_000
# The same if collectives end on hosts, whose threads wait for a processor.
_MAX_HOST_SPREAD_NS = 50_000_000


def recordings_of_other_runs(
    matched: MatchedCollectives, where: Mapping[int, PartialSource]
) -> list[UnreadableRecording]:
    """Return the recordings that are not from the same run as most others, with the reason.

    Raises:
        UsageError: No run has more than half of the recordings.
    """
    runs = _runs(matched)
    if len(runs) < 2:
        return []

    def file(index: int) -> str:
        rank = matched.ranks[index]
        return where.get(rank, PartialSource()).file or f"rank {rank}"

    def start(index: int) -> int:
        return matched.partials[index].mark_figures().begin or 0

    first = runs[0]
    if 2 * len(first) <= len(matched.ranks):
        sides = []
        for members in runs[:2]:
            facts = matched.facts[members[0]]
            host = f" on {facts.host}" if facts.host is not None else ""
            more = f" and {len(members) - 1:,} more" if len(members) > 1 else ""
            at = _time_text(start(members[0]))
            sides.append(f"{file(members[0])} (rank {facts.rank}{host}, {at}){more}")
        raise UsageError(
            f"these recordings are from {len(runs)} runs: {'; '.join(sides)}",
            hint="give the recordings of one run",
            slug="several-runs",
        )
    result: list[UnreadableRecording] = []
    for index in (index for members in runs[1:] for index in members):
        apart = (start(index) - start(first[0])) / 1e9
        reason = "their collectives do not end together"
        if abs(apart) >= 1:
            order = "after" if apart > 0 else "before"
            reason = f"recorded {abs(apart):,.0f} s {order} that, and {reason}"
        text = (
            f"belongs to another run than rank {matched.ranks[first[0]]} and {len(first) - 1:,} "
            f"more ({file(first[0])}): {reason}"
        )
        result.append(UnreadableRecording(file(index), text, matched.ranks[index]))
    return result


def _runs(matched: MatchedCollectives) -> list[list[int]]:
    """Return the ranks (indices) of each run, largest run first; one list if all match."""
    fits, misfits = _compare_pairs(matched)
    if not len(misfits):
        return [list(range(len(matched.ranks)))]
    parent = list(range(len(matched.ranks)))

    def find(rank: int) -> int:
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    for a, b in fits.tolist():
        parent[find(a)] = find(b)
    # Ranks without common collectives are in the same run unless their runs do not match.
    figures = [partial.mark_figures() for partial in matched.partials]
    spans = [(one.begin or 0, one.end) for one in figures]
    roots = sorted({find(rank) for rank in parent}, key=lambda root: spans[root])
    apart = {frozenset((find(a), find(b))) for a, b in misfits.tolist()}
    for at, root in enumerate(roots):
        for other in roots[:at]:
            one, two = find(root), find(other)
            members = [[r for r in range(len(parent)) if find(r) == side] for side in (one, two)]
            if one != two and frozenset((one, two)) not in apart and _overlap(spans, *members):
                parent[one] = two
                apart = {frozenset(find(rank) for rank in pair) for pair in apart}
    runs: dict[int, list[int]] = {}
    for rank in range(len(parent)):
        runs.setdefault(find(rank), []).append(rank)
    return sorted(runs.values(), key=lambda members: (-len(members), members))


def _overlap(spans: Sequence[tuple[int, int]], one: Sequence[int], two: Sequence[int]) -> bool:
    sides = [
        (max(spans[rank][0] for rank in side), min(spans[rank][1] for rank in side))
        for side in (one, two)
    ]
    (begin, end), (other_begin, other_end) = sides
    return other_begin < end + _MAX_CLOCK_NS and begin < other_end + _MAX_CLOCK_NS


def _time_text(ns: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ns / 1e9, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"at {ns / 1e9:.0f} s"


def _compare_pairs(matched: MatchedCollectives) -> tuple[Ints, Ints]:
    """Return the pairs of ranks whose collectives end together, and the pairs whose do not."""
    events, rows = matched.events, matched.rows
    two_sided = ~matched.is_kind(events.kind, *_ONE_SIDED) & (events.members > 1)
    usable = np.flatnonzero(two_sided)
    keys = [events.group[usable], events.kind[usable]]
    usable = usable[sample_events(keys, _SAMPLED_EVENTS)]
    if not len(usable):
        return np.empty((0, 2), np.int64), np.empty((0, 2), np.int64)
    pair, first, others = member_pairs(matched, usable)
    difference = rows.ends(others) - rows.ends(first)
    order = np.lexsort((difference, pair))
    difference, end = difference[order], rows.ends(first)[order]
    runs = Runs(pair[order])
    heads, n = runs.starts, runs.sizes
    pairs = np.stack(np.divmod(pair[order[heads]], len(matched.ranks)), 1)
    middle = difference[heads + n // 2]
    away = np.abs(difference - runs.spread(middle))
    away = away[np.lexsort((away, runs.number()))]
    # Three of four must match: the first one may be incomplete.
    spread = away[heads + (n - 1) * 3 // 4]
    span = np.maximum.reduceat(end, heads) - np.minimum.reduceat(end, heads)
    hosts = [facts.host for facts in matched.facts]
    same_host = np.array(
        [hosts[x] is not None and hosts[x] == hosts[y] for x, y in pairs.tolist()], bool
    )
    distance = np.abs(middle)
    on_hosts = all(facts.vendor is None for facts in matched.facts)
    near = _MAX_HOST_SPREAD_NS if on_hosts else _MAX_SPREAD_NS
    limit = np.where(distance > _MAX_CLOCK_NS, _MAX_FAR_SPREAD_NS, near)
    apart = same_host & (distance > _MAX_HOST_CLOCK_NS)
    misfits = (spread > limit + _MAX_DRIFT * span) | apart
    if apart.any():  # then clocks do not explain the same distance between others
        misfits |= distance > int(distance[apart].min()) // 2
    known = n >= _MIN_EVENTS
    return pairs[known & ~misfits], pairs[known & misfits]


@dataclass(slots=True)
class RunSummary:
    """Contents of the summary file: table -> rows, in the order of the schema's columns."""

    tables: dict[str, list[Row]]
    findings: list[Finding]  # Faults of ranks, hosts and links.
    ranked: list[Finding]  # These, and then the costs that all ranks share.
    world_size: int
    ranks_read: int
    absent: tuple[int, ...]
    unread: tuple[UnreadableRecording, ...]
    steps: tuple[int, ...]
    left_out: Ledger = field(default_factory=Ledger)
    world_size_is_minimum: bool = False


def summarize_run(
    partials: Iterable[Partial],
    where: Mapping[int, PartialSource] | None = None,
    unread: Sequence[UnreadableRecording] = (),
    *,
    sums: Callable[[SequenceMatch], Iterable[KeySums]] | None = None,
) -> RunSummary:
    """Combine the partials of the ranks of one run.

    Args:
        partials: One per rank.
        where: Global rank -> source of its partial.
        unread: Recordings that could not be read.
        sums: Returns the sums of all keys if `partials` contain only the first steps; None computes
            them from the operations in memory.

    Raises:
        StoreError: No rank could be read.
        UsageError: The partials are from several runs, and none has more than half of them.
    """
    where = where or {}
    damaged = [one.rank for one in unread if one.rank is not None]
    found, others = _split_runs(list(partials), where)
    unread = (*unread, *others)
    if not found:
        raise _nothing_read(unread)
    matched, whole = _matched(found, sums or key_sums)
    if others := recordings_of_other_runs(matched, where):
        unread = (*unread, *others)
        excluded = {other.rank for other in others}
        found = [one.reload() for one in found if one.facts.rank not in excluded]
        matched, whole = _matched(found, sums or key_sums)
    _note_other_times(matched)
    if all(facts.watched for facts in matched.facts):
        text = (
            "communication includes backward passes: a slower one looks like waiting, unless it is "
            "captured; each step is the median of the steps up to the next one"
        )
        matched.left_out.add("watched_steps", text, 1)
    elif all(facts.vendor is None for facts in matched.facts):
        text = "operations and gloo collectives of the processes are compared"
        matched.left_out.add("no_device_recorded", text, len(matched.ranks))
    if sampled := sum(facts.sampled for facts in matched.facts):
        text = (
            f"sampled traces of {sampled:,} of {len(matched.facts):,} recorded ranks: idle time "
            "and sums are not those of the program"
        )
        matched.left_out.add("sampled_trace", text, 1)
    waits = compute_waits(matched)
    whole = whole or sums_in_memory(matched, waits)
    steps = _compared_steps(matched)
    roles = infer_roles(matched, steps)
    clock = align_clocks(matched)
    signals = collect_signals(matched, roles, steps)
    offset = np.zeros_like(clock.offset)
    if int(clock.island.max(initial=0)) == 0:
        for index, partial in enumerate(matched.partials):
            begin = partial.mark_figures().begin
            begin = clock.at if begin is None else begin
            offset[index] = clock.clock_of(index).common_at(begin) - begin
    until = min((one.until for one in matched.partials if one.until is not None), default=None)
    replay = Replay(
        matched, waits, offset, [step for step in steps if until is None or step <= until]
    )
    context = RuleContext(
        matched, waits, roles, signals, replay, tuple(steps), _step_length(matched, steps)
    )
    findings, shared = find_all(context)
    ranked = [*findings, *shared]
    world, is_minimum = run_size(matched, damaged)
    known = {*matched.ranks, *(one.rank for one in unread)}
    absent = tuple(rank for rank in range(world) if rank not in known)
    tables = {
        "META_DATA": rows.fact_rows(matched, clock, steps, (world, is_minimum), unread),
        "RANK": rows.rank_rows(matched, roles, clock, where, unread, absent),
        "GROUP": rows.group_rows(matched),
        "STEP_RANK": rows.step_rows(matched, waits, signals, whole),
        "COLLECTIVE": rows.collective_rows(matched, whole),
        "BLAME": rows.blame_rows(matched, signals, findings, whole),
        "LINK": rows.link_rows(matched, waits),
        "OPERATION_RANK": rows.operation_rows(matched, steps),
        "FINDING": rows.finding_rows(ranked),
    }
    return RunSummary(
        tables,
        findings,
        ranked,
        world,
        len(matched.ranks),
        absent,
        tuple(unread),
        tuple(steps),
        matched.left_out,
        is_minimum,
    )


def _matched(
    found: Sequence[Partial], sums: Callable[[SequenceMatch], Iterable[KeySums]]
) -> tuple[MatchedCollectives, WholeSums | None]:
    """Match the ranks, and return the sums over the whole run if only its first steps are held.

    There may be millions of operations: they are freed as soon as they are not needed.
    """
    sequences = match_sequences(found)
    held = [one.held for one in found if one.held is not None]
    whole = add_up(sequences, sums(sequences)) if held else None
    for one in held:
        one.whole.columns.clear()
    matched = match_collectives(sequences)
    for one in held:
        one.first.columns.clear()
    return matched, whole


def _nothing_read(unread: Sequence[UnreadableRecording]) -> StoreError:
    """Return the error for a run without a readable rank: first file, reason and hint."""
    text = "no rank's recording could be read"
    if not unread:
        return StoreError(
            f"{text}: no input is a recording",
            hint="expected msprof databases, PROF_* and *_ascend_pt directories, traces",
            slug="no-rank-readable",
        )
    first = unread[0]
    more = f"; {len(unread) - 1:,} more failed" if len(unread) > 1 else ""
    return StoreError(
        f"{text}; {first.file}: {first.why}{more}", hint=first.hint, slug="no-rank-readable"
    )


def _split_runs(
    found: list[Partial], where: Mapping[int, PartialSource]
) -> tuple[list[Partial], list[UnreadableRecording]]:
    """Separate the ranks with the most frequent world size from the others."""
    sizes = Counter(one.facts.world_size for one in found if one.facts.world_size)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=None)
    others = [
        UnreadableRecording(
            where.get(one.facts.rank, PartialSource()).file or f"rank {one.facts.rank}",
            f"from a run of {one.facts.world_size} ranks, the others from one of {usual}",
            one.facts.rank,
        )
        for one in found
        if one.facts.world_size not in (None, usual)
    ]
    return [one for one in found if one.facts.world_size in (None, usual)], others


def _note_other_times(matched: MatchedCollectives) -> None:
    """Note ranks that were recorded after the others had ended: they may be from another run."""
    spans = sorted(
        (figures.begin, figures.end, partial.facts.rank)
        for partial in matched.partials
        if (figures := partial.mark_figures()).begin is not None
    )
    until = spans[0][1] if spans else 0
    for begin, end, rank in spans:
        if begin - until > _MAX_CLOCK_NS:
            apart = (begin - until) / 1e9
            text = f"rank {rank} was recorded {apart:,.0f} s after others had ended"
            matched.left_out.add("ranks_recorded_apart", f"{text}: possibly from another run")
        until = max(until, end)


def _compared_steps(matched: MatchedCollectives) -> list[int]:
    """Return the steps that most ranks (usually all) have."""
    counts: Counter[int] = Counter()
    for partial in matched.partials:
        counts.update(set(partial.steps["step"].tolist()))
    if not counts:
        return []
    most = max(counts.values())
    return sorted(step for step, count in counts.items() if count == most)


def _step_length(matched: MatchedCollectives, steps: list[int]) -> float:
    lengths: list[int] = []
    for partial in matched.partials:
        chosen = np.isin(partial.steps["step"], steps)
        lengths += (partial.steps["end"] - partial.steps["start"])[chosen].tolist()
    if not lengths:
        return 0.0
    median, mean = float(np.median(lengths)), float(np.mean(lengths))
    return median if 10 * median > mean else mean  # Hosts may run ahead until the last step.
