"""The rows of a summary's tables, in the order of the schema's columns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import distinct
from unified_prof.cluster import links as moved
from unified_prof.cluster import waits
from unified_prof.cluster.clocks import AlignedClocks
from unified_prof.cluster.matching import MatchedCollectives
from unified_prof.cluster.rank_partial import NO_VALUE, PartialSource, UnreadableRecording
from unified_prof.cluster.rank_signals import PARALLEL_KINDS, RankRoles, RankSignals
from unified_prof.cluster.waits import Waits
from unified_prof.recording.collectives import bus_factor
from unified_prof.recording.model import Finding

Row = tuple[Any, ...]

_MOST_OPERATIONS = 64
"""Kinds of kernel that are listed of a rank; the others are one row."""
_MOST_WITH_MODULE = 256
"""So many of their modules as well, each a row; what others have of a kind is a row without."""
_OTHERS = "(others)"


def fact_rows(
    matched: MatchedCollectives,
    clock: AlignedClocks,
    steps: list[int],
    world: tuple[int, bool],
    unread: Sequence[UnreadableRecording],
) -> list[Row]:
    """Return META_DATA: what holds for the run as a whole; values are JSON."""
    nameless = [{"file": one.file, "why": one.why} for one in unread if one.rank is None]
    facts: dict[str, Any] = {
        "world_size": world[0],
        "world_size_is_minimum": world[1],
        "ranks_read": len(matched.ranks),
        "steps": steps,
        "clock_islands": len(set(clock.island.tolist())),
        "unnumbered": nameless,
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
    part: RankRoles,
    clock: AlignedClocks,
    where: Mapping[int, PartialSource],
    unread: Sequence[UnreadableRecording],
    absent: Sequence[int],
) -> list[Row]:
    """Return RANK: who each rank is, and whether it was read."""
    nothing = (None,) * (len(PARALLEL_KINDS) + 3)
    alone = Counter(clock.island.tolist())
    rows: list[Row] = []
    for index, (rank, facts) in enumerate(zip(matched.ranks, matched.facts, strict=True)):
        place = where.get(rank, PartialSource())
        lacks = _lacks(matched, index)
        aligned = alone[int(clock.island[index])] > 1 or len(matched.ranks) == 1
        rows.append(
            (
                rank,
                facts.host,
                facts.device_id,
                facts.device_name,
                facts.vendor,
                place.file,
                place.partial,
                "partly" if lacks else "read",
                "; ".join(lacks) or None,
                *(part.place[kind][index] for kind in PARALLEL_KINDS),
                int(clock.offset[index]) if aligned else None,
                int(clock.error[index]) if aligned else None,
                int(clock.island[index]),
            )
        )
    rows += [
        (one.rank, None, None, None, None, one.file, None, "failed", one.why, *nothing)
        for one in unread
        if one.rank is not None
    ]
    words = "recording missing"
    rows += [
        (rank, None, None, None, None, None, None, "absent", words, *nothing) for rank in absent
    ]
    return sorted(rows)


def _lacks(matched: MatchedCollectives, index: int) -> list[str]:
    one = matched.partials[index]
    lacks = list(one.facts.notes)
    others = any(len(other.communication["start"]) for other in matched.partials)
    if others and not len(one.communication["start"]):
        lacks.append("no communication recorded")
    if not len(one.kernels["n"]):
        lacks.append("no kernels recorded")
    return lacks


def group_rows(matched: MatchedCollectives) -> list[Row]:
    """Return GROUP: the groups that communicate, by their ranks."""
    number = {rank: index for index, rank in enumerate(matched.ranks)}
    rows: list[Row] = []
    for index, group in enumerate(matched.groups):
        hosts = {
            matched.facts[number[rank]].host if rank in number else None for rank in group.ranks
        }
        names = sorted(group.titles | group.names)
        rows.append(
            (
                index,
                group.kind,
                json.dumps(names),
                json.dumps(list(group.ranks)),
                group.size if group.size > 0 else len(group.ranks),
                None if None in hosts else len(hosts),
            )
        )
    return rows


def step_rows(
    matched: MatchedCollectives,
    waited: Waits,
    proof: RankSignals,
    whole: waits.StreamedSums | None,
) -> list[Row]:
    """Return STEP_RANK: where the time of each step of each rank went."""
    knows_setup = bool((waited.setup >= 0).any())
    sums = _waits_by_step(matched, waited) if whole is None else whole.waits
    late = {
        (step, index): max(0, int(value))
        for at, step in enumerate(proof.steps)
        for index, value in enumerate(proof.input_at[:, at].tolist())
        if value == value
    }
    result: list[Row] = []
    for index, one in enumerate(matched.partials):
        table = one.steps
        for step, start, end, compute, talk, exposed, idle, waiting in zip(
            *(table[name].tolist() for name in table), strict=True
        ):
            known_waits = sums.get((step, index))
            known = waiting if waiting != NO_VALUE else late.get((step, index))
            result.append(
                (
                    step,
                    one.facts.rank,
                    start,
                    end,
                    compute,
                    talk,
                    exposed,
                    known_waits[0] if known_waits else None,
                    known_waits[1] if known_waits else None,
                    known_waits[2] if known_waits and knows_setup else None,
                    known_waits[3] if known_waits else None,
                    known,
                    idle,
                )
            )
    return sorted(result)


def _waits_by_step(
    matched: MatchedCollectives, waited: Waits
) -> Mapping[tuple[int, int], tuple[int, int, int, int]]:
    """Return (step, number of the rank) -> wait, exposed wait, set-up, bubble."""
    rows, events = matched.rows, matched.events
    chosen = np.flatnonzero((rows.event >= 0) & (waited.wait >= 0) & (rows.step >= 0))
    if not len(chosen):
        return {}
    event = rows.event[chosen]
    steps, place = distinct(rows.step[chosen])
    cell = rows.rank[chosen] * len(steps) + place
    exposed = waited.exposed[chosen]
    count = np.bincount(cell, minlength=len(matched.ranks) * len(steps))
    there = np.flatnonzero(count)
    sums: list[list[int]] = []
    for values in (
        waited.wait[chosen],
        exposed,
        np.maximum(waited.setup[event], 0),
        np.where(events.src[event] >= 0, exposed, 0),
    ):
        total = np.zeros(len(count), np.int64)
        np.add.at(total, cell, values)
        sums.append(total[there].tolist())
    keys = zip(steps[there % len(steps)].tolist(), (there // len(steps)).tolist(), strict=True)
    return dict(zip(keys, zip(*sums, strict=True), strict=True))


def collective_rows(
    matched: MatchedCollectives, waited: Waits, whole: waits.StreamedSums | None
) -> list[Row]:
    """Return COLLECTIVE: those that are alike, by group, kind, step and size."""
    if whole is not None:
        return [_collective(matched, number, *row) for number, row in enumerate(whole.collectives)]
    events, rows = matched.events, matched.rows
    chosen = np.flatnonzero(~matched.transfers)
    if not len(chosen):
        return []
    total_wait = np.zeros(len(events), np.int64)
    known = np.flatnonzero((rows.event >= 0) & (waited.wait > 0))
    np.add.at(total_wait, rows.event[known], waited.wait[known])
    keys = [events.group[chosen], events.kind[chosen], events.step[chosen], events.bytes[chosen]]
    order = chosen[np.lexsort((waited.transfer[chosen], *keys[::-1]))]
    keys = [events.group[order], events.kind[order], events.step[order], events.bytes[order]]
    new = np.ones(len(order), bool)
    new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    heads = np.flatnonzero(new)
    counts = np.diff(np.r_[heads, len(order)])
    result: list[Row] = []
    for number, (head, count) in enumerate(zip(heads.tolist(), counts.tolist(), strict=True)):
        mine = order[head : head + count]
        usable = mine[events.members[mine] > 1]
        took = waited.transfer[usable]
        group, kind, step, size = (int(key[head]) for key in keys)
        row = (group, kind, step, size, count, int(events.complete[mine].sum()))
        sums = (
            int(took.sum()),
            int(total_wait[usable].sum()),
            int(np.maximum(waited.setup[usable], 0).sum()),
        )
        middle = int(took[-(-len(took) // 2) - 1]) if len(took) else None
        slow = int(took[-(-len(took) * 99 // 100) - 1]) if len(took) else None
        result.append(_collective(matched, number, *row, *sums, middle, slow))
    return result


def _collective(
    matched: MatchedCollectives,
    number: int,
    group: int,
    kind: int,
    step: int,
    size: int,
    n: int,
    complete: int,
    transfer: int,
    wait: int,
    setup: int,
    middle: int | None,
    slow: int | None,
) -> Row:
    factor = bus_factor(matched.kinds[kind], matched.groups[group].size)
    return (
        number,
        group,
        matched.kinds[kind],
        None if step == NO_VALUE else step,
        None if size == NO_VALUE else size,
        n,
        complete,
        transfer,
        wait,
        setup,
        middle,
        slow,
        factor * size / middle if factor and size > 0 and middle else None,
    )


def blame_rows(
    matched: MatchedCollectives,
    waited: Waits,
    proof: RankSignals,
    told: Sequence[Finding],
    whole_run: waits.StreamedSums | None,
) -> list[Row]:
    """Return BLAME: what each rank costs the others, and the evidence for its causes."""
    rows, events = matched.rows, matched.events
    caused = np.zeros(len(matched.ranks), np.int64)
    times = np.zeros(len(matched.ranks), np.int64)
    whole = np.flatnonzero(events.complete & (events.members > 1))
    if len(whole):
        total = np.zeros(len(events), np.int64)
        known = np.flatnonzero((rows.event >= 0) & (waited.wait > 0))
        np.add.at(total, rows.event[known], waited.wait[known])
        culprit = rows.rank[waited.last[whole]]
        np.add.at(caused, culprit, total[whole])
        np.add.at(times, culprit, 1)
    if whole_run is not None:
        caused[:], times[:] = 0, 0
        for index, (wait, count) in whole_run.caused.items():
            caused[index], times[index] = wait, count
    cause: dict[int, Finding] = {}
    for one in told:
        if not one.links:
            for rank in one.ranks:
                cause.setdefault(rank, one)
    late = np.nansum(np.maximum(proof.input_at - proof.peers_input_at, 0), axis=1)
    some: list[bool] = np.asarray(np.isfinite(proof.input_at).any(axis=1)).tolist()
    result: list[Row] = []
    for index, rank in enumerate(matched.ranks):
        reason = cause.get(rank)
        gap = proof.peers_gap[index] * proof.launches[index]
        result.append(
            (
                rank,
                int(caused[index]),
                int(times[index]),
                int(proof.work[index]),
                _whole(proof.peers_work[index]),
                _real(proof.work[index] / proof.peers_work[index]),
                int(np.nansum(proof.idle_at[index])),
                _whole(gap),
                int(late[index]) if some[index] else None,
                reason.cost_ms_per_step * 1e6 if reason and len(reason.ranks) == 1 else None,
                reason.kind if reason else None,
            )
        )
    return result


def _whole(value: float) -> int | None:
    return None if value != value else round(float(value))


def _real(value: float) -> float | None:
    return None if value != value else float(value)


def link_rows(matched: MatchedCollectives, waited: Waits) -> list[Row]:
    """Return LINK: what moved from rank to rank."""
    return [
        (
            matched.ranks[one.src],
            matched.ranks[one.dst],
            one.kind,
            None if one.across is None else int(one.across),
            one.n,
            one.bytes,
            one.transfer_ns,
            one.wait_ns,
            one.p50,
            one.p99,
            one.like,
        )
        for one in moved.measure_links(matched, waited)
    ]


def operation_rows(matched: MatchedCollectives, steps: Sequence[int]) -> list[Row]:
    """Return OPERATION_RANK: kernels by rank and name, those that take longest."""
    result: list[Row] = []
    for one in matched.partials:
        table = one.kernels
        inside = np.flatnonzero(np.isin(table["step"], steps))
        cells: dict[tuple[str, str], list[int]] = {}
        for name, module, n, total, low, high in zip(
            *(table[c][inside].tolist() for c in ("name", "module", "n", "total", "min", "max")),
            strict=True,
        ):
            _add(cells, (one.names[name], one.modules[module]), n, total, low, high)
        cells = _longest(cells)
        shown = sorted(cells, key=lambda key: (key[0] == _OTHERS, -cells[key][1], key))
        result += [(one.facts.rank, *key, *cells[key]) for key in shown]
    return result


def _longest(cells: dict[tuple[str, str], list[int]]) -> dict[tuple[str, str], list[int]]:
    """Keep the kinds of kernel that take longest, and of these the modules that do.

    What other modules have of a kind is one row without a module; other kinds are one row.
    """
    if len(cells) <= _MOST_OPERATIONS:
        return cells
    of_name: dict[str, int] = {}
    for (name, _), (_, total, _, _) in cells.items():
        of_name[name] = of_name.get(name, 0) + total
    names = sorted(of_name, key=lambda name: (-of_name[name], name))
    named = set(names[:_MOST_OPERATIONS])
    with_module = sorted(
        (key for key in cells if key[1] and key[0] in named), key=lambda key: (-cells[key][1], key)
    )
    kept = set(with_module[:_MOST_WITH_MODULE])
    result: dict[tuple[str, str], list[int]] = {}
    for key, cell in cells.items():
        place = key if key in kept else (key[0] if key[0] in named else _OTHERS, "")
        _add(result, place, *cell)
    return result


def _add(
    cells: dict[tuple[str, str], list[int]],
    key: tuple[str, str],
    n: int,
    total: int,
    low: int,
    high: int,
) -> None:
    cell = cells.setdefault(key, [0, 0, low, high])
    cell[0] += n
    cell[1] += total
    cell[2] = min(cell[2], low)
    cell[3] = max(cell[3], high)


def finding_rows(told: Sequence[Finding]) -> list[Row]:
    """Return FINDING, the costliest first."""
    return [
        (
            place,
            one.kind,
            json.dumps(one.ranks),
            json.dumps(one.hosts),
            json.dumps(one.links),
            json.dumps(one.steps),
            one.cost_ms_per_step,
            json.dumps(one.figures),
            one.text,
        )
        for place, one in enumerate(told, start=1)
    ]
