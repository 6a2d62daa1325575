"""Two runs of many ranks, by what ranks do and not by their numbers: 64 compare with 128.

A rank's role is its pipeline stage and its place among the ranks that share data; collectives
are paired by kind, kind of group and size, links by whether they leave the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from unified_prof.cluster.overview import GroupRow, Overview, RankRow
from unified_prof.cluster.stored_run import STEP_PARTS, FindingRecord, RankRecord
from unified_prof.compare.confidence import NoiseModel, Sample
from unified_prof.compare.gate import Check, Limits, Verdict, check_samples
from unified_prof.errors import UsageError

GateMetric = Literal["step", "slowest-rank", "imbalance", "exposed-communication"]
GATE_METRICS: tuple[GateMetric, ...] = get_args(GateMetric)
PairBy = Literal["stage", "role", "rank"]

_BY_STEPS = NoiseModel(max_ratio=1.0)
"""A run of many machines is judged by its steps: their common disturbances are in its samples."""
Row = TypeVar("Row")
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class QuantityPair:
    """One quantity on both sides; None where a side has none."""

    base: float | None
    new: float | None

    @property
    def ratio(self) -> float | None:
        """New over base."""
        return self.new / self.base if self.base and self.new is not None else None

    @property
    def change(self) -> float:
        """New less base; what a side lacks counts as nothing."""
        return (self.new or 0.0) - (self.base or 0.0)


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Ranks of one role: means of a step, ns."""

    role: str
    base_ranks: int
    new_ranks: int
    span_ns: QuantityPair
    parts: dict[str, QuantityPair]


@dataclass(frozen=True, slots=True)
class CollectiveChange:
    """Collectives of one kind and size in groups of one kind; times are ns a step and group."""

    group_kind: str
    kind: str
    bytes: int | None
    base_size: int | None
    """Members of such a group."""
    new_size: int | None
    per_step: QuantityPair
    transfer_ns: QuantityPair
    wait_ns: QuantityPair
    bus_gb_per_s: QuantityPair


@dataclass(frozen=True, slots=True)
class LinkChange:
    """Links of one kind, inside of hosts or between them: the median of their bandwidths."""

    kind: str
    across_hosts: bool | None
    base_links: int
    new_links: int
    gb_per_s: QuantityPair
    slowest_gb_per_s: QuantityPair


@dataclass(frozen=True, slots=True)
class OperationChange:
    """Kernels of one kind in a stage: ns a step and rank."""

    stage: str
    """`all` where the runs have different stages."""
    name: str
    count: QuantityPair
    time_ns: QuantityPair


@dataclass(frozen=True, slots=True)
class ClusterDifference:
    """What changed from one run to another."""

    base: Overview
    new: Overview
    step: dict[str, QuantityPair]
    """`span_ns` and PARTS of the mean step."""
    roles: tuple[RoleChange, ...]
    collectives: tuple[CollectiveChange, ...]
    links: tuple[LinkChange, ...]
    operations: tuple[OperationChange, ...]
    """What lost most first."""
    new_findings: tuple[FindingRecord, ...]
    gone_findings: tuple[FindingRecord, ...]
    kept_findings: tuple[FindingRecord, ...]


def compare_cluster_runs(
    base: Overview, new: Overview, *, by: PairBy = "stage"
) -> ClusterDifference:
    """Compare two runs.

    Raises:
        UsageError: a run has no steps.
    """
    for one in (base, new):
        if not one.steps:
            raise UsageError(f"{one.run.path} has no steps to compare", slug="no-steps")
    known = {_identity(one) for one in base.run.findings}
    now = {_identity(one) for one in new.run.findings}
    return ClusterDifference(
        base,
        new,
        {
            name: QuantityPair(base.whole[name], new.whole[name])
            for name in ("span_ns", *STEP_PARTS)
        },
        tuple(_roles(base, new, by)),
        tuple(_collectives(base, new)),
        tuple(_links(base, new)),
        tuple(sorted(_operations(base, new), key=lambda row: -row.time_ns.change)),
        tuple(one for one in new.run.findings if _identity(one) not in known),
        tuple(one for one in base.run.findings if _identity(one) not in now),
        tuple(one for one in new.run.findings if _identity(one) in known),
    )


def gate_cluster_run(
    base: Overview, new: Overview, metrics: Sequence[str], limits: Limits
) -> Verdict:
    """Judge one run against another, by what each step of it took.

    Raises:
        UsageError: a metric that does not exist, or none at all; a run has no steps.
    """
    unknown = [one for one in metrics if one not in GATE_METRICS]
    if unknown or not metrics:
        said = f"unknown metric {unknown[0]!r}" if unknown else "no metric given"
        raise UsageError(said, hint=f"metrics: {', '.join(GATE_METRICS)}", slug="unknown-metric")
    for one in (base, new):
        if not one.steps:
            raise UsageError(f"{one.run.path} has no steps to judge by", slug="no-steps")
    return Verdict(tuple(_check(base, new, one, limits) for one in metrics), limits)


def metric_samples(overview: Overview, metric: str) -> NDArray[np.float64]:
    """Return what each step says of a metric, in their order.

    `step` is how long it took the rank that took longest, `slowest-rank` the kernels of the rank
    that has most of them, `imbalance` the same over the median of its pipeline stage,
    `exposed-communication` the mean over ranks. All but imbalance are ns.
    """
    if metric == "step":
        return np.array([row.longest_ns for row in overview.steps])
    if metric == "exposed-communication":
        found = [row.parts["exposed_communication_ns"] for row in overview.steps]
        return np.array([value for value in found if value is not None])
    if metric == "slowest-rank":
        return np.array([row.most_compute_ns for row in overview.steps])
    return _imbalance(overview)


def _imbalance(overview: Overview) -> NDArray[np.float64]:
    """Return for each step the most that a rank computes over the median of its stage."""
    table = overview.run.steps
    stages = {one.rank: -1 if one.pp is None else one.pp for one in overview.run.ranks}
    stage = np.array([stages[rank] for rank in table.rank.tolist()])
    compute = table.parts["compute_ns"]
    found = []
    for row in overview.steps:
        of_step = table.step == row.step
        ratios = [
            float(values.max() / middle)
            for number in np.unique(stage[of_step]).tolist()
            if (middle := float(np.median(values := compute[of_step & (stage == number)]))) > 0
        ]
        if ratios:
            found.append(max(ratios))
    return np.array(found)


def _check(base: Overview, new: Overview, metric: str, limits: Limits) -> Check:
    unit: Literal["ns", "x"] = "x" if metric == "imbalance" else "ns"
    sides = (str(base.run.path), str(new.run.path))
    before, after = (Sample.of(metric_samples(one, metric)) for one in (base, new))
    return check_samples(metric, before, after, unit, limits, sides, _BY_STEPS)


def rank_role(rank: RankRecord, by: PairBy) -> str:
    """Return what a rank does, in words."""
    if by == "rank":
        return f"rank {rank.rank}"
    stage = "all ranks" if rank.pp is None else f"stage {rank.pp}"
    return stage if by == "stage" or rank.dp is None else f"{stage}, data rank {rank.dp}"


def _roles(base: Overview, new: Overview, by: PairBy) -> Iterable[RoleChange]:
    before, after = (
        _by(_with_steps(one), lambda row: rank_role(row.rank, by)) for one in (base, new)
    )
    for role, olds, news in _paired(before, after):
        spans = _pair(olds, news, lambda row: row.span_ns)
        parts = {name: _part(olds, news, name) for name in STEP_PARTS}
        yield RoleChange(role, len(olds), len(news), spans, parts)


def _collectives(base: Overview, new: Overview) -> Iterable[CollectiveChange]:
    def key(row: GroupRow) -> tuple[str, str, int | None]:
        return row.group_kind, row.kind, row.bytes

    before, after = (_by(one.groups, key) for one in (base, new))
    for (group_kind, kind, size_bytes), olds, news in _paired(before, after):
        yield CollectiveChange(
            group_kind,
            kind,
            size_bytes,
            olds[0].size if olds else None,
            news[0].size if news else None,
            _pair(olds, news, lambda row: row.per_step),
            _pair(olds, news, lambda row: row.transfer_ns),
            _pair(olds, news, lambda row: row.wait_ns),
            _pair(olds, news, lambda row: row.bus_gb_per_s),
        )


def _links(base: Overview, new: Overview) -> Iterable[LinkChange]:
    before, after = (
        _by(
            (one for one in overview.run.links if one.gb_per_s_p50 is not None),
            lambda one: (one.kind, None if one.across_hosts is None else bool(one.across_hosts)),
        )
        for overview in (base, new)
    )
    for (kind, across), olds, news in _paired(before, after):
        rates = [[one.gb_per_s_p50 or 0.0 for one in links] for links in (olds, news)]
        yield LinkChange(
            kind,
            across,
            len(olds),
            len(news),
            QuantityPair(*(median(found) if found else None for found in rates)),
            QuantityPair(*(min(found, default=None) for found in rates)),
        )


def _operations(base: Overview, new: Overview) -> Iterable[OperationChange]:
    same_stages = _stages(base) == _stages(new)
    before, after = (_kernels(one, by_stage=same_stages) for one in (base, new))
    for key in dict.fromkeys((*before, *after)):
        old, now = before.get(key), after.get(key)
        yield OperationChange(
            *key,
            QuantityPair(old and old[0], now and now[0]),
            QuantityPair(old and old[1], now and now[1]),
        )


def _stages(overview: Overview) -> set[int | None]:
    return {one.pp for one in overview.run.read}


def _kernels(overview: Overview, *, by_stage: bool) -> dict[tuple[str, str], tuple[float, float]]:
    """Return (stage, kernel) -> its count and ns, a step and rank of the stage."""
    stages = {
        one.rank: "all" if one.pp is None or not by_stage else str(one.pp)
        for one in overview.run.read
    }
    steps = {row.rank.rank: row.steps for row in overview.ranks}
    weight: dict[str, int] = {}
    for rank, stage in stages.items():
        weight[stage] = weight.get(stage, 0) + steps[rank]
    sums: dict[tuple[str, str], list[int]] = {}
    for one in overview.run.operations():
        if (told := stages.get(one.rank)) is not None:
            found = sums.setdefault((told, one.name), [0, 0])
            found[0] += one.n
            found[1] += one.total_ns
    return {
        key: (count / max(1, weight[key[0]]), total / max(1, weight[key[0]]))
        for key, (count, total) in sums.items()
    }


def _with_steps(overview: Overview) -> list[RankRow]:
    return [row for row in overview.ranks if row.steps]


def _by(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _paired(
    before: dict[Key, list[Row]], after: dict[Key, list[Row]]
) -> Iterable[tuple[Key, list[Row], list[Row]]]:
    for key in dict.fromkeys((*before, *after)):
        yield key, before.get(key, []), after.get(key, [])


def _pair(olds: list[Row], news: list[Row], value: Callable[[Row], float | None]) -> QuantityPair:
    """Return the means of a figure on both sides."""
    return QuantityPair(_mean(map(value, olds)), _mean(map(value, news)))


def _part(olds: list[RankRow], news: list[RankRow], name: str) -> QuantityPair:
    return _pair(olds, news, lambda row: row.parts[name])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _identity(one: FindingRecord) -> tuple[object, ...]:
    """Return what makes a finding the same in two runs."""
    return one.kind, one.ranks, one.hosts if not one.ranks else (), one.links
