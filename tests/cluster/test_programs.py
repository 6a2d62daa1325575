"""Findings of runs of programs, whose true costs are those of the runs without the fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.cluster.programs import (
    MIB,
    MS,
    US,
    Group,
    Operation,
    Program,
    Rank,
    recorded,
    run_programs,
)
from unified_prof.cluster.summary import summarize_run
from unified_prof.recording.model import Finding

WORLD: Group = tuple(range(8))


def ring(slow_link: tuple[int, int] | None = None) -> Program:
    """Return ring attention: keys move on while the attention to the last ones is computed."""

    def program(rank: Rank) -> Iterator[Operation]:
        right, left = (rank.number + 1) % 8, (rank.number - 1) % 8
        pairs = {right: (rank.number, right), left: (left, rank.number)}
        takes = {to: 100 * US * (5 if pair == slow_link else 1) for to, pair in pairs.items()}
        for _ in range(3):
            rank.kernel(300 * US)
            for hop in range(8):
                if hop < 7:
                    exchange = rank.exchange(WORLD, 8 * MIB, takes)
                rank.kernel(150 * US, "Attention")
                if hop < 7:
                    yield exchange
            yield rank.post("all_reduce", WORLD, 16 * MIB, 200 * US)
        rank.kernel(MS, "Adam")

    return program


def findings(
    program: Program, slow: Mapping[int, float] | None = None
) -> tuple[list[Finding], float]:
    """Return the findings and the length of a step in ms."""
    run = run_programs({WORLD: "world"}, program, slow=slow)
    return summarize_run(recorded(run)).ranked, run.step_ns / MS


@pytest.mark.parametrize("pair", [(2, 3), (7, 0)])
def test_slow_link_of_a_ring_is_named_with_its_cost(pair: tuple[int, int]) -> None:
    found, length = findings(ring(pair))
    healthy, usual = findings(ring())
    assert healthy == []
    assert [(one.kind, one.ranks) for one in found] == [("slow_link", tuple(sorted(pair)))]
    assert found[0].cost_ms_per_step == pytest.approx(length - usual, rel=0.05)


def test_late_rank_of_a_ring_is_no_slow_link() -> None:
    found, _ = findings(ring(), slow={3: 1.3})
    assert [(one.kind, one.ranks) for one in found] == [("slow_rank", (3,))]
