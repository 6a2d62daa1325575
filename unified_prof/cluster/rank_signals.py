"""Per-rank signals for the cluster rules: kernel times, gaps, input waits, roles of ranks.

Each figure is compared with the median of the other ranks with the same role. The spread between
the ranks of the run determines which differences are significant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from unified_prof.arrays.grouping import NO_VALUE, Floats, Ints
from unified_prof.cluster.matching import ClusterGroup, MatchedCollectives

PARALLEL_KINDS = ("tp", "dp", "pp", "ep", "cp")

# Converts a median absolute deviation to the standard deviation of a normal distribution.
_MAD_TO_DEVIATION = 1.4826
# Minimum number of ranks to weight kernel kinds by their spread between ranks.
_MIN_RANKS_FOR_WEIGHTS = 6
# Minimum number of hosts to measure the spread between hosts instead of within them.
_MIN_HOSTS_FOR_SPREAD = 4
# Two groups of values are distinct if the gap between them is this many times their spread ...
_CLUSTER_GAP = 6.0
_MIN_CLUSTER_GAP = 0.03  # ... and at least this large (logarithm of a ratio).


def median_of_others(values: Floats) -> Floats:
    """Return for each value the median of all others; NaN if there is only one value."""
    count = len(values)
    if count < 2:
        return np.full(count, np.nan)
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    low, high = (count - 2) // 2, (count - 1) // 2  # middle of the count - 1 other values
    return np.asarray(
        (ascending[low + (place <= low)] + ascending[high + (place <= high)]) / 2, np.float64
    )


def robust_deviation(values: Floats) -> float:
    """Return the robust standard deviation around 0 of the finite values."""
    known = values[np.isfinite(values)]
    return _MAD_TO_DEVIATION * float(np.median(np.abs(known))) if len(known) else 0.0


def chance_limit(count: int) -> float:
    """Return the limit, in standard deviations, that `count` normal values rarely exceed.

    The largest value is at about sqrt(2 ln count). The limit is higher for few values, because the
    deviation is estimated from them.
    """
    return math.sqrt(2 * math.log(max(count, 2))) + 2.5 + 8 / max(count, 1)


def upper_cluster(values: Floats, *, majority: bool = False) -> Floats | None:
    """Split values into two clusters; return how far each upper value is above the lower cluster.

    The result is 0 for values of the lower cluster. It is None if the values form one cluster, if a
    cluster has fewer than two values or, unless `majority` is True, if more than half of the values
    are in the upper cluster.
    """
    ascending = np.sort(values)
    if len(ascending) < 4 or not np.isfinite(ascending).all():
        return None
    split = int(np.argmax(np.diff(ascending))) + 1
    low, high = ascending[:split], ascending[split:]
    if min(len(high), len(low)) < 2 or (len(high) > len(low) and not majority):
        return None
    spread = max(robust_deviation(part - np.median(part)) for part in (low, high))
    gap = float(high[0] - low[-1])
    if gap < max(_MIN_CLUSTER_GAP, _CLUSTER_GAP * spread):
        return None
    return np.where(values >= high[0], values - float(np.median(low)), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class RankRoles:
    """Position of each rank in the parallel layout; indexed like `MatchedCollectives.ranks`."""

    # Parallelism -> position of each rank in its group; None if unknown.
    place: dict[str, list[int | None]]
    peers: Ints  # Role number of each rank; ranks with equal numbers have the same role.
    # True if roles are pipeline stages, False if they were inferred from the kernels.
    by_stage: bool


def infer_roles(matched: MatchedCollectives, steps: list[int]) -> RankRoles:
    """Return the roles of all ranks, from recorded group names or else from operations."""
    _infer_group_kinds(matched)
    place = {kind: _group_positions(matched, kind) for kind in PARALLEL_KINDS}
    if any(group.kind == "pp" for group in matched.groups):
        stages = [NO_VALUE if stage is None else stage for stage in place["pp"]]
        return RankRoles(place, np.array(stages, np.int64), by_stage=True)
    return RankRoles(place, _peers_by_kernels(matched, steps), by_stage=False)


def _infer_group_kinds(matched: MatchedCollectives) -> None:
    """Infer the kind of groups without a descriptive name from their members and operations."""
    recorded = [facts.world_size for facts in matched.facts if facts.world_size]
    world = max(recorded, default=0) or (max(matched.ranks, default=-1) + 1)
    with_transfers = set(matched.events.group[matched.transfers].tolist())
    with_collectives = set(matched.events.group[~matched.transfers].tolist())
    unnamed: list[ClusterGroup] = []
    for number, group in enumerate(matched.groups):
        if group.kind != "other" or group.titles:
            continue
        if number in with_transfers and number not in with_collectives:
            group.kind = "pp"
        elif group.is_recorded and len(group.ranks) == world:
            group.kind = "world"
        elif group.is_recorded:
            unnamed.append(group)
    strides = {_stride(group.ranks) for group in unnamed}
    if len(strides) == 2 and min(strides) == 1:
        # In Megatron's rank order, which others use too, adjacent ranks are tensor parallel.
        for group in unnamed:
            group.kind = "tp" if _stride(group.ranks) == 1 else "dp"


def _stride(ranks: tuple[int, ...]) -> int:
    steps = {b - a for a, b in pairwise(sorted(ranks))}
    return steps.pop() if len(steps) == 1 else 0


def _group_positions(matched: MatchedCollectives, kind: str) -> list[int | None]:
    """Return each rank's position in its group of a kind; 0 if the run has no such groups."""
    groups = [group for group in matched.groups if group.kind == kind and group.is_recorded]
    position: dict[int, int] = {}
    members = sorted((group.ranks for group in groups), key=len)
    for ranks in pipelines(members) if kind == "pp" else members:
        for at, rank in enumerate(sorted(ranks)):
            position.setdefault(rank, at)
    named = any(group.kind in PARALLEL_KINDS for group in matched.groups)
    result: list[int | None] = []
    for rank, facts in zip(matched.ranks, matched.facts, strict=True):
        undivided = facts.shape.get(kind) == 1 or (named and not groups)
        result.append(position.get(rank, 0 if undivided else None))
    return result


def pipelines(groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return groups, the smallest first; pairs that share a rank are stages of one pipeline."""
    pipeline: dict[int, set[int]] = {}
    for ranks in groups:
        if len(ranks) == 2:
            joined = set(ranks).union(*(pipeline.get(rank, ()) for rank in ranks))
            pipeline |= dict.fromkeys(joined, joined)
    distinct = {id(ranks): tuple(sorted(ranks)) for ranks in pipeline.values()}
    return [*distinct.values(), *(ranks for ranks in groups if len(ranks) != 2)]


def _peers_by_kernels(matched: MatchedCollectives, steps: list[int]) -> Ints:
    """Number the roles of ranks: ranks that run the same kernels equally often have one role."""
    signatures: dict[tuple[tuple[str, int], ...], int] = {}
    result = np.empty(len(matched.ranks), np.int64)
    for index, partial in enumerate(matched.partials):
        counts: dict[str, int] = {}
        table = partial.kernels
        inside = np.isin(table["step"], steps)
        for name, n in zip(
            table["name"][inside].tolist(), table["n"][inside].tolist(), strict=True
        ):
            counts[partial.names[name]] = counts.get(partial.names[name], 0) + n
        key = tuple(sorted(counts.items()))
        result[index] = signatures.setdefault(key, len(signatures))
    # If there are nearly as many signatures as ranks, kernel counts depend on the data.
    if len(signatures) > max(2, len(matched.ranks) // 2):
        result[:] = 0
    return result


@dataclass(frozen=True, slots=True, eq=False)
class KernelRatios:
    """Kernel times compared with those of peers; arrays are ranks x kinds of kernel."""

    names: tuple[str, ...]
    # Logarithm of the ratio of the mean time per call to the peers' median; NaN without peers.
    ratio: Floats
    peers_mean: Floats  # Median of the peers' mean time per call, ns.
    count: Floats
    total: Floats  # ns
    shortest: Floats  # Shortest call, ns.
    slowness: Floats  # Weighted mean of `ratio` per rank.
    error: Floats  # Standard error of `slowness`.
    # Weighted mean logarithm of the ratio of times to the median of the role, rank included.
    offset: Floats
    # Share of a rank's kernel time in kinds that are slower than those of its peers.
    slower_share: Floats


@dataclass(frozen=True, slots=True, eq=False)
class RankSignals:
    """Signals of each rank over the compared steps; NaN means unknown.

    Arrays whose names end in `_at` are ranks x `steps`; all others have one value per rank.
    """

    steps: tuple[int, ...]
    kernels: KernelRatios
    work_at: Floats  # Sum of kernel times, ns.
    work: Floats
    peers_work: Floats
    slowness_at: Floats  # Logarithm of the ratio of `work_at` to the median of the peers.
    launches: Ints  # Number of kernels.
    gap: Floats  # Mean time between consecutive kernels without communication between them, ns.
    # Median gap of peers on other hosts, or of all ranks on other hosts if there are few peers.
    peers_gap: Floats
    # Median time between consecutive kernels, ns; a single long pause does not change it.
    median_gap: Floats
    peers_median_gap: Floats
    gap_spread: float  # Usual deviation of gaps between comparable ranks.
    input_at: Floats  # Idle time while the host waits for input, ns.
    peers_input_at: Floats
    idle_at: Floats  # Idle time without input waits, ns.
    peers_idle_at: Floats
    length_at: Floats  # Length of the step, ns.


def collect_signals(
    matched: MatchedCollectives, roles: RankRoles, steps: Sequence[int]
) -> RankSignals:
    """Return the signals of all ranks over `steps`."""
    shape = (len(matched.ranks), len(steps))
    column = {step: at for at, step in enumerate(steps)}
    work_at = np.zeros(shape)
    idle_at, input_at, length_at = (np.full(shape, np.nan) for _ in range(3))
    for index, partial in enumerate(matched.partials):
        table = partial.kernels
        inside = np.isin(table["step"], steps) & (table["name"] >= 0)
        at = np.array([column[step] for step in table["step"][inside].tolist()], np.int64)
        np.add.at(work_at[index], at, table["total"][inside])
        for step, start, end, idle, late in zip(
            *(partial.steps[name].tolist() for name in ("step", "start", "end", "idle", "input")),
            strict=True,
        ):
            if step in column:
                idle_at[index, column[step]] = idle - max(late, 0)
                input_at[index, column[step]] = max(late, 0)
                length_at[index, column[step]] = end - start
        if not partial.facts.loader_recorded:
            input_at[index] = np.nan
    work = work_at.sum(axis=1)
    gap, median_gap = (
        np.array([partial.mark_figures()[2:] for partial in matched.partials], np.float64)
        .reshape(-1, 2)
        .T
    )
    hosts = [facts.host for facts in matched.facts]
    kernels = kernel_ratios(matched, roles.peers, steps)
    everyone = np.zeros(len(matched.ranks), np.int64)
    launches = kernels.count.sum(axis=1).astype(np.int64)
    peers_idle_at = _by_column(idle_at, roles.peers)
    if not roles.by_stage:  # a rank that also logs or validates is the only one with its role
        # A rank with more kernels is idle between them more often.
        more = np.maximum(launches / max(float(np.median(launches)), 1.0), 1.0)
        of_all = _by_column(idle_at, everyone) * more[:, np.newaxis]
        peers_idle_at = np.where(np.isnan(peers_idle_at), of_all, peers_idle_at)
    with np.errstate(divide="ignore", invalid="ignore"):
        slowness_at = np.log(work_at / _by_column(work_at, roles.peers))
    return RankSignals(
        steps=tuple(steps),
        kernels=kernels,
        work_at=work_at,
        work=work,
        peers_work=peers_median(work, roles.peers),
        slowness_at=slowness_at,
        launches=launches,
        gap=gap,
        peers_gap=median_elsewhere(gap, roles.peers, hosts),
        median_gap=median_gap,
        peers_median_gap=median_elsewhere(median_gap, roles.peers, hosts),
        gap_spread=spread_of_alike(gap, roles.peers, hosts),
        input_at=input_at,
        peers_input_at=_by_column(input_at, everyone),
        idle_at=idle_at,
        peers_idle_at=peers_idle_at,
        length_at=length_at,
    )


def kernel_ratios(
    matched: MatchedCollectives,
    peers: Ints,
    steps: Sequence[int],
    members: Sequence[int] | None = None,
) -> KernelRatios:
    """Compare the kernels of ranks with those of their peers in some steps.

    `peers` is the role of each rank in `members` (indices of ranks to compare; None: all ranks).
    """
    names: dict[str, int] = {}
    cells: list[tuple[int, int, int, int, int]] = []  # rank, name, n, total, shortest
    chosen = range(len(matched.partials)) if members is None else members
    for place, index in enumerate(chosen):
        partial = matched.partials[index]
        table = partial.kernels
        inside = np.flatnonzero(np.isin(table["step"], list(steps)) & (table["name"] >= 0))
        code = np.array([names.setdefault(name, len(names)) for name in partial.names], np.int64)
        rows = zip(
            code[table["name"][inside]].tolist() if len(code) else (),
            *(table[column][inside].tolist() for column in ("n", "total", "min")),
            strict=True,
        )
        cells += [(place, *row) for row in rows]
    shape = (len(chosen), len(names))
    count, total, shortest = np.zeros(shape), np.zeros(shape), np.full(shape, np.inf)
    if cells:
        rank, name, n, time, low = np.array(cells, np.int64).T
        np.add.at(count, (rank, name), n)
        np.add.at(total, (rank, name), time)
        np.minimum.at(shortest, (rank, name), low)
    groups = [np.flatnonzero(peers == role) for role in np.unique(peers)]
    # The rank of a single-rank stage has no peers: compare the kernel kinds of all stages.
    if any(len(group) < 2 for group in groups):
        groups = [np.arange(len(chosen))]
    ratio, from_median, peers_mean = (np.full(shape, np.nan) for _ in range(3))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / count
        for group in groups:
            for at in range(len(names)):
                known = group[np.isfinite(mean[group, at]) & (mean[group, at] > 0)]
                if len(known) > 1:
                    values = np.log(mean[known, at])
                    others = median_of_others(values)
                    peers_mean[known, at] = np.exp(others)
                    ratio[known, at] = values - others
                    from_median[known, at] = values - np.median(values)
        known = np.isfinite(ratio)
        weight = np.where(known, _kind_weights(ratio, count), 0.0)
        weights = weight.sum(axis=1)
        slowness = np.nansum(weight * ratio, axis=1) / weights
        away = np.nansum(weight * (ratio - slowness[:, None]) ** 2, axis=1)
        error = np.sqrt(away / weights / np.maximum(known.sum(axis=1), 1))
        offset = np.nansum(weight * from_median, axis=1) / weights
        slower = (total * (known & (ratio > slowness[:, None] / 2))).sum(axis=1)
        slower_share = slower / np.where(known, total, 0.0).sum(axis=1)
    slowness[weights == 0] = np.nan
    return KernelRatios(
        names=tuple(names),
        ratio=ratio,
        peers_mean=peers_mean,
        count=count,
        total=total,
        shortest=shortest,
        slowness=slowness,
        error=error,
        offset=offset,
        slower_share=slower_share,
    )


def slowness_in_steps(
    matched: MatchedCollectives, peers: Ints, rank: int, steps: Sequence[int]
) -> tuple[float, float, float]:
    """Return the slowness of one rank (by index) in `steps`, its error, and the slower share."""
    members = np.flatnonzero(peers == peers[rank])
    if len(members) < 2:
        members = np.arange(len(peers))
    role = np.zeros(len(members), np.int64)
    result = kernel_ratios(matched, role, steps, members.tolist())
    at = int(np.flatnonzero(members == rank)[0])
    return float(result.slowness[at]), float(result.error[at]), float(result.slower_share[at])


def _kind_weights(ratio: Floats, count: Floats) -> Floats:
    """Weight kernel kinds by their spread between ranks, or by calls if there are few ranks."""
    if ratio.shape[0] < _MIN_RANKS_FOR_WEIGHTS:
        return count
    spread = np.array([_spread(ratio[:, at]) for at in range(ratio.shape[1])])
    known = np.isfinite(ratio).sum(axis=0) >= _MIN_RANKS_FOR_WEIGHTS
    usual = float(np.median(spread[known & (spread > 0)])) if (known & (spread > 0)).any() else 1.0
    spread = np.where(known, np.maximum(spread, usual / 4), usual)
    return np.broadcast_to(1 / spread**2, ratio.shape)


def _spread(values: Floats) -> float:
    """Return the robust deviation; if half of the ranks are slower, that within each half."""
    values = values[np.isfinite(values)]
    above = upper_cluster(values)
    halves = [values] if above is None else [values[above == 0], values[above > 0]]
    if above is not None:
        halves = [half - np.median(half) for half in halves]
    return max(map(robust_deviation, halves))


def peers_median(values: Floats, peers: Ints) -> Floats:
    """Return the median of each rank's peers among the finite values; NaN without peers."""
    result = np.full(len(values), np.nan)
    for role in np.unique(peers):
        members = np.flatnonzero((peers == role) & np.isfinite(values))
        result[members] = median_of_others(values[members])
    return result


def _by_column(values: Floats, peers: Ints) -> Floats:
    """Apply `peers_median` to each column."""
    result = np.full(values.shape, np.nan)
    for at in range(values.shape[1]):
        result[:, at] = peers_median(values[:, at], peers)
    return result


def median_elsewhere(values: Floats, peers: Ints, hosts: Sequence[str | None]) -> Floats:
    """Return the median of each rank's peers on other hosts; of all peers if there is one host.

    The fault may affect a whole host, and the host may run a whole stage. If all peers are on one
    other host, which may be the faulty one, all ranks on other hosts are used.
    """
    names = sorted({host for host in hosts if host is not None})
    if len(names) < 2:
        return peers_median(values, peers)
    number = np.array([names.index(host) if host is not None else NO_VALUE for host in hosts])
    result = np.full(len(values), np.nan)
    for host in np.unique(number).tolist():
        elsewhere = number != host
        of_all = float(np.median(values[elsewhere]))
        for role in np.unique(peers[number == host]).tolist():
            alike = elsewhere & (peers == role)
            enough = len(np.unique(number[alike])) > 1
            result[(number == host) & (peers == role)] = (
                float(np.median(values[alike])) if enough else of_all
            )
    return result


def spread_of_alike(values: Floats, peers: Ints, hosts: Sequence[str | None]) -> float:
    """Return the robust deviation of values between comparable ranks.

    With few hosts, only ranks of the same host and role are compared: otherwise a fault of a host
    with half of all ranks would count as spread.
    """
    if len(set(hosts)) >= _MIN_HOSTS_FOR_SPREAD:
        return robust_deviation(values - median_elsewhere(values, peers, hosts))
    away = np.full(len(values), np.nan)
    for host in set(hosts):
        here = np.array([one == host for one in hosts])
        for role in np.unique(peers[here]).tolist():
            members = here & (peers == role)
            away[members] = values[members] - np.median(values[members])
    return robust_deviation(away)
