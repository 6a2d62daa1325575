"""Rows of the tables of a summary file, in the order of the columns of `schemas/cluster/`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import NO_VALUE, Runs
from unified_prof.cluster.clocks import AlignedClocks
from unified_prof.cluster.matching import MatchedCollectives
from unified_prof.cluster.rank_partial import PartialSource, UnreadableRecording
from unified_prof.cluster.rank_signals import PARALLEL_KINDS, RankRoles, RankSignals
from unified_prof.cluster.waits import Waits, WholeSums, mostly_recorded
from unified_prof.recording.collectives import bus_factor
from unified_prof.recording.model import Finding

Row = tuple[Any, ...]

# Kinds of links.
P2P, COLLECTIVE = "p2p", "collective"
_NS_PER_S = 1e9

# Maximum number of kernel kinds listed per rank; the others are combined in one row.
_MAX_OPERATIONS = 64
# Maximum number of (kind, module) rows per rank; other modules of a kind are combined in one row.
_MAX_WITH_MODULE = 256
_OTHERS = "(others)"


def fact_rows(
    matched: MatchedCollectives,
    clock: AlignedClocks,
    steps: list[int],
    world: tuple[int, bool],
    unread: Sequence[UnreadableRecording],
) -> list[Row]:
    """Return META_DATA: facts about the whole run as JSON."""
    facts: dict[str, Any] = {
        "world_size": world[0],
        "world_size_is_minimum": world[1],
        "ranks_read": len(matched.ranks),
        "steps": steps,
        "clock_islands": len(set(clock.island.tolist())),
        "unnumbered": [{"file": one.file, "why": one.why} for one in unread if one.rank is None],
        "left_out": [
            {"what": name, "n": count, "first": detail}
            for name, (count, detail) in matched.left_out.items()
        ],
    }
    drifting = np.flatnonzero(clock.drift).tolist()
    if drifting:
        facts["clock_drift"] = {
            "at_ns": clock.at,
            "ppb": {str(matched.ranks[one]): round(clock.drift[one] * 1e9, 1) for one in drifting},
        }
    return [(name, json.dumps(value)) for name, value in facts.items()]


def rank_rows(
    matched: MatchedCollectives,
    roles: RankRoles,
    clock: AlignedClocks,
    where: Mapping[int, PartialSource],
    unread: Sequence[UnreadableRecording],
    absent: Sequence[int],
) -> list[Row]:
    """Return RANK: identity, role and clock of each rank, and its read status."""
    nothing = (None,) * (len(PARALLEL_KINDS) + 3)
    island_sizes = Counter(clock.island.tolist())
    communicates = any(partial.operations for partial in matched.partials)
    rows: list[Row] = []
    for index, (rank, facts) in enumerate(zip(matched.ranks, matched.facts, strict=True)):
        partial, source = matched.partials[index], where.get(rank, PartialSource())
        missing = list(facts.notes)
        if communicates and not partial.operations:
            missing.append("no communication recorded")
        if not len(partial.kernels["n"]):
            missing.append("no kernels recorded")
        island = int(clock.island[index])
        is_aligned = island_sizes[island] > 1 or len(matched.ranks) == 1
        offset = (int(clock.offset[index]), int(clock.error[index])) if is_aligned else (None, None)
        rows.append(
            (
                *(rank, facts.host, facts.device_id, facts.device_name, facts.vendor),
                *(source.file, source.partial),
                *("partly" if missing else "read", "; ".join(missing) or None),
                *(roles.place[kind][index] for kind in PARALLEL_KINDS),
                *(*offset, island),
            )
        )
    unknown = (None,) * 4
    rows += [
        (one.rank, *unknown, one.file, None, "failed", one.why, *nothing)
        for one in unread
        if one.rank is not None
    ]
    text = "recording missing"
    rows += [(rank, *unknown, None, None, "absent", text, *nothing) for rank in absent]
    return sorted(rows)


def group_rows(matched: MatchedCollectives) -> list[Row]:
    """Return GROUP: the groups that communicate, by their ranks."""
    host = {rank: facts.host for rank, facts in zip(matched.ranks, matched.facts, strict=True)}
    rows: list[Row] = []
    for index, group in enumerate(matched.groups):
        hosts = {host.get(rank) for rank in group.ranks}
        names, ranks = json.dumps(sorted(group.titles | group.names)), json.dumps([*group.ranks])
        size = group.size if group.size > 0 else len(group.ranks)
        rows.append((index, group.kind, names, ranks, size, None if None in hosts else len(hosts)))
    return rows


def step_rows(
    matched: MatchedCollectives, waits: Waits, signals: RankSignals, sums: WholeSums
) -> list[Row]:
    """Return STEP_RANK: the breakdown of each rank's steps."""
    knows_setup = bool((mostly_recorded(matched) & (waits.setup >= 0)).any())
    input_at = {step: signals.input_at[:, at] for at, step in enumerate(signals.steps)}
    rows: list[Row] = []
    for index, partial in enumerate(matched.partials):
        columns = (values.tolist() for values in partial.steps.values())
        for step, *times, idle, late in zip(*columns, strict=True):
            wait, exposed, setup, bubble = sums.waits.get((step, index), (None,) * 4)
            if late == NO_VALUE:
                late = _rounded(float(input_at[step][index])) if step in input_at else None
            setup = setup if knows_setup else None
            if exposed is not None:  # in long runs, a sum over groups that may wait together
                exposed = min(exposed, times[-1])
                bubble = min(bubble, exposed)
            rank = partial.facts.rank
            rows.append((step, rank, *times, wait, exposed, setup, bubble, late, idle))
    return sorted(rows)


def collective_rows(matched: MatchedCollectives, sums: WholeSums) -> list[Row]:
    """Return COLLECTIVE: collectives by group, kind, step and size."""
    rows: list[Row] = []
    for number, (group, kind, step, size, *figures) in enumerate(sums.collectives):
        name, median_ns = matched.kinds[kind], figures[-2]
        factor = bus_factor(name, matched.groups[group].size)
        rate = factor * size / median_ns if factor and size > 0 and median_ns else None
        keys = (group, name, *(None if one == NO_VALUE else one for one in (step, size)))
        rows.append((number, *keys, *figures, rate))
    return rows


def blame_rows(
    matched: MatchedCollectives, signals: RankSignals, findings: Sequence[Finding], sums: WholeSums
) -> list[Row]:
    """Return BLAME: the wait that each rank causes, and the evidence for its causes."""
    caused, times = sums.caused.tolist()
    cause: dict[int, Finding] = {}
    for one in findings:
        if not one.links:
            for rank in one.ranks:
                cause.setdefault(rank, one)
    late = np.nansum(np.maximum(signals.input_at - signals.peers_input_at, 0), axis=1)
    knows_input: list[bool] = np.asarray(np.isfinite(signals.input_at).any(axis=1)).tolist()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = signals.work / signals.peers_work
    idle = np.nansum(signals.idle_at, axis=1)
    rows: list[Row] = []
    for index, rank in enumerate(matched.ranks):
        finding = cause.get(rank)
        alone = finding is not None and len(finding.ranks) == 1
        rows.append(
            (
                *(rank, caused[index], times[index], int(signals.work[index])),
                _rounded(float(signals.peers_work[index])),
                float(ratio[index]) if np.isfinite(ratio[index]) else None,
                int(idle[index]),
                _rounded(float(signals.peers_gap[index] * signals.launches[index])),
                int(late[index]) if knows_input[index] else None,
                finding.cost_ms_per_step * 1e6 if finding and alone else None,
                finding.kind if finding else None,
            )
        )
    return rows


def _rounded(value: float) -> int | None:
    return round(value) if np.isfinite(value) else None


@dataclass(slots=True)
class MeasuredLink:
    """Data that moved from one rank to another; ranks are indices, rates are GB/s."""

    src: int
    dst: int
    kind: str  # P2P or COLLECTIVE.
    across: bool | None  # True if it connects two hosts; None if the hosts are unknown.
    n: int
    bytes: int
    transfer_ns: int
    wait_ns: int | None
    p50: float
    p99: float
    # Median rate of similar links: same kind, similar size, also within or between hosts.
    like: float = 0.0


def crosses_hosts(matched: MatchedCollectives, a: int, b: int) -> bool | None:
    """Return True if two ranks are on different hosts; None if their hosts are unknown."""
    one, other = matched.facts[a].host, matched.facts[b].host
    return None if one is None or other is None else one != other


def measure_links(matched: MatchedCollectives, waits: Waits) -> list[MeasuredLink]:
    """Return all links: first those of sends and receives, then those of collectives."""
    links = [*_transfers(matched, waits), *_collective_parts(matched)]
    classes: dict[tuple[object, ...], list[MeasuredLink]] = {}
    for link in links:
        order = int(np.log2(max(link.bytes / link.n, 1)))
        classes.setdefault((link.kind, link.across, order), []).append(link)
    for members in classes.values():
        usual = float(np.median([link.p50 for link in members]))
        for link in members:
            link.like = usual
    return links


def _transfers(matched: MatchedCollectives, waits: Waits) -> list[MeasuredLink]:
    events, rows = matched.events, matched.rows
    usable = np.flatnonzero(
        matched.transfers & events.complete & (waits.transfer > 0) & (events.bytes > 0)
    )
    if not len(usable):
        return []
    rate = events.bytes[usable] / waits.transfer[usable]
    order = np.lexsort((rate, events.dst[usable], events.src[usable]))
    usable, rate = usable[order], rate[order]
    src, dst = events.src[usable], events.dst[usable]
    # The rows of a send and its receive are adjacent; the wait is that of the receiver.
    first = events.first[usable]
    receiver = np.where(rows.rank[first] == dst, first, first + 1)
    pairs = Runs(src, dst)
    heads, n = pairs.starts, pairs.sizes
    columns = (
        n,
        *(
            np.add.reduceat(values, heads)
            for values in (
                *(events.bytes[usable], waits.transfer[usable]),
                np.maximum(waits.wait[receiver], 0),
            )
        ),
        *(rate[heads + n // 2], rate[heads + n // 100]),
    )
    return [
        MeasuredLink(a, b, P2P, crosses_hosts(matched, a, b), *figures)
        for a, b, *figures in zip(
            *(column.tolist() for column in (src[heads], dst[heads], *columns)), strict=True
        )
    ]


def _collective_parts(matched: MatchedCollectives) -> list[MeasuredLink]:
    result: dict[tuple[int, int], MeasuredLink] = {}
    counts: dict[tuple[int, int], int] = {}
    for partial in matched.partials:
        for src, dst, n, size, total, p50, p99 in zip(
            *(values.tolist() for values in partial.links.values()), strict=True
        ):
            if len(found := matched.present((src, dst))) < 2:
                continue
            ends = found[0], found[1]
            p50, p99 = p50 / _NS_PER_S, p99 / _NS_PER_S
            if ends not in result:
                across = crosses_hosts(matched, *ends)
                result[ends] = MeasuredLink(*ends, COLLECTIVE, across, 0, 0, 0, None, p50, p99)
            link = result[ends]
            link.n, link.bytes = link.n + n, link.bytes + size
            link.transfer_ns += total
            link.p99 = min(link.p99, p99)
            if n > counts.get(ends, 0):  # the median of the side with more parts
                link.p50, counts[ends] = p50, n
    return [result[ends] for ends in sorted(result)]


def link_rows(matched: MatchedCollectives, waits: Waits) -> list[Row]:
    """Return LINK: data moved from rank to rank."""
    return [
        (
            *(matched.ranks[link.src], matched.ranks[link.dst], link.kind),
            None if link.across is None else int(link.across),
            *(link.n, link.bytes, link.transfer_ns, link.wait_ns, link.p50, link.p99, link.like),
        )
        for link in measure_links(matched, waits)
    ]


def operation_rows(matched: MatchedCollectives, steps: Sequence[int]) -> list[Row]:
    """Return OPERATION_RANK: the longest kernels by rank, name and module."""
    result: list[Row] = []
    for partial in matched.partials:
        table = partial.kernels
        inside = np.flatnonzero(np.isin(table["step"], steps))
        cells: dict[tuple[str, str], list[int]] = {}
        for name, module, *figures in zip(
            *(table[c][inside].tolist() for c in ("name", "module", "n", "total", "min", "max")),
            strict=True,
        ):
            _add(cells, (partial.names[name], partial.modules[module]), *figures)
        cells = _longest(cells)
        order = sorted(cells, key=lambda key: (key[0] == _OTHERS, -cells[key][1], key))
        result += [(partial.facts.rank, *key, *cells[key]) for key in order]
    return result


def _longest(cells: dict[tuple[str, str], list[int]]) -> dict[tuple[str, str], list[int]]:
    """Keep the kinds of kernel with the most time, and their modules with the most time.

    The other modules of a kind are combined in one row without a module, the other kinds in one
    row.
    """
    if len(cells) <= _MAX_OPERATIONS:
        return cells
    totals: dict[str, int] = {}
    for (name, _), (_, total, _, _) in cells.items():
        totals[name] = totals.get(name, 0) + total
    kept_names = set(sorted(totals, key=lambda name: (-totals[name], name))[:_MAX_OPERATIONS])
    with_module = sorted(
        (key for key in cells if key[1] and key[0] in kept_names),
        key=lambda key: (-cells[key][1], key),
    )
    kept = set(with_module[:_MAX_WITH_MODULE])
    result: dict[tuple[str, str], list[int]] = {}
    for key, cell in cells.items():
        shown = key if key in kept else (key[0] if key[0] in kept_names else _OTHERS, "")
        _add(result, shown, *cell)
    return result


def _add(
    cells: dict[tuple[str, str], list[int]], key: tuple[str, str], n: int, total: int, *ends: int
) -> None:
    low, high = ends
    cell = cells.setdefault(key, [0, 0, low, high])
    cell[:] = [cell[0] + n, cell[1] + total, min(cell[2], low), max(cell[3], high)]


def finding_rows(findings: Sequence[Finding]) -> list[Row]:
    """Return FINDING: findings in order."""
    return [
        (
            *(place, one.kind),
            *(json.dumps(values) for values in (one.ranks, one.hosts, one.links, one.steps)),
            *(one.cost_ms_per_step, json.dumps(one.figures), one.text),
        )
        for place, one in enumerate(findings, start=1)
    ]
