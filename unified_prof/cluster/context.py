"""All there is to judge of a run, and what findings about it have in common: words, costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unified_prof.cluster.cause_signals import Evidence, Roles
from unified_prof.cluster.matching import Matched
from unified_prof.cluster.replay import Change, Walk
from unified_prof.cluster.waits import Waits
from unified_prof.recording.model import Finding

MS = 1e6
LEAST_SHARE = 0.002
"""Time that is a smaller part of a step is not worth a name."""
_MOST_OF_A_HOST = 0.75
_FEW_STEPS = 5


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
            return f"at present that costs {'a step' if self.each_ns is None else 'these'} nothing"
        most = "at most " if self.at_most else ""
        if self.each_ns is None:
            return f"costs every step {most}{_ms(ns)}"
        return f"costs each of these {most}{_ms(ns)}, {_ms(self.ns)} a step on average"

    @property
    def figures(self) -> dict[str, Any]:
        """What of it is not in every finding."""
        return {} if self.each_ns is None else {"cost_ms_in_these_steps": self.each_ns / MS}


def cost_of(case: Case, change: Change, steps: Sequence[int], most_ns: float = 0.0) -> Cost:
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


def finding(
    case: Case,
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
        round(cost.ns / MS, 6),
        text,
        {
            name: round(float(value), 6) if isinstance(value, float) else value
            for name, value in {**figures, **cost.figures}.items()
        },
    )


def by_host(case: Case, ranks: Sequence[int]) -> list[tuple[list[int], str | None]]:
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


def in_steps(case: Case, steps: Sequence[int]) -> str:
    """Say in which steps something is, with a blank before it; nothing where it is in all."""
    if set(steps) >= set(case.steps):
        return ""
    if len(steps) == 1:
        return f" in step {steps[0]}"
    if len(steps) <= _FEW_STEPS:
        return f" in steps {', '.join(map(str, steps[:-1]))} and {steps[-1]}"
    return f" in {len(steps)} of {len(case.steps)} steps ({listed(steps, _FEW_STEPS)})"


def listed(items: Sequence[object], most: int = 8) -> str:
    """Return the first of some things in words."""
    shown = [str(one) for one in items[:most]]
    return ", ".join(shown) + (", ..." if len(items) > most else "")


def _ms(ns: float) -> str:
    ms = ns / MS
    return f"{ms:.3g} ms" if ms < 1 else f"{ms:.2f} ms"
