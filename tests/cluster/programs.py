"""Simulator of ranks that run programs, written from the definition of each operation.

A program is a generator: it posts operations and yields those that it waits for. An operation
starts when it is posted and the one before it in its queue has ended. A collective ends for all
members a fixed time after the last start, a message between two ranks likewise, and an exchange
when those of its messages do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.cluster.simulated_run import Plan, SimulatedRun, partials_of
from unified_prof.arrays.grouping import NO_VALUE
from unified_prof.cluster.rank_partial import Partial

US, MS, MIB = 1_000, 1_000_000, 1 << 20
Group = tuple[int, ...]


@dataclass(eq=False)
class Operation:
    """An operation of a rank; `takes` has the time with each partner, or NO_VALUE for all."""

    row: dict[str, Any]
    posted: int
    before: Operation | None
    takes: Mapping[int, int]
    partners: dict[int, Operation]
    members: int

    def start(self) -> int | None:
        """Return when it starts; None if that is not known yet."""
        if self.before is None:
            return self.posted
        end = self.before.end()
        return None if end is None else max(self.posted, end + US)

    def end(self) -> int | None:
        """Return when it ends; None if that is not known yet."""
        if "end" not in self.row and len(self.partners) == self.members:
            ends = []
            for partner, ns in self.takes.items():
                needed = [*self.partners.values()]
                if partner != NO_VALUE:
                    needed = [self, self.partners[partner]]
                ends.append((ns, [one.start() for one in needed]))
            if all(None not in starts for _, starts in ends):
                self.row["start"] = self.start()
                self.row["end"] = max(ns + max(s or 0 for s in starts) for ns, starts in ends)
        return self.row.get("end")


@dataclass
class Rank:
    """A rank that runs a program; kernels and operations are appended to the run."""

    number: int
    run: SimulatedRun
    events: dict[Any, dict[int, Operation]]
    rng: np.random.Generator
    slow: float = 1.0
    now: int = MS
    step: int = 0
    queues: dict[Any, Operation] = field(default_factory=dict)
    counts: dict[Any, int] = field(default_factory=dict)

    def kernel(self, ns: float, name: str = "MatMul") -> None:
        """Run a kernel."""
        end = self.now + int(ns * self.slow * self.rng.normal(1, 0.004))
        self.run.kernels[self.number].append((self.now, end, name))
        self.now = end + 2 * US

    def post(self, kind: str, group: Group, size: int, ns: float) -> Operation:
        """Post a collective."""
        return self._post(kind, group, size, {NO_VALUE: int(ns)}, (kind, group), group)

    def exchange(self, group: Group, size: int, takes: Mapping[int, int]) -> Operation:
        """Post an exchange with some members of a group."""
        return self._post("coalesced", group, size, takes, ("coalesced", group), group)

    def message(self, group: Group, size: int, ns: float, *, to: int = -1, source: int = -1) -> Any:
        """Post a send to a rank, or a receive from one."""
        kind, peer = ("send", to) if to >= 0 else ("receive", source)
        ends = (self.number, to) if to >= 0 else (source, self.number)
        return self._post(kind, group, size, {NO_VALUE: int(ns)}, ends, ends, peer)

    def _post(
        self, kind: str, group: Group, size: int, takes: Mapping[int, int], key: Any,
        members: Sequence[int], peer: int = NO_VALUE,
    ) -> Operation:  # fmt: skip
        number = self.counts[key] = self.counts.get(key, -1) + 1
        partners = self.events.setdefault((key, number), {})
        row = {"kind": kind, "group": group, "seq": number, "bytes": size, "peer": peer}
        row["move"] = NO_VALUE
        queue = (key, kind) if peer != NO_VALUE else group
        before = self.queues.get(queue)
        one = Operation(row, self.now, before, takes, partners, len(members))
        partners[self.number] = self.queues[queue] = one
        self.run.operations[self.number].append(row)
        return one


Program = Callable[[Rank], Iterator[Operation]]


def run_programs(
    groups: Mapping[Group, str],
    program: Program,
    *,
    world: int = 8,
    steps: int = 4,
    per_host: int = 4,
    slow: Mapping[int, float] | None = None,
) -> SimulatedRun:
    """Return the run in which each rank runs a program in each step."""
    plan = Plan(tp=1, dp=world, pp=1, per_host=per_host, loader=False, steps=steps)
    lists: list[list[list[Any]]] = [[[] for _ in range(world)] for _ in range(4)]
    kernels, operations, bounds, inputs = lists
    clock, wait, drift = [0] * world, [0] * world, [0.0] * world
    run = SimulatedRun(plan, dict(groups), kernels, operations, bounds, inputs, clock, wait, drift)
    events: dict[Any, dict[int, Operation]] = {}

    def all_steps(rank: Rank) -> Iterator[Operation]:
        for rank.step in range(steps):
            begin = rank.now
            rank.now += 150 * US
            yield from program(rank)
            run.steps[rank.number].append((begin, rank.now))

    ranks = [
        Rank(one, run, events, np.random.default_rng(one), (slow or {}).get(one, 1.0))
        for one in range(world)
    ]
    programs = [all_steps(rank) for rank in ranks]
    waits: list[Operation | None] = [next(one) for one in programs]
    while any(waits):
        moved = False
        for at, rank in enumerate(ranks):
            while (one := waits[at]) is not None and (end := one.end()) is not None:
                moved = True
                rank.now = max(rank.now, end + 3 * US)
                waits[at] = next(programs[at], None)
        assert moved, "deadlock"
    used = {row["group"] for rows in operations for row in rows}
    run.groups = {ranks: name for ranks, name in groups.items() if ranks in used}
    for partners in events.values():
        assert all(one.end() is not None for one in partners.values()), "no partner"
    return run


def recorded(run: SimulatedRun) -> list[Partial]:
    """Return the partials of the ranks, recorded on GPUs."""
    return partials_of(run, vendor="nvidia")
