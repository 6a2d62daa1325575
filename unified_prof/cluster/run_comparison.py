"""Comparison of two multi-rank runs, also of different sizes.

Ranks are paired by role, collectives by kind, kind of group and size, and links by whether they
connect two hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from unified_prof.cluster.overview import GroupRow, Overview, RankRow
from unified_prof.cluster.stored_run import STEP_PARTS, FindingRecord, RankRecord
from unified_prof.compare.confidence import NoiseModel, Sample
from unified_prof.compare.gate import Check, Limits, Verdict, check_samples
from unified_prof.errors import UsageError

GateMetric = Literal["step", "slowest-rank", "stage", "imbalance", "exposed-communication"]
GATE_METRICS: tuple[GateMetric, ...] = get_args(GateMetric)
PairBy = Literal["stage", "role", "rank"]

# Runs on many machines are compared by their steps, whose samples contain common disturbances.
_BY_STEPS = NoiseModel(max_ratio=1.0)
Row = TypeVar("Row")
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class QuantityPair:
    """One quantity of both runs; None if a run does not have it."""

    base: float | None
    new: float | None
    ratio: float | None = field(init=False)  # New over base.

    def __post_init__(self) -> None:
        ratio = self.new / self.base if self.base and self.new is not None else None
        object.__setattr__(self, "ratio", ratio)

    @property
    def change(self) -> float:
        """Difference, new minus base; a missing value counts as 0."""
        return (self.new or 0.0) - (self.base or 0.0)


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Ranks of one role; means per step, ns."""

    role: str
    base_ranks: int
    new_ranks: int
    span_ns: QuantityPair
    parts: dict[str, QuantityPair]


@dataclass(frozen=True, slots=True)
class CollectiveChange:
    """Collectives of one kind and size in groups of one kind; times are ns per step and group."""

    group_kind: str
    kind: str
    bytes: int | None
    base_size: int | None  # Number of members of a group.
    new_size: int | None
    per_step: QuantityPair
    transfer_ns: QuantityPair
    wait_ns: QuantityPair
    bus_gb_per_s: QuantityPair


@dataclass(frozen=True, slots=True)
class LinkChange:
    """Median bandwidth of one kind of link, within hosts or between hosts."""

    kind: str
    across_hosts: bool | None
    base_links: int
    new_links: int
    gb_per_s: QuantityPair
    slowest_gb_per_s: QuantityPair


@dataclass(frozen=True, slots=True)
class OperationChange:
    """Kernels of one kind in a stage; ns per step and rank."""

    stage: str  # `all` if the runs have different stages.
    name: str
    count: QuantityPair
    time_ns: QuantityPair


@dataclass(frozen=True, slots=True)
class ClusterDifference:
    """Differences between two runs."""

    base: Overview
    new: Overview
    step: dict[str, QuantityPair]  # `span_ns` and STEP_PARTS of the mean step.
    roles: tuple[RoleChange, ...]
    collectives: tuple[CollectiveChange, ...]
    links: tuple[LinkChange, ...]
    operations: tuple[OperationChange, ...]  # Changes of operations, largest regression first.
    new_findings: tuple[FindingRecord, ...]
    gone_findings: tuple[FindingRecord, ...]
    kept_findings: tuple[FindingRecord, ...]


def compare_cluster_runs(
    base: Overview, new: Overview, *, by: PairBy = "stage"
) -> ClusterDifference:
    """Compare two runs.

    Raises:
        UsageError: A run has no steps.
    """
    for one in (base, new):
        if not one.steps:
            raise UsageError(f"{one.run.path} has no steps to compare", slug="no-steps")
    known = {_identity(finding) for finding in base.run.findings}
    now = {_identity(finding) for finding in new.run.findings}
    return ClusterDifference(
        base,
        new,
        {
            name: QuantityPair(base.mean_step[name], new.mean_step[name])
            for name in ("span_ns", *STEP_PARTS)
        },
        tuple(_roles(base, new, by)),
        tuple(_collectives(base, new)),
        tuple(_links(base, new)),
        tuple(sorted(_operations(base, new), key=lambda row: -row.time_ns.change)),
        tuple(finding for finding in new.run.findings if _identity(finding) not in known),
        tuple(finding for finding in base.run.findings if _identity(finding) not in now),
        tuple(finding for finding in new.run.findings if _identity(finding) in known),
    )


def gate_cluster_run(
    base: Overview, new: Overview, metrics: Sequence[str], limits: Limits
) -> Verdict:
    """Check a run for regressions against its baseline, using its steps as samples.

    Raises:
        UsageError: A metric is unknown, none is given, or a run has no steps.
    """
    unknown = [metric for metric in metrics if metric not in GATE_METRICS]
    if unknown or not metrics:
        text = f"unknown metric {unknown[0]!r}" if unknown else "no metric given"
        raise UsageError(text, hint=f"metrics: {', '.join(GATE_METRICS)}", slug="unknown-metric")
    for one in (base, new):
        if not one.steps:
            raise UsageError(f"{one.run.path} has no steps to compare", slug="no-steps")
    return Verdict(tuple(_check(base, new, metric, limits) for metric in metrics), limits)


def metric_samples(overview: Overview, metric: str) -> NDArray[np.float64]:
    """Return the samples of a metric, one per step.

    `step` is the length of the step on the slowest rank, `slowest-rank` the largest kernel time of
    a rank, `imbalance` its ratio to the median of the rank's pipeline stage, `stage` the largest
    median kernel time of a stage, and `exposed-communication` the mean over ranks. All except
    `imbalance` are in ns.
    """
    if metric == "step":
        return np.array([row.longest_ns for row in overview.steps])
    if metric == "exposed-communication":
        result = [row.parts["exposed_communication_ns"] for row in overview.steps]
        return np.array([value for value in result if value is not None])
    if metric == "slowest-rank":
        return np.array([row.most_compute_ns for row in overview.steps])
    table = overview.run.steps
    stages = {rank.rank: -1 if rank.pp is None else rank.pp for rank in overview.run.ranks}
    stage = np.array([stages[rank] for rank in table.rank.tolist()])
    compute = table.parts["compute_ns"]
    samples: list[float] = []
    for row in overview.steps:
        in_step = table.step == row.step
        groups = [
            compute[in_step & (stage == number)] for number in np.unique(stage[in_step]).tolist()
        ]
        medians = [float(np.median(values)) for values in groups]
        if metric == "stage":
            samples.append(max(medians))
        elif any(medians):
            pairs = zip(groups, medians, strict=True)
            samples.append(max(float(values.max()) / usual for values, usual in pairs if usual > 0))
    return np.array(samples)


def _check(base: Overview, new: Overview, metric: str, limits: Limits) -> Check:
    unit: Literal["ns", "x"] = "x" if metric == "imbalance" else "ns"
    sides = (str(base.run.path), str(new.run.path))
    before, after = (Sample.from_values(metric_samples(one, metric)) for one in (base, new))
    return check_samples(metric, before, after, unit, limits, sides, _BY_STEPS)


def rank_role(rank: RankRecord, by: PairBy) -> str:
    """Return the name of a rank's role."""
    if by == "rank":
        return f"rank {rank.rank}"
    stage = "all ranks" if rank.pp is None else f"stage {rank.pp}"
    return stage if by == "stage" or rank.dp is None else f"{stage}, data rank {rank.dp}"


def _roles(base: Overview, new: Overview, by: PairBy) -> Iterable[RoleChange]:
    before, after = (
        _by([row for row in one.ranks if row.steps], lambda row: rank_role(row.rank, by))
        for one in (base, new)
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
            (link for link in overview.run.links if link.gb_per_s_p50 is not None),
            lambda one: (one.kind, None if one.across_hosts is None else bool(one.across_hosts)),
        )
        for overview in (base, new)
    )
    for (kind, across), olds, news in _paired(before, after):
        rates = [[link.gb_per_s_p50 or 0.0 for link in links] for links in (olds, news)]
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
    """Return {(stage, kernel): (count, ns)}, per step and rank of the stage."""
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
        if one.rank in stages:
            found = sums.setdefault((stages[one.rank], one.name), [0, 0])
            found[0] += one.n
            found[1] += one.total_ns
    return {
        key: (count / max(1, weight[key[0]]), total / max(1, weight[key[0]]))
        for key, (count, total) in sums.items()
    }


def _by(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    result: dict[Key, list[Row]] = {}
    for row in rows:
        result.setdefault(key(row), []).append(row)
    return result


def _paired(
    before: dict[Key, list[Row]], after: dict[Key, list[Row]]
) -> Iterable[tuple[Key, list[Row], list[Row]]]:
    for key in dict.fromkeys((*before, *after)):
        yield key, before.get(key, []), after.get(key, [])


def _pair(olds: list[Row], news: list[Row], value: Callable[[Row], float | None]) -> QuantityPair:
    """Return the mean of a figure in each run."""
    return QuantityPair(_mean(map(value, olds)), _mean(map(value, news)))


def _part(olds: list[RankRow], news: list[RankRow], name: str) -> QuantityPair:
    return _pair(olds, news, lambda row: row.parts[name])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _identity(one: FindingRecord) -> tuple[object, ...]:
    """Return the key that identifies a finding across runs."""
    return one.kind, one.ranks, one.hosts if not one.ranks else (), one.links
