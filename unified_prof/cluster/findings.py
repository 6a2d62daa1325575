"""What costs the run time, in words that say no more than their evidence.

A finding needs evidence of its own cause (kernels, gaps, input, moving data); that others wait
for a rank is none, since late work is handed on. Its cost is what a step would gain without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.finding import Finding
from unified_prof.cluster import links as moved
from unified_prof.cluster.evidence import Evidence
from unified_prof.cluster.links import Slow
from unified_prof.cluster.matching import Matched
from unified_prof.cluster.roles import Roles
from unified_prof.cluster.spread import deviation, farthest
from unified_prof.cluster.waits import Waits
from unified_prof.cluster.walk import Change, Walk

Floats = NDArray[np.float64]

SLOW_RANK = "slow_rank"
SLOW_HOST = "slow_host"
SLOW_LAUNCH = "slow_launch"
LATE_INPUT = "late_input"
SLOW_LINK = "slow_link"

_LEAST_SLOWNESS = 0.015
"""Kernels that are slower by less are not worth a name, however sure."""
_LEAST_GENERAL = 0.6
"""Of a slow rank most kinds of kernel are slower; of one with more work some."""
_LEAST_SHARE = 0.002
"""Idle time that is a smaller part of a step is not worth a name."""
_LEAST_EXCESS = 0.5
"""Gaps that are longer by a smaller part are not worth a name."""
_FEW_RANKS = 5
_MOST_OF_A_HOST = 0.75
_USUAL_GAP_NS = 2_000.0
"""What a device needs between two kernels that both wait for it, of any vendor."""
_MUCH_IDLE = 0.1
"""Where all ranks alike wait so much of a step for input, that is a finding of its own."""
_IDLE_OF_ALL = 0.05
"""The same of devices that stand idle between kernels, where that is longer than usual, too."""
_MS = 1e6


@dataclass(frozen=True, slots=True)
class Case:
    """All there is to judge."""

    matched: Matched
    waits: Waits
    roles: Roles
    evidence: Evidence
    walk: Walk
    steps: tuple[int, ...]
    step_ns: float
    """Length of a step, the median over ranks."""

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


def findings(case: Case) -> list[Finding]:
    """Return all findings, the costliest first; none of a healthy run."""
    found = [one for rule in RULES for one in rule(case)]
    return sorted(found, key=lambda one: (-one.cost_ms_per_step, one.kind, one.ranks))


def slow_kernels(case: Case) -> Iterator[Finding]:
    """Ranks whose kernels take longer than those of other ranks with the same work."""
    evidence = case.evidence
    usual = np.maximum(evidence.slowness_scatter, evidence.slowness_error)
    if len(case.matched.ranks) < 4:  # too few to know how far ranks lie apart
        usual = evidence.slowness_error
    limit = np.maximum(farthest(len(case.matched.ranks)) * usual, _LEAST_SLOWNESS)
    slow = np.flatnonzero(
        (evidence.slowness > limit) & (evidence.general >= _LEAST_GENERAL)
    ).tolist()
    for ranks, host in _by_host(case, slow):
        factors = {one: float(np.exp(evidence.slowness[one])) for one in ranks}
        cost = case.walk.cost_ns(Change(work={one: 1 / f for one, f in factors.items()}))
        worst = max(ranks, key=lambda one: factors[one])
        factor = factors[worst]
        steps = tuple(
            step
            for at, step in enumerate(evidence.steps)
            if evidence.slowness_at[worst, at] > evidence.slowness[worst] / 2
        )
        peers = "pipeline stage" if case.roles.by_stage else "kind of work"
        figures = {
            "factor": round(factor, 4),
            "factor_error": round(float(evidence.slowness_error[worst]) * factor, 4),
            "work_ms_per_step": evidence.work[worst] / max(len(evidence.steps), 1) / _MS,
            "peers_work_ms_per_step": evidence.peers_work[worst]
            / max(len(evidence.steps), 1)
            / _MS,
        }
        if host is None:
            text = (
                f"{case.named(worst)}: its kernels take {factor:.3f} times as long as those of "
                f"the other ranks with its {peers}; {_costs(cost)}"
            )
            yield _finding(case, SLOW_RANK, ranks, steps, cost, text, figures)
        else:
            text = (
                f"host {host}: kernels of {len(ranks)} of its ranks take up to {factor:.2f} times "
                f"as long as those of other hosts' ranks with the same {peers}; {_costs(cost)}"
            )
            yield _finding(case, SLOW_HOST, ranks, steps, cost, text, figures)


def idle_between_kernels(case: Case) -> Iterator[Finding]:
    """Ranks whose devices stand idle between kernels longer than others': their hosts are late."""
    evidence = case.evidence
    excess = evidence.gap - evidence.peers_gap
    if not np.isfinite(excess).any():
        yield from _all_idle(case)
        return
    per_step = excess * evidence.kernels / max(len(evidence.steps), 1)
    limit = np.maximum(
        farthest(len(excess)) * evidence.gap_scatter, _LEAST_EXCESS * evidence.peers_gap
    )
    idle = np.flatnonzero((excess > limit) & (per_step > _LEAST_SHARE * case.step_ns)).tolist()
    hosts = _by_host(case, idle)
    for ranks, host in hosts:
        cut = {one: float(excess[one]) for one in ranks}
        cost = case.walk.cost_ns(Change(gap_ns=cut))
        gap = float(np.median(evidence.gap[ranks]))
        usual = float(np.median(evidence.peers_gap[ranks]))
        figures = {
            "gap_us": round(gap / 1e3, 2),
            "usual_gap_us": round(usual / 1e3, 2),
            "idle_ms_per_step": round(float(np.median(per_step[ranks])) / _MS, 4),
        }
        idle_words = (
            f"idle {gap / 1e3:.1f} µs behind each kernel against {usual / 1e3:.1f} µs elsewhere"
        )
        if host is None:
            text = f"{case.named(ranks[0])}: its device is {idle_words}; {_costs(cost)}"
            yield _finding(case, SLOW_LAUNCH, ranks, case.steps, cost, text, figures)
        else:
            text = f"host {host}: the devices of {_count(ranks)} are {idle_words}; {_costs(cost)}"
            yield _finding(case, SLOW_HOST, ranks, case.steps, cost, text, figures)
    if not hosts:
        yield from _all_idle(case)


def _all_idle(case: Case) -> Iterator[Finding]:
    """All ranks alike: there is nobody to compare with but the device itself."""
    evidence = case.evidence
    if not len(evidence.gap):
        return
    gap = float(np.median(evidence.gap))
    idle = gap * float(np.median(evidence.kernels)) / max(len(evidence.steps), 1)
    if gap <= 2 * _USUAL_GAP_NS or idle <= _IDLE_OF_ALL * case.step_ns:
        return
    ranks = list(range(len(case.matched.ranks)))
    cut = {one: max(float(evidence.gap[one]) - _USUAL_GAP_NS, 0.0) for one in ranks}
    cost = case.walk.cost_ns(Change(gap_ns=cut))
    hosts = case.hosts(ranks)
    where = f"host {hosts[0]}" if len(hosts) == 1 else "all hosts"
    text = (
        f"{where}: the devices of all {_count(ranks)} stand idle {gap / 1e3:.1f} µs behind each "
        f"kernel, one like the other; beside {_USUAL_GAP_NS / 1e3:.0f} µs that {_costs(cost)}"
    )
    figures = {
        "gap_us": round(gap / 1e3, 2),
        "usual_gap_us": _USUAL_GAP_NS / 1e3,
        "idle_ms_per_step": round(idle / _MS, 4),
    }
    yield _finding(case, SLOW_HOST, ranks, case.steps, cost, text, figures)


def late_input(case: Case) -> Iterator[Finding]:
    """Ranks whose devices stand idle while their hosts wait for the data of a step."""
    evidence = case.evidence
    excess = evidence.input_at - evidence.peers_input_at
    known = np.isfinite(excess)
    if known.any():
        scatter = excess
        if len(excess) < _FEW_RANKS:  # half of them may be late: compare with itself
            scatter = evidence.input_at - np.nanmedian(evidence.input_at, axis=1)[:, None]
        limit = farthest(int(known.sum())) * deviation(scatter[known])
        limit = max(limit, _LEAST_SHARE * case.step_ns)
        late_at = known & (excess > limit)
    else:
        late_at = known
    late = np.flatnonzero(late_at.any(axis=1)).tolist()
    for one in late:
        steps = np.flatnonzero(late_at[one]).tolist()
        cut = {(one, evidence.steps[at]): float(excess[one, at]) for at in steps}
        cost = case.walk.cost_ns(Change(input_ns=cut))
        late_ms = float(np.median(excess[one, steps])) / _MS
        numbers = tuple(evidence.steps[at] for at in steps)
        often = "every step" if len(steps) == len(evidence.steps) else f"{len(steps)} steps"
        text = (
            f"{case.named(one)}: its device waits for input {late_ms:.2f} ms longer than others' "
            f"in {often}; {_costs(cost)}"
        )
        figures = {"late_ms": round(late_ms, 4), "input_ms": _median_ms(evidence.input_at[one])}
        yield _finding(case, LATE_INPUT, [one], numbers, cost, text, figures)
    if not late:
        yield from _all_late(case)


def _all_late(case: Case) -> Iterator[Finding]:
    at = case.evidence.input_at
    known = np.isfinite(at)
    if not known.any() or float(np.median(at[known])) <= _MUCH_IDLE * case.step_ns:
        return
    ranks = np.flatnonzero(known.any(axis=1)).tolist()
    cut = {
        (one, step): float(at[one, number])
        for one in ranks
        for number, step in enumerate(case.evidence.steps)
        if known[one, number]
    }
    cost = case.walk.cost_ns(Change(input_ns=cut))
    text = (
        f"all ranks: their devices wait for input {float(np.median(at[known])) / _MS:.2f} ms in "
        f"every step; {_costs(cost)}"
    )
    figures = {"input_ms": round(float(np.median(at[known])) / _MS, 4)}
    yield _finding(case, LATE_INPUT, ranks, case.steps, cost, text, figures)


def slow_links(case: Case) -> Iterator[Finding]:
    """Pairs and groups whose data moves more slowly than that of others like them."""
    pairs = moved.slow_pairs(case.matched, case.waits)
    groups = moved.slow_groups(case.matched, case.waits)
    for slow in [*pairs, *groups]:
        cost = case.walk.cost_ns(Change(transfer=dict.fromkeys(slow.events, 1 / slow.ratio)))
        ranks = case.global_ranks(slow.ranks)
        rates = f"{slow.gb_per_s:.1f} GB/s against {slow.like_gb_per_s:.1f} on links like it"
        figures: dict[str, Any] = {
            "factor": round(slow.ratio, 4),
            "gb_per_s": round(slow.gb_per_s, 3),
            "like_gb_per_s": round(slow.like_gb_per_s, 3),
            "told": slow.pair,
        }
        if slow.pair:
            ends = f"ranks {ranks[0]} and {ranks[1]}{_on(case, slow)}"
            text = f"the link between {ends} is {slow.ratio:.2f} times slower: {rates}"
            ways = [(ranks[0], ranks[1])]
        else:
            kind = case.matched.groups[slow.group].kind
            text = (
                f"a link within the {kind} group of ranks {_listed(ranks)}{_on(case, slow)}: its "
                f"collectives move data {slow.ratio:.2f} times more slowly than those of groups "
                f"like it, which of its links cannot be told"
            )
            order = [rank for rank in case.matched.groups[slow.group].ranks if rank in ranks]
            ways = [*zip(order, [*order[1:], order[0]], strict=True)]
        text = f"{text}; {_costs(cost)}"
        found = _finding(case, SLOW_LINK, slow.ranks, case.steps, cost, text, figures)
        yield replace(found, links=tuple(ways))


def _on(case: Case, slow: Slow) -> str:
    hosts = case.hosts(slow.ranks)
    if not hosts:
        return ""
    return f" ({hosts[0]})" if len(hosts) == 1 else f" (between {_listed(hosts)})"


RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    slow_kernels,
    idle_between_kernels,
    late_input,
    slow_links,
)


def _by_host(case: Case, ranks: Sequence[int]) -> list[tuple[list[int], str | None]]:
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


def _finding(
    case: Case,
    kind: str,
    ranks: Sequence[int],
    steps: Sequence[int],
    cost_ns: float,
    text: str,
    figures: dict[str, Any],
) -> Finding:
    return Finding(
        kind,
        case.global_ranks(ranks),
        case.hosts(ranks),
        (),
        tuple(steps),
        round(cost_ns / _MS, 6),
        text,
        {name: round(float(v), 6) if isinstance(v, float) else v for name, v in figures.items()},
    )


def _costs(cost_ns: float) -> str:
    if cost_ns < 500:
        return "at present that costs a step nothing"
    ms = cost_ns / _MS
    return f"costs every step {ms:.3g} ms" if ms < 1 else f"costs every step {ms:.2f} ms"


def _count(ranks: Sequence[int]) -> str:
    return f"{len(ranks)} ranks" if len(ranks) > 1 else "its rank"


def _listed(items: Sequence[object]) -> str:
    shown = [str(one) for one in items[:8]]
    return ", ".join(shown) + (", ..." if len(items) > 8 else "")


def _median_ms(values: Floats) -> float:
    return round(float(np.nanmedian(values)) / _MS, 4)
