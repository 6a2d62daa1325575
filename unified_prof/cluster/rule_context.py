"""What is unlike its likes: medians of the others, and how far values usually lie apart.

Which part each rank has in the run: its place in tensor, data, pipeline ... parallelism.

Evidence for causes that needs no other rank's waiting: kernels, gaps, input, by peers.

Every figure of a rank is compared with the median of the other ranks that do the same work, and
what counts as unlike is judged by how far ranks usually lie apart in this very run.

All there is to judge of a run, and what findings about it have in common: words, costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from unified_prof.arrays.types import Floats, Ints
from unified_prof.cluster.matching import ClusterGroup, MatchedCollectives
from unified_prof.cluster.rank_partial import NO_VALUE, Partial
from unified_prof.cluster.replay import Replay, ReplayChange
from unified_prof.cluster.waits import Waits
from unified_prof.recording.model import Finding

_TO_DEVIATION = 1.4826


def median_of_others(values: Floats) -> Floats:
    """Return for each value the median of all others; NaN where there is no other."""
    count = len(values)
    if count < 2:
        return np.full(count, np.nan)
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    low, high = (count - 2) // 2, (count - 1) // 2  # the middle of count - 1 values
    return np.asarray(
        (ascending[low + (place <= low)] + ascending[high + (place <= high)]) / 2, np.float64
    )


def robust_deviation(values: Floats) -> float:
    """Return the robust standard deviation around 0 of values that should be 0."""
    known = values[np.isfinite(values)]
    return _TO_DEVIATION * float(np.median(np.abs(known))) if len(known) else 0.0


def chance_limit(count: int) -> float:
    """Return how many deviations nothing but chance keeps among so many values.

    The most of `count` normal values lies at about sqrt(2 ln count); the deviation itself is an
    estimate, the worse the fewer values it comes of.
    """
    return math.sqrt(2 * math.log(max(count, 2))) + 2.5 + 8 / max(count, 1)


PARALLEL_KINDS = ("tp", "dp", "pp", "ep", "cp")


@dataclass(frozen=True, slots=True, eq=False)
class RankRoles:
    """Of each rank of a `Matched`."""

    place: dict[str, list[int | None]]
    """Kind -> the rank's place; None where nothing says it."""
    peers: Ints
    """Ranks with equal numbers do the same work: those of one pipeline stage."""
    by_stage: bool
    """Whether stages said so; else it was judged by the work itself."""


def infer_roles(matched: MatchedCollectives, steps: list[int]) -> RankRoles:
    """Find out, from what groups are called, else from what they do."""
    _name_groups(matched)
    place = {kind: _places(matched, kind) for kind in PARALLEL_KINDS}
    stages = place["pp"]
    if any(group.kind == "pp" for group in matched.groups):
        peers = np.array([-1 if stage is None else stage for stage in stages], np.int64)
        return RankRoles(place, peers, True)
    return RankRoles(place, _by_work(matched, steps), False)


def _name_groups(matched: MatchedCollectives) -> None:
    """Give groups without a telling title a kind: by who is in them, and what they do."""
    world = _world(matched)
    transfers = set(matched.events.group[matched.transfers].tolist())
    others = set(matched.events.group[~matched.transfers].tolist())
    unnamed: list[tuple[int, ClusterGroup]] = []
    for number, group in enumerate(matched.groups):
        if group.kind != "other" or group.titles:
            continue
        if number in transfers and number not in others:
            group.kind = "pp"
        elif group.told and len(group.ranks) == world:
            group.kind = "world"
        elif group.told:
            unnamed.append((number, group))
    strides = {_stride(group.ranks) for _, group in unnamed}
    if len(strides) == 2 and min(strides) == 1:
        # Megatron's and everybody's order: ranks beside one another are tensor parallel.
        for _, group in unnamed:
            group.kind = "tp" if _stride(group.ranks) == 1 else "dp"


def _stride(ranks: tuple[int, ...]) -> int:
    ordered = sorted(ranks)
    steps = {b - a for a, b in pairwise(ordered)}
    return steps.pop() if len(steps) == 1 else 0


def _world(matched: MatchedCollectives) -> int:
    told = [one.world_size for one in matched.facts if one.world_size]
    return max(told, default=0) or (max(matched.ranks, default=-1) + 1)


def _places(matched: MatchedCollectives, kind: str) -> list[int | None]:
    """Return each rank's place in its group of a kind; 0 where the run is not divided so."""
    groups = [group for group in matched.groups if group.kind == kind and group.told]
    place: dict[int, int] = {}
    for group in sorted(groups, key=lambda one: one.size):
        for at, rank in enumerate(sorted(group.ranks)):
            place.setdefault(rank, at)
    named = any(group.kind in PARALLEL_KINDS for group in matched.groups)
    found: list[int | None] = []
    for rank, facts in zip(matched.ranks, matched.facts, strict=True):
        alone = facts.shape.get(kind) == 1 or (named and not groups)
        found.append(place.get(rank, 0 if alone else None))
    return found


def _by_work(matched: MatchedCollectives, steps: list[int]) -> Ints:
    """Put ranks together that run the same kernels equally often."""
    signatures: dict[tuple[tuple[str, int], ...], int] = {}
    result = np.empty(len(matched.ranks), np.int64)
    for index, one in enumerate(matched.partials):
        counts: dict[str, int] = {}
        table = one.kernels
        inside = np.isin(table["step"], steps)
        for name, n in zip(
            table["name"][inside].tolist(), table["n"][inside].tolist(), strict=True
        ):
            counts[one.names[name]] = counts.get(one.names[name], 0) + n
        key = tuple(sorted(counts.items()))
        result[index] = signatures.setdefault(key, len(signatures))
    # Nearly as many kinds of work as ranks: counts depend on the data, and say nothing.
    if len(signatures) > max(2, len(matched.ranks) // 2):
        result[:] = 0
    return result


_FEW_RANKS = 6
_FEW_HOSTS = 4


@dataclass(frozen=True, slots=True, eq=False)
class CauseSignals:
    """Of each rank of a `Matched`, over the compared steps; NaN where it cannot be told."""

    steps: tuple[int, ...]
    work: Ints
    """Time of its kernels, a sum, and the median of its peers."""
    peers_work: Floats
    work_at: Floats
    """Time of its kernels: ranks by `steps`."""
    slowness: Floats
    """The logarithm of its kernels' time over that of its peers', one figure for all kinds."""
    slowness_error: Floats
    slowness_scatter: float
    """How far ranks with the same work usually lie apart in it."""
    general: Floats
    """The share of its kernels' time in kinds that are slower than its peers'."""
    slowness_at: Floats
    """The same by step: ranks by `steps`, of the kernels' sum."""
    kernels: Ints
    gap: Floats
    """From the end of a kernel to the next one's begin, on average, where nothing else begins or
    ends in between; ns."""
    peers_gap: Floats
    """The median of peers on other hosts; where these are few, of all ranks on other hosts."""
    middle_gap: Floats
    """The gap that half of the kernels are behind at most: one long stop leaves it as it is."""
    peers_middle_gap: Floats
    gap_scatter: float
    """How far gaps of ranks usually lie apart that should be alike."""
    input_at: Floats
    """Idle time for input: ranks by `steps`."""
    peers_input_at: Floats
    idle_at: Floats
    """Idle time without input: ranks by `steps`."""
    peers_idle_at: Floats


def collect_cause_signals(
    matched: MatchedCollectives, roles: RankRoles, steps: Sequence[int]
) -> CauseSignals:
    """Collect it."""
    ranks, chosen = len(matched.ranks), list(steps)
    column = {step: at for at, step in enumerate(chosen)}
    names: dict[str, int] = {}
    work_at = np.zeros((ranks, len(chosen)))
    kernels = np.zeros(ranks, np.int64)
    idle_at = np.full((ranks, len(chosen)), np.nan)
    input_at = np.full((ranks, len(chosen)), np.nan)
    cells: list[tuple[int, int, int, int]] = []  # rank, name, n, total
    for index, one in enumerate(matched.partials):
        number = [names.setdefault(name, len(names)) for name in one.names]
        n = np.zeros(len(names), np.int64)
        total = np.zeros(len(names), np.int64)
        table = one.kernels
        inside = np.isin(table["step"], chosen) & (table["name"] >= 0)
        which = np.array([*number, NO_VALUE], np.int64)[table["name"][inside]]
        np.add.at(n, which, table["n"][inside])
        np.add.at(total, which, table["total"][inside])
        at = np.array([column[step] for step in table["step"][inside].tolist()], np.int64)
        np.add.at(work_at[index], at, table["total"][inside])
        kernels[index] = int(n.sum())
        cells += [
            (index, name, int(n[name]), int(total[name])) for name in np.flatnonzero(n).tolist()
        ]
        table = one.steps
        for step, rest, late in zip(
            table["step"].tolist(), table["idle"].tolist(), table["input"].tolist(), strict=True
        ):
            if step in column:
                idle_at[index, column[step]] = rest - max(late, 0)
                input_at[index, column[step]] = max(late, 0)
        if not one.facts.loader_recorded:
            input_at[index] = np.nan
    slowness, error, general, scatter = _slowness(cells, len(names), roles.peers)
    work = work_at.sum(axis=1)
    gaps = np.array([_gap(one) for one in matched.partials]).reshape(-1, 2)
    gap, middle = gaps[:, 0], gaps[:, 1]
    hosts = [facts.host for facts in matched.facts]
    return CauseSignals(
        steps=tuple(chosen),
        work=work.astype(np.int64),
        peers_work=_by_peers(work, roles.peers),
        work_at=work_at,
        slowness=slowness,
        slowness_error=error,
        slowness_scatter=scatter,
        general=general,
        slowness_at=_log_ratio(work_at, roles.peers),
        kernels=kernels,
        gap=gap,
        peers_gap=_elsewhere(gap, roles.peers, hosts),
        middle_gap=middle,
        peers_middle_gap=_elsewhere(middle, roles.peers, hosts),
        gap_scatter=_scatter(gap, roles.peers, hosts),
        input_at=input_at,
        peers_input_at=np.stack(
            [_median_of_known_others(input_at[:, at]) for at in range(len(chosen))], axis=1
        )
        if chosen
        else input_at,
        idle_at=idle_at,
        peers_idle_at=np.stack(
            [_by_known_peers(idle_at[:, at], roles.peers) for at in range(len(chosen))], axis=1
        )
        if chosen
        else idle_at,
    )


def slowness_in_steps(
    matched: MatchedCollectives, peers: Ints, rank: int, steps: Sequence[int]
) -> tuple[float, float, float]:
    """Return a rank's slowness in some steps, its standard error, and how general it is.

    Args:
        matched: The run.
        peers: Ranks with equal numbers do the same work.
        rank: By number in `matched`.
        steps: Those steps.
    """
    members = np.flatnonzero(peers == peers[rank])
    if len(members) < 2:
        members = np.arange(len(peers))
    names: dict[str, int] = {}
    cells: list[tuple[int, int, int, int]] = []
    for place, index in enumerate(members.tolist()):
        one = matched.partials[index]
        table = one.kernels
        inside = np.flatnonzero(np.isin(table["step"], list(steps)) & (table["name"] >= 0))
        sums: dict[int, list[int]] = {}
        for name, n, total in zip(
            *(table[column][inside].tolist() for column in ("name", "n", "total")), strict=True
        ):
            cell = sums.setdefault(names.setdefault(one.names[name], len(names)), [0, 0])
            cell[0] += n
            cell[1] += total
        cells += [(place, name, n, total) for name, (n, total) in sums.items()]
    found = _slowness(cells, len(names), np.zeros(len(members), np.int64))
    mine = int(np.flatnonzero(members == rank)[0])
    return float(found[0][mine]), float(found[1][mine]), float(found[2][mine])


def _median_of_known_others(values: Floats) -> Floats:
    """Return the median of the other known values; NaN where there is none."""
    result = np.full(len(values), np.nan)
    known = np.flatnonzero(np.isfinite(values))
    result[known] = median_of_others(values[known])
    return result


def _by_peers(values: Floats, peers: Ints) -> Floats:
    result = np.full(len(values), np.nan)
    for one in np.unique(peers):
        mine = np.flatnonzero(peers == one)
        result[mine] = median_of_others(values[mine])
    return result


def _by_known_peers(values: Floats, peers: Ints) -> Floats:
    result = np.full(len(values), np.nan)
    for one in np.unique(peers):
        mine = np.flatnonzero((peers == one) & np.isfinite(values))
        result[mine] = median_of_others(values[mine])
    return result


def _gap(one: Partial) -> tuple[float, float]:
    """Return the mean and the middle of the times between kernels, 0 where there are none.

    Only of kernels that follow one another. Of stretches between marks their means are known,
    and count by the gaps they are of.
    """
    marks = one.marks
    length = np.diff(marks["time"])
    lead, busy, tail, begun = (marks[name][:-1] for name in ("lead", "busy", "tail", "kernels"))
    # A stretch that begins within a kernel has that one as well.
    gaps = np.where(busy > 0, begun - (lead > 0), 0)
    count = int(gaps[gaps > 0].sum())
    if not count:
        return 0.0, 0.0
    idle, gaps = (length - lead - busy - tail)[gaps > 0], gaps[gaps > 0]
    order = np.argsort(idle / gaps, kind="stable")
    at = int(np.searchsorted(np.cumsum(gaps[order]), count / 2))
    return float(idle.sum()) / count, float((idle / gaps)[order[at]])


def _elsewhere(values: Floats, peers: Ints, hosts: Sequence[str | None]) -> Floats:
    """Return the median of each rank's peers on other hosts; all peers where there is one host.

    A whole host may be at fault, and all of a stage may be on it.
    """
    names = sorted({host for host in hosts if host is not None})
    if len(names) < 2:
        return _by_peers(values, peers)
    number = np.array([names.index(host) if host is not None else NO_VALUE for host in hosts])
    result = np.full(len(values), np.nan)
    for host in np.unique(number).tolist():
        there = number != host
        anywhere = float(np.median(values[there]))
        for one in np.unique(peers[number == host]).tolist():
            like = there & (peers == one)
            mine = (number == host) & (peers == one)
            # One other host says nothing: it may be the one at fault.
            enough = len(np.unique(number[like])) > 1
            result[mine] = float(np.median(values[like])) if enough else anywhere
    return result


def _scatter(values: Floats, peers: Ints, hosts: Sequence[str | None]) -> float:
    """Return how far values of ranks usually lie apart: of few hosts, on the same one.

    Where half of all ranks are on one host, its fault would pass for scatter otherwise.
    """
    if len(set(hosts)) >= _FEW_HOSTS:
        return robust_deviation(values - _elsewhere(values, peers, hosts))
    away = np.full(len(values), np.nan)
    for host in set(hosts):
        here = np.array([one == host for one in hosts])
        for one in np.unique(peers[here]).tolist():
            mine = here & (peers == one)
            away[mine] = values[mine] - np.median(values[mine])
    return robust_deviation(away)


def _log_ratio(work_at: Floats, peers: Ints) -> Floats:
    result = np.full(work_at.shape, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        for at in range(work_at.shape[1]):
            column = work_at[:, at]
            result[:, at] = np.log(column / _by_peers(column, peers))
    return result


def _slowness(
    cells: Sequence[tuple[int, int, int, int]], names: int, peers: Ints
) -> tuple[Floats, Floats, Floats, float]:
    """Return each rank's slowness, its standard error, how general it is, and the usual scatter.

    Kinds of kernel count by how little they vary between ranks: what depends on the data, or
    on its neighbours in memory, says less.
    """
    ranks = len(peers)
    mean = np.full((ranks, names), np.nan)
    count = np.zeros((ranks, names))
    total = np.zeros((ranks, names))
    if cells:
        rank, name, n, time = np.array(cells, np.int64).T
        mean[rank, name] = time / n
        count[rank, name] = n
        total[rank, name] = time
    ratio = np.full((ranks, names), np.nan)
    away_from_middle = ratio.copy()
    groups = [np.flatnonzero(peers == one) for one in np.unique(peers)]
    # A stage with one rank has no peers; kinds of kernel that all stages share stand in.
    if any(len(members) < 2 for members in groups):
        groups = [np.arange(ranks)]
    with np.errstate(divide="ignore", invalid="ignore"):
        for members in groups:
            for at in range(names):
                known = members[np.isfinite(mean[members, at]) & (mean[members, at] > 0)]
                if len(known) > 1:
                    values = np.log(mean[known, at])
                    ratio[known, at] = values - median_of_others(values)
                    # Of three ranks one slow one takes the others' median of others with it.
                    away_from_middle[known, at] = values - np.median(values)
    weight = _weights(ratio, count)
    known = np.isfinite(ratio)
    weight = np.where(known, weight, 0.0)
    filled = np.where(known, ratio, 0.0)
    whole = weight.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slowness = (weight * filled).sum(axis=1) / whole
        away = weight * np.where(known, ratio - slowness[:, None], 0.0) ** 2
        kinds = np.maximum(known.sum(axis=1), 1)
        error = np.sqrt(away.sum(axis=1) / whole / kinds)
        middle = (weight * np.where(known, away_from_middle, 0.0)).sum(axis=1) / whole
        slower = (total * (known & (ratio > slowness[:, None] / 2))).sum(axis=1)
        general = slower / np.where(known, total, 0.0).sum(axis=1)
    slowness[whole == 0] = np.nan
    return slowness, error, general, robust_deviation(middle)


def _weights(ratio: Floats, count: Floats) -> Floats:
    """Weigh kinds of kernel by their scatter between ranks, where there are enough of these."""
    if ratio.shape[0] < _FEW_RANKS:
        return count
    scatter = np.array([robust_deviation(ratio[:, at]) for at in range(ratio.shape[1])])
    seen = np.isfinite(ratio).sum(axis=0) >= _FEW_RANKS
    usual = float(np.median(scatter[seen & (scatter > 0)])) if (seen & (scatter > 0)).any() else 1.0
    scatter = np.where(seen, np.maximum(scatter, usual / 4), usual)
    return np.broadcast_to(1 / scatter**2, ratio.shape)


NS_PER_MS = 1e6
MIN_STEP_SHARE = 0.002
"""Time that is a smaller part of a step is not worth a name."""
_MOST_OF_A_HOST = 0.75
_FEW_STEPS = 5


@dataclass(frozen=True, slots=True)
class RuleContext:
    """All there is to judge."""

    matched: MatchedCollectives
    waits: Waits
    roles: RankRoles
    evidence: CauseSignals
    walk: Replay
    steps: tuple[int, ...]
    step_ns: float
    """Length of a step, the median over ranks."""

    def with_communication(self, steps: Sequence[int]) -> list[int]:
        """Return those of some steps of which there is communication."""
        there = set(np.unique(self.matched.rows.step).tolist())
        return [step for step in steps if step in there]

    def host(self, index: int) -> str | None:
        """Return the host of a rank."""
        return self.matched.facts[index].host

    def hosts(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """Return the hosts of ranks, each once."""
        return tuple(sorted({host for one in ranks if (host := self.host(one)) is not None}))

    def named(self, index: int) -> str:
        """Return a rank and its host in words."""
        host = self.host(index)
        rank = f"rank {self.matched.ranks[index]}"
        return rank if host is None else f"{rank} on {host}"

    def global_ranks(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return the global numbers of ranks."""
        return tuple(self.matched.ranks[one] for one in ranks)


@dataclass(frozen=True, slots=True)
class Cost:
    """What something costs."""

    ns: float
    """A step, on average over all."""
    each_ns: float | None = None
    """Each of the steps in which it is; None: it is in all of them."""
    at_most: bool = False
    """Whether these are bounds: what came of it could not be walked."""

    @property
    def words(self) -> str:
        """The end of a sentence."""
        ns = self.ns if self.each_ns is None else self.each_ns
        if ns < 500:
            return (
                f"currently costs {'the step' if self.each_ns is None else 'these steps'} nothing"
            )
        most = "at most " if self.at_most else ""
        if self.each_ns is None:
            return f"costs every step {most}{_ms(ns)}"
        return f"costs each of these {most}{_ms(ns)}, {_ms(self.ns)} per step on average"

    @property
    def figures(self) -> dict[str, Any]:
        """What of it is not in every finding."""
        return {} if self.each_ns is None else {"cost_ms_in_these_steps": self.each_ns / NS_PER_MS}


def replay_cost(
    case: RuleContext, change: ReplayChange, steps: Sequence[int], most_ns: float = 0.0
) -> Cost:
    """Return what a fault costs that a change takes away.

    Args:
        case: The run.
        change: The run without the fault.
        steps: Those in which it is.
        most_ns: What it costs each of these at most, for steps whose communication is not there.
    """
    everywhere = set(steps) >= set(case.steps)
    walk = case.walk
    if not set(steps) <= set(walk.steps):
        if everywhere:
            return Cost(walk.cost_ns(change))
        walk = walk.over(case.with_communication(steps))
    elif everywhere:
        return Cost(walk.cost_ns(change))
    inside = len(set(steps) & set(walk.steps))
    share = len(steps) / max(len(case.steps), 1)
    if not inside:
        return Cost(most_ns * share, most_ns, at_most=True)
    each = walk.gain_ns(change) / inside
    return Cost(each * share, each)


def make_finding(
    case: RuleContext,
    kind: str,
    ranks: Sequence[int],
    steps: Sequence[int],
    cost: Cost,
    text: str,
    figures: dict[str, Any],
) -> Finding:
    """Return a finding about ranks, by their number in the run."""
    return Finding(
        kind,
        case.global_ranks(ranks),
        case.hosts(ranks),
        (),
        tuple(steps),
        round(cost.ns / NS_PER_MS, 6),
        text,
        {
            name: round(float(value), 6) if isinstance(value, float) else value
            for name, value in {**figures, **cost.figures}.items()
        },
    )


def group_by_host(case: RuleContext, ranks: Sequence[int]) -> list[tuple[list[int], str | None]]:
    """Put ranks of one host together where most of that host's are among them.

    The host is None where it is the rank alone.
    """
    of_host: dict[str, list[int]] = {}
    for index in range(len(case.matched.ranks)):
        if (host := case.host(index)) is not None:
            of_host.setdefault(host, []).append(index)
    chosen = set(ranks)
    result: list[tuple[list[int], str | None]] = []
    for host, members in of_host.items():
        mine = [one for one in members if one in chosen]
        if len(members) > 1 and len(mine) >= _MOST_OF_A_HOST * len(members):
            result.append((mine, host))
            chosen -= set(mine)
    return [*result, *(([one], None) for one in sorted(chosen))]


def steps_suffix(case: RuleContext, steps: Sequence[int]) -> str:
    """Say in which steps something is, with a blank before it; nothing where it is in all."""
    if set(steps) >= set(case.steps):
        return ""
    if len(steps) == 1:
        return f" in step {steps[0]}"
    if len(steps) <= _FEW_STEPS:
        return f" in steps {', '.join(map(str, steps[:-1]))} and {steps[-1]}"
    return f" in {len(steps)} of {len(case.steps)} steps ({list_first(steps, _FEW_STEPS)})"


def list_first(items: Sequence[object], most: int = 8) -> str:
    """Return the first of some things in words."""
    shown = [str(one) for one in items[:most]]
    return ", ".join(shown) + (", ..." if len(items) > most else "")


def _ms(ns: float) -> str:
    ms = ns / NS_PER_MS
    return f"{ms:.3g} ms" if ms < 1 else f"{ms:.2f} ms"
