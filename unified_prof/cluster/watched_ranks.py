"""Watched ranks as partials: passes of steps take the place of kernels.

Watch files have no collectives. Steps of synchronous training are equally long on all ranks: a rank
that needs longer for its own work waits less for others. Data loading, other Python code, forward
pass and optimizer are its own work. The rest of the step, backward pass and waits, is treated as a
collective, which all ranks leave together. A slower backward pass looks like waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

import numpy as np

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Floats, Ints
from unified_prof.cluster import rank_communication as columns_of
from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster.rank_partial import NO_VALUE, Partial, RankFacts, RankGroup
from unified_prof.errors import StoreError
from unified_prof.sqlite.watch_file import RankSteps

_WARMUP_STEPS = 5  # Steps at the start that are left out: they compile and allocate.
# Steps are compared as medians of blocks: minimum number of steps in a block, and of blocks.
_MIN_BLOCK_STEPS, _MAX_BLOCKS = 8, 64
_MAX_BEHIND_NS = 2e9  # If the file of a rank ends earlier by more steps, the rank has a note.
# A part contains waits if its differences between ranks cancel most of the ones before it, which
# are at least this share of the step.
_MIN_DIFFERENCE = 0.01


def partials_of_ranks(ranks: Mapping[int, RankSteps]) -> tuple[list[Partial], dict[int, str]]:
    """Return the partials of the ranks of the latest run, and why other ranks have none.

    Raises:
        StoreError: The ranks have too few steps in common.
    """
    unread = dict(_not_comparable(ranks))
    chosen = [ranks[rank] for rank in sorted(set(ranks) - set(unread))]
    if not chosen:
        return [], unread
    steps = reduce(np.intersect1d, [one.columns["step"] for one in chosen])
    rows = [np.searchsorted(one.columns["step"], steps) for one in chosen]
    parts = np.stack([_parts(one)[at] for one, at in zip(chosen, rows, strict=True)])
    usable = (steps >= _WARMUP_STEPS) & np.isfinite(parts).all(axis=(0, 2))
    for one, at in zip(chosen, rows, strict=True):
        usable &= np.isnan(one.values("event")[at])  # a capture slows all ranks
    if (count := int(usable.sum())) < _MIN_BLOCK_STEPS:
        raise StoreError(
            f"the ranks have {count} steps in common, without the first {_WARMUP_STEPS} and those "
            f"of captures; expected {_MIN_BLOCK_STEPS}",
            slug="no-rank-readable",
        )
    blocks = np.array_split(np.flatnonzero(usable), min(count // _MIN_BLOCK_STEPS, _MAX_BLOCKS))
    medians = np.stack([np.median(parts[:, block], axis=1) for block in blocks], 1)
    data, other, forward, optimizer, length = np.moveaxis(medians, 2, 0)
    if _contains_waits(other, data + forward, length):
        other[:] = 0
    if _contains_waits(forward, data + other, length):
        forward[:] = 0
    work = data + other + forward + optimizer
    edges = np.r_[0, np.cumsum(np.maximum(np.median(length, axis=0), work.max(axis=0) + 1_000))]
    numbers = np.array([steps[block[0]] for block in blocks], np.int64)
    begins: dict[str | None, list[int]] = {}
    for one, at in zip(chosen, rows, strict=True):  # ranks of a host have one clock
        begins.setdefault(one.facts.get("host"), []).append(int(one.columns["start_ns"][at[0]]))
    found = []
    for index, one in enumerate(chosen):
        begin = int(np.median(begins[one.facts.get("host")]))
        notes = tuple(_notes(one, chosen, float(np.median(length))))
        times = (begin + edges).astype(np.int64)
        found.append(_partial(one, notes, numbers, times, medians[index].astype(np.int64)))
    return found, unread


def _not_comparable(ranks: Mapping[int, RankSteps]) -> Iterator[tuple[int, str]]:
    """Yield ranks without usable steps or from an earlier run, with the reason."""
    known = {rank: one for rank, one in ranks.items() if len(one)}
    most = max(map(len, known.values()), default=0)
    begins = {rank: int(one.columns["start_ns"][0]) for rank, one in known.items()}
    latest = max(begins, key=lambda rank: begins[rank], default=NO_VALUE)
    for rank, one in ranks.items():
        if rank not in known:
            yield rank, "no complete step"
        elif (early_ns := begins[latest] - int(one.columns["start_ns"][-1])) > 0:
            yield (
                rank,
                (
                    f"its last step began {early_ns / 1e9:,.1f} s before the first one of rank "
                    f"{latest}: it is from an earlier run, or a clock is wrong"
                ),
            )
        elif 2 * len(one) < most:
            yield rank, f"only {len(one):,} steps, others have up to {most:,}"
        elif not np.isfinite(_parts(one)).all(axis=1).any():
            yield rank, "the times of its passes are unknown"


def _notes(one: RankSteps, ranks: list[RankSteps], length_ns: float) -> Iterator[str]:
    last = int(one.columns["step"][-1])
    if missing := last + 1 - len(one):
        yield f"{missing:,} of its first {last + 1:,} steps are missing"
    longest = max(int(other.columns["step"][-1]) for other in ranks)
    if (longest - last) * length_ns > _MAX_BEHIND_NS:
        yield f"its file ends with step {last:,}, others with step {longest:,}"


def _parts(one: RankSteps) -> Floats:
    """Return data loading, other code, forward pass, optimizer and length of each step, ns.

    On a device, data loading counts as far as the device is not in a pass at the same time.
    """
    names = ("length_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns")
    length, data, forward, backward, optimizer = (one.values(name) for name in names)
    left = np.maximum(length - forward - backward - optimizer, 0)
    data = np.minimum(data, left)
    return np.stack([data, left - data, forward, optimizer, length], 1)


def _contains_waits(part: Floats, before: Floats, length: Floats) -> bool:
    """Return True if a part (ranks x blocks) is shorter on ranks whose other work is longer."""
    away, part = before - np.median(before, axis=0), part - np.median(part, axis=0)
    is_known = away.std() > _MIN_DIFFERENCE * np.median(length)
    return bool(is_known and (away + part).std() < away.std() / 2)


def _partial(
    one: RankSteps, notes: tuple[str, ...], numbers: Ints, edges: Ints, parts: Ints
) -> Partial:
    """Lay out each step: data loading, other code, forward pass, backward and waits, optimizer."""
    data, other, forward, optimizer, _ = parts.T
    steps = {"step": numbers, "start": edges[:-1], "end": edges[1:]}
    input_end = edges[:-1] + data
    start = np.stack([input_end + other, edges[1:] - optimizer], 1)
    end = start + np.stack([forward, optimizer], 1)
    is_pass = end > start
    step = np.stack([numbers, numbers], 1)[is_pass]
    name = (np.zeros_like(start) + np.arange(2))[is_pass]
    kernels = columns_of.CoveredTime(intervals.merge(start[is_pass], end[is_pass]), start[is_pass])
    operations = dict.fromkeys(partials.COMMUNICATION_COLUMNS, np.full(len(numbers), NO_VALUE))
    operations |= dict.fromkeys(("group", "kind", "covered"), np.zeros(len(numbers), np.int64))
    operations |= {"seq": np.arange(len(numbers)), "step": numbers}
    operations |= {"start": end[:, 0], "end": start[:, 1]}
    busy = intervals.union(kernels.set, intervals.merge(operations["start"], operations["end"]))
    loader = intervals.merge(edges[:-1], input_end)
    size = int(one.facts.get("world_size", 0)) or None
    return Partial(
        facts=RankFacts(
            *(one.rank, size, one.facts.get("host")),
            steps_recorded=True,
            loader_recorded=True,
            watched=True,
            notes=notes,
        ),
        groups=(RankGroup("world", "world", "", tuple(range(size or one.rank + 1))),),
        kinds=("backward pass and waits",),
        names=("forward passes", "optimizer steps"),
        modules=("",),
        communication=operations,
        marks=columns_of.cut_at_marks(operations, steps, kernels),
        steps=columns_of.step_time_parts(steps, kernels.set, operations, busy, loader),
        kernels=columns_of.work_by_name(step, name, 0 * name, (end - start)[is_pass]),
        links=partials.empty_columns("links"),
    )
