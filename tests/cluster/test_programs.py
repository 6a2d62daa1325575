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


STAGES: Group = (0, 1, 2, 3)


def order(stage: int, chunks: int, batches: int = 8) -> Iterator[tuple[bool, int, int]]:
    """Yield (forward, chunk, micro-batch) of the schedule 1F1B, interleaved as in Megatron."""
    stages, total = len(STAGES), batches * chunks
    warm = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    parts = range(batches // stages)
    forward = [(c, g * stages + i) for g in parts for c in range(chunks) for i in range(stages)]
    backward = [(chunks - 1 - chunk, batch) for chunk, batch in forward]
    yield from ((True, *one) for one in forward[:warm])
    for at in range(total):
        if at + warm < total:
            yield True, *forward[at + warm]
        yield False, *backward[at]


def pipeline(chunks: int, more: Mapping[int, int] | None = None, *, early: bool = False) -> Program:
    """Return a pipeline whose ranks have several model chunks, and more kernels in some stages.

    If `early`, the receive of a chunk is posted before the chunk that precedes it.
    """

    def program(rank: Rank) -> Iterator[Operation]:
        stage, last = rank.number, chunks * len(STAGES) - 1
        todo = [(chunk * len(STAGES) + stage, ahead) for ahead, chunk, _ in order(stage, chunks)]

        def receive(place: int, forward: bool) -> Operation | None:
            source = (stage - (1 if forward else -1)) % len(STAGES)
            is_first = place == (0 if forward else last)
            return None if is_first else rank.message(STAGES, 8 * MIB, 40 * US, source=source)

        posted = [receive(*todo[0])] if early else []
        for at, (place, forward) in enumerate(todo):
            if at + early < len(todo):
                posted.append(receive(*todo[at + early]))
            if (got := posted.pop(0)) is not None:
                yield got
            for _ in range(3 + (more or {}).get(stage, 0)):
                rank.kernel((200 if forward else 400) * US)
            if place != (last if forward else 0):
                target = (stage + (1 if forward else -1)) % len(STAGES)
                rank.message(STAGES, 8 * MIB, 40 * US, to=target)
        yield rank.post("all_reduce", STAGES, 1 * MIB, 30 * US)
        rank.kernel(MS, "Adam")

    return program


def findings(
    program: Program, slow: Mapping[int, float] | None = None, group: Group = WORLD
) -> tuple[list[Finding], float]:
    """Return the findings and the length of a step in ms."""
    name = "pp" if group == STAGES else "world"
    run = run_programs({group: name}, program, world=len(group), slow=slow)
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


# Faults of a pipeline: model chunks per rank, slow ranks, more kernels of a stage, and the finding.
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("chunks", "slow", "more", "kind"),
    [
        (1, {1: 1.35}, {}, "slow_rank"),
        (2, {2: 1.35}, {}, "slow_rank"),
        (2, {1: 1.35}, {}, "slow_rank"),
        (1, {}, {2: 2}, "unequal_stages"),
    ],
)
def test_fault_of_a_stage_of_one_rank_is_found_with_its_cost(
    chunks: int, slow: Mapping[int, float], more: Mapping[int, int], kind: str, early: bool
) -> None:
    found, length = findings(pipeline(chunks, more, early=early), slow, STAGES)
    healthy, usual = findings(pipeline(chunks, early=early), group=STAGES)
    assert [one.kind for one in healthy if one.kind != "pipeline_bubble"] == []
    (first, *rest) = found
    assert (first.kind, first.ranks) == (kind, (*slow, *more))
    assert {one.kind for one in rest} <= {"pipeline_bubble"}
    assert first.cost_ms_per_step == pytest.approx(length - usual, rel=0.05)
