"""Findings of runs of programs, whose true costs are those of the runs without the fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

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


def pipeline(
    chunks: int,
    more: Mapping[int, int] | None = None,
    *,
    early: bool = False,
    kernels: int = 3,
    batches: int = 8,
) -> Program:
    """Return a pipeline whose ranks have several model chunks, and more kernels in some stages.

    If `early`, the receive of a chunk is posted before the chunk that precedes it. Micro-batches
    share the work of a step.
    """
    share = 8 / batches

    def program(rank: Rank) -> Iterator[Operation]:
        stage, last = rank.number, chunks * len(STAGES) - 1
        todo = [
            (chunk * len(STAGES) + stage, ahead)
            for ahead, chunk, _ in order(stage, chunks, batches)
        ]

        def receive(place: int, forward: bool) -> Operation | None:
            source = (stage - (1 if forward else -1)) % len(STAGES)
            is_first = place == (0 if forward else last)
            return (
                None if is_first else rank.message(STAGES, 8 * MIB, 40 * US * share, source=source)
            )

        posted = [receive(*todo[0])] if early else []
        for at, (place, forward) in enumerate(todo):
            if at + early < len(todo):
                posted.append(receive(*todo[at + early]))
            if (got := posted.pop(0)) is not None:
                yield got
            for _ in range(kernels + (more or {}).get(stage, 0)):
                rank.kernel((600 if forward else 1200) * US * share / kernels)
            if place != (last if forward else 0):
                target = (stage + (1 if forward else -1)) % len(STAGES)
                rank.message(STAGES, 8 * MIB, 40 * US * share, to=target)
        yield rank.post("all_reduce", STAGES, 1 * MIB, 30 * US)
        rank.kernel(MS, "Adam")

    return program


def layers_and_stages(rank: Rank) -> Iterator[Operation]:
    """Run a pipeline of four stages with two tensor parallel ranks each."""
    number, stage = rank.number, rank.number // 2
    pair, stages = (2 * stage, 2 * stage + 1), tuple(range(number % 2, 8, 2))
    for forward, _, _ in order(stage, 1):
        ahead = 2 if forward else -2
        if stage != (0 if forward else 3):
            yield rank.message(stages, 8 * MIB, 40 * US, source=number - ahead)
        for _ in range(4):
            rank.kernel((150 if forward else 300) * US)
            yield rank.post("all_reduce", pair, 4 * MIB, 20 * US)
        if stage != (3 if forward else 0):
            rank.message(stages, 8 * MIB, 40 * US, to=number + ahead)
    yield rank.post("all_reduce", WORLD, 4096, 30 * US)
    rank.kernel(MS, "Adam")


def shards(slow_pair: int = -1) -> Program:
    """Return shards within hosts whose gradients are replicated by pairs of ranks."""

    def program(rank: Rank) -> Iterator[Operation]:
        first, place = rank.number // 4 * 4, rank.number % 4
        shard, pair = (*range(first, first + 4),), (place, place + 4)
        for _ in range(6):
            gather = rank.post("all_gather", shard, 64 * MIB, 300 * US)
            for _ in range(4):
                rank.kernel(400 * US)
            yield gather
            yield rank.post("reduce_scatter", shard, 64 * MIB, 100 * US)
            ns = 300 * US * (5 if place == slow_pair else 1)
            reduce = rank.post("all_reduce", pair, 16 * MIB, ns)
        yield reduce
        rank.kernel(MS, "Adam")

    return program


def experts(rank: Rank) -> Iterator[Operation]:
    """Run layers of experts."""
    for _ in range(6):
        for name in ("MatMul", "GroupedMatMul"):
            for _ in range(3):
                rank.kernel(250 * US, name)
            yield rank.post("all_to_all", WORLD, 8 * MIB, 40 * US)
    rank.kernel(MS, "Adam")


def buckets(
    pauses: Callable[[int, int], float] = lambda rank, step: 0,
    gaps: Callable[[int, int], float] = lambda rank, step: 0,
    metrics_ns: float = 0,
) -> Program:
    """Return data parallelism: pauses and gaps after kernels by (rank, step), in ns.

    Rank 0 also runs a kernel that the others do not have.
    """

    def program(rank: Rank) -> Iterator[Operation]:
        rank.now += int(pauses(rank.number, rank.step))
        for _ in range(8):
            for _ in range(4):
                rank.kernel(150 * US)
                rank.now += int(gaps(rank.number, rank.step))
            reduce = rank.post("all_reduce", WORLD, 16 * MIB, 300 * US)
        if metrics_ns and not rank.number:
            rank.kernel(metrics_ns, "Metrics")
        yield reduce
        rank.kernel(MS, "Adam")

    return program


NAMES = {
    WORLD: "world",
    **{(rank, rank + 1): "tp" for rank in (0, 2, 4, 6)},
    **{(*range(rank, 8, 2),): "pp" for rank in (0, 1)},
    **{(rank, rank + 4): "replicate" for rank in range(4)},
    **{(*range(rank, rank + 4),): "shard" for rank in (0, 4)},
}


def findings(
    program: Program, slow: Mapping[int, float] | None = None, group: Group = WORLD
) -> tuple[list[Finding], float]:
    """Return the findings and the length of a step in ms."""
    groups = {STAGES: "pp"} if group == STAGES else NAMES
    run = run_programs(groups, program, world=len(group), slow=slow, steps=6)
    return summarize_run(recorded(run)).ranked, run.step_ns / MS


@pytest.mark.parametrize("pair", [(2, 3), (7, 0)])
def test_slow_link_of_a_ring_is_named_with_its_cost(pair: tuple[int, int]) -> None:
    found, length = findings(ring(pair))
    healthy, usual = findings(ring())
    assert healthy == []
    assert [(one.kind, one.ranks) for one in found] == [("slow_link", tuple(sorted(pair)))]
    assert found[0].cost_ms_per_step == pytest.approx(length - usual, rel=0.05)


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


def test_more_kernels_of_a_stage_in_the_world_group_are_more_work_and_no_late_launches() -> None:
    """Without a group of the pipeline, each stage is a rank without peers."""

    def found(more: Mapping[int, int]) -> tuple[list[Finding], float]:
        program = pipeline(1, more, kernels=30)
        run = run_programs({STAGES: "default_pg"}, program, world=len(STAGES), steps=6)
        return summarize_run(recorded(run)).ranked, run.step_ns / MS

    (first, *rest), length = found({2: 20})
    assert (first.kind, first.ranks) == ("more_work", (2,))
    assert first.figures["kernel"] in first.text
    assert {one.kind for one in rest} <= {"pipeline_bubble"}
    # The cost excludes the gaps between the additional kernels.
    assert first.cost_ms_per_step == pytest.approx(length - found({})[1], rel=0.15)


@pytest.mark.parametrize("group", ["pp", "default_pg"])
@pytest.mark.parametrize("batches", [4, 8])
def test_bubble_costs_what_more_micro_batches_gain(group: str, batches: int) -> None:
    runs = [
        run_programs({STAGES: group}, pipeline(1, batches=count), world=len(STAGES), steps=6)
        for count in (batches, 16)
    ]
    (one,) = summarize_run(recorded(runs[0])).ranked
    assert one.kind == "pipeline_bubble"
    assert f"use 16 micro-batches per step instead of {batches}," in one.text
    gain_ns = runs[0].step_ns - runs[1].step_ns
    assert one.cost_ms_per_step == pytest.approx(gain_ns / MS, rel=0.1)


def test_gaps_that_only_waiting_ranks_hide_are_not_idle_time_of_a_slow_rank() -> None:
    def program(rank: Rank) -> Iterator[Operation]:
        for _ in range(4):
            for _ in range(50):
                rank.kernel(40 * US)
            reduce = rank.post("all_reduce", WORLD, 16 * MIB, 100 * US)
        yield reduce
        rank.kernel(MS, "Adam")

    found, _ = findings(program, {5: 1.15})
    assert [(one.kind, one.ranks) for one in found] == [("slow_rank", (5,))]


def test_messages_of_many_sizes_are_named_by_their_range() -> None:
    def program(rank: Rank) -> Iterator[Operation]:
        for layer in range(4):
            rank.kernel(300 * US)
            size = (8 + 4 * rank.step + layer) * MIB
            yield rank.post("all_to_all", WORLD, size, 400 * US)

    ((finding,), _) = findings(program)
    assert finding.kind == "exposed_communication"
    assert "most in all_to_all of 8.00 MiB to 31.0 MiB, 4 per step" in finding.text


LATE = 5 * MS
# The faults: program, slow ranks, healthy program, finding, and the relative error of its cost.
FAULTS: dict[str, tuple[Program, dict[int, float], Program, tuple[str, Group], float]] = {
    "tensor_parallel": (
        *(layers_and_stages, {5: 1.25}, layers_and_stages),
        *(("slow_rank", (5,)), 0.05),
    ),
    "ring": (ring(), {3: 1.3}, ring(), ("slow_rank", (3,)), 0.1),
    "adapter": (shards(2), {}, shards(), ("slow_link", (2, 6)), 0.05),
    "experts": (
        *(experts, dict.fromkeys(range(4, 8), 1.15), experts),
        *(("slow_host", (4, 5, 6, 7)), 0.05),
    ),
    "checkpoint": (
        *(buckets(lambda rank, step: 10 * LATE * ((rank, step) == (0, 3))), {}, buckets()),
        *(("late_rank", (0,)), 0.05),
    ),
    "rank_without_peers": (
        buckets(lambda rank, _: LATE * (rank == 0), metrics_ns=100 * US),
        *({}, buckets(metrics_ns=100 * US), ("late_rank", (0,)), 0.05),
    ),
    "metrics": (buckets(metrics_ns=2 * MS), {}, buckets(), ("more_work", (0,)), 0.2),
    "idle_in_every_step": (
        *(buckets(lambda rank, step: LATE), {}, buckets()),
        *(("host_bound", ()), 0.05),  # no rank is at fault
    ),
    "host_bound_but_one": (
        *(buckets(gaps=lambda rank, _: 60 * US * (rank != 3)), {}, buckets()),
        *(("host_bound", (0, 1, 2, 4, 5, 6, 7)), 0.2),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_of_a_program_is_its_only_finding(name: str) -> None:
    program, slow, healthy, expected, tolerance = FAULTS[name]
    found, length = findings(program, slow)
    usual_findings, usual = findings(healthy)
    shared = {"exposed_communication", "pipeline_bubble"}
    assert {one.kind for one in usual_findings} <= shared
    first, *rest = found
    assert (first.kind, first.ranks) == expected
    assert {one.kind for one in rest} <= {one.kind for one in usual_findings}
    assert first.cost_ms_per_step == pytest.approx(length - usual, rel=tolerance)


@pytest.mark.parametrize(
    ("per_host", "first_ns", "kinds"),
    [
        (4, 2 * MS, {"host_bound"}),
        (8, 2 * MS, {"host_bound"}),
        (8, 40 * MS, {"host_bound", "late_rank"}),
    ],
)
def test_late_launches_of_a_rank_are_one_finding_with_the_whole_gain(
    per_host: int, first_ns: int, kinds: set[str]
) -> None:
    """Its host is also later at the start of the first step, unless that is another pause."""

    def found(late: int) -> tuple[list[Finding], float]:
        def program(rank: Rank) -> Iterator[Operation]:
            is_late = rank.number == late
            rank.now += (100 * US if rank.step else first_ns) * is_late
            for _ in range(64):
                rank.kernel(30 * US)
                rank.now += 40 * US * is_late
            for _ in range(8):
                for _ in range(4):
                    rank.kernel(150 * US)
                    rank.now += 10 * US * is_late
                reduce = rank.post("all_reduce", WORLD, 16 * MIB, 300 * US)
            yield reduce
            rank.kernel(MS, "Adam")

        run = run_programs(NAMES, program, per_host=per_host, steps=5)
        return [one for one in summarize_run(recorded(run)).ranked if one.ranks], run.step_ns / MS

    (late, length), (healthy, usual) = found(2), found(-1)
    assert healthy == []
    assert {one.kind: one.ranks for one in late} == dict.fromkeys(kinds, (2,))
    assert sum(one.cost_ms_per_step for one in late) == pytest.approx(length - usual, rel=0.05)


@pytest.mark.parametrize("ns", [20 * US, 100 * US])
def test_later_launches_in_a_step_of_host_bound_ranks_are_no_pause(ns: int) -> None:
    late, _ = findings(buckets(gaps=lambda rank, step: 60 * US + ns * (rank == step)))
    pauses = buckets(lambda rank, step: 32 * ns * (rank == step), lambda *_: 60 * US)
    paused, _ = findings(pauses)
    shared = {"exposed_communication"}
    assert {one.kind for one in late} - shared == {"host_bound"}
    assert {one.kind for one in paused} - shared == {"host_bound", "scattered_pauses"}
