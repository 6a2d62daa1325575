"""All partials of a run to the rows of its summary file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.columns import Ledger
from unified_prof.cluster import streamed_sums
from unified_prof.cluster import summary_rows as rows
from unified_prof.cluster.cause_signals import evidence, roles
from unified_prof.cluster.clocks import clocks
from unified_prof.cluster.context import Case
from unified_prof.cluster.findings import findings
from unified_prof.cluster.matching import Matched, match
from unified_prof.cluster.partial import Columns, Partial, Unread, Where
from unified_prof.cluster.replay import Walk
from unified_prof.cluster.run_identity import of_other_runs
from unified_prof.cluster.summary_rows import Row
from unified_prof.cluster.waits import waits
from unified_prof.errors import StoreError
from unified_prof.recording.model import Finding

Ints = NDArray[np.int64]

_APART_NS = 60 * 1_000_000_000
"""Recordings of one run overlap; no clock of a host is off by so much."""


@dataclass(slots=True)
class Summary:
    """What the summary file holds: table -> rows, in the order of the schema's columns."""

    tables: dict[str, list[Row]]
    findings: list[Finding]
    world_size: int
    ranks_read: int
    absent: tuple[int, ...]
    unread: tuple[Unread, ...]
    steps: tuple[int, ...]
    left_out: Ledger = field(default_factory=Ledger)

    @property
    def whole(self) -> bool:
        """Whether every rank of the run could be read."""
        return not self.absent and not self.unread


def summarise(
    partials: Iterable[Partial],
    where: Mapping[int, Where] | None = None,
    unread: Sequence[Unread] = (),
    *,
    read: Callable[[int], Columns] | None = None,
    until: int | None = None,
) -> Summary:
    """Read partials of one run, each rank once, as one run.

    Args:
        partials: Of its ranks.
        where: Where they come from.
        unread: Ranks that could not be read.
        read: Where `partials` hold the first steps alone: returns all communication of a rank,
            by its global number; sums over the whole run are then taken of that.
        until: The last of those steps.

    Raises:
        StoreError: there is no rank that could be read.
        UsageError: they are of several runs, none of which has most of them.
    """
    found = list(partials)
    where = where or {}
    found, strangers = _one_run(found, where)
    unread = (*unread, *strangers)
    if not found:
        raise _nothing_read(unread)
    matched = match(found)
    if others := of_other_runs(matched, where):
        unread = (*unread, *others)
        left = {one.rank for one in others}
        matched = match(one for one in found if one.facts.rank not in left)
    _tell_of_other_times(matched)
    waited = waits(matched)
    steps = _compared_steps(matched)
    part = roles(matched, steps)
    clock = clocks(matched)
    proof = evidence(matched, part, steps)
    walked = [step for step in steps if until is None or step <= until]
    whole = None
    if read is not None:
        ask = read
        whole = streamed_sums.sums(matched, lambda index: ask(matched.ranks[index]))
    offset = np.zeros_like(clock.offset)
    if int(clock.island.max(initial=0)) == 0:
        times = [one.marks["time"] for one in matched.partials]
        begins = [int(time[0]) if len(time) else clock.at for time in times]
        shifts = [clock.of(at).common_at(begin) - begin for at, begin in enumerate(begins)]
        offset = np.array(shifts, np.int64)
    case = Case(
        matched,
        waited,
        part,
        proof,
        Walk(matched, waited, offset, walked),
        tuple(steps),
        _step_length(matched, steps),
    )
    told = findings(case)
    world = _world(matched)
    bad = {one.rank for one in unread}
    absent = tuple(rank for rank in range(world) if rank not in matched.ranks and rank not in bad)
    tables = {
        "META_DATA": rows.fact_rows(matched, clock, steps, world, unread),
        "RANK": rows.rank_rows(matched, part, clock, where, unread, absent),
        "GROUP": rows.group_rows(matched),
        "STEP_RANK": rows.step_rows(matched, waited, proof, whole),
        "COLLECTIVE": rows.collective_rows(matched, waited, whole),
        "BLAME": rows.blame_rows(matched, waited, proof, told, whole),
        "LINK": rows.link_rows(matched, waited),
        "OPERATION_RANK": rows.operation_rows(matched, steps),
        "FINDING": rows.finding_rows(told),
    }
    return Summary(
        tables,
        told,
        world,
        len(matched.ranks),
        absent,
        tuple(unread),
        tuple(steps),
        matched.left_out,
    )


def _nothing_read(unread: Sequence[Unread]) -> StoreError:
    """Return the error of a run without a rank: the first file, why, and what to do about it."""
    text = "no rank's recording could be read"
    if not unread:
        return StoreError(text, slug="no-rank-readable")
    first = unread[0]
    more = f"; nor {len(unread) - 1:,} more" if len(unread) > 1 else ""
    return StoreError(
        f"{text}; {first.file}: {first.why}{more}", hint=first.hint, slug="no-rank-readable"
    )


def _one_run(
    found: Sequence[Partial], where: Mapping[int, Where]
) -> tuple[list[Partial], list[Unread]]:
    """Keep the ranks of the run that most are of; those of another world size are another's."""
    sizes = Counter(one.facts.world_size for one in found if one.facts.world_size)
    if len(sizes) < 2:
        return list(found), []
    usual = max(sizes, key=lambda size: (sizes[size], size))
    kept, others = [], []
    for one in found:
        size = one.facts.world_size
        if size is None or size == usual:
            kept.append(one)
        else:
            file = where.get(one.facts.rank, Where()).file or f"rank {one.facts.rank}"
            words = f"it is of a run of {size} ranks, the others of one of {usual}"
            others.append(Unread(file, words, one.facts.rank))
    return kept, others


def _tell_of_other_times(matched: Matched) -> None:
    """Tell of ranks that were recorded when the others were not: they can be of another run.

    Hosts' clocks differ by milliseconds, and ranks of one run wait for each other.
    """
    spans = sorted(
        (int(times.min()), int(times.max()), one.facts.rank)
        for one in matched.partials
        if len(times := one.marks["time"])
    )
    until = spans[0][1] if spans else 0
    for begin, end, rank in spans:
        if begin - until > _APART_NS:
            words = (
                f"rank {rank} was recorded {(begin - until) / 1e9:,.0f} s after others had ended"
            )
            matched.left_out.add("ranks_recorded_apart", f"{words}: it may be of another run")
        until = max(until, end)


def _world(matched: Matched) -> int:
    told = [one.world_size for one in matched.facts if one.world_size]
    if told:
        return max(told)
    in_groups = [max(group.ranks) for group in matched.groups if group.told]
    return max([*matched.ranks, *in_groups]) + 1


def _compared_steps(matched: Matched) -> list[int]:
    """Return the steps that all ranks have; where there is none, those that most have."""
    counts: Counter[int] = Counter()
    for one in matched.partials:
        counts.update(set(one.steps["step"].tolist()))
    if not counts:
        return []
    most = max(counts.values())
    return sorted(step for step, count in counts.items() if count == most)


def _step_length(matched: Matched, steps: list[int]) -> float:
    lengths: list[int] = []
    for one in matched.partials:
        chosen = np.isin(one.steps["step"], steps)
        lengths += (one.steps["end"] - one.steps["start"])[chosen].tolist()
    return float(np.median(lengths)) if lengths else 0.0
