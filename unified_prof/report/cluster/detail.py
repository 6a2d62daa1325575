"""One rank of a run: its steps, groups and links, and its kernels beside those of its stage."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from unified_prof.cluster.overview import LinkRow, Overview, RankRow
from unified_prof.cluster.stored import PARTS, Group


@dataclass(frozen=True, slots=True)
class OperationRow:
    """Kernels of one kind on the rank, and the same on ranks of its stage."""

    name: str
    module: str
    n: int
    total_ns: int
    min_ns: int
    max_ns: int
    stage_ns: float | None
    """Median of the sums of all ranks with the same pipeline stage; None: it is alone."""
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Detail:
    """All that is shown of one rank."""

    row: RankRow
    steps: tuple[tuple[int, dict[str, float | None]], ...]
    """Number of a step -> `span_ns` and PARTS."""
    groups: tuple[Group, ...]
    links: tuple[LinkRow, ...]
    operations: tuple[OperationRow, ...]
    """The longest first."""

    @classmethod
    def of(cls, overview: Overview, number: int, step: int | None = None) -> Detail:
        """Return what is known of rank `number`, of all its steps or of one.

        Raises:
            UsageError: the run has no such rank or step.
        """
        row = overview.rank(number)
        if step is not None:
            overview.step(step)
        return cls(
            row,
            _steps(overview, number, step),
            tuple(one for one in overview.run.groups if number in one.ranks),
            tuple(
                one for one in overview.links if number in (one.link.src_rank, one.link.dst_rank)
            ),
            _operations(overview, row),
        )


def _steps(
    overview: Overview, number: int, step: int | None
) -> tuple[tuple[int, dict[str, float | None]], ...]:
    table = overview.run.steps
    rows = np.flatnonzero(table.rank == number).tolist()
    found: list[tuple[int, dict[str, float | None]]] = []
    for row in rows:
        if step is None or table.step[row] == step:
            parts = {name: _known(table.parts[name][row]) for name in PARTS}
            found.append((int(table.step[row]), {"span_ns": float(table.span_ns[row]), **parts}))
    return tuple(found)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _operations(overview: Overview, row: RankRow) -> tuple[OperationRow, ...]:
    own = row.rank
    stage = tuple(one.rank for one in overview.run.read if one.pp == own.pp)
    others: dict[tuple[str, str], list[int]] = {}
    mine = []
    for one in overview.run.operations(stage):
        others.setdefault((one.name, one.module), []).append(one.total_ns)
        if one.rank == own.rank:
            mine.append(one)
    rows = []
    for one in mine:
        stage_ns = median(others[one.name, one.module]) if len(stage) > 1 else None
        rows.append(
            OperationRow(
                one.name,
                one.module,
                one.n,
                one.total_ns,
                one.min_ns,
                one.max_ns,
                stage_ns,
                one.total_ns / stage_ns if stage_ns else None,
            )
        )
    return tuple(sorted(rows, key=lambda one: -one.total_ns))
