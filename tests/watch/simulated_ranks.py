"""Simulated watch files of synchronous training, from the description of the rows only.

Each rank loads data, runs other code, forward and backward pass; then all ranks wait for the last
one, exchange gradients, and run the optimizer. A rank's clock may differ from those of other hosts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unified_prof.sqlite.watch_file import StepRow, WatchFile

PARTS = ("data", "other", "forward", "backward", "optimizer")
BEGAN_NS = 1_790_000_000_000_000_000


@dataclass(slots=True)
class Job:
    """A job and its fault."""

    ranks: int = 8
    steps: int = 600
    parts_ms: tuple[float, ...] = (1.0, 0.5, 6.0, 10.0, 2.0)
    transfer_ms: float = 3.0
    per_host: int = 4
    spread: float = 0.005
    """Natural relative deviation of the speed of a rank."""
    jitter: float = 0.03
    """Relative deviation of each part of each step."""
    pauses: float = 0.01
    """Share of the parts of steps that take two to five times as long."""
    waits_in: str = "backward"
    """Part in which ranks wait for the others."""
    rank: int | None = None
    """Rank at fault."""
    part: str = "forward"
    extra_ms: float = 0.0
    onset: int = 0
    """First step of the fault."""
    grows: bool = False
    """True if `extra_ms` is reached at the end."""
    seed: int = 0
    offsets_ns: dict[int, int] = field(default_factory=dict)
    """Clock offset by host."""

    def rows(self) -> list[list[StepRow]]:
        """Return the rows of each rank."""
        random = np.random.default_rng(self.seed)
        shape = (self.ranks, self.steps, len(PARTS))
        ms = np.array(self.parts_ms) * (
            1 + self.spread * random.standard_normal((self.ranks, 1, 1))
        )
        ms = ms * np.exp(self.jitter * random.standard_normal(shape))
        ms *= np.where(random.random(shape) < self.pauses, random.uniform(2, 5, shape), 1)
        ms[:, 0] *= 10  # the first step compiles and allocates
        if self.rank is not None:
            late = np.linspace(0 if self.grows else 1, 1, self.steps - self.onset)
            ms[self.rank, self.onset :, PARTS.index(self.part)] += self.extra_ms * late
        begin = np.cumsum(random.uniform(0, 0.2, self.ranks))
        result: list[list[StepRow]] = [[] for _ in range(self.ranks)]
        waits_at = PARTS.index(self.waits_in)
        for step in range(self.steps):
            here = ms[:, step].copy()
            arrival = begin + here[:, : waits_at + 1].sum(axis=1)
            here[:, waits_at] += arrival.max() + self.transfer_ms - arrival
            length = here.sum(axis=1)
            for rank in range(self.ranks):
                start = BEGAN_NS + round(begin[rank] * 1e6)
                start += self.offsets_ns.get(rank // self.per_host, 0)
                data, _, forward, backward, optimizer = (int(ns) for ns in here[rank] * 1e6)
                result[rank].append(
                    StepRow(
                        *(step, start, int(length[rank] * 1e6), data, forward, backward, optimizer),
                        *(0, 0, None, None, None, 32, None),
                    )
                )
            begin = begin + length
        return result

    def write(self, folder: Path, rows: list[list[StepRow]] | None = None) -> Path:
        """Write the files of all ranks, with other rows if they are given."""
        folder.mkdir(exist_ok=True)
        for rank, steps in enumerate(self.rows() if rows is None else rows):
            facts = {
                "rank": str(rank),
                "world_size": str(self.ranks),
                "host": f"node{rank // self.per_host}",
                "device": "cpu",
                "began_ns": str(BEGAN_NS),
            }
            WatchFile(folder, rank, facts).append(steps)
        return folder
